"""Training on several labels a step: the loss by hand, what is masked, and a run from rows to named probabilities."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, replace

import pytest
import torch

import stepmark
from stepmark.data.conversations import read_messages
from stepmark.data.formats.own import to_row
from stepmark.data.formats.rows import LabelledRow
from stepmark.errors import UsageError
from stepmark.models.families import FAMILIES
from stepmark.records import Judgement, LabelledSolution, Solution
from stepmark.training.examples import Dropped, Example, LabelRules, Target, examples_of_labels
from stepmark.training.objectives.published import in_family
from stepmark.training.objectives.steps import HardLabels, SeveralLabels
from stepmark.training.recipe import Recipe, run_recipe
from stepmark.training.settings import Training
from tiny_base import net_for, write_base

torch.set_num_threads(1)

LABELS = ("success", "loop")


def judged(problem, steps, **axes):
    """A solution whose steps are rated on some axes: 1, -1, or None for no rating."""
    return LabelledRow(
        labelled=LabelledSolution(
            solution=Solution.of(problem, steps),
            judgements=tuple(
                tuple(
                    Judgement(kind="correctness", judge="j", axis=axis, rating=ratings[at])
                    for axis, ratings in axes.items()
                    if ratings[at] is not None
                )
                for at in range(len(steps))
            ),
        ),
        where=problem,
    )


def test_the_loss_by_hand():
    """Of three steps five labels are known; the sixth moves neither the loss nor a gradient."""
    targets = [
        Target(value=1.0, labels=(1.0, 0.0)),
        Target(value=None, labels=(None, 1.0)),
        Target(value=0.0, labels=(0.0, 0.25)),
    ]
    logits = torch.tensor([[2.0, -1.0], [3.0, 0.5], [-0.5, 1.5]], requires_grad=True)
    objective = SeveralLabels(labels=LABELS)
    losses = objective.loss_of(logits, targets)

    def cross(z, y):
        p = 1 / (1 + math.exp(-z))
        return -(y * math.log(p) + (1 - y) * math.log(1 - p))

    by_hand = [cross(2.0, 1) + cross(-1.0, 0), cross(0.5, 1), cross(-0.5, 0) + cross(1.5, 0.25)]
    assert losses.tolist() == pytest.approx(by_hand, abs=1e-6)
    assert [objective.count_of(target) for target in targets] == [2, 1, 2]
    losses.sum().backward()
    assert logits.grad[1, 0] == 0
    assert torch.count_nonzero(logits.grad) == 5
    assert objective.score_of(logits.detach()).tolist() == pytest.approx(
        [1 / (1 + math.exp(-z)) for z in (2, 3, -0.5)]
    )


def test_labels_of_several_rows_and_axes_come_together():
    """A failed step masks what follows on the first axis alone; a label that no row gives is None."""
    steps = ["a", "b", "c"]
    rows = [
        judged("p", steps, success=(1, -1, 1), loop=(-1, None, 1)),
        judged("p", steps, loop=(None, 1, None), other=(1, 1, 1)),
        judged("q", steps, other=(1, 1, 1)),
    ]
    dropped = Dropped()
    [example] = examples_of_labels(rows, LabelRules(), LABELS, dropped=dropped)
    assert [target.labels for target in example.targets] == [(1.0, 0.0), (0.0, 1.0), (None, 1.0)]
    assert [target.value for target in example.targets] == [1.0, 0.0, None]
    assert sum(dropped.counts.values()) == 1
    assert set(dropped.first.values()) == {"q"}


def planted(problems, seed):
    """Success: the step is an a. A loop: it ends in a dot. Each is told of half of the steps at least."""
    rng = random.Random(seed)
    for number in range(problems):
        steps, success, loop = [], [], []
        for _ in range(3):
            written, dot = rng.choice("ab"), rng.random() < 0.5
            steps.append(written + (" ." if dot else ""))
            success.append(rng.choice([None, 1, 1]) and (1 if written == "a" else -1))
            loop.append(rng.choice([None, 1]) and (1 if dot else -1))
        yield judged(f"p{number}", steps, success=success, loop=loop)


def test_two_planted_rules_are_learnt_and_read_by_name(tmp_path):
    base = write_base(tmp_path / "base", hidden=48)
    weights = replace(net_for(base, HardLabels()).weights, lora_rank=8)
    training = Training(**asdict(weights), learning_rate=1e-2, epochs=8, token_budget=512, held_out=0.2)
    seen = []
    done = run_recipe(
        planted(120, seed=0),
        tmp_path / "prm",
        Recipe(
            base=str(base),
            objective=SeveralLabels(labels=LABELS),
            rules=LabelRules(after_error="keep"),
            training=training,
        ),
        report=seen.append,
    )
    assert seen[0].loss == pytest.approx(math.log(2), abs=1e-4)  # a label: the head begins at 0
    assert done.held_out.auc > 0.9
    prm = stepmark.load_prm(str(tmp_path / "prm"), dtype="float32")
    graded = prm.grade("p100", steps=["a", "b .", "a ."])
    assert [list(step.classes) for step in graded] == [list(LABELS)] * 3
    for step, (success, loop) in zip(graded, [(True, False), (False, True), (True, True)], strict=True):
        assert step.classes["success"] == step.score
        assert (step.score > prm.default_threshold) == success
        assert (step.classes["loop"] > 0.5) == loop
    config = json.loads((tmp_path / "prm" / "config.json").read_text(encoding="utf-8"))
    assert list(config["id2label"].values()) == list(LABELS)


def test_from_the_command_line(tmp_path):
    from stepmark.cli import main

    base = write_base(tmp_path / "base")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps(to_row(row.labelled)) + "\n" for row in planted(30, seed=1)), encoding="utf-8"
    )
    out, graded = tmp_path / "prm", tmp_path / "graded.jsonl"
    words = ["train", str(rows), "--base", str(base), "--out", str(out), "--objective", "labels", "--adapter"]
    words += ["--set", "labels=success,loop", "--epochs", "1", "--lora-rank", "2", "--held-out", "0.3"]
    assert main(words) == 0
    assert main(["grade", str(rows), "--prm", str(out), "--out", str(graded)]) == 0
    row = json.loads(graded.read_text(encoding="utf-8").splitlines()[0])
    assert row["class_names"] == list(LABELS)
    assert [labels[0] for labels in row["classes"]] == row["scores"]


def test_the_labels_of_a_family(tmp_path):
    names = FAMILIES["openhands-critic"].readout.class_names
    objective = in_family(None, "openhands-critic")
    assert objective.axes == names
    assert (
        objective.spec(FAMILIES["openhands-critic"].layout, "base").readout
        == FAMILIES["openhands-critic"].readout
    )
    for other in (HardLabels(), SeveralLabels(labels=LABELS), SeveralLabels(labels=names[::-1])):
        with pytest.raises(UsageError, match="openhands-critic"):
            in_family(other, "openhands-critic")
    with pytest.raises(UsageError):
        in_family(SeveralLabels(labels=LABELS), "token-classification")


def test_a_critic_in_the_format_of_openhands(zoo, tmp_path):
    """A conversation with rated turns in, its format out: the checkpoint reads the turns of another conversation and names its labels."""
    rows = []
    for number in range(24):
        chat = [{"role": "user", "content": f"How many is {number}?"}]
        good = number % 2 == 0
        for turn in range(2):
            chat.append({"role": "assistant", "content": "It is right." if good else "It is wrong."})
            chat.append({"role": "tool", "content": str(turn)})
        problem, cut = read_messages(chat)
        rating = 1 if good else -1
        judgements = tuple(
            (
                Judgement(kind="correctness", judge="j", axis="success", rating=rating),
                Judgement(kind="correctness", judge="j", axis="loop_behavior", rating=1),
            )
            for _ in cut.steps
        )
        labelled = LabelledSolution(
            solution=Solution(problem=problem, steps=cut.steps), judgements=judgements
        )
        rows.append(LabelledRow(labelled=labelled, where=str(number)))
    done = run_recipe(
        rows,
        tmp_path / "prm",
        Recipe(
            base=str(zoo["implicit"].folder),
            objective=in_family(None, "openhands-critic"),
            family="openhands-critic",
            training=Training(
                full=True, dtype="float32", device="cpu", learning_rate=3e-3, epochs=4, held_out=0.25
            ),
        ),
        report=lambda _: None,
    )
    prm = done.prm(dtype="float32", device="cpu")
    assert prm.spec.layout == FAMILIES["openhands-critic"].layout
    chat = [{"role": "user", "content": "How many is 7?"}, {"role": "assistant", "content": "It is right."}]
    [step] = prm.grade(None, [*chat, {"role": "user", "content": "?"}])
    [other] = prm.grade(None, [chat[0], {"role": "assistant", "content": "It is wrong."}, chat[0]])
    assert step.score > other.score
    assert step.classes["loop_behavior"] > 0.7
    assert step.classes["scope_creep"] == pytest.approx(0.5, abs=0.2)  # nobody said anything of it


def test_a_step_without_a_label_is_no_example():
    assert examples_of_labels([judged("p", ["a"], other=(1,))], LabelRules(), LABELS, dropped=Dropped()) == []
    [example] = examples_of_labels(
        [judged("p", ["a", "b"], loop=(None, 1))], LabelRules(), LABELS, dropped=Dropped()
    )
    assert isinstance(example, Example)
    assert [t and t.labels for t in example.targets] == [None, (None, 1.0)]
