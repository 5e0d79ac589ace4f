"""Turn scores for environments of verifiers, and turn credit for prime-rl: a reward function, and advantages on the message graph.

For the traces of `verifiers.v1` (tested with 0.4.0), of which nothing is imported: a trace is its `nodes` and `branches`, and each node has its
message, whether the model `sampled` it, and the mask of its sampled tokens. prime-rl has no hook for a user's credit: a class of its own in
its tree calls `assign_turns` in `score_group`, where its own algorithms call `assign_advantages`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from itertools import accumulate
from typing import Any

import torch

from stepmark.data.conversations import read_messages
from stepmark.errors import InputError, UsageError
from stepmark.metrics.aggregate import aggregate as aggregated
from stepmark.metrics.aggregate import resolve_aggregate
from stepmark.models.prm import PRM
from stepmark.records import Refusal, Solution
from stepmark.rl.adapters.rating import check_credit, credit_of
from stepmark.rl.credit import Credit


def turn_scores(traces: Sequence[Any], prm: PRM) -> list[tuple[float, ...] | None]:
    """The PRM's score of every turn that the model wrote, in the order of the trace's nodes; None for a trace that cannot be read: with an empty turn,
    or one that the PRM refuses.

    A turn is read after all messages before it on its branch. Traces of one task side by side share what the PRM reads.

    Raises:
        InputError: a trace in which the model wrote nothing.
    """
    by_node: list[dict[int, float] | None] = [{} for _ in traces]
    branches: list[tuple[int, list[int | None], Solution]] = []
    for row, trace in enumerate(traces):
        place = {id(node): number for number, node in enumerate(trace.nodes)}
        for branch in trace.branches:
            where = f"trace {trace.id}, branch {branch.index}"
            try:
                problem, cut = read_messages([_chat(m) for m in branch.messages], where=where, how="agent")
            except InputError:  # a policy that writes an empty turn must not end its training
                by_node[row] = None
                continue
            turns = [
                place[id(node)] if node.sampled else None
                for node in branch.nodes
                if node.message.role == "assistant"
            ]
            branches.append((row, turns, Solution(problem=problem, steps=tuple(cut.steps))))
    results = prm.score_many((solution for *_, solution in branches), keep_going=True)
    for (row, turns, _), result in zip(branches, results, strict=True):
        known = by_node[row]
        if isinstance(result, Refusal) or None in result.scores or known is None:
            by_node[row] = None
            continue
        for node, score in zip(turns, result.scores, strict=True):
            if node is not None and score is not None:
                known.setdefault(node, score)
    if any(known == {} for known in by_node):
        raise InputError("expected a turn that the model wrote in every trace, found none in one")
    return [None if known is None else tuple(known[node] for node in sorted(known)) for known in by_node]


def _chat(message: Any) -> dict[str, Any]:
    """A message of verifiers as a chat message."""
    data: dict[str, Any] = message.model_dump(exclude_none=True, exclude={"provider_state"})
    if data.get("tool_calls"):
        data["tool_calls"] = [
            {"id": call["id"], "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in data["tool_calls"]
        ]
    return data


def prm_reward(
    prm: PRM, *, unread: float, aggregate: str | None = None
) -> Callable[[Any], Coroutine[Any, Any, float]]:
    """A reward function of a task: one number for each trace, of its turns' scores. Alone it is what gets hacked: give a verified outcome beside it.

    Args:
        unread: the reward of a trace that the PRM cannot read.
        aggregate: how one number is made of the scores (`metrics.aggregate`); None for the PRM's own way.
    """
    how = resolve_aggregate(aggregate, prm.default_aggregate, prm.score_kind)

    async def reward(trace: Any) -> float:
        (scores,) = await asyncio.to_thread(turn_scores, [trace], prm)
        return unread if scores is None else aggregated(scores, how, kind=prm.score_kind)

    reward.__name__ = f"prm_{how}"
    return reward


def assign_turns(
    traces: Sequence[Any], credit: Credit, *, prm: PRM, group: Callable[[Any], Hashable] | None = None
) -> None:
    """Write each sampled token's advantage into the nodes of traces, as prime-rl's algorithms do (`node.advantages`).

    The outcome is `trace.reward`. A turn's tokens are those of its node's mask; a node that the model sampled without tokens (a relayed evaluation) is refused.
    A trace that the PRM cannot read, or that is alone in its group, gets 0.

    Args:
        traces: whole groups, with their rewards.
        credit: a method of `stepmark.train_policy` that needs steps only.
        prm: scores turns.
        group: what traces of one group have in common; None: all are one group.

    Raises:
        UsageError: a method that needs a critic or token rewards; a sampled turn without tokens.
    """
    check_credit(credit, prm=True)
    nodes = [[node for node in trace.nodes if node.sampled] for trace in traces]
    counts = [[sum(node.mask) for node in listed] for listed in nodes]
    for trace, listed in zip(traces, counts, strict=True):
        if not all(listed):
            raise UsageError(
                f"trace {trace.id}: expected tokens in every turn that the model wrote, found a turn without"
            )
    names = [group(trace) if group is not None else 0 for trace in traces]
    scores = turn_scores(traces, prm)
    given = credit_of(
        [sum(listed) for listed in counts],
        [[end - 1 for end in accumulate(listed)] for listed in counts],
        scores,
        names,
        [None if mine is None else float(trace.reward) for trace, mine in zip(traces, scores, strict=True)],
        credit,
        asked=True,
    )
    for row, (listed, sizes) in enumerate(zip(nodes, counts, strict=True)):
        values = given[row] if row in given else torch.zeros(sum(sizes))
        for node, own in zip(listed, torch.split(values, sizes), strict=True):
            node.advantages = own.tolist()
