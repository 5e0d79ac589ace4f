"""The other end of `cluster`: what runs in a process somewhere on the cluster, as a Ray actor.

An actor does one thing at a time and is asked in short calls: `hello` (it has a place), `build`, then for each chunk
`take` and `more`, `more`, … until the chunk is done. `take` only keeps the requests, `more` begins: so a death before
`take` returned is no request's fault. `more` waits for the next replies, which the driver thus has, and records, as
soon as they are made.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import final

from stepmark.batching.driver import Answerer, Reply
from stepmark.batching.requests import Ask
from stepmark.errors import BackendError, InputError, StepmarkError, UsageError

Fact = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What a worker made, where the driver must know more of it than who answers."""

    answerers: Mapping[type, Answerer]
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Of the models: names, sizes. The same on every worker."""
    counters: Callable[[], Mapping[str, int]] = dict
    """What this worker has spent so far; the driver adds them up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """A worker that is ready."""

    version: str
    """Of its stepmark."""
    identities: Mapping[type, str]
    """Of its answerers."""
    facts: Mapping[str, Fact]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """An exception in a worker, in words: not every exception survives the way."""

    message: str
    usage: bool
    """Whether the caller must change something."""
    trace: str | None
    """Where it came from, if it was not raised on purpose."""

    def error(self, worker: str) -> StepmarkError:
        """An exception to raise here that says the same, and which worker it was."""
        kind = UsageError if self.usage else BackendError
        error = kind(f"{worker}: {self.message}")
        if self.trace is not None:
            error.add_note(self.trace)
        return error


def _trouble(error: BaseException) -> Trouble:
    if isinstance(error, StepmarkError):
        return Trouble(message=str(error), usage=error.exit_code == UsageError.exit_code, trace=None)
    trace = "".join(traceback.format_exception(error))
    return Trouble(message=f"{type(error).__name__}: {error}", usage=False, trace=trace)


@dataclass(frozen=True, kw_only=True, slots=True)
class More:
    """What a worker has to say of its chunk."""

    replies: Sequence[tuple[int, Reply]]
    """With their places."""
    end: bool
    """Whether the chunk is done."""
    trouble: Trouble | None = None
    """Why it ended early."""
    spent: Mapping[str, int]
    """What the worker has spent since it was built."""


@final
class ClusterWorker:
    """Builds answerers and answers requests with them.

    Args:
        function: see `cluster.Build`.
        settings: its arguments, as JSON.
        folder: where the driver runs; relative paths are read from there, if this machine has it too.
    """

    def __init__(self, function: str, settings: str, folder: str) -> None:
        self._function = function
        self._settings = settings
        self._folder = folder
        self._built = Built(answerers={})
        self._taken: list[Ask] = []
        self._made: queue.SimpleQueue[tuple[int, Reply] | Trouble | None] = queue.SimpleQueue()

    def hello(self) -> str:
        """Where this worker is, for messages."""
        return f"process {os.getpid()} on {importlib.import_module('ray').util.get_node_ip_address()}"

    def build(self) -> Hello | Trouble:
        """Build the answerers; say who they are."""
        if Path(self._folder).is_dir():
            os.chdir(self._folder)
        module, _, name = self._function.partition(":")
        try:
            build = getattr(importlib.import_module(module), name)
            made = build(**json.loads(self._settings))
        except BaseException as error:  # whatever it is, the driver must hear of it
            return _trouble(error)
        self._built = made if isinstance(made, Built) else Built(answerers=made)
        return Hello(
            version=version("stepmark"),
            identities={kind: which.identity for kind, which in self._built.answerers.items()},
            facts=self._built.facts,
        )

    def take(self, requests: list[Ask]) -> None:
        """Keep a chunk of requests of one kind."""
        self._taken = requests

    def more(self) -> More:
        """Begin what was taken, if that was not done yet; then wait for the next replies."""
        if self._taken:
            threading.Thread(target=self._answer, args=(self._taken,), daemon=True).start()
            self._taken = []
        replies: list[tuple[int, Reply]] = []
        while True:
            made = self._made.get()
            if isinstance(made, tuple):
                replies.append(made)
                if self._made.empty():
                    return More(replies=replies, end=False, spent=self._built.counters())
            else:
                return More(replies=replies, end=True, trouble=made, spent=self._built.counters())

    def _answer(self, requests: list[Ask]) -> None:
        told: set[int] = set()

        def ready(place: int, reply: Reply) -> None:
            told.add(place)
            self._made.put((place, _plain(reply)))

        try:
            answerer = self._built.answerers[type(requests[0])]
            replies = answerer.answer(requests, ready)
            if len(replies) != len(requests):
                raise BackendError(
                    f"{answerer.identity} gave {len(replies)} replies to {len(requests)} requests"
                )
            for place, reply in enumerate(replies):
                if place not in told:
                    ready(place, reply)
            self._made.put(None)
        except BaseException as error:  # a thread's own exception reaches nobody
            self._made.put(_trouble(error))


def _plain(reply: Reply) -> Reply:
    if isinstance(reply, InputError):
        # Of the user's own subclass the driver may know nothing, and of its constructor pickle does not.
        return InputError(reply.message, where=reply.where, field=reply.field)
    return reply
