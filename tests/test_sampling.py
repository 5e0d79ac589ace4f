"""Sampling candidates: what a policy is asked, that nothing is asked twice, and what becomes of its answers."""

from __future__ import annotations

import json

import pytest

from stepmark.backends.replies import ReplyFile
from stepmark.errors import InputError, TooLongError
from stepmark.models.scripted import ScriptedPolicy
from stepmark.problems.loading import read_problems
from stepmark.records import Problem
from stepmark.sampling import Sampling, sample

PROBLEMS = [
    Problem(id="a", text="What is 2 + 3?", answer="5"),
    Problem(id="b", text="What is 4 * 2?", answer="8"),
]


def test_n_samples_and_a_greedy_one_for_every_problem():
    asked = []

    def write(request, number):
        asked.append((request.prompt[0].content, request.temperature, number))
        return f"{'greedy' if request.temperature == 0 else 'sample'} {number}"

    found = list(sample(PROBLEMS, ScriptedPolicy(write), Sampling(n=3, temperature=0.7, instruction="Go.")))
    assert [one.problem.id for one in found] == ["a", "b"]
    assert [w.text for w in found[0].samples] == ["sample 0", "sample 1", "sample 2"]
    assert found[1].greedy is not None
    assert found[1].greedy.text == "greedy 0"
    assert sorted(asked) == sorted(
        (f"{p.text}\n\nGo.", t, n) for p in PROBLEMS for t, n in ((0.7, 0), (0.7, 1), (0.7, 2), (0, 0))
    )


def test_two_problems_with_one_text_get_the_same_samples_and_more_of_them_continue(tmp_path):
    written = []

    def write(request, number):
        written.append((request.temperature, number))
        return str(len(written))

    policy = ScriptedPolicy(write)
    store = ReplyFile(tmp_path / "replies.sqlite")
    few = next(sample(PROBLEMS[:1], policy, Sampling(n=2), store=store))
    more = next(sample(PROBLEMS[:1], policy, Sampling(n=4), store=store))
    store.close()
    assert more.samples[:2] == few.samples
    assert more.greedy == few.greedy
    assert len(written) == 5  # two samples and the greedy one, then two more


def test_a_problem_that_the_policy_refuses_does_not_cost_the_others():
    def write(request, number):
        if "4 * 2" in request.prompt:
            raise TooLongError("too long for this model")
        return "x"

    found = list(sample(PROBLEMS, ScriptedPolicy(write), Sampling(n=1, prompt="text", greedy=False)))
    assert found[0].samples[0].text == "x"
    assert found[1].samples == ()
    assert "too long" in (found[1].refused or "")


# --- files of problems ------------------------------------------------------------------------------------------------


def rows(tmp_path, *data):
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in data), encoding="utf-8")
    return str(file)


def test_problems_of_many_shapes(tmp_path):
    file = rows(
        tmp_path,
        {"question": "Q1", "answer": "so 2 + 2 = <<2+2=4>>4\n#### 4"},
        {"problem": "Q2", "answer": 27.0, "url": "https://example.org", "id": 7},
        {"problem": "Q3", "answer": "\\frac{1}{2}", "unique_id": "test/3"},
        {"question": "Q4", "gold": 0.5},
        {"question": "Q5", "answer": None, "target": "#### 7"},
    )
    found = [(p.id, p.text, p.answer) for p in read_problems(file)]
    assert found == [
        (f"{file}:1", "Q1", "4"),
        ("7", "Q2", "27"),
        ("test/3", "Q3", "\\frac{1}{2}"),
        (f"{file}:4", "Q4", "0.5"),
        (f"{file}:5", "Q5", "7"),
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"porblem": "Q", "answer": "1"}, "expected a problem under one of 'problem', "),
        ({"problem": "Q", "anwser": "1"}, "reference answer"),
        ({"problem": "Q", "prompt": "Q", "answer": "1", "meta": 3}, "field 'meta': expected an object"),
        ({"problem": " ", "answer": "1"}, "only white space"),
        ({"problem": 3, "answer": "1"}, "found a number"),
        ({"problem": "Q"}, "reference answer"),
        ({"problem": "Q", "answer": ["1"]}, "found a list"),
        ({"problem": "Q", "answer": True}, "found true"),
    ],
)
def test_rows_that_are_no_problems(tmp_path, row, said):
    with pytest.raises(InputError, match=said) as caught:
        list(read_problems(rows(tmp_path, {"problem": "fine", "answer": "1"}, row)))
    assert ":2" in str(caught.value)


# --- the whole command ------------------------------------------------------------------------------------------------
