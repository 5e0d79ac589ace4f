"""What answers the requests of a run: models in this process, or on the workers of a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from stepmark.cli.prm_flags import check_device
from stepmark.errors import UsageError

if TYPE_CHECKING:
    from stepmark.batching import Answerer
    from stepmark.batching.cluster import RayWorkers
    from stepmark.models.policies import Dtype
    from stepmark.problems.code_sandbox import Isolation

RAY = ("ray", "ray_workers", "ray_cpus", "ray_gpus")
"""The options about a cluster. They decide no result: a run may be begun on a cluster and continued without one, or with another."""


class RayOptions(Protocol):
    """The options of a command that may use a cluster."""

    @property
    def ray(self) -> str | None:
        """The cluster's address; None for none."""

    @property
    def ray_workers(self) -> int | None:
        """How many workers; None for as many as have room."""

    @property
    def ray_cpus(self) -> float:
        """Processors of each."""

    @property
    def ray_gpus(self) -> float:
        """GPUs of each."""

    @property
    def device(self) -> str:
        """Where models run."""


class AnsweringOptions(RayOptions, Protocol):
    """The options of a command whose policy writes and whose verifier compares."""

    @property
    def in_flight(self) -> int:
        """Methods that are asked for at once."""

    @property
    def dtype(self) -> Dtype:
        """Of a local policy."""

    @property
    def percent(self) -> Literal["distinct", "sign"]:
        """How a verifier reads percent signs."""

    @property
    def isolation(self) -> Isolation | None:
        """What keeps the programs of the verifier `code` apart; None where no programs run, see `isolated`."""


class VerifierOptions(Protocol):
    """The options of a command that may run programs, a frozen dataclass."""

    @property
    def verifier(self) -> str:
        """Its name."""

    @property
    def isolation(self) -> Isolation | None:
        """As the flag says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answering:
    """Answerers, and what the run says about them."""

    answerers: Mapping[type, Answerer]
    tokens_written: Callable[[], int]
    """Tokens that the policy has written so far."""


def models_of(answerers: Mapping[type, Answerer]) -> dict[str, str]:
    """The identities of the policy and the PRM among what answers, as manifests name them."""
    from stepmark.batching import Score, Write

    asked = (("policy", Write), ("prm", Score))
    return {which: answerers[kind].identity for which, kind in asked if kind in answerers}


def check_ray(options: RayOptions) -> None:
    """Refuse flags about workers that cannot work.

    Raises:
        UsageError: a number out of its range, workers without a cluster, or a GPU wanted and none given.
    """
    if options.ray is None:
        if options.ray_workers is not None or options.ray_cpus != 1 or options.ray_gpus != 0:
            raise UsageError(
                "--ray-workers, --ray-cpus and --ray-gpus are about a cluster: give --ray ADDRESS too"
            )
        return
    if options.ray_workers is not None and options.ray_workers < 1:
        raise UsageError(f"--ray-workers {options.ray_workers}: expected 1 or more")
    if not 0 < options.ray_cpus < float("inf"):
        raise UsageError(f"--ray-cpus {options.ray_cpus}: expected more than 0")
    if not 0 <= options.ray_gpus < float("inf"):
        raise UsageError(f"--ray-gpus {options.ray_gpus}: expected 0 or more")
    if options.device.startswith("cuda") and options.ray_gpus == 0:
        raise UsageError("--device cuda: a worker sees no GPU that it is not given; add --ray-gpus 1")


_Options = TypeVar("_Options", bound=VerifierOptions)


def checked_isolation(
    verifier: str | None, isolation: Isolation | None, *, here: bool = True
) -> Isolation | None:
    """What keeps the programs of a run apart from this machine; None where no programs run. Prints it on standard error.

    Args:
        verifier: its name; None for none.
        isolation: as the flag says.
        here: programs run on this machine; False: on the workers of a cluster, each of which tries the isolation itself.

    Raises:
        UsageError: an isolation that does not work on this machine, or for a verifier that runs no programs.
    """
    from stepmark.problems.answers import isolation_note, isolation_of, load_verifier

    found = isolation_of(verifier, isolation)
    if found is not None:
        assert verifier is not None
        if here:
            load_verifier(verifier, isolation=found).close()
        print(isolation_note(found), file=sys.stderr)
    return found


def isolated(options: _Options, *, here: bool = True) -> _Options:
    """The options with the isolation filled in, see `checked_isolation`."""
    isolation = checked_isolation(options.verifier, options.isolation, here=here)
    return replace(options, isolation=isolation)  # type: ignore[type-var]


class ComputingOptions(Protocol):
    """The options of a command whose models may compute in this process."""

    @property
    def dtype(self) -> Dtype:
        """Their precision."""

    @property
    def device(self) -> str:
        """Where they compute."""


def check_computing(
    options: ComputingOptions,
    *,
    policy: str | None,
    prm: str | None = None,
    family: str | None = None,
    tokenizer: str | None = None,
) -> None:
    """Refuse a device that is none, and --dtype and --device where no model computes in this process.

    Args:
        options: the flags.
        policy: its address; None where none is asked.
        prm: its name; None where none is asked.
        family: of the PRM, as given.
        tokenizer: of the PRM, as given.

    Raises:
        UsageError: as above; a model that computes elsewhere passes them over in silence.
        CheckpointError: what the PRM's checkpoint says of itself cannot be read.
    """
    from stepmark.models.named import idle_settings, is_server, refuse_idle
    from stepmark.models.policies import in_process

    check_device(options.device)
    if policy is not None and in_process(policy):
        return
    if prm is not None and "dtype" not in idle_settings(prm, family=family, tokenizer=tokenizer):
        return
    elsewhere = [
        f"the {what} {name} " + ("computes on its server" if is_server(name) else "is made by that function")
        for what, name in (("policy", policy), ("PRM", prm))
        if name is not None
    ]
    why = f"{' and '.join(elsewhere) or 'no model is asked'}: leave it out"
    refuse_idle({"dtype": options.dtype, "device": options.device}, dict.fromkeys(("dtype", "device"), why))


def ray_workers(
    options: RayOptions,
    function: str,
    settings: Mapping[str, str | int | float | bool | None],
    *,
    most: int,
    homes: bool = False,
) -> RayWorkers:
    """The workers of a run on a cluster, for a `with`; what happens to them is told on standard error.

    Args:
        options: the flags; `ray` is given.
        function: what each worker builds its answerers with, as `batching.cluster.Build` names it.
        settings: its arguments.
        most: how many there are at most where the flags do not say how many.
        homes: see `batching.spreading.Spreading`.

    Raises:
        StepmarkError: see `batching.cluster.RayWorkers`.
    """
    from stepmark.batching.cluster import Build, RayWorkers

    assert options.ray is not None
    return RayWorkers(
        Build(function=function, settings=settings),
        address=options.ray,
        workers=options.ray_workers,
        most=most,
        cpus=options.ray_cpus,
        gpus=options.ray_gpus,
        homes=homes,
        tell=lambda line: print(f"ray: {line}", file=sys.stderr, flush=True),
    )


@contextmanager
def answering(options: AnsweringOptions, *, policy: str | None, verifier: str | None) -> Iterator[Answering]:
    """Load what answers, here or on a cluster, and let it go afterwards.

    Args:
        options: the flags.
        policy: its address; None where none is asked.
        verifier: its name; None where no verdicts are asked for.
    """
    if options.ray is None or (policy is None and verifier is None):
        with _here(options, policy, verifier) as found:
            yield found
        return
    from stepmark.labels.workers import BUILD

    settings = {
        "policy": policy,
        "verifier": verifier,
        "dtype": options.dtype,
        "device": options.device,
        "percent": options.percent,
        "isolation": options.isolation,
    }
    with ray_workers(options, BUILD, settings, most=options.in_flight) as workers:
        yield Answering(answerers=workers.answerers, tokens_written=lambda: workers.tokens_written)


@contextmanager
def _here(options: AnsweringOptions, policy: str | None, verifier: str | None) -> Iterator[Answering]:
    from stepmark.models import policies
    from stepmark.problems import answers

    found: dict[type, Answerer] = {}
    if verifier is None:
        judge = None
    else:
        judge = answers.load_verifier(verifier, percent=options.percent, isolation=options.isolation)
        found |= answers.answerers(judge)
    try:
        writer = None
        if policy is not None:
            writer = policies.load_policy(policy, dtype=options.dtype, device=options.device)
            found |= policies.answerers(writer)
        yield Answering(answerers=found, tokens_written=lambda: writer.tokens_written if writer else 0)
    finally:
        if judge is not None:
            judge.close()
