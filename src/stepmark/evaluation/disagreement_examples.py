"""Examples of process against outcome: cards graded by a PRM, or with the labels on the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepmark.evaluation.cases import Case, Neutral, step_labels
from stepmark.evaluation.disagreement import cell
from stepmark.evaluation.disagreement_tables import label_words
from stepmark.evaluation.examples import card, problem, spread
from stepmark.evaluation.result import Item
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.evaluation.thresholds import Policy
from stepmark.records import StepScores
from stepmark.show.evaluation import Examples
from stepmark.show.views import CardView


def confident(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Unlucky solutions by the scores, the highest weakest step first; and lucky ones, the lowest first."""
    unlucky = [item for item in items if cell(item["scores"], item["outcome"]) == "unlucky"]
    lucky = [item for item in items if cell(item["scores"], item["outcome"]) == "lucky"]
    return (
        sorted(unlucky, key=lambda item: -item["weakest"]),
        sorted(lucky, key=lambda item: item["weakest"]),
    )


class ExampleCards:
    """Groups of example cards, graded where there are scores and else with the labels on the steps."""

    def __init__(
        self,
        *,
        cases: Sequence[Case],
        sheet: Sheet | None,
        items: Sequence[Item],
        chosen: Mapping[str, Policy],
        neutral: Neutral,
        show: int,
    ) -> None:
        self._rows = {
            case.id: row
            for case, row in zip(
                cases,
                [_labelled(case, neutral) for case in cases] if sheet is None else sheet.rows,
                strict=True,
            )
        }
        self._how = "labels" if sheet is None else sheet.aggregate or "min"
        self._graded = sheet is not None
        self._chosen = chosen
        self._show = show

    def group(
        self, title: str, found: Sequence[Item], *, text: str = "", spread_out: bool = True
    ) -> Examples:
        """Cards of some of the items: spread over them, or the first ones."""
        by_id = {item["id"]: item for item in found}
        rows = [self._rows[item["id"]] for item in found]
        kept = spread(rows, self._show) if spread_out else rows[: self._show]
        shown_of = f"{len(kept):,} of {len(found):,}."
        if not self._graded:
            shown_of += " The numbers on the steps are the labels: 1 right, 0 wrong, between them a share; a step without one was not judged."
        return Examples(
            title=title,
            problems=tuple(problem(row, self._card(row, by_id[row.case.id])) for row in kept),
            text=" ".join(part for part in (text, shown_of) if part),
        )

    def _card(self, row: CaseScores, item: Item) -> CardView:
        outcome = {True: "right answer", False: "wrong answer", None: "outcome not known"}[item["outcome"]]
        threshold = self._chosen[row.case.group].threshold if self._graded else None
        return card(
            row,
            how=self._how,
            threshold=threshold,
            found=item["found"] if self._graded else item["label"],
            note=f"{outcome}; labels: {label_words(item)}",
        )


def _labelled(case: Case, neutral: Neutral) -> CaseScores:
    return CaseScores(
        case=case, steps=StepScores(scores=step_labels(case.labelled, neutral), kind="probability")
    )
