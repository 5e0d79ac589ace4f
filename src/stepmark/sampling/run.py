"""`stepmark.sample`: problems in; a policy's solutions out, each with the verdict on its final answer, resumed where the run stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, final

from pydantic import Field

from stepmark.backends import (
    INSTRUCTION,
    CachedPolicy,
    CachedVerifier,
    Completing,
    Completions,
    ReplyStore,
    VerdictRequest,
    Verifying,
    run_tasks,
)
from stepmark.backends.base import Batch
from stepmark.backends.cluster import Cluster, RayModel, WorkerModels, policy_answers
from stepmark.backends.replies import open_replies
from stepmark.data.reading import Source, read_rows
from stepmark.errors import InputError
from stepmark.models.lazy import Bits, Lazy, arguments_of, check_models
from stepmark.models.policies import Dtype, PolicyLike, load_policy, policy_of
from stepmark.problems.loading import ProblemRow, problem_rows
from stepmark.progress import Progress
from stepmark.records import SAMPLE_FACTS, Problem, SampledSolution, record_row
from stepmark.sampling import Sampled, Sampling, sample_and_judge
from stepmark.settings import checked
from stepmark.store import PartFile, Results, evenly, resumed, row_key, run_input
from stepmark.store.runs import check_files, explained, nothing_done, usable, working
from stepmark.verifiers import base as verifiers
from stepmark.verifiers.base import (
    BatchVerifier,
    VerifierLike,
    load_verifier,
    open_verifier,
    report_isolation,
)
from stepmark.verifiers.code_sandbox import Isolation
from stepmark.words import amount

BUILD = "stepmark.sampling.run:build"
"""`build`, as `backends.cluster.RayWorkers` takes it."""


def build(
    *,
    policy: str | None,
    verifier: str | None,
    dtype: Dtype = "auto",
    quantize: Bits | None = None,
    device: str = "auto",
    answers: Literal["stated", "marked"] = "stated",
    isolation: Isolation | None = None,
) -> WorkerModels:
    """A policy and a verifier on a worker; see `load_policy` and `load_verifier`, whose errors it raises.

    The verifier is never closed: what it holds ends with this process.
    """
    answering: dict[type, tuple[str, Batch]] = {}
    if verifier is not None:
        judge = BatchVerifier(load_verifier(verifier, answers=answers, isolation=isolation))
        answering[VerdictRequest] = judge.identity, judge.verdicts
    if policy is None:
        return WorkerModels(answers=answering)
    writer = load_policy(policy, dtype=dtype, quantize=quantize, device=device)
    return WorkerModels(
        answers=answering | policy_answers(writer),
        counters=lambda: {"policy.written": writer.tokens_written},
    )


@final
class Answering:
    """The policy and the verifier of a run; checked when this is made, loaded by `open` and `load`.

    Either may be None; `cluster` is whose workers answer, None for this process.
    """

    def __init__(
        self,
        policy: PolicyLike | None,
        verifier: VerifierLike | None,
        *,
        answers: Literal["stated", "marked"] = "stated",
        isolation: Isolation | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self._policy = None if policy is None else policy_of(policy)
        self._verifier = verifier
        self._answers = answers
        self._isolation = isolation
        check_models(cluster, self._policy, None if isinstance(verifier, str) else verifier)
        asked = self._policy is not None or verifier is not None
        self._cluster = cluster if cluster is not None and cluster.ray is not None and asked else None
        self.policy_name = None if self._policy is None else self._policy.name
        """As the caller wrote it; the name of a policy that was loaded before."""
        self.verifier_facts = verifiers.verifier_facts(verifier, answers, isolation)
        """What a manifest says of the verifier."""
        self._writes: Completing | None = None
        self._compares: Verifying | None = None
        self.tokens_written: Callable[[], int] = lambda: 0
        """Tokens that the policy has written so far."""

    def open(self, stack: ExitStack, *, shown: bool) -> None:
        """Load the verifier, so that one that does not work here is refused before the run begins; with `shown`, report what isolates its
        programs."""
        if self._verifier is None:
            return
        if self._cluster is None:
            verifier = open_verifier(
                self._verifier, answers=self._answers, isolation=self._isolation, shown=shown
            )
            self._compares = BatchVerifier(stack.enter_context(verifier))
        elif shown:
            report_isolation(self._verifier, self._isolation)

    def load(self, stack: ExitStack, *, most: int) -> dict[str, str]:
        """Load the policy, or both on the workers of the cluster, at most so many where no setting says how many.

        Returns:
            The policy's identity, as manifests name it.
        """
        if self._cluster is not None:
            arguments: dict[str, Any] = {
                **arguments_of(self._policy),
                "policy": self.policy_name,
                "verifier": self._verifier,
                "answers": self._answers,
                "isolation": self._isolation,
            }
            workers = stack.enter_context(self._cluster.start(BUILD, arguments, most=most))
            self._writes = None if self._policy is None else RayModel(workers, Completions)
            self._compares = None if self._verifier is None else RayModel(workers, VerdictRequest)
            self.tokens_written = lambda: workers.counters.get("policy.written", 0)
        elif self._policy is not None:
            policy = self._policy.load() if isinstance(self._policy, Lazy) else self._policy
            self._writes = policy
            self.tokens_written = lambda: policy.tokens_written
        return {} if self._writes is None else {"policy": self._writes.identity}

    @property
    def asks_models(self) -> bool:
        """Whether there is anything to ask."""
        return self._policy is not None or self._verifier is not None

    def cached(
        self, store: ReplyStore, *, observe: Callable[[Any], None]
    ) -> tuple[CachedPolicy | None, CachedVerifier | None]:
        """The policy and the verifier, whose replies are recorded; `observe` is called with each new text."""
        return (
            None if self._writes is None else CachedPolicy(self._writes, store, observe=observe),
            None if self._compares is None else CachedVerifier(self._compares, store),
        )


@checked
def sample(
    problems: Source,
    policy: PolicyLike,
    *,
    n: int = 8,
    temperature: float = 0.8,
    top_p: float = 1.0,
    max_tokens: int = 1024,
    prompt: Literal["chat", "text"] = "chat",
    instruction: str = INSTRUCTION,
    verifier: VerifierLike | None = "math",
    answers: Literal["stated", "marked"] = "stated",
    isolation: Isolation | None = None,
    seed: int = 0,
    limit: Annotated[int, Field(ge=1)] | None = None,
    out: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    keep_going: bool = False,
    in_flight: Annotated[int, Field(ge=1)] = 64,
    cluster: Cluster | None = None,
    progress: bool = True,
) -> Results[SampledSolution]:
    """Sample solutions of problems from a policy, and compare each final answer with the reference answer.

    A row is a problem and its reference answer, {"problem": "…", "answer": "…"}; GSM8K's own rows are read too. Samples are numbered: a
    run that asks for more of them begins with the same ones. A run with `out` that is interrupted continues when the same call is made
    again, and asks for no reply twice.

    Args:
        problems: a file or a folder of them (JSON lines, CSV, TSV, Parquet, a JSON list), dicts, records, a data set or a data frame.
        policy: the policy that writes: a model's folder or hub name, http://HOST/v1#MODEL, or "package.module:factory".
        n: solutions of each problem, 1 or more.
        temperature: sampling temperature, 0 or more; 0 with `n` 1 is greedy.
        top_p: sample among the likeliest tokens that together have this share of the probability, in (0, 1].
        max_tokens: the longest solution, in tokens.
        prompt: ask as the user's turn of a chat, or as plain text, for base models.
        instruction: what is written after the problem; "" for nothing.
        verifier: what compares final answers: math, number, choice, text, code, or "package.module:Class"; none for no verdicts.
        answers: which answers of a solution count: stated, also its concluding statement; marked, only a box, ####, "the answer is".
        isolation: with the verifier code, what keeps programs apart: bubblewrap, a sandbox; or unsafe, which is none: they can use the
            network and your files. Default: bubblewrap.
        seed: seed of the samples.
        limit: take only this many problems, evenly spaced over the data.
        out: write the solutions to this file, one JSON line each, gzipped if its name ends in .gz.
        columns: names of columns, where they differ: problem=question,answer=gold.
        keep_going: leave out rows that are no problem, and list them at the end.
        in_flight: problems that are asked about at once.
        cluster: spread the work over a Ray cluster.
        progress: show how far the run is, on standard error.

    Returns:
        The solutions, in the order of the problems, those in which the policy wrote nothing left out. With `out` they are read from that
        file when they are asked for.

    Raises:
        InputError: a row that is no problem (unless `keep_going`), or no solution at all.
        UsageError: a setting that cannot work, an output that is an input, or a part of a run with other settings or another model.
        BackendError: the policy or the verifier failed; what was done is kept beside `out`.
    """
    how = Sampling(
        n=n,
        greedy=False,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        seed=seed,
        prompt=prompt,
        instruction=instruction,
    )
    check_files({"out": out}, problems)
    given = run_input(problems, hashed=out is not None)
    judge = None if verifier == "none" else verifier
    asked = Answering(policy, judge, answers=answers, isolation=isolation, cluster=cluster)
    rows = problem_rows(given.source, columns=columns, need_answer=judge is not None)
    with explained(given, keep_going=keep_going):
        chosen = evenly(list(usable(rows, keep_going=keep_going)), limit)
    tally = SampleTally()
    records: list[SampledSolution] = []
    facts = {
        "command": "sample",
        "policy": asked.policy_name,
        "settings": {**asdict(how), **asked.verifier_facts, "limit": limit, "columns": columns},
    }
    with ExitStack() as stack:
        asked.open(stack, shown=progress)
        part = stack.enter_context(PartFile(out, facts))
        part.identify(asked.load(stack, most=in_flight))
        store = stack.enter_context(open_replies(out))
        shown = Progress(
            len(chosen),
            tokens=asked.tokens_written,
            verb="asked",
            noun="problem",
            facts=tally.facts,
            shown=progress,
            together=in_flight,
        )
        writes, compares = asked.cached(store, observe=lambda _: shown.tick())
        assert writes is not None

        def sampled(rows: Iterator[ProblemRow]) -> Iterator[Sampled]:
            for _, result in run_tasks(
                rows, lambda row: sample_and_judge(row.problem, how, writes, compares), in_flight=in_flight
            ):
                yield result

        def kept(row: ProblemRow, result: Sampled) -> dict[str, Any]:
            return _line(row, result, str(asked.policy_name))

        with working(part, shown, given, keep_going=keep_going):
            for _, line, result in resumed(part, chosen, _key, sampled, kept):
                tally.add(line)
                shown.advance(fresh=result is not None)
                if out is None and not isinstance(line, InputError):
                    records += map(_record, line["rows"])
        if not tally.written:
            raise nothing_done(part, "no solution was written", tally.why, given)
        part.finish(
            {"input": given.manifest, **asdict(tally)},
            {} if out is None else {out: lambda line: line["rows"]},
        )
    written = None if out is None else Path(out)
    wrote = [] if out is None else [f"wrote {out}; every reply is in {out}.replies.sqlite"]
    return Results(
        (lambda: iter(records)) if written is None else lambda: read_samples(written),
        tally.written,
        out=written,
        refused=tally.why,
        manifest={**part.manifest, "input": given.manifest},
        summary="\n".join([*tally.lines(), *wrote]),
    )


def read_samples(path: str | Path) -> Iterator[SampledSolution]:
    """The solutions of a file that `stepmark.sample` wrote.

    Raises:
        InputError: a row that is none.
    """
    for row in read_rows(path):
        try:
            yield _record(row.data)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"expected a row of stepmark sample: {error!r}", where=row.where) from None


def _record(row: Mapping[str, Any]) -> SampledSolution:
    meta = dict(row["meta"])
    facts = {name: meta.pop(name) for name in SAMPLE_FACTS}
    name = row["id"]
    problem = Problem(text=row["problem"], answer=row["answer"], id=name.rpartition("#")[0])
    return SampledSolution(
        problem=problem, text=row["solution"], id=name, source=row["source"], meta=meta, **facts
    )


@dataclass(kw_only=True, slots=True)
class SampleTally:
    """What the summary counts."""

    problems: int = 0
    written: int = 0
    right: int = 0
    wrong: int = 0
    without_verdict: int = 0
    blank: int = 0
    solved: int = 0
    why: list[str] = field(default_factory=list)

    def add(self, line: Mapping[str, Any] | InputError) -> None:
        """Count what `_line` made of a problem, or a row that is none."""
        self.problems += 1
        if isinstance(line, InputError):
            self.why.append(str(line))
            return
        outcomes = [row["meta"]["outcome"] for row in line["rows"]]
        self.written += len(outcomes)
        self.right += outcomes.count(True)
        self.wrong += outcomes.count(False)
        self.without_verdict += outcomes.count(None)
        self.blank += line["blank"]
        self.solved += line["solved"]

    def facts(self) -> list[str]:
        """What progress reports."""
        judged = self.right + self.wrong
        return [f"{self.right / judged:.0%} right"] if judged else []

    def lines(self) -> Iterator[str]:
        """For people."""
        judged = self.right + self.wrong
        yield f"{amount(self.written, 'solution')} of {amount(self.problems, 'problem')}"
        if judged:
            yield (
                f"{self.right:,} of {judged:,} right ({self.right / judged:.1%}), {amount(self.solved, 'problem')} solved at least once, "
                f"{self.without_verdict:,} without a verdict"
            )
        if self.blank:
            yield f"left out: {self.blank:,} x the policy wrote nothing"
        for why in self.why[:3]:
            yield f"left out: {why}"
        if len(self.why) > 3:
            yield f"left out: {amount(len(self.why) - 3, 'more problem')}"


def _key(row: ProblemRow) -> str:
    return row_key({**asdict(row.problem), "meta": row.meta})


def _line(row: ProblemRow, judged: Sampled, policy: str) -> dict[str, Any]:
    """What was sampled of one problem: its rows, and what the summary counts beside them.

    Raises:
        InputError: the policy cannot read it.
    """
    problem = row.problem
    if judged.refused is not None:
        raise InputError(f"{problem.id}: {judged.refused}")
    samples = list(zip(judged.samples, judged.verdicts, strict=True))
    rows = [
        record_row(
            SampledSolution(
                problem=problem,
                text=written.text,
                id=f"{problem.id}#{number}",
                source=policy,
                outcome=None if verdict is None else verdict.correct,
                note=None if verdict is None else verdict.note,
                tokens=written.tokens,
                finish=written.finish,
                logprob=written.logprob,
                meta=row.meta,
            )
        )
        for number, (written, verdict) in enumerate(samples)
        if written.text.strip()
    ]
    return {
        "rows": rows,
        "blank": len(samples) - len(rows),
        "solved": any(verdict is not None and verdict.correct for verdict in judged.verdicts),
    }
