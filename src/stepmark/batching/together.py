"""Several methods side by side as one method, whose requests of a round are asked together."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

from stepmark.batching.driver import Method
from stepmark.batching.requests import Request

Result = TypeVar("Result")


def together(methods: Iterable[Method[Result]]) -> Method[tuple[Result, ...]]:
    """Run methods in step: in each round, what those that still run ask is asked as one tuple, in their order.

    A method that calls this waits for a round as long as for one request, however many it stands for::

        first, second = yield from together([opinion(of, "this"), opinion(of, "that")])

    It takes as many rounds as the longest of them. Fresh samples of one request that several of them ask for are numbered in
    the order of the methods.

    Args:
        methods: not yet started; each may yield single requests or tuples of them. None at all is no round.

    Returns:
        Their results, in order.

    Raises:
        InputError: a request of one of them cannot be answered. It ends them all, none catches it: the round was one
            question, and it is not told which part of it failed.
        Exception: whatever one of them raises ends the others too.
    """
    running = list(methods)
    results: dict[int, Result] = {}
    asked: dict[int, Request | tuple[Request, ...]] = {}

    def step(number: int, reply: object) -> None:
        try:
            asked[number] = running[number].send(reply)
        except StopIteration as stop:
            results[number] = stop.value
            asked.pop(number, None)

    try:
        for number in range(len(running)):
            step(number, None)
        while asked:
            asks = [ask if isinstance(ask, tuple) else (ask,) for ask in asked.values()]
            replies = iter((yield tuple(request for ask in asks for request in ask)))
            for number, ask in list(asked.items()):
                step(number, tuple(islice(replies, len(ask))) if isinstance(ask, tuple) else next(replies))
    finally:
        for method in running:
            method.close()
    return tuple(results[number] for number in range(len(running)))
