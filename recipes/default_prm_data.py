"""The step labels that the default PRM is trained on: right steps beside wrong ones, from worked problems.

    python recipes/default_prm_data.py OUT --gsm8k train.jsonl.gz [--svamp svamp.jsonl.gz] [--seed 0]

Writes `gsm8k.jsonl` and `svamp.jsonl` in the folder OUT, in the layout that `stepmark train` reads. A function of its seed.
`docs/exact.md` says what the rows are, `docs/default-prm.md` what came of them.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

from stepmark.labels.contrast import contrasts
from stepmark.labels.slips import compute
from stepmark.problems.gsm8k import Worked, read_gsm8k
from stepmark.records import Problem
from stepmark.store import atomic_rows, read_rows


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
    rows = 0
    with atomic_rows(out) as write:
        for number, worked in enumerate(problems):
            for row in contrasts(worked, random.Random(seed * 1_000_003 + number)):
                write(asdict(row))
                rows += 1
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--gsm8k", type=Path, required=True)
    parser.add_argument("--svamp", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(
        write_contrasts(read_gsm8k(arguments.gsm8k), arguments.out / "gsm8k.jsonl", arguments.seed),
        "rows of GSM8K",
    )
    if arguments.svamp is not None:
        print(
            write_contrasts(read_svamp(arguments.svamp), arguments.out / "svamp.jsonl", arguments.seed),
            "rows of SVAMP",
        )


if __name__ == "__main__":
    main()
