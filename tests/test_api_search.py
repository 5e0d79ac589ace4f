"""`stepmark.search` and `stepmark search` are one: the same files, records without a file, the same refusals."""

import json

import pytest

import own_searches
import stepmark
from stepmark.cli import main
from stepmark.errors import InputError, SettingError, UsageError

MODELS = ["--policy", "own_searches:trap_policy", "--prm", "own_searches:trap_prm", "--verifier", "number"]
ROWS = [{"id": str(number), "problem": f"{number}?"} for number in range(3)]
BEAM = stepmark.searches.BeamSearch(
    width=1, expand=2, how=stepmark.searches.Steps(prompt="text", temperature=1.0)
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def run(rows, **settings):
    return stepmark.search(
        rows,
        "own_searches:trap_policy",
        "own_searches:trap_prm",
        verifier="number",
        progress=False,
        **settings,
    )


def test_the_function_writes_what_the_command_writes(tmp_path, file):
    words = ["--width", "1", "--expand", "2", "--prompt", "text", "--temperature", "1"]
    outputs = [
        "--out",
        str(tmp_path / "a.jsonl"),
        "--trace",
        str(tmp_path / "at.jsonl"),
        "--report",
        str(tmp_path / "a.html"),
    ]
    assert main(["search", "beam", str(file), *MODELS, *words, *outputs]) == 0
    results = run(
        file, method=BEAM, out=tmp_path / "b.jsonl", trace=tmp_path / "bt.jsonl", report=tmp_path / "b.html"
    )
    for name in ("{}.jsonl", "{}t.jsonl", "{}.html", "{}.jsonl.manifest.json"):
        assert (tmp_path / name.format("a")).read_bytes() == (tmp_path / name.format("b")).read_bytes()
    assert [found.solution.steps for found in results] == [("a", "so 1")] * 3


def test_rows_of_python_and_models_as_objects_give_records(tmp_path, file):
    written = run(file, method=BEAM, out=tmp_path / "a.jsonl")
    found = stepmark.search(
        ROWS,
        own_searches.trap_policy(),
        own_searches.trap_prm(),
        method=BEAM,
        verifier="number",
        progress=False,
    )
    assert [one.candidates for one in found] == [one.candidates for one in written]
    assert [one.cost for one in found] == [one.cost for one in written]
    assert found[0].trace.nodes and not written[0].trace.nodes  # the trees are in a file of their own
    assert "3 problems: 3 with a solution" in found.summary
    assert "so 1" in found._repr_html_()


def test_a_method_by_its_name_with_settings(tmp_path):
    by_name = run(
        ROWS, method="beam", settings=["width=1", "expand=2", "how.prompt=text", "how.temperature=1"]
    )
    assert [one.candidates for one in by_name] == [one.candidates for one in run(ROWS, method=BEAM)]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"method": "baem"}, UsageError, "there is no search 'baem'. Did you mean 'beam'"),
        ({"budget": -1}, SettingError, "budget=-1: expected 0 or more"),
        ({"in_flight": 0}, SettingError, "in_flight=0: expected 1 or more"),
        ({"method": BEAM, "settings": ["width=2"]}, UsageError, "`settings` are for a search by its name"),
        ({"out": "nowhere/o.jsonl"}, UsageError, "there is no folder"),
        ({"report": "-"}, UsageError, "`report` -: expected a file's name"),
    ],
)
def test_python_errors_name_settings(settings, error, message):
    with pytest.raises(error, match=message):
        run(ROWS, **settings)


def test_a_row_without_a_problem_is_named():
    with pytest.raises(InputError, match="row 2"):
        run([ROWS[0], {"answer": "7"}])


def test_methods_refuse_what_cannot_be():
    with pytest.raises(SettingError, match="width=0: expected 1 or more"):
        stepmark.searches.BeamSearch(width=0)


def test_a_typed_problem_is_printed_with_its_first_error(capsys):
    """By hand: a beam of one takes "a" (0.9), after which "so 1" has 0.2, under the PRM's threshold of 0.5."""
    words = ["--width", "1", "--expand", "2", "--prompt", "text", "--temperature", "1"]
    assert main(["search", "beam", "--problem", "0?", *MODELS, *words]) == 0
    assert "first error: step 2" in capsys.readouterr().out


def arithmetic(*texts):
    """A policy that writes some solutions in turn, and a PRM that likes each more than the one before."""
    policy = stepmark.ScriptedPolicy(lambda request, number: texts[number % len(texts)])
    prm = stepmark.ScriptedPRM(lambda problem, steps: 0.5 + len(steps[0]) / 100, name="length")
    return policy, prm


RIGHT = "12 * 8 = 96\nThe answer is 96."
WRONG = "Surely 12 * 8 = 98 pens\nThe answer is 98."


@pytest.mark.parametrize("method", [stepmark.searches.BestOfN(n=2), stepmark.searches.Majority(n=2)])
def test_a_check_gives_up_a_solution_that_the_prm_prefers(method):
    found = {
        checks: stepmark.search(
            [{"problem": "What is 12 * 8?"}],
            *arithmetic(WRONG, RIGHT),
            method=method,
            checks=checks,
            progress=False,
        )[0]
        for checks in ("auto", "equation", "unit")
    }
    assert found["auto"].solution.answer == found["unit"].solution.answer == "98"
    checked = found["equation"]
    assert (checked.solution.answer, checked.stopped) == ("96", "done")
    assert checked.trace.nodes[0].why == "refuted by the check equation: 12 * 8 = 98: it is 96"
    assert [node.score for node in checked.trace.nodes[:2]] == [None, None]


def test_where_checks_refute_every_solution_the_result_says_so():
    [found] = stepmark.search(
        [{"problem": "What is 12 * 8?"}],
        *arithmetic(WRONG),
        method=stepmark.searches.BestOfN(n=1),
        checks="all",
        progress=False,
    )
    assert (found.solution, found.stopped) == (None, "dead end")
    assert found.note == (
        "every solution has a refuted step; of the first one: refuted by the check equation: 12 * 8 = 98: it is 96"
    )


def test_an_unknown_check_is_refused_before_anything_is_loaded():
    with pytest.raises(SettingError, match="names of checks: equation"):
        run(ROWS, checks="equations")
