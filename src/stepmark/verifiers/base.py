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
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeAlias, final

from stepmark.backends import Ready, VerdictRequest, batched
from stepmark.errors import UsageError
from stepmark.records import Verdict
from stepmark.registry import Registry
from stepmark.verifiers.decimals import as_english
from stepmark.verifiers.finder import Answers, FoundAnswer, find_answer, without_thoughts
from stepmark.verifiers.quantities import LONGEST, key
from stepmark.version import __version__

if TYPE_CHECKING:
    from stepmark.verifiers.code_sandbox import Isolation

VERIFIERS = Registry(
    "answer verifier",
    {
        "math": "stepmark.verifiers.math:MathVerifier",
        "number": "stepmark.verifiers.number:NumberVerifier",
        "choice": "stepmark.verifiers.choice:ChoiceVerifier",
        "text": "stepmark.verifiers.text:TextVerifier",
        "code": "stepmark.verifiers.code:CodeVerifier",
    },
)
"""Ways to compare answers, by name; each is made without arguments."""


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


VerifierLike: TypeAlias = Verifier | str
"""A verifier, or the name that `load_verifier` takes."""


def load_verifier(name: str, *, answers: Answers = "stated", isolation: Isolation | None = None) -> Verifier:
    """The verifier of a name in `VERIFIERS`, or of "package.module:Class".

    Args:
        name: its name.
        answers: which answers of a solution are read: see `find_answer`. Your own class reads as it does.
        isolation: for `code`, what keeps programs apart from this machine; None: bubblewrap.

    Raises:
        UnknownNameError: no such name.
        UsageError: `isolation` for a verifier that runs no programs, an isolation that does not work on this machine, or a
            user's class that failed or gives none.
        MissingExtraError: it needs a package that is not installed (`math` tells so at the first answer that is no plain number).
    """
    verifier: Verifier
    if (programs := isolation_of(name, isolation)) is not None:
        verifier = VERIFIERS.load(name)(isolation=programs)
    else:
        verifier = VERIFIERS.make(name, ("name", "verify"), article="an")
    if isinstance(verifier, VerifierBase):
        verifier.answers = answers
    return verifier


@contextmanager
def open_verifier(
    verifier: VerifierLike,
    *,
    answers: Answers = "stated",
    isolation: Isolation | None = None,
    shown: bool = False,
) -> Iterator[Verifier]:
    """A verifier for a run, as `load_verifier`; one that is loaded here is closed afterwards. `shown` reports on standard error what keeps programs apart."""
    if not isinstance(verifier, str):
        yield verifier
        return
    with load_verifier(verifier, answers=answers, isolation=isolation) as loaded:
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
    verifier: VerifierLike | None, answers: str, isolation: Isolation | None
) -> dict[str, str | None]:
    """The fields of a verifier in a run's manifest."""
    return {
        "verifier": verifier if isinstance(verifier, str | None) else verifier.name,
        "answers": answers,
        "isolation": isolation_of(verifier, isolation) if isinstance(verifier, str | None) else None,
    }


_LONG = 200
_CUT = re.compile(r"(?<!\\)\\\Z|[=+*/^_]\Z|\\(?:times|cdot|div|frac|sqrt)\Z")
_PROSE = re.compile(
    r"(?i:\A\W*(?:so|thus|therefore|hence)\b)|(?:(?<![\w\\])[^\W\d_]{2,}\b.*?){4}|[^\W\d_]{2,}[^\n$\\]*(?:(?<!\\)\$[^$\n]+\$(?!\d)|\\\(|\\\[)|[\u3040-\u9fff\uac00-\ud7af]{3}"
)


def bare_answer(text: str | None, answers: Answers = "stated") -> FoundAnswer | None:
    """The answer within a text: the one that `find_answer` finds, or the text itself when it is one short line.

    None where a longer text names no answer: which of its numbers is meant would be a guess.
    """
    if text is None or not text.strip():
        return None
    stated = find_answer(text, "marked")
    if stated is None and answers == "stated" and ("\n" in text.strip() or _PROSE.search(text)):
        stated = find_answer(text, answers)
    if stated is not None:
        return stated
    body = without_thoughts(text)
    bare = body.strip()
    if (
        not bare
        or _CUT.search(bare)
        or (not (len(bare) <= _LONG and "\n" not in bare) and not _one_expression(bare))
    ):
        return None
    return FoundAnswer(text=bare, way="whole", start=body.index(bare))


def _one_expression(text: str) -> bool:
    # A matrix or a long list is a bare answer too, though it may stand on several lines.
    return (
        len(text) <= LONGEST
        and "\n\n" not in text
        and text.count("$") % 2 == 0
        and text.startswith(("\\begin{", "$", "\\[", "\\(", "\\left"))
        and text.endswith(("}", "$", "]", ")"))
    )


_SAID: dict[str, str] = {
    "boxed": "in a box",
    "hashes": "behind ####",
    "heading": "under a heading",
    "phrase": 'after "the answer is"',
    "statement": "read from the concluding statement",
    "letter": "a letter",
}


class VerifierBase(ABC):
    """What all verifiers share: finding the answers, the verdict where one is missing, the context manager."""

    name: str
    answers: Answers = "stated"
    """Which answers of a solution are read: see `find_answer`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"

    def verify(self, answer: str | None, gold: str) -> Verdict:
        """See `Verifier.verify`."""
        # A reference that marks no answer is one, however long.
        found, stated = self.find(answer), bare_answer(gold)
        reference = stated.text if stated is not None else gold.strip()
        if not reference:
            return self._verdict("unparsed", None if found is None else found.text, "the reference is blank")
        if found is None or answer is None:
            return self._verdict(
                "unparsed", None, "no answer" if answer is None else "the text names no answer"
            )
        if len(found.text) > LONGEST or len(reference) > LONGEST:
            return self._verdict("unparsed", None, f"longer than {LONGEST} characters")
        line = without_thoughts(answer)
        line = line[line.rfind("\n", 0, found.start) + 1 :].partition("\n")[0]
        english, english_reference = as_english(found.text, line), as_english(reference, reference)
        if english is None or english_reference is None:
            return self._verdict("unparsed", found.text, "whether the separator is a decimal one is open")
        outcome, note = self.compare(english_reference, english)
        return self._verdict(
            outcome, found.text, note if found.way == "whole" else f"{note}; {_SAID[found.way]}"
        )

    def find(self, text: str | None) -> FoundAnswer | None:
        """The answer of a text that is compared."""
        return bare_answer(text, self.answers)

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


def answer_groups(answers: Sequence[str | None], verifier: Verifier) -> list[int | None]:
    """Sort the answers of one problem into groups of equal ones, for votes: for each its group, numbered by first appearance from 0.

    An answer joins the first group whose first member it matches, that member as the reference; one without a verdict makes a group of its own. None for
    solutions that name no answer. Answers that differ only in markup are compared once.
    """
    groups: list[int | None] = []
    settings_: dict[str, int] = {}
    heads: list[str] = []
    for text in answers:
        bare = bare_answer(text, verifier.answers if isinstance(verifier, VerifierBase) else "stated")
        if bare is None:
            groups.append(None)
            continue
        answer = bare.text
        canonical = key(answer)
        if canonical not in settings_:
            joined = next(
                (n for n, head in enumerate(heads) if verifier.verify(answer, head).outcome == "match"), None
            )
            if joined is None:
                heads.append(answer)
                joined = len(heads) - 1
            settings_[canonical] = joined
        groups.append(settings_[canonical])
    return groups


@final
class BatchVerifier:
    """A verifier as coroutines ask it: verdicts that are waited for are found one after the other, in a thread."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        answers = verifier.answers if isinstance(verifier, VerifierBase) else ""
        self.identity = f"{verifier.name} {__version__} {answers}"
        """The verifier's name, this package's version and the answers that it reads: what verdicts are recorded under."""

    async def verify(self, answer: str, gold: str) -> Verdict:
        """See `Verifier.verify`."""
        verdict: Verdict = await batched(self.verdicts, VerdictRequest(answer=answer, gold=gold), quick=True)
        return verdict

    def verdicts(self, requests: Sequence[VerdictRequest], ready: Ready) -> list[Verdict]:
        """One verdict a request; each is reported when it is there, so that a kill does not cost it."""
        verdicts = []
        for number, request in enumerate(requests):
            verdicts.append(self._verifier.verify(request.answer, request.gold))
            ready(number, verdicts[-1])
        return verdicts
