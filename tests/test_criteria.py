"""Criteria: read alike from every source, judged with reasons from strict replies, shown, and told to a watched agent."""

from __future__ import annotations

import json
import re

import pytest

import stepmark
from stepmark.data.labelled import read_labelled
from stepmark.errors import UsageError
from stepmark.labels.criteria import PRESETS, Criterion, read_criteria
from stepmark.labels.judge import Judge, failures_named, verdicts_named
from stepmark.labels.report import write_labels_page
from stepmark.training.examples import LabelRules, examples

OWN = {"polite": "It is polite.", "tested": {"missing": "A run of the tests."}}
TOML = '[criteria]\npolite = "It is polite."\ntested = { missing = "A run of the tests." }\n'
YAML = "criteria:\n  polite: It is polite.\n  tested: {missing: A run of the tests.}\n"
STEPS = ["Edit f.py.", "All done.", "Bye."]
SOLUTION = stepmark.Solution.of("Fix f.", STEPS, id="f")


def test_every_source_gives_the_same_criteria(tmp_path):
    expected = (
        Criterion(name="polite", text="It is polite."),
        Criterion(name="tested", text="A run of the tests.", missing=True),
    )
    texts = {"toml": TOML, "yaml": YAML, "json": json.dumps({"criteria": OWN})}
    for ending, text in texts.items():
        (tmp_path / f"team.{ending}").write_text(text)
        assert read_criteria(str(tmp_path / f"team.{ending}")) == expected
    assert read_criteria(OWN) == read_criteria(list(expected)) == expected
    (tmp_path / "both.toml").write_text('presets = ["safety"]\n' + TOML)
    assert Judge(criteria=str(tmp_path / "both.toml")).criteria == (*PRESETS["safety"], *expected)


def test_presets_have_one_axis_a_name_and_something_missing():
    for criteria in PRESETS.values():
        assert any(one.missing for one in criteria)
        assert read_criteria(list(criteria)) == criteria
    names = [one.name for criteria in PRESETS.values() for one in criteria]
    assert len(set(names)) == len(names)  # so that presets can be joined


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("saftey", "safety"),
        ("team.toml", "team.toml"),
        ({"polite": 3}, "polite"),
        ({"polite": {"due": "x"}}, "polite"),
        ({"all": "x"}, "all"),
        ({"a/b": "x"}, "a/b"),
        ({"polite": " "}, "polite"),
        (["safety", "safety"], "permitted"),
        (7, "7"),
    ],
)
def test_what_is_no_criterion_is_named(given, found):
    with pytest.raises(UsageError, match=re.escape(found)):
        Judge(criteria=given)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[criteria\n", "no TOML"),
        ('criterion = "x"\n', "criterion"),
        ('criteria = "x"\n', "a string"),
        ('presets = ["x"]\n', "'x'"),
        ("", "nothing"),
    ],
)
def test_a_file_that_holds_no_criteria_is_named(tmp_path, text, found):
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(UsageError, match=rf"t\.toml.*{found}"):
        read_criteria(str(tmp_path / "t.toml"))


NAMES = ["polite", "tested"]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('{"polite": [], "tested": []}', {"polite": {}, "tested": {}}),
        ('Hm {x}.\n{"polite": [{"paragraph": 1, "reason": " Say\\nplease. "}]}', {"polite": {1: (True, "Say please.")}}),
        ('```json\n{\n "tested": [\n  {"paragraph": 2, "reason": "Run."}\n ]\n}\n```', {"tested": {2: (True, "Run.")}}),
        ('<think>\n{"polite": []}\n</think>\n{"tested": []}', {"tested": {}}),
        ('{"polite": [{"paragraph": 3, "reason": "x"}], "tested": []}', {"tested": {}}),  # there is no paragraph 3
        ('{"polite": [{"paragraph": true, "reason": "x"}], "tested": []}', {"tested": {}}),
        ('{"polite": [{"paragraph": 1, "reason": ""}], "tested": []}', {"tested": {}}),
        ('{"polite": [{"paragraph": 1}], "tested": "none"}', None),
        ('{"polite": [{"paragraph": 1, "reason": "x"}, {"paragraph": 1, "reason": "y"}]}', None),  # twice
        ('{"polite": [], "polite": []}', None),
        ('{"polite": []} I hope this helps.', None),
        ("[]", None),
        ("I like it.", None),
    ],
)  # fmt: skip
def test_a_reply_is_read_strictly(reply, expected):
    assert failures_named(reply, NAMES, 3) == expected


def test_a_reply_on_one_step_has_a_reason_for_each_criterion():
    reply = '{"polite": {"verdict": "pass", "reason": "It greets."}, "tested": {"verdict": "fail", "reason": "Run it."}}'
    assert verdicts_named(reply, NAMES) == {
        "polite": {0: (False, "It greets.")},
        "tested": {0: (True, "Run it.")},
    }
    for wrong in ('{"verdict": "maybe", "reason": "x"}', '{"verdict": "fail", "reason": ""}', '"fail"'):
        assert verdicts_named(f'{{"polite": {wrong}}}', NAMES) is None


def failing(**failures):
    """A reply that lists these paragraphs, by criterion."""
    return json.dumps(
        {name: [{"paragraph": at, "reason": why} for at, why in of.items()] for name, of in failures.items()}
    )


def judged(replies, **settings):
    policy = stepmark.ScriptedPolicy(replies, name="m")
    method = Judge(criteria=OWN, **{"votes": len(replies), "retries": 0, **settings})
    (found,) = stepmark.label([SOLUTION], policy, method=method, progress=False)
    return found


def by_axis(found):
    return [{j.axis: (j.rating, j.confidence, j.note) for j in step} for step in found.labelled.judgements]


def test_criteria_are_voted_on_one_by_one():
    found = judged(
        [
            failing(polite={1: "Say please."}, tested={0: "Nothing was run."}),
            failing(polite={1: "No thanks."}, tested={0: "Run the tests."}),
            failing(polite={}),  # no verdict on tests
        ]
    )
    first, second, third = by_axis(found)
    assert first["polite"][:2] == (1, 1.0) and first["tested"] == (-1, 1.0, "Nothing was run.")
    assert second["polite"] == (-1, 2 / 3, "Say please.") and second["tested"][:2] == (1, 1.0)
    assert third["polite"][0] == third["tested"][0] == 1
    assert (found.first_error, found.abstained) == (0, False)
    assert found.critiques.asked == "criteria" and len(found.critiques.texts[-1]) == 3


def test_a_criterion_without_a_verdict_has_none():
    (first, *_) = by_axis(judged([failing(polite={})] * 2))
    assert set(first) == {"polite"}
    found = judged([failing(polite={}, tested={}), failing(polite={0: "Rude."}, tested={})])
    assert by_axis(found)[0]["polite"][:2] == (None, None)  # a tie
    assert found.first_error is None and found.abstained
    nothing = judged(["Fine.", "Good."])
    assert nothing.labelled.axes == () and nothing.cost.unparsed == 2


def test_step_by_step_every_verdict_has_its_reason():
    def write(request, number):
        at = int(re.search(r"Judge <paragraph_(\d)> alone", request.prompt[0].content)[1])
        assert [step in request.prompt[0].content for step in STEPS] == [n <= at for n in range(3)]
        verdict = {"verdict": "fail" if at == 1 else "pass", "reason": f"because {at}"}
        return json.dumps({"polite": {"verdict": "pass", "reason": "kind"}, "tested": verdict})

    policy = stepmark.ScriptedPolicy(write)
    method = Judge(criteria=OWN, ask="steps", votes=1, temperature=0)
    (found,) = stepmark.label([SOLUTION], policy, method=method, progress=False)
    assert [step["tested"] for step in by_axis(found)] == [
        (1, 1.0, "because 0"),
        (-1, 1.0, "because 1"),
        (1, 1.0, "because 2"),
    ]
    assert found.first_error == 1


def test_the_question_has_every_criterion_and_the_whole_solution():
    asked = []

    def write(request, number):
        asked.append(request.prompt[0].content)
        return failing(polite={}, tested={})

    stepmark.label(
        [SOLUTION],
        stepmark.ScriptedPolicy(write),
        method=Judge(criteria=OWN, votes=1, temperature=0),
        progress=False,
    )
    (text,) = asked
    for part in (*STEPS, "It is polite.", "A run of the tests.", "tested (missing)"):
        assert part in text


def test_a_judge_that_is_trained_on_takes_one_axis_and_no_critiques(tmp_path):
    policy = stepmark.ScriptedPolicy([failing(polite={}, tested={0: "Run it."})])
    out = tmp_path / "j.jsonl"
    method = Judge(criteria=OWN, votes=1, temperature=0)
    stepmark.label([SOLUTION], policy, method=method, out=out, progress=False)
    (example,) = examples(read_labelled(out), LabelRules(axis="tested", after_error="keep"))
    assert [target.value for target in example.targets] == [0, 1, 1]
    assert example.critiques == ()


def test_a_watched_agent_is_told_the_judges_reason():
    def write(request, number):
        rude = "Shut up" in re.findall(r"<paragraph_\d>\n(.*?)\n</", request.prompt[0].content, re.DOTALL)[-1]
        polite = {"verdict": "fail" if rude else "pass", "reason": "Be polite."}
        return json.dumps({"polite": polite, "tested": {"verdict": "pass", "reason": ""}})

    judge = Judge(criteria=OWN, votes=1, temperature=0)
    prm = stepmark.ScriptedPRM(lambda problem, steps: 0.9)
    watch = prm.watch("Fix f.", judge=judge.watching(stepmark.ScriptedPolicy(write)))
    assert watch.add("I edit f.").feedback == ()
    seen = watch.add("Shut up.")
    assert (seen.advice, seen.to, seen.message) == ("go back", 1, "Be polite.")
    assert [(one.criterion, one.source) for one in seen.feedback] == [("polite", "judge")]
    watch.back(1)
    assert watch.add("Done, thank you.").advice == "go on"
    with pytest.raises(UsageError, match="criteria"):
        Judge().watching(stepmark.ScriptedPolicy(["x"]))


def test_a_page_calls_nothing_right_that_is_open(tmp_path):
    tie = judged([failing(polite={}, tested={}), failing(polite={0: "Rude."}, tested={})])
    write_labels_page(tmp_path / "page.html", [tie], title="t")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "? polite: open" in page and "✓ polite" not in page and "✓ tested" in page
