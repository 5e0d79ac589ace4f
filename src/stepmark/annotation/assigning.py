"""Who gets which item next: screening first, then work with hidden gold items among it.

An item has `overlap` places. An annotator who is shown the item holds a place by a lease, renewed by each change; an annotator who has submitted it
holds one for good. So two annotators never share a place by accident, and an abandoned item returns to the others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepmark.annotation.marks import Marks

if TYPE_CHECKING:
    from stepmark.annotation.project import Project
    from stepmark.annotation.writer import AssignmentRow

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
    """The state of all assignments, in memory.

    Args:
        project: its overlap, lease, order, screening and gold settings.
        clock: gives Unix time.
    """

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
        self._screened: dict[int, dict[str, bool]] = {}
        self._seconds: dict[int, dict[str, float]] = {}

    def add_items(self, items: Iterable[ItemFacts]) -> None:
        """Take in items; those that are there already are replaced."""
        for item in items:
            self.items[item.id] = item
        by_place = sorted(self.items.values(), key=lambda item: item.position)
        work = [item for item in by_place if item.role == "work"]
        if self._project.order == "active":
            work.sort(key=lambda item: -self._orders.get(item.id, item.order))  # equal ones stay as given
        self._work = [item.id for item in work if self._kept(item.id) < self._project.overlap]
        self._needing = len(self._work)
        self._gold = [item.id for item in by_place if item.role == "gold"]
        self._screening = [item.id for item in by_place if item.role == "screening"]

    def set_orders(self, orders: Mapping[str, float]) -> None:
        """Another order of the items: the higher the earlier, where the project's order is active."""
        self._orders = orders
        self.add_items(())

    def load(self, one: Assignment) -> None:
        """Take in a stored assignment; `add_items` afterwards."""
        self._mine.setdefault(one.account, {})[one.item] = one
        self._takers.setdefault(one.item, {})[one.account] = one

    def of(self, account: int, item: str) -> Assignment | None:
        """The assignment of an item to an account; None when it was never shown to them."""
        return self._mine.get(account, {}).get(item)

    def all_of(self, account: int) -> Mapping[str, Assignment]:
        """All assignments of an account, oldest first."""
        return self._mine.get(account, {})

    def next(
        self, account: int, *, after: str | None, screens: bool
    ) -> tuple[Assignment | Reason, list[Assignment]]:
        """What an account shall label now.

        Args:
            account: whose turn it is.
            after: the item that they leave; if it is open it is skipped, which gives its lease back.
            screens: whether this account has to pass the screening set.

        Returns:
            The assignment, leased, or why there is none; and the assignments that have changed and must be stored.
        """
        now, mine = self._clock(), self._mine.setdefault(account, {})
        touched: list[Assignment] = []
        left = mine.get(after) if after is not None else None
        if left is not None and left.state == "open":
            left.state = "released"
            self._full.pop(left.item, None)
            touched.append(left)
        for one in mine.values():
            if one is not left and one.state == "open" and self._renew(one, now, touched):
                return one, touched
        screened = self.screened(account) if screens else None
        found: Assignment | None
        if screened is not None and screened.passed is False:
            return "screening-failed", touched
        if screened is not None and screened.passed is None:
            found = self._next_screening(account, now)
        else:
            found = self._new(account, now)
        found = found or self._again(mine, left, now)
        if found is None:
            return self._reason(account, now), touched
        return found, touched if found in touched else [*touched, found]

    def renew(self, one: Assignment) -> AssignmentRow | Literal[True] | None:
        """Extend the lease before a change: None when others have taken the item's places, True when nothing needs to be stored, else the
        row to store."""
        now = self._clock()
        if one.state in ("submitted", "reopened"):
            return True
        if one.state == "open" and one.until > now:
            one.until = now + self._lease
            return True
        return one.row if self._renew(one, now, []) else None

    def submit(self, one: Assignment, *, seconds: float, correct: bool | None) -> None:
        """Note that the annotator is done with the item, how long they took, and, of a screening item, whether they are right."""
        before = self._kept(one.item)
        one.state = "submitted"
        if self.items[one.item].role == "work" and before < self._project.overlap <= self._kept(one.item):
            self._needing -= 1
            # Removing one from a long list costs its length; a few hundred full ones are quicker passed over.
            if len(self._work) < 1000:
                self._work.remove(one.item)
            elif len(self._work) > self._needing + 200:
                self._work = [item for item in self._work if self._kept(item) < self._project.overlap]
        self._seconds.setdefault(one.account, {})[one.item] = seconds
        if correct is not None:
            self._screened.setdefault(one.account, {})[one.item] = correct

    def reopen(self, one: Assignment) -> None:
        """The item is being changed again; the place is kept."""
        one.state = "reopened"
        self._seconds.get(one.account, {}).pop(one.item, None)
        self._screened.get(one.account, {}).pop(one.item, None)

    def screened(self, account: int) -> Screened | None:
        """How an annotator stands with the screening set; None when there is none."""
        of = len(self._screening)
        if not of:
            return None
        right = self._screened.get(account, {})
        done = sum(item in right for item in self._screening)
        passed = None
        if done == of:
            passed = sum(right[item] for item in self._screening) / of >= self._project.screening.pass_mark
        return Screened(done=done, of=of, passed=passed)

    def progress(self, account: int) -> tuple[int, int, float | None]:
        """(items submitted, how many there are for this annotator as far as is known now, mean seconds for one, None before the first).

        The screening set is not counted. Gold items are, among the expected ones too, so that they cannot be told by the count.
        """
        times = {k: s for k, s in self._seconds.get(account, {}).items() if k not in self._screening}
        full, ahead = self._project.overlap, self._needing
        mine = {k: one for k, one in self._mine.get(account, {}).items() if k in self.items}
        begun = 0
        for item, one in mine.items():
            work = self.items[item].role == "work" and self._kept(item) < full
            ahead -= work
            begun += one.state == "reopened"
            begun += one.state in ("open", "released") and (work or self.items[item].role == "gold")
        ahead = max(ahead, 0)
        of = len(times) + begun + ahead + self._gold_ahead(account, ahead)
        return len(times), of, sum(times.values()) / len(times) if times else None

    def _gold_ahead(self, account: int, work: int) -> int:
        """How many gold items will be hidden among so many further items of work."""
        mine = self._mine.get(account, {})
        left = sum(item not in mine for item in self._gold)
        if not left or not work:
            return 0
        every = self._project.gold.every
        block, place = divmod(self._shown(account), every)
        chosen = self._gold_place(account, block)
        here = every - place - (chosen >= place)
        if work <= here:
            return int(place <= chosen < place + work)
        blocks, rest = divmod(work - here - 1, every - 1)
        last = self._gold_place(account, block + 1 + blocks)
        return min(left, (chosen >= place) + blocks + (last <= rest))

    def _gold_place(self, account: int, block: int) -> int:
        """Where in a block of items the hidden gold one stands."""
        chosen = random.Random(f"{self._project.seed}/{account}/{block}")
        return chosen.randrange(self._project.gold.every)

    def _shown(self, account: int) -> int:
        mine = self._mine.get(account, {})
        return len(mine) - sum(item in mine for item in self._screening)

    def _kept(self, item: str) -> int:
        return sum(one.state in ("submitted", "reopened") for one in self._takers.get(item, {}).values())

    def _free(self, item: str, account: int, now: float) -> bool:
        takers = self._takers.get(item)
        if not takers:
            return True
        held = [one for other, one in takers.items() if other != account and one.holds(now)]
        if len(held) < self._project.overlap:
            return True
        if account not in takers:
            # Leases only grow longer, or are given back (`next`), so that nobody needs to look before the first may end.
            self._full[item] = min((one.until for one in held if one.state == "open"), default=math.inf)
        return False

    def _renew(self, one: Assignment, now: float, touched: list[Assignment]) -> bool:
        late = one.state != "open" or one.until <= now
        role = self.items[one.item].role if one.item in self.items else None
        if role is None or (late and role == "work" and not self._free(one.item, one.account, now)):
            return False
        one.state, one.until = "open", now + self._lease
        if late:
            touched.append(one)
        return True

    def _lease_to(self, item: str, account: int, now: float) -> Assignment:
        one = Assignment(item=item, account=account, shown_at=now, until=now + self._lease, state="open")
        self.load(one)
        return one

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

    def _again(self, mine: dict[str, Assignment], left: Assignment | None, now: float) -> Assignment | None:
        """What was skipped or reopened, the one just left last."""
        order = [one for one in mine.values() if one is not left and one.state in ("reopened", "released")]
        order.sort(key=lambda one: one.state != "reopened")
        if left is not None and left.state in ("reopened", "released"):
            order.append(left)
        for one in order:
            if one.item in self.items and (one.state == "reopened" or self._renew(one, now, [])):
                return one
        return None

    def _reason(self, account: int, now: float) -> Reason:
        """Why there is nothing: all done, or others are at what is left."""
        mine = self._mine[account]
        full = self._project.overlap
        for item in self._work:
            held = item in mine and mine[item].state in ("submitted", "reopened")
            if not held and self._kept(item) < full and not self._free(item, account, now):
                return "waiting"
        return "done"
