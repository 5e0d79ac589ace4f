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


THINK = "<think>\nPens first: 4 * 3 = 12.\n</think>\n\n4 * 3 = 12.\n\n12 + 5 = 17."
ASKED = "Pens cost 4 euros each. I buy 3 pens and a book for 5 euros. What do I pay?"


def test_solutions_of_deep_math():
    row = {"question": ASKED, "final_answer": "17", "difficulty": 2.0, "r1_solution_1": THINK, "r1_solution_2": "It is 18.", "r1_solution_3": None}  # fmt: skip
    first, second = read_solutions([row])
    assert first.solution.texts == ("Pens first: 4 * 3 = 12.", "4 * 3 = 12.", "12 + 5 = 17.")
    assert second.solution.texts == ("It is 18.",)
    assert first.solution.problem.answer == "17" and first.meta == {"difficulty": 2.0}


def test_predictions_of_llama_factory():
    prompts = (
        f"user\n{ASKED}\nassistant\n",
        f"<|im_start|>user\n{ASKED}<|im_end|>\n<|im_start|>assistant\n",
        f"<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{ASKED}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        f"<bos><start_of_turn>user\n{ASKED}<end_of_turn>\n<start_of_turn>model\n",
        f"<｜begin▁of▁sentence｜><｜User｜>{ASKED}<｜Assistant｜><think>\n",
    )
    for prompt in prompts:
        read = only([{"prompt": prompt, "predict": "4 * 3 = 12.\n\n12 + 5 = 17.", "label": "17"}])
        assert (read.solution.problem.text, read.solution.problem.answer) == (ASKED, "17")
        assert read.solution.texts == ("4 * 3 = 12.", "12 + 5 = 17.")


def test_prompts_with_a_chat_template_are_the_same_as_their_messages():
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASKED}]
    text = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in chat)
    row = {"prompt": f"{text}<|im_start|>assistant\n", "response": "4 * 3 = 12.\n\n12 + 5 = 17.<|im_end|>"}
    reply = {"role": "assistant", "content": "4 * 3 = 12.\n\n12 + 5 = 17."}
    read = only([row]).solution
    whole = only([{"messages": [*chat, reply]}]).solution
    assert (read.problem.text, read.texts) == (whole.problem.text, whole.texts)
    # A problem about such tokens has no turn of an assistant's at its end, and stays as it is.
    about = {"problem": "What does <|im_end|> mean?", "solution": "It ends a turn: <|im_end|>"}
    assert only([about]).solution.problem.text == about["problem"]
    assert only([about]).solution.texts == (about["solution"],)


def test_replies_with_their_thoughts_beside_them():
    for reply in ("content", "response", "solution"):
        row = {"question": ASKED, "reasoning_content": "Pens first: 4 * 3 = 12.\n", reply: "4 * 3 = 12.\n\n12 + 5 = 17."}  # fmt: skip
        assert only([row]).solution.texts == only([{"question": ASKED, "response": THINK}]).solution.texts
        (thoughtless,) = read_solutions([row], reasoning="drop")
        assert thoughtless.solution.texts == ("4 * 3 = 12.", "12 + 5 = 17.")


def test_an_instruction_and_its_input_are_one_problem():
    row = {"instruction": "Add the numbers.", "input": "2 and 3", "output": "2 + 3 = 5"}
    assert only([row]).solution.problem.text == "Add the numbers.\n2 and 3"
    assert only([{**row, "input": ""}]).solution.problem.text == "Add the numbers."
    with pytest.raises(InputError) as caught:  # half of the problem would be lost
        list(read_solutions([row], columns={"solution": "output"}))
    assert caught.value.field == "input"


def test_a_solution_that_stands_twice():
    said = "4 * 3 = 12.\n\n12 + 5 = 17."
    messages = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": said}]
    text = only([{"source": "amc", "problem": ASKED, "solution": said, "messages": messages}])
    assert text.solution.texts == ("4 * 3 = 12.", "12 + 5 = 17.") and text.meta["messages"] == messages
    output = {"choices": [{"message": messages[1]}]}
    chat = only([{"index": 0, "model_output": output, "messages": messages}])
    assert chat.solution.texts == text.solution.texts
    with pytest.raises(InputError):  # two different solutions
        only([{"problem": ASKED, "solution": "It is 17.", "messages": messages}])


def test_names_of_columns_that_hold_a_solution_where_there_is_no_other():
    said = "4 * 3 = 12.\n\n12 + 5 = 17."
    for column in ("generated_solution", "prediction", "rationale"):
        assert only([{"question": ASKED, column: said}]).solution.texts == ("4 * 3 = 12.", "12 + 5 = 17.")
    assert only([{"input": ASKED, "output": said}]).solution.problem.text == ASKED
    assert len(list(read_solutions([{"instruction": ASKED, "generations": [said, "It is 18."]}]))) == 2
    beside = only([{"question": ASKED, "response": said, "prediction": "17", "input": "a"}])
    assert beside.solution.texts == ("4 * 3 = 12.", "12 + 5 = 17.")
    assert beside.meta == {"prediction": "17", "input": "a"}


def test_labels_beside_the_texts_of_steps_and_labels_in_words():
    steps = ["4 * 3 = 12.", "12 + 5 = 18."]
    objects = [{"text": steps[0], "label": 1}, {"text": steps[1], "label": 0}]
    rows = [
        {"question": ASKED, "steps": objects},
        {"question": ASKED, "steps": steps, "labels": ["+", "-"]},
        {"question": ASKED, "steps": steps, "labels": ["Good", "bad"]},
        {"question": ASKED, "steps": [{"step": 1, "content": steps[0]}, {"step": 2, "content": steps[1]}], "labels": [True, False]},
    ]  # fmt: skip
    for row in rows:
        (read,) = stepmark.read_labelled([row])
        assert read.solution.texts == tuple(steps)
        assert [[judgement.rating for judgement in each] for each in read.labelled.judgements] == [[1], [-1]]
    (read,) = stepmark.read_labelled([{"question": ASKED, "steps": steps, "labels": ["neutral", "bad"]}])
    assert [[judgement.rating for judgement in each] for each in read.labelled.judgements] == [[0], [-1]]
    with pytest.raises(InputError):
        list(stepmark.read_labelled([{"question": ASKED, "steps": steps, "labels": ["good", "hm"]}]))
    # What else stands beside a text is kept; what a tool answered is read as no part of it, so such a row is refused.
    (read,) = stepmark.read_labelled(
        [{"question": ASKED, "steps": [{**one, "by": "Ann"} for one in objects]}]
    )
    assert read.meta["steps"] == [{**one, "by": "Ann"} for one in objects]
    with pytest.raises(InputError):
        only([{"question": ASKED, "steps": [{"text": steps[0], "observation": "12"}, {"text": steps[1]}]}])
