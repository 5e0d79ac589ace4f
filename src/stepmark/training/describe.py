"""A run in words and in plain data: the model card, and the notes beside the weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
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


def record_of(recipe: Recipe, base_name: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """Everything but the rows that decides a checkpoint, as plain data: what tells a run from others.

    Args:
        recipe: what is run.
        base_name: the base's name.
        run: see `state.run_of`.
    """
    return {
        "base": base_name,
        "base_fingerprint": run["base_fingerprint"],
        "warm_start_fingerprint": run["warm_start_fingerprint"],
        "objective": {"name": recipe.objective.name, "settings": repr(recipe.objective)},
        **({} if recipe.source is None else {"source": dict(recipe.source)}),
        "family": recipe.family,
        "rules": asdict(recipe.rules),
        "settings": asdict(recipe.training),
    }


def digest_of(groups: Sequence[Sequence[Example]]) -> str:
    """What tells examples from others, wherever they were read."""
    digest = hashlib.sha256()
    for one in (one for group in groups for one in group):
        digest.update(repr((one.solution, one.targets, one.outcome, one.critiques, one.asked)).encode())
    return digest.hexdigest()


def rows_record(
    training: Sequence[Sequence[Example]], measured_on: Sequence[Sequence[Example]]
) -> dict[str, str]:
    """The rows of a run, as plain data."""
    return {"rows": digest_of(training), "held_out_rows": digest_of(measured_on)}


def notes_of(
    record: Mapping[str, Any],
    data: Sequence[str],
    training: Sequence[Sequence[Example]],
    measured_on: Sequence[Sequence[Example]],
    dropped: Dropped,
    measured: Measure | None,
) -> dict[str, Any]:
    """Everything that a reader of the checkpoint may ask for, as plain data: `train.json`."""
    return {
        **record,
        "data": list(data),
        **rows_record(training, measured_on),
        "problems": len(training),
        "examples": sum(map(len, training)),
        "held_out_problems": len(measured_on),
        "dropped": dict(dropped.counts),
        "held_out": None if measured is None else asdict(measured),
    }


def card_of(
    recipe: Recipe,
    written: Written,
    *,
    name: str,
    base: str,
    base_fingerprint: str,
    data: Sequence[str],
    rows: int,
    training: Sequence[Sequence[Example]],
    measured_on: Sequence[Sequence[Example]],
    dropped: Dropped,
    measured: Measure | None,
    first: FirstErrors | None,
) -> Card:
    """The model card of a run: what was done and measured, and nothing else.

    Args:
        recipe: what was run.
        written: the checkpoint.
        name: its title.
        base: the base's name.
        base_fingerprint: of its files.
        data: names of the sources.
        rows: how many rows were read.
        training: what was trained on.
        measured_on: what was held out.
        dropped: what was left out.
        measured: figures on it, before calibration.
        first: first errors there, calibrated.
    """
    settings = asdict(recipe.training)
    seed = settings.pop("seed")
    count = sum(map(len, training)) + sum(map(len, measured_on))
    figures = []
    if measured is not None:
        labels = f"{measured.labels:,} labels on {len(measured_on):,} held-out problems"
        threshold = 0.5 if written.spec is None else written.spec.threshold
        scores = "last scores against outcomes" if recipe.objective.outcomes else "step scores"
        named = (
            ("loss a label", measured.loss),
            (f"accuracy of {scores} at {threshold:g}, not calibrated", measured.accuracy),
            (f"AUC of {scores}", measured.auc),
        )
        figures = [Figure(what=what, on=labels, value=value) for what, value in named if value is not None]
        if first is not None:
            figures.append(
                Figure(
                    what=f"first-error F1 at {first.threshold:g}, calibrated{' and the threshold chosen' if recipe.training.tune_threshold else ''} "
                    "on the same problems",
                    on=f"{measured.solutions:,} solutions of those problems",
                    value=first.f1,
                )
            )
    return Card(
        title=name,
        base=base,
        base_fingerprint=base_fingerprint,
        written=written,
        objective=f"{recipe.objective.name} (`{recipe.objective!r}`)",
        data=(
            Data(name=", ".join(data) or "not named", rows=rows, kept=count, dropped=dict(dropped.counts)),
        ),
        split=f"{len(measured_on):,} of {len(training) + len(measured_on):,} problems were held out, each with all of its solutions"
        if measured_on
        else "",
        settings={**settings, **asdict(recipe.rules)},
        seeds={"held-out problems, order, borders, first weights": seed},
        measured=tuple(figures),
        made_with={package: version(package) for package in ("stepmark", "torch", "transformers")},
    )
