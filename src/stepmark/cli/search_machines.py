"""What a run of `stepmark search` is given: its options; and what it runs with: policy, PRM, verifier, and the search fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from cyclopts import Parameter

from stepmark.batching import Answerer
from stepmark.cli.grade import Flag
from stepmark.search.searching import Budget, Grading, ModelSize, Search, Sizes, Steps

if TYPE_CHECKING:
    from stepmark.models.policies import Policy
    from stepmark.models.prm import PRM


class Method(Search, Protocol):
    """A search whose settings the command line fills in."""

    @property
    def how(self) -> Steps:
        """How the policy writes."""


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

    @property
    def keeps_traces(self) -> bool:
        """Whether the trees are asked for."""
        return self.trace is not None or self.report is not None


class Machines:
    """Policy, PRM, verifier, and the search with what it must know of them."""

    def __init__(self, search: Method, options: SearchOptions, stack: ExitStack, *, needs_prm: bool) -> None:
        from stepmark.models import policies, scorer
        from stepmark.models.load import load_prm
        from stepmark.problems import answers

        self.verifier = stack.enter_context(
            closing(answers.load_verifier(options.verifier, percent=options.percent))
        )
        self.prm: PRM | None = None
        if needs_prm:
            self.prm = load_prm(
                options.prm,
                family=options.family,
                tokenizer=options.tokenizer,
                dtype=options.dtype,
                device=options.device,
            )
        self.policy: Policy = policies.load_policy(
            options.policy,
            dtype=options.dtype,
            device=options.device,
            counts=True,
            memory_tokens=options.policy_memory_tokens,
        )
        self.search = _fitted(search, options, self.prm, self._sizes(options))
        self.answerers: dict[type, Answerer] = {
            **policies.answerers(self.policy),
            **answers.answerers(self.verifier),
        }
        self.whole_prefixes = ""
        if self.prm is not None:
            self.whole_prefixes = scorer.why_whole_prefixes(self.prm)
            self.answerers |= scorer.answerers(self.prm, memory_tokens=options.memory_tokens)

    @property
    def read(self) -> int:
        """Tokens that the PRM has computed or written."""
        return 0 if self.prm is None else self.prm.ledger.tokens_computed + self.prm.ledger.tokens_written

    @property
    def saved(self) -> str:
        """What a policy in this process has computed of its prompts, for people; "" for others."""
        from stepmark.models.policies import reading_of

        reading = reading_of(self.policy)
        if reading is None or not reading.given:
            return ""
        again = (
            f", {reading.again:,} of them again: give it more --policy-memory-tokens" if reading.again else ""
        )
        return f"the policy computed {reading.computed:,} of {reading.given:,} tokens of its prompts{again}"

    def facts(self) -> Sequence[str]:
        """What progress tells."""
        return (f"{self.policy.tokens_written:,} tokens written", f"{self.read:,} read by the PRM")

    def _sizes(self, options: SearchOptions) -> Sizes:
        """As the flags say, else of the models in this process."""
        from stepmark.models.sizes import weights_of

        found: list[ModelSize | None] = []
        for given, machine in (
            (options.policy_parameters, self.policy),
            (options.prm_parameters, self.prm),
        ):
            weights = None if given is not None or machine is None else weights_of(machine)
            if weights is not None:
                found.append(ModelSize(parameters=weights.parameters, attention=weights.attention))
            else:
                found.append(None if given is None else ModelSize(parameters=given))
        return Sizes(policy=found[0], prm=found[1])


def _fitted(search: Method, options: SearchOptions, prm: PRM | None, sizes: Sizes) -> Method:
    """The search with the aggregate, the kind of scores, the budget and the sizes of this run."""
    grading = Grading()
    if prm is not None:
        how = prm.default_aggregate if options.aggregate is None else options.aggregate
        grading = Grading(aggregate=how, kind=prm.score_kind)
    fitted: Method = replace(  # type: ignore[type-var]
        search,
        how=replace(search.how, stop=search.how.stop.replace("\\n", "\n")),  # as a shell passes it
        grading=grading,
        budget=Budget(tokens=options.budget, flops=options.budget_flops),
        sizes=sizes,
    )
    return fitted
