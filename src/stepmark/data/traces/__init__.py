"""Traces of agents as their tools write them, brought into one form: chat messages (`data.conversations`).

Each module of this folder but `base` is one format, added by adding it. It says what the format is (`ABOUT`), whether a row is of it (`sniff`) and how the
events of a conversation are written into a chat (`read`); where they apply, how a row is taken apart into events (`events`) and those of a trace into conversations
(`conversations`), that a tool writes each event into a file of its own (`BY_FOLDER`), the columns that are read of a row that is a trace (`COLUMNS`), the labels that a row
holds (`label`), and how a conversation is written (`write`). The name is the file's, with dashes, or `NAME`.

What a model writes until something comes back (thoughts, texts, tool calls) is one turn. Rows of events are gathered by session or trace
when the file has ended, so a file of them is held in memory. Calls of a model that repeat the conversation so far (spans, runs,
generations) add only what is new in them, in the order of time; two calls of different agents make one conversation with two speakers.

Left out: encrypted thoughts, events that repeat others, calls of a model that failed. A subagent is a trace of its own. A picture that the
user or a tool gave is the text "[image]"; one by the assistant is refused. A tool that ran at the server answers in its call; a log that
does not hold what it gave has an empty answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stepmark.data.columns import columns_of, content_of
from stepmark.data.formats.rows import declared
from stepmark.data.messages import Chat, Object
from stepmark.data.reading import Row
from stepmark.data.traces.base import Trace
from stepmark.errors import InputError
from stepmark.records import Refusal

TRACES: Mapping[str, Trace] = declared(Trace, __name__, "base")
"""The formats by name."""


def trace_format(data: Object) -> str | None:
    """The name of the format that a row is of; None for one that is no such trace, as one of a problem and a solution in words."""
    if any(isinstance(data[asked], str) for asked in columns_of(data, "problem")) and any(
        isinstance(data[column], list if field in ("steps", "solutions") else str)
        for field, column in content_of(data)
    ):
        return None
    return next((name for name, trace in TRACES.items() if trace.sniff(data)), None)


def chat_rows(rows: Iterable[Row | Refusal], *, keep_going: bool = False) -> Iterator[Row | Refusal]:
    """The same rows, with those of traces as rows of `messages`; events stand as one row a conversation, after the last row."""
    gathered: _Gathered = {}
    for row in rows:
        name = None if isinstance(row, Refusal) or row.record is not None else trace_format(row.data)
        if isinstance(row, Refusal) or name is None:
            yield row
        elif (split := TRACES[name].events) is None:
            yield from _chat_row(row, TRACES[name], [row.data], "", keep_going)
        else:
            with Chat(where=row.where).reading(f"a row of {name}"):
                for key, event in split(row.data):
                    # Events that name no trace are those of their file; a folder has several.
                    _, events = gathered.setdefault((name, key, "" if key else row.file), (row, []))
                    events.append({**event, "where": row.where})
    conversations: list[tuple[Row, Trace, str, Sequence[Object]]] = []
    for (name, key, _), (row, events) in _by_folder(gathered).items():
        trace = TRACES[name]
        with Chat(where=row.where).reading(f"rows of {name}"):
            parts = [(key, events)] if trace.conversations is None else [*trace.conversations(events)]
        conversations += [(row, trace, id_, part) for id_, part in parts]
    continued = _continued([part for _, _, _, part in conversations])
    for number, (row, trace, id_, part) in enumerate(conversations):
        if number not in continued:
            yield from _chat_row(row, trace, part, id_, keep_going)


def _continued(conversations: Sequence[Sequence[Object]]) -> set[int]:
    """The conversations all of whose entries, by their `uuid`, stand in another one: a session that was resumed is copied into its next file."""
    ids = [[event.get("uuid") for event in events] for events in conversations]
    whole = [frozenset(own) if all(isinstance(id_, str) for id_ in own) else frozenset() for own in ids]
    last = {own[-1] for own, entries in zip(ids, whole, strict=True) if entries}
    holders: dict[object, list[int]] = {}
    for number, entries in enumerate(whole):
        for id_ in entries & last:
            holders.setdefault(id_, []).append(number)
    return {
        number
        for number, entries in enumerate(whole)
        if entries
        for other in holders[ids[number][-1]]
        if entries < whole[other] or (entries == whole[other] and other < number)
    }


_Gathered = dict[tuple[str, str, str], tuple[Row, list[Object]]]


def _by_folder(gathered: _Gathered) -> _Gathered:
    """The same; files of a folder that hold one event each become one trace, in the order of time, where their format writes such files."""
    joined: _Gathered = {}
    for (name, key, file), (row, events) in gathered.items():
        alone = TRACES[name].by_folder and not key and len(events) == 1
        place = f"{Path(file).parent}/" if alone else file
        _, together = joined.setdefault((name, key, place), (row, []))
        together += events
        if alone:
            together.sort(key=lambda event: str(event.get("timestamp") or ""))
    return joined


def _chat_row(
    row: Row, trace: Trace, events: Sequence[Object], key: str, keep_going: bool
) -> Iterator[Row | Refusal]:
    chat = Chat(where=row.where)
    try:
        with chat.reading(f"a trace of {trace.name}"):
            trace.read(chat, events)
    except InputError as error:
        if not keep_going:
            raise
        yield Refusal(solution=None, error=error)
        return
    messages = [
        message
        for message in chat.messages
        if message["role"] != "assistant"
        or any((message.get(key) or "").strip() for key in ("content", "reasoning_content"))
        or message.get("tool_calls")
    ]
    facts = {"id": key or None, **chat.facts}
    if trace.events is None:
        rest = {key: value for key, value in row.data.items() if key not in trace.columns}
        facts["meta"] = {key: value for key, value in rest.items() if value is not None} or None
    data = {"messages": messages, **{name: value for name, value in facts.items() if value is not None}}
    yield replace(row, data=data, original=None)
