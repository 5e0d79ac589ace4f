"""The engine: each distinct prefix token is computed once, bounded in memory, and nothing changes by it."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModel, LlamaConfig, Qwen2Config

from stepmark.errors import CheckpointError, InputError, MarkerInTextError, TooLongError
from stepmark.models import attention
from stepmark.models.encoding import Encoder
from stepmark.models.engine import Engine, PrefixCache, fitting, token_budget, windows
from stepmark.models.local_prm import HeadPRM, ImplicitPRM
from stepmark.models.packed_tree import pack
from stepmark.models.prm import Ledger
from stepmark.models.spec import LinearHead, LogRatioHead, Readout, ScoringSpec, TextLayout
from stepmark.records import Problem, Refusal, Solution, Step, StepScores
from tiny_language_model import tiny_tokenizer

torch.set_num_threads(1)

SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "head_dim": 8,
    # Wide weights: attention that is far from uniform, so that a wrong path would be seen.
    "initializer_range": 0.25,
    "pad_token_id": None,
}


@functools.cache
def tiny(layers=2, vocabulary=40, config_class=LlamaConfig, seed=0):
    attention.register()
    torch.manual_seed(seed)
    config = config_class(**SIZES, num_hidden_layers=layers, vocab_size=vocabulary)
    return AutoModel.from_config(config, attn_implementation=attention.NAME).eval()


class Watched:
    """A backbone that notes how many tokens each forward pass had, and how many keys came from before."""

    def __init__(self, model):
        self.model, self.config = model, model.config
        self.sizes, self.carried = [], []

    def __call__(self, *, input_ids, position_ids, use_cache, stepmark_plan):
        self.sizes.append(input_ids.shape[1])
        self.carried.append(max((k.shape[2] for k, _ in stepmark_plan.carried.values()), default=0))
        return self.model(
            input_ids=input_ids, position_ids=position_ids, use_cache=use_cache, stepmark_plan=stepmark_plan
        )


def engine(model=None, *, budget, device="cpu"):
    return Engine(Watched(model or tiny()), device=device, token_budget=budget, ledger=Ledger())


def hidden(runs, sequences, reads):
    """What the engine gives for the tokens at `reads[i]` of sequence i: a dict by (i, position)."""
    tree = pack([np.asarray(s) for s in sequences])
    rows = np.unique([int(path[r]) for path, rs in zip(tree.paths, reads, strict=True) for r in rs])
    states = dict(zip(rows.tolist(), runs.run(tree, rows), strict=True))
    return {
        (i, r): states[int(path[r])]
        for i, (path, rs) in enumerate(zip(tree.paths, reads, strict=True))
        for r in rs
    }


def alone(model, sequence, dtype=None):
    """Hidden states of one sequence in a forward pass of its own, by transformers' attention."""
    model.set_attn_implementation("sdpa")
    with torch.inference_mode():
        states = model(torch.tensor([sequence]), use_cache=False).last_hidden_state[0]
    model.set_attn_implementation(attention.NAME)
    return states


def assert_equals_alone(found, model, sequences, close=1e-5):
    states = [alone(model, s) for s in sequences]
    for (i, r), state in found.items():
        torch.testing.assert_close(state.cpu(), states[i][r], rtol=close, atol=close)


def prefixes(sequences):
    return {tuple(s[:n]) for s in sequences for n in range(1, len(s) + 1)}


def shared_start(sequences):
    columns = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*sequences, strict=False))
    return tuple(column[0] for column in columns)


def words(rng, count, letters=40):
    return tuple(rng.randint(0, letters, count).tolist())


def random_call(rng):
    """Candidates of one or two problems under one template, and where each is read: at its end, or earlier too."""
    problems = [((0, 0, 0), (0, 0, 1), (1,))[i] for i in rng.randint(0, 3, rng.randint(1, 3))]
    tails = [words(rng, rng.randint(1, 6), 2) for _ in range(rng.randint(1, 6))]
    sequences = [(5, 6, 7, 8, *problems[i % len(problems)], *tail) for i, tail in enumerate(tails)]
    early = rng.rand() < 0.4
    reads = [sorted({len(s) - 1, rng.randint(0, len(s)) if early else len(s) - 1}) for s in sequences]
    return sequences, reads


@pytest.mark.parametrize("budget", [1, 3, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_every_distinct_token_is_computed_once(seed, budget):
    """Counted with sets; and of a call, what it shares with the kept opening is not computed again."""
    rng = np.random.RandomState(seed)
    runs = engine(tiny(layers=1), budget=budget)
    kept, alone_tokens, saved = (), 0, 0
    for _ in range(6):
        sequences, reads = random_call(rng)
        before = runs.ledger.tokens_computed
        found = hidden(runs, sequences, reads)
        opening = shared_start(sequences)[: min(r for rs in reads for r in rs)]
        again = len(shared_start([kept, opening]))
        assert runs.ledger.tokens_computed - before == len(prefixes(sequences)) - again
        kept, saved = opening, saved + again
        alone_tokens += sum(map(len, sequences))
        assert_equals_alone(found, tiny(layers=1), sequences)
    assert saved > 0
    assert runs.ledger.tokens_in == alone_tokens
    assert runs.ledger.tokens_distinct == runs.ledger.tokens_computed == sum(runs.backbone.sizes)
    assert runs.ledger.cache_hits == alone_tokens - sum(runs.backbone.sizes)
    assert max(runs.backbone.sizes) <= budget


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")),
    ],
)
def test_a_tree_of_many_budgets_runs_in_chunks(device):
    """40 times the budget: no forward pass is larger, and what it carries is one path, not the tree."""
    rng, budget = np.random.RandomState(1), 16
    trunk = words(rng, 40)
    sequences = [trunk[: rng.randint(1, 40)] + words(rng, rng.randint(1, 30)) for _ in range(44)]
    distinct = len(prefixes(sequences))
    assert distinct >= 40 * budget
    model = tiny(config_class=Qwen2Config).to(device)
    runs = engine(model, budget=budget, device=device)
    found = hidden(runs, sequences, [[len(s) // 2, len(s) - 1] for s in sequences])
    assert max(runs.backbone.sizes) == budget
    assert len(runs.backbone.sizes) == math.ceil(distinct / budget)
    assert sum(runs.backbone.sizes) == runs.ledger.tokens_computed == distinct
    # Beside the path to its first token, a chunk needs what it branches off: never more than two paths.
    assert max(runs.backbone.carried) <= max(len(s) for s in sequences)
    assert_equals_alone(found, model.to("cpu"), sequences, 1e-5 if device == "cpu" else 1e-3)


def test_bfloat16_is_near_float32():
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES | {"initializer_range": 0.1}, num_hidden_layers=2, vocab_size=40)
    attention.register()
    model = AutoModel.from_config(config, attn_implementation=attention.NAME).eval()
    rng = np.random.RandomState(2)
    trunk = words(rng, 20)
    sequences = [trunk + words(rng, 5) for _ in range(3)]
    reads = [[10, 24]] * 3
    exact = hidden(engine(model, budget=9), sequences, reads)
    rounded = hidden(engine(model.to(torch.bfloat16), budget=9), sequences, reads)
    for key, state in exact.items():
        assert rounded[key].dtype == torch.bfloat16
        # 8 bits of mantissa through two layers; hidden states after the final norm are of size 1.
        assert 0 < (rounded[key].float() - state).abs().max().item() < 0.1


class Waits(TorchDispatchMode):
    """Counts the operations at which a host waits for a device, and those that make an index tensor on the host, from the first layer of a pass to its last."""

    WAITING = (
        "aten::_local_scalar_dense",
        "aten::nonzero",
        "aten::item",
        "aten::masked_select",
        "aten::_to_copy",
    )

    def __init__(self, model):
        super().__init__()
        self.inside, self.layers, self.counted = False, 0, collections.Counter()
        self.hooks = [
            model.layers[0].register_forward_pre_hook(lambda *_: self.enter()),
            model.layers[-1].register_forward_hook(lambda *_: self.leave()),
        ]

    def enter(self):
        self.inside = True
        self.layers += 1

    def leave(self):
        self.inside = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition(".")[0]
        moves = name != "aten::_to_copy" or "device" in (kwargs or {})
        masks = name == "aten::index" and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if self.inside and (masks or (name in self.WAITING and moves)):
            self.counted[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("owner", ["engine", "session"])
def test_nothing_waits_inside_a_pass(owner):
    """Between first and last layer no value is read on the host and nothing is moved, so that a GPU never waits for its host."""
    rng = np.random.RandomState(3)
    trunk = words(rng, 20)
    sequences = [trunk + words(rng, 9) for _ in range(5)]
    model = tiny()
    with Waits(model) as waits:
        if owner == "engine":
            hidden(engine(budget=16), sequences, [[10, 28]] * 5)
        else:
            cache = PrefixCache([engine(budget=16)], capacity=100, states=True)
            cache.hold([np.asarray(s) for s in sequences])
    for hook in waits.hooks:
        hook.remove()
    assert waits.layers == math.ceil(len(prefixes(sequences)) / 16)
    assert not waits.counted


def test_a_wait_would_be_counted():
    layers = torch.nn.ModuleList([torch.nn.Identity()])
    model = torch.nn.Module()
    model.layers = layers
    with Waits(model) as waits:
        waits.enter()
        x = torch.arange(4)
        x.max().item(), x[x > 1], x.nonzero()
    assert len(waits.counted) == 3


def test_the_default_budget_follows_free_memory():
    """A 7B network in bfloat16: a token takes 2 * (8 * 3584 + 4 * 18944 + 4 * 28 * 4 * 128) = 323,584 bytes."""
    config = types.SimpleNamespace(
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
    )
    network = types.SimpleNamespace(config=config, dtype=torch.bfloat16)
    assert fitting(network, 4000 * 323_584) == 4000
    assert fitting(network, 32 << 30) == 16_384
    assert fitting(network, 0) == token_budget(network, "cpu") == 2048


ITEMS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60)), max_size=30)


@given(ITEMS, st.integers(1, 50))
def test_windows_lose_nothing_and_are_bounded(items, budget):
    marked = [(key, tokens, (key, tokens, i)) for i, (key, tokens) in enumerate(items)]
    groups = list(windows(marked, budget))
    assert [item for group in groups for item in group] == [item for _, _, item in marked]
    for group in groups:
        assert group
        # It stops at the latest with the item that passes 16 budgets.
        assert sum(tokens for _, tokens, _ in group[:-1]) < 16 * budget
    for group, after in itertools.pairwise(groups):
        size = sum(tokens for _, tokens, _ in group)
        if group[-1][0] == after[0][0]:
            assert size >= 16 * budget, "a problem was torn apart though it is no giant"
        else:
            assert size >= budget, "a group ended early"
        # It ended at the first chance: without its last run of one key it was not yet full.
        earlier = list(itertools.dropwhile(lambda item, key=group[-1][0]: item[0] == key, reversed(group)))
        assert sum(tokens for _, tokens, _ in earlier) < budget


SPEC = ScoringSpec(
    family="test",
    summary="",
    source="",
    layout=TextLayout(opening="solve: {problem}\n", mark=" <end>\n"),
    readout=Readout(head=LinearHead(), activation="sigmoid"),
    score_kind="probability",
    aggregate="min",
    threshold=0.5,
)


def grader(*, budget=64, max_tokens=None, truncate=False):
    """A PRM with random weights: a tiny Llama and a one-unit head."""
    tokenizer = tiny_tokenizer()
    model = Watched(tiny(vocabulary=len(tokenizer)))
    weight = torch.randn(1, 32, generator=torch.Generator().manual_seed(3))
    return HeadPRM(
        name="tiny",
        spec=SPEC,
        encoder=Encoder(tokenizer, SPEC.layout, max_tokens=max_tokens, truncate=truncate),
        models=[(Engine(model, device="cpu", token_budget=budget, ledger=Ledger()), None)],
        head=lambda rows: rows @ weight.T,
        neutral="positive",
        identity=lambda: "tiny#1",
    )


def expected(prm, solution):
    """The same scores by one plain forward pass of the solution, positions found by tokenising prefixes."""
    text = f"solve: {solution.problem.text}\n"
    ends = []
    for step in solution.texts:
        text += f"{step} <end>\n"
        ends.append(len(prm.encoder.tokenizer(text)["input_ids"]) - 1)
    states = alone(prm.engine.backbone.model, prm.encoder.tokenizer(text)["input_ids"])
    return torch.sigmoid(prm.head(states[ends])[:, 0]).tolist()


def some_solutions(problems=4, candidates=5, seed=0):
    rng = np.random.RandomState(seed)
    return [
        Solution.of(
            f"problem {p}: 2 + {p} = ?",
            tuple(f"step {rng.randint(0, 2)}: the sum is {rng.randint(0, 2)}." for _ in range(1 + c % 4)),
            id=f"{p}.{c}",
        )
        for p in range(problems)
        for c in range(candidates)
    ]


@pytest.mark.parametrize("budget", [5, 64, 4096])
def test_score_many_equals_plain_forward_passes(budget):
    prm, solutions = grader(budget=budget), some_solutions()
    results = list(prm.score_many(solutions))
    assert len(results) == len(solutions)
    for solution, result in zip(solutions, results, strict=True):
        assert result.scores == pytest.approx(expected(prm, solution), abs=1e-5)
        assert result.kind == "probability"
    assert len({round(s, 3) for r in results for s in r.scores}) > 10, "the scores should differ"
    assert prm.ledger.solutions == len(solutions)
    assert prm.ledger.steps == sum(len(s.steps) for s in solutions)
    assert max(prm.engine.backbone.sizes) <= budget


def endless(same_problem, pulled):
    for i in itertools.count():
        pulled.append(i)
        yield Solution.of(
            "one" if same_problem else f"problem {i}", [f"step {i}: yes.", "the sum is correct."]
        )


@pytest.mark.parametrize(("same_problem", "windows_of"), [(False, 4), (True, 16 * 4)])
def test_an_endless_stream_is_answered_as_it_comes(same_problem, windows_of):
    """A window holds 4 budgets of tokens, and 16 times that of one problem; no more is read ahead."""
    prm, pulled = grader(budget=32), []
    results = prm.score_many(endless(same_problem, pulled))
    assert pulled == []
    shortest = len(prm.encoder.encode(Solution.of("one", ["step 0: yes.", "the sum is correct."])).ids)
    for _ in range(3):
        assert isinstance(next(results), StepScores)
        assert len(pulled) <= windows_of * 32 / shortest + 2


def bad_rows():
    good = some_solutions(problems=1, candidates=1)[0]
    return [
        (Solution.of("p", ["is it <end> correct"], id="marked"), MarkerInTextError, "<end>"),
        (Solution.of("p", ["yes", "  "], id="blank"), InputError, "step 2 of 2 is empty"),
        (Solution.of(" ", ["yes"], id="no problem"), InputError, "problem is empty"),
        (Solution.of("p", (), id="no steps"), InputError, "no steps"),
        (Solution.of("p", ["yes. " * 90], id="long"), TooLongError, "this model reads 80"),
        (good, None, None),
    ]


def test_keep_going_yields_a_refusal_in_its_place():
    good, rows = some_solutions(problems=2, candidates=2), bad_rows()
    solutions = [s for row, g in zip(rows, good * 2, strict=False) for s in (row[0], g)]
    prm = grader(max_tokens=80)
    results = list(prm.score_many(solutions, keep_going=True))
    assert len(results) == len(solutions)
    for (bad, kind, message), result in zip(rows, results[::2], strict=False):
        if kind is None:
            assert isinstance(result, StepScores)
            continue
        assert isinstance(result, Refusal)
        assert result.solution is bad
        assert type(result.error) is kind
        assert message in str(result.error)
        assert repr(bad.id) in str(result.error)
    for solution, result in zip(solutions[1::2], results[1::2], strict=True):
        assert result.scores == pytest.approx(expected(prm, solution), abs=1e-5)
    assert prm.ledger.solutions == sum(isinstance(r, StepScores) for r in results)


def test_truncated_steps_have_no_score_and_the_others_their_own():
    solution = Solution.of("p", ["yes it is correct.", "the sum is 5.", "no. " * 40])
    prm = grader(max_tokens=60, truncate=True)
    (result,) = prm.score_many([solution])
    whole = expected(prm, solution)
    assert result.scores[2] is None
    assert result.scores[:2] == pytest.approx(whole[:2], abs=1e-5)
    assert grader(max_tokens=2, truncate=True).score("p", steps=solution.texts) == [None, None, None]


def implicit(per_step, budget):
    """An implicit PRM of two tiny models, and what it is made of."""
    tokenizer = tiny_tokenizer()
    models = [tiny(vocabulary=len(tokenizer), seed=s) for s in (0, 1)]
    outputs = [
        torch.randn(len(tokenizer), 32, generator=torch.Generator().manual_seed(s)) / 4 for s in (2, 3)
    ]
    layout = TextLayout(opening="{problem}\n", mark="\n")
    rule = LogRatioHead(beta=0.5, per_step=per_step)
    spec = ScoringSpec(
        family="implicit",
        summary="",
        source="",
        layout=layout,
        readout=Readout(head=rule, activation="identity"),
        score_kind="log-ratio",
        aggregate="min",
    )
    both = [
        (Engine(m, device="cpu", token_budget=budget, ledger=Ledger()), w)
        for m, w in zip(models, outputs, strict=True)
    ]
    return (
        tokenizer,
        models,
        outputs,
        ImplicitPRM(
            name="tiny",
            spec=spec,
            encoder=Encoder(tokenizer, layout, max_tokens=None),
            models=both,
            identity=lambda: "tiny#2",
        ),
    )


@pytest.mark.parametrize("budget", [16, 4096])
@pytest.mark.parametrize("per_step", [False, True])
def test_implicit_scores_over_many_chunks_and_slices(budget, per_step):
    """More answer tokens than one slice of vocabulary logits (256), with branches, against plain sums."""
    tokenizer, models, outputs, prm = implicit(per_step, budget)
    rng = np.random.RandomState(4)
    words = ["correct", "wrong", "the", "sum", "is", "5"]
    steps = [" ".join(words[i] for i in rng.randint(0, 6, 60)) for _ in range(6)]
    solutions = [Solution.of("which?", steps[:4]), Solution.of("which?", [*steps[:2], *steps[4:]])]
    for solution, result in zip(solutions, prm.score_many(solutions), strict=True):
        text, ends = "which?\n", []
        start = len(tokenizer(text)["input_ids"])
        for step in solution.texts:
            text += step + "\n"
            ends.append(len(tokenizer(text)["input_ids"]))
        ids = tokenizer(text)["input_ids"]
        logprobs = [
            torch.log_softmax((alone(m, ids) @ w.T).double(), -1)[torch.arange(len(ids) - 1), ids[1:]]
            for m, w in zip(models, outputs, strict=True)
        ]
        ratio = 0.5 * (logprobs[0] - logprobs[1])  # entry t is of token t + 1
        sums = [float(ratio[start - 1 : end - 1].sum()) for end in ends]
        wanted = np.diff([0.0, *sums]).tolist() if per_step else sums
        assert result.scores == pytest.approx(wanted, abs=2e-4)
        assert max(abs(w) for w in wanted) > 1
    assert prm.ledger.tokens_distinct == prm.ledger.tokens_computed
    assert prm.ledger.tokens_computed > 256


@pytest.mark.parametrize("per_step", [False, True])
def test_an_implicit_prm_counts_an_agents_own_tokens_only(per_step):
    """Log-ratios of what tools answer, summed by nobody: against offsets of the whole text."""
    tokenizer, models, outputs, prm = implicit(per_step, 4096)
    steps = (
        Step(text="the sum is 5", observation="\n\nTool (add):\nno, the sum is wrong\n\nUser:\nyes?"),
        Step(text="it is correct", observation="\n\nTool:\n5 5 5"),
        Step(text="yes. the sum is 5"),
    )
    text, spans = "which?\n", []
    for step, seen in zip(steps, ("", *(s.observation.strip() + "\n\n" for s in steps)), strict=False):
        text += seen
        spans.append((len(text), len(text) + len(step.text) + 1))  # with the line break that ends it
        text += step.text + "\n"
    out = tokenizer(text, return_offsets_mapping=True)
    ids, begins = out["input_ids"], [begin for begin, _ in out["offset_mapping"]]
    ratio = sum(
        sign * torch.log_softmax((alone(m, ids) @ w.T).double(), -1)[torch.arange(len(ids) - 1), ids[1:]]
        for sign, m, w in zip((0.5, -0.5), models, outputs, strict=True)
    )
    own = [
        sum(float(ratio[t - 1]) for t in range(1, len(ids)) if low <= begins[t] < high) for low, high in spans
    ]
    wanted = own if per_step else np.cumsum(own).tolist()
    solution = Solution(problem=Problem(text="which?"), steps=steps)
    (result,) = prm.score_many([solution])
    assert result.scores == pytest.approx(wanted, abs=2e-4)
    prefixes = [replace(solution, steps=steps[: end + 1]) for end in range(len(steps))]
    session = prm.open_session()
    replies = [reply for prefix in prefixes for reply in session.score_last([prefix])]
    assert [reply.score for reply in replies] == pytest.approx(wanted, abs=2e-4)


def test_a_token_beyond_the_embedding_is_an_error_of_the_checkpoint() -> None:
    engine = Engine(tiny(vocabulary=40), device="cpu", token_budget=8, ledger=Ledger())
    beyond = 40
    with pytest.raises(CheckpointError, match="the token 40 and the model has 40"):
        engine.run(pack([[0, beyond]]), np.asarray([0]))
