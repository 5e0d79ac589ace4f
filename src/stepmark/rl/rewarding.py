"""From completions to rewards: the verifier's outcome, the PRM's score of each step, and both as a `Batch`.

The PRM that scored the steps has another tokenizer, and may have put marks of its own between them. So steps go from text to the policy's
tokens by character offsets, and never by counting tokens or looking for separators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from stepmark.data.steps.splitting import split
from stepmark.errors import InputError, UsageError
from stepmark.models.policies.local import Drawn
from stepmark.models.prm import PRM
from stepmark.records import CheckName, Problem, Refusal, ScoreKind, Solution, Step, Verdict
from stepmark.rl.batch import Batch
from stepmark.rl.settings import PolicyTraining
from stepmark.verifiers.base import Verifier
from stepmark.verifiers.checks import check, check_names
from stepmark.words import amount


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSpans:
    """Where steps end among tokens."""

    ends: tuple[int, ...]
    """Place of the last token of each step, rising; the last one is the completion's last token."""
    steps: tuple[tuple[int, ...], ...]
    """Which steps of the text each is: more than one where a single token holds the ends of several."""


def token_offsets(ids: Sequence[int], text_of: Callable[[Sequence[int]], str]) -> list[int]:
    """Where in the text each token ends, in characters; not falling.

    A character of several tokens (a byte-level vocabulary) ends with the last of them; control tokens have no text. `text_of` decodes
    some of it that follows other tokens (`PromptEncoder.text`).
    """
    whole = text_of(ids)
    ends: list[int] = []
    start = done = 0
    for count in range(1, len(ids) + 1):
        piece = text_of(ids[start:count])
        # An unfinished character decodes to a replacement mark that is not in the text yet.
        ends.append(done + len(piece.rstrip("\ufffd")))
        if piece and not piece.endswith("\ufffd") and whole.startswith(piece, done):
            start, done = count, done + len(piece)
    if ends and ends[-1] != len(whole.rstrip("\ufffd")):
        # A tokenizer whose tokens mean another text among others: from the beginning each time.
        ends = [len(text_of(ids[: n + 1]).rstrip("\ufffd")) for n in range(len(ids))]
    if ends:
        # What is unfinished when the text ends stays a mark in it.
        ends[-1] = len(whole)
    return list(accumulate(ends, max))


def step_spans(steps: Sequence[Step], offsets: Sequence[int]) -> StepSpans:
    """The last token of each step: the one that holds its last character. What follows the last step, such as an end token, is that step's too."""
    if not steps or not offsets:
        return StepSpans(ends=(), steps=())
    ends: list[int] = []
    members: list[list[int]] = []
    token = 0
    for number, step in enumerate(steps):
        if step.start is None:
            raise InputError(
                "expected a step that was cut from the text, found one without its place",
                where=f"step {number + 1}",
            )
        last = step.start + len(step.text)
        while token < len(offsets) and offsets[token] < last:
            token += 1
        if token == len(offsets):
            raise InputError(
                f"the step ends at character {last}, the completion's tokens at {offsets[-1]}",
                where=f"step {number + 1}",
            )
        if ends and ends[-1] == token:
            members[-1].append(number)
        else:
            ends.append(token)
            members.append([number])
    ends[-1] = len(offsets) - 1
    return StepSpans(ends=tuple(ends), steps=tuple(map(tuple, members)))


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardedCompletion:
    """A completion and what is known of it."""

    problem: Problem
    group: int
    """Completions of one problem in one update share it."""
    drawn: Drawn
    steps: tuple[Step, ...]
    """Cut from its text; none when it is blank."""
    spans: StepSpans
    verdict: Verdict | None
    """None for a blank completion: there is nothing to verify."""
    outcome: float
    """What it is rewarded by: 1 for a match; else 0, an answer without a verdict and, by the settings, one that was cut off."""
    scores: tuple[float, ...] | None = None
    """The PRM's, one a step; None when none was asked or it could not read this completion (`refused` says why)."""
    refused: str | None = None
    refuted: tuple[int, ...] = ()
    """Steps that an exact check of the PRM proves wrong, by number from 0."""
    left_out: bool = False
    """It counts in its group and is not trained on."""

    @property
    def cut(self) -> bool:
        """It reached the limit of tokens."""
        return self.drawn.finish == "length"

    @property
    def lowest(self) -> tuple[float, ...] | None:
        """The scores of `spans`: of steps that share their last token the lowest."""
        scores = self.scores
        return None if scores is None else tuple(min(scores[n] for n in steps) for steps in self.spans.steps)

    @property
    def right(self) -> bool:
        """The verifier's verdict is a match, whatever it was rewarded by."""
        return self.verdict is not None and self.verdict.correct is True


def judge(
    problems: Sequence[Problem],
    drawn: Sequence[Sequence[Drawn]],
    verifier: Verifier,
    settings: PolicyTraining,
    text_of: Callable[[Sequence[int], Sequence[int]], str],
) -> list[RewardedCompletion]:
    """Verify all completions and cut them into steps, by `cut` and `split` of the settings. `text_of` decodes tokens that follow others (`PromptEncoder.text`)."""
    rated: list[RewardedCompletion] = []
    for group, (problem, completions) in enumerate(zip(problems, drawn, strict=True)):
        if problem.answer is None:
            raise UsageError(
                f"problem {problem.id or problem.text[:40]!r} has no reference answer, and the verifier needs one"
            )
        for completion in completions:
            steps = split(completion.text, settings.split).steps if completion.text.strip() else ()
            rated.append(
                RewardedCompletion(
                    problem=problem,
                    group=group,
                    drawn=completion,
                    steps=tuple(steps),
                    spans=step_spans(
                        steps, token_offsets(completion.ids, partial(text_of, completion.prompt))
                    ),
                    verdict=None,
                    outcome=0.0,
                    left_out=settings.cut == "drop" and completion.finish == "length",
                )
            )
    scorable = [number for number, item in enumerate(rated) if item.steps]
    verdicts = verifier.verify_many(
        (rated[number].drawn.text, str(rated[number].problem.answer)) for number in scorable
    )
    for number, verdict in zip(scorable, verdicts, strict=True):
        known = rated[number]
        counts = verdict.correct is True and (settings.cut == "verify" or not known.cut)
        rated[number] = replace(known, verdict=verdict, outcome=float(counts))
    return rated


def scored(
    rated: Sequence[RewardedCompletion], prm: PRM, *, refuted: Literal["wrong", "step", "ignore"] = "ignore"
) -> list[RewardedCompletion]:
    """With the PRM's scores of all steps, in one pass; completions of one problem stand together and share their prefixes.

    Where the PRM has exact checks, `refuted` says what a refuted step does (`PolicyTraining.refuted`).

    A completion that the PRM cannot read (too long, its marker inside, a step without a score) keeps its outcome and has no step rewards. A score
    that is not finite is an error.
    """
    results = list(rated)
    scorable = [number for number, item in enumerate(results) if item.steps]
    solutions = [Solution(problem=results[n].problem, steps=results[n].steps) for n in scorable]
    for number, result in zip(scorable, prm.score_many(solutions, keep_going=True), strict=True):
        item = results[number]
        if isinstance(result, Refusal):
            results[number] = replace(item, refused=str(result.error))
            continue
        if len(result.scores) != len(item.steps):
            raise UsageError(
                f"{prm.name} gave {amount(len(result.scores), 'score')} for {amount(len(item.steps), 'step')}; expected one a step"
            )
        known = [score for score in result.scores if score is not None]
        wrong = next((score for score in known if not math.isfinite(score)), None)
        if wrong is not None:
            raise InputError(
                f"{prm.name}: expected finite scores, found {wrong}; a reward that is none cannot be trained on, nor watched",
                where=f"problem {item.problem.id or item.problem.text[:40]!r}, step {result.scores.index(wrong) + 1}",
            )
        if len(known) < len(result.scores):
            place = result.scores.index(None) + 1
            results[number] = replace(item, refused=f"step {place} has no score")
        else:
            results[number] = replace(item, scores=tuple(known))
    names = check_names(prm.default_checks) if refuted != "ignore" else ()
    return [_checked(item, names, prm.score_kind, refuted) for item in results] if names else results


def _checked(
    item: RewardedCompletion, names: Sequence[CheckName], kind: ScoreKind, refuted: str
) -> RewardedCompletion:
    """A proof outranks a score: a refuted step has the lowest one, and what holds it is, by the setting, no right solution."""
    texts = [step.text for step in item.steps]
    wrong = tuple(sorted({finding.step for finding in check(item.problem.text, texts, names=names)}))
    if not wrong:
        return item
    scores = item.scores
    if scores is not None:
        lowest = {"probability": 0.0, "margin": -1.0}.get(kind, min(scores))
        scores = tuple(lowest if step in wrong else score for step, score in enumerate(scores))
    outcome = 0.0 if refuted == "wrong" else item.outcome
    return replace(item, refuted=wrong, scores=scores, outcome=outcome)


def batch_of(
    rated: Sequence[RewardedCompletion],
    mask: Tensor,
    *,
    asked: bool,
    token_rewards: Tensor | None = None,
    values: Tensor | None = None,
) -> Batch:
    """The batch that credit is assigned to.

    A step that shares its last token with others is one step with them and has the lowest of their scores. A completion without scores has
    no steps. Without `asked`, no PRM was, and there are no step rewards.
    """
    return batch_of_steps(
        mask,
        [item.spans.ends for item in rated],
        [item.lowest for item in rated],
        groups=[item.group for item in rated],
        outcomes=[item.outcome for item in rated],
        asked=asked,
        token_rewards=token_rewards,
        values=values,
    )


def batch_of_steps(
    mask: Tensor,
    ends: Sequence[Sequence[int]],
    scores: Sequence[Sequence[float] | None],
    *,
    groups: Sequence[int],
    outcomes: Sequence[float],
    asked: bool,
    token_rewards: Tensor | None = None,
    values: Tensor | None = None,
) -> Batch:
    """The batch of completions of which `ends` are the places of the steps' last tokens, and `scores` their scores (None: no steps, if `asked`)."""
    read = [() if asked and mine is None else places for places, mine in zip(ends, scores, strict=True)]
    most = max(1, *map(len, read)) if read else 1
    step_ends = torch.full((len(read), most), -1, dtype=torch.int64)
    step_rewards = torch.zeros(len(read), most)
    for row, (places, mine) in enumerate(zip(read, scores, strict=True)):
        step_ends[row, : len(places)] = torch.tensor(places, dtype=torch.int64)
        if asked and mine is not None:
            step_rewards[row, : len(mine)] = torch.tensor(mine)
    device = mask.device
    return Batch(
        mask=mask,
        groups=torch.tensor(groups, device=device),
        outcome=torch.tensor(outcomes, device=device),
        step_ends=step_ends.to(device),
        step_rewards=step_rewards.to(device) if asked else None,
        token_rewards=token_rewards,
        values=values,
    )


def figures(rated: Sequence[RewardedCompletion], group: int) -> dict[str, float | None]:
    """What is seen of an update's completions; see `trainer.Update`."""
    count = len(rated)
    means = [sum(item.scores) / len(item.scores) for item in rated if item.scores]

    def share(test: Callable[[RewardedCompletion], bool]) -> float:
        return sum(map(test, rated)) / count

    groups = [rated[start : start + group] for start in range(0, count, group)]
    return {
        "accuracy": share(lambda completion: completion.right),
        "outcome": sum(item.outcome for item in rated) / count,
        "reward": sum(means) / len(means) if means else None,
        "steps": sum(len(item.steps) for item in rated) / count,
        "tokens": sum(len(item.drawn.ids) for item in rated) / count,
        "cut": share(lambda completion: completion.cut),
        "unparsed": share(
            lambda completion: completion.verdict is not None and completion.verdict.correct is None
        ),
        "refuted": share(lambda completion: bool(completion.refuted)),
        "unscored": share(lambda completion: completion.refused is not None),
        "blank": share(lambda completion: not completion.steps),
        "flat": sum(len({item.outcome for item in part}) == 1 for part in groups) / len(groups),
    }
