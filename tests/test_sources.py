"""Labelled data as cases: what is read, and how what cannot be read is refused."""

import gzip
import json
import sys
import types

import pytest

import stepmark
from stepmark.data.formats.prmbench import unnumbered
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.benchmark import ratings_of
from stepmark.evaluation.benchmarks.processbench import ProcessBench
from stepmark.evaluation.cases import first_error, step_labels
from stepmark.evaluation.sources import (
    files_of,
    read_cases,
    read_prmbench,
)

WRONG = {
    "id": "gsm8k-7",
    "generator": "A",
    "problem": "p",
    "steps": ["x", "y", "z"],
    "final_answer_correct": False,
    "label": 1,
}
RIGHT = {**WRONG, "id": "my-set-8", "final_answer_correct": True, "label": -1}
CIRCULAR = {
    "idx": "p1_0",
    "classification": "circular",
    "original_question": "o",
    "modified_question": "q",
    "modified_process": ["1. So x = 2.", "2. So y = 3.", "no number"],
    "error_steps": [2, 9],
    "reason": "",
}
TRL = {"prompt": "p", "completions": ["a", "b"], "labels": [True, False]}
CANDIDATES = {
    "id": 5,
    "question": "q",
    "gold": 3,
    "candidates": [
        {"model": "m", "text": "one\n\ntwo", "answer": 3, "correct": True, "tokens": 12, "greedy": True},
        {"text": "three"},
    ],
}


@pytest.fixture
def write(tmp_path):
    def write(*rows, name="data.jsonl"):
        path = tmp_path / name
        text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def without(row, key):
    return {name: value for name, value in row.items() if name != key}


def refused(read, path, said, *, line=1):
    """The message, once its place is where the bad row stands."""
    with pytest.raises(InputError) as caught:
        read([path])
    place = line if isinstance(line, str) else "" if line is None else f":{line}"
    assert caught.value.where == f"{path}{place}"
    assert said in str(caught.value)
    return str(caught.value)


# --- ProcessBench


def test_processbench(write):
    path = write(WRONG, RIGHT)
    one, two = read_cases([path])
    assert (one.id, one.group, one.policy, one.outcome, one.where) == (
        "gsm8k-7",
        "gsm8k",
        "A",
        False,
        f"{path}:1",
    )
    assert one.solution.texts == ("x", "y", "z")
    assert one.problem == "p"
    assert (first_error(one.labelled), step_labels(one.labelled)) == (1, (1.0, 0.0, None))
    assert (two.group, two.outcome) == ("my-set", True)
    assert (first_error(two.labelled), step_labels(two.labelled)) == (-1, (1.0, 1.0, 1.0))


def test_a_json_list_is_read_as_the_hub_has_it(write, tmp_path):
    as_list = write(json.dumps([WRONG, RIGHT], indent=2), name="gsm8k.json")
    assert [case.where for case in read_cases([as_list])] == [f"{as_list}, row 1", f"{as_list}, row 2"]
    as_lines = write(WRONG, RIGHT, name="lines.json")
    marked = tmp_path / "marked.json"
    marked.write_bytes(b"\xef\xbb\xbf" + json.dumps([WRONG, RIGHT]).encode())
    expected = [case.labelled for case in read_cases([as_list])]
    assert [case.labelled for case in read_cases([as_lines])] == expected
    assert [case.labelled for case in read_cases([str(marked)])] == expected
    one = write(json.dumps(WRONG, indent=1), name="one.json")
    assert [case.labelled for case in read_cases([one])] == expected[:1]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("generator", 3, "found a number"),
        ("final_answer_correct", None, "found null"),
        ("steps", [], "expected at least one entry"),
        ("steps", "x", "found a string"),
        ("steps", ["a", " "], "step 1 (0-based; number 2 of 2)"),
        ("problem", "", "expected a text"),
    ],
)
def test_a_row_that_is_no_processbench_row(write, key, value, said):
    message = refused(read_cases, write({**WRONG, key: value}), said)
    assert f"field {key!r}" in message


# --- PRMBench


def test_prmbench(write):
    path = write(CIRCULAR)
    case = read_prmbench([path])[0]
    assert (case.id, case.group, case.problem, case.where) == (
        "circular_p1_0",
        "circular",
        "p1_0",
        f"{path}:1",
    )
    assert case.solution.problem.text == "q"
    assert case.solution.texts == ("So x = 2.", "So y = 3.", "no number")
    assert step_labels(case.labelled) == (1.0, 0.0, 1.0)  # 1-based, and the ninth of three says nothing
    assert first_error(case.labelled) == 1


def test_of_rows_with_one_class_and_index_the_first_counts(write):
    again = {**CIRCULAR, "modified_process": ["other"], "error_steps": [1]}
    elsewhere = {**again, "classification": "deception"}
    path = write(CIRCULAR, again, elsewhere)
    assert [(case.id, len(case.solution.steps)) for case in read_prmbench([path])] == [
        ("circular_p1_0", 3),
        ("deception_p1_0", 1),
    ]


def test_of_rows_with_one_id_the_one_that_the_scores_are_of(write):
    path = write(
        CIRCULAR, {**CIRCULAR, "modified_process": ["a", "b"]}, {**CIRCULAR, "modified_process": ["c", "d"]}
    )

    def steps(length):
        return read_prmbench([path], lengths={"circular_p1_0": length})[0].solution.texts

    assert steps(2) == ("a", "b")
    assert steps(3)[0] == "So x = 2."
    assert steps(7)[0] == "So x = 2."  # neither: the first, and the scores will be refused
    assert read_prmbench([path], lengths={"another": 2})[0].solution.texts[0] == "So x = 2."


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("error_steps", [0], "found 0"),
        ("error_steps", ["1"], "found '1'"),
        ("error_steps", [True], "found True"),
        ("error_steps", None, "found null"),
        ("modified_process", [], "list of texts"),
        ("modified_process", ["a", None], "list of texts"),
        ("idx", 3, "found a number"),
        ("classification", " ", "only white space"),
    ],
)
def test_a_row_that_is_no_prmbench_row(write, key, value, said):
    message = refused(
        read_prmbench, write({**CIRCULAR, "idx": "first"}, {**CIRCULAR, key: value}), said, line=2
    )
    assert f"field {key!r}" in message


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ("3. So x = 2.", "So x = 2."),
        (" 12. So. And so.", "So. And so."),
        ("Step 3. So x = 2.", "So x = 2."),
        ("STEP 3.So x = 2. ", "So x = 2."),
        ("  So x = 2.\n", "So x = 2."),
        ("3.5 is it", "3.5 is it"),
        ("So 3. x", "So 3. x"),
        ("3. ", "3."),
        ("Step 3.", "Step 3."),
        ("", ""),
    ],
)
def test_step_numbers_are_taken_off(step, text):
    cut = unnumbered(step)
    assert (cut.text, cut.raw) == (text, step)


# --- the other shapes


def test_trl(write):
    path = write(TRL, {**TRL, "id": "mine", "labels": [1, 0]})
    one, two = read_cases([path])
    assert (one.id, two.id) == ("data.jsonl:1", "mine")
    assert step_labels(one.labelled) == step_labels(two.labelled) == (1.0, 0.0)


def test_a_share_is_a_value_and_no_label_of_correctness(write):
    file = write({**TRL, "id": "mine", "labels": [0.25, None]}, name="shares.jsonl")
    (case,) = read_cases([file])
    assert step_labels(case.labelled) == (0.25, None)  # calibration compares scores with it
    for read in (first_error, ratings_of):
        with pytest.raises(InputError, match=r"mine.*0\.25.*--hard"):
            read(case.labelled)
    with pytest.raises(InputError, match="--hard"):
        stepmark.evaluate("processbench", stepmark.ScriptedPRM({}), data=file, progress=False)
    (certain,) = read_cases([write({**TRL, "labels": [1.0, 0.0]}, name="certain.jsonl")])
    assert (first_error(certain.labelled), ratings_of(certain.labelled)) == (1, (1, -1))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([True], "expected one label a completion (2), found 1"),
        ([2, 1], "found 2"),
        (["a", 1], "expected true, false"),
    ],
)
def test_labels_that_cannot_be(write, labels, said):
    assert "field 'labels'" in refused(read_cases, write({**TRL, "labels": labels}), said)


def test_candidates(write):
    one, two = read_cases([write(CANDIDATES)])
    assert (one.id, one.problem, one.policy, one.outcome, one.answer, one.tokens, one.greedy) == (
        "5/0",
        "5",
        "m",
        True,
        "3",
        12,
        True,
    )
    assert one.solution.problem.answer == "3"
    assert (two.id, two.policy, two.outcome, two.answer, two.tokens, two.greedy) == (
        "5/1",
        None,
        None,
        None,
        None,
        False,
    )
    assert step_labels(two.labelled) == (None,)
    assert first_error(two.labelled) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": True}, "field 'id': expected a string or a whole number, found true"),
        ({"candidates": []}, "field 'candidates': expected at least one entry, found an empty list"),
        ({"candidates": [{"text": "a"}, {"text": " "}]}, "(candidate 1), field 'solution'"),
        ({"candidates": [{"text": "a", "correct": 1}]}, "field 'correct'"),
        ({"candidates": [{"text": "a", "tokens": 1.5}]}, "field 'tokens'"),
        ({"candidates": [{"text": "a", "model": 3}]}, "field 'model'"),
        ({"candidates": [3]}, "candidate 0 (0-based): expected a text, a list of steps, or an object"),
    ],
)
def test_candidates_that_cannot_be(write, change, said):
    path = write({**CANDIDATES, **change})
    with pytest.raises(InputError) as caught:
        read_cases([path])
    assert f"{path}:1" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("row", "ids"),
    [
        ({"problem": "P", "solutions": ["a\n\nb", "c"], "answer": "3"}, ("f.jsonl:1/0", "f.jsonl:1/1")),
        ({"id": "x", "question": "P", "candidates": [["a", "b"], ["c"]], "gold": 3}, ("x/0", "x/1")),
        ({"prompt": "P", "response": "a\n\nb", "ground_truth": "3"}, ("f.jsonl:1",)),
        ({"problem": "P", "steps": ["a", "b"], "answer": "3", "id": 7}, ("7",)),
        (
            {
                "messages": [{"role": "user", "content": "P"}, {"role": "assistant", "content": "a\n\nb"}],
                "answer": "3",
            },
            ("f.jsonl:1",),
        ),
    ],
)
def test_what_grade_reads_is_read_without_labels_too(write, row, ids):
    cases = read_cases([write(row, name="f.jsonl")])
    assert tuple(case.id for case in cases) == ids
    assert cases[0].solution.texts == ("a", "b")
    for case in cases:
        assert (case.solution.problem.text, case.solution.problem.answer) == ("P", "3")
        assert (case.unchecked, case.outcome, set(case.labelled.judgements)) == (True, None, {()})


def test_a_sampled_row_says_whether_it_is_right(write):
    row = {"problem": "P", "solution": "a", "answer": "3", "id": "x#0"}
    sampled = [
        {**row, "source": "m", "meta": {"outcome": False, "tokens": 5}},
        {**row, "id": "x#1", "correct": True},
        {**row, "id": "x#2", "correct": None},
        {**row, "id": "x#3", "meta": {"outcome": None}},
    ]
    cases = read_cases([write(*sampled)])
    assert [(case.outcome, case.unchecked, case.tokens, case.policy) for case in cases] == [
        (False, False, 5, "m"),
        (True, False, None, None),
        (None, False, None, None),
        (None, True, None, None),
    ]


def test_steps_with_labels_and_rows_of_rlhflow_are_labelled(write):
    rows = [{"problem": "P", "steps": ["a", "b"], "labels": [True, False]}]
    turns = [("user", "P\n\na"), ("assistant", "+"), ("user", "b"), ("assistant", "-")]
    flow = {"conversations": [{"role": role, "content": text} for role, text in turns]}
    for file in (write(*rows, name="a.jsonl"), write(flow, name="b.jsonl")):
        (case,) = read_cases([file])
        assert (case.solution.texts, step_labels(case.labelled)) == (("a", "b"), (1.0, 0.0))


def test_the_shape_is_told_by_the_first_row_of_each_file(write):
    files = [
        write(WRONG, name="a.jsonl"),
        write(CIRCULAR, name="b.jsonl"),
        write(TRL, name="c.jsonl"),
        write(CANDIDATES, name="d.jsonl"),
        write(json.dumps([RIGHT]), name="e.json"),
    ]
    assert [case.id for case in read_cases(files)] == [
        "gsm8k-7",
        "circular_p1_0",
        "c.jsonl:1",
        "5/0",
        "5/1",
        "my-set-8",
    ]
    message = refused(read_cases, write({"a": 1}, name="f.jsonl"), "a row of no known format")
    assert "it has 'a'" in message
    refused(read_cases, write(WRONG, TRL, name="g.jsonl"), "expected a row of ProcessBench", line=2)
    with pytest.raises(InputError, match="already"):
        read_cases([files[0], write(WRONG, name="h.jsonl")])


# --- which files


def test_files_and_folders(write, tmp_path):
    b, a = write(WRONG, name="b.jsonl"), write(RIGHT, name="a.json")
    (tmp_path / "README.md").write_text("x")
    c = write(RIGHT, name="c.jsonl.gz")
    assert files_of([str(tmp_path)]) == (a, b, c)
    assert files_of([b, a, "not there yet"]) == (b, a, "not there yet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"empty: no file in this folder ends in \.jsonl"):
        files_of([str(tmp_path / "empty")])
    with pytest.raises(UsageError, match="expected `data`"):
        files_of([])


@pytest.fixture
def hub(monkeypatch):
    """A huggingface_hub whose download is replaced; returns what it was asked for."""
    asked = []

    def install(download):
        module = types.ModuleType("huggingface_hub")

        def hf_hub_download(repo_id, filename, *, repo_type=None):
            asked.append((repo_id, filename, repo_type))
            return download(filename)

        module.hf_hub_download = hf_hub_download
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
        return asked

    return install


def test_the_hub(hub, write):
    places = {
        name: write(json.dumps([{**WRONG, "id": f"{name.partition('.')[0]}-0"}]), name=name)
        for name in ProcessBench.files
    }
    asked = hub(places.__getitem__)
    files = files_of(["hub"], dataset=ProcessBench.dataset, names=ProcessBench.files)
    assert files == tuple(places.values())
    assert asked == [("Qwen/ProcessBench", name, "dataset") for name in places]
    assert [case.group for case in read_cases(files)] == ["gsm8k", "math", "olympiadbench", "omnimath"]


def test_rows_of_stepmark_label_are_cases_with_all_their_evidence(tmp_path):
    from stepmark.data.formats.own import to_row
    from stepmark.evaluation.cases import first_error, step_labels
    from stepmark.records import Judgement, LabelledSolution, Solution

    def value(successes, trials):
        return Judgement(kind="value", judge="every-step", successes=successes, trials=trials)

    share = Judgement(kind="value", judge="elsewhere", share=1.0)
    labelled = LabelledSolution(
        solution=Solution.of("p", ["a", "b", "c"], id="x"),
        judgements=((value(3, 4),), (share,), (value(0, 4),)),
    )
    file = tmp_path / "labels.jsonl"
    file.write_text(json.dumps(to_row(labelled, outcome=False)) + "\n", encoding="utf-8")
    (case,) = read_cases([str(file)])
    assert case.labelled == labelled
    assert case.outcome is False
    assert step_labels(case.labelled) == (0.75, 1.0, 0.0)
    assert first_error(case.labelled) == 2  # the first prefix from which nothing succeeded
