"""What `stepmark grade` wrote is read by every command, and its scores join what they are of."""

import json

import pytest

import stepmark
from stepmark.annotation.items import read_items
from stepmark.annotation.project import load_project
from stepmark.errors import InputError
from stepmark.evaluation.scores import read_scores
from stepmark.evaluation.sources import read_cases
from stepmark.scoring.run import read_graded
from stepmark.training.run import training_rows

PRM = stepmark.ScriptedPRM(lambda problem, steps: 0.1 if "7" in steps[-1] else 0.9)
TURNS = [{"role": "user", "content": "2 * 3?"}, {"role": "assistant", "content": "2 * 3 = 7"}]
PROCESSBENCH = {"id": "mine-1", "generator": "m", "final_answer_correct": False, "label": 1}
ROWS = {
    "steps": {"question": "2 * 3 + 1?", "steps": ["2 * 3 = 6", "6 + 1 = 7"], "level": 1},
    "text": {"problem": "2 * 3 + 1?", "response": "2 * 3 = 6\n6 + 1 = 7"},
    "several": {"id": "s", "problem": "2 * 3 + 1?", "solutions": ["2 * 3 = 6\n6 + 1 = 7"]},
    "conversation": {"messages": [*TURNS, {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "2 * 3 = 6"}]},
    "turn": {"messages": [TURNS[0], {"role": "assistant", "content": "2 * 3 = 6. So 2 * 3 = 7."}]},
    "labels": {**PROCESSBENCH, "problem": "2 * 3 + 1?", "steps": ["2 * 3 = 6", "6 + 1 = 7"]},
    "trl": {"prompt": "2 * 3 + 1?", "completions": ["2 * 3 = 6", "6 + 1 = 7"], "labels": [True, False]},
}  # fmt: skip


def graded(tmp_path, *rows, prm=PRM, name="graded.jsonl", **settings):
    results = stepmark.grade(list(rows), prm, out=tmp_path / name, progress=False, **settings)
    return tmp_path / name, list(results)


@pytest.mark.parametrize("name", ROWS)
def test_every_command_reads_graded_rows(tmp_path, name):
    way = "sentence" if name == "turn" else "auto"
    file, (scored,) = graded(tmp_path, ROWS[name], split=way)
    texts = scored.solution.texts
    assert len(texts) == 2 and list(read_graded(file)) == [scored]

    (plain,) = stepmark.read_labelled(file)
    assert plain.solution.texts == texts and plain.solution.problem.text == scored.solution.problem.text
    assert not {"scores", "prm", "first_error"} & {*plain.meta}
    (labelled,) = stepmark.label(file, method="formulas", progress=False)
    assert labelled.labelled.solution.texts == texts
    again, _ = graded(tmp_path, json.loads(file.read_text()), name="again.jsonl", split=way)
    assert again.read_text() == file.read_text()
    (row,) = training_rows([str(file)])
    has_labels = name in ("labels", "trl")
    assert any(row.labelled.judgements) == has_labels

    cases = read_cases([str(file)])
    assert [case.solution.texts for case in cases] == [texts]
    assert read_scores(file, cases).rows[0].scores == scored.scores

    project = load_project(file).project
    assert project.help.show == "before"
    (item,) = read_items(project)
    assert item.solution.texts == texts
    if not has_labels:
        assert tuple(one.score for one in item.suggestions) == scored.scores
        assert [one.rating for one in item.suggestions] == [1 if s >= 0.5 else -1 for s in scored.scores]


def test_scores_without_ids_join_where_problem_and_steps_are_the_same(tmp_path):
    rows = [ROWS["steps"], ROWS["conversation"], {"problem": "3?", "solution": "3 = 7"}]
    file, scored = graded(tmp_path, *rows[::-1])
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    joined = read_scores(file, read_cases([str(data)]))
    assert [row.scores for row in joined.rows] == [one.scores for one in scored[::-1]]

    # The same solution twice, with other scores: by their order where there are as many.
    twice = [{"problem": "3?", "steps": ["3 = 7"], "scores": [score]} for score in (0.2, 0.4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in twice))
    data.write_text((json.dumps(rows[2]) + "\n") * 2)
    assert [row.scores for row in read_scores(file, read_cases([str(data)])).rows] == [(0.2,), (0.4,)]
    data.write_text(json.dumps(rows[2]) + "\n")
    with pytest.raises(
        InputError, match=r"jsonl:2, field 'id': 2 rows .* and 1 solution of the data: give the rows ids"
    ):
        read_scores(file, read_cases([str(data)]))
    file.write_text('{"scores": [0.2]}\n')
    with pytest.raises(InputError, match=r"jsonl:1, field 'id'"):
        read_scores(file, read_cases([str(data)]))


def test_a_users_own_file_shows_no_labels_unless_asked(tmp_path):
    file = tmp_path / "items.jsonl"
    file.write_text(json.dumps(ROWS["labels"]) + "\n")
    assert load_project(file).project.help.show == "never"
    assert load_project(file, {"help": {"show": "after"}}).project.help.show == "after"


def test_an_empty_cell_is_named(tmp_path):
    file = tmp_path / "rows.csv"
    for row, column in (("q,", "response"), (",a", "question")):
        file.write_text(f"question,response,level\nq,a,1\n{row},\n")
        with pytest.raises(
            InputError, match=f"rows.csv:3, field '{column}': expected a text, found an empty cell"
        ):
            list(stepmark.read_labelled(file))
    file.write_text("Frage,answer\n,3\n")
    with pytest.raises(InputError, match=r"rows.csv:2, field 'problem'"):
        stepmark.load_problems(file, columns={"problem": "Frage"})


def test_each_file_of_a_folder_has_its_format(tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    for name in ("labels", "trl", "conversation"):
        (folder / f"{name}.jsonl").write_text(json.dumps(ROWS[name]) + "\n")
    out = stepmark.convert(folder, "stepmark-labels")
    assert [one["meta"]["format"] for one in out] == ["chat", "processbench", "trl"]
    assert out.summary.startswith("chat, processbench, trl -> stepmark-labels")
    assert len(list(training_rows([str(folder)]))) == 3
    items = read_items(load_project(folder).project)
    assert [len(item.suggestions) for item in items] == [0, 2, 2]
    (folder / "z.jsonl").write_text('{"x": 1}\n')
    with pytest.raises(InputError, match=r"z\.jsonl:1"):
        stepmark.convert(folder, "stepmark-labels")
