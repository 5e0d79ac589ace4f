"""Sampling candidates: what a policy is asked, that nothing is asked twice, and what becomes of its answers."""

from __future__ import annotations

import json

import pytest

from stepmark.batching import Message
from stepmark.cli import main
from stepmark.errors import InputError, TooLongError
from stepmark.models.policies.scripted import ScriptedPolicy
from stepmark.models.replies import ReplyFile
from stepmark.problems.sources import problems_or_errors, read_problems
from stepmark.records import Problem
from stepmark.sampling import Sampling, prompt_of, sample

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


def test_the_prompt():
    problem = Problem(text="Q?")
    assert prompt_of(problem, Sampling(instruction="")) == (Message(role="user", content="Q?"),)
    assert prompt_of(problem, Sampling(instruction="I.", prompt="text")) == "Q?\n\nI.\n\n"


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
        ({"porblem": "Q", "answer": "1"}, "expected a problem under one of 'problem', .*problem=porblem"),
        ({"problem": "Q", "anwser": "1"}, "reference answer.*'answer' by 'anwser'.*answer=anwser"),
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


def test_a_reference_answer_may_be_left_out_where_none_is_needed(tmp_path):
    file = rows(
        tmp_path, {"problem": "Q1"}, {"problem": "Q2", "answer": None}, {"problem": "Q3", "answer": 3}
    )
    assert [(p.text, p.answer) for p in read_problems(file, need_answer=False)] == [
        ("Q1", None),
        ("Q2", None),
        ("Q3", "3"),
    ]
    bad = tmp_path / "bad.jsonl"
    bad.write_text(
        '{"problem": "Q1"}\n{"problem": " "}\nno JSON\n{"problem": "Q4", "answer": true}\n{"problem": "Q5"}\n'
    )
    found = list(problems_or_errors(bad, need_answer=False))
    assert [p.text for p in found if not isinstance(p, InputError)] == ["Q1", "Q5"]
    assert [p.where for p in found if isinstance(p, InputError)] == [f"{bad}:{n}" for n in (2, 3, 4)]
    with pytest.raises(InputError, match=r"bad\.jsonl:2"):
        list(read_problems(bad, need_answer=False))


# --- the whole command ------------------------------------------------------------------------------------------------


def test_best_of_n_from_a_policy(tmp_path, monkeypatch, capsys):
    """Candidates whose truth is known: sample 0 right, sample 1 wrong, sample 2 without an answer, the greedy one wrong."""
    pytest.importorskip("math_verify")
    calls = []

    def write(request, number):
        calls.append(number)
        problem = request.prompt[0].content
        right, wrong = ("5", "6") if "2 + 3" in problem else ("8", "9")
        if request.temperature == 0:
            return f"It is clear.\nThe answer is {wrong}."
        return [
            f"First I add.\nThe answer is {right}.",
            f"I guess.\nThe answer is {wrong}.",
            "I do not know.",
        ][number]

    monkeypatch.setattr("scripted_prms.mine", lambda: ScriptedPolicy(write, name="mine"), raising=False)
    problems = rows(
        tmp_path,
        *({"id": p.id, "problem": p.text, "answer": p.answer} for p in PROBLEMS),
    )
    out = tmp_path / "out"
    words = [
        "evaluate",
        "best-of-n",
        "--policy",
        "scripted_prms:mine",
        "--data",
        problems,
        "--n",
        "3",
        "--verifier",
        "number",
    ]
    words += ["--prm", "scripted_prms:certain", "--out", str(out), "--resamples", "100", "--split", "line"]
    assert main(words) == 0
    found = [json.loads(line) for line in (out / "candidates.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["gold"] for row in found] == ["5", "8"]
    assert [c["correct"] for c in found[0]["candidates"]] == [True, False, None, False]
    assert [c.get("greedy", False) for c in found[0]["candidates"]] == [False, False, False, True]
    figures = {one["name"]: one["value"] for one in json.loads((out / "result.json").read_text())["figures"]}
    assert figures["accuracy/greedy/1"] == 0.0
    assert figures["accuracy/oracle/3"] == 1.0
    assert figures["accuracy/single/1"] == pytest.approx(
        0.5
    )  # the third candidate has no verdict and counts for neither side
    assert "sampled" not in capsys.readouterr().err  # no line for each problem
    count = len(calls)
    assert main(words) == 0  # nothing is sampled or graded again
    assert len(calls) == count
    assert "earlier run" in capsys.readouterr().err
    assert main([*words, "--temperature", "0.2"]) == 2
    assert "temperature" in capsys.readouterr().err
