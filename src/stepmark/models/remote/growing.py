"""A session of a server as its client sees it: prefixes of one problem that grow, each named by its steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from stepmark.batching import Graded
from stepmark.errors import BackendError, InputError, StepmarkError, UsageError
from stepmark.models.remote.calls import (
    Calls,
    ServedModel,
    batches,
    check_characters,
    complaint,
    in_parts,
    read,
    step_of,
)
from stepmark.models.remote.exchange import DeclinedError, Exchange, Verb
from stepmark.models.remote.wire import SessionAnswer, SessionFullError, StepsAnswer

Prefix = tuple[str, ...]
Stepped = tuple[int, Graded]
"""A node and its score."""

_REOPENED = 3
"""Times that a session may be lost within one call before the server is given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
    node: int
    graded: Graded
    length: int
    """Tokens of the prefix, as far as the server counts them."""


class _LostError(Exception):
    """The session, or a node of it, is not there any more."""


class _FullError(_LostError):
    """The server holds more of the session than is known here: what was released and it did not hear, say."""


@final
class Growing:
    """The exchanges of one session, and what is known of it here.

    A prefix is sent once: its last step, after the node of the rest. One whose rest has no node (it was released, or never asked)
    is built up from the last node that there is. A session that the server has forgotten is opened anew, and what is needed of it
    is read once more; `Ledger.tokens_again` counts that. A session that has no room for all that is wanted at once (`--session-nodes`)
    is asked for some of it after the other: nodes are let go, the oldest first, and what is needed of them later is read again.

    Args:
        calls: of the server.
        problem: what the prefixes are of.
        most: nodes that are held at once; fewer where the server says so.
    """

    def __init__(self, calls: Calls, problem: str, *, most: int = 2048) -> None:
        self._calls, self.problem, self._most = calls, problem, most
        self._id: str | None = None
        self._nodes: dict[Prefix, _Held] = {}
        self._forgotten: set[Prefix] = set()
        self._wanted: set[Prefix] = set()
        self._root_read = self._root_again = False

    @property
    def held(self) -> int:
        """Prefixes that were asked for and not released."""
        return len(self._wanted)

    def extend(
        self, prefixes: Sequence[Prefix], *, timeout: float | None = None
    ) -> Exchange[list[Graded | InputError]]:
        """The score of the last step of each prefix; one result each, in order.

        Raises:
            BackendError: the server failed, or loses the session again and again, or its sessions hold a single step.
        """
        model = yield from self._calls.served()
        self._most = min(self._most, model.session_nodes)
        done: dict[Prefix, Graded | InputError] = {}
        lost, anew = 0, False
        while any(prefix not in done for prefix in prefixes):
            before = len(done), self._most
            try:
                yield from self._some(prefixes, done, model, timeout)
            except _LostError as error:
                if isinstance(error, _FullError):
                    if anew:  # then it holds what is known here: that is as much as there is room for
                        self._most = min(self._most, max(len(self._nodes), 2))
                    yield from self._quietly("DELETE", f"/v1/sessions/{self._id}", None)
                # One that was full of what was asked here, and is now answered or will be asked for in smaller parts, is not lost.
                lost += not isinstance(error, _FullError) or before == (len(done), self._most)
                anew = True
                if lost > _REOPENED:
                    raise BackendError(
                        f"{self._calls.rules.address}: the session was lost {lost} times within one call; does the server forget "
                        "sessions sooner (`session_idle`) than it answers, or hold fewer steps than these prefixes have (`session_nodes`, "
                        "`session_memory_mb`)?"
                    ) from None
                self._forget()
        self._wanted.update(prefix for prefix in prefixes if isinstance(done[prefix], Graded))
        return [done[prefix] for prefix in prefixes]

    def release(self, prefixes: Sequence[Prefix]) -> Exchange[None]:
        """Let go of prefixes; what is not there is passed over. With the last one goes the session.

        A server that does not hear it forgets them by itself.
        """
        self._wanted.difference_update(prefixes)
        if not self._wanted:
            yield from self.close()
            return
        nodes = [self._nodes.pop(prefix).node for prefix in prefixes if prefix in self._nodes]
        if nodes and self._id is not None:
            yield from self._quietly("POST", f"/v1/sessions/{self._id}/release", {"nodes": nodes})

    def close(self) -> Exchange[None]:
        """End the session."""
        name = self._id
        self._forget()
        self._wanted.clear()
        if name is not None:
            yield from self._quietly("DELETE", f"/v1/sessions/{name}", None)

    def _quietly(self, verb: Verb, path: str, body: dict[str, list[int]] | None) -> Exchange[None]:
        with suppress(DeclinedError, StepmarkError):  # it expires by itself
            yield from self._calls.rules.ask(verb, path, body, lambda data: None, once=True)

    def _some(
        self,
        prefixes: Sequence[Prefix],
        done: dict[Prefix, Graded | InputError],
        model: ServedModel,
        timeout: float | None,
    ) -> Exchange[None]:
        """Ask for every step whose rest has a node; of prefixes whose rest has none, for the first step that is missing."""
        targets = set(prefixes)
        missing: dict[Prefix, None] = {}
        for prefix in prefixes:
            if prefix in done:
                continue
            if prefix in self._nodes:
                done[prefix] = self._nodes[prefix].graded
                continue
            # What it begins with may have been released, and what goes on from there be held.
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
        if not missing:
            return
        if self._id is None:
            try:
                self._id = yield from self._open()
            except InputError as error:  # about the problem, and so about all
                done.update(dict.fromkeys(prefixes, error))
                return
        fitting = self._fitting(missing)
        yield from self._make_room(len(fitting), {prefix[:-1] for prefix in fitting})
        for some in batches(fitting, lambda p: len(p[-1]), self._calls.limits):
            full = False
            for prefix, result in zip(some, (yield from self._ask(some, model, timeout)), strict=True):
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
                raise _FullError

    def _open(self) -> Exchange[str]:
        check_characters(self.problem, "problem")
        body = {"problem": self.problem}
        if self._calls.model is not None:
            body["model"] = self._calls.model
        url = f"{self._calls.rules.address}/v1/sessions"
        try:
            return (
                yield from self._calls.rules.ask(
                    "POST", "/v1/sessions", body, lambda data: read(SessionAnswer, data, url).id
                )
            )
        except DeclinedError as declined:
            if declined.status == 400 and declined.field == "problem":
                raise InputError(declined.message, field="problem") from None
            raise complaint(declined) from None

    def _ask(
        self, asked: Sequence[Prefix], model: ServedModel, timeout: float | None
    ) -> Exchange[list[Stepped | InputError]]:
        path = f"/v1/sessions/{self._id}/steps"
        url = self._calls.rules.address + path

        def send(part: Sequence[Prefix]) -> Exchange[list[Stepped | InputError]]:
            steps = [{"after": self._nodes[p[:-1]].node if len(p) > 1 else None, "text": p[-1]} for p in part]
            try:
                results = yield from self._calls.rules.ask(
                    "POST",
                    path,
                    {"steps": steps},
                    lambda data: step_of(read(StepsAnswer, data, url), len(part), model.score_kind, url),
                    timeout=timeout,
                    tell=True,
                )
            except DeclinedError as declined:
                if declined.status == 404:
                    raise _LostError from None
                raise
            # We name only nodes that it gave us; if one is not there, the session has been somewhere else.
            if any(
                isinstance(result, InputError) and (result.field or "").endswith("after")
                for result in results
            ):
                raise _LostError
            return results

        return (yield from in_parts(asked, self._calls.limits, "steps", send))

    def _fitting(self, missing: Iterable[Prefix]) -> list[Prefix]:
        """The first of some prefixes: as many as there is room for, beside the nodes that they go on from.

        The first one always is among them, so that each round brings it a step further, and then the next one.
        """
        fitting: list[Prefix] = []
        above: set[Prefix] = set()
        for prefix in missing:
            above |= {prefix[:-1]} - {()}
            if len(above) + len(fitting) >= self._most:
                break
            fitting.append(prefix)
        if not fitting:
            raise BackendError(
                f"{self._calls.rules.address}: a session there holds {self._most} step at most, and a step that goes on from another "
                "needs room for 2; start the server with a larger `session_nodes`"
            )
        return fitting

    def _make_room(self, count: int, needed: set[Prefix]) -> Exchange[None]:
        """Let go of the oldest nodes, so that the server, which bounds them too, does not refuse a step for want of room."""
        over = len(self._nodes) + count - self._most
        oldest = [prefix for prefix in self._nodes if prefix not in needed][: max(over, 0)]
        if oldest:
            self._forgotten.update(oldest)
            nodes = [self._nodes.pop(prefix).node for prefix in oldest]
            yield from self._quietly("POST", f"/v1/sessions/{self._id}/release", {"nodes": nodes})

    def _forget(self) -> None:
        self._forgotten.update(self._nodes)
        self._root_again |= self._root_read
        self._root_read = False
        self._nodes.clear()
        self._id = None

    def _enter(self, prefix: Prefix, result: Stepped, *, incremental: bool) -> None:
        node, graded = result
        tokens, root = graded.tokens or 0, graded.root or 0
        above = self._nodes[prefix[:-1]].length if len(prefix) > 1 else root
        length = above + tokens if incremental else tokens
        self._nodes[prefix] = _Held(node=node, graded=graded, length=length)
        fresh = 0 if prefix in self._forgotten else tokens
        read = tokens
        if incremental and not self._root_read:
            self._root_read = True
            read += root
            fresh += 0 if self._root_again else root
        # What of it the server took from its memory, it does not say.
        self._calls.count(
            steps=prefix not in self._forgotten,
            tokens_in=length,
            tokens_computed=read,
            tokens_again=read - fresh,
        )
        self._forgotten.discard(prefix)


def prefixes_of(prefixes: Sequence[Sequence[str]]) -> list[Prefix]:
    """Prefixes by their steps.

    Raises:
        UsageError: one without steps, or a text where its steps were expected.
    """
    for prefix in prefixes:
        if isinstance(prefix, str) or not prefix:
            raise UsageError(f"a prefix: expected its steps, at least one, found {prefix!r:.80}")
    return [tuple(prefix) for prefix in prefixes]
