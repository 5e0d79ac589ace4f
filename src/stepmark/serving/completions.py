"""Best-of-N as a model: completions of a conversation are drawn from a policy, graded by the PRM of this server, and one is the answer.

Lightman et al. 2023, "Let's Verify Step by Step" (arXiv 2305.20050), section 2, behind OpenAI's API; votes as in `search.choosing`. The
candidates are graded by the batcher that all clients share, so they wait in its queue, and what they have in common is computed once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, final

from stepmark.batching import Written
from stepmark.errors import InputError
from stepmark.problems.answers import Verifier, load_verifier
from stepmark.problems.extraction import find_answer
from stepmark.records import Problem, Solution
from stepmark.search.base import Choice
from stepmark.search.choosing import Picked, pick
from stepmark.serving.chat_wire import ChatRequest
from stepmark.serving.conversations import NOTHING_SAID, draw_of, problem_of
from stepmark.serving.grading import Asked, check_grade, verdicts
from stepmark.serving.jobs import LateError
from stepmark.serving.refusals import Refused, retry
from stepmark.serving.service import Live, served_name
from stepmark.serving.settings import ChatModel
from stepmark.serving.telling import completion
from stepmark.serving.writers import Draw, Drawn, PolicyError, Writer
from stepmark.solutions.segmentation import split as split_text

_QUEUE = 4
"""Requests that may wait for the policy, for each that it may work on."""


@final
class Completer:
    """Answers conversations.

    Args:
        settings: how.
        writer: writes the candidates.
        live: the PRM that grades them.
        clock: seconds, in which deadlines are told.
    """

    def __init__(
        self, settings: ChatModel, writer: Writer, live: Live, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings, self.writer, self.live = settings, writer, live
        self._clock = clock
        self._room = asyncio.Semaphore(settings.policy_requests)
        self._waiting = 0
        self._verifier: Verifier | None = None
        self._judging = asyncio.Lock()

    async def answer(self, body: ChatRequest, *, arrived: float) -> dict[str, Any]:
        """The answer to a request, as plain data (`ChatAnswer`).

        Args:
            body: the request.
            arrived: when it came, on the clock.

        Raises:
            Refused: a parameter that cannot be honoured; too many requests wait.
            InputError: the policy cannot read the conversation, or the PRM no candidate.
            LateError: the time is over.
            PolicyError: the policy failed, or wrote nothing.
        """
        asked = draw_of(body, self.settings)
        wanted = body.stepmark or NOTHING_SAID
        if not self.writer.penalties and (asked.presence_penalty or asked.frequency_penalty):
            name = "presence_penalty" if asked.presence_penalty else "frequency_penalty"
            raise Refused("invalid_request", f"the policy {self.writer.name} knows no penalties", field=name)
        grade = check_grade(self.live.prm, self.live.grade, wanted.aggregate, None, "none")
        choice: Choice = wanted.choose or self.settings.choice
        seconds = self.settings.chat_timeout if wanted.timeout is None else wanted.timeout
        deadline = arrived + seconds
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock())):
                drawn = await self._drawn(asked)
                problem = problem_of(asked.messages)
                solutions = await asyncio.to_thread(self._cut, problem, drawn.texts)
                told = await self.live.batcher.score(
                    [one for one in solutions if isinstance(one, Solution)], deadline=deadline
                )
                results = verdicts(solutions, told, self.live.prm, grade, at="candidates")
                _none_read(results, solutions, drawn)
                answers = [_answer(one.text) for one in drawn.texts]
                picked = await self._picked(
                    [one.get("score") for one in results],
                    answers,
                    [one.finish != "length" for one in drawn.texts],
                    choice,
                )
        except TimeoutError:
            raise LateError(f"the answer was not there within {seconds:g} s") from None
        return self._told(
            drawn,
            solutions,
            results,
            answers,
            picked,
            grade.aggregate,
            grade.threshold,
            texts=bool(wanted.texts),
        )

    async def close(self) -> None:
        """Let go of policy and verifier."""
        await self.writer.close()
        if self._verifier is not None:
            await asyncio.to_thread(self._verifier.close)

    async def _drawn(self, asked: Draw) -> Drawn:
        if self._waiting >= (_QUEUE + 1) * self.settings.policy_requests:
            raise Refused(
                "busy", "too many conversations wait for the policy; try again later", headers=retry(5.0)
            )
        self._waiting += 1
        try:
            async with self._room:
                return await self.writer.draw(asked)
        finally:
            self._waiting -= 1

    def _cut(self, problem: str, texts: Sequence[Written]) -> list[Asked]:
        cut: list[Asked] = []
        for one in texts:
            try:
                found = split_text(one.text, self.settings.split, marker=self.settings.marker)
                cut.append(Solution(problem=Problem(text=problem), steps=found.steps, split=found.how))
            except InputError as error:
                cut.append(error)
        return cut

    async def _picked(
        self,
        scores: Sequence[float | None],
        answers: Sequence[str | None],
        finished: Sequence[bool],
        choice: Choice,
    ) -> Picked:
        if choice == "best":
            return pick(scores, answers, choice, finished=finished)
        if min((score for score in scores if score is not None), default=0.0) < 0 and choice == "vote":
            raise Refused(
                "invalid_request",
                "scores of this PRM can be below 0 and are no weights; choose best or majority",
                field="stepmark.choose",
            )
        async with self._judging:
            # One verifier, one question at a time: it holds a process of its own.
            if self._verifier is None:
                self._verifier = load_verifier(self.settings.verifier, isolation=self.settings.isolation)
            return await asyncio.to_thread(
                pick, scores, answers, choice, verifier=self._verifier, finished=finished
            )

    def _told(
        self,
        drawn: Drawn,
        solutions: Sequence[Asked],
        results: Sequence[dict[str, Any]],
        answers: Sequence[str | None],
        picked: Picked,
        aggregate: str | None,
        threshold: float | None,
        *,
        texts: bool,
    ) -> dict[str, Any]:
        candidates = []
        for number, (written, solution, result) in enumerate(
            zip(drawn.texts, solutions, results, strict=True)
        ):
            told: dict[str, Any] = {
                name: result[name]
                for name in ("score", "scores", "first_error", "first_error_step", "error")
                if name in result
            }
            if picked.votes is not None:
                told["votes"] = picked.votes[number]
            if written.tokens is not None:
                told["tokens"] = written.tokens
            if texts:
                told["text"] = written.text
                if isinstance(solution, Solution):
                    told["steps"] = list(solution.texts)
            candidates.append(
                {"index": number, "finish_reason": _finish(written), "answer": answers[number], **told}
            )
        chosen = drawn.texts[picked.index]
        return completion(
            model=self.settings.model,
            text=chosen.text,
            finish=_finish(chosen),
            tokens=(drawn.prompt_tokens, drawn.completion_tokens),
            stepmark={
                "n": len(drawn.texts),
                "chosen": picked.index,
                "choose": picked.choice,
                "why": picked.why,
                "search": self.settings.search,
                "policy": served_name(self.writer.name),
                "prm": self.live.name,
                "score_kind": self.live.prm.score_kind,
                "aggregate": aggregate,
                "threshold": threshold,
                "candidates": candidates,
            },
        )


def _none_read(results: Sequence[dict[str, Any]], solutions: Sequence[Asked], drawn: Drawn) -> None:
    """Refuse to choose where nothing was graded: whatever was given would look chosen."""
    if any(one.get("score") is not None for one in results):
        return
    if not any(one.text.strip() for one in drawn.texts):
        raise PolicyError(f"the policy wrote nothing in any of {len(drawn.texts)} candidates")
    first = next(
        (
            result["error"]
            for result, solution in zip(results, solutions, strict=True)
            if "error" in result and isinstance(solution, Solution)
        ),
        None,
    )
    if first is None:
        raise PolicyError("no candidate has a score: the PRM left steps of each of them unread")
    raise Refused(
        first["type"], f"the PRM can read no candidate; of the first: {first['message']}", field="messages"
    )


def _answer(text: str) -> str | None:
    found = find_answer(text)
    return None if found is None else found.text


def _finish(written: Written) -> Literal["stop", "length"]:
    return "length" if written.finish == "length" else "stop"
