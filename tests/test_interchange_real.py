"""Real files, where they are at hand: `shared/data` beside the repository."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from stepmark.data.formats.rows import Counts, LabelledRow, ReaderSettings, Writing
from stepmark.data.labelled import items_of_rows, read_labelled, write_labelled
from stepmark.data.reading import read_rows

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def data(name: str) -> Path:
    file = DATA / f"{name}.jsonl.gz"
    if not file.is_file():
        pytest.skip(f"{name} is not here: real data is not part of the repository")
    return file


def raw(name: str, limit: int | None = None) -> list[dict[str, Any]]:
    with gzip.open(data(name), "rt", encoding="utf-8") as handle:
        return [json.loads(line) for line in itertools.islice(handle, limit)]


def test_prm800k_records_come_back_as_they_were():
    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: bare(one) for key, one in value.items() if key != "flagged"}
        return [bare(one) for one in value] if isinstance(value, list) else value

    rows = read_labelled(data("prm800k/raw_records"))
    assert [bare(row) for row in write_labelled(rows, "prm800k")] == [
        bare(row) for row in raw("prm800k/raw_records")
    ]


def test_a_record_gives_the_flat_rows_that_others_made_of_it():
    rows = [
        row
        for row in write_labelled(read_labelled(data("prm800k/raw_records")), "prm800k-flat")
        if isinstance(row, dict)
    ]
    problem = rows[0]["instruction"]
    theirs = [row for row in raw("prm800k/phase1_test") if row["instruction"] == problem]
    ours = [row for row in rows if row["instruction"] == problem]
    assert theirs
    assert sorted(map(json.dumps, ours)) == sorted(
        json.dumps({key: row[key] for key in ours[0]}) for row in theirs
    )


def test_flat_prm800k_comes_back_as_it_was_but_for_rows_that_nobody_rated():
    theirs = raw("prm800k/phase1_test")
    counts = Counts()
    rows = write_labelled(read_labelled(data("prm800k/phase1_test")), "prm800k-flat", Writing(), counts)
    ours = [row for row in rows if isinstance(row, dict)]
    rated = [row for row in theirs if row["rating"] is not None or row["is_human_response"]]
    assert [{key: row[key] for key in ours[0]} for row in rated] == ours
    assert counts.dropped == len(theirs) - len(rated)


def test_prmbench_keeps_every_error_and_leaves_out_what_cannot_be_read():
    counts = Counts()
    rows = read_rows(data("prmbench/prmbench.dev"))
    items = items_of_rows(rows, "prmbench", ReaderSettings(), counts, keep_going=True)
    wrong = {
        item.where: [at for at, step in enumerate(item.labelled.judgements, 1) if step[0].rating == -1]
        for item in items
        if isinstance(item, LabelledRow)
    }
    theirs = {
        f"{data('prmbench/prmbench.dev')}:{n}": row for n, row in enumerate(raw("prmbench/prmbench.dev"), 1)
    }
    blank = {where for where, row in theirs.items() if not all(s.strip() for s in row["modified_process"])}
    assert blank
    assert wrong == {
        where: sorted({n for n in row["error_steps"] if n <= len(row["modified_process"])})
        for where, row in theirs.items()
        if where not in blank
    }
    assert counts.dropped == len(blank)
