"""Consensus: what several sources of labels agree on, as a view that changes none of them.

Judgements of several sources stand side by side in a `LabelledSolution`. A rule reads them and says, for each solution, whether
it is kept and with which rating a step, and if it is dropped, why. Nothing is taken away: `View.labelled` is the solution as it
was given, and another rule reads the same file another way.

The rules:

======================  =================================================================================================
`first-error-agrees`    every source must know the place of the first error, and all must name the same one (or none).
                        The filter of Zhang et al. 2025, "The Lessons of Developing Process Reward Models in Mathematical
                        Reasoning" (arXiv:2501.07301, section 3): Monte-Carlo estimates and a judge, about 60 % dropped
`first-error-majority`  more than half of the sources must name the same place of the first error (or none); a source that does not
                        know it is a vote for no place. The steps are rated as those say that name it
`intersection`          a step has the rating that all sources give it; where one of them is silent it has none
`majority`              a step has the rating that more than half of the sources that rated it give
`priority`              a step has the rating of the most trusted source that rated it: people, then formal checks, then
                        judges, then rollouts
======================  =================================================================================================

In all of them:

- A step that a source says nothing of is unjudged, and **never wrong**. Nor is a neutral step. A source whose ratings leave a step before
  its first wrong one open does not know the place of the first error.
- A source is heard on the steps after the first wrong one only if it called that step wrong too (with `priority`: or if it is as trusted as
  the source that did): the others took it for right, and went on from there.
- Two different ratings of one step by one source cancel out: that source is silent there.
- Judgements of the kind `value` are no ratings. Where a source has nothing else (Math-Shepherd's files), `values` says from which
  share of successes on a step counts as right.

Deviation from Zhang et al.: any number of sources, and a source that does not know the place drops the solution under a reason of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from stepmark.errors import InputError, UsageError
from stepmark.metrics.first_error import first_wrong
from stepmark.records import Judgement, LabelledSolution

Rule = Literal["first-error-agrees", "first-error-majority", "intersection", "majority", "priority"]
Rating = Literal[-1, 0, 1]
Why = Literal["agreed", "too few sources", "places differ", "place not known", "nothing agreed"]
"""Why a solution is kept (`agreed`) or dropped: to count by."""

TRUST = ("human", "formal", "judge", "rollout")
"""Kinds of sources, the most trusted first."""

KINDS: Mapping[str, str] = {
    "human": "human",
    "exact": "formal",
    "formulas": "formal",
    "formal": "formal",
    "judge": "judge",
    "rollout": "rollout",
    "every-step": "rollout",
    "binary": "rollout",
    "binary-search": "rollout",
    "bayes": "rollout",
    "tree": "rollout",
    "rollout-tree": "rollout",
}
"""The kind of source that a name stands for: every labeller's name and its name as a command. "judge:MODEL" and "human:NAME" are
known by what stands before the colon."""

VIEW = "consensus"
"""Before the rule's name in the judgements that a view adds; never read as a source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What a rule makes of one solution."""

    labelled: LabelledSolution
    """As it was given: every judgement of every source."""
    rule: Rule
    kept: bool
    why: Why
    reason: str
    """Why, in words."""
    ratings: tuple[Rating | None, ...]
    """One a step; None where the rule gives none. All None when the solution is dropped."""
    confidences: tuple[float | None, ...]
    """Of the sources that were heard on a step, the share that gave this rating, in [0, 1]; None without a rating."""
    first_error: int | None
    """0-based, by these ratings; -1 for none; None where a step before it is open, and when dropped."""
    places: Mapping[str, int | None]
    """The first error by each source alone; None where it does not know."""

    def with_view(self) -> LabelledSolution:
        """All judgements as they stand, and beside them those of this view: judge "consensus:RULE"."""
        name = f"{VIEW}:{self.rule}"
        added = tuple(
            # Made anew, not twice: a view is no evidence.
            (
                *(judgement for judgement in step if judgement.judge != name),
                *(
                    ()
                    if rating is None
                    else (
                        Judgement(
                            kind="correctness",
                            judge=name,
                            rating=rating,
                            confidence=confidence,
                            note=self.reason,
                        ),
                    )
                ),
            )
            for step, rating, confidence in zip(
                self.labelled.judgements, self.ratings, self.confidences, strict=True
            )
        )
        return replace(self.labelled, judgements=added)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """Many views, counted."""

    kept: int
    dropped: Mapping[str, int]
    """By `View.why`, the most frequent first."""

    def __str__(self) -> str:
        """In words."""
        total = self.kept + sum(self.dropped.values())
        parts = [f"{count} {why}" for why, count in self.dropped.items()]
        return f"kept {self.kept} of {total}" + (f"; dropped: {', '.join(parts)}" if parts else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Consensus:
    """Settings of a consensus.

    Raises:
        UsageError: a setting out of its range.
    """

    rule: Rule = "first-error-agrees"
    """What counts as agreement."""
    sources: tuple[str, ...] = ()
    """Names of the judges that take part; who is silent counts as not knowing. Left out: whoever has spoken."""
    least: int = 2
    """Sources that must have said something of a solution; `priority` needs one."""
    values: float | None = None
    """Read a source's shares of successes too, where it gives no rating: over this, in [0, 1), is right; 0 for hard labels."""
    kinds: dict[str, str] | None = None
    """For the rule priority: the kind of a source that is not known by its name: human, formal, judge or rollout."""

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise UsageError(
                f"Consensus: expected one of the rules {', '.join(get_args(Rule))}, found {self.rule!r}"
            )
        if self.least < 1:
            raise UsageError(f"--least must be at least 1, found {self.least}")
        if self.values is not None and not 0 <= self.values < 1:
            raise UsageError(f"--values must be None or in [0, 1), found {self.values}")
        if len(set(self.sources)) < len(self.sources):
            raise UsageError(f"Consensus: a source is named twice in {self.sources!r}")
        for name, kind in (self.kinds or {}).items():
            if kind not in TRUST:
                raise UsageError(
                    f"Consensus: {name} is of the kind {kind!r}; the kinds are {', '.join(TRUST)}"
                )

    def view(self, labelled: LabelledSolution) -> View:
        """What the sources agree on for one solution.

        Raises:
            UsageError: `priority`, and a source whose kind is not known.
        """
        heard = self._opinions(labelled)
        opinions = {name: ratings for name, ratings in heard.items() if any_said(ratings)}
        places = {name: first_wrong(ratings) for name, ratings in opinions.items()}
        missing = [name for name in self.sources if name not in opinions]
        needed = 1 if self.rule == "priority" else self.least
        if len(opinions) < needed or (missing and self.rule in ("first-error-agrees", "intersection")):
            silent = f"; nothing from {', '.join(missing)}" if missing else ""
            evidence = sorted(set(heard) - set(opinions) - set(missing))
            silent += f"; no conclusion by {', '.join(evidence)}" if evidence else ""
            return self._dropped(
                labelled,
                places,
                "too few sources",
                f"{_count(len(opinions), 'source')}, {needed} needed{silent}",
            )
        if self.rule == "first-error-agrees":
            dropped = _places_differ(places)
            if dropped is not None:
                return self._dropped(labelled, places, *dropped)
        if self.rule == "first-error-majority":
            place, count = Counter(places.values()).most_common(1)[0]
            votes = sum(known is not None for known in places.values())
            total = len(places) + len(missing)
            if place is None or 2 * count <= total:
                dropped = _places_differ({name: at for name, at in places.items() if at is not None})
                why = dropped or ("place not known", f"only {votes} of {total} name a place")
                return self._dropped(labelled, places, *why)
            opinions = {name: opinions[name] for name, at in places.items() if at == place}
        ratings, confidences = self._merge(opinions)
        if not any_said(ratings):
            return self._dropped(
                labelled, places, "nothing agreed", f"no step that {self.rule} gives a rating"
            )
        return View(
            labelled=labelled,
            rule=self.rule,
            kept=True,
            why="agreed",
            reason=f"{self.rule} of {', '.join(sorted(opinions))}",
            ratings=tuple(ratings),
            confidences=tuple(confidences),
            # The place is agreed even where a step before it is right to one and neutral to another.
            first_error=places[next(iter(opinions))]
            if self.rule in ("first-error-agrees", "first-error-majority")
            else first_wrong(ratings),
            places=places,
        )

    def views(self, many: Iterable[LabelledSolution]) -> Iterator[View]:
        """One view a solution, in order."""
        return map(self.view, many)

    def _opinions(self, labelled: LabelledSolution) -> dict[str, list[Rating | None]]:
        """The ratings of each source, one entry a step."""
        names = dict.fromkeys(
            judgement.judge
            for step in labelled.judgements
            for judgement in step
            if judgement.judge.partition(":")[0] != VIEW
            and (not self.sources or judgement.judge in self.sources)
        )
        return {name: [self._rating(step, name) for step in labelled.judgements] for name in names}

    def _rating(self, step: tuple[Judgement, ...], name: str) -> Rating | None:
        own = [judgement for judgement in step if judgement.judge == name]
        rated = {j.rating for j in own if j.kind == "correctness" and j.rating is not None}
        if not rated and self.values is not None:
            shares = [
                j.successes / j.trials if j.trials and j.successes is not None else j.share for j in own
            ]
            rated = {1 if share > self.values else -1 for share in shares if share is not None}
        return rated.pop() if len(rated) == 1 else None

    def _merge(
        self, opinions: Mapping[str, Sequence[Rating | None]]
    ) -> tuple[list[Rating | None], list[float | None]]:
        order = sorted(opinions, key=self._trust) if self.rule == "priority" else list(opinions)
        heard = list(order)
        ratings: list[Rating | None] = []
        confidences: list[float | None] = []
        for step in range(len(next(iter(opinions.values())))):
            said = {name: rating for name in heard if (rating := opinions[name][step]) is not None}
            rating = self._one(said, len(heard))
            ratings.append(rating)
            confidences.append(
                None if rating is None else sum(r == rating for r in said.values()) / len(said)
            )
            if rating == -1:
                # Who took this step for right, or skipped it, went on from something else.
                agree = {name for name in heard if opinions[name][step] == -1}
                if self.rule == "priority":
                    rank = min(self._trust(name) for name in agree)
                    agree |= {name for name in heard if self._trust(name) <= rank}
                heard = [name for name in heard if name in agree]
        return ratings, confidences

    def _one(self, said: Mapping[str, Rating], heard: int) -> Rating | None:
        """The rule, for one step."""
        if not said:
            return None
        if self.rule == "priority":
            best = min(self._trust(name) for name in said)
            top = {rating for name, rating in said.items() if self._trust(name) == best}
            return top.pop() if len(top) == 1 else None
        (rating, count), *_ = Counter(said.values()).most_common()
        if self.rule == "majority":
            return rating if 2 * count > len(said) else None
        return rating if count == heard else None

    def _trust(self, name: str) -> int:
        kinds = {**KINDS, **(self.kinds or {})}
        kind = kinds.get(name) or kinds.get(name.partition(":")[0])
        if kind is None:
            raise UsageError(
                f"Consensus: the kind of the source {name!r} is not known; say under `kinds` whether it is "
                f"{', '.join(TRUST[:-1])} or {TRUST[-1]}"
            )
        return TRUST.index(kind)

    def _dropped(
        self, labelled: LabelledSolution, places: Mapping[str, int | None], why: Why, reason: str
    ) -> View:
        nothing = (None,) * len(labelled.judgements)
        return View(
            labelled=labelled,
            rule=self.rule,
            kept=False,
            why=why,
            reason=reason,
            ratings=nothing,
            confidences=nothing,
            first_error=None,
            places=places,
        )


def any_said(ratings: Iterable[Rating | None]) -> bool:
    """Whether there is a rating at all."""
    return any(rating is not None for rating in ratings)


def tally(views: Iterable[View]) -> Tally:
    """Count what was kept and why the others were dropped."""
    counts = Counter(view.why for view in views)
    kept = counts.pop("agreed", 0)
    return Tally(kept=kept, dropped=dict(counts.most_common()))


def side_by_side(*sources: Iterable[LabelledSolution]) -> Iterator[LabelledSolution]:
    """The judgements of several sources on the same solutions, joined: one labelled solution for each.

    Solutions are the same if problem and steps read the same. Judgements of a step stand in the order of the sources, equal ones once.

    Args:
        sources: labelled solutions, in any order; all are read before the first is given.

    Yields:
        Every solution once, in the order in which it was first met, as the first source has it.

    Raises:
        InputError: a solution whose judgements are not one entry a step.
    """
    found: dict[tuple[str, ...], LabelledSolution] = {}
    for source in sources:
        for labelled in source:
            solution = labelled.solution
            if len(labelled.judgements) != len(solution.steps):
                raise InputError(
                    f"expected judgements for each of {len(solution.steps)} steps, found {len(labelled.judgements)} entries",
                    where=solution.id,
                    field="judgements",
                )
            key = (solution.problem.text, *solution.texts)
            have = found.get(key)
            found[key] = (
                labelled
                if have is None
                else replace(
                    have,
                    judgements=tuple(
                        tuple(dict.fromkeys((*ours, *theirs)))
                        for ours, theirs in zip(have.judgements, labelled.judgements, strict=True)
                    ),
                    root=tuple(dict.fromkeys((*have.root, *labelled.root))),
                )
            )
    yield from found.values()


def _places_differ(places: Mapping[str, int | None]) -> tuple[Why, str] | None:
    """Why these do not agree, or None if they do."""
    unknown = sorted(name for name, place in places.items() if place is None)
    if unknown:
        return "place not known", f"the first error is left open by {', '.join(unknown)}"
    if len(set(places.values())) > 1:
        named = ", ".join(
            f"{name} {'none' if place == -1 else f'step {(place or 0) + 1}'}"
            for name, place in sorted(places.items())
        )
        return "places differ", f"different first errors: {named}"
    return None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
