"""A session that an agent is still writing: its file is read as it grows, and each turn is scored when it is complete.

`SessionFile` has the rows of a file (or of a folder of events); `LiveScores` scores the turns that are new in them. A turn is complete when a tool or a
user answered it, or when the file has come to rest: tools write one turn in several lines. Readers of formats are those of `stepmark grade`, so
repeated entries, rewound branches and subagents are read as there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, final

from stepmark.data.json_rows import BOM, parse_row, starts_document
from stepmark.data.reading import Row, read_rows
from stepmark.data.solutions import SolutionRow, solutions_of
from stepmark.data.steps.thoughts import Reasoning
from stepmark.data.traces import chat_rows
from stepmark.errors import InputError, TooLongError, UsageError
from stepmark.models.prm import PRM
from stepmark.models.watch import Feedback, TurnJudge
from stepmark.records import MessageSpan, Problem, Refusal, Solution, Step
from stepmark.verifiers.checks import check_names, check_solution

LONGEST = 2000
"""Default of `longest`."""
_TAIL = 256
"""Bytes before the place that was read to, by which another file of the same name is recognised."""


@final
class SessionFile:
    """The rows of a session's file, read on as it grows.

    A file of lines is read from where it was read to; a last line without its line break waits for it. A file that became shorter, or that is another
    one under the same name, is read anew. A folder, and a file that is one JSON document, is read whole whenever it changed; while it is
    half written, the rows of before stay.

    Args:
        path: the file, or a folder of files with one event each.
        note: told of each line that is no JSON object.
    """

    def __init__(self, path: str | Path, note: Callable[[InputError], None]) -> None:
        self._path, self._note = Path(path), note
        self._file: tuple[int, int] | None = None
        self._size = self._lines = 0
        self._tail = b""
        self._state: object = None
        self.rows: list[Row] = []
        """What was read so far."""
        self.restarts = 0
        """How often the file was read anew, because it was truncated or replaced."""

    def poll(self, *, end: bool = False) -> bool:
        """Read what is new.

        Args:
            end: nothing will follow: read a last line without a line break too.

        Returns:
            Whether the rows changed. A file that is missing has no new rows.
        """
        if self._path.is_dir():
            files = sorted(entry for entry in self._path.iterdir() if entry.is_file())
            return self._whole(tuple((file.name, *_state(file)) for file in files))
        try:
            with self._path.open("rb") as file:
                first = file.readline()
                if starts_document(first) and (first.endswith(b"\n") or end or self._path.suffix == ".json"):
                    return self._whole(_state(self._path))
                return self._read_on(file, end)
        except FileNotFoundError:
            return False

    def _whole(self, state: object) -> bool:
        if state == self._state:
            return False
        try:
            rows = list(read_rows(self._path))
        except InputError as error:  # half written: the next poll may find it whole
            if not self.rows:
                self._note(error)
            self._state = state
            return False
        self._state, changed = state, rows != self.rows
        self.rows = rows
        return changed

    def _read_on(self, file: Any, end: bool) -> bool:
        """Read the lines behind the place that was read to."""
        status = os.fstat(file.fileno())
        own = (status.st_dev, status.st_ino)
        file.seek(max(0, self._size - _TAIL))
        same = own == self._file and status.st_size >= self._size and file.read(len(self._tail)) == self._tail
        restarted = self._file is not None and not same
        if not same:
            self.rows, self._size, self._lines, self._tail = [], 0, 0, b""
            self.restarts += restarted
        self._file = own
        file.seek(self._size)
        added = file.read()
        length = len(added) if end else added.rfind(b"\n") + 1
        for raw in added[:length].splitlines(keepends=True):
            self._lines += 1
            text = raw.removeprefix(BOM) if self._lines == 1 else raw
            if not text.strip():
                continue
            try:
                self.rows.append(Row(data=parse_row(text), file=str(self._path), line=self._lines))
            except InputError as error:
                self._note(error.at(f"{self._path}:{self._lines}"))
        self._size += length
        self._tail = (self._tail + added[:length])[-_TAIL:]
        return bool(length) or restarted


def _state(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:  # removed since the folder was listed
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnScore:
    """The result of one turn."""

    turn: int
    """The turn, counted from 0."""
    step: Step
    """What the agent wrote, and what came back."""
    score: float | None
    """Of the kind `score_kind` of the PRM; None where no PRM was asked or it could not read the turn."""
    threshold: float | None
    """A score under it is weak; None for none."""
    feedback: tuple[Feedback, ...] = ()
    """What exact checks prove to be wrong in it, then which criteria a judge says it fails."""
    unread: str | None = None
    """Why the PRM, or the judge, could not read it."""
    read_from: int = 0
    """The first turn that the PRM read before this one: earlier ones did not fit."""
    conversation: str = ""
    """The id of the conversation: a session, or one of its subagents."""

    @property
    def refuted(self) -> bool:
        """Whether an exact check proves that it is wrong."""
        return any(item.source == "check" for item in self.feedback)

    @property
    def weak(self) -> bool:
        """Whether the score is under the threshold, or there is feedback."""
        low = self.score is not None and self.threshold is not None and self.score < self.threshold
        return low or bool(self.feedback)

    @property
    def reason(self) -> str:
        """Why the turn is weak, in sentences; "" for a turn that is not."""
        if self.feedback:
            return " ".join(item.sentence for item in self.feedback)
        return f"The score {self.score:.2g} is under {self.threshold:g}." if self.weak else ""

    def to_dict(self) -> dict[str, Any]:
        """The turn as a JSON object; its number counts from 1."""
        return {
            "conversation": self.conversation,
            "turn": self.turn + 1,
            "text": self.step.text,
            "score": self.score,
            "threshold": self.threshold,
            "weak": self.weak,
            "feedback": [asdict(item) for item in self.feedback],
            "unread": self.unread,
            "read_from": self.read_from + 1,
        }


@dataclass(kw_only=True, slots=True)
class _Conversation:
    """A conversation with the turns that were scored."""

    problem: Problem
    steps: list[Step] = field(default_factory=list)
    first: int = 0
    """The first turn that the PRM reads."""
    read: Solution | None = None
    """What it read last."""

    def cut(self, to: int) -> None:
        """Forget the turns from `to` on."""
        del self.steps[to:]
        if to < self.first:
            self.first = 0


@final
class LiveScores:
    """Scores of the turns of a session, each turn once.

    Args:
        prm: scores turns; None: exact checks alone.
        threshold: a score under it is weak; None for the PRM's own.
        checks: the exact checks (`stepmark.check`), "auto" for the PRM's own; without a PRM all of them.
        reasoning: what becomes of thoughts, as in `stepmark.split`.
        longest: characters of the question and of each answer of a tool that the PRM and the judge read; the middle of a longer one is left out.
        judge: says which criteria the last turn of a conversation fails (`stepmark.labels.Judge.watching`).
    """

    def __init__(
        self,
        prm: PRM | None,
        *,
        threshold: float | None = None,
        checks: str = "auto",
        reasoning: Reasoning = "keep",
        longest: int = LONGEST,
        judge: TurnJudge | None = None,
    ) -> None:
        if longest < 0:
            raise UsageError(f"expected `longest` of 0 or more characters, found {longest}")
        own = "all" if prm is None else prm.default_checks
        self.checks = own if checks == "auto" else checks
        check_names(self.checks)
        self._prm, self.reasoning, self._longest, self._judge = prm, reasoning, longest, judge
        self._session = None if prm is None else prm.open_session()
        self._threshold = prm.default_threshold if threshold is None and prm is not None else threshold
        self._conversations: dict[str, _Conversation] = {}

    def update(self, rows: Sequence[Row], *, settled: bool) -> Iterator[TurnScore | InputError]:
        """The turns that are new, or other than before, in the rows of a session.

        A turn that does not fit behind all turns before it is read behind the later half of them: `TurnScore.read_from`.

        Args:
            rows: all rows of the session so far.
            settled: the session rests: its last turn is complete.

        Yields:
            A turn's result when it is there; an error in the place of a conversation that cannot be read or has no turn yet.
        """
        for read in conversations(rows, self.reasoning):
            if isinstance(read, InputError):
                yield read
                continue
            solution = read.solution
            complete = settled or solution.steps[-1].observation
            known = self._conversations.get(solution.id or "")
            if known is None or known.problem != solution.problem:
                known = self._conversations[solution.id or ""] = _Conversation(problem=solution.problem)
            yield from self._new(solution, solution.steps if complete else solution.steps[:-1], known)

    def _new(self, solution: Solution, steps: Sequence[Step], known: _Conversation) -> Iterator[TurnScore]:
        same = _common(known.steps, steps)
        known.cut(same)
        if same:  # its answers may have come since
            known.steps[same - 1] = steps[same - 1]
        proofs = self._proofs(replace(solution, steps=tuple(steps))) if steps[same:] else {}
        for turn in range(same, len(steps)):
            score, unread = self._read(known, steps[turn])
            known.steps.append(steps[turn])
            yield self._result(solution, turn, score, unread, min(known.first, turn), proofs)

    def last(self, solution: Solution, count: int) -> list[TurnScore]:
        """The results of the last turns of a conversation that is read once: one request of the PRM, for as many turns before them as fit."""
        first, steps = 0, [self._shortened(step) for step in solution.steps]
        scores: Sequence[float | None] = []
        unread: str | None = None
        while self._prm is not None and first < len(steps):
            try:
                read = replace(solution, problem=self._question(solution.problem), steps=tuple(steps[first:]))
                scores = self._prm.score(None, read)
                break
            except TooLongError as error:
                first, unread = first + (len(steps) - first + 1) // 2, error.message
        given = [None] * (len(steps) - len(scores)) + [*scores]
        proofs = self._proofs(solution)
        return [
            self._result(solution, turn, given[turn], unread if given[turn] is None else None, first, proofs)
            for turn in range(max(0, len(steps) - count), len(steps))
        ]

    def _proofs(self, solution: Solution) -> dict[int, list[Feedback]]:
        by_turn: dict[int, list[Feedback]] = {}
        for finding in check_solution(solution, self.checks) or () if solution.steps else ():
            by_turn.setdefault(finding.step, []).append(Feedback.proof(finding))
        return by_turn

    def _result(
        self,
        solution: Solution,
        turn: int,
        score: float | None,
        unread: str | None,
        first: int,
        proofs: Mapping[int, Sequence[Feedback]],
    ) -> TurnScore:
        judged: Sequence[Feedback] = ()
        if self._judge is not None:
            so_far = tuple(self._shortened(step) for step in solution.steps[: turn + 1])
            try:
                judged = self._judge(
                    replace(solution, problem=self._question(solution.problem), steps=so_far)
                )
            except InputError as error:
                unread = unread or error.message
        return TurnScore(
            turn=turn,
            step=solution.steps[turn],
            score=score,
            threshold=self._threshold,
            feedback=(*proofs.get(turn, ()), *judged),
            unread=unread,
            read_from=first,
            conversation=solution.id or "",
        )

    def _read(self, known: _Conversation, step: Step) -> tuple[float | None, str | None]:
        """The score of the next turn after as many of the turns before as fit; or why there is none."""
        if self._session is None:
            return None, None
        while True:
            before = [self._shortened(turn) for turn in known.steps[known.first :]]
            read = Solution(problem=self._question(known.problem), steps=(*before, step), split="agent")
            reply = self._session.score_turn(read, known.read)
            if not isinstance(reply, InputError):
                known.read = read
                return reply.score, None
            if not before or not isinstance(reply, TooLongError):
                known.first = len(known.steps) + 1
                return None, reply.message
            # Half of them, so that the window moves once in a while and not with each turn.
            known.first = len(known.steps) - len(before) // 2

    def _question(self, problem: Problem) -> Problem:
        cut = _Cut(problem.text, self._longest)
        return replace(problem, text=cut.text, messages=cut.moved(problem.messages))

    def _shortened(self, step: Step) -> Step:
        cut = _Cut(step.observation, self._longest)
        return replace(
            step, observation=cut.text, messages=cut.moved(step.messages, len(step.lead) + len(step.text))
        )


class _Cut:
    """A text whose middle is left out where it is longer than `longest`."""

    def __init__(self, text: str, longest: int) -> None:
        left_out = max(0, len(text) - longest)
        self._head, self._tail = longest - longest // 2, len(text) - longest // 2
        self._mark = f"[… {left_out:,} characters …]" if left_out else ""
        self.text = f"{text[: self._head]}{self._mark}{text[self._tail :]}" if left_out else text

    def moved(self, spans: Sequence[MessageSpan], before: int = 0) -> tuple[MessageSpan, ...]:
        """Spans of a text in which so many characters stand before this one."""
        if not self._mark:
            return tuple(spans)
        mark = self._head + len(self._mark)

        def place(at: int, inside: int) -> int:
            own = at - before
            if own > self._head:
                own = inside if own < self._tail else own - self._tail + mark
            return before + own

        return tuple(
            replace(span, start=place(span.start, self._head), end=place(span.end, mark)) for span in spans
        )


def conversations(rows: Sequence[Row], reasoning: Reasoning = "keep") -> Iterator[SolutionRow | InputError]:
    """The conversations of a session's rows, each as turns; an error in the place of one that cannot be read or has no turn yet."""
    for row in chat_rows(rows, keep_going=True):
        try:
            if isinstance(row, Refusal):
                raise row.error
            yield from solutions_of(row, how="agent", reasoning=reasoning)
        except InputError as error:
            yield error


def _common(before: Sequence[Step], after: Sequence[Step]) -> int:
    """How many first turns are the same; what came back after the last of them may differ."""
    count = 0
    for one, other in zip(before, after, strict=False):
        if (one.text, one.lead) != (other.text, other.lead):
            break
        count += 1
        if one.observation != other.observation:
            break
    return count
