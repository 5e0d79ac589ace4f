"""Who&When (Zhang et al. 2025, arXiv 2505.00212): failed conversations of agents (AutoGen, CrewAI), with the decisive mistake.

A row has `question`, `question_ID`, `ground_truth`, `history` (entries of {`content`, `role`, `name`}), `mistake_agent`, `mistake_step` (a number
from 0, as text) and `mistake_reason`. Every entry is a step: those before the mistake are right, those after it have no label.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from stepmark.data.columns import CONTENT_NAMES
from stepmark.data.formats.rows import LabelledRow, NotRepresentableError, Writing, has, labels_of, signed
from stepmark.data.messages import Chat, Object, text_or_none
from stepmark.data.reading import Row
from stepmark.records import LabelledSolution
from stepmark.words import indices

ABOUT = "conversations of AutoGen and CrewAI, as Who&When holds them"
COLUMNS = ("question", "history", "question_ID", "ground_truth")

_HEADING = re.compile(r"\n\n(Tool|User|System|Developer|Assistant)(?: \(([^()\n]*)\))?:\n")
"""As `data.conversations` writes what follows a turn."""


def sniff(data: Object) -> bool:
    """Whether a row is a conversation."""
    return has("question", "history")(data) and data.keys().isdisjoint(CONTENT_NAMES)


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
    mistake, reason = (conversation.meta.get(name) for name in ("mistake_step", "mistake_reason"))
    steps = len(conversation.solution.steps)
    if mistake is None:
        return conversation
    if not str(mistake).isdecimal() or int(str(mistake)) >= steps:
        raise row.error(f"expected an entry's number, {indices(steps)}; found {mistake!r}", "mistake_step")
    first = int(str(mistake))
    judged = signed((step < first for step in range(first + 1)), "human", "correctness")
    (wrong,) = judged[first]
    noted = replace(wrong, note=reason if isinstance(reason, str) and reason else None)
    judgements = (*judged[:first], (noted,), *((),) * (steps - first - 1))
    labelled = LabelledSolution(solution=conversation.solution, judgements=judgements)
    return replace(conversation, labelled=labelled, outcome=False)


def write(row: LabelledRow, settings: Writing) -> Iterator[dict[str, Any]]:
    """A conversation with its decisive mistake; what came back after a step is an entry of its own, and counts.

    Raises:
        InputError: as `rows.labels_of`.
        NotRepresentableError: no step is wrong, or a step before the first wrong one was not judged.
    """
    labels = labels_of(row, settings, neutral=False, shares=False)
    first = next((step for step, label in enumerate(labels) if label is None or label.rating == -1), None)
    if first is None or labels[first] is None:
        result = "no step is wrong" if first is None else "a step before any error was not judged"
        raise NotRepresentableError(f"Who&When holds conversations whose first error is known; here {result}")
    history: list[dict[str, str]] = []
    mistake, agent = 0, ""
    for number, step in enumerate(row.solution.steps):
        name = step.speaker or "assistant"
        if number == first:
            mistake, agent = len(history), re.sub(r"\s*\(.*\)\s*$", "", name)
        history.append({"content": step.text, "role": "assistant", "name": name})
        history += _entries(step.observation)
    meta = row.meta
    if meta.get("format") == "who-and-when" and str(meta.get("mistake_step")) == str(first):
        agent = str(meta.get("mistake_agent") or agent)  # the one to blame need not be the speaker
    reasons = [each.note for each in row.labelled.judgements[first] if each.note and each.rating == -1]
    yield {
        "question": row.solution.problem.text,
        "question_ID": row.solution.id or row.origin,
        "ground_truth": row.solution.problem.answer,
        "history": history,
        "mistake_agent": agent,
        "mistake_step": str(mistake),
        "mistake_reason": "; ".join(reasons),
        **({"is_corrected": meta["is_corrected"]} if "is_corrected" in meta else {}),
    }


def _entries(observation: str) -> Iterator[dict[str, str]]:
    """What came back after a turn, an entry for each heading."""
    before, *parts = _HEADING.split(observation)
    if before.strip():
        yield {"content": before.strip("\n"), "role": "tool", "name": "tool"}
    for heading, name, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        yield {"content": text, "role": heading.lower(), "name": name or heading.lower()}
