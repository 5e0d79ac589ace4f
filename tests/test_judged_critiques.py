"""A judge's critiques, and those of a generative PRM that graded, as lessons of a critic: by hand, and from file to checkpoint."""

from __future__ import annotations

import json

import pytest
import torch

from stepmark.cli import main
from stepmark.data.formats.rows import LabelledRow
from stepmark.models.critics import RPRM, GenPRM, ThinkPRM, step_verdicts
from stepmark.models.generative import critic_spec_of
from stepmark.records import Judgement, LabelledSolution, Solution
from stepmark.training.examples import Dropped, Example
from stepmark.training.objectives.generative import UNREAD, WHOLE, Generative
from stepmark.training.run import training_rows
from tiny_base import example, tokenizer, write_base

torch.set_num_threads(1)

PROBLEM, STEPS = "What is 2 * 3 + 1?", ("2 * 3 = 6", "6 + 1 = 8", "It is 8.")
ONE = (
    r"<think>is it \boxed{incorrect}?</think>It is 6. \boxed{correct}",
    r"So $\boxed{\text{correct}}$, as <paragraph_0> says.",
)
TWO = (r"Step 2: paragraph 1 uses the 6 of paragraph\_0, and adds wrongly: \boxed{incorrect}",)


def judged(critiques, asked, values=(1.0, 0.0, None)):
    made = example(PROBLEM, list(STEPS), list(values), where="f:1")
    return Example(
        solution=made.solution,
        targets=made.targets,
        where="f:1",
        critiques=tuple(map(tuple, critiques)),
        asked=asked,
    )


def lessons(critic, row, **settings):
    dropped = Dropped()
    return list(Generative(critic=critic, **settings).lessons(row, dropped)), dropped.counts


def written(found):
    return [lesson.parts[0].text for lesson in found]


# --- one step after another -------------------------------------------------------------------------------------------


def test_thinkprm_takes_the_votes_on_the_steps_so_far_together():
    found, dropped = lessons(ThinkPRM(), judged([ONE, TWO, ()], "steps"))
    assert written(found) == [
        "\n\nStep 1: It is 6. \\boxed{correct}",
        "\n\nStep 1: So $\\boxed{correct}$, as step 1 says.",
        "\n\nStep 1: It is 6. \\boxed{correct}\n\n"
        "Step 2: step 2: step 2 uses the 6 of step 1, and adds wrongly: \\boxed{incorrect}",
    ]
    assert [lesson.parts[1].text for lesson in found] == [" yes", " yes", " no"]
    assert [lesson.step_verdicts for lesson in found] == [(True,), (True,), (True, False)]
    assert "It is 8." not in found[2].prompt[0].content
    assert dropped == {}
    # Graded by the verdicts of one critique: it reads the whole solution, and stops at the first wrong step.
    (one,), _ = lessons(ThinkPRM(per_step="verdicts"), judged([ONE, TWO, ()], "steps"))
    assert "Step 3: It is 8." in one.prompt[0].content
    assert step_verdicts(one.parts[0].text, 3) == [True, False, None]
    # Where the judge stopped without finding an error, nobody judged the whole.
    assert lessons(ThinkPRM(per_step="verdicts"), judged([ONE, (), ()], "steps"))[0] == []


# --- the whole solution -----------------------------------------------------------------------------------------------


def test_a_place_is_said_step_by_step():
    row = judged([(), (), (r"Paragraphs 0 and 1 add; paragraph 1 wrongly. \boxed{1}",)], "place")
    (one,), dropped = lessons(ThinkPRM(), row)
    assert one.parts[0].text == (
        "\n\nsteps 1 and 2 add; step 2 wrongly. step 2\n\nStep 1: \\boxed{correct}\nStep 2: \\boxed{incorrect}"
    )
    assert (one.verdict, one.whole, one.step_verdicts) == (False, True, (True, False, None))
    assert one.parts[1].text == " no"
    assert dropped == {}
    # Another place than the labels': the right verdict for a wrong reason.
    other = judged([(), (), (r"\boxed{0}", "\\boxed{\N{MINUS SIGN}1}", r"\boxed{7}")], "place")
    assert lessons(ThinkPRM(), other) == ([], {"critiques that contradict the labels": 2, UNREAD: 1})
    fine = judged([(), (), (r"Fine. \boxed{-1}",)], "place", (1.0, 1.0, 1.0))
    (one,), _ = lessons(ThinkPRM(per_step="verdicts"), fine)
    assert step_verdicts(one.parts[0].text, 3) == [True, True, True]
    for critic in (GenPRM(), RPRM()):
        assert lessons(critic, fine) == ([], {WHOLE: 1})


# --- rows -------------------------------------------------------------------------------------------------------------


def row(ratings, where, **meta):
    labels = tuple(
        (Judgement(kind="correctness", judge="human", rating=r),) if r is not None else () for r in ratings
    )
    return LabelledRow(
        labelled=LabelledSolution(solution=Solution.of(PROBLEM, STEPS), judgements=labels),
        where=where,
        meta=meta,
    )


def test_graded_rows_are_read_as_what_was_graded(tmp_path):
    graded = {"scores": [0.9, 0.2], "score": 0.2, "aggregate": "min", "first_error": 1, "threshold": 0.5}
    graded |= {"prm": "x", "score_kind": "probability", "critiques": [["a"], ["b"]]}
    shapes = [
        {"prompt": "p", "completions": ["a", "b"], "labels": [True, False]},
        {"problem": "p", "solution": "a\nb", "steps": ["a", "b"], "meta": {"mine": 1}},
        {
            "id": "1",
            "generator": "g",
            "problem": "p",
            "steps": ["a", "b"],
            "final_answer_correct": False,
            "label": 1,
        },
        {
            "messages": [
                {"role": "user", "content": "p"},
                {"role": "assistant", "content": "a"},
                {"role": "user", "content": "go on"},
                {"role": "assistant", "content": "b"},
            ],
            "steps": ["a", "b"],
        },
    ]
    for number, shape in enumerate(shapes):
        file = tmp_path / f"{number}.jsonl"
        file.write_text(json.dumps(shape | graded) + "\n")
        (read,) = training_rows([str(file)])
        assert read.solution.texts == ("a", "b")
        assert read.meta["critiques"] == [["a"], ["b"]]
        assert read.meta.get("mine") == shape.get("meta", {}).get("mine")
        ratings = [[j.rating for j in step] for step in read.labelled.judgements]
        assert ratings == ([[1], [-1]] if number in (0, 2) else [[], []])
    # Scores alone are no labels.
    del graded["critiques"]
    file.write_text(json.dumps(shapes[1] | graded) + "\n")
    (read,) = training_rows([str(file)])
    assert read.labelled.judgements == ((), ())


# --- from file to checkpoint ------------------------------------------------------------------------------------------


def problems(path, count=12):
    rows = [
        {"problem": f"What is {n} + 1?", "steps": [f"{n} + 1 = {n + 1 + wrong}.", "So it is."]}
        for n in range(count)
        for wrong in (0, 1)
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def base_for(folder, critic):
    """Its words are those of the critic's prompts, so that these are short."""
    prompt = Generative(critic=critic).critic.lesson(
        PROBLEM,
        ("2 * 3 = 6",),
        ("2 * 3 = 6",),
        0,
        "\\boxed{Yes} Is the step correct (Yes/No)? Yes Is the solution correct? Yes",
        (),
    )
    texts = [prompt.prompt] if isinstance(prompt.prompt, str) else [m.content for m in prompt.prompt]
    words = tokenizer().train_new_from_iterator(texts * 20, 500, show_progress=False)
    return write_base(folder, words=words, context=1500)


def learn(data, out, base, critic):
    words = ["train", *map(str, data), "--out", out, "--base", base, "--family", critic]
    words += [
        "--lora-rank",
        2,
        "--dtype",
        "float32",
        "--epochs",
        1,
        "--max-tokens",
        1500,
        "--token-budget",
        4000,
    ]
    assert main([*map(str, words), "--held-out", "0.2", "--evaluations", "1"]) == 0
    return json.loads((out / "train.json").read_text())


@pytest.mark.parametrize(
    ("ask", "critic"), [("steps", "genprm"), ("steps", "r-prm"), ("steps", "thinkprm"), ("place", "thinkprm")]
)
def test_what_a_judge_wrote_is_trained_on_as_it_is(tmp_path, capsys, ask, critic):
    out = tmp_path / "judged.jsonl"
    words = [
        "label",
        "judge",
        problems(tmp_path / "in.jsonl"),
        "--policy",
        "label_policies:judge",
        "--ask",
        ask,
    ]
    assert main([*map(str, words), "--votes", "3", "--out", str(out)]) == 0
    first = json.loads(out.read_text().splitlines()[0])
    right = "\\boxed{correct}" if ask == "steps" else "\\boxed{-1}"
    assert first["meta"]["asked"] == ask
    assert [right in text for text in first["meta"]["critiques"][-1]] == [True, True, False]
    capsys.readouterr()
    family = {"genprm": GenPRM(), "r-prm": RPRM(), "thinkprm": ThinkPRM()}[critic]
    learn([out], tmp_path / "critic", base_for(tmp_path / "base", family), critic)
    spec = critic_spec_of(tmp_path / "critic")
    assert spec is not None and spec.family == critic
    said = capsys.readouterr().err
    # Of three votes one is mistaken, and is no lesson.
    assert "critiques that contradict the labels" in said
    assert "without a verdict" not in said
