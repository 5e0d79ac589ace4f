"""Searches of one's own by name: `stepmark search own`, `stepmark evaluate search --methods module:Class`, `--set`, and resume."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import own_searches
from stepmark.cli import main
from stepmark.errors import UsageError, raised_at, told
from stepmark.searches.methods import load_search
from test_evaluate_search import MODELS, problem_file

TRAP = ["--policy", "own_searches:trap_policy", "--prm", "own_searches:trap_prm", "--verifier", "number"]
TEXT = ["--prompt", "text", "--temperature", "1"]
SET_TEXT = ["--set", "how.prompt=text", "--set", "how.temperature=1"]


def file_of(tmp_path, count=3):
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps({"id": str(n), "problem": f"{n}?"}) + "\n" for n in range(count)))
    return str(file)


def found_in(out):
    return [json.loads(line) for line in out.read_text().splitlines()]


def search(*words):
    return main(["search", *map(str, words)])


# -- The command ---------------------------------------------------------------------------------------------------


def test_the_trap_by_name_and_by_beam(tmp_path, capsys):
    """By hand: best-first turns back from "a" (0.9, then 0.2 at most) to "b" (0.8, then 0.7); a beam of one cannot."""
    file, out, trees, page = (
        file_of(tmp_path),
        tmp_path / "o.jsonl",
        tmp_path / "t.jsonl",
        tmp_path / "p.html",
    )
    words = [file, *TRAP, "--out", out, "--trace", trees, "--report", page]
    assert search("--method", "own_searches:BestFirst", "--set", "expand=2", *SET_TEXT, *words) == 0
    for row in found_in(out):
        chosen = row["candidates"][row["chosen"]]
        assert (chosen["steps"], chosen["aggregate"], row["method"]) == (["b", "so 4"], 0.7, "best-first")
    for tree in found_in(trees):
        assert [node["step"] for node in tree["nodes"]] == ["a", "b", "a dead end", "so 1", "so 4", "so 5"]
    assert "best-first" in page.read_text()
    assert (
        search("beam", file, *TRAP, *TEXT, "--width", "1", "--expand", "2", "--out", tmp_path / "beam.jsonl")
        == 0
    )
    [chosen] = {tuple(row["candidates"][row["chosen"]]["steps"]) for row in found_in(tmp_path / "beam.jsonl")}
    assert chosen == ("a", "so 1")
    manifest = json.loads((tmp_path / "o.jsonl.manifest.json").read_text())
    assert manifest["method"] | {"how": None} == {
        "name": "best-first", "how": None, "choose": "best", "expand": 2, "rounds": 40, "slack": 0.0, "early": False,
        "label": None, "order": "best", "also": [],
    }  # fmt: skip
    assert manifest["source"]["method"] == "own_searches:BestFirst"
    assert list(manifest["source"]["modules"]) == ["own_searches"]


def test_a_search_that_says_so_is_run_without_a_prm(tmp_path, capsys):
    words = ["--problem", "What?", "--policy", "own_searches:trap_policy", "--prm", "own_searches:never"]
    assert search(*words, "--method", "own_searches:First", "--verifier", "number") == 0
    said = capsys.readouterr()
    assert "not scored" in said.out
    assert search(*words, "--method", "own_searches:Liar") == 2
    assert "the search liar asked for a score, and its class says asks_prm = False" in capsys.readouterr().err


def test_of_the_librarys_searches_greedy_and_majority_ask_no_prm():
    from stepmark.searches.methods import METHODS

    assert {name for name in METHODS if not METHODS.load(name).asks_prm} == {"greedy", "majority"}


def test_flags_of_steps_that_are_left_out_keep_the_classs_own(tmp_path):
    file, out = file_of(tmp_path, 1), tmp_path / "o.jsonl"
    for words, wanted in (
        (["--set", "how.max_steps=9"], (1.0, "text", 9)),
        (["--set", "how.prompt=chat"], (1.0, "chat", 7)),
    ):
        assert search(file, "--method", "own_searches:Two", *TRAP, *words, "--out", out) == 0
        how = json.loads((tmp_path / "o.jsonl.manifest.json").read_text())["method"]["how"]
        assert (how["temperature"], how["prompt"], how["max_steps"]) == wanted


def test_a_function_and_an_object_are_named_too():
    assert load_search("own_searches:two", ())[0] == own_searches.BestFirst(expand=2)
    assert load_search("own_searches:two", ["rounds=3"])[0] == own_searches.BestFirst(expand=2, rounds=3)
    beam = load_search("own_searches:THE_BEAM", ["expand=3"])[0]
    assert (beam.width, beam.expand) == (2, 3)


# -- Settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("rounds=3", 3), ("slack=3", 3.0), ("slack=-2.5e-1", -0.25), ("early=true", True), ("label=none", None), ("label=a=b c", "a=b c"),
        ("label=7", "7"), ("order=first", "first"), ("choose=vote", "vote"), ("also=1,2", (1, 2)),
    ],
)  # fmt: skip
def test_settings_are_read_by_the_types_of_their_fields(setting, value):
    made = load_search("own_searches:BestFirst", [setting])[0]
    read = getattr(made, setting.partition("=")[0])
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["rounds"], "`settings` rounds: expected name=value"),
        (["rounds=3", "rounds=4"], "rounds was set to '3' before"),
        (["rounts=3"], "no setting of BestFirst 'rounts'. Did you mean 'rounds'? Known: also, choose, early, expand,"),
        (["name=x"], "no setting of BestFirst 'name'"),
        (["rounds=3.5"], "`settings` rounds=3.5: expected a whole number, found '3.5'"),
        (["rounds=none"], "expected a whole number"),
        (["early=maybe"], "expected true or false, found 'maybe'"),
        (["order=frist"], "expected best or first, found 'frist'"),
        (["grading=min"], "grading is decided by `aggregate`"),
        (["rounds.x=5"], "rounds is a whole number and has no settings of its own"),
        (["rounds=0"], "`method` own_searches:BestFirst: rounds: expected 1 or more"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(settings, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        load_search("own_searches:BestFirst", settings)


# -- Names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("baem", "there is no search 'baem'. Did you mean 'beam'"),
        ("no_such_module:It", "No module named 'no_such_module' (a file in this folder needs PYTHONPATH=."),
        (
            "own_searches:BestFrist",
            "there is no search in own_searches 'BestFrist'. Did you mean 'BestFirst'",
        ),
        ("own_searches:Rollouts", "found Rollouts, which has no search(…)"),
        ("own_searches:NEXT", "found dict, which has no search(…)"),
        ("own_searches:Unwritten", "found Unwritten, which is abstract: it lacks weigh"),
        ("own_searches:Plain", "found Plain, which is no dataclass. See docs/extending.md"),
        ("own_searches:Apart", "found Apart, which is not derived from Searching"),
        ("own_searches:Breaks", "Breaks() failed: ZeroDivisionError: nothing divided, at "),
        ("own_searches:Needs", "missing 1 required keyword-only argument: 'much'"),
        ("own_searches:never", "never() failed: AssertionError: the PRM was loaded"),
        ("own_searches:Nameless", "expected a name, a text that its results are marked with; found None"),
        ("own_searches:Holds", "its setting key holds a builtin_function_or_method"),
        ("own_searches:Locked", "its setting door holds a Door"),
    ],
)
def test_names_of_what_is_no_search(tmp_path, capsys, name, said):
    out = tmp_path / "o.jsonl"
    assert search(file_of(tmp_path), "--method", name, *TRAP, "--out", out) == 2
    err = capsys.readouterr().err
    assert said in err
    assert f"--method {name}: " in err or "there is no search" in err
    assert not list(tmp_path.glob("o.jsonl*"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "Nothing",
            "the search nothing: expected search to return a SearchResult, as `return await choose(…)` does, and got NoneType",
        ),
        (
            "NoCoroutine",
            "the search no-coroutine: expected `async def search(problem, policy, prm, verifier)`, which returns a SearchResult, and got int",
        ),
        (
            "Generator",
            "the search generator: expected `async def search(problem, policy, prm, verifier)`, which returns a SearchResult, and got generator",
        ),
    ],
)
def test_a_search_that_gives_no_found(capsys, name, said):
    assert search("--problem", "?", "--method", f"own_searches:{name}", *TRAP) == 2
    assert said in capsys.readouterr().err


# -- What decides a run --------------------------------------------------------------------------------------------

MINE = """
from dataclasses import dataclass
from typing import ClassVar

from own_searches import BestFirst


@dataclass(frozen=True, kw_only=True, slots=True)
class Mine(BestFirst):
    name: ClassVar[str] = "mine"
"""


def test_name_settings_and_source_decide_what_is_continued(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(text, *words):
        (tmp_path / "own_mine.py").write_text(text)
        monkeypatch.delitem(sys.modules, "own_mine", raising=False)
        code = search(
            "p.jsonl",
            "--method",
            "own_mine:Mine",
            *TRAP,
            *SET_TEXT,
            "--in-flight",
            "1",
            *words,
            "--out",
            "o.jsonl",
        )
        return code, capsys.readouterr().err

    # The third problem cannot be read: the run ends there and leaves two that are done.
    rows = [json.dumps({"id": str(n), "problem": f"{n}?"}) for n in range(2)]
    (tmp_path / "p.jsonl").write_text("\n".join([*rows, '{"answer": "7"}']) + "\n")
    code, said = run(MINE, "--set", "expand=2")
    assert code == 2
    assert "p.jsonl:3" in said
    kept = (tmp_path / "o.jsonl.part").read_text()
    made_by, *done = map(json.loads, kept.splitlines())
    assert len(done) == 2
    assert list(made_by["source"]["modules"]) == ["own_mine", "own_searches"]
    # Another setting, another source: refused, and what is there stays.
    code, said = run(MINE, "--set", "expand=3")
    assert (code, "method.expand was 2 and is now 3" in said) == (2, True)
    code, said = run(MINE + "# changed\n", "--set", "expand=2")
    assert (code, "source.modules.own_mine was" in said) == (2, True)
    assert (tmp_path / "o.jsonl.part").read_text() == kept
    # The same again goes on; --keep-going decides nothing of what is found.
    code, said = run(MINE, "--set", "expand=2", "--keep-going")
    assert (code, "2 problems: 2 with a solution" in said) == (0, True)


# -- Labellers, by the same rules ------------------------------------------------------------------------------------


def test_a_labeller_takes_settings_too_those_of_its_rollouts_among_them(tmp_path, capsys):
    file = tmp_path / "wrong.jsonl"
    file.write_text(json.dumps({"problem": "2 + 2?", "steps": ["2 + 2 = 5", "So 5."]}) + "\n")
    out = tmp_path / "o.jsonl"
    words = ["label", str(file), "--out", str(out), "--method"]
    assert main([*words, "stepmark.labels.formulas:Formulas", "--set", "name=mine"]) == 0
    assert json.loads(out.read_text())["meta"]["method"] == "mine"
    manifest = json.loads((tmp_path / "o.jsonl.manifest.json").read_text())
    # A labeller of the library has no source of one's own.
    assert manifest["source"] == {"method": "stepmark.labels.formulas:Formulas", "modules": {}}
    from stepmark.labels.labellers import load_labeller

    for name in ("stepmark.labels.rollout:EveryStep", "rollout"):
        made, _ = load_labeller(name, ["how.temperature=0.5", "k=3", "how.seed=4"])
        assert (made.how.temperature, made.how.seed, made.k) == (0.5, 4, 3)
    for setting, said in (
        ("how=5", "how has settings of its own: how.temperature"),
        ("how.heat=1", "no setting of Rollouts 'how.heat'"),
        ("k=0", "--set k=0: expected a whole number, 1 or more"),
    ):
        assert main([*words, "stepmark.labels.rollout:EveryStep", "--set", setting]) == 2
        assert said in capsys.readouterr().err


# -- At equal tokens -----------------------------------------------------------------------------------------------


def test_the_command_compares_ones_own_and_says_what_it_was(tmp_path, capsys):
    out = tmp_path / "out"
    words = ["evaluate", "search", "--data", str(problem_file(tmp_path, 2)), *MODELS, "--budgets", "300"]
    words += ["--pilot", "1", "--resamples", "100", "--out", str(out), "--methods", "beam"]
    ours = ["own_searches:BestFirst", "own_searches:Two"]
    sets = ["--set", "own_searches:BestFirst.rounds=30", "--set", "own_searches:Two.rounds=20"]
    assert main([*words, *ours, *sets]) == 0
    result = json.loads((out / "result.json").read_text())
    assert {"accuracy/best-first/300", "over best-of-n/two/300", "tokens/two/300"} <= {
        one["name"] for one in result["figures"]
    }
    assert result["settings"]["sources"]["two"]["modules"].keys() == {"own_searches"}
    # Sized by `expand`, until the budget is spent; the others stay as they are.
    assert "best-first at 300" in result["settings"]["sizes"]
    assert "two at 300" not in result["settings"]["sizes"]
    capsys.readouterr()
    for more in (
        [*ours, "--set", "rounds=3"],
        [*ours, "--set", "own_searches:Two.depth=3"],
        ["own_searches:AsBeam"],
        ["own_searches:Slash"],
        ["own_searches:LargeOnly"],
        ["own_searches:EvenOnly"],
        ["own_searches:BestFrist"],
        ["bean"],
    ):
        assert main([*words, *more]) == 2, more
        assert capsys.readouterr().err


# -- What a class raises, and whose a module is -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words", "code", "said", "raised"),
    [
        ("Picky", ["--set", "how.max_tokens=100001"], 2, "own_searches:Picky: Picky(how=Steps(stop='\\n', max_tokens=100001,",
         'ValueError(f"steps of'),
        ("Picky", ["--budget", "1"], 2, "own_searches:Picky refuses grading=Grading(", 'raise TypeError("one token'),
        ("Falls", [], 1, "KeyError: '0?'", "raise KeyError"),
    ],
)  # fmt: skip
def test_what_a_class_raises_is_one_line_with_its_place(tmp_path, capsys, name, words, code, said, raised):
    out = tmp_path / "o.jsonl"
    assert (
        search(file_of(tmp_path, 1), "--method", f"own_searches:{name}", *TRAP, "--out", out, *words) == code
    )
    err = capsys.readouterr().err
    lines = Path(own_searches.__file__).read_text().splitlines()
    line = 1 + next(number for number, line in enumerate(lines) if raised in line)
    assert said in err
    assert f"own_searches.py:{line}" in err
    assert "STEPMARK_DEBUG=1 shows how it came there" in err
    assert "Traceback" not in err and not out.exists()


def test_the_line_is_that_of_the_code_that_is_not_ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import json\n\ndef read():\n    return json.loads('{')\n")
    namespace: dict[str, object] = {}
    exec(compile((tmp_path / "mine.py").read_text(), str(tmp_path / "mine.py"), "exec"), namespace)  # noqa: S102
    with pytest.raises(json.JSONDecodeError) as caught:
        namespace["read"]()
    assert raised_at(caught.value) == "mine.py:4"
    assert told(caught.value).startswith("JSONDecodeError: Expecting property name")
    assert told(ValueError("never raised")) == "ValueError: never raised"


def test_a_module_named_like_one_of_pythons_is_hashed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "code", raising=False)
    (tmp_path / "code.py").write_text(MINE)
    assert sorted(load_search("code:Mine")[1]["modules"]) == ["code", "own_searches"]
    sys.modules.pop("code")
