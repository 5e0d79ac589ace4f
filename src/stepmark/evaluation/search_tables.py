"""A comparison of searches as tables and the accuracy-against-compute plot: from figures to what a reader sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepmark.errors import UsageError
from stepmark.evaluation.result import Figure, shown
from stepmark.evaluation.search import Contest, Contested
from stepmark.evaluation.search_entrants import BASELINES
from stepmark.evaluation.search_figures import ENDS, STOPS, cells_of
from stepmark.evaluation.search_width import POSITIONS, Advice, advise
from stepmark.show.compute import Point, compute_plot
from stepmark.show.plots import Lines
from stepmark.show.tables import ABSENT, Align, Table

Figures = Mapping[str, Figure]

_CERTAIN = 20
"""A separation beyond this is not told in digits: the scores are hardly ever wrong."""

_NAMES = {"majority": "majority vote", "best-of-n": "best-of-N"}


def methods_of(contested: Contested) -> list[str]:
    """The methods, in the order of the tables."""
    return list(dict.fromkeys(name for name, _ in cells_of(contested.items)))


def _right(columns: int) -> tuple[Align, ...]:
    right: Align = "right"
    return ("left", *(right,) * columns)


def _budgets(settings: Contest) -> tuple[str, ...]:
    return tuple(words(budget) for budget in settings.budgets)


def words(compute: float) -> str:
    """An amount of compute: whole tokens, or operations with three digits."""
    return f"{compute:,.0f}" if compute < 1e7 else f"{compute:.3g}"


def accuracy_table(contested: Contested, figures: Figures, settings: Contest) -> Table:
    """Accuracy of every method at every budget."""
    several = settings.seeds > 1
    return Table(
        title="Accuracy by method and budget, %",
        columns=("Method", *(f"{budget} {settings.unit}" for budget in _budgets(settings))),
        rows=tuple(
            (name, *(shown(figures.get(f"accuracy/{name}/{budget}")) for budget in settings.names))
            for name in methods_of(contested)
        ),
        note=f"{len(contested.items):,} problems"
        + (f", {settings.seeds} seeds each" if several else "")
        + "; 95 % intervals over problems. The budget is a limit: what was spent is in the next table.",
        align=_right(len(settings.names)),
    )


def spent_table(contested: Contested, figures: Figures, settings: Contest) -> Table:
    """What every method has really spent, and its size."""
    sizes = {(fit.method, fit.budget): fit for fit in contested.fits}

    def cell(name: str, budget: str) -> str:
        figure = figures.get(f"spent/{name}/{budget}")
        if figure is None or figure.value is None:
            return ABSENT
        fit = sizes.get((name, budget))
        size = "" if fit is None or not fit.tried else f", size {fit.size}"
        return f"{words(figure.value)} ({figure.value / float(budget):.0%}{size})"

    return Table(
        title=f"Spent on a problem, {settings.unit} of policy and PRM",
        columns=("Method", *_budgets(settings)),
        rows=tuple(
            (name, *(cell(name, budget) for budget in settings.names)) for name in methods_of(contested)
        ),
        note="Means, with the share of the budget. Size: steps a round of beam, dvts, rebase and early-rejection, children of a node of "
        "mcts, the field that a search of one's own names; fitted on a few of the problems so that the budget is spent and most searches come to their end. A search that comes to "
        "its end earlier leaves the rest.",
        align=_right(len(settings.names)),
    )


def difference_tables(contested: Contested, figures: Figures, settings: Contest) -> list[Table]:
    """Over the majority vote and over best-of-N: with the same budget, and for what was really spent."""
    tables = []
    for baseline in BASELINES:
        rows = []
        for name in methods_of(contested):
            if name == baseline:
                continue
            for what, key in (("same budget", ""), ("same spend", " at equal spend")):
                found = [figures.get(f"over {baseline}{key}/{name}/{budget}") for budget in settings.names]
                rows.append((name, what, *(difference(one) for one in found)))
        tables.append(
            Table(
                title=f"Over {_NAMES[baseline]}, percentage points",
                columns=("Method", "At the", *_budgets(settings)),
                rows=tuple(rows),
                note="Differences on the same problems, 95 % paired bootstrap intervals; * where the interval leaves out 0. Same spend: "
                f"what {_NAMES[baseline]} reaches for as many {settings.unit} as the method really spent, between its points; a dash where "
                "it was not measured near that.",
                align=("left", "left", *_right(len(settings.names))[1:]),
            )
        )
    return tables


def difference(figure: Figure | None) -> str:
    """A difference in percentage points, starred where its interval leaves out 0."""
    text = shown(figure)
    sure = (
        figure is not None
        and figure.low is not None
        and figure.high is not None
        and not figure.low <= 0 <= figure.high
    )
    return text + (" *" if sure else "")


def ends_table(contested: Contested, figures: Figures, settings: Contest) -> Table | None:
    """How searches end otherwise than with a right or a wrong answer; None where none does."""
    rows = []
    for name in methods_of(contested):
        for what in (*ENDS, *STOPS):
            found = [figures.get(f"{what}/{name}/{budget}") for budget in settings.names]
            if any(found):
                rows.append(
                    (name, what, *("0.0" if one is None else shown(one) for one in found)),
                )
    if not rows:
        return None
    return Table(
        title="How searches end, % of searches",
        columns=("Method", "What", *_budgets(settings)),
        rows=tuple(rows),
        note="No answer, unfinished and nothing (chosen) count as wrong. No verdict is left out of the accuracy. Stopped by budget: the "
        "method would have gone on; it chose among what it had.",
        align=("left", "left", *_right(len(settings.names))[1:]),
    )


def seeds_table(contested: Contested, figures: Figures, settings: Contest) -> Table | None:
    """How much the accuracy differs between seeds; None with one seed."""
    if settings.seeds < 2:
        return None

    def cell(name: str, budget: str) -> str:
        figure = figures.get(f"sd over seeds/{name}/{budget}")
        return ABSENT if figure is None or figure.value is None else f"{100 * figure.value:.1f}"

    return Table(
        title="Standard deviation over seeds, percentage points",
        columns=("Method", *_budgets(settings)),
        rows=tuple(
            (name, *(cell(name, budget) for budget in settings.names)) for name in methods_of(contested)
        ),
        note=f"Of the accuracy of one run over all problems, between {settings.seeds} runs with other samples.",
        align=_right(len(settings.names)),
    )


def found_table(contested: Contested, figures: Figures, settings: Contest) -> Table:
    """Share of searches with a right candidate: what a better choice at the end could reach."""
    return Table(
        title="A right solution is among the candidates, %",
        columns=("Method", *_budgets(settings)),
        rows=tuple(
            (name, *(shown(figures.get(f"found/{name}/{budget}")) for budget in settings.names))
            for name in methods_of(contested)
        ),
        note="Chosen or not: the ceiling of every choice among what was found.",
        align=_right(len(settings.names)),
    )


def plot(contested: Contested, figures: Figures, settings: Contest) -> Lines:
    """Accuracy against what was really spent."""
    methods: dict[str, list[Point]] = {}
    for name, budget in cells_of(contested.items):
        accuracy, spent = figures.get(f"accuracy/{name}/{budget}"), figures.get(f"spent/{name}/{budget}")
        if accuracy is None or accuracy.value is None or spent is None or not spent.value:
            continue
        low, high = accuracy.low, accuracy.high
        if low is None or high is None:
            low = high = None
        else:
            low, high = min(low, accuracy.value), max(high, accuracy.value)
        methods.setdefault(name, []).append((spent.value, accuracy.value, low, high))
    unit = "Tokens" if settings.unit == "tokens" else "Operations"
    return compute_plot(methods, x_label=f"{unit} really spent on a problem: policy and PRM")


def spread_table(figures: Figures, aggregate: str) -> Table:
    """How far the PRM's scores part right from wrong, by how much of a solution it has seen."""

    def cell(position: str, what: str) -> str:
        return shown(figures.get(f"spread/{position}/{what}"), scale=1, digits=3)

    return Table(
        title=f"Spread of the {aggregate} of step scores",
        columns=("Seen", "Gap", "Noise", "Separation", "Within a problem", "Between problems"),
        rows=tuple(
            (
                position,
                *(cell(position, what) for what in ("gap", "noise", "separation", "within", "between")),
            )
            for position in POSITIONS
        ),
        note="Of best-of-N's solutions. Gap: mean of those that come out right less that of the wrong ones, of one problem. Noise: standard "
        "deviation within one problem and class. Separation: gap / noise. Before the end, a prefix may be called wrong for an error that "
        "comes later, which makes the separation look smaller.",
        align=_right(5),
    )


def advice_of(figures: Figures, expands: Sequence[int], *, end: str = "value") -> list[Advice]:
    """Advice for several k from the measured spread; empty where it is not defined.

    Args:
        figures: with those of the spread.
        expands: k.
        end: "value" for the measured separation, "low" or "high" for an end of its interval.
    """
    whole, one, steps = (
        figures.get(name)
        for name in (f"spread/{POSITIONS[-1]}/separation", "spread/one sample", "spread/steps")
    )
    if whole is None or one is None or steps is None or not one.value or not steps.value:
        return []
    separation = {"value": whole.value, "low": whole.low, "high": whole.high}[end]
    if separation is None:
        return []
    rounds = max(1, round(steps.value))
    try:
        return [advise(separation, one.value ** (1 / rounds), rounds, expand=expand) for expand in expands]
    except UsageError:
        return []


def advice_table(figures: Figures, expand: int) -> Table | None:
    """Beam widths that keep a right way in 95 of 100 problems, for several k; None where nothing is known."""
    expands = sorted({2, 4, 8, expand})
    middle, low, high = (
        {one.expand: one for one in advice_of(figures, expands, end=end)} for end in ("value", "low", "high")
    )
    if not middle:
        return None

    def width(one: Advice) -> str:
        return f"over {max(one.lost)}" if one.width is None else f"{one.width}"

    columns = (1, 2, 4, 8, 16)
    rows = []
    for k, one in middle.items():
        # A higher separation asks for a narrower beam.
        ends = f" [{width(high[k])}, {width(low[k])}]" if k in low and k in high else ""
        lost = (f"{100 * one.lost[b]:.0f}" if b in one.lost else "" for b in columns)
        rows.append((f"{k}", width(one) + ends, *lost))
    right: Align = "right"
    return Table(
        title="Advised beam width",
        columns=("Steps after each beam", "Width", *(f"Lost with {b}, %" for b in columns)),
        rows=tuple(rows),
        note="The narrowest beam that loses every right way in at most 5 of 100 problems, by the measured separation [its interval]; beside "
        "it what narrower ones lose. A rule with assumptions: normal scores, fresh noise each round, no way back from an error, all "
        "problems alike (stepmark.evaluation.search_width). The curves are the measurement.",
        align=(right,) * (2 + len(columns)),
    )


def advice_words(figures: Figures, expand: int) -> str:
    """The advice for one k in a sentence."""
    found = advice_of(figures, [expand])
    if not found:
        return "No beam width can be advised: it takes problems with right and wrong solutions among best-of-N's, whose scores differ."
    one = found[0]
    separation = figures[f"spread/{POSITIONS[-1]}/separation"]
    far = separation.value is not None and separation.value > _CERTAIN
    lie = f"more than {_CERTAIN}" if far else shown(separation, scale=1, digits=2)
    said = f"Right and wrong solutions of a problem lie {lie} standard deviations of the noise apart. "
    if one.width is None:
        said += (
            f"With {expand} steps after each beam not even a width of {max(one.lost)} keeps the right ways: the scores do not tell them "
            "from wrong ones. Sample whole solutions and vote."
        )
    else:
        said += f"With {expand} steps after each beam, a width of {one.width} keeps a right way in 95 of 100 problems."
    if one.width is None or one.width > one.useful:
        said += (
            f" The highest score is expected to be right among {one.useful:.3g} wrong solutions at most: choose among more of them by a "
            "vote."
        )
    return said
