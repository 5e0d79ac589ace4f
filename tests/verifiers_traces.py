"""Real traces of verifiers with stepmark's credit on them, in verifiers' environment: `python verifiers_traces.py JOB.json`."""

import asyncio
import json
import sys
from pathlib import Path

from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import Reward, Trace
from verifiers.v1.types import AssistantMessage, ToolCall, ToolMessage, UserMessage

import stepmark
from stepmark.rl.adapters import verifiers

SCORES = {"look up\nsearch({})": 0.75, "7 apples": 0.5, "add them": 0.25, "7": 0.0, "them": 1.25}
prm = stepmark.ScriptedPRM(lambda problem, steps: SCORES[steps[-1]], score_kind="unbounded")


def trace(reward, *messages):
    """Nodes in a line; an assistant's has one token of the template before its two own."""
    nodes = []
    for message in (UserMessage(content="How many?"), *messages):
        sampled = message.role == "assistant"
        mask = [False, True, True] if sampled else [False] * 2
        parent = len(nodes) - 1 if nodes else None
        nodes.append(
            MessageNode(
                message=message, sampled=sampled, token_ids=list(range(len(mask))), mask=mask, parent=parent
            )
        )
    return Trace.model_construct(
        id="t", nodes=nodes, calls=[], rewards={"right": Reward(score=reward)}, mm_token_type_id_map={}
    )


call = ToolCall(id="1", name="search", arguments="{}")
traces = [
    trace(
        1.0,
        AssistantMessage(content="look up", tool_calls=[call]),
        ToolMessage(tool_call_id="1", content="A=3"),
        AssistantMessage(content="7 apples"),
    ),
    trace(
        0.0, AssistantMessage(content="add them"), UserMessage(content="Well?"), AssistantMessage(content="7")
    ),
    trace(0.0, AssistantMessage(content="them")),
]
verifiers.assign_turns(traces, stepmark.rl.Discounted(gamma=1.0, scale=False), prm=prm)
reward = verifiers.prm_reward(prm, unread=-1.0, aggregate="min")
result = {
    "advantages": [[branch.advantages for branch in one.branches] for one in traces],
    "reward": asyncio.run(reward(traces[0])),
}
Path(json.loads(Path(sys.argv[1]).read_text())["out"]).write_text(json.dumps(result))
