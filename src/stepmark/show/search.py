"""What a search is shown from: its tree, its candidates and its cost, as plain strings and numbers.

`stepmark.show.search_page` draws it as an HTML page, `stepmark.show.search_terminal` in the terminal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from stepmark.errors import InputError
from stepmark.show import colour
from stepmark.show.tables import Table

State = Literal["kept", "pruned", "finished", "chosen"]
"""`kept`: the search went on from it, or still could. `pruned`: given up. `finished`: a solution ends here. `chosen`: a
step of the solution that the search chose, its last one at least."""

STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeView:
    """One step that the search wrote."""

    number: int
    """Its name in the tree; not negative, and no other node has it."""
    parent: int | None
    """The number of the node before it; None for a first step, which follows the problem."""
    text: str
    """Empty where the policy ended the solution and wrote no further step."""
    score: float | None
    """The PRM's, of the view's kind; None where it was not scored."""
    state: State
    round: int
    """In which round of the search it was written: not negative, and not before its parent's."""
    aggregate: float | None = None
    """The aggregate of the scores from the first step to this one, infinite at most where the scores have no bounds; None for
    none."""
    why: str = ""
    """Why it was pruned ("not among the 4 best of the round"), or what else became of it; "" for nothing to say."""
    policy_tokens: int | None = None
    """Tokens that the policy decoded for it; None where they were not counted."""
    prm_tokens: int | None = None
    """Tokens that the PRM read for it and for no node before it; None where they were not counted."""
    visits: int | None = None
    """How often a tree search went through it; None for a search that does not count."""
    value: float | None = None
    """What a tree search holds of it after its last visit; None for a search that has no values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateView:
    """One solution that the search may choose."""

    node: int
    """The number of its last node."""
    aggregate: float | None
    """Of its step scores; None for none."""
    answer: str | None
    """Its final answer; None where none was found."""
    right: bool | None = None
    """Whether the answer is right; None where that is not known."""
    votes: float | None = None
    """The votes of its answer, weighted or not; None for a search without a vote."""
    note: str = ""
    """What else is to be said: "stopped by the budget"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchView:
    """One search on one problem.

    Raises:
        InputError: two nodes of one number, a parent that does not come before its child, a round before its parent's, a
            score out of the range of its kind, a number that is none (NaN), a candidate without its node, or a choice that
            does not fit the candidates and the states.
        ScoreKindError: no such kind.
    """

    name: str
    """What the problem is called in a list: its id, its place in the file."""
    problem: str
    nodes: tuple[NodeView, ...]
    """Parents before their children."""
    kind: str
    """The kind of the scores (`stepmark.show.colour.KINDS`)."""
    aggregate: str
    """The name of the aggregate: "min"."""
    stopped: str
    """Why the search ended: "every beam is finished", "the budget of 4,096 tokens is spent"."""
    chosen: int | None = None
    """The last node of the chosen candidate; None where nothing could be chosen."""
    candidates: tuple[CandidateView, ...] = ()
    """In the order in which they are to be shown, best first."""
    threshold: float | None = None
    """Where scores turn from bad to good, for the colours."""
    method: str = ""
    """The name of the search: "beam"; "" for nothing to say."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Name to value, shown on demand."""
    cost: Table | None = None
    """What was spent, on what."""
    tokens: int | None = None
    """All tokens that were computed, the policy's and the PRM's; None where they were not counted."""
    note: str = ""
    """Where the problem comes from; "" for nothing to say."""

    def __post_init__(self) -> None:
        where = f"search {self.name!r}"
        seen: dict[int, NodeView] = {}
        for node in self.nodes:
            _check_node(node, seen, self, f"{where}, node {node.number}")
            seen[node.number] = node
        for candidate in self.candidates:
            if candidate.node not in seen:
                raise InputError(
                    f"expected the number of a node, found {candidate.node}",
                    where=f"{where}, candidates",
                    field="node",
                )
            for name, value in (("aggregate", candidate.aggregate), ("votes", candidate.votes)):
                _check_number(value, f"{where}, candidate {candidate.node}", name)
        if len({candidate.node for candidate in self.candidates}) != len(self.candidates):
            raise InputError(
                "expected one candidate a node, found two of one node", where=where, field="candidates"
            )
        self._check_choice(seen, where)

    def _check_choice(self, seen: Mapping[int, NodeView], where: str) -> None:
        marked = {node.number for node in self.nodes if node.state == "chosen"}
        if self.chosen is None:
            if marked:
                raise InputError(
                    f"nothing is chosen, yet node {min(marked)} has the state 'chosen'",
                    where=where,
                    field="chosen",
                )
            return
        if self.chosen not in {candidate.node for candidate in self.candidates}:
            raise InputError(
                f"expected the node of a candidate, found {self.chosen}", where=where, field="chosen"
            )
        if self.chosen not in marked:
            raise InputError(
                f"expected node {self.chosen}, which is chosen, to have the state 'chosen', found {seen[self.chosen].state!r}",
                where=where,
                field="chosen",
            )
        if strays := marked - {node.number for node in self.path(self.chosen)}:
            raise InputError(
                f"node {min(strays)} has the state 'chosen' and is not on the way to node {self.chosen}",
                where=where,
                field="chosen",
            )

    def path(self, number: int) -> tuple[NodeView, ...]:
        """The nodes from a first step to this node.

        Raises:
            InputError: no node has this number.
        """
        by_number = {node.number: node for node in self.nodes}
        found: list[NodeView] = []
        at: int | None = number
        while at is not None:
            if at not in by_number:
                raise InputError(f"expected the number of a node, found {at}", where=f"search {self.name!r}")
            found.append(by_number[at])
            at = by_number[at].parent
        return tuple(reversed(found))

    @property
    def choice(self) -> CandidateView | None:
        """The chosen candidate; None where nothing could be chosen."""
        return next((one for one in self.candidates if one.node == self.chosen), None)

    def place(self, score: float | None) -> float | None:
        """Where a score stands on the colour scale, from 0 (bad) to 1 (good); None for no score."""
        return colour.position(score, self.kind, self.threshold)

    def width(self, score: float | None) -> float | None:
        """How long the bar of a score is, from 0 to 1; None for no score."""
        return colour.extent(score, self.kind, self.threshold)

    def aggregate_place(self, value: float | None) -> float | None:
        """The same for an aggregate, where it is in the range of the scores; None where it is not, as a sum may be."""
        low = {"probability": 0.0, "margin": -1.0}.get(self.kind)
        if value is None or (low is not None and not low <= value <= 1):
            return None
        return colour.position(value, self.kind, None if self.aggregate == "product" else self.threshold)


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What one round, or several that follow each other, came to."""

    first: int
    last: int
    states: Mapping[State, int]
    """How many of its nodes have each state at the end of the search."""
    best: float | None
    """The highest score of a node of it; None where none was scored."""
    chosen: tuple[NodeView, ...] = ()
    """The steps of the chosen solution that were written in it, in order."""

    @property
    def written(self) -> int:
        """Its nodes."""
        return sum(self.states.values())

    @property
    def counts(self) -> str:
        """Its nodes in words: "16 written: 4 kept, 12 pruned"."""
        parts = [f"{self.states[state]:,} {state}" for state in STATES if self.states[state]]
        return f"{self.written:,} written: {', '.join(parts)}"


def rounds(view: SearchView) -> Iterator[Round]:
    """The rounds in order, without those in which nothing was written."""
    path = () if view.chosen is None else view.path(view.chosen)
    for at in sorted({node.round for node in view.nodes}):
        inside = [node for node in view.nodes if node.round == at]
        yield Round(
            first=at,
            last=at,
            states={state: sum(node.state == state for node in inside) for state in STATES},
            best=max((node.score for node in inside if node.score is not None), default=None),
            chosen=tuple(node for node in path if node.round == at),
        )


def _check_node(node: NodeView, seen: Mapping[int, NodeView], view: SearchView, where: str) -> None:
    for name, count in (
        ("number", node.number),
        ("round", node.round),
        ("policy_tokens", node.policy_tokens),
        ("prm_tokens", node.prm_tokens),
        ("visits", node.visits),
    ):
        if count is not None and count < 0:
            raise InputError(f"expected 0 or more, found {count}", where=where, field=name)
    if node.number in seen:
        raise InputError(
            "expected a number of its own, found that of another node", where=where, field="number"
        )
    if node.parent is not None and node.parent not in seen:
        raise InputError(
            f"expected the number of a node that stands before it, found {node.parent}",
            where=where,
            field="parent",
        )
    if node.parent is not None and node.round < (before := seen[node.parent].round):
        raise InputError(
            f"expected round {before}, its parent's, or a later one, found {node.round}",
            where=where,
            field="round",
        )
    if node.state not in STATES:
        raise InputError(
            f"expected a state ({', '.join(STATES)}), found {node.state!r}", where=where, field="state"
        )
    try:
        place = view.place(node.score)
    except InputError as error:
        raise InputError(error.message, where=where, field="score") from error
    if place is not None and node.score is not None and math.isinf(node.score):
        raise InputError(f"expected a finite number, found {node.score!r}", where=where, field="score")
    _check_number(node.aggregate, where, "aggregate")
    _check_number(node.value, where, "value")


def _check_number(value: float | None, where: str, field: str) -> None:
    if value is not None and math.isnan(value):
        raise InputError("expected a number, found NaN; what is not known is None", where=where, field=field)
