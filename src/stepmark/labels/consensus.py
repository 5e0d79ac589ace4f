"""Consensus: what several sources of labels agree on, as a view that changes none of them.

A rule reads the judgements of one solution and gives a rating a step, or drops the solution and says why:

====================  ===================================================================================================
`first-error-agrees`  every source knows the place of the first error, and all name the same one (or none). The filter of
                      Zhang et al. 2025, "The Lessons of Developing Process Reward Models in Mathematical Reasoning"
                      (arXiv:2501.07301, section 3): Monte-Carlo estimates and a judge, about 60 % dropped. A step has the rating
                      that all sources give; none where one of them is silent
`majority`            the rating that more than half of the sources that rated the step give
====================  ===================================================================================================

- A step without a rating, or a neutral one, is **never wrong**. A source that leaves a step before its first wrong one open does not know the place.
- A source counts on the steps after the first wrong one only if it called that step wrong too: the others went on from a step that they
  took for right.
- A source is a judge's name, in one file or in several. Two different ratings of one step by one source cancel out.
- Judgements of the kind `value` are no ratings. Where a source has nothing else, `values` says over which share of successes a step is right.

Deviation from Zhang et al.: any number of sources, and a source that does not know the place drops the solution under a reason of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from stepmark.data.formats.own import to_row
from stepmark.data.formats.rows import LabelledRow
from stepmark.data.labelled import read_labelled
from stepmark.data.reading import Source
from stepmark.errors import InputError, SettingError, UsageError
from stepmark.metrics.first_error import first_wrong
from stepmark.records import DEFAULT_AXIS, Judgement, LabelledSolution
from stepmark.settings import checked, settings
from stepmark.store import (
    Results,
    atomic_rows,
    check_outputs,
    is_stream,
    run_input,
    write_beside,
    write_manifest,
)
from stepmark.words import amount

Rule = Literal["first-error-agrees", "majority"]
Rating = Literal[-1, 0, 1]
Why = Literal["agreed", "too few sources", "places differ", "place not known", "nothing agreed"]
"""Why a solution is kept (`agreed`) or dropped: to count by."""

VIEW = "consensus"
"""Before the rule's name in the judgements that a view adds; never read as a source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What a rule makes of one solution."""

    labelled: LabelledSolution
    """As it was given: every judgement of every source."""
    rule: Rule
    axis: str
    """The axis that it is about."""
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
        steps = []
        for own, rating, confidence in zip(
            self.labelled.judgements, self.ratings, self.confidences, strict=True
        ):
            # Made anew, not twice: a view is no evidence.
            judgements = [
                judgement for judgement in own if (judgement.judge, judgement.axis) != (name, self.axis)
            ]
            if rating is not None:
                judgements.append(
                    Judgement(
                        kind="correctness",
                        judge=name,
                        rating=rating,
                        confidence=confidence,
                        note=self.reason,
                        axis=self.axis,
                    )
                )
            steps.append(tuple(judgements))
        return replace(self.labelled, judgements=tuple(steps))


@settings
class Consensus:
    """When sources of labels agree; see `consensus`."""

    rule: Rule = "first-error-agrees"
    sources: tuple[str, ...] = ()
    least: Annotated[int, Field(ge=1)] = 2
    values: Annotated[float, Field(ge=0, lt=1)] | None = None
    axis: str = DEFAULT_AXIS

    def __post_init__(self) -> None:
        if len(set(self.sources)) < len(self.sources):
            raise SettingError("sources", list(self.sources), "each name once")

    def view(self, labelled: LabelledSolution) -> View:
        """What the sources agree on for one solution."""
        sources = self._opinions(labelled)
        opinions = {name: ratings for name, ratings in sources.items() if any_said(ratings)}
        places = {name: first_wrong(ratings) for name, ratings in opinions.items()}
        missing = [name for name in self.sources if name not in opinions]
        if len(opinions) < self.least or (missing and self.rule == "first-error-agrees"):
            silent = f"; nothing from {', '.join(missing)}" if missing else ""
            evidence = sorted(set(sources) - set(opinions) - set(missing))
            silent += f"; no conclusion by {', '.join(evidence)}" if evidence else ""
            reason = f"{amount(len(opinions), 'source')}, {self.least} needed{silent}"
            return self._view(labelled, places, "too few sources", reason)
        if self.rule == "first-error-agrees":
            dropped = _places_differ(places)
            if dropped is not None:
                return self._view(labelled, places, *dropped)
        ratings, confidences = self._merge(opinions)
        if not any_said(ratings):
            reason = f"no step that {self.rule} gives a rating"
            return self._view(labelled, places, "nothing agreed", reason)
        # The place is agreed even where a step before it is right to one and neutral to another.
        by_place = self.rule == "first-error-agrees"
        first_error = places[next(iter(opinions))] if by_place else first_wrong(ratings)
        reason = f"{self.rule} of {', '.join(sorted(opinions))}"
        return self._view(labelled, places, "agreed", reason, ratings, confidences, first_error)

    def _view(
        self,
        labelled: LabelledSolution,
        places: Mapping[str, int | None],
        why: Why,
        reason: str,
        ratings: Sequence[Rating | None] | None = None,
        confidences: Sequence[float | None] | None = None,
        first_error: int | None = None,
    ) -> View:
        nothing = (None,) * len(labelled.judgements)
        return View(
            labelled=labelled,
            rule=self.rule,
            axis=self.axis,
            kept=why == "agreed",
            why=why,
            reason=reason,
            ratings=nothing if ratings is None else tuple(ratings),
            confidences=nothing if confidences is None else tuple(confidences),
            first_error=first_error,
            places=places,
        )

    def _opinions(self, labelled: LabelledSolution) -> dict[str, list[Rating | None]]:
        """The ratings of each source, one entry a step."""
        names = dict.fromkeys(
            judgement.judge
            for step in labelled.judgements
            for judgement in step
            if judgement.axis == self.axis
            and judgement.judge.partition(":")[0] != VIEW
            and (not self.sources or judgement.judge in self.sources)
        )
        return {name: [self._rating(step, name) for step in labelled.judgements] for name in names}

    def _rating(self, step: tuple[Judgement, ...], name: str) -> Rating | None:
        own = [judgement for judgement in step if (judgement.judge, judgement.axis) == (name, self.axis)]
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
        sources = list(opinions)
        ratings: list[Rating | None] = []
        confidences: list[float | None] = []
        for step in range(len(next(iter(opinions.values())))):
            given = {name: rating for name in sources if (rating := opinions[name][step]) is not None}
            rating = self._one(given, len(sources))
            ratings.append(rating)
            confidences.append(
                None if rating is None else sum(r == rating for r in given.values()) / len(given)
            )
            if rating == -1:
                # Who took this step for right, or skipped it, went on from something else.
                sources = [name for name in sources if opinions[name][step] == -1]
        return ratings, confidences

    def _one(self, given: Mapping[str, Rating], sources: int) -> Rating | None:
        """The rule, for one step."""
        if not given:
            return None
        (rating, count), *_ = Counter(given.values()).most_common()
        if self.rule == "majority":
            return rating if 2 * count > len(given) else None
        return rating if count == sources else None


def any_said(ratings: Iterable[Rating | None]) -> bool:
    """Whether there is a rating at all."""
    return any(rating is not None for rating in ratings)


def side_by_side(*sources: Iterable[LabelledSolution]) -> Iterator[LabelledSolution]:
    """The judgements of several sources on the same solutions, joined: one labelled solution for each, in the order of first meeting.

    Solutions are the same if problem and steps read the same. Judgements of a step stand in the order of the sources, equal ones once.

    Raises:
        InputError: a solution whose judgements are not one entry a step.
    """
    joined: dict[tuple[str, ...], LabelledSolution] = {}
    for source in sources:
        for labelled in source:
            solution = labelled.solution
            if len(labelled.judgements) != len(solution.steps):
                raise InputError(
                    f"expected judgements for each of {amount(len(solution.steps), 'step')}, found {amount(len(labelled.judgements), 'entry', 'entries')}",
                    where=solution.id,
                    field="judgements",
                )
            key = _key(labelled)
            if key not in joined:
                joined[key] = labelled
                continue
            have = joined[key]
            both = zip(have.judgements, labelled.judgements, strict=True)
            joined[key] = replace(
                have,
                judgements=tuple(tuple(dict.fromkeys((*ours, *theirs))) for ours, theirs in both),
                root=tuple(dict.fromkeys((*have.root, *labelled.root))),
            )
    yield from joined.values()


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


@checked
def combine(
    files: Sequence[Source],
    *,
    out: str | Path | None = None,
    rule: Rule = "first-error-agrees",
    sources: Sequence[str] = (),
    least: int = 2,
    values: float | None = None,
    axis: str = DEFAULT_AXIS,
    columns: Mapping[str, str] | None = None,
) -> Results[LabelledRow]:
    """Keep the solutions on which several sources of labels agree, and give the reason for each other solution.

    A source is a judge's name, in whatever file it stands. Rows are of the same solution where problem and steps read the same.

    Args:
        files: labelled solutions, each a file in any format that `stepmark.convert` reads, dicts, records, a data set or a data frame.
        out: write the solutions that are kept to this file (format stepmark-labels), gzipped if its name ends in .gz; "-" for standard
            output. The others stand in OUT.dropped.jsonl, each with its reason.
        rule: what counts as agreement: first-error-agrees or majority.
        sources: names of the judges that take part; a silent source counts as not knowing. Default: every judge of the files.
        least: sources that must have judged a solution, 1 or more.
        values: read a source's shares of successes too, where it gives no rating: over this, in [0, 1), is right; 0 for hard labels.
        axis: the judgements that are compared, where there are several axes: the name of a criterion. Default: whether the step is right.
        columns: names of columns, where they differ: problem=question,solution=response.

    Returns:
        The solutions that are kept, with all judgements and those of the view, judge "consensus:RULE"; `meta` holds `first_error` and what
        each source alone says. `refused` has a line for each solution that is dropped.

    Raises:
        InputError: a row that cannot be read, or two that differ in the outcome of one solution.
        UsageError: a setting that cannot work.
    """
    if isinstance(files, str | Path) or not files:
        raise UsageError("expected a list of files of labelled solutions, such as [A, B]")
    check_outputs({"out": out}, *files)
    labeller = Consensus(rule=rule, sources=tuple(sources), least=least, values=values, axis=axis)
    given = [run_input(file) for file in files]
    read = [list(read_labelled(source.source, columns=columns)) for source in given]
    outcomes = _outcomes(read)
    labels = [[row.labelled for row in rows] for rows in read]
    views = [labeller.view(solution) for solution in side_by_side(*labels)]
    dropped_by = _dropped_by(views)
    judges = Counter(name for view in views for name in view.places)
    manifest = {
        "command": "label consensus",
        "input": [source.manifest for source in given],
        "method": asdict(labeller),
        "settings": {"columns": columns},
    }
    facts = {"sources": dict(judges), "kept": len(views) - sum(dropped_by.values()), "dropped": dropped_by}

    def row(view: View, labelled: LabelledSolution, **meta: Any) -> LabelledRow:
        known = {"method": f"{VIEW}:{view.rule}", "places": dict(view.places), **meta}
        solution = labelled.solution
        where = solution.id or solution.problem.id or ""
        return LabelledRow(labelled=labelled, where=where, outcome=outcomes.get(_key(labelled)), meta=known)

    def encoded(source: LabelledRow) -> dict[str, Any]:
        return to_row(source.labelled, outcome=source.outcome, meta=source.meta)

    agreed = [row(view, view.with_view(), first_error=view.first_error) for view in views if view.kept]
    dropped = [row(view, view.labelled, why=view.why, reason=view.reason) for view in views if not view.kept]
    with atomic_rows(out) as write:
        for source in agreed:
            write(encoded(source))
    write_manifest(out, {**manifest, **facts})
    written = Path(out) if out is not None and not is_stream(out) else None
    beside = None if written is None else write_beside(written, "dropped", list(map(encoded, dropped)))
    return Results(
        (lambda: iter(agreed)) if written is None else lambda: read_labelled(written),
        len(agreed),
        out=written,
        refused=[f"{source.where}: {source.meta['reason']}" for source in dropped],
        manifest={**manifest, **facts},
        summary="\n".join(
            [*_summary(views, len(files), judges, beside), *([] if written is None else [f"wrote {out}"])]
        ),
    )


def _dropped_by(views: Sequence[View]) -> dict[str, int]:
    """How many solutions were dropped, by `View.why`, the most frequent first."""
    return dict(Counter(view.why for view in views if not view.kept).most_common())


def _summary(views: Sequence[View], files: int, judges: Mapping[str, int], beside: str | None) -> list[str]:
    places = [view.first_error for view in views if view.kept]
    dropped = _dropped_by(views)
    clean, still_open = places.count(-1), places.count(None)
    names = ", ".join(f"{name} ({count:,})" for name, count in sorted(judges.items())) or "none"
    lines = [
        f"{amount(len(views), 'solution')} in {amount(files, 'file')}; sources: {names}",
        f"kept {len(places):,} by {views[0].rule}: {len(places) - clean - still_open:,} with a first error, {clean:,} without"
        + (f", {still_open:,} where steps before it are open" if still_open else ""),
    ]
    if dropped:
        listed = f", each with its reason in {beside}" if beside else ""
        lines.append(f"dropped {sum(dropped.values()):,}{listed}:")
        lines += [f"  {count:,} x {why}" for why, count in dropped.items()]
    return lines


def _key(labelled: LabelledSolution) -> tuple[str, ...]:
    return (labelled.solution.problem.text, *labelled.solution.texts)


def _outcomes(read: Sequence[Sequence[LabelledRow]]) -> dict[tuple[str, ...], bool]:
    """Whether the answer is right, for each solution of which a row says so."""
    outcomes: dict[tuple[str, ...], bool] = {}
    for rows in read:
        for row in rows:
            if row.outcome is None:
                continue
            if outcomes.setdefault(_key(row.labelled), row.outcome) != row.outcome:
                raise InputError(
                    "another row gives this solution another outcome", where=row.where, field="outcome"
                )
    return outcomes
