"""A session of a server as its client sees it: prefixes of one problem that grow, each named by its steps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

from stepmark.batching import Graded
from stepmark.errors import BackendError, InputError, StepmarkError, UsageError
from stepmark.models.http import DeclinedError, Exchange, Verb
from stepmark.models.remote.calls import (
    Calls,
    ServedModel,
    batches,
    check_characters,
    complaint,
    in_parts,
    stepped,
)
from stepmark.models.remote.wire import SessionAnswer, SessionFullError, StepsAnswer

Prefix = tuple[str, ...]
Stepped = tuple[int, Graded]
"""A node and its score."""
_REOPENED = 3
"""Times that a session may be lost within one call before the server is given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Node:
    number: int
    graded: Graded
    length: int
    """Tokens of the prefix, as far as the server counts them."""


class _LostError(Exception):
    """The session, or a node of it, is gone; or it has no room."""


@final
class Growing:
    """The exchanges of one session, and the nodes that it has.

    A prefix is sent once: its last step, after the node of the rest. A prefix whose rest has no node (released, or never sent) is built up from
    the longest beginning that has one. A session that the server has lost, or that is full of what was released, is opened anew, and what is
    needed of it is read once more; `Ledger.tokens_again` counts that.

    Args:
        calls: of the server.
        problem: what the prefixes are of.
    """

    def __init__(self, calls: Calls, problem: str) -> None:
        self._calls, self.problem = calls, problem
        self._id: str | None = None
        self._nodes: dict[Prefix, _Node] = {}
        self._read_before: set[Prefix] = set()
        """Prefixes that were read in a session that is gone; () is the problem."""
        self._held: set[Prefix] = set()

    @property
    def held(self) -> int:
        """Prefixes that were asked for and not released."""
        return len(self._held)

    def extend(
        self, prefixes: Sequence[Prefix], *, timeout: float | None = None
    ) -> Exchange[list[Graded | InputError]]:
        """The score of the last step of each prefix; one result each, in order.

        Raises:
            BackendError: the server failed, loses the session again and again, or has no room for these prefixes.
        """
        model = yield from self._calls.served()
        done: dict[Prefix, Graded | InputError] = {}
        lost, narrow = 0, False
        while any(prefix not in done for prefix in prefixes):
            before = len(done)
            # After the first loss one prefix at a time, so that a small session has room for it.
            targets = prefixes if not narrow else [next(prefix for prefix in prefixes if prefix not in done)]
            try:
                yield from self._round(targets, done, model, timeout)
            except _LostError:
                lost, narrow = lost + 1 if len(done) == before else 0, True
                if lost > _REOPENED:
                    raise BackendError(
                        f"{self._calls.server.address}: the session was lost or full {lost} times within one call; does the server forget "
                        "sessions sooner (`session_idle`) than it answers, or hold fewer steps than these prefixes have (`session_nodes`, "
                        "`session_memory_mb`)?"
                    ) from None
                if self._id is not None:
                    yield from self._quietly("DELETE", f"/v1/sessions/{self._id}", None)
                self._forget()
        self._held.update(prefix for prefix in prefixes if isinstance(done[prefix], Graded))
        return [done[prefix] for prefix in prefixes]

    def release(self, prefixes: Sequence[Prefix]) -> Exchange[None]:
        """Release prefixes; unknown ones are ignored. With the last one the session ends."""
        self._held.difference_update(prefixes)
        if not self._held:
            yield from self.close()
            return
        nodes = [self._nodes.pop(prefix).number for prefix in prefixes if prefix in self._nodes]
        if nodes and self._id is not None:
            yield from self._quietly("POST", f"/v1/sessions/{self._id}/release", {"nodes": nodes})

    def close(self) -> Exchange[None]:
        """End the session."""
        name = self._id
        self._forget()
        self._held.clear()
        if name is not None:
            yield from self._quietly("DELETE", f"/v1/sessions/{name}", None)

    def _quietly(self, verb: Verb, path: str, body: dict[str, Any] | None) -> Exchange[None]:
        with suppress(DeclinedError, StepmarkError):  # the server forgets it by itself
            yield from self._calls.server.ask(verb, path, body, lambda data: None, once=True)

    def _round(
        self,
        prefixes: Sequence[Prefix],
        done: dict[Prefix, Graded | InputError],
        model: ServedModel,
        timeout: float | None,
    ) -> Exchange[None]:
        """Send the first step that is missing of each prefix."""
        missing: dict[Prefix, None] = {}
        targets = set(prefixes)
        for prefix in prefixes:
            if prefix in self._nodes:
                done[prefix] = self._nodes[prefix].graded
            if prefix in done:
                continue
            known = next((end for end in range(len(prefix) - 1, 0, -1) if prefix[:end] in self._nodes), 0)
            part = prefix[: known + 1]
            before = done.get(part)
            if isinstance(before, InputError):  # what begins unreadably is unreadable
                done[prefix] = before
                continue
            try:
                check_characters(part[-1], f"steps[{len(part) - 1}]")
            except InputError as error:
                done[part] = done[prefix] = error
            else:
                missing[part] = None
        if missing and self._id is None:
            try:
                self._id = yield from self._open()
            except InputError as error:  # about the problem, and so about all
                done.update(dict.fromkeys(prefixes, error))
                return
        for part_of in batches(missing, lambda p: len(p[-1]), self._calls.limits):
            results = yield from self._send(part_of, model, timeout)
            full = False
            for prefix, result in zip(part_of, results, strict=True):
                if isinstance(result, SessionFullError):
                    full = True
                elif isinstance(result, InputError):
                    # As in this process: the field is the step's in its prefix, and not in what was sent.
                    done[prefix] = type(result)(result.message, field=f"steps[{len(prefix) - 1}]")
                else:
                    self._enter(prefix, result, incremental=model.sessions)
                    if prefix in targets:
                        done[prefix] = result[1]
            if full:
                raise _LostError

    def _open(self) -> Exchange[str]:
        check_characters(self.problem, "problem")
        model = {} if self._calls.model is None else {"model": self._calls.model}
        body = {"problem": self.problem, **model}
        try:
            return (yield from self._calls.ask("/v1/sessions", body, SessionAnswer, lambda answer: answer.id))
        except DeclinedError as declined:
            if declined.status == 400 and declined.field == "problem":
                raise InputError(declined.message, field="problem") from None
            raise complaint(declined) from None

    def _send(
        self, prefixes: Sequence[Prefix], model: ServedModel, timeout: float | None
    ) -> Exchange[list[Stepped | InputError]]:
        path = f"/v1/sessions/{self._id}/steps"

        def send(part: Sequence[Prefix]) -> Exchange[list[Stepped | InputError]]:
            steps = [
                {"after": self._nodes[p[:-1]].number if len(p) > 1 else None, "text": p[-1]} for p in part
            ]
            try:
                results = yield from self._calls.ask(
                    path,
                    {"steps": steps},
                    StepsAnswer,
                    lambda answer: stepped(answer, len(part), model.score_kind),
                    timeout=timeout,
                )
            except DeclinedError as declined:
                if declined.status == 404:
                    raise _LostError from None
                raise
            # Only nodes of its own are named; if one is not there, the session has been somewhere else.
            if any(isinstance(item, InputError) and (item.field or "").endswith("after") for item in results):
                raise _LostError
            return results

        return (yield from in_parts(prefixes, self._calls.limits, "steps", send))

    def _forget(self) -> None:
        if self._nodes:
            self._read_before.update(self._nodes, [()])
        self._nodes.clear()
        self._id = None

    def _enter(self, prefix: Prefix, result: Stepped, *, incremental: bool) -> None:
        number, graded = result
        tokens, root = graded.tokens or 0, graded.root or 0
        above = self._nodes[prefix[:-1]].length if len(prefix) > 1 else root
        length = above + tokens if incremental else tokens
        again = tokens if prefix in self._read_before else 0
        if incremental and not self._nodes:  # the problem is read with the first step
            tokens += root
            again += root if () in self._read_before else 0
        self._nodes[prefix] = _Node(number=number, graded=graded, length=length)
        self._calls.count(
            steps=int(prefix not in self._read_before),
            tokens_in=length,
            tokens_computed=tokens,
            tokens_again=again,
        )
        self._read_before.discard(prefix)


def prefixes_of(prefixes: Sequence[Sequence[str]]) -> list[Prefix]:
    """Prefixes by their steps.

    Raises:
        UsageError: a prefix without steps, or a text where its steps were expected.
    """
    for prefix in prefixes:
        if isinstance(prefix, str) or not prefix:
            raise UsageError(f"a prefix: expected its steps, at least one, found {prefix!r:.80}")
    return [tuple(prefix) for prefix in prefixes]
