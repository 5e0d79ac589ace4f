"""Best-of-N from graded cases to a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepmark.errors import InputError
from stepmark.evaluation import best_of_n
from stepmark.evaluation.best_of_n import BestOfN
from stepmark.evaluation.best_of_n_tables import (
    accuracy_table,
    aggregate_plot,
    coverage,
    length_table,
    policy_table,
    price_plot,
    price_table,
    refused_votes,
    undecided_table,
)
from stepmark.evaluation.candidates import Candidate, CandidateSet
from stepmark.evaluation.cases import Case
from stepmark.evaluation.examples import SHOWN, card, problem
from stepmark.evaluation.policies import policy_statistic
from stepmark.evaluation.result import Figure, Item, Result, measured
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.metrics.aggregate import allowed
from stepmark.metrics.first_error import found_error
from stepmark.metrics.intervals import Floats, Statistic
from stepmark.problems.answers import NumberVerifier, Verifier, answer_groups
from stepmark.problems.extraction import find_answer
from stepmark.show.evaluation import Examples, Section, Tile
from stepmark.show.views import ProblemView

NAME = "best-of-n"

_POLICY = "policy/"


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
            'false, or answers that --verifier can compare with "gold"',
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
    """Every figure of the items: those of `best_of_n.statistic`, and those of `policy_statistic` after "policy/"."""
    choices, policies = best_of_n.statistic(items), policy_statistic(items)

    def figures(weights: Floats) -> dict[str, Floats]:
        return choices(weights) | {f"{_POLICY}{name}": value for name, value in policies(weights).items()}

    return figures


def headline(sheet: Sheet) -> str:
    """The aggregate that stands for the PRM: its own, else the product of probabilities, else the minimum."""
    known = allowed(sheet.kind)
    if sheet.aggregate in known:
        return sheet.aggregate
    return "product" if "product" in known else "min"


def evaluate(
    sheet: Sheet,
    *,
    choices: BestOfN | None = None,
    verifier: Verifier | None = None,
    outcomes: Mapping[str, float] | None = None,
    outcome_tokens: Mapping[str, int] | None = None,
    settings: Mapping[str, Any] | None = None,
    data: Sequence[Mapping[str, Any]] = (),
    facts: Sequence[str] = (),
    resamples: int = 1000,
    seed: int = 0,
) -> Result:
    """Best-of-N figures of a sheet of graded candidates.

    Args:
        sheet: candidates (cases whose `outcome` says whether they are right) with their scores.
        choices: sizes, and the random subsets of votes.
        verifier: what says that two answers are equal, for the groups that vote; None for numbers compared exactly.
        outcomes: scores of an outcome reward model by case id.
        outcome_tokens: tokens that it read by case id.
        settings: what the scores were made with.
        data: the files' names and hashes.
        facts: more sentences for the top of the report.
        resamples: of the bootstrap over problems.
        seed: of the bootstrap.

    Raises:
        InputError: candidates that cannot be evaluated (see `best_of_n.items`).
        UsageError: sizes that no problem has.
    """
    choices = choices or BestOfN()
    how = headline(sheet)
    items = best_of_n.items(
        candidate_sets(sheet, verifier, outcomes=outcomes, outcome_tokens=outcome_tokens), choices
    )
    figures = measured(items, statistic(items), resamples=resamples, seed=seed)
    found = {figure.name: figure for figure in figures}
    of_policies = {name.removeprefix(_POLICY): f for name, f in found.items() if name.startswith(_POLICY)}
    writers = {row.case.policy for row in sheet.rows} - {None}
    tables = (accuracy_table(items, found), price_plot(items, found, how), aggregate_plot(items, found))
    more = (price_table(items, found), undecided_table(items, found))
    by_policy = policy_table(of_policies, how)
    sections = [
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
            items=(length_table(found),),
        ),
        Section(title="By who wrote the solution", items=(by_policy,) if by_policy is not None else ()),
        Section(title="Examples", items=_examples(sheet, items, how)),
    ]
    return Result(
        evaluation=NAME,
        title=f"Best of N: {sheet.prm}",
        prm=sheet.prm,
        facts=(
            coverage(items),
            f"The PRM's choice, where one is named, is by its {how} of step scores.",
            *(
                [
                    f"The candidates come from {len(writers)} policies: choosing among them is partly choosing the policy."
                ]
                if len(writers) > 1
                else []
            ),
            *(
                []
                if _counted(sheet)
                else [
                    "The data does not say how many tokens the policies generated: where the PRM counts tokens, the length "
                    "of the solutions in its tokens stands for them."
                ]
            ),
            *refused_votes(sheet.kind),
            *facts,
            "In brackets: 95 % bootstrap intervals over problems.",
        ),
        figures=figures,
        tiles=_tiles(items, found, how),
        sections=tuple(section for section in sections if section.items),
        items=tuple(items),
        settings={
            **(settings or {}),
            "sizes": list(items[0]["sizes"]),
            "limit of subsets": choices.limit,
            "random subsets": choices.draws,
            "seed of subsets": choices.seed,
        },
        data=data,
    )


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
