r"""The generative PRM: a language model fitted to critiques that end in a verdict.

What it reads in training is what its critic (`models/critics/`) asks when it grades. Loss is on the written text alone. Critiques that
contradict the labels are left out, as ThinkPRM (Khalifa et al. 2025, arXiv:2504.16828) and GenPRM (Zhao et al. 2025, arXiv:2504.00891) do.

A judge's critiques (`stepmark label judge`) are rewritten into the format of a critic. The text stays the judge's own; what changes is how
its verdict is written (`\boxed{incorrect}` becomes the critic's "No"), that thoughts before `</think>` go, and how steps are called (the
judge's paragraphs count from 0, steps from 1).

=============  ==============================================  =========================================================
critic         of ``ask="steps"``                              of ``ask="place"``
=============  ==============================================  =========================================================
ThinkPRM       "Step 1: ... \boxed{correct}", "Step 2: ...",   the text, then the verdict on each step up to the place
               up to the step: each vote on it after votes     that it names
               for "right" on the steps before
GenPRM, R-PRM  the vote on the step                            none: they write of one step, the judge of the whole
=============  ==============================================  =========================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from stepmark.errors import InputError
from stepmark.labels.judge import place_named, verdict_named
from stepmark.models.critics import GenPRM, Lesson, ThinkPRM, refuse_markers
from stepmark.models.encoding import PromptEncoder
from stepmark.models.generative import CriticSpec, Settings, check, context_of
from stepmark.models.packed_tree import Ints, pack
from stepmark.models.spec import Layout
from stepmark.settings import settings
from stepmark.training.examples import Dropped, Example, known_value
from stepmark.training.logprobs import answer_tokens, token_logprobs
from stepmark.training.net import Net
from stepmark.training.objectives.base import Fitted
from stepmark.training.packing import TrainingItem, TreeRow, cut, kind_of
from stepmark.verifiers.finder import find_answer

WHOLE = "critiques of a whole solution, where this critic writes of one step (label with `ask` steps)"
UNREAD = "critiques without a verdict"
AFTER = "critiques after a step that no critique calls right"

_PARAGRAPH = re.compile(r"</?paragraph_(\d+)>|\bparagraph(?:\\_|[ _])(\d+)", re.IGNORECASE)
_PARAGRAPHS = re.compile(r"\bparagraphs (\d+(?: ?(?:and|to|-|–) ?\d+)*)", re.IGNORECASE)
_HEADING = re.compile(r"Step (\d+):")


Note = Callable[[str, int], None]
"""Takes note of critiques that are left out: why, and how many."""


def in_format_of(critic: Settings, example: Example, note: Note) -> list[list[str]]:
    """An example's critiques by a judge, as the critic would write them: one list a step, possibly empty."""
    texts: list[list[str]] = [[] for _ in example.targets]
    if example.asked == "place":
        if isinstance(critic, ThinkPRM):
            texts[-1] = list(_whole(example, note))
        else:
            note(WHOLE, sum(map(len, example.critiques)))
        return texts
    votes = [_votes(replies, step, critic, note) for step, replies in enumerate(example.critiques)]
    if isinstance(critic, ThinkPRM):
        _join(critic, votes, texts, note)
        return texts
    for step, mine in enumerate(votes):
        for right, text in mine:
            word = "Yes" if right else "No"
            texts[step].append(
                f"{text}\n</analyze>\n<output>\n**Judgement**: $\\boxed{{{word}}}$\n</output>\n"
                if isinstance(critic, GenPRM)
                else f"{text}\nVerification: Is the step correct (Yes/No)? {word}"
            )
    return texts


def _votes(replies: Sequence[str], step: int, critic: Settings, note: Note) -> list[tuple[bool, str]]:
    """The verdict of each reply on one step, and its text with the verdict as this critic has it in the text."""
    results = []
    for text in replies:
        verdict = verdict_named(text)
        if verdict is None:
            note(UNREAD, 1)
            continue
        word = "correct" if verdict == 1 else "incorrect"
        boxed = f"\\boxed{{{word}}}" if isinstance(critic, ThinkPRM) else word
        results.append((verdict == 1, _own_words(text, boxed, _names(critic, step))))
    return results


def _join(
    critic: ThinkPRM, votes: Sequence[Sequence[tuple[bool, str]]], texts: list[list[str]], note: Note
) -> None:
    """A critique of the steps so far for each vote on the last of them."""
    last = max((step for step, mine in enumerate(votes) if mine), default=-1)
    right = [[text for good, text in mine if good] for mine in votes]
    for step, mine in enumerate(votes):
        if not all(right[:step]):
            note(AFTER, len(mine))
            continue
        for number, (good, text) in enumerate(mine):
            parts = [*(earlier[number % len(earlier)] for earlier in right[:step]), text]
            joined = "\n\n".join(f"Step {at}: {_without_headings(part)}" for at, part in enumerate(parts, 1))
            whole = joined + _decision(good)
            if critic.per_step == "prefix":
                texts[step].append(whole)
            elif step == last and (not good or step == len(votes) - 1):
                # It reads the whole solution, and may stop at the first wrong step.
                texts[-1].append(whole)


def _whole(example: Example, note: Note) -> Iterator[str]:
    steps = len(example.targets)
    for text in (text for texts in example.critiques for text in texts):
        place = place_named(text, steps=steps)
        if place is None:
            note(UNREAD, 1)
            continue
        named = "no step" if place == -1 else f"step {place + 1}"
        words = _without_headings(_own_words(text, named, lambda number: f"step {number + 1}"))
        until = steps if place == -1 else place + 1
        verdicts = [
            f"Step {at + 1}: \\boxed{{{'incorrect' if at == place else 'correct'}}}" for at in range(until)
        ]
        yield "\n".join([f"{words}\n", *verdicts]) + _decision(place == -1)


def _without_headings(text: str) -> str:
    """ThinkPRM's verdicts are read under its headings; a text's own would take them."""
    return _HEADING.sub(r"step \1:", text)


def _decision(right: bool) -> str:
    return f"\nIs the solution correct? {'Yes' if right else 'No'}"


def _names(critic: Settings, step: int) -> Callable[[int], str]:
    """How the critic's prompt calls a paragraph, counted from 0."""
    if isinstance(critic, GenPRM):
        return lambda number: f"Paragraph {number + 1}"
    if isinstance(critic, ThinkPRM):
        return lambda number: f"step {number + 1}"
    return lambda number: "Now Step" if number == step else f"step {number + 1}"


def _own_words(reply: str, verdict: str, name: Callable[[int], str]) -> str:
    """A reply without its thought, its last box replaced by `verdict`, its paragraphs called as `name` does."""
    text = reply.rpartition("</think>")[2].strip()
    result = find_answer(text, "marked")
    assert result is not None and result.way == "boxed", "a vote has a box"
    begin = max(text.rfind("\\boxed", 0, result.start), text.rfind("\\fbox", 0, result.start))
    after = text[result.start + len(result.text) :]
    before, after = text[:begin], after.lstrip()[1:] if after.lstrip().startswith("}") else after
    if not verdict.startswith("\\") and before.endswith("$") and after.startswith("$"):
        before, after = before[:-1], after[1:]
    return _named(before, name) + verdict + _named(after, name)


def _named(text: str, name: Callable[[int], str]) -> str:
    many = _PARAGRAPHS.sub(
        lambda match: "steps " + re.sub(r"\d+", lambda digits: str(int(digits[0]) + 1), match[1]), text
    )
    return _PARAGRAPH.sub(lambda match: name(int(match[1] or match[2])), many)


@settings
class Generative:
    """Cross-entropy of the tokens of critiques; each is a label.

    Measured is the loss alone: how well such a PRM grades is only known when it writes its own critiques (`stepmark evaluate`).
    """

    name: ClassVar[str] = "generative"
    outcomes: ClassVar[bool] = False
    marked: ClassVar[bool] = False
    critic: Settings = field(default_factory=ThinkPRM)
    """Whose format, with the settings that the checkpoint is to grade with."""
    above: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """A share of successful rollouts above this is right."""

    def spec(self, layout: Layout, base: str) -> CriticSpec:
        """The critic and its settings."""
        return CriticSpec(settings=self.critic)

    def head(self, net: Net) -> torch.nn.Module:
        """The language-model head, which is the network's own."""
        # Now, so that rows of its own are among the parameters when the optimizer takes them.
        net.output()
        return torch.nn.Identity()

    def wanted(self, example: Example) -> Example:
        """The example as it is; `lessons` chooses its critiques."""
        return example

    def items(
        self, group: Sequence[Example], net: Net, *, budget: int, dropped: Dropped, every_step: bool
    ) -> Iterator[TrainingItem]:
        """Trees of conversations: one path for each text that is written, and one for each verdict that is chosen."""
        encoder = PromptEncoder(net.tokenizer, str(net.base))
        results: list[tuple[Ints, int, Example]] = []
        seen: set[tuple[object, ...]] = set()
        for example in group:
            for lesson in self.lessons(example, dropped):
                # A prefix has the same critiques in every solution that begins with it.
                if (lesson.prompt, lesson.parts) in seen:
                    dropped.note("critiques that another row has too", example.where)
                    continue
                seen.add((lesson.prompt, lesson.parts))
                try:
                    texts = _encoded(lesson, encoder, net.tokenizer.eos_token_id)
                except InputError as error:
                    dropped.note(
                        f"critiques that cannot be read: {kind_of(error)}", example.where or str(error)
                    )
                    continue
                if net.max_tokens is not None and max(len(a) + len(b) for a, b in texts) > net.max_tokens:
                    dropped.note("critiques that are too long with their prompt", example.where)
                    continue
                for before, new in texts:
                    results.append((np.asarray(before + new, dtype=np.int64), len(before), example))
        results.sort(key=lambda result: result[0].tolist())
        for start, end in cut([ids for ids, *_ in results], [result[2] for result in results], budget):
            yield _item(results[start:end])

    def lessons(self, example: Example, dropped: Dropped) -> Iterator[Lesson]:
        """The critiques of an example that are trained on, as training text: those whose verdict, and each verdict on a step on the way to it, is what
        the labels say. `GenPRM(mode="direct")` needs no critiques, its replies are the labels.
        """
        solution, critic = example.solution, self.critic
        by_step = self._critiques(example, dropped)
        if not any(by_step):
            if not any(example.critiques):
                dropped.note("rows without critiques", example.where)
            return
        try:
            check(solution, critic.markers)
        except InputError as error:
            dropped.note(f"rows that cannot be read: {kind_of(error)}", example.where or str(error))
            return
        history: list[str] = []
        for step, critiques in enumerate(by_step):
            accepted: list[Lesson] = []
            for critique in critiques:
                why, lesson = self._lesson(example, step, critique, tuple(history))
                if lesson is None:
                    dropped.note(why, example.where)
                else:
                    accepted.append(lesson)
            yield from accepted
            if isinstance(critic, GenPRM):
                if not accepted and critic.mode == "direct":
                    # Nobody judged it, and a later step is only judged where this one is no error.
                    history.append(critic.judged(True))
                    continue
                if not accepted:
                    remaining = sum(map(len, by_step[step + 1 :]))
                    dropped.note("critiques after a step that has none to be kept", example.where, remaining)
                    return
                history.append(accepted[0].reply)

    def _critiques(self, example: Example, dropped: Dropped) -> tuple[tuple[str, ...], ...]:
        """One list a step, in the critic's own format."""
        critic, given = self.critic, example.critiques
        if isinstance(critic, GenPRM) and critic.mode == "direct":
            truths = [self._truth(example, step, whole=False) for step in range(len(example.targets))]
            return tuple(() if truth is None else (critic.judged(truth),) for truth in truths)
        if example.asked is not None:
            texts = in_format_of(critic, example, lambda why, count: dropped.note(why, example.where, count))
            return tuple(map(tuple, texts))
        # ThinkPRM that grades by verdicts writes of the whole solution, and the same texts stand at each of its steps.
        if isinstance(critic, ThinkPRM) and len(given) > 1 and len(set(given)) == 1:
            return (*((),) * (len(given) - 1), given[-1])
        return given

    def _lesson(
        self, example: Example, step: int, critique: str, history: tuple[str, ...]
    ) -> tuple[str, Lesson | None]:
        """The lesson, or why there is none."""
        solution = example.solution
        try:
            refuse_markers(critique.replace("</think>", ""), "critiques", ())
        except InputError:
            return "critiques with a control token", None
        lesson = self.critic.lesson(
            solution.problem.text, solution.texts, context_of(solution), step, critique, history
        )
        if lesson is None:
            return "critiques without a verdict", None
        truth = self._truth(example, step, whole=lesson.whole)
        if truth is None:
            return "critiques of steps without a label", None
        on_the_way = (
            verdict == known
            for i, verdict in enumerate(lesson.step_verdicts)
            if verdict is not None and (known := self._truth(example, i, whole=False)) is not None
        )
        if lesson.verdict != truth or not all(on_the_way):
            return "critiques that contradict the labels", None
        return "", lesson

    def _truth(self, example: Example, step: int, *, whole: bool) -> bool | None:
        """What the labels say of a step, or of all steps up to it; None where nothing."""
        values = [None if t is None else known_value(t) > self.above for t in example.targets[: step + 1]]
        # A step is labelled right only where nothing before it is known to be wrong.
        return False if whole and False in values else values[-1]

    def fit(self, net: Net, batch: Sequence[TrainingItem]) -> Fitted:
        """Forward pass and loss."""
        answers = answer_tokens(batch)
        logprobs = token_logprobs(net.hidden(batch), net.output(), batch, answers)
        weights = np.zeros(len(logprobs))
        at = 0
        for item in batch:
            for row in item.rows:
                weights[at + row.path[row.answer :]] += 1
            at += len(item.tree)
        weigh: Tensor = torch.from_numpy(weights).to(logprobs)
        return Fitted(loss=-(logprobs * weigh).sum(), labels=float(weights.sum()), scores=())


def _encoded(lesson: Lesson, encoder: PromptEncoder, end: int | None) -> list[tuple[list[int], list[int]]]:
    """For each part, what stands before it and what is learned, as grading tokenises them."""
    texts = []
    for part in lesson.parts:
        if part.chosen:
            before, rests = encoder.options(lesson.prompt, part.prefill, [part.text])
            new = rests[0]
        else:
            before, new = encoder.continuation(lesson.prompt, part.prefill, part.text)
        texts.append((before, new + ([end] if part.ends and end is not None else [])))
    return texts


def _item(part: Sequence[tuple[Ints, int, Example]]) -> TrainingItem:
    tree = pack([ids for ids, *_ in part])
    return TrainingItem(
        tree=tree,
        reads=(),
        targets=(),
        weights=(),
        rows=tuple(
            TreeRow(
                example=example,
                path=path,
                answer=answer,
                reads=(None,) * len(example.targets),
            )
            for (_, answer, example), path in zip(part, tree.paths, strict=True)
        ),
        problem=part[0][2].solution.problem.text,
    )
