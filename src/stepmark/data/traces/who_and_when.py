"""Who&When (Zhang et al. 2025, arXiv 2505.00212): failed conversations of agents (AutoGen, CrewAI), with the decisive mistake.

A row has `question`, `question_ID`, `ground_truth`, `history` (entries of {`content`, `role`, `name`}), `mistake_agent`, `mistake_step` (a number
from 0, as text) and `mistake_reason`. Every entry is a step: those before the mistake are right, those after it have no label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepmark.data.formats.rows import LabelledRow, signed
from stepmark.data.messages import Chat, Object, text_or_none
from stepmark.data.reading import Row
from stepmark.data.traces.base import SOLUTION_COLUMNS, Trace, has
from stepmark.records import LabelledSolution
from stepmark.show.text import indices


def sniff(data: Object) -> bool:
    """Whether a row is a conversation."""
    return has("question", "history")(data) and data.keys().isdisjoint(SOLUTION_COLUMNS)


def read(chat: Chat, events: Sequence[Object]) -> None:
    """One conversation; an entry without a text is a step too, for the labels count entries."""
    (data,) = events
    chat.write("user", data["question"] if isinstance(data.get("question"), str) else "")
    for entry in chat.objects(data["history"], "history"):
        text = entry.get("content")
        if not isinstance(text, str):
            raise chat.error("expected an entry with a text under 'content'")
        speaker = text_or_none(entry.get("name")) or text_or_none(entry.get("role"))
        message = {"role": "assistant", "content": text if text.strip() else "(nothing)"}
        chat.messages.append(message | ({"name": speaker} if speaker else {}))
    chat.facts = {
        "id": text_or_none(data.get("question_ID")),
        "answer": text_or_none(data.get("ground_truth")),
    }


def label(row: Row, conversation: LabelledRow) -> LabelledRow:
    """The labels of a row that names the decisive step.

    Raises:
        InputError: a `mistake_step` that is no entry's number.
    """
    given, reason = (conversation.meta.get(name) for name in ("mistake_step", "mistake_reason"))
    steps = len(conversation.solution.steps)
    if given is None:
        return conversation
    if not str(given).isdecimal() or int(str(given)) >= steps:
        raise row.error(f"expected an entry's number, {indices(steps)}; found {given!r}", "mistake_step")
    first = int(str(given))
    judged = signed((step < first for step in range(first + 1)), "human", "correctness")
    (wrong,) = judged[first]
    noted = replace(wrong, note=reason if isinstance(reason, str) and reason else None)
    judgements = (*judged[:first], (noted,), *((),) * (steps - first - 1))
    labelled = LabelledSolution(solution=conversation.solution, judgements=judgements)
    return replace(conversation, labelled=labelled, outcome=False)


TRACE = Trace(
    name="who-and-when",
    about="conversations of AutoGen and CrewAI, as Who&When holds them",
    sniff=sniff,
    read=read,
    columns=("question", "history", "question_ID", "ground_truth"),
    label=label,
)
