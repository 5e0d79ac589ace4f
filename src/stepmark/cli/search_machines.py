"""What a run of `stepmark search` is given: its options; and what it runs with: policy, PRM, verifier, and the search fitted to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, cast

from cyclopts import Parameter

from stepmark.batching import Answerer, Score
from stepmark.cli.answering import ray_workers
from stepmark.cli.flags import Flag
from stepmark.errors import UsageError
from stepmark.problems.code_sandbox import Isolation
from stepmark.records import ScoreKind
from stepmark.search.remaking import remade
from stepmark.search.searching import Budget, Grading, ModelSize, Search, Sizes, Steps

if TYPE_CHECKING:
    from stepmark.batching import Ready
    from stepmark.batching.cluster_worker import Fact


_OF_MODELS = (
    "policy",
    "family",
    "tokenizer",
    "dtype",
    "device",
    "memory_tokens",
    "policy_memory_tokens",
)
"""The options that models are loaded by, beside --prm."""


class Method(Search, Protocol):
    """A search whose settings the command line fills in."""

    @property
    def how(self) -> Steps:
        """How the policy writes."""

    @property
    def asks_prm(self) -> bool:
        """Whether it asks a PRM, which else is not loaded."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """What every method takes."""

    policy: str
    """The policy that writes: a model's folder or hub name, http://HOST/v1#MODEL, or "package.module:factory"."""
    prm: str = "default"
    """The PRM: "default", a checkpoint's folder or hub name, a server's address, or "package.module:factory"."""
    family: str | None = None
    """How the PRM is read (`stepmark families` lists them). Left out: told from the checkpoint."""
    tokenizer: str | None = None
    """For a PRM behind a server: folder or hub name of its tokenizer."""
    problem: str | None = None
    """Instead of FILE: one problem, whose solution is printed."""
    out: str | None = None
    """Write what is found to this file, one JSON line a problem, packed if it ends in .gz."""
    trace: str | None = None
    """Write the trees to this file, one JSON line a problem, packed if it ends in .gz."""
    report: str | None = None
    """Draw the trees on this HTML page, one file that works without a network."""
    aggregate: str | None = None
    """How step scores make one number: product, min, mean, last, max, sum-logit, softmin. Left out: the PRM's own."""
    budget: int | None = None
    """Tokens that one problem may cost: written by the policy and read by the PRM. No request is made beyond it."""
    budget_flops: float | None = None
    """Floating-point operations that one problem may cost; of models behind a server it needs their --…-parameters."""
    policy_parameters: float | None = None
    """Weights of the policy, to count operations: 1.5e9, without the table of embeddings. Left out: counted, of a model in this process."""
    prm_parameters: float | None = None
    """Weights of the PRM, to count operations. Left out: counted, of a model in this process."""
    verifier: str = "math"
    """What says whether answers are equal, for votes and --verify: math, number, choice, text, code, or "package.module:Class"."""
    percent: Literal["distinct", "sign"] = "distinct"
    """Whether 10% is 1/10 only, or 10 too (GSM8K's references leave the sign out)."""
    isolation: Isolation | None = None
    """With --verifier code, what keeps programs apart: bubblewrap, a sandbox; or process, which is none: your files are open to them. Left out: bubblewrap."""
    in_flight: int = 16
    """Problems that are searched at once: more fill a server better and take more memory."""
    keep_going: Flag = False
    """Leave out problems that cannot be searched, and list them at the end."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of models in this process."""
    device: str = "auto"
    """Where they run: auto, cpu, cuda."""
    memory_tokens: int | None = None
    """Tokens whose keys and values the PRM keeps at most. Left out: 65,536."""
    policy_memory_tokens: int = 65_536
    """Tokens whose keys and values a policy in this process keeps at most; 0 keeps none."""
    ray: str | None = None
    """Spread the work over a Ray cluster: auto (the one this machine is in), HOST:PORT, ray://HOST:PORT, or local."""
    ray_workers: int | None = None
    """Workers on the cluster, each with its own policy and PRM. Left out: as many as have room now, at most --in-flight."""
    ray_cpus: float = 1
    """Processors that each worker is given, and threads of its models."""
    ray_gpus: float = 0
    """GPUs that each worker is given; 0.5 puts two on one."""

    @property
    def keeps_traces(self) -> bool:
        """Whether the trees are asked for."""
        return self.trace is not None or self.report is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorer:
    """The PRM of a run, as far as what it prints names it."""

    name: str
    threshold: float | None
    """The score under which a step is an error; None when its scores have no such point."""


class Machines:
    """Verifier, policy and PRM, the last two in this process or on the workers of a cluster; and the search with what it must know of them."""

    def __init__(self, search: Method, options: SearchOptions, stack: ExitStack) -> None:
        from stepmark.problems import answers
        from stepmark.search.workers import BUILD, build

        self.verifier = stack.enter_context(
            closing(
                answers.load_verifier(options.verifier, percent=options.percent, isolation=options.isolation)
            )
        )
        prm = options.prm if search.asks_prm else None
        if options.ray is None:
            made = build(prm=prm, **{name: getattr(options, name) for name in _OF_MODELS})
            found, self.facts, self._counters = made.answerers, made.facts, made.counters
        else:
            settings = {"prm": prm, **{name: getattr(options, name) for name in _OF_MODELS}}
            # A problem stays with the worker that has read it.
            workers = stack.enter_context(
                ray_workers(options, BUILD, settings, most=options.in_flight, homes=True)
            )
            found, self.facts, self._counters = workers.answerers, workers.facts, lambda: workers.counters
        self.answerers: dict[type, Answerer] = {**found, **answers.answerers(self.verifier)}
        self.scorer: Scorer | None = None
        if prm is None:
            self.answerers[Score] = _no_prm(search.name)
        else:
            threshold = self.facts["prm.threshold"]
            assert threshold is None or isinstance(threshold, int | float)
            self.scorer = Scorer(name=str(self.facts["prm.name"]), threshold=threshold)
        self.search = _fitted(search, options, self.facts, self._sizes(options))
        self.whole_prefixes = str(self.facts.get("prm.whole_prefixes", ""))

    @property
    def written(self) -> int:
        """Tokens that the policy has written."""
        return self._counters().get("policy.written", 0)

    @property
    def read(self) -> int:
        """Tokens that the PRM has computed or written."""
        return self._counters().get("prm.read", 0)

    @property
    def saved(self) -> str:
        """What a policy in a process of ours has computed of its prompts, for people; "" for others."""
        counted = self._counters()
        if not counted.get("policy.given"):
            return ""
        forgotten = counted.get("policy.again", 0)
        again = f", {forgotten:,} of them again: give it more --policy-memory-tokens" if forgotten else ""
        return f"the policy computed {counted['policy.computed']:,} of {counted['policy.given']:,} tokens of its prompts{again}"

    def told(self) -> Sequence[str]:
        """What progress tells."""
        return (f"{self.written:,} tokens written", f"{self.read:,} read by the PRM")

    def _sizes(self, options: SearchOptions) -> Sizes:
        """As the flags say, else of the models in processes of ours."""
        return Sizes(
            policy=self._size("policy", options.policy_parameters),
            prm=self._size("prm", options.prm_parameters),
        )

    def _size(self, which: str, given: float | None) -> ModelSize | None:
        if given is not None:
            return ModelSize(parameters=given)
        known, attention = (self.facts.get(f"{which}.{name}") for name in ("parameters", "attention"))
        if known is None:
            return None
        assert isinstance(known, int | float)
        assert isinstance(attention, int | float)
        return ModelSize(parameters=known, attention=attention)


def _no_prm(name: str) -> Answerer:
    """What answers a search for a score that said that it asks for none."""

    def answer(requests: Sequence[Any], ready: Ready) -> NoReturn:
        raise UsageError(
            f"the search {name} asked for a score, and its class says asks_prm = False, so that no PRM was loaded. Leave asks_prm out of "
            "the class, or give its Tree scored=False"
        )

    return Answerer(identity="no PRM", answer=answer)


def _fitted(search: Method, options: SearchOptions, facts: Mapping[str, Fact], sizes: Sizes) -> Method:
    """The search with the aggregate, the kind of scores, the budget and the sizes of this run."""
    grading = Grading()
    if "prm.name" in facts:
        how = str(facts["prm.aggregate"]) if options.aggregate is None else options.aggregate
        grading = Grading(aggregate=how, kind=cast(ScoreKind, facts["prm.score_kind"]))
    return remade(
        search,
        how=replace(search.how, stop=search.how.stop.replace("\\n", "\n")),  # as a shell passes it
        grading=grading,
        budget=Budget(tokens=options.budget, flops=options.budget_flops),
        sizes=sizes,
    )
