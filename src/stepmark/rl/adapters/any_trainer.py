"""Rewards of turns for a trainer whose reward hook is a plain function: lists of messages in, numbers and masks of tokens out.

The numbers of a credit method are those of `rl.credit` with one token a turn: the formulas are the same, and what depends on lengths counts turns.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepmark.data.conversations import read_messages
from stepmark.data.steps.thoughts import Reasoning
from stepmark.errors import InputError, UsageError
from stepmark.models.prm import PRM
from stepmark.records import Refusal, Solution, StepScores
from stepmark.rl.adapters.rating import check_credit, credit_of, turn_spans
from stepmark.rl.credit import Credit
from stepmark.rl.credit.assignment import check_kind, load_credit
from stepmark.words import amount

Message = Mapping[str, Any]
Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRewards:
    """The rewards of one conversation."""

    turns: tuple[float | None, ...]
    """One number for each assistant message: its reward, or with a credit method its advantage. None where there is none: the PRM could not read
    the conversation, its outcome is not known, or the message is no turn (a greeting before the first question)."""
    scores: tuple[float | None, ...]
    """The PRM's score of each assistant message; None where it gave none."""
    refused: str | None = None
    """Why the PRM could not read the conversation."""
    mask: tuple[int, ...] | None = None
    """For each token whether the policy wrote it, 1 or 0; None where neither a tokenizer nor a mask was given."""
    tokens: tuple[float, ...] | None = None
    """For each token its number: a reward stands at its turn's last token, an advantage at all tokens of its turn; 0 elsewhere."""


def turn_rewards(
    messages: Sequence[Sequence[Message]],
    *,
    prm: PRM | None = None,
    outcome: Sequence[float | None] | None = None,
    credit: Credit | str | None = None,
    groups: Sequence[Hashable] | None = None,
    reasoning: Reasoning = "keep",
    tokenizer: Any = None,
    masks: Sequence[Sequence[int]] | None = None,
) -> list[TurnRewards]:
    """Reward the turns of conversations.

    Without `credit` a turn's number is the PRM's score of it, and the last turn's is that plus the outcome. With `credit` it is the advantage among the
    conversations of its group.

    Args:
        messages: conversations, each a list of chat messages (`stepmark.split`); those of one problem side by side share what the PRM reads.
        prm: scores turns; None for none.
        outcome: the outcome of each conversation, None for one that is not known: it has no part in its group. None for no outcomes.
        credit: a method of `stepmark.rl` or its name ("mt-grpo", "discounted", "grpo", "rloo", "process-grpo", "min-form", "progress").
        groups: for `credit`, which conversations are of one problem: those with equal entries. None: those whose problem is the same text.
        reasoning: what becomes of thoughts: "keep" them in the turn, score them "only", or "drop" them.
        tokenizer: a transformers tokenizer with a chat template, whose tokens of the conversations `mask` and `tokens` are about.
        masks: instead of `tokenizer`, whether the policy wrote each token: a run of ones is a turn.

    Returns:
        One result for each conversation.

    Raises:
        InputError: no conversation, scores or outcomes that are no finite numbers, a mask with another number of turns.
        UsageError: neither a PRM nor outcomes, lists of different lengths, a method that needs what there is not, or a chat template that writes a
            conversation so far differently from its beginning.
    """
    if tokenizer is not None and masks is not None:
        raise UsageError("expected a `tokenizer` or `masks`, found both")
    turns = [read_turns(conversation, at, reasoning) for at, conversation in enumerate(messages)]
    results = (
        None
        if prm is None
        else list(prm.score_many((conversation.solution for conversation in turns), keep_going=True))
    )
    rewards = rewarded(turns, results, prm, outcome=outcome, credit=credit, groups=groups, masks=masks)
    if tokenizer is None:
        return rewards
    places = [template_spans(conversation, tokenizer) for conversation in messages]
    return [
        _over_tokens(reward, spans, tokens, spread=credit is not None)
        for reward, (spans, tokens) in zip(rewards, places, strict=True)
    ]


def rewarded(
    turns: Sequence[ConversationTurns],
    results: Sequence[StepScores | Refusal] | None,
    prm: PRM | None,
    *,
    outcome: Sequence[float | None] | None = None,
    credit: Credit | str | None = None,
    groups: Sequence[Hashable] | None = None,
    masks: Sequence[Sequence[int]] | None = None,
) -> list[TurnRewards]:
    """The rewards of conversations whose scores are there already; see `turn_rewards`.

    Args:
        turns: of `read_turns`.
        results: the PRM's, one each; None where no PRM was asked.
        prm: whose they are.
    """
    if results is None and outcome is None:
        raise UsageError("expected a PRM (`prm`), outcomes (`outcome`) or both, found neither")
    for name, given in (("outcome", outcome), ("groups", groups), ("masks", masks)):
        if given is not None and len(given) != len(turns):
            raise UsageError(
                f"expected one entry of `{name}` for each of {amount(len(turns), 'conversation')}, found {len(given)}"
            )
    for at, value in enumerate(outcome or ()):
        if value is not None and not math.isfinite(value):
            raise InputError(f"expected a finite number or None, found {value!r}", field=f"outcome[{at}]")
    scores: list[list[float | None]] = []
    for at, conversation in enumerate(turns):
        result = None if results is None else results[at]
        scores.append(
            [*result.scores] if isinstance(result, StepScores) else [None] * len(conversation.places)
        )
    refused = [result.error.message if isinstance(result, Refusal) else None for result in results or ()]
    outcomes = list(outcome) if outcome is not None else [0.0] * len(turns)
    if credit is None:
        earned: list[list[float | None]] = (
            scores if results is not None else [[0.0] * len(row_scores) for row_scores in scores]
        )
        numbers = [_with_outcome(*both) for both in zip(earned, outcomes, strict=True)]
    else:
        method = load_credit(credit)[0] if isinstance(credit, str) else credit
        check_credit(method, prm=results is not None)
        if prm is not None:
            check_kind(method, prm.score_kind, prm=prm.name)
        group = (
            [conversation.solution.problem.text for conversation in turns] if groups is None else list(groups)
        )
        numbers = _advantages(scores, outcomes, group, method, asked=results is not None)
    rewards = []
    for at, (conversation, number, score) in enumerate(zip(turns, numbers, scores, strict=True)):
        why = refused[at] if refused else None
        reward = TurnRewards(
            turns=conversation.by_message(number), scores=conversation.by_message(score), refused=why
        )
        if masks is not None:
            spans = _spans_of(masks[at], conversation, at)
            reward = _over_tokens(reward, spans, len(masks[at]), spread=credit is not None)
        rewards.append(reward)
    return rewards


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversationTurns:
    """A conversation as the PRM reads it."""

    solution: Solution
    places: tuple[int, ...]
    """Of each step, which assistant message it is."""
    messages: int
    """Assistant messages."""

    def by_message(self, numbers: Sequence[float | None]) -> tuple[float | None, ...]:
        """The steps' numbers, one for each assistant message."""
        known = dict(zip(self.places, numbers, strict=True))
        return tuple(known.get(at) for at in range(self.messages))


def read_turns(conversation: Sequence[Message], at: int, reasoning: Reasoning) -> ConversationTurns:
    """Read a conversation; `at` is its place, for errors (`InputError`)."""
    where = f"conversation {at} (0-based)"
    numbered, count = [], 0
    for message in conversation:
        if isinstance(message, Mapping) and str(message.get("role")).lower() in ("assistant", "ai", "model"):
            message, count = {**message, "id": str(count)}, count + 1  # noqa: PLW2901
        numbered.append(message)
    problem, cut = read_messages(numbered, where=where, how="agent", reasoning=reasoning)
    return ConversationTurns(
        solution=Solution(problem=problem, steps=cut.steps, split="agent"),
        places=tuple(int(step.id or 0) for step in cut.steps),
        messages=count,
    )


def _with_outcome(rewards: Sequence[float | None], outcome: float | None) -> list[float | None]:
    """The rewards with the outcome on top of the last; none without an outcome."""
    last = rewards[-1]
    if outcome is None:
        return [None] * len(rewards)
    return [*rewards[:-1], None if last is None else last + outcome]


def _advantages(
    scores: Sequence[Sequence[float | None]],
    outcomes: Sequence[float | None],
    groups: Sequence[Hashable],
    credit: Credit,
    *,
    asked: bool,
) -> list[list[float | None]]:
    """The credit of each conversation's steps, of which each is a token; None for one without an outcome or alone in its group."""
    read = [None if None in row_scores else [score or 0.0 for score in row_scores] for row_scores in scores]
    given = credit_of(
        [len(row_scores) for row_scores in scores],
        [range(len(row_scores)) for row_scores in scores],
        read,
        groups,
        outcomes,
        credit,
        asked=asked,
    )
    unread = asked and credit.needs.steps
    return [
        given[row].tolist()
        if row in given and not (unread and read[row] is None)
        else [None] * len(row_scores)
        for row, row_scores in enumerate(scores)
    ]


# --- tokens ------------------------------------------------------------------------------------------------------


def template_spans(messages: Sequence[Message], tokenizer: Any) -> tuple[list[Span], int]:
    """Where each assistant message stands among the tokens of a conversation: its first token and the one after its last; and the number of tokens.

    A turn begins behind the header that the template writes to ask for it, and ends with what the template writes at its end: what a policy samples.

    Args:
        messages: the conversation.
        tokenizer: a transformers tokenizer with a chat template; a fast one, for the places of its tokens.

    Raises:
        UsageError: the template writes the beginning of the conversation differently when more follows (some leave earlier thoughts out), so that
            no span of the whole is what the policy wrote. Give `masks` of the tokens as they were sampled.
    """

    def rendered(count: int, *, asked: bool) -> str:
        text: str = tokenizer.apply_chat_template(
            [dict(message) for message in messages[:count]], tokenize=False, add_generation_prompt=asked
        )
        return text

    whole = rendered(len(messages), asked=False)
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    offsets = [(int(start), int(end)) for start, end in encoded["offset_mapping"]]
    spans = []
    for at, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        before, after = rendered(at, asked=True), rendered(at + 1, asked=False)
        if not (whole.startswith(before) and whole.startswith(after)):
            raise UsageError(
                f"the chat template writes messages[{at}] of the conversation so far differently from the whole: give `masks` of the tokens as they "
                "were sampled"
            )
        inside = [n for n, (start, end) in enumerate(offsets) if len(before) <= start < end <= len(after)]
        if not inside:
            raise UsageError(f"expected tokens of messages[{at}], found none: an empty turn")
        spans.append((inside[0], inside[-1] + 1))
    return spans, len(offsets)


def _spans_of(mask: Sequence[int], turns: ConversationTurns, at: int) -> list[Span]:
    spans = list(turn_spans(mask))
    if len(spans) != turns.messages:
        raise InputError(
            f"expected {amount(turns.messages, 'run')} of ones, one for each assistant message, found {len(spans)}",
            where=f"conversation {at} (0-based)",
            field="masks",
        )
    return spans


def _over_tokens(result: TurnRewards, spans: Sequence[Span], tokens: int, *, spread: bool) -> TurnRewards:
    mask, numbers = [0] * tokens, [0.0] * tokens
    for (start, end), number in zip(spans, result.turns, strict=True):
        mask[start:end] = [1] * (end - start)
        if number is None:
            continue
        if spread:
            numbers[start:end] = [number] * (end - start)
        else:
            numbers[end - 1] = number
    return replace(result, mask=tuple(mask), tokens=tuple(numbers))
