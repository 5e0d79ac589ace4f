"""Prefixes that grow, by name: what a search over the network continues."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

from stepmark.backends import StepScore
from stepmark.errors import InputError, StepmarkError
from stepmark.models.remote.wire import SessionFullError
from stepmark.records import Problem, Step
from stepmark.serving.backend import Grown, Growth
from stepmark.serving.batcher import Batcher

_RECORD = 2048
"""Bytes, about, of a session or a step of it, beside its texts and the state of its tokens."""


class UnknownSessionError(StepmarkError):
    """No such session: it was closed, it was ended to make room, or it never was."""

    def __init__(self) -> None:
        super().__init__("no such session: it was closed, or ended to make room; open a new one")


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A step of a session."""

    node: int
    """Its number in the session."""
    graded: StepScore
    """Its score, classes and tokens."""


_Key = tuple[int | None, str, str]
"""The node that a step continues, what came back after that, and the step."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Held:
    steps: tuple[Step, ...]
    key: _Key
    grown: Grown
    size: int


@dataclass(kw_only=True, slots=True, eq=False)
class _Session:
    problem: Problem
    busy: int = 0
    """Requests of it that are in work."""
    coming: int = 0
    """Steps that those ask for."""
    size: int = 0
    """Bytes that it holds."""
    made: int = 0
    nodes: dict[int, _Held] = field(default_factory=dict)
    numbers: dict[_Key, int] = field(default_factory=dict)
    closed: bool = False


@final
class Sessions:
    """Sessions of a batcher. Used in its event loop.

    The same step after the same node is the same node and costs nothing, so a client may repeat a request whose answer was lost.

    Their number and memory are bounded: where there are more, the longest idle ones end; clients open theirs anew. A step's size counts the texts of
    its whole prefix.

    Args:
        batcher: what scores.
        limit: sessions at once.
        nodes: steps that a session holds at once.
        memory: bytes, about, that all of them hold at most.
    """

    def __init__(
        self,
        batcher: Batcher,
        *,
        limit: int,
        nodes: int,
        memory: int = 1 << 30,
    ) -> None:
        self._batcher, self._limit, self._nodes = batcher, limit, nodes
        self.memory = memory
        """Bytes that all of them hold at most."""
        self.size = 0
        """Bytes, about, that they hold."""
        self.evicted = 0
        """Sessions that were ended to make room for others."""
        self._sessions: dict[str, _Session] = {}
        """By name; the longest idle one first."""

    def __len__(self) -> int:
        """Sessions that are open."""
        return len(self._sessions)

    @property
    def nodes(self) -> int:
        """Steps that are held in all of them."""
        return sum(len(state.nodes) for state in self._sessions.values())

    def open(self, problem: Problem) -> str:
        """Begin a session; its name, which cannot be guessed. Nothing is computed yet.

        Raises:
            InputError: an empty problem.
        """
        if not problem.text.strip():
            raise InputError("the problem is empty", field="problem")
        size = _RECORD + sys.getsizeof(problem.text)
        name = secrets.token_urlsafe(24)
        self._sessions[name] = _Session(problem=problem, size=size)
        self.size += size
        self._evict()
        return name

    async def extend(
        self,
        session: str,
        steps: Sequence[tuple[int | None, str]],
        *,
        observed: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> list[Node | InputError]:
        """Score steps, each after a node (None: the problem); one result each, in order.

        Args:
            session: its name.
            steps: (after, text).
            observed: for each, what came back after the node that it continues; None: nothing.
            deadline: see `Batcher.score`.

        Returns:
            A `Node`; a `SessionFullError` for a step without room; another `InputError` for one that cannot be read, or whose node is unknown.

        Raises:
            UnknownSessionError: no such session, or it was closed meanwhile.
            BusyError, LateError, DrainingError, BackendError, CheckpointError: see `Batcher.score`.
        """
        state = self._of(session)
        results: list[Node | InputError | None] = [None] * len(steps)
        asked: dict[_Key, list[int]] = {}
        growths: list[Growth] = []
        for i, ((after, text), back) in enumerate(zip(steps, observed or [""] * len(steps), strict=True)):
            key = (after, back, text)
            if key in asked:
                asked[key].append(i)
            elif after is None and back:
                results[i] = InputError(
                    "nothing comes back before the first step; write it into the problem",
                    field=f"steps[{i}].observed",
                )
            elif (number := state.numbers.get(key)) is not None:
                results[i] = Node(node=number, graded=state.nodes[number].grown.graded)
            elif after is not None and after not in state.nodes:
                results[i] = InputError(
                    f"no node {after}; it was released, or never was", field=f"steps[{i}].after"
                )
            elif len(state.nodes) + state.coming + len(asked) >= self._nodes:
                results[i] = SessionFullError(
                    f"a session holds {self._nodes} steps at most (`session_nodes`), and this one has no room for another; release "
                    "those that are done with",
                    field=f"steps[{i}]",
                )
            else:
                asked[key] = [i]
                growths.append(self._growth(state, key))
        state.busy += 1
        state.coming += len(growths)
        try:
            answers = await self._batcher.extend(growths, deadline=deadline)
        finally:
            state.busy -= 1
            state.coming -= len(growths)
        if state.closed:
            self._batcher.release(grown for grown in answers if isinstance(grown, Grown))
            raise UnknownSessionError
        self._of(session)
        for (key, places), growth, grown in zip(asked.items(), growths, answers, strict=True):
            result = grown if isinstance(grown, InputError) else self._entered(state, key, growth, grown)
            for i in places:
                results[i] = result
        self._evict()
        return [result for result in results if result is not None]

    async def release(self, session: str, nodes: Sequence[int]) -> int:
        """Release nodes; what continues them stays. How many there were; unknown ones are ignored.

        Raises:
            UnknownSessionError: no such session.
        """
        state = self._of(session)
        gone = [held for node in nodes if (held := state.nodes.pop(node, None)) is not None]
        for held in gone:
            state.numbers.pop(held.key, None)
        size = sum(held.size for held in gone)
        state.size -= size
        self.size -= size
        self._batcher.release(held.grown for held in gone)
        return len(gone)

    async def close(self, session: str) -> None:
        """End a session and release all of it.

        Raises:
            UnknownSessionError: no such session.
        """
        self._of(session)
        self._end(session)

    def end_all(self) -> None:
        """End all of them."""
        for name in list(self._sessions):
            self._end(name)

    def _of(self, session: str) -> _Session:
        state = self._sessions.pop(session, None)
        if state is None:
            raise UnknownSessionError
        self._sessions[session] = state  # the last one is the last used
        return state

    def _growth(self, state: _Session, key: _Key) -> Growth:
        after, back, text = key
        if after is None:
            return Growth(problem=state.problem, text=text)
        held = state.nodes[after]
        steps = (*held.steps[:-1], replace(held.steps[-1], observation=back))
        return Growth(problem=state.problem, steps=steps, text=text, place=held.grown.place)

    def _evict(self) -> None:
        """End the longest idle sessions until the others fit; those in work and the last one used stay."""
        for name in [name for name, state in self._sessions.items() if not state.busy][:-1]:
            if self.size <= self.memory and len(self._sessions) <= self._limit:
                return
            self._end(name)
            self.evicted += 1

    def _entered(self, state: _Session, key: _Key, growth: Growth, grown: Grown) -> Node:
        # Asked twice at the same time: the first to come back has made the node.
        if (number := state.numbers.get(key)) is not None:
            self._batcher.release([grown])
            return Node(node=number, graded=state.nodes[number].grown.graded)
        number, state.made = state.made, state.made + 1
        held = _Held(steps=growth.solution.steps, key=key, grown=grown, size=_size(growth, grown.size))
        state.nodes[number] = held
        state.size += held.size
        self.size += held.size
        state.numbers[key] = number
        return Node(node=number, graded=grown.graded)

    def _end(self, session: str) -> None:
        state = self._sessions.pop(session)
        state.closed = True
        self.size -= state.size
        self._batcher.release(held.grown for held in state.nodes.values())
        state.nodes.clear()
        state.numbers.clear()


def _size(growth: Growth, held_bytes: int) -> int:
    """Bytes, about, of a step."""
    texts = [part for step in growth.solution.steps for part in (step.text, step.observation)]
    return _RECORD + sum(map(sys.getsizeof, texts)) + held_bytes
