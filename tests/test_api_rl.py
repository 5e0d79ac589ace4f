"""`stepmark.train_policy`: the folder of the function is the command's, rows of any kind go in, and errors in Python say what was expected."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("matplotlib")
import stepmark  # noqa: E402
from rl_models import wordy  # noqa: E402
from stepmark.cli import main  # noqa: E402
from stepmark.errors import InputError, SettingError, UsageError  # noqa: E402
from tiny_language_model import tiny_model, tiny_tokenizer  # noqa: E402

torch.set_num_threads(1)
ROWS = [
    {"problem": text, "answer": "e", "id": text} for text in ("a", "b c", "what is it", "2 + 3", "yes", "no")
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    folder, tokens = tmp_path_factory.mktemp("policy"), tiny_tokenizer()
    tiny_model(tokens).save_pretrained(folder)
    tokens.save_pretrained(folder)
    return str(folder)


def training(**more):
    settings = {
        "updates": 1, "problems": 2, "group": 3, "max_tokens": 6, "prompt": "text", "instruction": "",
        "learning_rate": 1e-2, "warmup": 0, "evaluate_every": 1,
    }  # fmt: skip
    return stepmark.rl.PolicyTraining(**settings | more)


def run(problems, policy, prm="rl_models:wordy", **more):
    settings = {
        "credit": "process-grpo",
        "training": training(),
        "held_out": 3,
        "verifier": "text",
        "progress": False,
    }
    return stepmark.train_policy(problems, policy, prm, **settings | more)


def test_the_functions_folder_is_the_commands(tmp_path, policy, capsys) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    one, other = tmp_path / "one" / "policy", tmp_path / "other" / "policy"
    trained = run(
        str(file),
        policy,
        out=one,
        credit="process-grpo",
        settings=["process_weight=0.5"],
        training=training(seed=4),
        threshold=0.4,
    )
    assert capsys.readouterr().err == ""  # without progress
    words = ["rl", str(file), "--policy", policy, "--prm", "rl_models:wordy", "--credit", "process-grpo"]
    words += ["--set", "process_weight=0.5", "--out", str(other), "--updates", "1", "--problems", "2"]
    words += ["--group", "3", "--max-tokens", "6", "--prompt", "text", "--instruction", "", "--warmup", "0"]
    words += ["--learning-rate", "1e-2", "--evaluate-every", "1", "--seed", "4"]
    words += ["--threshold", "0.4", "--held-out", "3", "--verifier", "text"]
    assert main(words) == 0
    assert trained.summary.replace(str(one), str(other)) in capsys.readouterr().err
    names = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.is_file())
    assert names == sorted(str(path.relative_to(other)) for path in other.rglob("*") if path.is_file())
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert trained.manifest == json.loads((one / "run.json").read_text())
    assert (trained.out, trained.best, trained.alarmed) == (one, one / "best", None)
    assert [row.update for row in trained.evaluations] == [0, 1]
    assert [row["update"] for row in trained.updates] == [1]
    # A second call changes nothing; other settings are another run.
    before = (one / "model.safetensors").stat().st_mtime_ns
    again = run(
        str(file),
        policy,
        out=one,
        credit=stepmark.rl.ProcessGRPO(process_weight=0.5),
        training=training(seed=4),
        threshold=0.4,
    )
    assert "this run is done" in again.summary
    assert again.updates == trained.updates
    assert (one / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(UsageError, match=r"settings\.seed was 4 and is now 0"):
        run(str(file), policy, out=one, settings=["process_weight=0.5"])


def test_rows_records_and_frames_go_in(tmp_path, policy) -> None:
    pandas = pytest.importorskip("pandas")
    records = [stepmark.Problem(text=row["problem"], answer="e", id=row["id"]) for row in ROWS]
    held_out = [{"question": "new", "answer": "e"}]
    folders = []
    for number, problems in enumerate((ROWS, records, pandas.DataFrame(ROWS))):
        out = tmp_path / str(number) / "policy"
        trained = run(problems, policy, wordy(), out=out, held_out=held_out)
        assert trained.manifest["held_out"]["rows"] == 1
        assert trained.evaluations[-1].solutions == 1
        folders.append((out / "model.safetensors").read_bytes())
    assert folders[0] == folders[1] == folders[2]


def test_a_credit_method_of_your_own(tmp_path, policy, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_credit.py").write_text(
        "import stepmark\n"
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n\n\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Half:\n"
        '    name: ClassVar[str] = "half"\n'
        "    weight: float = 0.5\n"
        "    needs = stepmark.rl.Needs()\n\n"
        "    def assign(self, batch, *, kl=None):\n"
        "        advantages = self.weight * (batch.outcome - 0.5)[:, None] * batch.mask\n"
        "        return stepmark.rl.Assigned(advantages=advantages)\n"
    )
    trained = run(ROWS, policy, None, credit="my_credit:Half", settings=["weight=2"], out=tmp_path / "out")
    assert trained.manifest["credit"] == {"name": "half", "weight": 2.0}
    assert list(trained.manifest["source"]["modules"]) == ["my_credit"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"problems": [{"answer": "4"}]}, InputError, "a problem"),
        ({"problems": [{"problem": "a"}] * 4}, InputError, "answer"),
        ({"device": "gpu"}, UsageError, "`device` gpu"),
        ({"dtype": "float16"}, SettingError, "dtype='float16'"),
        ({"held_out": 6}, UsageError, "`held_out` 6"),
        ({"prm": None}, UsageError, "`prm`"),
        ({"policy": "no-such-folder"}, stepmark.errors.StepmarkError, "no-such-folder"),
        ({"prm": wordy(), "refit": stepmark.rl.Refitting()}, UsageError, "`refit`"),
    ],
)  # fmt: skip
def test_errors_say_what_was_expected(tmp_path, policy, change, error, message) -> None:
    with pytest.raises(error, match=message):
        run(**{"problems": ROWS, "policy": policy, "out": tmp_path / "out"} | change)
    assert not (tmp_path / "out").exists()


def test_a_setting_is_checked_when_it_is_made() -> None:
    with pytest.raises(SettingError, match="updates=0"):
        stepmark.rl.PolicyTraining(updates=0)
    with pytest.raises(SettingError, match=r"beta=0"):
        stepmark.rl.Implicit(beta=0)
