"""The reply of an agent's hook, when the agent wants to stop or after a tool ran.

Claude Code (code.claude.com/docs/en/hooks) and Codex (developers.openai.com/codex/hooks; `codex-rs/hooks/schema/generated` of openai/codex) give a
command hook one JSON object on standard input, with `hook_event_name` and `transcript_path`, and read its answer from standard output where it ends with
exit code 0. `{"decision": "block", "reason": …}` keeps the agent from stopping (`Stop`, `SubagentStop`), or is shown to it beside the tool's answer
(`PostToolUse`, whose tool has run already). No output lets it go on. Exit code 2 would block with standard error as the reason, so a hook that fails must end with
another one. `stop_hook_active` says that the agent goes on because a hook blocked its last stop: it is not blocked again.

Both write the transcript while the hook runs, so it may lag: what the hook's own fields (`last_assistant_message`; `tool_use_id`, `tool_name`, `tool_input`,
`tool_response`) say beyond it is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepmark.data.conversations import read_messages
from stepmark.data.json_rows import json_type
from stepmark.data.messages import written
from stepmark.data.solutions import SolutionRow
from stepmark.errors import InputError
from stepmark.records import Solution
from stepmark.scoring.live import LiveScores, SessionFile, TurnScore, conversations
from stepmark.words import shortened

STOPS = ("Stop", "SubagentStop")
TOOL = "PostToolUse"


def hook_reply(payload: Mapping[str, Any], live: LiveScores) -> dict[str, Any] | None:
    """The JSON that answers a hook; None to let the agent go on.

    A `Stop` is judged by the turns since the user's last message, a tool's call by its own turn.

    Args:
        payload: what the hook was given.
        live: scores the turns.

    Raises:
        InputError: no payload of a hook, or a transcript that cannot be read.
        BackendError: the PRM's server failed.
    """
    event = payload.get("hook_event_name")
    if not isinstance(event, str):
        raise InputError(f"expected the JSON object of a hook with hook_event_name, found {json_type(event)}")
    if event not in (*STOPS, TOOL) or payload.get("stop_hook_active") is True:
        return None
    path = payload.get("agent_transcript_path") or payload.get("transcript_path")
    if not isinstance(path, str):  # Codex keeps none of an ephemeral session
        return None
    messages = _messages(Path(path).expanduser(), payload)
    asked = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=-1)
    count = sum(message["role"] == "assistant" for message in messages[asked + 1 :]) if event in STOPS else 1
    if not count or all(message["role"] != "assistant" for message in messages):
        return None
    problem, cut = read_messages(messages, where=path, how="agent", reasoning=live.reasoning)
    turns = live.last(Solution(problem=problem, steps=cut.steps, split="agent"), count)
    wrong = [turn for turn in turns if turn.refuted] or [turn for turn in turns if turn.weak]
    return {"decision": "block", "reason": _reason(wrong)} if wrong else None


def _messages(path: Path, payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    errors: list[InputError] = []
    file = SessionFile(path, errors.append)
    if not file.poll(end=True):
        raise InputError(
            f"expected the session's file, found {'no row in it' if path.exists() else 'none'}",
            where=str(path),
        )
    read = list(conversations(file.rows))
    known = [row for row in read if isinstance(row, SolutionRow) and row.messages]
    named = [row for row in known if row.solution.id == payload.get("session_id")] or known
    messages = [dict(message) for message in (named[-1].messages or ())] if named else []
    last_message = payload.get("last_assistant_message")
    if isinstance(last_message, str) and last_message.strip():
        spoken = [str(message.get("content") or "") for message in messages if message["role"] == "assistant"]
        if not spoken or last_message.strip() not in spoken[-1]:
            messages.append({"role": "assistant", "content": last_message})
    id_, name = payload.get("tool_use_id"), payload.get("tool_name")
    calls = [call.get("id") for message in messages for call in message.get("tool_calls") or ()]
    if isinstance(name, str) and isinstance(id_, str) and id_ not in calls:
        function = {"name": name, "arguments": written(payload.get("tool_input") or {})}
        messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"id": id_, "function": function}]}
        )
    return messages


def _reason(turns: Sequence[TurnScore]) -> str:
    """The message to the agent, a sentence a turn."""
    sentences = [f"Turn {turn.turn + 1} ({shortened(turn.step.text)!r}): {turn.reason}" for turn in turns]
    return " ".join([*sentences, "Check this, and correct it before you go on."])
