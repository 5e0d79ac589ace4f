"""Writing PRM800K's records: rows that came from one record and stand together become it again (`prm800k_raw` reads)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stepmark.errors import InputError
from stepmark.records import Refusal
from stepmark.solutions.interchange.one_label import WRITTEN, StepLabel, three_way
from stepmark.solutions.interchange.prm800k_raw import FINISHES, FLAGS, IN_META
from stepmark.solutions.interchange.rows import (
    Item,
    LabelledRow,
    Losses,
    NotRepresentableError,
    Writing,
    lose_rest,
    plain_texts,
)

_Labels = Sequence[StepLabel | None]


def write(items: Iterable[Item], settings: Writing, losses: Losses) -> Iterator[dict[str, Any] | InputError]:
    """Records, each as soon as the next row is of another one.

    A row in which no step is judged is left out.
    """
    group: list[LabelledRow] = []
    for item in items:
        if isinstance(item, LabelledRow) and group and _key(item) == _key(group[0]) is not None:
            group.append(item)
            continue
        yield from _records(group, settings, losses)
        group = []
        if isinstance(item, Refusal):
            yield item.error
        else:
            group = [item]
    yield from _records(group, settings, losses)


def _facts(row: LabelledRow) -> dict[str, Any]:
    facts = row.meta.get("prm800k")
    return facts if row.meta.get("format") == "prm800k" and isinstance(facts, dict) else {}


def _key(row: LabelledRow) -> str | None:
    return row.origin if _facts(row) else None


def _branch(row: LabelledRow) -> tuple[int, int] | None:
    """Which step and which completion of its record a row is."""
    said = _facts(row).get("branch")
    match said:
        case [int() as step, int() as at] if step == len(row.solution.steps) - 1:
            return step, at
    return None


def _records(
    group: list[LabelledRow], settings: Writing, losses: Losses
) -> Iterator[dict[str, Any] | InputError]:
    mains = [row for row in group if _branch(row) is None]
    main = mains[0] if len(mains) == 1 else None
    own: list[LabelledRow] = []
    branches: list[tuple[int, int, LabelledRow]] = []
    for row in group:
        at = _branch(row)
        if main is not None and at is not None and _leaves(row, main, at[0]):
            branches.append((*at, row))
        elif row is not main:
            own.append(row)
    for row in own:
        yield from _tried(row, [], settings, losses)
    if main is not None:
        yield from _tried(main, branches, settings, losses)


def _leaves(row: LabelledRow, main: LabelledRow, step: int) -> bool:
    texts = main.solution.texts
    return step < len(texts) and row.solution.texts[:step] == texts[:step]


def _tried(
    main: LabelledRow, branches: list[tuple[int, int, LabelledRow]], settings: Writing, losses: Losses
) -> Iterator[dict[str, Any] | InputError]:
    try:
        yield _record(main, branches, settings, losses)
    except NotRepresentableError as error:
        losses.drop(error.message, main.where)
        yield error.at(main.where)


def _record(
    main: LabelledRow, branches: list[tuple[int, int, LabelledRow]], settings: Writing, losses: Losses
) -> dict[str, Any]:
    labels = three_way(main, settings, losses)
    texts = plain_texts(main, losses)
    facts = _facts(main)
    if all(label is None for label in labels):
        raise NotRepresentableError("no step is judged, and a record of PRM800K holds ratings")
    last = _last(labels)
    flagged = facts.get("flagged") or ()
    steps = []
    for step in range(last + 1):
        beside = [(at, row) for number, at, row in branches if number == step]
        others = [
            (at, _completion(row.solution.texts[-1], three_way(row, settings, losses)[-1]))
            for at, row in beside
        ]
        own = _completion(texts[step], labels[step], flagged=step in flagged)
        steps.append(_step(own, labels[step], others, _choice(facts, step, last, labels[step])))
    if last + 1 < len(texts):
        losses.lose(
            "a row was cut after its first error, or after the last step that was judged; all its steps stand in "
            "question.pre_generated_steps",
            main.where,
        )
        facts = {"pre_generated_steps": texts, **facts}
    for row in (main, *(row for _, _, row in branches)):
        lose_rest(row, losses, "PRM800K", held=("answer",), facts=("prm800k",) if _facts(row) else ())
    judge = next(label.judge for label in labels if label is not None)
    finish = facts.get("finish_reason")
    if finish not in FINISHES:
        finish = _finish(labels, last, len(texts))
    return {
        "labeler": judge.removeprefix("human:"),
        "timestamp": facts.get("timestamp"),
        "generation": facts.get("generation"),
        **{name: bool(facts.get(name)) for name in FLAGS},
        "question": {
            "problem": main.solution.problem.text,
            "ground_truth_answer": main.solution.problem.answer,
            **{name: facts[name] for name in IN_META if name in facts},
        },
        "label": {"steps": steps, "total_time": facts.get("total_time"), "finish_reason": finish},
    }


def _last(labels: _Labels) -> int:
    """The last step of the walk: the last that was judged; what nobody judged before it stays, rated null."""
    return max(step for step, label in enumerate(labels) if label is not None)


def _finish(labels: _Labels, last: int, steps: int) -> str | None:
    """Why the walk ended, where the labels tell: at an error, or at the end of a solution all of which is judged."""
    label = labels[last]
    if label is not None and label.rating == -1:
        return "found_error"
    whole = last + 1 == steps and all(label is not None and label.rating != -1 for label in labels)
    return "solution" if whole else None


def _choice(facts: dict[str, Any], step: int, last: int, label: StepLabel | None) -> int | None:
    """The index of the completion that was chosen; None where the walk ended at it or the labeller wrote the step."""
    chosen = facts.get("chosen")
    if isinstance(chosen, list) and step < len(chosen):
        return chosen[step] if isinstance(chosen[step], int) else None
    return None if step == last and label is not None and label.rating == -1 else 0


def _step(
    completion: dict[str, Any],
    label: StepLabel | None,
    others: list[tuple[int, dict[str, Any]]],
    choice: int | None,
) -> dict[str, Any]:
    if label is not None and label.note == WRITTEN:
        return {
            "completions": [completion for _, completion in others] or None,
            "human_completion": {
                "text": completion["text"],
                "rating": None,
                "source": "human",
                "flagged": False,
            },
            "chosen_completion": None,
        }
    own = 0 if choice is None else choice
    listed = sorted([*others, (own, completion)], key=lambda pair: pair[0])
    completions = [completion for _, completion in listed]
    position = next(at for at, (number, _) in enumerate(listed) if number == own)
    return {
        "completions": completions,
        "human_completion": None,
        "chosen_completion": None if choice is None else position,
    }


def _completion(text: str, label: StepLabel | None, *, flagged: bool = False) -> dict[str, Any]:
    return {"text": text, "rating": None if label is None else label.rating, "flagged": flagged or None}
