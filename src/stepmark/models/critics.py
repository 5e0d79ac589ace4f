"""Critics: how a generative PRM asks for a critique of each step and reads the verdict from it.

Three families: ThinkPRM, GenPRM and R-PRM. A critic is its settings (a frozen dataclass) and one coroutine that grades one solution.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stepmark.backends import ChoiceLogprobs, Completing, Completions, Message, Prompt, all_of
from stepmark.errors import InputError, MarkerInTextError, UsageError
from stepmark.words import amount

# Control tokens of chat templates (ChatML, Llama, DeepSeek): `<|im_end|>`, `<｜Assistant｜>`. At least three
# letters, so that "a<|x|>b" stays mathematics.
_CONTROL = re.compile(r"<\|[A-Za-z][A-Za-z0-9_]{2,}\|>|<｜[^｜<>\n]{1,40}｜>")


@dataclass(frozen=True, kw_only=True, slots=True)
class Critiqued:
    """What a critic says of one solution: one entry a step, in order."""

    scores: tuple[float | None, ...]
    """In [0, 1]: the mean over the critiques that gave a verdict. None for a step that no critique came to."""
    critiques: tuple[tuple[str, ...], ...]
    """All critiques of each step, those without a verdict too."""
    without_verdict: int
    """Verdicts that were asked for and are missing, over all steps and critiques."""

    @classmethod
    def of(
        cls,
        verdicts: Sequence[Sequence[float | None]],
        critiques: Sequence[Sequence[str]],
        *,
        expected: str,
    ) -> Critiqued:
        """From the verdicts of each step, one a critique: the mean of those that are there.

        A critique without a verdict (None) says nothing about the step: it is left out, never counted as wrong or as one half.

        Raises:
            InputError: a step that was critiqued has no verdict; the message says what one looks like (`expected`).
        """
        scores: list[float | None] = []
        for t, (of_step, texts) in enumerate(zip(verdicts, critiques, strict=True)):
            given = [verdict for verdict in of_step if verdict is not None]
            if of_step and not given:
                raise InputError(
                    f"step {t + 1} of {len(verdicts)}: none of the {amount(len(of_step), 'critique')} gave a verdict (expected {expected}); the last "
                    f"one ends {texts[-1][-120:]!r}. Ask for more samples or more max_tokens",
                    field=f"steps[{t}]",
                )
            scores.append(math.fsum(given) / len(given) if given else None)
        missing = sum(verdict is None for of_step in verdicts for verdict in of_step)
        return cls(scores=tuple(scores), critiques=tuple(map(tuple, critiques)), without_verdict=missing)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Text that a critic is to learn, in the place where grading will want it."""

    prefill: str
    """What stands before it in the reply, given."""
    text: str
    chosen: bool = False
    """Grading reads its probability after the prefill (`ChoiceLogprobs`) instead of having it written (`Completions`)."""
    ends: bool = False
    """The model is to stop after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """One critique as training text: what a critic asks when it grades this step, and the reply to learn."""

    prompt: Prompt
    parts: tuple[Part, ...]
    reply: str
    """The whole reply, as a later turn's history has it."""
    verdict: bool
    """What it says in the end."""
    whole: bool
    """Whether the verdict is about all steps so far, or of this one alone."""
    step_verdicts: tuple[bool | None, ...]
    """What it says of single steps on the way; None where nothing."""


class Critic(ABC):
    """A family of generative PRMs: a frozen dataclass of its settings, with these methods."""

    samples: int
    """Critiques a step."""
    temperature: float
    top_p: float
    top_k: int | None = None
    max_tokens: int
    """Tokens a critique."""
    seed: int

    @property
    def causal(self) -> bool:
        """Whether the score of step t depends on the steps up to t only."""
        return True

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts with a meaning in this family's format, refused inside a problem or a step, as control tokens are."""
        return ()

    @abstractmethod
    async def grade(
        self, problem: str, steps: tuple[str, ...], context: tuple[str, ...], policy: Completing
    ) -> Critiqued:
        """Grade every step of one solution.

        Args:
            problem: not blank.
            steps: what is graded; at least one, none blank.
            context: each step as the later ones see it: with what the world answered after it.

        Raises:
            InputError: no critique of some step gave a verdict.
        """

    @abstractmethod
    def lesson(
        self,
        problem: str,
        steps: tuple[str, ...],
        context: tuple[str, ...],
        step: int,
        critique: str,
        earlier: tuple[str, ...] = (),
    ) -> Lesson | None:
        """A critique of one step as training text; None if it gives no verdict, or none that the family can be taught.

        Args:
            problem, steps, context: as for `grade`.
            step: 0-based.
            critique: with the given beginning of the reply or without it.
            earlier: the replies to the steps before (`Lesson.reply`), for a family whose turns follow each other.
        """

    def _ask(self, prompt: Prompt, prefill: str = "", stop: tuple[str, ...] = ()) -> Completions:
        """The request for the critiques of a step: always the same samples."""
        return Completions(
            prompt=prompt,
            prefill=prefill,
            n=self.samples,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=self.max_tokens,
            stop=stop,
            seed=self.seed,
            first=0,
        )


def refuse_markers(text: str, field: str, markers: Sequence[str]) -> None:
    """Refuse (`MarkerInTextError`) text that the model would read as structure: a control token of a chat template, or one of the family's markers."""
    control = _CONTROL.search(text)
    marker = control.group() if control else next((marker for marker in markers if marker in text), None)
    if marker is not None:
        raise MarkerInTextError(
            f"the text holds {marker!r}, which this PRM reads as structure; remove or rewrite it", field=field
        )


def probability_of_first(logprobs: Sequence[float]) -> float | None:
    """P(first option) among two, from their log-probabilities up to a common constant; None where both are impossible."""
    first, second = logprobs
    if first == second == -math.inf or math.isnan(first) or math.isnan(second):
        return None
    gap = second - first
    # The exponent is never positive: no overflow, and no loss where the probability is near 0 or 1.
    return 1 / (1 + math.exp(gap)) if gap <= 0 else math.exp(-gap) / (1 + math.exp(-gap))


# ThinkPRM.

_THINK_TASK = (
    "Review and critique each step in the proposed solution to determine whether each step is correct. "
    "If the solution is incomplete, only verify the provided steps."
)
_THINK_BEGIN = "\nLet's verify step by step:"
_THINK_QUESTION = "\nIs the solution correct?"
_THINK_ANSWER = re.compile(r"\s*(yes|no)\b", re.IGNORECASE)
_LABEL = re.compile(r"\s*Step \d+:")
_HEADING = re.compile(r"Step (\d+):")
_TEXT = re.compile(r"\\text\{([^}]*)\}")
_VERDICT = re.compile(r"\\boxed\{\s*(correct|incorrect)\s*\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ThinkPRM(Critic):
    r"""A long critique of the solution so far, then "Is the solution correct?". The defaults are those of the authors' `APIThinkPRMVerifier`.

    Khalifa et al., "Process Reward Models That Think", 2025 (arXiv:2504.16828); checkpoints launch/ThinkPRM-1.5B, -7B, -14B; format from the
    authors' code (`utils/helper.py`, `prm/thinkprm_api.py` in mukhal/ThinkPRM).

    The model reads problem and solution in one user turn, its reply is begun with "\nLet's verify step by step:", and it writes a critique in
    which each step ends in \boxed{correct} or \boxed{incorrect}. Then "\nIs the solution correct?" is appended and P(yes) is read against P(no).

    Deviations from the authors' code:

    - P(yes) comes from the exact log-probabilities of " yes" and " no"; theirs from SGLang's mean log-probability a token. (The text is the
      same: their trailing space belongs to the option's token.)
    - A failure is an error; theirs scores 0.269.
    - Only a label at a step's beginning ("Step 3:") is taken off; theirs removes it anywhere in the step.
    - The stop string "Step n+1:" (used with `verdicts`) counts the steps; theirs reads the number out of the whole prompt and compares as
      text, so that 9 is more than 10.
    """

    samples: int = 1
    """Critiques a prefix (or, with `verdicts`, a solution); their mean counts."""
    per_step: Literal["prefix", "verdicts"] = "prefix"
    """`prefix`: each prefix is critiqued on its own, and its P(yes) is the score of its last step. `verdicts`: the whole solution is critiqued, and
    the score of a step is the share of critiques whose verdict on it is "correct": much cheaper, and not causal. A step that every critique stopped
    before (at the first wrong step, as it was trained to) has no score."""
    temperature: float = 0.7
    top_p: float = 1.0
    max_tokens: int = 8172
    """Tokens a critique. One that is cut off there is still asked for its decision, as the authors do."""
    options: tuple[str, str] = (" yes", " no")
    """The decision's two texts. The checkpoints were trained on " Yes" and " No", and are read by their
    authors with the small letters."""
    seed: int = 0

    @property
    def causal(self) -> bool:
        """False with `verdicts`."""
        return self.per_step == "prefix"

    @property
    def markers(self) -> tuple[str, ...]:
        """What the base model reads as the borders of its thought."""
        return ("<think>", "</think>")

    async def grade(
        self, problem: str, steps: tuple[str, ...], context: tuple[str, ...], policy: Completing
    ) -> Critiqued:
        """Grade one solution; see `Critic.grade`."""
        by = self._by_prefix if self.causal else self._by_verdicts
        return await by(problem, steps, context, policy)

    def lesson(
        self,
        problem: str,
        steps: tuple[str, ...],
        context: tuple[str, ...],
        step: int,
        critique: str,
        earlier: tuple[str, ...] = (),
    ) -> Lesson | None:
        """A critique of the steps up to `step` as training text; see `Critic.lesson`.

        The decision is what the critique itself answers to "Is the solution correct?", else what its verdicts on the steps come to. With
        `verdicts`, only a critique of the whole solution is one.
        """
        if self.per_step == "verdicts" and step != len(steps) - 1:
            return None
        bare = critique.lstrip().removeprefix(_THINK_BEGIN.lstrip())
        body, _, decided = bare.partition(_THINK_QUESTION.strip())
        body = body.partition("</think>")[0].rstrip()
        body = body if body[:1].isspace() else f"\n\n{body}"
        verdicts = step_verdicts(body, step + 1)
        answer = _THINK_ANSWER.match(decided)
        if answer is None and not (False in verdicts or all(verdicts)):
            return None
        verdict = answer[1].lower() == "yes" if answer is not None else False not in verdicts
        begun = _THINK_BEGIN + body + _THINK_QUESTION
        option = self.options[0 if verdict else 1]
        # Every stop string comes after something that must not stand before the decision: the critique ends itself.
        parts = [Part(prefill=_THINK_BEGIN, text=body, ends=True)]
        if self.per_step == "prefix":
            parts.append(Part(prefill=begun, text=option, chosen=True))
        return Lesson(
            prompt=self._prompt(problem, (*context[:step], steps[step])),
            parts=tuple(parts),
            reply=begun + option,
            verdict=verdict,
            whole=True,
            step_verdicts=tuple(verdicts),
        )

    async def _by_prefix(
        self, problem: str, steps: tuple[str, ...], context: tuple[str, ...], policy: Completing
    ) -> Critiqued:
        prompts = [self._prompt(problem, (*context[:t], step)) for t, step in enumerate(steps)]
        written = await all_of(
            policy.complete(self._write(prompt, t + 1)) for t, prompt in enumerate(prompts)
        )
        begun = [[_THINK_BEGIN + sample.text + _THINK_QUESTION for sample in texts] for texts in written]
        odds = await all_of(
            policy.choose(ChoiceLogprobs(prompt=prompt, prefill=text, options=self.options))
            for prompt, texts in zip(prompts, begun, strict=True)
            for text in texts
        )
        decisions = iter(odds)
        chances = [[probability_of_first(next(decisions)) for _ in texts] for texts in begun]
        # With the likelier decision: a critique is read again, and trained on, by what it comes to.
        critiques = [
            [
                text if chance is None else text + self.options[0 if chance >= 0.5 else 1]
                for text, chance in zip(texts, of_step, strict=True)
            ]
            for texts, of_step in zip(begun, chances, strict=True)
        ]
        return Critiqued.of(chances, critiques, expected="a probability of 'yes' or 'no'")

    async def _by_verdicts(
        self, problem: str, steps: tuple[str, ...], context: tuple[str, ...], policy: Completing
    ) -> Critiqued:
        written = await policy.complete(
            self._write(self._prompt(problem, (*context[:-1], steps[-1])), len(steps))
        )
        critiques = tuple(_THINK_BEGIN + sample.text for sample in written)
        verdicts: list[list[float | None]] = [[] for _ in steps]
        for text in critiques:
            by_step = step_verdicts(text, len(steps))
            for t, verdict in enumerate(by_step):
                # A critique may end at a wrong step: then it says nothing of the later ones.
                if not (False in by_step[:t] and set(by_step[t:]) == {None}):
                    verdicts[t].append(None if verdict is None else float(verdict))
        expected = r"\boxed{correct} or \boxed{incorrect} for this step"
        return Critiqued.of(verdicts, [critiques] * len(steps), expected=expected)

    def _prompt(self, problem: str, steps: tuple[str, ...]) -> tuple[Message, ...]:
        bare = [_LABEL.sub("", step, count=1) if _LABEL.match(step) else step for step in steps]
        numbered = self.per_step == "verdicts"
        solution = "\n".join(
            f"Step {t}: {step.strip()}" if numbered else step.strip() for t, step in enumerate(bare, start=1)
        )
        return (
            Message(
                role="user",
                content="You are given a math problem and a proposed step-by-step solution:\n\n"
                f"[Math Problem]\n\n{problem}\n\n[Solution]\n\n{solution}\n\n{_THINK_TASK}",
            ),
        )

    def _write(self, prompt: tuple[Message, ...], count: int) -> Completions:
        stop = ["Is the solution correct?", "</think>"]
        if self.per_step == "verdicts":
            stop.append(f"Step {count + 1}:")
        return self._ask(prompt, _THINK_BEGIN, tuple(stop))


def step_verdicts(critique: str, steps: int) -> list[bool | None]:
    r"""The verdict on each step in one critique: True for correct, None where there is none.

    Read under its headings ("Step 2: … \boxed{correct}"); the last verdict on a step stands. A critique without headings counts only if it has exactly
    one verdict a step: else it cannot be known which step one is about.
    """
    critique = _TEXT.sub(r"\1", critique)
    verdicts_of_steps: list[bool | None] = [None] * steps
    headings = list(_HEADING.finditer(critique))
    if not headings:
        verdicts = _VERDICT.findall(critique)
        return [verdict == "correct" for verdict in verdicts] if len(verdicts) == steps else verdicts_of_steps
    ends = [heading.start() for heading in headings[1:]] + [len(critique)]
    for heading, end in zip(headings, ends, strict=True):
        number = int(heading.group(1))
        verdicts = _VERDICT.findall(critique, heading.end(), end)
        if verdicts and 1 <= number <= steps:
            verdicts_of_steps[number - 1] = verdicts[-1] == "correct"
    return verdicts_of_steps


# GenPRM.

_GENPRM_SYSTEM = {
    "analyze": "You are a math teacher. Your task is to review and critique the paragraphs in solution step by step.",
    "direct": "You are a math teacher. Your task is to review and critique the paragraphs in solution directly. "
    r"Output your judgement in the format of `\boxed{Yes}` if the paragraph is correct, or `\boxed{No}` if the "
    "paragraph is incorrect.",
}
_ANALYZE = "<analyze>\nLet's analyze the Paragraph {step} step by step: "
_ANALYZED = "</analyze>\n"
_OUTPUT = "<output>\n**Judgement**: $\\boxed{"
_CLOSE = "}$\n</output>\n"
_BOXED = re.compile(r"\\boxed\{\s*(Yes|No)\s*\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenPRM(Critic):
    r"""A conversation, one turn a step; an analysis, then \boxed{Yes} or \boxed{No}. The sampling defaults are those of the authors' local evaluation.

    Zhao et al., "GenPRM: Scaling Test-Time Compute of Process Reward Models via Generative Reasoning", 2025 (arXiv:2504.00891); checkpoints
    GenPRM/GenPRM-1.5B, -7B, -32B; format from the authors' code (`src/prm_evaluation/` in RyanLiu112/GenPRM).

    Each step ("paragraph") is a user turn, the first one with the problem before it. The reply is begun with `<analyze>\nLet's analyze the
    Paragraph 1 step by step: `, runs to `</analyze>`, and after `<output>\n**Judgement**: $\boxed` comes the verdict. The turn of a later step
    follows the critique (the first of k) of every earlier one. Score: P(Yes) against P(No), mean over k ("Maj@8" in the paper is k = 8).

    Deviations from the authors' code:

    - **No generated code is run.** The paper's full pipeline has the model write Python after the analysis, executes it inside the evaluating
      process and shows the model the output. Text from a model is never executed here, so the judgement follows the analysis: what the authors'
      code itself does when its rounds of analysis and code are used up. Expect somewhat less than the paper's figures.
    - The verdict is read from the probabilities of Yes and No at its place instead of being sampled; theirs reads them at the last Yes or No
      token that was sampled, takes 0.5 where there is none, and an absent option at the 20th likeliest token's probability. Their server counted 1 or 0
      a critique for the published ProcessBench and best-of-N figures.
    - The template is rendered with its generation prompt. The authors' scripts that run GenPRM leave it out (`build_prompt` of `utils/util.py`,
      `utils/vllm_worker.py`), and take an end token at the end of the text off.
    - Problem and first step are joined by a newline, as in their ProcessBench runs; their best-of-N script joins them by nothing.
    """

    samples: int = 1
    """Critiques a step; their mean counts. The paper's best figures use 8."""
    mode: Literal["analyze", "direct"] = "analyze"
    """`direct` asks for the judgement alone: no critique, so `samples` must be 1."""
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 20
    max_tokens: int = 2048
    """Tokens an analysis. One that is cut off there is still asked for its judgement, as the authors do."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mode == "direct" and self.samples != 1:
            raise UsageError(f"GenPRM direct writes no critique: samples must be 1, found {self.samples}")

    @property
    def markers(self) -> tuple[str, ...]:
        """The tags of the format."""
        return ("<analyze>", "</analyze>", "<verify>", "</verify>", "<output>", "</output>")

    async def grade(
        self, problem: str, steps: tuple[str, ...], context: tuple[str, ...], policy: Completing
    ) -> Critiqued:
        """Grade one solution, step after step; see `Critic.grade`."""
        verdicts: list[list[float | None]] = []
        critiques: list[list[str]] = []
        for t, step in enumerate(steps):
            prompt = self._prompt(problem, context[:t], step, tuple(texts[0] for texts in critiques))
            begun = [_OUTPUT]
            if self.mode == "analyze":
                begin = _ANALYZE.format(step=t + 1)
                written = await policy.complete(self._ask(prompt, begin, (_ANALYZED,)))
                begun = [begin + sample.text + _ANALYZED + _OUTPUT for sample in written]
            odds = await all_of(
                policy.choose(ChoiceLogprobs(prompt=prompt, prefill=text, options=("Yes", "No")))
                for text in begun
            )
            chances = [probability_of_first(pair) for pair in odds]
            critiques.append(
                [
                    text if chance is None else text + ("Yes" if chance >= 0.5 else "No") + _CLOSE
                    for text, chance in zip(begun, chances, strict=True)
                ]
            )
            verdicts.append(chances)
        return Critiqued.of(verdicts, critiques, expected="a probability of Yes or No")

    def lesson(
        self,
        problem: str,
        steps: tuple[str, ...],
        context: tuple[str, ...],
        step: int,
        critique: str,
        earlier: tuple[str, ...] = (),
    ) -> Lesson | None:
        r"""A critique of one step as training text; see `Critic.lesson`.

        Its analysis runs to `</analyze>`, where it has that; code and its output, which are never run here, are left out. Its
        verdict is its last `\boxed{Yes}` or `\boxed{No}`.
        """
        verdicts = _BOXED.findall(critique)
        if not verdicts:
            return None
        parts = []
        begun = _OUTPUT
        if self.mode == "analyze":
            begin = _ANALYZE.format(step=step + 1)
            analysis = critique.removeprefix(begin)
            borders = (_ANALYZED.strip(), "<verify>", "<output>", "\\boxed{")
            analysis = analysis.partition(next(border for border in borders if border in analysis))[0]
            parts.append(Part(prefill=begin, text=analysis + _ANALYZED))
            begun = begin + analysis + _ANALYZED + _OUTPUT
        parts.append(Part(prefill=begun, text=verdicts[-1], chosen=True))
        verdict = verdicts[-1] == "Yes"
        return Lesson(
            prompt=self._prompt(problem, context[:step], steps[step], earlier),
            parts=tuple(parts),
            reply=begun + verdicts[-1] + _CLOSE,
            verdict=verdict,
            whole=False,
            step_verdicts=(*(None,) * step, verdict),
        )

    def judged(self, right: bool) -> str:
        """The reply of `direct` to a step that is right or wrong: it needs no critique."""
        return _OUTPUT + ("Yes" if right else "No") + _CLOSE

    def _prompt(
        self, problem: str, before: tuple[str, ...], step: str, replies: tuple[str, ...]
    ) -> tuple[Message, ...]:
        """The conversation up to a step: the steps before it, each with what was replied."""
        turns = [Message(role="system", content=_GENPRM_SYSTEM[self.mode])]
        for paragraph, reply in zip((*before, step), (*replies, None), strict=True):
            opening = f"{problem}\n" if len(turns) == 1 else ""
            turns.append(Message(role="user", content=opening + paragraph))
            if reply is not None:
                turns.append(Message(role="assistant", content=reply))
        return tuple(turns)


# R-PRM.

_RPRM_QUESTION = "Is the step correct (Yes/No)?"
_RPRM_ANSWER = re.compile(r"\s*(Yes|No)\b")
_RPRM_FIRST = "Since the Now Step is the first step, there are no Previous Steps."
_RPRM_TASK = """\
<|im_start|>system
You are a helpful assistant.<|im_end|>
<|im_start|>user
You are an excellent math teacher. Please verify the correctness of the Now Step.

You first need to analyze the Now Step and the Previous Steps and then summarize based on your analysis.
Analysis:
You need to analyze the following aspects.
**Previous Steps Analysis**: You need to analyze the Previous Steps step by step. For each step, you need to first \
explain what the current step is doing, then you try to find any error in the current step.
**Now Step Analysis**: You first need to explain what the Now Step is doing, and then point out which part of the \
Question it is trying to solve or which part of the information it states.
**Data Source Analysis**: First you need to find out what data are used in the Now Step, and then you need to \
determine whether the source of the data is reasonable and correct. When you judge whether the source of a data is \
reasonable and correct, you need to specify the specific source of this data: such as which part of the question, or \
which content of the previous step; and then determine the source and current use is consistent, the Now Step is used \
correctly.
**Consistency Analysis**: You need to check that the Now Step is consistent with the contents of the Previous Steps, \
and then you need to check that all the information inside the Now Step is consistent.
**Calculation Analysis**: If the Now Step involves any calculations, such as addition, subtraction, multiplication, \
division, equations, modulo operations, etc., you will first need to perform a check on the calculation, such as a \
reverse operation, to see if the calculation was done correctly, and then analyze the results of your check to see if \
there was an error in the calculation.
Conclusion:\x20
Please verify the correctness of the Now Step based on your analysis, if there is any error in the Now Step then the \
Now Step is wrong and vice versa the Now Step is correct. At the end of the Conclusion, when you give your final \
answer, write it in the form "Verification: Is the step correct (Yes/No)? X", where X is either Yes or No.

Question: """


@dataclass(frozen=True, kw_only=True, slots=True)
class RPRM(Critic):
    r"""An analysis of one step in its context, then "Is the step correct (Yes/No)?". The defaults are those of the authors' evaluation scripts.

    She et al., "R-PRM: Reasoning-Driven Process Reward Modeling", 2025 (arXiv:2503.21295); checkpoints kevinpro/R-PRM-7B-SFT, -DPO; format from
    the authors' code (`src/prompts/GenPRM/GenPRM-evaluate-new3-qwen.txt` and `src/evaluate/GenPRM/` in NJUNLP/R-PRM).

    A raw prompt a step (ChatML written by hand, so it goes to the model as text and not through its template); k analyses are sampled; each is cut
    after its first "Is the step correct (Yes/No)?" and P(" Yes") is read against P(" No") there; the score is the mean over k.

    Deviations from the authors' code:

    - An analysis without the question is left out of the mean (as in their search script); their evaluation appends another question ("Is the
      answer correct") and reads that.
    - An analysis is read as it was written. Theirs strips every line and breaks lines at each backslash-n, which also cuts \neq and \nu in two.
    - Previous steps are joined by a newline, as in their search script; how their ProcessBench files join them is not published.
    """

    samples: int = 10
    """Analyses a step; their mean counts."""
    temperature: float = 0.95
    top_p: float = 0.95
    max_tokens: int = 4096
    seed: int = 0

    async def grade(
        self, problem: str, steps: tuple[str, ...], context: tuple[str, ...], policy: Completing
    ) -> Critiqued:
        """Grade one solution; see `Critic.grade`."""
        prompts = [self._prompt(problem, context[:t], step) for t, step in enumerate(steps)]
        written = await all_of(policy.complete(self._ask(prompt)) for prompt in prompts)
        critiques = [[sample.text for sample in samples] for samples in written]
        asked = [
            (t, number, text[: text.index(_RPRM_QUESTION)] + _RPRM_QUESTION)
            for t, texts in enumerate(critiques)
            for number, text in enumerate(texts)
            if _RPRM_QUESTION in text
        ]
        odds = await all_of(
            policy.choose(ChoiceLogprobs(prompt=prompts[t], prefill=text, options=(" Yes", " No")))
            for t, _, text in asked
        )
        verdicts: list[list[float | None]] = [[None] * len(texts) for texts in critiques]
        for (t, number, _), pair in zip(asked, odds, strict=True):
            verdicts[t][number] = probability_of_first(pair)
        return Critiqued.of(verdicts, critiques, expected=repr(_RPRM_QUESTION))

    def lesson(
        self,
        problem: str,
        steps: tuple[str, ...],
        context: tuple[str, ...],
        step: int,
        critique: str,
        earlier: tuple[str, ...] = (),
    ) -> Lesson | None:
        """See `Critic.lesson`; an analysis up to the answer to its first question."""
        before, asked, after = critique.partition(_RPRM_QUESTION)
        answer = _RPRM_ANSWER.match(after)
        if not asked or answer is None:
            return None
        verdict = answer[1] == "Yes"
        text = f"{before}{_RPRM_QUESTION} {answer[1]}"
        return Lesson(
            prompt=self._prompt(problem, context[:step], steps[step]),
            parts=(Part(prefill="", text=text, ends=True),),
            reply=text,
            verdict=verdict,
            whole=False,
            step_verdicts=(*(None,) * step, verdict),
        )

    def _prompt(self, problem: str, previous: tuple[str, ...], step: str) -> str:
        before = "\n".join(previous) or _RPRM_FIRST
        return (
            f"{_RPRM_TASK}{problem}\nPrevious Steps: {before}\nNow Step: {step}\n"
            "Please carefully analyze the correctness of the Now Step.\n"
            # In the published prompt file these are a backslash and an n, two characters, and the authors' evaluation sends them so.
            "Reply: <|im_end|>\\n<|im_start|>assistant\\n"
        )
