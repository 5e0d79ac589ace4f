"""Real files, where they are at hand: `shared/data` beside the repository."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from stepmark.data.formats.rows import Counts, LabelledRow, ReaderSettings
from stepmark.data.labelled import items_of_rows, read_labelled
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


def test_every_rating_of_prm800k_is_read_once():
    rows = list(read_labelled(data("prm800k/raw_records")))
    own = [j for row in rows for step in row.own.judgements for j in step if j.note is None]
    theirs = [
        (record["labeler"], completion["rating"])
        for record in raw("prm800k/raw_records")
        for step in record["label"]["steps"]
        for completion in step["completions"] or ()
        if completion["rating"] is not None and not completion["flagged"]
    ]
    assert sorted((j.judge.removeprefix("human:"), j.rating) for j in own) == sorted(theirs)


def test_flat_prm800k_has_the_ratings_that_its_rows_have():
    read = [
        step[-1].rating if step else None
        for step in (row.labelled.judgements[-1] for row in read_labelled(data("prm800k/phase1_test")))
    ]
    assert read == [
        row["rating"] or 1 if row["is_human_response"] else row["rating"]
        for row in raw("prm800k/phase1_test")
    ]


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
