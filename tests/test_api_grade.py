"""`stepmark.grade` and `stepmark grade` are one: the same rows, byte for byte; records without a file; the same refusals."""

import json

import pytest

import scripted_prms
import stepmark
from stepmark.cli import main
from stepmark.data.steps.splitting import REASONING
from stepmark.errors import IdleSettingWarning, InputError, SettingError, UsageError
from stepmark.progress import Progress
from stepmark.records import GradedSolution
from stepmark.scoring.run import grade, read_graded

PRM = "scripted_prms:arithmetic"
ROWS = [
    {"problem": "Add.", "steps": ["1 + 1 = 2", "2 + 2 = 5"], "id": "a"},
    {"problem": "Add.", "solution": "1 + 1 = 2\n2 + 3 = 5", "id": "b", "mine": {"kept": True}},
    {"question": "Add.", "response": "2 + 2 = 4"},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def test_the_function_writes_what_the_command_writes(tmp_path, file):
    assert (
        main(
            ["grade", str(file), "--prm", PRM, "--threshold", "0.4", "--out", str(tmp_path / "command.jsonl")]
        )
        == 0
    )
    results = grade(file, PRM, threshold=0.4, out=tmp_path / "function.jsonl", progress=False)
    assert (tmp_path / "function.jsonl").read_bytes() == (tmp_path / "command.jsonl").read_bytes()
    # The manifests too, but for what only the command line names: how the PRM was loaded.
    command, function = (
        json.loads((tmp_path / f"{name}.jsonl.manifest.json").read_text()) for name in ("command", "function")
    )
    assert {**command, "loaded_with": {}} == {**function, "loaded_with": {}}
    assert results.out == tmp_path / "function.jsonl"
    assert [scored.first_error for scored in results] == [1, -1, -1]


@pytest.mark.parametrize("make", [list, tuple, iter], ids=["list", "tuple", "iterator"])
def test_rows_of_python_give_records(make):
    results = grade(make(ROWS), PRM, progress=False)
    assert [type(one) for one in results] == [GradedSolution] * 3
    assert [one.first_error for one in results] == [1, -1, -1]
    assert results.out is None
    assert "3 solutions, 5 steps: 1 with an error" in results.summary
    assert results.summary in str(results) and repr(results) in str(results)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", None])
def test_progress_counts_solutions_and_not_rows(tmp_path, monkeypatch, name):
    totals = []

    class Seen(Progress):
        def __init__(self, total, **settings):
            super().__init__(total, **settings)
            totals.append(self)

    monkeypatch.setattr("stepmark.scoring.run.Progress", Seen)
    rows = [{"problem": "P", "candidates": ["a", "b", "c"]}, {"problem": "Q", "solution": "a"}]
    source = rows if name is None else tmp_path / name
    if name is not None:
        lines = json.dumps(rows) if name.endswith(".json") else "\n".join(map(json.dumps, rows))
        source.write_text(lines)
    grade(source, stepmark.ScriptedPRM(lambda problem, steps: 0.9), progress=False)
    assert [(seen._total, seen.done) for seen in totals] == [(4, 4)]


def test_rows_of_python_are_resumed_and_written_the_same(tmp_path, file):
    from_file = grade(file, PRM, out=tmp_path / "a.jsonl", progress=False)
    from_rows = grade(ROWS, PRM, out=tmp_path / "b.jsonl", progress=False)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert list(from_file) == list(from_rows)


def test_records_and_a_prm_object(tmp_path):
    prm = scripted_prms.arithmetic()
    graded = grade(ROWS, prm, progress=False)
    again = grade([one.solution for one in graded], prm, progress=False)
    assert [one.steps for one in again] == [one.steps for one in graded]


def test_what_was_written_is_read_back(tmp_path):
    written = grade(ROWS, PRM, out=tmp_path / "a.jsonl", progress=False)
    assert [one.scores for one in read_graded(tmp_path / "a.jsonl")] == [one.scores for one in written]


def test_left_out_rows_are_listed():
    results = grade([*ROWS, {"problem": "Add.", "steps": []}], PRM, keep_going=True, progress=False)
    assert len(results) == 3
    assert len(results.refused) == 1 and results.refused[0].startswith("row 4")


@pytest.mark.parametrize(
    ("rows", "settings", "error", "message"),
    [
        ("x = 5", {}, InputError, "there is no such file"),
        ([{"steps": ["1 + 1 = 2"]}], {}, InputError, "row 1"),
        (ROWS, {"threshold": "high"}, SettingError, "threshold='high': expected a number"),
        (ROWS, {"aggregate": "prodcut"}, UsageError, "Did you mean 'product'"),
        (ROWS, {"out": "nowhere/a.jsonl"}, UsageError, "there is no folder"),
    ],
)
def test_python_errors_name_settings(rows, settings, error, message):
    with pytest.raises(error, match=message):
        grade(rows, PRM, progress=False, **settings)


def test_a_config_file_sets_flags_and_flags_override_it(tmp_path, file, capfd):
    config = tmp_path / "run.toml"
    config.write_text(f'prm = "{PRM}"\nthreshold = 0.99\nkeep_going = true\n')
    out = tmp_path / "a.jsonl"
    assert main(["grade", str(file), "--config", str(config), "--out", str(out)]) == 0
    assert {json.loads(line)["threshold"] for line in out.read_text().splitlines()} == {0.99}
    assert (
        main(
            [
                "grade",
                str(file),
                "--config",
                str(config),
                "--threshold",
                "0.3",
                "--out",
                str(tmp_path / "b.jsonl"),
            ]
        )
        == 0
    )
    assert '"threshold": 0.3' in (tmp_path / "b.jsonl").read_text()
    config.write_text("treshold = 0.5\n")
    assert main(["grade", str(file), "--config", str(config)]) == 2
    assert "Did you mean --threshold" in capfd.readouterr().err
    assert main(["grade", str(file), "--config", "nowhere.toml"]) == 2
    assert "--config nowhere.toml" in capfd.readouterr().err


def test_the_prm_grades_one_and_ranks_several():
    prm = scripted_prms.arithmetic()
    wrong = prm.grade("Add.", "1 + 1 = 2\n2 + 2 = 5")
    assert (wrong.first_error, len(wrong.scores)) == (1, 2)
    assert prm.score("Add.", steps=["1 + 1 = 2"]) == prm.score("Add.", stepmark.split("1 + 1 = 2"))
    ranked = prm.rank("Add.", ["2 + 2 = 5", "2 + 2 = 4", ["1 + 1 = 2", "2 + 2 = 5"]])
    assert [one.index for one in ranked] == [1, 0, 2]
    assert ranked[0].score > ranked[1].score == ranked[2].score
    graded = prm.grade_many("Add.", ["2 + 2 = 5", ["1 + 1 = 2", "2 + 2 = 5"]])
    assert [(one.index, len(one), one.first_error_step) for one in graded] == [(0, 1, 1), (1, 2, 2)]
    for ask in (prm.grade, prm.score):
        with pytest.raises(InputError, match=r"`steps`.*`grade_many`.*`rank`"):
            ask("Add.", ["2 + 2 = 5", "2 + 2 = 4"])
    with pytest.raises(InputError, match="found one text"):
        prm.rank("Add.", "2 + 2 = 4")
    with pytest.raises(InputError, match=r"solution 1 \(0-based\)"):
        prm.rank("Add.", ["2 + 2 = 4", ""])
    several = [stepmark.Solution.of(problem, ["2 + 2 = 4"]) for problem in ("Add.", "Add this.")]
    assert [one.problem.text for one in prm.grade_many(None, several)] == ["Add.", "Add this."]
    with (
        stepmark.BackgroundServer(prm) as server,
        stepmark.load_prm(server.address) as remote,
    ):
        for rank in (prm.rank, remote.rank):
            with pytest.raises(InputError, match=r"solution 1 \(0-based\).*one problem"):
                rank(None, several)
            with pytest.raises(InputError, match="found none"):
                rank("Add.", [])


def test_a_file_is_counted_for_progress_though_nothing_is_written(file, monkeypatch):
    totals = []

    class Counting(Progress):
        def __init__(self, total, **settings):
            totals.append(total)
            super().__init__(total, **settings)

    monkeypatch.setattr("stepmark.scoring.run.Progress", Counting)
    grade(file, PRM, progress=False)
    assert totals == [3]


def test_reasoning_between_marks_reaches_the_summary():
    rows = [{"problem": "Add.", "solution": "<think>\n1 + 1 = 2\n</think>\nIt is 2."}, ROWS[1]]
    results = grade(rows, "scripted_prms:certain", progress=False)
    assert f"1 text: {REASONING['keep']}" in results.summary
    (graded, _) = grade(rows, "scripted_prms:certain", reasoning="drop", progress=False, checks="none")
    assert graded.solution.texts == ("It is 2.",)


def test_results_are_a_frame_with_a_flat_row_a_solution():
    pytest.importorskip("pandas")
    rows = [
        {**ROWS[0], "answer": "4"},
        {"problem": "Add.", "solution": "1 + 1 = 2", "answer": "2", "id": "b"},
    ]
    frame = stepmark.grade(rows, PRM, progress=False).to_pandas()
    assert frame.index.size == 2
    assert list(frame["steps"])[1] == ["1 + 1 = 2"]
    assert [list(scores) for scores in frame["scores"]] == [[0.9, 0.1], [0.9]]
    assert list(frame["first_error_step"].fillna(0)) == [2, 0]
    policy = stepmark.ScriptedPolicy(lambda *_: "The answer is 2.")
    sampled = stepmark.sample(rows, policy, n=2, verifier="number", progress=False).to_pandas()
    assert list(sampled["meta.outcome"]) == [False, False, True, True]
    found = stepmark.search(
        rows,
        method=stepmark.searches.BestOfN(n=2),
        policy=policy,
        prm=stepmark.ScriptedPRM(lambda *_: 0.9),
        progress=False,
    ).to_pandas()
    assert list(found["solution"]) == ["The answer is 2."] * 2 and list(found["candidates"]) == [2, 2]
    labelled = stepmark.label(
        rows[1:], method=stepmark.labels.EveryStep(k=2), policy=policy, verifier="number", progress=False
    ).to_pandas()
    assert list(labelled["labels"]) == [["1 of 1, right"]]  # a last step is judged by its own answer
    assert list(labelled["first_error"]) == [-1] and list(labelled["cost.unparsed"]) == [0]


@pytest.mark.parametrize(
    ("low", "count", "said"), [(19, 20, True), (20, 20, True), (17, 20, False), (9, 9, False)]
)
def test_a_threshold_that_hardly_fits_is_said(tmp_path, low, count, said):
    prm = stepmark.ScriptedPRM(lambda problem, steps: 0.4 if int(problem) < low else 0.9)
    rows = [{"problem": str(n), "steps": ["a"]} for n in range(count)]
    results = stepmark.grade(rows, prm, report=tmp_path / "r.html", progress=False)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    words = f"{low} of {count} solutions have a step under 0.5"
    assert (words in results.summary) == (words in page) == said
    assert ("evaluate processbench" in results.summary) == said


def test_what_checks_refute_says_nothing_of_the_threshold():
    rows = [{"problem": "p", "steps": ["2 + 2 = 5"]}] * 20
    results = stepmark.grade(rows, stepmark.ScriptedPRM(lambda *_: 0.9), checks="all", progress=False)
    assert "20 by an exact check" in results.summary and "fit these texts" not in results.summary


def test_a_marker_that_nothing_reads_is_a_note():
    rows = [{"problem": "Add.", "solution": "1 + 1 = 2\n2 + 2 = 5"}]
    with pytest.warns(IdleSettingWarning, match="`marker`"):
        (graded,) = grade(rows, PRM, split="line", marker="#", progress=False)
    assert len(graded) == 2
    (graded,) = grade(
        [{"problem": "Add.", "solution": "1 + 1 = 2#2 + 2 = 5"}], PRM, marker="#", progress=False
    )
    assert graded.solution.texts == ("1 + 1 = 2", "2 + 2 = 5")
