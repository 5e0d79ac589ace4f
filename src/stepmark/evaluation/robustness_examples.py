"""Examples of a robustness report: a solution and its changed copy side by side, both graded step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stepmark.evaluation.examples import card, problem
from stepmark.evaluation.perturbations import perturbation
from stepmark.evaluation.result import Item
from stepmark.evaluation.robustness import Robustness, Trial
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.models.grading import first_error
from stepmark.show.evaluation import Examples
from stepmark.show.views import ProblemView

_SHOWN = 3
"""Examples of each change."""


def examples(
    sheet: Sheet, found: Sequence[Trial], items: Sequence[Item], how: Robustness, names: Sequence[str]
) -> tuple[Examples, ...]:
    """A group of examples a change: the attacks that succeeded best, or one change that had no effect of this sort.

    Args:
        sheet: the scores.
        found: the trials.
        items: one a trial, in the same order.
        how: settings, filled in.
        names: the changes, in the order of the page.
    """
    by_id = {row.case.id: row for row in sheet.rows}
    groups = []
    for name in names:
        pairs = [
            (trial, item)
            for trial, item in zip(found, items, strict=True)
            if item["perturbation"] == name and item["success"] is not None
        ]
        # Of a wrong solution a rise may be what its change deserves (its error cut off), so right ones go first there.
        succeeded = [
            pair
            for pair in pairs
            if pair[1]["success"] and (pair[1]["keeps_meaning"] or pair[1]["right"] is not False)
        ]
        succeeded.sort(key=lambda pair: pair[1]["before"] - pair[1]["after"])
        chosen = succeeded[:_SHOWN] or pairs[:1]
        if chosen:
            groups.append(
                Examples(
                    title=f"{name}: {len(succeeded):,} of {len(pairs):,} attacks succeeded",
                    problems=tuple(_before_and_after(trial, item, by_id, how) for trial, item in chosen),
                    text=perturbation(name).summary,
                )
            )
    return tuple(groups)


def _before_and_after(
    trial: Trial, item: Item, by_id: Mapping[str, CaseScores], how: Robustness
) -> ProblemView:
    before, after = by_id[trial.original.id], by_id[trial.case.id]
    assert how.aggregate is not None  # filled in
    truth = {True: "right by its labels", False: "wrong by its labels", None: "no label"}[item["right"]]
    note = [f"changed: {item['note']}", f"score {item['before']:.3f} → {item['after']:.3f}"]
    question = trial.case.solution.problem.text
    if question != trial.original.solution.problem.text:
        note.append(f"question now: {question}")
    cards = [
        card(
            row,
            how=how.aggregate,
            threshold=how.threshold,
            found=first_error(row.scores, how.threshold),
            note=words,
            number=number,
        )
        for number, (row, words) in enumerate(
            ((before, f"original, {truth}"), (after, "; ".join(note))), start=1
        )
    ]
    return replace(problem(before, cards[0]), cards=tuple(cards))
