"""The order in which tests begin: none is lost, and what takes long does not stand at the end."""

from hypothesis import given
from hypothesis import strategies as st

from ordering import begun_first


def test_the_long_ones_stand_where_the_workers_begin():
    assert begun_first(["A"], list("bcdefg"), 2) == ["A", "b", "c", "d", "e", "f", "g"]
    assert begun_first(["A", "B", "C"], list("defgh"), 2) == ["A", "C", "d", "e", "B", "f", "g", "h"]
    assert begun_first(["A", "B"], list("cdefg"), 3) == ["A", "c", "B", "d", "e", "f", "g"]
    assert begun_first([], list("abc"), 2) == list("abc")


@given(st.integers(0, 5), st.integers(0, 40), st.integers(1, 6))
def test_every_test_once(long, short, workers):
    first, rest = [f"long {i}" for i in range(long)], [f"short {i}" for i in range(short)]
    ordered = begun_first(first, rest, workers)
    assert sorted(ordered) == sorted(first + rest)
    assert [one for one in ordered if one.startswith("short")] == rest
