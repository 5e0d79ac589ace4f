"""Settings of annotation projects, read strictly."""

from __future__ import annotations

from pathlib import Path

import pytest

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
lease_minutes: 5
reward_labels: {correct: Right}
help:
  show: after
limits: {steps: 50}
gold: {items: items.jsonl, every: 4}
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
    assert project.gold.items == tmp_path / "items.jsonl"
    assert project.error_types == ("sign", "logic")
    assert (project.reward_labels.correct, project.reward_labels.incorrect) == ("Right", "Wrong")
    assert (project.help.show, project.limits.steps, project.limits.note_characters) == ("after", 50, 4000)
    assert project.lease_minutes == 5.0


def test_the_command_line_comes_first(tmp_path, monkeypatch):
    file = made(tmp_path, "items: items.jsonl\noverlap: 2\nhelp: {show: after}\n")
    said = load_project(file, {"overlap": 3, "help": {"require_verification": True}}).project
    assert (said.overlap, said.help.show, said.help.require_verification) == (3, "after", True)
    monkeypatch.chdir(tmp_path)
    alone = load_project("items.jsonl", {"mode": "per_step"}).project
    assert (alone.items, alone.mode, alone.overlap) == ((Path("items.jsonl"),), "per_step", 1)


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("items: items.jsonl\nmod: per_step\n", "mod", "Did you mean 'mode'"),
        ("items: items.jsonl\nlimits: {step: 4}\n", "limits.step", "Did you mean 'steps'"),
        ("items: items.jsonl\noverlap: two\n", "overlap", "integer"),
        ("items: items.jsonl\noverlap: true\n", "overlap", "integer"),
        ("items: items.jsonl\noverlap: 0\n", "overlap", "greater than or equal to 1, found 0"),
        (
            "items: items.jsonl\nscreening: {pass_mark: 1.5}\n",
            "screening.pass_mark",
            "less than or equal to 1, found 1.5",
        ),
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
