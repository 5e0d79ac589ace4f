"""inspect_ai: a scorer that grades each sample's completion step by step, a solver that writes several and keeps the best, and an agent that is watched.

They are in inspect's registry by an entry point, so its command line knows them: `inspect eval task.py --solver stepmark/prm_best_of_n`,
`inspect score LOG --scorer stepmark/prm_scorer`.

This module imports inspect_ai; nothing else of stepmark does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import anyio.to_thread
from inspect_ai.model import (
    ChatMessage,
    ChatMessageUser,
    GenerateConfig,
    ModelOutput,
    execute_tools,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import collect

from stepmark.data.formats import inspect_ai as inspect_logs
from stepmark.data.formats.rows import Counts, ReaderSettings
from stepmark.data.reading import Row
from stepmark.errors import InputError, UsageError
from stepmark.integrations.candidates import (
    CandidateGrader,
    GradedText,
    facts_of,
    grade_texts,
    loaded,
)
from stepmark.models.prm import Grade
from stepmark.models.watch import Seen, Watch
from stepmark.records import Refusal, Solution
from stepmark.searches.choosing import check_pick, pick
from stepmark.verifiers.base import load_verifier
from stepmark.words import amount

AGENT = "agent"
"""The way to cut that reads the whole conversation: each of the assistant's turns with its tool calls is a step."""


@scorer(metrics=[mean(), stderr()])  # type: ignore[untyped-decorator]
def prm_scorer(
    prm: str = "default",
    aggregate: str | None = None,
    threshold: float | None = None,
    split: str = "auto",
    marker: str | None = None,
    family: str | None = None,
    tokenizer: str | None = None,
) -> Scorer:
    """Score a sample by a process reward model: the aggregate of its steps' scores.

    The score's `value` is the aggregate, its `answer` the final answer that the completion names, its `explanation` the steps with their
    scores and the first error, its `metadata` all of it. A sample that cannot be graded (a blank completion, one that is too long for
    the PRM) is unscored, with the reason, and metrics leave it out.

    The target is not looked at: a PRM judges the reasoning. Put another scorer beside it for the outcome.

    Args:
        prm: "default", a checkpoint's folder or hub name, a server's address, or "package.module:factory".
        aggregate: how step scores make one number; None for the PRM's own.
        threshold: a step under it is an error; None for the PRM's own.
        split: how the completion is cut into steps (`stepmark split`); "agent" reads the whole conversation instead, whose steps are the
            assistant's turns.
        marker: the separator, for split "marker" and "auto".
        family: how the PRM is read; None tells it from the checkpoint.
        tokenizer: for a PRM behind a vLLM server, its tokenizer.
    """
    made: list[CandidateGrader] = []

    def graded(state: TaskState) -> GradedText:
        if not made:  # in the thread that grades, because loading takes long
            made.append(
                CandidateGrader(
                    loaded(prm, family, tokenizer), Grade(aggregate=aggregate, threshold=threshold)
                )
            )
        if split == AGENT:
            return _graded_trace(state, made[0])
        return grade_texts(
            [(state.input_text, state.output.completion)], made[0], split=split, marker=marker
        )[0]

    async def score(state: TaskState, target: Target) -> Score:
        return _score(await anyio.to_thread.run_sync(graded, state))

    return score


@solver  # type: ignore[untyped-decorator]
def prm_best_of_n(
    n: int = 8,
    choose: str = "best",
    prm: str = "default",
    aggregate: str | None = None,
    split: str = "auto",
    marker: str | None = None,
    verifier: str = "math",
    temperature: float = 0.7,
    family: str | None = None,
    tokenizer: str | None = None,
) -> Solver:
    """Write several completions with the task's model, and go on with the one that a PRM prefers.

    It takes the place of `generate()`. All completions with their scores are in the sample's metadata under `stepmark`. A PRM that
    grades what it chose itself gives no honest score of it: judge the result by its target.

    Args:
        n: completions.
        choose: `best` (highest aggregate), `majority` (commonest answer) or `vote` (answer with the highest sum of aggregates).
        prm: as in `prm_scorer`.
        aggregate: as in `prm_scorer`.
        split: as in `prm_scorer`, without "agent".
        marker: as in `prm_scorer`.
        verifier: what says which answers are equal, for `majority` and `vote`: math, number, choice, text, or "package.module:Class".
        temperature: of the completions; more than 0, or they would be one.
        family: as in `prm_scorer`.
        tokenizer: as in `prm_scorer`.
    """
    if n < 1:
        raise UsageError(f"n: expected 1 or more, found {n}")
    if n > 1 and not temperature > 0:
        raise UsageError(f"temperature: at {temperature} all {n} completions are one; expected more than 0")
    if split == AGENT:
        raise UsageError("best of n chooses among completions; it cannot cut a conversation (split agent)")
    choice = check_pick(choose)
    made: list[CandidateGrader] = []

    def grade_and_pick(problem: str, texts: Sequence[str], finished: Sequence[bool]) -> dict[str, Any]:
        if not made:
            made.append(CandidateGrader(loaded(prm, family, tokenizer), Grade(aggregate=aggregate)))
        graded = grade_texts([(problem, text) for text in texts], made[0], split=split, marker=marker)
        scores, answers = [item.score for item in graded], [item.answer for item in graded]
        refuted = [item.scored is not None and item.scored.refuted for item in graded]
        if choice == "best":
            picked = pick(scores, answers, choice, finished=finished, refuted=refuted)
        else:
            with load_verifier(verifier) as same:
                picked = pick(scores, answers, choice, verifier=same, finished=finished, refuted=refuted)
        votes = picked.votes or (None,) * len(graded)
        return {
            "chosen": picked.index,
            "choice": picked.choice,
            "why": picked.why,
            "candidates": [
                {"text": item.text, "answer": item.answer, "votes": vote, **facts_of(item)}
                for item, vote in zip(graded, votes, strict=True)
            ],
        }

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if state.tools:
            raise UsageError("prm_best_of_n writes completions without tools; this task has some")
        model = get_model()
        # Cached, all n would be the same one.
        config = GenerateConfig(temperature=temperature)
        outputs: list[ModelOutput] = await collect(
            *(model.generate(state.messages, config=config, cache=False) for _ in range(n))
        )
        texts = [output.completion for output in outputs]
        ended = [output.stop_reason not in ("max_tokens", "model_length") for output in outputs]
        result = await anyio.to_thread.run_sync(grade_and_pick, state.input_text, texts, ended)
        state.output = outputs[result["chosen"]]
        state.messages.append(state.output.message)
        state.metadata["stepmark"] = result
        return state

    return solve


@solver  # type: ignore[untyped-decorator]
def prm_watched(
    prm: str = "default",
    threshold: float | None = None,
    aggregate: str | None = None,
    patience: int = 1,
    retries: int = 3,
    floor: float | None = None,
    checks: str = "auto",
    turns: int = 30,
    family: str | None = None,
    tokenizer: str | None = None,
) -> Solver:
    """Let the task's model work with its tools while a PRM watches (`prm.watch`): an agent in place of `generate()`.

    Each turn is scored before its tools run. Where the watch says so, the messages from the turn that it names on are forgotten and the model
    writes again, told what was wrong where an exact check says so; at a stop the sample ends. What tools have changed in the world is not undone.
    The sample's metadata under `stepmark` has `turns` (each turn with its score, the advice and the message to the model) and `why` (why it
    ended).

    Args:
        prm: as in `prm_scorer`.
        threshold: a turn under it is weak; None for the PRM's own.
        aggregate: as in `prm_scorer`.
        patience: weak turns in a row after which to go back.
        retries: how often to go back.
        floor: a running aggregate under it is a stop; None for none.
        checks: exact checks of each turn, as in `stepmark.grade`; "auto" for the PRM's own.
        turns: written at most, those that are forgotten too.
        family: as in `prm_scorer`.
        tokenizer: as in `prm_scorer`.
    """

    def opened(problem: str) -> Watch:
        return loaded(prm, family, tokenizer).watch(
            problem,
            threshold=threshold,
            aggregate=aggregate,
            patience=patience,
            retries=retries,
            floor=floor,
            checks=checks,
        )

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        model, watch = get_model(), await anyio.to_thread.run_sync(opened, state.input_text)
        starts: list[int] = []  # the messages before each turn
        written: list[dict[str, Any]] = []
        why = f"{amount(turns, 'turn was', 'turns were')} written"

        async def add(message: ChatMessage) -> Seen | None:
            seen = None
            for chat in inspect_logs.chat_messages(message.model_dump(), "message", "the sample"):
                seen = await anyio.to_thread.run_sync(watch.add, chat) or seen
            return seen

        while len(written) < turns:
            # Cached, a turn that is written again would be the same.
            state.output = await model.generate(state.messages, tools=state.tools, cache=False)
            seen = await add(state.output.message)
            assert seen is not None
            extra = {} if seen.message is None else {"message": seen.message}
            written.append(
                {"text": state.output.completion, "score": seen.score, "advice": seen.advice, **extra}
            )
            # A tool that ran at the server ends a turn within the message.
            starts += [len(state.messages)] * (len(watch.scores) - len(starts))
            state.messages.append(state.output.message)
            if seen.to is not None:
                watch.back(seen.to)
                del state.messages[starts[seen.to] :], starts[seen.to :]
                if seen.message is not None:
                    state.messages.append(ChatMessageUser(content=seen.message))
                continue
            if seen.advice == "stop":
                why = seen.why
                break
            if not state.output.message.tool_calls:
                why = "the model called no tool"
                break
            results = await execute_tools(state.messages, state.tools)
            for message in results.messages:
                await add(message)
            state.messages.extend(results.messages)
        state.metadata["stepmark"] = {"turns": written, "why": why}
        return state

    return solve


def _graded_trace(state: TaskState, grader: CandidateGrader) -> GradedText:
    sample = {
        "id": state.sample_id,
        "epoch": state.epoch,
        "messages": [message.model_dump() for message in state.messages],
        "target": None,
    }
    text = state.output.completion
    try:
        [row] = inspect_logs.read(
            Row(data=sample, file="sample", line=state.epoch), ReaderSettings(how=AGENT), Counts()
        )
    except InputError as error:
        return GradedText(text=text, scored=None, error=error)
    solution: Solution = row.solution
    [result] = grader.grade([solution])
    if isinstance(result, Refusal):
        return GradedText(text=text, scored=None, error=result.error)
    return GradedText(text=text, scored=result)


def _score(graded: GradedText) -> Score:
    facts = facts_of(graded)
    scored, answer = graded.scored, graded.answer
    if scored is None:
        assert graded.error is not None
        return Score.unscored(
            reason="scoring_failed" if graded.text.strip() else "no_response",
            answer=answer,
            explanation=str(graded.error),
            metadata=facts,
        )
    if scored.score is None or not math.isfinite(scored.score):
        why = "not every step has a score" if scored.score is None else f"the score is {scored.score}"
        return Score.unscored(
            reason="scoring_failed",
            answer=answer,
            explanation=f"{why}\n\n{scored}",
            metadata=facts,
        )
    return Score(value=scored.score, answer=answer, explanation=str(scored), metadata=facts)
