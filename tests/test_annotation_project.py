"""A project says what its file says; a Potato configuration is a project as it is, and its record is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from annotation_marks import fold
from stepmark.annotation.export import export
from stepmark.annotation.items import read_items
from stepmark.annotation.marks import AnnotatorMarks, Change
from stepmark.annotation.project import load_project
from stepmark.errors import InputError


def made(folder: Path, text: str) -> Path:
    (folder / "items.jsonl").write_text('{"problem": "?", "steps": ["a"]}\n')
    file = folder / "project.yaml"
    file.write_text(text)
    return file


def test_a_project_says_what_its_file_says(tmp_path):
    file = made(
        tmp_path,
        """
name: algebra
mode: per_step
allow_neutral: true
items: items.jsonl
error_types: [sign, logic]
overlap: 2
reward_labels: {correct: Right}
help:
  show: after
inline_with_trace: true
""",
    )
    project = load_project(file).project
    assert (project.name, project.mode, project.allow_neutral, project.overlap) == (
        "algebra",
        "per_step",
        True,
        2,
    )
    assert project.items == (tmp_path / "items.jsonl",)
    assert project.error_types == ("sign", "logic")
    assert (project.reward_labels.correct, project.reward_labels.incorrect) == ("Right", "Wrong")
    assert (project.help.show, project.inline_with_trace) == ("after", True)


def test_the_command_line_comes_first(tmp_path, monkeypatch):
    file = made(tmp_path, "items: items.jsonl\noverlap: 2\nhelp: {show: after}\n")
    said = load_project(file, {"overlap": 3}).project
    assert (said.overlap, said.help.show) == (3, "after")
    monkeypatch.chdir(tmp_path)
    alone = load_project("items.jsonl", {"mode": "per_step"}).project
    assert (alone.items, alone.mode, alone.overlap) == ((Path("items.jsonl"),), "per_step", 1)


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("items: items.jsonl\nmod: per_step\n", "mod", "Did you mean 'mode'"),
        ("items: items.jsonl\nhelp: {sho: after}\n", "help.sho", "Did you mean 'show'"),
        ("items: items.jsonl\nscreening: {items: items.jsonl}\n", "screening", "no setting"),
        ("items: items.jsonl\noverlap: two\n", "overlap", "integer"),
        ("items: items.jsonl\noverlap: true\n", "overlap", "integer"),
        ("items: items.jsonl\noverlap: 0\n", "overlap", "found 0"),
        ("items: items.jsonl\nmode: sideways\n", "mode", "first_error"),
        ("items: items.jsonl\nallow_neutral: true\n", "allow_neutral", "per_step"),
        ("items: items.jsonl\nhelp: never\n", "help", "settings by name"),
        ("items: items.jsonl\nformat: tlr\n", "format", "Did you mean 'trl'"),
        ("items: items.jsonl\nerror_types: [a, a]\n", "error_types", "different names"),
        ("items: nowhere.jsonl\n", "items", "there is no"),
        ("mode: per_step\n", "items", "at least one file"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, where, said):
    file = made(tmp_path, text)
    with pytest.raises(InputError, match=said) as caught:
        load_project(file)
    assert caught.value.where == f"{file}:{where}"


def test_yaml_that_is_none(tmp_path):
    with pytest.raises(InputError, match="stands twice") as caught:
        load_project(made(tmp_path, "items: items.jsonl\nname: a\nname: b\n"))
    assert str(caught.value.where).endswith("project.yaml:3")
    for text in ("items: [a\n", "- a\n", "!!python/object/apply:os.getcwd []\n"):
        with pytest.raises(InputError):
            load_project(made(tmp_path, text))
    with pytest.raises(InputError, match="Did you mean"):
        load_project(made(tmp_path, "items: items.jsonl\n"), {"overlp": 2})


EXAMPLE = Path(__file__).parent.parent / "examples" / "annotation" / "project.yaml"

SCHEME = """annotation_schemes:
  - annotation_type: process_reward
    name: step_rewards
    description: Rate.
"""
TURNS = [
    {"role": "user", "content": "Fix it."},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"tool": "read", "input": {"path": "a.py"}, "output": "x = 1", "output_type": "code"}],
    },
    {"role": "tool", "content": "(nothing more)"},
    {"role": "assistant", "content": "", "tool_calls": [{"tool": "edit", "input": "x = 2"}]},
]


def potato(folder: Path, text: str, *rows: dict[str, Any]) -> Path:
    (folder / "data").mkdir(exist_ok=True)
    rows = rows or ({"id": "t1", "task_description": "Fix it.", "structured_turns": TURNS},)
    (folder / "data" / "traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = folder / "config.yaml"
    file.write_text(f"data_files: [data/traces.jsonl]\n{text}")
    return file


def test_the_documented_record():
    """Potato's documentation: 1, 0, -1 and null for the steps 0 to 3."""
    loaded = load_project(EXAMPLE)
    project = loaded.project
    assert (project.title, project.mode) == ("Coding agent, step by step", "per_step")
    assert (project.allow_neutral, project.inline_with_trace) == (True, True)
    items = read_items(project)
    log = [Change(kind="rate", step=step, rating=rating) for step, rating in ((0, 1), (1, 0), (2, -1))]
    marks = fold("per_step", 4, [*log, Change(kind="submit")], allow_neutral=True)
    answer = AnnotatorMarks(item="trace_42", account="alice", marks=marks)
    (row,) = export(project, items, [answer])
    assert isinstance(row, dict)
    assert row["solution"]["id"] == "trace_42"
    assert [[j["rating"] for j in step] for step in row["judgements"]] == [[1], [0], [-1], []]


def test_all_options_and_what_is_not_taken_up(tmp_path):
    text = """
annotation_task_name: Traces
port: 8000
task_dir: .
output_annotation_dir: out
user_config: {allow_all_users: true}
item_properties: {id_key: key, text_key: task}
annotation_schemes:
  - annotation_type: radio
    name: overall
    description: Overall
    labels: [good, bad]
  - annotation_type: process_reward
    name: rewards
    description: Rate each step.
    steps_key: structured_turns
    step_text_key: content
    mode: per_step
    allow_neutral: true
    inline_with_trace: true
    ai_prelabel: true
    require_verification: true
    reward_labels: {correct: Valid, incorrect: Flawed}
    label_requirement: {required: true}
"""
    row = {"key": 7, "task": "Fix it.", "structured_turns": TURNS}
    loaded = load_project(potato(tmp_path, text, row))
    project = loaded.project
    assert (project.name, project.steps_key, project.step_text_key) == (
        "Traces",
        "structured_turns",
        "content",
    )
    assert (project.mode, project.allow_neutral, project.inline_with_trace) == ("per_step", True, True)
    assert project.help.show == "before"
    assert (project.reward_labels.correct, project.reward_labels.neutral) == ("Valid", "Neutral")
    assert loaded.notes == (
        "options of the scheme that are not used: require_verification, label_requirement",
        "schemes that are not shown, since only process_reward is: overall (radio)",
        "keys that are not used: port, output_annotation_dir, user_config",
    )
    (item,) = read_items(project)
    assert (item.id, item.solution.problem.text) == ("7", "Fix it.")


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        (SCHEME + "    mdoe: per_step\n", "annotation_schemes.0.mdoe", "Did you mean 'mode'"),
        (SCHEME + "    mode: both\n", "annotation_schemes.0.mode", "first_error"),
        (SCHEME + "    allow_neutral: 1\n", "annotation_schemes.0.allow_neutral", "boolean"),
        (SCHEME + "    reward_labels: {good: x}\n", "annotation_schemes.0.reward_labels.good", "no setting"),
        (SCHEME + "cot_segmentation: {source_key: a}\n", "cot_segmentation", "cut them first"),
        ("annotation_schemes: [{annotation_type: radio}]\n", "annotation_schemes", "found 0"),
        (
            "annotation_schemes: [{annotation_type: process_reward}]\n",
            "annotation_schemes.0.name",
            "required",
        ),
    ],
)
def test_what_is_wrong_in_potatos_file_is_named(tmp_path, text, where, said):
    file = potato(tmp_path, text)
    with pytest.raises(InputError, match=said) as caught:
        load_project(file)
    assert caught.value.where == f"{file}:{where}"
