"""The PRMs of the benchmark of policy training: the arithmetic world's truth, as two kinds of step labels tell it, and one that learnt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from stepmark.errors import InputError
from stepmark.models.load import load_prm
from stepmark.models.prm import PRM
from stepmark.models.scripted import ScriptedPRM
from stepmark.problems.arithmetic import read_arithmetic
from stepmark.problems.arithmetic_world import true_labels

RIGHT, WRONG = 0.95, 0.05
"""Scores of a PRM that knows: as far from certain as a good PRM's."""


def exact_prm() -> PRM:
    """Is the last step right in itself? The truth of the arithmetic world as a PRM of correctness; what states nothing of the problem is not right."""
    return _knowing("the world's truth", lambda labels: labels[-1])


def first_error_prm() -> PRM:
    """Is every step right so far? Truth as labels up to the first error tell it (PRM800K, ProcessBench, Math-Shepherd): after a wrong step none is right."""
    return _knowing("the world's truth up to the first error", all)


def _knowing(name: str, verdict: Callable[[Sequence[bool]], bool]) -> PRM:
    read = lru_cache(maxsize=None)(read_arithmetic)

    def score(problem: str, steps: tuple[str, ...]) -> float:
        try:
            labels, _ = true_labels(read(problem), steps)
        except InputError:
            return WRONG
        return RIGHT if verdict(labels) else WRONG

    return ScriptedPRM(score, name=name)


RECIPE = """
problems arithmetic --count 100 --steps 3 6 --largest 99 --surface formula --seed 1 --out OUT/problems.jsonl
problems arithmetic --count 1000 --steps 3 6 --largest 99 --surface formula --seed 3 --out OUT/more.jsonl --solutions OUT/right.jsonl
sample OUT/problems.jsonl --policy stepmark:arithmetic --n 3 --temperature 1 --verifier number --out OUT/solutions.jsonl
label rollout OUT/solutions.jsonl --policy stepmark:arithmetic --k 4 --temperature 1 --verifier number --out OUT/rollouts.jsonl
label formulas OUT/solutions.jsonl --out OUT/formulas.jsonl
label exact OUT/right.jsonl --wrong 8 --seed 1 --out OUT/exact.jsonl --keep-going
train OUT/exact.jsonl OUT/rollouts.jsonl OUT/formulas.jsonl --base stepmark:arithmetic --objective soft --full --learning-rate 2e-3 --epochs 2 \
--token-budget 1024 --dtype float32 --evaluations 1 --out OUT/prm
"""
"""Commands of `recipes/tiny.sh`, up to the PRM."""


def recipe_prm(folder: Path) -> PRM:
    """A PRM trained from the tiny policy by the commands of `recipes/tiny.sh`; made once.

    Raises:
        SystemExit: a command failed.
    """
    from stepmark.cli import main as stepmark

    if not (folder / "prm").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        for command in filter(None, RECIPE.splitlines()):
            words = [word.replace("OUT", str(folder)) for word in command.split()]
            code = stepmark(words)
            if code not in (0, 1):  # 1: rows that were left out, as `--keep-going` allows
                raise SystemExit(f"stepmark {' '.join(words[:2])} ended with {code}")
    return load_prm(str(folder / "prm"), dtype="float32", device="cpu")
