"""Who&When: which agent made the decisive mistake, and at which step.

Source: Zhang et al. 2025, "Which agent causes task failures and when?", arXiv 2505.00212, section 3. Rows are failed conversations
{`question`, `history` of {`content`, `role`, `name`}, `mistake_agent`, `mistake_step`, `ground_truth`, `question_ID`}; `mistake_step` counts
entries of the history from 0, and every entry is a step. A row with `is_corrected` is of the hand-crafted part, any other of the
algorithm-generated one. The annotated agent need not be the speaker of the annotated step: in three of the 126 algorithm-generated
conversations it is another.

Deviation from the authors' script: it asks whether the annotated text stands *in* the predicted one, so that step 1 counts as found by
the prediction 12, and reads a name up to its first hyphen; `scoring` "script" does the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, Literal

from stepmark.data.reading import Source, read_rows
from stepmark.data.solutions import solutions_of
from stepmark.data.traces import chat_rows
from stepmark.evaluation.base import Run
from stepmark.evaluation.benchmark import PublishedTable
from stepmark.evaluation.blame import Blame
from stepmark.evaluation.cases import Case, ratings_until
from stepmark.records import Refusal
from stepmark.settings import settings
from stepmark.words import indices

_PUBLISHED = PublishedTable.read(
    "Who&When as published (%)",
    {"Agent": "*/agent", "Step": "*/step"},
    """
    the best method, each | 53.5 14.2 | critic | arXiv 2505.00212, abstract
    """,
    note="The two are of different methods: the whole conversation at once names agents best, step by step names steps best.",
)


@settings
class WhoAndWhen(Blame):
    """Agent and step accuracy on Who&When, per subset and on average, with intervals.

    The data are its files, a folder of them, or JSON lines of the same rows.
    """

    name: ClassVar[str] = "who-and-when"
    title: ClassVar[str] = "Who&When"
    question: ClassVar[str] = "which agent broke a conversation, and at which step?"
    paper: ClassVar[str] = "arXiv 2505.00212"
    published: ClassVar[PublishedTable | None] = _PUBLISHED

    scoring: Literal["exact", "script"] = "exact"
    """When a prediction counts: where it is equal, or as in the authors' script, where the annotated text stands in it (1 in 12)."""

    def same(self, truth: object, named: object) -> bool:
        """See `Blame.same`."""
        if named is None or self.scoring == "exact":
            return truth == named
        read = re.search(r"\w+", str(named))  # the script reads a name up to the first hyphen
        return read is not None and str(truth) in read[0]

    def cases(self, file: Source, run: Run) -> Iterator[Case]:
        """See `Benchmark.cases`."""
        for row in read_rows(file, columns=run.columns):
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
