"""Many solutions through one labeller: answered together, in order; one that cannot be labelled costs the others nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from stepmark.batching import Answerer, Method, ReplyStore, run
from stepmark.errors import InputError
from stepmark.labels.labelling import Labeller, Labelling
from stepmark.labels.tree import RolloutTree
from stepmark.records import Refusal, Solution

Result = Labelling | Refusal


def label(
    solutions: Iterable[Solution],
    labeller: Labeller,
    answerers: Mapping[type, Answerer],
    *,
    store: ReplyStore | None = None,
    in_flight: int = 64,
) -> Iterator[Result]:
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
    groups = ((solution,) for solution in solutions)
    for (result,) in label_groups(groups, labeller, answerers, store=store, in_flight=in_flight):
        yield result


def label_groups(
    groups: Iterable[Sequence[Solution]],
    labeller: Labeller,
    answerers: Mapping[type, Answerer],
    *,
    store: ReplyStore | None = None,
    in_flight: int = 64,
) -> Iterator[tuple[Result, ...]]:
    """As `label`, for groups: of a tree the solutions of one problem, which share it; of other labellers one solution each."""
    methods = (_labelled(labeller, group) for group in groups)
    for _, results in run(methods, answerers, store=store, in_flight=in_flight):
        yield results


def _labelled(labeller: Labeller, group: Sequence[Solution]) -> Method[tuple[Result, ...]]:
    """The results of a group; that none of it can be labelled is a result too."""
    try:
        if isinstance(labeller, RolloutTree):
            return (yield from labeller.label_together(group))
        (solution,) = group
        return ((yield from labeller.label(solution)),)
    except InputError as error:
        return tuple(Refusal(solution=solution, error=error) for solution in group)
