"""What the tools' modules share, and what needs none of the tools: a PRM that many threads may ask, and texts graded with it."""

from __future__ import annotations

import math
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, final

from stepmark.data.conversations import solution_of
from stepmark.data.json_rows import json_type
from stepmark.errors import InputError
from stepmark.models.prm import PRM, Grade, grade
from stepmark.records import GradedSolution, Refusal, Solution
from stepmark.verifiers.finder import find_answer


@lru_cache(maxsize=4)
def loaded(name: str, family: str | None = None, tokenizer: str | None = None) -> PRM:
    """The PRM of a name, loaded once a process however often a tool makes its scorers and filters.

    Args:
        name: as `stepmark.load_prm` takes it.
        family: as there.
        tokenizer: as there.
    """
    from stepmark.models.load import load_prm

    return load_prm(name, family=family, tokenizer=tokenizer)


_OWN = Grade()


@final
class CandidateGrader:
    """One PRM for callers on many threads: it is never entered twice, and what waits is graded together.

    Args:
        prm: scores.
        settings: aggregate and threshold.
    """

    def __init__(self, prm: PRM, settings: Grade = _OWN) -> None:
        self.prm = prm
        self.settings = settings.of(prm)
        self._turn, self._guard = threading.Lock(), threading.Lock()
        self._waiting: list[tuple[Sequence[Solution], Future[list[GradedSolution | Refusal]]]] = []

    def grade(self, solutions: Sequence[Solution]) -> list[GradedSolution | Refusal]:
        """One result each, in order; a `Refusal` for a solution that the PRM cannot read. May be called from any thread.

        Raises:
            BackendError: the PRM failed.
        """
        answer: Future[list[GradedSolution | Refusal]] = Future()
        with self._guard:
            self._waiting.append((solutions, answer))
        with self._turn:
            if not answer.done():  # the previous turn may have computed this one too
                self._grade_what_waits()
        return answer.result()

    def _grade_what_waits(self) -> None:
        with self._guard:
            waiting, self._waiting = self._waiting, []
        try:
            every = [solution for group, _ in waiting for solution in group]
            results = list(grade(every, self.prm, self.settings, keep_going=True))
        except Exception as error:
            # Everyone who waited gets the same error object; each raises it in a thread of its own.
            for _, answer in waiting:
                answer.set_exception(error)
            return
        start = 0
        for group, answer in waiting:
            answer.set_result(results[start : start + len(group)])
            start += len(group)


@dataclass(frozen=True, kw_only=True, slots=True)
class GradedText:
    """A text that a model wrote, and what the PRM says of it."""

    text: str
    scored: GradedSolution | None
    """None where it could not be graded."""
    error: InputError | None = None
    """Why not."""

    @property
    def score(self) -> float | None:
        """The aggregate; None without one."""
        return None if self.scored is None else self.scored.score

    @property
    def answer(self) -> str | None:
        """The final answer that the text names; None for none."""
        result = find_answer(self.text)
        return None if result is None else result.text


def grade_texts(
    asked: Sequence[tuple[str, str]],
    grader: CandidateGrader,
    *,
    split: str = "auto",
    marker: str | None = None,
) -> list[GradedText]:
    """Grade texts, each the solution of a problem.

    Args:
        asked: (problem, text).
        grader: the PRM.
        split: how the texts become steps; see `stepmark.split`.
        marker: the separator, for the ways that read one.

    Returns:
        One entry each, in order; of a text that is blank or that the PRM cannot read, the error.
    """
    graded: list[GradedText] = []
    solutions: list[Solution] = []
    for problem, text in asked:
        item = GradedText(text=text, scored=None)
        try:
            solutions.append(solution_of(problem, text, split_by=split, marker=marker))
        except InputError as error:
            item = replace(item, error=error)
        graded.append(item)
    results = iter(grader.grade(solutions))
    for place, item in enumerate(graded):
        if item.error is None:
            result = next(results)
            graded[place] = (
                replace(item, error=result.error)
                if isinstance(result, Refusal)
                else replace(item, scored=result)
            )
    return graded


def facts_of(graded: GradedText) -> dict[str, Any]:
    """What of a graded text goes into a tool's log, as plain data."""
    scored = graded.scored
    if scored is None:
        return {"error": str(graded.error)}
    finite = scored.score is not None and math.isfinite(scored.score)
    return {
        "score": scored.score if finite else None,
        "steps": list(scored.solution.texts),
        "scores": list(scored.scores),
        "first_error": scored.first_error,
        "first_error_step": scored.first_error_step,
        "threshold": scored.threshold,
        "aggregate": scored.aggregate,
        "score_kind": scored.score_kind,
        "split": scored.solution.split,
        "prm": scored.prm,
    }


_FIELD = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class UnreadWarning(UserWarning):
    """Documents of which no response could be graded, so that the first was kept."""


def problem_of(doc: Mapping[str, Any], problem: str, number: int) -> str:
    """The problem's text in a document.

    Args:
        doc: one.
        problem: a field's name, or a template with fields in double braces. (Not a Jinja program: only fields are put in.)
        number: which document, from 0, for errors.

    Raises:
        InputError: a field that is missing or no text, or a blank problem.
    """
    template = problem if "{{" in problem else f"{{{{{problem}}}}}"
    if "{{" in _FIELD.sub("", template):
        raise InputError(
            f"expected fields in double braces, {{{{question}}}}, found {problem!r}", field="problem"
        )
    where = f"document {number}"
    for name in _FIELD.findall(template):
        if not isinstance(doc.get(name), str):
            result = f"a text, found {json_type(doc[name])}" if name in doc else "the problem"
            raise InputError(
                f"expected {result}; the document has {', '.join(map(repr, doc))}: name the field with `problem`",
                where=where,
                field=name,
            )
    text = _FIELD.sub(lambda match: str(doc[match[1]]), template)
    if not text.strip():
        raise InputError("expected a problem, found only white space", where=where)
    return text


def tell(unread: Sequence[str], documents: int) -> None:
    """Warn of documents, a line each, of which no response could be graded."""
    if unread:
        warnings.warn(
            f"stepmark: none of the responses to {len(unread)} of {documents} documents could be graded, so the first was kept "
            f"({unread[0]})",
            UnreadWarning,
            stacklevel=3,
        )
