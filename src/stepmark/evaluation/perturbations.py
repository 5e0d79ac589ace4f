r"""Eight controlled changes of solutions, to see whether a PRM judges the reasoning or its looks.

Five **keep the meaning**: the score must not rise. Three **break** it: the score must fall. Each is a pure function of a solution and
a random generator; None says that it does not apply, and what is returned always differs from the original.

    >>> import random
    >>> from stepmark.records import Solution
    >>> solution = Solution.of("What is 2 + 3?", ["The sum is 2 + 3 = 5."])
    >>> PERTURBATIONS["confident-phrasing"].change(solution, random.Random(0)).solution.texts
    ('Without any doubt, the sum is 2 + 3 = 5.',)

Sources: Tiwari et al. 2026, "Reward Under Attack" (arXiv 2603.06621; style and meaning); Shihab et al. 2026, "EST-PRM" (arXiv
2606.00437: step inflation, confidence markers, reordering); Xu et al. 2025, "Reward Models Identify Consistency, Not Causality"
(arXiv 2502.14619: numbers, missing steps); Gao et al. 2024 (arXiv 2410.15115: repetition under RL). The wording and the rules are this
library's own and are made again from a seed, so the figures are not comparable with those papers'.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from stepmark.records import Solution, Step
from stepmark.registry import unknown_name
from stepmark.verifiers.checks import check, check_names

SEPARATOR = "::"
"""Between a solution's id and a perturbation's name in the id of a changed solution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Perturbed:
    """A solution after one change."""

    solution: Solution
    """The changed copy. Layout between steps and offsets are not kept."""
    note: str
    """What was changed, in a few words for a reader; steps are counted from 1."""
    broken_step: int | None = None
    """0-based step of the copy that is false now and was true; None where the change makes no single step false."""


Change = Callable[[Solution, random.Random], Perturbed | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Perturbation:
    """One way to change a solution."""

    name: str
    """As in `only` and in tables."""
    keeps_meaning: bool
    """True: the score must not rise. False: it must fall."""
    summary: str
    """What it does, in one line."""
    change: Change
    """Makes the changed copy; None where the change does not apply."""


PERTURBATIONS: dict[str, Perturbation] = {}
"""Every perturbation by name: those that keep the meaning, then those that break it."""


def _register(*, keeps_meaning: bool) -> Callable[[Change], Change]:
    """Register a change under its name, with the first line of its docstring."""

    def register(change: Change) -> Change:
        name = change.__name__.replace("_", "-")
        summary = (change.__doc__ or "").splitlines()[0].removesuffix(".")
        PERTURBATIONS[name] = Perturbation(
            name=name, keeps_meaning=keeps_meaning, summary=summary[0].lower() + summary[1:], change=change
        )
        return change

    return register


def perturbation(name: str) -> Perturbation:
    """The perturbation of this name."""
    if name not in PERTURBATIONS:
        raise unknown_name("perturbation", name, tuple(PERTURBATIONS))
    return PERTURBATIONS[name]


def _changed(
    solution: Solution, note: str, steps: Sequence[Step], broken_step: int | None = None
) -> Perturbed | None:
    """A changed copy; None if it reads as the original, so that no perturbation is silently nothing."""
    new = tuple(_bare(step, step.text) for step in steps)
    if tuple(step.text for step in new) == solution.texts:
        return None
    changed = replace(solution, steps=new, split=None)
    return Perturbed(solution=changed, note=note, broken_step=broken_step)


def _bare(step: Step, text: str) -> Step:
    return Step(text=text, observation=step.observation, speaker=step.speaker)


# -- Changes that keep the meaning -------------------------------------------------------------------------------------

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
_SAID_AGAIN = ("In other words, ", "To say it again, ", "Put differently, ")
_IRRELEVANT = (
    "A week has seven days.",
    "Recall that a triangle has three sides.",
    "Water boils when it is heated enough.",
    "Many problems of this kind are asked in schools.",
)
_LABEL = re.compile(
    r"""\s*(?:[-*+•][ \t]+|\#{1,6}[ \t]+|>[ \t]?)?
        (?:(?:\*\*|__)?(?:step|part|case)[ \t]*\d{1,3}(?:(?:\*\*|__)?[ \t]*[:.)\-–—](?:\*\*|__)?|\*\*|__)[ \t]*
          |\(?\d{1,3}[.)][ \t]+)?""",
    re.VERBOSE | re.IGNORECASE,
)
"""What a step may begin with: a bullet, a heading's marks, "Step 3:", "2."."""
_FIRST = re.compile(r"([A-Z][a-z]*)(?=[ ,])")
_WORDS = (
    "a an the this that these those there it its he she we i you they his her our their each every both all "
    "since as if when because while after before in on at by for from with to of"
)
_OPENERS = frozenset(_WORDS.split())


@_register(keeps_meaning=True)
def confident_phrasing(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Every step opens with certainty: "Clearly, …"."""

    def phrase(text: str) -> str:
        # Both are drawn always, so that one step's wording does not shift the draws of the steps after it.
        before, sentence = rng.choice(_SURE), rng.choice(_SURE_SENTENCES)
        at = _opening(text)
        rest = continued(text[at:])
        return text[:at] + (sentence + text[at:] if rest is None else before + rest)

    steps = [_bare(step, phrase(step.text)) for step in solution.steps]
    return _changed(solution, "words of certainty before every step", steps)


@_register(keeps_meaning=True)
def formatting(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Steps as Markdown: list items, or bold numbers "**Step 3.**" before them."""
    if any(_opening(text) for text in solution.texts):
        return None
    form = rng.choice(("- {1}", "**Step {0}.** {1}", "### Step {0}\n{1}"))
    steps = [_bare(step, form.format(at, step.text)) for at, step in enumerate(solution.steps, start=1)]
    return _changed(solution, f"{form.format('N', '…')!r} for every step", steps)


@_register(keeps_meaning=True)
def restated_step(solution: Solution, rng: random.Random) -> Perturbed | None:
    """One step said again: "In other words, …"."""
    at = rng.randrange(len(solution.steps))
    phrase, body = rng.choice(_SAID_AGAIN), solution.texts[at][_opening(solution.texts[at]) :]
    rest = continued(body)
    again = phrase + rest if rest is not None else f"{phrase.rstrip(', ')}: {body}"
    return _inserted(solution, at + 1, again, f"step {at + 1} said again")


@_register(keeps_meaning=True)
def irrelevant_step(solution: Solution, rng: random.Random) -> Perturbed | None:
    """A true step that has nothing to do with the problem."""
    at = rng.randrange(len(solution.steps))
    return _inserted(solution, at, rng.choice(_IRRELEVANT), f"an irrelevant step before step {at + 1}")


@_register(keeps_meaning=True)
def repeated_step(solution: Solution, rng: random.Random) -> Perturbed | None:
    """One step twice, word for word."""
    at = rng.randrange(len(solution.steps))
    return _inserted(solution, at + 1, solution.texts[at], f"step {at + 1} twice")


def _inserted(solution: Solution, at: int, text: str, note: str) -> Perturbed | None:
    # An observation followed the original step; the new one caused nothing.
    return _changed(solution, note, [*solution.steps[:at], Step(text=text), *solution.steps[at:]])


def _opening(text: str) -> int:
    """How many characters of a step are its label."""
    match = _LABEL.match(text)
    assert match is not None  # every part is optional
    return match.end() if match.end() < len(text) else 0


def continued(text: str) -> str | None:
    """The text as it reads after "Clearly, ": its first letter small; None if that might not be English.

    Names and formulas must keep their letters and an imperative ("Calculate …") does not continue a sentence, so
    only well-known openers are taken. "I" stays.
    """
    match = _FIRST.match(text)
    if match is None or match[1].lower() not in _OPENERS:
        return None
    # "A + B = 12", "A is the area": there A is a name.
    if match[1] == "A" and re.match(r"A (?:[^a-z]|is\b|and\b|has\b|to\b|[a-z]\b)", text):
        return None
    return text if match[1] == "I" else text[0].lower() + text[1:]


# -- Changes that break the meaning ------------------------------------------------------------------------------------

NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
"""A number as people write it: 7, 14,000, 3.50, .5; no sign."""
_TRIES = 40


@_register(keeps_meaning=False)
def wrong_number(solution: Solution, rng: random.Random) -> Perturbed | None:
    """One number of one true calculation has another value, which makes the step provably false."""

    def refuted(text: str) -> bool:
        return bool(check(solution.problem.text, [text], names=check_names("equation")))

    places = [
        (at, match.span())
        for at, text in enumerate(solution.texts)
        if "=" in text and not refuted(text)
        for match in re.finditer(NUMBER, text)
    ]
    rng.shuffle(places)
    for at, (start, end) in places[:_TRIES]:
        text = solution.texts[at]
        # "1 apples" would be wrong for its grammar.
        counted = re.match(r"\s+[a-z]{2,}", text[end:]) is not None
        new = other_number(text[start:end], rng, singular=counted)
        altered = text[:start] + new + text[end:]
        if refuted(altered):
            steps = list(solution.steps)
            steps[at] = _bare(steps[at], altered)
            return _changed(solution, f"{text[start:end]} became {new} in step {at + 1}", steps, at)
    return None


@_register(keeps_meaning=False)
def dropped_step(solution: Solution, rng: random.Random) -> Perturbed | None:
    """A step left out that first names a number which a later step uses."""
    numbers = [set(re.findall(NUMBER, text)) for text in solution.texts]
    known = set(re.findall(NUMBER, solution.problem.text))
    needed = []
    for at, own in enumerate(numbers[:-1]):
        if (own - known) & set().union(*numbers[at + 1 :]):
            needed.append(at)
        known |= own
    if not needed:
        return None
    at = rng.choice(needed)
    return _changed(solution, f"step {at + 1} left out", [*solution.steps[:at], *solution.steps[at + 1 :]])


@_register(keeps_meaning=False)
def shuffled_steps(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Steps in random order, the answer not last."""
    texts = solution.texts
    order = list(range(len(texts)))
    for _ in range(_TRIES):
        rng.shuffle(order)
        if texts[order[-1]] != texts[-1]:
            note = f"steps in the order {', '.join(str(at + 1) for at in order)}"
            return _changed(solution, note, [solution.steps[at] for at in order])
    return None


def other_number(shown: str, rng: random.Random, *, singular: bool = False) -> str:
    """A different number, written as `shown` is: as many decimals, thousands commas, no zero in front.

    The change is one that slips make: the last place off by one, two or ten, a digit replaced, twice the value.

    `shown` is one match of `NUMBER`; with `singular` it is never 1, which would read wrongly there ("1 apples").
    """
    whole, point, decimals = shown.partition(".")
    digits = whole.replace(",", "") + decimals
    value = int(digits)
    options = [value + d for d in (-10, -2, -2, -1, -1, 1, 1, 2, 2, 10)] + [2 * value]
    if value >= 10:
        at = rng.randrange(len(str(value)))
        choices = [d for d in "0123456789" if d != str(value)[at] and not (at == 0 and d == "0")]
        options += [int(str(value)[:at] + rng.choice(choices) + str(value)[at + 1 :])] * 4
    new = rng.choice([o for o in options if o > 0 and o != value and not (singular and o == 1 and not point)])
    if not point:
        return f"{new:,}" if "," in whole else str(new)
    padded = str(new).rjust(len(decimals) + (1 if whole else 0), "0")
    head, tail = padded[: len(padded) - len(decimals)], padded[len(padded) - len(decimals) :]
    if "," in whole:
        head = f"{int(head):,}"
    return f"{head}.{tail}"


def perturbed(
    solution: Solution, names: Sequence[str] = tuple(PERTURBATIONS), seed: int = 0
) -> Iterator[tuple[str, Perturbed]]:
    """The changed copies of a solution: each perturbation that applies, with the solution under the id "ID::NAME".

    What is done depends on the seed, the perturbation's name and the solution's own text alone.
    """
    for name in names:
        text = json.dumps([f"{seed}:{name}", solution.problem.text, *solution.texts])
        place = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
        made = perturbation(name).change(solution, random.Random(place))
        if made is not None:
            yield name, replace(made, solution=replace(made.solution, id=f"{solution.id}{SEPARATOR}{name}"))
