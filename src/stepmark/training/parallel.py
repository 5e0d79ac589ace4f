"""Several processes: each takes its share of an optimizer step's forward passes, and sums are added up by accelerate.

Sums of losses, labels and gradients are added over processes **before** the one division by all labels, so that any number of processes
takes the step that one would. With `shard`, the weights are shared out too (FSDP2, PyTorch's `fully_shard`; Rajbhandari et al. 2020,
"ZeRO", section 5): a layer's are put together where it is computed, so every process must run the same passes, and one that has no rows left
runs an empty one. The parts are kept in float32: they are the copies that are updated. Every process holds all of the head.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather_object, reduce
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.training.net import Net
from stepmark.training.packing import TrainingItem

if TYPE_CHECKING:
    from stepmark.training.objectives.base import Objective

T = TypeVar("T")


class ProcessGroup:
    """The processes of a run, and which of them is this one."""

    def __init__(self, device: str) -> None:
        self._state = PartialState(cpu=not device.startswith("cuda"))
        self.rank, self.size = int(self._state.process_index), int(self._state.num_processes)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and reports."""
        return self.rank == 0

    def passes(
        self, parts: Sequence[Sequence[T]], *, as_many: bool, whole: bool = False
    ) -> list[Sequence[T] | None]:
        """The forward passes of this process, of all of them: every `size`-th; of a single one every `size`-th tree, unless it is to stay `whole`. With
        `as_many` every process runs as many passes: None stands for one without trees.
        """
        own: list[Sequence[T] | None] = [*parts[self.rank :: self.size]]
        if len(parts) == 1 and self.size > 1 and not whole:
            own = [trees for trees in (parts[0][self.rank :: self.size],) if trees]
        missing = math.ceil(len(parts) / self.size) - len(own) if as_many else 0
        return [*own, *[None] * missing]

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add up over processes, in place, in one message for each dtype."""
        if self.size == 1:
            return
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            alike = [t for t in tensors if t.dtype == dtype]
            total = reduce(torch.cat([t.reshape(-1) for t in alike]), "sum")
            for tensor, part in zip(alike, total.split([t.numel() for t in alike]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def sum(self, *numbers: float) -> tuple[float, ...]:
        """Numbers, added up over processes."""
        if self.size == 1:
            return numbers
        total = reduce(torch.tensor(numbers, dtype=torch.float64, device=self._state.device), "sum")
        return tuple(total.tolist())

    def gather(self, own: list[T]) -> list[T]:
        """The items of all processes, in order of rank."""
        items: list[T] = gather_object(own)
        return items

    def wait(self) -> None:
        """Until all are here."""
        self._state.wait_for_everyone()


def check_launched() -> None:
    """Raises `UsageError`: nothing launched this process as one of a group (which may be of one, to try it out)."""
    if "LOCAL_RANK" not in os.environ:
        raise UsageError(
            "`shard` shares the weights out among several processes, and this is one: start them with `torchrun --nproc_per_node N -m "
            "stepmark train …`, or leave `shard` out"
        )


def shard(net: Net, workers: ProcessGroup) -> None:
    """Cut the weights of a network (whole, in main memory) into parts, of which this process keeps its own, on the network's device."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cuda" if net.device.startswith("cuda") else "cpu", (workers.size,))
    computed = None if net.dtype == torch.float32 else net.dtype
    policy = MixedPrecisionPolicy(param_dtype=computed, reduce_dtype=torch.float32)
    for module in (*net.backbone.layers, net.backbone):
        # Layer by layer, so that no more than one is whole in float32.
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.dtype != torch.float32:
                parameter.data = parameter.data.float()
        # The embedding too is let go after its use: what is kept would be stale when weights are set from outside.
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    for module in net.backbone.modules():
        if isinstance(module, FSDPModule):
            # Added up and not averaged: the loss is divided once, by all labels.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a parameter or a gradient: all of it, or its part; it shares the memory."""
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return tensor
    from torch.distributed.tensor import DTensor  # takes a while, and few runs need it

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def pass_of_nothing(net: Net, item: TrainingItem) -> Tensor:
    """A forward pass over any tree whose gradient is zero, for a process that has no rows where others have some."""
    return net.hidden([item]).sum() * 0


def norm_of(gradients: Sequence[Tensor], parts: Sequence[bool], workers: ProcessGroup) -> float:
    """The norm of a float32 gradient of which some tensors are `parts` and the others whole and equal in every process; all processes call this."""
    if True not in parts:
        return float(torch.nn.utils.get_total_norm(gradients))
    cut, whole = (
        [g for g, part in zip(gradients, parts, strict=True) if part is which] for which in (True, False)
    )
    (square,) = workers.sum(float(torch.nn.utils.get_total_norm(cut)) ** 2)
    return math.sqrt((float(torch.nn.utils.get_total_norm(whole)) ** 2 if whole else 0.0) + square)


def gathered(net: Net, workers: ProcessGroup) -> dict[str, Tensor]:
    """The trained weights whole, in main memory of the first process; empty in the others. All processes call this."""
    from torch.distributed.tensor import DTensor

    weights = {}
    for name, parameter in net.named_parameters.items():
        tensor = parameter.detach()
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if workers.first:
            weights[name] = whole.cpu()
    return weights


def whole_net(net: Net, objective: Objective, trained: Mapping[str, Tensor]) -> Net:
    """A network like a sharded one with the same trained weights (`gathered`), whole and in main memory, to be written."""
    dtype = "float32" if net.dtype == torch.float32 else "bfloat16"
    weights = replace(net.weights, shard=False, device="cpu", dtype=dtype)  # type: ignore[arg-type]
    copy = Net(net.base, net.spec, weights, max_tokens=net.max_tokens, seed=0)
    copy.set_head(objective.head(copy))
    with torch.no_grad():
        for name, parameter in copy.named_parameters.items():
            parameter.copy_(trained[name])
    return copy
