"""Controlled changes of solutions, to see whether a PRM judges the reasoning or its looks.

Changes that **keep the meaning** (another phrasing, layout or cut into steps) must not raise the score; changes that
**break** it (a number altered, the question removed) must lower it. `PERTURBATIONS` lists them. Each is a small pure
function of a solution and a random generator; None says that it does not apply, and what is returned always differs
from the original.

    >>> import random
    >>> from stepmark.records import Solution
    >>> solution = Solution.of("What is 2 + 3?", ["The sum is 2 + 3 = 5."])
    >>> PERTURBATIONS["confident-phrasing"].apply(solution, random.Random(0)).solution.texts
    ('Without any doubt, the sum is 2 + 3 = 5.',)

Sources: Tiwari et al. 2026, "Reward Under Attack" (arXiv 2603.06621; changes of style and of meaning on ProcessBench);
Shihab et al. 2026, "EST-PRM" (arXiv 2606.00437: step inflation, confidence markers, reordering); Xu et al. 2025, "Reward
Models Identify Consistency, Not Causality" (arXiv 2502.14619: question removed and shuffled, numbers, truncation);
Gao et al. 2024 (arXiv 2410.15115: repetition under RL); Cheng et al. 2025, PURE (arXiv 2504.15275: thinking without
solving, few steps); Zhao et al. 2025, "One Token to Fool LLM-as-a-Judge" (arXiv 2507.08794: openers without content).
The wording and the rules here are this library's own, and nothing but rules is at work, so that every change is what it
says and is made again from a seed. The figures are therefore not comparable with those papers'.
"""

from __future__ import annotations

import hashlib
import json
import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from stepmark.catalog import unknown_name
from stepmark.evaluation.perturbations.changes import NO_QUESTION as NO_QUESTION
from stepmark.evaluation.perturbations.text import PERTURBATIONS as PERTURBATIONS
from stepmark.evaluation.perturbations.text import Perturbation
from stepmark.evaluation.perturbations.text import Perturbed as Perturbed
from stepmark.records import Solution

SEPARATOR = "::"
"""Between a solution's id and a perturbation's name in the id of a changed solution."""


def perturbation(name: str) -> Perturbation:
    """The perturbation of this name.

    Raises:
        UnknownNameError: no such perturbation; the message gives the nearest names.
    """
    if name not in PERTURBATIONS:
        raise unknown_name("perturbation", name, tuple(PERTURBATIONS))
    return PERTURBATIONS[name]


def perturbed(
    solution: Solution,
    names: Sequence[str] = tuple(PERTURBATIONS),
    seed: int = 0,
    donors: Donors | None = None,
) -> Iterator[tuple[str, Perturbed]]:
    """The changed copies of a solution: each perturbation that applies, with the solution of the id "ID::NAME".

    What is done depends on the seed, the perturbation's name and the solution's own text, and, where a donor is
    needed, on the set of donors: not on other solutions, their order or their number. A perturbation that needs a
    donor is left out where all have the solution's own problem.

    Raises:
        UnknownNameError: no such perturbation.
    """
    for name in names:
        entry = perturbation(name)
        place = _number(f"{seed}:{name}", solution)
        donor = donors.after(place, solution) if donors is not None and entry.needs_donor else None
        if donor is None and entry.needs_donor:
            continue
        made = entry.apply(solution, random.Random(place), donor=donor)
        if made is not None:
            yield name, replace(made, solution=replace(made.solution, id=f"{solution.id}{SEPARATOR}{name}"))


def _number(salt: str, solution: Solution) -> int:
    """256 bits that depend on the salt and the solution's text, equal in every process."""
    text = json.dumps([salt, solution.problem.text, *solution.texts])
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


class Donors:
    """Solutions whose questions and steps may be put into others, on a ring: a place takes the next, so that one more changes few choices."""

    def __init__(self, donors: Iterable[Solution]) -> None:
        # One donor a text: the same solution twice must not weigh twice, nor their order matter.
        self._donors = sorted({_number("donor", donor): donor for donor in donors}.items())
        self._places = [place for place, _ in self._donors]

    def after(self, place: int, solution: Solution) -> Solution | None:
        """The first donor from a place on that has another problem; None if there is none."""
        start = bisect_left(self._places, place)
        for step in range(len(self._donors)):
            donor = self._donors[(start + step) % len(self._donors)][1]
            if donor.problem.text != solution.problem.text:
                return donor
        return None
