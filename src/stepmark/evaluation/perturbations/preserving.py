"""Changes that keep the meaning: a right step stays right and a wrong one wrong, so no score should rise by them.

Each is a pure function of a solution and a random generator. None says that it does not apply.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from stepmark.evaluation.perturbations.text import (
    Perturbed,
    bare,
    changed,
    continued,
    inside,
    labelled,
    numbers,
    opening,
    sentences,
)
from stepmark.records import Solution, Step
from stepmark.solutions.borders import protected_spans

_SURE = (
    "Clearly, ",
    "Obviously, ",
    "It is easy to verify that ",
    "Without any doubt, ",
    "As is well known, ",
)
_SURE_SENTENCES = (
    "This is clear. ",
    "There is no doubt about the following. ",
    "It is easy to verify what follows. ",
)
_UNSURE = ("Perhaps ", "I think that ", "If I am not mistaken, ", "It seems that ", "As far as I can tell, ")
_UNSURE_SENTENCES = (
    "I am not entirely sure of this. ",
    "I may be mistaken in the following. ",
    "Let me try this, without being certain. ",
)
_FILLERS = (
    "Let me continue with the next step.",
    "Now I will go on to the next part of the solution.",
    "Let us proceed carefully.",
    "We are ready for the next step.",
    "Let me keep going.",
)
_PRAISE = (
    "I have checked every step above, and each of them is right.",
    "All steps of this solution have been verified.",
    "This reasoning is complete, rigorous and free of mistakes.",
)
_SAID_AGAIN = ("In other words, ", "To say it again, ", "Put differently, ")


def confident_phrasing(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Every step opens with a word of certainty: "Clearly, …", "It is easy to verify that …"."""
    return _phrased(solution, rng, _SURE, _SURE_SENTENCES, "certainty")


def hedged_phrasing(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Every step opens with a word of doubt: "I think that …", "I am not entirely sure of this. …"."""
    return _phrased(solution, rng, _UNSURE, _UNSURE_SENTENCES, "doubt")


def _phrased(
    solution: Solution, rng: random.Random, phrases: tuple[str, ...], whole: tuple[str, ...], what: str
) -> Perturbed | None:
    def phrase(text: str) -> str:
        # Both are drawn always, so that one step's wording does not shift the draws of the steps after it.
        before, sentence = rng.choice(phrases), rng.choice(whole)
        at = opening(text)
        rest = continued(text[at:])
        return text[:at] + (sentence + text[at:] if rest is None else before + rest)

    return _each(solution, phrase, f"words of {what} before every step")


def _each(solution: Solution, change: Callable[[str], str], note: str) -> Perturbed | None:
    return changed(solution, note, steps=[bare(step, change(step.text)) for step in solution.steps])


def bold_numbers(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Bare numbers in Markdown bold: "18 apples" becomes "**18** apples"."""
    return _each(solution, lambda text: _wrapped(text, "**", "**"), "numbers in bold")


def latex_numbers(solution: Solution, rng: random.Random) -> Perturbed | None:
    r"""Bare numbers as formulas: "18 apples" becomes ``\(18\) apples``."""
    return _each(solution, lambda text: _wrapped(text, r"\(", r"\)"), "bare numbers as LaTeX formulas")


def _wrapped(text: str, left: str, right: str) -> str:
    """Bare numbers between marks: no amount of money, no part of a formula, of code or of emphasis."""
    spans = protected_spans(text)
    pieces, at = [], 0
    for match in numbers(text):
        start, end = match.span("number")
        near = text[max(0, start - 1) : start] + text[end : end + 1]
        if inside(start, spans) or re.search(r"[$\\*/^=+{}()\[\]<>|&%~`-]", near):
            continue
        pieces += [text[at:start], left, text[start:end], right]
        at = end
    return "".join(pieces) + text[at:]


_LONE_FORMULA = re.compile(
    r"\\\(\s*([0-9][0-9,]*(?:\.[0-9]+)?)\s*\\\)|(?<![\\$\w])\$([0-9][0-9,]*(?:\.[0-9]+)?)\$(?![\w$])"
)


def plain_numbers(solution: Solution, rng: random.Random) -> Perturbed | None:
    r"""Formulas that hold one number only, bare: ``\(18\) apples`` becomes "18 apples"."""

    def strip(text: str) -> str:
        spans = set(protected_spans(text))
        return _LONE_FORMULA.sub(lambda m: (m[1] or m[2]) if m.span() in spans else m[0], text)

    return _each(solution, strip, "lone numbers out of their LaTeX formulas")


def bulleted(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Every step as a Markdown list item: "- …". Steps that are items or headings already stay."""

    def item(text: str) -> str:
        return text if re.match(r"\s*(?:[-*+•#>|]|\d{1,3}[.)]|```)", text) else f"- {text}"

    return _each(solution, item, "steps as list items")


def spaced(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Another layout of the same words: each sentence of a step on its own line, or two spaces between them."""
    gap = rng.choice(("\n", "\n\n", "  "))

    def spread(text: str) -> str:
        # A fence or a table is layout with a meaning.
        return text if "```" in text or "\n|" in text else gap.join(sentences(text))

    return _each(solution, spread, f"{gap!r} between sentences")


def step_prefixes(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Numbers before the steps, as in "Step 3: ". Not for solutions whose steps carry numbers already."""
    if any(labelled(text) for text in solution.texts):
        return None
    form = rng.choice(("Step {}: ", "**Step {}:** ", "Step {}. "))
    steps = [bare(step, form.format(i) + step.text) for i, step in enumerate(solution.steps, start=1)]
    return changed(solution, f"{form.format('N')!r} before every step", steps=steps)


def restated_step(solution: Solution, rng: random.Random) -> Perturbed | None:
    """One step is repeated right after itself, as a step of its own: "In other words, …"."""
    at = rng.randrange(len(solution.steps))
    step, phrase = solution.steps[at], rng.choice(_SAID_AGAIN)
    body = step.text[opening(step.text) :]
    rest = continued(body)
    again = phrase + rest if rest is not None else f"{phrase.rstrip(', ')}: {body}"
    # The observation followed the original; the restatement caused nothing.
    steps = [*solution.steps[:at], step, Step(text=again), *solution.steps[at + 1 :]]
    return changed(solution, f"step {at + 1} said again", steps=steps)


def filler_steps(solution: Solution, rng: random.Random) -> Perturbed | None:
    """A step without content before every step but the first: "Let me continue with the next step."."""
    if len(solution.steps) < 2:
        return None
    steps: list[Step] = [solution.steps[0]]
    for step in solution.steps[1:]:
        steps += [Step(text=rng.choice(_FILLERS)), step]
    return changed(solution, f"{len(solution.steps) - 1} steps without content added", steps=steps)


def cut_steps(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Every step of several sentences is cut in two at a sentence border; no word is added."""
    steps: list[Step] = []
    for step in solution.steps:
        parts = sentences(step.text)
        if len(parts) < 2 or "```" in step.text:
            steps.append(step)
            continue
        at = rng.randrange(1, len(parts))
        steps += [Step(text=" ".join(parts[:at])), bare(step, " ".join(parts[at:]))]
    note = f"{len(solution.steps)} steps cut into {len(steps)}"
    return changed(solution, note, steps=steps) if len(steps) > len(solution.steps) else None


def merged_steps(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Neighbouring steps are joined two by two; a step that the world answered ends its pair."""
    gap = rng.choice(("\n", "\n\n", " "))
    steps: list[Step] = []
    index = 0
    while index < len(solution.steps):
        step = solution.steps[index]
        if index + 1 < len(solution.steps) and not step.observation:
            following = solution.steps[index + 1]
            steps.append(bare(following, step.text + gap + following.text))
            index += 2
        else:
            steps.append(step)
            index += 1
    note = f"{len(solution.steps)} steps merged into {len(steps)}"
    return changed(solution, note, steps=steps) if len(steps) < len(solution.steps) else None


def self_praise(solution: Solution, rng: random.Random) -> Perturbed | None:
    """A last step that praises the solution: "I have checked every step above, and each of them is right."."""
    return changed(
        solution, "a last step of praise added", steps=[*solution.steps, Step(text=rng.choice(_PRAISE))]
    )
