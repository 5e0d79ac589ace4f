"""Rows that evaluation harnesses and trainers write, in the shapes that `data.solutions` and `problems` read.

=============================  =====================================================================================================
written by                     a row has
=============================  =====================================================================================================
lm-eval, `--log_samples`       `doc` (with the problem), `target`, `resps`, and a value for each metric
Qwen2.5-Math's evaluation,     `question`, `gt`, `code` (the solutions), `pred` and `score` (one each)
and what was made from it
OpenR1-Math                    `problem`, `generations`, `correctness_math_verify` (one each); `solution` is the reference's
verl, `rollout_data_dir`       `input` (the prompt as text), `output`, `score`, `step`, mostly `gts`
TRL, verl, conversational      `prompt` as a list of messages, `completion` as one too, or a text; the answer under `reward_model`
=============================  =====================================================================================================

A row of another kind stays as it is. What has no place moves under `meta`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from stepmark.data.columns import ALIASES, columns_of
from stepmark.data.messages import loaded, object_or_empty
from stepmark.errors import InputError

Row = dict[str, Any]


def converted(row: Row) -> Row:
    """The same row in our shapes.

    Raises:
        InputError: a row of one of these tools that holds no solutions in words.
    """
    for keys, convert in _TOOLS:
        if all(key in row for key in keys):
            return convert(row)
    prompt = row.get("prompt")
    return _conversational(row, prompt) if _is_conversation(prompt) else row


def _lm_eval(row: Row) -> Row:
    doc = loaded(row["doc"]) if isinstance(row["doc"], str) else row["doc"]
    doc = doc if isinstance(doc, dict) else {}
    problem = next((doc[column] for column in columns_of(doc, "problem")), None)
    if not isinstance(problem, str):
        problem = _prompt_of(row.get("arguments"))
    listed = loaded(row["resps"]) if isinstance(row["resps"], str) else row["resps"]
    texts = [text for entry in _listed(listed) for text in _listed(entry)]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(
            "expected texts that a model wrote; this task of lm-eval compares likelihoods, and has no solutions",
            field="resps",
        )
    known = {"doc", "doc_id", "target", "resps", "arguments", "doc_hash", "prompt_hash", "target_hash"}
    metrics = [row.get(name) for name in _listed(row.get("metrics")) if isinstance(name, str)]
    filtered = row.get("filter")
    name = "" if filtered in (None, "none") else f"/{filtered}"
    return {
        "id": f"{row['doc_id']}{name}",
        "problem": problem,
        **_solutions([{"text": text} for text in texts]),
        **({"answer": row["target"]} if isinstance(row["target"], str | int | float) else {}),
        **({"correct": bool(metrics[0])} if len(texts) == 1 and metrics and metrics[0] in (0, 1) else {}),
        "meta": {key: value for key, value in row.items() if key not in known},
    }


def _qwen_math(row: Row) -> Row:
    known = {"idx", "question", "gt", "code", "pred", "score", "prompt", "report"}
    return {
        **({"id": str(row["idx"])} if "idx" in row else {}),
        "problem": row["question"],
        "solutions": _entries(row["code"], answer=row["pred"], correct=row.get("score")),
        "answer": row["gt"],
        "meta": {key: value for key, value in row.items() if key not in known},
    }


def _open_r1(row: Row) -> Row:
    known = {"uuid", "problem", "answer", "generations", "correctness_math_verify"}
    return {
        **({"id": row["uuid"]} if isinstance(row.get("uuid"), str) else {}),
        "problem": row["problem"],
        "solutions": _entries(row["generations"], correct=row["correctness_math_verify"]),
        **({"answer": row["answer"]} if row.get("answer") is not None else {}),
        "meta": {key: value for key, value in row.items() if key not in known},
    }


_LAST_QUESTION = re.compile(
    r"(?:\A|\n)(?:user|human)\n+((?:(?!\n(?:user|human)\n).)*?)\n+(?:assistant|model)\s*(?:<think>\s*)?\Z",
    re.S,
)
"""The last question of a chat that was written out without its special tokens."""


def _verl(row: Row) -> Row:
    text = row["input"]
    asked = _LAST_QUESTION.search(text) if isinstance(text, str) else None
    known = {"input", "output", "gts"}
    return {
        "problem": asked[1].strip() if asked else text,
        "solution": row["output"],
        **({"answer": row["gts"]} if isinstance(row.get("gts"), str | int | float) else {}),
        "meta": {key: value for key, value in row.items() if key not in known},
    }


def _conversational(row: Row, prompt: Sequence[Mapping[str, Any]]) -> Row:
    rest = {key: value for key, value in row.items() if key != "prompt"}
    if "answer" not in rest and not columns_of(rest, "answer"):
        gold = object_or_empty(rest.get("reward_model")).get("ground_truth")
        rest |= {"answer": gold} if isinstance(gold, str | int | float) else {}
    for column in ("solution", *ALIASES["solution"]):
        if _is_conversation(rest.get(column)):
            return {"messages": [*prompt, *rest.pop(column)], **rest}
    return {"prompt": _text_of(prompt), **rest}


_TOOLS: Sequence[tuple[Sequence[str], Callable[[Row], Row]]] = (
    (("doc_id", "doc", "target", "resps"), _lm_eval),
    (("question", "gt", "code", "pred"), _qwen_math),
    (("problem", "generations", "correctness_math_verify"), _open_r1),
    (("input", "output", "score", "step"), _verl),
)


def _solutions(entries: list[Row]) -> Row:
    return {"solution": entries[0]["text"]} if len(entries) == 1 else {"solutions": entries}


def _entries(texts: object, **facts: object) -> list[Row]:
    """The solutions of a problem, each with its own entry of each list of facts."""
    listed = {name: values for name, values in facts.items() if isinstance(values, list)}
    return [
        {"text": text, **{name: values[at] for name, values in listed.items() if at < len(values)}}
        for at, text in enumerate(_listed(texts))
    ]


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _is_conversation(value: object) -> TypeGuard[list[Mapping[str, Any]]]:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(message, Mapping) and "role" in message for message in value)
    )


def _text_of(messages: Sequence[Mapping[str, Any]]) -> str:
    from stepmark.data.conversations import read_messages

    return read_messages([*messages, {"role": "assistant", "content": "…"}])[0].text


def _prompt_of(arguments: object) -> object:
    """The text of the first request of lm-eval: [[prompt, settings]], or {"gen_args_0": {"arg_0": prompt}}; a prompt may be a chat as JSON."""
    while isinstance(arguments, list | Mapping) and arguments and not _is_conversation(arguments):
        arguments = arguments[0] if isinstance(arguments, list) else next(iter(arguments.values()))
    if isinstance(arguments, str) and _is_conversation(chat := loaded(arguments)):
        arguments = chat
    return _text_of(arguments) if isinstance(arguments, list) else arguments
