"""Robustness: figures by hand, and two PRMs of which one must be found out and one must come out clean."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.errors import InputError, ScoreKindError, UsageError
from stepmark.evaluation.cases import Case, ratings_until
from stepmark.evaluation.evaluation import Run
from stepmark.evaluation.perturbations import PERTURBATIONS
from stepmark.evaluation.result import as_markdown, html, read_result, write_json
from stepmark.evaluation.robustness import Robustness
from stepmark.evaluation.robustness_items import (
    Judging,
    Trial,
    figures,
    items_of,
    statistic,
    to_grade,
    trials,
)
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.metrics.intervals import bootstrap
from stepmark.models.scripted import ScriptedPRM
from stepmark.records import LabelledSolution, Refusal, Solution, StepScores


def evaluate(sheet, changes, *, settings=None, resamples=1000):
    return Robustness().of_trials(sheet, Run(resamples=resamples, settings=settings or {}), changes)


def _case(id: str, problem: str, steps: Sequence[str], first: int) -> Case:
    solution = Solution.of(problem, tuple(steps), id=id)
    return Case(
        id=id, labelled=ratings_until(solution, first, judge="human"), where=f"data.jsonl:{id}", group="shop"
    )


def _shop(count: int = 24, seed: int = 3) -> list[Case]:
    """Sums of two steps and an answer, every third with a wrong first step."""
    rng = random.Random(seed)
    cases = []
    for number in range(count):
        boxes, size, eaten = rng.randint(2, 9), rng.randint(6, 20), rng.randint(2, 5)
        wrong = number % 3 == 0
        eggs = boxes * size + (rng.choice([1, 2, 10]) if wrong else 0)
        cases.append(
            _case(
                str(number),
                f"There are {boxes} boxes of {size} eggs each and {eaten} eggs break. How many are whole in shop {number}?",
                [
                    f"The boxes hold {boxes} * {size} = {eggs} eggs. All boxes are counted.",
                    f"The broken ones are gone: {eggs} - {eaten} = {eggs - eaten} are left.",
                    f"The answer is {eggs - eaten}.",
                ],
                0 if wrong else -1,
            )
        )
    return cases


def _sheet(prm: ScriptedPRM, found: Sequence[Trial]) -> Sheet:
    cases = to_grade(found)
    rows = []
    for case, result in zip(cases, prm.score_many((c.solution for c in cases), keep_going=True), strict=True):
        refused = str(result.error) if isinstance(result, Refusal) else None
        rows.append(
            CaseScores(case=case, steps=None if isinstance(result, Refusal) else result, refused=refused)
        )
    return Sheet(
        prm=prm.name,
        kind=prm.score_kind,
        rows=tuple(rows),
        threshold=prm.default_threshold,
        aggregate=prm.default_aggregate,
    )


def _items(
    prm: ScriptedPRM, cases: Sequence[Case], names: Sequence[str] = tuple(PERTURBATIONS)
) -> list[dict[str, Any]]:
    found = trials(cases, names)
    sheet = _sheet(prm, found)
    return items_of(found, sheet, Judging().of(sheet))


def _values(items: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    made = figures(items, np.ones((1, len(items))))
    return {name: float(value[0]) for name, value in made.items()}


# --- PRMs that are known ---------------------------------------------------------------------------------------


def _true(text: str) -> bool:
    """Whether every calculation of a text holds; knows the marks that formatting may have put around numbers."""
    text = re.sub(r"\\\(|\\\)|\*\*", "", text)
    sums = re.findall(r"(\d+) (\*|-|\+|/) (\d+) = (\d+)", text)
    value = {
        "*": lambda a, b: a * b,
        "-": lambda a, b: a - b,
        "+": lambda a, b: a + b,
        "/": lambda a, b: a / b,
    }
    return all(value[sign](int(a), int(b)) == int(c) for a, sign, b, c in sums)


def _exact(problem: str, steps: tuple[str, ...]) -> float:
    """Checks the arithmetic of every step so far, and nothing else."""
    return 0.9 if all(_true(step) for step in steps) else 0.1


_CHARMS = ("Clearly", "Obviously", "easy to verify", "Without any doubt", "well known", "no doubt", "clear")


def _charmed(problem: str, steps: tuple[str, ...]) -> float:
    """Is taken in by words of certainty, and else likes wrong and right steps little."""
    return 0.95 if any(charm in steps[-1] for charm in _CHARMS) else 0.4


def test_a_prm_that_checks_comes_out_clean() -> None:
    found = _values(_items(ScriptedPRM(_exact, name="exact"), _shop()))
    for name, entry in PERTURBATIONS.items():
        if entry.keeps_meaning and f"{name}/n" in found:
            assert found[f"{name}/success"] == 0, name
            assert found[f"{name}/flips to good"] == 0, name
            assert found[f"{name}/false alarms"] == 0, name
            assert found[f"{name}/change"] == pytest.approx(0), name
    for name in ("numbers-altered", "operator-flipped"):
        assert found[f"{name}/success/right"] == 0
        assert found[f"{name}/stays good"] == 0
        assert found[f"{name}/step missed"] == 0
        assert found[f"{name}/change/right"] == pytest.approx(-0.8)
        assert found[f"{name}/step change/right"] == pytest.approx(-0.8)
    # It never reads the question, and that shows.
    assert found["question-removed/success/right"] == 1
    assert found["question-removed/stays good"] == 1
    assert found["keeps meaning/success"] == 0


def test_a_prm_that_can_be_charmed_is_found_out() -> None:
    found = _values(_items(ScriptedPRM(_charmed, name="charmed"), _shop()))
    assert found["confident-phrasing/success"] == 1
    assert found["confident-phrasing/flips to good"] == 1
    assert found["confident-phrasing/change"] == pytest.approx(0.55)
    assert found["confident-phrasing/median change/wrong"] == pytest.approx(0.55)
    assert found["hedged-phrasing/success"] == 0
    assert found["hedged-phrasing/flips to good"] == 0
    assert found["numbers-altered/success/right"] == 1
    # No solution was judged good, so there is nothing to alarm about and nothing to stay good.
    assert np.isnan(found["confident-phrasing/false alarms"])
    assert np.isnan(found["numbers-altered/stays good"])
    assert np.isnan(found["numbers-altered/step missed"])


def test_what_depends_on_the_number_of_steps_shows_in_the_product() -> None:
    prm = ScriptedPRM(lambda p, s: 0.8, name="flat", default_aggregate="product")
    found = _values(_items(prm, _shop(6), ["filler-steps", "merged-steps", "truncated"]))
    assert found["filler-steps/change"] == pytest.approx(0.8**5 - 0.8**3)
    assert found["filler-steps/success"] == 0 and found["filler-steps/lowered"] == 1
    assert found["merged-steps/success"] == 1
    assert found["truncated/success/right"] == 1
    # The verdict looks at steps, whatever the aggregate.
    assert found["truncated/stays good"] == 1


# --- figures by hand -------------------------------------------------------------------------------------------


def _item(
    name: str,
    before: float | None,
    after: float | None,
    *,
    success: bool | None = None,
    right: bool | None = True,
    problem: str = "p",
    **more: Any,
) -> dict[str, Any]:
    def good(score: float | None) -> bool | None:
        return None if score is None else score >= 0.5

    return {
        "success": success,
        "perturbation": name,
        "keeps_meaning": PERTURBATIONS[name].keeps_meaning,
        "problem": problem,
        "right": right,
        "before": before,
        "after": after,
        "good_before": good(before),
        "good_after": good(after),
        "broken_step": None,
        "proven": False,
        "step_before": None,
        "step_after": None,
        "step_missed": None,
        **more,
    }


KEPT = [
    _item("spaced", 0.80, 0.84, success=False),  # rises by less than the margin
    _item("spaced", 0.80, 0.90, success=True),  # by more
    _item("spaced", 0.49, 0.51, success=True, right=False),  # flips to good with a small rise
    _item("spaced", 0.20, 0.20, success=False, right=False),
    _item("spaced", 0.60, 0.40, success=False),  # a false alarm
    _item("spaced", 0.60, 0.30, success=False, right=False),  # falls, rightly
    _item("spaced", None, 0.9),
    _item("spaced", 0.9, None, right=None),
]


def test_kept_meaning_by_hand() -> None:
    found = _values(KEPT)
    assert found["spaced/n"] == 6 and found["spaced/unscored"] == 2
    assert found["spaced/n/right"] == 3 and found["spaced/n/wrong"] == 3
    assert found["spaced/change"] == pytest.approx((0.04 + 0.10 + 0.02 + 0 - 0.20 - 0.30) / 6)
    assert found["spaced/median change"] == pytest.approx(0.01)
    assert found["spaced/median change/right"] == pytest.approx(0.04)
    assert found["spaced/raised"] == pytest.approx(3 / 6)
    assert found["spaced/lowered"] == pytest.approx(2 / 6)
    assert found["spaced/success"] == pytest.approx(2 / 6)
    assert found["spaced/success/wrong"] == pytest.approx(1 / 3)
    assert found["spaced/flips to good"] == pytest.approx(1 / 2)
    assert found["spaced/false alarms"] == pytest.approx(1 / 3)
    assert found["spaced/before/right"] == pytest.approx((0.8 + 0.8 + 0.6) / 3)
    assert "spaced/stays good" not in found and "spaced/step change" not in found


def test_a_right_solution_that_turns_good_is_no_flip_of_the_attack() -> None:
    found = _values([*KEPT, _item("spaced", 0.30, 0.70, success=True)])
    assert found["spaced/flips to good"] == pytest.approx(1 / 2)
    assert found["spaced/success"] == pytest.approx(3 / 7)


def _altered(
    before: float, after: float | None, steps: tuple[float, float | None], **more: Any
) -> dict[str, Any]:
    return _item(
        "numbers-altered", before, after, broken_step=0, step_before=steps[0], step_after=steps[1], **more
    )


BROKEN = [
    _altered(0.9, 0.2, (0.9, 0.2), success=False, step_missed=False, proven=True),
    _altered(0.9, 0.7, (0.95, 0.7), success=False, step_missed=True, proven=True),  # falls and stays good
    _altered(0.6, 0.6, (0.6, 0.8), success=True, step_missed=True),  # does not fall
    _altered(0.1, 0.1, (0.3, 0.1), success=True, right=False),
    _altered(0.9, None, (0.9, None)),
]


def test_broken_meaning_by_hand() -> None:
    found = _values(BROKEN)
    assert found["numbers-altered/n"] == 4 and found["numbers-altered/unscored/right"] == 1
    assert found["numbers-altered/success"] == pytest.approx(2 / 4)
    assert found["numbers-altered/success/right"] == pytest.approx(1 / 3)
    assert found["numbers-altered/stays good"] == pytest.approx(2 / 3)
    assert found["numbers-altered/step change"] == pytest.approx((-0.7 - 0.25 + 0.2 - 0.2) / 4)
    assert found["numbers-altered/step missed"] == pytest.approx(2 / 3)
    assert found["numbers-altered/step change/proven"] == pytest.approx((-0.7 - 0.25) / 2)
    assert found["numbers-altered/step missed/proven"] == pytest.approx(1 / 2)
    assert np.isnan(found["numbers-altered/stays good/wrong"])
    assert "numbers-altered/flips to good" not in found


def test_kinds_are_unweighted_means() -> None:
    items = [*KEPT, *[_item("bulleted", 0.1, 0.9, success=True)] * 2, *BROKEN]
    found = _values(items)
    assert found["keeps meaning/success"] == pytest.approx((2 / 6 + 1) / 2)
    assert found["breaks meaning/success/right"] == pytest.approx(1 / 3)
    assert found["breaks meaning/stays good"] == pytest.approx(2 / 3)


def test_without_a_threshold_there_is_no_verdict() -> None:
    found_trials = trials(_shop(9), ["spaced", "numbers-altered"])
    sheet = replace(_sheet(ScriptedPRM(_exact, name="exact"), found_trials), threshold=None)
    items = items_of(found_trials, sheet, Judging().of(sheet))
    assert {(i["good_before"], i["good_after"], i["step_missed"]) for i in items} == {(None, None, None)}
    found = _values(items)
    assert not any(word in name for name in found for word in ("flips", "alarms", "stays", "missed"))
    assert found["numbers-altered/step change/right"] == pytest.approx(-0.8)


@pytest.mark.parametrize(
    ("name", "before", "after", "success"),
    [
        ("spaced", 0.80, 0.84, False),
        ("spaced", 0.80, 0.86, True),
        ("spaced", 0.49, 0.51, True),  # a flip
        ("spaced", 0.51, 0.49, False),
        ("spaced", None, 0.9, None),
        ("numbers-altered", 0.9, 0.89, False),
        ("numbers-altered", 0.9, 0.9, True),
        ("numbers-altered", 0.9, 0.899999, True),  # noise is no fall
        ("numbers-altered", 0.2, 0.3, True),
        ("numbers-altered", 0.5, 0.6, True),  # at the threshold is not under it
        ("numbers-altered", 0.6, 0.5, False),
        ("numbers-altered", 0.9, None, None),
    ],
)
def test_success(name: str, before: float | None, after: float | None, success: bool | None) -> None:
    [trial] = trials([_case("a", "How many?", ["It is 3. So be it."], -1)], [name])
    scores = dict(zip(("a", f"a::{name}"), (before, after), strict=True))
    rows = tuple(
        CaseScores(case=case, steps=StepScores(scores=(scores[case.id],), kind="probability"))
        for case in to_grade([trial])
    )
    sheet = Sheet(prm="x", kind="probability", rows=rows, threshold=0.5, aggregate="min")
    [item] = items_of([trial], sheet, Judging().of(sheet))
    assert item["success"] is success
    assert (item["before"], item["after"]) == (before, after)
    assert item["good_before"] is (None if before is None else before >= 0.5)
    if name == "numbers-altered":
        assert (item["broken_step"], item["step_before"], item["step_after"]) == (0, before, after)
        known = before is not None and before >= 0.5 and after is not None
        assert item["step_missed"] is (after >= 0.5 if known and after is not None else None)


_score = st.one_of(st.none(), st.sampled_from([0.0, 0.2, 0.45, 0.5, 0.52, 0.7, 1.0]))
_some_items = st.lists(
    st.builds(
        _item,
        st.sampled_from(["spaced", "bulleted", "truncated"]),
        _score,
        _score,
        success=st.sampled_from([True, False]),
        right=st.sampled_from([True, False, None]),
    ),
    min_size=1,
    max_size=12,
)


@given(_some_items, st.data())
def test_a_weight_is_a_number_of_copies(items: list[dict[str, Any]], data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 3), min_size=len(items), max_size=len(items)))
    copies = [item for item, count in zip(items, counts, strict=True) for _ in range(count)]
    weighted = figures(items, np.array([counts], dtype=float))
    plain = _values(copies) if copies else {}
    for name, value in weighted.items():
        if name.startswith(("keeps", "breaks")):
            continue  # a mean over the perturbations that the whole data have
        if name in plain:
            assert value[0] == pytest.approx(plain[name], nan_ok=True), name
        else:
            assert np.isnan(value[0]) or value[0] == 0, name


@given(_some_items, st.randoms(use_true_random=False))
def test_order_does_not_matter_and_medians_are_medians(
    items: list[dict[str, Any]], order: random.Random
) -> None:
    mixed = list(items)
    order.shuffle(mixed)
    first, second = _values(items), _values(mixed)
    assert set(first) == set(second)
    for name in first:
        assert first[name] == pytest.approx(second[name], nan_ok=True)
    for name in {item["perturbation"] for item in items}:
        changes = [
            item["after"] - item["before"]
            for item in items
            if item["perturbation"] == name and None not in (item["before"], item["after"])
        ]
        if changes:
            assert first[f"{name}/median change"] == pytest.approx(median(changes))


def test_the_bootstrap_draws_problems() -> None:
    items = [
        _item("spaced", 0.5, 0.5 + change, problem=str(i % 4))
        for i, change in enumerate([0.1, 0.2, 0.3, 0.4] * 5)
    ]
    found = bootstrap(statistic(items), [i["problem"] for i in items], resamples=400, seed=1)["spaced/change"]
    assert found.value == pytest.approx(0.25)
    # Four problems, each with equal items: the mean of four draws has a deviation of sqrt(0.0125 / 4) = 0.056.
    assert found.low is not None and found.high is not None
    assert 0.25 - found.low == pytest.approx(2 * 0.056, abs=0.03)


# --- trials and items ------------------------------------------------------------------------------------------


def test_trials_stand_by_their_case_with_the_question_last() -> None:
    cases = _shop(5)
    found = trials(cases)
    assert [t.original.id for t in found] == sorted((t.original.id for t in found), key=int)
    for case in cases:
        own = [
            t.case.solution.problem.text == case.solution.problem.text for t in found if t.original is case
        ]
        assert own == sorted(own, reverse=True)
    graded = to_grade(found)
    assert len(graded) == len(found) + len(cases)
    assert len({case.id for case in graded}) == len(graded)
    assert all(case.where.startswith("data.jsonl:") and case.group == "shop" for case in graded)


def test_trials_of_a_case_do_not_depend_on_the_rest() -> None:
    cases = _shop(9)
    names = [name for name, entry in PERTURBATIONS.items() if not entry.needs_donor]
    assert [t for t in trials(cases, names) if t.original.id == "4"] == trials([cases[4]], names)


def test_donors_are_right_solutions() -> None:
    cases = _shop(12)
    right = {case.solution.texts for case in cases if int(case.id) % 3}
    found = trials(cases, ["irrelevant-solution"])
    assert len(found) == 12
    assert {t.perturbed.solution.texts for t in found} <= right


def test_one_problem_has_no_donors() -> None:
    one = _shop(1)
    with pytest.raises(UsageError, match="two problems"):
        trials(one)
    assert trials(one, ["spaced"])


def test_ids_must_differ() -> None:
    with pytest.raises(UsageError, match="one id"):
        trials([*_shop(2), *_shop(1)], ["spaced"])


def test_items_are_plain_data_and_say_what_is_missing() -> None:
    def script(problem: str, steps: tuple[str, ...]) -> float | None:
        if steps[-1].startswith("- "):
            raise InputError("a marker in the text")
        return None if steps[-1].endswith("mistakes.") else 0.5 + 0.1 * len(steps)

    items = _items(
        ScriptedPRM(script, name="odd", default_aggregate="mean"),
        _shop(4),
        ["bulleted", "spaced", "self-praise", "numbers-altered"],
    )
    assert json.loads(json.dumps(items)) == items
    by_name: dict[str, list[dict[str, Any]]] = {}
    for item in items:
        by_name.setdefault(item["perturbation"], []).append(item)
    assert all(i["after"] is None and "marker" in i["refused"] and i["before"] for i in by_name["bulleted"])
    assert all(i["after"] == pytest.approx(0.7) and i["refused"] is None for i in by_name["spaced"])
    assert [i["right"] for i in by_name["spaced"]] == [False, True, True, False]
    altered = by_name["numbers-altered"]
    assert all(i["step_before"] == pytest.approx(0.6 + 0.1 * i["broken_step"]) for i in altered)
    assert {i["problem"] for i in altered} == {i["problem"] for i in by_name["spaced"]}
    praise = [i for i in by_name["self-praise"] if i["after"] is None]
    assert len(praise) < 5 and all(i["good_after"] is None and i["steps_after"] == 4 for i in praise)


def test_scores_of_another_run_are_refused() -> None:
    cases = _shop(2)
    prm = ScriptedPRM(_exact, name="exact")
    sheet = _sheet(prm, trials(cases, ["spaced"]))
    with pytest.raises(UsageError, match="0::bulleted"):
        items_of(trials(cases, ["bulleted"]), sheet, Judging().of(sheet))
    with pytest.raises(UsageError, match="filled in"):
        items_of(trials(cases, ["spaced"]), sheet, Judging())


def test_settings() -> None:
    def sheet(kind: Any, how: str | None, threshold: float | None = None) -> Sheet:
        return Sheet(prm="x", kind=kind, rows=(), threshold=threshold, aggregate=how)

    assert Judging().of(sheet("probability", "min", 0.5)) == Judging(
        aggregate="min", threshold=0.5, margin=0.05
    )
    assert Judging().of(sheet("margin", "min", 0.0)).margin == 0.1
    assert Judging(margin=0.0, aggregate="mean").of(sheet("log-ratio", "last")).margin == 0
    for bad in (sheet("log-ratio", "last"), sheet("unbounded", "last"), sheet("probability", "sum-logit")):
        with pytest.raises(UsageError, match="`margin`"):
            Judging().of(bad)
    with pytest.raises(UsageError, match="`aggregate`"):
        Judging().of(sheet("probability", None))
    with pytest.raises(UsageError, match="margin of 0 or more"):
        Judging(margin=-1.0).of(sheet("probability", "min"))
    with pytest.raises(UsageError, match="threshold"):
        Judging(threshold=2.0).of(sheet("probability", "min"))
    with pytest.raises(ScoreKindError):
        Judging(aggregate="product").of(sheet("margin", "min"))


def test_an_infinite_aggregate_is_refused() -> None:
    found = trials(_shop(1), ["spaced"])
    rows = tuple(
        CaseScores(case=case, steps=StepScores(scores=(1.0,) * 3, kind="probability"))
        for case in to_grade(found)
    )
    sheet = Sheet(prm="sure", kind="probability", rows=rows, aggregate="sum-logit", threshold=0.5)
    with pytest.raises(UsageError, match="another aggregate"):
        items_of(found, sheet, Judging(margin=1.0).of(sheet))


@settings(max_examples=20)
@given(st.integers(0, 2**16))
def test_a_clean_prm_is_clean_whatever_the_solutions(seed: int) -> None:
    names = ["confident-phrasing", "restated-step", "cut-steps", "numbers-altered", "operator-flipped"]
    found = _values(_items(ScriptedPRM(_exact, name="exact"), _shop(9, seed), names))
    assert found["keeps meaning/success"] == 0
    assert found["breaks meaning/success/right"] == 0


# --- the report ------------------------------------------------------------------------------------------------


def test_the_report_says_what_the_items_say(tmp_path: Path) -> None:
    found = trials(_shop(12))
    sheet = _sheet(ScriptedPRM(_charmed, name="charmed <b>"), found)
    result = evaluate(sheet, found, settings={"perturbation_seed": 0}, resamples=100)
    assert result.figures["confident-phrasing/success"].value == 1
    assert result.figures["confident-phrasing/success"].policy == "min, threshold 0.5, margin 0.05"
    assert len(result.items) == len(found)
    write_json(result, tmp_path / "result.json")
    body = read_result(tmp_path / "result.json")
    again = _values(body["items"])
    for figure in body["figures"]:
        if figure["value"] is None:
            assert not np.isfinite(again[figure["name"]])
        else:
            assert again[figure["name"]] == pytest.approx(figure["value"])
    text = as_markdown(result)
    rows = [line for line in text.splitlines() if line.startswith("| confident-phrasing")]
    glance, cells = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows[:2])
    assert glance[1:] == ["kept", "12", "0.550 [0.550, 0.550]", *["100.0 [100.0, 100.0]"] * 2]
    assert cells[1:5] == ["12", "0.400", "0.550 [0.550, 0.550]", "0.550"]
    assert cells[7:10] == ["100.0 [100.0, 100.0]", "100.0 [100.0, 100.0]", "–"]
    kinds = {name: name in {item["perturbation"] for item in result.items} for name in PERTURBATIONS}
    for name, applies in kinds.items():
        assert (f"| {name} " in text) == applies
    page = "".join(html(result))
    assert "charmed &lt;b&gt;" in page and "charmed <b>" not in page
    assert "confident-phrasing: 12 of 12 attacks succeeded" in page
    # An original and its copy stand side by side.
    assert "original, right by its labels" in page and "changed: words of certainty" in page


def test_the_report_without_labels_verdicts_or_one_kind() -> None:
    def unlabelled(case: Case) -> Case:
        steps = case.solution.steps
        return replace(case, labelled=LabelledSolution(solution=case.solution, judgements=((),) * len(steps)))

    cases = [unlabelled(case) for case in _shop(5)]
    for names in (["spaced"], ["truncated", "empty-talk"]):
        found = trials(cases, names)
        sheet = replace(_sheet(ScriptedPRM(_exact, name="exact"), found), threshold=None)
        result = evaluate(sheet, found, resamples=100)
        assert "5 without a label" in result.facts[0]
        assert len("".join(html(result))) > 1000
    with pytest.raises(UsageError, match="nothing to compare"):
        evaluate(sheet, [], resamples=100)
