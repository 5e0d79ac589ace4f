"""PRMScore against plain loops, against published scores, and against what must not change it."""

import gzip
import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.data.reading import read_rows
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.base import Run
from stepmark.evaluation.benchmarks.prmbench import PRMBench
from stepmark.evaluation.cases import Case
from stepmark.evaluation.result import as_markdown, html, write_json
from stepmark.evaluation.scores import CaseScores, Sheet, read_scores, score_lengths
from stepmark.evaluation.sources import read_prmbench
from stepmark.evaluation.thresholds import ThresholdRule
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step, StepScores


def evaluate(sheet, *, threshold=None, resamples=1000):
    return PRMBench(threshold=threshold).of_sheet(sheet, Run(resamples=resamples))


CATEGORIES = PRMBench.categories
NAMED = os.environ.get("STEPMARK_DATA")
DATA = Path(NAMED) if NAMED else Path(__file__).resolve().parents[2] / "shared" / "data"


# --- what a figure is, in plain loops from its definition


def plain(matrix):
    """(F1 of right steps, F1 of wrong ones) by precision and recall."""
    tp, fp, tn, fn = matrix

    def f1(hits, called, there):
        if called == 0 and there == 0:
            return None
        if hits == 0:
            return 0.0
        precision, recall = hits / called, hits / there
        return 2 * precision * recall / (precision + recall)

    return f1(tp, tp + fp, tp + fn), f1(tn, tn + fn, tn + fp)


def half_sum(one, other):
    return None if one is None or other is None else 0.5 * one + 0.5 * other


def plain_figures(rows):
    """All figures of (class, wrong steps 1-based, called right or None for each step)."""
    matrices = {}
    for name, wrong, calls in rows:
        own, whole = matrices.setdefault(name, [0, 0, 0, 0]), matrices.setdefault("overall", [0, 0, 0, 0])
        for number, call in enumerate(calls, start=1):
            if call is None:
                continue
            at = (1 if call else 2) if number in wrong else (0 if call else 3)
            own[at] += 1
            if name != "correct":
                whole[at] += 1
    found = {}
    for name, matrix in matrices.items():
        f1, negative = plain(matrix)
        found[f"{name}/f1"] = f1
        if name == "multi_solutions":
            found[f"{name}/prmscore"] = f1
        else:
            found[f"{name}/negative_f1"] = negative
            found[f"{name}/prmscore"] = half_sum(f1, negative)
    for category, inside in CATEGORIES.items():
        of = [found.get(f"{name}/prmscore", "absent") for name in inside]
        if "absent" not in of:
            found[f"{category}/prmscore"] = None if None in of else sum(of) / len(of)
    return found


# --- cases made here


def scored(id, group, wrong, scores, *, problem=None, kind="probability", refused=None, **more):
    solution = Solution(
        problem=Problem(text="p", id=problem or id),
        steps=tuple(Step(text=f"step {n}") for n in range(len(scores))),
        id=id,
    )
    judgements = tuple(
        (Judgement(kind="correctness", judge="PRMBench", rating=-1 if n in wrong else 1),)
        for n in range(1, len(scores) + 1)
    )
    case = Case(
        id=id,
        labelled=LabelledSolution(solution=solution, judgements=judgements),
        where=f"made.jsonl:{id}",
        group=group,
    )
    steps = None if refused else StepScores(scores=tuple(scores), kind=kind, **more)
    return CaseScores(case=case, steps=steps, refused=refused)


def of(rows, threshold="0.5", *, kind="probability"):
    sheet = Sheet(prm="made", kind=kind, rows=tuple(rows), threshold=0.5, aggregate="min")
    return evaluate(sheet, threshold=threshold, resamples=200)


def values(result):
    return {figure.name: figure.value for figure in result.figures.values()}


# --- worked by hand


def drawn(seed, count=60):
    """Rows of all nine classes with dyadic scores, none of them at 0.5, and what stands wrong in them."""
    rng = random.Random(seed)
    classes = [name for inside in CATEGORIES.values() for name in inside]
    rows = []
    for number in range(count):
        scores = tuple(rng.choice([n for n in range(65) if n != 32]) / 64 for _ in range(rng.randrange(2, 6)))
        group = classes[number % 9]
        wrong = (
            ()
            if group == "multi_solutions"
            else tuple(n for n in range(1, len(scores) + 1) if rng.random() < 0.4)
        )
        rows.append((f"x-{number}", group, wrong, scores))
    return rows


def test_by_hand():
    rows = [
        # right, right, wrong: called right, wrong, wrong. tp 1, fn 1, tn 1
        scored("a", "circular", (3,), (0.9, 0.2, 0.1)),
        # wrong, right: called right, right. fp 1, tp 1; the step at the threshold is not over it
        scored("b", "circular", (1,), (0.8, 0.6)),
        scored("c", "multi_solutions", (), (0.9, 0.5, 0.7)),  # tp 2, fn 1
    ]
    found = values(of(rows))
    circular = (4 / (4 + 1 + 1), 2 / (2 + 1 + 1))  # tp 2, fp 1, tn 1, fn 1
    overall = (8 / (8 + 1 + 2), 2 / (2 + 1 + 2))  # tp 4, fp 1, tn 1, fn 2
    assert found == pytest.approx(
        {
            "circular/f1": circular[0],
            "circular/negative_f1": circular[1],
            "circular/prmscore": sum(circular) / 2,
            "multi_solutions/f1": 0.8,
            "multi_solutions/prmscore": 0.8,
            "overall/f1": overall[0],
            "overall/negative_f1": overall[1],
            "overall/prmscore": sum(overall) / 2,
        },
        abs=1e-12,
    )


def test_a_category_needs_all_of_its_classes():
    rows = [scored("a", "circular", (1,), (0.1, 0.9)), scored("b", "redundency", (1,), (0.1, 0.1))]
    found = values(of(rows))
    # redundency: tn 1, fn 1: right steps 0, wrong ones 2/3
    assert found["simplicity/prmscore"] == pytest.approx((1 + 1 / 3) / 2)
    assert "simplicity/prmscore" not in values(of(rows[:1]))
    assert not any(name.startswith("soundness") for name in found)


def test_nothing_seen_is_zero_and_nothing_there_is_no_number(tmp_path):
    result = of([scored("a", "deception", (1,), (0.9, 0.1))])  # everything the wrong way round
    assert values(result)["deception/prmscore"] == 0.0
    result = of([scored("a", "deception", (), (0.9, 0.8))])  # no wrong step, and none called so
    assert values(result)["deception/f1"] == 1.0
    assert values(result)["deception/negative_f1"] is None
    assert values(result)["deception/prmscore"] is None
    write_json(result, tmp_path / "result.json")
    assert json.loads((tmp_path / "result.json").read_text())["figures"]
    for text in (as_markdown(result), "".join(html(result))):
        assert "NaN" not in text and "| nan" not in text


def test_a_refused_solution_is_in_no_figure():
    rows = [scored(*row) for row in drawn(1)]
    refused = scored("r", "circular", (1, 2), (None, None, None), refused="step 1 (0-based) is blank")
    with_it = of([*rows, refused])
    assert values(with_it) == values(of(rows))
    assert "r: step 1 (0-based) is blank" in " ".join(with_it.facts)
    assert with_it.items[-1]["unread"] == 3
    assert with_it.items[-1]["named"] is None


def test_truncated_steps_are_in_no_figure():
    rows = [
        scored("a", "circular", (2, 4), (0.9, 0.1, None, None)),
        scored("b", "circular", (1,), (0.1, 0.9)),
    ]
    result = of(rows)
    assert values(result)["circular/prmscore"] == 1.0
    assert [item["unread"] for item in result.items] == [2, 0]


def test_a_step_that_a_check_refutes_is_called_wrong_where_it_has_a_score():
    texts = ("6 * 7 = 41", "41 + 1 = 42", "2 * 3 = 7", "The answer is 42.")
    row = scored("one", "circular", {1, 2, 3}, (0.9, 0.9, None, 0.9))
    steps = tuple(Step(text=text) for text in texts)
    solution = replace(row.case.solution, steps=steps)
    case = replace(row.case, labelled=replace(row.case.labelled, solution=solution))
    sheet = Sheet(
        prm="made", kind="probability", rows=(replace(row, case=case),), threshold=0.5, aggregate="min"
    )
    counts = ("tp", "fp", "tn", "fn", "unread", "named")
    for checks, expected in (
        ("none", (1, 2, 0, 0, 1, False)),
        ("all", (1, 1, 1, 0, 1, True)),
        ("unit", (1, 2, 0, 0, 1, False)),
    ):
        (item,) = PRMBench(checks=checks).items_of(sheet, ThresholdRule(threshold=0.5, words="0.5"))
        assert tuple(item[name] for name in counts) == expected
    with pytest.raises(UsageError, match="names of checks"):
        PRMBench(checks="no such").check(Run(resamples=1))


@pytest.mark.parametrize("threshold", ["oracle", "tuned:circular"])
def test_tuned_thresholds_are_refused(threshold):
    with pytest.raises(UsageError, match="a number, argmax, or the PRM's own"):
        of([scored("a", "circular", (1,), (0.1, 0.9))], threshold)


def test_a_step_that_nobody_judged_is_refused():
    row = scored("a", "circular", (1,), (0.1, 0.9))
    labelled = LabelledSolution(solution=row.case.solution, judgements=(row.case.labelled.judgements[0], ()))
    case = Case(id="a", labelled=labelled, where="made.jsonl:4", group="circular")
    with pytest.raises(InputError, match=r"made\.jsonl:4: step 1 \(0-based\) is not judged"):
        of([CaseScores(case=case, steps=row.steps)])


# --- what must not change a figure, and what must


steps = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 4).map(lambda n: n / 4)), st.booleans()),
    min_size=1,
    max_size=5,
)
names = st.sampled_from(["redundency", "circular", "multi_solutions", "correct", "a class of mine"])


@given(st.lists(st.tuples(names, steps), min_size=1, max_size=8), st.integers(0, 4).map(lambda n: n / 4))
@settings(max_examples=100, deadline=None)
def test_figures_equal_the_plain_loops(rows, threshold):
    cases, plainly = [], []
    for number, (group, of_steps) in enumerate(rows):
        wrong = tuple(n for n, (_, bad) in enumerate(of_steps, start=1) if bad)
        scores = tuple(score for score, _ in of_steps)
        cases.append(scored(f"x-{number}", group, wrong, scores))
        plainly.append((group, wrong, [None if s is None else s > threshold for s in scores]))
    sheet = Sheet(prm="made", kind="probability", rows=tuple(cases))
    found = values(evaluate(sheet, threshold=repr(threshold), resamples=100))
    expected = plain_figures(plainly)
    assert found == {k: None if v is None else pytest.approx(v, abs=1e-12) for k, v in expected.items()}


# --- published scores


def published():
    data = DATA / "prmbench" / "prmbench.dev.jsonl.gz"
    scores = DATA / "prmbench" / "published_rprm_scores.dev.jsonl.gz"
    if not (data.is_file() and scores.is_file()):
        pytest.skip(f"the development data is not there ({DATA}); name its folder in STEPMARK_DATA")
    return str(data), str(scores)


def plain_rows(path):
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def without_repetition(data, scores, calls_of):
    """(class, wrong steps, calls), the first row of each class and index; of two, the one that the scores are of."""
    calls = {}
    for row in plain_rows(scores):
        calls.setdefault(row["idx"], calls_of(row["scores"]))
    found = {}
    for row in plain_rows(data):
        key = (row["classification"], row["idx"])
        own = calls["_".join(key)]
        if key not in found and len(own) == len(row["modified_process"]):
            found[key] = (row["classification"], set(row["error_steps"]), own)
    return list(found.values())


def test_published_scores_give_the_same_figures_in_plain_loops():
    data, scores = published()
    rows = without_repetition(
        data, scores, lambda s: [score > 0.5 for score in s["step_level_validity_scores"]]
    )
    assert len(rows) == 3116
    assert any(max(wrong, default=0) > len(calls) for _, wrong, calls in rows)  # error steps past the end
    cases = read_prmbench([data], lengths=score_lengths(read_rows(scores)))
    found = evaluate(read_scores(scores, cases), threshold="0.5", resamples=100)
    assert values(found) == pytest.approx(plain_figures(rows), abs=1e-12)
    assert all(figure.low <= figure.value <= figure.high for figure in found.figures.values())


def test_published_verdicts_give_the_same_figures():
    """R-PRM's file says right or wrong of every step beside the scores: that is a score over 0.6."""
    data, scores = published()
    rows = without_repetition(data, scores, lambda s: s["step_level_validity_labels"])
    cases = read_prmbench([data], lengths=score_lengths(read_rows(scores)))
    found = evaluate(read_scores(scores, cases), threshold="0.6", resamples=100)
    assert values(found) == pytest.approx(plain_figures(rows), abs=1e-12)
