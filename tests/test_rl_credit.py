"""Credit assignment against numbers worked out by hand from the papers' formulas, and properties that hold for any rewards."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stepmark.errors import InputError, UsageError
from stepmark.rl.batch import Batch
from stepmark.rl.credit.advantages import (
    Deviation,
    batch_scaled,
    clip,
    delta,
    gae,
    kl,
    kl_reward,
    leave_one_out,
    min_form_rewards,
    to_go,
    whitened,
)
from stepmark.rl.credit.assignment import (
    GRPO,
    PPO,
    PRIME,
    RLOO,
    MinForm,
    ProcessGRPO,
    ProgressAdvantage,
)

D = torch.float64


def floats(rows: object) -> Tensor:
    return torch.tensor(rows, dtype=D)


def pair() -> Batch:
    """Two completions of one problem: steps of 2 and 3 tokens, right; one step of 3 tokens, wrong. The second is padded by two."""
    return Batch(
        mask=torch.tensor([[True] * 5, [True] * 3 + [False] * 2]),
        groups=torch.tensor([7, 7]),
        outcome=floats([1, 0]),
        step_ends=torch.tensor([[1, 4], [2, -1]]),
        step_rewards=floats([[0.8, 0.6], [0.1, math.nan]]),  # what stands behind the last step is not read
        token_rewards=floats([[0.1, 0.2, 0.3, 0.4, 0.0], [0.3, -0.3, 0.6, math.nan, math.nan]]),
        values=torch.zeros(2, 5, dtype=D),
    )


def made(method: Callable[..., Any], **fixed: Any) -> Callable[..., Tensor]:
    """A method's advantages as a function of a batch and settings."""
    return lambda batch, **settings: method(**fixed | settings).assign(batch).advantages


outcome_grpo, blend, progress = made(GRPO), made(ProcessGRPO), made(ProgressAdvantage)
grpo_process, min_form = blend, made(MinForm, centre=False)
prime_paper, prime_code = made(PRIME, normalise=False), made(PRIME, normalise=False, form="code")


def ppo(
    batch: Batch, method: Callable[..., Any] = PPO, *, kl: Tensor | None = None, **settings: Any
) -> tuple[Tensor, Tensor]:
    found = method(whiten=False, **settings).assign(batch, kl=kl)
    return found.advantages, found.returns


def close(found: Tensor, wanted: object) -> None:
    torch.testing.assert_close(found, floats(wanted), rtol=0, atol=1e-12)


def test_outcome_grpo_by_hand() -> None:
    # Mean 0.5; the squares add up to 0.5, over N - 1 = 1 or N = 2.
    up = 0.5 / math.sqrt(0.5)
    close(outcome_grpo(pair()), [[up] * 5, [-up] * 3 + [0, 0]])
    close(outcome_grpo(pair(), deviation="population"), [[1, 1, 1, 1, 1], [-1, -1, -1, 0, 0]])
    close(outcome_grpo(pair(), scale=False), [[0.5] * 5, [-0.5, -0.5, -0.5, 0, 0]])


def test_leave_one_out_by_hand() -> None:
    # Each less the other's: 1 - 0 and 0 - 1.
    close(made(RLOO)(pair()), [[1] * 5, [-1, -1, -1, 0, 0]])
    close(made(RLOO)(outcomes_of([[1, 0, 0]])), [[1.0], [-0.5], [-0.5]])


def outcomes_of(groups: list[list[float]]) -> Batch:
    """Completions of one token, with an outcome each."""
    values = [value for group in groups for value in group]
    return Batch(
        mask=torch.ones(len(values), 1, dtype=torch.bool),
        groups=torch.tensor([number for number, group in enumerate(groups) for _ in group]),
        outcome=floats(values),
        step_ends=torch.full((len(values), 1), -1),
    )


@settings(deadline=None, max_examples=40)
@given(
    st.integers(2, 9).flatmap(
        lambda size: st.lists(
            st.lists(st.integers(-5, 5).map(float), min_size=size, max_size=size), min_size=1, max_size=4
        )
    )
)
def test_outcome_grpo_is_that_of_trl_and_verl(groups: list[list[float]]) -> None:
    """Their lines, as they stand there: TRL 1.16.0's `GRPOTrainer._generate_and_score_completions` with `scale_rewards="group"`, verl 0.9.1's
    `compute_grpo_outcome_advantage`; their epsilons (1e-4 and 1e-6) move a number by less than 3e-4 of itself here."""
    found = outcome_grpo(outcomes_of(groups))[:, 0]
    rewards, size = floats(groups).reshape(-1), len(groups[0])
    mean = rewards.view(-1, size).mean(dim=1).repeat_interleave(size)
    std = rewards.view(-1, size).std(dim=1).repeat_interleave(size)
    torch.testing.assert_close(found, (rewards - mean) / (std + 1e-4), rtol=3e-4, atol=1e-9)
    verl = [
        (score - torch.mean(scores)) / (torch.std(scores) + 1e-6)
        for scores in map(floats, groups)
        for score in scores
    ]
    torch.testing.assert_close(found, torch.stack(verl), rtol=1e-5, atol=1e-9)


def test_a_group_of_one_has_no_spread_by_either_deviation() -> None:
    for deviation in get_args(Deviation):
        close(outcome_grpo(outcomes_of([[3.0], [1.0]]), deviation=deviation), [[0], [0]])


def test_a_group_all_right_or_all_wrong_has_nothing_to_say() -> None:
    for value in (0.0, 1.0, 0.1):
        same = replace(pair(), outcome=floats([value, value]))
        close(outcome_grpo(same), [[0] * 5, [0] * 5])


def test_the_mean_of_the_others_by_hand_and_that_there_must_be_some() -> None:
    close(leave_one_out(floats([1, 0, 0.5]), torch.tensor([1, 1, 1])), [0.25, 0.75, 0.5])
    alone = replace(pair(), groups=torch.tensor([1, 2]))
    for method in (prime_paper, prime_code, min_form):
        with pytest.raises(UsageError, match="at least two completions"):
            method(alone)


def test_grpo_with_process_supervision_by_hand() -> None:
    # rewards 0.8, 0.6, 0.1: mean 0.5, squares 0.09 + 0.01 + 0.16, over 2 or 3
    for deviation, s in (("sample", math.sqrt(0.26 / 2)), ("population", math.sqrt(0.26 / 3))):
        first, second, third = 0.3 / s, 0.1 / s, -0.4 / s
        found = grpo_process(pair(), deviation=deviation)
        close(found, [[first + second] * 2 + [second] * 3, [third] * 3 + [0, 0]])


def test_the_soft_minimum_by_hand() -> None:
    # The step rewards differ by 0.2, so this temperature weighs them 1 : 3.
    t = 0.2 / math.log(3)
    close(min_form_rewards(pair(), temperature=t), [[0.25 * 0.8, 0.75 * 0.6], [0.1, 0]])

    # It tends to the minimum.
    assert float(min_form_rewards(pair(), temperature=1e-3)[0].sum()) == pytest.approx(0.6)


def test_min_form_with_the_token_baseline_by_hand() -> None:
    t = 0.2 / math.log(3)
    # R = 0.65 over 5 tokens and 0.1 over 3. The other's rate is taken from each token; the verifier gives 0 - (-1) and -1 - 0 at the end.
    row = [0.2 - 2 * 0.1 / 3, 0.45 - 3 * 0.1 / 3 + 1]
    close(
        min_form(pair(), temperature=t),
        [[row[0] + row[1]] * 2 + [row[1]] * 3, [0.1 - 3 * 0.13 - 1] * 3 + [0, 0]],
    )


def test_min_form_with_the_step_baseline_by_hand() -> None:
    t = 0.2 / math.log(3)
    close(
        min_form(pair(), temperature=t, baseline="step", outcome_weight=0),
        [[0.45, 0.45, 0.35, 0.35, 0.35], [0.1 - 0.325] * 3 + [0, 0]],
    )
    close(
        min_form(pair(), temperature=t, baseline="none", outcome_weight=0),
        [[0.65, 0.65, 0.45, 0.45, 0.45], [0.1] * 3 + [0, 0]],
    )


def test_the_step_baseline_knows_nothing_of_completions_without_steps() -> None:
    # R = 0.9 in one step, 0.4 in one step, and one that the PRM could not read: the first two have each other.
    batch = Batch(
        mask=torch.ones(3, 2, dtype=torch.bool),
        groups=torch.tensor([0, 0, 0]),
        outcome=floats([0, 0, 0]),
        step_ends=torch.tensor([[1], [1], [-1]]),
        step_rewards=floats([[0.9], [0.4], [0]]),
    )
    for baseline, wanted in (("step", [0.5, -0.5, 0.0]), ("token", [0.5, -0.5, 0.0])):
        found = min_form(batch, baseline=baseline, outcome_weight=0)
        close(found, [[row, row] for row in wanted])
    # Nobody else has steps: nothing is taken.
    lonely = replace(batch, step_ends=torch.tensor([[1], [-1], [-1]]))
    close(min_form(lonely, baseline="step", outcome_weight=0), [[0.9, 0.9], [0, 0], [0, 0]])


def test_progress_by_hand() -> None:
    # From the group's mean outcome of 0.5, progress 0.3 and -0.2; -0.4. Outcomes less their mean: 0.5 and -0.5.
    close(progress(pair(), progress_weight=2), [[1.1, 1.1, 0.1, 0.1, 0.1], [-1.3] * 3 + [0, 0]])


def test_prime_as_the_paper_writes_it_by_hand() -> None:
    # Both mean token rewards are 0.2.
    close(prime_paper(pair()), [[1, 1.1, 1.1, 1, 0.8], [-1, -1.1, -0.6, 0, 0]])


def test_prime_as_the_code_does_it_by_hand() -> None:
    # K = 2: r~ = 2 r - 0.4
    returns = floats([[1, 1.2, 1.2, 1, 0.6], [-1, -1.2, -0.2, 0, 0]])
    close(prime_code(pair()), whitened(returns, pair().mask).tolist())


def test_whitening_by_hand() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    # 1, 2, 3: mean 2, squares 2, over 2 or 3
    close(whitened(floats([[1, 2], [3, 99]]), mask), [[-1, 0], [1, 0]])
    s = math.sqrt(2 / 3)
    close(whitened(floats([[1, 2], [3, 99]]), mask, deviation="population"), [[-1 / s, 0], [1 / s, 0]])
    for deviation in get_args(Deviation):
        close(whitened(floats([[4, 4], [4, 99]]), mask, deviation=deviation), [[0, 0], [0, 0]])
        close(whitened(floats([[7, 8]]), torch.tensor([[True, False]]), deviation=deviation), [[0, 0]])
        close(whitened(floats([[7]]), torch.tensor([[False]]), deviation=deviation), [[0]])


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), size=st.integers(2, 4))
def test_whitening_is_that_of_trl_and_verl(seed: int, size: int) -> None:
    """`masked_whiten` of verl (`utils/torch_functional.py`) and of TRL's former PPO trainer, line by line."""
    batch = drawn(seed, size)
    assert batch.values is not None
    values, mask = batch.values, batch.mask.to(D)
    mean = (values * mask).sum() / mask.sum()
    variance = (((values - mean) ** 2) * mask).sum() / mask.sum()
    variance = variance * (mask.sum() / (mask.sum() - 1))
    theirs = (values - mean) * torch.rsqrt(variance + 1e-8) * mask
    torch.testing.assert_close(whitened(values, batch.mask), theirs, rtol=1e-5, atol=1e-7)


def test_the_methods_divide_by_the_deviation_that_they_name() -> None:
    """Each method by name: N counts outcomes, step rewards, right completions or tokens."""
    outcome, process = GRPO, partial(ProcessGRPO, process_weight=1.0)
    ratio = {name: math.sqrt(n / (n - 1)) for name, n in (("outcome", 2), ("process", 3), ("tokens", 8))}
    lone = replace(pair(), values=floats([[0.1, 0.2, 0.3, 0.4, 0.5], [0.3, 0.2, 0.1, 9, 9]]))
    for method, larger in (
        (outcome, ratio["outcome"]),
        (process, ratio["process"]),
        (partial(PRIME, form="code"), ratio["tokens"]),
        (PPO, ratio["tokens"]),
    ):
        sample, population = (
            method(deviation=deviation).assign(lone).advantages for deviation in get_args(Deviation)
        )
        assert sample.abs().max() > 0.1
        torch.testing.assert_close(population, sample * larger, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(method().assign(lone).advantages, sample, rtol=0, atol=0)


def test_the_batch_scale_is_of_the_whole_batch() -> None:
    # Sums to the end: 3, 2 and -5, -1; the largest size is 5.
    found = batch_scaled(floats([[1, 2], [-4, -1]]))
    torch.testing.assert_close(found, floats([[0.2, 0.4], [-0.8, -0.2]]), rtol=1e-6, atol=0)


def test_generalised_advantages_by_hand() -> None:
    mask = torch.tensor([[True, True]])
    advantages, returns = gae(floats([[0, 1]]), floats([[0.5, 0.25]]), mask, gamma=0.5, lam=0.5)
    close(advantages, [[-0.1875, 0.75]])
    close(returns, [[0.3125, 1.0]])


def test_ppo_by_hand() -> None:
    # The first: values 0.5, 0.5, 0.5, 0.5, 0.6 and a reward of 1 at the end; the second: all 0.2 and no reward.
    batch = replace(pair(), values=floats([[0.5, 0.5, 0.5, 0.5, 0.6], [0.2] * 3 + [9, 9]]))
    advantages, returns = ppo(batch, gamma=1.0, lam=0.5)
    # Differences 0, 0, 0, 0.1, 0.4 and 0, 0, -0.2; each token has half of what the next one has on top.
    close(advantages, [[0.0375, 0.075, 0.15, 0.3, 0.4], [-0.05, -0.1, -0.2, 0, 0]])
    close(returns, [[0.5375, 0.575, 0.65, 0.8, 1.0], [0.15, 0.1, 0.0, 0, 0]])
    with pytest.raises(UsageError, match="critic"):
        ppo(replace(batch, values=None))


def test_clip_and_delta_by_hand() -> None:
    close(clip(pair(), threshold=0.7), [[0, -0.1], [-0.6, 0]])
    close(delta(pair()), [[0.2, 0.6], [0.1, 0]])


def test_blend_by_hand() -> None:
    # A quarter of the process advantages of the test above, three quarters of the outcome's.
    for deviation, s, up in (
        ("sample", math.sqrt(0.26 / 2), math.sqrt(0.5)),
        ("population", math.sqrt(0.26 / 3), 1.0),
    ):
        early, late, wrong = (
            0.75 * up + 0.25 * 0.4 / s,
            0.75 * up + 0.25 * 0.1 / s,
            -0.75 * up - 0.25 * 0.4 / s,
        )
        found = blend(pair(), process_weight=0.25, deviation=deviation)
        close(found, [[early] * 2 + [late] * 3, [wrong] * 3 + [0, 0]])


def test_divergence_estimators_by_hand() -> None:
    mask = torch.tensor([[True, False]])
    log, ref = floats([[-1.0, -9.0]]), floats([[-1.5, 3.0]])
    close(kl(log, ref, mask, estimator="k1"), [[0.5, 0]])
    close(kl(log, ref, mask, estimator="k2"), [[0.125, 0]])
    close(kl(log, ref, mask, estimator="k3"), [[math.exp(-0.5) - 0.5, 0]])
    # A small divergence in float32: delta is 2**-14, k3 half its square.
    near = kl(
        torch.tensor([[-1.0]]), torch.tensor([[-1.0 - 2.0**-14]]), torch.tensor([[True]]), estimator="k3"
    )
    assert near.item() == pytest.approx(2.0**-29, rel=0.02)
    assert torch.isfinite(kl(floats([[-500.0, 0]]), floats([[500.0, 0]]), mask, estimator="k3")).all()


def test_divergence_in_the_reward_by_hand() -> None:
    now = floats([[-1.0, -2.0]]).requires_grad_()
    found = kl_reward(now, floats([[-1.5, -1.0]]), torch.tensor([[True, True]]), weight=0.2)
    assert not found.requires_grad  # it is a reward, not a loss
    close(found, [[-0.1, 0.2]])


def test_divergence_means_and_gradients_by_enumeration() -> None:
    """Over all tokens of a small vocabulary: k1 and k3 have the true divergence as their mean, k2 its true gradient on-policy."""
    logits = torch.tensor([0.3, -0.7, 1.1], dtype=D, requires_grad=True)
    ref = torch.log_softmax(floats([0.9, 0.1, -0.4]), 0)
    log = torch.log_softmax(logits, 0)
    true = (log.exp() * (log - ref)).sum()
    (wanted,) = torch.autograd.grad(true, logits, retain_graph=True)
    every = torch.ones(3, 1, dtype=torch.bool)
    weights = log.exp().detach()
    means = {
        name: (weights * kl(log[:, None], ref[:, None], every, estimator=name)[:, 0]).sum()
        for name in ("k1", "k2", "k3")
    }
    assert means["k1"].item() == pytest.approx(true.item())
    assert means["k3"].item() == pytest.approx(true.item())
    gradients = {
        name: torch.autograd.grad(mean, logits, retain_graph=True)[0] for name, mean in means.items()
    }
    torch.testing.assert_close(gradients["k2"], wanted)
    torch.testing.assert_close(gradients["k1"], torch.zeros(3, dtype=D), rtol=0, atol=1e-12)


def drawn(seed: int, size: int, groups: int = 2, tokens: int = 6) -> Batch:
    g = torch.Generator().manual_seed(seed)
    rows = size * groups
    lengths = torch.randint(2, tokens + 1, (rows,), generator=g)
    mask = torch.arange(tokens)[None] < lengths[:, None]
    ends = torch.full((rows, 3), -1)
    for row, length in enumerate(lengths.tolist()):
        # Every other batch has tokens behind the last step's end.
        last = length - 1 - (seed % 2 if length > 2 else 0)
        cuts = sorted({*torch.randint(0, last + 1, (2,), generator=g).tolist(), last})
        ends[row, : len(cuts)] = torch.tensor(cuts)
    return Batch(
        mask=mask,
        groups=torch.arange(groups).repeat_interleave(size),
        outcome=torch.randint(0, 2, (rows,), generator=g).to(D),
        step_ends=ends,
        step_rewards=torch.rand(rows, 3, generator=g, dtype=D),
        token_rewards=torch.randn(rows, tokens, generator=g, dtype=D),
        values=torch.rand(rows, tokens, generator=g, dtype=D),
    )


METHODS: dict[str, Callable[[Batch], Tensor]] = {
    "outcome": outcome_grpo,
    "grpo-process": grpo_process,
    "min-form": min_form,
    "progress": progress,
    "prime-paper": prime_paper,
    "prime-code": prime_code,
    "rloo": made(RLOO),
    "ppo": lambda batch: ppo(batch)[0],
    "blend": lambda batch: blend(batch, process_weight=0.3),
}


@pytest.mark.parametrize("name", METHODS)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), size=st.integers(2, 4))
def test_every_method_is_finite_masked_and_blind_to_the_order(name: str, seed: int, size: int) -> None:
    batch = drawn(seed, size)
    found = METHODS[name](batch)
    assert found.shape == batch.mask.shape
    assert torch.isfinite(found).all()
    assert (found[~batch.mask] == 0).all()
    order = torch.randperm(len(batch.groups), generator=torch.Generator().manual_seed(seed + 1))
    moved = Batch(**{field: getattr(batch, field)[order] for field in Batch.__dataclass_fields__})
    torch.testing.assert_close(METHODS[name](moved), METHODS[name](batch)[order], rtol=1e-9, atol=1e-9)


def test_a_group_mean_gives_back_what_clip_and_delta_took() -> None:
    """Summed as they are they hold what they say. Group normalisation takes their mean from every step: a clipped one that did not lose earns,
    and under delta each further step costs."""
    rows = [[0.9, 0.9], [0.9, 0.9, 0.9, 0.9], [0.9, 0.2]]  # good; good and longer; a bad step
    batch = Batch(
        mask=torch.ones(3, 4, dtype=torch.bool),
        groups=torch.zeros(3, dtype=torch.int64),
        outcome=floats([0, 0, 0]),
        step_ends=torch.tensor([[0, 3, -1, -1], [0, 1, 2, 3], [0, 3, -1, -1]]),
        step_rewards=floats([row + [0] * (4 - len(row)) for row in rows]),
        values=torch.zeros(3, 4, dtype=D),
    )
    clipped, differences = (
        replace(batch, step_rewards=shape) for shape in (clip(batch, threshold=0.5), delta(batch))
    )
    close(clipped.step_rewards.sum(-1), [0, 0, -0.3])
    close(differences.step_rewards.sum(-1), [0.9, 0.9, 0.9])
    # Of eight rewards one is -0.3: mean -0.0375, squares 7 * 0.0375² + 49 * 0.0375², over 7.
    close(grpo_process(clipped)[:2, 0], [2 / math.sqrt(8), 4 / math.sqrt(8)])
    found = grpo_process(differences)[:, 0]
    assert found[0] > found[1]


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_more_steps_earn_nothing_under_delta_and_clip(seed: int) -> None:
    batch = drawn(seed, 3)
    assert batch.step_rewards is not None
    scores = torch.where(batch.has_step, batch.step_rewards, 0.0)
    torch.testing.assert_close(to_go(delta(batch)), scores)
    assert (clip(batch, threshold=0.5) <= 0).all()


def test_discounted_sums_by_hand() -> None:
    close(to_go(floats([[1, 2, 4]]), gamma=0.5), [[3, 4, 4]])
    close(to_go(floats([[1, 2, 4]])), [[7, 6, 4]])


def test_tokens_and_steps() -> None:
    batch = pair()
    assert batch.step_of.tolist() == [[0, 0, 1, 1, 1], [0, 0, 0, -1, -1]]
    assert batch.step_lengths.tolist() == [[2, 3], [3, 0]]
    assert batch.last_token.tolist() == [4, 2]
    # A token after the last step's end belongs to none.
    early = replace(batch, step_ends=torch.tensor([[1, 3], [2, -1]]))
    assert early.step_of.tolist()[0] == [0, 0, 1, 1, -1]


def test_an_empty_completion_has_no_place_and_no_credit() -> None:
    batch = Batch(
        mask=torch.tensor([[True, True], [False, False]]),
        groups=torch.tensor([0, 0]),
        outcome=floats([1, 0]),
        step_ends=torch.tensor([[1], [-1]]),
        step_rewards=floats([[0.5], [0.0]]),
        token_rewards=floats([[0.1, 0.2], [0, 0]]),
        values=torch.zeros(2, 2, dtype=D),
    )
    for name, method in METHODS.items():
        found = method(batch)
        assert (found[1] == 0).all(), name
        assert torch.isfinite(found).all(), name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"outcome": floats([1, math.nan])}, "outcome: .*nan"),
        ({"step_rewards": floats([[0.8, math.inf], [0.1, 0]])}, "row 0, step 1"),
        ({"token_rewards": floats([[0, 0, 0, 0, 0], [0, math.nan, 0, 0, 0]])}, "row 1, token 1"),
        ({"step_ends": torch.tensor([[4, 1], [2, -1]])}, "rising"),
        ({"step_ends": torch.tensor([[1, 5], [2, -1]])}, "under 5"),
        ({"step_ends": torch.tensor([[1, 4], [3, -1]])}, "trained tokens"),
        ({"step_ends": torch.tensor([[-1, 4], [2, -1]])}, "rising"),
        ({"groups": torch.tensor([1, 2, 3])}, "groups: expected the shape"),
        ({"mask": torch.ones(2, 5)}, "bool"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_by_its_place(change: dict[str, Tensor], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(pair(), **change)
