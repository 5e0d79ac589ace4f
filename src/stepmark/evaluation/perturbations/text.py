"""What perturbations share: their register, the record of a change, and careful readings of a step's text."""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from itertools import pairwise
from typing import TypeVar

from stepmark.data.steps.lines import Span, outside, protected_spans, sentence_cuts
from stepmark.errors import UsageError
from stepmark.records import Solution, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Perturbed:
    """A solution after one change."""

    solution: Solution
    """The changed copy. Its steps are ready-made: layout between steps and offsets are not kept."""
    note: str
    """What was changed, in a few words for a reader: steps are counted from 1."""
    broken_step: int | None = None
    """0-based step of the copy that the change made wrong (the same step of the original was not touched by it);
    None when the change has no such place."""
    proven: bool = False
    """Whether computation shows that `broken_step` is false now and was true before. Never set without it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Perturbation:
    """One way to change a solution."""

    name: str
    """As in `--only` and in tables."""
    keeps_meaning: bool
    """True: the score must not rise. False: it must fall."""
    summary: str
    """What it does, in one line."""
    source: str
    """Who studied it, or what it is nearest to."""
    change: Callable[..., Perturbed | None]
    """A function of a solution and a random generator; one with a third parameter takes the solution of another problem."""

    @property
    def needs_donor(self) -> bool:
        """Whether `apply` needs the solution of another problem."""
        return len(signature(self.change).parameters) == 3

    def apply(
        self, solution: Solution, rng: random.Random, *, donor: Solution | None = None
    ) -> Perturbed | None:
        """The changed solution; None where the change does not apply.

        Raises:
            UsageError: no donor, or one of the same problem, where a donor is needed.
        """
        if not self.needs_donor:
            return self.change(solution, rng)
        if donor is None or donor.problem.text == solution.problem.text:
            raise UsageError(f"{self.name} needs a donor: a solution of another problem")
        return self.change(solution, rng, donor)


PERTURBATIONS: dict[str, Perturbation] = {}
"""Every perturbation by name: those that keep the meaning, then those that break it."""

Change = TypeVar("Change", bound=Callable[..., "Perturbed | None"])


def _registered(source: str, *, keeps: bool) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        name = change.__name__.replace("_", "-")
        line = (change.__doc__ or "").splitlines()[0].removesuffix(".")
        summary = line[0].lower() + line[1:]
        PERTURBATIONS[name] = Perturbation(
            name=name, keeps_meaning=keeps, summary=summary, source=source, change=change
        )
        return change

    return register


def keeps_meaning(source: str) -> Callable[[Change], Change]:
    """Register a change after which a right step is still right: its name and the first line of its docstring are shown."""
    return _registered(source, keeps=True)


def breaks_meaning(source: str) -> Callable[[Change], Change]:
    """Register a change after which a good solution is good no longer."""
    return _registered(source, keeps=False)


def changed(
    original: Solution,
    note: str,
    *,
    steps: Sequence[Step] | None = None,
    question: str | None = None,
    broken_step: int | None = None,
    proven: bool = False,
) -> Perturbed | None:
    """A changed copy; None if it reads as the original, so that no perturbation is silently nothing."""
    problem = original.problem if question is None else replace(original.problem, text=question)
    new = tuple(bare(step) for step in (original.steps if steps is None else steps))
    if (problem.text, tuple(step.text for step in new)) == (original.problem.text, original.texts):
        return None
    return Perturbed(
        solution=replace(original, problem=problem, steps=new, split=None),
        note=note,
        broken_step=broken_step,
        proven=proven,
    )


def bare(step: Step, text: str | None = None) -> Step:
    """The step without layout and offset, which no longer hold in a changed solution; its observation stays."""
    return Step(text=step.text if text is None else text, observation=step.observation, speaker=step.speaker)


_OPENING = re.compile(
    r"""\s*(?:[-*+•][ \t]+|\#{1,6}[ \t]+|>[ \t]?)?
        (?:(?:\*\*|__)?(?:step|part|case)[ \t]*\d{1,3}(?:(?:\*\*|__)?[ \t]*[:.)\-–—](?:\*\*|__)?|\*\*|__)[ \t]*
          |\(?\d{1,3}[.)][ \t]+)?""",
    re.VERBOSE | re.IGNORECASE,
)


def opening(text: str) -> int:
    """How many characters of a step are its label: a bullet, a heading's marks, "Step 3:", "2."."""
    match = _OPENING.match(text)
    assert match is not None  # every part is optional
    return match.end() if match.end() < len(text) else 0


_LABEL = re.compile(r"\s*(?:[-*+•]|\#{1,6}|>)?\s*(?:\*\*|__)?\s*(?:(?i:step)\b|\(?\d{1,3}[.)]\s)")


def labelled(text: str) -> bool:
    """Whether a step begins with a number of its own: "Step 3", "3.", "(3)"."""
    return _LABEL.match(text) is not None


_OPENERS = (
    "a an the this that these those there it its he she we i you they his her our their each every both all "
    "since as if when because while after before in on at by for from with to of"
)
_CONTINUES = frozenset(_OPENERS.split())
_FIRST = re.compile(r"([A-Z][a-z]*)(?=[ ,])")


def continued(text: str) -> str | None:
    """The text as it reads after "Clearly, ": its first letter small; None if that might not be English.

    Names and formulas must keep their letters and an imperative ("Calculate …") does not continue a sentence, so
    only well-known openers are taken. "I" stays.
    """
    match = _FIRST.match(text)
    if match is None or match[1].lower() not in _CONTINUES:
        return None
    # "A + B = 12", "A is the area": there A is a name.
    if match[1] == "A" and re.match(r"A (?:[^a-z]|is\b|and\b|has\b|to\b|[a-z]\b)", text):
        return None
    return text if match[1] == "I" else text[0].lower() + text[1:]


def sentences(text: str) -> list[str]:
    """The sentences of a step; none is blank, and no border lies inside a formula or a code fence."""
    cuts = [0, *outside(sentence_cuts(text), protected_spans(text)), len(text)]
    pieces: list[str] = []
    for start, end in pairwise(cuts):
        if end > start:
            piece = text[start:end]
            if pieces and not (piece.strip() and pieces[-1].strip()):
                pieces[-1] += piece
            else:
                pieces.append(piece)
    return [piece.strip() for piece in pieces if piece.strip()]


# --- numbers --------------------------------------------------------------------------------------------------

NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
"""A number as people write it: 7, 14,000, 3.50, .5; no sign."""

_FREE_NUMBER = re.compile(
    rf"""(?<![\w\\.,]) (?<![0-9][:/]) (?P<number>{NUMBER})
         (?! [0-9_:] | [.,][0-9] | (?:st|nd|rd|th)\b | \{{,\}} | \\[,!] | \s?(?:\\)?(?:em|ex|pt|mu)\b )""",
    re.VERBOSE,
)
_NAMES_A_NUMBER = re.compile(
    r"(?:\b(?:steps?|cases?|parts?|equations?|eqs?|figures?|fig|options?|methods?|theorems?|lemmas?|problem|question"
    r"|examples?|lines?|rows?|columns?|sections?|chapters?|items?|inequality|condition|statement)\.?\s*\(?"
    r"|\\(?:tag|label|ref|eqref|[hv]space\*?|kern|color|text|mathrm|operatorname|begin|end)\s*\{[^{}]*"
    r"|\\\\\[|\{,\}|\\[,!]+)\Z",
    re.IGNORECASE,
)


def numbers(text: str) -> Iterator[re.Match[str]]:
    r"""The numbers of a step that are amounts: group "number" of each match.

    Left out: digits of a name (x1, x_2, Step 2, equation (3), 3rd, 12:30, ``\frac12``), the numbers of a list,
    lengths of typesetting, one group of a number whose thousands are set apart (``14{,}000``), and numbers with
    zeros in front (codes).
    """
    start = opening(text)
    for match in _FREE_NUMBER.finditer(text, start):
        digits = match["number"]
        if len(digits) > 1 and digits[0] == "0" and digits[1] != ".":
            continue
        before = text[max(0, match.start() - 40) : match.start()]
        if (
            text[match.end() : match.end() + 1] == ")"
            and re.search(r"(?:^|\s)\(\Z", before)
            and len(digits) < 3
        ):
            continue  # "from (1) and (2)", "(1) First": a name; f(1) and 3(4) are not
        if _NAMES_A_NUMBER.search(before):
            continue
        if re.search(r"(?:^|\n)\s*\Z", before) and re.match(r"[.)]\s", text[match.end() : match.end() + 2]):
            continue
        yield match


def inside(place: int, spans: Sequence[Span]) -> bool:
    """Whether a place lies in one of the sorted spans."""
    index = bisect_right(spans, place, key=lambda span: span[0]) - 1
    return index >= 0 and spans[index][0] <= place < spans[index][1]


_BOXED = re.compile(r"\\boxed\s*\{")
_ANSWER_IS = re.compile(
    r"(?:\banswer\b[^.\n]{0,40}?(?:\bis\b|=|:)|####)\s*:?\s*(?P<answer>[^\n]+)", re.IGNORECASE
)


def says_answer(text: str) -> bool:
    r"""Whether a text states a final answer in words or marks: ``\boxed``, "the answer is", "####"."""
    return bool(_BOXED.search(text) or _ANSWER_IS.search(text))


def final_answer(text: str) -> str | None:
    r"""The answer that a last step states: its last ``\boxed{…}``, what follows "answer is", else its last number.

    None when it has none of these. As written, without the box and without a final stop.
    """
    boxes = list(_BOXED.finditer(text))
    if boxes:
        result = _braced(text, boxes[-1].end())
        if result is not None and result.strip():
            return result.strip()
    said = _ANSWER_IS.search(text)
    if said is not None:
        first = sentences(said["answer"])
        result = first[0].strip().strip("*").rstrip(".").strip() if first else ""
        if result and len(result) <= 80:
            return result
    last = list(numbers(text))
    return last[-1]["number"] if last else None


def _braced(text: str, start: int) -> str | None:
    depth = 1
    for index in range(start, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return text[start:index]
    return None
