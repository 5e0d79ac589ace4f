"""From labelled solutions to training examples: what is known of each step, up to the first error.

Nothing is dropped in silence: what a rule leaves out is counted by its reason, and the first place is named.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stepmark.data.formats.rows import WRITTEN, LabelledRow
from stepmark.errors import InputError
from stepmark.records import DEFAULT_AXIS, Judgement, Solution
from stepmark.settings import settings
from stepmark.words import amount


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """All that is known of one step; each objective fits what it is made for."""

    value: float | None
    """In [0, 1]: 1 right, 0 wrong, or the share of rollouts that reached the answer. None where only other `labels` are known."""
    rating: Literal[-1, 0, 1] | None = None
    """Where people or a judge rated it: wrong, neutral, right."""
    successes: int | None = None
    trials: int | None = None
    """Rollouts behind `value`, where it is a share and they were counted."""
    labels: tuple[float | None, ...] = ()
    """Of an objective of several labels, what is known of each, in its order; the first is `value`."""


def known_value(target: Target) -> float:
    """The value of a target that has one: of every objective but of several labels."""
    assert target.value is not None
    return target.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A solution, and what is known of its steps: `targets[i]` is of step i, None where it is not to be fitted."""

    solution: Solution
    targets: tuple[Target | None, ...]
    outcome: bool | None = None
    """Whether its final answer is right; None when nobody says."""
    where: str = ""
    """Where it was read, for messages."""
    critiques: tuple[tuple[str, ...], ...] = ()
    """What was written of each step, where there are critiques: one list a step. Those of the whole solution stand at its last."""
    asked: Literal["place", "steps"] | None = None
    """What a judge was asked for that wrote them (`labels.labelling.Critiques`); None: they are in a critic's own format."""


@settings
class LabelRules:
    """Which judgements of steps are trained on, and what they count as."""

    labels: Literal["auto", "correctness", "value"] = "auto"
    """Which labels: ratings of people, judges and exact rules (correctness), shares of rollouts (value), or ratings where a row has any
    and shares elsewhere (auto). For objectives that fit shares (soft, mse, beta-binomial), auto takes shares where a row has any and
    ratings elsewhere."""
    neutral: Literal["positive", "negative", "drop", "keep"] = "positive"
    """What a neutral rating counts as. Positive as in Lightman et al. 2023 (section 2.6) and Qwen2.5-Math-7B-PRM800K. keep: a class
    of its own, which objectives of three classes always take; where right and wrong are measured it counts as right."""
    axis: str = DEFAULT_AXIS
    """Which labels, where steps are judged on several axes: the name of a criterion. Default: whether the step is right."""
    judge: str | None = None
    """Only labels of this judge; "human" takes "human:ann" too."""
    after_error: Literal["mask", "keep"] = "mask"
    """Steps after the first wrong one (rated -1, or no rollout succeeded): masked, because what follows an error has no
    clear label (Uesato et al. 2022; Lightman et al. 2023), or trained as labelled."""
    written: Literal["drop", "keep"] = "drop"
    """Steps that a labeller of PRM800K wrote and nobody rated: left out, since a PRM grades what models write, or kept as right. Steps
    before and after them are trained on either way."""


OUT_OF_TIME = "optimizer steps that the time limit left no time for"


@dataclass(kw_only=True)
class Dropped:
    """What was left out: how often, why, and where first."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def note(self, why: str, where: str, count: int = 1) -> None:
        """Count something that is not trained on."""
        if count:
            self.counts[why] = self.counts.get(why, 0) + count
            self.first.setdefault(why, where)

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"left out: {count:,} x {why}" + (f" (first: {self.first[why]})" if self.first.get(why) else "")
            for why, count in self.counts.items()
        ]


def target_of(judgements: Sequence[Judgement], rules: LabelRules, *, kind: str) -> Target | str | None:
    """What some judgements of one step say together: None where there is nothing to go by; a text, why, where that gives no target."""
    of_kind = list(dict.fromkeys(j for j in judgements if j.kind == kind and _by(j, rules.judge)))
    chosen = [j for j in of_kind if rules.written == "keep" or j.note != WRITTEN]
    if of_kind and not chosen:
        return "a step that the labeller wrote"
    if kind == "correctness":
        ratings = {j.rating for j in chosen} - {None}
        if not ratings:
            return None
        apart = rules.neutral in ("drop", "keep")
        if len(ratings) > 1 and (apart or {_as_value(r, rules) for r in ratings} != {1.0}):
            # Right and neutral agree where neutral counts as right; anything else is a disagreement.
            if {_as_value(r, rules) for r in ratings} == {0.0}:
                return Target(value=0.0, rating=-1)
            return "judges disagree on a step"
        rating = 1 if len(ratings) > 1 else ratings.pop()
        value = _as_value(rating, rules)
        if value is None:
            return "a neutral step"
        return Target(value=value, rating=rating)
    counted = [j for j in chosen if j.trials is not None and j.successes is not None]
    trials = sum(j.trials or 0 for j in counted)
    if trials:
        successes = sum(j.successes or 0 for j in counted)
        return Target(value=successes / trials, successes=successes, trials=trials)
    shares = [j.share for j in chosen if j.share is not None]
    if shares:
        return Target(value=sum(shares) / len(shares))
    return "a step whose rollouts all have no verdict" if counted else None


def _as_value(rating: int | None, rules: LabelRules) -> float | None:
    if rating == 0:
        return {"positive": 1.0, "negative": 0.0, "drop": None, "keep": 1.0}[rules.neutral]
    return 1.0 if rating == 1 else 0.0


def _by(judgement: Judgement, judge: str | None) -> bool:
    return judge is None or judgement.judge == judge or judgement.judge.startswith(f"{judge}:")


def examples(
    rows: Iterable[LabelledRow],
    rules: LabelRules = LabelRules(),  # noqa: B008 - frozen
    *,
    dropped: Dropped | None = None,
    critiques: bool = True,
    shares: bool = False,
) -> list[Example]:
    """Training examples of labelled rows.

    Of each row its own steps count (`LabelledRow.own`): a branch trains only the steps that leave the line it branches from.
    A step after one that is known to be wrong is masked, be it known from this row or from another row of the same problem. A
    prefix that several rows judge has one target, from all of them; so has the outcome of a solution. Rows that are the same in
    everything are one example.

    Args:
        critiques: read them; a step that has some takes its target from other rows too, where its own does not judge it.
        shares: where the rules leave it open, take a row's shares of rollouts rather than its ratings.
    """
    dropped = Dropped() if dropped is None else dropped
    solutions = []
    for row in rows:
        solutions.append(row.on_axis(rules.axis))
        if row.labelled.axes and not solutions[-1].labelled.axes:
            dropped.note(f"rows judged on {', '.join(row.labelled.axes)} and not on {rules.axis}", row.where)
    seen: dict[Prefix, list[Judgement]] = {}
    outcomes: dict[Prefix, set[bool]] = {}
    for row in solutions:
        if len(row.labelled.judgements) != len(row.solution.steps):
            raise InputError(
                f"{amount(len(row.labelled.judgements), 'list')} of judgements for {amount(len(row.solution.steps), 'step')}",
                where=row.where,
            )
        prefixes = _prefixes(row.solution)
        for key, judged in zip(prefixes, row.own.judgements, strict=True):
            seen.setdefault(key, []).extend(judged)
        if row.outcome is not None and prefixes:
            outcomes.setdefault(prefixes[-1], set()).add(row.outcome)
    known = {
        key: {kind: target_of(judged, rules, kind=kind) for kind in _kinds(rules)}
        for key, judged in seen.items()
        if judged
    }
    result: dict[tuple[object, ...], Example] = {}
    for row in solutions:
        reported = outcomes.get(_prefixes(row.solution)[-1], set()) if row.solution.steps else set()
        if len(reported) > 1:
            dropped.note("rows disagree on an outcome", row.where)
        outcome = next(iter(reported)) if len(reported) == 1 else None
        example, why = _example(row, known, outcome, rules, dropped, critiques=critiques, shares=shares)
        if why:
            dropped.note(why, row.where)
        elif example is not None:
            same = (
                _prefixes(example.solution)[-1],
                tuple(t is None for t in example.targets),
                example.critiques,
                example.asked,
            )
            if same in result:
                dropped.note("rows that say the same as another", row.where)
            result.setdefault(same, example)
    return list(result.values())


def examples_of_labels(
    rows: Iterable[LabelledRow], rules: LabelRules, axes: Sequence[str], *, dropped: Dropped
) -> list[Example]:
    """Training examples of rows that are judged on several axes: `Target.labels` holds what is known on each.

    The rules hold for the first axis; on the others, steps after one that fails are trained as labelled.
    """
    read = list(rows)
    joined: dict[Prefix, tuple[Example, list[list[float | None]]]] = {}
    for at, axis in enumerate(axes):
        on_axis = replace(rules, axis=axis, after_error="keep" if at else rules.after_error)
        for example in examples(read, on_axis, dropped=Dropped(), critiques=False):
            nothing: list[list[float | None]] = [[None] * len(axes) for _ in example.targets]
            _, table = joined.setdefault(_prefixes(example.solution)[-1], (example, nothing))
            for labels, target in zip(table, example.targets, strict=True):
                labels[at] = target.value if target is not None and labels[at] is None else labels[at]
    for row in read:
        if row.solution.steps and _prefixes(row.solution)[-1] not in joined:
            dropped.note(f"rows without a label on {', '.join(axes)}", row.where)
    return [
        replace(example, targets=tuple(_labelled(labels) for labels in table))
        for example, table in joined.values()
        if any(label is not None for labels in table for label in labels)
    ]


def _labelled(labels: Sequence[float | None]) -> Target | None:
    known = any(label is not None for label in labels)
    return Target(value=labels[0], labels=tuple(labels)) if known else None


Prefix = tuple[str, ...]
"""A problem and the first steps of a solution, each but the last with what the world answered: a place in the tree."""


def _prefixes(solution: Solution) -> list[Prefix]:
    """For each step, the prefix that ends with it."""
    key: Prefix = (solution.problem.text,)
    results = []
    for step in solution.steps:
        results.append((*key, step.text))
        key = (*key, step.text, step.observation)
    return results


def _kinds(rules: LabelRules) -> tuple[str, ...]:
    return ("correctness", "value") if rules.labels == "auto" else (rules.labels,)


def _example(
    row: LabelledRow,
    known: Mapping[Prefix, Mapping[str, Target | str | None]],
    outcome: bool | None,
    rules: LabelRules,
    dropped: Dropped,
    *,
    critiques: bool,
    shares: bool,
) -> tuple[Example | None, str]:
    """The example of a row, or why there is none."""
    own = row.own.judgements
    written, asked = _critiques(row) if critiques else ((), None)
    # Who writes critiques need not be who labels: beside a critique, the label of any row counts.
    counts = [bool(judged) or bool(written) for judged in own]
    places = [known.get(key, {}) for key in _prefixes(row.solution)]
    # One kind a row: values beside ratings would say something else of the same steps.
    known_kinds = [
        kind
        for kind in _kinds(rules)
        if any(counted and place.get(kind) is not None for place, counted in zip(places, counts, strict=True))
    ]
    # Not of a row whose prefix another row rolled out.
    rolled_out = shares and any(judgement.kind == "value" for judged in own for judgement in judged)
    chosen_kind = "value" if rolled_out and "value" in known_kinds else next(iter(known_kinds), None)
    targets: list[Target | None] = []
    wrong = False
    for place, judged, counted in zip(places, own, counts, strict=True):
        result = place.get(chosen_kind) if chosen_kind is not None and counted else None
        after = wrong and rules.after_error == "mask"
        if isinstance(result, str):
            dropped.note(result, row.where)
        elif judged and result is None:
            dropped.note("steps without a judgement that counts", row.where)
        elif judged and after:
            dropped.note("steps after an error", row.where)
        targets.append(result if isinstance(result, Target) and not after else None)
        # A wrong step that only another row judged is wrong here too.
        first = next((place[kind] for kind in _kinds(rules) if place.get(kind) is not None), None)
        wrong = wrong or (isinstance(first, Target) and first.value == 0.0)
    if not any(t is not None for t in targets) and outcome is None and not written:
        return None, "rows without a step to train on"
    example = Example(
        solution=row.solution,
        targets=tuple(targets),
        outcome=outcome,
        where=row.where,
        critiques=written,
        asked=asked,
    )
    return example, ""


def _critiques(row: LabelledRow) -> tuple[tuple[tuple[str, ...], ...], Literal["place", "steps"] | None]:
    """A row's `meta.critiques`: a list of texts for each step, or one list of texts on the whole solution; and `meta.asked`."""
    given, asked = row.meta.get("critiques"), row.meta.get("asked")
    if given is None or asked == "criteria":  # replies about several axes are in no critic's format
        return (), None
    if asked not in (None, "place", "steps"):
        raise InputError(
            f"expected place or steps, as `stepmark label judge` writes beside critiques, found {asked!r}",
            where=row.where,
            field="asked",
        )
    steps = len(row.solution.steps)
    if isinstance(given, list) and all(isinstance(item, str) for item in given):
        return (*((),) * (steps - 1), tuple(given)), asked
    if (
        isinstance(given, list)
        and len(given) == steps
        and all(isinstance(item, list) and all(isinstance(text, str) for text in item) for item in given)
    ):
        return tuple(tuple(item) for item in given), asked
    raise InputError(
        f"expected a list of texts for each of the {amount(steps, 'step')}, or one list of texts on the whole solution",
        where=row.where,
        field="critiques",
    )


def by_problem(rows: Iterable[Example]) -> list[list[Example]]:
    """Examples grouped by problem text, in order of first appearance."""
    groups: dict[str, list[Example]] = {}
    for row in rows:
        groups.setdefault(row.solution.problem.text, []).append(row)
    return list(groups.values())


def split_problems(
    rows: Sequence[Example], share: float, seed: int
) -> tuple[list[list[Example]], list[list[Example]]]:
    """Training and held-out groups, of which the latter are `share` of the problems; a problem is wholly in one of them."""
    groups = by_problem(rows)
    order = list(range(len(groups)))
    random.Random(seed).shuffle(order)
    held_out = set(order[: round(len(groups) * share)])
    return (
        [g for i, g in enumerate(groups) if i not in held_out],
        [g for i, g in enumerate(groups) if i in held_out],
    )
