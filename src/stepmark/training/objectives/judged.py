r"""A judge's critiques (`stepmark label judge`) said in the format of a critic, so that a generative PRM can be trained on them.

Nothing is made up: each text stays the judge's own. What changes is how its verdict is written (`\boxed{incorrect}` becomes the critic's "No"),
that thoughts before `</think>` go, and how steps are called (the judge's paragraphs count from 0, steps from 1).

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stepmark.labels.judge import place_named, verdict_named
from stepmark.models.critics.genprm import GenPRM
from stepmark.models.critics.thinkprm import ThinkPRM
from stepmark.models.generative import Settings
from stepmark.problems.extraction import find_answer
from stepmark.training.examples import Example

WHOLE = "critiques of a whole solution, where this critic writes of one step (label with --ask steps)"
UNREAD = "critiques without a verdict"
AFTER = "critiques after a step that no critique calls right"

_PARAGRAPH = re.compile(r"</?paragraph_(\d+)>|\bparagraph(?:\\_|[ _])(\d+)", re.IGNORECASE)
_PARAGRAPHS = re.compile(r"\bparagraphs (\d+(?: ?(?:and|to|-|–) ?\d+)*)", re.IGNORECASE)
_HEADING = re.compile(r"Step (\d+):")


@dataclass(kw_only=True, slots=True)
class Said:
    """Critiques in a critic's own format."""

    texts: list[list[str]]
    """One list a step, possibly empty."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Reason: how many."""

    def leave(self, why: str, count: int = 1) -> None:
        """Count critiques that are not there."""
        if count:
            self.left_out[why] = self.left_out.get(why, 0) + count


def in_format_of(critic: Settings, example: Example) -> Said:
    """An example's critiques by a judge, as the critic would write them.

    Args:
        critic: whose format.
        example: with critiques and with `asked`.
    """
    said = Said(texts=[[] for _ in example.targets])
    if example.asked == "place":
        if isinstance(critic, ThinkPRM):
            _whole(example, said)
        else:
            said.leave(WHOLE, sum(map(len, example.critiques)))
        return said
    votes = [_votes(texts, step, critic, said) for step, texts in enumerate(example.critiques)]
    if isinstance(critic, ThinkPRM):
        _joined(critic, votes, said)
        return said
    for step, mine in enumerate(votes):
        for right, text in mine:
            word = "Yes" if right else "No"
            said.texts[step].append(
                f"{text}\n</analyze>\n<output>\n**Judgement**: $\\boxed{{{word}}}$\n</output>\n"
                if isinstance(critic, GenPRM)
                else f"{text}\nVerification: Is the step correct (Yes/No)? {word}"
            )
    return said


def _votes(texts: Sequence[str], step: int, critic: Settings, said: Said) -> list[tuple[bool, str]]:
    """What each reply on one step says, and its text with the verdict as this critic has it in the text."""
    found = []
    for text in texts:
        verdict = verdict_named(text)
        if verdict is None:
            said.leave(UNREAD)
            continue
        word = "correct" if verdict == 1 else "incorrect"
        boxed = f"\\boxed{{{word}}}" if isinstance(critic, ThinkPRM) else word
        found.append((verdict == 1, _own_words(text, boxed, _names(critic, step))))
    return found


def _joined(critic: ThinkPRM, votes: Sequence[Sequence[tuple[bool, str]]], said: Said) -> None:
    """A critique of the steps so far for each vote on the last of them."""
    last = max((step for step, mine in enumerate(votes) if mine), default=-1)
    right = [[text for good, text in mine if good] for mine in votes]
    for step, mine in enumerate(votes):
        if not all(right[:step]):
            said.leave(AFTER, len(mine))
            continue
        for number, (good, text) in enumerate(mine):
            parts = [*(earlier[number % len(earlier)] for earlier in right[:step]), text]
            joined = "\n\n".join(f"Step {at}: {_without_headings(part)}" for at, part in enumerate(parts, 1))
            whole = joined + _decision(good)
            if critic.per_step == "prefix":
                said.texts[step].append(whole)
            elif step == last and (not good or step == len(votes) - 1):
                # It reads the whole solution, and may stop at the first wrong step.
                said.texts[-1].append(whole)


def _whole(example: Example, said: Said) -> None:
    steps = len(example.targets)
    for text in (text for texts in example.critiques for text in texts):
        place = place_named(text, steps=steps)
        if place is None:
            said.leave(UNREAD)
            continue
        named = "no step" if place == -1 else f"step {place + 1}"
        words = _without_headings(_own_words(text, named, lambda number: f"step {number + 1}"))
        until = steps if place == -1 else place + 1
        verdicts = [
            f"Step {at + 1}: \\boxed{{{'incorrect' if at == place else 'correct'}}}" for at in range(until)
        ]
        said.texts[-1].append("\n".join([f"{words}\n", *verdicts]) + _decision(place == -1))


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
    found = find_answer(text)
    assert found is not None and found.way == "boxed", "a vote has a box"
    begin = max(text.rfind("\\boxed", 0, found.start), text.rfind("\\fbox", 0, found.start))
    after = text[found.start + len(found.text) :]
    before, after = text[:begin], after.lstrip()[1:] if after.lstrip().startswith("}") else after
    if not verdict.startswith("\\") and before.endswith("$") and after.startswith("$"):
        before, after = before[:-1], after[1:]
    return _named(before, name) + verdict + _named(after, name)


def _named(text: str, name: Callable[[int], str]) -> str:
    many = _PARAGRAPHS.sub(
        lambda found: "steps " + re.sub(r"\d+", lambda digits: str(int(digits[0]) + 1), found[1]), text
    )
    return _PARAGRAPH.sub(lambda found: name(int(found[1] or found[2])), many)
