"""The results of a run: a sequence of its records, from memory or from the file that was written."""

from pathlib import Path

import pytest

from stepmark.records import Solution
from stepmark.store.results import Results

RECORDS = [Solution.of(f"Problem {number}?", ["1 + 1 = 2"], id=str(number)) for number in range(7)]


def results(records=RECORDS, **more):
    return Results(lambda: iter(records), len(records), **more)


def test_a_sequence():
    found = results()
    assert len(found) == 7
    assert list(found) == RECORDS and list(found) == RECORDS
    assert found[0] == RECORDS[0] and found[-1] == RECORDS[6] and found[2:4] == RECORDS[2:4]
    assert RECORDS[3] in found
    with pytest.raises(IndexError, match="there are 7 records, found index 7"):
        found[7]


def test_it_says_what_it_is():
    assert repr(results()) == "<7 Solutions>"
    assert (
        repr(results(RECORDS[:1], out=Path("a.jsonl"), refused=["row 2: no"]))
        == "<1 Solution, 1 rows left out, in a.jsonl>"
    )
    assert repr(results([])) == "<0 records>"


def test_a_notebook_shows_the_first_five():
    page = results()._repr_html_()
    assert page.count("Problem ") == 5
    assert "<p>2 more</p>" in page and "&lt;7 Solutions&gt;" in page
