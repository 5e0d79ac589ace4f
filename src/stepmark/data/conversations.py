"""A solution as a caller has it (a text, step texts, a segmentation, a conversation, a record) becomes a `Solution`.

Chat messages have the form of the OpenAI chat API. What precedes the first assistant turn is the problem. From there on the conversation is
written out as one text, of which the steps are shares: each assistant turn with its tool calls is a step.

.. code-block:: text

    Assistant:
    I look for a flight first.
    search_flights({"from": "LIS", "to": "OSL"})

    Tool (search_flights):
    [{"number": "AB12", "price": 140}]

    Assistant:
    There is one for 140 euros. Shall I book it?

- "Assistant:" and its line break are the step's `lead`; a message's `name` is its `speaker`, and the heading is then "Assistant (NAME):";
- its `text` is the turn's thought, the content, then one line `name(arguments)` for each tool call;
- what follows until the next assistant turn (tool results, user turns, each under its heading, after a blank line) is its `observation`;
- the blank line before the next assistant turn is its `tail`.

A thought is what `reasoning_content`, `reasoning` or `thinking` holds, or what its marks say in the content (`data.steps.thoughts`).
With `reasoning` "only" it alone is the step's `text`, and the rest of the turn opens the `observation`; with "drop" it is in the `lead`.
A turn of which nothing is graded belongs to the observation of the step before. Contents stand unchanged; parts of one message are joined by
a line break. The text is for reading and grading, not for parsing: a content that contains "User:" is not escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from stepmark.data.json_rows import json_type
from stepmark.data.messages import Chat, plain_messages, text_or_none
from stepmark.data.steps.splitting import ASKED, Segmentation, check_way, split, split_parts
from stepmark.data.steps.splitting import split as split_text
from stepmark.data.steps.thoughts import Reasoning, ThoughtSection, sections, texts_of
from stepmark.errors import InputError
from stepmark.records import (
    GradedSolution,
    LabelledSolution,
    MessageSpan,
    Problem,
    SampledSolution,
    Solution,
    Step,
    Steps,
)
from stepmark.words import amount


class TurnShares(NamedTuple):
    """A turn as it is written out."""

    before: str
    graded: str
    after: str
    """What stands before the graded text, that text, and what stands after it; they rejoin to the turn."""
    words: MessageSpan
    """The turn's own words in it, without its thought and its tool calls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatMessage:
    """A message of the OpenAI chat API, as a conversation is written out."""

    role: str
    content: str
    calls: tuple[str, ...]
    """Tool calls as `name(arguments)`."""
    thought: str
    speaker: str | None
    """The message's `name`; of a tool's answer, the function that was called."""
    id: str | None = None
    """The message's id, or that of the call that wrote it."""

    @property
    def heading(self) -> str:
        """As the written conversation has it: "Tool (search):"."""
        word = self.role.capitalize()
        return f"{word} ({self.speaker}):" if self.speaker else f"{word}:"

    def under_heading(self, reasoning: Reasoning) -> tuple[str, MessageSpan]:
        """The whole message as it is written out, and where in it its words stand."""
        before, graded, after, words = self.shares(reasoning)
        shift = len(self.heading) + 1
        moved = replace(words, start=words.start + shift, end=words.end + shift)
        return f"{self.heading}\n{before}{graded}{after}", moved

    def shares(self, reasoning: Reasoning) -> TurnShares:
        """The shares of a turn; all of another message stands after."""
        if self.role != "assistant":
            whole = MessageSpan(role=self.role, start=0, end=len(self.content))
            return TurnShares("", "", self.content, whole)
        within = list(texts_of(self.content))
        thoughts = [text for text, thought in within if thought]
        thought = "\n".join(
            text.strip() for text in [*(text for text, _ in texts_of(self.thought)), *thoughts]
        )
        parts = [text.strip() for text, thought in within if not thought]
        if not thought and (within == [(self.content, False)] or self.content.isspace()):  # without a mark
            parts = [self.content]
        words = "\n".join(part for part in parts if part)
        spoken = "\n".join([words, *self.calls] if words else self.calls)
        gap = "\n" if thought and spoken else ""
        start = len(thought + gap)
        span = MessageSpan(role=self.role, start=start, end=start + len(words))
        if reasoning == "only":
            return TurnShares("", thought, gap + spoken, span)
        if reasoning == "drop":
            return TurnShares(thought + gap, spoken, "", span)
        return TurnShares("", thought + gap + spoken, "", span)


def read_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    where: str | None = None,
    how: str = "auto",
    marker: str | None = None,
    reasoning: Reasoning = "keep",
) -> tuple[Problem, Segmentation]:
    """Read a conversation as a problem and the steps of its solution.

    A greeting by the assistant before the first question belongs to the problem. The problem's text is the content of the message before the first assistant turn when that is one user message; otherwise all messages
    before it, each under its role's heading. A conversation whose only assistant turn comes last, without tools, is a plain solution: its
    content is cut by `how`. In every other one each assistant turn is a step, and the segmentation's `how` is "agent".

    Args:
        messages: the conversation, oldest first; contents may have the parts of `data.messages`.
        where: the place to name in errors, `FILE:LINE`.
        how: for a plain solution, the way to cut it (`stepmark.split`); "agent" keeps even that whole, as one turn.
        marker: for a plain solution, as in `stepmark.split`.
        reasoning: what becomes of thoughts, as in `stepmark.split`.

    Raises:
        InputError: not such messages; `field` names the place, as `messages[3].role`.
        UnknownNameError: no such way.
        UsageError: a setting that cannot work, for a plain solution.
    """
    check_way(how)

    def refuse(message: str, field: str = "messages") -> InputError:
        return InputError(message, where=where, field=field)

    names: dict[str, str] = {}
    read = [_chat_message(message, names) for message in plain_messages(messages, where)]
    turns = [i for i, message in enumerate(read) if message.role == "assistant"]
    if not turns:
        raise refuse(
            f"expected at least one assistant message (its turns are the steps), found none in {amount(len(read), 'message')}"
        )
    for i in turns:
        if not read[i].shares("keep").graded.strip():
            raise refuse(
                "expected an assistant turn with content or tool calls, found neither; leave the message out",
                f"messages[{i}]",
            )
    turns = [i for i in turns if i >= _start(read)]
    if not any(message.content.strip() for message in read[: turns[0]]):
        raise refuse(
            "expected a problem before the first assistant turn (a user or system message), found none"
        )
    problem = _problem(read[: turns[0]])
    tools = any(message.role == "tool" or message.calls for message in read)
    if len(turns) == 1 and turns[0] == len(read) - 1 and not tools and how != "agent":
        try:
            cut = _plain(read[-1], how, marker, reasoning)
            return problem, replace(cut, steps=tuple(replace(step, id=read[-1].id) for step in cut.steps))
        except InputError as error:
            raise (error.at(where) if where else error) from None
    steps = _trace(read[turns[0] :], reasoning)
    if not steps:
        needed = "a thought" if reasoning == "only" else "something beside thoughts"
        raise refuse(f"expected a turn with {needed} (`reasoning` {reasoning}), found none")
    why = f"the conversation has {amount(len(turns), 'assistant turn')}"
    text = "".join(step.raw for step in steps)
    return problem, Segmentation(text=text, steps=steps, how="agent", why=ASKED if how == "agent" else why)


def _start(messages: Sequence[ChatMessage]) -> int:
    """Where the solution may begin: a greeting before the first question belongs to the problem."""
    asked = next((i for i, message in enumerate(messages) if message.role == "user"), 0)
    greeting = [message for message in messages[:asked] if message.role == "assistant"]
    context = any(message.content.strip() for message in messages[:asked] if message.role != "assistant")
    answered = any(message.role == "assistant" for message in messages[asked:])
    plain = all(message.role != "tool" and not message.calls for message in messages[:asked])
    return asked if greeting and plain and answered and not context else 0


def _plain(message: ChatMessage, how: str, marker: str | None, reasoning: Reasoning) -> Segmentation:
    """The steps of a plain solution; its thought, whatever marks are in it, is a thought to its end."""
    if not message.thought:
        return split(message.content, how, marker=marker, reasoning=reasoning)
    opening = "<think>\n"
    thought = f"{opening}{message.thought}\n</think>\n\n"
    parts = [
        ThoughtSection(
            start=shift + part.start, end=shift + part.end, thought=part.thought or shift < len(thought)
        )
        for shift, text in ((len(opening), message.thought), (len(thought), message.content))
        for part in sections(text)
    ]
    return split_parts(thought + message.content, parts, how, marker=marker, reasoning=reasoning)


def _problem(messages: Sequence[ChatMessage]) -> Problem:
    if len(messages) == 1 and messages[0].role == "user":
        return Problem(text=messages[0].content)
    text, spans = "", []
    for message in messages:
        text += ("\n\n" if text else "") + f"{message.heading}\n"
        spans.append(MessageSpan(role=message.role, start=len(text), end=len(text) + len(message.content)))
        text += message.content
    return Problem(text=text, messages=tuple(spans))


class Opening(NamedTuple):
    """The turns before the first graded one: the layout of that, and where in it their words stand."""

    text: str = ""
    messages: tuple[MessageSpan, ...] = ()

    def then(self, message: ChatMessage, reasoning: Reasoning) -> Opening:
        """With one more turn."""
        text, words = message.under_heading(reasoning)
        moved = replace(words, start=words.start + len(self.text), end=words.end + len(self.text))
        return Opening(f"{self.text}{text}\n\n", (*self.messages, moved))


def step_of(turn: ChatMessage, reasoning: Reasoning, opening: Opening) -> Step | None:
    """The step that a turn is; None where nothing of it is graded.

    Args:
        opening: what stands before it, where it is the first.
    """
    before, graded, rest, _ = turn.shares(reasoning)
    if not (text := graded.strip()):
        return None
    _, words = turn.under_heading(reasoning)
    shift = len(opening.text)
    blank = len(graded) - len(graded.lstrip())
    after = graded[blank + len(text) :]
    return Step(
        text=text,
        lead=f"{opening.text}{turn.heading}\n{before}{graded[:blank]}",
        # The raw share is lead + text + observation + tail: spaces that end the turn go before the observation.
        observation=after + rest if rest else "",
        tail="" if rest else after,
        speaker=turn.speaker,
        id=turn.id,
        messages=(*opening.messages, replace(words, start=words.start + shift, end=words.end + shift)),
    )


def answered(step: Step, message: ChatMessage, reasoning: Reasoning) -> Step:
    """A step with one more message that answers it, or a turn of which nothing is graded."""
    text, words = message.under_heading(reasoning)
    shift = len(step.raw) + len("\n\n")
    return replace(
        step,
        observation=f"{step.observation}{step.tail}\n\n{text}",
        tail="",
        messages=(*step.messages, replace(words, start=words.start + shift, end=words.end + shift)),
    )


def _trace(messages: Sequence[ChatMessage], reasoning: Reasoning) -> tuple[Step, ...]:
    """The conversation from its first assistant turn on; each turn of which something is graded is a step."""
    steps: list[Step] = []
    opening = Opening()
    for message in messages:
        step = None
        if message.role == "assistant":
            step = step_of(message, reasoning, Opening() if steps else opening)
        if step is not None:
            steps.append(step)
        elif steps:
            steps[-1] = answered(steps[-1], message, reasoning)
        else:
            opening = opening.then(message, reasoning)
    at = 0
    for index, step in enumerate(steps):
        tail = step.tail if index == len(steps) - 1 else f"{step.tail}\n\n"
        steps[index] = replace(step, tail=tail, start=at + len(step.lead))
        at += len(steps[index].raw)
    return tuple(steps)


def read_message(message: object, field: str, where: str | None, names: dict[str, str]) -> ChatMessage:
    """Read one message; `names` gathers which function each tool call's id stands for.

    Raises:
        InputError: no message, or one that holds tools' answers beside its own words.
    """
    chat = Chat(where=where, part=field)
    with chat.reading("a message"):
        chat.append(message)
    if len(chat.messages) != 1:
        raise chat.error("expected one message, found a turn that holds answers of tools too")
    return _chat_message(chat.messages[0], names)


def _chat_message(message: Mapping[str, Any], names: dict[str, str]) -> ChatMessage:
    calls = []
    for call in message.get("tool_calls") or ():
        function, id_ = call["function"], call.get("id")
        calls.append(f"{function['name']}({function['arguments']})")
        if isinstance(id_, str):
            names[id_] = function["name"]
    answered = message.get("tool_call_id")
    called = names.get(answered) if isinstance(answered, str) else None
    return ChatMessage(
        role=message["role"],
        content=message.get("content") or "",
        calls=tuple(calls),
        thought=(text_or_none(message.get("reasoning_content")) or "").strip(),
        speaker=text_or_none(message.get("name")) or called,
        id=text_or_none(message.get("id")),
    )


ProblemLike: TypeAlias = str | Problem
"""A problem's text, or the record."""

SolutionLike: TypeAlias = (
    str
    | Segmentation
    | Solution
    | SampledSolution
    | LabelledSolution
    | GradedSolution
    | Sequence[Mapping[str, Any]]
)
"""A text (split into steps), a `Segmentation`, a record that holds a solution, or a list of chat messages."""


def problem_of(problem: ProblemLike) -> Problem:
    """The record of a problem; `InputError` where it is neither a text nor a `Problem`, or blank."""
    if isinstance(problem, Problem):
        return problem
    if not isinstance(problem, str):
        raise InputError(f"expected a text or a Problem, found {json_type(problem)}", field="problem")
    if not problem.strip():
        raise InputError("expected a problem, found a blank text", field="problem")
    return Problem(text=problem)


def solution_of(
    problem: ProblemLike | None,
    solution: SolutionLike | None = None,
    *,
    steps: Steps | None = None,
    split_by: str = "auto",
    marker: str | None = None,
    id: str | None = None,
) -> Solution:
    """The record of a solution.

    Args:
        problem: its problem. None where the solution says it: a record, or chat messages that begin with it.
        solution: see `SolutionLike`; a text is split.
        steps: its steps instead, which are taken as they are.
        split_by: how a text is split (`stepmark.split`).
        marker: the text that ends each step, for `split_by` "marker".
        id: its name; None keeps that of a record.

    Raises:
        InputError: something else (a list of texts may be steps or solutions), both or neither, no steps, a blank step, a solution of
            another problem.
        UnknownNameError: no such way to split.
    """
    if isinstance(problem, Mapping):
        raise InputError(
            "expected the problem as a text, found a dict; a row is graded by `stepmark.grade([row], prm)`",
            field="problem",
        )
    if (solution is None) == (steps is None):
        neither = "found neither" if steps is None else "found both"
        raise InputError(f"expected a solution or its steps (`steps`), {neither}", field="solution")
    stated, own = None if problem is None else problem_of(problem), None
    if isinstance(solution, LabelledSolution | GradedSolution):
        solution = solution.solution
    if isinstance(solution, Solution | SampledSolution):
        own, id = solution.problem, id or solution.id
        if stated is not None and stated.text != own.text:
            raise InputError(
                f"expected a solution of the problem {stated.text[:60]!r}, found one of {own.text[:60]!r}; "
                "give None as the problem to take the solution's own",
                field="problem",
            )
    if isinstance(solution, Solution):
        return solution if solution.id == id else replace(solution, id=id)
    if isinstance(solution, SampledSolution):
        solution = solution.text
    if isinstance(solution, str):
        solution = split_text(solution, split_by, marker=marker)
    if steps is None and not isinstance(solution, Segmentation):
        own, solution = read_messages(_messages(solution), how=split_by, marker=marker)
    if (asked := stated or own) is None:
        raise InputError(
            "expected a problem, found None: only a Solution or chat messages say their own", field="problem"
        )
    if isinstance(solution, Segmentation):
        return Solution(problem=asked, steps=solution.steps, id=id, split=solution.how)
    return Solution(problem=asked, steps=_steps(steps), id=id)


def _messages(solution: object) -> Sequence[Mapping[str, Any]]:
    if isinstance(solution, Mapping) or not isinstance(solution, Sequence):
        hint = (
            " (a row of a file goes to stepmark.grade([row], prm))" if isinstance(solution, Mapping) else ""
        )
        raise InputError(
            "expected a solution as a text, a Segmentation, a record of a solution, or a list of chat messages (or its steps as "
            f"`steps`), found {json_type(solution)}{hint}",
            field="solution",
        )
    if not solution or not all(isinstance(part, Mapping) for part in solution):
        raise InputError(
            "expected one solution, found a list: the steps of one solution are given as `steps`, several solutions to `grade_many` "
            "or `rank`",
            field="solution",
        )
    return solution


def each_solution(
    problem: ProblemLike | None,
    solutions: Iterable[SolutionLike | Steps],
    *,
    split_by: str = "auto",
    marker: str | None = None,
) -> list[Solution]:
    """The records of several solutions, each as `solution_of` takes it, or a list of its steps.

    Raises:
        InputError: not a list of solutions, or one that is none; the message says which.
        UnknownNameError: no such way to split.
    """
    single = isinstance(solutions, str | Segmentation | Mapping)
    if single or not isinstance(solutions, Iterable):
        what = "one text" if isinstance(solutions, str) else json_type(solutions)
        raise InputError(
            f"expected a list of solutions, found {what}; one solution is graded with `grade`",
            field="solutions",
        )
    shared = None if problem is None else problem_of(problem)
    records = []
    each: Iterable[Any] = solutions
    for index, item in enumerate(each):
        steps = isinstance(item, list | tuple) and not all(isinstance(part, Mapping) for part in item)
        fields_ = {"steps": item} if steps else {"solution": item}
        try:
            records.append(solution_of(shared, **fields_, split_by=split_by, marker=marker))
        except InputError as error:
            raise error.at(f"solution {index} (0-based)") from None
    return records


def check_one_problem(solutions: Sequence[Solution]) -> None:
    """Refuse solutions that are to be ranked and are not of one problem: their scores are not comparable.

    Raises:
        InputError: there are none, or the first that is of another problem than the first one.
    """
    if not solutions:
        raise InputError("expected at least one solution to rank, found none", field="solutions")
    first = solutions[0].problem.text
    for index, solution in enumerate(solutions):
        if solution.problem.text != first:
            raise InputError(
                f"expected solutions of one problem, {first[:60]!r}, found one of {solution.problem.text[:60]!r}",
                where=f"solution {index} (0-based)",
                field="problem",
            )


def _steps(steps: Steps | None) -> tuple[Step, ...]:
    if isinstance(steps, str) or not isinstance(steps, Iterable):
        raise InputError(
            f"expected a list of step texts, found {json_type(steps)}; a text that is to be split is a `solution`",
            field="steps",
        )
    values: list[Any] = list(steps)
    if not values:
        raise InputError("expected at least one step, found an empty list", field="steps")
    for index, part in enumerate(values):
        if not isinstance(part, Step) and (not isinstance(part, str) or not part.strip()):
            actual = "a blank one" if isinstance(part, str) else json_type(part)
            raise InputError(
                f"step {index + 1} of {len(values)}: expected a text, found {actual}", field=f"steps[{index}]"
            )
    return tuple(part if isinstance(part, Step) else Step(text=part) for part in values)
