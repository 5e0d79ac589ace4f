"""Examples as packed trees of tokens, by the same encoding as grading.

The loss over a tree is the sum over its rows taken apart: a step that n rows share is computed once and weighs n.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepmark.errors import InputError
from stepmark.models.encoding import Encoded, Encoder
from stepmark.models.packed_tree import Ints, PackedTree, common_prefix, pack
from stepmark.training.examples import Dropped, Example, Target
from stepmark.words import amount


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeRow:
    """One example inside a tree."""

    example: Example
    path: Ints
    """Packed index of each of its tokens."""
    answer: int
    """Index into `path` of the first token of its first step."""
    reads: tuple[int | None, ...]
    """For each step, its index into `TrainingItem.reads`; None for a step that is not read."""
    ends: tuple[int | None, ...] = ()
    """For each step, the index into `path` of its last token, read or not; None where the layout reads none there."""
    own: npt.NDArray[np.bool_] | None = None
    """Which tokens from `answer` on the solution's author wrote, and no tool or user; None for all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingItem:
    """Some examples of one problem as one tree. Shapes: `reads`, `targets`, `weights` [reads]."""

    tree: PackedTree
    reads: tuple[int, ...]
    """Packed index of each step end that is read, each once for each of its targets."""
    targets: tuple[Target | None, ...]
    """What is known there; None where nothing is fitted (the score alone is wanted)."""
    weights: tuple[float, ...]
    """How many rows say so; 0 where there is no target."""
    rows: tuple[TreeRow, ...]
    problem: str

    @property
    def labels(self) -> float:
        """How many labels it holds: the sum of the weights."""
        return sum(self.weights)


def items_of(
    group: Sequence[Example],
    encoder: Encoder,
    *,
    budget: int,
    dropped: Dropped,
    every_step: bool = False,
    outcomes: bool = False,
) -> Iterator[TrainingItem]:
    """One problem's examples as trees of at most `budget` distinct tokens.

    Steps after the last one that is fitted are not computed: rows that go on after their first error cost no more than up to it. A
    problem whose tree is larger is cut into several; the shared prefix is then computed once in each.

    Args:
        dropped: takes note of every example that cannot be encoded (too long, a marker inside).
        every_step: read steps without a target too (for measuring).
        outcomes: keep examples that have an outcome and no target.
    """
    encoded: list[tuple[Encoded, Example]] = []
    for example in group:
        if not (any(t is not None for t in example.targets) or (outcomes and example.outcome is not None)):
            dropped.note("rows without a label that this objective fits", example.where)
            continue
        read = example if every_step or outcomes else until_last_target(example)
        try:
            encoded.append((encoder.encode(read.solution), read))
        except InputError as error:
            dropped.note(f"rows that cannot be read: {kind_of(error)}", example.where or str(error))
    encoded.sort(key=lambda pair: pair[0].ids.tolist())
    for start, end in cut([e.ids for e, _ in encoded], [example for _, example in encoded], budget):
        yield _item(encoded[start:end], every_step=every_step)


def until_last_target(example: Example) -> Example:
    """The example without the steps after the last one with a target."""
    last = max((i for i, target in enumerate(example.targets) if target is not None), default=-1)
    if last in (-1, len(example.targets) - 1):
        return example
    solution = replace(example.solution, steps=example.solution.steps[: last + 1])
    return replace(example, solution=solution, targets=example.targets[: last + 1])


def cut(sequences: Sequence[Ints], examples: Sequence[Example], budget: int) -> Iterator[tuple[int, int]]:
    """Where to cut sorted sequences so that each part, as a tree, has at most `budget` tokens: [start, end) of each."""
    start = 0
    while start < len(sequences):
        end = start + 1
        size, before = len(sequences[start]), sequences[start]
        if size > budget:
            raise InputError(
                f"one example has {amount(size, 'token')} and a batch holds {budget}; raise the token budget or lower max_tokens",
                where=examples[start].where or examples[start].solution.id,
            )
        while end < len(sequences):
            size += len(sequences[end]) - common_prefix(sequences[end], before)
            if size > budget:
                break
            before, end = sequences[end], end + 1
        yield start, end
        start = end


def _item(part: Sequence[tuple[Encoded, Example]], *, every_step: bool) -> TrainingItem:
    tree = pack([e.ids for e, _ in part])
    places: dict[tuple[int, Target | None], int] = {}
    weights: list[float] = []
    rows = []
    for (e, example), path in zip(part, tree.paths, strict=True):
        reads: list[int | None] = []
        for read, target in zip(e.reads, example.targets, strict=True):
            if read is None or (target is None and not every_step):
                reads.append(None)
                continue
            place = places.setdefault((int(path[read]), target), len(places))
            if place == len(weights):
                weights.append(0.0)
            if target is not None:
                weights[place] += 1.0
            reads.append(place)
        rows.append(
            TreeRow(
                example=example, path=path, answer=e.answer, reads=tuple(reads), ends=e.reads, own=e.own()
            )
        )
    return TrainingItem(
        tree=tree,
        reads=tuple(at for at, _ in places),
        targets=tuple(target for _, target in places),
        weights=tuple(weights),
        rows=tuple(rows),
        problem=part[0][1].solution.problem.text,
    )


def step_tokens(batch: Sequence[TrainingItem]) -> tuple[Ints, list[int]]:
    """Packed indices of the author's own tokens of each step that is read, step after step, of trees laid one after the other; and how many each has.

    The token at which a step is read is the mark's and not among them.
    """
    steps: list[Ints] = []
    at = 0
    for item in batch:
        by_place: dict[int, Ints] = {}
        for row in item.rows:
            before = row.answer
            for place, end in zip(row.reads, row.ends, strict=True):
                if end is None:
                    continue
                if place is not None and place not in by_place:
                    tokens = row.path[before:end]
                    own = row.own
                    by_place[place] = at + (
                        tokens if own is None else tokens[own[before - row.answer : end - row.answer]]
                    )
                before = end + 1
        steps += [by_place[place] for place in range(len(item.reads))]
        at += len(item.tree)
    return np.concatenate(steps) if steps else np.empty(0, dtype=np.int64), [len(step) for step in steps]


def kind_of(error: InputError) -> str:
    """Why a row cannot be read, in words that many rows share."""
    return {"TooLongError": "too long", "MarkerInTextError": "a marker or control token in the text"}.get(
        type(error).__name__, "not encodable"
    )


def batches(
    items: Sequence[TrainingItem], *, budget: int, rng: random.Random, rows: int | None = None
) -> list[list[list[TrainingItem]]]:
    """Optimizer steps of forward passes of trees, in random order: [steps][passes][trees]. A step has `rows` examples at least, or one pass."""
    order = list(items)
    rng.shuffle(order)
    steps: list[list[list[TrainingItem]]] = []
    size, count = budget + 1, 0
    for item in order:
        full = count >= (1 if rows is None else rows)
        fits = size + len(item.tree) <= budget
        if not steps or (full and (rows is not None or not fits)):
            steps.append([[]])
            size = count = 0
        elif not fits:
            steps[-1].append([])
            size = 0
        steps[-1][-1].append(item)
        size += len(item.tree)
        count += len(item.rows)
    return steps


def packed(batch: Sequence[TrainingItem]) -> tuple[Ints, Ints, Ints]:
    """Token ids, positions and step ends of trees laid one after the other: [tokens], [tokens], [reads]."""
    reads: list[int] = []
    at = 0
    for item in batch:
        reads += [at + read for read in item.reads]
        at += len(item.tree)
    return (
        np.concatenate([item.tree.ids for item in batch]),
        np.concatenate([item.tree.depths for item in batch]),
        np.asarray(reads, dtype=np.int64),
    )
