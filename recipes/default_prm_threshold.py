"""Choose a PRM's threshold on solutions of many models whose final answers were checked.

    python recipes/default_prm_threshold.py PRM SAMPLES [--graded FILE] [--write]

SAMPLES are rows {"problem", "solution" or "steps", "correct"}: `threshold.jsonl` of `default_prm_data.py`. A solution with a wrong answer has an
error somewhere, one with the right answer nearly never. The threshold is the one with the highest harmonic mean of two shares: wrong solutions
with a step under it, and right solutions without one. Its 95 % interval is over problems (200 bootstrap samples). No step label is needed, and
no benchmark is touched. `--write` puts it into the `stepmark.json` and `calibration.json` of the folder PRM.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import stepmark

Sample = tuple[float, bool]
"""The lowest step score of a solution, and whether its answer is right."""


def best_threshold(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """The threshold with the highest harmonic mean, halfway between two scores, and both shares at it.

    Args:
        samples: at least one right and one wrong.

    Returns:
        The threshold; the share of wrong samples with a score under it; the share of right samples without.
    """
    ordered = sorted(samples)
    rights = sum(right for _, right in ordered)
    wrongs = len(ordered) - rights
    if not rights or not wrongs:
        raise ValueError("expected right and wrong samples, found one kind")
    best, chosen, caught, lost = -1.0, (0.0, 0.0, 1.0), 0, 0
    for at, (score, right) in enumerate(ordered):
        caught, lost = caught + (not right), lost + right
        if at + 1 < len(ordered) and ordered[at + 1][0] == score:
            continue
        a, b = caught / wrongs, 1 - lost / rights
        mean = 2 * a * b / (a + b) if a + b else 0.0
        if mean > best:
            after = ordered[at + 1][0] if at + 1 < len(ordered) else score
            best, chosen = mean, ((score + after) / 2, a, b)
    return chosen


def interval(groups: Sequence[Sequence[Sample]], *, draws: int = 200, seed: int = 0) -> tuple[float, float]:
    """The 95 % bootstrap interval of the threshold over problems."""
    rng = random.Random(seed)
    found = []
    while len(found) < draws:
        drawn = [sample for _ in groups for sample in rng.choice(groups)]
        if len({right for _, right in drawn}) == 2:
            found.append(best_threshold(drawn)[0])
    found.sort()
    return found[int(0.025 * draws)], found[int(0.975 * draws) - 1]


def main() -> None:
    """Grade the samples, choose, print, and write where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prm")
    parser.add_argument("samples", type=Path)
    parser.add_argument(
        "--graded", type=Path, help="keep the graded rows here; a killed run resumes from them"
    )
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    results = stepmark.grade(asked.samples, asked.prm, out=asked.graded, checks="none")
    correct = [
        json.loads(line)["correct"] for line in asked.samples.read_text(encoding="utf-8").splitlines() if line
    ]
    groups: dict[str, list[Sample]] = defaultdict(list)
    for scored, right in zip(results, correct, strict=True):
        scores = [score for score in scored.scores if score is not None]
        if scores:
            groups[scored.solution.problem.text].append((min(scores), bool(right)))
    threshold, caught, clean = best_threshold([sample for group in groups.values() for sample in group])
    low, high = interval(list(groups.values()))
    figures = {
        "threshold": round(threshold, 3),
        "interval": [round(low, 3), round(high, 3)],
        "samples": sum(map(len, groups.values())),
        "problems": len(groups),
        "wrong_found": caught,
        "right_clean": clean,
    }
    print(json.dumps(figures))
    if asked.write:
        for name, change in (
            ("stepmark.json", {"threshold": figures["threshold"]}),
            ("calibration.json", {"outcome_samples": figures}),
        ):
            file = Path(asked.prm) / name
            data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            file.write_text(json.dumps({**data, **change}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
