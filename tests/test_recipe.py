"""`stepmark train` from files of step labels to a calibrated checkpoint, on a base of two tiny layers."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForTokenClassification, AutoTokenizer

from stepmark import load_prm
from stepmark.cli import main
from stepmark.data.formats.own import to_row
from stepmark.data.formats.rows import LabelledRow
from stepmark.models.spec import read_spec
from stepmark.records import Judgement, LabelledSolution, Solution
from stepmark.training.examples import by_problem
from stepmark.training.measure import calibrate
from stepmark.training.objectives.steps import (
    BetaBinomial,
    CrossEntropy,
    HardLabels,
    Outcome,
    SoftLabels,
    SquaredError,
    TargetTokens,
    ThreeClass,
)
from stepmark.training.recipe import Recipe, run_recipe
from stepmark.training.saving import write_trained
from stepmark.training.settings import Training
from stepmark.training.trainer import Trainer
from tiny_base import branching, counted, net_for, rated, write_base

torch.set_num_threads(1)

BYTES = [
    "adapter_config.json",
    "adapter_model.safetensors",
    "calibration.json",
    "stepmark.json",
    "train.json",
]
"""What is the same in every run of the same command."""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base"))


def rated_rows(problems=24):
    """Sums in two steps, in PRM800K's flat layout; each problem rates a right, a wrong and a neutral continuation."""
    rng = random.Random(1)
    for number in range(problems):
        a, b, c = (rng.randint(1, 9) for _ in range(3))
        row = {"instruction": f"{number}. What is {a} + {b} + {c}?", "is_human_response": False}
        first, second = f"{a} + {b} = {a + b}.", f"{a + b} + {c} = {a + b + c}."
        yield {**row, "responses": [], "next_response": first, "rating": 1}
        yield {**row, "responses": [], "next_response": f"{a} + {b} = {a + b + 1}.", "rating": -1}
        yield {**row, "responses": [first], "next_response": second, "rating": 1}
        yield {**row, "responses": [first], "next_response": f"{c} is a number.", "rating": 0}
        yield {**row, "responses": [first], "next_response": "It is so.", "rating": None}


def rollout_rows(problems=16):
    """Shares of rollouts, in our own layout."""
    rng = random.Random(2)
    for number in range(problems):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        steps = [f"{a} * {b} = {a * b}.", f"{a * b} - 1 = {a * b - 1 + number % 2}."]
        said = [(rng.randint(1, 4), 4), (0 if number % 2 else 4, 4)]
        yield to_row(
            LabelledSolution(
                solution=Solution.of(f"{number}. {a} boxes of {b} pens, and one is lost. How many?", steps),
                judgements=tuple(
                    (Judgement(kind="value", judge="rollout", successes=s, trials=t),) for s, t in said
                ),
            )
        )


def file_of(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return [
        file_of(folder / "rated.jsonl", rated_rows()),
        file_of(folder / "rollouts.jsonl", rollout_rows()),
    ]


def words(data, out, base, *flags, **options):
    """The words of a command that takes about 60 steps."""
    settings = {
        "lora-rank": 2,
        "frozen-layers": 1,
        "learning-rate": 0.002,
        "epochs": 6,
        "token-budget": 300,
        "max-tokens": 200,
        "held-out": 0.25,
        **{name.replace("_", "-"): value for name, value in options.items()},
    }
    flags = [*flags, *(word for name, value in settings.items() for word in (f"--{name}", str(value)))]
    return ["train", *map(str, data), "--out", str(out), "--base", str(base), *flags]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data, base):
    """A run without interruption."""
    out = tmp_path_factory.mktemp("whole") / "prm"
    assert main(words(data, out, base, "--adapter", dtype="bfloat16")) == 0
    return out


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --- what is there afterwards -----------------------------------------------------------------------------------------


def test_the_checkpoint_and_nothing_else_is_there(whole, base):
    assert names(whole.parent) == ["prm"]
    assert names(whole) == sorted([*BYTES, "README.md", "history.jsonl", "report.html"])
    noted = json.loads((whole / "train.json").read_text())
    assert noted["settings"]["epochs"] == 6
    assert noted["settings"]["lora_rank"] == 2
    adapter = json.loads((whole / "adapter_config.json").read_text())
    assert (adapter["peft_type"], adapter["r"], adapter["lora_alpha"]) == ("LORA", 2, 4.0)
    assert adapter["base_model_name_or_path"] == str(base)
    tensors = load_file(whole / "adapter_model.safetensors")
    modules = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    modules += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    lora = {f"base_model.model.model.layers.1.{m}.lora_{half}.weight" for m in modules for half in "AB"}
    head = {"base_model.model.score.weight", "base_model.model.score.bias"}
    assert set(tensors) == lora | head
    assert {tensors[name].dtype for name in lora} == {torch.bfloat16}
    assert tensors["base_model.model.score.weight"].dtype == torch.float32
    assert tensors["base_model.model.score.weight"].shape == (1, 32)
    assert all(bool(t.any()) for t in tensors.values())  # every one of them has moved, or was drawn


# --- grading is what was trained --------------------------------------------------------------------------------------


def trained_net(base, folder, objective, rows, **weights):
    """A trainer after some steps, and held-out rows graded by the network itself."""
    net = net_for(base, objective, **weights)
    chosen = Training(**asdict(net.weights), epochs=8, token_budget=300, learning_rate=2e-2)
    trainer = Trainer(net, objective, chosen, folder)
    trainer.run(by_problem(rows), report=lambda progress: None)
    return trainer, trainer.graded(by_problem(rows))[0]


def shares(dice):
    return counted(dice.choice([0, 0, 1, 3, 4]), 4)


def ratings(dice):
    return rated(dice.choice([-1, 0, 1]))


UNTIED = "untied"


@pytest.mark.parametrize(
    ("objective", "make", "rank", "more"),
    [
        (HardLabels(), shares, 4, "adapter"),
        (HardLabels(), shares, 4, ""),
        (CrossEntropy(), shares, None, ""),
        (CrossEntropy(kind="mlp"), shares, 4, "adapter"),
        (SoftLabels(), shares, None, ""),
        (SquaredError(), shares, 4, ""),
        (BetaBinomial(), shares, 4, "adapter"),
        (ThreeClass(), ratings, 4, ""),
        (TargetTokens(), shares, None, ""),
        (TargetTokens(), shares, None, UNTIED),
        (TargetTokens(), shares, 4, UNTIED),
        (TargetTokens(candidates=("-", "0", "+")), ratings, 4, ""),
        (Outcome(), shares, 4, ""),
    ],
    ids=lambda value: getattr(value, "name", getattr(value, "__name__", str(value))),
)
def test_grading_gives_the_scores_of_training(tmp_path, objective, make, rank, more):
    tied, adapter = more != UNTIED, more == "adapter"
    base = write_base(tmp_path / "base", tied=tied)
    trainer, graded = trained_net(base, tmp_path / "run", objective, branching(4, make=make), rank=rank)
    write_trained(tmp_path / "prm", trainer.net, adapter=adapter, base_name=str(base), notes={})
    prm = load_prm(str(tmp_path / "prm"), dtype="float32")
    spread = set()
    for one in graded:
        solution = one.example.solution
        scores = prm.score(solution.problem.text, steps=list(solution.texts))
        assert [s is None for s in one.scores] == [s is None for s in scores]
        assert [s for s in scores if s is not None] == pytest.approx(
            [s for s in one.scores if s is not None], abs=1e-4
        )
        spread |= {round(s, 2) for s in scores if s is not None}
    assert len(spread) > 3  # else there is little to compare


def test_the_calibration_by_hand(base, tmp_path):
    trainer, graded = trained_net(base, tmp_path / "run", SoftLabels(), branching(12, make=shares))
    folder = tmp_path / "prm"
    written = write_trained(folder, trainer.net, adapter=False, base_name=str(base), notes={})
    found, _ = calibrate(folder, written.spec, graded, name="a test")
    noted = json.loads((folder / "calibration.json").read_text())
    scale, shift = noted["scale"], noted["shift"]
    assert abs(scale - 1) + abs(shift) > 0.05  # it did something
    assert noted["on"] == "a test"
    pairs = [
        (s, t.value)
        for one in graded
        for s, t in zip(one.scores, one.example.targets, strict=True)
        if t is not None
    ]
    assert noted["steps"] == len(pairs)
    z = torch.tensor([s for s, _ in pairs], dtype=torch.float64).logit()
    y = torch.tensor([v for _, v in pairs], dtype=torch.float64)
    # At the minimum of the cross-entropy against Platt's targets (1999, section 2.2) its slope in scale and shift is zero.
    right, wrong = float(y.sum()), float((1 - y).sum())
    targets = y * (right + 1) / (right + 2) + (1 - y) / (wrong + 2)
    slope = torch.sigmoid(scale * z + shift) - targets
    assert abs(float((slope * z).mean())) < 1e-6
    assert abs(float(slope.mean())) < 1e-6
    prm = load_prm(str(folder), dtype="float32")
    right = wrong = right_found = wrong_found = 0
    for one in graded:
        solution, targets = one.example.solution, one.example.targets
        scores = prm.score(solution.problem.text, steps=list(solution.texts))
        mapped = torch.sigmoid(scale * torch.tensor(one.scores, dtype=torch.float64).logit() + shift)
        assert scores == pytest.approx(mapped.tolist(), abs=1e-4)
        values = [None if t is None else t.value for t in targets]
        first = next((i for i, s in enumerate(scores) if s < 0.5), -1)
        if 0.0 in values:
            at = values.index(0.0)
            wrong, wrong_found = wrong + 1, wrong_found + (first == at)
            continue
        last = max((i for i, v in enumerate(values) if v is not None), default=None)
        longer = any(
            o.example.solution.problem == solution.problem
            and o.example.solution.texts[: len(values)] == solution.texts
            and len(o.scores) > len(values)
            and 0.0 not in [t.value for t in o.example.targets if t is not None]
            for o in graded
        )
        if last is not None and values[last] >= 0.5 and not longer:
            right, right_found = right + 1, right_found + (not 0 <= first <= last)
    assert found.error_accuracy == pytest.approx(wrong_found / wrong)
    assert found.correct_accuracy == pytest.approx(right_found / right)
    # Of solutions that are all wrong no first-error figure can be told, and the map is fitted all the same.
    only = [o for o in graded if any(t is not None and t.value == 0.0 for t in o.example.targets)]
    assert calibrate(folder, written.spec, only)[0] is None


# --- a rule that can be learnt ----------------------------------------------------------------------------------------


def planted(problems, seed):
    """A step is right where it repeats the letter of its problem: neither text alone tells."""
    rng = random.Random(seed)
    for p in range(problems):
        letter, other = rng.sample("ab", 2)
        before = []
        for k in range(3):
            for said, rating in ((letter, 1), (other, -1)):
                judged = (Judgement(kind="correctness", judge="human", rating=rating),)
                yield LabelledRow(
                    labelled=LabelledSolution(
                        solution=Solution.of(f"p{p}: {letter}", [*before, said + " ." * k]),
                        judgements=(*((),) * k, judged),
                    ),
                    where=f"planted:{p}",
                )
            before.append(letter + " ." * k)


@pytest.mark.parametrize("objective", [SoftLabels(), HardLabels()])
def test_soft_labels_are_shares_of_rollouts_also_where_rows_hold_conclusions(tmp_path, objective):
    base = write_base(tmp_path / "base")

    def rows(concluded):
        for number in range(20):
            shares = [
                Judgement(kind="value", judge="r", successes=n, trials=4) for n in (3, 1, 2 * (number % 2))
            ]
            ratings = [
                Judgement(kind="correctness", judge="r", rating=1 if s.successes else -1) for s in shares
            ]
            judged = tuple((s, r) if concluded else (s,) for s, r in zip(shares, ratings, strict=True))
            solution = Solution.of(f"p{number}", ["a", "b", "c"])
            yield LabelledRow(
                labelled=LabelledSolution(solution=solution, judgements=judged), where=f"row:{number}"
            )

    training = Training(epochs=1, evaluations=1, dtype="float32", held_out=0.2)
    recipe = Recipe(base=str(base), objective=objective, training=training)
    digests = []
    for concluded in (True, False):
        out = tmp_path / str(concluded)
        run_recipe(rows(concluded), out, recipe, report=lambda _: None)
        digests.append(json.loads((out / "train.json").read_text())["rows"])
    # Soft labels are the same with and without the conclusions beside them; hard ones are the conclusions.
    assert (digests[0] == digests[1]) is isinstance(objective, SoftLabels)


def test_a_planted_rule_is_learnt_end_to_end(tmp_path):
    """Rows in, checkpoint out, graded by `load_prm` as a user would: right steps high, wrong ones low."""
    base = write_base(tmp_path / "base", hidden=48)
    weights = replace(net_for(base, HardLabels()).weights, lora_rank=8)
    told = []
    done = run_recipe(
        planted(80, seed=0),
        tmp_path / "prm",
        Recipe(
            base=str(base),
            training=Training(
                **asdict(weights), learning_rate=1e-2, epochs=6, token_budget=512, held_out=0.2
            ),
        ),
        report=told.append,
    )
    assert told[0].loss == pytest.approx(0.693147, abs=1e-4)  # the head begins at 0
    assert sum(p.loss for p in told[-5:]) / 5 < 0.1
    assert done.problems == 64
    assert done.held_out.labels == 16 * 6
    assert done.held_out.loss < 0.1
    assert done.held_out.auc > 0.99
    prm = load_prm(str(tmp_path / "prm"), dtype="float32")
    threshold = prm.default_threshold
    for letter, other in ("ab", "ba"):
        right, wrong = prm.score(f"p100: {letter}", steps=[letter, other + " ."])
        assert right > 0.8 > 0.2 > wrong
        assert right >= threshold > wrong


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (lambda: list(rated_rows(1)), {}, "too few to hold out"),
        (lambda: [{**row, "rating": None} for row in rated_rows()], {}, "nothing to train on"),
        (lambda: [{**row, "rating": 1} for row in rated_rows()], {}, "no right or no wrong step"),
        (rated_rows, {"frozen_layers": 2}, "none is left to train"),
        (rated_rows, {"objective": "beta"}, "beta-binomial"),
        (rollout_rows, {"objective": "three-class"}, "needs ratings"),
        (rated_rows, {"held_out": 0.0, "patience": 2}, "patience watches held-out problems"),
        (rated_rows, {"max_tokens": 9}, "nothing to train on"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_it_is_tried(base, tmp_path, capsys, rows, options, message):
    file = file_of(tmp_path / "rows.jsonl", rows())
    assert main(words([file], tmp_path / "prm", base, **options)) == 2
    assert message in capsys.readouterr().err
    assert "prm" not in names(tmp_path)


def test_a_question_as_mark_is_trained_and_read_at_its_last_token(tmp_path, data, base):
    out = tmp_path / "prm"
    assert main(words(data, out, base, mark="Is this step right?", epochs=1, dtype="float32")) == 0
    spec = read_spec(out / "stepmark.json")
    assert (spec.layout.mark, spec.layout.mark_is_text) == ("\nIs this step right?\n", True)
    problem, steps = "What is 2 + 3?", ["2 + 3 = 5.", "So 5."]
    tokenizer = AutoTokenizer.from_pretrained(out)
    text, ends = f"<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n", []
    for step in steps:
        text += f"{step}\nIs this step right?\n"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        ends.append(len(ids) - 1)
    model = AutoModelForTokenClassification.from_pretrained(out).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, ends, 0]
    expected = torch.sigmoid(spec.readout.scale * logits + spec.readout.shift).tolist()
    assert load_prm(str(out), dtype="float32", device="cpu").score(problem, steps=steps) == pytest.approx(
        expected, abs=1e-5
    )
