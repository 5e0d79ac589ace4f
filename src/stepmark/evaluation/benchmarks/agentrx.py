"""AgentRx: which step of a failed trajectory is the critical one.

Source: Barke et al. 2026, arXiv 2602.02475, and data/ of microsoft/AgentRx. A trajectory is a row with `task_id` or `trajectory_id` and its
messages (`traj`, `messages` or `events`); its truth is another row, with `trajectory_id`, `failures` (each of `failure_id`, `step_number`,
`failed_agent`) and `root_cause`, whose `failure_id` names the critical one. Steps are messages, counted from 1; the system's messages that
open the trajectory are the problem, and every other message is a step that can be named.

Figures as of Who&When, with the shares within 1, 3 and 5 steps that the authors' script gives too. Their failure categories are for judges that write, and are
not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from stepmark.data.reading import Row, Source, read_rows
from stepmark.data.solutions import solutions_of
from stepmark.data.traces import chat_rows
from stepmark.evaluation.base import Run
from stepmark.evaluation.blame import Blame
from stepmark.evaluation.cases import Case, ratings_until, unique
from stepmark.records import Refusal
from stepmark.settings import settings

_MESSAGES = ("traj", "messages", "events")


@settings
class AgentRx(Blame):
    """Agent and step accuracy on AgentRx: the critical failure, exactly and within 1, 3 and 5 steps, with intervals.

    The data are two files: the trajectories, and their `failures`.
    """

    name: ClassVar[str] = "agentrx"
    title: ClassVar[str] = "AgentRx"
    question: ClassVar[str] = "which step of a failed trajectory is the critical one?"
    paper: ClassVar[str] = "arXiv 2602.02475"
    home: ClassVar[str] = "github.com/microsoft/AgentRx"
    files: ClassVar[tuple[str, ...]] = ("tau_dataset_failed.json", "tau_ground_truth.json")
    within: ClassVar[tuple[int, ...]] = (1, 3, 5)
    shown: ClassVar[Mapping[str, str]] = {
        "Agent": "agent", "Step": "step", "Within one": "within one", "Within 3": "within 3", "Within 5": "within 5",
        "Agent, who speaks most": "agent, who speaks most", "Step, the commonest": "step, the commonest",
    }  # fmt: skip

    def read(self, run: Run) -> Sequence[Case]:
        """See `Evaluation.read`: a trajectory and its truth may stand in two files."""
        return unique(self._cases([row for file in run.data for row in read_rows(file, columns=run.columns)]))

    def cases(self, file: Source, run: Run) -> Iterator[Case]:
        """See `Benchmark.cases`."""
        return self._cases(list(read_rows(file, columns=run.columns)))

    def _cases(self, rows: Sequence[Row]) -> Iterator[Case]:
        trajectories = {_id(row): row for row in rows if "failures" not in row.data}
        for truth in rows:
            if "failures" not in truth.data:
                continue
            id = _id(truth)
            if id not in trajectories:
                raise truth.error(
                    f"expected the trajectory {id} in the data too, found none", "trajectory_id"
                )
            step, agent = _critical(truth)
            yield _case(trajectories[id], id, step, agent, truth)


def _id(row: Row) -> str:
    id = next((row.data[key] for key in ("trajectory_id", "task_id") if row.data.get(key) is not None), None)
    if id is None:
        raise row.error("expected an id, found none", "trajectory_id")
    return str(id)


def _critical(row: Row) -> tuple[int, str]:
    failures, cause = row.data["failures"], row.data.get("root_cause")
    failure_id = cause.get("failure_id") if isinstance(cause, Mapping) else None
    results = [
        item
        for item in (failures if isinstance(failures, list) else [])
        if isinstance(item, Mapping) and item.get("failure_id") == failure_id
    ]
    if len(results) != 1:
        raise row.error(
            f"expected the failure {failure_id!r} once among `failures`, found it {len(results)} times",
            "root_cause",
        )
    step, agent = results[0].get("step_number"), results[0].get("failed_agent")
    if type(step) is not int or not isinstance(agent, str):
        raise row.error(f"expected a step's number and an agent, found {step!r} and {agent!r}", "failures")
    return step, agent


def _case(row: Row, id: str, step: int, agent: str, truth: Row) -> Case:
    messages = next((row.data[key] for key in _MESSAGES if key in row.data), None)
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise row.error("expected a list of messages", _MESSAGES[0])
    opening = next((at for at, item in enumerate(messages) if item.get("role") != "system"), len(messages))
    entries = [
        {
            "content": _text(message),
            "name": str(message.get("name") or message.get("role") or message.get("source")),
        }
        if message.get("role") not in ("user", "assistant", "tool")
        else {"content": _text(message), "name": str(message["role"]).capitalize()}
        for message in messages[opening:]
    ]
    if not opening < step <= len(messages):
        raise truth.error(f"expected a step from {opening + 1} to {len(messages)}, found {step}", "failures")
    question = "\n\n".join(_text(message) for message in messages[:opening]) or str(
        row.data.get("instruction") or ""
    )
    (chat,) = chat_rows([replace(row, data={"question": question, "history": entries, "question_ID": id})])
    assert not isinstance(chat, Refusal)
    (read,) = solutions_of(chat, how="agent")
    return Case(
        id=id,
        labelled=ratings_until(read.solution, step - opening - 1, judge="human"),
        where=row.where,
        group="agentrx",
        outcome=False,
        policy=agent,
    )


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content", message.get("message"))
    calls: Sequence[Any] = message.get("tool_calls") or ()
    lines = [
        f"{call['function'].get('name')}({call['function'].get('arguments')})"
        for call in calls
        if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)
    ]
    return "\n".join([*([content] if isinstance(content, str) and content else []), *lines])
