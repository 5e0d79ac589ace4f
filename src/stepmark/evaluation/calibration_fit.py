"""Temperature and Platt scaling of an evaluation's scores: fitted on some problems, measured on others, the two never mixed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepmark.errors import UsageError
from stepmark.evaluation.calibration_items import TARGETS, Target
from stepmark.evaluation.cases import Case
from stepmark.evaluation.result import Item
from stepmark.metrics.intervals import Floats
from stepmark.metrics.scaling import logit, platt, sigmoid, temperature
from stepmark.records import ScoreKind

MEASURED = "measured"
FITTED = "fitted here"


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Which cases a map is fitted on and which it is measured on."""

    roles: Mapping[str, str | None]
    """Case id to `FITTED`, `MEASURED`, or None for neither."""
    words: str
    """On what it is fitted."""
    apart: bool = False
    """Whether what is fitted on is other data, and in no figure but those that are fitted here."""
    dropped: int
    """Cases of the part to fit on that are in neither, because their problems are measured on."""


def by_share(cases: Sequence[Case], share: float) -> Split:
    """A share of the problems to fit on, by a hash of the problem: it depends on neither the order nor the other problems.

    Raises:
        UsageError: not between 0 and 1, or one side is empty.
    """
    if not 0 < share < 1:
        raise UsageError(f"`fit_share` {share:g}: expected a share between 0 and 1, such as 0.5")
    chosen = {case.id for case in cases if place(case.problem) < share}
    return _split(cases, chosen, f"{share:.0%} of the problems")


def by_group(cases: Sequence[Case], group: str) -> Split:
    """The cases of one group to fit on.

    Raises:
        UsageError: there is no such group, or one side is empty.
    """
    chosen = {case.id for case in cases if case.group == group}
    if not chosen:
        known = ", ".join(sorted({case.group for case in cases} - {""})) or "none"
        raise UsageError(f"`fit` {group}: there is no such file, and no such group; groups: {known}")
    return _split(cases, chosen, group)


def by_file(cases: Sequence[Case], others: Sequence[Case], name: str) -> tuple[list[Case], Split]:
    """The cases of another file to fit on, less those whose problem is in the data.

    Returns:
        The cases of both, those of the other file last, and the split.

    Raises:
        UsageError: nothing is left to fit on.
    """
    measured = {_plain(case.solution.problem.text) for case in cases}
    kept = [case for case in others if _plain(case.solution.problem.text) not in measured]
    if not kept:
        raise UsageError(
            f"`fit` {name}: all its problems are in the data too; nothing is fitted and measured on the same problems. "
            "Name other data, or use `fit_share` 0.5"
        )
    roles: dict[str, str | None] = dict.fromkeys((case.id for case in cases), MEASURED)
    roles |= dict.fromkeys((case.id for case in kept), FITTED)
    return [*cases, *kept], Split(roles=roles, words=name, apart=True, dropped=len(others) - len(kept))


def _split(cases: Sequence[Case], chosen: Collection[str], words: str) -> Split:
    rest = [case for case in cases if case.id not in chosen]
    keys = {case.problem for case in rest} | {_plain(case.solution.problem.text) for case in rest}
    roles: dict[str, str | None] = {}
    for case in cases:
        if case.id not in chosen:
            roles[case.id] = MEASURED
        else:
            shared = case.problem in keys or _plain(case.solution.problem.text) in keys
            roles[case.id] = None if shared else FITTED
    if not rest or FITTED not in roles.values():
        where = "to measure on" if not rest else "to fit on whose problems are not measured on too"
        raise UsageError(f"fitting on {words} leaves nothing {where}; use `fit_share` 0.5 or other data")
    return Split(roles=roles, words=words, dropped=sum(role is None for role in roles.values()))


def place(problem: str) -> float:
    """A problem's place in [0, 1), by SHA-256 of its id or text."""
    return int.from_bytes(hashlib.sha256(problem.encode()).digest()[:8], "big") / 2**64


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


@dataclass(frozen=True, kw_only=True, slots=True)
class Maps:
    """What was fitted for one target."""

    scale: float
    """Platt: `sigmoid(scale * logit + shift)`."""
    shift: float
    temperature: float | None
    """`sigmoid(logit / temperature)`; None when none fits or the scores have no middle."""
    no_temperature: str
    """Why there is none; "" when there is one."""
    count: int
    """Scores that it was fitted on."""
    certain: int
    """Of those, how many are exactly 0 or 1."""


def fit(items: Sequence[Item], target: Target) -> Maps:
    """Fit both maps on the items whose role is `FITTED`.

    Raises:
        UsageError: no right or no wrong ones there, or scores that are all the same; says which target.
    """
    x, y = [], []
    for item in items:
        if item["role"] == FITTED and target in item:
            for score, label in zip(item[target]["scores"], item[target]["labels"], strict=True):
                if score is not None and label is not None:
                    x.append(score)
                    y.append(label)
    kind = items[0]["kind"]
    logits = list(logits_of(x, kind, edges(items, target)))
    try:
        scale, shift = platt(logits, y)
    except UsageError as error:
        raise UsageError(
            f"{target}: nothing can be fitted on the {len(y):,} scores to fit on: {error}"
        ) from None
    warmth, why = None, "unbounded scores have no middle that a temperature could keep"
    if kind != "unbounded":
        try:
            warmth, why = temperature(logits, y), ""
        except UsageError as error:
            why = str(error)
    return Maps(
        scale=scale,
        shift=shift,
        temperature=warmth,
        no_temperature=why,
        count=len(y),
        certain=sum(score in (0.0, 1.0) for score in x) if kind == "probability" else 0,
    )


def apply(items: Sequence[Item], maps: Mapping[Target, Maps]) -> None:
    """Put the calibrated scores into every item, under "platt" and "temperature", where there is a map."""
    for target in TARGETS:
        if target not in maps:
            continue
        found = maps[target]
        bounds = edges(items, target)
        for item in items:
            if target not in item:
                continue
            part = item[target]
            known = [score for score in part["scores"] if score is not None]
            logits = logits_of(known, item["kind"], bounds)
            if found.temperature is not None:
                part["temperature"] = _put(part["scores"], sigmoid(logits / found.temperature))
            part["platt"] = _put(part["scores"], sigmoid(found.scale * logits + found.shift))


def _put(scores: Sequence[float | None], values: Floats) -> list[float | None]:
    left = iter(values)
    return [None if score is None else float(next(left)) for score in scores]


Edges = tuple[float, float]


def edges(items: Sequence[Item], target: Target) -> Edges:
    """What a probability of exactly 0, and one of exactly 1, is taken for: half as far from it as the nearest other score.

    A logit of 0 or 1 is infinite, and a bound picked by hand would decide the fit: PRMs in bfloat16 call 1 all that is over
    0.998. No label is used.
    """
    known = [
        s for item in items if target in item for s in item[target]["scores"] if s is not None and 0 < s < 1
    ]
    if not known:
        return 0.25, 0.75
    return min(known) / 2, 1 - (1 - max(known)) / 2


def logits_of(scores: Sequence[float], kind: ScoreKind, bounds: Edges) -> Floats:
    """Probabilities as logits; scores of other kinds as they are."""
    if kind != "probability":
        return np.asarray(scores, dtype=float)
    return logit([bounds[0] if s == 0 else bounds[1] if s == 1 else s for s in scores])
