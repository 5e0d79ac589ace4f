"""Many problems through one search: asked together, given back in order, one that cannot be searched beside the others."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping

from stepmark.batching import Answerer, Method, ReplyStore
from stepmark.batching import run as run_methods
from stepmark.errors import InputError, UsageError
from stepmark.records import Problem, Refusal, Solution
from stepmark.search.searching import Found, Search


def run(
    problems: Iterable[Problem],
    search: Search,
    answerers: Mapping[type, Answerer],
    *,
    store: ReplyStore | None = None,
    in_flight: int = 16,
) -> Iterator[Found | Refusal]:
    """Search a stream of problems: one result each, in their order.

    Every other search begins one round later. A search writes and scores in turn, so in each round half of those in flight ask the
    policy and half the PRM, and `batching.run` has both at work at once.

    Args:
        problems: read as needed.
        search: the method.
        answerers: what answers its requests: `models.policies.answerers(policy) | models.scorer.answerers(prm) |
            problems.answers.answerers(verifier)`, as far as the method asks them.
        store: keeps every reply before it is used; the same run over the same store repeats nothing.
        in_flight: problems that are searched at once.

    Raises:
        BackendError: the policy, the PRM or the verifier failed; all replies so far are in the store.
        UsageError: the search asks for what nothing here answers, or a budget cannot be kept.
    """
    methods = (_kept(search, problem, late=number % 2 == 1) for number, problem in enumerate(problems))
    for _, result in run_methods(methods, answerers, store=store, in_flight=in_flight):
        yield result


def _kept(search: Search, problem: Problem, *, late: bool) -> Method[Found | Refusal]:
    """One problem's search; that it cannot be searched is a result and costs the others nothing."""
    if late:
        yield ()
    method = search.search(problem)
    if not isinstance(method, Generator):
        raise UsageError(
            f"the search {search.name}: expected search(problem) to be a generator, which yields its requests and returns a Found, and "
            f"got {type(method).__name__}"
        )
    try:
        found = yield from method
    except InputError as error:
        place = error if problem.id is None else error.at(problem.id)
        return Refusal(solution=Solution(problem=problem, steps=()), error=place)
    if not isinstance(found, Found):
        raise UsageError(
            f"the search {search.name}: expected search(problem) to return a Found, as `return (yield from choose(…))` does, and got "
            f"{type(found).__name__}"
        )
    return found
