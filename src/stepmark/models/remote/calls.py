"""The calls of a score server as exchanges: what is asked in one go, and what becomes of what is declined."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from stepmark.errors import InputError, UsageError
from stepmark.models.policies.transport import Patience
from stepmark.models.prm import Ledger
from stepmark.models.remote.answers import (
    Listing,
    Ranked,
    ServedModel,
    Told,
    read_listing,
    read_ranking,
    read_scores,
)
from stepmark.models.remote.exchange import DeclinedError, Exchange, Rules
from stepmark.models.remote.portions import Limits, complaint, in_parts
from stepmark.models.remote.processes import PerProcess
from stepmark.records import Problem, Refusal, ScoredSolution, Solution, Step, Steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A solution to be scored: its steps, or a text that the server cuts."""

    solution: Solution
    """Without steps where there is a text."""
    text: str | None = None
    split: str | None = None
    """How the text is cut; None leaves it to the server."""

    @classmethod
    def of(
        cls, problem: str, steps: Steps | str, *, split: str | None = None, id: str | None = None
    ) -> Question:
        """From plain strings.

        Raises:
            UsageError: a way to cut, and steps that are cut already; or what is no text.
        """
        _check_type(problem, "problem")
        if isinstance(steps, str):
            bare = Solution(problem=Problem(text=problem), steps=(), id=id)
            return cls(solution=bare, text=steps, split=split)
        if split is not None:
            raise UsageError(f"split={split!r} says how a text is cut; the steps are given")
        for number, step in enumerate(steps):
            if not isinstance(step, Step):
                _check_type(step, f"steps[{number}]")
        return cls(solution=Solution.of(problem, steps, id=id))

    @property
    def characters(self) -> int:
        """Of its texts."""
        return len(self.text or "") + characters(self.solution)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What is asked of all solutions of a call."""

    aggregate: str | None = None
    """None: the server's."""
    threshold: float | None = None
    """None: the server's."""
    checks: str | None = None
    """None: the server's."""
    timeout: float | None = None
    """Seconds for a request and all that it takes; None: no limit but patience."""

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout <= 3600:
            raise UsageError(f"timeout: expected seconds above 0, up to 3600, found {self.timeout!r}")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise UsageError(f"threshold: expected a number, found {self.threshold!r}")


@final
class Calls:
    """Every call of one server but those of sessions.

    Args:
        rules: how it is talked to.
        model: the name of one of its PRMs; None where it serves one.
    """

    def __init__(self, rules: Rules, *, model: str | None) -> None:
        self.rules = rules
        self.ledger = Ledger()
        self._counting = PerProcess(threading.Lock)
        self.model = model
        self.limits = Limits()
        self._served: ServedModel | None = None

    def listing(self) -> Exchange[Listing]:
        """What is served."""
        url = f"{self.rules.address}/v1/models"
        try:
            return (
                yield from self.rules.ask("GET", "/v1/models", None, lambda data: read_listing(data, url))
            )
        except DeclinedError as declined:
            raise complaint(declined) from None

    def served(self) -> Exchange[ServedModel]:
        """The PRM that is talked to; asked for once.

        Raises:
            UsageError: the server has no PRM of that name, or several and none is named.
        """
        if self._served is None:
            prms = (yield from self.listing()).prms
            named = [prm for prm in prms if self.model in (None, prm.id)]
            if len(named) != 1:
                names = ", ".join(repr(prm.id) for prm in prms) or "none"
                asked = "one has to be named" if self.model is None else f"{self.model!r} was asked for"
                raise UsageError(f"{self.rules.address}: {asked}, and the PRMs that it serves are: {names}")
            self._served = named[0]
            self.limits.number = min(self.limits.number, self._served.max_solutions)
            # A character has at most four bytes, or six where it is escaped.
            self.limits.characters = min(self.limits.characters, max(1, self._served.max_body // 8))
        return self._served

    def score(
        self, questions: Sequence[Question], settings: Settings
    ) -> Exchange[list[ScoredSolution | Refusal]]:
        """Score some solutions in as few requests as the server takes; one result each, in order."""
        known: dict[int, InputError] = {}
        for i, question in enumerate(questions):
            try:
                folded = observed(question.solution)
                if folded and not (yield from self.served()).sessions:
                    raise InputError(
                        "what the world answered after a step (observation) is sent as the beginning of the next step, which is the "
                        "same text only to PRMs that read tokens step by step; load this PRM in this process",
                        field=f"steps[{folded[0]}]",
                    )
                check_text(question)
            except InputError as error:
                known[i] = error
        sent = [question for i, question in enumerate(questions) if i not in known]

        def send(part: Sequence[Question]) -> Exchange[list[Told | InputError]]:
            body = self._body({"solutions": [_fields(question) for question in part]}, settings)
            asked, url = [question.solution for question in part], f"{self.rules.address}/v1/score"
            return (
                yield from self.rules.ask(
                    "POST",
                    "/v1/score",
                    body,
                    lambda data: read_scores(data, asked, url),
                    timeout=settings.timeout,
                    tell=True,
                )
            )

        answered = iter((yield from in_parts(sent, self.limits, "solutions", send)))
        results: list[ScoredSolution | Refusal] = []
        for i, question in enumerate(questions):
            result = known[i] if i in known else next(answered)
            if isinstance(result, InputError):
                named = type(result)(result.message, where=_name(question.solution), field=result.field)
                results.append(Refusal(solution=question.solution, error=named))
            else:
                self._count(result)
                results.append(result.scored)
        return results

    def rank(self, questions: Sequence[Question], settings: Settings) -> Exchange[list[Ranked]]:
        """Put the candidates of one problem in order, in one request."""
        for question in questions:
            check_text(question)
        if not questions:
            return []
        fields = [_fields(question) for question in questions]
        candidates = [{key: one[key] for key in ("steps", "solution") if key in one} for one in fields]
        body = {"problem": questions[0].solution.problem.text, "candidates": candidates}
        split = next((question.split for question in questions if question.split is not None), None)
        if split is not None:
            body["split"] = split
        asked, url = [question.solution for question in questions], f"{self.rules.address}/v1/rank"
        try:
            found = yield from self.rules.ask(
                "POST",
                "/v1/rank",
                self._body(body, settings),
                lambda data: read_ranking(data, asked, url),
                timeout=settings.timeout,
                tell=True,
            )
        except DeclinedError as declined:
            raise complaint(declined) from None
        ranked = []
        for index, result in found:
            if isinstance(result, InputError):
                ranked.append(Ranked(index=index, scored=None, error=result))
            else:
                self._count(result)
                ranked.append(Ranked(index=index, scored=result.scored))
        return ranked

    def _body(self, body: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
        more = {
            "aggregate": settings.aggregate,
            "threshold": settings.threshold,
            "checks": settings.checks,
            "model": self.model,
        }
        return {**body, **{key: value for key, value in more.items() if value is not None}}

    def count(
        self,
        *,
        solutions: int = 0,
        steps: int = 0,
        tokens_in: int = 0,
        tokens_computed: int = 0,
        tokens_again: int = 0,
    ) -> None:
        """Add to the ledger. Of the tokens computed, all but those read again are distinct."""
        with self._counting.here:  # several threads may share a client
            ledger = self.ledger
            ledger.solutions += solutions
            ledger.steps += steps
            ledger.tokens_in += tokens_in
            ledger.tokens_distinct += tokens_computed - tokens_again
            ledger.tokens_computed += tokens_computed
            ledger.tokens_again += tokens_again

    def _count(self, told: Told) -> None:
        # How many of them it had computed before, for us or for others, a server does not say.
        self.count(
            solutions=1,
            steps=sum(score is not None for score in told.scored.steps.scores),
            tokens_in=told.tokens or 0,
            tokens_computed=told.tokens or 0,
        )


def calls_of(
    address: str,
    model: str | None,
    *,
    patience: Patience,
    batch: int,
    rng: random.Random | None,
    clock: Callable[[], float],
) -> Calls:
    """What both clients are made of; see `Client`."""
    if batch < 1:
        raise UsageError(f"batch: expected 1 or more solutions, found {batch}")
    rules = Rules(address, patience=patience, rng=rng or random.Random(), clock=clock)
    calls = Calls(rules, model=model)
    calls.limits.number = batch
    return calls


def questions_of(problem: str, candidates: Sequence[Steps | str], split: str | None) -> list[Question]:
    """Candidates of one problem; the way to cut is for those that are texts.

    Raises:
        UsageError: one text where several candidates were expected, and as `Question.of`.
    """
    if isinstance(candidates, str):
        raise UsageError(f"candidates: expected a list of them, found the single text {candidates!r:.60}")
    return [Question.of(problem, one, split=split if isinstance(one, str) else None) for one in candidates]


def prefixes_of(prefixes: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Prefixes by their steps.

    Raises:
        UsageError: one without steps, or a text where its steps were expected.
    """
    for prefix in prefixes:
        if isinstance(prefix, str) or not prefix:
            raise UsageError(f"a prefix: expected its steps, at least one, found {prefix!r:.80}")
    return [tuple(prefix) for prefix in prefixes]


def _check_type(found: object, what: str) -> None:
    if not isinstance(found, str):
        raise UsageError(f"{what}: expected a text, found {found!r:.60}")


def observed(solution: Solution) -> list[int]:
    """The steps (0-based) that begin with what the world answered after the one before."""
    return [i + 1 for i, step in enumerate(solution.steps[:-1]) if step.observation.strip()]


def step_texts(solution: Solution) -> list[str]:
    """The texts of the steps, each with what the world answered before it, as `Encoder` joins them."""
    texts, before = [], ""
    for step in solution.steps:
        texts.append(f"{before}\n\n{step.text.lstrip()}" if before and step.text.strip() else step.text)
        before = step.observation.strip()
    return texts


def characters(solution: Solution) -> int:
    """Of a solution's texts."""
    return len(solution.problem.text) + sum(len(s.text) + len(s.observation) for s in solution.steps)


def check_text(question: Question) -> None:
    """Refuse what cannot travel: half of a surrogate pair is no character in UTF-8.

    Raises:
        InputError: there is one.
    """
    steps = {f"steps[{i}]": text for i, text in enumerate(step_texts(question.solution))}
    for field, text in {
        "problem": question.solution.problem.text,
        "solution": question.text or "",
        **steps,
    }.items():
        check_characters(text, field)


def check_characters(text: str, field: str) -> None:
    """See `check_text`."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"half of a surrogate pair ({text[error.start]!a}) in the text: that is no character", field=field
        ) from None


def _fields(question: Question) -> dict[str, Any]:
    solution = question.solution
    fields: dict[str, Any] = {"problem": solution.problem.text}
    if question.text is None:
        fields["steps"] = step_texts(solution)
    else:
        fields["solution"] = question.text
        if question.split is not None:
            fields["split"] = question.split
    return fields


def _name(solution: Solution) -> str | None:
    return f"solution {solution.id!r}" if solution.id is not None else None
