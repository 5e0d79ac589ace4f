"""Many solutions through one labeller: answered together, given back in order, one that cannot be labelled beside the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from stepmark.batching import Answerer, Method, ReplyStore, run
from stepmark.errors import InputError
from stepmark.labels.labelling import Labeller, Labelling
from stepmark.records import Refusal, Solution


def label(
    solutions: Iterable[Solution],
    labeller: Labeller,
    answerers: Mapping[type, Answerer],
    *,
    store: ReplyStore | None = None,
    in_flight: int = 64,
) -> Iterator[Labelling | Refusal]:
    """Label a stream of solutions: one result each, in their order.

    Args:
        solutions: read as needed; those of one problem share the rollouts of every common prefix.
        labeller: the method.
        answerers: what answers its requests: `models.policies.answerers(policy) | problems.answers.answerers(verifier)`.
        store: keeps every reply before it is used; the same run over the same store repeats nothing.
        in_flight: solutions that are worked on at once.

    Raises:
        BackendError: the policy or the verifier failed; all replies so far are in the store.
        UsageError: the labeller asks for what nothing here answers.
    """
    methods = (_kept(labeller, solution) for solution in solutions)
    for _, result in run(methods, answerers, store=store, in_flight=in_flight):
        yield result


def _kept(labeller: Labeller, solution: Solution) -> Method[Labelling | Refusal]:
    """The labeller's method; its refusal of one solution is a result and costs the others nothing."""
    try:
        return (yield from labeller.label(solution))
    except InputError as error:
        return Refusal(solution=solution, error=error)


class TogetherLabeller(Protocol):
    """A labeller to which several solutions of one problem are one piece of work (`tree.RolloutTree`)."""

    def label_together(self, solutions: Sequence[Solution]) -> Method[tuple[Labelling | Refusal, ...]]:
        """One result a solution, in order.

        Raises:
            InputError: none of them can be labelled.
        """


def label_together(
    groups: Iterable[Sequence[Solution]],
    labeller: TogetherLabeller,
    answerers: Mapping[type, Answerer],
    *,
    store: ReplyStore | None = None,
    in_flight: int = 64,
) -> Iterator[tuple[Labelling | Refusal, ...]]:
    """Label a stream of groups, each of several solutions of one problem: one result a solution, a tuple a group, in order.

    Args:
        groups: read as needed; none is empty.
        labeller: the method.
        answerers: see `label`.
        store: see `label`.
        in_flight: groups that are worked on at once.

    Raises:
        BackendError: the policy or the verifier failed; all replies so far are in the store.
        UsageError: the labeller asks for what nothing here answers.
    """
    methods = (_kept_together(labeller, group) for group in groups)
    for _, result in run(methods, answerers, store=store, in_flight=in_flight):
        yield result


def _kept_together(
    labeller: TogetherLabeller, group: Sequence[Solution]
) -> Method[tuple[Labelling | Refusal, ...]]:
    try:
        return (yield from labeller.label_together(group))
    except InputError as error:
        return tuple(Refusal(solution=solution, error=error) for solution in group)
