"""A PRM that is fitted anew while the policy moves: what takes its place and when, against figures counted here; resumed; trained on from its own head."""

import json
from itertools import pairwise, product

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from rl_models import Says  # noqa: E402
from stepmark.batching import Answerer, Write  # noqa: E402
from stepmark.cli import main  # noqa: E402
from stepmark.data.formats.rows import LabelledRow  # noqa: E402
from stepmark.errors import UsageError  # noqa: E402
from stepmark.models.load import load_prm  # noqa: E402
from stepmark.models.scripted import ScriptedPRM  # noqa: E402
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step  # noqa: E402
from stepmark.rl import refit as refitting  # noqa: E402
from stepmark.rl.actor import Actor  # noqa: E402
from stepmark.rl.credit.methods import ProcessGRPO  # noqa: E402
from stepmark.rl.hacking import Watch  # noqa: E402
from stepmark.rl.monitor import Monitor, read_watched  # noqa: E402
from stepmark.rl.refit import (  # noqa: E402
    Refit,
    RefittedPRM,
    recipe_of,
    saved_updates,
)
from stepmark.rl.settings import Refitting, Training  # noqa: E402
from stepmark.rl.trainer import Trainer, Update  # noqa: E402
from stepmark.training.checkpoint import write_trained  # noqa: E402
from stepmark.training.examples import LabelRules, examples  # noqa: E402
from stepmark.training.objectives.steps import CrossEntropy, HardLabels, TargetTokens  # noqa: E402
from stepmark.training.recipe import run_recipe  # noqa: E402
from stepmark.training.state import read_lines  # noqa: E402
from tiny_base import net_for, write_base  # noqa: E402
from tiny_language_model import tiny_model, tiny_tokenizer  # noqa: E402

torch.set_num_threads(1)
TOKENIZER = tiny_tokenizer()
PROBLEMS = [Problem(text=f"say e: {n}", answer="e", id=str(n)) for n in range(16)]
HOW = Refitting(every=2, problems=4, held_out=8, completions=2, rollouts=3)


def actor():
    return Actor(tiny_model(TOKENIZER), TOKENIZER, name="tiny")


def settings(**changes):
    usual = {
        "updates": 6,
        "problems": 2,
        "group": 2,
        "max_tokens": 8,
        "prompt": "text",
        "instruction": "",
        "learning_rate": 1e-2,
        "warmup": 0,
        "evaluate_every": 3,
        "save_every": 3,
    }
    return Training(**(usual | changes))


def knows(name="knows", **more):
    """Likes what holds an e."""
    return ScriptedPRM(lambda _p, steps: 0.9 if "e" in "".join(steps) else 0.2, name=name, **more)


def opposite(name="opposite"):
    return ScriptedPRM(lambda _p, steps: 0.1 if "e" in "".join(steps) else 0.8, name=name)


def longest(name="longest"):
    """Likes long steps, whatever they say; white space at their ends is not counted."""
    return ScriptedPRM(lambda _p, steps: 1 - 1 / (1 + len(steps[-1].strip())), name=name)


class Fits:
    """Gives the PRMs that it was given, one a call, and keeps what it was called with."""

    def __init__(self, *prms):
        self.prms, self.calls = list(prms), []

    def __call__(self, training, held, place, folder):
        self.calls.append((training, held, place, folder))
        folder.mkdir()
        (folder / "name").write_text(self.prms[0].name)
        return self.prms.pop(0)


def refit(folder, prm, fit, *, how=HOW, problems=PROBLEMS, monitor=None, who=None, **changes):
    return Refit(
        who or actor(),
        prm,
        "first",
        problems,
        Says(),
        settings(**changes),
        folder,
        how=how,
        monitor=monitor,
        fit=fit,
    )


def told(refit, number):
    refit.updated(Update(number=number, rollouts=0, figures={}))


def counted_auc(prm, rows):
    """By all pairs of steps; and how many of the steps there are."""
    pairs = [
        (score, target.value)
        for one in examples(rows, LabelRules(labels="value"))
        for score, target in zip(
            prm.score(one.solution.problem.text, one.solution.texts), one.targets, strict=True
        )
        if target is not None
    ]
    right, wrong = ([s for s, v in pairs if side(v)] for side in (lambda v: v > 0.5, lambda v: v < 0.5))
    wins = [(a > b) + (a == b) / 2 for a, b in product(right, wrong)]
    return sum(wins) / len(wins), len(pairs)


# --- the PRM that can be replaced -------------------------------------------------------------------------------------


def test_a_replaced_prm_keeps_its_name():
    prm = RefittedPRM(knows("first"))
    assert prm.score("p", ["e", "x"]) == [0.9, 0.9]
    prm.replace(opposite("second"))
    assert prm.name == "first"
    assert prm.score("p", ["e"]) == [0.1]
    with pytest.raises(UsageError, match="first scores a probability, and m a margin"):
        prm.replace(ScriptedPRM({"e": 0.0}, name="m", score_kind="margin"))


# --- what takes its place ---------------------------------------------------------------------------------------------


def test_a_better_prm_takes_the_place_and_the_record_says_why(tmp_path, monkeypatch):
    asked_for = []

    def counted(policy):
        def write(requests, ready=None):
            asked_for.extend(request.n for request in requests)
            return policy.write(requests, ready)

        return {Write: Answerer(identity=policy.identity, answer=write)}

    monkeypatch.setattr(refitting, "writing", counted)
    prm, fit = RefittedPRM(longest()), Fits(knows())
    made = refit(tmp_path, prm, fit)
    told(made, 1)
    assert not fit.calls  # it is not due
    told(made, 2)
    ((training, held, place, folder),) = fit.calls
    assert (place, folder) == ("first", tmp_path / "refit" / "000002")
    (row,) = made.rows
    assert row.replaced
    assert (row.update, row.folder, row.why) == (2, "refit/000002", "its AUC is not worse")
    assert prm.score("p", ["e"]) == [0.9]
    before, steps = counted_auc(longest(), held)
    assert row.auc.a == pytest.approx(before)
    assert row.auc.b == pytest.approx(counted_auc(knows(), held)[0])
    assert row.auc.b > row.auc.a
    assert row.held_out_steps == steps
    assert row.solutions == len(examples(training, LabelRules(labels="value")))
    assert row.rollouts == sum(asked_for) > 0
    asked = [one for row in (*training, *held) for one in row.labelled.judgements]
    assert any(j.trials for one in asked for j in one)
    assert [json.loads(line)["update"] for line in (tmp_path / "refit.jsonl").read_text().splitlines()] == [2]


def test_a_worse_prm_is_not_taken(tmp_path):
    prm, fit = RefittedPRM(knows()), Fits(opposite(), longest())
    made = refit(tmp_path, prm, fit)
    told(made, 2)
    told(made, 4)
    assert [row.replaced for row in made.rows] == [False, False]
    assert [row.folder for row in made.rows] == [None, None]
    assert made.rows[0].why == "its AUC is worse, or not known"
    assert made.rows[0].auc.value < 0
    assert (made.rows[0].before, made.rows[0].after) != (None, None)
    assert not (tmp_path / "refit" / "000002").exists()
    assert [place for _, _, place, _ in fit.calls] == ["first", "first"]
    assert prm.score("p", ["e"]) == [0.9]


def test_each_refit_goes_on_from_the_one_before_on_other_completions_and_held_out_problems_stay(tmp_path):
    prm, fit = RefittedPRM(longest()), Fits(knows(), knows(), knows())
    made = refit(tmp_path, prm, fit)
    for number in (2, 4, 6):
        told(made, number)
    assert [place for _, _, place, _ in fit.calls] == [
        "first",
        str(tmp_path / "refit" / "000002"),
        str(tmp_path / "refit" / "000004"),
    ]
    texts = [
        [{row.solution.problem.text for row in rows} for rows in (training, held)]
        for training, held, _, _ in fit.calls
    ]
    held = set().union(*(one for _, one in texts))
    assert len(held) <= HOW.held_out
    assert not held & set().union(*(one for one, _ in texts))
    solutions = [{row.solution.texts for row in held} for _, held, _, _ in fit.calls]
    assert all(a != b for a, b in pairwise(solutions))  # fresh ones each time


def test_without_right_and_wrong_steps_nothing_is_trained(tmp_path):
    prm, fit = RefittedPRM(knows()), Fits()
    never = [Problem(text=p.text, answer="never said", id=p.id) for p in PROBLEMS]
    made = refit(tmp_path, prm, fit, problems=never)
    told(made, 2)
    (row,) = made.rows
    assert not row.replaced
    assert (row.auc, row.after) == (None, None)
    assert row.why == "all held-out steps are right or all are wrong: no AUC"
    assert row.held_out_steps > 0


# --- in a run, killed and resumed -------------------------------------------------------------------------------------


class Dies:
    """A listener that kills the run."""

    def __init__(self, at):
        self.at = at

    def updated(self, update):
        if update.number == self.at:
            raise KeyboardInterrupt

    def evaluated(self, evaluation):
        return False


def run(folder, *, dies=None):
    """Six updates, refits after 2, 4 and 6, saved states and evaluations after 3 and 6."""
    who, prm = actor(), RefittedPRM(longest())
    monitor = Monitor(who, folder, prm=prm, watch=Watch(probes=0, resamples=100))
    prms = {2: knows("a"), 4: opposite("b"), 6: knows("c")}

    def fit(_training, _held, _place, out):
        out.mkdir()
        made = prms[int(out.name)]
        (out / "name").write_text(made.name)
        return made

    made = refit(folder, prm, fit, monitor=monitor, who=who)
    listeners = [monitor, made] + ([] if dies is None else [Dies(dies)])
    trainer = Trainer(
        who,
        PROBLEMS,
        PROBLEMS[:4],
        Says(),
        ProcessGRPO(),
        settings(),
        out=folder,
        prm=prm,
        listeners=listeners,
    )
    trainer.run()
    return who, prm


@pytest.fixture
def scripted(monkeypatch):
    by_name = {"a": knows("a"), "b": opposite("b"), "c": knows("c")}
    monkeypatch.setattr(
        refitting, "load_prm", lambda folder, **_: by_name[(refitting.Path(folder) / "name").read_text()]
    )


@pytest.mark.parametrize("dies", [2, 4, 5])
def test_a_killed_run_goes_on_with_the_prm_of_its_saved_state(tmp_path, scripted, dies):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    straight, _ = run(whole)
    with pytest.raises(KeyboardInterrupt):
        run(parts, dies=dies)
    assert saved_updates(parts) == (0 if dies < 3 else 3)
    resumed, prm = run(parts)
    for a, b in zip(straight.trained(), resumed.trained(), strict=True):
        assert torch.equal(a, b)
    for name in ("refit.jsonl", "monitor.jsonl"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    assert prm.name == "longest"
    # Replaced after 2, so the evaluation after 3 begins the comparison anew.
    rows = read_watched(whole / "monitor.jsonl")
    assert [row.update for row in rows] == [0, 3, 6]
    replaced = {row["update"]: row["replaced"] for row in read_lines(whole / "refit.jsonl")}
    assert replaced[2]
    assert not replaced[4]
    assert [row.rebased for row in rows] == [False, True, replaced[6]]
    assert rows[1].cusum == 0


def test_a_replacement_that_no_evaluation_has_seen_is_told_after_a_kill(tmp_path, scripted):
    """Saved after the replacement and killed before the evaluation: without being told, the monitor would compare the scores of two PRMs."""
    who = actor()
    (tmp_path / "refit" / "000002").mkdir(parents=True)
    (tmp_path / "refit" / "000002" / "name").write_text("a")
    prm = RefittedPRM(longest())
    fit = Fits(knows("a"))
    (tmp_path / "first").mkdir()
    made = refit(tmp_path / "first", prm, fit, who=who)
    told(made, 2)
    line = (tmp_path / "first" / "refit.jsonl").read_text()
    (tmp_path / "refit.jsonl").write_text(line)
    torch.save({"done": 2}, tmp_path / "state.pt")
    monitor = Monitor(who, tmp_path, prm=prm, watch=Watch(probes=0, resamples=100))
    told_ = []
    monitor.rebase = lambda: told_.append(True)  # type: ignore[method-assign]
    again = RefittedPRM(longest())
    refit(tmp_path, again, Fits(), monitor=monitor, who=who)
    assert told_ == [True]
    assert again.score("p", ["e"]) == [0.9]
    # What was not saved is not gone on with.
    torch.save({"done": 1}, tmp_path / "state.pt")
    fresh = RefittedPRM(longest())
    assert refit(tmp_path, fresh, Fits(), who=who).rows == []
    assert fresh.score("p", ["eee"]) == [0.75]


# --- trained on from its own head -------------------------------------------------------------------------------------


def rows(name, texts):
    """One solution of two steps a problem: of ten rollouts nine were right after a "yes", two after a "no"."""
    made = []
    for n, text in enumerate(texts):
        steps = (f"{text} 1", f"{text} 2")
        judged = tuple(
            (Judgement(kind="value", judge="r", successes=9 if "yes" in step else 2, trials=10),)
            for step in steps
        )
        solution = Solution(problem=Problem(text=f"{name} {n}"), steps=tuple(Step(text=s) for s in steps))
        made.append(
            LabelledRow(labelled=LabelledSolution(solution=solution, judgements=judged), where=f"r:{n}")
        )
    return made


TRAINING = rows("train", ["yes"] * 6 + ["no"] * 6)
HELD = rows("held", ["yes"] * 3 + ["no"] * 3)


def prm_folder(tmp_path, objective, *, adapter, **weights):
    """A PRM with a random head."""
    base = write_base(tmp_path / "base")
    net = net_for(base, objective, **({"rank": 4 if adapter else None} | weights))
    torch.manual_seed(1)
    head = objective.head(net)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    net.set_head(head)
    if adapter:
        for name, parameter in net.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
    folder = tmp_path / "prm"
    write_trained(folder, net, adapter=adapter, base_name=str(base), notes={})
    return folder


READ = {"family": None, "token_budget": 256, "dtype": "float32", "device": "cpu", "seed": 0}


def further(folder, out, *, rank, **changes):
    how = Refitting(**({"full": True} if rank is None else {"lora_rank": rank}), **changes)
    run_recipe(TRAINING, out, recipe_of(str(folder), how, **READ), held_out=HELD, report=lambda _: None)
    return load_prm(str(out), dtype="float32", device="cpu")


def logits(prm):
    found = [
        score
        for row in (*HELD, *TRAINING)
        for score in prm.score(row.solution.problem.text, row.solution.texts)
    ]
    return torch.logit(torch.tensor(found, dtype=torch.float64))


@pytest.mark.parametrize(
    ("objective", "adapter", "rank"),
    [
        (HardLabels(), False, None),
        (HardLabels(), False, 4),
        (HardLabels(), True, 16),
        (CrossEntropy(), False, None),
        (CrossEntropy(), True, None),
    ],
)
def test_a_refit_begins_where_the_prm_is_and_learns(tmp_path, objective, adapter, rank):
    folder = prm_folder(tmp_path, objective, adapter=adapter)
    before = logits(load_prm(str(folder), dtype="float32", device="cpu"))
    # At a rate that changes nothing, all that is new is the calibration: a line through the old logits.
    same = logits(further(folder, tmp_path / "same", learning_rate=1e-9, epochs=1, rank=rank))
    line = torch.stack([before, torch.ones_like(before)], -1)
    fitted = line @ torch.linalg.lstsq(line, same).solution
    assert before.std() > 0.05
    assert torch.allclose(same, fitted, atol=1e-3)
    learnt = logits(further(folder, tmp_path / "learnt", rank=rank, epochs=20, learning_rate=3e-3))
    shares = torch.tensor([0.9] * 12 + [0.2] * 12, dtype=torch.float64)
    entropy = torch.nn.functional.binary_cross_entropy_with_logits
    assert entropy(learnt[12:], shares) < entropy(same[12:], shares) - 0.01
    assert (tmp_path / "learnt" / "adapter_config.json").is_file() == adapter


def test_what_cannot_be_trained_on_is_refused_before_anything_is_written(tmp_path):
    for place, said in (
        ("http://localhost:1/v1", "found a server or a factory"),
        ("package.module:factory", "found a server or a factory"),
    ):
        with pytest.raises(UsageError, match=said):
            recipe_of(place, HOW, **READ)
    folder = prm_folder(tmp_path, TargetTokens(candidates=("-", "+")), adapter=False)
    with pytest.raises(UsageError, match="a vocab head, softmax"):
        recipe_of(str(folder), HOW, **READ)
    with pytest.raises(UsageError, match="a vocab head, softmax"):
        Refit(
            actor(),
            RefittedPRM(knows()),
            str(folder),
            PROBLEMS,
            Says(),
            settings(),
            tmp_path / "run",
            how=HOW,
        )


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_refits_a_checkpoint(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("stepmark.rl.report.rl_html", lambda *_arguments, **_more: iter(("",)))
    folder = prm_folder(tmp_path, HardLabels(), adapter=False)
    policy = tmp_path / "policy"
    tiny_model(TOKENIZER).save_pretrained(policy)
    TOKENIZER.save_pretrained(policy)
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps({"problem": p.text, "answer": "7"}) + "\n" for p in PROBLEMS))
    out = tmp_path / "out"
    words = ["rl", str(file), "--policy", str(policy), "--credit", "process-grpo", "--prm", str(folder)]
    words += ["--out", str(out), "--updates", "2", "--problems", "2", "--group", "2", "--max-tokens", "12"]
    words += ["--prompt", "text", "--instruction", "", "--evaluate-every", "2", "--held-out", "3"]
    words += ["--probes", "0", "--verifier", "number", "--device", "cpu"]
    refits = [
        "--refit",
        "--refit-every",
        "1",
        "--refit-problems",
        "4",
        "--refit-held-out",
        "4",
        "--refit-rollouts",
        "2",
    ]
    assert main([*words, *refits[1:]]) == 2
    assert "--refit-every needs --refit: give both" in capsys.readouterr().err
    assert main([*words[:5], "grpo", *words[8:], *refits]) == 2
    assert "--refit needs a PRM: give --prm" in capsys.readouterr().err
    assert main([*words[:7], "scripted_prms:certain", *words[8:], *refits]) == 2
    assert "scripted_prms:certain: a refit needs the folder or hub name" in capsys.readouterr().err
    assert not (out / "run.json").exists()
    assert main([*words, *refits]) == 0
    rows = read_lines(out / "refit.jsonl")
    assert [row["update"] for row in rows] == [1, 2]
    shown = capsys.readouterr().err
    for row in rows:
        took = "replaced" if row["replaced"] else "kept"
        assert f"after update {row['update']} the PRM was {took}: {row['why']}" in shown
    asked = json.loads((out / "run.json").read_text())["refit"]
    assert (asked["every"], asked["problems"], asked["lora_rank"]) == (1, 4, 16)
