"""Exact checks as a labeller: steps that `stepmark.verifiers.checks` proves to be wrong are judged wrong.

A step without a finding gets **no** judgement unless `vouch` is set and all its calculations are true: a right sum of the wrong numbers is
still a mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

from stepmark.backends import Completing, Verifying
from stepmark.labels.labelling import LabellerNeeds, Labelling
from stepmark.metrics.first_error import first_wrong
from stepmark.records import Judgement, LabelledSolution, Solution
from stepmark.settings import settings
from stepmark.verifiers.checks import Finding, check
from stepmark.verifiers.checks.equations import calculations
from stepmark.words import amount


@final
@settings
class Formulas:
    """Calculations checked exactly; needs no model."""

    needs: ClassVar[LabellerNeeds] = LabellerNeeds(policy="none", verifier=False)

    vouch: bool = False
    """Call a step right that has calculations, all of them surely true. They may be the wrong calculations."""
    name: str = "formulas"
    """Who judged, in the output."""

    async def label(
        self, solution: Solution, policy: Completing | None = None, verifier: Verifying | None = None
    ) -> Labelling:
        """Label one solution; asks nothing of any model.

        Returns:
            The place of the first error is None unless every step before it is vouched for: of steps without a
            finding nothing is known.
        """
        findings = check(solution.problem.text, solution.texts)
        judgements = tuple(
            self._step(text, [finding for finding in findings if finding.step == i])
            for i, text in enumerate(solution.texts)
        )
        return Labelling(
            labelled=LabelledSolution(solution=solution, judgements=judgements),
            method=self.name,
            first_error=first_wrong(judged[0].rating if judged else None for judged in judgements),
            abstained=not any(judgements),
        )

    def _step(self, text: str, findings: Sequence[Finding]) -> tuple[Judgement, ...]:
        if findings:
            note = "; ".join(str(finding) for finding in findings[:3])
            return (Judgement(kind="correctness", judge=self.name, rating=-1, note=note),)
        formulas = calculations(text) if self.vouch else ()
        if formulas and all(formula.truth == "right" for formula in formulas):
            note = (
                f"{amount(len(formulas), 'calculation')}, all true"
                if len(formulas) > 1
                else "1 calculation, true"
            )
            return (Judgement(kind="correctness", judge=self.name, rating=1, note=note),)
        return ()
