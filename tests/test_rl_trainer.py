"""The policy's trainer on tiny random networks: against plain passes written here, and in worlds where the right thing is known."""

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from rl_models import Says  # noqa: E402
from stepmark.data.steps.splitting import split  # noqa: E402
from stepmark.errors import CheckpointError, InputError, UsageError  # noqa: E402
from stepmark.models.encoding import PromptEncoder  # noqa: E402
from stepmark.models.load import load_prm  # noqa: E402
from stepmark.models.policies.local import Drawn  # noqa: E402
from stepmark.models.scripted import ScriptedPRM  # noqa: E402
from stepmark.records import Problem  # noqa: E402
from stepmark.rl.actor import Actor, padded, passes, rows_of  # noqa: E402
from stepmark.rl.credit.assignment import (  # noqa: E402
    GRPO,
    PPO,
    PRIME,
    ProcessGRPO,
)
from stepmark.rl.policy_trainer import (  # noqa: E402
    PolicyTrainer,
    policy_loss,
    seed_of,
    share_of,
    token_weights,
    value_loss,
)
from stepmark.rl.prime import OnlineImplicit  # noqa: E402
from stepmark.rl.rewarding import batch_of, judge, scored  # noqa: E402
from stepmark.rl.settings import Implicit, PolicyTraining  # noqa: E402
from stepmark.training.objectives.steps import HardLabels  # noqa: E402
from stepmark.training.saving import write_trained  # noqa: E402
from tiny_base import net_for, write_base  # noqa: E402
from tiny_language_model import tiny_model, tiny_tokenizer  # noqa: E402

torch.set_num_threads(1)
TOKENIZER = tiny_tokenizer()
TEXT_OF = PromptEncoder(TOKENIZER, "tiny").text


def actor(**settings):
    return Actor(tiny_model(TOKENIZER), TOKENIZER, name="tiny", **settings)


def settings(**changes):
    usual = {
        "updates": 3,
        "problems": 2,
        "group": 4,
        "max_tokens": 6,
        "prompt": "text",
        "instruction": "",
        "learning_rate": 1e-3,
        "warmup": 0,
        "cut": "verify",
        "evaluate_every": 2,
        "save_every": 1,
    }
    return PolicyTraining(**(usual | changes))


PROBLEMS = [Problem(text=text, answer="e", id=text) for text in ("a", "b c", "what is it")]


class Heard:
    def __init__(self, stop=False):
        self.updates, self.evaluations, self.stop = [], [], stop

    def updated(self, update):
        self.updates.append(update)

    def evaluated(self, evaluation):
        self.evaluations.append(evaluation)
        return self.stop


def trainer(out, credit=None, how=None, policy=None, **more):
    return PolicyTrainer(
        policy or actor(),
        PROBLEMS,
        more.pop("held_out", ()),
        Says(),
        credit or GRPO(),
        how or settings(),
        out=out,
        **more,
    )


def weights(one):
    return [weight.detach().clone() for weight in one.trained()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def drawn(prompt, ids):
    return Drawn(prompt=tuple(prompt), ids=tuple(ids), text=TOKENIZER.decode(ids), finish="length")


ROWS = [drawn([5, 6, 7], [8, 9]), drawn([5], [10, 11, 12]), drawn([6, 5], [])]


def plain(model, row):
    whole = [*row.prompt, *row.ids]
    with torch.no_grad():
        table = model(torch.tensor([whole])).logits[0].float().log_softmax(-1)
    return [float(table[len(row.prompt) - 1 + place, token]) for place, token in enumerate(row.ids)]


def test_log_probabilities_equal_plain_passes() -> None:
    one = actor()
    with torch.no_grad():
        found, values = one.logprobs(padded(ROWS, "cpu"))
    assert values is None
    for row, got in zip(ROWS, found, strict=True):
        wanted = plain(one.model, row)
        assert got[: len(wanted)].tolist() == pytest.approx(wanted, abs=1e-5)
        assert (got[len(wanted) :] == 0).all()


def test_probabilities_are_read_at_the_temperature_that_was_sampled_at() -> None:
    one = actor(temperature=2.0)
    row = ROWS[0]
    with torch.no_grad():
        logits = one.model(torch.tensor([[*row.prompt, *row.ids]])).logits[0].float() / 2
        found, _ = one.logprobs(padded([row], "cpu"))
    wanted = [float(logits[2 + place].log_softmax(-1)[token]) for place, token in enumerate(row.ids)]
    assert found[0].tolist() == pytest.approx(wanted, abs=1e-5)


def test_passes_change_no_number() -> None:
    one, rows = actor(), padded(ROWS, "cpu")
    with torch.no_grad():
        whole, _ = one.logprobs(rows)
        for budget in (1, 8, 100):
            parts = list(passes(rows, torch.arange(3), budget))
            assert sorted(int(n) for part in parts for n in part) == [0, 1, 2]
            for part in parts:
                torch.testing.assert_close(
                    one.logprobs(rows_of(rows, part))[0], whole[part], atol=1e-5, rtol=0
                )


def test_the_reference_is_what_the_policy_began_as() -> None:
    rows = padded(ROWS, "cpu")
    for rank in (None, 2):
        one = actor(reference=True, rank=rank)
        before = one.reference_logprobs(rows)
        with torch.no_grad():
            torch.testing.assert_close(one.logprobs(rows)[0], before)
            for weight in one.trained():
                weight.add_(0.05 * torch.randn_like(weight))
            assert not torch.allclose(one.logprobs(rows)[0], before, atol=1e-3)
        torch.testing.assert_close(one.reference_logprobs(rows), before)
    with pytest.raises(UsageError, match="keeps no reference"):
        actor().reference_logprobs(rows)


@pytest.mark.parametrize("rank", [None, 2])
def test_a_saved_policy_is_the_same_policy(tmp_path, rank) -> None:
    one, rows = actor(rank=rank), padded(ROWS, "cpu")
    with torch.no_grad():
        for weight in one.trained():
            weight.add_(0.05 * torch.randn_like(weight))
        one.save(tmp_path / "policy")
        again = Actor.load(tmp_path / "policy", dtype="float32")
        torch.testing.assert_close(again.logprobs(rows)[0], one.logprobs(rows)[0], atol=1e-4, rtol=0)


def test_token_weights_by_hand() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False], [False] * 3])
    assert token_weights(mask, "token", max_tokens=9)[0].tolist() == pytest.approx([0.25] * 3)
    by_row = token_weights(mask, "sequence", max_tokens=9)
    assert by_row[0].tolist() == pytest.approx([1 / 6] * 3)
    assert by_row[1].tolist() == pytest.approx([1 / 2, 0, 0])
    assert token_weights(mask, "constant", max_tokens=9).sum().item() == pytest.approx(4 / 27)


def test_a_part_of_the_batch_weighs_what_the_whole_would_by_hand() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False], [False] * 3, [True, True, False]])
    # Of six tokens the first two rows have four; of three rows with tokens they are two; of all four rows, half.
    for average, share in (("token", 4 / 6), ("sequence", 2 / 3), ("constant", 1 / 2)):
        weights = token_weights(mask, average, max_tokens=9)
        assert share_of(weights, torch.tensor([0, 1]), average).item() == pytest.approx(share), average
        assert share_of(weights, torch.arange(4), average).item() == pytest.approx(1), average


@pytest.mark.parametrize("average", ["token", "sequence", "constant"])
def test_an_update_is_the_gradient_that_the_papers_write(tmp_path, average) -> None:
    """Rows one by one, without padding: probabilities at the sampling's temperature, the token that follows, the group's advantage."""
    # So few tokens a pass that each row is one.
    how = settings(updates=1, average=average, temperature=0.7, token_budget=1)
    heard, one = Heard(), actor(temperature=0.7)
    run = trainer(tmp_path, how=how, policy=one, listeners=[heard])
    rated = run._collect(run._problems(0), seed=seed_of(run.settings, "train", 0))
    lengths = [len(row.drawn.ids) for row in rated]
    # GRPO divides by each completion's length, DAPO by all tokens, Dr. GRPO by all that there could be.
    share = {
        "token": [1 / sum(lengths)] * 8,
        "sequence": [1 / (8 * length) for length in lengths],
        "constant": [1 / (8 * 6)] * 8,
    }[average]
    loss = torch.zeros(())
    for place, row in enumerate(rated):
        group = torch.tensor([other.outcome for other in rated if other.group == row.group])
        if len(set(group.tolist())) == 1:
            continue
        advantage = float((row.outcome - group.mean()) / group.std())
        ids, before = [*row.drawn.prompt, *row.drawn.ids], len(row.drawn.prompt)
        table = (one.model(torch.tensor([ids])).logits[0] / 0.7).log_softmax(-1)
        for at in range(before, len(ids)):
            loss = loss - share[place] * advantage * table[at - 1, ids[at]]
    assert loss.requires_grad, "every group is flat"
    gradient = torch.autograd.grad(loss, one.trained())
    wanted = math.sqrt(sum(float((part**2).sum()) for part in gradient))
    run.run()
    assert heard.updates[0].figures["gradient"] == pytest.approx(wanted, rel=1e-3)


def test_the_clipped_objective_by_hand() -> None:
    # Ratios 2, 2, 1/2, 1/2 with advantages 1, -1, 1, -1, at 1/4 each: the clip takes the first (1.2) and the last (0.8).
    old = torch.zeros(1, 4)
    now = torch.tensor([[math.log(2), math.log(2), -math.log(2), -math.log(2)]], requires_grad=True)
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
    found = policy_loss(now, old, advantages, torch.full((1, 4), 0.25))
    assert found.loss.item() == pytest.approx(-(1.2 - 2 + 0.5 - 0.8) / 4)
    assert found.clipped.item() == pytest.approx(0.5)
    found.loss.backward()
    assert now.grad[0].tolist() == pytest.approx([0, 0.5, -0.125, 0])


def test_the_divergence_in_the_loss_by_hand() -> None:
    now = torch.tensor([[0.5, 9.0]], requires_grad=True)
    found = policy_loss(
        now,
        now.detach(),
        torch.zeros(1, 2),
        torch.tensor([[1.0, 0.0]]),
        reference=torch.zeros(1, 2),
        kl_loss="k2",
        kl_weight=2.0,
    )
    assert found.loss.item() == pytest.approx(2 * 0.125)
    assert found.divergence.item() == pytest.approx(math.exp(-0.5) - 0.5)


def test_the_critics_loss_by_hand() -> None:
    found = value_loss(torch.tensor([[1.0, 9.0]]), torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    assert found.item() == pytest.approx(2.0)


def test_what_is_rewarded_becomes_likelier(tmp_path) -> None:
    heard = Heard()
    how = settings(updates=40, problems=3, group=16, learning_rate=3e-3, evaluate_every=40)
    trainer(tmp_path, how=how, listeners=[heard], held_out=PROBLEMS * 20).run()
    first, last = (heard.evaluations[at].rated for at in (0, -1))
    before, after = (sum(one.right for one in rated) / len(rated) for rated in (first, last))
    assert after > before + 0.25, (before, after)
    assert heard.updates[-1].rollouts == 40 * 48


def test_a_killed_run_goes_on_to_the_same_weights(tmp_path) -> None:
    for name, credit, more in (
        ("outcome", GRPO(), {}),
        ("prime", PRIME(), {"implicit": True}),
        ("ppo", PPO(), {"values": True}),
    ):

        def make(folder, credit=credit, more=more):
            implicit = more.get("implicit")
            return trainer(
                folder,
                credit,
                settings(updates=4, kl_weight=0.01, minibatches=2, epochs=2),
                policy=actor(reference=True, values=bool(more.get("values"))),
                prm=ScriptedPRM(lambda _problem, steps: 1 / (1 + len(steps[-1]))),
                token_rewards=OnlineImplicit(actor(reference=True), Implicit(learning_rate=1e-3))
                if implicit
                else None,
            )

        straight = make(tmp_path / f"{name}1")
        straight.run()
        make(tmp_path / f"{name}2").run(until=2)
        again = make(tmp_path / f"{name}2")
        again.run()
        assert same(weights(straight.actor), weights(again.actor)), name
        assert again.rollouts == straight.rollouts
        if more.get("implicit"):
            assert same(weights(straight.token_rewards.model), weights(again.token_rewards.model))


def test_groups_all_right_or_all_wrong_teach_nothing(tmp_path) -> None:
    for word in ("", "\n\nnever said\n\n"):
        heard, one = Heard(), actor()
        before = weights(one)
        problems = [replace(problem, answer=word) for problem in PROBLEMS]
        PolicyTrainer(
            one,
            problems,
            (),
            Says(),
            GRPO(),
            settings(),
            out=tmp_path / f"x{len(word)}",
            listeners=[heard],
        ).run()
        assert all(update.figures["flat"] == 1 for update in heard.updates)
        assert same(before, weights(one))


def test_completions_that_are_cut_off(tmp_path) -> None:
    one = actor()
    completion = drawn([5], TOKENIZER("yes it is", add_special_tokens=False)["input_ids"])
    assert completion.text.strip()
    problem = Problem(text="q", answer=completion.text)
    for cut, outcome, left_out in (("wrong", 0, False), ("verify", 1, False), ("drop", 0, True)):
        [rated] = judge([problem], [[completion]], Says(), settings(cut=cut), TEXT_OF)
        assert (rated.outcome, rated.left_out, rated.right, rated.cut) == (outcome, left_out, True, True)
    # All of them are cut off here, and none is trained on.
    before = weights(one)
    trainer(tmp_path, how=settings(cut="drop", max_tokens=1), policy=one).run()
    assert same(before, weights(one))


def test_a_prm_that_answers_nan_stops_the_run_and_the_state_stays(tmp_path) -> None:
    calls = []

    class Breaks:
        name = identity = "breaks"
        default_checks = "none"

        def score_many(self, solutions, *, keep_going=False):
            from stepmark.records import StepScores

            calls.append(1)
            for one in solutions:
                value = math.nan if len(calls) > 1 else 0.5
                yield StepScores(scores=(value,) * len(one.steps), kind="probability")

    with pytest.raises(InputError, match="finite"):
        trainer(tmp_path, ProcessGRPO(), prm=Breaks()).run()
    assert (tmp_path / "state.pt").is_file()
    again = trainer(tmp_path, ProcessGRPO(), prm=ScriptedPRM(lambda _p, steps: 0.5, name="breaks"))
    again.run(until=1)
    assert again.done == 1


def test_step_rewards_stand_at_the_steps_last_tokens() -> None:
    ids = TOKENIZER("yes it is\nno", add_special_tokens=False)["input_ids"]
    text = TOKENIZER.decode(ids)
    completion = Drawn(prompt=(5,), ids=tuple(ids), text=text, finish="end")
    steps = split(text, "line").steps
    assert len(steps) == 2
    scores = {steps[0].text: 0.9, steps[1].text: 0.2}
    rated = judge([Problem(text="q", answer="no")], [[completion]], Says(), settings(), TEXT_OF)
    rated = scored(rated, ScriptedPRM(scores))
    batch = batch_of(rated, padded([completion], "cpu").mask, asked=True)
    first, last = batch.step_ends[0].tolist()
    assert last == len(ids) - 1
    assert steps[0].text in TOKENIZER.decode(ids[: first + 1])
    assert steps[0].text not in TOKENIZER.decode(ids[:first])
    assert batch.step_rewards[0].tolist() == pytest.approx([0.9, 0.2])


def test_a_prm_with_another_tokenizer_rewards_the_policys_own_tokens(tmp_path) -> None:
    """A network with words of its own for the same text, and marks between the steps that no policy's token is."""
    words = tiny_tokenizer(metaspace=True)
    words.add_special_tokens({"additional_special_tokens": ["<file_sep>"]})
    base = write_base(tmp_path / "base", words=words)
    net, objective = net_for(base, HardLabels()), HardLabels()
    torch.manual_seed(1)
    head = objective.head(net)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    net.set_head(head)
    write_trained(tmp_path / "prm", net, adapter=False, base_name=str(base), notes={})
    prm = load_prm(str(tmp_path / "prm"), dtype="float32", device="cpu")
    assert net.tokenizer.get_vocab() != TOKENIZER.get_vocab()
    problem, texts = (
        Problem(text="is it", answer="no"),
        ("yes it is\nno 2 + 3 = 5\n\nno", "no it is not\nyes"),
    )
    written = [TOKENIZER(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert [len(net.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts] != [
        len(ids) for ids in written
    ]
    end = TOKENIZER.eos_token_id
    completions = [
        Drawn(prompt=(5,), ids=(*ids, end), text=text, finish="end")
        for ids, text in zip(written, texts, strict=True)
    ]
    rated = scored(judge([problem], [completions], Says(), settings(), TEXT_OF), prm)
    batch = batch_of(rated, padded(completions, "cpu").mask, asked=True)
    lines = [[line for line in text.split("\n") if line] for text in texts]
    for row, (steps, ids) in enumerate(zip(lines, written, strict=True)):
        rewards = batch.step_rewards[row][batch.has_step[row]].tolist()
        assert rewards == pytest.approx(prm.score(problem.text, steps=steps), abs=1e-5)
        assert len(set(rewards)) == len(steps)
        ends = batch.step_ends[row][batch.has_step[row]].tolist()
        assert ends[-1] == len(ids)  # the end token is the last step's
        for number, place in enumerate(ends[:-1]):
            shown = "\n".join(steps[: number + 1])
            assert shown in TOKENIZER.decode(ids[: place + 1]).replace("\n\n", "\n")
            assert shown not in TOKENIZER.decode(ids[:place]).replace("\n\n", "\n")


def test_implicit_rewards_begin_at_nothing_and_learn_outcomes() -> None:
    rows = padded([drawn([5, 6], [8, 9, 10]), drawn([5, 6], [11, 12])], "cpu")
    prm = OnlineImplicit(actor(reference=True), Implicit(beta=1.0, learning_rate=3e-3))
    assert prm.rewards(rows).abs().max().item() == 0
    outcomes = torch.tensor([1.0, 0.0])
    losses = [prm.learn(rows, outcomes)["implicit_loss"] for _ in range(15)]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-4)
    assert losses[-1] < 0.3
    sums = prm.rewards(rows).sum(-1)
    assert sums[0] > 0 > sums[1]
    assert (prm.rewards(rows)[1, 2:] == 0).all()
    with pytest.raises(UsageError, match="reference=True"):
        OnlineImplicit(actor())


def test_the_value_head_learns_the_returns(tmp_path) -> None:
    one = actor(values=True)
    always = [
        replace(problem, answer="") for problem in PROBLEMS
    ]  # every completion is right: the value of every state is 1
    how = settings(updates=60, learning_rate=1e-2, kl_weight=0.0)
    credit = PPO(lam=1.0, whiten=False)
    PolicyTrainer(
        one, always, (), Says(), credit, how, out=tmp_path, prm=ScriptedPRM(lambda _p, _s: 0.0)
    ).run()
    rows = padded([drawn(TOKENIZER("a")["input_ids"], [8, 9])], "cpu")
    with torch.no_grad():
        _, values = one.logprobs(rows)
    assert values[0].tolist() == pytest.approx([1, 1], abs=0.35)  # they began at 0


def test_a_gradient_that_is_no_number_stops_the_run(tmp_path) -> None:
    one = trainer(tmp_path)
    one.run(until=1)
    kept = (tmp_path / "state.pt").read_bytes()
    with torch.no_grad():
        one.actor.trained()[0].fill_(math.nan)
    with pytest.raises((CheckpointError, RuntimeError, InputError)):
        one._update(1)
    assert (tmp_path / "state.pt").read_bytes() == kept


def test_every_problem_has_its_turn(tmp_path) -> None:
    one = trainer(tmp_path, how=settings(problems=2))
    seen = [problem.id for number in range(3) for problem in one._problems(number)]
    assert sorted(seen) == sorted([p.id for p in PROBLEMS] * 2)
    assert sorted(seen[:3]) == sorted(p.id for p in PROBLEMS)


def test_a_problem_that_comes_twice_in_an_update_is_solved_anew(tmp_path) -> None:
    one = trainer(tmp_path)
    twice = one._collect([PROBLEMS[0], PROBLEMS[1], PROBLEMS[0]], seed=5)
    once = one._collect(PROBLEMS[:2], seed=5)
    ids = [row.drawn.ids for row in twice]
    assert ids[:8] == [row.drawn.ids for row in once]  # whoever else is in the batch
    assert ids[8:] != ids[:4]
    assert [row.group for row in twice] == [0] * 4 + [1] * 4 + [2] * 4
