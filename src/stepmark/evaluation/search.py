"""Search methods at equal tokens: what a search gains over a vote that may spend as much.

For each budget each method is made as large as it takes to spend it (sampling methods sample until it is spent; of the others the
field `sized_by` is enlarged on a few pilot problems, without looking at an answer) and searches every problem. A majority vote,
a PRM-weighted vote and best-of-N always take part. They also run with 1, 2, 4, … samples, so that their accuracy is known at
whatever another method has really spent: between two points, on a line over the logarithm of the tokens.

A search that chooses nothing, an unfinished solution or one without an answer is wrong. An answer that the verifier reaches no
verdict on is left out of the accuracy. A problem that a method refuses is left out for all of them, and named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from stepmark.backends import ReplyStore
from stepmark.backends.replies import ReplyFile
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.base import INTERVALS, Evaluation, Run
from stepmark.evaluation.best_of_n import between
from stepmark.evaluation.result import EvaluationResult, Item, made_folder, shown
from stepmark.evaluation.views import Column, Figures, Kind, series_of, table_of, tiles_of, written
from stepmark.metrics.intervals import Floats, Statistic, ratio_statistic
from stepmark.models.lazy import Lazy
from stepmark.problems.loading import read_problems
from stepmark.records import Problem, Refusal
from stepmark.report.evaluation import Report, Section
from stepmark.report.plots import Lines, Series
from stepmark.report.tables import Table
from stepmark.searches.base import Budget, Candidate, Grading, Searching, SearchResult, Steps
from stepmark.searches.methods import METHODS, load_search, remade
from stepmark.searches.run import Models, models_of
from stepmark.searches.run import run as run_search
from stepmark.searches.sampled import SampledSearch
from stepmark.settings import settings
from stepmark.store import held
from stepmark.verifiers.base import Verifier, isolation_note, isolation_of, open_verifier
from stepmark.verifiers.code_sandbox import Isolation
from stepmark.words import amount

VOTES = ("majority", "weighted-vote", "best-of-n")
"""Always in the comparison: what samples alone reach, without a PRM and with it."""

_MANY, _SAMPLES = 1_000_000, (1, 2, 4, 8, 16, 32)
"""Samples that no budget reaches; numbers of samples at which the votes are measured too."""
_ENOUGH, _CUT, _TRIALS = 0.9, 0.5, 8
"""A size that spends so much of the budget is large enough; one of which the budget cuts more searches short is too large."""


@settings
class SearchContest(Evaluation):
    """Search methods at equal tokens: accuracy against what policy and PRM spend together, with votes beside them.

    Every method is made as large as a budget allows and run on every problem; a majority vote, a weighted vote and best-of-N always
    take part. The data are problems with reference answers. A run that was stopped continues with the same call.
    """

    name: ClassVar[str] = "search"
    models: ClassVar[tuple[str, ...]] = ("prm", "policy")
    reads_scores: ClassVar[bool] = False
    budgets: Sequence[Annotated[int, Field(ge=1)]]
    """Tokens of policy and PRM together that a problem may cost, one point of each curve: 500 1000 2000 4000."""
    methods: Sequence[str] = ()
    """Which methods; the votes always take part. Default: all. A search of your own as package.module:Class."""
    method_settings: Sequence[str] = ()
    """A field of a method, as METHOD.name=value: beam.expand=2."""
    aggregate: str | None = None
    """How step scores make one number. Default: the PRM's own."""
    pilot: Annotated[int, Field(ge=1)] = 12
    """Problems that sizes are fitted on."""
    how: Steps = field(default_factory=Steps)
    """How steps are written; the run's seed counts."""
    verifier: str = "math"
    """What says whether an answer is right: math, number, choice, text, code, or "package.module:Class"."""
    answers: Literal["stated", "marked"] = "stated"
    """Which answers of a solution count: stated, also its concluding statement; marked, only a box, ####, "the answer is"."""
    isolation: Isolation | None = None
    """With the verifier code, what keeps programs apart: bubblewrap, a sandbox; or unsafe, which is none: your files are open to them. Default: bubblewrap."""
    in_flight: Annotated[int, Field(ge=1)] = 16
    """Problems that are searched at once."""

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        if not self.budgets or list(self.budgets) != sorted(set(self.budgets)):
            raise UsageError(f"`budgets`: expected increasing numbers of tokens, found {list(self.budgets)}")
        if run.policy is None:
            raise UsageError("expected `policy`, which writes what is searched")
        if self.how.temperature == 0:
            raise UsageError("temperature 0: all samples of a prefix would be equal; expected more than 0")

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items)

    def measure(self, run: Run) -> EvaluationResult:
        """See `Evaluation.measure`."""
        methods, sources = self._methods()
        read = [problem for file in run.data for problem in read_problems(file, columns=run.columns)]
        problems = run.spaced(read)
        if len({problem.id for problem in problems} - {None}) < len(problems):
            raise InputError("expected an id of its own for each problem", field="id")
        with ExitStack() as stack:
            verifier = stack.enter_context(
                open_verifier(self.verifier, answers=self.answers, isolation=self.isolation)
            )
            if (isolation := isolation_of(self.verifier, self.isolation)) is not None:
                run.note(isolation_note(isolation))
            stack.enter_context(held(made_folder(run.folder)))
            prm = run.loaded(run.prm)
            named = run.policy.with_arguments(counts=True) if isinstance(run.policy, Lazy) else run.policy
            policy = run.loaded(named)
            contest = _Contest(
                how=replace(self.how, seed=run.seed),
                grading=Grading(aggregate=self.aggregate or prm.default_aggregate, kind=prm.score_kind),
                models=models_of(policy, prm),
                verifier=verifier,
                store=stack.enter_context(closing(ReplyFile(run.folder / "replies.sqlite"))),
                in_flight=self.in_flight,
                run=run,
            )
            methods = contest.usable(methods, named=self.methods)
            count = min(self.pilot, len(problems))
            pilot = [problems[at * len(problems) // count] for at in range(count)]
            sizes = {
                (name, budget): contest.size(method, pilot, budget)
                for name, method in methods.items()
                if method.sized_by is not None
                for budget in self.budgets
            }
            items = contest.items(methods, problems, self.budgets, sizes)
            figures = run.figures(items, statistic(items))
        facts = [
            f"{amount(len(items), 'problem')}; prefixes and solutions are compared by the {contest.grading.aggregate} of their step scores.",
            f"Sizes were fitted on {amount(count, 'problem')} of these, without looking at an answer; the tokens of that are not counted.",
            *contest.facts,
            INTERVALS,
        ]
        report = Report(
            title=f"Search: {policy.name} with {prm.name}",
            verdict=_verdict(figures, list(methods), self.budgets[-1]),
            facts=facts,
            tiles=tiles_of(
                figures, {f"{name}, %": f"accuracy/{name}/{self.budgets[-1]}" for name in methods}
            ),
            sections=_sections(figures, list(methods), self.budgets, sizes),
        )
        return run.result(
            self,
            report,
            figures,
            items,
            prm=prm.name,
            identity=prm.identity,
            policy=policy.name,
            policy_identity=policy.identity,
            isolation=isolation,
            aggregate=contest.grading.aggregate,
            sizes={f"{name} at {budget}": size for (name, budget), size in sizes.items()},
            sources=sources,
        )

    def _methods(self) -> tuple[dict[str, Searching], dict[str, Any]]:
        """The searches by name, the votes first, and where a caller's own are from."""
        names = list(dict.fromkeys((*VOTES, *(self.methods or METHODS))))
        of: dict[str, list[str]] = {name: [] for name in names}
        for setting in self.method_settings:
            name = next((name for name in names if setting.startswith(f"{name}.")), None)
            if name is None:
                raise UsageError(
                    f"`method_settings` {setting}: expected METHOD.name=value, METHOD one of {', '.join(names)}"
                )
            of[name].append(setting[len(name) + 1 :])
        searches: dict[str, Searching] = {}
        sources = {}
        for name in names:
            search, source = load_search(name, of[name])
            assert isinstance(search, Searching)
            if search.name in searches or "/" in search.name:
                raise UsageError(
                    f"`methods` {name}: the name {search.name!r} is taken or has a slash; give the class another name"
                )
            searches[search.name] = search
            if source is not None:
                sources[search.name] = dict(source)
        return searches, sources


@dataclass(kw_only=True)
class _Contest:
    """What the searches of a comparison run in."""

    how: Steps
    grading: Grading
    models: Models
    verifier: Verifier
    store: ReplyStore
    in_flight: int
    run: Run
    facts: list[str] = field(default_factory=list)
    verdicts: dict[tuple[str | None, str], bool | None] = field(default_factory=dict)

    def usable(self, methods: Mapping[str, Searching], *, named: Sequence[str]) -> dict[str, Searching]:
        """The methods with the settings of the run, without those that these scores do not allow and the caller did not name."""
        usable = {}
        for name, search in methods.items():
            try:
                usable[name] = remade(search, how=self.how, grading=self.grading)
            except UsageError as error:
                if name in named:
                    raise
                self.facts.append(f"Without {name}: {error}.")
        return usable

    def search(
        self, method: Searching, problems: Sequence[Problem], budget: int, size: int | None = None
    ) -> list[SearchResult | Refusal]:
        """A method at a size, with a budget, on some problems."""
        at = "" if size is None else f", size {size}"
        self.run.note(f"{method.name} at {budget:,} tokens{at}: {amount(len(problems), 'problem')}")
        field_ = "n" if isinstance(method, SampledSearch) else method.sized_by
        size = _MANY if isinstance(method, SampledSearch) and size is None else size
        more: dict[str, Any] = {} if field_ is None or size is None else {field_: size}
        search = remade(method, budget=Budget(tokens=budget), **more)
        return list(
            run_search(
                problems,
                search,  # type: ignore[arg-type]
                self.models,
                self.verifier,
                store=self.store,
                in_flight=self.in_flight,
            )
        )

    def size(self, method: Searching, pilot: Sequence[Problem], budget: int) -> int:
        """The size at which a method spends a budget: doubled until then; halfway back where that was too large."""
        good, too_large, size, most = 0, 0, 1, -1.0
        for _ in range(_TRIALS):
            results = [
                one for one in self.search(method, pilot, budget, size) if isinstance(one, SearchResult)
            ]
            spent = fmean(one.cost.tokens or 0 for one in results) if results else 0.0
            cut = fmean(one.stopped == "budget" for one in results) if results else 0.0
            if cut > _CUT or spent <= most:
                too_large = size
            else:
                good, most = size, spent
            size = (good + too_large) // 2 if too_large else 2 * good
            if size == good or most >= _ENOUGH * budget:
                break
        return max(good, 1)

    def items(
        self,
        methods: Mapping[str, Searching],
        problems: Sequence[Problem],
        budgets: Sequence[int],
        sizes: Mapping[tuple[str, int], int],
    ) -> list[Item]:
        """An item a problem: `runs` holds method -> budget, or n=N of the votes -> what `_run` gives."""
        items: dict[str | None, Item] = {
            one.id: {"id": one.id, "problem": one.id, "runs": {}} for one in problems
        }
        for name, method in methods.items():
            samples = _SAMPLES if name in VOTES else ()
            points: list[tuple[str, int, int | None]] = [(f"n={n}", budgets[0], n) for n in samples]
            points += [(str(budget), budget, sizes.get((name, budget))) for budget in budgets]
            for point, budget, size in points:
                results = self.search(method, problems, budget, size)
                for problem, result in zip(problems, results, strict=True):
                    if problem.id not in items:
                        continue
                    if isinstance(result, Refusal):
                        del items[problem.id]
                        self.facts.append(f"Left out: {result.error}.")
                    else:
                        runs = items[problem.id]["runs"].setdefault(name, {})
                        runs[point] = self._run(result)
        if not items:
            raise InputError(f"no problem could be searched. {self.facts[-1]}")
        return list(items.values())

    def _run(self, found: SearchResult) -> dict[str, Any]:
        chosen = found.solution
        return {
            "right": chosen is not None and self._right(found.problem, chosen),
            "answer": None if chosen is None else chosen.answer,
            "stopped": found.stopped,
            "tokens": found.cost.tokens,
            "decoded": found.cost.decoded,
            "prm": found.cost.prm,
        }

    def _right(self, problem: Problem, candidate: Candidate) -> bool | None:
        if not candidate.finished or candidate.answer is None:
            return False
        key = (problem.id, candidate.answer)
        if key not in self.verdicts:
            self.verdicts[key] = self.verifier.verify(candidate.text, problem.answer or "").correct
        return self.verdicts[key]


def statistic(rows: Sequence[Item]) -> Statistic:
    """The figures of these items as a function of their weights.

    For each METHOD and BUDGET: `accuracy/METHOD/BUDGET`, right / (right + wrong); `tokens/METHOD/BUDGET`, what a problem cost on
    average; and for each vote of `VOTES` `over VOTE/METHOD/BUDGET`, the accuracy less that of the vote at as many tokens as the method spent.
    """
    cells = list(
        dict.fromkeys((name, at) for row in rows for name, runs in row["runs"].items() for at in runs)
    )
    columns: dict[str, tuple[list[float], list[float]]] = {}
    for name, at in cells:
        runs = [row["runs"][name][at] for row in rows]
        ones = [1.0] * len(runs)
        columns[f"accuracy/{name}/{at}"] = (
            [float(run["right"] is True) for run in runs],
            [float(run["right"] is not None) for run in runs],
        )
        columns[f"tokens/{name}/{at}"] = ([float(run["tokens"]) for run in runs], ones)
    ratios = ratio_statistic(columns)

    def compute(weights: Floats) -> dict[str, Floats]:
        figures = dict(ratios(weights))
        for vote in VOTES:
            points = [at for name, at in cells if name == vote]
            if points:
                xs, ys = (
                    np.stack([figures[f"{what}/{vote}/{at}"] for at in points], axis=1)
                    for what in ("tokens", "accuracy")
                )
                for name, at in cells:
                    if name != vote:
                        there = between(xs, ys, figures[f"tokens/{name}/{at}"])
                        figures[f"over {vote}/{name}/{at}"] = figures[f"accuracy/{name}/{at}"] - there
        return figures

    return compute


def _verdict(figures: Figures, names: Sequence[str], budget: int) -> str:
    best = max(names, key=lambda name: figures[f"accuracy/{name}/{budget}"].value or 0.0)
    lead = figures.get(f"over majority/{best}/{budget}")
    over = (
        ""
        if lead is None or lead.value is None
        else f", {written(lead, 'points')} points over the majority vote at equal tokens"
    )
    return (
        f"With {budget:,} tokens a problem {best} is right most often, on {shown(figures[f'accuracy/{best}/{budget}'])} %{over}. "
        f"It is the best of {len(names)} methods on these problems, which flatters it: measure it again on others."
    )


def _sections(
    figures: Figures, names: Sequence[str], budgets: Sequence[int], sizes: Mapping[tuple[str, int], int]
) -> tuple[Section, ...]:
    def table(title: str, kind: Kind, what: str, note: str) -> Table:
        columns: dict[str, Column] = {f"{at:,}": (kind, f"{what}/{{}}/{at}") for at in budgets}
        return table_of(
            title, "Method", [name for name in names if what != f"over {name}"], columns, figures, note=note
        )

    def line(name: str) -> Series:
        points = [(figures[f"tokens/{name}/{at}"].value or 0.0, at) for at in budgets]
        points = sorted((spent, at) for spent, at in points if spent > 0)
        series = series_of(name, [figures[f"accuracy/{name}/{at}"] for _, at in points])
        return replace(series, x=tuple(spent for spent, _ in points))

    plot = Lines(
        title="Accuracy against tokens",
        x_label="Tokens really spent on a problem: policy and PRM",
        y_label="Accuracy, %",
        series=tuple(series for series in map(line, names) if series.y),
        log_x=True,
    )
    accuracy = table(
        "Accuracy, %",
        "share",
        "accuracy",
        "With budgets of so many tokens a problem, of which a method may leave some.",
    )
    over = [
        table(
            f"Over {vote} at equal tokens, percentage points",
            "points",
            f"over {vote}",
            f"Accuracy less that of {vote} for as many tokens, on the same problems; 95 % paired bootstrap intervals, * where 0 is not in "
            "them; a dash where the vote was not measured near that many tokens.",
        )
        for vote in VOTES
        if vote in names
    ]
    sized = "; ".join(f"{name} at {at:,}: {size}" for (name, at), size in sizes.items())
    tokens = table("Tokens spent on a problem", "count", "tokens", f"Sizes: {sized}." if sized else "")
    return (
        Section(title="Accuracy at equal tokens", items=(accuracy, *over, plot)),
        Section(title="Behind the figures", items=(tokens,)),
    )
