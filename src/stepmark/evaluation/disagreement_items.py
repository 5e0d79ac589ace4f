"""Process against outcome: right answers reached by a wrong step, and right steps that end in a wrong answer.

Every solution stands in one of four cells, by whether all its steps are right (by labels, or by a PRM's scores under a
threshold) and whether its final answer is. ProcessBench (Zheng et al. 2024) counts the right answers that rest on a wrong step:
3.5 % on GSM8K, 18.8 % on MATH, 51.8 % on Omni-MATH; an outcome reward pays for them all the same.

A case whose outcome or process is not known is counted as such and enters no share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from stepmark.evaluation.cases import Case, Neutral, first_error
from stepmark.evaluation.result import Figure, Item
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.evaluation.thresholds import Policy
from stepmark.metrics.intervals import Floats, Statistic, shares, wilson
from stepmark.records import LabelledSolution

Process = Literal["labels", "scores"]
"""What says whether the steps are right."""

CELLS = ("right", "lucky", "unlucky", "wrong")
"""Right for right reasons; right answer, wrong step; every step right, wrong answer; both wrong."""

OVERALL = "overall"
"""The name of all groups together."""


def cell(process: bool | None, outcome: bool | None) -> str | None:
    """The cell of a case: one of `CELLS`, None when either is not known."""
    if process is None or outcome is None:
        return None
    if outcome:
        return "right" if process else "lucky"
    return "unlucky" if process else "wrong"


def steps_right(labelled: LabelledSolution, neutral: Neutral = "positive") -> bool | None:
    """Whether every step is right by its judgements; False as soon as one is known to be wrong; None for not known.

    When a step is wrong: see `cases.first_error`. Unlike there, a step that nobody judged does not hide a wrong one
    after it: that some step is wrong is known without knowing which is the first.
    """
    verdicts = [
        first_error(LabelledSolution(solution=labelled.solution, judgements=(judgements,)), neutral)
        for judgements in labelled.judgements
    ]
    if 0 in verdicts:
        return False
    return None if None in verdicts or not verdicts else True


def items_of(
    cases: Sequence[Case],
    sheet: Sheet | None = None,
    chosen: Mapping[str, Policy] | None = None,
    *,
    neutral: Neutral = "positive",
) -> list[Item]:
    """One item a case: what is known of its steps, by labels and by scores, and of its end.

    Args:
        cases: the solutions.
        sheet: their scores, in the same order; None for none.
        chosen: the threshold policy of each group; needed with a sheet.
        neutral: what a neutral rating counts as.
    """
    items = []
    rows: Sequence[CaseScores | None] = (None,) * len(cases) if sheet is None else sheet.rows
    for case, row in zip(cases, rows, strict=True):
        found = None if row is None or chosen is None else chosen[case.group].found(row)
        read = [] if row is None else [score for score in row.scores if score is not None]
        items.append(
            {
                "id": case.id,
                "problem": case.problem,
                "group": case.group,
                "policy": case.policy,
                "where": case.where,
                "outcome": case.outcome,
                "labels": steps_right(case.labelled, neutral),
                "label": first_error(case.labelled, neutral),
                "scores": None if found is None else found == -1,
                "found": found,
                "weakest": min(read, default=None),
                "steps": len(case.solution.steps),
            }
        )
    return items


def sources_of(items: Sequence[Item]) -> tuple[Process, ...]:
    """What says something of the steps of any item."""
    known: tuple[Process, ...] = ("labels", "scores")
    return tuple(source for source in known if any(item[source] is not None for item in items))


def statistic(items: Sequence[Item]) -> Statistic:
    """Every figure as a function of the items' weights, named PART/SOURCE/WHAT.

    PART is a group, "overall" or "by WRITER"; SOURCE is what judged the steps: "labels" or "scores". WHAT, each a share:

    - `right`, `lucky`, `unlucky`, `wrong`: of all whose steps and outcome are known;
    - `lucky-of-right`: a wrong step, of those with a right answer; `unlucky-of-wrong`: no wrong step, of those with a wrong one;
    - `lucky-of-flawed`: a right answer, of those with a wrong step; `unlucky-of-sound`: a wrong answer, of those without;
    - `agreement`: steps and answer are both right or both wrong; and `phi`, no share but their correlation, from -1 to 1.

    With both sources PART/both/WHAT, of the cases for which all three are known: `same-cell`: the PRM's cell is the labels';
    `lucky-found`: lucky by the PRM too, of those lucky by the labels; `lucky-confirmed`: the other way round; the same
    for `unlucky`. A writer has only `lucky-of-right` and `unlucky-of-wrong`.
    """
    of = ratios(items)
    count = len(items)
    above = np.array([ratio.numerator for ratio in of.values()], dtype=np.float64).reshape(-1, count).T
    below = np.array([ratio.denominator for ratio in of.values()], dtype=np.float64).reshape(-1, count).T

    def figures(weights: Floats) -> Mapping[str, Floats]:
        values = shares(weights @ above, weights @ below)
        found = {name: values[:, at] for at, name in enumerate(of)}
        for name in of:
            if name.endswith("/agreement"):
                table = name.removesuffix("agreement")
                found[f"{table}phi"] = _phi(*(found[table + cell_] for cell_ in CELLS))
        return found

    return figures


def _phi(right: Floats, lucky: Floats, unlucky: Floats, wrong: Floats) -> Floats:
    """The correlation of a 2x2 table of counts or of shares; nan where a margin is 0 (Yule 1912)."""
    margins = (right + lucky) * (unlucky + wrong) * (right + unlucky) * (lucky + wrong)
    return shares(right * wrong - lucky * unlucky, np.sqrt(margins))


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """A share: which items are in question, and which of them count."""

    numerator: tuple[bool, ...]
    denominator: tuple[bool, ...]


_WRITERS_RATIOS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "lucky-of-right": (("lucky",), ("right", "lucky")),
    "unlucky-of-wrong": (("unlucky",), ("unlucky", "wrong")),
}
_RATIOS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    **{name: ((name,), CELLS) for name in CELLS},
    **_WRITERS_RATIOS,
    "lucky-of-flawed": (("lucky",), ("lucky", "wrong")),
    "unlucky-of-sound": (("unlucky",), ("right", "unlucky")),
    "agreement": (("right", "wrong"), CELLS),
}
"""Name to the cells that count and the cells in question."""


def ratios(items: Sequence[Item]) -> dict[str, Ratio]:
    """Every share among the figures of `statistic`, by its name."""
    present = sources_of(items)
    cells = [[cell(item[source], item["outcome"]) for item in items] for source in present]
    found = {}
    for part in parts_of(items):
        for source, known in zip(present, cells, strict=True):
            own = [c if m else None for m, c in zip(part.member, known, strict=True)]
            for what, (above, below) in (_WRITERS_RATIOS if part.writer else _RATIOS).items():
                found[f"{part.name}/{source}/{what}"] = Ratio(
                    numerator=tuple(c in above for c in own), denominator=tuple(c in below for c in own)
                )
        if len(present) == 2 and not part.writer:
            both = [
                (a, b) if m and a is not None and b is not None else (None, None)
                for m, a, b in zip(part.member, *cells, strict=True)
            ]
            found[f"{part.name}/both/same-cell"] = Ratio(
                numerator=tuple(a is not None and a == b for a, b in both),
                denominator=tuple(a is not None for a, _ in both),
            )
            for name in ("lucky", "unlucky"):
                hits = tuple(a == name == b for a, b in both)
                found[f"{part.name}/both/{name}-found"] = Ratio(
                    numerator=hits, denominator=tuple(a == name for a, _ in both)
                )
                found[f"{part.name}/both/{name}-confirmed"] = Ratio(
                    numerator=hits, denominator=tuple(b == name for _, b in both)
                )
    return found


def widened(figures: Mapping[str, Figure], items: Sequence[Item]) -> dict[str, Figure]:
    """The figures, those of 0 and 1 with Wilson's interval over their problems.

    Where none was seen no resample has one either: a bootstrap would claim that there are none at all.
    """
    of = ratios(items)

    def one(figure: Figure) -> Figure:
        if figure.value not in (0.0, 1.0) or figure.name not in of:
            return figure
        asked = of[figure.name].denominator
        problems = len({item["problem"] for item, m in zip(items, asked, strict=True) if m})
        interval = wilson(problems if figure.value else 0, problems, level=figure.level)
        return replace(figure, low=interval.low, high=interval.high)

    return {name: one(figure) for name, figure in figures.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of the items that has figures of its own."""

    name: str
    """The group, "overall", or "by WRITER"."""
    member: tuple[bool, ...]
    """Which items belong to it."""
    writer: bool = False
    """It is what one policy wrote."""


def parts_of(items: Sequence[Item]) -> list[Part]:
    """The groups, all together where there are several, and the writers."""

    def part(key: str, value: str, name: str, *, writer: bool = False) -> Part:
        return Part(name=name, member=tuple(item[key] == value for item in items), writer=writer)

    groups = list(dict.fromkeys(item["group"] for item in items))
    parts = [part("group", group, group or "all") for group in groups]
    if len(groups) > 1:
        parts.append(Part(name=OVERALL, member=(True,) * len(items)))
    writers = sorted({item["policy"] for item in items if item["policy"] is not None})
    return parts + [part("policy", writer, f"by {writer}", writer=True) for writer in writers]


def threshold_words(items: Sequence[Item], chosen: Mapping[str, Policy]) -> dict[str, str]:
    """Part of a figure's name to the threshold that it rests on."""
    if not chosen:
        return {}
    words: dict[str, str] = {}
    for part in parts_of(items):
        groups = dict.fromkeys(item["group"] for item, m in zip(items, part.member, strict=True) if m)
        said = "; ".join(dict.fromkeys(chosen[group].words for group in groups))
        words |= {f"{part.name}/scores": said, f"{part.name}/both": said}
    return words
