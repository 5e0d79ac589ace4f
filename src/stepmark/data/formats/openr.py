"""openr's OmegaPRM trees, nested and flat: every path from the question to a leaf is a labelled solution.

A step is what lies between two estimates. Equal pieces after the same beginning are one step with several judgements. openr keeps only rollouts
that reached the answer, as nodes of share 1 without children: their outcome is right, by openr's own test (the reference answer stands somewhere
in the last sentence, which can mistake 13 for 3). Any other path ends before an answer. A share (`mc_value`) becomes successes and trials where
the number of rollouts is given (`trials`). `repeated` says how many first steps an earlier path has already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stepmark.data.formats import rows
from stepmark.data.formats.rows import LabelledRow, Losses, Reading
from stepmark.data.json_rows import json_type
from stepmark.data.reading import Row
from stepmark.data.solutions import text_of
from stepmark.records import Judgement, LabelledSolution, Problem, Solution

JUDGE = "rollouts"
"""Who judged."""

KEYS = ("question", "final_answer", "reasoning_steps")

_ROUNDING = 1e-6
"""How far a share may lie from a multiple of 1 / trials: files round."""


@dataclass(kw_only=True, slots=True)
class _Node:
    """A piece of a solution and every estimate that was made at its end."""

    text: str
    shares: list[float] = field(default_factory=list)
    children: dict[str, _Node] = field(default_factory=dict)
    """By their text without surrounding white space: a search visits a state more than once."""

    def child(self, text: str) -> _Node:
        return self.children.setdefault(text.strip(), _Node(text=text))


def read(row: Row, settings: Reading, losses: Losses) -> Iterator[LabelledRow]:
    """Every path of one tree. Ids are NAME:LINE/NUMBER."""
    trials = settings.trials
    rows.need(row, KEYS, "openr")
    question = text_of(row.data, "question", row.where)
    answer = row.data["final_answer"]
    known = row.data.get("question_id")
    rest = rows.other_columns(row, KEYS, ("question_id",))
    problem = Problem(
        text=question.strip(),
        id=None if known is None else str(known),
        answer=None if answer is None else str(answer),
        source="openr",
    )
    steps = row.data["reasoning_steps"]
    if isinstance(steps, dict):
        root = _from_tree(row, steps, losses)
    elif isinstance(steps, list):
        root = _from_prefixes(row, question, steps, losses)
    else:
        raise row.error(f"expected a tree or a list of prefixes, found {json_type(steps)}", "reasoning_steps")
    losses.lose(
        "an estimate of the question itself (the root) belongs to no step", row.where, len(root.shares)
    )
    before: list[_Node] = []
    for number, path in enumerate(_paths(root)):
        finished = 1.0 in path[-1].shares
        judgements = [_judged(node, row, trials) for node in path]
        if finished and trials is not None:
            # No rollout was made from the end of a rollout: it is one, and it succeeded.
            judgements[-1] = (
                Judgement(kind="value", judge=JUDGE, successes=1, trials=1, note="a rollout itself"),
            )
        # By identity: the same node is the same estimate.
        repeated = next(
            (at for at, node in enumerate(path) if at >= len(before) or before[at] is not node), len(path)
        )
        before = path
        yield LabelledRow(
            labelled=LabelledSolution(
                solution=Solution(
                    problem=problem,
                    steps=tuple(rows.step_of(node.text) for node in path),
                    id=f"{row.place}/{number}",
                ),
                judgements=tuple(judgements),
            ),
            where=row.where,
            outcome=True if finished else None,
            repeated=repeated,
            meta=rows.origin(row, "openr", rest),
        )


def _from_tree(row: Row, tree: dict[str, Any], losses: Losses) -> _Node:
    root = _Node(text="")
    waiting: list[tuple[_Node, Any, str]] = [(root, tree, "reasoning_steps")]
    while waiting:
        parent, raw, place = waiting.pop()
        text, share = _piece(row, raw, "text", place)
        _lose_others(raw, ("text", "mc_value", "children"), row, losses)
        # The root is the question. An empty text is a second visit of the state over it.
        node = parent if raw is tree or not text.strip() else parent.child(text)
        node.shares.append(share)
        children = raw.get("children")
        if not isinstance(children, list):
            raise row.error(f"expected a list of children, found {json_type(children)}", place)
        waiting += [
            (node, child, f"{place}.children.{at}") for at, child in reversed(list(enumerate(children)))
        ]
    return root


def _lose_others(raw: dict[str, Any], known: tuple[str, ...], row: Row, losses: Losses) -> None:
    for key in raw:
        if key not in known:
            losses.lose(f"{key} of an estimate is left out", row.where)


def _from_prefixes(row: Row, question: str, listed: list[Any], losses: Losses) -> _Node:
    """The tree of a list of prefixes: the parent of one is the longest other that it continues after a white space."""
    if not listed:
        raise row.error("expected prefixes, found none", "reasoning_steps")
    start = question.rstrip()
    shares: dict[str, list[float]] = {}
    for at, raw in enumerate(listed):
        place = f"reasoning_steps.{at}"
        prefix, share = _piece(row, raw, "solution_prefix", place)
        _lose_others(raw, ("solution_prefix", "mc_value"), row, losses)
        if not prefix.startswith(start):
            raise row.error("expected a prefix that begins with the question", place)
        shares.setdefault(prefix.rstrip(), []).append(share)
    root = _Node(text="", shares=shares.pop(start, []))
    nodes = {start: root}
    over = [start]
    parents: dict[str, str] = {}
    # In this order a prefix stands before all that begin with it, and nothing else stands between.
    for prefix in sorted(shares):
        while not prefix.startswith(over[-1]):
            over.pop()
        parents[prefix] = next(
            known for known in reversed(over) if prefix[len(known)].isspace() or known == start
        )
        nodes[prefix] = _Node(text=prefix[len(parents[prefix]) :], shares=shares[prefix])
        over.append(prefix)
    for prefix in shares:  # in the order of the file
        nodes[parents[prefix]].children[nodes[prefix].text] = nodes[prefix]
    return root


def _paths(root: _Node) -> Iterator[list[_Node]]:
    """From the first step to each node without children, in the order of the file."""
    waiting = [[node] for node in reversed(root.children.values())]
    while waiting:
        path = waiting.pop()
        if not path[-1].children:
            yield path
        waiting += [[*path, node] for node in reversed(path[-1].children.values())]


def _judged(node: _Node, row: Row, trials: int | None) -> tuple[Judgement, ...]:
    if trials is None:
        return tuple(Judgement(kind="value", judge=JUDGE, share=share) for share in node.shares)
    return tuple(
        Judgement(kind="value", judge=JUDGE, successes=_successes(share, row, trials), trials=trials)
        for share in node.shares
    )


def _successes(share: float, row: Row, trials: int) -> int:
    successes = round(share * trials)
    if abs(successes / trials - share) > _ROUNDING:
        raise row.error(f"expected a multiple of 1/{trials} (`trials` {trials}), found {share!r}", "mc_value")
    return successes


def _piece(row: Row, raw: Any, key: str, place: str) -> tuple[str, float]:
    if not isinstance(raw, dict):
        raise row.error(f"expected an object, found {json_type(raw)}", place)
    text, share = raw.get(key), raw.get("mc_value")
    if not isinstance(text, str):
        raise row.error(f"expected a text, found {json_type(text)}", f"{place}.{key}")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise row.error(f"expected a share from 0 to 1, found {share!r}", f"{place}.mc_value")
    return text, float(share)
