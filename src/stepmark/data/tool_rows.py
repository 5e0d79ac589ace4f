"""Rows that evaluation harnesses, trainers and published data sets have, in the shapes that `data.solutions` and `problems` read.

=============================  =====================================================================================================
written by                     a row has
=============================  =====================================================================================================
lm-eval, `--log_samples`       `doc` (with the problem), `target`, `resps`, and a value for each metric
Qwen2.5-Math's evaluation,     `question`, `gt`, `code` (the solutions), `pred` and `score` (one each)
and what was made from it
OpenR1-Math                    `problem`, `generations`, `correctness_math_verify` (one each); `solution` is the reference's
DeepMath                       `question`, `final_answer`, `r1_solution_1` and further ones
verl, `rollout_data_dir`       `input` (the prompt as text), `output`, `score`, `step`, mostly `gts`
LLaMA-Factory, predictions     `prompt` (as text), `predict`, `label`
TRL, verl, conversational      `prompt` as a list of messages, `completion` as one too, or a text; the answer under `reward_model`
DeepSeek's replies             a problem, `reasoning_content`, and `content` or another name of the solution
Alpaca                         `instruction`, `input` and `output`
NuminaMath, evalscope          the same solution as a text, or as `model_output`, and under `messages`
=============================  =====================================================================================================

A prompt that a chat template wrote (ChatML's, Llama's, Gemma's, DeepSeek's) becomes its messages. A row of another kind stays as it
is. What has no place moves under `meta`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from stepmark.data.columns import ALIASES, columns_of, content_of
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
    row = _without_template(_with_thoughts(_alpaca(_said_twice(_labelled_steps(row)))))
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
    named = _listed(row.get("metrics", "exact_match"))  # older versions name none
    metrics = [row.get(name) for name in named if isinstance(name, str)]
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


def _deep_math(row: Row) -> Row:
    written = [column for column in row if column.startswith("r1_solution_")]
    known = {"question", "final_answer", *written}
    return {
        "problem": row["question"],
        "solutions": [row[column] for column in written if row[column] is not None],
        "answer": row["final_answer"],
        "meta": {key: value for key, value in row.items() if key not in known},
    }


_LAST_QUESTION = re.compile(
    r"(?:\A|\n)(?:user|human)\n+((?:(?!\n(?:user|human)\n).)*?)\n+(?:assistant|model)\s*(?:<think>\s*)?\Z",
    re.S,
)
"""The last question of a chat that a template wrote, and that lost its special tokens."""


def _rollout(prompt: str, reply: str, gold: str) -> Callable[[Row], Row]:
    """The reader of rows whose prompt is a text that a chat template wrote; the arguments are names of columns."""

    def convert(row: Row) -> Row:
        return _without_template(
            {
                "problem": row[prompt],
                "solution": row[reply],
                **({"answer": row[gold]} if isinstance(row.get(gold), str | int | float) else {}),
                "meta": {key: value for key, value in row.items() if key not in {prompt, reply, gold}},
            }
        )

    return convert


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
    (("question", "final_answer", "r1_solution_1"), _deep_math),
    (("input", "output", "score", "step"), _rollout("input", "output", "gts")),
    (("prompt", "predict", "label"), _rollout("prompt", "predict", "label")),
)

_WORDS: Mapping[object, int] = {
    **dict.fromkeys(("+", "good", "right", "correct", "positive"), 1),
    **dict.fromkeys(("-", "bad", "wrong", "incorrect", "negative"), -1),
    "neutral": 0,
}
"""Labels of steps in words, as ratings."""


def _labelled_steps(row: Row) -> Row:
    """Steps that are objects of a text and perhaps a label, and labels in words, become `steps` and `labels`."""
    steps = row.get("steps")
    if not isinstance(steps, list) or not steps or not columns_of(row, "problem"):
        return row
    labels = row.get("labels")
    if all(isinstance(step, dict) for step in steps):
        text = next((key for key in ("text", "content", "step") if _all_texts(steps, key)), None)
        if text is None or any(
            step.get("observation") for step in steps
        ):  # what came back is no part of a text
            return row
        label = next((key for key in ("label", "rating") if any(key in step for step in steps)), None)
        if label is not None and labels is None:
            labels = [step.get(label) for step in steps]
        if any(set(step) - {text, label} for step in steps):
            row = {**row, "meta": {**object_or_empty(row.get("meta")), "steps": steps}}
        steps = [step[text] for step in steps]
    ratings = {
        label: _WORDS.get(label.strip().lower()) for label in _listed(labels) if isinstance(label, str)
    }
    if ratings and None not in ratings.values():
        neutral = 0 in ratings.values()  # beside right and wrong, a rating; else true and false
        labels = [
            label if not isinstance(label, str) else ratings[label] if neutral else ratings[label] == 1
            for label in _listed(labels)
        ]
    return {**row, "steps": steps, **({} if labels is None else {"labels": labels})}


def _all_texts(steps: Sequence[Mapping[str, Any]], key: str) -> bool:
    return all(isinstance(step.get(key), str) for step in steps)


def _said_twice(row: Row) -> Row:
    """Where a row has its solution as a conversation and once more, one of the two moves under `meta`."""
    messages = row.get("messages")
    if not _is_conversation(messages) or messages[-1]["role"] != "assistant":
        return row
    others = [column for field, column in content_of(row) if field != "messages"]
    aside = None
    if others == ["model_output"] and isinstance(row["model_output"], Mapping):
        aside = "model_output"
    elif len(others) == 1 and (problem := columns_of(row, "problem")):
        texts = [message.get("content") for message in messages if message["role"] != "system"]
        aside = "messages" if texts == [row[problem[0]], row[others[0]]] else None
    if aside is None:
        return row
    kept = {key: value for key, value in row.items() if key != aside}
    return {**kept, "meta": {**object_or_empty(row.get("meta")), aside: row[aside]}}


def _alpaca(row: Row) -> Row:
    asked, given, output = (row.get(key) for key in ("instruction", "input", "output"))
    if not all(isinstance(text, str) and text.strip() for text in (asked, given, output)) or "problem" in row:
        return row
    rest = {key: value for key, value in row.items() if key not in ("instruction", "input")}
    return {"problem": f"{asked}\n{given}", **rest}


def _with_thoughts(row: Row) -> Row:
    """The thoughts of a reply (`reasoning_content`) and the reply become one text."""
    thoughts = row.get("reasoning_content")
    replies = [column for _, column in content_of(row)] or ["content"]
    reply = row.get(replies[0])
    if not isinstance(thoughts, str) or not isinstance(reply, str) or not columns_of(row, "problem"):
        return row
    text = f"<think>\n{thoughts.strip()}\n</think>\n\n{reply.lstrip()}" if thoughts.strip() else reply
    rest = {key: value for key, value in row.items() if key not in ("reasoning_content", *replies[:1])}
    return {**rest, "solution": text}


_TURN = re.compile(
    r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)"
    r"|<\|start_header_id\|>(\w+)<\|end_header_id\|>\n*(.*?)(?:<\|eot_id\|>|\Z)"
    r"|<start_of_turn>(\w+)\n(.*?)(?:<end_of_turn>|\Z)"
    r"|<｜(User|Assistant)｜>(.*?)(?=<｜|\Z)",
    re.S,
)
"""A turn of a chat that a template wrote: the role and the text, in one of four pairs of groups."""
_END = re.compile(
    r"\s*(?:<\|im_end\|>|<\|eot_id\|>|<end_of_turn>|<｜end▁of▁sentence｜>|<\|endoftext\|>|</s>)\s*\Z"
)


def _without_template(row: Row) -> Row:
    """A problem that a chat template wrote becomes its messages, as text; of a solution, the token of its end goes."""
    problem = next(iter(columns_of(row, "problem")), None)
    if problem is None or not isinstance(row[problem], str):
        return row
    if asked := _LAST_QUESTION.search(row[problem]):
        return {**row, problem: asked[1].strip()}
    messages = _turns(row[problem])
    if messages and messages[-1]["role"] == "assistant":
        begun = messages.pop()["content"]
        if begun.strip() not in ("", "<think>"):
            return row
    if not messages or messages[-1]["role"] != "user":
        return row
    ended = {
        column: _END.sub("", row[column])
        for field, column in content_of(row)
        if field == "solution" and isinstance(row[column], str)
    }
    return {**row, problem: _text_of(messages), **ended}


def _turns(text: str) -> list[dict[str, str]]:
    roles = {"model": "assistant", "human": "user"}
    turns = [[group for group in match.groups() if group is not None] for match in _TURN.finditer(text)]
    return [
        {"role": roles.get(role.lower(), role.lower()), "content": content.strip()} for role, content in turns
    ]


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
