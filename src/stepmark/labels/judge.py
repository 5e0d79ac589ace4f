r"""A language model as the judge of steps: critiques, sampled several times, and put to the vote.

- ``ask="place"`` (default): the whole solution at once, each step between tags `<paragraph_0>` … `</paragraph_0>`; the reply ends in the
  number of the first wrong paragraph, or -1, in \boxed{}. The format of the critics of ProcessBench (Zheng et al. 2024, arXiv:2412.06559,
  section 3.3 and appendix).
- ``ask="steps"``: one critique a step, of what came before it and the step itself, ending in \boxed{correct} or \boxed{incorrect}. It stops at
  the first step that is voted wrong.

A trace of agents (`Solution.split` "agent") is judged for the decisive mistake: the earliest turn that broke the task. Each turn stands
with its speaker. The two ways are among those that Who&When compares (Zhang et al. 2025, arXiv 2505.00212, section 4: all at once, step by
step); the prompts are ours. With `answer` the judge sees the reference answer, as theirs does.

With ``criteria`` the judge is asked about each of them (`labels.criteria`) instead of the first wrong step, and each judgement is on the axis that
has the criterion's name, with the judge's reason as its note. Of the whole solution (``ask="place"``) a reply lists the paragraphs that fail
each criterion, with the reasons; what is not listed meets it. Step by step (``ask="steps"``) a reply has a verdict and a reason for each
criterion; what is missing is then placed on the step that goes on without it. A reply ends in one JSON object; a criterion that it leaves out, or
answers in another form, has no verdict from it.

The place (or verdict) with the most votes wins, if it has at least the share `agreement` of them. After a tie or fewer than `quorum` votes the
judge abstains. A reply that names no place of the solution, or was cut off, is **no vote**: it is counted (`Cost.unparsed`), asked for again
up to `retries` times, and never becomes a label.

Steps before the first wrong one are judged right, that one wrong. `confidence` is the share of votes that agree (of a right step: those that name
a later step or none), `note` has all votes. Without a decision each step that was named carries a judgement without a rating.
`Labelling.critiques` has the votes word for word; a generative PRM is trained on them.

Deviations from ProcessBench's critics: the instruction is in our own words; a tie is no decision (theirs goes to the place named first); a reply
cut off by `max_tokens` is no vote even with a \boxed{} in it; thoughts (`<think>` … `</think>`) are not searched; an index outside the solution is
no vote; a reply without an index is asked for again (theirs is dropped). A paragraph tag inside a step is refused. `Step.observation` is shown
between tags of its own.

    >>> place_named(r"Paragraph 2 divides by zero. \boxed{2}", steps=4)
    2
    >>> place_named(r"It ends in \boxed{18}, so all is well.", steps=4) is None
    True
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, final

from pydantic import Field

from stepmark.backends import (
    CachedPolicy,
    Completing,
    Completion,
    Completions,
    Message,
    Verifying,
    all_of,
    run_tasks,
)
from stepmark.data.json_rows import parse_value
from stepmark.errors import InputError, UsageError
from stepmark.labels.criteria import Criteria, Criterion
from stepmark.labels.labelling import Cost, Critiques, LabellerNeeds, Labelling, token_sum
from stepmark.metrics.first_error import first_wrong
from stepmark.models.critics import refuse_markers
from stepmark.models.lazy import Lazy
from stepmark.models.policies import PolicyLike, policy_of
from stepmark.models.watch import Feedback, TurnJudge
from stepmark.records import Judgement, LabelledSolution, Solution
from stepmark.settings import settings
from stepmark.verifiers.finder import find_answer
from stepmark.words import amount

_TAG = re.compile(r"</?(?:paragraph|observation)_\d+>")
_THOUGHT_END = "</think>"
_WRAPPED = re.compile(r"\\(?:text|mathrm|mathbf)\{([^{}]*)\}")
_PLACE = re.compile(r"(?:paragraph)?[ _]*(-?[0-9]{1,6})", re.IGNORECASE)

_PLACE_TASK = (
    "Check the solution paragraph by paragraph: is what it says true, and does it follow from the problem and from the "
    "paragraphs before it? Find the earliest paragraph that has an error. End your reply with the index of that paragraph in "
    "\\boxed{}, or with \\boxed{-1} if no paragraph has an error. Put nothing but the index into the box."
)
_STEP_TASK = (
    "Check <paragraph_{index}> alone: is what it says true, and does it follow from the problem and from the paragraphs before "
    "it? Take these paragraphs as they are. The solution may be unfinished; that is no error. End your reply with "
    "\\boxed{{correct}} or \\boxed{{incorrect}}."
)
_BLAME_TASK = (
    "The task was not done, or not done well. Find the decisive mistake: the earliest turn that, had it been done right, would have "
    "let the rest succeed. A turn that only follows from an earlier mistake is not it, nor is one that was repaired later. End your reply "
    "with the index of that turn's paragraph in \\boxed{}, or with \\boxed{-1} if no turn has such a mistake. Put nothing but the index "
    "into the box."
)
_TURN_TASK = (
    "Check <paragraph_{index}> alone: does this turn make a mistake that derails the task, such as a wrong fact, a wrong tool call, "
    "a lost instruction or an unfounded conclusion? Take the turns before it as they are. A turn that is merely slow is no mistake. End your "
    "reply with \\boxed{{correct}} or \\boxed{{incorrect}}."
)
_CRITERIA = (
    "Judge each paragraph by each of these criteria:\n\n{criteria}\n\nA paragraph that a criterion does not apply to meets it. {missing}Think it "
    "through first. Then end your reply with one JSON object and nothing after it. Its keys are the names of all criteria. The value of each is the list of "
    "the paragraphs that fail it, each with its index and the reason, one sentence to the author that names no index; an empty list where none fails:\n\n{example}"
)
_STEP_CRITERIA = (
    "Judge <paragraph_{index}> alone by each of these criteria, and take the paragraphs before it as they are:\n\n{criteria}\n\nA paragraph that a criterion "
    "does not apply to meets it. {missing}Think it through first. Then end your reply with one JSON object and nothing after it. Its keys are "
    'the names of all criteria. The value of each has a verdict, "pass" or "fail", and the reason, one sentence to the author that names no index:\n\n{example}'
)
_MISSING = "A criterion marked (missing) says what has to be done. It fails where that was due and was not done: {place}. "
_MISSING_PLACES = {
    "place": "name the paragraph after which it was due",
    "steps": "in the first paragraph that goes on without it",
}
_OBSERVED = "What the world answered after a paragraph stands between observation tags; it does not belong to the solution. "


Vote = TypeVar("Vote")


@dataclass(kw_only=True, slots=True)
class Votes(Generic[Vote]):
    """What the replies to one question came to."""

    votes: list[tuple[Vote, str]]
    """What each vote names, and the reply that it was read from, in their order."""
    replies: list[Completion]
    """Over all attempts."""

    @property
    def counts(self) -> Counter[Vote]:
        """Votes for each thing that was named."""
        return Counter(vote for vote, _ in self.votes)

    @property
    def cast(self) -> int:
        """Votes in all."""
        return len(self.votes)

    @property
    def texts(self) -> tuple[str, ...]:
        """The replies that are votes."""
        return tuple(text for _, text in self.votes)

    @property
    def unread(self) -> int:
        """Replies that named nothing."""
        return len(self.replies) - len(self.votes)

    @property
    def cost(self) -> Cost:
        """Of all replies."""
        tokens = token_sum([reply.tokens for reply in self.replies])
        return Cost(rollouts=len(self.replies), tokens=tokens, probes=1, unparsed=self.unread)


@final
@settings
class Judge:
    """A language model as the critic, sampled and voted; needs no reference answer.

    Any policy that follows instructions can be one.
    """

    needs: ClassVar[LabellerNeeds] = LabellerNeeds(
        policy="required", verifier=False, texts=("reply", "replies"), named_after_policy=True
    )

    ask: Literal["place", "steps"] = "place"
    """For the place of the first error in the whole solution, or about one step after another."""
    criteria: Criteria = ()
    """Judge each step by these in place of the first wrong step: presets (math, code, tools, research, safety), files of criteria (.toml,
    .yaml, .json), or in Python names with their texts."""
    answer: bool = False
    """Tell the judge the reference answer, where the row has one."""
    name: str = "judge"
    """Name of the judge in the output; "judge:MODEL" names the model."""
    votes: Annotated[int, Field(ge=1)] = 8
    """Replies a question."""
    retries: Annotated[int, Field(ge=0)] = 1
    """How often replies that are no vote are asked for again."""
    quorum: Annotated[int, Field(ge=1)] | None = None
    """Votes that a decision needs. Default: more than half of `votes`."""
    agreement: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the votes that a decision needs; 0 for any lead."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.7
    """Temperature of the replies."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Sample among the likeliest tokens that together hold this share of the probability."""
    max_tokens: Annotated[int, Field(ge=1)] = 4096
    """The longest reply; one that is cut off is no vote."""
    seed: int = 0
    """Seed of the replies."""

    def __post_init__(self) -> None:
        if self.quorum is not None and self.quorum > self.votes:
            raise UsageError(f"`quorum` {self.quorum}: expected at most `votes`, which is {self.votes}")
        if self.temperature == 0 and self.votes > 1:
            raise UsageError(
                f"`votes` {self.votes}: at `temperature` 0 all votes are one; set another temperature, or one vote"
            )

    async def label(
        self, solution: Solution, policy: Completing, verifier: Verifying | None = None
    ) -> Labelling:
        """Label one solution.

        Raises:
            InputError: no steps, or a text that holds a tag or a control token of the format.
        """
        if not solution.steps:
            raise InputError("a solution to be judged needs at least one step, found none", where=solution.id)
        try:
            _refuse_tags(solution)
        except InputError as error:
            raise (error if solution.id is None else error.at(solution.id)) from None
        if self.criteria:
            return await self._by_criteria(solution, policy)
        asked = self._by_place if self.ask == "place" else self._by_steps
        return await asked(solution, policy)

    def watching(self, policy: PolicyLike) -> TurnJudge:
        """What `PRM.watch` asks for as `judge`: by which criteria the last turn of a conversation fails, and why.

        Args:
            policy: the model that judges: a policy, or what `stepmark.load_policy` takes.

        Raises:
            UsageError: this judge has no criteria.
        """
        if not self.criteria:
            raise UsageError('watching needs `criteria`, such as Judge(criteria="tools")')
        loaded = policy_of(policy)
        model = loaded.load() if isinstance(loaded, Lazy) else loaded

        def judge(solution: Solution) -> list[Feedback]:
            async def last(turns: Solution) -> Labelling:
                _refuse_tags(turns)
                return await self._by_criteria(turns, CachedPolicy(model), first=len(turns.steps) - 1)

            ((_, labelling),) = run_tasks([solution], last, in_flight=1)
            return [
                Feedback(criterion=judgement.axis, sentence=judgement.note or "", source="judge")
                for judgement in labelling.labelled.judgements[-1]
                if judgement.rating == -1
            ]

        return judge

    async def _by_criteria(
        self, solution: Solution, policy: Completing, *, first: int | None = None
    ) -> Labelling:
        """Judge by each criterion: the whole solution, or one step after another, as `ask` says; with `first`, the steps from there."""
        count, names = len(solution.steps), [criterion.name for criterion in self.criteria]
        whole = self.ask == "place" and first is None
        # For each question the step that it is about; None: all of them.
        about: list[int | None] = [None] if whole else list(range(first or 0, count))
        polls = await self._poll_all(
            policy,
            [_criteria_prompt(solution, self.criteria, step, self.answer) for step in about],
            (lambda text: failures_named(text, names, count))
            if whole
            else (lambda text: verdicts_named(text, names)),
        )
        judgements: list[tuple[Judgement, ...]] = [()] * count
        texts: list[tuple[str, ...]] = [()] * count
        for step, poll in zip(about, polls, strict=True):
            texts[count - 1 if step is None else step] = poll.texts
            for at in range(count) if step is None else [step]:
                of_step = (self._by_criterion(poll, name, 0 if step is not None else at) for name in names)
                judgements[at] = tuple(judgement for judgement in of_step if judgement is not None)
        ratings = [
            -1
            if any(j.rating == -1 for j in step)
            else 1
            if sum(j.rating == 1 for j in step) == len(names)
            else None
            for step in judgements
        ]
        return self._labelling(
            solution,
            judgements,
            first_wrong(ratings),
            None,
            sum((poll.cost for poll in polls), Cost()),
            tuple(texts),
            asked="criteria",
        )

    def _by_criterion(self, poll: Votes[Verdicts], name: str, step: int) -> Judgement | None:
        """The judgement of a step on one criterion; None where no reply gives a verdict."""
        given = [reasons[name].get(step) for reasons, _ in poll.votes if name in reasons]
        if not given:
            return None
        votes: list[int] = [1 if reason is None or not reason[0] else -1 for reason in given]
        rating, why = self._winner(votes)
        share = None if rating is None else votes.count(rating) / len(votes)
        counts = ", ".join(
            f"{votes.count(vote)} for {word}" for vote, word in ((1, "pass"), (-1, "fail")) if vote in votes
        )
        note = f"votes: {counts}; no decision: {why}"
        if rating is not None:
            agreeing = (
                reason[1] for vote, reason in zip(votes, given, strict=True) if reason and vote == rating
            )
            note = next((reason for reason in agreeing if reason), f"votes: {counts}")
        return replace(self._judgement(rating, share, note), axis=name)

    async def _by_place(self, solution: Solution, policy: Completing) -> Labelling:
        steps = len(solution.steps)
        (votes,) = await self._poll_all(
            policy, [_place_prompt(solution, self.answer)], lambda text: place_named(text, steps=steps)
        )
        place, why = self._winner([vote for vote, _ in votes.votes])
        names = {at: "no error" if at == -1 else f"step {at + 1}" for at in sorted(votes.counts)}
        note = _note(names, votes, why if place is None else None)
        judgements: list[tuple[Judgement, ...]] = []
        for step in range(steps):
            if place is None:
                judgements.append((self._judgement(None, None, note),) if votes.counts.get(step) else ())
            elif place == -1 or step < place:
                later = sum(count for at, count in votes.counts.items() if at == -1 or at > step)
                judgements.append((self._judgement(1, later / votes.cast, note),))
            elif step == place:
                judgements.append((self._judgement(-1, votes.counts[step] / votes.cast, note),))
            else:
                judgements.append(())
        return self._labelling(
            solution,
            judgements,
            place,
            None if place is None else votes.counts[place] / votes.cast,
            votes.cost,
            (*((),) * (steps - 1), votes.texts),
        )

    async def _by_steps(self, solution: Solution, policy: Completing) -> Labelling:
        steps = range(len(solution.steps))
        polls: list[Votes[int]] = []
        for step in steps:
            asked = [_step_prompt(solution, step, self.answer)]
            polls += await self._poll_all(policy, asked, verdict_named)
            if self._winner([vote for vote, _ in polls[-1].votes])[0] != 1:
                break
        judgements: list[tuple[Judgement, ...]] = [()] * len(steps)
        ratings: list[int | None] = []
        confidence = 1.0
        for step, poll in enumerate(polls):
            rating, why = self._winner([vote for vote, _ in poll.votes])
            note = _note({1: "right", -1: "wrong"}, poll, why if rating is None else None)
            share = None if rating is None else poll.counts[rating] / poll.cast
            if poll.cast:
                judgements[step] = (self._judgement(rating, share, note),)
            if share is not None:
                confidence = min(confidence, share)
            ratings.append(rating)
        first_error = first_wrong(ratings)
        return self._labelling(
            solution,
            judgements,
            first_error,
            None if first_error is None else confidence,
            sum((poll.cost for poll in polls), Cost()),
            (*(poll.texts for poll in polls), *((),) * (len(steps) - len(polls))),
        )

    def _winner(self, votes: Sequence[int]) -> tuple[int | None, str]:
        """What won, and why it did or why nothing did."""
        quorum = self.votes // 2 + 1 if self.quorum is None else self.quorum
        if len(votes) < quorum:
            return None, f"{len(votes)} of the {amount(quorum, 'vote')} that are needed"
        ranked = sorted(Counter(votes).items(), key=lambda item: -item[1])
        if len(ranked) > 1 and ranked[0][1] == ranked[1][1]:
            return None, "a tie"
        if ranked[0][1] < self.agreement * len(votes):
            return None, f"less than {self.agreement:.0%} agree"
        return ranked[0][0], "most votes"

    def _judgement(self, rating: int | None, share: float | None, note: str) -> Judgement:
        known: Literal[-1, 0, 1] | None = None if rating is None else (1 if rating == 1 else -1)
        return Judgement(kind="correctness", judge=self.name, rating=known, confidence=share, note=note)

    def _labelling(
        self,
        solution: Solution,
        judgements: list[tuple[Judgement, ...]],
        first_error: int | None,
        confidence: float | None,
        cost: Cost,
        texts: tuple[tuple[str, ...], ...],
        asked: Literal["place", "steps", "criteria"] | None = None,
    ) -> Labelling:
        return Labelling(
            labelled=LabelledSolution(solution=solution, judgements=tuple(judgements)),
            method=self.name,
            first_error=first_error,
            confidence=confidence,
            abstained=first_error is None,
            cost=cost,
            critiques=Critiques(asked=asked or self.ask, texts=texts),
        )

    async def _poll_all(
        self, policy: Completing, prompts: list[tuple[Message, ...]], read: Callable[[str], Vote | None]
    ) -> list[Votes[Vote]]:
        """Ask all questions, and ask again for the replies that are no vote."""
        polls: list[Votes[Vote]] = [Votes(votes=[], replies=[]) for _ in prompts]
        for _ in range(1 + (self.retries if self.temperature > 0 else 0)):
            short = [i for i, poll in enumerate(polls) if poll.cast < self.votes]
            if not short:
                break
            written = await all_of(
                policy.complete(
                    Completions(
                        prompt=prompts[i],
                        n=self.votes - polls[i].cast,
                        temperature=self.temperature,
                        top_p=self.top_p,
                        max_tokens=self.max_tokens,
                        seed=self.seed,
                        # By number: equal questions get equal votes.
                        first=len(polls[i].replies),
                    )
                )
                for i in short
            )
            for i, batch in zip(short, written, strict=True):
                polls[i].replies.extend(batch)
                named = [
                    (None if reply.finish == "length" else read(reply.text), reply.text) for reply in batch
                ]
                polls[i].votes.extend((vote, text) for vote, text in named if vote is not None)
        return polls


def place_named(reply: str, *, steps: int) -> int | None:
    r"""The place that a reply names in its last \boxed{}: a 0-based step, -1 for none; None if it names none of the solution's.

    `\boxed{3}`, `\boxed{paragraph_3}` and `\boxed{\text{Paragraph 3}}` are read; "3 or 4" names no one place. Thoughts before `</think>`
    are left out.
    """
    match = _PLACE.fullmatch(_boxed(reply).replace("\N{MINUS SIGN}", "-"))
    if match is None or not -1 <= int(match[1]) < steps:
        return None
    return int(match[1])


def verdict_named(reply: str) -> Literal[-1, 1] | None:
    r"""The verdict of a reply's last \boxed{}: 1 for `correct`, -1 for `incorrect`, None for anything else."""
    verdict = _boxed(reply).lower()
    return 1 if verdict == "correct" else -1 if verdict == "incorrect" else None


Verdicts = Mapping[str, Mapping[int, tuple[bool, str]]]
"""What a reply says: for each criterion that it has a verdict on, by step whether it fails, and the reason; a step that is not there meets it."""


def failures_named(reply: str, names: Sequence[str], steps: int) -> Verdicts | None:
    """The verdicts of a reply on a whole solution of so many steps; None where it has none.

    A criterion is read where its value is a list of {"paragraph": INDEX, "reason": "TEXT"}, each of a step that is there, once.

        >>> failures_named('{"tested": [{"paragraph": 2, "reason": "Run it."}], "polite": "yes"}', ["tested", "polite"], 3)
        {'tested': {2: (True, 'Run it.')}}
    """
    verdicts: dict[str, dict[int, tuple[bool, str]]] = {}
    for name, value in _last_object(reply, names).items():
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            continue
        failures = {
            item["paragraph"]: (True, " ".join(item["reason"].split()))
            for item in value
            if item.keys() == {"paragraph", "reason"}
            and type(item["paragraph"]) is int
            and 0 <= item["paragraph"] < steps
            and isinstance(item["reason"], str)
            and item["reason"].strip()
        }
        if len(failures) == len(value):
            verdicts[name] = failures
    return verdicts or None


def verdicts_named(reply: str, names: Sequence[str]) -> Verdicts | None:
    """The verdicts of a reply on one step, which is step 0 of the result; None where it has none.

    A criterion is read where its value is {"verdict": "pass" or "fail", "reason": "TEXT"}.
    """
    verdicts: dict[str, dict[int, tuple[bool, str]]] = {}
    for name, value in _last_object(reply, names).items():
        if not isinstance(value, dict) or value.keys() != {"verdict", "reason"}:
            continue
        verdict, reason = value["verdict"], value["reason"]
        if verdict in ("pass", "fail") and isinstance(reason, str) and (reason.strip() or verdict == "pass"):
            verdicts[name] = {0: (verdict == "fail", " ".join(reason.split()))}
    return verdicts or None


def _last_object(reply: str, names: Sequence[str]) -> dict[str, Any]:
    """The values of these names in the JSON object that a reply ends with, code fences aside; empty where it ends with none."""
    text = reply.rpartition(_THOUGHT_END)[2].rstrip().removesuffix("```").rstrip()
    starts = [match.start() for match in re.finditer(r"^\s*\{", text, re.MULTILINE)]
    for start in starts:
        try:
            data = parse_value(text[start:])
        except InputError:
            continue
        if isinstance(data, dict):
            return {name: data[name] for name in names if name in data}
    return {}


def _boxed(reply: str) -> str:
    answer = find_answer(reply.rpartition(_THOUGHT_END)[2], "marked")
    if answer is None or answer.way != "boxed":
        return ""
    return _WRAPPED.sub(r"\1", answer.text).replace("\\_", "_").strip(" $.<>")


def _note(names: Mapping[int, str], tally: Votes[int], open_because: str | None) -> str:
    votes = [f"{tally.counts[vote]} for {name}" for vote, name in names.items() if vote in tally.counts]
    votes += [f"{tally.unread} unread"] if tally.unread else []
    return f"votes: {', '.join(votes)}" + (f"; no decision: {open_because}" if open_because else "")


def _refuse_tags(solution: Solution) -> None:
    for text, where in (
        (solution.problem.text, "problem"),
        *((step.text, f"steps[{i}]") for i, step in enumerate(solution.steps)),
        *((step.observation, f"steps[{i}].observation") for i, step in enumerate(solution.steps)),
        *((step.speaker or "", f"steps[{i}].speaker") for i, step in enumerate(solution.steps)),
    ):
        refuse_markers(text, where, _TAG.findall(text))


def _tagged(solution: Solution, last: int) -> str:
    parts = []
    for i, step in enumerate(solution.steps[: last + 1]):
        speaker = f"({step.speaker})\n" if step.speaker else ""
        parts.append(f"<paragraph_{i}>\n{speaker}{step.text.strip()}\n</paragraph_{i}>")
        # What came back after the last step shown is not yet known when that step is judged.
        if step.observation.strip() and i < last:
            parts.append(f"<observation_{i}>\n{step.observation.strip()}\n</observation_{i}>")
    return "\n\n".join(parts)


def _prompt(solution: Solution, task: str, *, answer: bool, last: int, part: str = "") -> tuple[Message, ...]:
    """A question about the steps up to `last`; `part` says what of the whole they are."""
    agents = solution.split == "agent"
    thing = (
        f"{part} what agents did for it, turn by turn; each turn"
        if agents
        else f"{part} a solution, cut into paragraphs. Each"
    )
    opening = f"Below are a {'task' if agents else 'problem'} and{thing} stands between tags with its index, from 0."
    shown = _tagged(solution, last)
    observed = _OBSERVED if "<observation_" in shown else ""
    known = solution.problem.answer if answer else None
    right = f"[Right answer]\n\n{known.strip()}\n\n" if known else ""
    text = f"{opening}\n\n[Problem]\n\n{solution.problem.text.strip()}\n\n{right}[Solution]\n\n{shown}\n\n{observed}{task}"
    return (Message(role="user", content=text),)


def _place_prompt(solution: Solution, answer: bool) -> tuple[Message, ...]:
    task = _BLAME_TASK if solution.split == "agent" else _PLACE_TASK
    return _prompt(solution, task, answer=answer, last=len(solution.steps) - 1)


def _step_prompt(solution: Solution, step: int, answer: bool) -> tuple[Message, ...]:
    task = (_TURN_TASK if solution.split == "agent" else _STEP_TASK).format(index=step)
    return _prompt(solution, task, answer=answer, last=step, part=" the beginning of")


def _criteria_prompt(
    solution: Solution, criteria: Sequence[Criterion], step: int | None, answer: bool
) -> tuple[Message, ...]:
    """The question by all criteria: about one step; None: about all."""
    listed = "\n".join(
        f"- {criterion.name}{' (missing)' if criterion.missing else ''}: {criterion.text}"
        for criterion in criteria
    )
    ask = "place" if step is None else "steps"
    missing = (
        _MISSING.format(place=_MISSING_PLACES[ask])
        if any(criterion.missing for criterion in criteria)
        else ""
    )
    names = [criterion.name for criterion in criteria]
    if step is None:
        failing: Any = [{"paragraph": 0, "reason": "…"}]
        example = {name: failing if at == 0 else [] for at, name in enumerate(names)}
        task, last, part = _CRITERIA, len(solution.steps) - 1, ""
    else:
        example = {
            name: {"verdict": "fail" if at == 0 else "pass", "reason": "…"} for at, name in enumerate(names)
        }
        task, last, part = _STEP_CRITERIA, step, " the beginning of"
    text = task.format(
        criteria=listed, missing=missing, example=json.dumps(example, ensure_ascii=False), index=step
    )
    return _prompt(solution, text, answer=answer, last=last, part=part)
