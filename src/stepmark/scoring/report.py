"""The report: graded solutions as one HTML file that needs no network."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepmark.errors import InputError, UsageError
from stepmark.metrics.aggregate import rank_key
from stepmark.metrics.first_error import threshold_misfit
from stepmark.records import GradedSolution, Solution, StepScores
from stepmark.report import colour
from stepmark.report.page import CardView, ProblemView, StepView, Summary, page_html
from stepmark.store import atomic_write, check_writable
from stepmark.words import amount, check_solution

SHOWN = 2000
"""Solutions on one page, unless told otherwise."""

AGGREGATES = ("product", "min", "mean", "last", "max")
"""The aggregates that a card shows, in this order."""

_KIND_WORDS = {
    "probability": "probabilities from 0 to 1",
    "margin": "margins p(good) − p(bad), from −1 to 1",
    "log-ratio": "log-ratios of two models, centred on 0 (colours and bars show their order only)",
    "unbounded": "raw values without bounds (colours and bars show their order only)",
}


def write_report(
    path: str | Path,
    scored: Iterable[GradedSolution],
    *,
    title: str,
    settings: Mapping[str, str] | None = None,
    note: str | None = None,
    limit: int = SHOWN,
) -> None:
    """Write graded solutions as one HTML file; the file is there complete or not at all.

    Solutions of one problem (the same text and id) stand side by side in the order given. The figures at the top
    count every solution, shown or not. Equal arguments give an equal file.

    Args:
        path: where to; replaced if it exists.
        scored: read once.
        title: of the page.
        settings: name to value, shown on demand: what the solutions were graded with.
        note: one more sentence under the title.
        limit: how many solutions to show. Problems are shown whole, first come first, until one does not fit;
            a first problem of more solutions than that is cut.

    Raises:
        InputError: a solution without one score a step, or with a score out of the range of its kind.
        UsageError: the file cannot be written, or `limit` is not positive.
    """
    if limit < 1:
        raise UsageError(f"expected a positive limit of solutions to show, found {limit}")
    check_writable(path)
    tally = _ReportCounts()
    groups: dict[tuple[str, str | None], list[GradedSolution]] = {}
    count = 0
    for result in scored:
        _check(result)
        tally.add(result)
        key = (result.solution.problem.text, result.solution.problem.id)
        if key in groups or count < limit:
            groups.setdefault(key, []).append(result)
            count += 1
    problems: list[ProblemView] = []
    shown = 0
    for group in groups.values():
        # Whole problems until one does not fit; a first one that is too large is cut.
        if problems and len(group) > limit - shown:
            break
        fits = min(len(group), limit - shown)
        problems.append(_problem(len(problems) + 1, shown + 1, group, fits, tally))
        shown += fits
    summary = tally.summary(title=title, settings=settings or {}, note=note, problems=problems)
    with atomic_write(path) as file:
        file.writelines(page_html(summary, problems))


def _check(result: GradedSolution) -> None:
    """Refuse what cannot be shown when it comes, not when the page is drawn."""
    try:
        check_solution(result.solution.texts, result.scores, result.first_error)
        for score in result.scores:
            colour.position(score, result.score_kind, result.threshold)
    except InputError as error:
        raise error.at(f"solution {result.solution.id!r}" if result.solution.id else "a solution") from None


@dataclass(kw_only=True, slots=True)
class _ReportCounts:
    """What is true of all solutions, counted as they stream past."""

    solutions: int = 0
    problems: set[bytes] = field(default_factory=set)
    verdicts: Counter[str] = field(default_factory=Counter)
    positions: Counter[int] = field(default_factory=Counter)
    kinds: dict[str, None] = field(default_factory=dict)
    prms: dict[str, None] = field(default_factory=dict)
    aggregates: dict[str, None] = field(default_factory=dict)
    thresholds: dict[float | None, None] = field(default_factory=dict)
    outcome_models: dict[str, None] = field(default_factory=dict)
    checked: bool = False
    """Whether exact checks ran."""
    by_check: int = 0
    """First errors that a check alone found."""

    def add(self, result: GradedSolution) -> None:
        problem = result.solution.problem
        self.solutions += 1
        # A short digest and not the text: a million problems must not be held to be counted.
        self.problems.add(hashlib.blake2b(repr((problem.text, problem.id)).encode(), digest_size=12).digest())
        self.kinds[result.score_kind] = None
        self.prms[result.prm] = None
        self.aggregates[result.aggregate] = None
        self.thresholds[result.threshold] = None
        self.verdicts[
            "unknown" if result.first_error is None else "good" if result.first_error < 0 else "bad"
        ] += 1
        if result.first_error is not None and result.first_error >= 0:
            self.positions[result.first_error] += 1
        self.checked |= result.findings is not None
        self.by_check += result.first_error_by == "check"
        if result.outcome is not None:
            self.outcome_models[result.outcome_model or "outcome"] = None

    def summary(
        self, *, title: str, settings: Mapping[str, str], note: str | None, problems: Sequence[ProblemView]
    ) -> Summary:
        shown = sum(len(problem.cards) for problem in problems)
        return Summary(
            title=title,
            facts=tuple(self._facts(len(problems), shown)) + ((note,) if note else ()),
            settings=settings,
            solutions=self.solutions,
            problems=len(self.problems),
            with_error=self.verdicts["bad"],
            without_error=self.verdicts["good"],
            unknown=self.verdicts["unknown"],
            positions=dict(self.positions),
            kinds=tuple(self.kinds),
        )

    def _facts(self, problems: int, solutions: int) -> Iterable[str]:
        if self.solutions:
            kinds = "; ".join(_KIND_WORDS[kind] for kind in self.kinds)
            yield f"Each solution is graded step by step by the PRM {' or '.join(self.prms)}. Step scores are {kinds}."
            made = f"A solution's score is the {' or '.join(self.aggregates)} of its step scores"
            points = " or ".join(f"{point:g}" for point in self.thresholds if point is not None)
            yield (
                f"{made}; a step under {points} is an error." if points else f"{made}; no threshold applies."
            )
            if self.checked:
                yield (
                    f"A step that an exact check proves to be wrong is an error too: {self.by_check:,} of the first errors were found by "
                    "a check alone."
                )
            point = next(iter(self.thresholds)) if len(self.thresholds) == 1 else None
            misfit = threshold_misfit(self.verdicts["bad"] - self.by_check, self.solutions, point)
            if misfit is not None:
                yield misfit.replace("`", "") + "."
        if self.outcome_models:
            yield f"Outcome model: {', '.join(self.outcome_models)}."
        if solutions < self.solutions:
            yield (
                f"Shown are {problems:,} of {amount(len(self.problems), 'problem')}, {solutions:,} of {self.solutions:,} "
                "solutions, as they came; the figures count all, and the graded JSON lines hold all."
            )


def _problem(
    at: int, first: int, group: list[GradedSolution], fits: int, tally: _ReportCounts
) -> ProblemView:
    problem, best = group[0].solution.problem, _best(group)
    parts = [
        problem.id,
        problem.source,
        None if problem.answer is None else f"reference answer {problem.answer}",
        f"{fits:,} of its {amount(len(group), 'solution')} are shown" if fits < len(group) else None,
    ]
    words = (
        "best by score among those not refuted"
        if any(result.refuted for result in group)
        else "best by score"
    )
    cards = tuple(_card(first + k, k, group[k], words if k in best else "", tally) for k in range(fits))
    return ProblemView(number=at, text=problem.text, note=" · ".join(filter(None, parts)), cards=cards)


def _best(group: list[GradedSolution]) -> set[int]:
    """The solutions with the highest score among those of the same PRM, aggregate and kind, where there are two to compare; what an exact
    check refutes is never the best."""
    comparable: dict[tuple[str, str, str], dict[int, GradedSolution]] = {}
    for at, result in enumerate(group):
        if result.score is not None:
            key = (result.prm, result.aggregate, result.score_kind)
            comparable.setdefault(key, {})[at] = result
    best = set()
    for results in comparable.values():
        keys = {at: rank_key(result.score, refuted=result.refuted) for at, result in results.items()}
        if len(keys) > 1:
            first = min(keys.values())
            best |= {at for at, key in keys.items() if key == first and not results[at].refuted}
    return best


def _card(at: int, place: int, result: GradedSolution, best: str, tally: _ReportCounts) -> CardView:
    solution = result.solution
    prm = result.prm if len(tally.prms) > 1 else None
    return CardView(
        number=at,
        title=f"Solution {place + 1}",
        note=" · ".join(part for part in (solution.source, solution.id, prm) if part),
        kind=result.score_kind,
        threshold=result.threshold,
        score=result.score,
        aggregate=result.aggregate,
        place=colour.aggregate_position(result.score, result.aggregate, result.score_kind, result.threshold),
        aggregates=_aggregates(result),
        first_error=result.first_error,
        steps=step_views(result.solution, result.step_scores, result.finding_lines()),
        best=best,
        outcome=result.outcome,
        outcome_model=result.outcome_model,
    )


def step_views(
    solution: Solution, steps: StepScores, findings: Mapping[int, tuple[str, ...]] | None = None
) -> tuple[StepView, ...]:
    """The steps of a card, one view a step, with scores, classes, critiques and findings beside the texts."""
    names = steps.class_names or ()
    shares = steps.classes or (None,) * len(steps.scores)
    critiques = steps.critiques or ((),) * len(steps.scores)
    return tuple(
        StepView(
            text=text,
            score=score,
            language=language,
            observation=step.observation,
            speaker=step.speaker,
            classes=() if share is None else tuple(zip(names, share, strict=True)),
            critiques=critique,
            findings=(findings or {}).get(at, ()),
        )
        for at, (step, score, (text, language), share, critique) in enumerate(
            zip(solution.steps, steps.scores, _texts(solution), shares, critiques, strict=True)
        )
    )


_FENCE = re.compile(r"^[ ]{0,12}(?:```+|~~~+)[ ]*(?P<language>[\w+#.-]{0,30})", re.MULTILINE)
_LAST_LINE_FENCE = re.compile(r"\n[ ]{0,12}(?:```+|~~~+)\s*\Z")


def _texts(solution: Solution) -> Iterator[tuple[str, str | None]]:
    """What to show of every step, and the language of steps that are code throughout.

    A long block of code is cut into several steps: the first holds the opening fence (or has it in its lead), the
    last the closing one, and what lies between says nothing of being code.
    """
    fenced = any(_FENCE.search(step.raw) for step in solution.steps)
    state = "python" if solution.split == "code" and not fenced else None
    for step in solution.steps:
        state = _after_fences(step.lead, state)
        code = step.text if state is None else _LAST_LINE_FENCE.sub("", step.text)
        yield (step.text, None) if _FENCE.search(code) else (code, state)
        state = _after_fences(step.text, state)
        state = _after_fences(step.tail, state)


def _after_fences(text: str, state: str | None) -> str | None:
    for fence in _FENCE.finditer(text):
        state = fence["language"].lower() if state is None else None
    return state


def _aggregates(result: GradedSolution) -> tuple[tuple[str, float | None], ...]:
    from stepmark.metrics.aggregate import aggregate, allowed

    scores, kind = result.scores, result.score_kind
    values: dict[str, float | None] = {}
    for name in AGGREGATES:
        read = scores[-1:] if name == "last" else scores
        meant = name in allowed(kind) and None not in read
        values[name] = aggregate(scores, name, kind=kind) if meant else None
    values[result.aggregate] = result.score  # what the record says, not what we would make of it
    return tuple(values.items())
