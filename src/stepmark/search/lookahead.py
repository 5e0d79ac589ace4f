"""Looking ahead: a step is judged by where greedy continuation leads, at k times the price."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from stepmark.search.growing import Tree
from stepmark.search.nodes import Node


def look_ahead(tree: Tree, nodes: Sequence[Node], steps: int, round_: int) -> Generator[Any, Any, None]:
    """Go on greedily from each node and set its `rank` to the aggregate of where that leads.

    What is written is scored; it stands in the trace as given up, and its tokens are counted. A way that comes to an end, or to a step
    that is of no use, is judged by as far as it came.

    Args:
        tree: whose nodes they are.
        nodes: alive and scored; those at their end keep their rank.
        steps: how far, at most.
        round_: for the trace.
    """
    ends = {node: node for node in nodes}
    going = [node for node in nodes if node.running]
    for _ in range(steps):
        if not going or tree.spent:
            break
        grown = yield from tree.grow([(ends[node], 1) for node in going], round_, ahead=True)
        for node, some in zip(going, grown, strict=True):
            if some:
                ends[node] = some[0]
        going = [node for node, some in zip(going, grown, strict=True) if some and some[0].running]
    for node, end in ends.items():
        node.rank = end.aggregate
        for step in end.below(node):
            step.prune("written to look ahead")
