"""Logs of inspect_ai as solutions: the `.json` form, and the `.eval` form, which is a zip of the same.

Each sample's `messages` are read as chat (`data.conversations`). `target` is the reference answer where it is one text. One score whose value is C
or I, 1 or 0, true or false says whether the final answer is right; other scores stay in `meta.scores`. Of reasoning that is redacted the summary is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepmark.data.conversations import read_messages
from stepmark.data.formats import rows
from stepmark.data.json_rows import json_type
from stepmark.data.messages import Chat
from stepmark.data.reading import Row
from stepmark.errors import InputError
from stepmark.records import LabelledSolution, Problem, Solution

LOG_KEYS = ("version", "eval", "samples")
SAMPLE_KEYS = ("id", "epoch", "messages", "target")
_RIGHT = {"C": True, "I": False}


def read(row: Row, settings: rows.Reading, counts: rows.Counts) -> Iterator[rows.LabelledRow]:
    """A whole log, or one sample of it. Ids are SAMPLE/EPOCH."""
    listed = row.data.get("samples", [row.data])
    model = None
    task = row.data.get("eval")
    if isinstance(task, dict):
        model = task.get("model") if isinstance(task.get("model"), str) else None
    if not isinstance(listed, list):
        raise row.error(f"expected a list of samples, found {json_type(listed)}", "samples")
    for number, sample in enumerate(listed):
        if not isinstance(sample, dict):
            raise row.error(f"expected a sample (an object), found {json_type(sample)}", f"samples.{number}")
        yield _sample(sample, row, model, settings, counts)


def _sample(
    sample: dict[str, Any], row: Row, model: str | None, settings: rows.Reading, counts: rows.Counts
) -> rows.LabelledRow:
    id_ = f"{sample.get('id')}/{sample.get('epoch', 1)}"
    where = f"{row.where}, sample {id_}"
    messages = sample.get("messages")
    if not isinstance(messages, list):
        raise InputError(
            f"expected a list of messages, found {json_type(messages)}", where=where, field="messages"
        )
    chat = [
        read
        for at, message in enumerate(messages)
        for read in chat_messages(message, f"messages[{at}]", where)
    ]
    problem, cut = read_messages(
        chat, where=where, how=settings.how, marker=settings.marker, reasoning=settings.reasoning
    )
    target = sample.get("target")
    if isinstance(target, list) and len(target) == 1:
        target = target[0]
    output = sample.get("output")
    generator = output.get("model") if isinstance(output, dict) else None
    scores = _scores(sample.get("scores"))
    known = {"scores": scores, "metadata": sample.get("metadata")}
    meta = rows.origin(row, "inspect", {}, None, **{name: value for name, value in known.items() if value})
    meta["from"] = f"{row.place}/{id_}" if "samples" in row.data else meta["from"]
    return rows.LabelledRow(
        labelled=LabelledSolution(
            solution=Solution(
                problem=Problem(
                    text=problem.text,
                    id=str(sample.get("id")),
                    answer=target if isinstance(target, str) and target else None,
                ),
                steps=cut.steps,
                id=id_,
                split=cut.how,
                source=model or (generator if isinstance(generator, str) and generator else None),
            ),
            judgements=((),) * len(cut.steps),
        ),
        where=where,
        outcome=_outcome(scores),
        meta=meta,
        messages=chat if settings.reasoning == "keep" else None,
    )


def _scores(scores: object) -> dict[str, Any]:
    """Each scorer's value."""
    if not isinstance(scores, dict):
        return {}
    return {name: score.get("value") for name, score in scores.items() if isinstance(score, dict)}


def _outcome(scores: dict[str, Any]) -> bool | None:
    if len(scores) != 1:
        return None
    (value,) = scores.values()
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _RIGHT.get(value)
    return value == 1 if value in (0, 1) else None


def chat_messages(message: object, field: str, where: str) -> list[dict[str, Any]]:
    """A message of the log as messages of the OpenAI chat API: one, and the answers of tools that ran at the server.

    Raises:
        InputError: it is none.
    """
    chat = Chat(where=where, part=field)
    with chat.reading("a message"):
        chat.append(message)
    return chat.messages


FORMAT = rows.Format(
    name="inspect",
    about="logs of inspect_ai: .json, or .eval",
    sniff=lambda row: any(all(key in row for key in keys) for keys in (LOG_KEYS, SAMPLE_KEYS)),
    read=read,
    over=("chat",),
)
