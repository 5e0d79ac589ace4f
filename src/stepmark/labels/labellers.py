"""The labellers by name, the library's and a caller's own; and many solutions through one of them, in order."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepmark.backends import (
    CachedPolicy,
    CachedVerifier,
    Completing,
    Missing,
    ReplyStore,
    Verifying,
    run_tasks,
)
from stepmark.errors import InputError, UsageError
from stepmark.labels.labelling import Labeller, LabellerNeeds, Labelling
from stepmark.records import Refusal, Solution
from stepmark.registry import Registry

METHODS = Registry(
    "labeller",
    {
        "rollout": "stepmark.labels.rollout:EveryStep",
        "binary": "stepmark.labels.rollout:BinarySearch",
        "bayes": "stepmark.labels.bayes:BayesianSearch",
        "tree": "stepmark.labels.rollout_tree:RolloutTree",
        "judge": "stepmark.labels.judge:Judge",
        "formulas": "stepmark.labels.formulas:Formulas",
    },
    call="label",
    expected="a class, or a function whose call gives one, that is a frozen dataclass of its settings with a name and async label(solution, policy, verifier)",
    page="extending.md",
)
"""The library's labellers. To add one: a module with its class, which says what it needs (`LabellerNeeds`), and a line here."""


def load_labeller(
    method: str | Labeller, settings: Sequence[str] = ()
) -> tuple[Labeller, Mapping[str, Any] | None]:
    """A labeller, and where it is from if it is a caller's own; see `Registry.method`."""
    return METHODS.method(method, settings)


def needs_of(labeller: Labeller) -> LabellerNeeds:
    """What a labeller asks; one of the caller's own that does not say asks a policy, if there is one, and a verifier."""
    needs: LabellerNeeds = getattr(labeller, "needs", LabellerNeeds())
    return needs


def named_after(labeller: Labeller, policy: str | None) -> Labeller:
    """A judge without a name of its own is named after its policy, since its opinion is that model's."""
    if needs_of(labeller).named_after_policy and labeller.name == "judge":
        return replace(labeller, name=f"judge:{policy}")  # type: ignore[type-var]
    return labeller


Result = Labelling | Refusal


def label(
    solutions: Iterable[Solution],
    labeller: Labeller,
    policy: Completing | None = None,
    verifier: Verifying | None = None,
    *,
    store: ReplyStore | None = None,
    in_flight: int = 64,
) -> Iterator[Result]:
    """Label a stream of solutions, `in_flight` at once: one result each, in their order.

    Args:
        solutions: read as needed.
        labeller: how they are labelled.
        policy: what it asks to continue prefixes, or to judge.
        verifier: what compares final answers.
        store: where replies are recorded and replayed from.
        in_flight: solutions that are labelled at once.

    Raises:
        BackendError: the policy or the verifier failed; all replies so far are in the store.
        UsageError: the labeller asks for what is not there.
    """
    asked = None if policy is None else CachedPolicy(policy, store)
    compared = None if verifier is None else CachedVerifier(verifier, store)

    def one(solution: Solution) -> Awaitable[tuple[Result, ...]]:
        return label_group((solution,), labeller, asked, compared)

    for _, (result,) in run_tasks(solutions, one, in_flight=in_flight):
        yield result


async def label_group(
    group: Sequence[Solution], labeller: Labeller, policy: Completing | None, verifier: Verifying | None
) -> tuple[Result, ...]:
    """The results of a group: of a tree the solutions of one problem, which share it; of other labellers one solution.

    That none of it can be labelled is a result too.
    """
    writes, compares = policy or Missing("policy"), verifier or Missing("verifier")
    try:
        if needs_of(labeller).whole_problems:
            together: tuple[Result, ...] = await labeller.label_together(group, writes, compares)  # type: ignore[attr-defined]
            return together
        (solution,) = group
        labelling = labeller.label(solution, writes, compares)
        if not inspect.isawaitable(labelling):
            raise UsageError(f"the labeller {labeller.name}: expected {METHODS.expected}")
        result = await labelling
        if not isinstance(result, Labelling):
            raise UsageError(
                f"the labeller {labeller.name}: expected label to return a Labelling, got {type(result).__name__}"
            )
        return (result,)
    except InputError as error:
        return tuple(Refusal(solution=solution, error=error) for solution in group)
