"""`stepmark rl`: the command of `stepmark.train_policy`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from stepmark.cli import options as opt
from stepmark.cli import print_note
from stepmark.errors import SettingError, UsageError
from stepmark.rl.run import train_policy
from stepmark.rl.settings import Implicit, PolicyTraining, Refitting


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ImplicitOptions:
    """An implicit PRM that is trained beside the policy (`rl.settings.Implicit`)."""

    implicit: Annotated[bool, opt.in_method("--implicit")] = False
    """Train an implicit PRM beside the policy, on outcomes (PRIME). Default: none."""
    implicit_beta: Annotated[float, opt.in_method("--implicit-beta")] = 0.05
    """Of the reward beta x (log pi_phi - log pi_ref) (PRIME's)."""
    implicit_learning_rate: Annotated[float, opt.in_method("--implicit-learning-rate")] = 1e-6
    """The implicit PRM's learning rate (PRIME's); small networks take much more."""
    implicit_clip: Annotated[float, opt.in_method("--implicit-clip")] = 10.0
    """Largest norm of the implicit PRM's gradient (PRIME's)."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RefitOptions:
    """Refits of the PRM (`rl.settings.Refitting`)."""

    refit: Annotated[bool, opt.in_method("--refit")] = False
    """Train the PRM, a LoRA adapter, further on rollouts of the policy from time to time. Default: never."""
    refit_every: Annotated[int, opt.in_method("--refit-every")] = 50
    """Updates between refits."""
    refit_problems: Annotated[int, opt.in_method("--refit-problems")] = 64
    """Problems of a refit whose solutions are trained on, drawn anew each time."""
    refit_held_out: Annotated[int, opt.in_method("--refit-held-out")] = 32
    """Problems on which the old and the new PRM are compared: the same each time, never trained on by the PRM."""
    refit_completions: Annotated[int, opt.in_method("--refit-completions")] = 2
    """Solutions of each problem of a refit."""
    refit_rollouts: Annotated[int, opt.in_method("--refit-rollouts")] = 8
    """Rollouts of a refit from the end of each step."""
    refit_learning_rate: Annotated[float | None, opt.in_method("--refit-learning-rate")] = None
    """Learning rate of a refit. Default: 2e-4."""
    refit_epochs: Annotated[int, opt.in_method("--refit-epochs")] = 1
    """Passes of a refit over its solutions."""


def _switched(kind: Any, switch: str, options: ImplicitOptions | RefitOptions) -> Any:
    """What a switch turns on, from its options, whose names begin with that of the switch; None where it is off.

    Raises:
        UsageError: an option without its switch.
    """
    if not vars(options)[switch]:
        idle = [name for name, value in vars(options).items() if value != vars(type(options)())[name]]
        if idle:
            raise UsageError(f"`{idle[0]}` needs `{switch}`: give both")
        return None
    values = {
        name.removeprefix(f"{switch}_"): value for name, value in vars(options).items() if name != switch
    }
    try:
        return kind(**values)
    except SettingError as error:
        raise SettingError(f"{switch}_{error.setting}", error.value, error.expected) from None


def rl_command(
    file: Annotated[opt.FileOrDash, Parameter(help=f"problems with reference answers: {opt.ROWS}")],
    /,
    *,
    policy: Annotated[str, opt.in_common("--policy")],
    prm: Annotated[str | None, opt.in_common("--prm")] = None,
    credit: Annotated[str | None, opt.in_common("--credit")] = None,
    settings: Annotated[tuple[str, ...], opt.in_common("--set")] = (),
    out: Annotated[opt.FileOrDash, opt.in_common("--out")],
    held_out: Annotated[opt.FileOrDash | None, opt.in_common("--held-out")] = None,
    updates: Annotated[int, opt.in_common("--updates")] = 100,
    learning_rate: Annotated[float | None, opt.in_common("--learning-rate")] = None,
    lora_rank: Annotated[int | None, opt.in_common("--lora-rank")] = None,
    stop_on_hack: Annotated[bool, opt.in_common("--stop-on-hack")] = False,
    columns: opt.Columns | None = None,
    verifier: opt.Verifier = "math",
    answers: Annotated[Literal["stated", "marked"], opt.in_method("--answers")] = "marked",
    isolation: opt.IsolationOption | None = None,
    prm_options: Annotated[opt.PRMOptions, opt.without("prm")] = opt.PRMOptions(),
    training: Annotated[
        PolicyTraining, opt.fields_but("updates", "learning_rate", "lora_rank", "token_budget")
    ] = PolicyTraining(),
    threshold: Annotated[float | None, opt.in_method("--threshold")] = None,
    implicit: ImplicitOptions = ImplicitOptions(),
    refit: RefitOptions = RefitOptions(),
    no_reference: Annotated[bool, opt.in_method("--no-reference")] = False,
    token_budget: Annotated[int, opt.in_machine("--token-budget")] = 8192,
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], opt.in_machine("--dtype")] = "auto",
    device: Annotated[str, opt.in_machine("--device")] = "auto",
) -> int:
    """Train a policy with process rewards, watched for reward hacking.

    The policy writes several solutions of each problem, a verifier compares their answers, the PRM scores their steps, and a credit method
    turns both into an advantage for each token. A run that is interrupted continues from the last saved update.

    Args:
        policy: the policy to train: a folder or hub name of a causal language model, or stepmark:arithmetic.
        prm: the PRM, as for stepmark grade. Beside a credit method that reads no steps it only watches. Default: none.
        credit: the credit method: grpo, rloo, process-grpo, min-form, progress, prime, ppo, discounted, mt-grpo, or "package.module:Class". Default: min-form with a PRM, prime with an implicit one, else grpo.
        settings: a field of the credit method, as name=value; repeat for several.
        out: folder of the run: the checkpoint of the last weights with its card, report.html, history.jsonl and monitor.jsonl; its folder best is the checkpoint with the best held-out accuracy before any alarm.
        held_out: problems to measure on, which are not trained on: how many to take out of the problems, or a file of others. Default: 100, at most a fifth of the problems.
        updates: rounds of sampling, scoring and learning.
        learning_rate: constant after the warm-up. Default: 1e-6 with all weights, 1e-5 with LoRA.
        lora_rank: rank of LoRA adapters. Default: all weights are trained.
        stop_on_hack: stop at the monitor's alarm.
        answers: which answers of a solution count: stated, also its concluding statement; marked, only a box, ####, "the answer is".
        threshold: in the monitor, a step whose score is under this is an error. Default: the PRM's own.
        no_reference: keep no copy of the starting policy: less memory and time, and the divergence from it is not known.
        token_budget: padded tokens a forward pass: bounds memory, changes no result.
        dtype: precision of the policy. auto: as saved with LoRA, else float32, because small updates vanish in bfloat16.
        device: where models run: auto, cpu, cuda or cuda:NUMBER.
    """
    trained = train_policy(
        file,
        policy,
        None if prm is None else replace(prm_options, prm=prm).lazy(),
        out=out,
        credit=credit,
        settings=settings,
        held_out=int(held_out) if held_out is not None and held_out.isdigit() else held_out,
        training=replace(
            training,
            updates=updates,
            learning_rate=learning_rate,
            lora_rank=lora_rank,
            token_budget=token_budget,
        ),
        stop_on_hack=stop_on_hack,
        verifier=verifier,
        answers=answers,
        isolation=isolation,
        columns=columns,
        threshold=threshold,
        implicit=_switched(Implicit, "implicit", implicit),
        refit=_switched(Refitting, "refit", refit),
        no_reference=no_reference,
        dtype=dtype,
        device=device,
    )
    print_note(trained.summary)
    return 0
