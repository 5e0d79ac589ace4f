"""A run in words and in plain data: the model card, and the notes beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from stepmark.metrics.first_error import FirstErrors
from stepmark.training.card import Card, Data, Figure
from stepmark.training.examples import Dropped, Example
from stepmark.training.measure import Measure
from stepmark.training.written import Written

if TYPE_CHECKING:
    from stepmark.training.recipe import Recipe


def notes_of(
    recipe: Recipe,
    base_name: str,
    data: Sequence[str],
    training: Sequence[Sequence[Example]],
    measured_on: Sequence[Sequence[Example]],
    dropped: Dropped,
    found: Measure | None,
) -> dict[str, Any]:
    """Everything that a reader of the checkpoint may ask for, as plain data."""
    return {
        "base": base_name,
        "objective": {"name": recipe.objective.name, "settings": repr(recipe.objective)},
        "data": list(data),
        "rules": asdict(recipe.rules),
        "settings": asdict(recipe.train),
        "problems": len(training),
        "examples": sum(map(len, training)),
        "held_out_problems": len(measured_on),
        "dropped": dict(dropped.counts),
        "held_out": None if found is None else asdict(found),
    }


def card_of(
    recipe: Recipe,
    written: Written,
    *,
    name: str,
    base: str,
    data: Sequence[str],
    rows: int,
    training: Sequence[Sequence[Example]],
    measured_on: Sequence[Sequence[Example]],
    dropped: Dropped,
    found: Measure | None,
    first: FirstErrors | None,
) -> Card:
    """The model card of a run: what was done and measured, and nothing else.

    Args:
        recipe: what was run.
        written: the checkpoint.
        name: its title.
        base: the base's name.
        data: names of the sources.
        rows: how many rows were read.
        training: what was trained on.
        measured_on: what was held out.
        dropped: what was left out.
        found: figures on it, before calibration.
        first: first errors there, calibrated.
    """
    settings = asdict(recipe.train)
    seed = settings.pop("seed")
    kept = sum(map(len, training)) + sum(map(len, measured_on))
    figures = []
    if found is not None:
        labels = f"{found.labels:,} labels on {len(measured_on):,} held-out problems"
        threshold = 0.5 if written.spec is None else written.spec.threshold
        scores = "last scores against outcomes" if recipe.objective.outcomes else "step scores"
        named = (
            ("loss a label", found.loss),
            (f"accuracy of {scores} at {threshold:g}, not calibrated", found.accuracy),
            (f"AUC of {scores}", found.auc),
        )
        figures = [Figure(what=what, on=labels, value=value) for what, value in named if value is not None]
        if first is not None:
            figures.append(
                Figure(
                    what=f"first-error F1 at {first.threshold:g}, calibrated{' and the threshold chosen' if recipe.tune_threshold else ''} "
                    "on the same problems",
                    on=f"{found.solutions:,} solutions of those problems",
                    value=first.f1,
                )
            )
    return Card(
        title=name,
        base=base,
        written=written,
        objective=f"{recipe.objective.name} (`{recipe.objective!r}`)",
        data=(Data(name=", ".join(data) or "not named", rows=rows, kept=kept, dropped=dict(dropped.counts)),),
        split=f"{len(measured_on):,} of {len(training) + len(measured_on):,} problems were held out, each with all of its solutions"
        if measured_on
        else "",
        settings={**settings.pop("weights"), **settings, **asdict(recipe.rules)},
        seeds={"held-out problems, order, borders, first weights": seed},
        measured=tuple(figures),
        made_with={package: version(package) for package in ("stepmark", "torch", "transformers")},
    )
