"""Who&When (Zhang et al. 2025, arXiv 2505.00212): failed conversations of agents, with the decisive mistake.

A row has `question`, `question_ID`, `ground_truth`, `history` (entries of {`content`, `role`, `name`}), `mistake_agent`, `mistake_step` (a number
from 0, as text) and `mistake_reason`. Every entry is a step: those before the mistake are right, those after it have no label.

Written, what came back after a step (a tool's answer, a user's turn) is an entry of its own, and counts. Only a row whose first error is known
can be written; the reason is the note of the judgement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stepmark.data.formats.rows import (
    LabelledRow,
    Losses,
    NotRepresentableError,
    Reading,
    Writing,
    lose_fields,
    signed,
    two_way,
)
from stepmark.data.formats.trl import chat_reader
from stepmark.data.reading import Row
from stepmark.records import Judgement, LabelledSolution
from stepmark.show.text import indices

_MISTAKE = ("mistake_agent", "mistake_step", "mistake_reason")
_HEADING = re.compile(r"\n\n(Tool|User|System|Developer|Assistant)(?: \(([^()\n]*)\))?:\n")
"""As `data.conversations` writes what follows a turn."""


def read(row: Row, settings: Reading, losses: Losses) -> Iterator[LabelledRow]:
    """A conversation; labelled where the row names the decisive step.

    Raises:
        InputError: a `mistake_step` that is no entry's number.
    """
    for conversation in chat_reader("who-and-when")(row, settings, losses):
        given, reason = (conversation.meta.get(name) for name in ("mistake_step", "mistake_reason"))
        steps = len(conversation.solution.steps)
        if given is None:
            yield conversation
            continue
        if not str(given).isdecimal() or int(str(given)) >= steps:
            raise row.error(
                f"expected an entry's number, {indices(steps)}; found {given!r}",
                "mistake_step",
            )
        first = int(str(given))
        judged = signed((step < first for step in range(first + 1)), "human", "correctness")
        (wrong,) = judged[first]
        noted = replace(wrong, note=reason if isinstance(reason, str) and reason else None)
        judgements = (*judged[:first], (noted,), *((),) * (steps - first - 1))
        labelled = LabelledSolution(solution=conversation.solution, judgements=judgements)
        yield replace(conversation, labelled=labelled, outcome=False)


def write(row: LabelledRow, settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """A conversation with its decisive mistake.

    Raises:
        InputError: as `rows.two_way`.
        NotRepresentableError: no step is wrong, or a step before the first wrong one was not judged.
    """
    labels = two_way(replace(row, labelled=_without_reasons(row.labelled)), settings, losses)
    first = next((step for step, label in enumerate(labels) if label is None or label.rating == -1), None)
    if first is None or labels[first] is None:
        result = "no step is wrong" if first is None else "a step before any error was not judged"
        raise NotRepresentableError(f"Who&When holds conversations whose first error is known; here {result}")
    later = sum(label is not None for label in labels[first + 1 :])
    losses.lose("judgements after the first error are left out", row.where, later)
    lose_fields(row, losses, "Who&When", held=("id", "answer", "outcome"), facts=(*_MISTAKE, "is_corrected"))
    history: list[dict[str, str]] = []
    mistake, agent = 0, ""
    around = [step.lead + step.tail for step in row.solution.steps if row.solution.split != "agent"]
    losses.lose(
        "what stands around a step (its number, a separator) is left out",
        row.where,
        sum(bool(text.strip()) for text in around),
    )
    for number, step in enumerate(row.solution.steps):
        name = step.speaker or "assistant"
        if number == first:
            mistake, agent = len(history), re.sub(r"\s*\(.*\)\s*$", "", name)
        history.append({"content": step.text, "role": "assistant", "name": name})
        history += _entries(step.observation)
    meta = row.meta
    if meta.get("format") == "who-and-when" and str(meta.get("mistake_step")) == str(first):
        agent = str(meta.get("mistake_agent") or agent)  # the one to blame need not be the speaker
    yield {
        "question": row.solution.problem.text,
        "question_ID": row.solution.id or row.origin,
        "ground_truth": row.solution.problem.answer,
        "history": history,
        "mistake_agent": agent,
        "mistake_step": str(mistake),
        "mistake_reason": _reason(row.labelled.judgements[first]),
        **({"is_corrected": meta["is_corrected"]} if "is_corrected" in meta else {}),
    }


def _entries(observation: str) -> Iterator[dict[str, str]]:
    """What came back after a turn, an entry for each heading."""
    before, *parts = _HEADING.split(observation)
    if before.strip():
        yield {"content": before.strip("\n"), "role": "tool", "name": "tool"}
    for heading, name, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        yield {"content": text, "role": heading.lower(), "name": name or heading.lower()}


def _without_reasons(labelled: LabelledSolution) -> LabelledSolution:
    """Without the notes on wrong steps, so that they are not counted as lost."""
    judgements = tuple(
        tuple(replace(each, note=None) if each.rating == -1 else each for each in step)
        for step in labelled.judgements
    )
    return replace(labelled, judgements=judgements)


def _reason(judgements: tuple[Judgement, ...]) -> str:
    return "; ".join(each.note for each in judgements if each.note and each.rating == -1)
