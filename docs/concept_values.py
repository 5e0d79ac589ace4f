"""The experiments behind "concepts" and "value labels": what outcomes, prefixes and rollouts can say of a step.

V is computed, not estimated (`stepmark.problems.arithmetic_world`); rollouts are drawn from it.
"""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
from concept_world import QUIET, RECOVERS, STRONG, WEAK, Found, line, percent, sampled, wrong

from stepmark.metrics.binary import auc
from stepmark.problems.arithmetic import arithmetic_problems
from stepmark.problems.arithmetic_world import SolverSettings, true_values
from stepmark.report.plots import Bars, Lines, Series


def outcome_and_process() -> Found:
    """What a wrong answer says of the steps that led to it."""
    every = [one for group in sampled(300, 8, seed=5, steps=(6, 12), settings=QUIET) for one in group]
    failed = [one for one in every if not one.right]
    solved = [one for one in every if one.right]
    count = sum(len(one.steps) for one in failed)
    before = sum(one.first_error for one in failed) / count
    after = sum(sum(one.labels[one.first_error + 1 :]) for one in failed) / count
    error = len(failed) / count
    again = 1 - before - after - error
    return Found(
        plot=Bars(
            title="Steps of solutions with a wrong answer",
            y_label="share of their steps",
            labels=(
                "right, before the first error",
                "the first error",
                "right in itself, after it",
                "wrong again",
            ),
            series=(Series(name="", y=(before, error, after, again)),),
        ),
        numbers={
            "solutions": f"{len(every):,}",
            "solved": percent(len(solved) / len(every)),
            "before": percent(before),
            "after": percent(after),
            "wrong": percent(error + again),
            "lucky": percent(sum(one.first_error >= 0 for one in solved) / len(solved), 1),
        },
    )


def granularity() -> Found:
    """Coarser steps need fewer labels, and blame more that is right."""
    sizes = (1, 2, 3, 4, 6)
    cost, innocent = [], []
    for size in sizes:
        spent, lines, blamed, good = 0, 0, 0, 0
        for one in wrong():
            length = len(one.labels)
            spent += math.ceil(length / size)
            lines += length
            start = one.first_error // size * size
            step = one.labels[start : start + size]
            blamed += len(step)
            good += sum(step)
        cost.append(spent / lines)
        innocent.append(good / blamed)
    return Found(
        plot=Lines(
            title="Coarser steps",
            x_label="lines in a step",
            y_label="share",
            y_range=(0, 1),
            series=(
                line("labels to buy, of those for single lines", sizes, cost),
                line("lines of the blamed step that are right", sizes, innocent),
            ),
        ),
        numbers={"innocent 3": percent(innocent[2]), "cost 3": percent(cost[2])},
    )


def prefixes() -> Found:
    """How well the best possible reader of prefixes foretells the outcome."""
    every = [one for group in sampled(300, 8, seed=6, steps=(9, 9), settings=QUIET) for one in group]
    values = [true_values(one.problem, one.steps, QUIET) for one in every]
    ends = [float(one.right) for one in every]
    places = tuple(range(10))
    curve = [auc([v[min(place, len(v) - 1)] for v in values], ends) for place in places]
    sound = [
        auc([float(not 0 <= one.first_error < place) for one in every], ends) if place else 0.5
        for place in places
    ]
    return Found(
        plot=Lines(
            title="What can be known from a prefix",
            x_label="lines read",
            y_label="AUC against the final outcome",
            y_range=(0.45, 1.0),
            series=(
                line("V, exact: the ceiling", places, curve),
                line("is there an error yet?", places, sound),
            ),
        ),
        numbers={
            "start": f"{curve[0]:.2f}",
            "four": f"{curve[4]:.2f}",
            "eight": f"{curve[8]:.2f}",
        },
    )


def recovery() -> Found:
    """V around the first error, for policies that seldom and often recover."""
    around = range(-4, 6)
    policies = {
        "never recovers": SolverSettings(repair_rate=0.0, verbosity=0.0),
        "recovers seldom (the default)": QUIET,
        "recovers often": RECOVERS,
    }
    curves = {}
    for name, settings in policies.items():
        means = []
        for offset in around:
            found = [
                true_values(one.problem, one.solution.texts, settings)[one.first_error + 1 + offset]
                for one in wrong()
                if 0 <= one.first_error + 1 + offset < len(one.labels)
            ]
            means.append(fmean(found))
        curves[name] = means
    at, before = around.index(0), around.index(-1)
    often = curves["recovers often"]
    default = curves["recovers seldom (the default)"]
    return Found(
        plot=Lines(
            title="V around the first error",
            x_label="steps after the first error",
            y_label="mean V",
            y_range=(0, 1),
            series=tuple(line(name, around, means) for name, means in curves.items()),
        ),
        numbers={
            "before": f"{default[before]:.2f}",
            "default": f"{default[at]:.3f}",
            "often": f"{often[at]:.2f}",
            "often, three later": f"{often[around.index(3)]:.2f}",
        },
    )


def _prefix_values(settings: SolverSettings) -> tuple[list[float], list[float]]:
    """V of the sound prefixes and of the broken ones, whole solutions not among them."""
    sound: list[float] = []
    broken: list[float] = []
    for one in wrong():
        values = true_values(one.problem, one.solution.texts, settings)
        sound += values[1 : one.first_error + 1]
        broken += values[one.first_error + 1 : len(one.labels)]
    return sound, broken


def any_of_k() -> Found:
    """How often "any of k rollouts got there" is a wrong label, computed from V."""
    counts = (1, 2, 4, 8, 16, 32, 64)
    lines = []
    numbers = {}
    for name, settings in (("recovers seldom", QUIET), ("recovers often", RECOVERS)):
        sound, broken = (np.array(values) for values in _prefix_values(settings))
        called_broken = [float(((1 - sound) ** k).mean()) for k in counts]
        called_sound = [float((1 - (1 - broken) ** k).mean()) for k in counts]
        lines.append(line(f"broken called sound, {name}", counts, called_sound))
        if settings is QUIET:
            lines.append(line(f"sound called broken, {name}", counts, called_broken))
            numbers["sound lost at 4"] = percent(called_broken[2])
            numbers["sound lost at 64"] = percent(called_broken[-1], 1)
        for k in (4, 8, 64):
            numbers[f"{name} at {k}"] = percent(called_sound[counts.index(k)])
    return Found(
        plot=Lines(
            title="The label 'any of k rollouts succeeded'",
            x_label="rollouts a step, k",
            y_label="share of the labels that are false",
            log_x=True,
            series=tuple(lines),
        ),
        numbers=numbers,
    )


def finite_k() -> Found:
    """How well shares of k rollouts tell sound prefixes from broken ones, and how far they are from V."""
    counts = (1, 2, 4, 8, 16, 32, 64)
    dice = np.random.default_rng(3)
    lines, numbers = [], {}
    for name, settings in (
        ("the default policy", QUIET),
        ("one that recovers often", RECOVERS),
        ("a weak one", WEAK),
    ):
        sound, broken = _prefix_values(settings)
        values = np.array(sound + broken)
        truth = [1.0] * len(sound) + [0.0] * len(broken)
        curve = [auc(list(dice.binomial(k, values) / k), truth) for k in counts]
        lines.append(line(f"rollouts of {name}", counts, curve))
        for k in (4, 16):
            numbers[f"AUC at {k}, {name}"] = f"{curve[counts.index(k)]:.2f}"
        numbers[f"AUC of V, {name}"] = f"{auc(list(values), truth):.2f}"
        if settings is QUIET:
            spread = float(np.mean(values[: len(sound)] * (1 - values[: len(sound)])))
            numbers |= {f"error at {k}": f"{math.sqrt(spread / k):.2f}" for k in (4, 64)}
    return Found(
        plot=Lines(
            title="Shares of k rollouts against correctness",
            x_label="rollouts a step, k",
            y_label="AUC, sound prefixes against broken",
            log_x=True,
            y_range=(0.5, 1.0),
            series=tuple(lines),
        ),
        numbers=numbers,
    )


def policies() -> Found:
    """V of steps that are all right, for three policies."""
    problems = list(arithmetic_problems(300, seed=8, steps=(9, 9), surface="formula"))
    names = {"strong": STRONG, "middling (the default)": SolverSettings(), "weak": WEAK}
    table = {
        name: np.array([true_values(p, p.steps, settings) for p in problems])
        for name, settings in names.items()
    }
    places = tuple(range(10))
    differ = float(((table["strong"] >= 0.5) != (table["weak"] >= 0.5))[:, 1:].mean())
    middle = float((table["weak"][:, 4] < 0.5).mean())
    return Found(
        plot=Lines(
            title="One right solution, three policies",
            x_label="right steps that stand",
            y_label="mean V",
            y_range=(0, 1),
            series=tuple(line(name, places, values.mean(axis=0)) for name, values in table.items()),
        ),
        numbers={
            "differ": percent(differ),
            "weak, four steps": percent(middle),
            "strong, start": f"{table['strong'][:, 0].mean():.2f}",
            "weak, start": f"{table['weak'][:, 0].mean():.2f}",
        },
    )
