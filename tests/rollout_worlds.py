"""Worlds in which what every rollout comes to is written down, and a log of what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepmark.backends import Answerer, Completion, Completions, Message, Method, ReplyStore, content_key, run
from stepmark.models.policies import answerers
from stepmark.models.scripted import ScriptedPolicy
from stepmark.records import Problem, Solution, Step
from stepmark.verifiers.base import answerers as verifying
from stepmark.verifiers.number import NumberVerifier

RIGHT, WRONG, NONE = "so \\boxed{7}", "so \\boxed{9}", "and so on\nfor ever"
OUTCOMES = {"y": RIGHT, "n": WRONG, "u": NONE}
PROBLEM = Problem(text="What is it?", id="p", answer="7")


def solution(steps: int, *, ending: str = WRONG, id: str = "s") -> Solution:
    """Steps "step 1", …, the last with the ending."""
    texts = [f"step {number}" for number in range(1, steps)] + [ending]
    return Solution(problem=PROBLEM, steps=tuple(Step(text=text) for text in texts), id=id)


class World:
    """Answers rollouts by a function of (prefix, number of the sample); keeps what was asked."""

    def __init__(self, write: Callable[[str, int], str | Completion]) -> None:
        def scripted(request: Completions, number: int) -> str | Completion:
            self.asked.append((content_key(request, ""), number))
            self.prefixes.append(request.prefill)
            assert request.prompt == (
                Message(role="user", content=request.prompt[0].content),  # type: ignore[union-attr]
            )
            return write(request.prefill, number)

        self.asked: list[tuple[str, int]] = []
        self.prefixes: list[str] = []
        self.policy = ScriptedPolicy(scripted)

    def answerers(self) -> Mapping[type, Answerer]:
        return answerers(self.policy) | verifying(NumberVerifier())

    def run(self, *methods: Method[Any], store: ReplyStore | None = None) -> list[Any]:
        return [result for _, result in run(methods, self.answerers(), store=store)]


def table(outcomes: Mapping[int, str]) -> World:
    """A world by the prefix's number of steps: a letter of OUTCOMES for each sample, in order."""
    return World(lambda prefix, number: OUTCOMES[outcomes[prefix.count("\n")][number]])


class Cut(Exception):
    """The run was stopped."""


class CutStore:
    """A store that stops the run at the put number `after`: when it is recorded, or just before."""

    def __init__(self, after: int, *, recorded: bool = True) -> None:
        self.kept: dict[str, str] = {}
        self._left = after
        self._recorded = recorded

    def get(self, keys: Sequence[str]) -> dict[str, str]:
        return {key: self.kept[key] for key in keys if key in self.kept}

    def put(self, replies: Mapping[str, str]) -> dict[str, str]:
        self._left -= 1
        if self._left == 0 and not self._recorded:
            raise Cut
        for key, reply in replies.items():
            self.kept.setdefault(key, reply)
        if self._left == 0:
            raise Cut
        return self.get(list(replies))
