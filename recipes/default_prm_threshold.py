"""Choose a PRM's threshold on solutions whose final answers were checked, and on solutions whose first error a teacher named.

    python recipes/default_prm_threshold.py PRM SAMPLES [--not FILE] [--labelled FILE] [--graded FOLDER] [--write]

SAMPLES are rows {"problem", "solution" or "steps", "correct"}: `threshold.jsonl` of `default_prm_data.py`. A solution with a wrong answer has an
error somewhere, one with the right answer nearly never: the harmonic mean of two shares says how good a threshold is, wrong solutions with a step
under it, and right solutions without one. Problems of `--not` (rows {"problem"}) are left out. `--labelled` has rows of solutions with a label a
step: there a wrong solution counts where the first step under the threshold is its first wrong one. The threshold is the one with the highest sum
of both means; what the PRM's exact checks refute counts as a step under it. Its 95 % interval is over problems (200 bootstrap samples). No benchmark
is touched. `--write` puts it into the `stepmark.json` and `calibration.json` of the folder PRM.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stepmark
from stepmark.data.labelled import read_labelled
from stepmark.records import GradedSolution


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A graded solution, and what is known of it."""

    scores: tuple[float | None, ...]
    refuted: int | None
    """The first step that an exact check refutes."""
    right: bool
    first_error: int | None = None
    """Of a wrong solution: its first wrong step, where it is known."""

    def is_hit(self, threshold: float) -> bool:
        """Whether this threshold treats the solution as it should."""
        under = [at for at, score in enumerate(self.scores) if score is not None and score < threshold]
        errors = [*under[:1], *([] if self.refuted is None else [self.refuted])]
        if self.right:
            return not errors
        return bool(errors) and self.first_error in (None, min(errors))


def shares(samples: Sequence[Sample], threshold: float) -> tuple[float, float]:
    """The share of wrong solutions that are found, and of right ones that are left alone.

    Raises:
        ValueError: the samples are all right or all wrong.
    """
    wrong, right = ([one.is_hit(threshold) for one in samples if one.right is kind] for kind in (False, True))
    if not wrong or not right:
        raise ValueError("expected right and wrong samples, found one kind")
    return sum(wrong) / len(wrong), sum(right) / len(right)


def harmonic(a: float, b: float) -> float:
    """The harmonic mean of two shares."""
    return 2 * a * b / (a + b) if a + b else 0.0


def best_threshold(sets: Sequence[Sequence[Sample]], thresholds: Sequence[float]) -> float:
    """The threshold with the highest sum, over the sets of samples, of the harmonic means of both shares; the lowest of equals."""
    return max(thresholds, key=lambda at: (sum(harmonic(*shares(samples, at)) for samples in sets), -at))


THRESHOLDS = tuple(number / 200 for number in range(1, 200))


def interval(
    groups: Sequence[Mapping[str, Sequence[Sample]]], *, draws: int = 200, seed: int = 0
) -> tuple[float, float]:
    """The 95 % bootstrap interval of the threshold over the problems of each set."""
    rng = random.Random(seed)
    thresholds: list[float] = []
    while len(thresholds) < draws:
        sets = [
            [sample for problem in rng.choices(list(group), k=len(group)) for sample in group[problem]]
            for group in groups
        ]
        if all(len({one.right for one in samples}) == 2 for samples in sets):
            thresholds.append(best_threshold(sets, THRESHOLDS[::2]))
    thresholds.sort()
    return thresholds[int(0.025 * draws)], thresholds[int(0.975 * draws) - 1]


def sample(graded: GradedSolution, right: bool, first_error: int | None = None) -> Sample:
    """A graded solution with what is known of it."""
    refuted = min((finding.step for finding in graded.findings or ()), default=None)
    return Sample(scores=tuple(graded.scores), refuted=refuted, right=right, first_error=first_error)


def main() -> None:
    """Grade the samples, choose, print, and write where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prm")
    parser.add_argument("samples", type=Path)
    parser.add_argument("--not", dest="without", type=Path, help="problems that were trained on")
    parser.add_argument("--labelled", type=Path, help="solutions with a label a step")
    parser.add_argument(
        "--graded", type=Path, help="keep the graded rows in this folder; a killed run resumes from them"
    )
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    if asked.graded is not None:
        asked.graded.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in asked.samples.read_text(encoding="utf-8").splitlines() if line]
    if asked.without is not None:
        known = {
            json.loads(line)["problem"].strip()
            for line in asked.without.read_text(encoding="utf-8").splitlines()
        }
        lines = [row for row in lines if row["problem"].strip() not in known]
    sets: list[dict[str, list[Sample]]] = [defaultdict(list)]
    out = None if asked.graded is None else asked.graded / "samples.jsonl"
    for row, graded in zip(lines, stepmark.grade(lines, asked.prm, out=out), strict=True):
        if any(score is not None for score in graded.scores):
            sets[0][graded.solution.problem.text].append(sample(graded, bool(row["correct"])))
    if asked.labelled is not None:
        labelled = [row.labelled for row in read_labelled(asked.labelled)]
        errors = [
            next(
                (
                    at
                    for at, judgements in enumerate(one.judgements)
                    if any(j.rating == -1 for j in judgements)
                ),
                None,
            )
            for one in labelled
        ]
        out = None if asked.graded is None else asked.graded / "labelled.jsonl"
        sets.append(defaultdict(list))
        for first, graded in zip(
            errors, stepmark.grade([one.solution for one in labelled], asked.prm, out=out), strict=True
        ):
            sets[1][graded.solution.problem.text].append(sample(graded, first is None, first))
    flat = [[one for group in groups.values() for one in group] for groups in sets]
    threshold = best_threshold(flat, THRESHOLDS)
    low, high = interval(sets)
    figures: dict[str, Any] = {"threshold": threshold, "interval": [low, high]}
    for name, groups, samples in zip(("samples", "labelled"), sets, flat, strict=False):
        found, clean = shares(samples, threshold)
        figures[name] = {
            "solutions": len(samples),
            "problems": len(groups),
            "wrong_found": round(found, 4),
            "right_clean": round(clean, 4),
        }
    print(json.dumps(figures))
    if asked.write:
        for name, change in (
            ("stepmark.json", {"threshold": threshold}),
            ("calibration.json", {"threshold_chosen": figures}),
        ):
            file = Path(asked.prm) / name
            data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            file.write_text(json.dumps({**data, **change}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
