"""Step labels made by rollouts, as cases: openr's trees (nested and flat) and Math-Shepherd's rows.

===============  ======================================================================================
shape            keys
===============  ======================================================================================
openr, tree      `question`, `final_answer`, `reasoning_steps`: {`text`, `mc_value`, `children`: […]}
openr, flat      the same, with `reasoning_steps`: [{`solution_prefix`, `mc_value`}, …]
Math-Shepherd    `input` (steps end in " ки"), `label` (the same text with + or - for each ки), `task`
===============  ======================================================================================

What the files say is kept and no more. A hard label ("+": at least one rollout from here reached the answer, "-": none
did) and a share whose number of rollouts is not known become a rating 1 or -1 of kind "value"; with the number of
rollouts (`trials`) a share becomes successes and trials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepmark.errors import InputError, UsageError
from stepmark.evaluation.cases import Case, unique
from stepmark.evaluation.rows import rows_of
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step
from stepmark.store import Row, json_type

JUDGE = "rollouts"
"""Who judged, in the judgements of these cases."""

OPENR_KEYS = ("question", "final_answer", "reasoning_steps")
MATH_SHEPHERD_KEYS = ("input", "label", "task")

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


def read_openr(files: Sequence[str], *, trials: int | None = None) -> list[Case]:
    """Every path of an openr tree as a case: from the question to a node without children.

    A step is what lies between two estimates, often several sentences. Equal pieces after the same beginning are one
    step with several judgements. openr keeps only rollouts that reached the answer, as nodes of share 1 without
    children: those are finished solutions whose outcome is right, by openr's own test (the reference answer stands
    somewhere in the last sentence, which can mistake 13 for 3). Any other path ends before an answer; its outcome is
    not known. Ids are FILE:LINE/NUMBER.

    Args:
        files: of either layout.
        trials: rollouts that each share was estimated with, which the files do not say. None: only whether any
            succeeded is taken from a share, and the share stands in the judgement's note.

    Raises:
        InputError: with `FILE:LINE`: another format, a share out of [0, 1] or no multiple of 1 / trials.
        UsageError: `trials` is not positive.
    """
    if trials is not None and trials < 1:
        raise UsageError(f"--trials {trials}: expected 1 or more")
    return unique(case for file in files for row in rows_of(file) for case in _openr(row, trials))


def _openr(row: Row, trials: int | None) -> Iterator[Case]:
    _need(row, OPENR_KEYS, "openr")
    question = _text(row, "question")
    answer = row.data["final_answer"]
    known = row.data.get("question_id")
    problem = Problem(
        text=question.strip(),
        id=None if known is None else str(known),
        answer=None if answer is None else str(answer),
        source="openr",
    )
    steps = row.data["reasoning_steps"]
    if isinstance(steps, dict):
        root = _from_tree(row, steps)
    elif isinstance(steps, list):
        root = _from_prefixes(row, question, steps)
    else:
        raise InputError(
            f"expected a tree or a list of prefixes, found {json_type(steps)}",
            where=row.where,
            field="reasoning_steps",
        )
    for number, path in enumerate(_paths(root)):
        finished = 1.0 in path[-1].shares
        judgements = [_judged(node, row, trials) for node in path]
        if finished and trials is not None:
            # No rollout was made from the end of a rollout: it is one, and it succeeded.
            judgements[-1] = (
                Judgement(kind="value", judge=JUDGE, successes=1, trials=1, note="a rollout itself"),
            )
        yield Case(
            id=f"{_place(row)}/{number}",
            labelled=LabelledSolution(
                solution=Solution(
                    problem=problem,
                    steps=tuple(_step(node.text) for node in path),
                    id=f"{_place(row)}/{number}",
                ),
                judgements=tuple(judgements),
            ),
            where=row.where,
            group="openr",
            outcome=True if finished else None,
        )


def _from_tree(row: Row, tree: dict[str, Any]) -> _Node:
    root = _Node(text="")
    waiting: list[tuple[_Node, Any, str]] = [(root, tree, "reasoning_steps")]
    while waiting:
        parent, raw, place = waiting.pop()
        text, share = _piece(row, raw, "text", place)
        # The root is the question. An empty text is a second visit of the state over it.
        node = parent if raw is tree or not text.strip() else parent.child(text)
        node.shares.append(share)
        children = raw.get("children")
        if not isinstance(children, list):
            raise InputError(
                f"expected a list of children, found {json_type(children)}", where=row.where, field=place
            )
        waiting += [
            (node, child, f"{place}.children.{at}") for at, child in reversed(list(enumerate(children)))
        ]
    return root


def _from_prefixes(row: Row, question: str, listed: list[Any]) -> _Node:
    """The tree of a list of prefixes: the parent of one is the longest other that it continues after a white space."""
    if not listed:
        raise InputError("expected prefixes, found none", where=row.where, field="reasoning_steps")
    start = question.rstrip()
    shares: dict[str, list[float]] = {}
    for at, raw in enumerate(listed):
        place = f"reasoning_steps.{at}"
        prefix, share = _piece(row, raw, "solution_prefix", place)
        if not prefix.startswith(start):
            raise InputError("expected a prefix that begins with the question", where=row.where, field=place)
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
    if not node.shares:
        return ()
    if trials is None:
        said = " and ".join(f"{share:g}" for share in node.shares)
        return (
            Judgement(
                kind="value",
                judge=JUDGE,
                rating=1 if any(node.shares) else -1,
                note=f"share of rollouts that succeeded: {said}",
            ),
        )
    return tuple(
        Judgement(kind="value", judge=JUDGE, successes=_successes(share, row, trials), trials=trials)
        for share in node.shares
    )


def _successes(share: float, row: Row, trials: int) -> int:
    successes = round(share * trials)
    if abs(successes / trials - share) > _ROUNDING:
        raise InputError(
            f"expected a multiple of 1/{trials} (--trials {trials}), found {share!r}",
            where=row.where,
            field="mc_value",
        )
    return successes


def _piece(row: Row, raw: Any, key: str, place: str) -> tuple[str, float]:
    if not isinstance(raw, dict):
        raise InputError(f"expected an object, found {json_type(raw)}", where=row.where, field=place)
    text, share = raw.get(key), raw.get("mc_value")
    if not isinstance(text, str):
        raise InputError(f"expected a text, found {json_type(text)}", where=row.where, field=f"{place}.{key}")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise InputError(
            f"expected a share from 0 to 1, found {share!r}", where=row.where, field=f"{place}.mc_value"
        )
    return text, float(share)


_STEP_NUMBER = re.compile(r"\s*step\s+\d+\s*:\s*", re.I)
_FIRST_STEP = re.compile(r"(?<!\S)step\s+1\s*:", re.I)
_ANSWER = re.compile(r"the answer is\s*:?\s*(\S.*)", re.I | re.S)
_MARKER = "ки"


def read_math_shepherd(files: Sequence[str]) -> list[Case]:
    """Math-Shepherd's rows (Wang et al. 2024): hard labels of steps, of which the last is the outcome.

    "+" says that at least one rollout of an unknown number reached the answer, "-" that none did. From the last step
    nothing is left to roll out: its label says whether the answer is right. The number of a step ("Step 2: ") and the
    marker stay out of its text, as layout. The group is the task.

    Raises:
        InputError: with `FILE:LINE`: another format; no "Step 1:", which alone parts question and solution; a label that
            is not its input with + and - for the markers; text after the last marker; a blank step.
    """
    return unique(_math_shepherd(row) for file in files for row in rows_of(file))


def _math_shepherd(row: Row) -> Case:
    _need(row, MATH_SHEPHERD_KEYS, "Math-Shepherd")
    given, label, task = (_text(row, key) for key in MATH_SHEPHERD_KEYS)
    first = _FIRST_STEP.search(given)
    if first is None:
        raise InputError(
            'expected "Step 1:" after the question, which alone says where the solution begins; found none: take the row out',
            where=row.where,
            field="input",
        )
    question, solution = given[: first.start()], given[first.start() :]
    if not question.strip():
        raise InputError('expected a question before "Step 1:"', where=row.where, field="input")
    *pieces, rest = solution.split(_MARKER)
    if rest.strip() or not pieces:
        raise InputError(
            f'expected every step to end in " {_MARKER}", found {rest.strip()[:60]!r} after the last',
            where=row.where,
            field="input",
        )
    signs = _signs(row, question, pieces, label)
    steps = []
    for number, piece in enumerate(pieces):
        step = _shepherd_step(piece)
        if step is None:
            raise InputError(f"step {number} (0-based) is blank", where=row.where, field="input")
        steps.append(step)
    answer = _ANSWER.search(steps[-1].text)
    return Case(
        id=_place(row),
        labelled=LabelledSolution(
            solution=Solution(
                problem=Problem(text=question.strip(), source=f"Math-Shepherd {task}"),
                steps=tuple(steps),
                id=_place(row),
            ),
            judgements=tuple(
                (
                    Judgement(
                        kind="value",
                        judge=JUDGE,
                        rating=1 if sign == "+" else -1,
                        note="the outcome" if number == len(signs) - 1 else None,
                    ),
                )
                for number, sign in enumerate(signs)
            ),
        ),
        where=row.where,
        group=task,
        outcome=signs[-1] == "+",
        answer=None if answer is None else answer[1].strip(),
    )


def _signs(row: Row, question: str, pieces: Sequence[str], label: str) -> list[str]:
    """The sign that stands in the label where each marker stands in the input."""
    at, signs = 0, []
    for number, piece in enumerate((question + pieces[0], *pieces[1:])):
        sign = label[at + len(piece) : at + len(piece) + 1]
        if not label.startswith(piece, at) or sign not in ("+", "-"):
            raise InputError(
                f"step {number} (0-based): expected the text of the input and then + or -, "
                f"found {label[at : at + len(piece) + 1][-60:]!r}",
                where=row.where,
                field="label",
            )
        signs.append(sign)
        at += len(piece) + 1
    if label[at:].strip():
        raise InputError(
            f"expected nothing after the last step, found {label[at:].strip()[:60]!r}",
            where=row.where,
            field="label",
        )
    return signs


def _shepherd_step(piece: str) -> Step | None:
    numbered = _STEP_NUMBER.match(piece)
    start = len(piece) - len(piece.lstrip()) if numbered is None else numbered.end()
    text = piece[start:].rstrip()
    if not text:
        return None
    return Step(text=text, lead=piece[:start], tail=piece[start + len(text) :] + _MARKER)


def _step(piece: str) -> Step:
    text = piece.strip()
    start = piece.index(text)
    return Step(text=text, lead=piece[:start], tail=piece[start + len(text) :])


def _place(row: Row) -> str:
    return f"{Path(row.file).name}:{row.line}"


def _need(row: Row, keys: Sequence[str], shape: str) -> None:
    missing = [key for key in keys if key not in row.data]
    if missing:
        raise InputError(
            f"expected a row of {shape} with {', '.join(keys)}, found {', '.join(map(repr, row.data))}",
            where=row.where,
            field=missing[0],
        )


def _text(row: Row, key: str) -> str:
    value = row.data[key]
    if not isinstance(value, str) or not value.strip():
        raise InputError(
            f"expected a text, found {json_type(value) if not isinstance(value, str) else 'only white space'}",
            where=row.where,
            field=key,
        )
    return value
