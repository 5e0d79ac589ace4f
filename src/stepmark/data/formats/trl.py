"""TRL's stepwise rows: `prompt`, `completions`, `labels`.

Labels are true or false (1 or 0), ratings (-1, 0, 1), or floats, which are shares of rollouts; null is a step that nobody judged. Written
rows have `id`, `answer`, `source`, `problem_id`, `problem_source` and `meta` too; the reader takes them back. TRL itself has no word for such a
step, so a written row is cut before its first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from stepmark.data.formats import rows
from stepmark.data.reading import Row
from stepmark.data.solutions import is_solution, read_solution, step_labels
from stepmark.records import Judgement

ABOUT = "TRL: prompt, completions, labels"

KEYS = ("prompt", "completions")


def sniff(row: Mapping[str, Any]) -> bool:
    """Whether a row is of TRL, or has `labels`, one a step, beside `steps`. Those that nobody can read are refused by the reader."""
    if all(key in row for key in KEYS) or step_labels(row) is not None:
        return True
    steps, labels = row.get("steps"), row.get("labels", ())
    one_a_step = isinstance(steps, list) and isinstance(labels, list) and len(labels) == len(steps)
    return is_solution(row) and isinstance(steps, list) and (labels is None or one_a_step)


def read(row: Row, settings: rows.ReaderSettings, counts: rows.Counts) -> Iterator[rows.LabelledRow]:
    """One row of TRL; without labels its steps are not judged."""
    read = read_solution(row.data, where=row.where)
    labels = step_labels(row.data) or []
    if not labels and row.data.get("labels") is not None:
        raise row.error(
            f"expected a list of true, false, -1, 0, 1 or null, one a step, found {row.data['labels']!r}",
            "labels",
        )
    meta = rows.origin(row, "trl", read.columns)
    rated = -1 in labels  # 0 is neutral beside -1, else it is wrong
    zero = any(label == 0 and not isinstance(label, bool) for label in labels)
    if settings.zero is not None:
        rated = rated or (zero and all(label in (0, 1, None) for label in labels))
    elif rated or zero:
        _one_meaning_of_zero(row, "neutral" if rated else "wrong", counts)
    shares = not rated and any(isinstance(label, float) for label in labels)
    judge, kind = rows.judge_and_kind(meta, "TRL", "value" if shares else "correctness")
    judgements: list[tuple[Judgement, ...]] = []
    for number, label in enumerate(labels):
        if label is None or (rated and label == 0 and settings.zero == "unjudged"):
            judgements.append(())
        elif label not in (-1, 0, 1) if rated else not 0 <= label <= 1:
            expected = "-1, 0, 1 or null, as beside another -1" if rated else "-1, null, or 0 to 1"
            raise row.error(f"label {number} (0-based): expected {expected}, found {label!r}", "labels")
        elif shares:
            judgements.append((Judgement(kind=kind, judge=judge, share=float(label)),))
        elif rated and not isinstance(label, bool):
            judgements.append(
                (Judgement(kind=kind, judge=judge, rating=cast(Literal[-1, 0, 1], int(label))),)
            )
        else:
            judgements.append((Judgement(kind=kind, judge=judge, rating=1 if label else -1),))
    solution = replace(read.solution, id=read.solution.id or row.place)
    yield rows.labelled(row, solution, judgements or [()] * len(solution.steps), meta)


def _one_meaning_of_zero(row: Row, meaning: str, counts: rows.Counts) -> None:
    """Refuse a file where a 0 is neutral in one row, beside -1, and wrong in another."""
    first = counts.zeros
    first.setdefault(meaning, row.where)
    if len(first) > 1:
        raise row.error(
            f"is 0 neutral or wrong? {first['neutral']} has a label of -1, which makes 0 neutral; {first['wrong']} has 0 and no -1, which makes 0 "
            "wrong. Where 0 is neutral in the whole file, convert it with stepmark convert and `zero` neutral; where it is wrong, write false",
            "labels",
        )


def write(row: rows.LabelledRow, settings: rows.Writing) -> Iterator[dict[str, Any]]:
    """One row of TRL: floats where a label is a share, else true and false."""
    labels = rows.until_unjudged(rows.labels_of(row, settings, neutral=False), row, "TRL")
    values: list[bool | float] = [label.rating == 1 for label in labels]
    if any(label.share is not None for label in labels):
        values = [float(label.rating == 1) if label.share is None else label.share for label in labels]
    yield {
        "prompt": row.solution.problem.text,
        "completions": list(row.solution.texts)[: len(labels)],
        "labels": values,
        **rows.solution_fields(row.solution),
        "meta": rows.written_meta(row, labels[0].judge, labels[0].kind, held=rows.RECORD_FIELDS),
    }
