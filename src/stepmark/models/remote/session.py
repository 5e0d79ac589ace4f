"""Prefixes that grow on a server: each step is sent once, after the node of the steps before it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from stepmark.backends import StepScore
from stepmark.errors import BackendError, InputError, StepmarkError, UsageError
from stepmark.metrics.aggregate import check_score
from stepmark.models.http import Closing, DeclinedError, Verb
from stepmark.models.remote.calls import Calls, ServedModel, complaint, nonsense, read_error, utf8
from stepmark.models.remote.wire import SessionAnswer, SessionFullError, StepsAnswer
from stepmark.records import ScoreKind
from stepmark.show.text import amount


class Observed(NamedTuple):
    """A step before which something came back."""

    text: str
    observed: str
    """Tool output or the user's words after the step before."""


Prefix = tuple[str | Observed, ...]
Node = tuple[int, StepScore]
"""A node of a session and its score."""

_REOPENED = 3
"""Times that a session may be lost without progress before the server is given up."""


class _LostError(Exception):
    """The session, or a node of it, is gone; or it has no room."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
    """A prefix that the session has."""

    number: int
    graded: StepScore
    length: int
    """Tokens of the prefix, as far as the server counts them."""


@final
class Session(Closing):
    """Prefixes of one problem on a server that holds their state. Made by `Client.session`.

    A prefix is named by its steps. Of each, only the last step is sent, after the node of the rest; the server reads nothing twice. A prefix whose rest
    has no node (released, or never sent) is built up from the longest beginning that has one. A session that the server has lost (it was idle for too
    long, the server was restarted), or that is full of what was released, is opened anew, and what is needed of it is read once more;
    `Client.ledger.tokens_again` counts that. Threads that share a session wait for each other.
    """

    def __init__(self, calls: Calls, problem: str) -> None:
        self._calls, self.problem = calls, problem
        self._id: str | None = None
        self._nodes: dict[Prefix, _Held] = {}
        self._read_before: set[Prefix] = set()
        """Prefixes that were read in a session that is gone; () is the problem."""
        self._held: set[Prefix] = set()
        """Prefixes that were asked for and not released."""
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Prefixes that were asked for and not released."""
        return len(self._held)

    def extend(
        self, prefixes: Sequence[Sequence[str | Observed]], *, timeout: float | None = None
    ) -> list[StepScore | InputError]:
        """The score of the last step of each prefix, all together; one result each, in order.

        Args:
            prefixes: each one's steps, at least one, `Observed` where something came back before; what was asked before is not sent again.
            timeout: seconds for each request.

        Returns:
            A `StepScore`, or the `InputError` that says why the PRM cannot read that prefix.

        Raises:
            UsageError: a prefix without steps.
            BackendError: as `Client.score`; or the server has no room for these prefixes.
        """
        asked = _prefixes(prefixes)
        with self._lock:
            return self._extend(asked, timeout)

    def release(self, prefixes: Sequence[Sequence[str | Observed]]) -> None:
        """Release prefixes that will not be continued; with the last one the session ends. Unknown ones are ignored."""
        gone = _prefixes(prefixes)
        with self._lock:
            self._held.difference_update(gone)
            nodes = [self._nodes.pop(prefix).number for prefix in gone if prefix in self._nodes]
            if not self._held:
                self._end()
            elif nodes and self._id is not None:
                self._quietly("POST", "/release", {"nodes": nodes})

    def close(self) -> None:
        """End the session. Leaving a `with` block does it too. The server ends that of a closed client when it needs the room."""
        with self._lock:
            if not self._calls.server.closed:
                self._held.clear()
                self._end()

    def _extend(self, prefixes: Sequence[Prefix], timeout: float | None) -> list[StepScore | InputError]:
        model = self._calls.model()
        done: dict[Prefix, StepScore | InputError] = {}
        losses, narrow = 0, False
        while missing := [prefix for prefix in prefixes if prefix not in done]:
            before = len(done)
            try:
                # After a loss one prefix at a time, so that a small session has room for it.
                self._round(missing[:1] if narrow else missing, done, model, timeout)
            except _LostError:
                losses, narrow = losses + 1 if len(done) == before else 0, True
                if losses > _REOPENED:
                    raise BackendError(
                        f"{self._calls.server.address}: the session was lost or full {losses} times within one call; does the server hold "
                        "fewer sessions than are in use (`sessions`, `session_memory_mb`), or fewer steps than these prefixes have (`session_nodes`)?"
                    ) from None
                self._end()
        self._held.update(prefix for prefix in prefixes if isinstance(done[prefix], StepScore))
        return [done[prefix] for prefix in prefixes]

    def _end(self) -> None:
        if self._id is not None:
            self._quietly("DELETE", "", None)
        if self._nodes:
            self._read_before.update(self._nodes, [()])
        self._nodes.clear()
        self._id = None

    def _quietly(self, verb: Verb, path: str, body: dict[str, Any] | None) -> None:
        with suppress(DeclinedError, StepmarkError):  # the server forgets it by itself
            address = f"/v1/sessions/{self._id}{path}"
            self._calls.server.ask(address, body, lambda data: None, verb=verb, once=True)

    def _round(
        self,
        prefixes: Sequence[Prefix],
        done: dict[Prefix, StepScore | InputError],
        model: ServedModel,
        timeout: float | None,
    ) -> None:
        """Send the first step that is missing of each prefix."""
        missing: dict[Prefix, None] = {}
        for prefix in prefixes:
            if prefix in self._nodes:
                done[prefix] = self._nodes[prefix].graded
                continue
            known = next((end for end in range(len(prefix) - 1, 0, -1) if prefix[:end] in self._nodes), 0)
            part = prefix[: known + 1]
            try:
                if isinstance(before := done.get(part), InputError):
                    raise before  # what begins unreadably is unreadable
                for words in _body(part[-1]).values():
                    utf8(words, f"steps[{known}]")
            except InputError as error:
                done[part] = done[prefix] = error
            else:
                missing[part] = None
        if missing and self._id is None:
            try:
                self._id = self._open()
            except InputError as error:  # about the problem, and so about all
                done.update(dict.fromkeys(prefixes, error))
                return
        for part_of in self._calls.parts(missing):
            results = self._send(part_of, model, timeout)
            for prefix, result in zip(part_of, results, strict=True):
                if isinstance(result, SessionFullError):
                    continue
                if isinstance(result, InputError):
                    # As in this process: the field is the step's in its prefix, and not in what was sent.
                    done[prefix] = type(result)(result.message, field=f"steps[{len(prefix) - 1}]")
                    continue
                self._enter(prefix, result, incremental=model.sessions)
                if prefix in prefixes:
                    done[prefix] = result[1]
            if any(isinstance(result, SessionFullError) for result in results):
                raise _LostError

    def _open(self) -> str:
        model = {} if self._calls.name is None else {"model": self._calls.name}
        body = {"problem": utf8(self.problem, "problem"), **model}
        try:
            return self._calls.ask("/v1/sessions", body, SessionAnswer, lambda answer: answer.id)
        except DeclinedError as declined:
            if declined.status == 400 and declined.field == "problem":
                raise InputError(declined.message, field="problem") from None
            raise complaint(declined) from None

    def _send(
        self, prefixes: Sequence[Prefix], model: ServedModel, timeout: float | None
    ) -> list[Node | InputError]:
        path = f"/v1/sessions/{self._id}/steps"

        def send(part: Sequence[Prefix]) -> list[Node | InputError]:
            after = [self._nodes[prefix[:-1]].number if len(prefix) > 1 else None for prefix in part]
            steps = [{"after": node, **_body(p[-1])} for node, p in zip(after, part, strict=True)]

            def read(answer: StepsAnswer) -> list[Node | InputError]:
                return _stepped(answer, len(part), model.score_kind)

            try:
                body = {"steps": steps}
                results = self._calls.ask(path, body, StepsAnswer, read, timeout=timeout)
            except DeclinedError as declined:
                if declined.status == 404:
                    raise _LostError from None
                raise
            # Only nodes of its own are named; if one is not there, the session has been somewhere else.
            if any(isinstance(item, InputError) and (item.field or "").endswith("after") for item in results):
                raise _LostError
            return results

        return self._calls.send_in_parts(prefixes, "steps", send)

    def _enter(self, prefix: Prefix, node: Node, *, incremental: bool) -> None:
        number, graded = node
        tokens, root = graded.tokens or 0, graded.root or 0
        above = self._nodes[prefix[:-1]].length if len(prefix) > 1 else root
        length = above + tokens if incremental else tokens
        again = tokens if prefix in self._read_before else 0
        if incremental and not self._nodes:  # the problem is read with the first step
            tokens += root
            again += root if () in self._read_before else 0
        self._nodes[prefix] = _Held(number=number, graded=graded, length=length)
        new = int(prefix not in self._read_before)
        self._calls.count(steps=new, tokens_in=length, tokens_computed=tokens, tokens_again=again)
        self._read_before.discard(prefix)


def _body(step: str | Observed) -> dict[str, str]:
    return {"text": step} if isinstance(step, str) else step._asdict()


def _stepped(answer: StepsAnswer, count: int, kind: ScoreKind) -> list[Node | InputError]:
    """One node with its score a step, in order."""
    if len(answer.results) != count:
        raise nonsense(
            "results", amount(count, "entry", "entries"), amount(len(answer.results), "entry", "entries")
        )
    nodes: list[Node | InputError] = []
    for i, result in enumerate(answer.results):
        if result.error is not None:
            nodes.append(read_error(result.error))
            continue
        if result.node is None or result.score is None:
            raise nonsense(f"results[{i}]", "a node and a score", result.model_dump(exclude_unset=True))
        check_score(result.score, kind, step=i)
        classes = None if result.classes is None else tuple(result.classes)
        graded = StepScore(score=result.score, tokens=result.tokens, root=result.root, classes=classes)
        nodes.append((result.node, graded))
    return nodes


def _prefixes(prefixes: Sequence[Sequence[str | Observed]]) -> list[Prefix]:
    for prefix in prefixes:
        if isinstance(prefix, str) or not prefix:
            raise UsageError(f"a prefix: expected its steps, at least one, found {prefix!r:.80}")
    return [tuple(prefix) for prefix in prefixes]
