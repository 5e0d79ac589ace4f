"""The metric of Who&When: which agent made the decisive mistake, and at which step.

Agent accuracy: the share of conversations whose mistaken agent is named; step accuracy: whose step is; within N: whose step is named
exactly or at most N steps away. The agent that is named is the speaker of the step that is named, without what stands in brackets after
it ("Orchestrator (thought)" is Orchestrator). As a baseline the agent that speaks most in the conversation, and the step that is annotated
most often in the part. A conversation without a prediction counts as missed.
"""

from __future__ import annotations

import re
from abc import ABC
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from stepmark.errors import UsageError
from stepmark.evaluation.base import Run
from stepmark.evaluation.benchmark import Rated, Ratings, ratings_to
from stepmark.evaluation.cases import Case, first_error
from stepmark.evaluation.result import Figure, Item, shown
from stepmark.evaluation.scores import Sheet
from stepmark.evaluation.thresholds import ThresholdRule
from stepmark.evaluation.views import unreadable
from stepmark.metrics.first_error import first_wrong
from stepmark.metrics.intervals import Statistic, ratio_statistic
from stepmark.models.lazy import note_idle
from stepmark.records import LabelledSolution
from stepmark.settings import settings
from stepmark.words import amount


@settings
class Blame(Rated, ABC):
    """Which agent and which step of failed conversations are to blame. Abstract: `cases` reads a file."""

    within: ClassVar[tuple[int, ...]] = (1,)
    """Distances up to which a named step is counted as near."""
    overall: ClassVar[Literal["average", "all"]] = "average"
    shown: ClassVar[Mapping[str, str]] = {
        "Agent": "agent", "Step": "step", "Within one": "within one",
        "Agent, who speaks most": "agent, who speaks most", "Step, the commonest": "step, the commonest",
    }  # fmt: skip

    rule: Literal["weakest", "first"] = "weakest"
    """Which step a PRM names: the one with the lowest score, or the first under the threshold."""

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        if self.threshold is not None and (self.rule != "first" or self.labels is not None):
            note_idle(
                {"threshold": self.threshold}, {"threshold": "it is read by `rule` first, and of scores"}
            )
        if self.labels is not None and run.scores is not None:
            raise UsageError("`labels` and `scores` both name steps; give one of them")

    def policies(self, sheet: Sheet) -> dict[str, ThresholdRule]:
        """See `Rated.policies`."""
        return Rated.policies(self, sheet) if self.rule == "first" else {}

    def ratings_of(self, labelled: LabelledSolution) -> Ratings:
        """See `Rated.ratings_of`."""
        return ratings_to(first_error(labelled), len(labelled.solution.steps))

    def item(self, case: Case, ratings: Ratings, scores: Sequence[float | None]) -> Item:
        """See `Rated.item`."""
        if ratings:
            step = first_wrong(ratings)
            named = None if step == -1 else step
        else:
            read = [(score, step) for step, score in enumerate(scores) if score is not None]
            named = min(read)[1] if read else None
        speakers = [base_name(step.speaker) for step in case.solution.steps]
        return {
            "id": case.id,
            "problem": case.problem,
            "group": case.group,
            "step": first_error(case.labelled),
            "agent": base_name(case.policy),
            "named": named,
            "named_agent": None if named is None else speakers[named],
            "speaks_most": Counter(speakers).most_common(1)[0][0],
            "steps": len(speakers),
        }

    def same(self, truth: object, named: object) -> bool:
        """Whether a prediction counts."""
        return truth == named

    def one(self, items: Sequence[Item]) -> Statistic:
        """See `Benchmark.one`."""
        commonest = Counter(item["step"] for item in items).most_common(1)[0][0]
        each = [1.0] * len(items)

        def near(item: Item, distance: int) -> bool:
            return item["named"] is not None and abs(item["step"] - item["named"]) <= distance

        hits = {
            "agent": [self.same(item["agent"], item["named_agent"]) for item in items],
            "step": [self.same(item["step"], item["named"]) for item in items],
            **{
                f"within {'one' if distance == 1 else distance}": [near(item, distance) for item in items]
                for distance in self.within
            },
            "agent, who speaks most": [item["speaks_most"] == item["agent"] for item in items],
            "step, the commonest": [item["step"] == commonest for item in items],
        }
        return ratio_statistic({name: (of, each) for name, of in hits.items()})

    def facts(self, items: Sequence[Item], sheet: Sheet | None) -> list[str]:
        """See `Benchmark.facts`."""
        unnamed = sum(item["named"] is None for item in items)
        return [
            f"{amount(len(items), 'failed conversation')} with {amount(sum(item['steps'] for item in items), 'step')}; "
            "one agent and one step are blamed in each.",
            *([f"In {unnamed:,} no step is named; they count as missed."] if unnamed else []),
            *(unreadable(sheet) if sheet is not None else []),
        ]

    def verdict(self, figures: Mapping[str, Figure], last: str) -> str:
        """See `Benchmark.verdict`."""
        average = ", on average over the parts" if last == "average" else ""
        return (
            f"Names the agent to blame in {shown(figures[f'{last}/agent'])} % and its step in {shown(figures[f'{last}/step'])} % of the "
            f"conversations{average}."
        )

    def places(self, item: Item) -> tuple[int | None, int | None]:
        """See `Rated.places`."""
        return item["step"], item["named"]

    def truth_in_words(self, item: Item) -> str:
        """See `Rated.truth_in_words`."""
        return f"truth: {item['agent']}, step {item['step'] + 1}"


def base_name(agent: str | None) -> str:
    """An agent's name without what stands in brackets after it: "Orchestrator (thought)" is "Orchestrator"."""
    return re.sub(r"\s*\(.*\)\s*$", "", agent or "").strip()
