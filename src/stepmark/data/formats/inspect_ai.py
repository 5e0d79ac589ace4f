"""Logs of inspect_ai as solutions: the `.json` form, and the `.eval` form, which is a zip of the same.

Each sample's `messages` are read as chat (`data.conversations`). `target` is the reference answer where it is one text. One score whose value is C
or I, 1 or 0, true or false says whether the final answer is right; other scores stay in `meta.scores`. Of reasoning that is redacted the summary is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepmark.data.formats import rows
from stepmark.data.json_rows import json_type
from stepmark.data.messages import Chat, object_or_empty, text_or_none
from stepmark.data.reading import Row
from stepmark.data.solutions import read_solution
from stepmark.records import LabelledSolution

NAME = "inspect"
ABOUT = "logs of inspect_ai: .json, or .eval"
OVER = ("chat",)

LOG_KEYS = ("version", "eval", "samples")
SAMPLE_KEYS = ("id", "epoch", "messages", "target")
_RIGHT = {"C": True, "I": False}


def sniff(data: Mapping[str, Any]) -> bool:
    """Whether a row is a log or a sample of one."""
    return any(rows.has(*keys)(data) for keys in (LOG_KEYS, SAMPLE_KEYS))


def read(row: Row, settings: rows.ReaderSettings, _counts: rows.Counts) -> Iterator[rows.LabelledRow]:
    """A whole log, or one sample of it. Ids are SAMPLE/EPOCH."""
    listed = row.data.get("samples", [row.data])
    if not isinstance(listed, list):
        raise row.error(f"expected a list of samples, found {json_type(listed)}", "samples")
    for number, sample in enumerate(listed):
        if not isinstance(sample, dict):
            raise row.error(f"expected a sample (an object), found {json_type(sample)}", f"samples.{number}")
        yield _sample(sample, row, settings)


def _sample(sample: dict[str, Any], row: Row, settings: rows.ReaderSettings) -> rows.LabelledRow:
    id_ = f"{sample.get('id')}/{sample.get('epoch', 1)}"
    where = f"{row.where}, sample {id_}"
    chat = Chat(where=where)
    with chat.reading("messages"):
        chat.each(sample.get("messages"), "messages", chat.append)
    target = sample.get("target")
    if isinstance(target, list) and len(target) == 1:
        target = target[0]
    models = (object_or_empty(holder).get("model") for holder in (row.data.get("eval"), sample.get("output")))
    data = {
        "id": id_,
        "problem_id": str(sample.get("id")),
        "messages": chat.messages,
        "answer": text_or_none(target),
        "source": next(filter(None, map(text_or_none, models)), None),
    }
    solution_row = read_solution(
        data, where=where, how=settings.how, marker=settings.marker, reasoning=settings.reasoning
    )
    scores = {
        name: score.get("value")
        for name, score in object_or_empty(sample.get("scores")).items()
        if isinstance(score, dict)
    }
    fields = {"scores": scores, "metadata": sample.get("metadata")}
    meta = rows.origin(row, "inspect", {}, **{name: value for name, value in fields.items() if value})
    meta["from"] = f"{row.place}/{id_}" if "samples" in row.data else meta["from"]
    return rows.LabelledRow(
        labelled=LabelledSolution(
            solution=solution_row.solution, judgements=((),) * len(solution_row.solution.steps)
        ),
        where=where,
        outcome=_outcome(scores),
        meta=meta,
        messages=solution_row.messages if settings.reasoning == "keep" else None,
    )


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
