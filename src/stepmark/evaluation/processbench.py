"""ProcessBench: is the first wrong step found, and are right solutions left alone.

Source: Zheng et al. 2024, "ProcessBench: identifying process errors in mathematical reasoning", section 3. Per subset: the
share of wrong solutions whose first error is named exactly, the share of right ones in which none is named, and their
harmonic mean F1; over the subsets their unweighted average.

Deviations from the authors' script: F1 is 0 and not NaN where both shares are 0; a solution that could not be read to
the point of decision counts as not found, and how many there are is said; intervals are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepmark.errors import InputError
from stepmark.evaluation.cases import first_error
from stepmark.evaluation.examples import card, problem, spread
from stepmark.evaluation.facts import percent_tile, unreadable
from stepmark.evaluation.processbench_tables import (
    accuracy_bars,
    accuracy_table,
    distance_table,
    position_heat,
    position_table,
    writer_table,
)
from stepmark.evaluation.published import PROCESSBENCH, published_table
from stepmark.evaluation.result import Item, Result, measured
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.evaluation.thresholds import Policy, policies
from stepmark.metrics.intervals import Floats, Statistic, shares
from stepmark.show.evaluation import Examples, Section

NAME = "processbench"


def items_of(sheet: Sheet, chosen: Mapping[str, Policy]) -> list[Item]:
    """One item a case: its true first error and the one that the PRM names.

    Raises:
        InputError: a case whose first error is not known.
    """
    items = []
    for row in sheet.rows:
        case = row.case
        truth = first_error(case.labelled)
        if truth is None:
            raise InputError("the first error of this solution is not known", where=case.where, field="label")
        items.append(
            {
                "id": case.id,
                "problem": case.problem,
                "group": case.group,
                "label": truth,
                "found": chosen[case.group].found(row),
                "steps": len(case.solution.steps),
                "policy": case.policy,
                "outcome": case.outcome,
            }
        )
    return items


def statistic(items: Sequence[Item]) -> Statistic:
    """Per group `error`, `correct` and `f1`, and their unweighted averages, as functions of the items' weights."""
    groups = list(dict.fromkeys(item["group"] for item in items))
    wrong = np.array([item["label"] != -1 for item in items])
    hit = np.array([item["found"] == item["label"] for item in items])
    member = {group: np.array([item["group"] == group for item in items]) for group in groups}

    def figures(weights: Floats) -> Mapping[str, Floats]:
        found: dict[str, Floats] = {}
        for group in groups:
            parts = []
            for name, of in (("error", member[group] & wrong), ("correct", member[group] & ~wrong)):
                parts.append(shares(weights @ (of & hit).astype(float), weights @ of.astype(float)))
                found[f"{group}/{name}"] = parts[-1]
            found[f"{group}/f1"] = harmonic(*parts)
        if len(groups) > 1:
            for name in ("error", "correct", "f1"):
                found[f"average/{name}"] = np.mean([found[f"{group}/{name}"] for group in groups], axis=0)
        return found

    return figures


def harmonic(a: Floats, b: Floats) -> Floats:
    """2ab / (a + b), elementwise; 0 where both are 0, nan where one is."""
    total = a + b
    return np.where(total == 0, 0.0, 2 * a * b / np.where(total == 0, 1.0, total))


def evaluate(
    sheet: Sheet,
    *,
    threshold: str | None = None,
    settings: Mapping[str, Any] | None = None,
    data: Sequence[Mapping[str, Any]] = (),
    facts: Sequence[str] = (),
    resamples: int = 1000,
    seed: int = 0,
) -> Result:
    """ProcessBench figures of a sheet of scores.

    Args:
        sheet: cases whose first error is known, with their scores.
        threshold: the policy (`evaluation.thresholds.policies`); None for the PRM's own.
        settings: what the scores were made with.
        data: the files' names and hashes.
        facts: more sentences for the top of the report.
        resamples: of the bootstrap over problems.
        seed: of the bootstrap.

    Raises:
        InputError: a first error that is not known.
        UsageError: a policy that cannot be applied.
    """
    groups = sheet.groups
    truth = {row.case.id: first_error(row.case.labelled) for row in sheet.rows}
    chosen = policies(threshold, sheet, groups, truth)
    items = items_of(sheet, chosen)
    words = {name: policy.words for name, policy in chosen.items()}
    words["average"] = "; ".join(dict.fromkeys(words.values()))
    figures = measured(items, statistic(items), policies=words, resamples=resamples, seed=seed)
    by_name = {figure.name: figure for figure in figures}
    names = [*groups, *(["average"] if len(groups) > 1 else [])]
    return Result(
        evaluation=NAME,
        title=f"ProcessBench: {sheet.prm}",
        prm=sheet.prm,
        facts=(
            f"{len(items):,} solutions of {len({item['problem'] for item in items}):,} problems. A step under the threshold is an "
            "error; the first one is compared with the one that people found. F1 is the harmonic mean of the two accuracies.",
            *_left_out(sheet, items),
            *facts,
            _INTERVALS,
        ),
        figures=figures,
        tiles=tuple(percent_tile(f"F1, {name}", by_name[f"{name}/f1"]) for name in names),
        sections=(
            Section(
                title="Figures",
                text="The threshold and how it was chosen stand beside every number: numbers of different policies are "
                "not comparable.",
                items=(accuracy_table(names, by_name, items), accuracy_bars(names, by_name)),
            ),
            Section(
                title="Where errors are named",
                text="Of the wrong solutions: how far the step that is named lies from the first wrong one.",
                items=(distance_table(items, list(groups)), position_table(items), position_heat(items)),
            ),
            Section(title="By who wrote the solution", items=(writer_table(items),)),
            Section(
                title="Published results",
                text="On the full 3,400 rows; each with its authors' threshold policy. Ours above are on the data named there.",
                items=(published_table(PROCESSBENCH),),
            ),
            Section(title="Examples", items=_examples(sheet, chosen, items)),
        ),
        items=tuple(items),
        settings={**(settings or {}), "threshold": threshold},
        data=data,
    )


_INTERVALS = "In brackets: 95 % bootstrap intervals over problems, at the stated threshold (that a tuned one would move too is not in them)."


def _left_out(sheet: Sheet, items: Sequence[Item]) -> list[str]:
    said = unreadable(sheet, "and count as not found")
    undecided = sum(item["found"] is None for item in items) - len(sheet.refused)
    if undecided:
        said.append(
            f"In {undecided:,} more a step without a score came before any error; they count as not found."
        )
    if sheet.unread_steps:
        said.append(f"{sheet.unread_steps:,} steps have no score.")
    return said


def _examples(sheet: Sheet, chosen: Mapping[str, Policy], items: Sequence[Item]) -> tuple[Examples, ...]:
    sorts: dict[str, tuple[str, list[CaseScores]]] = {
        "found": ("The first wrong step is named", []),
        "early": ("An earlier step is blamed", []),
        "late": ("The first wrong step is passed over, a later one named", []),
        "missed": ("Wrong, and no step is named", []),
        "alarm": ("Right, and a step is blamed all the same", []),
        "clean": ("Right, and left alone", []),
    }
    found_of = {}
    for row, item in zip(sheet.rows, items, strict=True):
        found, label = item["found"], item["label"]
        if found is None:
            continue
        found_of[row.case.id] = (found, label)
        if label == -1:
            sort = "clean" if found == -1 else "alarm"
        else:
            sort = (
                "missed"
                if found == -1
                else "found"
                if found == label
                else "early"
                if found < label
                else "late"
            )
        sorts[sort][1].append(row)
    groups = []
    for title, rows in sorts.values():
        views = []
        for row in spread(rows):
            found, label = found_of[row.case.id]
            note = (
                "truth: no wrong step" if label == -1 else f"truth: step {label + 1} is the first wrong one"
            )
            policy = chosen[row.case.group]
            view = card(row, how=sheet.aggregate or "min", threshold=policy.threshold, found=found, note=note)
            views.append(problem(row, view))
        groups.append(
            Examples(
                title=f"{title} ({len(rows):,})",
                problems=tuple(views),
                text=f"{len(views)} of {len(rows):,}.",
            )
        )
    return tuple(groups)
