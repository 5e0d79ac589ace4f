"""Several judgements of a step become the one label that a format holds, by rules that the caller chose.

Nothing here guesses: a neutral rating that a two-way format cannot hold, a share where a hard label is asked and
judgements of several judges are errors that name the setting which decides. A step that was not judged stays without a label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stepmark.errors import InputError
from stepmark.records import Judgement, LabelKind
from stepmark.solutions.interchange.rows import LabelledRow, Losses, NotRepresentableError, Writing

Rating = Literal[-1, 0, 1]
WRITTEN = "written by the labeller, not rated"
"""The note of a judgement of a step that a labeller of PRM800K wrote: taken for right, and from no model's distribution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLabel:
    """What one step is labelled: a rating or a share, never both."""

    judge: str
    kind: LabelKind
    rating: Rating | None = None
    share: float | None = None
    note: str | None = None


Labels = Sequence[StepLabel | None]
"""One a step; None for a step without a label."""


def one_label_each(row: LabelledRow, settings: Writing, losses: Losses) -> Labels:
    """One label a step, None where there is none.

    Judgements without rating, trials and share are passed over. Of one judge, rollouts are pooled; two
    different ratings of one step leave it unjudged, and that is counted.

    Raises:
        InputError: judgements of several judges, with neither `judge` nor `consensus`.
    """

    def counts(judgement: Judgement) -> bool:
        return (bool(judgement.trials) or judgement.share is not None or judgement.rating is not None) and (
            settings.kind in (None, judgement.kind)
            and settings.judge in (None, judgement.judge, judgement.judge.partition(":")[0])
        )

    every = [j for step in row.labelled.judgements for j in step]
    given = sum(bool(j.trials) or j.share is not None or j.rating is not None for j in every)
    steps = [[j for j in step if counts(j)] for step in row.labelled.judgements]
    judges = list(dict.fromkeys(j.judge for step in steps for j in step))
    if len(judges) > 1 and settings.consensus is None:
        raise InputError(
            f"the steps have judgements of {len(judges)} judges ({', '.join(judges)}) and this format holds one label a "
            "step: choose one with `judge`, or set how they decide together with `consensus` agree or majority",
            where=row.where,
        )
    if settings.kind is None and any(j.kind == "correctness" for step in steps for j in step):
        steps = [[j for j in step if j.kind == "correctness"] for step in steps]
    used = [j for step in steps for j in step]
    for what, count in (
        ("judgements of other judges or of another kind are left out", given - len(used)),
        ("rollouts of the problem alone (root) are left out", len(row.labelled.root)),
        ("a judge's confidence is left out", sum(j.confidence is not None for j in used)),
        ("a judgement's note is left out", sum(j.note not in (None, WRITTEN) for j in used)),
    ):
        losses.lose(what, row.where, count)
    return tuple(_label(step, settings, row, losses) for step in steps)


def _label(
    judgements: Sequence[Judgement], settings: Writing, row: LabelledRow, losses: Losses
) -> StepLabel | None:
    by_judge: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        by_judge.setdefault(judgement.judge, []).append(judgement)
    labels = [_of_one_judge(own, settings, row, losses) for own in by_judge.values()]
    given = [label for label in labels if label is not None]
    if len(given) <= 1:
        return given[0] if given else None
    if any(label.rating is None for label in given):
        raise InputError(
            "several judges, and one of them gives a share of rollouts: set with `hard` above which share a step "
            "is right",
            where=row.where,
        )
    rating, count = Counter(label.rating for label in given).most_common(1)[0]
    if count == len(given) or (settings.consensus == "majority" and 2 * count > len(given)):
        return StepLabel(judge=f"consensus:{settings.consensus}", kind=given[0].kind, rating=rating)
    losses.lose(f"judges without consensus ({settings.consensus}) leave a step unjudged", row.where)
    return None


def _of_one_judge(
    own: Sequence[Judgement], settings: Writing, row: LabelledRow, losses: Losses
) -> StepLabel | None:
    def unjudged(why: str) -> StepLabel | None:
        losses.lose(f"{why}; it is left unjudged", row.where)
        return None

    judge, kind = own[0].judge, own[0].kind
    ratings = {j.rating for j in own if j.rating is not None}
    if len(ratings) > 1:
        return unjudged("one judge gave a step two different ratings")
    if ratings:
        note = next((j.note for j in own if j.note), None)
        return StepLabel(judge=judge, kind=kind, rating=ratings.pop(), note=note)
    trials = sum(j.trials or 0 for j in own)
    shares = {j.share for j in own if not j.trials and j.share is not None}
    if trials:
        shares.add(sum(j.successes or 0 for j in own if j.trials) / trials)
    if settings.above is None:
        if len(shares) > 1:
            return unjudged("a step has several shares of unknown numbers of rollouts")
        return StepLabel(judge=judge, kind=kind, share=shares.pop())
    sides = {share > settings.above for share in shares}
    if len(sides) > 1 and settings.above > 0:
        return unjudged(f"shares of one step lie on both sides of `hard` {settings.hard}")
    losses.lose(f"a share of rollouts became right or wrong (`hard` {settings.hard})", row.where)
    # "any": one success is enough, however many estimates there are.
    return StepLabel(judge=judge, kind=kind, rating=1 if True in sides else -1)


def three_way(row: LabelledRow, settings: Writing, losses: Losses) -> Labels:
    """Labels with a rating, none with a share.

    Raises:
        InputError: as `one_label_each`; a share, with no `hard`.
    """
    labels = one_label_each(row, settings, losses)
    for step, label in enumerate(labels):
        if label is not None and label.rating is None:
            raise InputError(
                f"step {step} (0-based) has the share {label.share:g} of successful rollouts, and this format holds hard "
                "labels: set with `hard` above which share a step is right (a number, or any)",
                where=row.where,
            )
    return labels


def _without_neutral(labels: Labels, row: LabelledRow, settings: Writing, losses: Losses) -> Labels:
    result: list[StepLabel | None] = []
    for step, label in enumerate(labels):
        if label is None or label.rating != 0:
            result.append(label)
        elif settings.neutral is None:
            raise InputError(
                f"step {step} (0-based) is rated neutral, and this format knows only right and wrong: set what it becomes "
                "with `neutral` positive, negative or drop",
                where=row.where,
            )
        elif settings.neutral == "drop":
            losses.lose("a neutral rating left its step unjudged (`neutral` drop)", row.where)
            result.append(None)
        else:
            losses.lose(f"a neutral rating became {settings.neutral} (`neutral`)", row.where)
            result.append(replace(label, rating=1 if settings.neutral == "positive" else -1))
    return result


def two_way(row: LabelledRow, settings: Writing, losses: Losses) -> Labels:
    """Labels with the rating 1 or -1.

    Raises:
        InputError: as `three_way`; a neutral rating, with no `neutral`.
    """
    return _without_neutral(three_way(row, settings, losses), row, settings, losses)


def soft(row: LabelledRow, settings: Writing, losses: Losses) -> Labels:
    """Labels with the rating 1 or -1, or a share.

    Raises:
        InputError: as `one_label_each`; a neutral rating, with no `neutral`.
    """
    labels = _without_neutral(one_label_each(row, settings, losses), row, settings, losses)
    losses.lose(
        "successes and trials became their share; how many rollouts there were is left out",
        row.where,
        sum(any(j.trials for j in step) for step in row.labelled.judgements) if settings.hard is None else 0,
    )
    return labels


def until_unjudged(labels: Labels, row: LabelledRow, losses: Losses, format: str) -> list[StepLabel]:
    """The labels before the first step without one, for a format that has no word for "not judged".

    Raises:
        NotRepresentableError: the first step has none already, or nothing is left that another row has not.
    """
    first = next((step for step, label in enumerate(labels) if label is None), len(labels))
    if not first:
        raise NotRepresentableError(f"the first step was not judged, and {format} has no word for that")
    if first <= row.repeated:
        raise NotRepresentableError(
            f"a branch was cut before the step that it adds, by a step that was not judged ({format} has no word for that)"
        )
    losses.lose(
        f"judgements that stand in another row too are written again, since {format} has no word for that",
        row.where,
        min(row.repeated, first),
    )
    if first < len(labels):
        losses.lose(
            f"the row was cut before its first step that was not judged, which {format} has no word for",
            row.where,
        )
        later = sum(label is not None for label in labels[first:])
        losses.lose("judged steps after one that was not judged", row.where, later)
    return [label for label in labels[:first] if label is not None]
