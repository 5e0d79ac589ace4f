"""The steps of a search's tree, and what becomes of a text that the policy wrote: a step, an end, or nothing of use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from stepmark.batching import Written
from stepmark.problems.extraction import find_answer
from stepmark.search.meaning import meaning
from stepmark.search.searching import State, Steps, TraceNode
from stepmark.solutions.segmentation import own_text


@dataclass(kw_only=True, eq=False)
class Node:
    """One step in the tree, or the problem itself (`parent` None)."""

    number: int
    parent: Node | None
    step: str
    """Its text as it was written, without the line breaks around it; "" for the problem, and for an end without a step."""
    text: str
    """What the policy has written up to here, as it stood."""
    steps: tuple[str, ...]
    """The steps up to here."""
    round: int
    scores: tuple[float | None, ...] = ()
    """The PRM's, of the steps up to here; shorter than `steps` before it is scored."""
    aggregate: float | None = None
    rank: float | None = None
    """What it is compared by: its aggregate, or that of what was looked ahead from it."""
    state: State = "kept"
    why: str = ""
    ended: bool = False
    """The policy ended the solution here."""
    partial: bool = False
    """The step is not at its end yet."""
    policy_tokens: int | None = 0
    prm_tokens: int | None = 0
    read: int = 0
    """Tokens that the PRM reads up to here, as far as they are known."""
    visits: int | None = None
    value: float | None = None
    said: dict[str, int] = field(default_factory=dict)
    """Meaning of each child: its number."""

    @property
    def score(self) -> float | None:
        """Of this step; None for a node without a step, and before it is scored."""
        return self.scores[-1] if self.step and self.scores and len(self.scores) == len(self.steps) else None

    @property
    def alive(self) -> bool:
        """Not given up."""
        return self.state != "pruned"

    @property
    def running(self) -> bool:
        """Neither given up nor at its end."""
        return self.alive and not self.ended

    @property
    def path(self) -> list[Node]:
        """From the first step to this one."""
        found: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def below(self, above: Node) -> list[Node]:
        """The path from the step after `above` to this one."""
        return self.path[len(above.path) :]

    def prune(self, why: str) -> None:
        """Give it up; the first reason stays."""
        if self.alive:
            self.state, self.why = "pruned", why

    def record(self) -> TraceNode:
        """As it stands in a trace."""
        return TraceNode(
            number=self.number,
            parent=None if self.parent is None or self.parent.parent is None else self.parent.number,
            step=self.step,
            score=self.score,
            aggregate=self.aggregate,
            state=self.state,
            why=self.why,
            round=self.round,
            policy_tokens=self.policy_tokens,
            prm_tokens=self.prm_tokens,
            visits=self.visits,
            value=self.value,
        )


@final
class Nodes:
    """All steps of one tree, in the order in which they were written.

    Args:
        how: where steps end and how long they may be.
    """

    def __init__(self, how: Steps) -> None:
        self._how = how
        self.root = Node(number=-1, parent=None, step="", text="", steps=(), round=-1)
        self.all: list[Node] = []

    def add(
        self, parent: Node, written: Written, round_: int, *, cut: bool, partial: bool, dedupe: bool
    ) -> Node:
        """A step that was written after a node.

        Args:
            parent: the node.
            written: the text.
            round_: for the trace.
            cut: `max_tokens` was lowered to what the budget has left.
            partial: a text that reaches `max_tokens` is a step's beginning.
            dedupe: give it up if it says what an earlier child says.
        """
        node = self._new(parent, own_text(written.text), written.text, round_)
        node.policy_tokens = written.tokens
        if written.finish == "length" and partial and not cut and node.step:
            node.partial = True
        else:
            self.settle(node, written, cut=cut)
        if dedupe:
            self.unite(node)
        return node

    def unite(self, node: Node) -> None:
        """Give up a step that says what an earlier one after the same node says. A beginning says nothing yet."""
        if not node.alive or node.partial or node.parent is None:
            return
        said = f"{node.ended} {meaning(node.step)}"
        first = node.parent.said.setdefault(said, node.number)
        if first != node.number:
            node.prune(f"says the same as step {first}")

    def settle(self, node: Node, written: Written, *, cut: bool) -> None:
        """Say of a step that is written whether the solution ends with it, and whether it is of use."""
        parent = node.parent
        assert parent is not None
        if written.finish == "length":
            node.prune(
                "cut off by the budget" if cut else f"not at its end after {self._how.max_tokens} tokens"
            )
        elif not node.step and (parent.parent is None or written.finish == "stop"):
            node.prune("nothing was written")
        elif node.step and parent.step and meaning(node.step) == meaning(parent.step):
            node.prune("repeats the step before it")
        elif written.finish == "end" or not node.step:
            node.ended = True
        elif written.finish == "end or stop" and find_answer(node.step) is not None:
            node.ended = True  # the server does not say which, and an answer is there
        elif len(node.steps) >= self._how.max_steps:
            node.prune(f"not finished after {self._how.max_steps} steps")
        if node.running:
            node.text += self._how.stop

    def extend(self, node: Node, written: Written, *, cut: bool) -> None:
        """Put the rest of a partial step to it."""
        assert node.parent is not None
        node.partial = False
        node.policy_tokens = added(node.policy_tokens, written.tokens)
        node.text += written.text
        node.step = own_text(node.text[len(node.parent.text) :])
        node.steps = (*node.parent.steps, node.step)
        node.scores = node.parent.scores
        self.settle(node, written, cut=cut)

    def add_whole(self, parent: Node, written: Written, round_: int, *, cut: bool) -> Node:
        """A solution that was written in one go, a node a step; its last node, which bears its tokens."""
        node, rest, mark = parent, written.text, "start"
        while mark:
            piece, mark, rest = rest.partition(self._how.stop)
            if piece.strip():
                node = self._new(node, own_text(piece), piece + mark, round_)
        if node is parent:
            node = self._new(parent, "", "", round_)
        node.text = parent.text + written.text
        node.policy_tokens = written.tokens
        if written.finish == "length":
            most = self._how.max_solution_tokens
            why = "cut off by the budget" if cut else f"not at its end after {most} tokens"
        elif not node.step and parent.parent is None:
            why = "nothing was written"
        else:
            node.ended = True
            return node
        for step in node.below(parent):
            step.prune(why)
        return node

    def _new(self, parent: Node, step: str, text: str, round_: int) -> Node:
        node = Node(
            number=len(self.all),
            parent=parent,
            step=step,
            text=parent.text + text,
            steps=(*parent.steps, step) if step else parent.steps,
            round=round_,
            scores=parent.scores,
        )
        self.all.append(node)
        return node


def ranked(nodes: Iterable[Node]) -> list[Node]:
    """Best first, by what they are compared by; of equals the earlier one."""
    return sorted(nodes, key=lambda node: (-value_of(node.rank), node.number))


def value_of(value: float | None) -> float:
    """A number to sort by: nothing is below everything."""
    return float("-inf") if value is None else value


def added(a: int | None, b: int | None) -> int | None:
    """Both counts together; None where one is not known."""
    return None if a is None or b is None else a + b
