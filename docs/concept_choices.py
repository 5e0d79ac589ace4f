"""The experiments behind "aggregation" and "pitfalls": what choosing by a grader does.

The graders are made: truth with noise that belongs to the text, so that a grader asked again says the same again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from statistics import fmean

import numpy as np
from concept_world import QUIET, RECOVERS, WEAK, Found, Sampled, line, logit, noise, percent, sampled, squash

from stepmark import Solution, StepScores
from stepmark.evaluation.best_of_n import (
    CandidateSet,
    Counting,
    SampledCandidate,
    chosen_shares,
    items_of,
    statistic,
)
from stepmark.metrics.aggregate import aggregate
from stepmark.metrics.first_error import best_threshold, first_errors
from stepmark.problems.arithmetic import arithmetic_problems
from stepmark.problems.arithmetic_world import true_values
from stepmark.report.plots import Bars, Lines, Series

AGGREGATES = ("min", "product", "mean", "last", "max")

Grader = Callable[[Sampled], tuple[float, ...]]
"""Step scores of a solution."""


def correctness_grader(separation: float) -> Grader:
    """Right steps and wrong ones in themselves, `separation` standard deviations of the noise apart."""

    def scores(one: Sampled) -> tuple[float, ...]:
        return tuple(
            squash(
                separation * (1 if label else -1) / 2
                + noise("correct", one.problem.text, *one.steps[: at + 1])
            )
            for at, label in enumerate(one.labels)
        )

    return scores


def value_grader(one: Sampled) -> tuple[float, ...]:
    """V with noise of one standard deviation on its logit."""
    values = true_values(one.problem, one.steps, QUIET)[1:]
    return tuple(
        squash(
            min(max(logit(value), -2.0), 2.0) + 1.5 * noise("value", one.problem.text, *one.steps[: at + 1])
        )
        for at, value in enumerate(values)
    )


def candidates(groups: Sequence[Sequence[Sampled]], grader: Grader) -> list[CandidateSet]:
    """As the best-of-N evaluation takes them."""
    found = []
    for number, group in enumerate(groups):
        answers = {text: at for at, text in enumerate(dict.fromkeys(one.steps[-1] for one in group))}
        made = tuple(
            SampledCandidate(
                correct=one.right,
                answer=answers[one.steps[-1]],
                steps=StepScores(scores=grader(one), kind="probability"),
            )
            for one in group
        )
        found.append(CandidateSet(id=str(number), candidates=made))
    return found


def accuracies(sets: Sequence[CandidateSet], sizes: tuple[int, ...], draws: int = 10_000) -> dict[str, float]:
    """`accuracy/METHOD/N` of the evaluation."""
    rows = items_of(sets, Counting(sizes=sizes, limit=draws, draws=draws))
    figures = statistic(rows)(np.ones((1, len(rows))))
    return {name: float(value[0]) for name, value in figures.items() if name.startswith("accuracy/")}


def aggregation() -> Found:
    """Which aggregate suits which grader."""
    groups = sampled(250, 8, seed=9, steps=(8, 12), settings=QUIET)
    graders: dict[str, Grader] = {
        "grades correctness": correctness_grader(4.0),
        "grades value": value_grader,
    }
    numbers, series = {}, []
    for name, grader in graders.items():
        found = accuracies(candidates(groups, grader), (8,))
        values = tuple(found[f"accuracy/best {how}/8"] for how in AGGREGATES)
        series.append(Series(name=name, y=values))
        for how, value in zip(AGGREGATES, values, strict=True):
            numbers[f"{name}, {how}"] = percent(value)
        numbers["majority"] = percent(found["accuracy/majority/8"])
    return Found(
        plot=Bars(
            title="Best of 8 by two graders",
            y_label="accuracy",
            labels=AGGREGATES,
            series=tuple(series),
        ),
        numbers=numbers,
    )


SIZES = (1, 2, 4, 8, 16, 32, 64)


@cache
def pool() -> list[list[Sampled]]:
    """64 solutions of each of 120 problems."""
    return sampled(120, 64, seed=10, steps=(8, 8), settings=QUIET)


def whole_grader(separation: float) -> Grader:
    """One score a solution, right and wrong ones `separation` standard deviations of the noise apart; equal texts score equally."""

    def scores(one: Sampled) -> tuple[float, ...]:
        sign = 1 if one.right else -1
        return (squash(separation * sign / 2 + noise("whole", one.problem.text, *one.steps)),)

    return scores


def best_of_n() -> Found:
    """More candidates, a better or a worse choice."""
    graders = {"poor": 0.5, "middling": 1.5, "good": 4.0}
    numbers, lines = {}, []
    for name, separation in graders.items():
        found = accuracies(candidates(pool(), whole_grader(separation)), SIZES, draws=200)
        curve = [found[f"accuracy/best min/{n}"] for n in SIZES]
        lines.append(line(f"{name} grader, {separation:g} deviations", SIZES, curve))
        for n in (4, 64):
            numbers[f"{name}, {n}"] = percent(curve[SIZES.index(n)])
    majority = [found[f"accuracy/majority/{n}"] for n in SIZES]
    lines.append(line("majority vote", SIZES, majority))
    return Found(
        plot=Lines(
            title="Best of N by graders of three qualities",
            x_label="candidates, N",
            y_label="accuracy",
            log_x=True,
            y_range=(0, 1),
            series=tuple(lines),
        ),
        numbers=numbers | {"single": percent(majority[0]), "majority, 64": percent(majority[-1])},
    )


def hacking() -> Found:
    """What is optimised goes up, what is wanted does not."""
    grader = whole_grader(1.0)
    pleased, right = [], []
    for n in SIZES:
        means, rights = [], []
        for group in pool():
            scores = np.array([grader(one)[0] for one in group])
            shares = chosen_shares(scores, n)
            means.append(float(shares @ scores))
            rights.append(float(shares @ np.array([one.right for one in group], dtype=np.float64)))
        pleased.append(fmean(means))
        right.append(fmean(rights))
    return Found(
        plot=Lines(
            title="What is optimised, and what is wanted",
            x_label="candidates, N",
            y_label="mean over problems",
            log_x=True,
            y_range=(0, 1),
            series=(
                line("the grader's score of its choice", SIZES, pleased),
                line("accuracy of its choice", SIZES, right),
            ),
        ),
        numbers={
            "score 1": f"{pleased[0]:.2f}",
            "score 64": f"{pleased[-1]:.2f}",
            "right 2": percent(right[1]),
            "right 64": percent(right[-1]),
        },
    )


def length() -> Found:
    """What steps that say nothing do to the score of a right solution, by aggregate."""
    changes: dict[str, Callable[[Solution, random.Random], Solution]] = {
        "filler-steps": _with_fillers,
        "merged-steps": _merged,
    }
    found: dict[str, list[float]] = {}
    problems = list(arithmetic_problems(300, seed=12, steps=(8, 12), surface="story"))
    for change, made in changes.items():
        moved: dict[str, list[float]] = {how: [] for how in AGGREGATES}
        for number, problem in enumerate(problems):
            solution = problem.solution()
            old, new = (_mild(one) for one in (solution, made(solution, random.Random(number))))
            for how in AGGREGATES:
                moved[how].append(
                    aggregate(new, how, kind="probability") - aggregate(old, how, kind="probability")
                )
        found[change] = [fmean(moved[how]) for how in AGGREGATES]
    numbers = {}
    for change in changes:
        for how in ("product", "min"):
            value = found[change][AGGREGATES.index(how)]
            numbers[f"{change}, {how}"] = f"{value:+.2f}".replace("-", "−")
    return Found(
        plot=Bars(
            title="Nothing is said, and the score moves",
            y_label="mean change of the solution's score",
            labels=AGGREGATES,
            series=tuple(Series(name=change, y=tuple(values)) for change, values in found.items()),
            zero_line=True,
        ),
        numbers=numbers,
    )


_FILLERS = (
    "Let me continue with the next step.",
    "Now I will go on to the next part of the solution.",
    "Let us proceed carefully.",
    "We are ready for the next step.",
    "Let me keep going.",
)


def _with_fillers(solution: Solution, rng: random.Random) -> Solution:
    """Steps without content put in between."""
    first, *others = solution.texts
    return Solution.of(
        solution.problem.text, [first, *(text for step in others for text in (rng.choice(_FILLERS), step))]
    )


def _merged(solution: Solution, rng: random.Random) -> Solution:
    """Neighbouring steps joined two by two."""
    texts, gap = solution.texts, rng.choice(("\n", "\n\n", " "))
    return Solution.of(
        solution.problem.text, [gap.join(texts[at : at + 2]) for at in range(0, len(texts), 2)]
    )


def _mild(solution: Solution) -> list[float]:
    """A grader that likes every step about as well: its mean score of a step is 0.95, whatever the step says."""
    return [squash(3.2 + 0.7 * noise("mild", solution.problem.text, text)) for text in solution.texts]


def thresholds() -> Found:
    """One set of solutions, graded by V of three policies: each value grader has a threshold of its own."""
    every = [one for group in sampled(300, 2, seed=13, steps=(8, 12), settings=QUIET) for one in group]
    truth = [one.first_error for one in every]
    graders = {"a middling policy": QUIET, "one that recovers often": RECOVERS, "a weak one": WEAK}
    grid = [n / 50 for n in range(1, 50)]
    series, numbers, best = [], {}, {}
    for name, settings in graders.items():
        scores = [true_values(one.problem, one.steps, settings)[1:] for one in every]
        best[name] = best_threshold(scores, truth)
        series.append(line(f"V of {name}", grid, [first_errors(scores, truth, at).f1 for at in grid]))
        numbers[f"{name}, best"] = f"{best[name].threshold:.2f}"
        numbers[f"{name}, F1"] = percent(best[name].f1)
        numbers[f"{name}, at 0.5"] = percent(first_errors(scores, truth, 0.5).f1)
        swapped = first_errors(scores, truth, best["a middling policy"].threshold).f1
        numbers[f"{name}, at another's"] = percent(swapped)
    return Found(
        plot=Lines(
            title="First errors by three exact value graders",
            x_label="threshold",
            y_label="first-error F1",
            y_range=(0, 1),
            series=tuple(series),
        ),
        numbers=numbers,
    )
