"""What adapters share: completions of another trainer's policy, scored step by step or turn by turn, and their tokens' advantages.

Nothing here knows of a trainer. A completion is its token ids; its text is what they decode to without control tokens. A conversation is
the tokens after the prompt and a mask of those that the policy wrote. A run of written tokens is a turn; what stands between two turns
(tool results, a user's words, the template's own) is the observation of the first of them: the PRM reads it and never rates it, and the
loss leaves it out.

Trainers that carry one tensor to their advantages get outcome and step scores in a row of token rewards (`token_row`): each step's score at
its last token, the outcome at the completion's. That is the last step's end too, so the last step's score stands one token before it. A
score of exactly 0 would read as no step; `NO_ZERO` stands for it. The sum of a row is the outcome and all step scores.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepmark.data.steps.splitting import split as cut
from stepmark.errors import InputError, UsageError
from stepmark.metrics.aggregate import aggregate as aggregated
from stepmark.metrics.aggregate import resolve_aggregate
from stepmark.models.policies.local import Drawn
from stepmark.models.prm import PRM
from stepmark.records import Problem, Refusal, Solution, Step
from stepmark.rl.batch import Batch
from stepmark.rl.credit import Credit
from stepmark.rl.rewarding import (
    RewardedCompletion,
    StepSpans,
    batch_of_steps,
    scored,
    step_spans,
    token_offsets,
)
from stepmark.words import amount


def check_credit(credit: Credit, *, prm: bool) -> None:
    """Refuse a method that needs a critic or token rewards, which only `stepmark rl` has, or a PRM where there is none."""
    name, needs = type(credit).__name__, credit.needs
    if needs.values or needs.tokens:
        what = "a critic" if needs.values else "an implicit PRM's token rewards"
        raise UsageError(f"{name} needs {what}, which adapters do not carry; train with `stepmark rl`")
    if needs.steps and not prm:
        raise UsageError(f"{name} needs step rewards: give a PRM")


def problem_of(prompt: object, row: Mapping[str, Any], column: str | None) -> str:
    """The problem's text of one row: its `column`, else the last user message of the prompt, else the prompt.

    Args:
        prompt: a text, or messages with `role` and `content` (a text, or blocks of which those with a "text" count).
        column: name one when the prompt holds instructions or examples that a PRM did not see in training.
    """
    if column is not None and column not in row:
        raise UsageError(f"problem: expected one of the data set's columns {sorted(row)}, found {column!r}")
    text = row[column] if column is not None else prompt
    if not isinstance(text, str) and isinstance(text, Sequence):
        text = next((message["content"] for message in reversed(text) if message["role"] == "user"), None)
        if text is not None and not isinstance(text, str):
            text = "\n".join(block["text"] for block in text if block.get("text"))
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"expected the problem's text, or messages of which one is a user's, found {text!r}",
            field=column or "prompt",
        )
    return text


def rate(
    problems: Sequence[str],
    completions: Sequence[Sequence[int]],
    decode: Callable[[Sequence[int]], str],
    *,
    prm: PRM | None,
    split: str = "line",
) -> list[RewardedCompletion]:
    """Completions cut into steps, mapped to tokens and scored; their groups are all 0 and their outcomes 0 until `advantages` gets better ones.

    Args:
        problems: of each completion; those of one problem side by side share what the PRM reads.
        prm: scores steps; None for none.
    """
    rated: list[RewardedCompletion] = []
    for problem, ids in zip(problems, completions, strict=True):
        text = decode(ids)
        steps = tuple(cut(text, split).steps) if text.strip() else ()
        rated.append(
            RewardedCompletion(
                problem=Problem(text=problem),
                group=0,
                # The prompt and how it ended are the other trainer's; nothing here reads them.
                drawn=Drawn(prompt=(), ids=tuple(ids), text=text, finish="stop"),
                steps=steps,
                spans=step_spans(steps, token_offsets(ids, decode)),
                verdict=None,
                outcome=0.0,
            )
        )
    return rated if prm is None else scored(rated, prm)


def turn_spans(written: Sequence[int] | Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """The first token of each turn and the one after its last, from the mask of tokens that the policy wrote."""
    starts = [at for at, own in enumerate(written) if own and not (at and written[at - 1])]
    ends = [at + 1 for at, own in enumerate(written) if own and not (written[at + 1 : at + 2] or (0,))[0]]
    return tuple(zip(starts, ends, strict=True))


def rate_turns(
    problems: Sequence[str],
    completions: Sequence[Sequence[int]],
    written: Sequence[Sequence[int]] | Sequence[Sequence[bool]],
    decode: Callable[[Sequence[int]], str],
    *,
    prm: PRM | None,
) -> list[RewardedCompletion]:
    """Conversations with a score for each turn; groups are 0 and outcomes 0, as of `rate`.

    A conversation with a turn that decodes to nothing has no steps, and `refused` says so.

    Args:
        problems: of each conversation; those of one problem side by side share what the PRM reads.
        completions: token ids after the prompt, observations among them.
        written: of each conversation, whether the policy wrote the token; as long as its ids.
        decode: token ids to text, without control tokens.
        prm: scores turns; None for none.
    """
    rated: list[RewardedCompletion] = []
    for problem, ids, mask in zip(problems, completions, written, strict=True):
        spans = turn_spans(mask)
        until = [start for start, _ in spans[1:]] + [len(ids)]
        texts = [decode(ids[start:end]).strip() for start, end in spans]
        blank = next((turn for turn, text in enumerate(texts) if not text), None)
        steps = (
            ()
            if blank is not None
            else tuple(
                Step(text=text, observation=decode(ids[end:then]))
                for text, (_, end), then in zip(texts, spans, until, strict=True)
            )
        )
        rated.append(
            RewardedCompletion(
                problem=Problem(text=problem),
                group=0,
                drawn=Drawn(prompt=(), ids=tuple(ids), text=decode(ids), finish="stop"),
                steps=steps,
                spans=StepSpans(
                    ends=tuple(end - 1 for _, end in spans) if steps else (),
                    steps=tuple((turn,) for turn in range(len(steps))),
                ),
                verdict=None,
                outcome=0.0,
                refused=None if blank is None else f"turn {blank + 1} of {len(texts)} has no text",
            )
        )
    return rated if prm is None else scored(rated, prm)


def advantages(
    rated: Sequence[RewardedCompletion],
    groups: Sequence[int],
    outcomes: Sequence[float | None],
    credit: Credit,
    *,
    asked: bool,
    tokens: int,
    written: Sequence[Sequence[int]] | Sequence[Sequence[bool]] | None = None,
) -> Tensor:
    """(B, tokens) float32: the credit of completions' tokens, 0 behind their ends and at what the policy did not write.

    A completion without an outcome has no part in its group and gets 0; so does one whose group has no other left.

    Args:
        rated: of `rate`, whole groups.
        groups: of each; completions of one problem share a number.
        outcomes: of each; None or NaN where nobody knows.
        tokens: width of the result, the longest completion at least.
        written: of each completion, whether the policy wrote the token (`rate_turns`); None: all of them.
    """
    given = credit_of(
        [len(item.drawn.ids) for item in rated],
        [item.spans.ends for item in rated],
        [item.lowest for item in rated],
        groups,
        outcomes,
        credit,
        asked=asked,
        written=written,
    )
    values = torch.zeros(len(rated), tokens)
    for row, own in given.items():
        values[row, : len(own)] = own
    return values


def credit_of(
    lengths: Sequence[int],
    ends: Sequence[Sequence[int]],
    scores: Sequence[Sequence[float] | None],
    groups: Sequence[Hashable],
    outcomes: Sequence[float | None],
    credit: Credit,
    *,
    asked: bool,
    written: Sequence[Sequence[int]] | Sequence[Sequence[bool]] | None = None,
) -> dict[int, Tensor]:
    """The advantages of a completion's tokens, by its row; of those that have an outcome and are not alone with one in their group.

    Args:
        lengths: tokens of each.
        ends: the places of its steps' last tokens.
        scores: of its steps; None where the PRM gave none.
        groups, outcomes, credit, asked, written: as of `advantages`.
    """
    known = [
        row
        for row, outcome in enumerate(outcomes)
        if outcome is not None and not math.isnan(outcome) and lengths[row]
    ]
    sizes = Counter(groups[row] for row in known)
    rows = [row for row in known if sizes[groups[row]] > 1]
    if not rows:
        return {}
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    mask = torch.zeros(len(rows), max(lengths[row] for row in rows), dtype=torch.bool)
    for at, row in enumerate(rows):
        mask[at, : lengths[row]] = True if written is None else torch.tensor(written[row], dtype=torch.bool)
    batch = batch_of_steps(
        mask,
        [ends[row] for row in rows],
        [scores[row] for row in rows],
        groups=[numbers[groups[row]] for row in rows],
        outcomes=[float(outcomes[row] or 0.0) for row in rows],
        asked=asked,
    )
    values = credit.assign(batch).advantages
    return {row: values[at, : lengths[row]] for at, row in enumerate(rows)}


def figures(rated: Sequence[RewardedCompletion]) -> dict[str, float]:
    """What to log of scored completions: `steps` a completion, the share that was `refused`, and the mean step `score`, where there is one."""
    scores = [score for item in rated for score in item.scores or ()]
    result = {
        "steps": sum(len(item.steps) for item in rated) / len(rated),
        "refused": sum(item.refused is not None for item in rated) / len(rated),
    }
    return result | ({"score": sum(scores) / len(scores)} if scores else {})


def solution_scores(
    prm: PRM, problems: Sequence[str], texts: Sequence[str], *, aggregate: str | None, split: str
) -> list[float | None]:
    """One number of a PRM for each completion's text; None for a blank one and one that the PRM cannot read."""
    how = resolve_aggregate(aggregate, prm.default_aggregate, prm.score_kind)
    nonempty = [row for row, text in enumerate(texts) if text.strip()]
    solutions = (
        Solution(problem=Problem(text=problems[row]), steps=tuple(cut(texts[row], split).steps))
        for row in nonempty
    )
    results: list[float | None] = [None] * len(texts)
    for row, result in zip(nonempty, prm.score_many(solutions, keep_going=True), strict=True):
        if not isinstance(result, Refusal) and None not in result.scores:
            results[row] = aggregated(result.scores, how, kind=prm.score_kind)
    return results


NO_ZERO = float(torch.finfo(torch.float32).tiny)
"""Stands for a step score of 0: the smallest normal float32 (and bfloat16), about 1.2e-38."""

CARRIED = ("grpo", "rloo", "process-grpo", "min-form", "progress", "discounted", "mt-grpo")
"""The methods of `CREDITS` that need no more than a row holds."""


def token_row(
    outcome: float,
    ends: Sequence[int],
    scores: Sequence[float],
    *,
    tokens: int,
    written: Sequence[int] | Sequence[bool] | None = None,
) -> list[float]:
    """The rewards of a completion's tokens, from the place of each step's last token and its score.

    A last step of a single token becomes one step with the one before it and has the lower of their scores, as steps that share their last
    token have; the step of a completion of one token has no place. `written` says which tokens can hold a reward (None: all): those that the
    policy wrote. The outcome stands at the last of them.

    Raises:
        InputError: no tokens, scores that are not one a step, a step that ends outside.
    """
    places = [at for at in range(tokens) if written is None or written[at]]
    if not places or len(ends) != len(scores) or (ends and ends[-1] > places[-1]):
        raise InputError(
            f"expected one score for each step, and steps that end inside {amount(tokens, 'token')}, found {amount(len(scores), 'score')} for the ends {list(ends)}"
        )
    row = [0.0] * tokens
    before_outcome = places[-2] if len(places) > 1 else -1
    for end, score in zip(ends, scores, strict=True):
        place = min(end, before_outcome)
        if place >= 0:
            value = row[place]
            # Only the last step can meet another: ends rise, and only it was moved.
            row[place] = min(score, 0.0 if value == NO_ZERO else value) if value else score
            row[place] = row[place] or NO_ZERO
    row[places[-1]] = outcome
    return row


def row_of(
    rated: RewardedCompletion, outcome: float, *, written: Sequence[int] | Sequence[bool] | None = None
) -> list[float]:
    """The `token_row` of a completion of `rate` or `rate_turns`; steps that share their last token have the lowest of their scores."""
    each = rated.lowest or ()
    ends = rated.spans.ends if each else ()
    return token_row(outcome, ends, each, tokens=len(rated.drawn.ids), written=written)


def batch_of_rows(rewards: Tensor, mask: Tensor, groups: Sequence[Hashable]) -> tuple[Batch | None, Tensor]:
    """The batch that `token_row`s (B, T) were made from, without completions that have no tokens or no other of their problem (None when nothing
    is left); and (B,) bool, which rows are in it. `mask` is of the tokens that can hold rewards.
    """
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    number = torch.tensor([numbers[group] for group in groups], device=rewards.device)
    written = mask.any(-1)
    comparable = written & (((number[:, None] == number) & written).sum(-1) > 1)
    if not comparable.any():
        return None, comparable
    rewards, mask, number = rewards[comparable].float(), mask[comparable], number[comparable]
    places = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, places, -1).amax(-1, keepdim=True)
    early = mask & (rewards != 0) & (places < last)
    count = early.sum(-1)
    # Stable: the places of steps first, in their order.
    ends = torch.argsort(~early, dim=-1, stable=True)[:, : max(1, int(count.max()))]
    scores = rewards.gather(1, ends)
    steps = torch.arange(ends.shape[1], device=mask.device)
    ends = torch.where(steps == count[:, None] - 1, last, ends)
    return Batch(
        mask=mask,
        groups=number,
        outcome=rewards.gather(1, last)[:, 0],
        step_ends=torch.where(steps < count[:, None], ends, -1),
        step_rewards=torch.where(scores == NO_ZERO, 0.0, scores),
    ), comparable


def estimator(credit: Credit) -> Callable[..., tuple[Tensor, Tensor]]:
    """An advantage estimator of verl's: (B, T) advantages, twice, from rows of rewards."""
    check_credit(credit, prm=True)

    def estimate(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Any,
        config: Any = None,
        reward_baselines: Any = None,
    ) -> tuple[Tensor, Tensor]:
        if config is not None and config.get("use_kl_in_reward"):
            raise UsageError(
                "algorithm.use_kl_in_reward hides where steps end; set actor_rollout_ref.actor.use_kl_loss instead"
            )
        batch, comparable = batch_of_rows(token_level_rewards, response_mask.bool(), list(index))
        if batch is None:
            raise UsageError(
                "expected several completions of a problem, found one of each: set actor_rollout_ref.rollout.n"
            )
        scores = batch.step_rewards
        if credit.needs.probabilities and scores is not None and not ((scores >= 0) & (scores <= 1)).all():
            raise UsageError(
                f"{type(credit).__name__} needs a PRM whose scores are probabilities, found one of {scores.min():g} and one of {scores.max():g}"
            )
        values = torch.zeros_like(token_level_rewards, dtype=torch.float32)
        values[comparable] = credit.assign(batch).advantages
        return values, values

    return estimate
