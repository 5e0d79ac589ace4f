"""Worlds in which what every rollout comes to is written down, and a log of what was asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from stepmark.backends import Completion, Completions, Message, ReplyStore, content_key, run_tasks
from stepmark.labels.labellers import Result, label
from stepmark.labels.labelling import Labeller
from stepmark.models.scripted import ScriptedPolicy
from stepmark.records import Problem, Solution, Step
from stepmark.verifiers.base import BatchVerifier
from stepmark.verifiers.number import NumberVerifier

Found = TypeVar("Found")

RIGHT, WRONG, NONE = "so \\boxed{7}", "so \\boxed{9}", "and so on\nfor ever"
OUTCOMES = {"y": RIGHT, "n": WRONG, "u": NONE}
PROBLEM = Problem(text="What is it?", id="p", answer="7")


def solution(steps: int, *, ending: str = WRONG, id: str = "s") -> Solution:
    """Steps "step 1", …, the last with the ending."""
    texts = [f"step {number}" for number in range(1, steps)] + [ending]
    return Solution(problem=PROBLEM, steps=tuple(Step(text=text) for text in texts), id=id)


class World:
    """Answers rollouts by a function of (prefix, number of the sample); keeps what was asked, by the key of its reply."""

    def __init__(self, write: Callable[[str, int], str | Completion]) -> None:
        def scripted(request: Completions, number: int) -> str | Completion:
            self.asked.append(f"{content_key(request, self.policy.identity)}/{number}")
            self.prefixes.append(request.prefill)
            assert request.prompt == (
                Message(role="user", content=request.prompt[0].content),  # type: ignore[union-attr]
            )
            return write(request.prefill, number)

        self.asked: list[str] = []
        self.prefixes: list[str] = []
        self.policy = ScriptedPolicy(scripted)

    def run(self, method: Callable[..., Awaitable[Found]], *arguments: object) -> Found:
        """What `method(*arguments, policy, verifier)` comes to: a labeller's `label`, a tree's `grow`, a probe."""
        verifier = BatchVerifier(NumberVerifier())
        ((_, found),) = run_tasks([arguments], lambda given: method(*given, self.policy, verifier))
        return found

    def label(
        self,
        solutions: Iterable[Solution],
        labeller: Labeller,
        *,
        store: ReplyStore | None = None,
        in_flight: int = 64,
    ) -> list[Result]:
        """The results of many solutions."""
        verifier = BatchVerifier(NumberVerifier())
        return list(label(solutions, labeller, self.policy, verifier, store=store, in_flight=in_flight))


def table(outcomes: Mapping[int, str]) -> World:
    """A world by the prefix's number of steps: a letter of OUTCOMES for each sample, in order."""
    return World(lambda prefix, number: OUTCOMES[outcomes[prefix.count("\n")][number]])


class Cut(Exception):
    """The run was stopped."""


class CutStore:
    """A store that fails once, at the put that brings the reply number `after`: when it is recorded, or just before."""

    def __init__(self, after: int, *, recorded: bool = True) -> None:
        self.name = "a store that is cut"
        self.kept: dict[str, str] = {}
        self.lost: list[str] = []
        """The keys of the put that failed, where it recorded nothing."""
        self._after, self._brought = after, 0
        self._recorded = recorded

    def get(self, keys: Sequence[str]) -> dict[str, str]:
        return {key: self.kept[key] for key in keys if key in self.kept}

    def put(self, replies: Mapping[str, str]) -> dict[str, str]:
        before, self._brought = self._brought, self._brought + len(replies)
        cut = before < self._after <= self._brought
        if cut and not self._recorded:
            self.lost = list(replies)
            raise Cut
        for key, reply in replies.items():
            self.kept.setdefault(key, reply)
        if cut:
            raise Cut
        return self.get(list(replies))
