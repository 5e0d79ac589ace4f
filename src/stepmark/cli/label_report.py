"""What a run of `stepmark label` says: counts and costs while it goes and when it is done, and how programs are isolated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepmark.batching import Answerer, Written
from stepmark.store import atomic_write, encode_row

if TYPE_CHECKING:
    from stepmark.batching import Ready, Reply
    from stepmark.cli.labelling import LabelOptions


@dataclass(kw_only=True, slots=True)
class Tally:
    """What has been labelled, and at what cost."""

    solutions: int = 0
    others: int = 0
    found: int = 0
    clean: int = 0
    abstained: int = 0
    wrong_later: int = 0
    """Solutions with a wrong step, where an earlier one that was not judged may be wrong too."""
    unknown: int = 0
    rollouts: int = 0
    tokens: int | None = 0
    unparsed: int = 0
    refused: int = 0

    def add(self, line: dict[str, Any], refused: list[str]) -> None:
        """Count a line of the work file; `refused` takes why solutions of it are left out."""
        refused += line["refused"]
        self.refused += len(line["refused"])
        given = line["given"]
        self.others += len(line["rows"]) - given
        for row in line["rows"][:given]:
            self._add(row)

    def _add(self, row: dict[str, Any]) -> None:
        facts = row["meta"]
        self.solutions += 1
        first = facts["first_error"]
        self.abstained += facts["abstained"]
        self.found += first is not None and first >= 0
        self.clean += first == -1
        if first is None and not facts["abstained"]:
            wrong = any(judgement.get("rating") == -1 for step in row["judgements"] for judgement in step)
            self.wrong_later += wrong
            self.unknown += not wrong
        cost = facts["cost"]
        self.rollouts += cost["rollouts"]
        self.tokens = None if self.tokens is None or cost["tokens"] is None else self.tokens + cost["tokens"]
        self.unparsed += cost["unparsed"]


class Counted:
    """What a run has asked for, live."""

    def __init__(self, tally: Tally, texts: str) -> None:
        self._tally = tally
        self._texts = texts
        self._rollouts = self._tokens = 0

    def counting(self, answerer: Answerer, tick: Callable[[], None]) -> Answerer:
        """The same answerer; its texts are counted as they come."""

        def answer(requests: Sequence[Any], ready: Ready) -> Sequence[Reply]:
            reported = set[int]()

            def heard(number: int, reply: Reply) -> None:
                ready(number, reply)
                reported.add(number)
                self._count(reply)
                tick()

            replies = answerer.answer(requests, heard)
            for number, reply in enumerate(replies):
                if number not in reported:
                    self._count(reply)
            return replies

        return Answerer(identity=answerer.identity, answer=answer)

    def _count(self, reply: Reply) -> None:
        if isinstance(reply, Sequence):
            self._rollouts += len(reply)
            self._tokens += sum(one.tokens or 0 for one in reply if isinstance(one, Written))

    def facts(self) -> list[str]:
        """How many were written in this run, and what a label has cost so far, earlier runs included."""
        tally = self._tally
        said = [f"{self._rollouts:,} {self._texts}"]
        if self._tokens:  # none are told where the policy does not count them
            said.append(f"{self._tokens:,} tokens")
        labels = tally.solutions + tally.others
        if labels:
            said.append(f"{tally.rollouts / labels:,.1f} {self._texts} a label")
            if tally.tokens:
                said.append(f"{tally.tokens / labels:,.0f} tokens a label")
        return said


def summary(tally: Tally, refused: list[str], left: int, options: LabelOptions, *, texts: str | None) -> str:
    """What a run came to, for people.

    Args:
        tally: of the whole run.
        refused: why rows were left out.
        left: rows that the budget did not reach.
        options: the flags.
        texts: what the policy's texts are called; None for a method that asks nothing of any.
    """
    later = (
        f"{tally.wrong_later:,} with a wrong step that may not be the first, " if tally.wrong_later else ""
    )
    lines = [
        f"{tally.solutions:,} solutions: {tally.found:,} with a first error, {later}{tally.clean:,} without, "
        f"{tally.abstained:,} abstained, {tally.unknown:,} where the method says nothing"
    ]
    if tally.others:
        lines.append(f"{tally.others:,} more solutions were labelled on the way")
    if texts is not None:
        tokens = "tokens not told" if tally.tokens is None else f"{tally.tokens:,} tokens"
        each = tally.tokens and f", {tally.tokens / (tally.solutions + tally.others):,.0f} tokens a solution"
        lines.append(
            f"{tally.rollouts:,} {texts}, {tokens}{each or ''}; {tally.unparsed:,} without a verdict"
        )
    if left:
        assert options.budget is not None
        lines.append(
            f"{left:,} solutions were not labelled: the budget of {options.budget:,} tokens was spent"
        )
    if refused:
        lines += [f"left out {len(refused):,} rows:", *(f"  {error}" for error in refused)]
    kept = f"; every reply is in {options.out}.replies.sqlite" if texts is not None else ""
    lines.append(f"wrote {options.out}{kept}")
    return "\n".join(lines)


def isolation_of(options: LabelOptions) -> dict[str, Any] | None:
    """What holds the programs that a code verifier runs, said on standard error; None for other verifiers."""
    if options.verifier in _NO_PROGRAMS:
        return None
    from stepmark.problems.answers import VERIFIERS
    from stepmark.problems.code import CodeVerifier

    make = VERIFIERS.load(options.verifier)
    if not (isinstance(make, type) and issubclass(make, CodeVerifier)):
        return None
    with make() as verifier:
        found = verifier.isolation
    if found.boundary:
        kept = "no network, no files of this machine, no sight of its processes"
    else:
        kept = (
            "limits of time, memory, processes and files only. This is no security boundary: programs can use the network, "
            "and read and change what their user may"
        )
    user = (
        "; they run as an unprivileged user of their own" if found.as_root else "; they run as your own user"
    )
    where = (
        "" if options.ray is None else " on this machine (each worker takes the strongest that works there)"
    )
    lines = [f"programs run in isolation {found.name!r}{where}: {kept}{user}", *found.refused]
    print("\n  not in use: ".join(lines), file=sys.stderr)
    return asdict(found)


_NO_PROGRAMS = ("math", "number", "choice", "text")
"""Verifiers that run no programs; not to be loaded only to ask."""


def write_beside(out: str, what: str, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Write what is not in an output to OUT.WHAT.jsonl, a row each; without rows there is none, also none of an earlier run.

    Returns:
        Its name.
    """
    beside = Path(f"{out}.{what}.jsonl")
    if not rows:
        beside.unlink(missing_ok=True)
        return None
    with atomic_write(beside) as handle:
        for row in rows:
            handle.write(encode_row(row).decode())
    return str(beside)
