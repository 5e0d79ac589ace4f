"""Searches that write step by step as a model: beam, diverse trees, REBASE, Monte Carlo trees, one a conversation, over the batcher of all.

A search is a generator that `batching.run` drives, here in a thread of its own. What it asks of the PRM goes to the batcher, which answers all
searches and all other clients in the same batches and keeps the prefixes that are still needed; what it asks of the policy is a call in that thread.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, final

from stepmark.batching import Answerer, Graded, Message, Prompt, Ready, Release, Score, Verify, Write, Written
from stepmark.errors import BackendError, InputError, StepmarkError, UsageError
from stepmark.models.grading import first_error
from stepmark.models.identity import identity_of
from stepmark.models.policies import Policy
from stepmark.problems import answers
from stepmark.records import Problem, step_number
from stepmark.search.base import Found, Grading, Steps
from stepmark.search.beam import BeamSearch, DiverseTrees
from stepmark.search.mcts import MCTS
from stepmark.search.rebase import Rebase
from stepmark.serving.chat_wire import ChatRequest
from stepmark.serving.conversations import NOTHING_SAID, draw_of, problem_of
from stepmark.serving.grading import check_grade
from stepmark.serving.jobs import Grown, Growth, LateError
from stepmark.serving.refusals import Refused
from stepmark.serving.service import Live, served_name
from stepmark.serving.settings import ChatModel
from stepmark.serving.telling import completion
from stepmark.serving.writers import Draw, PolicyError

EXPAND = 4
"""Steps after each that a beam or a tree goes on from."""
StepSearch = BeamSearch | DiverseTrees | Rebase | MCTS
_NOT_HERE = ("max_tokens", "max_completion_tokens", "stop", "presence_penalty", "frequency_penalty")
_WHY = {
    "best": "it has the highest score of the solutions that the search finished",
    "majority": "its answer is the commonest of the solutions that the search finished",
    "vote": "its answer has the highest sum of scores of the solutions that the search finished",
}


class _GoneError(StepmarkError):
    """Nobody waits for this search any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversing(Steps):
    """How the policy writes in a conversation: its prompt is the conversation."""

    messages: tuple[Message, ...] = ()

    def prompt_of(self, problem: Problem) -> Prompt:
        """The conversation, whatever the problem's text."""
        return self.messages


def search_of(name: str, n: int, how: Steps, grading: Grading) -> StepSearch:
    """A search of a width.

    Args:
        name: beam, dvts, rebase or mcts.
        n: steps that a round writes; of mcts, simulations.
        how: how the policy writes.
        grading: how step scores are put together.

    Raises:
        UsageError: a width that the search cannot have, or scores that it cannot use.
    """
    if name in ("beam", "dvts") and n % EXPAND:
        raise UsageError(
            f"n: a {name} writes {EXPAND} steps after each; expected a multiple of {EXPAND}, found {n}"
        )
    if name == "beam":
        return BeamSearch(how=how, grading=grading, width=n // EXPAND, expand=EXPAND)
    if name == "dvts":
        return DiverseTrees(how=how, grading=grading, subtrees=n // EXPAND, expand=EXPAND)
    if name == "rebase":
        return Rebase(how=how, grading=grading, width=n, choose="best")
    return MCTS(how=how, grading=grading, simulations=n, expand=EXPAND)


@final
class Searcher:
    """Answers conversations by a search step by step.

    Args:
        settings: how.
        policy: writes. Entered by one thread at a time, unless it says otherwise.
        live: the PRM.
        together: the policy may be asked by several threads at once, as a server's client may.
        clock: seconds, in which deadlines are told.
    """

    def __init__(
        self,
        settings: ChatModel,
        policy: Policy,
        live: Live,
        *,
        together: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.live = settings, live
        self._policy, self._clock = policy, clock
        self._threads = ThreadPoolExecutor(settings.policy_requests, thread_name_prefix="stepmark-search")
        self._waiting = 0
        self._writing = None if together else threading.Lock()
        self._verifier = answers.load_verifier(settings.verifier, isolation=settings.isolation)
        self._judging = threading.Lock()
        self._seeds = random.Random()

    async def answer(self, body: ChatRequest, *, arrived: float) -> dict[str, Any]:
        """See `completions.Completer.answer`."""
        for name in _NOT_HERE:
            if getattr(body, name):
                how = Steps()
                raise Refused(
                    "invalid_request",
                    f"this cannot be honoured: {self.settings.search} writes step by step, at most {how.max_steps} steps of {how.max_tokens} tokens",
                    field=name,
                )
        asked = draw_of(body, self.settings)
        wanted = body.stepmark or NOTHING_SAID
        grade = check_grade(self.live.prm, self.live.grade, wanted.aggregate, None, "none")
        assert grade.aggregate is not None
        grading = Grading(aggregate=grade.aggregate, kind=self.live.prm.score_kind)
        try:
            search = search_of(self.settings.search, asked.n, self._how(asked), grading)
            search = search if wanted.choose is None else replace(search, choose=wanted.choose)
        except UsageError as error:
            raise Refused("invalid_request", str(error), field="stepmark") from None
        seconds = self.settings.chat_timeout if wanted.timeout is None else wanted.timeout
        found = await self._searched(
            search, Problem(text=problem_of(asked.messages)), arrived + seconds, seconds
        )
        if found.chosen is None:
            raise PolicyError(
                f"the search came to no solution ({found.stopped}{found.note and ': ' + found.note})"
            )
        told = [
            {
                "index": number,
                "finish_reason": "stop" if one.finished else "length",
                "answer": one.answer,
                "votes": one.votes,
                "score": one.aggregate
                if one.aggregate is not None and math.isfinite(one.aggregate)
                else None,
                "scores": list(one.scores),
                "first_error": (first := first_error(one.scores, grade.threshold)),
                "first_error_step": step_number(first),
                **({"text": one.text, "steps": list(one.steps)} if wanted.texts else {}),
            }
            for number, one in enumerate(found.candidates)
        ]
        chosen = found.candidates[found.chosen]
        return completion(
            model=self.settings.model,
            text=chosen.text,
            finish="stop" if chosen.finished else "length",
            tokens=(found.cost.prompt, found.cost.decoded),
            stepmark={
                "n": len(told),
                "chosen": found.chosen,
                "choose": search.choose,
                "why": _WHY[search.choose],
                "search": found.method,
                "policy": served_name(self._policy.name),
                "prm": self.live.name,
                "score_kind": self.live.prm.score_kind,
                "aggregate": grade.aggregate,
                "threshold": grade.threshold,
                "candidates": told,
            },
        )

    async def close(self) -> None:
        """Let go of the verifier; searches in work end at their next question."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._judging:
            self._verifier.close()

    def _how(self, asked: Draw) -> Conversing:
        return Conversing(
            stop=self.settings.marker or "\n",
            temperature=asked.temperature,
            top_p=1.0 if asked.top_p is None else asked.top_p,
            # Without one each answer is another, as of a model.
            seed=self._seeds.randrange(2**31) if asked.seed is None else asked.seed,
            messages=asked.messages,
        )

    async def _searched(self, search: StepSearch, problem: Problem, deadline: float, seconds: float) -> Found:
        if self._waiting >= 5 * self.settings.policy_requests:
            raise Refused(
                "busy",
                "too many conversations wait for the policy; try again later",
                headers={"retry-after": "5"},
            )
        gone = threading.Event()
        scorer = _BatchedScorer(self.live, asyncio.get_running_loop(), deadline)
        self._waiting += 1
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock())):
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._run, search, problem, scorer, gone
                )
        except TimeoutError:
            raise LateError(f"the answer was not there within {seconds:g} s") from None
        finally:
            self._waiting -= 1
            gone.set()

    def _run(
        self, search: StepSearch, problem: Problem, scorer: _BatchedScorer, gone: threading.Event
    ) -> Found:
        from stepmark.batching import run

        def write(requests: Sequence[Write], ready: Ready) -> list[list[Written] | InputError]:
            if gone.is_set():
                raise _GoneError("nobody waits for this search")
            try:
                if self._writing is None:
                    return self._policy.write(requests, ready)
                with self._writing:
                    return self._policy.write(requests, ready)
            except (BackendError, UsageError) as error:
                raise PolicyError(f"the policy {served_name(self._policy.name)}: {error}") from None

        def verify(requests: Sequence[Verify], ready: Ready) -> Sequence[Any]:
            with self._judging:
                return answers.answerers(self._verifier)[Verify].answer(requests, ready)

        answerers: Mapping[type, Answerer] = {
            Write: Answerer(identity=self._policy.identity, answer=write),
            Verify: Answerer(identity=self._verifier.name, answer=verify),
            **scorer.answerers,
        }
        try:
            [(_, found)] = run([search.search(problem)], answerers)
        finally:
            scorer.close()
        return found


@final
class _BatchedScorer:
    """Answers a search's `Score` from its thread by the batcher, in the batcher's loop."""

    def __init__(self, live: Live, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self._batcher, self._loop, self._deadline = live.batcher, loop, deadline
        self._held: dict[tuple[str, ...], Grown] = {}
        identity = identity_of(live.prm)
        self.answerers: dict[type, Answerer] = {
            Score: Answerer(identity=identity, answer=self._score),
            Release: Answerer(identity=identity, answer=self._release),
        }

    def _score(self, requests: Sequence[Score], ready: Ready) -> list[Graded | InputError]:
        asked = []
        for one in requests:
            before = self._held.get(one.steps[:-1])
            asked.append(
                Growth(
                    problem=Problem(text=one.problem),
                    steps=one.steps[:-1],
                    text=one.steps[-1],
                    place=None if before is None else before.place,
                )
            )
        coming = asyncio.run_coroutine_threadsafe(
            self._batcher.extend(asked, deadline=self._deadline), self._loop
        )
        replies: list[Graded | InputError] = []
        for request, result in zip(requests, coming.result(), strict=True):
            if isinstance(result, InputError):
                replies.append(result)
                continue
            again = self._held.get(request.steps)
            self._held[request.steps] = result
            if again is not None:
                self._give_back([again])
            replies.append(result.graded)
        return replies

    def _release(self, requests: Sequence[Release], ready: Ready) -> list[Any]:
        for request in requests:
            self._give_back([self._held.pop(steps) for steps in request.prefixes if steps in self._held])
        return [None] * len(requests)

    def close(self) -> None:
        """Give back what is held."""
        held, self._held = list(self._held.values()), {}
        self._give_back(held)

    def _give_back(self, grown: list[Grown]) -> None:
        if grown:
            with suppress(RuntimeError):  # the loop is closed, and what was kept with it
                self._loop.call_soon_threadsafe(self._batcher.release, grown)
