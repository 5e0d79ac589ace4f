"""Written and read again, a labelled solution is what it was, as far as the format holds it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step
from stepmark.solutions.interchange import (
    FORMATS,
    LabelledRow,
    Losses,
    Reading,
    Writing,
    detect,
    write_labelled,
)
from stepmark.store import Row, encode_row, parse_row

# Markers, numbers, blank lines and the signs of formats all stand inside texts; a number at the start is layout elsewhere.
_PIECES = st.sampled_from(
    ["a", "Step", " ", "2", ":", "\n", "\n\n", "+", "-", "é", "# Answer", "{", '"', "\\", "x y"]
)
TEXTS = (
    st.lists(_PIECES, min_size=1, max_size=6)
    .map("".join)
    .map(str.strip)
    .filter(bool)
    .map(lambda text: "w" + text)
)
SHARES = st.sampled_from([0.0, 0.125, 0.3, 0.5, 1.0])
NAMES = st.none() | st.sampled_from(["m", "GSM8K", "é"])


@st.composite
def rows(draw: st.DrawFn, label: st.SearchStrategy[tuple[Judgement, ...]], *, whole: bool) -> LabelledRow:
    """`whole`: every step has a label of that kind; else some have none."""
    texts = draw(st.lists(TEXTS, min_size=1, max_size=5))
    judged = [draw(label) if whole or draw(st.booleans()) else () for _ in texts]
    solution = Solution(
        problem=Problem(text=draw(TEXTS), answer=draw(NAMES), source=draw(NAMES)),
        steps=tuple(Step(text=text) for text in texts),
        id=draw(st.sampled_from(["s1", "é"])),
        source=draw(NAMES),
    )
    return LabelledRow(
        labelled=LabelledSolution(solution=solution, judgements=tuple(judged)),
        where="in.jsonl:3",
        outcome=draw(st.none() | st.booleans()),
    )


def rating(*values: int, kind: str = "correctness", judge: str = "human:ann") -> Any:
    return st.sampled_from(
        [(Judgement(kind=kind, judge=judge, rating=value),) for value in values]  # type: ignore[arg-type]
    )


def there_and_back(row: LabelledRow, format: str) -> LabelledRow:
    (line,) = write_labelled([row], format, Writing(), Losses())
    assert isinstance(line, dict)
    data = parse_row(encode_row(line))
    raw = Row(data=data, file="out.jsonl", line=1)
    assert detect(raw) == format
    (back,) = FORMATS[format].read(raw, Reading(), Losses())
    return back


def texts_and_judgements(row: LabelledRow) -> Any:
    return row.solution.problem.text, row.solution.texts, row.labelled.judgements, row.outcome


HARD = rating(1, -1) | rating(1, -1, kind="value", judge="rollouts")
ANY = st.lists(
    st.builds(
        Judgement,
        kind=st.sampled_from(["correctness", "value"]),
        judge=st.sampled_from(["a", "human:b"]),
        rating=st.sampled_from([None, -1, 0, 1]),
        share=st.none() | SHARES,
        confidence=st.none() | SHARES,
        note=NAMES,
    )
    | st.integers(0, 3).flatmap(
        lambda n: st.builds(
            Judgement,
            kind=st.just("value"),
            judge=st.just("r"),
            successes=st.just(n),
            trials=st.integers(n, 5),
        )
    ),
    max_size=3,
).map(tuple)
STEPS = st.builds(
    Step, text=TEXTS, lead=st.sampled_from(["", "\n"]), tail=TEXTS, observation=st.sampled_from(["", " saw"]),
    start=st.none() | st.integers(0, 9),
)  # fmt: skip


@given(rows(ANY, whole=False), st.lists(STEPS, min_size=5, max_size=5), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_our_own_rows_lose_nothing(row, steps, repeated):
    count = len(row.solution.steps)
    solution = replace(row.solution, steps=tuple(steps[:count]), split="line")
    row = replace(
        row,
        labelled=replace(row.labelled, solution=solution),
        repeated=min(repeated, count - 1),
        meta={"mine": [1, None]},
    )
    back = there_and_back(row, "stepmark-labels")
    assert back.labelled == row.labelled
    assert (back.outcome, back.repeated) == (row.outcome, row.repeated)
    assert back.meta == {"from": "in.jsonl:3", "mine": [1, None]}


@given(rows(HARD, whole=True))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("format", ["math-shepherd", "rlhflow", "trl"])
def test_hard_labels(format, row):
    judgement = row.labelled.judgements[0]
    row = replace(
        row,
        labelled=replace(
            row.labelled,
            judgements=tuple(
                tuple(replace(j, judge=judgement[0].judge, kind=judgement[0].kind) for j in step)
                for step in row.labelled.judgements
            ),
        ),
    )
    back = there_and_back(row, format)
    assert texts_and_judgements(back) == texts_and_judgements(row)
    assert back.origin == "in.jsonl:3"
    if format == "trl":
        assert (back.solution.id, back.solution.source) == (row.solution.id, row.solution.source)
        assert back.solution.problem.answer == row.solution.problem.answer


@given(rows(SHARES.map(lambda s: (Judgement(kind="value", judge="mc", share=s),)), whole=True))
@settings(max_examples=40, deadline=None)
def test_soft_labels_stay_floats_in_trl(row):
    assert texts_and_judgements(there_and_back(row, "trl")) == texts_and_judgements(row)


@given(rows(rating(1, -1, judge="human"), whole=True), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_first_error_in_processbench(row, outcome):
    wrong = [j[0].rating == -1 for j in row.labelled.judgements]
    known = wrong.index(True) + 1 if any(wrong) else len(wrong)
    judgements = row.labelled.judgements[:known] + ((),) * (len(wrong) - known)
    row = replace(row, labelled=replace(row.labelled, judgements=judgements), outcome=outcome)
    back = there_and_back(row, "processbench")
    assert texts_and_judgements(back) == texts_and_judgements(row)
    assert (back.solution.id, back.solution.source) == (row.solution.id, row.solution.source)


@given(rows(rating(1, 0, -1), whole=False))
@settings(max_examples=80, deadline=None)
def test_three_way_ratings_in_prm800k(row):
    judged = [step for step, judgements in enumerate(row.labelled.judgements) if judgements]
    if not judged:
        neutral = Judgement(kind="correctness", judge="human:ann", rating=0)
        judgements = ((neutral,), *row.labelled.judgements[1:])
        row = replace(row, labelled=replace(row.labelled, judgements=judgements))
        judged = [0]
    back = there_and_back(row, "prm800k")
    end = judged[-1] + 1
    # What nobody judged after the last judged step stands in the question only.
    assert back.solution.texts == row.solution.texts[:end]
    assert back.labelled.judgements == row.labelled.judgements[:end]
    assert back.solution.problem.answer == row.solution.problem.answer
    if end < len(row.solution.steps):
        assert back.meta["prm800k"]["pre_generated_steps"] == list(row.solution.texts)


@given(rows(rating(1, 0, -1, judge="human"), whole=False))
@settings(max_examples=60, deadline=None)
def test_each_rating_is_a_row_of_the_flat_layout(row):
    lines = [line for line in write_labelled([row], "prm800k-flat") if isinstance(line, dict)]
    back = [
        one
        for at, line in enumerate(lines, 1)
        for one in FORMATS["prm800k-flat"].read(
            Row(data=json.loads(encode_row(line)), file="f", line=at), Reading(), Losses()
        )
    ]
    got = {len(one.solution.steps) - 1: (one.solution.texts, one.labelled.judgements[-1]) for one in back}
    assert got == {
        step: (row.solution.texts[: step + 1], judgements)
        for step, judgements in enumerate(row.labelled.judgements)
        if judgements
    }
