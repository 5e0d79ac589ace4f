"""Process against outcome: right answers reached by a wrong step, and right steps that end in a wrong answer.

Every solution stands in one of four cells, by whether all its steps are right (by labels, or by a PRM's scores under a
threshold) and whether its final answer is. ProcessBench (Zheng et al. 2024) counts the right answers that rest on a wrong step:
3.5 % on GSM8K, 18.8 % on MATH, 51.8 % on Omni-MATH; an outcome reward pays for them all the same.

A case whose outcome or process is not known is counted as such and enters no share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from stepmark.errors import UsageError
from stepmark.evaluation.cases import Case, Neutral, first_error, step_labels
from stepmark.evaluation.evaluation import Evaluation, Run, Views
from stepmark.evaluation.result import Figure, Item, Result
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.evaluation.sources import read_cases, read_openr
from stepmark.evaluation.thresholds import Policy, policies
from stepmark.evaluation.views import SHOWN, Cell, Figures, card, cell, problem, spread, table_of, tile
from stepmark.metrics.intervals import Floats, Statistic, ratio_statistic, shares, wilson
from stepmark.models.lazy import Lazy
from stepmark.records import LabelledSolution, StepScores
from stepmark.settings import settings
from stepmark.show.evaluation import Examples, Section
from stepmark.show.tables import ABSENT, Table

Process = Literal["labels", "scores"]
"""What says whether the steps are right."""

CELLS = ("right", "lucky", "unlucky", "wrong")
"""Right for right reasons; right answer, wrong step; every step right, wrong answer; both wrong."""

OVERALL = "overall"
"""The name of all groups together."""

WORDS = {
    "right": "right for right reasons",
    "lucky": "lucky: right answer, wrong step",
    "unlucky": "unlucky: every step right, wrong answer",
    "wrong": "wrong and shown wrong",
}
"""The cells in plain words."""

_MEANING = {
    "right": "Every step and the answer are right.",
    "lucky": "The answer is right although a step is wrong: errors that cancel, a guess, or a label that is wrong. An outcome reward "
    "pays for these.",
    "unlucky": "Every step is right and the answer does not match: often a wrong reference answer, a matter of format, something left "
    "out, or an error that went unseen.",
    "wrong": "A step and the answer are wrong.",
}

_BOTH = {
    "Same cell": "same-cell",
    "Lucky ones found": "lucky-found",
    "Called lucky, and are": "lucky-confirmed",
    "Unlucky ones found": "unlucky-found",
    "Called unlucky, and are": "unlucky-confirmed",
}
_OF_WRITERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "lucky-of-right": (("lucky",), ("right", "lucky")),
    "unlucky-of-wrong": (("unlucky",), ("unlucky", "wrong")),
}
_RATIOS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    **{name: ((name,), CELLS) for name in CELLS},
    **_OF_WRITERS,
    "lucky-of-flawed": (("lucky",), ("lucky", "wrong")),
    "agreement": (("right", "wrong"), CELLS),
}
"""Name to the cells that count and the cells in question."""


@settings
class Disagreement(Evaluation):
    """How often a right answer rests on a wrong step, and right steps end in a wrong answer, with intervals.

    The data are labelled solutions with outcomes: ProcessBench, candidates, Math-Shepherd, openr's rollout trees.
    """

    name: ClassVar[str] = "disagreement"
    process: Process = "labels"
    """What says whether the steps are right: the data's labels, or a PRM's scores. The other is shown beside it where there is one: with labels, the PRM of `scores`, or a PRM other than the default."""
    threshold: str | None = None
    """A step whose score is under it is an error: a number, argmax, tuned:GROUP (the best on that group's labels), or oracle. Default: the PRM's own."""
    trials: Annotated[int, Field(ge=1)] | None = None
    """Rollouts behind each share of an openr tree, which its files do not say. Default: of a share only whether any rollout succeeded is used."""
    neutral: Neutral = "positive"
    """What the neutral class of a three-class PRM, and a neutral human rating, count as."""

    def asks_prm(self, run: Run) -> bool:
        """See `Evaluation.asks_prm`."""
        return run.scores is None and self._graded(run)

    def _graded(self, run: Run) -> bool:
        default = isinstance(run.prm, Lazy) and run.prm.name == "default"
        return self.process == "scores" or run.scores is not None or not (run.prm is None or default)

    def read(self, run: Run) -> Sequence[Case]:
        """See `Evaluation.read`."""
        if self.trials is None:
            return read_cases(run.data, columns=run.columns)
        return read_openr(run.data, trials=self.trials, columns=run.columns)

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items)

    def measure(self, run: Run) -> Result:
        """See `Evaluation.measure`."""
        cases = run.take(self.read(run))
        return self.of_cases(cases, run, run.grade(cases) if self._graded(run) else None)

    def of_cases(self, cases: Sequence[Case], run: Run, sheet: Sheet | None = None) -> Result:
        """The 2x2 of process and outcome, by labels, by scores, or by both side by side.

        Args:
            cases: solutions of which at least some have an outcome.
            run: the run.
            sheet: their scores, in the same order.

        Raises:
            UsageError: no case has an outcome, or `process` says nothing of any step; a threshold that cannot be applied.
        """
        if self.threshold is not None and sheet is None:
            raise UsageError(
                f"`threshold` {self.threshold} is for a PRM's scores, and there are none; name a file (`scores`), a PRM (`prm`), or let the "
                "default one judge the steps (`process` scores)"
            )
        if all(case.outcome is None for case in cases):
            raise UsageError(
                "no case of this data says whether its final answer is right; expected data with outcomes (ProcessBench, candidates, "
                "Math-Shepherd)"
            )
        chosen: dict[str, Policy] = {}
        if sheet is not None:
            truth = {case.id: first_error(case.labelled, self.neutral) for case in cases}
            chosen = policies(self.threshold, sheet, sheet.groups, truth)
        items = items_of(cases, sheet, chosen, neutral=self.neutral)
        present = sources_of(items)
        if self.process not in present:
            raise UsageError(
                "no solution of this data has all its steps judged; take a PRM's scores: `process` scores"
                if self.process == "labels"
                else "there are no scores that say whether the steps are right; name a PRM or a file: `prm` or `scores`"
            )
        figures = widened(run.figures(items, statistic(items), threshold_words(items, chosen)), items)
        order = (self.process, *(source for source in present if source != self.process))
        prm = "labels" if sheet is None else sheet.prm
        views = self._views(cases, sheet, items, chosen, figures, order)
        identity = None if sheet is None else sheet.identity
        return run.result(self, views, figures, items, prm=prm, identity=identity)

    def _views(
        self,
        cases: Sequence[Case],
        sheet: Sheet | None,
        items: Sequence[Item],
        chosen: Mapping[str, Policy],
        figures: Figures,
        order: Sequence[Process],
    ) -> Views:
        """What the report shows; `order` are the sources, the main one first."""
        groups = [name for name in parts_of(items) if not name.startswith("by ")]
        writers = [name for name in parts_of(items) if name.startswith("by ")]
        named = dict.fromkeys(j.judge for case in cases for step in case.labelled.judgements for j in step)
        judges: dict[str, str] = {
            "labels": f"labels ({', '.join(named) or 'none'})",
            "scores": "scores" if sheet is None else sheet.prm,
        }
        main, whole = order[0], groups[-1]
        rows = [f"{group}/{source}" for group in groups for source in order]
        sections = [
            Section(
                title="Process and outcome",
                text="Are all steps right, and is the final answer? The threshold stands beside every number that rests on scores.",
                items=_tables(rows, judges, items, figures),
            )
        ]
        tiles = [
            tile(f"Wrong step in right answers, {name} (%)", figures[f"{name}/{main}/lucky-of-right"])
            for name in (groups if len(groups) <= 5 else groups[-1:])
        ]
        tiles.append(
            tile(f"No wrong step in wrong answers, {whole} (%)", figures[f"{whole}/{main}/unlucky-of-wrong"])
        )
        if len(order) == 2:
            tiles.append(tile("PRM's cell is the labels' (%)", figures[f"{whole}/both/same-cell"]))
            table = table_of(
                "The PRM's cells against the labels' (%)",
                "Group",
                groups,
                {label: cell(figures, f"{{}}/both/{what}") for label, what in _BOTH.items()},
                note="Of the solutions for which labels, scores and outcome are all known.",
            )
            sections.append(
                Section(
                    title="The PRM beside the labels",
                    text="How often the PRM puts a solution into the cell that the labels put it in. The outcome is the same for both, so only "
                    "the process can differ.",
                    items=(table,),
                )
            )
        if len(writers) > 1:
            table = table_of(
                f"By who wrote the solution; steps judged by {judges[main]}",
                "Policy",
                writers,
                {
                    "Wrong step, of right answers (%)": cell(figures, f"{{}}/{main}/lucky-of-right"),
                    "No wrong step, of wrong answers (%)": cell(figures, f"{{}}/{main}/unlucky-of-wrong"),
                },
                label=lambda name: name.removeprefix("by "),
                note="All groups together. Few solutions each: read the differences with care.",
            )
            sections.append(Section(title="By who wrote the solution", items=(table,)))
        rows_of = {
            case.id: row
            for case, row in zip(
                cases,
                [
                    CaseScores(
                        case=case,
                        steps=StepScores(scores=step_labels(case.labelled, self.neutral), kind="probability"),
                    )
                    for case in cases
                ]
                if sheet is None
                else sheet.rows,
                strict=True,
            )
        }

        def group(title: str, text: str, inside: Sequence[Item]) -> Examples:
            views = []
            for item in inside[:SHOWN]:
                row = rows_of[item["id"]]
                outcome = {True: "right answer", False: "wrong answer", None: "outcome not known"}[
                    item["outcome"]
                ]
                first = item["found"] if sheet is not None else item["label"]
                labels = {None: "not known", True: "no wrong step", False: "a wrong step"}[item["labels"]]
                if item["labels"] is False and item["label"] is not None:
                    labels = f"step {item['label'] + 1} wrong"
                note = f"{outcome}; labels: {labels}"
                policy = chosen.get(row.case.group)
                views.append(problem(row, card(row, sheet, note, policy=policy, first_error=first)))
            text = f"{text} {len(views):,} of {len(inside):,}.".strip()
            if sheet is None:
                text += " The numbers on the steps are the labels: 1 right, 0 wrong, between them a share; a step without one was not judged."
            return Examples(title=f"{title} ({len(inside):,})", problems=tuple(views), text=text)

        examples = []
        if "scores" in order:
            high, low = confident(items)
            text = (
                "By the score of the weakest step, the most confident first: candidates for wrong reference answers and wrong labels, "
                "and for what a policy could exploit."
            )
            examples += [
                group("Scored high, and the answer is wrong", text, high),
                group("Scored low, and the answer is right", text, low),
            ]
        for name in CELLS:
            inside = [item for item in items if cell_of(item[main], item["outcome"]) == name]
            # Spread over the data; the number of all of them stays in the title.
            order_ = [*(few := spread(inside, SHOWN)), *(item for item in inside if item not in few)]
            examples.append(group(WORDS[name].capitalize(), _MEANING[name], order_))
        sections.append(Section(title="Examples", text=f"Cells by {judges[main]}.", items=tuple(examples)))
        return Views(
            title=f"Process and outcome: {'labels' if sheet is None else sheet.prm}",
            facts=_facts(cases, items, order, judges, sheet),
            remarks=(
                "In brackets: 95 % bootstrap intervals over problems; where a share is 0 or 100 %, Wilson's, because a bootstrap cannot draw what was not seen.",
            ),
            tiles=tiles,
            sections=sections,
        )


def cell_of(process: bool | None, outcome: bool | None) -> str | None:
    """The cell of a case: one of `CELLS`, None when either is not known."""
    if process is None or outcome is None:
        return None
    if outcome:
        return "right" if process else "lucky"
    return "unlucky" if process else "wrong"


def steps_right(labelled: LabelledSolution, neutral: Neutral = "positive") -> bool | None:
    """Whether every step is right by its judgements; False as soon as one is known to be wrong; None for not known.

    When a step is wrong: see `cases.first_error`. Unlike there, a step that nobody judged does not hide a wrong one
    after it: that some step is wrong is known without knowing which is the first.
    """
    verdicts = [
        first_error(LabelledSolution(solution=labelled.solution, judgements=(judgements,)), neutral)
        for judgements in labelled.judgements
    ]
    if 0 in verdicts:
        return False
    return None if None in verdicts or not verdicts else True


def items_of(
    cases: Sequence[Case],
    sheet: Sheet | None = None,
    chosen: Mapping[str, Policy] | None = None,
    *,
    neutral: Neutral = "positive",
) -> list[Item]:
    """One item a case: what is known of its steps, by labels and by scores, and of its end.

    Args:
        cases: the solutions.
        sheet: their scores, in the same order; None for none.
        chosen: the threshold policy of each group; needed with a sheet.
        neutral: what a neutral rating counts as.
    """
    items = []
    rows: Sequence[CaseScores | None] = (None,) * len(cases) if sheet is None else sheet.rows
    for case, row in zip(cases, rows, strict=True):
        found = None if row is None or chosen is None else chosen[case.group].found(row)
        read = [] if row is None else [score for score in row.scores if score is not None]
        items.append(
            {
                "id": case.id,
                "problem": case.problem,
                "group": case.group,
                "policy": case.policy,
                "where": case.where,
                "outcome": case.outcome,
                "labels": steps_right(case.labelled, neutral),
                "label": first_error(case.labelled, neutral),
                "scores": None if found is None else found == -1,
                "found": found,
                "weakest": min(read, default=None),
                "steps": len(case.solution.steps),
            }
        )
    return items


def sources_of(items: Sequence[Item]) -> tuple[Process, ...]:
    """What says something of the steps of any item."""
    known: tuple[Process, ...] = ("labels", "scores")
    return tuple(source for source in known if any(item[source] is not None for item in items))


def parts_of(items: Sequence[Item]) -> dict[str, list[bool]]:
    """Name to membership of each item: the groups, all together where there are several, and "by WRITER"."""
    groups = list(dict.fromkeys(item["group"] for item in items))
    parts = {group or "all": [item["group"] == group for item in items] for group in groups}
    if len(groups) > 1:
        parts[OVERALL] = [True] * len(items)
    writers = sorted({item["policy"] for item in items if item["policy"] is not None})
    return parts | {f"by {name}": [item["policy"] == name for item in items] for name in writers}


def ratios(items: Sequence[Item]) -> dict[str, tuple[list[float], list[float]]]:
    """Every share among the figures of `statistic` but phi: which items count, and which are in question."""
    present = sources_of(items)
    cells = {source: [cell_of(item[source], item["outcome"]) for item in items] for source in present}
    columns: dict[str, tuple[list[float], list[float]]] = {}
    for part, member in parts_of(items).items():
        for source, known in cells.items():
            for what, pair in (_OF_WRITERS if part.startswith("by ") else _RATIOS).items():
                above, below = (
                    [float(m and c in of) for m, c in zip(member, known, strict=True)] for of in pair
                )
                columns[f"{part}/{source}/{what}"] = above, below
        if len(present) == 2 and not part.startswith("by "):
            both = [
                (a, b) if m and a is not None and b is not None else (None, None)
                for m, a, b in zip(member, *cells.values(), strict=True)
            ]
            same = [float(a is not None and a == b) for a, b in both]
            columns[f"{part}/both/same-cell"] = same, [float(a is not None) for a, _ in both]
            for name in ("lucky", "unlucky"):
                hits = [float(a == name == b) for a, b in both]
                columns[f"{part}/both/{name}-found"] = hits, [float(a == name) for a, _ in both]
                columns[f"{part}/both/{name}-confirmed"] = hits, [float(b == name) for _, b in both]
    return columns


def statistic(items: Sequence[Item]) -> Statistic:
    """Every figure as a function of the items' weights, named PART/SOURCE/WHAT.

    PART is a group, "overall" or "by WRITER"; SOURCE is what judged the steps: "labels" or "scores". WHAT, each a share:

    - `right`, `lucky`, `unlucky`, `wrong`: of all whose steps and outcome are known;
    - `lucky-of-right`: a wrong step, of those with a right answer; `unlucky-of-wrong`: no wrong step, of those with a wrong one;
    - `lucky-of-flawed`: a right answer, of those with a wrong step;
    - `agreement`: steps and answer are both right or both wrong; and `phi`, no share but their correlation, from -1 to 1.

    With both sources PART/both/WHAT, of the cases for which all three are known: `same-cell`: the PRM's cell is the labels';
    `lucky-found`: lucky by the PRM too, of those lucky by the labels; `lucky-confirmed`: the other way round; the same
    for `unlucky`. A writer has only `lucky-of-right` and `unlucky-of-wrong`.
    """
    of = ratios(items)
    shares_of = ratio_statistic(of)

    def figures(weights: Floats) -> Mapping[str, Floats]:
        named = dict(shares_of(weights))
        for name in of:
            if name.endswith("/agreement"):
                right, lucky, unlucky, wrong = (named[name.removesuffix("agreement") + of] for of in CELLS)
                # Of a 2x2 table (Yule 1912); nan where a margin is 0.
                margins = (right + lucky) * (unlucky + wrong) * (right + unlucky) * (lucky + wrong)
                phi = shares(right * wrong - lucky * unlucky, np.sqrt(margins))
                named[f"{name.removesuffix('agreement')}phi"] = phi
        return named

    return figures


def widened(figures: Figures, items: Sequence[Item]) -> dict[str, Figure]:
    """The figures, those of 0 and 1 with Wilson's interval over their problems.

    Where none was seen no resample has one either: a bootstrap would claim that there are none at all.
    """
    of = ratios(items)

    def one(figure: Figure) -> Figure:
        if figure.value not in (0.0, 1.0) or figure.name not in of:
            return figure
        asked = of[figure.name][1]
        problems = len({item["problem"] for item, m in zip(items, asked, strict=True) if m > 0})
        interval = wilson(problems if figure.value else 0, problems, level=figure.level)
        return replace(figure, low=interval.low, high=interval.high)

    return {name: one(figure) for name, figure in figures.items()}


def threshold_words(items: Sequence[Item], chosen: Mapping[str, Policy]) -> dict[str, str]:
    """Part of a figure's name to the threshold that it rests on."""
    words: dict[str, str] = {}
    for part, member in parts_of(items).items() if chosen else ():
        groups = dict.fromkeys(item["group"] for item, m in zip(items, member, strict=True) if m)
        policy = "; ".join(dict.fromkeys(chosen[group].words for group in groups))
        words |= {f"{part}/scores": policy, f"{part}/both": policy}
    return words


def _facts(
    cases: Sequence[Case],
    items: Sequence[Item],
    order: Sequence[Process],
    judges: Mapping[str, str],
    sheet: Sheet | None,
) -> list[str]:
    def solutions(count: int) -> str:
        return f"{count:,} solution{'' if count == 1 else 's'}"

    facts = [
        f"{len(items):,} solutions of {len({item['problem'] for item in items}):,} problems. Process: whether every step is right; "
        "outcome: whether the final answer is."
    ]
    if unknown := sum(item["outcome"] is None for item in items):
        facts.append(f"The outcome is not known of {solutions(unknown)}, which count in no share.")
    for source in order:
        if unknown := sum(item[source] is None for item in items):
            facts.append(
                f"By {judges[source]}, whether every step is right is not known of {solutions(unknown)}, which count in none of its shares."
            )
    if sheet is not None and sheet.refused:
        first = sheet.refused[0]
        facts.append(
            f"The PRM could not read {solutions(len(sheet.refused))}, first {first.case.id}: {first.refused}"
        )
    if "scores" in order:
        facts.append(
            "By a PRM, what is called lucky can be its false alarm, and what is called unlucky an error that it missed."
        )
    if any(j.kind == "value" for case in cases for step in case.labelled.judgements for j in step):
        facts.append(
            "Labels from rollouts say whether the answer can still be reached, not whether a step is true: a step is wrong when no rollout "
            "from its end succeeded. The label of a last step is the outcome itself, so a wrong answer always has a wrong step by them."
        )
    return facts


def _tables(
    rows: Sequence[str], judges: Mapping[str, str], items: Sequence[Item], figures: Figures
) -> tuple[Table, Table]:
    """Counts and shares of the four cells, and the shares that matter, a row for each GROUP/SOURCE."""
    counts: dict[str, Counter[str | None]] = {}
    for row in rows:
        part, source = row.rsplit("/", 1)
        cells_ = [cell_of(item[source], item["outcome"]) for item in items]
        counts[row] = Counter(name for name, m in zip(cells_, parts_of(items)[part], strict=True) if m)

    def group(row: str) -> str:
        return row.rpartition("/")[0]

    def judge(row: str) -> str:
        return judges[row.rpartition("/")[2]]

    def of(name: str) -> Cell:
        share = cell(figures, f"{{}}/{name}")
        return lambda row: f"{counts[row][name]:,} ({share(row)})"

    cells = table_of(
        "The four cells: solutions (%)",
        "Group",
        rows,
        {
            "Steps judged by": judge,
            **{words[0].upper() + words[1:]: of(name) for name, words in WORDS.items()},
            "Not known": lambda row: f"{counts[row][None]:,}",
        },
        label=group,
        left=2,
        note="Shares are of the solutions whose steps and outcome are known.",
    )
    rates = table_of(
        "Where process and outcome part (%)",
        "Group",
        rows,
        {
            "Steps judged by": judge,
            "Threshold": lambda row: figures[f"{row}/agreement"].policy or ABSENT,
            "Lucky, of right answers": cell(figures, "{}/lucky-of-right"),
            "Unlucky, of wrong answers": cell(figures, "{}/unlucky-of-wrong"),
            "Lucky, of wrong steps": cell(figures, "{}/lucky-of-flawed"),
            "Agreement": cell(figures, "{}/agreement"),
            "Phi": cell(figures, "{}/phi", scale=1, digits=2),
        },
        label=group,
        left=3,
        note="Lucky, of wrong steps: solutions with a wrong step that end in the right answer all the same. Agreement: steps and answer are "
        "both right or both wrong. Phi: the correlation of the two, from −1 to 1; a dash where one of them does not vary.",
    )
    return cells, rates


def confident(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Unlucky solutions by the scores, the highest weakest step first; and lucky ones, the lowest first."""
    of: dict[str | None, list[Item]] = {"unlucky": [], "lucky": []}
    for item in items:
        of.setdefault(cell_of(item["scores"], item["outcome"]), []).append(item)
    return (
        sorted(of["unlucky"], key=lambda item: -item["weakest"]),
        sorted(of["lucky"], key=lambda item: item["weakest"]),
    )
