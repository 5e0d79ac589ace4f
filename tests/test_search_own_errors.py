"""A search of one's own that raises what it likes is told with its class, message, file and line; its source is known by where it lies."""

from __future__ import annotations

import json
import sys
import sysconfig
import types
from pathlib import Path

import pytest

from own_searches import Falls, Picky
from stepmark.cli import main
from stepmark.errors import UsageError, raised_at, told
from stepmark.own import _is_ours_or_pythons
from stepmark.search.base import Budget, Steps
from stepmark.search.beam import BeamSearch
from stepmark.search.methods import remade

TRAP = ["--policy", "own_searches:trap_policy", "--prm", "own_searches:trap_prm", "--verifier", "number"]
HERE = Path(__file__).parent


def line_of(text):
    lines = (HERE / "own_searches.py").read_text().splitlines()
    return 1 + next(number for number, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        (
            "Picky",
            ["--set", "how.max_tokens=100001"],
            "own_searches:Picky: Picky(how=Steps(stop='\\n', max_tokens=100001,",
        ),
        ("Picky", ["--budget", "1"], "own_searches:Picky refuses grading=Grading("),
        ("Falls", [], "KeyError: '7?'"),
    ],
)
def test_what_a_class_raises_is_told(tmp_path, capsys, name, words, said):
    file, out = tmp_path / "p.jsonl", tmp_path / "o.jsonl"
    file.write_text(json.dumps({"problem": "7?"}) + "\n")
    command = ["search", str(file), "--method", f"own_searches:{name}", *TRAP, "--out", str(out)]
    code = main([*command, *words])
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err and not out.exists()
    raised = {"Picky": 'ValueError(f"steps of', "Falls": "raise KeyError"}[name]
    raised = 'raise TypeError("one token' if words[:1] == ["--budget"] else raised
    assert f"own_searches.py:{line_of(raised)}" in err
    assert "STEPMARK_DEBUG=1 shows how it came there" in err
    # What cannot be made is the caller's to change; what breaks while it runs is nobody's fault that is known.
    assert code == (1 if name == "Falls" else 2)


def test_the_message_is_one_line_and_names_the_type():
    with pytest.raises(UsageError) as caught:
        remade(Picky(), how=Steps(max_tokens=200_000))
    assert ": ValueError: steps of 200000 tokens? No., at " in str(caught.value)
    with pytest.raises(UsageError, match="TypeError: one token is too few, at "):
        remade(Picky(), budget=Budget(tokens=1))
    # What stepmark's own classes refuse stays as they say it.
    with pytest.raises(UsageError, match=r"^expand=0: expected 1 or more$"):
        remade(BeamSearch(), expand=0)
    assert remade(Falls(), how=Steps(max_tokens=5)).how.max_tokens == 5


def test_the_line_is_that_of_the_code_that_is_not_ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import json\n\ndef read():\n    return json.loads('{')\n")
    namespace: dict[str, object] = {}
    exec(compile((tmp_path / "mine.py").read_text(), str(tmp_path / "mine.py"), "exec"), namespace)  # noqa: S102
    with pytest.raises(json.JSONDecodeError) as caught:
        namespace["read"]()
    assert raised_at(caught.value) == "mine.py:4"
    assert told(caught.value).startswith("JSONDecodeError: Expecting property name")
    with pytest.raises(TypeError) as caught:
        exec(compile("len(3)", "<string>", "exec"), {})  # noqa: S102
    assert raised_at(caught.value) == f"{HERE / 'test_search_own_errors.py'}:{caught.tb.tb_lineno}"
    assert raised_at(ValueError("never raised")) is None
    assert told(ValueError("never raised")) == "ValueError: never raised"
    assert told(ValueError()) == "ValueError"


MINE = """
from dataclasses import dataclass
from typing import ClassVar

from own_searches import BestFirst


@dataclass(frozen=True, kw_only=True, slots=True)
class Mine(BestFirst):
    name: ClassVar[str] = "mine"
"""


def test_a_module_named_like_one_of_pythons_is_hashed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "code", raising=False)
    (tmp_path / "code.py").write_text(MINE)
    (tmp_path / "p.jsonl").write_text('{"id": "0", "problem": "0?"}\n')
    words = ["search", "p.jsonl", "--method", "code:Mine", *TRAP, "--set", "how.prompt=text", "--out"]
    assert main([*words, "o.jsonl"]) == 0, capsys.readouterr().err
    manifest = json.loads((tmp_path / "o.jsonl.manifest.json").read_text())
    assert sorted(manifest["source"]["modules"]) == ["code", "own_searches"]
    sys.modules.pop("code")


def test_whose_a_module_is_is_told_by_its_place(tmp_path):
    import collections.abc
    import dataclasses

    import cyclopts

    import stepmark.search.beam

    for module in (sys, sys.modules["builtins"], dataclasses, collections.abc, stepmark.search.beam):
        assert _is_ours_or_pythons(module), module
    assert not _is_ours_or_pythons(cyclopts)
    for file, known in (
        (tmp_path / "queue.py", False),
        (Path(sysconfig.get_paths()["stdlib"]) / "queue.py", True),
        (Path(sysconfig.get_paths()["purelib"]) / "queue.py", False),
    ):
        module = types.ModuleType("queue")
        module.__file__ = str(file)
        assert _is_ours_or_pythons(module) is known
