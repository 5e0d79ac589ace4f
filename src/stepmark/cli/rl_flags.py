"""The flags of `stepmark rl` that are not fields of `RL`: those of credit methods, of the implicit PRM, of the run."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from stepmark.cli.flags import Flag
from stepmark.errors import UsageError

if TYPE_CHECKING:
    from stepmark.rl.credit.methods import Credit
    from stepmark.rl.online import Implicit
    from stepmark.rl.refitted import Refitting
    from stepmark.rl.watched import Watch

FIELD_OF = {"min_temperature": "temperature"}
"""Flags that have another name than their field, because a setting of the run has it."""
NOT_HERE = {"root"}
"""Fields of methods that the command leaves at their default: `progress`'s values before the first step, which nobody gives it here."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class CreditFlags:
    """Settings of the credit method. Left out: the method's own."""

    scale: bool | None = None
    """outcome: divide by the group's standard deviation; without, Dr. GRPO."""
    deviation: Literal["sample", "population"] | None = None
    """outcome, process, papo, prime (the published code's form), ppo, step-ppo: the standard deviation to divide by, with N - 1 (as TRL and verl) or N."""
    process_weight: float | None = None
    """process (share of the PRM, from 0 to 1), prime, papo (weight): of process rewards."""
    outcome_weight: float | None = None
    """min-form, prime, step-ppo: weight of the verifier's outcome."""
    shaping: Literal["none", "clip", "delta", "zero-mean-wrong"] | None = None
    """process, step-ppo: what is done to step rewards first."""
    threshold: float | None = None
    """process, step-ppo: of --shaping clip."""
    min_temperature: float | None = None
    """min-form: of the soft minimum."""
    baseline: Literal["token", "step", "none"] | None = None
    """min-form: what is taken from step rewards."""
    centre: bool | None = None
    """min-form: make a margin 2 p - 1 of a probability."""
    alpha: float | None = None
    """progress: weight of progress."""
    form: Literal["paper", "code"] | None = None
    """prime: the paper's advantage or that of the published code."""
    normalise: bool | None = None
    """prime: divide token rewards by the batch's largest return."""
    gamma: float | None = None
    """prime (the paper's form), ppo, step-ppo: discount a token."""
    lam: float | None = None
    """ppo, step-ppo: of generalised advantage estimation."""
    whiten: bool | None = None
    """ppo, step-ppo: advantages with mean 0 and variance 1 over the batch."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class ImplicitFlags:
    """The online implicit PRM."""

    implicit: Flag = False
    """Train an implicit PRM beside the policy, on outcomes (PRIME)."""
    implicit_model: str | None = None
    """What it starts from: a folder or hub name with the policy's tokenizer. Left out: the policy's own start."""
    implicit_beta: float = 0.05
    """Of its reward beta x (log pi_phi - log pi_ref)."""
    implicit_learning_rate: float = 1e-6
    """Its learning rate; small networks take much more."""
    implicit_clip: float = 10.0
    """Its gradient's norm at most."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class RefitFlags:
    """Fitting the PRM anew."""

    refit_every: int | None = None
    """Label fresh completions by rollouts after every so many updates, train the PRM on them, and take it if it is not worse. Left out: never."""
    refit_problems: int = 64
    """Of a refit: problems whose solutions are trained on."""
    refit_held_out: int = 32
    """Of a refit: training problems kept for comparing the old PRM with the new one."""
    refit_completions: int = 2
    """Of a refit: solutions of each problem."""
    refit_rollouts: int = 8
    """Of a refit: rollouts from the end of each step."""
    refit_learning_rate: float | None = None
    """Of a refit. Left out: 2e-4 for adapters, 1e-5 with --refit-full."""
    refit_rank: int = 16
    """Of a refit: LoRA's rank over a PRM that is a whole checkpoint; a PRM that is an adapter goes on with its own."""
    refit_full: Flag = False
    """Of a refit: train all weights of a PRM that is a whole checkpoint."""
    refit_epochs: int = 1
    """Of a refit: passes over its solutions."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class RunFlags:
    """What is run with what."""

    held_out: str = "100"
    """Problems to measure on, which are not trained on: a file, or how many to take out of PROBLEMS."""
    verifier: str = "math"
    """What says whether an answer is right: math, number, choice, text, code, or "package.module:Class"."""
    percent: Literal["distinct", "sign"] = "distinct"
    """Whether 10% is 1/10 only, or 10 too."""
    prm: str | None = None
    """The PRM: "default", a checkpoint's folder or hub name, a server's address, or "package.module:factory". Methods that do not need one are watched with it."""
    family: str | None = None
    """How the PRM is read (`stepmark families` lists them). Left out: told from the checkpoint."""
    tokenizer: str | None = None
    """For a PRM behind a server: folder or hub name of its tokenizer."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the policy: as saved with LoRA, else float32, because small updates vanish in bfloat16."""
    device: str = "auto"
    """Where models run: auto, cpu, cuda."""
    no_reference: Flag = False
    """Keep no copy of the starting policy: less memory and time, and the KL is not known."""
    stop_on_hack: Flag = False
    """Stop at the monitor's alarm."""
    aggregate: str | None = None
    """How step scores make a solution's return in the monitor: product, min, mean, last, max, softmin. Left out: the PRM's own."""
    error_under: float | None = None
    """In the monitor, a step is an error under this score. Left out: the PRM's own threshold."""
    slack: float = 1.5
    """Of the alarm: how many standard errors of a gap between promise and outcome are noise."""
    limit: float = 2.0
    """Of the alarm: the sum of what is over the slack, in standard errors, over which it is raised."""
    probes: int = 32
    """Solutions of each evaluation of which null probes are made."""
    examples: int = 3
    """Solutions kept of each cell of the 2x2 at each evaluation."""


def credit_of(name: str, flags: CreditFlags) -> Credit:
    """The credit method with its settings.

    Raises:
        UsageError: a flag that is not of this method, or a name that is no method.
    """
    from stepmark.rl.credit.methods import CREDITS

    method: Any = CREDITS.load(name)
    settings: Any = fields(method) if is_dataclass(method) else None
    if settings is None:
        raise UsageError(f"--credit {name}: expected a dataclass with `needs` and `assign`, found {method!r}")
    known = {field.name for field in settings}
    given: dict[str, Any] = {}
    for field in fields(flags):
        value, target = getattr(flags, field.name), FIELD_OF.get(field.name, field.name)
        if value is None:
            continue
        if target not in known or target in NOT_HERE:
            raise UsageError(
                f"{_flag(field.name)} is not a setting of --credit {name}, which has {_settings(known)}"
            )
        given[target] = value
    made: Credit = method(**given)
    return made


def implicit_of(flags: ImplicitFlags, token_budget: int) -> Implicit | None:
    """The implicit PRM's settings; None when none is asked for.

    Raises:
        UsageError: a setting of it without --implicit, or one that cannot be.
    """
    if not flags.implicit:
        for field in fields(flags):
            if getattr(flags, field.name) != field.default:
                raise UsageError(f"{_flag(field.name)} is of the implicit PRM: add --implicit")
        return None
    from stepmark.rl.online import Implicit

    return Implicit(
        beta=flags.implicit_beta,
        learning_rate=flags.implicit_learning_rate,
        clip=flags.implicit_clip,
        token_budget=token_budget,
    )


def refit_of(flags: RefitFlags) -> Refitting | None:
    """How the PRM is fitted anew; None when it is not.

    Raises:
        UsageError: a setting of it without --refit-every, or one that cannot be.
    """
    if flags.refit_every is None:
        for field in fields(flags):
            if getattr(flags, field.name) != field.default:
                raise UsageError(f"{_flag(field.name)} is of refits: add --refit-every")
        return None
    from stepmark.rl.refitted import Refitting

    return Refitting(
        every=flags.refit_every,
        problems=flags.refit_problems,
        held_out=flags.refit_held_out,
        completions=flags.refit_completions,
        rollouts=flags.refit_rollouts,
        learning_rate=flags.refit_learning_rate,
        rank=None if flags.refit_full else flags.refit_rank,
        epochs=flags.refit_epochs,
    )


def watch_of(flags: RunFlags) -> Watch:
    """How the run is watched.

    Raises:
        UsageError: a setting that cannot be.
    """
    from stepmark.rl.hacking import Cusum
    from stepmark.rl.watched import Watch

    return Watch(
        cusum=Cusum(slack=flags.slack, limit=flags.limit),
        threshold=flags.error_under,
        aggregate=flags.aggregate,
        probes=flags.probes,
        examples=flags.examples,
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _settings(known: set[str]) -> str:
    names = {field: flag for flag, field in FIELD_OF.items()}
    return ", ".join(sorted(_flag(names.get(one, one)) for one in known - NOT_HERE)) or "none"
