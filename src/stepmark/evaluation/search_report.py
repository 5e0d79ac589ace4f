"""A comparison of searches from the searches to a report: figures, tables, examples where methods disagree, and their trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepmark.evaluation.result import Figure, Result, measured
from stepmark.evaluation.search import Arena, Contest, Contested, contest, search_of
from stepmark.evaluation.search_entrants import entrants
from stepmark.evaluation.search_figures import cells_of, statistic
from stepmark.evaluation.search_tables import (
    accuracy_table,
    advice_table,
    advice_words,
    difference_tables,
    ends_table,
    found_table,
    plot,
    seeds_table,
    spent_table,
    spread_table,
    words,
)
from stepmark.metrics.first_error import found_error
from stepmark.records import Problem
from stepmark.search.report import view_of
from stepmark.search.searching import Candidate, Found
from stepmark.show import colour
from stepmark.show.evaluation import Examples, Section, Tile
from stepmark.show.search import SearchView
from stepmark.show.views import CardView, ProblemView, StepView

NAME = "search"
SHOWN = 4
"""Examples of each sort."""

FEW = 30
"""Fewer problems than these, and a bootstrap over them promises more than it keeps: the report says so."""

_SAMPLING = ("greedy", "majority", "best-of-n", "weighted-vote", "adaptive")
"""Methods that write whole solutions; the others grow trees."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a comparison gives."""

    result: Result
    trees: tuple[SearchView, ...]
    """The searches of the examples, for a page of trees."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a report says of where its numbers come from."""

    prm: str
    policy: str
    threshold: float | None = None
    """A step under it is an error, for the colours; None for no such point."""
    settings: Mapping[str, Any]
    data: Sequence[Mapping[str, Any]] = ()
    facts: tuple[str, ...] = ()
    resamples: int = 1000
    seed: int = 0
    """Of the resamples."""


def evaluate(problems: Sequence[Problem], settings: Contest, arena: Arena, setting: Setting) -> Report:
    """Compare the methods and report it.

    Args:
        problems: with reference answers.
        settings: methods, budgets, seeds.
        arena: the models. With a store, the examples are searched again for nothing.
        setting: names for the report, and the bootstrap's settings.

    Raises:
        InputError: problems that cannot be compared on; see `search.contest`.
        UsageError: a budget that cannot be kept.
        BackendError: a model failed.
    """
    found = contest(problems, settings, arena)
    figures = {
        figure.name: figure
        for figure in measured(
            found.items, statistic(found.items), resamples=setting.resamples, seed=setting.seed
        )
    }
    shown = _examples(problems, found, settings, arena, setting)
    aggregate = arena.common.grading.aggregate
    expand = settings.shape.expand
    ends, seeds, advice = (
        ends_table(found, figures, settings),
        seeds_table(found, figures, settings),
        advice_table(figures, expand),
    )
    sections = (
        Section(
            title="Accuracy against compute",
            text="Every method with the same limits. A method is worth its tokens where it is above both the majority vote and best-of-N at what "
            "it has spent.",
            items=(
                accuracy_table(found, figures, settings),
                spent_table(found, figures, settings),
                *difference_tables(found, figures, settings),
                plot(found, figures, settings),
            ),
        ),
        Section(
            title="How searches end",
            items=tuple(
                one for one in (ends, found_table(found, figures, settings), seeds) if one is not None
            ),
        ),
        Section(
            title="How wide should a beam be?",
            text=advice_words(figures, expand),
            items=tuple(one for one in (spread_table(figures, aggregate), advice) if one is not None),
        ),
        Section(
            title="Where they disagree",
            text="With the largest budget and the first seed.",
            items=tuple(group for group, _ in shown),
        ),
    )
    spent_on_fits = sum(fit.tried for fit in found.fits)
    result = Result(
        evaluation=NAME,
        title=f"Search: {setting.policy} with {setting.prm}",
        prm=setting.prm,
        facts=(
            f"{len(found.items):,} problems, {settings.seeds} {'seed' if settings.seeds == 1 else 'seeds'}; budgets are limits on "
            f"{settings.unit} a problem, the policy's and the PRM's together.",
            f"Prefixes and solutions are compared by the {aggregate} of their step scores.",
            *(
                [
                    f"Sizes were fitted on {min(settings.pilot, len(problems))} of these problems without looking at answers, in {spent_on_fits} "
                    "runs that no method is charged for."
                ]
                if spent_on_fits
                else []
            ),
            *(
                [
                    f"With only {len(found.items)} {'problem' if len(found.items) == 1 else 'problems'} the intervals are too narrow, and "
                    "of a method that is right on all or on none they have no width: read no star as a finding."
                ]
                if len(found.items) < FEW
                else []
            ),
            *(f"Left out: {why}" for why in found.refused),
            advice_words(figures, expand),
            *setting.facts,
            "In brackets: 95 % bootstrap intervals over problems.",
        ),
        figures=tuple(figures.values()),
        tiles=_tiles(found, figures, settings),
        sections=tuple(section for section in sections if section.items),
        items=tuple(found.items),
        settings={
            **setting.settings,
            "sizes": {f"{fit.method} at {fit.budget}": fit.size for fit in found.fits if fit.tried},
        },
        data=setting.data,
    )
    return Report(result=result, trees=tuple(view for _, views in shown for view in views))


def _tiles(found: Contested, figures: Mapping[str, Figure], settings: Contest) -> tuple[Tile, ...]:
    """Accuracy at the largest budget: the two that searches are measured by, then the trees."""
    most = settings.names[-1]
    names = [name for name, budget in cells_of(found.items) if budget == most]
    tiles: list[Tile] = []
    for name in [*(n for n in ("majority", "best-of-n") if n in names), *names]:
        figure = figures.get(f"accuracy/{name}/{most}")
        if (
            figure is None
            or figure.value is None
            or any(tile.label.startswith(f"{name}, ") for tile in tiles)
        ):
            continue
        low, high = figure.low, figure.high
        tiles.append(
            Tile(
                label=f"{name}, {words(settings.budgets[-1])} {settings.unit}, %",
                value=f"{100 * figure.value:.1f}",
                detail="" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}",
            )
        )
    return tuple(tiles)


def _examples(
    problems: Sequence[Problem], found: Contested, settings: Contest, arena: Arena, setting: Setting
) -> list[tuple[Examples, list[SearchView]]]:
    """Problems on which trees and samples disagree, searched again (from the store), with cards and trees."""
    budget = settings.names[-1]
    sorts: dict[str, list[str]] = {"right only by growing trees": [], "right only by whole samples": []}
    for item in found.items:
        right = {name: cells[budget][0]["right"] for name, cells in item["runs"].items() if budget in cells}
        trees = [value for name, value in right.items() if name not in _SAMPLING]
        samples = [right[name] for name in ("majority", "best-of-n") if name in right]
        if True in trees and samples and not any(value is not False for value in samples):
            sorts["right only by growing trees"].append(item["id"])
        if trees and True in samples and not any(value is not False for value in trees):
            sorts["right only by whole samples"].append(item["id"])
    by_id = {problem.id: problem for problem in problems}
    groups = []
    for title, ids in sorts.items():
        kept = ids if len(ids) <= SHOWN else [ids[at * len(ids) // SHOWN] for at in range(SHOWN)]
        if not kept:
            continue
        again = _again([by_id[id_] for id_ in kept], found, settings, arena)
        views, trees_of = [], []
        for number, id_ in enumerate(kept, start=1):
            searches = [(name, one) for name, ones in again.items() for one in ones if one.problem.id == id_]
            views.append(_problem(number, by_id[id_], searches, arena, setting))
            trees_of += [
                replace(view_of(one, threshold=setting.threshold, judge=_judge(arena)), name=f"{id_}: {name}")
                for name, one in searches
                if name not in _SAMPLING
            ]
        groups.append(
            (
                Examples(
                    title=f"{title[0].upper()}{title[1:]} ({len(ids):,})",
                    problems=tuple(views),
                    text=f"{len(kept)} of {len(ids):,}: what each method chose.",
                ),
                trees_of,
            )
        )
    return groups


def _again(
    problems: Sequence[Problem], found: Contested, settings: Contest, arena: Arena
) -> dict[str, list[Found]]:
    again = {}
    for entrant in entrants(settings.methods, settings.shape, settings.own):
        size = next(
            fit.size for fit in found.fits if (fit.method, fit.budget) == (entrant.name, settings.names[-1])
        )
        search = search_of(entrant, size, settings.budgets[-1], 0, settings, arena)
        again[entrant.name] = [one for one in arena.search(problems, search) if isinstance(one, Found)]
    return again


def _judge(arena: Arena) -> Any:
    return lambda text, gold: arena.verifier.verify(text or None, gold).correct


def _problem(
    number: int,
    problem: Problem,
    searches: Sequence[tuple[str, Found]],
    arena: Arena,
    setting: Setting,
) -> ProblemView:
    """A problem with a card for each different choice."""
    chosen: dict[str, tuple[list[str], Candidate]] = {}
    for name, one in searches:
        if one.solution is not None:
            # A choice that was scored stands for the same text without scores.
            names, first = chosen.setdefault(one.solution.text, ([], one.solution))
            names.append(name)
            if first.aggregate is None:
                chosen[one.solution.text] = (names, one.solution)
    nothing = [name for name, one in searches if one.solution is None]
    cards = tuple(
        _card(at, names, one, arena.right(problem, one), arena, setting)
        for at, (names, one) in enumerate(chosen.values(), start=1)
    )
    note = f"{problem.id} · reference answer {problem.answer}"
    if nothing:
        note += f" · chose nothing: {', '.join(nothing)}"
    return ProblemView(number=number, text=problem.text, note=note, cards=cards)


def _card(
    number: int, names: Sequence[str], one: Candidate, right: bool | None, arena: Arena, setting: Setting
) -> CardView:
    grading = arena.common.grading
    said = "no verdict" if right is None else "right" if right else "wrong"
    answer = "no answer" if one.answer is None else f"answer {one.answer}"
    whole = None not in one.scores and one.scores
    first = None if setting.threshold is None or not whole else found_error(one.scores, setting.threshold)
    return CardView(
        number=number,
        title=", ".join(names),
        note=f"{said}, {answer}" + ("" if one.finished else ", unfinished"),
        kind=grading.kind,
        threshold=setting.threshold,
        score=one.aggregate,
        aggregate=grading.aggregate,
        place=colour.aggregate_position(one.aggregate, grading.aggregate, grading.kind, setting.threshold),
        aggregates=(),
        first_error=first,
        steps=tuple(
            StepView(text=step, score=score) for step, score in zip(one.steps, one.scores, strict=True)
        ),
    )
