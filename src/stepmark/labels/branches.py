"""Steps of a branch: those of the prefix that it leaves from, and those of the rollout that continues it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from stepmark.errors import InputError
from stepmark.records import Solution, Step
from stepmark.solutions.segmentation import split


def prefixes(steps: Sequence[Step]) -> tuple[str, ...]:
    """The text of each number of steps, from none to all: len(steps) + 1 texts."""
    return ("", *accumulate(step.raw for step in steps))


def on_lines(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Ready-made steps on a line each, as `labelling.prefix_text` shows them; others as they are."""
    if any(step.start is not None or step.lead or step.tail for step in steps):
        return tuple(steps)
    lines = [replace(step, tail="\n") for step in steps]
    return tuple(replace(step, start=len(text)) for step, text in zip(lines, prefixes(lines), strict=False))


def way_of(asked: str | None, given: Sequence[Solution]) -> str:
    """How rollouts are cut: as asked, else as the given solutions were, "line" where their steps were ready-made.

    Raises:
        InputError: they were cut in several ways, or in one that rollouts cannot be cut in.
    """
    if asked is not None:
        return asked
    ways = {solution.split or "line" for solution in given} or {"line"}
    if len(ways) > 1 or ways & {"agent", "marker"}:
        raise InputError(
            f"rollouts cannot be cut as these solutions were ({', '.join(sorted(ways))}); say how with `split_rollouts`",
            where=given[0].id,
            field="split",
        )
    return ways.pop()


def cut_branch(begun: tuple[Step, ...], text: str, way: str) -> tuple[tuple[Step, ...], str]:
    """The steps of a prefix, kept as they are, followed by those of a text that continues it.

    The whole is cut where that puts a border at the prefix's end: a numbered list, or a formula that the prefix opened, is then
    seen whole. Else the text is cut by itself.

    Args:
        begun: the prefix's steps, possibly none.
        text: what continues it; not blank.
        way: one of `segmentation.WAYS`.

    Returns:
        The steps, whose offsets count from the beginning of the whole, and the way that cut the text (never "auto").
    """
    before = prefixes(begun)[-1]
    whole = split(before + text, way)
    ends = [len(share) for share in prefixes(whole.steps)]
    if len(before) in ends:
        return (*begun, *whole.steps[ends.index(len(before)) :]), whole.how
    alone = split(text, way)
    moved = (replace(step, start=len(before) + (step.start or 0)) for step in alone)
    return (*begun, *moved), alone.how
