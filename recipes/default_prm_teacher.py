r"""Step probabilities of a 7B PRM as soft labels for the default PRM: distillation.

    python recipes/default_prm_teacher.py OUT --candidates FILE … [--teacher qwen-7b] [--benchmark FILE …] [--beside FILE=PARTS …]
        [--samples FILE=PARTS …] [--rounds 6] [--from-round 1] [--each 2] [--easy 0.25] [--held-out 0.1] [--seed 0]

FILE has rows `{"problem", "gold", "in_processbench", "candidates": [{"text", "steps", "scores": {TEACHER: [a probability a step]}}]}`: sampled
solutions that published PRMs have scored (StrictPRMBench). Problems marked `in_processbench`, and those with the words of a `--benchmark`
problem, are left out.

A solution is kept where the teacher and the final answer agree: right answer and every step at 0.5 or above, or wrong answer and a step
below. It ends at the first step below 0.5, since what follows an error has no clear label. The label of a step is the teacher's probability,
as a share; `stepmark train --objective soft` fits it.

Writes `round-1.jsonl`, `round-2.jsonl`, …: in each round a problem gives `--each` wrong solutions and as many right ones that no
earlier round had; one of which no wrong solution is left gives a right one with the probability `--easy`. Rows of `--beside` join them: the
problems of each such file are dealt to so many parts, and each round takes one; of `--samples` likewise, but of a problem no more right solutions
than wrong ones, and of a problem without a wrong one a right one with the probability `--easy`. `--from-round` numbers the rounds that are written from there: those before are dealt too, and not
written. `teacher_held_out.jsonl` has up to four right and six wrong solutions
of each other problem, each step labelled right or wrong. `taught.jsonl` names the candidates' problems that are trained on. A function of its seed.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from default_prm_data import Problems

from stepmark.data.formats.own import to_row
from stepmark.data.reading import read_rows
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step
from stepmark.store import atomic_rows
from stepmark.verifiers.base import Verifier, load_verifier

THRESHOLD = 0.5
"""A step that the teacher scores lower is an error: the threshold of Qwen2.5-Math-PRM-7B on ProcessBench."""
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A solution up to the first step that the teacher calls wrong, with the teacher's probabilities."""

    solution: Solution
    scores: tuple[float, ...]

    @property
    def right(self) -> bool:
        """Whether the teacher finds no error."""
        return self.scores[-1] >= THRESHOLD

    def labelled(self, teacher: str, *, hard: bool = False) -> LabelledSolution:
        """The solution with a judgement of each step: the probability as a share, or right and wrong (`hard`)."""
        return LabelledSolution(
            solution=self.solution,
            judgements=tuple(
                (
                    Judgement(kind="correctness", judge=teacher, rating=1 if score >= THRESHOLD else -1)
                    if hard
                    else Judgement(kind="value", judge=teacher, share=score),
                )
                for score in self.scores
            ),
        )


def is_correct(verifier: Verifier, text: str, gold: str) -> bool | None:
    """Whether the final answer is right. Where the verifier reads none and `gold` is a number: right where it is the last number of the last
    line, wrong where that line has other numbers only."""
    outcome = verifier.verify(text, gold).outcome
    if outcome in ("match", "mismatch"):
        return outcome == "match"
    shown = _NUMBER.findall(text.strip().rpartition("\n")[2])
    wanted = _NUMBER.fullmatch(gold.strip())
    if not shown or wanted is None:
        return None
    numbers = [_value(number) for number in shown]
    if numbers[-1] == _value(wanted[0]):
        return True
    return None if _value(wanted[0]) in numbers else False


def _value(number: str) -> Fraction:
    return Fraction(number.replace(",", "").rstrip("."))


def agreed(
    row: Mapping[str, Any], teacher: str, verifier: Verifier, counts: Counter[str]
) -> Iterator[Scored]:
    """The distinct candidates of a problem on which teacher and final answer agree, in their order."""
    seen: set[tuple[str, ...]] = set()
    for number, candidate in enumerate(row["candidates"]):
        steps, scores = candidate["steps"], candidate["scores"].get(teacher)
        if not steps or scores is None or len(steps) != len(scores) or not all(map(str.strip, steps)):
            counts["without usable scores"] += 1
            continue
        error = next((at for at, score in enumerate(scores) if score < THRESHOLD), None)
        correct = is_correct(verifier, candidate["text"], str(row["gold"]))
        if correct is None or correct != (error is None):
            known = "no readable answer" if correct is None else f"answer {'right' if correct else 'wrong'}"
            counts[f"{known}, teacher finds {'no error' if error is None else 'an error'}"] += 1
            continue
        kept = tuple(steps if error is None else steps[: error + 1])
        if kept in seen:
            counts["repeated"] += 1
            continue
        seen.add(kept)
        counts["right" if error is None else "wrong"] += 1
        problem = Problem(text=row["problem"], answer=str(row["gold"]), id=row["id"])
        yield Scored(
            solution=Solution(
                problem=problem, steps=tuple(Step(text=step) for step in kept), id=f"{row['id']}/{number}"
            ),
            scores=tuple(scores[: len(kept)]),
        )


def rounds(
    scored: Sequence[Scored], each: int, easy: float, count: int, rng: random.Random
) -> list[list[Scored]]:
    """The solutions of one problem by round: `each` wrong ones and as many right ones; or one right one, with the probability `easy`."""
    right, wrong = ([one for one in scored if one.right is kind] for kind in (True, False))
    rng.shuffle(right)
    rng.shuffle(wrong)
    made = []
    for _ in range(count):
        bad = [wrong.pop() for _ in range(min(each, len(wrong)))]
        wanted = len(bad) or int(rng.random() < easy)
        good = [right.pop() for _ in range(min(wanted, len(right)))]
        made.append([*good, *bad])
    return made


def held_out(scored: Sequence[Scored], rng: random.Random) -> list[Scored]:
    """Up to four right and six wrong solutions of a problem that is not trained on."""
    right, wrong = ([one for one in scored if one.right is kind] for kind in (True, False))
    rng.shuffle(right)
    rng.shuffle(wrong)
    return [*right[:4], *wrong[:6]]


def dealt(file: Path, parts: int, seed: int, easy: float | None = None) -> list[list[dict[str, Any]]]:
    """Rows of labelled solutions in parts, all of a problem in one; with `easy` they are `balanced`."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in read_rows(str(file)):
        groups.setdefault(row.data["solution"]["problem"]["text"], []).append(dict(row.data))
    order = list(groups.values())
    rng = random.Random(f"{seed}/{file.name}")
    rng.shuffle(order)
    if easy is not None:
        order = [balanced(group, easy, rng) for group in order]
    return [[row for group in order[part::parts] for row in group] for part in range(parts)]


def balanced(group: Sequence[dict[str, Any]], easy: float, rng: random.Random) -> list[dict[str, Any]]:
    """The wrong solutions of a problem and as many right ones; where none is wrong, one right one with the probability `easy`."""
    right, wrong = ([row for row in group if _has_error(row) is kind] for kind in (False, True))
    wanted = len(wrong) or int(rng.random() < easy)
    return [*wrong, *rng.sample(right, min(wanted, len(right)))]


def _has_error(row: Mapping[str, Any]) -> bool:
    return any(judgement["share"] < THRESHOLD for step in row["judgements"] for judgement in step)


def write(rows: Iterable[Mapping[str, Any]], file: Path) -> int:
    """Write rows; how many."""
    count = 0
    with atomic_rows(file) as line:
        for row in rows:
            line(row)
            count += 1
    return count


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--candidates", type=Path, nargs="+", required=True)
    parser.add_argument("--teacher", default="qwen-7b")
    parser.add_argument("--benchmark", type=Path, nargs="+", default=[])
    parser.add_argument("--beside", nargs="+", default=[], metavar="FILE=PARTS")
    parser.add_argument("--samples", nargs="+", default=[], metavar="FILE=PARTS")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--from-round", type=int, default=1)
    parser.add_argument("--each", type=int, default=2)
    parser.add_argument("--easy", type=float, default=0.25)
    parser.add_argument("--held-out", type=float, default=0.1, help="share of the problems")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    benchmark = Problems(asked.benchmark)
    training: list[list[list[Scored]]] = []
    held: list[Scored] = []
    taught: list[str] = []
    with load_verifier("math") as verifier:
        for file in asked.candidates:
            counts: Counter[str] = Counter()
            rows = [row.data for row in read_rows(str(file))]
            free = [row for row in rows if not row["in_processbench"] and row["problem"] not in benchmark]
            rng = random.Random(f"{asked.seed}/{file.name}")
            rng.shuffle(free)
            for at, row in enumerate(free):
                scored = list(agreed(row, asked.teacher, verifier, counts))
                if at < asked.held_out * len(free):
                    held += held_out(scored, random.Random(row["id"]))
                elif scored:
                    training.append(rounds(scored, asked.each, asked.easy, asked.rounds, rng))
                    taught.append(str(row["problem"]))
            found = "; ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
            print(f"{file.name}: {len(free)} of {len(rows)} problems; {found}")
    random.Random(asked.seed).shuffle(training)
    others = []
    for names, easy in ((asked.beside, None), (asked.samples, asked.easy)):
        for name in names:
            file, _, parts = name.rpartition("=")
            others.append(dealt(Path(file), int(parts), asked.seed, easy))
    for number in range(asked.from_round - 1, asked.rounds):
        chosen = [one for problem in training for one in problem[number]]
        beside = [row for parts in others for row in parts[number % len(parts)]]
        file = asked.out / f"round-{number + 1}.jsonl"
        write([*(to_row(one.labelled(asked.teacher)) for one in chosen), *beside], file)
        wrong = sum(not one.right for one in chosen)
        print(
            f"{file.name}: {len(chosen):,} solutions, {wrong:,} with an error, and {len(beside):,} rows of others"
        )
    count = write(
        (to_row(one.labelled(asked.teacher, hard=True)) for one in held), asked.out / "teacher_held_out.jsonl"
    )
    print(f"held out: {count:,} solutions, {sum(not one.right for one in held):,} with an error")
    write(({"problem": text} for text in taught), asked.out / "taught.jsonl")


if __name__ == "__main__":
    main()
