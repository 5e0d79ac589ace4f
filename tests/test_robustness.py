"""Robustness: figures by hand, and two PRMs of which one must be found out and one must come out clean."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepmark.errors import UsageError
from stepmark.evaluation.base import Run
from stepmark.evaluation.cases import Case, ratings_until
from stepmark.evaluation.perturbations import PERTURBATIONS
from stepmark.evaluation.robustness import (
    Robustness,
    Trial,
    items_of,
    statistic,
    to_grade,
    trials,
)
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.models.scripted import ScriptedPRM
from stepmark.records import Refusal, Solution, StepScores
from stepmark.report.tables import markdown


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
    return items_of(found, sheet, Robustness().resolved(sheet))


def _values(items: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    made = statistic(items)(np.ones((1, len(items))))
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
        assert found[f"{name}/n"] > 0
        if entry.keeps_meaning:
            assert found[f"{name}/success"] == 0, name
            assert found[f"{name}/flips to good"] == 0, name
            assert found[f"{name}/false alarms"] == 0, name
            assert found[f"{name}/change"] == pytest.approx(0), name
    assert found["wrong-number/success"] == 0
    assert found["wrong-number/stays good"] == 0
    assert found["wrong-number/step missed"] == 0
    assert found["wrong-number/change"] == pytest.approx(-0.8)
    # It reads each step alone, and that shows.
    assert found["dropped-step/success"] == found["shuffled-steps/stays good"] == 1
    assert found["keeps meaning/success"] == 0


def test_a_prm_that_can_be_charmed_is_found_out() -> None:
    found = _values(_items(ScriptedPRM(_charmed, name="charmed"), _shop()))
    assert found["confident-phrasing/success"] == 1
    assert found["confident-phrasing/flips to good"] == 1
    assert found["confident-phrasing/change"] == pytest.approx(0.55)
    assert found["formatting/success"] == 0
    assert found["wrong-number/success"] == 1
    # No solution was judged good, so there is nothing to alarm about and nothing to stay good.
    assert np.isnan(found["confident-phrasing/false alarms"])
    assert np.isnan(found["wrong-number/stays good"])
    assert np.isnan(found["wrong-number/step missed"])


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
        "step_before": None,
        "step_after": None,
        "step_missed": None,
        **more,
    }


KEPT = [
    _item("formatting", 0.80, 0.84, success=False),  # rises by less than the margin
    _item("formatting", 0.80, 0.90, success=True),  # by more
    _item("formatting", 0.49, 0.51, success=True, right=False),  # flips to good with a small rise
    _item("formatting", 0.20, 0.20, success=False, right=False),
    _item("formatting", 0.60, 0.40, success=False),  # a false alarm
    _item("formatting", 0.60, 0.30, success=False, right=False),  # falls, rightly
    _item("formatting", None, 0.9),
    _item("formatting", 0.9, None, right=None),
]


def test_kept_meaning_by_hand() -> None:
    found = _values(KEPT)
    assert found["formatting/n"] == 6 and found["formatting/unscored"] == 2
    assert found["formatting/change"] == pytest.approx((0.04 + 0.10 + 0.02 + 0 - 0.20 - 0.30) / 6)
    assert found["formatting/success"] == pytest.approx(2 / 6)
    assert found["formatting/flips to good"] == pytest.approx(1 / 2)
    assert found["formatting/false alarms"] == pytest.approx(1 / 3)
    assert "formatting/stays good" not in found and "formatting/step missed" not in found


def _altered(
    before: float, after: float | None, steps: tuple[float, float | None], **more: Any
) -> dict[str, Any]:
    return _item(
        "wrong-number", before, after, broken_step=0, step_before=steps[0], step_after=steps[1], **more
    )


BROKEN = [
    _altered(0.9, 0.2, (0.9, 0.2), success=False, step_missed=False),
    _altered(0.9, 0.7, (0.95, 0.7), success=False, step_missed=True),  # falls and stays good
    _altered(0.6, 0.6, (0.6, 0.8), success=True, step_missed=True),  # does not fall
    _altered(0.1, 0.1, (0.3, 0.1), success=True, right=False),
    _altered(0.9, None, (0.9, None)),
]


def test_broken_meaning_by_hand() -> None:
    """Of the four that are right by their labels one has no score."""
    found = _values(BROKEN)
    assert found["wrong-number/n"] == 3 and found["wrong-number/unscored"] == 1
    assert found["wrong-number/change"] == pytest.approx((-0.7 - 0.2 + 0) / 3)
    assert found["wrong-number/success"] == pytest.approx(1 / 3)
    assert found["wrong-number/stays good"] == pytest.approx(2 / 3)
    assert found["wrong-number/step missed"] == pytest.approx(2 / 3)
    assert "wrong-number/flips to good" not in found
    unlabelled = _values([{**item, "right": None} for item in BROKEN])
    assert unlabelled["wrong-number/success"] == pytest.approx(2 / 4)


def test_without_a_threshold_there_is_no_verdict() -> None:
    found_trials = trials(_shop(9), ["formatting", "wrong-number"])
    sheet = replace(_sheet(ScriptedPRM(_exact, name="exact"), found_trials), threshold=None)
    items = items_of(found_trials, sheet, Robustness().resolved(sheet))
    assert {(i["good_before"], i["good_after"], i["step_missed"]) for i in items} == {(None, None, None)}
    found = _values(items)
    assert not any(word in name for name in found for word in ("flips", "alarms", "stays", "missed"))
    assert found["wrong-number/change"] == pytest.approx(-0.8)


@pytest.mark.parametrize(
    ("name", "before", "after", "success"),
    [
        ("formatting", 0.80, 0.84, False),
        ("formatting", 0.80, 0.86, True),
        ("formatting", 0.49, 0.51, True),  # a flip
        ("formatting", 0.51, 0.49, False),
        ("formatting", None, 0.9, None),
        ("wrong-number", 0.9, 0.89, False),
        ("wrong-number", 0.9, 0.9, True),
        ("wrong-number", 0.9, 0.899999, True),  # noise is no fall
        ("wrong-number", 0.2, 0.3, True),
        ("wrong-number", 0.5, 0.6, True),  # at the threshold is not under it
        ("wrong-number", 0.6, 0.5, False),
        ("wrong-number", 0.9, None, None),
    ],
)
def test_success(name: str, before: float | None, after: float | None, success: bool | None) -> None:
    [trial] = trials([_case("a", "How many?", ["It is 2 + 1 = 3. So be it."], -1)], [name])
    scores = dict(zip(("a", f"a::{name}"), (before, after), strict=True))
    rows = tuple(
        CaseScores(case=case, steps=StepScores(scores=(scores[case.id],), kind="probability"))
        for case in to_grade([trial])
    )
    sheet = Sheet(prm="x", kind="probability", rows=rows, threshold=0.5, aggregate="min")
    [item] = items_of([trial], sheet, Robustness().resolved(sheet))
    assert item["success"] is success
    assert (item["before"], item["after"]) == (before, after)
    assert item["good_before"] is (None if before is None else before >= 0.5)
    if name == "wrong-number":
        assert item["broken_step"] == 0
        known = before is not None and before >= 0.5 and after is not None
        assert item["step_missed"] is (after >= 0.5 if known and after is not None else None)


# --- trials and items ------------------------------------------------------------------------------------------


def test_each_case_is_graded_once_before_its_changed_copies() -> None:
    cases = _shop(5)
    found = trials(cases)
    assert [t.original.id for t in found] == sorted((t.original.id for t in found), key=int)
    graded = to_grade(found)
    assert len(graded) == len(found) + len(cases)
    assert len({case.id for case in graded}) == len(graded)
    assert all(case.where.startswith("data.jsonl:") and case.group == "shop" for case in graded)


def test_an_infinite_aggregate_gives_way_to_the_product() -> None:
    sheet = Sheet(prm="sure", kind="probability", rows=(), aggregate="sum-logit", threshold=0.5)
    assert Robustness().resolved(sheet).aggregate == "product"
    with pytest.raises(UsageError, match="aggregate"):
        Robustness(aggregate="sum-logit").resolved(sheet)


def test_each_change_says_how_many_solutions_its_figures_are_of() -> None:
    """24 shops, every third wrong: a change that breaks the meaning is measured on the 16 right ones."""
    names = ("formatting", "wrong-number")
    changes = trials(_shop(), names)
    result = evaluate(_sheet(ScriptedPRM(_exact, name="exact"), changes), changes)
    [section] = [section for section in result.sections if section.title == "At a glance"]
    table = markdown(section.items[0])
    counts = {
        row.split("|")[1].strip(): row.split("|")[7].strip() for row in table.splitlines() if "|" in row
    }
    assert {name: counts[name] for name in names} == {"formatting": "24", "wrong-number": "16"}
