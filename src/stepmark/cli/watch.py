"""`stepmark watch`: score an agent's turns while it works, or answer its hook."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from stepmark.errors import InputError, StepmarkError, UsageError

if TYPE_CHECKING:
    from stepmark.models.prm import PRM
    from stepmark.models.watch import TurnJudge
    from stepmark.scoring.live import LiveScores, TurnScore


def watch_command(
    session: str | None = None,
    /,
    *,
    prm: Annotated[str | None, Parameter("--prm")] = None,
    follow: Annotated[bool, Parameter("--follow")] = False,
    hook: Annotated[bool, Parameter("--hook")] = False,
    threshold: Annotated[float | None, Parameter("--threshold")] = None,
    checks: Annotated[str, Parameter("--checks")] = "auto",
    judge: Annotated[str | None, Parameter("--judge")] = None,
    criteria: Annotated[tuple[str, ...], Parameter("--criteria")] = (),
    votes: Annotated[int, Parameter("--votes")] = 8,
    reasoning: Annotated[Literal["keep", "only", "drop"], Parameter("--reasoning")] = "keep",
    longest: Annotated[int, Parameter("--longest")] = 2000,
    as_json: Annotated[bool, Parameter("--json")] = False,
    interval: Annotated[float, Parameter("--interval")] = 1.0,
    family: Annotated[str | None, Parameter("--family")] = None,
    device: Annotated[str, Parameter("--device")] = "auto",
    tokenizer: Annotated[str | None, Parameter("--tokenizer")] = None,
) -> int:
    """Score the turns of an agent's session as they come, or answer an agent's hook.

    Each turn is one line: its number, its score, what it says, and why it is wrong or weak. Sessions are those that `stepmark grade` reads:
    Claude Code, Codex, OpenHands, chat messages and others.

    Args:
        session: The session's file, or the folder of its events.
        prm: What scores the turns: as for stepmark grade, or "none" for the exact checks alone. Default: "default"; with --hook "none", which needs no model.
        follow: Wait for further turns until Ctrl-C; the file may not be there yet.
        hook: Be a hook of Claude Code or Codex: read its JSON from standard input, and answer as they document (Stop, SubagentStop, PostToolUse).
        threshold: A turn whose score is under it is weak; default: the PRM's own.
        checks: Exact checks beside the scores: all, none, or names with commas between them; auto: all beside the default PRM and without one.
        judge: A policy that judges each turn by the criteria: http://HOST/v1#MODEL, a model's folder or hub name, or "package.module:factory". A turn that fails one is weak.
        criteria: What the judge judges by; repeat for several: presets (math, code, tools, research, safety), or files of criteria (.toml, .yaml, .json).
        votes: Replies of the judge a turn.
        reasoning: What becomes of thoughts: keep them in the turn, score them only, or drop them.
        longest: Characters of the question and of each tool's answer that the PRM and the judge read; the middle of a longer one is left out.
        as_json: Print one JSON object a turn.
        interval: Seconds between two looks at the file.
        family: The PRM's family, as for stepmark grade.
        device: Where the PRM computes, as for stepmark grade.
        tokenizer: For servers that take token ids, the checkpoint's tokenizer.
    """

    def make_live() -> LiveScores:
        from stepmark.scoring.live import LiveScores

        return LiveScores(
            _prm(prm or ("none" if hook else "default"), family, device, tokenizer),
            threshold=threshold,
            checks=checks,
            reasoning=reasoning,
            longest=longest,
            judge=_judge(judge, criteria, votes),
        )

    if hook:
        return _answer_hook(session, follow, make_live)
    if session is None:
        raise UsageError(
            "expected the file of a session, as ~/.codex/sessions/2026/11/27/rollout.jsonl; or --hook, which reads its name from standard input"
        )
    if interval <= 0:
        raise UsageError(f"--interval {interval}: expected seconds above 0")
    if not follow and not Path(session).exists():
        raise UsageError(f"{session}: there is no such file; --follow waits for it")
    live, show = make_live(), _Printer(as_json)
    try:
        _watch(session, live, show, follow=follow, interval=interval)
    except KeyboardInterrupt:
        if not follow:
            raise
        print(file=sys.stderr)  # after ^C
    print(show.summary, file=sys.stderr)
    return 0 if follow or show.turns else 1


def _prm(name: str, family: str | None, device: str, tokenizer: str | None) -> PRM | None:
    if name == "none":
        return None
    from stepmark.models.load import load_prm

    return load_prm(name, family=family, device=device, tokenizer=tokenizer)


def _judge(policy: str | None, criteria: tuple[str, ...], votes: int) -> TurnJudge | None:
    if (policy is None) != (not criteria):
        raise UsageError(
            "`judge`, the policy that judges, and `criteria`, what it judges by, go together: give both, as --judge http://127.0.0.1:9000/v1 --criteria tools"
        )
    if policy is None:
        return None
    from stepmark.labels.criteria import read_criteria
    from stepmark.labels.judge import Judge

    return Judge(criteria=read_criteria(criteria), votes=votes).watching(policy)


def _watch(session: str, live: LiveScores, show: _Printer, *, follow: bool, interval: float) -> None:
    from stepmark.scoring.live import SessionFile

    file = SessionFile(session, show.note)
    if follow and not Path(session).exists():
        print(f"waiting for {session}", file=sys.stderr)
    changed, restarts, settled = file.poll(end=not follow), 0, not follow
    waiting = changed
    while True:
        if file.restarts > restarts:
            restarts = file.restarts
            print(f"{session}: the file was replaced or cut; read anew", file=sys.stderr)
        if waiting:
            for result in live.update(file.rows, settled=settled):
                if isinstance(result, InputError):
                    show.unreadable(result, said=not follow)
                else:
                    show.turn(result)
        if not follow:
            return
        # A turn is complete when the file did not change between two looks.
        waiting, changed = changed and not settled, False
        time.sleep(interval)
        changed = file.poll()
        settled = not changed
        waiting = waiting or changed


class _Printer:
    """Prints turns, and counts them."""

    def __init__(self, as_json: bool) -> None:
        self._json, self._printed = as_json, set[str]()
        self._conversation: str | None = None
        self.turns = self._weak = self._wrong = self._unread = 0

    @property
    def summary(self) -> str:
        """What was seen, in one line."""
        from stepmark.words import amount

        parts = [
            amount(self.turns, "turn"),
            f"{self._weak:,} weak",
            f"{self._wrong:,} wrong by an exact check",
        ]
        return ", ".join([*parts, *([f"{self._unread:,} not read"] if self._unread else [])])

    def note(self, error: InputError) -> None:
        """Say once what could not be read."""
        if str(error) not in self._printed:
            self._printed.add(str(error))
            print(f"note: {error}", file=sys.stderr)

    def unreadable(self, error: InputError, *, said: bool) -> None:
        """A conversation without a turn: that is nothing to say while it may still begin."""
        if said:
            self.note(error)

    def turn(self, turn: TurnScore) -> None:
        """Print a turn."""
        from stepmark.words import number, shortened

        self.turns += 1
        self._weak += turn.weak
        self._wrong += turn.refuted
        self._unread += turn.unread is not None
        if self._json:
            print(json.dumps(turn.to_dict(), ensure_ascii=False), flush=True)
            return
        if turn.conversation != self._conversation:
            if self._conversation is not None:
                print(f"-- {shortened(turn.conversation)}")
            self._conversation = turn.conversation
        score = "–" if turn.score is None else number(turn.score)
        mark = "✗" if turn.weak else " "
        print(f"{turn.turn + 1:>4}  {score:>8} {mark}  {shortened(turn.step.text, _width())}", flush=True)
        for reason in filter(None, (turn.reason, turn.unread and f"not read: {turn.unread}")):
            print(f"{'':>18}{shortened(reason, 400)}", flush=True)


def _width() -> int:
    import shutil

    return max(40, shutil.get_terminal_size().columns - 20) if sys.stdout.isatty() else 100


def _answer_hook(session: str | None, follow: bool, make_live: Callable[[], LiveScores]) -> int:
    """Answer the hook on standard input. A failure ends with 1: 2 would keep the agent from stopping."""
    from stepmark.data.json_rows import parse_row
    from stepmark.scoring.hook import hook_reply

    try:
        if session is not None or follow:
            raise UsageError(
                "--hook reads the name of the session's file from standard input: leave the file and --follow out"
            )
        reply = hook_reply(parse_row(sys.stdin.buffer.read()), make_live())
    except StepmarkError as error:
        print(f"error: stepmark watch --hook: {error}", file=sys.stderr)
        return 1
    if reply is not None:
        print(json.dumps(reply, ensure_ascii=False))
    return 0
