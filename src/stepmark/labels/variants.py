"""Wrong variants of right solutions, as many as are wanted, each with its true label (`carried` makes the errors).

A right solution is GSM8K's worked one, whose calculations are marked `<<48/2=24>>`; or any solution whose steps write their
calculations out ("48 / 2 = 24 clips"): `worked_of` marks them, where `formulas.check` reads them and finds them right. Nothing is executed.

Equal solutions, settings and seeds give equal variants, wherever in a file they stand.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepmark.errors import InputError, UsageError
from stepmark.labels.carried import KINDS, Kind, with_errors
from stepmark.labels.slips import FORMULA, NUMBER, as_written, compute
from stepmark.problems.extraction import find_answer
from stepmark.problems.gsm8k import Worked
from stepmark.records import LabelledSolution, Solution
from stepmark.solutions.checks.equations import calculations

_REPEATS = 3
"""Errors of a kind that are there already, after which no more of it are sought."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variants:
    """A right solution and wrong ones made of it; every step up to the error is judged by "exact"."""

    right: LabelledSolution
    """Every step right."""
    wrong: tuple[LabelledSolution, ...]
    """Each with one error; no two read the same."""
    kinds: tuple[Kind, ...]
    """The kind of error of each of these."""
    twins: tuple[LabelledSolution, ...]
    """Right solutions that look like the wrong ones of the kind `jump`: without them, whatever asserts a result without its
    calculation would be wrong."""
    without: tuple[Kind, ...]
    """Kinds that were wanted and have no place in this solution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactErrors:
    """How many errors are put in, and which.

    Raises:
        UsageError: a number under 1, no kinds or one twice, or a kind that is none.
    """

    wrong: int = 4
    """Wrong variants of each solution, at most: of every kind in turn, as far as there are places for them."""
    kinds: tuple[Kind, ...] = KINDS
    """Kinds of errors to put in; give the flag once for each."""
    seed: int = 0
    """Of the places and the errors: another seed gives others."""

    def __post_init__(self) -> None:
        if self.wrong < 1:
            raise UsageError(f"--wrong must be at least 1, found {self.wrong}")
        for kind in self.kinds:
            if kind not in KINDS:
                raise UsageError(f"ExactErrors: expected kinds among {', '.join(KINDS)}, found {kind!r}")
        if not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise UsageError(f"ExactErrors: expected one or more different kinds, found {self.kinds!r}")

    def make(self, worked: Worked) -> Variants:
        """The right solution and its wrong variants.

        Raises:
            InputError: a marked or written calculation is false, there is none that is read, the answer is no number, or no error
                of these kinds has a place.
        """
        _check_right(worked)
        rng = random.Random("\n".join((str(self.seed), worked.problem.text, *worked.lines)))
        (right, *_) = with_errors(worked, rng, kinds=())
        wrong: dict[tuple[str, ...], tuple[LabelledSolution, Kind]] = {}
        twins: dict[tuple[str, ...], LabelledSolution] = {}
        left = list(self.kinds)
        repeats: Counter[Kind] = Counter()
        without: set[Kind] = set()
        while left and len(wrong) < self.wrong:
            for kind in rng.sample(left, len(left)):
                if len(wrong) == self.wrong:
                    break
                made, twin = _one(worked, rng, kind)
                if made is None:
                    left.remove(kind)
                    without.add(kind)
                elif made.solution.texts in wrong:
                    repeats[kind] += 1
                    if repeats[kind] == _REPEATS:
                        left.remove(kind)
                else:
                    wrong[made.solution.texts] = made, kind
                    if twin is not None and twin.solution.texts != right.solution.texts:
                        twins[twin.solution.texts] = twin
        if not wrong:
            raise InputError("no place for any of these kinds of errors")
        kinds = tuple(kind for _, kind in wrong.values())
        return Variants(
            right=right,
            wrong=tuple(made for made, _ in wrong.values()),
            kinds=kinds,
            twins=tuple(twins.values()),
            without=tuple(kind for kind in self.kinds if kind in without.difference(kinds)),
        )


def _one(
    worked: Worked, rng: random.Random, kind: Kind
) -> tuple[LabelledSolution | None, LabelledSolution | None]:
    """A wrong solution of one kind, and its right twin."""
    (_, *made) = with_errors(worked, rng, kinds=(kind,))
    if not made:
        return None, None
    return made[-1], made[0] if len(made) > 1 else None


def _check_right(worked: Worked) -> None:
    answer = worked.problem.answer or ""
    if compute(answer) is None or not NUMBER.fullmatch(answer.removeprefix("-")):
        raise InputError(f"the answer is no number: {answer}" if answer else "there is no reference answer")
    _check_calculations(worked.lines)
    if not any(FORMULA.search(line) for line in worked.lines):
        raise InputError("no step writes down a calculation that is read (48 / 2 = 24)")


def _check_calculations(lines: Sequence[str]) -> None:
    for number, line in enumerate(lines, start=1):
        false = next((formula for formula in calculations(line) if formula.truth == "wrong"), None)
        if false is not None:
            raise InputError(f"a calculation is false: step {number}: {false.text}: {false.why}")


def worked_of(solution: Solution) -> Worked:
    """A right solution with its calculations marked, as `with_errors` reads it.

    Its last step is left out where it only says the answer: `with_errors` writes that step, "The answer is …". A solution with a
    calculation that cannot be marked is refused, for what depends on an error could not all be computed again.

    Args:
        solution: whose problem has the reference answer, or which names its answer itself.

    Raises:
        InputError: it names another answer than the reference, or none and there is no reference; a calculation that is false or
            cannot be marked.
    """
    texts = list(solution.texts)
    said = find_answer("\n".join(texts))
    own = None if said is None else compute(_bare(said.text))
    answer = solution.problem.answer
    if answer is None:
        if said is None:
            raise InputError("there is no reference answer, and the solution names none")
        answer = _bare(said.text)
    elif own is not None and own != compute(_bare(answer)):
        raise InputError(
            f"it is no right solution: its answer is {said.text if said else None}, the reference {answer}"
        )
    if len(texts) > 1 and find_answer(texts[-1]) is not None and not any(calculations(texts[-1])):
        texts.pop()
    _check_calculations(texts)
    return Worked(
        problem=replace(solution.problem, answer=_bare(answer)), lines=tuple(marked(text) for text in texts)
    )


def _bare(answer: str) -> str:
    return answer.strip().strip("$").rstrip(".").strip()


def marked(text: str) -> str:
    """A step with its calculations marked; marks that it has stay.

    >>> marked("So she sold 48 / 2 = 24 clips.")
    'So she sold 48 / 2 = <<48/2=24>>24 clips.'

    Raises:
        InputError: a calculation is not plain enough to be computed again, or not surely read: an error before it could not be
            carried through it.
    """
    if FORMULA.search(text):
        return text
    pieces, at = [], 0
    for formula in calculations(text):
        expression, _, result = formula.text.rpartition("=")
        number = NUMBER.search(result)
        wanted = as_written(expression)
        if (
            formula.truth != "right"
            or formula.start < at
            or number is None
            or result.strip(" $") != number[0]
            or compute(wanted) is None
            or compute(wanted) != compute(number[0])
        ):
            raise InputError(f"a calculation cannot be marked: {formula.text}: {formula.why}")
        start = formula.start + len(expression) + 1 + number.start()
        pieces += [text[at:start], f"<<{wanted}={number[0].replace(',', '')}>>"]
        at = start
    return "".join(pieces) + text[at:]
