"""A comparison of searches: models and problems in; figures, tables, examples where methods disagree, and their trees out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from stepmark.errors import UsageError
from stepmark.evaluation.evaluation import INTERVALS, Evaluation, Run, Views
from stepmark.evaluation.result import Figure, Item, Result, made_folder, shown
from stepmark.evaluation.search_contest import (
    BASELINES,
    ENDS,
    METHODS,
    SPREAD,
    Arena,
    Contest,
    Contested,
    Shape,
    Unit,
    cells_of,
    contest,
    entrants,
    statistic,
)
from stepmark.evaluation.views import (
    Cell,
    Figures,
    cell,
    series_of,
    spread,
    starred,
    table_of,
    tile,
)
from stepmark.metrics.intervals import Statistic
from stepmark.models import policies
from stepmark.models import prm as prms
from stepmark.models.lazy import Lazy
from stepmark.models.policies import Policy
from stepmark.models.prm import PRM
from stepmark.models.replies import ReplyFile
from stepmark.own import Own
from stepmark.problems.code_sandbox import Isolation
from stepmark.problems.sources import read_problems
from stepmark.records import Problem
from stepmark.search.base import Found, Grading, ModelSize, Searching, Sizes, Steps
from stepmark.search.methods import OF_THE_RUN, own_search
from stepmark.search.rows import view_of
from stepmark.settings import settings
from stepmark.show.evaluation import Section
from stepmark.show.plots import Lines
from stepmark.show.search import SearchPage, SearchView, search_html
from stepmark.show.tables import ABSENT, Table
from stepmark.show.text import amount
from stepmark.store import held
from stepmark.verifiers import base as verifiers
from stepmark.verifiers.base import isolation_note, isolation_of, open_verifier

SHOWN = 4
"""Examples of each sort."""

FEW = 30
"""Of fewer problems a bootstrap interval is too narrow: the report says so."""

_SAMPLING = ("greedy", "majority", "best-of-n", "weighted-vote", "adaptive")
"""Methods that write whole solutions; the others grow trees."""

_CERTAIN = 20
"""A separation beyond this is not written in digits: the scores are hardly ever wrong."""

_NAMES = {"majority": "majority vote", "best-of-n": "best-of-N"}


@settings
class SearchContest(Evaluation):
    """Search methods at matched compute: accuracy against what policy and PRM spend together.

    Every method is made as large as a budget allows and run on every problem; a majority vote and best-of-N always stand beside it. The data
    are problems with reference answers. A run that was stopped continues with the same call. trees.html shows searches on which methods
    disagree.
    """

    name: ClassVar[str] = "search"
    models: ClassVar[tuple[str, ...]] = ("prm", "policy")
    budgets: Sequence[float]
    """What a problem may cost, one point of each curve: 500 1000 2000 4000."""
    unit: Unit = "tokens"
    """Unit of the budgets: tokens of policy and PRM together, or operations of both (needs the numbers of parameters)."""
    methods: Sequence[str] = ()
    """Which methods; majority and best-of-n are always among them. Default: all. A search of your own as package.module:Class."""
    own_settings: Sequence[str] = ()
    """A field of your own search, as name=value. With several searches of your own: package.module:Class.name=value."""
    seeds: Annotated[int, Field(ge=1)] = 1
    """Repeat everything this often with other samples: accuracies are means, and their spread is shown."""
    aggregate: str | None = None
    """How step scores make one number. Default: the PRM's own."""
    shape: Shape = field(default_factory=Shape)
    """What the searches have in common."""
    pilot: Annotated[int, Field(ge=0)] = 12
    """Problems that sizes are fitted on; 0 takes what a solution costs best-of-N for granted."""
    how: Steps = field(default_factory=Steps)
    """How steps are written; the run's seed counts."""
    verifier: str = "math"
    """What says whether an answer is right: math, number, choice, text, code, or "package.module:Class"."""
    percent: Literal["distinct", "sign"] = "distinct"
    """Whether 10% is 1/10 only, or 10 too (GSM8K's references leave the sign out)."""
    isolation: Isolation | None = None
    """With the verifier code, what keeps programs apart: bubblewrap, a sandbox; or unsafe, which is none: your files are open to them. Default: bubblewrap."""
    policy_parameters: Annotated[float, Field(gt=0)] | None = None
    """Weights of the policy, to count operations, without the table of embeddings."""
    prm_parameters: Annotated[float, Field(gt=0)] | None = None
    """Weights of the PRM, to count operations."""
    in_flight: Annotated[int, Field(ge=1)] = 16
    """Problems that are searched at once."""
    memory_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens whose keys and values the PRM keeps at most. Default: 65,536."""
    policy_memory_tokens: Annotated[int, Field(ge=0)] = 65_536
    """Tokens whose keys and values a policy in this process keeps; 0 for none."""
    replies: str | Path | None = None
    """The store of replies, such as an earlier FOUND.replies.sqlite of stepmark search. Default: one in the folder of results."""

    def __post_init__(self) -> None:
        if self.unit == "flops" and None in (self.policy_parameters, self.prm_parameters):
            raise UsageError("`unit` flops needs `policy_parameters` and `prm_parameters`")

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        if run.scores is not None or run.model_name is not None:
            raise UsageError(
                "`scores` and `model_name`: a search asks the PRM for what it writes; there are no scores to read"
            )
        if run.policy is None:
            raise UsageError("expected `policy`, which writes what is searched")

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `search_contest.statistic`."""
        return statistic(items)

    def measure(self, run: Run) -> Result:
        """See `Evaluation.measure`."""
        theirs = self._own()
        names = tuple(name for name in self.methods if name not in theirs) if self.methods else METHODS
        contest_ = Contest(
            budgets=tuple(self.budgets),
            unit=self.unit,
            entrants=entrants(names, self.shape, [own.method for own in theirs.values()]),
            seeds=self.seeds,
            pilot=self.pilot,
        )
        every = [problem for file in run.data for problem in read_problems(file, columns=run.columns)]
        problems = run.spaced(every)
        if len(problems) < len(every):
            run.facts.append(
                f"Only {len(problems):,} of the data's {amount(len(every), 'problem')} were taken (limit {run.limit}), evenly spaced."
            )
        with ExitStack() as stack:
            verifier = stack.enter_context(
                open_verifier(self.verifier, percent=self.percent, isolation=self.isolation)
            )
            isolation = isolation_of(self.verifier, self.isolation)
            if isolation is not None:
                run.note(isolation_note(isolation))
            stack.enter_context(held(made_folder(run.folder)))
            prm: PRM = run.loaded(run.prm)
            named = run.policy
            if isinstance(named, Lazy):
                named = named.with_arguments(counts=True, memory_tokens=self.policy_memory_tokens)
            policy: Policy = run.loaded(named)
            grading = Grading(aggregate=self.aggregate or prm.default_aggregate, kind=prm.score_kind)
            store = stack.enter_context(closing(ReplyFile(self.replies or run.folder / "replies.sqlite")))
            arena = Arena(
                answerers={
                    **policies.answerers(policy),
                    **prms.answerers(prm, memory_tokens=self.memory_tokens),
                    **verifiers.answerers(verifier),
                },
                verifier=verifier,
                common=Searching(
                    how=replace(self.how, seed=run.seed),
                    grading=grading,
                    sizes=Sizes(
                        **{
                            name: None if parameters is None else ModelSize(parameters=parameters)
                            for name, parameters in (
                                ("policy", self.policy_parameters),
                                ("prm", self.prm_parameters),
                            )
                        }
                    ),
                ),
                store=store,
                in_flight=self.in_flight,
                tell=lambda line: run.note(
                    f"{line}; {amount(policy.tokens_written, 'token')} written so far"
                ),
            )
            try:
                return self.of_arena(
                    problems,
                    contest_,
                    arena,
                    run,
                    prm=prm.name,
                    policy=policy.name,
                    threshold=prm.default_threshold,
                    **_facts_of(theirs),
                    isolation=isolation,
                    aggregate=grading.aggregate,
                    prm_identity=prm.identity,
                    policy_identity=policy.identity,
                )
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"every reply is kept in {store.path}; the same command continues"
                ) from None

    def _own(self) -> dict[str, Own]:
        """The caller's own searches among the methods, by how they are named, each with its settings.

        Raises:
            UsageError: no such search, one named twice, or a setting that belongs to none.
        """
        names = [name for name in self.methods if ":" in name]
        given: dict[str, list[str]] = {name: [] for name in names}
        if len(given) < len(names):
            raise UsageError(f"`methods` {' '.join(names)}: one is named twice")
        for own_setting in self.own_settings:
            key = own_setting.partition("=")[0]
            if not names:
                raise UsageError(
                    f"`settings` {own_setting}: it sets a field of a search of your own, and `methods` names none (package.module:Class)"
                )
            whose = next((name for name in names if key.startswith(f"{name}.")), None)
            if whose is None and len(names) > 1:
                raise UsageError(
                    f"`settings` {own_setting}: of which search? Expected one of "
                    + ", ".join(f"{n}.{own_setting}" for n in names)
                )
            given[whose or names[0]].append(own_setting if whose is None else own_setting[len(whose) + 1 :])
        return {name: own_search(name, values, setting="methods") for name, values in given.items()}

    def of_arena(
        self,
        problems: Sequence[Problem],
        contest_: Contest,
        arena: Arena,
        run: Run,
        *,
        prm: str,
        policy: str,
        threshold: float | None = None,
        **filled: Any,
    ) -> Result:
        """Compare the methods and report it.

        Raises:
            InputError: problems that cannot be compared on; see `search_contest.contest`.
            UsageError: a budget that cannot be kept.
            BackendError: a model failed.
        """
        contested = contest(problems, contest_, arena)
        items, budgets = contested.items, contest_.names
        figures = run.figures(items, statistic(items))
        disputed, trees = _disagreements(problems, contested, contest_, arena, threshold)
        aggregate = arena.common.grading.aggregate
        fitted = sum(fit.tried for fit in contested.fits.values())
        count = len(items)
        facts = [
            f"{amount(count, 'problem')}, {amount(contest_.seeds, 'seed')}; budgets are limits on "
            f"{contest_.unit} a problem, the policy's and the PRM's together.",
            f"Prefixes and solutions are compared by the {aggregate} of their step scores.",
        ]
        if fitted:
            facts.append(
                f"Sizes were fitted on {min(contest_.pilot, len(problems))} of these problems without looking at answers, in {fitted} "
                "runs that no method is charged for."
            )
        if count < FEW:
            facts.append(
                f"With only {amount(count, 'problem')} the intervals are too narrow, and "
                "of a method that is right on all or on none they have no width: read no star as a finding."
            )
        facts += [f"Left out: {why}" for why in contested.refused]
        names = list(dict.fromkeys(name for name, _ in cells_of(items)))
        first = [*(name for name in BASELINES if name in names), *names]
        views = Views(
            title=f"Search: {policy} with {prm}",
            verdict=_verdict(figures, names, budgets[-1], contest_),
            facts=facts,
            remarks=(INTERVALS,),
            tiles=[
                tile(f"{name}, {words(contest_.budgets[-1])} {contest_.unit}, %", figure)
                for name in dict.fromkeys(first)
                if (figure := figures.get(f"accuracy/{name}/{budgets[-1]}")) is not None
                and figure.value is not None
            ],
            sections=(
                Section(
                    title="Accuracy against compute",
                    text="Every method with the same limits. A method is worth its tokens where it is above both the majority vote and best-of-N at what "
                    "it has spent.",
                    items=(
                        by_budget(
                            "Accuracy by method and budget, %",
                            names,
                            contest_,
                            lambda budget: cell(figures, f"accuracy/{{}}/{budget}"),
                            note=f"{amount(count, 'problem')}, {amount(contest_.seeds, 'seed')} each; 95 % intervals over problems. The budget is a limit: "
                            "what was spent is in the next table.",
                        ),
                        spent_table(names, contested, figures, contest_),
                        plot(contested, figures, contest_),
                    ),
                ),
                Section(
                    title="Against the baselines", items=tuple(difference_tables(names, figures, contest_))
                ),
                Section(title="How searches end", items=ends_tables(names, figures, contest_)),
                Section(
                    title="How well do the scores separate right from wrong?",
                    text=advice(figures),
                    items=(
                        table_of(
                            f"Spread of the {aggregate} of step scores",
                            "Of best-of-N's solutions",
                            SPREAD,
                            {"Value": cell(figures, "spread/{}", scale=1, digits=3)},
                            label=str.capitalize,
                            note="Gap: mean of those that come out right less that of the wrong ones, of one problem. Noise: standard "
                            "deviation within one problem and class. Separation: gap / noise.",
                        ),
                    ),
                ),
                Section(
                    title="Where they disagree",
                    text="With the largest budget and the first seed.",
                    items=tuple(disputed),
                ),
            ),
            pages={"trees.html": lambda: _trees(tuple(trees), prm)} if trees else {},
        )
        sizes = {
            f"{name} at {budget}": fit.size for (name, budget), fit in contested.fits.items() if fit.tried
        }
        return run.result(self, views, figures, items, prm=prm, sizes=sizes, **filled)


def _verdict(figures: Figures, names: Sequence[str], budget: str, settings: Contest) -> str:
    """The best method with the largest budget, its lead over the majority vote, and whether a search can pay."""
    known = {
        name: figure
        for name in names
        if (figure := figures.get(f"accuracy/{name}/{budget}")) is not None and figure.value is not None
    }
    if not known:
        return advice(figures)
    best = max(known, key=lambda name: known[name].value or 0.0)
    lead = figures.get(f"over majority/{best}/{budget}")
    over = "" if lead is None else f", {starred(lead)} points over the majority vote"
    return (
        f"With {words(float(budget))} {settings.unit} a problem {best} is right most often, on {shown(known[best])} %{over}. "
        f"{advice(figures)}"
    )


def _trees(trees: tuple[SearchView, ...], prm: str) -> Iterator[str]:
    page = SearchPage(
        title="Searches on which methods disagree",
        searches=trees,
        facts=(f"Each step is scored by the PRM {prm}.",),
    )
    return search_html(page)


def _facts_of(theirs: Mapping[str, Own]) -> dict[str, Any]:
    """What the result says of the caller's own searches."""
    facts = {
        their.method.name: {
            "settings": {
                key: value for key, value in asdict(their.method).items() if key not in (*OF_THE_RUN, "how")
            },
            "source": their.source,
        }
        for their in theirs.values()
    }
    return {"own": json.loads(json.dumps(facts, default=str))} if facts else {}


def _disagreements(
    problems: Sequence[Problem], found: Contested, settings: Contest, arena: Arena, threshold: float | None
) -> tuple[list[Table], list[SearchView]]:
    """Problems on which trees and samples disagree: what each method answered, and the trees, searched again (from the store)."""
    budget = settings.names[-1]
    sorts: dict[str, list[Item]] = {"Right only by growing trees": [], "Right only by whole samples": []}
    for item in found.items:
        right = {name: cells[budget][0]["right"] for name, cells in item["runs"].items() if budget in cells}
        trees = [value for name, value in right.items() if name not in _SAMPLING]
        samples = [right[name] for name in BASELINES if name in right]
        if True in trees and samples and not any(value is not False for value in samples):
            sorts["Right only by growing trees"].append(item)
        if trees and True in samples and not any(value is not False for value in trees):
            sorts["Right only by whole samples"].append(item)

    def answer(item: Item, name: str) -> str:
        run = item["runs"][name][budget][0]
        return run["end"] if run["answer"] is None else f"{run['answer']}, {run['end']}"

    def judge(text: str, gold: str) -> bool | None:
        return arena.verifier.verify(text or None, gold).correct

    tables, views = [], []
    names = [entrant.name for entrant in settings.entrants]
    for title, items in ((title, of) for title, of in sorts.items() if of):
        chosen = spread(items, SHOWN)
        tables.append(
            Table(
                title=f"{title} ({len(items):,})",
                columns=("Problem", "Reference", *names),
                rows=tuple(
                    (problem.id or "", problem.answer or "", *(answer(item, name) for name in names))
                    for item in chosen
                    for problem in problems
                    if problem.id == item["id"]
                ),
                note=f"{len(chosen)} of {len(items):,}: what each method answered. Their trees are in trees.html.",
            )
        )
        places = {item["id"]: at for at, item in enumerate(chosen)}
        drawn = []
        for entrant in settings.entrants:
            if entrant.name in _SAMPLING:
                continue
            size = found.fits[entrant.name, budget].size
            again = [problem for problem in problems if problem.id in places]
            for result in arena.search(again, settings, entrant, size, settings.budgets[-1]):
                if isinstance(result, Found):
                    view = view_of(result, threshold=threshold, judge=judge)
                    named = replace(view, name=f"{result.problem.id}: {entrant.name}")
                    drawn.append((places[result.problem.id], named))
        views += [view for _, view in sorted(drawn, key=lambda pair: pair[0])]
    return tables, views


def words(compute: float) -> str:
    """An amount of compute: whole tokens, or operations with three digits."""
    return f"{compute:,.0f}" if compute < 1e7 else f"{compute:.3g}"


def by_budget(
    title: str, names: Sequence[str], settings: Contest, of: Callable[[str], Cell], *, note: str
) -> Table:
    """A table of methods by budgets; `of` gives the column of a budget."""
    columns = {words(float(budget)): of(budget) for budget in settings.names}
    return table_of(title, "Method", names, columns, note=note)


def spent_table(names: Sequence[str], contested: Contested, figures: Figures, settings: Contest) -> Table:
    """What every method has really spent, and its size."""

    def of(budget: str) -> Cell:
        def text(name: str) -> str:
            figure = figures.get(f"spent/{name}/{budget}")
            if figure is None or figure.value is None:
                return ABSENT
            fit = contested.fits.get((name, budget))
            size = "" if fit is None or not fit.tried else f", size {fit.size}"
            return f"{words(figure.value)} ({figure.value / float(budget):.0%}{size})"

        return text

    return by_budget(
        f"Spent on a problem, {settings.unit} of policy and PRM",
        names,
        settings,
        of,
        note="Means, with the share of the budget. Size: steps a round of beam, dvts, rebase and early-rejection, children of a node of "
        "mcts, the field that a search of the caller's own names; fitted on a few of the problems so that the budget is spent and most "
        "searches come to their end. A search that comes to its end earlier leaves the rest.",
    )


def difference_tables(names: Sequence[str], figures: Figures, settings: Contest) -> list[Table]:
    """Over the majority vote and over best-of-N: with the same budget, and for what was really spent."""
    keys = {"same budget": "", "same spend": " at equal spend"}
    tables = []
    for baseline in BASELINES:
        rows = [f"{name}/{key}" for name in names if name != baseline for key in keys]

        def of(budget: str, baseline: str = baseline) -> Cell:
            def text(row: str) -> str:
                name, _, key = row.rpartition("/")
                figure = figures.get(f"over {baseline}{keys[key]}/{name}/{budget}")
                return starred(figure)

            return text

        columns: dict[str, Cell] = {"At the": lambda row: row.rpartition("/")[2]}
        tables.append(
            table_of(
                f"Over {_NAMES[baseline]}, percentage points",
                "Method",
                rows,
                columns | {words(float(budget)): of(budget) for budget in settings.names},
                label=lambda row: row.rpartition("/")[0],
                left=2,
                note="Differences on the same problems, 95 % paired bootstrap intervals; * where the interval leaves out 0. Same spend: "
                f"what {_NAMES[baseline]} reaches for as many {settings.unit} as the method really spent, between its points; a dash where "
                "it was not measured near that.",
            )
        )
    return tables


def ends_tables(names: Sequence[str], figures: Figures, settings: Contest) -> tuple[Table, ...]:
    """Whether a right solution was among the candidates; how searches end otherwise than with an answer."""
    tables = [
        by_budget(
            "A right solution is among the candidates, %",
            names,
            settings,
            lambda budget: cell(figures, f"found/{{}}/{budget}"),
            note="Chosen or not: the ceiling of every choice among what was found.",
        )
    ]
    ends = [
        f"{what}/{name}"
        for name in names
        for what in ENDS
        if any(f"{what}/{name}/{budget}" in figures for budget in settings.names)
    ]
    if ends:
        tables.append(
            by_budget(
                "How searches end, % of searches",
                ends,
                settings,
                lambda budget: cell(figures, f"{{}}/{budget}"),
                note="No answer, unfinished and nothing (chosen) count as wrong. No verdict is left out of the accuracy. Stopped by budget: the "
                "method would have gone on; it chose among what it had.",
            )
        )
    return tuple(tables)


def plot(contested: Contested, figures: Figures, settings: Contest) -> Lines:
    """Accuracy against what was really spent; the baselines come first."""
    points: dict[str, list[tuple[float, Figure]]] = {name: [] for name in BASELINES}
    for name, budget in cells_of(contested.items):
        accuracy, spent = figures.get(f"accuracy/{name}/{budget}"), figures.get(f"spent/{name}/{budget}")
        if accuracy is not None and accuracy.value is not None and spent is not None and spent.value:
            points.setdefault(name, []).append((spent.value, accuracy))
    series = []
    for name, of in points.items():
        of.sort(key=lambda point: point[0])
        line = series_of(name, [figure for _, figure in of])
        series.append(replace(line, x=tuple(spent for spent, _ in of)))
    unit = "Tokens" if settings.unit == "tokens" else "Operations"
    return Lines(
        title="Accuracy against compute",
        x_label=f"{unit} really spent on a problem: policy and PRM",
        y_label="Accuracy, %",
        series=tuple(series),
        log_x=True,
    )


def advice(figures: Figures) -> str:
    """The measured separation, and what it means for a search, in a sentence."""
    separation = figures.get("spread/separation")
    if separation is None or separation.value is None:
        return (
            "How far the scores separate right from wrong is not known: it takes problems with right and wrong solutions among best-of-N's, "
            "whose scores differ."
        )
    far = separation.value > _CERTAIN
    distance = f"more than {_CERTAIN}" if far else shown(separation, scale=1, digits=2)
    return (
        f"Right and wrong solutions of a problem lie {distance} standard deviations of the noise apart: "
        + (
            "the scores hardly tell them apart, so sample whole solutions and vote."
            if separation.value < 1
            else "a search that the scores guide can pay; choose among many of its solutions by a vote."
            if separation.value < 2
            else "a search that the scores guide can pay; read its size off the curves."
        )
    )
