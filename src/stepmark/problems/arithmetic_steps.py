"""Steps of the arithmetic world read, and the truth about each: `true_labels`.

A step is right **in itself** when it does what is due: the operation that its name stands for, with the numbers that
the problem gives, on the quantity as the steps before state it (or as it truly is, so that a correction counts as
right), computed rightly, in the right unit, with no step left out before it. So a step that goes on faithfully from a
wrong quantity is right, and the first step that is not right is the first error. If every step is right, so is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepmark.errors import InputError
from stepmark.problems.arithmetic import ArithmeticProblem
from stepmark.problems.arithmetic_text import Line, Number, read_line, reckon


class Account:
    """What the steps so far state: the quantities named, and how far they have come.

    Args:
        problem: whose steps they are.
    """

    def __init__(self, problem: ArithmeticProblem) -> None:
        self.problem = problem
        self.stated: dict[int, Number] = {}
        """The latest statement of each quantity, by the number of its operation."""
        self.due = 0
        """The operation that comes next: the one after the furthest that was stated."""
        self.answer: Number | None = None
        """The answer, once stated; a later calculation takes it back."""

    def running(self, place: int) -> Number:
        """The running quantity before an operation, as the steps state it."""
        for earlier in range(place - 1, -1, -1):
            if earlier in self.stated and not self.problem.operations[earlier].is_product:
                return self.stated[earlier]
        return self.problem.start

    def read(self, text: str) -> Line | None:
        """Take in a step; None, and nothing changes, where it states no quantity of the problem and no answer."""
        line = read_line(text)
        if line is None:
            return None
        if line.name is None:
            self.answer = line.result
            return line
        place = self.problem.places.get(line.name)
        if place is None:
            return None
        self.stated[place] = line.result
        self.due = max(self.due, place + 1)
        self.answer = None
        return line


def true_labels(problem: ArithmeticProblem, steps: Sequence[str]) -> tuple[tuple[bool, ...], int]:
    """Whether each step is right in itself (see the module), and the first error.

    Args:
        problem: whose steps they are.
        steps: any number of them, from the first; whoever wrote them.

    Returns:
        One truth value a step, and the 0-based place of the first False, -1 when there is none.

    Raises:
        InputError: a step that is not of this world: it states no quantity of the problem and no answer, or more than
            one calculation of two numbers. Whether it is right cannot be told.
    """
    account = Account(problem)
    labels: list[bool] = []
    for number, text in enumerate(steps):
        line = read_line(text)
        known = line is not None and (line.name is None or line.name in problem.places)
        if line is None or not known or not line.readable:
            raise InputError(
                f"step {number}: expected 'NAME: A + B = C' with a name from this problem, or 'The answer is C.', "
                f"found {text!r}",
                where=problem.id,
            )
        labels.append(_right(account, line))
        account.read(text)
    return tuple(labels), labels.index(False) if False in labels else -1


def _right(account: Account, line: Line) -> bool:
    problem = account.problem
    if line.name is None:
        # The answer may be the stated quantity or the true one: an answer that corrects is right.
        return account.due == len(problem.operations) and line.result in {
            account.running(account.due),
            problem.answer,
        }
    place = problem.places[line.name]
    operation = problem.operations[place]
    if place > account.due or line.unit not in {"", operation.unit}:
        return False
    lefts, rights = _inputs(account, place)
    if line.calculation is None:
        return line.result in {reckon(a, operation.sign, b) for a in lefts for b in rights}
    left, sign, right = line.calculation
    fits = (left in lefts and right in rights) or (
        operation.sign in "+*" and left in rights and right in lefts
    )
    return fits and sign == operation.sign and reckon(left, sign, right) == line.result


def _inputs(account: Account, place: int) -> tuple[set[Number], set[Number]]:
    """The numbers that an operation may take on its two sides: as stated, or as they truly are."""
    problem = account.problem
    operation = problem.operations[place]
    left, _, right = problem.calculation(place)
    lefts: set[Number] = {left}
    rights: set[Number] = {right}
    if operation.left is None:
        lefts.add(account.running(place))
    if operation.is_merge and place - 1 in account.stated:
        rights.add(account.stated[place - 1])
    return lefts, rights
