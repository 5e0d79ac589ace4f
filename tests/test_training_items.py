"""Examples as packed trees, and trees as forward passes and optimizer steps."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from itertools import combinations, islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import bos_tokenizer, chatml_tokenizer
from stepmark.data.labelled import read_labelled
from stepmark.models.encoding import Encoder
from stepmark.models.families import FAMILIES
from stepmark.training.examples import Dropped, LabelRules, Target, by_problem, examples
from stepmark.training.packing import batches, items_of
from tiny_base import LAYOUT, branching, example, tokenizer


@pytest.fixture(scope="module")
def encoder():
    return Encoder(tokenizer(), LAYOUT, max_tokens=100)


def trees(rows, encoder, *, budget=10_000, dropped=None, **more):
    dropped = Dropped() if dropped is None else dropped
    return [
        item
        for group in by_problem(rows)
        for item in items_of(group, encoder, budget=budget, dropped=dropped, **more)
    ]


def labels_of(encoder, rows):
    """How often (ids up to the step end, target) is labelled, each example encoded alone."""
    found = Counter()
    for e in rows:
        encoded = encoder.encode(e.solution)
        for read, target in zip(encoded.reads, e.targets, strict=True):
            if target is not None:
                found[tuple(encoded.ids[: read + 1].tolist()), target] += 1
    return found


def labels_of_trees(items):
    """The same of trees, walking up from each read."""
    found = Counter()
    for item in items:
        for read, target, weight in zip(item.reads, item.targets, item.weights, strict=True):
            ids, at = [], read
            while at >= 0:
                ids.append(int(item.tree.ids[at]))
                at = int(item.tree.parents[at])
            found[tuple(ids[::-1]), target] += weight
    return found


@pytest.mark.parametrize("budget", [60, 90, 10_000])
def test_trees_keep_every_label_at_its_step_as_often_as_rows_say_it(encoder, budget):
    rows = branching()
    dropped = Dropped()
    items = trees(rows, encoder, budget=budget, dropped=dropped)
    wanted = labels_of(encoder, rows)
    assert labels_of_trees(items) == wanted
    assert max(wanted.values()) >= 2
    assert sum(item.labels for item in items) == sum(wanted.values())
    assert dropped.counts == {}
    assert all(len(item.tree) <= budget for item in items)
    assert {item.problem for item in items} == {f"problem {p}" for p in range(5)}
    assert len(items) == 5 if budget == 10_000 else len(items) > 5


def test_every_pair_of_branches_meets_where_the_texts_do(encoder):
    """Nothing of one branch is on the path of another: paths share exactly the common tokens."""
    rows = branching(1, rows=8)
    (item,) = trees(rows, encoder, every_step=True)
    ids = [tuple(encoder.encode(e.solution).ids.tolist()) for e in rows]
    assert len(item.tree) == len({i[:n] for i in ids for n in range(1, len(i) + 1)})
    paths = {tuple(item.tree.ids[p].tolist()): set(p.tolist()) for p in item.tree.paths}
    for a, b in combinations(set(ids), 2):
        common = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        assert len(paths[a] & paths[b]) == common


def test_steps_after_the_last_target_are_not_computed(encoder):
    whole = example("p", ["x = 1", "y = 2", "z = 3"], [1.0, 0.0, None])
    cut = example("p", ["x = 1", "y = 2"], [1.0, 0.0])
    (item,), (expected,) = trees([whole], encoder), trees([cut], encoder)
    assert item.tree.ids.tolist() == expected.tree.ids.tolist()
    assert (item.reads, item.targets, item.weights) == (expected.reads, expected.targets, expected.weights)
    (measured,) = trees([whole], encoder, every_step=True)
    assert len(measured.tree) > len(item.tree)
    assert len(measured.rows[0].reads) == 3


def test_what_cannot_be_encoded_is_counted_by_reason(encoder):
    bad = [
        example("p", ["a <file_sep> b"], [1.0], where="f:1"),
        example("p", ["x " * 200], [1.0], where="f:2"),
        example("p", [" "], [1.0], where="f:3"),
        example("p", ["x"], [None], outcome=True, where="f:4"),
        example("p", ["x = 1"], [1.0], where="f:5"),
    ]
    dropped = Dropped()
    (item,) = trees(bad, encoder, dropped=dropped)
    assert item.targets == (Target(value=1.0),)
    assert dropped.first == {
        "rows that cannot be read: a marker or control token in the text": "f:1",
        "rows that cannot be read: too long": "f:2",
        "rows that cannot be read: not encodable": "f:3",
        "rows without a label that this objective fits": "f:4",
    }
    assert set(dropped.counts.values()) == {1}
    assert trees(bad[:4], encoder) == []
    # An objective that fits outcomes keeps the row that has one.
    assert [e.where for i in trees(bad, encoder, outcomes=True) for r in i.rows for e in [r.example]] == [
        "f:4",
        "f:5",
    ]


TEXTS = st.sampled_from(["x", "y = 1", "a <file_sep> b", "z " * 60, "<|im_end|>"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(TEXTS, min_size=1, max_size=3), st.integers(0, 7)), max_size=8))
def test_every_example_is_in_a_tree_or_counted(encoder, drawn):
    rows = [
        example(f"p{i % 2}", steps, [1.0 if mask >> n & 1 else None for n in range(len(steps))])
        for i, (steps, mask) in enumerate(drawn)
    ]
    dropped = Dropped()
    items = trees(rows, encoder, budget=120, dropped=dropped)
    kept = [row.example for item in items for row in item.rows]
    assert len(kept) + sum(dropped.counts.values()) == len(rows)
    assert sum(item.labels for item in items) == sum(t is not None for e in kept for t in e.targets)


# Passes and steps


def size(part):
    return sum(len(item.tree) for item in part)


def test_passes_fill_the_budget_with_whole_trees(encoder):
    items = trees(branching(12), encoder, budget=90)
    made = batches(items, budget=200, rng=random.Random(1))
    assert all(len(step) == 1 for step in made)
    parts = [step[0] for step in made]
    assert sorted(id(item) for part in parts for item in part) == sorted(id(item) for item in items)
    assert max(map(size, parts)) <= 200
    assert len(parts) < len(items)
    # A pass ended because the next tree did not fit.
    for part, after in pairwise(parts):
        assert size(part) + len(after[0].tree) > 200

    def order(seed):
        return [i.problem for s in batches(items, budget=200, rng=random.Random(seed)) for p in s for i in p]

    assert order(1) == order(1)
    assert order(1) != order(2)


@pytest.mark.parametrize("wanted", [1, 10, 25])
def test_steps_take_as_many_rows_as_wanted_over_passes_of_the_budget(encoder, wanted):
    items = trees(branching(12), encoder, budget=90)
    made = batches(items, budget=200, rng=random.Random(1), rows=wanted)
    flat = [item for step in made for part in step for item in part]
    assert sorted(map(id, flat)) == sorted(map(id, items))
    assert all(part and size(part) <= 200 for step in made for part in step)
    for step in made[:-1]:
        counts = [len(item.rows) for part in step for item in part]
        assert sum(counts) >= wanted > sum(counts[:-1])  # the last tree filled it
    if wanted == 25:
        assert max(len(step) for step in made) > 1


# --- the tokens of TRL's trainer ---------------------------------------------------------------------------------------


def tokenize_row(words, row):
    """What `PRMTrainer.tokenize_row` of TRL 1.13.0 makes of a row that is not too long, by its published rule: prompt and steps are
    tokenised each alone, a separator's ids follow each step, BOS stands first where there is one, and a step's label stands at the
    last id of its separator. (ids, labels), -100 where nothing is trained."""
    separator = words("\n", add_special_tokens=False)["input_ids"]
    ids = words(row["prompt"], add_special_tokens=False)["input_ids"]
    ids = ids if words.bos_token_id is None else [words.bos_token_id, *ids]
    labels = [-100] * len(ids)
    for step, label in zip(row["completions"], row["labels"], strict=True):
        more = words(step, add_special_tokens=False)["input_ids"] + separator
        ids += more
        labels += [-100] * (len(more) - 1) + [int(label)]
    return ids, labels


def trained_on(file, words):
    """Ids and labels of the rows of a file, as stepmark trains a token classifier on them."""
    encoder = Encoder(words, FAMILIES["token-classification"].layout, max_tokens=None)
    dropped = Dropped()
    found = []
    for row in read_labelled(file):
        rows = examples([row], LabelRules(after_error="keep"), dropped=dropped)
        (item,) = trees(rows, encoder, dropped=dropped)
        assert item.tree.parents.tolist() == list(range(-1, len(item.tree) - 1))
        labels = [-100] * len(item.tree)
        for read, target in zip(item.reads, item.targets, strict=True):
            labels[read] = int(target.value)
        found.append((item.tree.ids.tolist(), labels))
    assert dropped.counts == {}
    return found


SPACED = [
    {
        "prompt": "What is 2 + 3? ",
        "completions": ["2 + 3 = 5. ", "\n So it is 5.\n"],
        "labels": [True, False],
    },
    {"prompt": "\nAdd 4.", "completions": ["    x = 4", "\tx += 1\r\n", "x"], "labels": [True, True, True]},
    {"prompt": "Plain", "completions": ["No space at the ends.", "None"], "labels": [False, True]},
]


@pytest.mark.parametrize("words", [bos_tokenizer(), chatml_tokenizer()], ids=["with BOS", "without"])
def test_a_row_gives_the_tokens_and_labels_of_trl(tmp_path, words):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in SPACED), encoding="utf-8")
    assert trained_on(file, words) == [tokenize_row(words, row) for row in SPACED]


def test_rows_of_prm800k_give_the_tokens_of_trl():
    """Real rows: many of them have white space at the end of a step."""
    folder = Path(os.environ.get("STEPMARK_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    file = folder / "prm800k" / "phase1_train.jsonl.gz"
    if not file.is_file():
        pytest.skip("no development data: set STEPMARK_DATA to a folder with prm800k/phase1_train.jsonl.gz")
    words = bos_tokenizer()
    encoder = Encoder(words, FAMILIES["token-classification"].layout, max_tokens=None)
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        raw = [json.loads(line) for line in islice(lines, 400)]
    spaced = 0
    for source, row in zip(raw, read_labelled(file), strict=False):
        if source["answer"] is not None:
            continue  # the final answer stands apart there, and is put to the last step
        steps = [*source["responses"], source["next_response"]]
        spaced += any(step != step.strip() for step in steps)
        ids, labels = tokenize_row(
            words, {"prompt": source["instruction"], "completions": steps, "labels": [True] * len(steps)}
        )
        encoded = encoder.encode(row.solution)
        assert encoded.ids.tolist() == ids
        assert list(encoded.reads) == [at for at, label in enumerate(labels) if label == 1]
    assert spaced > 30
