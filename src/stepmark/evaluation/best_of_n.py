"""Best-of-N: how often the chosen candidate is right, from candidates or from a policy to a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from stepmark.errors import InputError
from stepmark.evaluation import best_of_n_figures
from stepmark.evaluation.best_of_n_figures import (
    CORRECTNESS,
    MEASURES,
    Counting,
    method_names,
    summary,
    vote_refusal,
)
from stepmark.evaluation.cases import Candidate, CandidateSet, Case
from stepmark.evaluation.evaluation import INTERVALS, Evaluation, Run, Views, check_same
from stepmark.evaluation.examples import SHOWN, card, problem
from stepmark.evaluation.result import Figure, Item, Result, made_folder
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.evaluation.sources import read_candidates
from stepmark.metrics.aggregate import AGGREGATES, allowed
from stepmark.metrics.first_error import found_error
from stepmark.metrics.intervals import Floats, Interval, Statistic
from stepmark.models.lazy import Lazy
from stepmark.models.policies import Policy, policy_identity
from stepmark.models.replies import ReplyFile
from stepmark.problems.answers import (
    NumberVerifier,
    Verifier,
    answer_groups,
    isolation_note,
    isolation_of,
    open_verifier,
)
from stepmark.problems.code_sandbox import Isolation
from stepmark.problems.extraction import find_answer
from stepmark.problems.sources import read_problems
from stepmark.records import ScoreKind
from stepmark.sampling import Sampled, Sampling, sample
from stepmark.settings import settings
from stepmark.show.evaluation import Examples, Section, Tile
from stepmark.show.plots import Lines, Series
from stepmark.show.progress import Progress
from stepmark.show.tables import ABSENT, Align, Table, interval_text
from stepmark.show.views import ProblemView
from stepmark.solutions.segmentation import check_way
from stepmark.store import open_rows

_TOGETHER = 16
"""Problems that are sampled at once."""

_POLICY = "policy/"

_RIGHT: tuple[Align, ...] = ("right",)


def by_problem(sheet: Sheet) -> dict[str, list[CaseScores]]:
    """The rows of each problem, in the order of its first."""
    problems: dict[str, list[CaseScores]] = {}
    for row in sheet.rows:
        problems.setdefault(row.case.problem, []).append(row)
    return problems


def checked(cases: Sequence[Case], verifier: Verifier) -> list[Case]:
    """The cases with an outcome for each whose row does not say whether its answer is right, by comparing that with the reference.

    Args:
        cases: candidates.
        verifier: what compares answers. Where it reaches no verdict, the outcome stays unknown.

    Raises:
        InputError: with `FILE:LINE`: a row without `correct` has no reference to compare with; or no candidate's correctness is known.
    """
    for case in cases:
        if case.unchecked and not (case.solution.problem.answer or "").strip():
            raise InputError(
                f'nothing says whether candidate {case.id} is right: give it "correct" (true, false, or null for unknown), or give the row '
                '"gold", the reference answer, to compare it with',
                where=case.where,
                field="correct",
            )
    missing = [case for case in cases if case.unchecked]
    verdicts = verifier.verify_many(
        (case.answer or "".join(step.raw for step in case.solution.steps), case.solution.problem.answer or "")
        for case in missing
    )
    outcomes = {case.id: verdict.correct for case, verdict in zip(missing, verdicts, strict=True)}
    known = [
        replace(case, outcome=outcomes[case.id], unchecked=False) if case.unchecked else case
        for case in cases
    ]
    if known and all(case.outcome is None for case in known):
        first = missing[0] if missing else known[0]
        why = f", {verdicts[0].note}" if verdicts else ""
        raise InputError(
            f'of {len(known):,} candidates none is known to be right or wrong (the first: {first.id}{why}): expected "correct" true or '
            'false, or answers that `verifier` can compare with "gold"',
            where=first.where,
            field="correct",
        )
    return known


def candidate_sets(
    sheet: Sheet,
    verifier: Verifier | None = None,
    *,
    outcomes: Mapping[str, float] | None = None,
    outcome_tokens: Mapping[str, int] | None = None,
) -> list[CandidateSet]:
    """The graded cases of a sheet, one set a problem, in the order of their first case.

    A solution that the PRM refused has no score and cost no PRM tokens. The problem's tokens are charged once for all
    its candidates, as the engine computes a shared prefix once. Where the data gives no answer at all, answers are
    taken from the texts (`stepmark.problems.extraction`). Where it gives no generated tokens at all, the solution's length
    in the PRM's tokens (`StepScores.solution_tokens`, with the marks of its steps) stands for them.

    Args:
        sheet: cases with their step scores.
        verifier: what says that two answers are equal; None for numbers compared exactly (`NumberVerifier`).
        outcomes: scores of an outcome reward model by case id.
        outcome_tokens: tokens that it read by case id.
    """
    judge = NumberVerifier() if verifier is None else verifier
    given = any(row.case.answer is not None for row in sheet.rows)
    counted = _counted(sheet)
    sets = []
    for id_, rows in by_problem(sheet).items():
        answers = [row.case.answer if given else _found_answer(row) for row in rows]
        groups = answer_groups(answers, judge)
        sets.append(
            CandidateSet(
                id=id_,
                candidates=tuple(
                    _candidate(row, group, outcomes or {}, outcome_tokens or {}, counted=counted)
                    for row, group in zip(rows, groups, strict=True)
                ),
                prm_once=max((row.steps.problem_tokens or 0 for row in rows if row.steps), default=0),
            )
        )
    return sets


def _found_answer(row: CaseScores) -> str | None:
    found = find_answer("".join(step.raw for step in row.case.solution.steps))
    return None if found is None else found.text


def _counted(sheet: Sheet) -> bool:
    return any(row.case.tokens is not None for row in sheet.rows)


def _candidate(
    row: CaseScores,
    group: int | None,
    outcomes: Mapping[str, float],
    outcome_tokens: Mapping[str, int],
    *,
    counted: bool,
) -> Candidate:
    length = None if row.steps is None else row.steps.solution_tokens
    return Candidate(
        correct=row.case.outcome,
        answer=group,
        steps=row.steps,
        outcome=outcomes.get(row.case.id),
        tokens=row.case.tokens if counted else length,
        outcome_tokens=outcome_tokens.get(row.case.id),
        prm_tokens=0 if row.refused is not None else length,
        characters=sum(len(step.raw) for step in row.case.solution.steps),
        policy=row.case.policy,
        greedy=row.case.greedy,
    )


def statistic(items: Sequence[Item]) -> Statistic:
    """Every figure of the items: those of `best_of_n_figures.statistic`, and those of `policy_statistic` after "policy/"."""
    choices, policies = best_of_n_figures.statistic(items), best_of_n_figures.policy_statistic(items)

    def figures(weights: Floats) -> dict[str, Floats]:
        return choices(weights) | {f"{_POLICY}{name}": value for name, value in policies(weights).items()}

    return figures


def headline(sheet: Sheet) -> str:
    """The aggregate that stands for the PRM: its own, else the product of probabilities, else the minimum."""
    known = allowed(sheet.kind)
    if sheet.aggregate in known:
        return sheet.aggregate
    return "product" if "product" in known else "min"


@settings
class BestOfN(Evaluation):
    """Accuracy of the candidate that is chosen: greedy, by votes, by the PRM in every way, by an ORM, by an oracle.

    At N = 1, 2, 4, … every figure is the expectation over all subsets of N candidates, with intervals over problems, on an axis of the
    tokens that the policy wrote and the PRM read. The data are files of candidates: {"id", "question", "gold", "candidates": [{"model",
    "text", "answer", "correct", "tokens"}]}; without "correct", answers are compared with "gold". With a policy the data are problems (a
    question and its reference answer a row, GSM8K's own rows too), of which the policy samples candidates; that is resumed when it is stopped.
    """

    name: ClassVar[str] = "best-of-n"
    models: ClassVar[tuple[str, ...]] = ("prm", "orm", "policy")
    n: Annotated[int, Field(ge=1)] = 8
    """With a policy, candidates a problem; one greedy one is written beside them."""
    temperature: Annotated[float, Field(ge=0)] = 0.8
    """With a policy, of the samples."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """With a policy, of the samples."""
    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """With a policy, the longest solution."""
    prompt: Literal["chat", "text"] = "chat"
    """With a policy, ask as the user's turn of a chat, or as plain text (base models)."""
    instruction: str | None = None
    """With a policy, the text after the problem. Default: to go step by step and to box the answer."""
    verifier: str = "math"
    """What compares answers, for the votes, for candidates without "correct" and for those of a policy: math, number, choice, text, code, or "package.module:Class"."""
    percent: Literal["distinct", "sign"] = "distinct"
    """Whether 10% is 1/10 only, or 10 too (GSM8K's references leave the sign out): distinct or sign."""
    isolation: Isolation | None = None
    """With the verifier code, what keeps programs apart: bubblewrap, a sandbox; or unsafe, which is none: your files are open to them. Default: bubblewrap."""
    sizes: Sequence[Annotated[int, Field(ge=1)]] = ()
    """The N to report. Default: 1, 2, 4, … and all."""
    split: str = "auto"
    """How texts are split into steps: auto, line, blank-line, numbered, sentence, code, whole."""

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        check_way(self.split)

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items)

    def measure(self, run: Run) -> Result:
        """See `Evaluation.measure`."""
        isolation = isolation_of(self.verifier, self.isolation)
        with open_verifier(self.verifier, percent=self.percent, isolation=self.isolation) as verifier:
            if isolation is not None:
                run.note(isolation_note(isolation))
            if run.policy is None:
                cases = run.take(read_candidates(run.data, how=self.split, columns=run.columns))
            else:
                cases = read_candidates([self._sample(run, verifier)], how=self.split)
            unchecked = sum(case.unchecked for case in cases)
            cases = checked(cases, verifier)
            if unchecked:
                run.note(
                    f"{unchecked:,} candidates do not say whether they are right: compared with the reference ({self.verifier})"
                )
            sheet = run.grade(cases)
            judged = None if run.orm is None else run.grade(cases, outcome=True)
            return self.of_candidates(sheet, run, verifier=verifier, judged=judged)

    def of_candidates(
        self, sheet: Sheet, run: Run, *, verifier: Verifier | None = None, judged: Sheet | None = None
    ) -> Result:
        """The result of graded candidates.

        Args:
            sheet: candidates (cases whose `outcome` says whether they are right) with their scores.
            run: the run.
            verifier: what says that two answers are equal, for the groups that vote; None for numbers compared exactly.
            judged: the same candidates with the scores of an outcome reward model.

        Raises:
            InputError: candidates that cannot be evaluated (see `best_of_n_figures.items`).
            UsageError: sizes that no problem has.
        """
        outcomes: dict[str, float] = {}
        outcome_tokens: dict[str, int] = {}
        for row in () if judged is None else judged.rows:
            if (score := row.scores[-1]) is not None:
                outcomes[row.case.id] = score
            if row.steps is not None and row.steps.solution_tokens is not None:
                outcome_tokens[row.case.id] = (row.steps.problem_tokens or 0) + row.steps.solution_tokens
        counting = Counting(sizes=tuple(self.sizes) or None, seed=run.seed)
        how = headline(sheet)
        items = best_of_n_figures.items(
            candidate_sets(sheet, verifier, outcomes=outcomes, outcome_tokens=outcome_tokens), counting
        )
        figures = run.figures(items, statistic(items))
        of_policies = {
            name.removeprefix(_POLICY): figure for name, figure in figures.items() if name.startswith(_POLICY)
        }
        writers = {row.case.policy for row in sheet.rows} - {None}
        tables = (
            accuracy_table(items, figures),
            price_plot(items, figures, how),
            aggregate_plot(items, figures),
        )
        more = (price_table(items, figures), undecided_table(items, figures))
        by_policy = policy_table(of_policies, how)
        facts = [coverage(items), f"The PRM's choice, where one is named, is by its {how} of step scores."]
        if len(writers) > 1:
            facts.append(
                f"The candidates come from {len(writers)} policies: choosing among them is partly choosing the policy."
            )
        if not _counted(sheet):
            facts.append(
                "The data does not say how many tokens the policies generated: where the PRM counts tokens, the length of the solutions "
                "in its tokens stands for them."
            )
        views = Views(
            title=f"Best of N: {sheet.prm}",
            facts=(*facts, *refused_votes(sheet.kind)),
            remarks=(INTERVALS,),
            tiles=_tiles(items, figures, how),
            sections=(
                Section(
                    title="Accuracy",
                    text="How often each way of choosing among N candidates gives a right answer. The oracle is right whenever a right "
                    "candidate is there.",
                    items=tuple(item for item in tables if item is not None),
                ),
                Section(title="What it costs", items=tuple(item for item in more if item is not None)),
                Section(
                    title="Length",
                    text="Whether the score follows the length. Beside each aggregate stands correctness itself: what a perfect score "
                    "would show.",
                    items=(length_table(figures),),
                ),
                Section(
                    title="By who wrote the solution", items=(by_policy,) if by_policy is not None else ()
                ),
                Section(title="Examples", items=_examples(sheet, items, how)),
            ),
        )
        return run.result(
            self,
            views,
            figures,
            items,
            prm=sheet.prm,
            identity=sheet.identity,
            **({} if judged is None else {"orm_identity": judged.identity}),
            **{
                "sizes": list(items[0]["sizes"]),
                "limit of subsets": counting.limit,
                "random subsets": counting.draws,
                "seed of subsets": counting.seed,
            },
        )

    def _sample(self, run: Run, verifier: Verifier) -> Path:
        """Sample and verify candidates into candidates.jsonl, or take those of an earlier run with the same settings."""
        assert run.policy is not None
        given: dict[str, Any] = {} if self.instruction is None else {"instruction": self.instruction}
        sampling = Sampling(
            n=self.n,
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            seed=run.seed,
            prompt=self.prompt,
            **given,
        )
        path = made_folder(run.folder) / "candidates.jsonl"
        manifest = {
            "command": "evaluate best-of-n, sampling",
            "policy": run.policy.name,
            "verifier": self.verifier,
            "percent": self.percent,
            "isolation": isolation_of(self.verifier, self.isolation),
            "limit": run.limit,
            "data": list(run.inputs),
            "sampling": asdict(sampling),
        }
        if path.exists():
            check_same(path, manifest)
            if isinstance(run.policy, Lazy):
                arguments = run.policy.arguments
                named = {key: arguments[key] for key in ("dtype", "device") if key in arguments}
                identity = policy_identity(run.policy.name, **named)
            else:
                identity = run.policy.identity
            check_same(path, manifest | {"models": {"policy": identity}})
            run.note(f"{path} has the candidates of an earlier run with these settings")
            return path
        problems = run.spaced(
            [problem for file in run.data for problem in read_problems(file, columns=run.columns)]
        )
        with (
            closing(open_rows(path, manifest)) as out,
            closing(ReplyFile(run.folder / "replies.sqlite")) as store,
        ):
            policy: Policy = run.loaded(run.policy)
            out.identify({"policy": policy.identity})
            progress = Progress(
                len(problems),
                done=out.done,
                tokens=lambda: policy.tokens_written,
                verb="sampled",
                noun="problem",
                together=_TOGETHER,
                shown=run.progress,
            )
            try:
                with progress:
                    left = problems[out.done :]
                    for sampled in sample(left, policy, sampling, store=store, in_flight=_TOGETHER):
                        if sampled.refused is not None:
                            out.refuse(InputError(sampled.refused, where=sampled.problem.id))
                        else:
                            out.write(_row(sampled, policy.name, verifier))
                        progress.advance()
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"what was sampled is kept in {run.folder}; the same command continues"
                ) from None
            # Under a name of its own: the manifest has the policy as the caller named it.
            out.finish({"policy_name": policy.name})
        return path


def _row(sampled: Sampled, policy: str, verifier: Verifier) -> dict[str, Any]:
    """One row of a candidates file. A text without a verdict has `correct` null, and never counts as wrong silently."""
    texts = [(written, False) for written in sampled.samples]
    texts += [(sampled.greedy, True)] if sampled.greedy is not None else []
    candidates = []
    for written, greedy in texts:
        verdict = verifier.verify(written.text, sampled.problem.answer or "")
        candidates.append(
            {
                "model": policy,
                "text": written.text,
                "answer": verdict.answer,
                "correct": verdict.correct,
                "tokens": written.tokens,
                "finish": written.finish,
                **({"greedy": True} if greedy else {}),
            }
        )
    return {
        "id": sampled.problem.id,
        "question": sampled.problem.text,
        "gold": sampled.problem.answer,
        "candidates": candidates,
    }


def _tiles(items: Sequence[Item], figures: Mapping[str, Figure], how: str) -> tuple[Tile, ...]:
    most = items[0]["sizes"][-1]
    wanted = (
        ("One sample", "accuracy/single/1"),
        (f"Majority of {most}", f"accuracy/majority/{most}"),
        (f"Best {how} of {most}", f"accuracy/best {how}/{most}"),
        (f"Vote by {how}, {most}", f"accuracy/vote {how}/{most}"),
        (f"Oracle of {most}", f"accuracy/oracle/{most}"),
    )
    tiles = []
    for label, name in wanted:
        figure = figures.get(name)
        if figure is None or figure.value is None:
            continue
        low, high = figure.low, figure.high
        detail = "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"
        tiles.append(Tile(label=f"{label}, %", value=f"{100 * figure.value:.1f}", detail=detail))
    return tuple(tiles)


def _examples(sheet: Sheet, items: Sequence[Item], how: str) -> tuple[Examples, ...]:
    sorts: dict[str, tuple[str, list[ProblemView]]] = {
        "passed over": (f"A right candidate is there, and the highest {how} is of a wrong one", []),
        "found": ("Few candidates are right, and the PRM chooses one of them", []),
    }
    for rows, item in zip(by_problem(sheet).values(), items, strict=True):
        best = item["best"].get(how, [])
        truth = [row.case.outcome for row in rows if not row.case.greedy]
        if not best or True not in truth:
            continue
        chosen = rows[best[0]]
        others = [row for row in rows if row is not chosen and not row.case.greedy]
        if chosen.case.outcome is False:
            other = next((row for row in others if row.case.outcome is True), None)
            sort = "passed over"
        elif chosen.case.outcome is True and truth.count(True) * 3 <= len(truth):
            other = next((row for row in others if row.case.outcome is False), None)
            sort = "found"
        else:
            continue
        if other is not None:
            sorts[sort][1].append(_pair(chosen, other, sheet, how))
    groups = []
    for title, views in sorts.values():
        kept = views if len(views) <= SHOWN else [views[at * len(views) // SHOWN] for at in range(SHOWN)]
        text = f"{len(kept)} of {len(views):,}: the chosen candidate and another one."
        groups.append(Examples(title=f"{title} ({len(views):,})", problems=tuple(kept), text=text))
    return tuple(groups)


def _pair(chosen: CaseScores, other: CaseScores, sheet: Sheet, how: str) -> ProblemView:
    cards = []
    for number, (row, said) in enumerate(((chosen, "chosen"), (other, "not chosen")), start=1):
        answer = "" if row.case.answer is None else f", answer {row.case.answer}"
        note = f"{said}; {'right' if row.case.outcome else 'wrong'}{answer}"
        first = None if sheet.threshold is None else found_error(row.scores, sheet.threshold)
        cards.append(card(row, how=how, threshold=sheet.threshold, found=first, note=note, number=number))
    return replace(problem(chosen, cards[0]), cards=tuple(cards))


Rows = Sequence[Mapping[str, Any]]
Found = Figure | Interval
Figures = Mapping[str, Found]


def percent(figure: Found | None) -> str:
    """A share as "81.2 [79.3, 83.0]", in percent."""
    return words(figure, scale=100.0, digits=1)


def words(figure: Found | None, *, scale: float = 1.0, digits: int = 2) -> str:
    """A figure and its interval; a dash where there is none."""
    if figure is None:
        return ABSENT
    return interval_text(figure.value, figure.low, figure.high, scale=scale, digits=digits)


def _sizes(rows: Rows) -> list[int]:
    return [int(n) for n in rows[0]["sizes"]]


def accuracy_table(rows: Rows, figures: Figures) -> Table:
    """Accuracy of every method at every N, and its selection gap and its lead over the majority vote at the largest."""
    sizes = _sizes(rows)
    shown, most = sizes if 1 in sizes else [1, *sizes], sizes[-1]
    body = []
    for method in method_names(rows):
        once = method in {"single", "greedy"}
        body.append(
            (
                method,
                *(
                    percent(figures.get(f"accuracy/{method}/{n}")) if not once or n == 1 else ABSENT
                    for n in shown
                ),
                words(figures.get(f"over majority/{method}/{most}"), scale=100, digits=1),
                percent(figures.get(f"gap/{method}/{most}")) if method != "oracle" else ABSENT,
            )
        )
    return Table(
        title="Accuracy by method and N, %",
        columns=(
            "Method",
            *(f"N = {n}" for n in shown),
            f"Over majority, N = {most}",
            f"Gap to the oracle, N = {most}",
        ),
        rows=tuple(body),
        note="Expectations over all subsets of N of a problem's candidates. " + coverage(rows),
    )


def coverage(rows: Rows) -> str:
    """What was counted and what was not, in one sentence."""
    told = summary(rows)
    said = [
        f"{told['counted']} of {told['problems']} problems have at least {_sizes(rows)[-1]} candidates and count",
        f"{told['candidates']} candidates",
    ]
    if told["with greedy"]:
        said.append(f"greedy: {told['with greedy']} problems")
    if told["unknown correctness"]:
        said.append(
            f"correctness unknown for {told['unknown correctness']}: left out where one of them is chosen"
        )
    if told["no answer"]:
        said.append(f"{told['no answer']} without an answer never vote")
    unscored = sorted({count for count in told["no score"].values() if count})
    if unscored:
        span = f"{unscored[0]}" if len(unscored) == 1 else f"{unscored[0]} to {unscored[-1]}, by aggregate,"
        said.append(f"{span} without a score cannot be chosen by it")
    if told["mixed groups"]:
        said.append(f"{told['mixed groups']} answer groups hold right and wrong candidates")
    drawn = [f"N = {n}: {used['most']}" for n, used in told["subsets"].items() if not used["exact"]]
    said.append(
        f"votes on random subsets ({', '.join(drawn)} a problem)"
        if drawn
        else "all subsets of each size counted"
    )
    return "; ".join(said) + "."


def price_table(rows: Rows, figures: Figures) -> Table | None:
    """Expected tokens a problem by N, the policy's and the graders' apart; None when nobody counted any."""
    readers = [
        (name, who)
        for name, who in (("Policy", "policy"), ("PRM", "prm"), ("Outcome model", "outcome"))
        if any(f"tokens/{who}/{n}" in figures for n in _sizes(rows))
    ]
    if not readers:
        return None
    known = summary(rows)["problems with tokens"]
    return Table(
        title="Tokens a problem",
        columns=("N", *(name for name, _ in readers)),
        rows=tuple(
            (str(n), *(words(figures.get(f"tokens/{who}/{n}"), digits=0) for _, who in readers))
            for n in _sizes(rows)
        ),
        note="Means over the problems whose candidates all have a count: "
        + ", ".join(f"{name} {known[who]}" for name, who in readers)
        + ". A choice by PRM or a weighted vote pays policy and PRM; a majority vote only the policy.",
        align=_RIGHT * (1 + len(readers)),
    )


def undecided_table(rows: Rows, figures: Figures) -> Table | None:
    """Shares of choices of unknown correctness, and of subsets in which nothing can be chosen; None when all are 0."""
    sizes = _sizes(rows)
    same: dict[tuple[str, ...], list[str]] = {}  # methods with equal rows share one
    for what, name in (("unknown", "correctness unknown"), ("nothing", "nothing to choose")):
        for method in method_names(rows):
            cells = [figures.get(f"{what}/{method}/{n}") for n in sizes]
            if any(cell is not None for cell in cells):
                row = (name, *(percent(cell) if cell else "0.0" for cell in cells))
                same.setdefault(row, []).append(method)
    body = [(", ".join(methods), *row) for row, methods in same.items()]
    if not body:
        return None
    return Table(
        title="Choices that could not be judged, or not be made, %",
        columns=("Method", "What", *(f"N = {n}" for n in sizes)),
        rows=tuple(body),
        align=("left", "left", *_RIGHT * len(sizes)),
        note="Unknown ones are left out of the accuracy; where nothing can be chosen, the choice is wrong.",
    )


def length_table(figures: Figures) -> Table:
    """Rank correlation of score and length, and how long the chosen solution is, by aggregate."""
    hows = [*AGGREGATES, "orm", CORRECTNESS]
    measures = [m for m in MEASURES if f"length/{m}/all" in figures]
    body = []
    for measure in measures:
        for how in hows:
            rank, over_all, over_right = (
                figures.get(f"length/{measure}/{what}/{how}")
                for what in ("spearman", "chosen less all", "chosen less right")
            )
            if rank or over_all or over_right:
                name = "(correctness itself)" if how == CORRECTNESS else how
                body.append(
                    (measure, name, words(rank), words(over_all, digits=1), words(over_right, digits=1))
                )
    last, chance = figures.get("lowest step is last"), figures.get("lowest step is last, by chance")
    note = "Within each problem, averaged over problems; a dash where scores or lengths never differ."
    if last is not None:
        note += (
            f" The lowest step is the last in {percent(last)} % of solutions, {percent(chance)} % by chance."
        )
    return Table(
        title="Length bias",
        columns=("Length in", "Score", "Rank correlation", "Chosen less mean", "Chosen less mean right one"),
        rows=tuple(body),
        note=note,
        align=("left", "left", "right", "right", "right"),
    )


def policy_table(figures: Figures, aggregate: str) -> Table | None:
    """Each policy: its candidates, accuracy, mean score and AUC of the score; None when no policy is named.

    Args:
        figures: intervals of `policy_statistic`.
        aggregate: whose score is shown.
    """
    names = [name.removesuffix("/accuracy") for name in figures if name.endswith("/accuracy")]
    if not names:
        return None

    def value(policy: str) -> float:
        found = figures[f"{policy}/accuracy"].value
        return -1.0 if found is None else found

    return Table(
        title=f"By policy ({aggregate})",
        columns=("Policy", "Candidates", "Accuracy, %", "Mean score", "AUC within the policy"),
        rows=tuple(
            (
                policy,
                words(Interval(value=figures[f"{policy}/candidates"].value, low=None, high=None), digits=0),
                percent(figures[f"{policy}/accuracy"]),
                words(figures.get(f"{policy}/score/{aggregate}"), digits=3),
                words(figures.get(f"{policy}/auc/{aggregate}"), digits=3),
            )
            for policy in sorted(names, key=lambda name: (-value(name), name))
        ),
        note="AUC: how often a right candidate scores above a wrong one of the same policy.",
    )


def readers_of(method: str) -> tuple[str, ...]:
    """Whose tokens a method pays: names of `tokens/WHO/N`."""
    if method == "greedy":
        return ("greedy",)
    if method == "best orm":
        return ("policy", "outcome")
    return ("policy", "prm") if method.startswith(("best ", "vote ")) else ("policy",)


def price_plot(rows: Rows, figures: Figures, aggregate: str) -> Lines:
    """Accuracy against the tokens that each method pays in all, with bands; against N where they were not counted.

    Args:
        rows: the items.
        figures: intervals of `statistic`.
        aggregate: whose choice and weighted vote are drawn: the PRM's own, named before looking at the accuracy. All
            aggregates are in `aggregate_plot`.
    """
    methods = [
        method
        for method in method_names(rows)
        if method
        in {"greedy", "single", "majority", f"best {aggregate}", "best orm", f"vote {aggregate}", "oracle"}
    ]
    counted = [m for m in methods if all(_tokens(figures, m, n) is not None for n in _sizes_of(rows, m))]
    in_tokens = "single" in counted
    left_out = [method for method in methods if method not in counted]
    drawn = [
        _series(rows, figures, method, in_tokens=in_tokens) for method in (counted if in_tokens else methods)
    ]
    note = "" if not left_out else f"Tokens were not counted for: {', '.join(left_out)}."
    return Lines(
        title="Accuracy against " + ("tokens" if in_tokens else "N"),
        x_label="Tokens a problem: policy and graders" if in_tokens else "N",
        y_label="Accuracy, %",
        series=tuple(one for one in drawn if one.y),
        log_x=True,
        note=note,
    )


def _tokens(figures: Figures, method: str, n: int) -> float | None:
    """What the method pays in all; None where a part of it was not counted."""
    found = [figures.get(f"tokens/{who}/{n}") for who in readers_of(method)]
    values = [one.value for one in found if one is not None and one.value is not None]
    return sum(values) if len(values) == len(found) and sum(values) > 0 else None


def _sizes_of(rows: Rows, method: str) -> list[int]:
    return [1] if method in {"single", "greedy"} else _sizes(rows)


def aggregate_plot(rows: Rows, figures: Figures) -> Lines | None:
    """Accuracy of the best by each aggregate against N; None without step scores."""
    methods = [m for m in method_names(rows) if m.startswith("best ") and m != "best orm"]
    if not methods:
        return None
    return Lines(
        title="Best of N by aggregate",
        x_label="N",
        y_label="Accuracy, %",
        # Without bands: seven of them over each other hide the lines.
        series=tuple(
            replace(_series(rows, figures, method, in_tokens=False), low=None, high=None)
            for method in methods
        ),
        log_x=True,
        note="Intervals are in the table. Choosing the aggregate by this plot and reporting its accuracy from the same data flatters it.",
    )


def _series(rows: Rows, figures: Figures, method: str, *, in_tokens: bool) -> Series:
    cells = [(n, figures.get(f"accuracy/{method}/{n}")) for n in _sizes_of(rows, method)]
    known = [(n, cell) for n, cell in cells if cell is not None and cell.value is not None]

    def x(n: int) -> float:
        paid = _tokens(figures, method, n) if in_tokens else None
        return float(n) if paid is None else paid

    def scaled(value: float | None) -> float | None:
        return None if value is None else 100.0 * value

    return Series(
        name=method,
        x=tuple(x(n) for n, _ in known),
        y=tuple(scaled(cell.value) for _, cell in known),
        low=tuple(scaled(cell.low) for _, cell in known),
        high=tuple(scaled(cell.high) for _, cell in known),
    )


def refused_votes(kind: ScoreKind | None, names: Sequence[str] = AGGREGATES) -> tuple[str, ...]:
    """Sentences that say which weighted votes are left out, and why."""
    if kind is None:
        return ()
    if kind != "probability":
        return (f"No weighted votes: {vote_refusal(names[0], kind)}.",)
    return tuple(
        f"No vote weighted by {how}: {why}." for how in names if (why := vote_refusal(how, kind)) is not None
    )
