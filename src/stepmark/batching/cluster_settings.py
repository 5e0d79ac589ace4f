"""The settings of a Ray cluster, which every command that may use one shares."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from stepmark.errors import UsageError
from stepmark.settings import settings

if TYPE_CHECKING:
    from stepmark.batching.cluster import Build, RayWorkers


@settings
class Cluster:
    """A Ray cluster, and what each of its workers is given. They decide no result: a run may be continued with others or without."""

    ray: str | None = None
    """Spread the work over a Ray cluster: auto (the one this machine is in), HOST:PORT, ray://HOST:PORT, or local."""
    ray_workers: Annotated[int, Field(ge=1)] | None = None
    """Workers on the cluster, each with its own models. Default: as many as have room now."""
    ray_cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1
    """Processors that each worker is given, and threads of its models."""
    ray_gpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    """GPUs that each worker is given; 0.5 puts two on one."""

    def check(self, device: str = "auto") -> None:
        """Refuse settings that do not go together.

        Args:
            device: where the workers' models run.

        Raises:
            UsageError: settings of workers without a cluster, or a GPU that no worker is given.
        """
        if self.ray is None:
            if self != Cluster():
                raise UsageError(
                    "`ray_workers`, `ray_cpus` and `ray_gpus` are about a cluster: give `ray` ADDRESS too"
                )
            return
        if device.startswith("cuda") and self.ray_gpus == 0:
            raise UsageError("`device` cuda: a worker sees no GPU that it is not given; set `ray_gpus` to 1")

    def start(self, build: Build, *, most: int, homes: bool = False) -> RayWorkers:
        """The workers of a run, for a `with`; what happens to them is reported on standard error.

        Args:
            build: what each worker builds its answerers with.
            most: how many there are at most where `ray_workers` is None.
            homes: see `batching.spreading.Spreading`.

        Raises:
            StepmarkError: see `batching.cluster.RayWorkers`.
        """
        from stepmark.batching.cluster import RayWorkers

        assert self.ray is not None
        return RayWorkers(
            build,
            address=self.ray,
            workers=self.ray_workers,
            most=most,
            cpus=self.ray_cpus,
            gpus=self.ray_gpus,
            homes=homes,
            tell=_report,
        )


def _report(line: str) -> None:
    sys.stderr.write(f"ray: {line}\n")
    sys.stderr.flush()
