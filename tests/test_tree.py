"""The packed prefix tree: every distinct prefix stands once, and attention's pieces cover the paths exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepmark.models.tree import chunks, common_prefix, pack

# Few letters, so that prefixes are shared, whole sequences repeat, and one is often the prefix of another.
FORESTS = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=10).map(tuple), min_size=1, max_size=12
) | st.builds(
    lambda opening, rests: [opening + rest for rest in rests],
    st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple),
    st.lists(st.lists(st.integers(0, 1), max_size=6).map(tuple), min_size=1, max_size=8),
)


def prefixes(sequences):
    return {tuple(s[:n]) for s in sequences for n in range(1, len(s) + 1)}


def spelled(tree):
    """The prefix that each packed token stands for, read from the parents alone."""
    result = []
    for i in range(len(tree)):
        parent = int(tree.parents[i])
        result.append((*(result[parent] if parent >= 0 else ()), int(tree.ids[i])))
    return result


def ancestors_or_self(tree):
    """How often each token has to see each other one: 1 for its path and itself, else 0. [tokens, tokens]."""
    pairs = np.zeros((len(tree), len(tree)), dtype=int)
    for i in range(len(tree)):
        at = i
        while at >= 0:
            pairs[i, at] = 1
            at = int(tree.parents[at])
    return pairs


def seen_in_chunks(tree, parts):
    """How often each token sees each other one through the chunks."""
    pairs = np.zeros((len(tree), len(tree)), dtype=int)
    for part in parts:
        keys = [*part.carried.tolist(), *range(part.start, part.end)]
        for key, until in zip(keys, part.until.tolist(), strict=True):
            first = max(key, part.start)
            pairs[first : part.start + until, key] += 1
    return pairs


@given(FORESTS)
def test_each_distinct_prefix_stands_once(sequences):
    tree = pack(sequences)
    assert len(tree) == len(prefixes(sequences))
    assert set(spelled(tree)) == prefixes(sequences)
    assert tree.depths.tolist() == [len(prefix) - 1 for prefix in spelled(tree)]


@given(FORESTS)
def test_paths_spell_the_sequences(sequences):
    tree = pack(sequences)
    for sequence, path in zip(sequences, tree.paths, strict=True):
        assert tuple(tree.ids[path].tolist()) == sequence
        assert tree.depths[path].tolist() == list(range(len(sequence)))
        assert tree.parents[path].tolist() == [-1, *path[:-1].tolist()]


@given(FORESTS)
def test_ends_tell_the_ancestors_and_nothing_else(sequences):
    tree = pack(sequences)
    at = np.arange(len(tree))
    sees = (at <= at[:, None]) & (at[:, None] < tree.ends)
    np.testing.assert_array_equal(sees.astype(int), ancestors_or_self(tree))


@given(FORESTS, st.integers(1, 20))
def test_chunks_of_any_budget_see_the_same(sequences, budget):
    tree = pack(sequences)
    parts = chunks(tree, budget)
    assert [i for part in parts for i in range(part.start, part.end)] == list(range(len(tree)))
    assert all(part.end - part.start <= budget for part in parts)
    np.testing.assert_array_equal(seen_in_chunks(tree, parts), ancestors_or_self(tree))


@given(FORESTS, st.integers(1, 7))
def test_what_a_chunk_carries_was_at_hand_in_the_chunk_before(sequences, budget):
    at_hand = set()
    for part in chunks(pack(sequences), budget):
        carried = part.carried.tolist()
        assert carried == sorted(set(carried))
        assert set(carried) <= at_hand
        at_hand = {*carried, *range(part.start, part.end)}


@given(FORESTS, st.integers(1, 9), st.data())
def test_skipped_tokens_are_carried_and_not_computed(sequences, budget, data):
    tree = pack(sequences)
    shared = min(common_prefix(np.asarray(sequences[0]), np.asarray(s)) for s in sequences)
    skip = data.draw(st.integers(0, shared))
    parts = chunks(tree, budget, skip=skip)
    assert [i for part in parts for i in range(part.start, part.end)] == list(range(skip, len(tree)))
    wanted = ancestors_or_self(tree)
    wanted[:skip] = 0
    np.testing.assert_array_equal(seen_in_chunks(tree, parts), wanted)
    if parts and skip:
        assert parts[0].carried.tolist() == list(range(skip))


def test_common_prefix():
    def shared(a, b):
        return common_prefix(np.asarray(a, dtype=np.int64), np.asarray(b, dtype=np.int64))

    assert shared([1, 2, 3], [1, 2, 4]) == 2
    assert shared([1, 2], [1, 2, 4]) == 2
    assert shared([3], [1]) == 0
    assert shared([], [1]) == 0
