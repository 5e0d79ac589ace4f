"""Rows that evaluation harnesses and trainers write. The rows here are written by hand after their code and files."""

import json

import pytest

import stepmark
from stepmark.data.solutions import read_solutions
from stepmark.errors import InputError
from stepmark.evaluation.sources import read_cases

LM_EVAL = {
    "doc_id": 7,
    "doc": {"question": "Half of 26?", "answer": "26/2 = <<26/2=13>>13\n#### 13"},
    "target": "26/2 = <<26/2=13>>13\n#### 13",
    "arguments": {"gen_args_0": {"arg_0": "Question: Half of 26?\nAnswer:", "arg_1": {"until": ["\n\n"]}}},
    "resps": [["Half of 26 is 13.\nThe answer is 13."]],
    "filtered_resps": ["13"],
    "filter": "flexible-extract",
    "metrics": ["exact_match"],
    "doc_hash": "a",
    "prompt_hash": "b",
    "target_hash": "c",
    "exact_match": 1.0,
}
QWEN_MATH = {
    "idx": 3,
    "question": "Half of 26?",
    "gt_cot": "26/2 = 13",
    "gt": "13",
    "solution": "26/2 = 13",
    "code": ["26/2 = 13.\nThe answer is 13.", "26/2 = 12.\nThe answer is 12."],
    "pred": ["13", "12"],
    "report": [None, None],
    "score": [True, False],
}
OPEN_R1 = {
    "uuid": "u-1",
    "problem": "Half of 26?",
    "solution": "It is 13.",
    "answer": "13",
    "generations": ["<think>\n26/2 = 13\n</think>\nThe answer is 13.", "It is 12."],
    "correctness_math_verify": [True, False],
    "messages": [{"role": "user", "content": "Half of 26?"}, {"role": "assistant", "content": "13"}],
}
VERL = {
    "input": "system\nYou are helpful.\nuser\nHalf of 26?\nassistant\n",
    "output": "26/2 = 13.\nThe answer is 13.",
    "gts": "13",
    "score": 1.0,
    "step": 40,
    "acc": True,
}


def file_of(folder, *rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def only(rows):
    (row,) = read_solutions(rows)
    return row


def test_samples_of_lm_eval(tmp_path):
    read = only(file_of(tmp_path, LM_EVAL))
    solution = read.solution
    assert solution.problem.text == "Half of 26?" and solution.problem.answer == "13"
    assert solution.texts == ("Half of 26 is 13.", "The answer is 13.")
    assert solution.id == "7/flexible-extract"
    assert read.meta["exact_match"] == 1.0 and read.meta["filter"] == "flexible-extract"
    (case,) = read_cases([file_of(tmp_path, LM_EVAL)])
    assert (case.outcome, case.unchecked) == (True, False)


def test_the_prompt_of_lm_eval_where_the_document_has_none_of_our_names():
    chat = json.dumps([{"role": "user", "content": "Half of 26?"}])
    for arguments in ([["Half of 26?", {}]], {"gen_args_0": {"arg_0": [chat]}}):
        row = {**LM_EVAL, "doc": {"text": "26"}, "arguments": arguments}
        assert only([row]).solution.problem.text == "Half of 26?"


def test_several_responses_of_lm_eval_and_a_document_as_json():
    row = {
        **LM_EVAL,
        "doc": json.dumps(LM_EVAL["doc"]),
        "resps": [["It is 13."], ["It is 12."]],
        "filter": "none",
    }
    read = list(read_solutions([row]))
    assert [(one.solution.id, one.solution.texts) for one in read] == [
        ("7#0", ("It is 13.",)),
        ("7#1", ("It is 12.",)),
    ]


def test_a_task_of_lm_eval_without_texts_is_an_error(tmp_path):
    path = file_of(tmp_path, {**LM_EVAL, "resps": [[[-3.1, False]], [[-0.2, True]]]})
    with pytest.raises(InputError) as caught:
        only(path)
    assert caught.value.field == "resps" and str(caught.value).startswith(f"{path}:1")


def test_results_of_qwen_math_and_open_r1(tmp_path):
    for row, id_ in ((QWEN_MATH, "3"), (OPEN_R1, "u-1")):
        cases = read_cases([file_of(tmp_path, row)])
        assert [case.id for case in cases] == [f"{id_}/0", f"{id_}/1"]
        assert [case.outcome for case in cases] == [True, False]
        assert {case.labelled.solution.problem.answer for case in cases} == {"13"}
        assert {case.labelled.solution.problem.text for case in cases} == {"Half of 26?"}
    first, second = read_solutions([QWEN_MATH])
    assert first.solution.texts == ("26/2 = 13.", "The answer is 13.")
    assert second.meta["answer"] == "12" and second.meta["gt_cot"] == "26/2 = 13"


def test_rollouts_of_verl():
    read = only([VERL])
    assert read.solution.problem.text == "Half of 26?" and read.solution.problem.answer == "13"
    assert read.solution.texts == ("26/2 = 13.", "The answer is 13.")
    assert read.meta == {"score": 1.0, "step": 40, "acc": True}
    base = only([{**VERL, "input": "Half of 26?"}])
    assert base.solution.problem.text == "Half of 26?"
    twice = "user\nHalf of 26?\nassistant\n13\nuser\nAnd of 13?\nassistant\n<think>\n"
    assert only([{**VERL, "input": twice}]).solution.problem.text == "And of 13?"


def test_conversational_prompts():
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Half of 26?"}]
    reply = [{"role": "assistant", "content": "26/2 = 13.\nThe answer is 13."}]
    for row in (
        {"prompt": asked[1:], "completion": reply},
        {"prompt": asked[1:], "response": reply[0]["content"]},
    ):
        read = only([row])
        assert read.solution.problem.text == "Half of 26?"
        assert read.solution.texts == ("26/2 = 13.", "The answer is 13.")
    whole = only([{"prompt": asked, "completion": reply}])
    assert whole.solution == only([{"messages": [*asked, *reply]}]).solution
    text = only([{"prompt": asked, "completion": reply[0]["content"]}])
    assert text.solution.problem.text == whole.solution.problem.text


def test_problems_of_verl_are_sampled():
    row = {
        "data_source": "mine",
        "prompt": [{"role": "user", "content": "Half of 26?"}],
        "reward_model": {"style": "rule", "ground_truth": "13"},
    }
    policy = stepmark.ScriptedPolicy(lambda request, number: "The answer is 13.")
    (sampled,) = stepmark.sample([row], policy, n=1, verifier="number", progress=False)
    assert sampled.outcome is True


def test_columns_that_the_caller_names_are_read_as_they_are():
    row = {**QWEN_MATH, "mine": "Half of 26?", "text": "It is 13."}
    columns = {"problem": "mine", "solution": "text", "meta.score": "score"}
    (read,) = read_solutions([row], columns=columns)
    assert read.solution.texts == ("It is 13.",)
