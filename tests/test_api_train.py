"""`stepmark.train` and `stepmark train` are one: the same checkpoint, rows without a file, the same refusals, and the families' formats."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import stepmark
from stepmark.cli import main
from stepmark.data.formats.own import to_row
from stepmark.errors import UsageError
from stepmark.metrics.scaling import logit, sigmoid
from stepmark.models.checkpoint import spec_of
from stepmark.models.families import FAMILIES
from stepmark.training import recipe
from stepmark.training.objectives.published import InFamily, in_family, trainable
from tiny_base import tokenizer, write_base

torch.set_num_threads(1)

TRAINING = stepmark.training.Training(
    lora_rank=2, learning_rate=5e-3, epochs=1, dtype="float32", held_out=0.3, evaluations=1, token_budget=300
)
FLAGS = ["--lora-rank", "2", "--learning-rate", "5e-3", "--epochs", "1", "--dtype", "float32"]
FLAGS += ["--held-out", "0.3", "--evaluations", "1", "--token-budget", "300"]
SAME = ("model.safetensors", "config.json", "stepmark.json", "calibration.json", "train.json", "README.md")
"""Files without times."""


def labelled_rows(count=36):
    """TRL's layout: a sum, and what follows from it, right or wrong."""
    rng = random.Random(3)
    for number in range(count):
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        steps = [f"{a} + {b} = {a + b + number % 2}.", f"So {a + b}."]
        yield {
            "prompt": f"{number}. What is {a} + {b}?",
            "completions": steps,
            "labels": [number % 2 == 0, number % 3 == 0],
        }


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in labelled_rows()), encoding="utf-8")
    return path


def trained(rows, base, out, **settings):
    return stepmark.train(
        rows, base=str(base), out=out, progress=False, **({"training": TRAINING} | settings)
    )


@pytest.fixture(scope="module")
def whole(base, file, tmp_path_factory):
    """A checkpoint that the function wrote."""
    return trained(file, base, tmp_path_factory.mktemp("function") / "prm", objective="soft")


def same(a, b, *names):
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in names)


# --- the function and the command -------------------------------------------------------------------------------------


def test_the_function_writes_what_the_command_writes(base, file, whole, tmp_path, capsys):
    out = tmp_path / "prm"
    words = ["train", str(file), "--base", str(base), "--out", str(out), "--objective", "soft", *FLAGS]
    assert main(words) == 0
    output, err = capsys.readouterr()
    assert output.splitlines()[1:] == [*whole.figures[1:], f"curves: {out}/report.html"]
    assert "step 1 of " not in err and "held out: loss " in err
    assert same(out, whole.folder, *SAME)
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in whole.folder.iterdir())
    for name in ("loss", "labels", "gradient", "learning_rate", "held_out"):
        steps = [
            [json.loads(line)[name] for line in (folder / "history.jsonl").read_text().splitlines()]
            for folder in (out, whole.folder)
        ]
        assert steps[0] == steps[1]
    # Either of the two finds what the other one has finished.
    again = trained(file, base, out, objective="soft")
    assert (again.new, again.figures) == (False, [f"{out}: {whole.examples} examples of {whole.problems} problems, starting from {base}", *whole.figures[1:]])  # fmt: skip
    assert main(words) == 0
    assert "this run is done, and everything is there" in capsys.readouterr().out


def test_records_of_a_run_are_rows(base, file, tmp_path):
    """What labels a solution gives, without a file between."""
    records = [
        stepmark.LabelledSolution(
            solution=stepmark.Solution.of(row["prompt"], row["completions"]),
            judgements=tuple(
                (stepmark.Judgement(kind="correctness", judge="rule", rating=1 if label else -1),)
                for label in row["labels"]
            ),
        )
        for row in labelled_rows()
    ]
    done = trained(records, base, tmp_path / "prm")
    assert (done.problems, done.examples) == (25, 25)
    held = trained(records[:24], base, tmp_path / "other", training=stepmark.training.Training(lora_rank=2, epochs=1), held_out_data=records[24:])  # fmt: skip
    assert (held.problems, held.held_out.solutions) == (24, 12)


def test_an_objective_by_its_name_with_settings(base, file, tmp_path):
    by_name = trained(
        file,
        base,
        tmp_path / "a" / "prm",
        objective="target-tokens",
        settings=["candidates=x,y", "above=0.5"],
    )
    made = stepmark.training.TargetTokens(candidates=("x", "y"), above=0.5)
    assert same(by_name.folder, trained(file, base, tmp_path / "b" / "prm", objective=made).folder, *SAME)
    assert json.loads((by_name.folder / "stepmark.json").read_text())["readout"]["head"]["candidates"] == [
        "x",
        "y",
    ]


OWN = """
import dataclasses
import torch
from stepmark import training

@dataclasses.dataclass(frozen=True, kw_only=True)
class Hinge(training.SoftLabels):
    margin: float = 1.0

    def loss_of(self, logits, targets):
        sign = torch.tensor([1.0 if t.value > 0.5 else -1.0 for t in targets])
        return torch.relu(self.margin - sign * logits[:, 0])
"""


def test_an_objective_of_ones_own(base, file, tmp_path, monkeypatch, capsys):
    (tmp_path / "own_hinge.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["train", str(file), "--base", str(base), "--out", str(tmp_path / "prm"), *FLAGS]
    words += ["--objective", "own_hinge:Hinge", "--set", "margin=2"]
    assert main(words) == 0
    notes = json.loads((tmp_path / "prm" / "train.json").read_text())
    assert "margin=2.0" in notes["objective"]["settings"]
    assert notes["source"]["method"] == "own_hinge:Hinge" and "own_hinge" in notes["source"]["modules"]
    first = json.loads((tmp_path / "prm" / "history.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(2.0)  # the head begins at 0
    capsys.readouterr()
    assert main([*words[:-1], "margin=3"]) == 2
    assert "was trained otherwise: objective.settings was" in capsys.readouterr().err


def test_its_settings_load_no_torch():
    code = "import sys, stepmark; stepmark.training.Training(epochs=3); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- the formats of published families --------------------------------------------------------------------------------

HEADS = {
    "math-shepherd": ("causal-lm", None),
    "versaprm": ("causal-lm", None),
    "rlhflow": ("causal-lm", None),
    "three-class": ("causal-lm", "three-class"),
    "qwen-prm": ("qwen2-prm", None),
    "reasonflux-prm": ("qwen2-prm", None),
    "skywork": ("token-classification", None),
    "token-classification": ("token-classification", None),
    "pure": ("token-classification", None),
    "reasoneval": ("token-classification", "three-class"),
    "reasoneval-34b": ("token-classification", "three-class"),
    "orm": ("token-classification", "outcome"),
    "implicit": ("causal-lm", "implicit-ce"),
}
"""Family: the layout of its weights over a Llama (Qwen2 for MLP heads), and its objective where that is not hard."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Tiny models with the tokens and the template that families write in: a Llama and a Qwen2."""
    words = tokenizer()
    added = ["<extra_0>", "ки", "<|im_start|>", "<|im_end|>"]
    words.add_special_tokens({"additional_special_tokens": ["<file_sep>", *added]})
    llama = write_base(tmp_path_factory.mktemp("llama"), words=words, context=512)
    qwen = tmp_path_factory.mktemp("qwen")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.25, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(qwen)
    words.save_pretrained(qwen)
    return {"llama": llama, "qwen": qwen}


def ratings(count=36):
    """Right, neutral and wrong steps with an outcome."""
    for number in range(count):
        rating = number % 3 - 1
        labelled = stepmark.LabelledSolution(
            solution=stepmark.Solution.of(
                f"{number}. What is {number} + 1?", [f"{number} + 1 = {number + 1}.", f"So it is {rating}."]
            ),
            judgements=tuple(
                (stepmark.Judgement(kind="correctness", judge="human", rating=one),) for one in (1, rating)
            ),
        )
        yield to_row(labelled, outcome=rating == 1)


@pytest.mark.parametrize("family", sorted(HEADS))
def test_a_checkpoint_in_the_format_of_a_family(bases, tmp_path, family, monkeypatch):
    """It says its family, and `load_prm` scores as the trainer did on what it held out."""
    held = []
    check = recipe._check_reading
    monkeypatch.setattr(
        recipe,
        "_check_reading",
        lambda folder, graded, net: held.extend(graded) or check(folder, graded, net),
    )
    layout, objective = HEADS[family]
    mlp = layout == "qwen2-prm"
    done = trained(ratings(), bases["qwen" if mlp else "llama"], tmp_path / "prm", family=family)
    notes = json.loads((done.folder / "train.json").read_text())
    assert notes["family"] == family
    names = {"three-class": "ThreeClass(", "outcome": "Outcome(", "implicit-ce": "ImplicitCrossEntropy("}
    assert names.get(objective, "HardLabels(") in notes["objective"]["settings"]
    spec = spec_of(done.folder, str(done.folder), None)
    assert spec.layout == FAMILIES[family].layout
    if family != "implicit":
        assert (spec.family, spec.score_kind) == (family, FAMILIES[family].score_kind)
        assert (spec.aggregate, spec.readout.activation) == (
            FAMILIES[family].aggregate,
            FAMILIES[family].readout.activation,
        )
    prm = done.prm(dtype="float32")
    assert len(held) == 11
    spread = set()
    for one in held:
        scores = prm.score(one.example.solution.problem.text, steps=list(one.example.solution.texts))
        for ours, theirs in zip(one.scores, scores, strict=True):
            if ours is None:
                assert theirs is None
                continue
            # The checkpoint's scores are calibrated.
            plain = (spec.readout.scale, spec.readout.shift) == (1.0, 0.0)
            expected = (
                ours if plain else float(sigmoid(spec.readout.scale * logit([ours])[0] + spec.readout.shift))
            )
            assert theirs == pytest.approx(expected, abs=1e-4)
            spread.add(round(ours, 3))
    assert len(spread) > 3


def test_the_order_of_classes_is_the_familys():
    """Worked by hand: logits of a family whose right class comes first, and of three classes."""
    from stepmark.training.examples import Target

    logits = torch.tensor([[2.0, -1.0]])
    right, wrong = [Target(value=1.0)], [Target(value=0.0)]
    for objective in (None, stepmark.training.CrossEntropy()):
        shepherd = in_family(objective, "math-shepherd")  # "+" is class 0
        assert shepherd.loss_of(logits, right).item() == pytest.approx(torch.nn.functional.softplus(torch.tensor(-3.0)).item())  # fmt: skip
        assert shepherd.loss_of(logits, wrong).item() == pytest.approx(torch.nn.functional.softplus(torch.tensor(3.0)).item())  # fmt: skip
        assert shepherd.score_of(logits).item() == pytest.approx(torch.sigmoid(torch.tensor(3.0)).item())
        pure = in_family(objective, "pure")  # class 1 is right; p(good) - p(bad)
        assert pure.score_of(logits).item() == pytest.approx(2 * torch.sigmoid(torch.tensor(-3.0)).item() - 1)
    three = in_family(None, "reasoneval")
    logits = torch.tensor([[0.5, -0.5, 1.5]])
    p = torch.softmax(logits, -1)[0].tolist()
    assert three.score_of(logits).item() == pytest.approx(p[1] + p[2])
    assert three.loss_of(logits, [Target(value=1.0, rating=0)]).item() == pytest.approx(-torch.log(torch.tensor(p[1])).item())  # fmt: skip


def test_every_family_is_trained_or_refused_by_name():
    for name in FAMILIES:
        if trainable(name):
            assert name in HEADS or name == "openhands-critic"  # in test_several_labels.py
            assert in_family(None, name).name
        else:
            with pytest.raises(
                UsageError, match=r"those that can be trained are qwen-prm, .*, thinkprm, genprm, r-prm"
            ):
                in_family(None, name)
    made = in_family(None, "genprm")
    assert type(made.critic).__name__ == "GenPRM"
    assert isinstance(in_family(stepmark.training.HardLabels(language_weight=0.5), "skywork"), InFamily)
    assert in_family(stepmark.training.HardLabels(language_weight=0.5), "skywork").language_weight == 0.5
