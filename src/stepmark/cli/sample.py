"""`stepmark sample`: solutions of problems from a policy, each with the verdict on its final answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from stepmark.cli.answering import RAY, answering, check_computing, check_ray, models_of
from stepmark.cli.paths import checked_input
from stepmark.cli.progress import Progress
from stepmark.errors import InputError, UsageError
from stepmark.store import ResumableRows, check_writable, fingerprint, is_stream

if TYPE_CHECKING:
    from stepmark.records import Problem
    from stepmark.solutions.sampling import Judged


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class SampleOptions:
    """How solutions are sampled."""

    n: int = 8
    """Solutions a problem."""
    temperature: float = 0.8
    """Of the samples; 0 with --n 1 is greedy."""
    top_p: float = 1.0
    """Sample among the likeliest tokens that together hold this share."""
    max_tokens: int = 1024
    """The longest solution."""
    prompt: Literal["chat", "text"] = "chat"
    """Ask as the user's turn of a chat, or as plain text (base models)."""
    instruction: str | None = None
    """What is said after the problem. Left out: to go step by step and to box the answer."""
    verifier: str = "math"
    """What compares final answers: math, number, choice, text, code, or "package.module:Class"; none for no verdicts."""
    percent: Literal["distinct", "sign"] = "distinct"
    """Whether 10% is 1/10 only, or 10 too."""
    seed: int = 0
    """Another seed, other samples."""
    in_flight: int = 64
    """Problems that are asked about at once."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of a local policy."""
    device: str = "auto"
    """Where a local policy runs: auto, cpu, cuda."""
    ray: str | None = None
    """Spread the work over a Ray cluster: auto (the one this machine is in), HOST:PORT, ray://HOST:PORT, or local."""
    ray_workers: int | None = None
    """Workers on the cluster, each with its own policy. Left out: as many as have room now, at most --in-flight."""
    ray_cpus: float = 1
    """Processors that each worker is given, and threads of its models."""
    ray_gpus: float = 0
    """GPUs that each worker is given; 0.5 puts two on one."""


_ANYWAY = ("in_flight", *RAY)


def sample_command(file: str, /, *, policy: str, out: str, options: SampleOptions = SampleOptions()) -> int:
    """Sample solutions of problems, and compare each final answer with the problem's.

    A row of the output is a solution that every command reads: problem, solution, answer (the reference), id, source (the policy) and
    meta {"outcome"}: true, false, or null where there is no verdict. Interrupted, the same command goes on; the output is whole or absent.

    Args:
        file: problems, as JSON lines: {"problem" or "question", "answer"}.
        policy: a model's folder or hub name, a built-in one, http://HOST/v1#MODEL, or "package.module:factory".
        out: the file of solutions, packed if it ends in .gz.
        options: the flags.
    """
    from stepmark.batching import run
    from stepmark.models.replies import ReplyFile
    from stepmark.problems.sources import read_problems
    from stepmark.solutions.sampling import sample_and_judge

    _check(file, out, options)
    check_computing(options, policy=policy)
    problems = list(read_problems(file))
    sampling = _sampling(options)
    tally = _Tally()
    verifier = None if options.verifier == "none" else options.verifier
    # A result a problem, which is several rows.
    with (
        closing(ResumableRows(out, _manifest(file, policy, options))) as results,
        closing(ReplyFile(Path(out + ".replies.sqlite"))) as store,
        answering(options, policy=policy, verifier=verifier) as asked,
    ):
        results.identify(models_of(asked.answerers))
        for earlier in results.earlier():
            if not isinstance(earlier, InputError):
                tally.add(earlier)
        progress = Progress(
            len(problems),
            done=results.done,
            tokens=asked.tokens_written,
            verb="asked",
            noun="problem",
            facts=tally.facts,
            together=options.in_flight,
        )
        left = problems[results.done :]
        methods = (sample_and_judge(problem, sampling, verifier is not None) for problem in left)
        try:
            with progress:
                for number, judged in run(methods, asked.answerers, store=store, in_flight=options.in_flight):
                    result = _result(left[number], judged, policy)
                    results.write(result)
                    tally.add(result)
                    progress.advance()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"{tally.problems} problems are kept; the same command continues"
            ) from None
        if not tally.written:
            results.discard()
            raise InputError(
                "no solution was written" + (f": {tally.why[0]}" if tally.why else ""), where=file
            )
        results.finish(asdict(tally), {out: lambda result: result["rows"]})
    for line in tally.lines():
        print(line, file=sys.stderr)
    return 0


@dataclass(kw_only=True, slots=True)
class _Tally:
    problems: int = 0
    written: int = 0
    right: int = 0
    wrong: int = 0
    without_verdict: int = 0
    blank: int = 0
    solved: int = 0
    why: list[str] = field(default_factory=list)

    def add(self, result: Mapping[str, Any]) -> None:
        """Count what `_result` made of a problem."""
        outcomes = [row["meta"]["outcome"] for row in result["rows"]]
        self.problems += 1
        self.written += len(outcomes)
        self.right += outcomes.count(True)
        self.wrong += outcomes.count(False)
        self.without_verdict += outcomes.count(None)
        self.blank += result["blank"]
        self.solved += result["solved"]
        self.why += [] if result["refused"] is None else [result["refused"]]

    def facts(self) -> list[str]:
        judged = self.right + self.wrong
        return [f"{self.right / judged:.0%} right"] if judged else []

    def lines(self) -> Iterator[str]:
        judged = self.right + self.wrong
        yield f"{self.written:,} solutions of {self.problems:,} problems"
        if judged:
            yield (
                f"{self.right:,} of {judged:,} right ({self.right / judged:.1%}), {self.solved:,} problems solved at least once, "
                f"{self.without_verdict:,} without a verdict"
            )
        if self.blank:
            yield f"left out: {self.blank:,} x the policy wrote nothing"
        for why in self.why[:3]:
            yield f"left out: {why}"
        if len(self.why) > 3:
            yield f"left out: {len(self.why) - 3:,} more problems"


def _result(problem: Problem, judged: Judged, policy: str) -> dict[str, Any]:
    """What was sampled of one problem: its rows, and what the summary counts beside them."""
    if judged.refused is not None:
        return {"rows": [], "blank": 0, "solved": False, "refused": f"{problem.id}: {judged.refused}"}
    samples = list(enumerate(zip(judged.samples, judged.verdicts, strict=True)))
    rows = [
        {
            "problem": problem.text,
            "solution": written.text,
            "answer": problem.answer,
            "id": f"{problem.id}#{number}",
            "source": policy,
            "meta": {
                "outcome": None if verdict is None else verdict.correct,
                "tokens": written.tokens,
                "finish": written.finish,
                "logprob": written.logprob,
                "note": None if verdict is None else verdict.note,
            },
        }
        for number, (written, verdict) in samples
        if written.text.strip()
    ]
    return {
        "rows": rows,
        "blank": len(samples) - len(rows),
        "solved": any(verdict is not None and verdict.correct for verdict in judged.verdicts),
        "refused": None,
    }


def _sampling(options: SampleOptions) -> Any:
    from stepmark.solutions.sampling import Sampling

    default = Sampling()
    return Sampling(
        n=options.n,
        greedy=False,
        temperature=options.temperature,
        top_p=options.top_p,
        max_tokens=options.max_tokens,
        seed=options.seed,
        prompt=options.prompt,
        instruction=default.instruction if options.instruction is None else options.instruction,
    )


def _check(file: str, out: str, options: SampleOptions) -> None:
    checked_input(file, again=True)
    if is_stream(out):
        raise UsageError(f"--out {out}: expected a file's name")
    check_writable(out)
    if Path(out).resolve() == Path(file).resolve():
        raise UsageError(f"--out {out} is the input: it would be replaced; choose another")
    check_ray(options)
    for name, fits, expected in (
        ("n", options.n >= 1, "1 or more"),
        ("temperature", 0 <= options.temperature < float("inf"), "0 or more"),
        ("top_p", 0 < options.top_p <= 1, "above 0, and at most 1"),
        ("max_tokens", options.max_tokens >= 1, "1 or more"),
        ("in_flight", options.in_flight >= 1, "1 or more"),
    ):
        if not fits:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(options, name)}: expected {expected}")


def _manifest(file: str, policy: str, options: SampleOptions) -> dict[str, Any]:
    known = fingerprint(file)
    assert known is not None
    settings = {key: value for key, value in asdict(options).items() if key not in _ANYWAY}
    return {
        "command": "sample",
        "input": {"name": Path(file).name, "bytes": known.bytes, "sha256": known.sha256},
        "policy": policy,
        "settings": settings,
    }
