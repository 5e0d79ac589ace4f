"""Solutions that models wrote, from three public repositories, in the shape that `default_prm_data.py --samples` reads.

    python recipes/default_prm_samples.py OUT [--vtg FOLDER] [--llm-adapters FOLDER] [--reft FOLDER]

The folders are checkouts of the repositories that docs/default-prm.md names. Writes `vtg.jsonl`, `llm_adapters.jsonl` and `reft.jsonl` in the
folder OUT, one row a solution: {"problem", "steps" or "solution", "answer", "correct"}, and where there are any "reference" (a worked solution)
and "first_errors" (the step that each teacher named, from 0).
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from stepmark.labels.exact import compute
from stepmark.store import atomic_rows

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def vtg(folder: Path) -> Iterator[dict[str, Any]]:
    """Verify-then-generate: wrong solutions of GPT-3.5 on GSM8K, a row for each teacher who named the first error."""
    solutions: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in _read(folder / "dataset/dataset.json"):
        steps = [step.strip() for step in row["student_incorrect_solution"] if step.strip()]
        if _NUMBER.fullmatch(steps[-1]):  # the answer alone, which is no step
            steps.pop()
        if row["incorrect_index"] >= len(steps):
            continue
        reference = row["reference_solution"].strip()
        made = solutions.setdefault(
            (row["problem"], *steps),
            {
                "problem": row["problem"],
                "steps": steps,
                "answer": reference.split("\n")[-1].strip(),
                "correct": False,
                "reference": reference,
                "first_errors": [],
                "source": "VtG",
                "model": "GPT-3.5",
            },
        )
        made["first_errors"].append(row["incorrect_index"])
    yield from solutions.values()


def llm_adapters(folder: Path) -> Iterator[dict[str, Any]]:
    """LLM-Adapters: GPT-3.5 on SVAMP, MultiArith, AddSub and SingleEq, and its training file, right and wrong by the final number."""
    seen: set[str] = set()
    for name in ("SVAMP", "MultiArith", "AddSub", "SingleEq"):
        references = {
            _key(question): reference
            for row in _read(folder / f"dataset/{name}/{name}.json")
            if (reference := _reference(row)) is not None
            for question in [f"{row.get('Body', '')} {row['sQuestion']}"]
        }
        for row in _read(folder / f"dataset/{name}/{name.lower()}_1.json"):
            yield from _adapter(
                row["question"], row["chain-of-thought"], row["answer"], name, references, seen
            )
    for row in _read(folder / "ft-training_set/math_data.json"):
        yield from _adapter(row["instruction"], row["output"], row["answer"], "LLM-Adapters", {}, seen)


def reft(folder: Path) -> Iterator[dict[str, Any]]:
    """ReFT: right solutions of GPT-3.5 on SVAMP's training part."""
    for row in _read(folder / "data/svamp_nl.json"):
        text = re.sub(r"the answer is <([^<>]*)>", r"the answer is \1", row["answer_cot"]).strip()
        yield {
            "problem": row["question"],
            "solution": text,
            "answer": row["answer_value"],
            "correct": True,
            "source": "ReFT",
            "model": "GPT-3.5",
        }


SOURCES: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    "vtg": vtg,
    "llm_adapters": llm_adapters,
    "reft": reft,
}


def _read(file: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return rows


def _adapter(
    question: str, text: str, answer: object, source: str, references: dict[str, str], seen: set[str]
) -> Iterator[dict[str, Any]]:
    """One sample, unless it is there already, names no number, or its reference answer is none."""
    text = text.strip().removeprefix("A:").strip()
    numbers = _NUMBER.findall(text)
    try:
        gold = Fraction(str(answer))
    except ValueError:
        return
    if not numbers or (key := f"{_key(question)}\n{text}") in seen:
        return
    seen.add(key)
    row = {
        "problem": question.strip(),
        "solution": text,
        "answer": f"{float(gold):g}",
        "correct": Fraction(numbers[-1].replace(",", "")) == gold,
        "source": source,
        "model": "GPT-3.5",
    }
    reference = references.get(_key(question))
    yield row if reference is None else {**row, "reference": reference}


def _reference(row: dict[str, Any]) -> str | None:
    """The equation of a problem as a worked line, "70-27 = 43"; None where its unknown does not stand alone."""
    equation = row["lEquations"][0] if "lEquations" in row else row["Equation"]
    expression = re.sub(r"^\s*[xX]\s*=|\s", "", equation)
    expression = re.sub(r"(\d+)\.0\b", r"\1", expression)
    value = compute(expression)
    return None if value is None else f"{expression} = {float(value):g}"


def _key(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def main() -> None:
    """Convert the checkouts that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    for name in SOURCES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=Path, metavar="FOLDER")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, read in SOURCES.items():
        folder = getattr(asked, name)
        if folder is None:
            continue
        rows = list(read(folder))
        with atomic_rows(asked.out / f"{name}.jsonl") as write:
            for row in rows:
                write(row)
        wrong = sum(not row["correct"] for row in rows)
        print(f"{name}: {len(rows):,} solutions, {wrong:,} of them wrong")


if __name__ == "__main__":
    main()
