"""Precision and recall of each exact check.

`stepmark.verifiers.checks` on solutions whose steps people rated: the development halves of ProcessBench (first errors) and PRM800K's
rated completions. A finding at the first wrong step is right. A finding before it, or in a solution without error, is a false alarm; a
finding after it is neither. PRM800K's people rated one step at a time and missed many false calculations, so that its precision is a lower
bound: `--show` prints every finding on a step that they did not rate wrong, to be read. Samples of 16 models on GSM8K problems, of which
only the answer is judged, add a third view: few with a right answer should have a finding.

    python -m benchmarks.checks [--quick] [--show]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import benchmark_parser, data_folder, finish, rows
from stepmark.verifiers.checks import CHECKS, Finding, check

PLACES = ("at", "before", "right", "neutral", "after")
"""Where a finding stands: at the first error, before it, in a solution (or step) without error, on a neutral step, after the error."""


@dataclass(frozen=True)
class Case:
    """Steps, and what people said of each: one of `PLACES`, or None where nobody rated it."""

    problem: str
    steps: list[str]
    ratings: list[str | None]


def processbench(file: Path) -> Iterator[Case]:
    """Whole solutions with the first error that people agreed on."""
    for row in rows(file):
        first, count = row["label"], len(row["steps"])
        where = [
            "right" if first < 0 else "before" if i < first else "at" if i == first else "after"
            for i in range(count)
        ]
        yield Case(row["problem"], row["steps"], list(where))


def prm800k(file: Path, every: int) -> Iterator[Case]:
    """One rated completion after the last two of the steps that were chosen before it."""
    names = {-1: "at", 0: "neutral", 1: "right"}
    for row in rows(file)[::every]:
        steps = [*row["responses"][-2:], row["next_response"]]
        yield Case(row["instruction"], steps, [*[None] * (len(steps) - 1), names.get(row["rating"])])


def measure(name: str, cases: Iterator[Case], *, show: bool) -> dict[str, float]:
    """Print the table of one data set; the figures for the last line."""
    found: Counter[tuple[str, str]] = Counter()
    first_errors = right_steps = 0
    alarms: list[tuple[str, Finding]] = []
    for case in cases:
        first_errors += "at" in case.ratings
        right_steps += sum(rating in ("right", "before") for rating in case.ratings)
        marks = set()
        for finding in check(case.problem, case.steps):
            rating = case.ratings[finding.step]
            if rating is None:
                continue
            marks |= {(finding.check, finding.step, rating), ("all", finding.step, rating)}
            if rating in ("before", "right", "neutral"):
                alarms.append((rating, finding))
        found.update((check_name, rating) for check_name, _, rating in marks)
    print(f"\n{name}: {first_errors} first errors, {right_steps} steps rated right")
    print(f"{'check':12}" + "".join(f"{place:>9}" for place in PLACES) + f"{'precision':>11}{'recall':>9}")
    figures: dict[str, float] = {}
    for check_name in (*CHECKS, "all"):
        at = found[check_name, "at"]
        wrong = found[check_name, "before"] + found[check_name, "right"]
        precision = f"{at / (at + wrong):.3f}" if at + wrong else "-"
        recall = at / first_errors
        counts = "".join(f"{found[check_name, place]:9}" for place in PLACES)
        print(f"{check_name:12}{counts}{precision:>11}{recall:9.3f}")
        if check_name == "all":
            figures = {
                f"{name} recall": recall,
                f"{name} false alarms": wrong,
                f"{name} false alarms in 1000 right steps": 1000 * wrong / right_steps,
            }
            if at + wrong:
                figures[f"{name} precision"] = at / (at + wrong)
    if show:
        for rating, finding in alarms:
            print(f"  {rating:8} {finding.check:10} {finding}")
    return figures


def outcomes(file: Path, every: int, *, show: bool) -> dict[str, float]:
    """Whole samples of 16 models on GSM8K: how many have a finding, by whether their answer is right."""
    samples: Counter[bool] = Counter()
    found: Counter[bool] = Counter()
    for row in rows(file)[::every]:
        for candidate in row["candidates"]:
            lines = [line for line in candidate["text"].split("\n") if line.strip()]
            findings = check(row["question"], lines)
            samples[candidate["correct"]] += 1
            found[candidate["correct"]] += bool(findings)
            if show and candidate["correct"]:
                for finding in findings:
                    print(f"  answer right: {finding.check:10} {finding}")
    for right in (True, False):
        what = "right" if right else "wrong"
        print(f"GSM8K samples with a {what} answer: {samples[right]}, with a finding: {found[right]}")
    return {
        "samples with a right answer, findings in 1000": 1000 * found[True] / samples[True],
        "samples with a wrong answer, findings in 1000": 1000 * found[False] / samples[False],
    }


def main() -> None:
    """Measure all data sets."""
    parser = benchmark_parser(__doc__, "every tenth row of PRM800K")
    parser.add_argument(
        "--show", action="store_true", help="print the findings on steps that were not rated wrong"
    )
    options = parser.parse_args()
    folder = data_folder()
    if folder is None:
        raise SystemExit("no development data: set STEPMARK_DATA to its folder")
    figures: dict[str, float] = {}
    for half in ("gsm8k", "math"):
        file = folder / "processbench" / f"{half}.dev.jsonl.gz"
        figures |= measure(f"ProcessBench {half}", processbench(file), show=options.show)
    for part in ("train", "test"):
        file = folder / "prm800k" / f"phase1_{part}.jsonl.gz"
        cases = prm800k(file, 10 if options.quick else 1)
        figures |= measure(f"PRM800K {part}", cases, show=options.show)
    file = folder / "gsm8k" / "candidates_16_models.dev.jsonl.gz"
    figures |= outcomes(file, 10 if options.quick else 1, show=options.show)
    aims = {f"ProcessBench {half} false alarms": 0.0 for half in ("gsm8k", "math")}
    finish("checks", figures, aims)


if __name__ == "__main__":
    main()
