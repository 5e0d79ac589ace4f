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
    """What a switch turns on, from its options, whose names begin with that of the switch; None where it is off."""
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


@opt.documented_by(train_policy)
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
    stop_on_hack: Annotated[bool, opt.in_common("--stop-on-hack")] = False,
    columns: opt.Columns | None = None,
    verifier: opt.Verifier = "math",
    answers: Annotated[Literal["stated", "marked"], opt.in_method("--answers")] = "marked",
    isolation: opt.IsolationOption | None = None,
    prm_options: Annotated[opt.PRMOptions, opt.without("prm")] = opt.PRMOptions(),
    training: Annotated[PolicyTraining, opt.FIELDS] = PolicyTraining(),
    threshold: Annotated[float | None, opt.in_method("--threshold")] = None,
    implicit: ImplicitOptions = ImplicitOptions(),
    refit: RefitOptions = RefitOptions(),
    no_reference: Annotated[bool, opt.in_method("--no-reference")] = False,
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], opt.in_machine("--dtype")] = "auto",
    device: Annotated[str, opt.in_machine("--device")] = "auto",
) -> int:
    """See `stepmark.train_policy`."""
    trained = train_policy(
        file,
        policy,
        None if prm is None else replace(prm_options, prm=prm).lazy(),
        out=out,
        credit=credit,
        settings=settings,
        held_out=int(held_out) if held_out is not None and held_out.isdigit() else held_out,
        training=training,
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
