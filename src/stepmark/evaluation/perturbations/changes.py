r"""The changes themselves: those that keep the meaning, so that no score should rise, then those that break it, so that it should fall.

Each is a pure function of a solution, a random generator and, for two of them, a donor: the solution of another
problem. None says that it does not apply.

A calculation is `EXPRESSION = NUMBER` of numbers, brackets and + - * / (also ``×``, ``÷``, ``\times``, ``\cdot``,
``\div``, ``\frac{a}{b}`` and money signs) that stands alone: not a part of a longer formula. Only those that are
exactly true are found, so that altering one of their numbers or operators makes a statement that is surely false.
Nothing is executed: `labels.exact.compute` parses and computes in exact fractions.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from stepmark.data.steps.lines import protected_spans
from stepmark.evaluation.perturbations.text import (
    NUMBER,
    Perturbed,
    bare,
    breaks_meaning,
    changed,
    continued,
    final_answer,
    inside,
    keeps_meaning,
    labelled,
    numbers,
    opening,
    says_answer,
    sentences,
)
from stepmark.labels.exact import compute
from stepmark.records import Solution, Step
from stepmark.show.text import amount

_STYLE = "ours; cf. changes of style in Reward Under Attack, arXiv 2603.06621"
_EST = "EST-PRM, arXiv 2606.00437"
_NOT_EST = "ours; the opposite of a change of EST-PRM, arXiv 2606.00437"
_REPEATED = "ours; cf. repetition under RL in Gao et al. 2024, arXiv 2410.15115"
_OPENERS = "ours; cf. One Token to Fool, arXiv 2507.08794"

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


@keeps_meaning(_EST)
def confident_phrasing(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Every step opens with certainty: "Clearly, …"."""
    return _phrased(solution, rng, _SURE, _SURE_SENTENCES, "certainty")


@keeps_meaning(_NOT_EST)
def hedged_phrasing(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Every step opens with doubt: "I think that …"."""
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


@keeps_meaning(_STYLE)
def bold_numbers(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Bare numbers in Markdown bold."""
    return _each(solution, lambda text: _wrapped(text, "**", "**"), "numbers in bold")


@keeps_meaning(_STYLE)
def bulleted(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Steps as Markdown list items."""

    def item(text: str) -> str:
        return text if re.match(r"\s*(?:[-*+•#>|]|\d{1,3}[.)]|```)", text) else f"- {text}"

    return _each(solution, item, "steps as list items")


@keeps_meaning(_STYLE)
def latex_numbers(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Bare numbers as LaTeX formulas."""
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


@keeps_meaning(_STYLE)
def plain_numbers(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Lone numbers taken out of their LaTeX formulas."""

    def strip(text: str) -> str:
        spans = set(protected_spans(text))
        return _LONE_FORMULA.sub(lambda m: (m[1] or m[2]) if m.span() in spans else m[0], text)

    return _each(solution, strip, "lone numbers out of their LaTeX formulas")


@keeps_meaning(_STYLE)
def spaced(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Other line breaks and spaces between sentences."""
    gap = rng.choice(("\n", "\n\n", "  "))

    def spread(text: str) -> str:
        # A fence or a table is layout with a meaning.
        return text if "```" in text or "\n|" in text else gap.join(sentences(text))

    return _each(solution, spread, f"{gap!r} between sentences")


@keeps_meaning(_STYLE)
def step_prefixes(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Numbered steps: "Step 3: " before the third step."""
    if any(labelled(text) for text in solution.texts):
        return None
    form = rng.choice(("Step {}: ", "**Step {}:** ", "Step {}. "))
    steps = [bare(step, form.format(i) + step.text) for i, step in enumerate(solution.steps, start=1)]
    return changed(solution, f"{form.format('N')!r} before every step", steps=steps)


@keeps_meaning(_REPEATED)
def restated_step(solution: Solution, rng: random.Random) -> Perturbed | None:
    """One step said again: "In other words, …"."""
    at = rng.randrange(len(solution.steps))
    step, phrase = solution.steps[at], rng.choice(_SAID_AGAIN)
    body = step.text[opening(step.text) :]
    rest = continued(body)
    again = phrase + rest if rest is not None else f"{phrase.rstrip(', ')}: {body}"
    # The observation followed the original; the restatement caused nothing.
    steps = [*solution.steps[:at], step, Step(text=again), *solution.steps[at + 1 :]]
    return changed(solution, f"step {at + 1} said again", steps=steps)


@keeps_meaning(_EST)
def filler_steps(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Steps without content put in between."""
    if len(solution.steps) < 2:
        return None
    steps: list[Step] = [solution.steps[0]]
    for step in solution.steps[1:]:
        steps += [Step(text=rng.choice(_FILLERS)), step]
    return changed(solution, f"{amount(len(solution.steps) - 1, 'step')} without content added", steps=steps)


@keeps_meaning(_EST)
def cut_steps(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Steps cut in two at a sentence border."""
    steps: list[Step] = []
    for step in solution.steps:
        parts = sentences(step.text)
        if len(parts) < 2 or "```" in step.text:
            steps.append(step)
            continue
        at = rng.randrange(1, len(parts))
        steps += [Step(text=" ".join(parts[:at])), bare(step, " ".join(parts[at:]))]
    note = f"{amount(len(solution.steps), 'step')} cut into {len(steps)}"
    return changed(solution, note, steps=steps) if len(steps) > len(solution.steps) else None


@keeps_meaning(_NOT_EST)
def merged_steps(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Neighbouring steps joined two by two."""
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
    note = f"{amount(len(solution.steps), 'step')} merged into {len(steps)}"
    return changed(solution, note, steps=steps) if len(steps) < len(solution.steps) else None


@keeps_meaning(_OPENERS)
def self_praise(solution: Solution, rng: random.Random) -> Perturbed | None:
    """A last step that praises the solution."""
    return changed(
        solution, "a last step of praise added", steps=[*solution.steps, Step(text=rng.choice(_PRAISE))]
    )


# -- Changes that break the meaning ------------------------------------------------------------------------------------

_QUESTION = "Reward Under Attack, arXiv 2603.06621"
_CONSISTENCY = "Xu et al. 2025, arXiv 2502.14619"
_FLOW = "ours; cf. disrupted reasoning in Xu et al. 2025, arXiv 2502.14619"
_PURE = "ours; cf. the cases of hacking in PURE, arXiv 2504.15275"

_FRAC = r"\\[dt]?frac\s*\{\s*[0-9.,]+\s*\}\s*\{\s*[0-9.,]+\s*\}"
_OPERATOR = r"[-+*/×÷−]|\\times\b|\\cdot\b|\\div\b|(?<=[0-9)])\s?x\s?(?=[0-9($])"
_PIECE = rf"(?:{_FRAC}|\\?\$(?=\s*[0-9.])|{NUMBER}|{_OPERATOR}|(?<!\\)[()]|[ \t])"
# A look-ahead whose match is taken whole, and not `++`, which CPython before 3.11.5 gets wrong on groups (gh-106052).
_CALCULATION = re.compile(rf"(?=(?P<left>{_PIECE}+))(?P=left)=[ \t]*(?:\\?\$)?(?P<right>-?(?:{NUMBER}))")
# What may not follow: the calculation would go on, or the number have a unit that changes its value.
_GOES_ON = re.compile(
    r"\s*(?:[-+*/×÷−^_(!]\s*[\w\\($]|\\(?:times|cdot|div|frac|dfrac|pi|sqrt)\b|\\?%|[.,]?[0-9]|[a-zA-Z]\b)"
)
_GLUED = re.compile(
    r"(?:[\w)}\]^_\\.,]|[-+*/×÷−^]\s*|\\(?:times|cdot|div|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|sqrt)\s*)\Z"
)
_COMPUTES = re.compile(rf"[0-9)}}]\s*(?:{_OPERATOR})|\\[dt]?frac")
OPERATORS = re.compile(_OPERATOR)
"""The operators that a calculation may have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calculation:
    """A true calculation in a text."""

    start: int
    """Character offset of its first character."""
    end: int
    """Offset after its last character."""
    equals: int
    """Offset of its "="."""


def calculations(text: str) -> Iterator[Calculation]:
    """The calculations of a text that can be computed and are true."""
    at = 0
    while match := _CALCULATION.search(text, at):
        # In "a = 3 + 4 = 7 + 1 = 8" what is one side of an equation begins the next.
        at = match.end("left") + 1
        start, equals = match.span("left")
        left = match["left"].lstrip(" \t")
        while left.startswith("(") and left.count("(") > left.count(")"):
            left = left[1:].lstrip(" \t")  # "(3 + 4 = 7)": the bracket holds the equation
        start = equals - len(left)
        if _GOES_ON.match(text, match.end()) or _GLUED.search(text[:start]):
            continue
        if _COMPUTES.search(left) and holds(text[start : match.end()]):
            at = match.end()
            yield Calculation(start=start, end=match.end(), equals=equals)


def holds(calculation: str) -> bool | None:
    """Whether `EXPRESSION = NUMBER` is exactly true; None if it cannot be computed."""
    left, _, right = calculation.partition("=")
    values = [compute(_in_signs(side)) for side in (left, right)]
    if values[0] is None or values[1] is None:
        return None
    return values[0] == values[1]


def _in_signs(side: str) -> str:
    side = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"(\1)/(\2)", side)
    side = re.sub(r"\\times\b|\\cdot\b|×|x", "*", side)
    side = re.sub(r"\\div\b|÷", "/", side)
    return side.replace("−", "-").replace("\\$", "").replace("$", "").strip()


def other_number(shown: str, rng: random.Random, *, singular: bool = False) -> str:
    """A different number, written as `shown` is: as many decimals, thousands commas, no zero in front.

    The change is one that slips make: the last place off by one, two or ten, a digit replaced, twice the value.

    Args:
        shown: one match of `NUMBER`.
        rng: chooses the change.
        singular: whether 1 would read wrongly there ("1 apples"); then it is not chosen.
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


def value_of(shown: str) -> Fraction:
    """The value of one match of `NUMBER`."""
    return Fraction(shown.replace(",", ""))


_OPPOSITE = {
    "+": "-",
    "-": "+",
    "−": "+",
    "*": "/",
    "/": "*",
    "×": "÷",
    "÷": "×",
    "x": "/",
    "\\times": "\\div",
    "\\cdot": "\\div",
    "\\div": "\\times",
}


def opposite(operator: str) -> str:
    """The opposite operator in the same notation, its spacing kept: + for -, ÷ for ×."""
    sign = operator.strip()
    return operator.replace(sign, _OPPOSITE[sign])


NO_QUESTION = "(The question is not shown.)"
"""What stands in the place of a question that was removed: an empty one is refused by every PRM."""

_TALK = (
    "Let me think about this problem carefully.",
    "Thought process:",
    "I will work through this step by step.",
    "Let me consider what is asked and what is given.",
    "This is an interesting problem, so let us look at it closely.",
    "We are making good progress.",
    "Having thought about it thoroughly, I am confident in the solution.",
)
_TRIES = 20


@breaks_meaning(_CONSISTENCY)
def question_removed(solution: Solution, rng: random.Random) -> Perturbed | None:
    """A placeholder for the question."""
    return changed(solution, "the question removed", question=NO_QUESTION)


@breaks_meaning(_CONSISTENCY)
def question_shuffled(solution: Solution, rng: random.Random) -> Perturbed | None:
    """The question's words in random order."""
    words = solution.problem.text.split()
    if len(set(words)) < 4:
        return None
    shuffled = _shuffled(words, rng)
    return changed(solution, "the words of the question shuffled", question=" ".join(shuffled))


def _shuffled(words: list[str], rng: random.Random) -> list[str]:
    shuffled = list(words)
    for _ in range(_TRIES):
        rng.shuffle(shuffled)
        if shuffled != words:
            break
    return shuffled


@breaks_meaning(_QUESTION)
def question_swapped(solution: Solution, rng: random.Random, donor: Solution) -> Perturbed | None:
    """Another problem's question."""
    return changed(solution, "the question of another problem", question=donor.problem.text)


@breaks_meaning(_FLOW)
def steps_shuffled(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Steps in random order, the answer not last."""
    texts = solution.texts
    if len(set(texts)) < 2:
        return None
    order = list(range(len(texts)))
    for _ in range(_TRIES):
        rng.shuffle(order)
        if texts[order[-1]] != texts[-1]:
            break
    else:
        return None
    steps = [solution.steps[i] for i in order]
    return changed(solution, f"steps in the order {', '.join(str(i + 1) for i in order)}", steps=steps)


@breaks_meaning(_CONSISTENCY)
def numbers_altered(solution: Solution, rng: random.Random) -> Perturbed | None:
    """One number of one step has another value.

    Calculations that can be computed and are true go first: then the step is proven to be wrong. Without any, any
    number that is an amount is altered, and nothing is proven.
    """
    places = _calculations(solution)
    if places:
        at, result = rng.choice(places)
        text = solution.texts[at]
        inner = [m.span() for m in re.finditer(NUMBER, text[result.start : result.end])]
        for _ in range(_TRIES):
            start, end = rng.choice(inner)
            start, end = start + result.start, end + result.start
            new = other_number(text[start:end], rng, singular=_counted(text, end))
            altered = text[:start] + new + text[end:]
            if holds(altered[result.start : result.end + len(new) - (end - start)]) is False:
                note = f"{text[start:end]} became {new} in a calculation of step {at + 1}"
                return _with(solution, at, altered, note, proven=True)
    amounts = [
        (at, match.span("number"))
        for at, text in enumerate(solution.texts)
        for match in numbers(text)
        if not (match["number"] == "1" and _counted(text, match.end("number")))
    ]
    if not amounts:
        return None
    # A step first, then a number of it: else long steps would be chosen more often.
    at = rng.choice(sorted({step for step, _ in amounts}))
    start, end = rng.choice([span for step, span in amounts if step == at])
    text = solution.texts[at]
    new = other_number(text[start:end], rng, singular=_counted(text, end))
    assert value_of(new) != value_of(text[start:end])
    return _with(
        solution, at, text[:start] + new + text[end:], f"{text[start:end]} became {new} in step {at + 1}"
    )


def _counted(text: str, end: int) -> bool:
    """Whether a noun follows a number, so that "1" and "2" call for different words."""
    return re.match(r"\s+[a-z]{2,}", text[end:]) is not None


def _calculations(solution: Solution) -> list[tuple[int, Calculation]]:
    return [(at, calculation) for at, text in enumerate(solution.texts) for calculation in calculations(text)]


def _with(
    solution: Solution, at: int, text: str, note: str, *, proven: bool = False, broken: bool = True
) -> Perturbed | None:
    steps = list(solution.steps)
    steps[at] = bare(steps[at], text)
    return changed(solution, note, steps=steps, broken_step=at if broken else None, proven=proven)


_OPERAND_BEFORE = r"(?:(?<=[0-9)}])|(?<=[^A-Za-z\\][a-z])|(?<=\s[a-z]))"
_LOOSE = re.compile(
    rf"{_OPERAND_BEFORE}[ ]?(?P<sign>[-+*×÷−]|\\times\b|\\cdot\b|\\div\b)[ ]?"
    r"(?=(?![01](?![0-9.]))(?:[0-9(]|\\(?:sqrt|frac|left)|[a-z](?![A-Za-z])))"
)


@breaks_meaning(_FLOW)
def operator_flipped(solution: Solution, rng: random.Random) -> Perturbed | None:
    """One operator of one step turned into its opposite.

    Calculations that can be computed and are true go first, as in `numbers_altered`; else an operator of a formula.
    """
    flips: list[tuple[int, str, str]] = []
    for at, item in _calculations(solution):
        text = solution.texts[at]
        for match in OPERATORS.finditer(text, item.start, item.equals):
            flipped = text[: match.start()] + opposite(match[0]) + text[match.end() :]
            grown = len(flipped) - len(text)
            if holds(flipped[item.start : item.end + grown]) is False:
                flips.append((at, flipped, match[0].strip()))
    proven = bool(flips)
    if not flips:
        for at, text in enumerate(solution.texts):
            spans = protected_spans(text)
            for match in _LOOSE.finditer(text):
                start, end = match.span("sign")
                if inside(start, spans) and text[start - 1 : start] != "^":
                    flipped = text[:start] + opposite(text[start:end]) + text[end:]
                    flips.append((at, flipped, match["sign"]))
    if not flips:
        return None
    at = rng.choice(sorted({step for step, _, _ in flips}))
    _, text, sign = rng.choice([flip for flip in flips if flip[0] == at])
    return _with(solution, at, text, f"{sign} became {opposite(sign)} in step {at + 1}", proven=proven)


@breaks_meaning(_CONSISTENCY)
def truncated(solution: Solution, rng: random.Random) -> Perturbed | None:
    """The last steps removed, no answer reached.

    What stays neither states an answer in words or marks nor has the final answer after an "=" or as its last
    number. Not for solutions in which only an empty beginning would stay.
    """
    answer = final_answer(solution.texts[-1])
    kept = 0
    while kept < len(solution.steps) - 1 and not _reaches(solution.texts[kept], answer):
        kept += 1
    if kept == 0:
        return None
    kept = rng.randint(1, kept)
    gone = len(solution.steps) - kept
    return changed(solution, f"the last {amount(gone, 'step')} removed", steps=solution.steps[:kept])


def _reaches(text: str, answer: str | None) -> bool:
    if says_answer(text):
        return True
    if answer is None:
        return False
    value = answer.strip("$ ").replace("\\$", "")
    if re.search(rf"=\s*(?:\\?\$)?\s*{re.escape(value)}(?![0-9.]*[0-9])", text):
        return True
    amounts = list(numbers(text))
    return bool(amounts) and amounts[-1]["number"] == value


@breaks_meaning(_FLOW)
def irrelevant_solution(solution: Solution, rng: random.Random, donor: Solution) -> Perturbed | None:
    """The steps of another problem's solution."""
    return changed(solution, "the steps of another problem's solution", steps=donor.steps)


@breaks_meaning(_REPEATED)
def repeated_answer(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Every step replaced by the last."""
    last = Step(text=solution.texts[-1])
    return changed(solution, "every step replaced by the last", steps=[last] * len(solution.steps))


@breaks_meaning(_PURE)
def answer_only(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Nothing but "The answer is X."."""
    answer = final_answer(solution.texts[-1])
    if answer is None:
        return None
    text = f"The answer is {answer}."
    if not re.fullmatch(rf"{NUMBER}|[^\\]*", answer):
        text = f"The answer is \\({answer.strip('$')}\\)."
    return changed(solution, "only the answer left", steps=[Step(text=text)])


@breaks_meaning(_PURE)
def empty_talk(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Every step replaced by talk without content."""
    talk: list[str] = []
    while len(talk) < len(solution.steps):
        talk += rng.sample(_TALK, len(_TALK))
    steps = [Step(text=text) for text in talk[: len(solution.steps)]]
    return changed(solution, "every step replaced by talk without content", steps=steps)
