"""The packed prefix tree: every distinct prefix stands once, and attention's pieces cover the paths exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepmark.models.packed_tree import common_prefix, pack, passes

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


def seen_in_passes(tree, parts):
    """How often each token sees each other one through the passes."""
    pairs = np.zeros((len(tree), len(tree)), dtype=int)
    for part in parts:
        keys = [*part.held.tolist(), *part.part.tolist()]
        for key, since, until in zip(keys, part.since.tolist(), part.until.tolist(), strict=True):
            pairs[part.part[since:until], key] += 1
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


@given(FORESTS, st.integers(1, 20), st.data())
def test_passes_of_any_budget_see_the_same_and_what_is_stored_is_not_computed(sequences, budget, data):
    """Whatever is stored, as long as what stands before a stored token is stored too."""
    tree = pack(sequences)
    new = np.asarray([data.draw(st.booleans()) for _ in range(len(tree))])
    for i, parent in enumerate(tree.parents.tolist()):
        new[i] |= parent >= 0 and new[parent]
    parts = list(passes(tree, np.flatnonzero(new), budget))
    assert [i for part in parts for i in part.part.tolist()] == np.flatnonzero(new).tolist()
    assert all(len(part.part) <= budget for part in parts)
    wanted = ancestors_or_self(tree)
    wanted[~new] = 0
    np.testing.assert_array_equal(seen_in_passes(tree, parts), wanted)


@given(FORESTS, st.integers(1, 7))
def test_what_a_pass_looks_at_was_at_hand_in_the_pass_before(sequences, budget):
    tree = pack(sequences)
    at_hand = set()
    for part in passes(tree, np.arange(len(tree)), budget):
        held = part.held.tolist()
        assert held == sorted(set(held))
        assert set(held) <= at_hand
        at_hand = {*held, *part.part.tolist()}


def test_common_prefix():
    def shared(a, b):
        return common_prefix(np.asarray(a, dtype=np.int64), np.asarray(b, dtype=np.int64))

    assert shared([1, 2, 3], [1, 2, 4]) == 2
    assert shared([1, 2], [1, 2, 4]) == 2
    assert shared([3], [1]) == 0
    assert shared([], [1]) == 0
