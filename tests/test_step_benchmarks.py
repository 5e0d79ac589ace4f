"""Step benchmarks: figures against counts by hand, and rows that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepmark.errors import InputError, UsageError
from stepmark.evaluation.base import load_evaluation
from stepmark.evaluation.benchmarks import declared
from stepmark.evaluation.benchmarks.agent_processbench import AgentProcessBench
from stepmark.evaluation.benchmarks.deltabench import DeltaBench
from stepmark.evaluation.benchmarks.hard2verify import Hard2Verify
from stepmark.evaluation.benchmarks.prmbench import PRMBench
from stepmark.evaluation.benchmarks.processbench import ProcessBench
from stepmark.evaluation.run import evaluate


def figures(method: Any, data: Any, **more: Any) -> dict[str, float]:
    result = evaluate(method, data=data, resamples=100, progress=False, **more)
    return {name: figure.value for name, figure in result.figures.items()}


def scored(tmp_path, by_id: dict[str, list[float]], **more: Any) -> str:
    file = tmp_path / "scores.jsonl"
    facts = {"score_kind": "probability", "prm": "hand", "threshold": 0.5, "aggregate": "min", **more}
    file.write_text("".join(json.dumps({"id": id, "scores": s, **facts}) + "\n" for id, s in by_id.items()))
    return str(file)


def written(tmp_path, rows: list[dict[str, Any]], name: str = "rows.jsonl") -> str:
    file = tmp_path / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def trajectory(sample: int, source: str, labels: list[int], **more: Any) -> dict[str, Any]:
    call = {"function": {"name": "search", "arguments": "{}"}}
    turns: list[dict[str, Any]] = [{"role": "user", "content": f"Task {sample}?"}]
    for at in range(len(labels)):
        turns += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": f"found {at}"},
        ]
    indices = [str(at) for at, turn in enumerate(turns) if turn["role"] == "assistant"]
    row = {"data_source": source, "query_index": 0, "sample_index": sample, "messages": turns}
    return row | {"step_labels": dict(zip(indices, labels, strict=True)), **more}


TURNS = [
    trajectory(0, "searchR1_hotpotqa", [1, 0, -1]),
    trajectory(1, "searchR1_hotpotqa", [1, 1]),
    trajectory(2, "tau2_retail", [-1]),
]


def test_agent_processbench_by_hand(tmp_path):
    # Named: right, wrong, wrong (first error a turn early); right, right; right (the error is missed).
    file = scored(
        tmp_path,
        {
            "searchR1_hotpotqa:0:0": [0.9, 0.2, 0.2],
            "searchR1_hotpotqa:0:1": [0.9, 0.8],
            "tau2_retail:0:2": [0.7],
        },
    )
    found = figures("agent-processbench", TURNS, scores=file)
    assert found == {
        "hotpotqa/step": 4 / 5, "hotpotqa/first error": 1 / 2,
        "hotpotqa/step, the commonest": 3 / 5, "hotpotqa/first error, the commonest": 1 / 2,
        "tau2/step": 0, "tau2/first error": 0, "tau2/step, the commonest": 1, "tau2/first error, the commonest": 1,
        "all/step": 4 / 6, "all/first error": 1 / 3, "all/step, the commonest": 3 / 6, "all/first error, the commonest": 1 / 3,
    }  # fmt: skip
    strict = figures(AgentProcessBench(threshold="0.85"), TURNS, scores=file)
    assert strict["all/step"] == 4 / 6  # lost: a right turn at 0.8; gained: the wrong one at 0.7
    assert strict["tau2/first error"] == 1


def test_agent_processbench_reads_the_authors_predictions(tmp_path):
    keys = ("data_source", "query_index", "sample_index")
    rows = [{key: row[key] for key in keys} for row in TURNS]
    labels = [{"1": 1, "3": 0, "5": -1}, {"1": None, "3": None}, {"1": -1}]  # the second request failed
    rated = [row | {"step_labels": one} for row, one in zip(rows, labels, strict=True)]
    file = written(tmp_path, rated)
    found = figures(AgentProcessBench(labels=file), TURNS)
    assert (found["all/step"], found["all/first error"]) == (4 / 6, 2 / 3)
    assert figures(AgentProcessBench(labels=file, scoring="script"), TURNS)["all/first error"] == 1
    with pytest.raises(InputError, match="1 of 3 are missing"):
        figures(AgentProcessBench(labels=written(tmp_path, rated[:2], "two.jsonl")), TURNS)
    with pytest.raises(UsageError, match="leave out"):
        figures(AgentProcessBench(labels=file, threshold="0.5"), TURNS)


def test_blank_turns_and_an_agent_that_opens_are_counted_too(tmp_path):
    greeting = {"role": "assistant", "content": "Hello."}
    row = trajectory(0, "tau2_airline", [1]) | {"question": "Rebook me."}
    row["messages"] = [
        greeting,
        {"role": "user", "content": "Rebook."},
        {"role": "assistant", "content": " "},
    ]
    row["step_labels"] = {"0": 1, "2": -1}
    assert (
        figures("agent-processbench", [row], scores=scored(tmp_path, {"tau2_airline:0:0": [0.9, 0.1]}))[
            "tau2/step"
        ]
        == 1
    )


def test_a_neutral_class_is_named_by_argmax(tmp_path):
    classes = {
        "classes": [[0.1, 0.7, 0.2], [0.6, 0.3, 0.1]],
        "class_names": ["negative", "neutral", "positive"],
    }
    file = scored(tmp_path, {"searchR1_hotpotqa:0:1": [0.9, 0.4]}, **classes)
    rows = [trajectory(1, "searchR1_hotpotqa", [0, -1])]
    assert figures(AgentProcessBench(threshold="argmax"), rows, scores=file)["hotpotqa/step"] == 1
    assert figures("agent-processbench", rows, scores=file)["hotpotqa/step"] == 1 / 2


def sections(
    id: str, count: int, wrong: list[int], useless: list[int], domain: str = "Math"
) -> dict[str, Any]:
    text = "".join(f"section{at}:\nText {at} of {id}.\n\n" for at in range(1, count + 1))
    numbers = {"reason_error_section_numbers": wrong, "reason_unuseful_section_numbers": useless}
    return {"id": id, "question": f"Question {id}?", "sections_content": text, "task_l1": domain, **numbers}


SECTIONS = [sections("a", 4, [2], [3]), sections("b", 3, [1], [], "Code"), sections("c", 2, [], [])]


def test_deltabench_by_hand(tmp_path):
    # a: 1 and 2 named, 4 is past the last wrong one: TP 1, FP 1, FN 1. b: nothing named before 2. c: no truth.
    file = scored(tmp_path, {"a": [0.1, 0.1, 0.9, 0.1], "b": [0.9, 0.1, 0.9], "c": [0.1, 0.1]})
    found = figures("deltabench", SECTIONS, scores=file)
    assert found["Math/f1"] == found["Math/precision"] == found["Math/recall"] == 1 / 2
    assert found["Code/f1"] == 0
    assert found["all/f1"] == 1 / 4  # c is in no figure
    assert found["all/micro f1"] == pytest.approx(2 * 1 / (2 * 1 + 1 + 2))
    assert found["Math/f1, all named"] == pytest.approx(2 * 2 / (2 + 3))
    named = written(
        tmp_path,
        [
            {"id": "a", "error_sections_nums": [2, 3]},
            {"id": "b", "error_sections_nums": []},
            {"id": "c", "error_sections_nums": []},
        ],
    )
    assert figures(DeltaBench(labels=named), SECTIONS)["all/f1"] == 1 / 2


RESPONSES = [
    {"unique_id": "x", "question": "Prove it.", "model_response_by_step": ["One.", "Two.", "Three."], "human_labels": [1, 0, 0]},
    {"unique_id": "y", "question": "Prove it.", "model_response_by_step": ["One.", "Two."], "human_labels": [1, 1]},
    {"unique_id": "z", "question": "Show it.", "model_response_by_step": ["One."], "human_labels": [0]},
]  # fmt: skip


def test_hard2verify_by_hand(tmp_path):
    file = scored(tmp_path, {"x": [0.9, 0.9, 0.1], "y": [0.9, 0.2], "z": [0.3]})
    found = figures("hard2verify", RESPONSES, scores=file)
    right, wrong = 2 / 3, 2 / 3  # of steps: x's and y's first of three; x's third and z's of three
    assert found["hard2verify/step/accuracy"] == pytest.approx((right + wrong) / 2)
    assert found["hard2verify/step/f1"] == pytest.approx(2 / 3)
    assert found["hard2verify/response/accuracy"] == 1 / 2  # y taken for wrong; x and z seen
    assert found["hard2verify/response/f1"] == 0
    assert found["hard2verify/first error/accuracy"] == 1 / 4  # z's of two; none of y's one
    with pytest.raises(InputError, match="encrypted"):
        figures(
            "hard2verify",
            [{"unique_id": "x", "question": "b64", "model_response_by_step": "b64", "canary": "c"}],
        )


def test_labels_of_a_judge_rate_steps_from_file_to_figure(tmp_path):
    import stepmark
    from stepmark.data.formats.own import to_row

    made = []
    for row, ratings in zip(RESPONSES, ([1, -1, None], [1, 1], [-1]), strict=True):
        solution = stepmark.Solution.of(row["question"], row["model_response_by_step"])
        judged = [
            () if rating is None else (stepmark.Judgement(kind="correctness", judge="j", rating=rating),)
            for rating in ratings
        ]
        made.append(to_row(stepmark.LabelledSolution(solution=solution, judgements=tuple(judged))))
    file = written(tmp_path, made)
    found = figures(Hard2Verify(labels=file), RESPONSES)
    assert found["hard2verify/first error/f1"] == 1
    assert found["hard2verify/step/accuracy"] == pytest.approx((3 / 3 + 2 / 3) / 2)  # x's third is not rated


def pair(number: int) -> dict[str, Any]:
    history = [{"role": "user", "content": f"Weather {number}?"}]
    return {
        "history": history,
        "action_chosen": 'get({"city": "Oslo"})',
        "action_rejected": {"name": "get"},
        "functions": [{"name": "get"}],
    }


def test_tool_prmbench_by_hand(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "prmbench_GTA.json").write_text(json.dumps([pair(0), pair(1)]))
    (tmp_path / "data" / "prmbench_bfcl.json").write_text(json.dumps([pair(2), pair(3)]))
    values = {"GTA/0": (0.9, 0.1), "GTA/1": (0.4, 0.4), "bfcl/0": (0.1, 0.9), "bfcl/1": (0.6, 0.2)}
    file = scored(
        tmp_path,
        {
            f"{id}/{side}": [s]
            for id, both in values.items()
            for side, s in zip(("chosen", "rejected"), both, strict=True)
        },
    )
    found = figures("tool-prmbench", str(tmp_path / "data"), scores=file)
    assert found == {"GTA/accuracy": 3 / 4, "bfcl/accuracy": 1 / 2, "average/accuracy": 5 / 8}


def agentrx(tmp_path, step: int = 4, **root: Any) -> list[str]:
    messages = [
        {"role": "system", "content": "Be careful."}, {"role": "user", "content": "Cancel it."},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "cancel", "arguments": "{}"}}]},
        {"role": "tool", "content": "done"}, {"role": "assistant", "content": "Cancelled."},
    ]  # fmt: skip
    failures = [
        {"failure_id": 1, "step_number": 3, "failed_agent": "Assistant"},
        {"failure_id": 2, "step_number": step, "failed_agent": "Tool"},
    ]
    truth = {"trajectory_id": 7, "failures": failures, "root_cause": {"failure_id": 2, **root}}
    return [
        written(tmp_path, [{"task_id": 7, "traj": messages}], "traj.jsonl"),
        written(tmp_path, [truth], "truth.jsonl"),
    ]


def test_agentrx_counts_messages_from_one(tmp_path):
    files = agentrx(tmp_path)
    found = figures("agentrx", files, scores=scored(tmp_path, {"7": [0.9, 0.9, 0.1, 0.9]}))
    assert found == {
        f"agentrx/{name}": 1
        for name in ("agent", "step", "within one", "within 3", "within 5", "step, the commonest")
    } | {
        "agentrx/agent, who speaks most": 0  # the assistant speaks twice
    }
    far = figures("agentrx", files, scores=scored(tmp_path, {"7": [0.1, 0.9, 0.9, 0.9]}))
    assert (far["agentrx/step"], far["agentrx/within one"], far["agentrx/within 3"]) == (0, 0, 1)


STEPS = ["All men are mortal.", "Socrates is mortal.", "So Socrates is a man."]


def test_gr_ben_counts_from_one(tmp_path):
    rows = [
        {"id": f"FOLIO-{n}", "domain": "FOLIO", "generator": "m", "problem": f"P {n}?", "steps": STEPS, "label": label,
         "final_answer_correct": label == -1}
        for n, label in enumerate((3, 1, -1))
    ]  # fmt: skip
    file = scored(tmp_path, {"FOLIO-0": [0.9, 0.9, 0.1], "FOLIO-1": [0.9, 0.1, 0.9], "FOLIO-2": [0.9] * 3})
    assert figures("gr-ben", rows, scores=file) == {
        "FOLIO/error": 1 / 2,
        "FOLIO/correct": 1,
        "FOLIO/f1": pytest.approx(2 / 3),
    }


def test_big_bench_mistake_gives_the_accuracy_of_all_traces(tmp_path):
    rows = [
        {"input": f"Sort {n}.", "steps": ["a", "b"], "answer": "a", "target": "a", "mistake_index": mistake}
        for n, mistake in enumerate((0, 1, None, None))
    ]
    data = written(tmp_path, rows, "word_sorting.jsonl")
    marks = {"word_sorting/0": [0.1, 0.9], "word_sorting/1": [0.9, 0.9], "word_sorting/2": [0.9, 0.9], "word_sorting/3": [0.9, 0.1]}  # fmt: skip
    found = figures("big-bench-mistake", data, scores=scored(tmp_path, marks))
    assert found["word_sorting/accuracy"] == 2 / 4
    assert (found["word_sorting/error"], found["word_sorting/correct"]) == (1 / 2, 1 / 2)


def mr_ben(first: str, steps: Any = None, **more: Any) -> dict[str, Any]:
    known = {"Question_UUID": "q", "Subject": "college_logic", "Question": "Which?", "Options": "A: x", "Sampled_Model": "m"}  # fmt: skip
    steps = ["Step 1: One.", "", "Step 2: Two,", "and more.", "Solution: A"] if steps is None else steps
    correctness = "correct" if first == "N/A" else "incorrect"
    row = {"Model_Solution_Steps": steps, "Model_Solution_Correctness": correctness}
    return known | row | {"Model_Solution_First_Error_Step": first} | more


def test_mr_ben_reads_nested_solutions_programs_and_unmarked_errors(tmp_path):
    program = "def f():\n\n    return 1"
    coding = {"Subject": "coding", "Options": None}
    solutions = {
        "q": [mr_ben("2"), mr_ben("N/A"), mr_ben("3")],
        "r": [mr_ben("    return 1", program, Question_UUID="r", Subject="coding"), mr_ben("", program, Question_UUID="r", **coding)],
    }  # fmt: skip
    data = tmp_path / "logic.json"
    data.write_text(json.dumps(solutions))
    marks = {"q/0": [0.9, 0.1, 0.9], "q/1": [0.9] * 3, "q/2": [0.9] * 3, "r/0": [0.9, 0.1]}
    result = evaluate("mr-ben", data=str(data), scores=scored(tmp_path, marks), resamples=100, progress=False)
    assert any("1 wrong solution without a mark" in fact for fact in result.facts)
    values = {name: figure.value for name, figure in result.figures.items()}
    assert (values["logic/error"], values["logic/correct"], values["coding/error"]) == (1 / 2, 1, 1)
    # named wrong: q/0; truth wrong: q/0 and q/2 of three. tp 1, fn 1, tn 1
    assert values["logic/mcc"] == pytest.approx(1 / (1 * 2 * 1 * 2) ** 0.5)
    texts = [["One.", "Two,\nand more.", "Solution: A"], ["def f():", "return 1"]]
    from stepmark.evaluation.base import Run
    from stepmark.evaluation.benchmarks.mr_ben import MRBen

    cases = list(MRBen().cases(str(data), Run()))
    assert [list(cases[at].solution.texts) for at in (0, 3)] == texts


def test_socratic_prmbench_means_its_patterns(tmp_path):
    def row(kind: str, wrong: list[int]) -> dict[str, Any]:
        process = ["1. Plan.", "2. Do.", "3. Check."]
        known = {"idx": "0", "modified_question": "Q?", "modified_process": process, "error_steps": wrong}
        return known | {"classification": kind}

    data = written(tmp_path, [row("detection_error", [2]), row("correction_error", [3])])
    marks = {"detection_error_0": [0.9, 0.1, 0.9], "correction_error_0": [0.9, 0.1, 0.1]}
    found = figures("socratic-prmbench", data, scores=scored(tmp_path, marks))
    half = (2 / 3 + 2 / 3) / 2  # tp 1, fn 1; tn 1, fn 1
    assert found["detection_error/prmscore"] == 1
    assert found["correction_error/prmscore"] == pytest.approx(half)
    assert found["verification/prmscore"] == pytest.approx((1 + half) / 2)
    assert "deduction/prmscore" not in found


def test_redundant_steps_are_judged_by_the_neutral_class(tmp_path):
    rows = [
        {"idx": "0", "modified_question": "Q?", "modified_process": ["a", "b"], "error_steps": [2], "classification": kind}
        for kind in ("redundency", "counterfactual")
    ]  # fmt: skip
    classes = {
        "classes": [[0.1, 0.1, 0.8], [0.1, 0.3, 0.6]],
        "class_names": ["negative", "neutral", "positive"],
    }
    file = scored(tmp_path, {"redundency_0": [0.9, 0.9], "counterfactual_0": [0.9, 0.9]}, **classes)
    found = figures("prmbench", rows, scores=file)
    assert (found["redundency/prmscore"], found["counterfactual/negative_f1"]) == (1, 0)
    by_threshold = figures(PRMBench(neutral_over=None), rows, scores=file)
    assert by_threshold["redundency/negative_f1"] == 0


def test_a_judge_is_measured_on_first_errors(tmp_path):
    rows = [
        {"id": f"mine-{n}", "generator": "m", "problem": f"P {n}?", "steps": STEPS, "label": label,
         "final_answer_correct": label == -1}
        for n, label in enumerate((1, -1))
    ]  # fmt: skip
    predicted = [row | {"label": label} for row, label in zip(rows, (1, 0), strict=True)]
    file = written(tmp_path, predicted, "judged.jsonl")
    found = figures(ProcessBench(labels=file), rows)
    assert (found["mine/error"], found["mine/correct"]) == (1, 0)


def test_every_benchmark_says_what_it_is():
    for name in declared():
        method = load_evaluation(name)[0]
        assert method.name == name
        assert method.title and method.question and method.paper and method.shown


@pytest.mark.parametrize(
    ("name", "row", "field"),
    [
        ("gr-ben", {"id": "a", "domain": "d", "generator": "m", "problem": "p", "steps": STEPS, "label": 0}, "label"),
        ("gr-ben", {"id": "a", "domain": "d", "generator": "m", "problem": "p", "steps": STEPS, "label": 4}, "label"),
        ("big-bench-mistake", {"input": "p", "steps": ["a"], "mistake_index": 1}, "mistake_index"),
        ("big-bench-mistake", {"input": "p", "steps": ["a"]}, "mistake_index"),
        ("mr-ben", mr_ben("1", Model_Solution_Correctness="yes"), "Model_Solution_Correctness"),
        ("agent-processbench", TURNS[0] | {"step_labels": {"1": 1}}, "step_labels"),
        ("agent-processbench", TURNS[0] | {"step_labels": {"1": 1, "3": 2, "5": 1}}, "step_labels"),
        ("agent-processbench", TURNS[0] | {"query_index": None}, "query_index"),
        ("deltabench", SECTIONS[0] | {"sections_content": "section1:\na\nsection3:\nb"}, "sections_content"),
        ("deltabench", SECTIONS[0] | {"reason_error_section_numbers": [5]}, "reason_error_section_numbers"),
        ("hard2verify", RESPONSES[0] | {"human_labels": [1, 0]}, "human_labels"),
        ("tool-prmbench", pair(0) | {"action_chosen": None}, "action_chosen"),
        ("agentrx", {"trajectory_id": 1, "failures": [], "root_cause": None}, "trajectory_id"),
    ],
)  # fmt: skip
def test_bad_rows_are_named(name, row, field):
    with pytest.raises(InputError) as caught:
        evaluate(name, data=[row], progress=False)
    assert (caught.value.where, caught.value.field) == ("row 1", field)


def test_a_critical_step_outside_the_trajectory_is_refused(tmp_path):
    for step, root, field in ((6, {}, "failures"), (1, {}, "failures"), (4, {"failure_id": 9}, "root_cause")):
        with pytest.raises(InputError) as caught:
            evaluate("agentrx", data=agentrx(tmp_path, step, **root), progress=False)
        assert caught.value.field == field


def test_reports_show_published_figures_and_examples(tmp_path):
    file = scored(
        tmp_path,
        {
            "searchR1_hotpotqa:0:0": [0.9, 0.2, 0.2],
            "searchR1_hotpotqa:0:1": [0.9, 0.8],
            "tau2_retail:0:2": [0.7],
        },
    )
    result = evaluate(
        "agent-processbench", data=TURNS, scores=file, resamples=100, out=tmp_path / "out", progress=False
    )
    assert [section.title for section in result.sections] == ["Figures", "Published results", "Examples"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "81.6" in page
    assert "Another step is named (2)" in page
