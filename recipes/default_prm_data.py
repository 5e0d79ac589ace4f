"""The step labels that the default PRM is trained on: right steps beside wrong ones, from worked problems, and people's ratings.

    python recipes/default_prm_data.py OUT --gsm8k train.jsonl.gz [--svamp svamp.jsonl.gz] [--prm800k phase1_train.jsonl.gz]
        [--tokens 900000] [--held-out 135] [--seed 0]

Writes `gsm8k.jsonl`, `svamp.jsonl` and `prm800k.jsonl` in the folder OUT, in the layout that `stepmark train` reads, and `held_out.jsonl`:
whole solutions of other problems, of GSM8K and of PRM800K in equal parts, one right and one that ends at an error of each. With `--tokens`
the sources are cut to their shares of so many distinct tokens, problem by problem. A function of its seed. `docs/exact.md` says what the rows
are, `docs/default-prm.md` what came of them.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal, NamedTuple

from stepmark.labels.contrast import contrasts
from stepmark.labels.slips import compute
from stepmark.problems.gsm8k import Worked, read_gsm8k
from stepmark.records import Judgement, LabelledSolution, Problem
from stepmark.solutions.interchange import LabelledRow, read_labelled, to_row
from stepmark.store import atomic_rows, read_rows

SHARES = {"gsm8k": 0.60, "svamp": 0.12, "prm800k": 0.28}
"""Of the tokens."""
JOINED = 0.5
"""Share of PRM800K's step borders that are taken away: people cut more finely than models do."""
MAX_TOKENS = 512
"""Longer solutions are not counted, as training leaves them out (`--max-tokens`)."""


def read_svamp(file: Path) -> Iterator[Worked]:
    """SVAMP's problems (`Body`, `Question`, `Equation`, `Answer`), the equation as a worked line of one step."""
    for row in read_rows(str(file)):
        body, question = str(row.data["Body"]).strip(), str(row.data["Question"]).strip()
        equation = re.sub(r"(\d+)\.0\b", r"\1", str(row.data["Equation"])).replace(" ", "")
        if equation.startswith("(") and equation.endswith(")") and equation.count("(") == 1:
            equation = equation[1:-1]
        value = compute(equation)
        if value is None or value.denominator != 1 or value != Fraction(str(row.data["Answer"])):
            continue
        unit = re.search(r"[Hh]ow many (?:more |fewer |less |extra )?([a-z]+s)\b", question)
        text = f"{body}{'' if body.endswith(('.', '?', '!')) else '.'} {question}"
        result = f"{equation} = <<{equation}={value}>>{value}{' ' + unit[1] if unit else ''}"
        yield Worked(
            problem=Problem(text=text, answer=str(value), id=row.where, source="SVAMP"),
            lines=(f"The result is {result}.",),
        )


def write_contrasts(problems: Iterable[Worked], out: Path, seed: int) -> int:
    """All branches of all problems as labelled solutions; how many."""
    return write(_contrasts(enumerate(problems), seed), out).rows


def _contrasts(numbered: Iterable[tuple[int, Worked]], seed: int) -> Iterator[list[LabelledSolution]]:
    for number, worked in numbered:
        yield list(contrasts(worked, random.Random(seed * 1_000_003 + number)))


class Wrote(NamedTuple):
    """What went into a file."""

    problems: int
    rows: int
    tokens: int
    """Distinct ones; 0 where nobody counted."""


def write(
    groups: Iterable[Sequence[LabelledSolution]],
    out: Path,
    *,
    limit: float | None = None,
    size: Callable[[Sequence[LabelledSolution]], int] = lambda group: 0,
    without: frozenset[str] = frozenset(),
) -> Wrote:
    """Groups of labelled solutions, one a problem, until there are as many tokens as are wanted.

    Args:
        groups: in the order in which they are taken.
        out: the file.
        limit: tokens; None takes all.
        size: distinct tokens of a group.
        without: texts of problems that are held out.
    """
    problems = rows = tokens = 0
    with atomic_rows(out) as line:
        for group in groups:
            if limit is not None and tokens >= limit:
                break
            kept = [row for row in group if row.solution.problem.text not in without]
            for row in kept:
                line(to_row(row))
            problems, rows, tokens = problems + bool(kept), rows + len(kept), tokens + size(kept)
    return Wrote(problems=problems, rows=rows, tokens=tokens)


def rated(file: Path, seed: int) -> list[list[LabelledSolution]]:
    """PRM800K's ratings by problem, as `stepmark train` reads them, half of the borders between steps taken away."""
    from stepmark.training.examples import by_problem, coarsen, examples

    return [
        [
            LabelledSolution(
                solution=example.solution,
                judgements=tuple(
                    ()
                    if t is None
                    else (Judgement(kind="correctness", judge="human", rating=1 if t.value else -1),)
                    for t in example.targets
                ),
            )
            for example in (coarsen(one, JOINED, seed) for one in group)
        ]
        for group in by_problem(examples(read_labelled(file)))
    ]


def whole(right: LabelledSolution | None, wrong: LabelledSolution | None) -> list[LabelledSolution]:
    """A right solution and one that ends at its first error, every step judged; none unless there are both."""
    if right is None or wrong is None:
        return []
    pairs: tuple[tuple[LabelledSolution, Literal[-1, 1]], ...] = ((right, 1), (wrong, -1))
    return [
        LabelledSolution(
            solution=row.solution,
            judgements=tuple(
                (Judgement(kind="correctness", judge="recipe", rating=rating if at == last else 1),)
                for at in range(last + 1)
            ),
        )
        for row, rating in pairs
        for last in (len(row.solution.steps) - 1,)
    ]


def held_contrast(worked: Worked, rng: random.Random) -> list[LabelledSolution]:
    """The worked solution in prose, and one of its wrong branches."""
    rows = list(contrasts(worked, rng, changed=0.0, joined=JOINED))
    good = [row for row in rows if _last(row) == 1]
    bad = [row for row in rows if _last(row) == -1]
    return whole(
        max(good, key=lambda row: len(row.solution.steps), default=None), rng.choice(bad) if bad else None
    )


def held_rated(
    group: Sequence[LabelledSolution], finished: frozenset[str], rng: random.Random
) -> list[LabelledSolution]:
    """A right solution that comes to its end, and one that ends at an error.

    Args:
        group: of one problem.
        finished: last words of PRM800K's right solutions.
        rng: chooses.
    """
    good = [row for row in group if _last(row) == 1 and row.solution.steps[-1].text.endswith(tuple(finished))]
    bad = [row for row in group if _last(row) == -1]
    return whole(rng.choice(good) if good else None, rng.choice(bad) if bad else None)


def _last(row: LabelledSolution) -> int | None:
    judged = row.judgements[-1]
    return judged[0].rating if judged else None


def _tokens_of(base: str) -> Callable[[Sequence[LabelledSolution]], int]:
    """How many distinct tokens the trees of a group hold, as training packs them."""
    from stepmark.models.backbone import load_tokenizer
    from stepmark.models.encoding import Encoder
    from stepmark.models.places import find_checkpoint
    from stepmark.training.examples import Dropped, by_problem, examples
    from stepmark.training.items import items_of
    from stepmark.training.layouts import layout_for

    tokenizer = load_tokenizer(find_checkpoint(base))
    encoder = Encoder(
        tokenizer, layout_for(tokenizer, mark=None, layout="auto", marked=True), max_tokens=MAX_TOKENS
    )

    def size(group: Sequence[LabelledSolution]) -> int:
        ready = examples(LabelledRow(labelled=row, where="") for row in group)
        return sum(
            len(item.tree)
            for one in by_problem(ready)
            for item in items_of(one, encoder, budget=2 * MAX_TOKENS, dropped=Dropped())
        )

    return size


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--gsm8k", type=Path, required=True)
    parser.add_argument("--svamp", type=Path)
    parser.add_argument("--prm800k", type=Path)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--held-out", type=int, default=0, help="problems of GSM8K, and as many of PRM800K")
    parser.add_argument("--base", default="stepmark:smollm2-135m-instruct", help="whose tokens are counted")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    size = (lambda group: 0) if asked.tokens is None else _tokens_of(asked.base)

    held: list[LabelledSolution] = []
    gsm8k = list(enumerate(read_gsm8k(asked.gsm8k)))
    gsm8k_held: set[int] = set()
    if asked.tokens is not None or asked.held_out:
        # By chance: cut short, the first problems of a file are no fair share of it.
        random.Random(asked.seed).shuffle(gsm8k)
    for number, worked in gsm8k:
        if len(gsm8k_held) == asked.held_out:
            break
        pair = held_contrast(worked, random.Random(-1 - number))
        held += pair
        gsm8k_held |= {number} if pair else set()
    sources: dict[str, Iterable[Sequence[LabelledSolution]]] = {
        "gsm8k": _contrasts(((n, w) for n, w in gsm8k if n not in gsm8k_held), asked.seed)
    }
    if asked.svamp is not None:
        svamp = list(enumerate(read_svamp(asked.svamp)))
        if asked.tokens is not None:
            random.Random(asked.seed).shuffle(svamp)
        sources["svamp"] = _contrasts(svamp, asked.seed)
    if asked.prm800k is not None:
        groups = rated(asked.prm800k, asked.seed)
        random.Random(asked.seed).shuffle(groups)
        finished = frozenset(
            row.solution.steps[-1].text.strip()
            for row in read_labelled(asked.prm800k)
            if isinstance(row.meta.get("prm800k"), dict) and row.meta["prm800k"].get("solution")
        )
        rest: list[list[LabelledSolution]] = []
        count = 0
        for number, group in enumerate(groups):
            pair = held_rated(group, finished, random.Random(number)) if count < asked.held_out else []
            held, count = held + pair, count + bool(pair)
            if not pair:
                rest.append(group)
        sources["prm800k"] = rest
    without = frozenset(row.solution.problem.text for row in held)
    if held:
        wrote = write([held], asked.out / "held_out.jsonl")
        print(f"held out: {wrote.rows} solutions of {len(without)} problems")
    together = sum(SHARES[name] for name in sources)
    for name, one in sources.items():
        limit = None if asked.tokens is None else asked.tokens * SHARES[name] / together
        wrote = write(one, asked.out / f"{name}.jsonl", limit=limit, size=size, without=without)
        counted = f", {wrote.tokens:,} tokens" if asked.tokens is not None else ""
        print(f"{name}: {wrote.rows:,} rows of {wrote.problems:,} problems{counted}", flush=True)


if __name__ == "__main__":
    main()
