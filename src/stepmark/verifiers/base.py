"""Verifiers: is this the right answer? Match, mismatch, or no verdict; never a guess.

`VERIFIERS` has `math` (mathematics in LaTeX or plain text), `number` (one number), `choice` (a letter), `text` (the same words) and `code` (a program
passes its unit tests). All take a whole solution or a bare answer, and say in `Verdict.note` which rule decided.

    >>> with load_verifier("number") as verifier:
    ...     verdict = verifier.verify("So they cost 36 / 2 = 18 dollars. The answer is $18.", "18")
    >>> verdict.outcome, verdict.answer
    ('match', '$18')
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeAlias

from stepmark.batching import Answerer, Ready, Verify
from stepmark.catalog import Catalog
from stepmark.errors import UsageError
from stepmark.records import Verdict
from stepmark.verifiers.finder import find_answer
from stepmark.verifiers.quantities import LONGEST, key
from stepmark.version import __version__

if TYPE_CHECKING:
    from stepmark.problems.code_sandbox import Isolation

VERIFIERS = Catalog(
    "answer verifier",
    {
        "math": "stepmark.verifiers.math:MathVerifier",
        "number": "stepmark.verifiers.number:NumberVerifier",
        "choice": "stepmark.verifiers.choice:ChoiceVerifier",
        "text": "stepmark.verifiers.text:TextVerifier",
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
