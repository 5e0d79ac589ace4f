"""The report of process against outcome, put together from its figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepmark.evaluation.cases import Case, Neutral
from stepmark.evaluation.disagreement import CELLS, NAME, Part, Process, cell, parts_of
from stepmark.evaluation.disagreement_examples import ExampleCards, confident
from stepmark.evaluation.disagreement_tables import (
    WORDS,
    Figures,
    agreement_table,
    cells_table,
    confident_table,
    confusion,
    heats,
    rates_table,
    writers_bars,
    writers_table,
)
from stepmark.evaluation.result import Figure, Item, Result
from stepmark.evaluation.scores import Sheet
from stepmark.evaluation.thresholds import Policy
from stepmark.show.evaluation import Section, Tile

_MEANING = {
    "right": "Every step and the answer are right.",
    "lucky": "The answer is right although a step is wrong: errors that cancel, a guess, or a label that is wrong. An outcome reward "
    "pays for these.",
    "unlucky": "Every step is right and the answer does not match: often a wrong reference answer, a matter of format, something left "
    "out, or an error that went unseen.",
    "wrong": "A step and the answer are wrong.",
}


def report(
    *,
    cases: Sequence[Case],
    sheet: Sheet | None,
    items: Sequence[Item],
    chosen: Mapping[str, Policy],
    figures: Sequence[Figure],
    order: Sequence[Process],
    neutral: Neutral,
    show: int,
    settings: Mapping[str, Any],
    data: Sequence[Mapping[str, Any]],
    facts: Sequence[str],
) -> Result:
    """The finished result; see `disagreement.evaluate` for the arguments. `order` are the sources, the main one first."""
    by_name = {figure.name: figure for figure in figures}
    parts = parts_of(items)
    groups = [part for part in parts if not part.writer]
    names: dict[Process, str] = {
        "labels": f"labels ({_judges(cases)})",
        "scores": "scores" if sheet is None else sheet.prm,
    }
    main = order[0]
    sections = [
        Section(
            title="Process and outcome",
            text="Are all steps right, and is the final answer? The threshold stands beside every number that rests on scores.",
            items=(
                cells_table(groups, order, names, items, by_name),
                rates_table(groups, order, names, by_name),
                *heats(groups, order, names, items, by_name),
            ),
        )
    ]
    if len(order) == 2:
        sections.append(
            Section(
                title="The PRM beside the labels",
                text="How often the PRM puts a solution into the cell that the labels put it in. The outcome is the same for both, so only "
                "the process can differ.",
                items=(agreement_table(groups, by_name), confusion(items, names["scores"])),
            )
        )
    writers = [part for part in parts if part.writer]
    if len(writers) > 1:
        sections.append(
            Section(
                title="By who wrote the solution",
                items=(
                    writers_table(writers, main, names[main], items, by_name),
                    *writers_bars(writers, order, names, by_name),
                ),
            )
        )
    examples = ExampleCards(cases=cases, sheet=sheet, items=items, chosen=chosen, neutral=neutral, show=show)
    if "scores" in order:
        high, low = confident(items)
        sections.append(
            Section(
                title="Most confident disagreements",
                text="Where the PRM and the outcome contradict each other most, by the score of the weakest step: candidates for wrong "
                "reference answers and wrong labels, and for what a policy could exploit.",
                items=(
                    confident_table("Scored high, and the answer is wrong", high[:show]),
                    confident_table("Scored low, and the answer is right", low[:show]),
                    examples.group(
                        f"Scored high, and the answer is wrong ({len(high):,})", high, spread_out=False
                    ),
                    examples.group(
                        f"Scored low, and the answer is right ({len(low):,})", low, spread_out=False
                    ),
                ),
            )
        )
    sections.append(
        Section(
            title="Examples",
            text=f"Sorted by {names[main]}.",
            items=tuple(
                examples.group(
                    f"{WORDS[name].capitalize()} ({len(found):,})",
                    found,
                    text=_MEANING[name],
                )
                for name in CELLS
                for found in [[item for item in items if cell(item[main], item["outcome"]) == name]]
            ),
        )
    )
    return Result(
        evaluation=NAME,
        title=f"Process and outcome: {'labels' if sheet is None else sheet.prm}",
        prm="labels" if sheet is None else sheet.prm,
        facts=(*_facts(cases, items, order, names, sheet), *facts, _INTERVALS),
        figures=tuple(figures),
        tiles=_tiles(groups, main, order, by_name),
        sections=tuple(sections),
        items=tuple(items),
        settings=settings,
        data=data,
    )


_INTERVALS = "In brackets: 95 % bootstrap intervals over problems; where a share is 0 or 100 %, Wilson's, because a bootstrap cannot draw what was not seen."


def _judges(cases: Iterable[Case]) -> str:
    return (
        ", ".join(dict.fromkeys(j.judge for case in cases for step in case.labelled.judgements for j in step))
        or "none"
    )


def _solutions(count: int) -> str:
    return f"{count:,} solution{'' if count == 1 else 's'}"


def _facts(
    cases: Sequence[Case],
    items: Sequence[Item],
    order: Sequence[Process],
    names: Mapping[Process, str],
    sheet: Sheet | None,
) -> list[str]:
    said = [
        f"{len(items):,} solutions of {len({item['problem'] for item in items}):,} problems. Process: whether every step is right; "
        "outcome: whether the final answer is."
    ]
    unknown = sum(item["outcome"] is None for item in items)
    if unknown:
        said.append(f"The outcome is not known of {_solutions(unknown)}, which count in no share.")
    for source in order:
        unknown = sum(item[source] is None for item in items)
        if unknown:
            said.append(
                f"By {names[source]}, whether every step is right is not known of {_solutions(unknown)}, which count in none of its shares."
            )
    if sheet is not None and sheet.refused:
        said.append(
            f"The PRM could not read {_solutions(len(sheet.refused))}, first {sheet.refused[0].case.id}: "
            f"{sheet.refused[0].refused}"
        )
    if "scores" in order:
        said.append(
            "By a PRM, what is called lucky can be its false alarm, and what is called unlucky an error that it missed."
        )
    if any(j.kind == "value" for case in cases for step in case.labelled.judgements for j in step):
        said.append(
            "Labels from rollouts say whether the answer can still be reached, not whether a step is true: a step is wrong when no rollout "
            "from its end succeeded. The label of a last step is the outcome itself, so a wrong answer always has a wrong step by them."
        )
    return said


def _tiles(
    groups: Sequence[Part], main: Process, order: Sequence[Process], figures: Figures
) -> tuple[Tile, ...]:
    whole = groups[-1].name
    named = groups if len(groups) <= 5 else groups[-1:]
    tiles = [
        _tile(f"Wrong step in right answers, {part.name}", figures[f"{part.name}/{main}/lucky-of-right"])
        for part in named
    ]
    tiles.append(
        _tile(f"No wrong step in wrong answers, {whole}", figures[f"{whole}/{main}/unlucky-of-wrong"])
    )
    if len(order) == 2:
        tiles.append(_tile("PRM's cell is the labels'", figures[f"{whole}/both/same-cell"]))
    return tuple(tiles)


def _tile(label: str, figure: Figure) -> Tile:
    interval = (
        ""
        if figure.low is None or figure.high is None
        else f"{100 * figure.low:.1f} to {100 * figure.high:.1f}"
    )
    threshold = f"threshold {figure.policy}" if figure.policy else ""
    return Tile(
        label=label,
        value="–" if figure.value is None else f"{100 * figure.value:.1f} %",
        detail="; ".join(part for part in (interval, threshold) if part),
    )
