"""Exact checks as a labeller: steps that `stepmark.verifiers.checks` proves to be wrong are judged wrong.

A step without a finding gets **no** judgement: a right sum of the wrong numbers is still a mistake.
"""

from __future__ import annotations

from typing import ClassVar, final

from stepmark.backends import Completing, Verifying
from stepmark.labels.labelling import LabellerNeeds, Labelling
from stepmark.metrics.first_error import first_wrong
from stepmark.records import Judgement, LabelledSolution, Solution
from stepmark.settings import settings
from stepmark.verifiers.checks import check


@final
@settings
class Formulas:
    """Calculations checked exactly; needs no model."""

    needs: ClassVar[LabellerNeeds] = LabellerNeeds(policy="none", verifier=False)

    name: str = "formulas"
    """Who judged, in the output."""

    async def label(
        self, solution: Solution, policy: Completing | None = None, verifier: Verifying | None = None
    ) -> Labelling:
        """Label one solution; asks nothing of any model.

        Returns:
            The place of the first error is None unless it is the first step: of steps without a finding nothing is known.
        """
        findings = check(solution.problem.text, solution.texts)
        notes: list[list[str]] = [[] for _ in solution.steps]
        for finding in findings:
            notes[finding.step].append(str(finding))
        judgements = tuple(
            (Judgement(kind="correctness", judge=self.name, rating=-1, note="; ".join(said[:3])),)
            if said
            else ()
            for said in notes
        )
        return Labelling(
            labelled=LabelledSolution(solution=solution, judgements=judgements),
            method=self.name,
            first_error=first_wrong(judged[0].rating if judged else None for judged in judgements),
            abstained=not any(judgements),
        )
