"""`stepmark.search`: problems in; the solutions found with a policy and a PRM out, written as they come; resumable."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, cast

from pydantic import Field

from stepmark.backends import (
    CachedPolicy,
    CachedPRM,
    CachedVerifier,
    Completing,
    Completions,
    Missing,
    Release,
    ReplyStore,
    ScoreRequest,
    StepScoring,
    Verifying,
    run_tasks,
)
from stepmark.backends.cluster import Cluster, Fact, RayModel, WorkerModels, policy_answers
from stepmark.backends.replies import open_replies
from stepmark.data.reading import Source
from stepmark.errors import InputError, UsageError
from stepmark.metrics.aggregate import resolve_aggregate
from stepmark.models.lazy import Lazy, arguments_of, check_models
from stepmark.models.load import PRMLike, lazy_prm
from stepmark.models.policies import Policy, PolicyLike, policy_of, reading_of
from stepmark.models.prm import PRM, Session, identity_of, scorer, why_whole_prefixes
from stepmark.problems.loading import problem_rows
from stepmark.progress import Progress
from stepmark.records import Problem, Refusal, ScoreKind, Solution
from stepmark.searches import tree
from stepmark.searches.base import Budget, Grading, Search, SearchResult
from stepmark.searches.methods import OF_THE_RUN, load_search, remade
from stepmark.searches.result_rows import found_row, read_found, trace_row, write_page
from stepmark.settings import checked
from stepmark.store import PartFile, Results, atomic_rows, resumed, row_key, run_input
from stepmark.store.runs import check_files, nothing_done, usable, working
from stepmark.verifiers.base import BatchVerifier, Verifier, VerifierLike, open_verifier, verifier_facts
from stepmark.verifiers.checks import check_names
from stepmark.verifiers.code_sandbox import Isolation
from stepmark.words import amount

BUILD = "stepmark.searches.run:build"
"""`build`, as `backends.cluster.RayWorkers` takes it."""


@checked
def search(
    problems: Source,
    policy: PolicyLike,
    prm: PRMLike = "default",
    *,
    method: str | Search = "beam",
    settings: Sequence[str] = (),
    out: str | Path | None = None,
    trace: str | Path | None = None,
    report: str | Path | None = None,
    aggregate: str | None = None,
    checks: str = "auto",
    budget: Annotated[int, Field(ge=0)] | None = None,
    verifier: VerifierLike = "math",
    answers: Literal["stated", "marked"] = "stated",
    isolation: Isolation | None = None,
    columns: Mapping[str, str] | None = None,
    keep_going: bool = False,
    in_flight: Annotated[int, Field(ge=1)] = 16,
    memory_tokens: Annotated[int, Field(ge=1)] | None = None,
    policy_memory_tokens: Annotated[int, Field(ge=0)] = 65_536,
    cluster: Cluster | None = None,
    progress: bool = True,
) -> Results[SearchResult]:
    """Search for solutions with a policy and a PRM, within a budget.

    A row is a problem, {"problem": "…"} or {"question": "…"}, and its reference answer where there is one. A run with `out` that is
    interrupted continues when the same call is made again, and asks for no reply twice.

    Args:
        problems: a file or a folder of them (JSON lines, CSV, TSV, Parquet, a JSON list), dicts, records, a data set or a data frame.
        policy: the policy that writes: a model's folder or hub name, http://HOST/v1#MODEL, or "package.module:factory".
        prm: the PRM, or its name: "default", a hub name, a folder, the address of a server, or "package.module:factory".
        method: the method: greedy, best-of-n, majority, weighted-vote, beam, dvts, rebase, mcts, or "package.module:Class".
        settings: a field of the method, as name=value; repeat for several. Nested: how.temperature=0.5.
        out: write the solutions to this file, one JSON line a problem, gzipped if its name ends in .gz.
        trace: write the trees to this file, one JSON line a problem, gzipped if its name ends in .gz.
        report: draw the trees on this HTML page, one file that works without a network.
        aggregate: how step scores make one number: product, min, mean, last, max, sum-logit or softmin. Default: the PRM's own.
        checks: exact checks that refute steps, which are then given up unscored: all, none, names with commas between them (as for
            `stepmark.grade`), or auto, which is all with the default PRM and none with any other.
        budget: tokens that one problem may cost: written by the policy and read by the PRM. No request is made beyond it.
        verifier: what says whether answers are equal, for votes, `verify` and how many are right: math, number, choice, text, code, or "package.module:Class".
        answers: which answers of a solution count: stated, also its concluding statement; marked, only a box, ####, "the answer is".
        isolation: with the verifier code, what keeps programs apart: bubblewrap, a sandbox; or unsafe, which is none: they can use the
            network and your files. Default: bubblewrap.
        columns: names of columns, where they differ: problem=question,answer=gold.
        keep_going: leave out problems that cannot be searched, and list them at the end.
        in_flight: problems that are searched at once: more fill a server better and take more memory.
        memory_tokens: tokens whose keys and values the PRM keeps at most. Default: 65,536.
        policy_memory_tokens: tokens whose keys and values a policy in this process keeps at most; 0 keeps none.
        cluster: spread the work over a Ray cluster.
        progress: show how far the run is, on standard error.

    Returns:
        What was found of each problem, in their order. With `out` it is read from that file, without the trees.

    Raises:
        InputError: a problem that cannot be searched (unless `keep_going`), or no problems.
        UsageError: a setting that cannot work, an output that is an input, or a part of a run with other settings or another model.
        BackendError: the policy, the PRM or the verifier failed; what was done is kept beside `out`.
    """
    if checks != "auto":
        check_names(checks)
    files = {"out": out, "trace": trace, "report": report}
    check_files(files, problems)
    searcher, source = load_search(method, settings)
    given = run_input(problems, hashed=out is not None)
    keeps_trees = out is None or trace is not None or report is not None
    models = _Models(searcher, policy, prm, memory_tokens, policy_memory_tokens, cluster)
    limits = {"aggregate": aggregate, "checks": checks, "budget": budget}
    judge = verifier_facts(verifier, answers, isolation)
    facts = {
        "command": "search",
        "method": _method_facts(searcher),
        **({} if source is None else {"source": dict(source)}),
        "settings": {**limits, **judge, "columns": columns, "trace": keeps_trees},
    }
    tally = _SearchCounts()
    records: list[SearchResult] = []
    with ExitStack() as stack:
        checker = stack.enter_context(
            open_verifier(verifier, answers=answers, isolation=isolation, shown=progress)
        )
        part = stack.enter_context(PartFile(out, facts))
        models.load(stack, most=in_flight)
        part.identify(models.identities())
        if progress and (whole := models.loaded.facts.get("prm.whole_prefixes")):
            sys.stderr.write(f"the PRM reads the whole prefix for every step: {whole}\n")
        fitted = _fitted(searcher, models.loaded, aggregate, checks, Budget(tokens=budget))
        store = stack.enter_context(open_replies(out))
        shown = Progress(
            given.rows,
            tokens=lambda: models.written + models.read,
            verb="searched",
            facts=models.facts,
            noun="problem",
            together=in_flight,
            shown=progress,
        )
        asked = (
            CachedPolicy(models.loaded.policy, store, observe=lambda _: shown.tick()),
            cached_prm(models.loaded.prm, searcher.name, store),
            CachedVerifier(BatchVerifier(checker), store),
        )

        def searched(problems: Iterator[Problem]) -> Iterator[SearchResult | Refusal]:
            for _, result in run_tasks(
                problems, lambda problem: search_one(problem, fitted, *asked), in_flight=in_flight
            ):
                yield result

        def kept(_: Problem, result: SearchResult | Refusal) -> dict[str, Any]:
            return _line(result, trace=keeps_trees)

        with working(part, shown, given, keep_going=keep_going):
            read = problem_rows(given.source, columns=columns, need_answer=False)
            given_problems = (row if isinstance(row, InputError) else row.problem for row in read)
            rows = usable(given_problems, keep_going=keep_going)
            for _, line, result in resumed(part, rows, _key, searched, kept, keep_going=keep_going):
                tally.add(line, checker)
                shown.advance(fresh=result is not None)
                if out is None and isinstance(result, SearchResult):
                    records.append(result)
        if tally.problems == 0:
            raise nothing_done(part, "no problem could be searched", tally.refused, given)

        def lines() -> Iterator[dict[str, Any]]:
            return part.results() if out is not None else (_line(record, trace=True) for record in records)

        if report is not None:
            # Before the part is dropped: a run that is killed here has it to resume from.
            write_page(report, lines(), given.name, models.prm_name, models.threshold, checker)
        if out is not None:
            traces = {} if trace is None else {trace: partial(_row, "trace")}
            part.finish({"input": given.manifest, **asdict(tally)}, {**traces, out: partial(_row, "found")})
        elif trace is not None:
            with atomic_rows(trace) as write:
                for line in lines():
                    write(line["trace"])
        files_written = [str(path) for path in (out, trace, report) if path is not None]
        summary = _summary(tally, models.saved, files_written, out)
    written = None if out is None else Path(out)
    return Results(
        (lambda: iter(records)) if written is None else lambda: read_found(written),
        tally.problems,
        out=written,
        refused=tally.refused,
        manifest={**part.manifest, "input": given.manifest, "threshold": models.threshold},
        summary=summary,
    )


@dataclass(kw_only=True, slots=True)
class _SearchCounts:
    """What the summary counts."""

    problems: int = 0
    finished: int = 0
    unfinished: int = 0
    none: int = 0
    stopped: dict[str, int] = field(default_factory=dict)
    right: int = 0
    wrong: int = 0
    no_verdict: int = 0
    """Of problems with a reference answer: whose chosen solution is right; wrong, unfinished or missing; not decided."""
    decoded: int | None = 0
    read: int | None = 0
    refused: list[str] = field(default_factory=list)

    def add(self, row: Mapping[str, Any] | InputError, verifier: Verifier) -> None:
        """Count the result of a problem, or a row that has none."""
        if isinstance(row, InputError):
            self.refused.append(str(row))
            return
        result = row["found"]
        self.problems += 1
        chosen = None if result["chosen"] is None else result["candidates"][result["chosen"]]
        self.none += chosen is None
        self.finished += chosen is not None and chosen["finished"]
        self.unfinished += chosen is not None and not chosen["finished"]
        self.stopped[result["stopped"]] = self.stopped.get(result["stopped"], 0) + 1
        self.decoded = tree.added(self.decoded, result["cost"]["decoded"])
        self.read = tree.added(self.read, result["cost"]["prm"])
        gold = result["problem"].get("answer")
        if gold:
            right: bool | None = False
            if chosen is not None and chosen["finished"]:
                right = verifier.verify(chosen["text"], gold).correct
            self.right += right is True
            self.wrong += right is False
            self.no_verdict += right is None


class _Models:
    """The policy and the PRM of a run, in this process or on the workers of a cluster; checked when this is made, loaded by `load`."""

    def __init__(
        self,
        searcher: Search,
        policy: PolicyLike,
        prm: PRMLike,
        memory_tokens: int | None,
        policy_memory_tokens: int,
        cluster: Cluster | None,
    ) -> None:
        self._cluster = cluster if cluster is not None and cluster.ray is not None else None
        self._memory_tokens = memory_tokens
        self._policy_memory_tokens = policy_memory_tokens
        self._name = searcher.name
        self._policy = policy_of(policy)
        self._prm = (lazy_prm(prm) if isinstance(prm, str) else prm) if searcher.asks_prm else None
        check_models(cluster, self._policy, self._prm)
        self.loaded = Models(policy=Missing("policy"))
        self.threshold: float | None = None
        self.prm_name: str | None = None

    def load(self, stack: ExitStack, *, most: int) -> None:
        """Load both, and what must be known of them."""
        if self._cluster is None:
            prm = self._prm.load() if isinstance(self._prm, Lazy) else self._prm
            policy = self._policy
            if isinstance(policy, Lazy):
                policy = policy.with_arguments(counts=True, memory_tokens=self._policy_memory_tokens).load()
            self.loaded = models_of(policy, prm, memory_tokens=self._memory_tokens)
        else:
            assert isinstance(self._policy, Lazy)
            assert self._prm is None or isinstance(self._prm, Lazy)
            arguments = {
                "policy": self._policy.name,
                "policy_arguments": json.dumps(arguments_of(self._policy)),
                "prm": None if self._prm is None else self._prm.name,
                "prm_arguments": json.dumps(arguments_of(self._prm)),
                "memory_tokens": self._memory_tokens,
                "policy_memory_tokens": self._policy_memory_tokens,
            }
            # A problem stays with the worker that has read it.
            workers = stack.enter_context(self._cluster.start(BUILD, arguments, most=most, homes=True))
            self.loaded = Models(
                policy=RayModel(workers, Completions),
                prm=None if self._prm is None else RayModel(workers, ScoreRequest),
                facts=workers.facts,
                counters=lambda: workers.counters,
            )
        if self._prm is not None:
            threshold = self.loaded.facts["prm.threshold"]
            assert threshold is None or isinstance(threshold, int | float)
            self.threshold = threshold
            self.prm_name = str(self.loaded.facts["prm.name"])

    def identities(self) -> dict[str, str]:
        """The identities of both, as manifests name them."""
        asked = {"policy": self.loaded.policy, "prm": self.loaded.prm}
        return {which: model.identity for which, model in asked.items() if model is not None}

    @property
    def written(self) -> int:
        """Tokens that the policy has written."""
        return self.loaded.counters().get("policy.written", 0)

    @property
    def read(self) -> int:
        """Tokens that the PRM has computed or written."""
        return self.loaded.counters().get("prm.read", 0)

    @property
    def saved(self) -> str:
        """What a policy in a process of ours has computed of its prompts, for people; "" for others."""
        counted = self.loaded.counters()
        if not counted.get("policy.given"):
            return ""
        forgotten = counted.get("policy.again", 0)
        again = f", {forgotten:,} of them again: raise `policy_memory_tokens`" if forgotten else ""
        return f"policy prompts: {counted['policy.given']:,} tokens, {counted['policy.computed']:,} computed{again}"

    def facts(self) -> Sequence[str]:
        """What progress reports."""
        return (f"{amount(self.written, 'token')} written", f"{self.read:,} read by the PRM")


def _row(key: str, line: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a result has for the file of solutions (`found`) or of trees (`trace`)."""
    return [line[key]]


def _key(problem: Problem) -> str:
    return row_key(asdict(problem))


def _line(result: SearchResult | Refusal, *, trace: bool) -> dict[str, Any]:
    """The result of one problem.

    Raises:
        InputError: it cannot be searched.
    """
    if isinstance(result, Refusal):
        raise result.error
    return {"found": found_row(result), "trace": trace_row(result) if trace else None}


def cached_prm(prm: StepScoring | None, name: str, store: ReplyStore | None) -> StepScoring:
    """A PRM whose scores are recorded; without one, what refuses a search that asks for a score all the same."""
    return _NoPRM(name) if prm is None else CachedPRM(prm, store)


class _NoPRM(Missing):
    """For a search that declares that it asks for no score."""

    def __init__(self, name: str) -> None:
        super().__init__("prm")
        self._name = name

    def refuse(self) -> NoReturn:
        raise UsageError(
            f"the search {self._name} asked for a score, and its class says asks_prm = False, so that no PRM was loaded. Leave asks_prm out of "
            "the class, or give its Tree scored=False"
        )


def _method_facts(searcher: Search) -> dict[str, Any]:
    fields_ = asdict(searcher)  # type: ignore[call-overload]
    return {"name": searcher.name, **{key: value for key, value in fields_.items() if key not in OF_THE_RUN}}


def _fitted(
    searcher: Search,
    models: Models,
    aggregate: str | None,
    checks: str,
    budget: Budget,
) -> Search:
    """The search with the aggregate, the kind of scores and the budget of this run."""
    if checks == "auto":
        checks = str(models.facts.get("prm.checks", "none"))
    grading = Grading(checks=checks)
    if "prm.name" in models.facts:
        kind = cast(ScoreKind, models.facts["prm.score_kind"])
        grading = Grading(
            aggregate=resolve_aggregate(aggregate, str(models.facts["prm.aggregate"]), kind),
            kind=kind,
            checks=checks,
        )
    return remade(searcher, grading=grading, budget=budget)


def _summary(tally: _SearchCounts, saved: str, written: Sequence[str], out: str | Path | None) -> str:
    """What a run came to, for people."""
    lines = [
        f"{amount(tally.problems, 'problem')}: {tally.finished:,} with a solution, {tally.unfinished:,} with an unfinished one, "
        f"{tally.none:,} with none; stopped: "
        + ", ".join(f"{count:,} {why}" for why, count in sorted(tally.stopped.items())),
        f"{amount(tally.decoded, 'token')} written, {count_of(tally.read)} read by the PRM",
    ]
    if judged := tally.right + tally.wrong + tally.no_verdict:
        unknown = f", {tally.no_verdict:,} without a verdict" if tally.no_verdict else ""
        lines.append(f"right by the reference answer: {tally.right:,} of {judged:,}{unknown}")
    if saved:
        lines.append(saved)
    if tally.refused:
        lines += [
            f"left out {amount(len(tally.refused), 'problem')}:",
            *(f"  {why}" for why in tally.refused),
        ]
    if written:
        *most, last = written
        files = f"{', '.join(most)} and {last}" if most else last
        lines.append(
            f"wrote {files}" + ("" if out is None else f"; replies are kept in {out}.replies.sqlite")
        )
    return "\n".join(lines)


def count_of(tokens: int | None) -> str:
    """A number of tokens for people."""
    return "an unknown number of" if tokens is None else f"{tokens:,}"


def run(
    problems: Iterable[Problem],
    search: Search,
    models: Models,
    verifier: Verifier,
    *,
    store: ReplyStore | None = None,
    in_flight: int = 16,
) -> Iterator[SearchResult | Refusal]:
    """Search a stream of problems: one result each, in their order.

    Raises:
        BackendError: the policy, the PRM or the verifier failed; all replies so far are in the store.
        UsageError: the search asks for what nothing here answers, or a budget cannot be kept.
    """
    policy = CachedPolicy(models.policy, store)
    prm = cached_prm(models.prm, search.name, store)
    answers = CachedVerifier(BatchVerifier(verifier), store)
    for _, result in run_tasks(
        problems, lambda problem: search_one(problem, search, policy, prm, answers), in_flight=in_flight
    ):
        yield result


async def search_one(
    problem: Problem, search: Search, policy: Completing, prm: StepScoring, verifier: Verifying
) -> SearchResult | Refusal:
    """One problem's search; that it cannot be searched is a result and costs the others nothing."""
    searching = search.search(problem, policy, prm, verifier)
    if not inspect.isawaitable(searching):
        raise UsageError(
            f"the search {search.name}: expected `async def search(problem, policy, prm, verifier)`, which returns a SearchResult, and got "
            f"{type(searching).__name__}"
        )
    try:
        result = await searching
    except InputError as error:
        place = error if problem.id is None else error.at(problem.id)
        return Refusal(solution=Solution(problem=problem, steps=()), error=place)
    if not isinstance(result, SearchResult):
        raise UsageError(
            f"the search {search.name}: expected search to return a SearchResult, as `return await choose(…)` does, and got "
            f"{type(result).__name__}"
        )
    return result


@dataclass(frozen=True, kw_only=True)
class Models:
    """A policy and a PRM for searches."""

    policy: Completing
    prm: StepScoring | None = None
    """None where the search asks none."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Of the PRM; `prm.whole_prefixes` is why it must read whole prefixes, "" where it need not."""
    counters: Callable[[], Mapping[str, int]] = dict
    """What both have spent so far."""


def models_of(
    policy: Policy, prm: PRM | None, *, session: Session | None = None, memory_tokens: int | None = None
) -> Models:
    """A policy and a PRM of this process; `memory_tokens` are those that a session of the PRM keeps, where none is open."""
    facts: dict[str, Fact] = {}
    if prm is not None:
        facts = {
            "prm.name": prm.name,
            "prm.score_kind": prm.score_kind,
            "prm.aggregate": prm.default_aggregate,
            "prm.threshold": prm.default_threshold,
            "prm.checks": prm.default_checks,
            "prm.whole_prefixes": why_whole_prefixes(prm),
        }

    def counters() -> dict[str, int]:
        counts = {"policy.written": policy.tokens_written}
        if prm is not None:
            counts["prm.read"] = prm.ledger.tokens_computed + prm.ledger.tokens_written
        reading = reading_of(policy)
        if reading is not None:
            counts |= {
                "policy.given": reading.given,
                "policy.computed": reading.computed,
                "policy.again": reading.again,
            }
        return counts

    return Models(
        policy=policy,
        prm=None if prm is None else scorer(prm, session=session, memory_tokens=memory_tokens),
        facts=facts,
        counters=counters,
    )


def build(
    *,
    policy: str,
    policy_arguments: str,
    prm: str | None,
    prm_arguments: str,
    memory_tokens: int | None = None,
    policy_memory_tokens: int = 0,
) -> WorkerModels:
    """A policy and a PRM by their names, on a worker; their other arguments are JSON. See `load_policy` and `load_prm`."""
    from stepmark.models.load import load_prm
    from stepmark.models.policies import load_policy

    judge = None if prm is None else load_prm(prm, **json.loads(prm_arguments))
    writer = load_policy(
        policy, **{**json.loads(policy_arguments), "counts": True, "memory_tokens": policy_memory_tokens}
    )
    session = None if judge is None else judge.open_session(memory_tokens=memory_tokens)
    models = models_of(writer, judge, session=session)
    answers = policy_answers(writer)
    if judge is not None and session is not None:
        answers[ScoreRequest] = identity_of(judge), session.score
        answers[Release] = identity_of(judge), session.release
    return WorkerModels(answers=answers, facts=models.facts, counters=models.counters)
