"""From labelled solutions to packed trees of tokens, by the same encoding as grading."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepmark.errors import InputError
from stepmark.models.encoding import Encoder
from stepmark.models.tree import PackedTree, pack
from stepmark.records import Judgement, LabelledSolution, Solution, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A solution and what its steps should score: 1 right, 0 wrong, None not judged (masked)."""

    solution: Solution
    labels: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledTree:
    """The examples of one problem as one tree. Shapes: `reads`, `labels` [labels]."""

    tree: PackedTree
    reads: tuple[int, ...]
    """Packed index of each labelled step end; a step shared by several examples stands once."""
    labels: tuple[float, ...]
    problem: str


def label_of(judgements: Sequence[object], *, neutral: str = "positive") -> float | None:
    """1, 0 or None from a step's human judgements; None where there is none or they disagree.

    Neutral counts as positive by default, as in Lightman et al. 2023 and Qwen2.5-Math-7B-PRM800K.
    """
    ratings = {getattr(j, "rating", None) for j in judgements} - {None}
    values = {1.0 if r == 1 or (r == 0 and neutral == "positive") else 0.0 for r in ratings}
    return values.pop() if len(values) == 1 else None


def examples(labelled: Iterable[LabelledSolution], *, neutral: str = "positive") -> list[Example]:
    """Training examples up to the first error, each labelled at its last step.

    Of a row, the judgements of its last step count. Rows with the same steps are one example; where their
    judgements disagree there is none. An example whose earlier steps hold a known error is left out: what
    follows an error has no clear label. Which earlier steps are known to be wrong is told by the other rows of
    the same problem.
    """
    rows = list(labelled)
    judged: dict[tuple[str, ...], list[Judgement]] = {}
    for row in rows:
        key = (row.solution.problem.text, *row.solution.texts)
        judged.setdefault(key, []).extend(row.judgements[-1])
    rated = {key: label_of(judgements, neutral=neutral) for key, judgements in judged.items()}
    result, seen = [], set()
    for row in rows:
        key = (row.solution.problem.text, *row.solution.texts)
        earlier_errors = any(rated.get(key[:n]) == 0.0 for n in range(2, len(key)))
        label = rated[key]
        if label is None or earlier_errors or key in seen:
            continue
        seen.add(key)
        result.append(
            Example(solution=row.solution, labels=(*(None,) * (len(row.solution.steps) - 1), label))
        )
    return result


def coarsen(example: Example, share: float, seed: int) -> Example:
    """Join steps with the one after, so that a grader sees steps of many lengths.

    Whether a border goes is decided by the text before it, not by the example: solutions that share a prefix
    keep sharing it, and the tree keeps its branches. A joined step has the label of its last part, which is
    sound up to the first error only.

    Args:
        share: probability that a border between two steps goes, in [0, 1].
        seed: another seed, other borders.
    """
    steps: list[Step] = []
    labels: list[float | None] = []
    text = ""
    for i, (step, label) in enumerate(zip(example.solution.steps, example.labels, strict=True)):
        text = f"{text} {step.text.strip()}" if text else step.text.strip()
        last = i == len(example.labels) - 1
        prefix = "\x00".join([str(seed), example.solution.problem.text, *example.solution.texts[: i + 1]])
        draw = int.from_bytes(hashlib.sha256(prefix.encode()).digest()[:4], "big") / 2**32
        if last or draw >= share:
            steps.append(Step(text=text))
            labels.append(label)
            text = ""
    return Example(
        solution=Solution(problem=example.solution.problem, steps=tuple(steps), id=example.solution.id),
        labels=tuple(labels),
    )


def by_problem(rows: Iterable[Example]) -> dict[str, list[Example]]:
    """Examples grouped by problem text, in order of first appearance."""
    groups: dict[str, list[Example]] = {}
    for row in rows:
        groups.setdefault(row.solution.problem.text, []).append(row)
    return groups


def trees(
    groups: Iterable[Sequence[Example]], encoder: Encoder, *, budget: int, refused: list[InputError]
) -> Iterator[LabelledTree]:
    """Each problem's examples as trees of at most `budget` distinct tokens.

    A problem whose tree is larger is cut into several; the shared prefix is then computed once in each.

    Args:
        refused: takes the error of every example that cannot be encoded (too long, a marker inside).

    Raises:
        InputError: one example alone is larger than the budget.
    """
    for group in groups:
        encoded = []
        for example in sorted(group, key=lambda e: e.solution.texts):
            try:
                encoded.append((encoder.encode(example.solution), example))
            except InputError as error:
                refused.append(error)
        start = 0
        while start < len(encoded):
            end = start + 1
            size, before = len(encoded[start][0].ids), encoded[start][0].ids
            if size > budget:
                raise InputError(
                    f"one example has {size} tokens and a batch holds {budget}; raise the token budget",
                    where=encoded[start][1].solution.id,
                )
            while end < len(encoded):
                ids = encoded[end][0].ids
                n = min(len(ids), len(before))
                same = np.flatnonzero(ids[:n] != before[:n])
                size += len(ids) - (int(same[0]) if len(same) else n)
                if size > budget:
                    break
                before, end = ids, end + 1
            part = encoded[start:end]
            tree = pack([e.ids for e, _ in part])
            marks: dict[int, float] = {}
            for (e, example), path in zip(part, tree.paths, strict=True):
                for read, label in zip(e.reads, example.labels, strict=True):
                    if read is not None and label is not None:
                        marks[int(path[read])] = label
            if marks:
                yield LabelledTree(
                    tree=tree,
                    reads=tuple(marks),
                    labels=tuple(marks.values()),
                    problem=part[0][1].solution.problem.text,
                )
            start = end


def batches(items: Sequence[LabelledTree], *, budget: int, rng: random.Random) -> list[list[LabelledTree]]:
    """Trees in random order, several a batch, each batch at most `budget` tokens."""
    order = list(items)
    rng.shuffle(order)
    result: list[list[LabelledTree]] = []
    size = budget + 1
    for item in order:
        if size + len(item.tree) > budget:
            result.append([])
            size = 0
        result[-1].append(item)
        size += len(item.tree)
    return result
