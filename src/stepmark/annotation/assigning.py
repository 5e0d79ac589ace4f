"""Who gets which item next: screening first, then work with hidden gold items among it.

An item has `overlap` places. An annotator who is shown the item holds a place by a lease, renewed by each change; an annotator who has submitted it
holds assignment for good. So two annotators never share a place by accident, and an abandoned item returns to the others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepmark.annotation.marks import Marks

if TYPE_CHECKING:
    from stepmark.annotation.database import AssignmentRow
    from stepmark.annotation.project import Project

State = Literal["open", "submitted", "reopened", "released"]
"""`reopened`: submitted once, so that the place is kept, and being changed again. `released`: skipped, the place given back."""

Reason = Literal["done", "waiting", "screening-failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemFacts:
    """What assigning and labelling need to know of an item; its text stays in the database."""

    id: str
    position: int
    role: Literal["work", "gold", "screening"]
    steps: int
    order: float
    suggested: frozenset[int]
    """Steps that a machine says something of."""
    gold: Marks | None


@dataclass(kw_only=True, slots=True)
class Assignment:
    """One annotator and one item."""

    item: str
    account: int
    shown_at: float
    until: float
    """When the lease ends, unless there is another change; matters while `state` is open."""
    state: State
    seconds: float | None = None
    """How long it took, once it is submitted."""
    correct: bool | None = None
    """Whether a submitted screening item is right."""

    @property
    def row(self) -> AssignmentRow:
        """As it is stored."""
        return (self.item, self.account, self.shown_at, self.until, self.state)

    def holds(self, now: float) -> bool:
        """Whether it takes one of the item's places."""
        return self.state in ("submitted", "reopened") or (self.state == "open" and self.until > now)


@dataclass(frozen=True, kw_only=True, slots=True)
class Screened:
    """How an annotator stands with the screening set."""

    done: int
    of: int
    passed: bool | None
    """None until all of it is submitted."""


class Assigning:
    """The state of all assignments, in memory; `clock` gives Unix time."""

    def __init__(self, project: Project, clock: Callable[[], float]) -> None:
        self._project = project
        self._clock = clock
        self._lease = project.lease_minutes * 60
        self.items: dict[str, ItemFacts] = {}
        self._work: list[str] = []
        self._gold: list[str] = []
        self._screening: list[str] = []
        self._mine: dict[int, dict[str, Assignment]] = {}
        self._takers: dict[str, dict[int, Assignment]] = {}
        self._orders: Mapping[str, float] = {}
        self._full: dict[str, float] = {}
        self._needing = 0

    def add_items(self, items: Iterable[ItemFacts]) -> None:
        """Take in items; those that are there already are replaced."""
        for item in items:
            self.items[item.id] = item
        by_place = sorted(self.items.values(), key=lambda item: item.position)
        work = [item for item in by_place if item.role == "work"]
        if self._project.order == "active":
            work.sort(key=lambda item: -self._orders.get(item.id, item.order))  # equal ones stay as given
        self._work = [item.id for item in work if self._places_taken(item.id) < self._project.overlap]
        self._needing = len(self._work)
        self._gold = [item.id for item in by_place if item.role == "gold"]
        self._screening = [item.id for item in by_place if item.role == "screening"]

    def set_orders(self, orders: Mapping[str, float]) -> None:
        """Another order of the items: the higher the earlier, where the project's order is active."""
        self._orders = orders
        self.add_items(())

    def load(self, assignment: Assignment) -> None:
        """Take in a stored assignment; `add_items` afterwards."""
        self._mine.setdefault(assignment.account, {})[assignment.item] = assignment
        self._takers.setdefault(assignment.item, {})[assignment.account] = assignment

    def of(self, account: int, item: str) -> Assignment | None:
        """The assignment of an item to an account; None when it was never shown to them."""
        return self._mine.get(account, {}).get(item)

    def all_of(self, account: int) -> Mapping[str, Assignment]:
        """All assignments of an account, oldest first."""
        return self._mine.get(account, {})

    def next(
        self, account: int, *, after: str | None, screens: bool
    ) -> tuple[Assignment | Reason, list[Assignment]]:
        """What an account shall label now, leased, or why there is nothing; and the assignments that have changed and must be stored.

        `after` is the item that they leave: if it is open it is skipped, which ends its lease. `screens`: this account has to pass the
        screening set.
        """
        now, mine = self._clock(), self._mine.setdefault(account, {})
        touched: list[Assignment] = []
        previous = mine.get(after) if after is not None else None
        if previous is not None and previous.state == "open":
            previous.state = "released"
            self._full.pop(previous.item, None)
            touched.append(previous)
        for assignment in mine.values():
            if (
                assignment is not previous
                and assignment.state == "open"
                and self._renew(assignment, now, touched)
            ):
                return assignment, touched
        passed = True
        if screens and (screened := self.screened(account)) is not None:
            if screened.passed is False:
                return "screening-failed", touched
            passed = screened.passed is True
        chosen = self._new(account, now) if passed else self._next_screening(account, now)
        chosen = chosen or self._again(mine, previous, now)
        if chosen is None:
            return self._reason(account, now), touched
        return chosen, touched if chosen in touched else [*touched, chosen]

    def renew(self, assignment: Assignment) -> AssignmentRow | Literal[True] | None:
        """Extend the lease before a change: None when others have taken the item's places, True when nothing needs to be stored, else the
        row to store."""
        now = self._clock()
        if assignment.state in ("submitted", "reopened"):
            return True
        if assignment.state == "open" and assignment.until > now:
            assignment.until = now + self._lease
            return True
        return assignment.row if self._renew(assignment, now, []) else None

    def submit(self, assignment: Assignment, *, seconds: float, correct: bool | None) -> None:
        """Note that the annotator is done with the item, how long they took, and, of a screening item, whether they are right."""
        full, before = self._project.overlap, self._places_taken(assignment.item)
        assignment.state, assignment.seconds, assignment.correct = "submitted", seconds, correct
        if self.items[assignment.item].role == "work" and before < full <= self._places_taken(
            assignment.item
        ):
            self._needing -= 1
            # Removing one from a long list costs its length; a few hundred full ones are quicker passed over.
            if len(self._work) < 1000:
                self._work.remove(assignment.item)
            elif len(self._work) > self._needing + 200:
                self._work = [item for item in self._work if self._places_taken(item) < full]

    def reopen(self, assignment: Assignment) -> None:
        """Note that the item is being changed again; the place is kept."""
        assignment.state, assignment.seconds, assignment.correct = "reopened", None, None

    def screened(self, account: int) -> Screened | None:
        """How an annotator stands with the screening set; None when there is none."""
        of, mine = len(self._screening), self.all_of(account)
        right = [mine[item].correct for item in self._screening if item in mine]
        done = sum(correct is not None for correct in right)
        passed = sum(map(bool, right)) / of >= self._project.screening.pass_mark if done == of > 0 else None
        return Screened(done=done, of=of, passed=passed) if of else None

    def progress(self, account: int) -> tuple[int, int, float | None]:
        """(items submitted, how many there are for this annotator as far as is known now, mean seconds for one, None before the first).

        The screening set is not counted. Gold items are, among the expected ones too, so that the count does not reveal them.
        """
        times: list[float] = []
        begun, ahead = 0, self._needing
        for item, assignment in self.all_of(account).items():
            role = self.items[item].role if item in self.items else "screening"
            if role == "screening":
                continue
            open_work = role == "work" and self._places_taken(item) < self._project.overlap
            ahead -= open_work
            begun += assignment.state == "reopened"
            begun += assignment.state in ("open", "released") and (open_work or role == "gold")
            times += [] if assignment.seconds is None else [assignment.seconds]
        ahead = max(ahead, 0)
        of = len(times) + begun + ahead + self._gold_ahead(account, ahead)
        return len(times), of, sum(times) / len(times) if times else None

    def _gold_ahead(self, account: int, work: int) -> int:
        """How many gold items will be hidden among so many further items of work."""
        mine = self._mine.get(account, {})
        unseen = sum(item not in mine for item in self._gold)
        if not unseen or not work:
            return 0
        every = self._project.gold.every
        block, place = divmod(self._shown(account), every)
        chosen = self._gold_place(account, block)
        in_block = every - place - (chosen >= place)
        if work <= in_block:
            return int(place <= chosen < place + work)
        blocks, rest = divmod(work - in_block - 1, every - 1)
        last = self._gold_place(account, block + 1 + blocks)
        return min(unseen, (chosen >= place) + blocks + (last <= rest))

    def _gold_place(self, account: int, block: int) -> int:
        """Where in a block of items the hidden gold one stands."""
        chosen = random.Random(f"{self._project.seed}/{account}/{block}")
        return chosen.randrange(self._project.gold.every)

    def _shown(self, account: int) -> int:
        mine = self._mine.get(account, {})
        return len(mine) - sum(item in mine for item in self._screening)

    def _places_taken(self, item: str) -> int:
        return sum(
            assignment.state in ("submitted", "reopened")
            for assignment in self._takers.get(item, {}).values()
        )

    def _free(self, item: str, account: int, now: float) -> bool:
        takers = self._takers.get(item)
        if not takers:
            return True
        held = [
            assignment for other, assignment in takers.items() if other != account and assignment.holds(now)
        ]
        if len(held) < self._project.overlap:
            return True
        if account not in takers:
            # Leases only grow longer, or are given back (`next`), so that nobody needs to look before the first may end.
            self._full[item] = min(
                (assignment.until for assignment in held if assignment.state == "open"), default=math.inf
            )
        return False

    def _renew(self, assignment: Assignment, now: float, touched: list[Assignment]) -> bool:
        late = assignment.state != "open" or assignment.until <= now
        item = self.items.get(assignment.item)
        if item is None or (
            late and item.role == "work" and not self._free(item.id, assignment.account, now)
        ):
            return False
        assignment.state, assignment.until = "open", now + self._lease
        if late:
            touched.append(assignment)
        return True

    def _lease_to(self, item: str, account: int, now: float) -> Assignment:
        assignment = Assignment(
            item=item, account=account, shown_at=now, until=now + self._lease, state="open"
        )
        self.load(assignment)
        return assignment

    def _next_screening(self, account: int, now: float) -> Assignment | None:
        mine = self._mine[account]
        item = next((item for item in self._screening if item not in mine), None)
        return None if item is None else self._lease_to(item, account, now)

    def _new(self, account: int, now: float) -> Assignment | None:
        mine, full = self._mine[account], self._full
        open_items = (item for item in self._work if full.get(item, 0.0) <= now and item not in mine)
        work = next((item for item in open_items if self._free(item, account, now)), None)
        if work is None:
            return None
        gold = next((item for item in self._gold if item not in mine), None)
        block, place = divmod(self._shown(account), self._project.gold.every)
        is_gold = gold is not None and place == self._gold_place(account, block)
        return self._lease_to(gold if gold is not None and is_gold else work, account, now)

    def _again(
        self, mine: dict[str, Assignment], previous: Assignment | None, now: float
    ) -> Assignment | None:
        """What was skipped or reopened, the one just left last."""
        order = [
            assignment
            for assignment in mine.values()
            if assignment is not previous and assignment.state in ("reopened", "released")
        ]
        order.sort(key=lambda assignment: assignment.state != "reopened")
        if previous is not None and previous.state in ("reopened", "released"):
            order.append(previous)
        for assignment in order:
            if assignment.item in self.items and (
                assignment.state == "reopened" or self._renew(assignment, now, [])
            ):
                return assignment
        return None

    def _reason(self, account: int, now: float) -> Reason:
        """Why there is nothing: all done, or others are at what is left."""
        full = self._project.overlap
        mine = {
            item
            for item, assignment in self._mine[account].items()
            if assignment.state in ("submitted", "reopened")
        }
        open_items = (item for item in self._work if item not in mine and self._places_taken(item) < full)
        return "waiting" if any(not self._free(item, account, now) for item in open_items) else "done"
