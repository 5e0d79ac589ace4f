"""`stepmark train` from files of step labels to a calibrated checkpoint, on a base of two tiny layers."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from stepmark import Solution, load_prm
from stepmark.cli import main
from stepmark.errors import InputError, UsageError
from stepmark.models.detect import read_spec
from stepmark.training import publish, recipe
from stepmark.training.data import Example, by_problem, trees
from stepmark.training.publish import calibrate, write_checkpoint
from stepmark.training.recipe import MARKER_SPEC, labelled_rows
from stepmark.training.train import Train, Trainer
from tiny_language_model import tiny_tokenizer

torch.set_num_threads(1)

# peft 0.21 asks transformers for a name that it is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

FILES = [
    "adapter_config.json",
    "adapter_model.safetensors",
    "calibration.json",
    "stepmark.json",
    "train.json",
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    words = tiny_tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<file_sep>"]})
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.25,
        pad_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def prm800k_rows(problems=24):
    """Sums in two steps; each problem rates a right, a wrong and a neutral continuation."""
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


def gsm8k_rows(problems=16):
    rng = random.Random(2)
    for number in range(problems):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        yield {
            "question": f"{number}. Ann has {a} boxes of {b} pens and loses one pen. How many are left?",
            "answer": f"She had {a}*{b} = <<{a}*{b}={a * b}>>{a * b} pens.\n"
            f"Now {a * b}-1 = <<{a * b}-1={a * b - 1}>>{a * b - 1} pens.\n#### {a * b - 1}",
        }


def file_of(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return [file_of(folder / "rated.jsonl", prm800k_rows()), file_of(folder / "worked.jsonl", gsm8k_rows())]


def words(data, out, base, **options):
    """The words of a command that takes about 70 steps."""
    settings = {
        "rank": 2,
        "frozen-layers": 1,
        "learning-rate": 0.002,
        "epochs": 6,
        "token-budget": 300,
        "held-out": 0.25,
        **{name.replace("_", "-"): value for name, value in options.items()},
    }
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    return ["train", *map(str, data), "--out", str(out), "--base", str(base), *flags]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data, base):
    """A run without interruption."""
    out = tmp_path_factory.mktemp("whole") / "prm"
    assert main(words(data, out, base)) == 0
    return out


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --- what is there afterwards -----------------------------------------------------------------------------------------


def test_the_checkpoint_and_nothing_else_is_there(whole, base):
    assert names(whole.parent) == ["prm"]
    assert names(whole) == FILES
    settings = json.loads((whole / "train.json").read_text())
    expected = Train(rank=2, frozen_layers=1, learning_rate=0.002, epochs=6, token_budget=300, held_out=0.25)
    assert settings == asdict(expected)
    adapter = json.loads((whole / "adapter_config.json").read_text())
    assert (adapter["peft_type"], adapter["r"], adapter["lora_alpha"]) == ("LORA", 2, 32.0)
    assert adapter["base_model_name_or_path"] == str(base)
    tensors = load_file(whole / "adapter_model.safetensors")
    modules = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    modules += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    lora = {f"base_model.model.layers.1.{m}.lora_{half}.weight" for m in modules for half in "AB"}
    head = {"base_model.model.score.weight", "base_model.model.score.bias"}
    assert set(tensors) == lora | head
    assert sorted(adapter["target_modules"]) == sorted(m.split(".")[1] for m in modules)
    assert {tensors[name].dtype for name in lora} == {torch.bfloat16}
    assert tensors["base_model.model.score.weight"].dtype == torch.float32
    assert tensors["base_model.model.score.weight"].shape == (1, 32)
    assert all(bool(t.any()) for t in tensors.values())  # every one of them has moved, or was drawn


def test_the_spec_carries_the_calibration(whole):
    spec = read_spec(whole / "stepmark.json")
    noted = json.loads((whole / "calibration.json").read_text())
    assert (spec.readout.scale, spec.readout.shift) == (noted["scale"], noted["shift"])
    assert spec.threshold == noted["first_errors"]["threshold"] == 0.5
    assert 0 <= noted["first_errors"]["f1"] <= noted["best_threshold"]["f1"] <= 1
    assert noted["on"] == "held-out problems"
    assert replace(spec, readout=MARKER_SPEC.readout, threshold=0.5) == MARKER_SPEC


def test_a_user_can_grade_with_it(whole, tmp_path, capsys):
    prm = load_prm(str(whole))
    assert prm.score_kind == "probability"
    assert prm.default_aggregate == "min"
    assert prm.default_threshold == read_spec(whole / "stepmark.json").threshold
    steps = ["2 + 3 = 5.", "5 + 4 = 9."]
    scores = prm.score("What is 2 + 3 + 4?", steps)
    assert len(scores) == 2 and all(0 < s < 1 for s in scores)
    file = file_of(tmp_path / "s.jsonl", [{"problem": "What is 2 + 3 + 4?", "steps": steps}])
    assert main(["grade", str(file), "--prm", str(whole), "--out", str(tmp_path / "graded.jsonl")]) == 0
    graded = json.loads((tmp_path / "graded.jsonl").read_text())
    assert graded["scores"] == pytest.approx(scores)


def test_what_the_command_says(base, data, tmp_path, capsys, monkeypatch):
    out = tmp_path / "prm"
    monkeypatch.chdir(base.parent)
    assert main(words(data, out, base.name, epochs=1, limit_tokens=3000)) == 0
    said = capsys.readouterr()
    noted = json.loads((out / "calibration.json").read_text())
    # 40 problems, a quarter held out; the sums and the pens each in both parts.
    assert said.out.startswith(f"{out}: ")
    assert " of 30 problems; held out: " in said.out
    assert f"first-error F1 {noted['first_errors']['f1']:.3f} at the threshold 0.5" in said.out
    assert "step 10 of " in said.err and "left out" in said.err
    assert json.loads((out / "train.json").read_text())["limit_tokens"] == 3000
    # A base named from here is found from anywhere.
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)


# --- grading is what was trained --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def float32(tmp_path_factory, base, data):
    """A trainer in float32 after some steps, and examples with every step labelled."""
    rows = recipe.examples(labelled_rows(data, seed=0))
    settings = Train(rank=2, frozen_layers=0, learning_rate=0.01, epochs=2, token_budget=400)
    trainer = Trainer(base, MARKER_SPEC, settings, tmp_path_factory.mktemp("state"), dtype=torch.float32)
    trainer.run(list(by_problem(rows).values()), report=lambda figures: None)
    # A checkpoint keeps the adapter in bfloat16; rounded here, both sides have the same weights.
    with torch.no_grad():
        for parameter, master in zip(trainer.parameters, trainer.masters, strict=True):
            if parameter.dim() == 2 and parameter.shape[0] != 1:
                parameter.copy_(parameter.bfloat16())
                master.copy_(parameter)
    everywhere = [Example(solution=e.solution, labels=(0.0,) * len(e.labels)) for e in rows[:30]]
    return trainer.model.eval() and trainer, rows, everywhere


def logits_of(trainer, examples):
    """The trainer's own logits, an example at a time."""
    result = []
    for example in examples:
        (tree,) = trees([[example]], trainer.encoder, budget=1000, refused=[])
        with torch.inference_mode():
            result.append(trainer.logits([tree]).double())
    return result


def test_grading_gives_the_trainers_logits(float32, base, tmp_path):
    trainer, _, everywhere = float32
    write_checkpoint(trainer, tmp_path / "prm", base_name=str(base))
    prm = load_prm(str(tmp_path / "prm"), dtype="float32")
    ours = logits_of(trainer, everywhere)
    assert torch.cat(ours).std() > 0.3  # else there is little to compare
    for example, logits in zip(everywhere, ours, strict=True):
        scores = prm.score(example.solution.problem.text, example.solution.texts)
        torch.testing.assert_close(
            torch.tensor(scores, dtype=torch.float64), torch.sigmoid(logits), rtol=0, atol=1e-5
        )


def test_grading_passes_the_logits_through_the_calibration(float32, base, tmp_path):
    trainer, rows, everywhere = float32
    folder = tmp_path / "prm"
    write_checkpoint(trainer, folder, base_name=str(base))
    held_out = rows[::3]
    found = calibrate(folder, held_out)
    noted = json.loads((folder / "calibration.json").read_text())
    assert abs(noted["scale"] - 1) + abs(noted["shift"]) > 0.05  # it did something
    assert noted["steps"] == len(held_out)
    assert noted["first_errors"]["f1"] == found.f1
    prm = load_prm(str(folder), dtype="float32")
    for example, logits in zip(everywhere, logits_of(trainer, everywhere), strict=True):
        scores = prm.score(example.solution.problem.text, example.solution.texts)
        expected = torch.sigmoid(noted["scale"] * logits + noted["shift"])
        torch.testing.assert_close(torch.tensor(scores, dtype=torch.float64), expected, rtol=0, atol=1e-5)
    # The figures by hand: the first step under the threshold against the judged last step.
    right = wrong = right_found = wrong_found = 0
    for example in held_out:
        scores = prm.score(example.solution.problem.text, example.solution.texts)
        first = next((i for i, s in enumerate(scores) if s < found.threshold), -1)
        if example.labels[-1] == 1:
            # A right solution that another right one goes on from is a beginning and does not count.
            if any(
                e.labels[-1] == 1
                and e.solution.problem == example.solution.problem
                and len(e.solution.steps) > len(example.solution.steps)
                and e.solution.texts[: len(example.solution.steps)] == example.solution.texts
                for e in held_out
            ):
                continue
            right, right_found = right + 1, right_found + (first == -1)
        else:
            wrong, wrong_found = wrong + 1, wrong_found + (first == len(scores) - 1)
    assert found.correct_accuracy == pytest.approx(right_found / right)
    assert found.error_accuracy == pytest.approx(wrong_found / wrong)
    # Once more on the same steps it finds nothing left to correct, and keeps the first correction.
    before = read_spec(folder / "stepmark.json")
    calibrate(folder, held_out)
    again = json.loads((folder / "calibration.json").read_text())
    assert (again["scale"], again["shift"]) == pytest.approx((1, 0), abs=1e-3)
    after = read_spec(folder / "stepmark.json")
    assert after.readout.scale == pytest.approx(before.readout.scale, rel=2e-3)
    assert after.readout.shift == pytest.approx(before.readout.shift, abs=2e-3)


def test_solutions_that_cannot_be_graded_are_left_out_of_calibration(float32, base, tmp_path):
    trainer, rows, _ = float32
    write_checkpoint(trainer, tmp_path / "prm", base_name=str(base))
    broken = [
        Example(solution=Solution.of("p", ["<|im_end|>"]), labels=(0.0,)),
        Example(solution=Solution.of("p", ["word " * 300]), labels=(1.0,)),
        Example(solution=Solution.of("p", ["2 + 2 = 4."]), labels=(None,)),
    ]
    calibrate(tmp_path / "prm", [*broken, *rows[::3]], name="a test")
    noted = json.loads((tmp_path / "prm" / "calibration.json").read_text())
    assert (noted["steps"], noted["on"]) == (len(rows[::3]), "a test")


def test_a_checkpoint_is_written_whole_or_not_at_all(float32, base, tmp_path, monkeypatch):
    trainer = float32[0]

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(publish, "_write_json", fail)
    with pytest.raises(OSError, match="no space"):
        write_checkpoint(trainer, tmp_path / "deep" / "prm", base_name=str(base))
    assert names(tmp_path / "deep") == []
    monkeypatch.undo()
    write_checkpoint(trainer, tmp_path / "deep" / "prm", base_name=str(base))
    assert names(tmp_path / "deep") == ["prm"]
    with pytest.raises(UsageError, match="exists"):
        write_checkpoint(trainer, tmp_path / "deep" / "prm", base_name=str(base))


# --- interrupted runs -------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from stepmark.training.train import Trainer
save = Trainer._save_state
def save_and_die(self, *run):
    save(self, *run)
    os.kill(os.getpid(), signal.SIGKILL)
Trainer._save_state = save_and_die
from stepmark.cli import main
sys.exit(main(sys.argv[1:]))
"""


def same(a, b):
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in FILES)


def test_a_killed_run_goes_on_to_the_same_bytes(whole, base, data, tmp_path, capsys):
    out = tmp_path / "prm"
    command = words(data, out, base)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert names(tmp_path) == ["prm.run"]
    assert names(tmp_path / "prm.run") == ["state.pt"]
    # With other rows or another base the state is not gone on with, silently, as if it were theirs.
    assert main(words(data[:1], out, base)) == 2
    assert "state.pt is of a run with other settings, another base or other rows" in capsys.readouterr().err
    other = tmp_path / "base"
    shutil.copytree(base, other)
    assert main(words(data, out, other)) == 2
    shutil.rmtree(other)
    capsys.readouterr()
    assert main(command) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("step 60 of ")  # the state was of step 50
    assert names(tmp_path) == ["prm"]
    assert same(out, whole)


def test_a_run_stopped_in_calibration_leaves_no_checkpoint(base, data, tmp_path, monkeypatch):
    command = words(data, tmp_path / "prm", base, epochs=1)

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(recipe, "calibrate", stop)
    assert main(command) == 130
    assert names(tmp_path) == ["prm.run"]
    monkeypatch.undo()
    assert main(command) == 0
    assert names(tmp_path) == ["prm"]
    other = words(data, tmp_path / "other", base, epochs=1)
    assert main(other) == 0
    assert same(tmp_path / "prm", tmp_path / "other")


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_an_existing_folder_is_refused_untouched(base, data, tmp_path, capsys):
    out = tmp_path / "prm"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    assert main(words(data, out, base)) == 2
    assert f"{out} exists; delete it or choose another --out" in capsys.readouterr().err
    assert names(tmp_path) == ["prm"] and names(out) == ["mine.txt"]


@pytest.mark.parametrize(
    ("rows", "line", "message"),
    [
        ([{"problem": "p", "steps": ["s"]}], 1, "found the keys ['problem', 'steps']"),
        ([{"question": "q", "choices": []}], 1, "found the keys ['choices', 'question']"),
        ([{}], 1, "found the keys []"),
        ([*gsm8k_rows(1), {"question": "q", "answer": "5"}], 2, "#### RESULT"),
        ([*prm800k_rows(1), {"instruction": "p"}], 6, "required"),
        ([next(prm800k_rows(1)), *gsm8k_rows(1)], 2, "RatedCompletion"),
    ],
)
def test_rows_of_no_known_layout_are_named(base, data, tmp_path, capsys, rows, line, message):
    file = file_of(tmp_path / "rows.jsonl", rows)
    assert main(words([*data, file], tmp_path / "prm", base)) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}:{line}")
    assert message in said
    assert names(tmp_path) == ["rows.jsonl"]


def test_the_first_row_is_named_where_it_stands(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('\n\n{"a": 1}\n')
    with pytest.raises(InputError, match=r"expected PRM800K .* or GSM8K .* \['a'\]") as caught:
        list(labelled_rows([file], seed=0))
    assert caught.value.where == f"{file}:3"


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (lambda: list(prm800k_rows(1)), {}, "too few to train on"),
        (lambda: [{**row, "rating": None} for row in prm800k_rows()], {}, "too few to train on"),
        (lambda: [{**row, "rating": 1} for row in prm800k_rows()], {}, "no right or no wrong step"),
        (prm800k_rows, {"held_out": 0.0}, "too few to train on"),
        (prm800k_rows, {"frozen_layers": 2}, "none is left to train"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_it_is_tried(base, tmp_path, capsys, rows, options, message):
    file = file_of(tmp_path / "rows.jsonl", rows())
    assert main(words([file], tmp_path / "prm", base, **options)) == 2
    assert message in capsys.readouterr().err
    assert names(tmp_path) == ["rows.jsonl"]


def test_files_and_base_must_be_there(base, data, tmp_path, capsys):
    assert main(words([tmp_path / "none.jsonl"], tmp_path / "prm", base)) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(words(data, tmp_path / "prm", tmp_path / "no-base")) == 2
    assert "no-base" in capsys.readouterr().err
    assert main(words([], tmp_path / "prm", base)) == 2
    assert "at least one file" in capsys.readouterr().err
    assert names(tmp_path) == []


# --- rows -------------------------------------------------------------------------------------------------------------


def test_labelled_rows_of_both_layouts(data):
    rows = list(labelled_rows(data, seed=3))
    judges = [j.judge for row in rows for j in row.judgements[-1]]
    # 4 of 5 rated rows a problem; 3 steps a worked solution, each once right and once wrong.
    assert judges == ["human"] * 24 * 4 + ["exact"] * 16 * 6
    assert {row.solution.problem.source for row in rows} == {"PRM800K", "GSM8K"}
    assert rows == list(labelled_rows(data, seed=3))
    assert rows[: 24 * 5] == list(labelled_rows(data[:1], seed=8))
    assert rows != list(labelled_rows(data, seed=4))
    assert rows[24 * 5 :] == list(labelled_rows(data[1:], seed=3))
    with pytest.raises(UsageError, match="at least one file"):
        list(labelled_rows([], seed=0))
