"""Best-of-N: how often the chosen candidate is right, from candidates or from a policy to a report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from stepmark.backends.replies import ReplyFile
from stepmark.data.steps.splitting import check_way
from stepmark.errors import InputError
from stepmark.evaluation import best_of_n_figures
from stepmark.evaluation.best_of_n_figures import (
    CORRECTNESS,
    MEASURES,
    Candidate,
    CandidateSet,
    Counting,
    by_grader,
    coverage,
    method_names,
    vote_refusal,
)
from stepmark.evaluation.cases import Case
from stepmark.evaluation.evaluation import INTERVALS, Evaluation, Run, Views, check_same
from stepmark.evaluation.result import Figure, Item, Result, made_folder, shown
from stepmark.evaluation.scores import CaseScores, Sheet, score_lengths, wrong_count
from stepmark.evaluation.sources import read_cases
from stepmark.evaluation.views import (
    Cell,
    Figures,
    card,
    cell,
    examples_of,
    problem,
    series_of,
    table_of,
    tile,
    value_cell,
)
from stepmark.metrics.aggregate import AGGREGATES, allowed
from stepmark.metrics.intervals import Floats, Statistic
from stepmark.models.lazy import Lazy
from stepmark.models.policies import Policy, policy_identity
from stepmark.problems.sources import read_problems
from stepmark.records import ScoreKind
from stepmark.sampling import Sampled, Sampling, sample
from stepmark.settings import settings
from stepmark.show.evaluation import Examples, Section
from stepmark.show.page import ProblemView
from stepmark.show.plots import Lines
from stepmark.show.progress import Progress
from stepmark.show.tables import Table
from stepmark.show.text import amount
from stepmark.store import PartFile, resumed, row_key
from stepmark.verifiers.base import Verifier, answer_groups, isolation_note, isolation_of, open_verifier
from stepmark.verifiers.checks import check, check_names
from stepmark.verifiers.code_sandbox import Isolation
from stepmark.verifiers.finder import find_answer
from stepmark.verifiers.number import NumberVerifier

_TOGETHER = 16
"""Problems that are sampled at once."""

_POLICY = "policy/"


def by_problem(sheet: Sheet) -> dict[str, list[CaseScores]]:
    """The rows of each problem, in the order of its first."""
    problems: dict[str, list[CaseScores]] = {}
    for row in sheet.rows:
        problems.setdefault(row.case.problem, []).append(row)
    return problems


def checked(cases: Sequence[Case], verifier: Verifier) -> list[Case]:
    """The cases with an outcome for each whose row does not say whether its answer is right, by comparing that with the reference.

    Raises:
        InputError: with `FILE:LINE`: a row without `correct` has no reference to compare with; or no candidate's correctness is known.
    """
    for case in cases:
        if case.unchecked and not (case.solution.problem.answer or "").strip():
            raise InputError(
                f'nothing says whether candidate {case.id} is right: give it "correct" (true, false, or null for unknown), or give the row '
                '"answer", the reference, to compare it with',
                where=case.where,
                field="correct",
            )
    missing = [case for case in cases if case.unchecked]
    # Each text is read once: what it answers is compared, and votes. Programs do not vote.
    votes = (
        verifier.name != "code" and len(missing) == len(cases) and all(case.answer is None for case in cases)
    )
    verdicts, answers = {}, {}
    for case in missing:
        text = "".join(step.raw for step in case.solution.steps)
        verdicts[case.id] = verifier.verify(case.answer or text, case.solution.problem.answer or "")
        found = find_answer(text, "stated") if votes else None
        answers[case.id] = case.answer if found is None else found.text
    known = [
        replace(
            case,
            outcome=verdicts[case.id].correct,
            unchecked=False,
            answer=answers[case.id],
        )
        if case.unchecked
        else case
        for case in cases
    ]
    if known and all(case.outcome is None for case in known):
        first = missing[0] if missing else known[0]
        why = f", {verdicts[first.id].note}" if missing else ""
        raise InputError(
            f'of {len(known):,} candidates none is known to be right or wrong (the first: {first.id}{why}): expected "correct" true or '
            "false, or answers that `verifier` can compare with the reference",
            where=first.where,
            field="correct",
        )
    return known


def _fits(scores: str | Path, model: str | None) -> Callable[[Case], None]:
    """A check of each candidate as it is read: that a file of scores has one for each of its steps."""
    lengths = score_lengths(scores, model=model)

    def check(case: Case) -> None:
        if (length := lengths.get(case.id)) is not None and length != len(case.solution.steps):
            raise wrong_count(case, length, str(scores))

    return check


def candidate_sets(
    sheet: Sheet,
    verifier: Verifier | None = None,
    *,
    outcomes: Mapping[str, float] | None = None,
    outcome_tokens: Mapping[str, int] | None = None,
    refuted: Collection[str] = (),
) -> list[CandidateSet]:
    """The graded cases of a sheet, one set a problem, with answers in groups of equal ones (by default of equal numbers).

    A solution that the PRM refused has no score and cost no PRM tokens. The problem's tokens are charged once for all
    its candidates, as the engine computes a shared prefix once. Where the data gives no answer at all, answers are
    taken from the texts; where it gives no generated tokens at all, the solution's length in the PRM's tokens stands for them.
    `outcomes` and `outcome_tokens` are of an outcome reward model, by case id; `refuted` are ids of cases with a refuted step.
    """
    given = any(row.case.answer is not None for row in sheet.rows)
    counted = _counted(sheet)
    sets = []
    for id_, rows in by_problem(sheet).items():
        texts = ["".join(step.raw for step in row.case.solution.steps) for row in rows]
        answers = [row.case.answer for row in rows]
        if not given:
            answers = [None if (result := find_answer(text)) is None else result.text for text in texts]
        candidates = []
        for row, group in zip(rows, answer_groups(answers, verifier or NumberVerifier()), strict=True):
            length = None if row.steps is None else row.steps.solution_tokens
            candidates.append(
                Candidate(
                    correct=row.case.outcome,
                    answer=group,
                    steps=row.steps,
                    outcome=(outcomes or {}).get(row.case.id),
                    tokens=row.case.tokens if counted else length,
                    outcome_tokens=(outcome_tokens or {}).get(row.case.id),
                    prm_tokens=0 if row.refused is not None else length,
                    policy=row.case.policy,
                    greedy=row.case.greedy,
                    refuted=row.case.id in refuted,
                )
            )
        once = max((row.steps.problem_tokens or 0 for row in rows if row.steps), default=0)
        sets.append(CandidateSet(id=id_, candidates=tuple(candidates), prm_once=once))
    return sets


def _counted(sheet: Sheet) -> bool:
    return any(row.case.tokens is not None for row in sheet.rows)


def statistic(items: Sequence[Item]) -> Statistic:
    """Every figure of the items: those of `best_of_n_figures.statistic`, and those of `policy_statistic` after "policy/"."""
    choices, policies = best_of_n_figures.statistic(items), best_of_n_figures.policy_statistic(items)

    def figures(weights: Floats) -> dict[str, Floats]:
        return dict(choices(weights)) | {
            f"{_POLICY}{name}": value for name, value in policies(weights).items()
        }

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
    tokens that the policy wrote and the PRM read. The data are solutions as `stepmark grade` reads them, of which those of one problem are
    its candidates, or {"id", "question", "gold", "candidates": [{"model", "text", "answer", "correct", "tokens"}]}; without "correct", answers
    are compared with the reference. With a policy the data are problems (a
    question and its reference answer a row, GSM8K's own rows too), of which the policy samples candidates; that is resumed when it is stopped.
    """

    name: ClassVar[str] = "best-of-n"
    models: ClassVar[tuple[str, ...]] = ("prm", "orm", "policy")
    n: Annotated[int, Field(ge=1)] = 8
    """With a policy, candidates a problem; one greedy one is written beside them."""
    temperature: Annotated[float, Field(ge=0)] = 0.8
    """With a policy, sampling temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """With a policy, sample among the likeliest tokens that together hold this share of the probability."""
    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """With a policy, the longest solution."""
    prompt: Literal["chat", "text"] = "chat"
    """With a policy, ask as the user's turn of a chat, or as plain text (base models)."""
    instruction: str | None = None
    """With a policy, the text after the problem. Default: to go step by step and to box the answer."""
    verifier: str = "math"
    """What compares answers, for the votes, for candidates without "correct" and for those of a policy: math, number, choice, text, code, or "package.module:Class"."""
    answers: Literal["stated", "marked"] = "stated"
    """Which answers of a solution count: stated, also its concluding statement; marked, only a box, ####, "the answer is"."""
    isolation: Isolation | None = None
    """With the verifier code, what keeps programs apart: bubblewrap, a sandbox; or unsafe, which is none: your files are open to them. Default: bubblewrap."""
    sizes: Sequence[Annotated[int, Field(ge=1)]] = ()
    """The N to report. Default: 1, 2, 4, … and all."""
    checks: str = "auto"
    """Exact checks (`stepmark.check`): all, none, or names with commas between them. What one refutes comes after all others and has no weight in votes. Default: those of the PRM (all with the default PRM, none with others)."""
    split: str = "auto"
    """How texts are split into steps: auto, line, blank-line, numbered, sentence, code, whole."""

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        check_way(self.split)
        if self.checks != "auto":
            check_names(self.checks)

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items)

    def measure(self, run: Run) -> Result:
        """See `Evaluation.measure`."""
        isolation = isolation_of(self.verifier, self.isolation)
        with open_verifier(self.verifier, answers=self.answers, isolation=self.isolation) as verifier:
            if isolation is not None:
                run.note(isolation_note(isolation))
            if run.policy is None:
                fits = None if run.scores is None else _fits(run.scores, run.model_name)
                cases = run.take(read_cases(run.data, how=self.split, columns=run.columns, check=fits))
            else:
                cases = read_cases([self._sample(run, verifier)], how=self.split)
            unchecked = sum(case.unchecked for case in cases)
            # Scores are joined before answers are read, which takes longer.
            given = None if run.scores is None else run.grade(cases)
            cases = checked(cases, verifier)
            if unchecked:
                run.note(
                    f"{amount(unchecked, 'candidate does', 'candidates do')} not say whether the answer is right: compared with the reference ({self.verifier})"
                )
            if given is None:
                sheet = run.grade(cases)
            else:
                rows = zip(given.rows, cases, strict=True)
                sheet = replace(given, rows=tuple(replace(row, case=case) for row, case in rows))
            judged = None if run.orm is None else run.grade(cases, outcome=True)
            return self.of_candidates(sheet, run, verifier=verifier, judged=judged)

    def of_candidates(
        self, sheet: Sheet, run: Run, *, verifier: Verifier | None = None, judged: Sheet | None = None
    ) -> Result:
        """The result of graded candidates.

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
        names = check_names(sheet.checks if self.checks == "auto" else self.checks)
        refuted = {
            row.case.id
            for row in (sheet.rows if names else ())
            if check(row.case.solution.problem.text, row.case.solution.texts, names=names)
        }
        counting = Counting(sizes=tuple(self.sizes) or None, seed=run.seed)
        how = headline(sheet)
        items = best_of_n_figures.items(
            candidate_sets(
                sheet, verifier, outcomes=outcomes, outcome_tokens=outcome_tokens, refuted=refuted
            ),
            counting,
        )
        figures = known(run.figures(items, statistic(items)))
        most = items[0]["sizes"][-1]
        best = best_way(items, figures, most)
        writers = {row.case.policy for row in sheet.rows} - {None}
        views = Views(
            title=f"Best of N: {sheet.prm}",
            verdict=_verdict(items, figures, how, most),
            facts=(
                coverage(items),
                f"The PRM's choice, where one is named, is by its {how} of step scores.",
                *(
                    [
                        f"The candidates come from {amount(len(writers), 'policy', 'policies')}: choosing among them is partly choosing the policy."
                    ]
                    if len(writers) > 1
                    else []
                ),
                *(
                    []
                    if _counted(sheet)
                    else [
                        "The data does not say how many tokens the policies generated: where the PRM counts tokens, the length of the "
                        "solutions in its tokens stands for them."
                    ]
                ),
                *refused_votes(sheet.kind),
            ),
            remarks=(INTERVALS,),
            tiles=[
                tile(f"{label}, %", figures[name])
                for label, name in (
                    ("One sample", "accuracy/single/1"),
                    (f"Majority of {most}", f"accuracy/majority/{most}"),
                    *([(f"{words(best)} of {most}".capitalize(), f"accuracy/{best}/{most}")] if best else []),
                    *(
                        [(f"Its own choice, {words(f'best {how}')} of {most}", f"accuracy/best {how}/{most}")]
                        if best != f"best {how}"
                        else []
                    ),
                    (f"Oracle of {most}", f"accuracy/oracle/{most}"),
                )
                if name in figures
            ],
            sections=(
                Section(
                    title="Accuracy",
                    text="How often each way of choosing among N candidates gives a right answer. The oracle is right whenever a right "
                    "candidate is there.",
                    items=(accuracy_table(items, figures), price_plot(items, figures, how)),
                ),
                Section(title="What it costs", items=price_tables(items, figures)),
                Section(
                    title="Length",
                    text="Whether the score follows the length. Beside each aggregate stands correctness itself: what a perfect score "
                    "would show.",
                    items=(length_table(figures),),
                ),
                Section(title="By who wrote the solution", items=policy_tables(figures, how)),
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
            "answers": self.answers,
            "isolation": isolation_of(self.verifier, self.isolation),
            "limit": run.limit,
            "data": list(run.inputs),
            "sampling": asdict(sampling),
        }
        if path.exists():
            check_same(path, manifest)
            if isinstance(run.policy, Lazy):
                arguments = run.policy.arguments
                named = {key: arguments[key] for key in ("dtype", "quantize", "device") if key in arguments}
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
            PartFile(path, {key: manifest[key] for key in manifest if key not in ("limit", "data")}) as part,
            closing(ReplyFile(run.folder / "replies.sqlite")) as store,
        ):
            policy: Policy = run.loaded(run.policy)
            part.identify({"policy": policy.identity})
            progress = Progress(
                len(problems),
                tokens=lambda: policy.tokens_written,
                verb="sampled",
                noun="problem",
                together=_TOGETHER,
                shown=run.progress,
            )

            done = resumed(
                part,
                problems,
                lambda problem: row_key(asdict(problem)),
                lambda left: sample(left, policy, sampling, store=store, in_flight=_TOGETHER),
                lambda _, result: _row(result, policy.name, verifier),
            )
            try:
                with progress:
                    for _, _, fresh in done:
                        progress.advance(fresh=fresh is not None)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"what was sampled is kept in {run.folder}; the same command continues"
                ) from None
            # Under a name of its own: the manifest has the policy as the caller named it.
            part.finish({**manifest, "policy_name": policy.name}, {path: lambda row: [row]})
        return path


def _row(sampled: Sampled, policy: str, verifier: Verifier) -> dict[str, Any]:
    """One row of a candidates file. A text without a verdict has `correct` null, and never counts as wrong silently.

    Raises:
        InputError: the policy cannot read the problem.
    """
    if sampled.refused is not None:
        raise InputError(sampled.refused, where=sampled.problem.id)
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


def _examples(sheet: Sheet, items: Sequence[Item], how: str) -> tuple[Examples, ...]:
    passed, picked = [], []
    for rows, item in zip(by_problem(sheet).values(), items, strict=True):
        best = item["best"].get(how, [])
        truth = [row.case.outcome for row in rows if not row.case.greedy]
        if not best or True not in truth:
            continue
        chosen = rows[best[0]]
        outcome = chosen.case.outcome
        other = next((row for row in rows if not row.case.greedy and row.case.outcome is (not outcome)), None)
        if other is None or outcome is None:
            continue
        if not outcome:
            passed.append((chosen, other))
        elif truth.count(True) * 3 <= len(truth):
            picked.append((chosen, other))
    sorts = {
        f"A right candidate is there, and the highest {how} is of a wrong one": passed,
        "Few candidates are right, and the PRM chooses one of them": picked,
    }
    text = "The chosen candidate and another one."
    return examples_of(sorts, lambda pair: _pair(*pair, sheet, how), text=text)


def known(figures: Figures) -> dict[str, Figure]:
    """The figures, those of a method without an interval whose choices are for more than half of unknown correctness.

    The resamples tell of the known choices alone, so that an interval would claim to be sure of the others.
    """
    unknown = {
        name.removeprefix("unknown/")
        for name, figure in figures.items()
        if name.startswith("unknown/") and (figure.value or 0.0) > 0.5
    }

    hidden = {
        name.removesuffix("/unknown")
        for name, figure in figures.items()
        if name.startswith(_POLICY) and name.endswith("/unknown") and (figure.value or 0.0) > 0.5
    }

    def of_unknown(name: str) -> bool:
        what, _, method = name.partition("/")
        n = name.rpartition("/")[2]
        beside = {
            "gap": f"oracle/{n}",
            "over majority": f"majority/{n}",
            "over orm": f"best orm/{n}",
            "over majority at equal tokens": f"majority/{n}",
        }
        if what == "policy":
            return any(name == f"{writer}/accuracy" or name.startswith(f"{writer}/auc/") for writer in hidden)
        if what == "held out":
            return any(by_grader(method.rpartition("/")[0]) for method in unknown)
        return what in ("accuracy", *beside) and not unknown.isdisjoint((method, beside.get(what, method)))

    return {
        name: replace(figure, low=None, high=None) if of_unknown(name) else figure
        for name, figure in figures.items()
    }


def best_way(items: Sequence[Item], figures: Figures, most: int) -> str | None:
    """The method that asks a grader and is right most often of the largest N; None where none does."""
    ways = [
        method
        for method in method_names(items)
        if by_grader(method) and (one := figures.get(f"accuracy/{method}/{most}")) and one.value is not None
    ]
    return max(ways, key=lambda method: figures[f"accuracy/{method}/{most}"].value or 0.0, default=None)


def words(method: str) -> str:
    """A method for people: "vote weighted by the product of step scores", "highest min step score"."""
    kind, _, how = method.partition(" ")
    if method == "best orm":
        return "highest ORM score"
    score = f"{how} step score" if how in ("min", "mean", "last", "max") else f"{how} of step scores"
    return f"vote weighted by the {score}" if kind == "vote" else f"highest {score}"


def _signed(figure: Figure) -> str:
    return f"{'+' if (figure.value or 0.0) > 0 else ''}{shown(figure)}"


def _verdict(items: Sequence[Item], figures: Figures, how: str, most: int) -> str:
    """The best way to use the PRM and its lead over the vote; its own choice; the ceiling."""
    oracle, best = figures.get(f"accuracy/oracle/{most}"), best_way(items, figures, most)
    if oracle is None or best is None:
        return ""
    if most == 1:
        return f"Every problem has one candidate, so there is nothing to choose: {shown(oracle)} % are right."
    parts = [
        f"The best way to choose among {most} candidates: {words(best)}, right in {shown(figures[f'accuracy/{best}/{most}'])} %"
    ]
    leads = {
        name: figure
        for name, key in (
            ("best", f"over majority/{best}/{most}"),
            ("own", f"over majority/best {how}/{most}"),
            ("orm", f"over orm/best {how}/{most}"),
            ("held out", f"held out/over majority/{most}"),
        )
        if (figure := figures.get(key)) is not None and figure.value is not None
    }
    if "best" in leads:
        parts[0] += f", {_signed(leads['best'])} points over the majority vote"
    equal = [
        (n, one)
        for n in items[0]["sizes"]
        if (one := figures.get(f"over majority at equal tokens/{best}/{n}")) and one.value is not None
    ]
    if equal:
        n, lead = equal[-1]
        parts.append(f"At equal tokens, with {n} candidates against a larger vote: {_signed(lead)}")
    if "own" in leads and best != f"best {how}":
        parts.append(f"The PRM's own choice (highest {how}): {_signed(leads['own'])}")
    if "orm" in leads:
        parts.append(f"The PRM's own choice over the ORM's: {_signed(leads['orm'])}")
    unknown = figures.get(f"unknown/{best}/{most}")
    if unknown is not None and (unknown.value or 0.0) > 0.1:
        parts.append(
            f"Whether its choice is right is unknown for {shown(unknown)} % of the problems, which are left out"
        )
    count = sum(map(by_grader, method_names(items)))
    if "held out" in leads:
        parts.append(
            f"The best of {count} ways on the same problems is flattered: chosen on one half and measured on the other, it gives {_signed(leads['held out'])}"
        )
    else:
        parts.append(f"It is the best of {count} ways on these problems, which flatters it")
    parts.append(f"A right candidate is there in {shown(oracle)} %")
    return ". ".join(parts) + "."


def _pair(chosen: CaseScores, other: CaseScores, sheet: Sheet, how: str) -> ProblemView:
    cards = []
    for number, (row, place) in enumerate(((chosen, "chosen"), (other, "not chosen")), start=1):
        answer = "" if row.case.answer is None else f", answer {row.case.answer}"
        note = f"{place}; {'right' if row.case.outcome else 'wrong'}{answer}"
        cards.append(card(row, sheet, note, how=how, number=number))
    return problem(chosen, *cards)


def accuracy_table(items: Sequence[Item], figures: Figures) -> Table:
    """Accuracy of every method at the largest N, its lead over the majority vote and its gap to the oracle; accuracy at the other N."""
    sizes = items[0]["sizes"]
    most = sizes[-1]
    equal = [
        n
        for n in sizes
        if any(f"over majority at equal tokens/{m}/{n}" in figures for m in method_names(items))
    ]
    columns = {
        f"N = {most}": cell(figures, f"accuracy/{{}}/{most}"),
        "Over majority": cell(figures, f"over majority/{{}}/{most}"),
    }
    if any(f"over orm/{method}/{most}" in figures for method in method_names(items)):
        columns["Over ORM"] = cell(figures, f"over orm/{{}}/{most}")
    if equal:
        columns[f"At equal tokens, N = {equal[-1]}"] = cell(
            figures, f"over majority at equal tokens/{{}}/{equal[-1]}"
        )
    columns["Gap to the oracle"] = cell(figures, f"gap/{{}}/{most}")
    columns |= {
        f"N = {n}": value_cell(figures, f"accuracy/{{}}/{n}", scale=100, digits=1)
        for n in dict.fromkeys((1, *sizes[:-1]))
    }
    return table_of(
        "Accuracy by method and N, %",
        "Method",
        method_names(items),
        columns,
        note="Expectations over all subsets of N of a problem's candidates. Over majority: less the majority vote of as many candidates; at "
        f"equal tokens: less the majority vote that costs as much as N candidates and their grading"
        f"{'' if any(name.startswith('tokens/') for name in figures) else ' (2 N candidates, as no tokens were counted)'}. {coverage(items)}",
    )


def price_tables(items: Sequence[Item], figures: Figures) -> tuple[Table, ...]:
    """Expected tokens a problem by N, where they were counted."""
    sizes = [str(n) for n in items[0]["sizes"]]
    readers = {"policy": "Policy", "prm": "PRM", "outcome": "Outcome model"}
    columns = {
        label: cell(figures, f"tokens/{who}/{{}}", scale=1, digits=0)
        for who, label in readers.items()
        if f"tokens/{who}/{sizes[-1]}" in figures
    }
    note = "Means over the problems whose candidates all have a count. A choice by PRM or a weighted vote pays policy and PRM; a majority vote only the policy."
    return (table_of("Tokens a problem", "N", sizes, columns, note=note),) if columns else ()


def length_table(figures: Figures) -> Table:
    """Rank correlation of score and length, and how much longer the chosen solution is, by aggregate."""
    names = [
        f"{measure}/{how}"
        for measure in MEASURES
        for how in (*AGGREGATES, "orm", CORRECTNESS)
        if f"length/{measure}/spearman/{how}" in figures
    ]

    def of(what: str, digits: int) -> Cell:
        def text(name: str) -> str:
            measure, _, how = name.partition("/")
            return shown(figures.get(f"length/{measure}/{what}/{how}"), scale=1, digits=digits)

        return text

    note = "Within each problem, averaged over problems; a dash where scores or lengths never differ."
    return table_of(
        "Length bias",
        "Length in",
        names,
        {
            "Score": lambda name: name.partition("/")[2].replace(CORRECTNESS, "(correctness itself)"),
            "Rank correlation": of("spearman", 2),
            "Chosen less mean": of("longer", 1),
        },
        label=lambda name: name.partition("/")[0],
        left=2,
        note=note,
    )


def policy_tables(figures: Figures, how: str) -> tuple[Table, ...]:
    """Each policy: its candidates, accuracy, mean score and AUC of the score; none when no policy is named."""
    ending = "/accuracy"
    names = [
        name.removeprefix(_POLICY).removesuffix(ending)
        for name in figures
        if name.startswith(_POLICY) and name.endswith(ending)
    ]
    if not names:
        return ()
    names.sort(key=lambda name: (-(figures[f"{_POLICY}{name}{ending}"].value or 0.0), name))

    return (
        table_of(
            f"By policy ({how})",
            "Policy",
            names,
            {
                "Candidates": value_cell(figures, f"{_POLICY}{{}}/candidates"),
                "Accuracy, %": cell(figures, f"{_POLICY}{{}}{ending}"),
                "Mean score": cell(figures, f"{_POLICY}{{}}/score/{how}", scale=1, digits=3),
                "AUC within the policy": cell(figures, f"{_POLICY}{{}}/auc/{how}", scale=1, digits=3),
            },
            note="AUC: how often a right candidate scores above a wrong one of the same policy.",
        ),
    )


def price_plot(items: Sequence[Item], figures: Figures, how: str) -> Lines:
    """Accuracy against the tokens that each method pays in all; against N where they were not counted."""
    drawn = {"greedy", "single", "majority", f"best {how}", "best orm", f"vote {how}", "oracle"}
    drawn |= {best} if (best := best_way(items, figures, items[0]["sizes"][-1])) else set()
    points: dict[str, list[tuple[float | None, int, Figure]]] = {}
    for method in method_names(items):
        for n in [1] if method in {"single", "greedy"} else items[0]["sizes"]:
            accuracy = figures.get(f"accuracy/{method}/{n}")
            if method in drawn and accuracy is not None and accuracy.value is not None:
                points.setdefault(method, []).append((_tokens(figures, method, n), n, accuracy))
    in_tokens = all(tokens is not None for tokens, _, _ in points.get("single", [(None, 1, None)]))
    series = []
    for method, of in points.items():
        if in_tokens and any(tokens is None for tokens, _, _ in of):
            continue  # a method whose tokens nobody counted has no place on this axis
        line = series_of(method, [figure for _, _, figure in of])
        xs = tuple(float(tokens if in_tokens and tokens is not None else n) for tokens, n, _ in of)
        series.append(replace(line, x=xs))
    return Lines(
        title="Accuracy against " + ("tokens" if in_tokens else "N"),
        x_label="Tokens a problem: policy and graders" if in_tokens else "N",
        y_label="Accuracy, %",
        series=tuple(series),
        log_x=True,
    )


def _tokens(figures: Figures, method: str, n: int) -> float | None:
    """What the method pays in all; None where a part of it was not counted."""
    if method == "greedy":
        readers: tuple[str, ...] = ("greedy",)
    elif method == "best orm":
        readers = ("policy", "outcome")
    else:
        readers = ("policy", "prm") if method.startswith(("best ", "vote ")) else ("policy",)
    values = [figure.value if (figure := figures.get(f"tokens/{who}/{n}")) else None for who in readers]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) and sum(known) > 0 else None


def refused_votes(kind: ScoreKind) -> tuple[str, ...]:
    """Sentences that say which weighted votes are left out, and why."""
    refusals = {how: why for how in AGGREGATES if (why := vote_refusal(how, kind)) is not None}
    if len(refusals) == len(AGGREGATES):
        return (f"No weighted votes: {refusals[AGGREGATES[0]]}.",)
    return tuple(f"No vote weighted by {how}: {why}." for how, why in refusals.items())
