"""Sessions of Claude Code: one entry a line, {`type`, `message`, `uuid`, `parentUuid`, `sessionId`}.

Session files repeat entries when a session is resumed or copied: an entry whose `uuid` was read is not read again. The conversation is the live
branch: the chain of `parentUuid` from the last entry. What was rewound, an edited first question too, is left out. A file in which no entry names
a parent is one chain, in the order of its lines. A subagent (`isSidechain`)
is a conversation of its own. Lines of neither the user nor the assistant are left out, and what Claude Code itself wrote as an assistant
("<synthetic>").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from stepmark.data.json_rows import json_type
from stepmark.data.messages import Chat, Object, object_or_empty, text_or_none
from stepmark.data.traces.base import of_file

ABOUT = "sessions of Claude Code: .jsonl"
events = of_file

_SPOKEN = ("user", "assistant")


def sniff(data: Object) -> bool:
    """Whether a row is an entry of a session."""
    if not isinstance(data.get("type"), str):
        return False
    if data["type"] in _SPOKEN and "uuid" in data and isinstance(data.get("message"), Mapping):
        return True
    return not data.keys().isdisjoint(("sessionId", "leafUuid", "snapshot"))


def conversations(events: Sequence[Object]) -> Iterator[tuple[str, Sequence[Object]]]:
    """The live branch of each session and subagent of a file; a session that another one continues is a part of that."""
    entries: dict[object, Object] = {}
    before: dict[object, object] = {}
    roots: dict[object, object] = {}
    latest: dict[object, object] = {}
    leaves: dict[object, object] = {}
    chained = any(event.get("parentUuid") is not None for event in events)
    for number, event in enumerate(events):
        key: object = text_or_none(event.get("uuid")) or number
        if key in entries or (key == number and event.get("type") not in _SPOKEN):
            continue
        session, agent = event.get("sessionId"), event.get("agentId")
        side = bool(event.get("isSidechain"))
        parent = _parent(event, entries, latest.get((session, side, agent)), chained)
        entries[key], before[key] = event, parent
        roots[key] = key if parent is None else roots[parent]
        latest[session, side, agent] = key
        if event.get("type") in _SPOKEN:
            # A subagent without a name is a chain of its own.
            leaves[session, side, (agent or roots[key]) if side else None] = key
    branches = {leaf: _live(entries, before, leaf) for leaf in leaves.values()}
    for leaf, branch in branches.items():
        if any(leaf in other for end, other in branches.items() if end != leaf):
            continue
        session = text_or_none(entries[leaf].get("sessionId")) or ""
        agent = entries[leaf].get("agentId") or "subagent"
        id_ = f"{session}/{agent}" if entries[leaf].get("isSidechain") else session
        yield id_, _in_order(event for key, event in entries.items() if key in branch)


def _in_order(branch: Iterable[Object]) -> list[Object]:
    """The messages of a branch; parts of one reply, between which answers of its calls may stand, come together."""
    first: dict[str, int] = {}
    placed = []
    for number, event in enumerate(event for event in branch if event.get("type") in _SPOKEN):
        reply = _reply(event)
        placed.append((number if reply is None else first.setdefault(reply, number), number, event))
    return [event for _, _, event in sorted(placed, key=lambda entry: entry[:2])]


def _parent(event: Object, entries: Mapping[object, Object], previous: object, chained: bool) -> object:
    """The entry before one in its branch; None for the first of a branch. `chained`: entries of this file name their parents."""
    for field in ("parentUuid", "logicalParentUuid"):  # the second leads over a compaction
        parent = event.get(field)
        if parent is not None and parent in entries:
            # A subagent hangs on the call that began it, and does not go on from it.
            same = bool(entries[parent].get("isSidechain")) == bool(event.get("isSidechain"))
            return parent if same else previous
    # A root that says so is a new or an edited first question; an answer cannot be one.
    is_root = chained and "parentUuid" in event and event["parentUuid"] is None
    return None if is_root and _is_question(event) else previous


def _is_question(event: Object) -> bool:
    results = any(part.get("type") == "tool_result" for part in _parts(event))
    return event.get("type") == "user" and not results


def _live(entries: Mapping[object, Object], before: Mapping[object, object], key: object) -> set[object]:
    """The chain that ends at an entry, with what belongs to it beside: parts of one reply, and answers of its tool calls."""
    chain = {key}
    while (parent := before.get(key)) is not None and parent not in chain:
        chain.add(parent)
        key = parent
    replies, calls = {_reply(entries[key]) for key in chain} - {None}, set[object]()
    for key, event in entries.items():
        if key in chain or _reply(event) in replies:
            chain.add(key)
            calls.update(part.get("id") for part in _parts(event) if part.get("type") == "tool_use")
        elif before.get(key) in chain and any(part.get("tool_use_id") in calls for part in _parts(event)):
            chain.add(key)
    return chain


def _reply(event: Object) -> str | None:
    """The id of the model's reply that an entry is a part of."""
    is_reply = event.get("type") == "assistant"
    return text_or_none(object_or_empty(event.get("message")).get("id")) if is_reply else None


def _parts(event: Object) -> list[Object]:
    content = object_or_empty(event.get("message")).get("content")
    return [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []


def read(chat: Chat, events: Sequence[Object]) -> None:
    """One conversation."""
    for event in events:
        chat.where, chat.part = event["where"], "message"
        message = event.get("message")
        if not isinstance(message, Mapping):
            raise chat.error(f"expected a message (an object), found {json_type(message)}")
        if message.get("model") == "<synthetic>":  # an error of the API, which the model did not write
            continue
        chat.message({"role": event["type"], "content": message.get("content")})
        if chat.facts.get("source") is None and text_or_none(message.get("model")):
            chat.facts["source"] = message["model"]
