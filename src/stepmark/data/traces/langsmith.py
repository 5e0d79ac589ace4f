"""Runs of LangSmith: `run_type`, `inputs`, `outputs`, `trace_id`; a root may hold `child_runs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepmark.data.formats.rows import has
from stepmark.data.messages import Chat, Object, object_or_empty, text_or_none
from stepmark.data.traces.base import Call, in_order, join_calls, logged_messages, message_key, with_id

ABOUT = "runs of LangSmith"
sniff = has("run_type", "inputs")


def events(data: Object) -> Iterator[tuple[str, Object]]:
    """A run and the runs in it."""
    key = str(data.get("trace_id") or data.get("id") or "")
    waiting = [data]
    while waiting:
        run = waiting.pop()
        yield key, {name: value for name, value in run.items() if name != "child_runs"}
        waiting += reversed(run.get("child_runs") or ())


def read(chat: Chat, events: Sequence[Object]) -> None:
    """The calls of models in a trace, or where none was logged its root."""
    calls: list[Call] = []
    ordered = in_order(events, "id", lambda run: str(run.get("dotted_order") or run.get("start_time") or ""))
    models = [run for run in ordered if run.get("run_type") == "llm"]
    roots = [run for run in ordered if not run.get("parent_run_id") and run.get("run_type") != "llm"]
    for run in models or roots[:1]:
        chat.where = run["where"]
        metadata = object_or_empty(object_or_empty(run.get("extra")).get("metadata"))
        speaker = text_or_none(metadata.get("lc_agent_name"))
        if not run.get("outputs"):
            continue
        prompt = logged_messages(chat, run.get("inputs"), "inputs")
        reply = logged_messages(chat, run["outputs"], "outputs", speaker)
        if not models:  # a chain's outputs repeat its inputs
            repeated = [*map(message_key, reply)][: len(prompt)] == [*map(message_key, prompt)]
            reply = reply[len(prompt) :] if repeated else reply
        calls.append((prompt, with_id(reply, run.get("id"))))
        chat.facts["source"] = text_or_none(metadata.get("ls_model_name"))
        if text_or_none(run.get("session_id")):  # the project
            chat.facts["meta"] = {"session_id": run["session_id"]}
    join_calls(
        chat, calls, "a run whose run_type is 'llm', or a root with messages, that has outputs", "run_type"
    )
