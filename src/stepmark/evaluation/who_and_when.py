"""Who&When: which agent made the decisive mistake, and at which step.

Source: Zhang et al. 2025, "Which agent causes task failures and when?", arXiv 2505.00212, section 3. Rows are failed conversations
{`question`, `history` of {`content`, `role`, `name`}, `mistake_agent`, `mistake_step`, `ground_truth`, `question_ID`}; `mistake_step` counts
entries of the history from 0, and every entry is a step. A row with `is_corrected` is of the hand-crafted part, any other of the
algorithm-generated one.

Agent accuracy: the share of conversations whose mistaken agent is named; step accuracy: whose step is; within one: whose step is named
exactly or next to it. The agent that is named is the speaker of the step that is named, without what stands in brackets after it
("Orchestrator (thought)" is Orchestrator). The annotated agent need not be the speaker of the annotated step: in three of the 126
algorithm-generated conversations it is another. As a baseline the agent that speaks most in the conversation, and the step that
is annotated most often in the part.

Deviation from the authors' script: it asks whether the annotated text stands *in* the predicted one, so that step 1 counts as found by
the prediction 12, and reads a name up to its first hyphen; `scoring` "script" does the same. A conversation without a prediction counts as missed, here and there.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np

from stepmark.data.columns import Columns
from stepmark.data.reading import Source, read_rows
from stepmark.data.solutions import solutions_of
from stepmark.data.traces import chat_rows
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.cases import Case, first_error, ratings_until, unique
from stepmark.evaluation.evaluation import INTERVALS, Evaluation, Run, Views
from stepmark.evaluation.published import WHO_AND_WHEN, PublishedTable, published_table
from stepmark.evaluation.result import Item, Result, shown
from stepmark.evaluation.scores import Sheet
from stepmark.evaluation.step_labels import examples, joined
from stepmark.evaluation.thresholds import policies
from stepmark.evaluation.views import bars_of, cell, table_of, tile, unreadable
from stepmark.metrics.intervals import Floats, Statistic, shares
from stepmark.models.lazy import note_idle
from stepmark.records import Refusal
from stepmark.settings import settings
from stepmark.show.evaluation import Section
from stepmark.show.text import amount, indices


@settings
class Blame(Evaluation, ABC):
    """Which agent and which step of failed conversations are to blame. Abstract: `cases` reads a file."""

    title: ClassVar[str] = ""
    within: ClassVar[tuple[int, ...]] = (1,)
    """Distances up to which a named step is counted as near."""
    published: ClassVar[PublishedTable | None] = None
    rule: Literal["weakest", "first"] = "weakest"
    """Which step a PRM names: the one with the lowest score, or the first under the threshold."""
    threshold: str | None = None
    """For `rule` first: a number, argmax, tuned:SUBSET or oracle. Default: the PRM's own."""
    labels: str | None = None
    """A file of labels (`stepmark label judge`), whose first wrong steps are measured instead of a PRM's; joined by the texts."""

    @abstractmethod
    def cases(self, run: Run) -> Iterator[Case]:
        """The conversations of the data."""

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        if self.threshold is not None and (self.rule != "first" or self.labels is not None):
            note_idle(
                {"threshold": self.threshold}, {"threshold": "it is read by `rule` first, and of scores"}
            )
        if self.labels is not None and run.scores is not None:
            raise UsageError("`labels` and `scores` both name steps; give one of them")

    def asks_prm(self, run: Run) -> bool:
        """See `Evaluation.asks_prm`."""
        return run.scores is None and self.labels is None

    def read(self, run: Run) -> Sequence[Case]:
        """See `Evaluation.read`."""
        return unique(self.cases(run))

    def same(self, truth: object, named: object) -> bool:
        """Whether a prediction counts."""
        return truth == named

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items, self.same, self.within)

    def measure(self, run: Run) -> Result:
        """See `Evaluation.measure`."""
        cases = run.take(self.read(run))
        if self.labels is None:
            return self.of_sheet(run.grade(cases), run)
        named = joined(run.add_input(self.labels), cases, first_error)
        missing = [case for case in cases if case.id not in named]
        if missing:
            raise InputError(
                f"expected labels of every conversation, found none of {missing[0].id!r} ({len(missing):,} of {len(cases):,} are missing)",
                where=self.labels,
            )
        return self._result([_item(case, _blamed(named[case.id])) for case in cases], run, "labels")

    def of_sheet(self, sheet: Sheet, run: Run) -> Result:
        """The result of graded conversations."""
        if self.rule == "first":
            truth = {row.case.id: first_error(row.case.labelled) for row in sheet.rows}
            chosen = policies(self.threshold, sheet, sheet.groups, truth)
            items = [_item(row.case, _blamed(chosen[row.case.group].found(row))) for row in sheet.rows]
        else:
            items = [_item(row.case, _weakest(row.scores)) for row in sheet.rows]
        return self._result(items, run, sheet.prm, sheet)

    def _result(self, items: Sequence[Item], run: Run, name: str, sheet: Sheet | None = None) -> Result:
        figures = run.figures(items, self.statistic(items))
        groups = list(dict.fromkeys(item["group"] for item in items))
        names = [*groups, *(["average"] if len(groups) > 1 else [])]
        columns = _names(self.within)
        open_ = sum(item["named"] is None for item in items)
        tables = (
            ()
            if self.published is None
            else (
                published_table(
                    self.published, name, [figures[f"{names[-1]}/{what}"] for what in columns[:2]]
                ),
            )
        )
        cards = () if sheet is None else examples(
            sheet,
            [(item["step"], item["named"]) for item in items],
            [f"truth: {item['agent']}, step {item['step'] + 1}" for item in items],
        )  # fmt: skip
        views = Views(
            title=f"{self.title}: {name}",
            verdict=f"Names the agent to blame in {shown(figures[f'{names[-1]}/agent'])} % and its step in "
            f"{shown(figures[f'{names[-1]}/step'])} % of the conversations{', on average over the parts' if len(groups) > 1 else ''}.",
            facts=(
                f"{amount(len(items), 'failed conversation')} with {amount(sum(item['steps'] for item in items), 'step')}; "
                "one agent and one step are blamed in each.",
                *([f"In {open_:,} no step is named; they count as missed."] if open_ else []),
                *(unreadable(sheet) if sheet is not None else []),
            ),
            remarks=(INTERVALS,),
            tiles=[tile(f"{what}, {of}", figures[f"{of}/{what}"]) for of in names for what in columns[:2]],
            sections=(
                Section(
                    title="Figures",
                    items=(
                        table_of(
                            "Who and when (%)",
                            "Part",
                            names,
                            {what.capitalize(): cell(figures, f"{{}}/{what}") for what in columns},
                            note="Average: unweighted over the parts.",
                        ),
                        bars_of("Named rightly", figures, names, {w: f"{{}}/{w}" for w in columns[:3]}),
                    ),
                ),
                Section(title="Published results", items=tables),
                Section(title="Examples", items=cards),
            ),
        )
        return run.result(
            self, views, figures, items, prm=name, identity=None if sheet is None else sheet.identity
        )


@settings
class WhoAndWhen(Blame):
    """Agent and step accuracy on Who&When, per subset and on average, with intervals.

    The data are its files, a folder of them, or JSON lines of the same rows.
    """

    name: ClassVar[str] = "who-and-when"
    title: ClassVar[str] = "Who&When"
    published: ClassVar[PublishedTable | None] = WHO_AND_WHEN
    scoring: Literal["exact", "script"] = "exact"
    """When a prediction counts: where it is equal, or as in the authors' script, where the annotated text stands in it (1 in 12)."""

    def cases(self, run: Run) -> Iterator[Case]:
        """See `Blame.cases`."""
        return (case for file in run.data for case in _cases(file, run.columns))

    def same(self, truth: object, named: object) -> bool:
        """See `Blame.same`."""
        if named is None or self.scoring == "exact":
            return truth == named
        read = re.search(r"\w+", str(named))  # the script reads a name up to the first hyphen
        return read is not None and str(truth) in read[0]


def _cases(file: Source, columns: Columns | None) -> Iterator[Case]:
    for row in read_rows(file, columns=columns):
        data = row.data
        step, agent = data.get("mistake_step"), data.get("mistake_agent")
        if not isinstance(agent, str) or not agent.strip():
            raise row.error(f"expected the name of the agent to blame, found {agent!r}", "mistake_agent")
        (chat,) = chat_rows([row])
        assert not isinstance(chat, Refusal)
        (read,) = solutions_of(chat, how="agent")
        steps = len(read.solution.steps)
        if not str(step).isdecimal() or not int(str(step)) < steps:
            raise row.error(
                f"expected an entry's number, {indices(steps)}; found {step!r}",
                "mistake_step",
            )
        if read.solution.id is None:
            raise row.error("expected an id, found none", "question_ID")
        crafted = "is_corrected" in data  # a question may stand in both parts
        yield Case(
            id=f"{read.solution.id}/hand-crafted" if crafted else read.solution.id,
            labelled=ratings_until(read.solution, int(str(step)), judge="human"),
            where=row.where,
            group="hand-crafted" if crafted else "algorithm-generated",
            outcome=False,
            policy=agent,  # who is to blame: what an evaluation of single writers calls the writer
        )


def _blamed(step: int | None) -> int | None:
    return None if step == -1 else step


def _weakest(scores: Sequence[float | None]) -> int | None:
    read = [(score, step) for step, score in enumerate(scores) if score is not None]
    return min(read)[1] if read else None


def base_name(agent: str | None) -> str:
    """An agent's name without what stands in brackets after it: "Orchestrator (thought)" is "Orchestrator"."""
    return re.sub(r"\s*\(.*\)\s*$", "", agent or "").strip()


def _item(case: Case, named: int | None) -> Item:
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


def _names(within: Sequence[int]) -> tuple[str, ...]:
    near = (f"within {'one' if distance == 1 else distance}" for distance in within)
    return ("agent", "step", *near, "agent, who speaks most", "step, the commonest")


def statistic(
    items: Sequence[Item], same: Callable[[object, object], bool], within: Sequence[int]
) -> Statistic:
    """Per part the figures of `_names`, and their unweighted averages, as functions of the items' weights."""
    groups = list(dict.fromkeys(item["group"] for item in items))
    commonest = {
        group: Counter(item["step"] for item in items if item["group"] == group).most_common(1)[0][0]
        for group in groups
    }
    names = _names(within)
    hits = np.array(
        [
            [
                same(item["agent"], item["named_agent"]),
                same(item["step"], item["named"]),
                *(
                    item["named"] is not None and abs(item["step"] - item["named"]) <= distance
                    for distance in within
                ),
                item["speaks_most"] == item["agent"],
                commonest[item["group"]] == item["step"],
            ]
            for item in items
        ],
        dtype=float,
    )
    member = {group: np.array([item["group"] == group for item in items], dtype=float) for group in groups}

    def figures(weights: Floats) -> Mapping[str, Floats]:
        values: dict[str, Floats] = {
            f"{group}/{name}": shares(weights @ (of * hits[:, at]), weights @ of)
            for group, of in member.items()
            for at, name in enumerate(names)
        }
        if len(groups) > 1:
            for name in names:
                values[f"average/{name}"] = np.mean([values[f"{group}/{name}"] for group in groups], axis=0)
        return values

    return figures
