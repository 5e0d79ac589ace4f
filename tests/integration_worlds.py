"""A PRM for the tests of integrations, which other environments import by name: it knows sums of whole numbers, and nothing else.

Written out, so that a test can say what every score must be: a step `a + b = c` is worth 0.9 where the sum is right and 0.2 where it is wrong; a
step without a sum 0.7; a step with the word "unreadable" is refused.
"""

from __future__ import annotations

import re

from stepmark.backends import Completion
from stepmark.errors import InputError
from stepmark.models.scripted import ScriptedPolicy, ScriptedPRM

RIGHT, WRONG, PLAIN = 0.9, 0.2, 0.7
_SUM = re.compile(r"(\d+) \+ (\d+) = (\d+)")


def _score(problem: str, steps: tuple[str, ...]) -> float:
    if "unreadable" in steps[-1]:
        raise InputError("the step says that it is unreadable", field="steps")
    found = _SUM.search(steps[-1])
    if found is None:
        return PLAIN
    return RIGHT if int(found[1]) + int(found[2]) == int(found[3]) else WRONG


def prm() -> ScriptedPRM:
    return ScriptedPRM(_score, name="sums", default_aggregate="min")


def policy() -> ScriptedPolicy:
    """Answers "2 + 3?": each third sample is right, the others are not; eleven tokens each, seven of the prompt."""

    def write(request: object, number: int) -> Completion:
        answer = 5 if number % 3 == 2 else 6
        return Completion(
            text=f"2 + 3 = {answer}\nThe answer is {answer}.", finish="end", tokens=11, prompt_tokens=7
        )

    return ScriptedPolicy(write, name="adder")
