"""What answers the requests of a run: a policy and a verifier in this process, or on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepmark.errors import UsageError

if TYPE_CHECKING:
    from stepmark.batching import Answerer
    from stepmark.cli.labelling import LabelOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Answering:
    """Answerers, and what the run says about them."""

    answerers: Mapping[type, Answerer]
    tokens_written: Callable[[], int]
    """Tokens that the policy has written so far."""


def check_ray(options: LabelOptions) -> None:
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


@contextmanager
def answering(options: LabelOptions, *, needs_policy: bool, needs_verifier: bool) -> Iterator[Answering]:
    """Load what answers, here or on a cluster, and let it go afterwards.

    Args:
        options: the flags.
        needs_policy: whether a policy is asked.
        needs_verifier: whether verdicts are asked for.
    """
    policy = options.policy if needs_policy else None
    verifier = options.verifier if needs_verifier else None
    if options.ray is None or (policy is None and verifier is None):
        with _here(options, policy, verifier) as found:
            yield found
        return
    from stepmark.batching.cluster import Build, RayWorkers
    from stepmark.labels.workers import BUILD

    settings = {
        "policy": policy,
        "verifier": verifier,
        "dtype": options.dtype,
        "device": options.device,
        "percent": options.percent,
    }
    with RayWorkers(
        Build(function=BUILD, settings=settings),
        address=options.ray,
        workers=options.ray_workers,
        most=options.in_flight,
        cpus=options.ray_cpus,
        gpus=options.ray_gpus,
        tell=lambda line: print(f"ray: {line}", file=sys.stderr, flush=True),
    ) as workers:
        yield Answering(answerers=workers.answerers, tokens_written=lambda: workers.tokens_written)


@contextmanager
def _here(options: LabelOptions, policy: str | None, verifier: str | None) -> Iterator[Answering]:
    from stepmark.models import policies
    from stepmark.problems import answers

    found: dict[type, Answerer] = {}
    if verifier is None:
        judge = None
    else:
        judge = answers.load_verifier(verifier, percent=options.percent)
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
