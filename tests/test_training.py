"""The seed of training: rows, labels, trees, the loss, resuming, and a planted rule that is learnt."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import random
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from stepmark import load_prm
from stepmark.errors import CheckpointError, InputError, MarkerInTextError, TooLongError, UsageError
from stepmark.metrics.binary import auc
from stepmark.models.encoding import Encoder
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step
from stepmark.solutions.prm800k import read_prm800k
from stepmark.training.data import Example, batches, by_problem, coarsen, examples, label_of, trees
from stepmark.training.recipe import MARKER_SPEC, train_marker_prm
from stepmark.training.train import Train, Trainer, measure, split_problems
from tiny_language_model import tiny_tokenizer

torch.set_num_threads(1)

# peft 0.21 asks transformers for a name that it is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def judgement(rating):
    return Judgement(kind="correctness", judge="human", rating=rating)


def row(problem, steps, *ratings, source=None):
    """A row whose last step has these ratings."""
    return LabelledSolution(
        solution=Solution(
            problem=Problem(text=problem, source=source), steps=tuple(Step(text=s) for s in steps), id=None
        ),
        judgements=(*((),) * (len(steps) - 1), tuple(judgement(r) for r in ratings)),
    )


def example(problem, steps, labels, id=None):
    return Example(solution=Solution.of(problem, steps, id=id), labels=tuple(labels))


# Labels


@pytest.mark.parametrize(
    ("ratings", "positive", "negative"),
    [
        ([], None, None),
        ([None], None, None),
        ([1], 1.0, 1.0),
        ([-1], 0.0, 0.0),
        ([0], 1.0, 0.0),
        ([1, 1], 1.0, 1.0),
        ([1, None], 1.0, 1.0),
        ([1, -1], None, None),
        ([0, 1], 1.0, None),  # they agree where neutral is good
        ([0, -1], None, 0.0),
    ],
)
def test_label_of(ratings, positive, negative):
    judgements = [judgement(r) for r in ratings]
    assert label_of(judgements) == label_of(judgements, neutral="positive") == positive
    assert label_of(judgements, neutral="negative") == negative


def labelled(rows, **settings):
    """(problem, steps, label of the last step) of each example."""
    result = []
    for e in examples(rows, **settings):
        assert e.labels[:-1] == (None,) * (len(e.labels) - 1)
        result.append((e.solution.problem.text, "".join(e.solution.texts), e.labels[-1]))
    return result


def test_examples_stop_at_the_first_error():
    rows = [
        row("p", "a", 1),
        row("p", "ab", -1),
        row("p", "abc", 1),  # after the error
        row("p", "abcd", -1),
        row("p", "ax", 0),
        row("p", "axc", -1),
        row("p", "z", -1),
        row("p", "zb", 1),  # after an error at the very first step
        row("q", "abc", 1),  # another problem, in which nothing is known of a b
    ]
    kept = [
        ("p", "a", 1.0),
        ("p", "ab", 0.0),
        ("p", "ax", 1.0),
        ("p", "axc", 0.0),
        ("p", "z", 0.0),
        ("q", "abc", 1.0),
    ]
    assert labelled(rows) == kept
    assert sorted(labelled(rows[::-1])) == sorted(kept)
    # Where neutral is bad, x is an error, and what follows it goes.
    assert labelled(rows, neutral="negative") == [
        ("p", "a", 1.0),
        ("p", "ab", 0.0),
        ("p", "ax", 0.0),
        ("p", "z", 0.0),
        ("q", "abc", 1.0),
    ]


def test_examples_of_unrated_rows():
    assert labelled([row("p", "a"), row("p", "b", None)]) == []


@pytest.mark.parametrize("ratings", [(1, 1), (1, None, 1), (None, -1), (-1, None), (0, 1), (0, 0, 1)])
def test_duplicates_are_one_example(ratings):
    (expected,) = {1.0 if r >= 0 else 0.0 for r in ratings if r is not None}
    assert labelled([row("p", "ab", r) for r in ratings]) == [("p", "ab", expected)]


@pytest.mark.parametrize("ratings", [(1, -1), (-1, 1), (1, -1, 1), (-1, None, 1, 1), (0, -1)])
def test_duplicates_that_disagree_are_none_in_any_order(ratings):
    rows = [row("p", "ab", r) for r in ratings]
    assert labelled(rows) == []
    assert labelled([row("p", "ab", *ratings)]) == []
    # And what is unknown is no known error: what follows it stays.
    assert labelled([*rows, row("p", "abc", 1)]) == [("p", "abc", 1.0)]


# Coarser steps

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=8)


def numbered(words):
    """Steps that name their place, so that a border can be read off a joined text."""
    return [f"{word}{i}" for i, word in enumerate(words)]


def borders(coarse):
    """How many of the original steps stand before each border."""
    ends, total = [], 0
    for step in coarse.solution.steps:
        total += len(step.text.split(" "))
        ends.append(total)
    return ends


@given(WORDS, st.floats(0, 1), st.integers(0, 5))
def test_coarsening_joins_and_loses_nothing(words, share, seed):
    labels = [None if i % 3 else float(i % 2) for i in range(len(words))]
    coarse = coarsen(example("p", numbered(words), labels), share, seed)
    assert " ".join(coarse.solution.texts) == " ".join(numbered(words))
    assert coarse.solution.problem.text == "p"
    # Each joined step has the label of its last part.
    assert list(coarse.labels) == [labels[end - 1] for end in borders(coarse)]
    assert coarsen(example("p", numbered(words), labels), share, seed) == coarse


@given(WORDS, WORDS, WORDS, st.floats(0, 1), st.integers(0, 5))
def test_solutions_that_share_a_prefix_are_cut_alike_in_it(shared, one, other, share, seed):
    cut = [
        borders(coarsen(example("p", numbered(shared + rest), [None] * len(shared + rest)), share, seed))
        for rest in (one, other)
    ]
    first, second = ({end for end in ends if end <= len(shared)} for ends in cut)
    assert first == second


def test_how_much_is_joined():
    steps = [f"s{i}" for i in range(2001)]
    nothing = [None] * len(steps)
    assert len(coarsen(example("p", steps, nothing), 0.0, 1).labels) == 2001
    assert len(coarsen(example("p", steps, nothing), 1.0, 1).labels) == 1
    left = borders(coarsen(example("p", steps, nothing), 0.25, 1))
    assert abs(len(left) - 0.75 * 2001) < 5 * math.sqrt(2001 * 0.25 * 0.75)  # five standard deviations
    assert left != borders(coarsen(example("p", steps, nothing), 0.25, 2))
    assert left != borders(coarsen(example("q", steps, nothing), 0.25, 1))


# The tiny base


def tokenizer():
    made = tiny_tokenizer()
    made.add_special_tokens({"additional_special_tokens": ["<file_sep>"]})
    return made


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A Llama of two layers with random weights, wide enough apart that there is something to learn from."""
    folder = tmp_path_factory.mktemp("base")
    words = tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=48,
        intermediate_size=96,
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


@pytest.fixture(scope="module")
def encoder():
    return Encoder(tokenizer(), MARKER_SPEC.layout, max_tokens=100)


# Trees


def some_examples(problems=5, seed=0):
    """Branching examples, each labelled at its last step only, as `examples` gives them."""
    rng = random.Random(seed)
    result = {}
    for p in range(problems):
        for _ in range(8):
            steps = [f"{rng.choice('xyz')}{i} = {rng.randint(0, 2)}" for i in range(rng.randint(1, 4))]
            result[p, *steps] = example(
                f"problem {p}", steps, [*[None] * (len(steps) - 1), float(rng.random() < 0.5)]
            )
    return list(result.values())


def marks(encoder, rows):
    """(ids up to the step end, label) of every labelled step, each example encoded alone."""
    found = []
    for e in rows:
        encoded = encoder.encode(e.solution)
        for read, label in zip(encoded.reads, e.labels, strict=True):
            if label is not None:
                found.append((tuple(encoded.ids[: read + 1].tolist()), label))
    return found


def marks_of_trees(items):
    found = []
    for item in items:
        for read, label in zip(item.reads, item.labels, strict=True):
            ids, at = [], read
            while at >= 0:
                ids.append(int(item.tree.ids[at]))
                at = int(item.tree.parents[at])
            found.append((tuple(ids[::-1]), label))
    return found


@pytest.mark.parametrize("budget", [60, 90, 10_000])
def test_trees_keep_every_label_at_its_step(encoder, budget):
    rows = some_examples()
    refused = []
    items = list(trees(by_problem(rows).values(), encoder, budget=budget, refused=refused))
    assert refused == []
    assert sorted(marks_of_trees(items)) == sorted(marks(encoder, rows))
    assert all(len(item.tree) <= budget for item in items)
    assert {item.problem for item in items} == {f"problem {p}" for p in range(5)}
    if budget == 10_000:
        assert len(items) == 5
    else:
        assert len(items) > 5


def test_a_prefix_of_several_examples_stands_once(encoder):
    rows = [example("p", ["x = 1"], [1.0]), example("p", ["x = 1", "y = 2"], [None, 0.0])]
    (item,) = trees([rows], encoder, budget=1000, refused=[])
    assert len(item.tree) == len(encoder.encode(rows[1].solution).ids)
    assert sorted(item.labels) == [0.0, 1.0]


def test_what_cannot_be_encoded_is_handed_over_and_not_lost_silently(encoder):
    bad = [
        example("p", ["a <file_sep> b"], [1.0], id="marker"),
        example("p", ["x " * 200], [1.0], id="long"),
        example("p", ["x = 1"], [1.0], id="good"),
    ]
    refused = []
    (item,) = trees([bad], encoder, budget=1000, refused=refused)
    assert item.labels == (1.0,)
    assert {type(error) for error in refused} == {MarkerInTextError, TooLongError}
    assert list(trees([bad[:2]], encoder, budget=1000, refused=[])) == []


def test_one_example_larger_than_the_budget_is_an_error(encoder):
    with pytest.raises(InputError, match=r"big.*holds 5; raise the token budget"):
        list(trees([[example("p", ["x = 1"], [1.0], id="big")]], encoder, budget=5, refused=[]))


def test_an_example_without_labels_makes_no_tree(encoder):
    assert list(trees([[example("p", ["x"], [None])]], encoder, budget=99, refused=[])) == []


def test_batches_fill_the_budget_with_whole_trees(encoder):
    items = list(trees(by_problem(some_examples(12)).values(), encoder, budget=90, refused=[]))
    made = batches(items, budget=200, rng=random.Random(1))
    assert sorted(id(item) for batch in made for item in batch) == sorted(id(item) for item in items)
    sizes = [sum(len(item.tree) for item in batch) for batch in made]
    assert max(sizes) <= 200
    assert len(made) < len(items)
    # A batch ended because the next tree did not fit.
    for batch, after in pairwise(made):
        assert sum(len(item.tree) for item in batch) + len(after[0].tree) > 200

    def order(seed):
        return [item.problem for b in batches(items, budget=200, rng=random.Random(seed)) for item in b]

    assert order(1) == order(1)
    assert order(1) != order(2)


# Held-out problems, figures


def test_a_problem_is_wholly_trained_on_or_held_out():
    rows = [example(f"problem {i % 20}", [f"s{i}"], [1.0]) for i in range(100)]
    training, held_out = split_problems(rows, 0.15, seed=3)
    names = [{e.solution.problem.text for g in part for e in g} for part in (training, held_out)]
    assert not names[0] & names[1]
    assert (len(names[0]), len(names[1])) == (17, 3)
    assert sum(len(g) for part in (training, held_out) for g in part) == 100
    assert split_problems(rows, 0.15, seed=3) == (training, held_out)
    assert split_problems(rows, 0.15, seed=4)[1] != held_out


@given(
    st.lists(st.tuples(st.sampled_from([-2.0, -0.5, 0.0, 0.5, 3.0]), st.booleans()), min_size=2, max_size=40)
)
def test_auc_is_the_share_of_pairs_in_the_right_order(pairs):
    good = [s for s, right in pairs if right]
    bad = [s for s, right in pairs if not right]
    labels = [float(right) for _, right in pairs]
    if not good or not bad:
        with pytest.raises(UsageError, match="right and wrong"):
            auc([s for s, _ in pairs], labels)
        return
    wins = sum(1.0 if g > b else 0.5 if g == b else 0.0 for g in good for b in bad)
    assert auc([s for s, _ in pairs], labels) == pytest.approx(wins / (len(good) * len(bad)))


def test_measure_by_hand():
    """Logits ln 3, ln 3, -ln 3: probabilities 3/4, 3/4, 1/4, for labels 1, 0, 0."""
    ln3 = math.log(3)
    found = measure([(ln3, 1.0), (ln3, 0.0), (-ln3, 0.0)])
    assert found.loss == pytest.approx((-math.log(3 / 4) - math.log(1 / 4) - math.log(3 / 4)) / 3)
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.auc == pytest.approx((0.5 + 1.0) / 2)
    assert found.labels == 3


# The loss


def settings(**more):
    return Train(
        **{"rank": 4, "frozen_layers": 0, "token_budget": 256, "learning_rate": 1e-2, "coarsen": 0.0} | more
    )


def test_loss_and_gradient_of_trees_equal_those_of_separate_rows(base, tmp_path):
    """Packed trees by our attention against one row at a time by transformers' own, LoRA and head at random."""
    trainer = Trainer(base, MARKER_SPEC, settings(), tmp_path, dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trainer.parameters:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    rows = some_examples(3)
    batch = list(trees(by_problem(rows).values(), trainer.encoder, budget=100, refused=[]))
    assert len(batch) > 3
    loss = F.binary_cross_entropy_with_logits(
        trainer.logits(batch), torch.tensor([label for item in batch for label in item.labels])
    )
    loss.backward()
    packed = [p.grad.clone() for p in trainer.parameters]
    for parameter in trainer.parameters:
        parameter.grad = None

    trainer.model.base_model.model.set_attn_implementation("sdpa")
    losses = []
    for e in rows:
        encoded = trainer.encoder.encode(e.solution)
        states = trainer.model(
            input_ids=torch.from_numpy(encoded.ids)[None], use_cache=False
        ).last_hidden_state[0]
        logit = trainer.head(states[encoded.reads[-1]])
        losses.append(F.binary_cross_entropy_with_logits(logit, torch.tensor([e.labels[-1]])))
    separate = torch.stack(losses).mean()
    separate.backward()
    torch.testing.assert_close(loss, separate, rtol=1e-5, atol=1e-5)
    assert len(packed) == 2 * 2 * 7 + 2  # two matrices on seven layers of two blocks, and the head
    for parameter, gradient in zip(trainer.parameters, packed, strict=True):
        largest = parameter.grad.abs().max().item()
        assert largest > 0
        torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=1e-4 * largest)


def test_only_upper_layers_and_the_head_are_trained(base, tmp_path):
    trainer = Trainer(base, MARKER_SPEC, settings(frozen_layers=1), tmp_path, dtype=torch.float32)
    trained = {n for n, p in trainer.model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 7
    assert all(".layers.1." in name and ".lora_" in name for name in trained)


def test_freezing_every_layer_is_refused(base, tmp_path):
    with pytest.raises(UsageError, match="frozen_layers is 2, and the base has 2 layers"):
        Trainer(base, MARKER_SPEC, settings(frozen_layers=2), tmp_path)


def test_a_base_without_the_marker_is_refused(base, tmp_path):
    # Its marker would be cut into pieces, and the last of them trained and read: a plausible number.
    spec = replace(MARKER_SPEC, layout=replace(MARKER_SPEC.layout, mark="\n<no_such_marker>"))
    with pytest.raises(CheckpointError, match="<no_such_marker>"):
        Trainer(base, spec, settings(), tmp_path)


def test_the_learning_rate_warms_up_and_falls_to_a_tenth(base, tmp_path):
    trainer = Trainer(base, MARKER_SPEC, settings(warmup=0.1), tmp_path, dtype=torch.float32)
    rates = [trainer._schedule(step, 100) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([i / 10 for i in range(1, 11)])
    assert all(a > b for a, b in pairwise(rates[9:]))
    assert rates[54] == pytest.approx(0.55)  # halfway down the cosine
    assert rates[-1] == pytest.approx(0.1)


def test_an_epochs_limit_is_shared_by_the_sources(base, tmp_path):
    rows = [
        Example(
            solution=Solution(
                problem=Problem(text=f"{source} {e.solution.problem.text}", source=source),
                steps=e.solution.steps,
            ),
            labels=e.labels,
        )
        for source, count in (("large", 30), ("small", 10))
        for e in some_examples(count, seed=count)
    ]
    groups = list(by_problem(rows).values())
    trainer = Trainer(base, MARKER_SPEC, settings(limit_tokens=2000), tmp_path, dtype=torch.float32)
    tokens = {"large": 0, "small": 0}
    for item in (item for batch in trainer.epoch(groups, 0, []) for item in batch):
        tokens[item.problem.split()[0]] += len(item.tree)
    for count in tokens.values():
        assert 1000 <= count < 1000 + 256

    def problems(trainer, number):
        return [item.problem for batch in trainer.epoch(groups, number, []) for item in batch]

    assert problems(trainer, 0) == problems(trainer, 0)
    assert problems(trainer, 0) != problems(trainer, 1)
    everything = Trainer(base, MARKER_SPEC, settings(), tmp_path, dtype=torch.float32)
    assert set(problems(everything, 0)) == {e.solution.problem.text for e in rows}


# Interrupted runs


class Interrupted(Exception):
    pass


def run(base, folder, *, stop=None, problems=4, **more):
    """Train on a few problems; returns the trainer and the steps that it reported."""
    trainer = Trainer(base, MARKER_SPEC, settings(epochs=3, token_budget=150, coarsen=0.5, **more), folder)
    steps = []

    def report(figures):
        steps.append(int(figures["step"]))
        if figures["step"] == stop:
            raise Interrupted

    groups = list(by_problem(some_examples(problems)).values())
    with contextlib.suppress(Interrupted):
        trainer.run(groups, report=report, save_every=3)
    return trainer, steps


def test_an_interrupted_run_ends_as_if_it_had_not_been(base, tmp_path):
    whole, steps = run(base, tmp_path / "whole")
    assert len(steps) >= 10
    assert steps == list(range(1, len(steps) + 1))
    run(base, tmp_path / "cut", stop=5)
    run(base, tmp_path / "cut", stop=8)
    resumed, rest = run(base, tmp_path / "cut")
    assert rest == steps[6:]  # the state was saved after steps 3 and 6
    for ours, theirs in zip(resumed.masters, whole.masters, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    for master, parameter in zip(resumed.masters, resumed.parameters, strict=True):
        torch.testing.assert_close(parameter, master.to(parameter.dtype), rtol=0, atol=0)
    assert [f.name for f in (tmp_path / "cut").iterdir()] == ["state.pt"]


def test_a_state_of_other_settings_is_refused(base, tmp_path):
    run(base, tmp_path, stop=4)
    with pytest.raises(UsageError, match=r"state\.pt is of a run with other settings"):
        run(base, tmp_path, seed=7)
    with pytest.raises(UsageError, match=r"state\.pt is of a run with .*other rows"):
        run(base, tmp_path, problems=5)


# A rule that can be learnt


def planted(problems, seed):
    """A step is right where it repeats the letter of its problem: neither text alone tells."""
    rng = random.Random(seed)
    for p in range(problems):
        letter, other = rng.sample("ab", 2)
        before = []
        for k in range(3):
            for said, rating in ((letter, 1), (other, -1)):
                yield row(f"p{p}: {letter}", [*before, said + " ." * k], rating)
            before.append(letter + " ." * k)


def test_a_planted_rule_is_learnt_end_to_end(base, tmp_path):
    """Rows in, checkpoint out, graded by `load_prm` as a user would: right steps high, wrong ones low."""
    losses = []
    done = train_marker_prm(
        planted(80, seed=0),
        tmp_path / "prm",
        settings(rank=8, epochs=6, token_budget=512, held_out=0.2),
        base=str(base),
        report=lambda figures: losses.append(figures["loss"]),
    )
    assert losses[0] == pytest.approx(math.log(2), abs=1e-4)  # the head begins at 0
    assert sum(losses[-5:]) / 5 < 0.1
    assert done.problems == 64
    assert done.held_out.labels == 16 * 6
    assert done.held_out.loss < 0.1
    assert done.held_out.auc > 0.99
    prm = load_prm(str(tmp_path / "prm"), dtype="float32")
    threshold = prm.default_threshold
    for letter, other in ("ab", "ba"):
        right, wrong = prm.score(f"new problem: {letter}", [letter, other + " ."])
        assert right > 0.8 > 0.2 > wrong
        assert right >= threshold > wrong


# PRM800K


def write_rows(file, rows):
    file.write_text(
        "".join(json.dumps(r) + "\n" if isinstance(r, dict) else r + "\n" for r in rows), encoding="utf-8"
    )
    return file


RATED = {
    "instruction": "What is 2 + 2?",
    "responses": ["Add the numbers."],
    "next_response": "2 + 2 = 4.",
    "answer": "4",
    "rating": 1,
    "is_human_response": False,
    "is_solution": True,
    "is_preferred_response": True,
}


def test_reading_prm800k(tmp_path):
    rows = [
        RATED,
        {**RATED, "rating": -1, "next_response": "2 + 2 = 5."},
        {**RATED, "rating": 0, "responses": []},
        {"instruction": "q", "responses": [], "next_response": "by a person", "rating": None},
    ]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    right, wrong, neutral, unrated = read_prm800k(file)
    assert right.solution.problem == Problem(text="What is 2 + 2?", source="PRM800K")
    assert right.solution.texts == ("Add the numbers.", "2 + 2 = 4.")
    assert right.solution.id == f"{file}:1"
    assert [[j.rating for j in js] for js in right.judgements] == [[], [1]]
    assert [(j.kind, j.judge) for j in right.judgements[-1]] == [("correctness", "human")]
    assert [[j.rating for j in js] for js in wrong.judgements] == [[], [-1]]
    assert [[j.rating for j in js] for js in neutral.judgements] == [[0]]
    # Not rated is not wrong: the step has no judgement at all.
    assert unrated.judgements == ((),)
    assert [e.labels for e in examples(read_prm800k(file))] == [(None, 1.0), (None, 0.0), (1.0,)]


def test_reading_packed_prm800k(tmp_path):
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(RATED).encode() + b"\n"))
    assert [r.solution.id for r in read_prm800k(file)] == [f"{file}:1"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "not JSON"),
        ("[]", "object"),
        ({k: v for k, v in RATED.items() if k != "rating"}, "'rating'"),
        ({k: v for k, v in RATED.items() if k != "next_response"}, "'next_response'"),
        ({**RATED, "rating": 2}, "'rating'"),
        ({**RATED, "rating": "1"}, "'rating'"),
        ({**RATED, "responses": "Add."}, "'responses'"),
        ({**RATED, "responses": [None]}, r"'responses\.0'"),
        ({**RATED, "verdict": 1}, "'verdict'"),
        ({**RATED, "instruction": " "}, "empty problem or step"),
        ({**RATED, "next_response": ""}, "empty problem or step"),
        ({**RATED, "responses": ["a", "\n"]}, "empty problem or step"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, bad, message):
    file = write_rows(tmp_path / "rows.jsonl", [RATED, bad, RATED])
    rows = read_prm800k(file)
    next(rows)
    with pytest.raises(InputError, match=message) as caught:
        next(rows)
    assert str(caught.value).startswith(f"{file}:2")


def test_every_pair_of_branches_meets_where_the_texts_do(encoder):
    """Nothing of one branch is on the path of another: paths share exactly the common tokens."""
    rows = some_examples(1)
    (item,) = trees([rows], encoder, budget=10_000, refused=[])
    ids = [tuple(encoder.encode(e.solution).ids.tolist()) for e in rows]
    assert len(item.tree) == len({i[:n] for i in ids for n in range(1, len(i) + 1)})
    paths = {tuple(item.tree.ids[p].tolist()): set(p.tolist()) for p in item.tree.paths}
    for a, b in combinations(set(ids), 2):
        common = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        assert len(paths[a] & paths[b]) == common
