"""A PRM that is trained further while the policy moves: what takes its place and when, resumed, and the command."""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from rl_models import Says  # noqa: E402
from stepmark.cli import main  # noqa: E402
from stepmark.errors import UsageError  # noqa: E402
from stepmark.metrics.intervals import Difference, Interval  # noqa: E402
from stepmark.models.scripted import ScriptedPRM  # noqa: E402
from stepmark.records import Problem  # noqa: E402
from stepmark.rl import refit as refitting  # noqa: E402
from stepmark.rl.actor import Actor  # noqa: E402
from stepmark.rl.credit.assignment import ProcessGRPO  # noqa: E402
from stepmark.rl.monitor import Monitor, read_watched  # noqa: E402
from stepmark.rl.policy_trainer import PolicyTrainer  # noqa: E402
from stepmark.rl.refit import Refit  # noqa: E402
from stepmark.rl.settings import PolicyTraining, Refitting  # noqa: E402
from stepmark.training.examples import Dropped  # noqa: E402
from stepmark.training.held_out import HeldOut  # noqa: E402
from stepmark.training.measure import Trained  # noqa: E402
from stepmark.training.objectives.steps import HardLabels  # noqa: E402
from stepmark.training.saving import write_trained  # noqa: E402
from stepmark.training.state import read_lines  # noqa: E402
from tiny_base import net_for, write_base  # noqa: E402
from tiny_language_model import tiny_model, tiny_tokenizer  # noqa: E402

torch.set_num_threads(1)
TOKENIZER = tiny_tokenizer()
PROBLEMS = [Problem(text=f"say e: {n}", answer="e", id=str(n)) for n in range(16)]
HOW = Refitting(every=2, problems=4, held_out=8, completions=2, rollouts=3)
GAINS = {2: 0.2, 4: -0.1, 6: 0.0}
"""By how much the AUC of each refit's PRM is higher."""


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """A PRM that is a LoRA adapter."""
    folder = tmp_path_factory.mktemp("adapter")
    base = write_base(folder / "base")
    return written(base, folder / "prm", adapter=True)


def written(base, folder, *, adapter):
    net = net_for(base, HardLabels(), rank=4)
    net.set_head(HardLabels().head(net))
    write_trained(folder, net, adapter=adapter, base_name=str(base), notes={})
    return folder


def constant(score):
    return ScriptedPRM(lambda _p, _s: score, name=f"always {score}")


@pytest.fixture
def trained(monkeypatch):
    """Stands for the trainer: says how much better each PRM is, and keeps what it was called with."""
    calls = []

    def run_recipe(rows, out, recipe, *, held_out, report):
        number = int(out.name)
        calls.append((list(rows), list(held_out), recipe.training.warm_start))
        out.mkdir()
        a, b = 0.5, 0.5 + GAINS[number]
        half = Interval(value=b, low=None, high=None)
        found = HeldOut(
            problems=8, steps=20, unit="step", auc=half, f1=None, threshold=0.5, tuned=False, checks="none",
            baseline="old", difference=Difference(a=a, b=b, value=b - a, low=None, high=None, p=None),
        )  # fmt: skip
        return Trained(
            folder=out, held_out=None, comparison=found, examples=1, problems=1, dropped=Dropped()
        )  # fmt: skip

    monkeypatch.setattr(refitting, "run_recipe", run_recipe)
    monkeypatch.setattr(refitting, "load_prm", lambda name, **_: constant(int(name[-1]) / 10))
    return calls


class Dies:
    """A listener that kills the run."""

    def __init__(self, at):
        self.at = at

    def updated(self, update):
        if update.number == self.at:
            raise KeyboardInterrupt

    def evaluated(self, evaluation):
        return False


def run(folder, adapter, *, dies=None):
    """Six updates, refits after 2, 4 and 6, saved states and evaluations after 3 and 6."""
    who, prm = Actor(tiny_model(TOKENIZER), TOKENIZER, name="tiny"), constant(0.9)
    monitor = Monitor(who, folder, prm=prm)
    refit = Refit(str(adapter), PROBLEMS, HOW, seed=0)
    how = PolicyTraining(
        updates=6, problems=2, group=2, max_tokens=8, prompt="text", instruction="", learning_rate=1e-2, warmup=0,
        evaluate_every=3, save_every=3,
    )  # fmt: skip
    listeners = [monitor, refit] + ([] if dies is None else [Dies(dies)])
    trainer = PolicyTrainer(who, PROBLEMS, PROBLEMS[:4], Says(), ProcessGRPO(), how, out=folder, prm=prm, listeners=listeners)  # fmt: skip
    folder.mkdir(exist_ok=True)
    refit.attach(trainer, monitor)
    trainer.run()
    return trainer, monitor, refit


def test_a_prm_that_is_not_worse_takes_the_place(tmp_path, adapter, trained):
    trainer, monitor, refit = run(tmp_path / "run", adapter)
    assert [(row.update, row.replaced) for row in refit.rows] == [(2, True), (4, False), (6, True)]
    assert trainer.prm.name == monitor.prm.name == "always 0.6"
    # Each goes on from the one in force.
    second = str(tmp_path / "run" / "refit" / "000002")
    assert [start for _, _, start in trained] == [str(adapter), second, second]
    for rows, held, _ in trained:
        texts = [{row.solution.problem.text for row in part} for part in (rows, held)]
        assert texts[0] and texts[1] and not texts[0] & texts[1]
        judged = [one for row in (*rows, *held) for each in row.labelled.judgements for one in each]
        assert sum(one.trials or 0 for one in judged) > 0
    for row, (rows, _, _) in zip(refit.rows, trained, strict=True):
        assert row.solutions == len(rows)
    # Replaced after 2, so the evaluation after 3 begins the comparison anew.
    watched = read_watched(tmp_path / "run" / "monitor.jsonl")
    assert [(row.update, row.rebased) for row in watched] == [(0, False), (3, True), (6, True)]


@pytest.mark.parametrize("dies", [2, 5])
def test_a_killed_run_goes_on_with_the_prm_of_its_saved_state(tmp_path, adapter, trained, dies):
    straight, *_ = run(tmp_path / "whole", adapter)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", adapter, dies=dies)
    resumed, *_ = run(tmp_path / "parts", adapter)
    for a, b in zip(straight.actor.trained(), resumed.actor.trained(), strict=True):
        assert torch.equal(a, b)
    for name in ("refit.jsonl", "monitor.jsonl"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_what_cannot_be_trained_further_is_refused(tmp_path, adapter):
    base = write_base(tmp_path / "base")
    whole = written(base, tmp_path / "whole", adapter=False)
    with pytest.raises(UsageError, match="adapter"):
        Refit(str(whole), PROBLEMS, HOW, seed=0)
    with pytest.raises(UsageError, match="8"):
        Refit(str(adapter), PROBLEMS[:8], HOW, seed=0)


def test_the_command_trains_the_prm_further(tmp_path, adapter, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("stepmark.rl.report.rl_html", lambda *_arguments, **_more: iter(("",)))
    policy = tmp_path / "policy"
    tiny_model(TOKENIZER).save_pretrained(policy)
    TOKENIZER.save_pretrained(policy)
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps({"problem": p.text, "answer": "7"}) + "\n" for p in PROBLEMS))
    out = tmp_path / "out"
    words = ["rl", str(file), "--policy", str(policy), "--credit", "process-grpo", "--prm", str(adapter)]
    words += ["--out", str(out), "--updates", "2", "--problems", "2", "--group", "2", "--max-tokens", "12"]
    words += ["--prompt", "text", "--instruction", "", "--evaluate-every", "2", "--held-out", "3"]
    words += ["--verifier", "number", "--device", "cpu", "--refit", "--refit-every", "1"]
    words += ["--refit-problems", "4", "--refit-held-out", "4", "--refit-rollouts", "2"]
    assert main(words) == 0
    assert [row["update"] for row in read_lines(out / "refit.jsonl")] == [1, 2]
    assert "after update 2 the PRM was" in capsys.readouterr().err
