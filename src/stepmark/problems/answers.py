"""Verifiers: is this the right answer? Match, mismatch, or no verdict; never a guess.

`VERIFIERS` has `math` (mathematics in LaTeX or plain text), `number` (one number), `choice` (a letter), `text` (the same words) and `code` (a program
passes its unit tests). All take a whole solution or a bare answer, and say in `Verdict.note` which rule decided.

    >>> with load_verifier("number") as verifier:
    ...     verdict = verifier.verify("So they cost 36 / 2 = 18 dollars. The answer is $18.", "18")
    >>> verdict.outcome, verdict.answer
    ('match', '$18')
"""

from __future__ import annotations

import re
import sys
import time
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeAlias

from stepmark.batching import Answerer, Ready, Verify
from stepmark.catalog import Catalog
from stepmark.errors import UsageError
from stepmark.problems.extraction import find_answer
from stepmark.problems.quantities import LONGEST, Quantity, clean, key, plain, read_quantity, same_quantity
from stepmark.records import Verdict
from stepmark.version import __version__

if TYPE_CHECKING:
    from stepmark.problems.code_sandbox import Isolation

VERIFIERS = Catalog(
    "answer verifier",
    {
        "math": "stepmark.problems.math_answers:MathVerifier",
        "number": "stepmark.problems.answers:NumberVerifier",
        "choice": "stepmark.problems.answers:ChoiceVerifier",
        "text": "stepmark.problems.answers:TextVerifier",
        "code": "stepmark.problems.code:CodeVerifier",
    },
)
"""Ways to compare answers, by name; each is made without arguments."""

_DEARER_THAN_A_WRITE = 0.02
"""Seconds; a durable write of the reply store takes a few thousandths."""


class Verifier(Protocol):
    """Compares answers with a reference. May hold a process: close it, or use it in a `with`."""

    name: str
    """Its name, for `Verdict.verifier` and for the settings written beside an output."""

    def verify(self, answer: str | None, gold: str) -> Verdict:
        """Compare one answer, or the answer that a solution names, with the reference.

        Args:
            answer: a bare answer, or a whole solution (see `bare_answer`); None where there is none, which is `unparsed`.
            gold: the reference, bare or with its solution. The order matters.
        """
        ...

    def verify_many(self, pairs: Iterable[tuple[str | None, str]]) -> list[Verdict]:
        """`verify` for many pairs (answer, gold), in order."""
        ...

    def close(self) -> None:
        """Let go of what it holds; the next `verify` takes it again."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


Percent: TypeAlias = Literal["distinct", "sign"]
VerifierLike: TypeAlias = Verifier | str
"""A verifier, or the name that `load_verifier` takes."""


def load_verifier(
    name: str, *, percent: Percent = "distinct", isolation: Isolation | None = None
) -> Verifier:
    """The verifier of a name in `VERIFIERS`, or of "package.module:Class".

    Args:
        name: its name.
        percent: for `math` and `number`; "sign" takes 10% for 10 too.
        isolation: for `code`, what keeps programs apart from this machine; None: bubblewrap.

    Raises:
        UnknownNameError: no such name.
        UsageError: `percent` or `isolation` for a verifier that does not have it, an isolation that does not work on this machine, or a
            user's class that failed or gives none.
        MissingExtraError: it needs a package that is not installed.
    """
    if percent != "distinct" and name not in {"math", "number"}:
        raise UsageError(f"the verifier {name!r} has no setting for percent signs; math and number have")
    verifier: Verifier
    if percent != "distinct":
        verifier = VERIFIERS.load(name)(percent=percent)
    elif (programs := isolation_of(name, isolation)) is not None:
        verifier = VERIFIERS.load(name)(isolation=programs)
    else:
        verifier = VERIFIERS.make(name, ("name", "verify"), article="an")
    return verifier


@contextmanager
def open_verifier(
    verifier: VerifierLike,
    *,
    percent: Percent = "distinct",
    isolation: Isolation | None = None,
    shown: bool = False,
) -> Iterator[Verifier]:
    """A verifier for a run, as `load_verifier`; one that is loaded here is closed afterwards. `shown` reports on standard error what keeps programs apart."""
    if not isinstance(verifier, str):
        yield verifier
        return
    with load_verifier(verifier, percent=percent, isolation=isolation) as loaded:
        if shown:
            report_isolation(verifier, isolation)
        yield loaded


def isolation_of(verifier: str | None, isolation: Isolation | None = None) -> Isolation | None:
    """What keeps the programs that the verifier `code` runs apart from this machine; None, and no isolation allowed, for other verifiers."""
    if verifier == "code":
        return isolation or "bubblewrap"
    if isolation is not None:
        raise UsageError(
            f"`isolation` {isolation}: only the verifier 'code' runs programs, found {verifier!r}; leave it out"
        )
    return None


def isolation_note(isolation: Isolation) -> str:
    """What a run reports of the isolation of its programs."""
    apart = {
        "bubblewrap": "no network, no files of this machine, no sight of its processes",
        "unsafe": "no sandbox: programs can use the network, and read and change what your user may",
    }
    return f"programs run in isolation {isolation!r}: {apart[isolation]}"


def report_isolation(verifier: VerifierLike | None, isolation: Isolation | None) -> None:
    """Report on standard error what keeps the programs of a verifier apart from this machine, where it runs any."""
    programs = isolation_of(verifier, isolation) if isinstance(verifier, str) else None
    if programs is not None:
        sys.stderr.write(f"{isolation_note(programs)}\n")


def verifier_facts(
    verifier: VerifierLike | None, percent: str, isolation: Isolation | None
) -> dict[str, str | None]:
    """The fields of a verifier in a run's manifest."""
    return {
        "verifier": verifier if isinstance(verifier, str | None) else verifier.name,
        "percent": percent,
        "isolation": isolation_of(verifier, isolation) if isinstance(verifier, str | None) else None,
    }


_LONG = 200


def bare_answer(text: str | None) -> str | None:
    """The answer within a text: the one that `find_answer` finds, or the text itself when it is one short line.

    None where a longer text names no answer: which of its numbers is meant would be a guess.
    """
    if text is None or not text.strip():
        return None
    stated = find_answer(text)
    if stated is not None:
        return stated.text
    text = text.strip()
    return text if len(text) <= _LONG and "\n" not in text else _one_expression(text)


def _one_expression(text: str) -> str | None:
    # A matrix or a long list is a bare answer too, though it may stand on several lines.
    if len(text) > LONGEST or "\n\n" in text or text.count("$") % 2:
        return None
    return (
        text
        if text.startswith(("\\begin{", "$", "\\[", "\\(", "\\left")) and text.endswith(("}", "$", "]", ")"))
        else None
    )


class VerifierBase(ABC):
    """What all verifiers share: finding the answers, the verdict where one is missing, the context manager."""

    name: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"

    def verify(self, answer: str | None, gold: str) -> Verdict:
        """See `Verifier.verify`."""
        # A reference that marks no answer is one, however long.
        bare, reference = bare_answer(answer), bare_answer(gold) or gold.strip() or None
        if reference is None:
            return self._verdict("unparsed", bare, "the reference is blank")
        if bare is None:
            return self._verdict(
                "unparsed", None, "no answer" if answer is None else "the text names no answer"
            )
        if len(bare) > LONGEST or len(reference) > LONGEST:
            return self._verdict("unparsed", None, f"longer than {LONGEST} characters")
        outcome, note = self.compare(reference, bare)
        return self._verdict(outcome, bare, note)

    @abstractmethod
    def compare(self, gold: str, answer: str) -> tuple[Literal["match", "mismatch", "unparsed"], str]:
        """Outcome and note for two bare answers."""

    def _verdict(
        self, outcome: Literal["match", "mismatch", "unparsed"], answer: str | None, note: str
    ) -> Verdict:
        return Verdict(outcome=outcome, verifier=self.name, answer=answer, note=note)

    def verify_many(self, pairs: Iterable[tuple[str | None, str]]) -> list[Verdict]:
        """See `Verifier.verify_many`."""
        return [self.verify(answer, gold) for answer, gold in pairs]

    def close(self) -> None:  # noqa: B027 (most verifiers hold nothing)
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NumberVerifier(VerifierBase):
    """One number against one number, exactly, by `quantities.read_quantity`; anything else is unparsed. With `percent` "sign" 10% is also 10."""

    def __init__(self, *, percent: Literal["distinct", "sign"] = "distinct") -> None:
        if percent not in {"distinct", "sign"}:
            raise UsageError(f"percent: expected 'distinct' or 'sign', found {percent!r}")
        self.name = "number"
        self.percent: Literal["distinct", "sign"] = percent

    def compare(self, gold: str, answer: str) -> tuple[Literal["match", "mismatch", "unparsed"], str]:
        """See `Verifier.verify`; both are bare."""
        left, right = read_quantity(gold), read_quantity(answer)
        within = number_within(answer) if right is None else None
        if left is None or (right is None and within is None):
            return "unparsed", f"the {'reference' if left is None else 'answer'} is not one number"
        number, how = (
            (right, "") if right is not None else (within[0], f"{within[1]}; ") if within else (left, "")
        )
        same, rule = same_quantity(left, number, percent=self.percent)
        return "match" if same else "mismatch", how + rule


_TOKEN = re.compile(
    r"(?<![\w.])-?[$€£¥₹]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?(?:(?:st|nd|rd|th)\b)?(?:\s?%)?"
)
_NEXT = re.compile(r"\s?([A-Za-z./]+(?:\^\d)?)(?:\s([A-Za-z./]+))?(?:\s([A-Za-z./]+))?")
_HEDGED = re.compile(
    r"n't\b|\b(?:not|no|find|calculate|compute|check|first|let|cannot|never|except|between|half|twice|double|triple|dozens?|least|most|(?:more|less|fewer|greater|"
    r"smaller|other) than \W?\d|(?<!in )all|any|every|where|when|such)\b",
    re.I,
)


def number_within(answer: str) -> tuple[Quantity, str] | None:
    """The number of an answer that is more than a number, and the rule by which it was found: the right-hand side of a calculation ("4 * 15 = 60"), or the
    only number of a sentence without a negation or a comparison ("The house cost $90,000.").
    """
    text = plain(clean(answer))
    left, equals, right = text.rpartition("=")
    if equals and re.search(r"\d", left) and not re.search(r"[<>!]\s?$|\\", left):
        number = read_quantity(right)
        return None if number is None else (number, "the right-hand side")
    if (
        re.search(r"[\\=+*^<>_{}]", text)
        or len(re.findall(r"[A-Za-z]{2,}", text)) < 2
        or _HEDGED.search(text)
    ):
        return None
    tokens = list(_TOKEN.finditer(text))
    if len(tokens) != 1 or len(re.findall(r"\d+", text)) != len(re.findall(r"\d+", tokens[0].group())):
        return None
    digits = tokens[0].group().rstrip(",")
    following = _NEXT.match(text, tokens[0].end())
    words = [word.rstrip(".") for word in following.groups() if word] if following else []
    for many in range(len(words), 0, -1):
        quantity = read_quantity(" ".join((digits, *words[:many])))
        if (
            quantity is not None
            and (quantity.unit is not None or quantity.percent or quantity.forms)
            and quantity.words is None
        ):
            return quantity, "the only number of the sentence"
    quantity = read_quantity(digits)
    return None if quantity is None else (quantity, "the only number of the sentence")


_CHOICE = re.compile(
    r"\(?\s?(?:(?:option|choice|answer)\s)?\(?\[?([A-Z])(?:[)\].:](?:\s.*)?|\)?\s?[.]?)", re.I | re.S
)


class ChoiceVerifier(VerifierBase):
    """The letter of a multiple-choice question: "B", "(B)", "B) 12 apples", "Option B"."""

    def __init__(self) -> None:
        self.name = "choice"

    def compare(self, gold: str, answer: str) -> tuple[Literal["match", "mismatch", "unparsed"], str]:
        """See `Verifier.verify`; both are bare."""
        letters = [_CHOICE.fullmatch(plain(clean(text))) for text in (gold, answer)]
        if letters[0] is None or letters[1] is None:
            return "unparsed", f"the {'reference' if letters[0] is None else 'answer'} is not a letter"
        same = letters[0].group(1).upper() == letters[1].group(1).upper()
        return "match" if same else "mismatch", "letters"


class TextVerifier(VerifierBase):
    """The same text, but for case, spacing, mathematics signs and the final full stop. Knows no mathematics."""

    def __init__(self) -> None:
        self.name = "text"

    def compare(self, gold: str, answer: str) -> tuple[Literal["match", "mismatch", "unparsed"], str]:
        """See `Verifier.verify`; both are bare."""
        return "match" if same_words(gold, answer) else "mismatch", "text"


def same_words(left: str, right: str) -> bool:
    """Whether two texts differ only in case, spacing and markup."""
    return (
        unicodedata.normalize("NFC", key(left)).casefold()
        == unicodedata.normalize("NFC", key(right)).casefold()
    )


def answer_groups(answers: Sequence[str | None], verifier: Verifier) -> list[int | None]:
    """Sort the answers of one problem into groups of equal ones, for votes: for each its group, numbered by first appearance from 0.

    An answer joins the first group whose first member it matches, that member as the reference; one without a verdict makes a group of its own. None for
    solutions that name no answer. Answers that differ only in markup are compared once.
    """
    groups: list[int | None] = []
    known: dict[str, int] = {}
    heads: list[str] = []
    for text in answers:
        answer = bare_answer(text)
        if answer is None:
            groups.append(None)
            continue
        canonical = key(answer)
        if canonical not in known:
            joined = next(
                (n for n, head in enumerate(heads) if verifier.verify(answer, head).outcome == "match"), None
            )
            if joined is None:
                heads.append(answer)
                joined = len(heads) - 1
            known[canonical] = joined
        groups.append(known[canonical])
    return groups


def answerers(verifier: Verifier) -> dict[type, Answerer]:
    """What `batching.run` needs to have a verifier answer `Verify`; merge it with a policy's.

    Verdicts are recorded under the verifier's name and this package's version. One that took longer than a durable write is recorded at once, so that a
    kill does not cost it; the others all together.
    """

    def answer(requests: Sequence[Verify], ready: Ready) -> list[Verdict]:
        verdicts = []
        for number, request in enumerate(requests):
            began = time.monotonic()
            verdicts.append(verifier.verify(request.answer, request.gold))
            if time.monotonic() - began > _DEARER_THAN_A_WRITE:
                ready(number, verdicts[-1])
        return verdicts

    return {Verify: Answerer(identity=f"{verifier.name} {__version__}", answer=answer)}
