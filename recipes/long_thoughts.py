"""What a PRM does on long thoughts with labelled sections.

Run: python recipes/long_thoughts.py ROWS.jsonl [--prm default] [--ways sections,blank-line] [--whole]

ROWS are DeltaBench's (OpenStellarTeam/DeltaBench). For each way of cutting it prints how well low scores name the wrong sections, and the share of
steps under the threshold by depth. A section's score is the lowest of the steps that overlap it. Sections after the last wrong one are not labelled.
`--whole` scores the traces to their end, for the depth alone.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import stepmark

Scores = list[float | None]


class Trace(NamedTuple):
    """A thought in sections."""

    problem: str
    sections: list[str]
    wrong: set[int]
    """Numbers from 1."""


def traces(file: Path, *, whole: bool) -> list[Trace]:
    """The traces, cut behind the last wrong section unless `whole`."""
    found = []
    for line in file.read_text("utf-8").splitlines():
        row = json.loads(line)
        wrong = {*row["reason_error_section_numbers"], *row["reason_unuseful_section_numbers"]}
        texts = [section["content"] for section in row["sections"]]
        found.append(Trace(row["question"], texts if whole else texts[: max(wrong, default=0)], wrong))
    return [trace for trace in found if trace.sections]


def cut(trace: Trace, way: str) -> list[tuple[int, str]]:
    """Steps, each with its start in the joined sections."""
    if way == "sections":
        starts = np.cumsum([0] + [len(text) + 2 for text in trace.sections])
        return [(int(at), text) for at, text in zip(starts, trace.sections, strict=False)]
    return [(step.start or 0, step.text) for step in stepmark.split("\n\n".join(trace.sections), way)]


def by_section(trace: Trace, steps: list[tuple[int, str]], scores: Scores) -> Scores:
    """The lowest score of the steps in each section; None where none was read."""
    lowest: Scores = []
    at = 0
    for text in trace.sections:
        end = at + len(text)
        inside = [
            score
            for (start, step), score in zip(steps, scores, strict=True)
            if score is not None and start < end and start + len(step) > at
        ]
        lowest.append(min(inside, default=None))
        at = end + 2
    return lowest


def auc(wrong: list[float], right: list[float]) -> float:
    """The chance that a wrong section has a lower score than a right one; ties count half."""
    gaps = np.subtract.outer(right, wrong)
    return float(((gaps > 0) + 0.5 * (gaps == 0)).mean())


def figures(items: list[tuple[Trace, Scores]], threshold: float) -> dict[str, Any]:
    """How well low scores name the wrong sections."""
    pairs = [
        (score, at in trace.wrong)
        for trace, scores in items
        for at, score in enumerate(scores, 1)
        if score is not None
    ]
    first, f1 = 0, []
    for trace, scores in items:
        named = {at for at, score in enumerate(scores, 1) if score is not None and score < threshold}
        first += min(named, default=0) == min(trace.wrong)
        f1.append(2 * len(named & trace.wrong) / (len(named) + len(trace.wrong)))
    return {
        "AUC": round(auc([s for s, wrong in pairs if wrong], [s for s, wrong in pairs if not wrong]), 3),
        "first error found": f"{first} of {len(items)}",
        "macro F1": round(100 * float(np.mean(f1)), 1),
        "sections under": round(float(np.mean([score < threshold for score, _ in pairs])), 2),
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--prm", default="default")
    parser.add_argument("--ways", default="sections,blank-line,thought,limit:200")
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    prm = stepmark.load_prm(given.prm, truncate=True)
    threshold = prm.default_threshold
    assert threshold is not None, "this PRM has no threshold of its own"
    for way in given.ways.split(","):
        items, depth = [], defaultdict(list)
        for trace in traces(given.rows, whole=given.whole):
            steps = cut(trace, way)
            scores = prm.score(trace.problem, steps=[text for _, text in steps])
            for (start, _), score in zip(steps, scores, strict=True):
                depth[start // 4000 * 4000].append(score)
            items.append((trace, by_section(trace, steps, scores)))
        print(way, json.dumps({} if given.whole else figures(items, threshold)))
        for start, listed in sorted(depth.items()):
            read = [score for score in listed if score is not None]
            under = f"{np.mean([score < threshold for score in read]):.0%}" if read else "-"
            print(
                f"  from character {start:,}: {len(read)} of {len(listed)} steps read, {under} under {threshold}"
            )


if __name__ == "__main__":
    main()
