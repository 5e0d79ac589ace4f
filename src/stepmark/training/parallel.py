"""Data parallel training: processes that share the rows of each optimizer step and add up their gradients.

Started by `accelerate launch` or `torchrun`, or not at all (one process). Each process takes its share of the forward passes of a step;
sums of losses, labels and gradients are added over processes **before** the one division by all labels, so that any number of processes
takes the step that one would.

Weights that are shared out among the processes of a run: each holds a part of every matrix, of its gradient and of its optimizer state.

Fully sharded data parallelism (Rajbhandari et al. 2020, "ZeRO", section 5; PyTorch's `fully_shard`, known as FSDP2). The weights of a
layer are put together where it is computed and let go after it; gradients are added over processes and cut up again. So every process must
run the same passes: one that has no rows left runs an empty one (`pass_of_nothing`).

The parts are kept in float32, from which the precision that is computed in is made when a layer is put together: they are the copies that are
updated. The head is small and every process holds all of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.training.items import Item
from stepmark.training.net import Net

if TYPE_CHECKING:
    from stepmark.training.objectives.base import Objective

T = TypeVar("T")


class Workers:
    """The processes of a run, and which of them is this one."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @classmethod
    def joined(cls, device: str) -> Workers:
        """Join the processes that were launched together; alone where nothing was launched."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls(0, 1)
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and talks."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """Every `size`-th of them."""
        return list(items[self.rank :: self.size])

    def passes(
        self, parts: Sequence[Sequence[T]], *, as_many: bool, whole: bool = False
    ) -> list[Sequence[T] | None]:
        """The forward passes of this process, of all of them: every `size`-th; of a single one every `size`-th tree.

        Args:
            parts: the passes, each of some trees.
            as_many: whether every process must run as many passes: None then stands for one without trees.
            whole: whether a single pass is left whole, to one process.
        """
        if len(parts) == 1 and self.size > 1 and not whole:
            own = [trees for trees in (self.share(parts[0]),) if trees]
        else:
            own = [list(part) for part in self.share(parts)]
        missing = math.ceil(len(parts) / self.size) - len(own) if as_many else 0
        return [*own, *[None] * missing]

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add up over processes, in place, in one message for each dtype."""
        if self.size == 1:
            return
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            some = [t for t in tensors if t.dtype == dtype]
            flat = torch.cat([t.reshape(-1) for t in some])
            dist.all_reduce(flat)
            at = 0
            for tensor in some:
                tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
                at += tensor.numel()

    def sum(self, *numbers: float) -> tuple[float, ...]:
        """Numbers, added up over processes."""
        if self.size == 1:
            return numbers
        total = torch.tensor(numbers, dtype=torch.float64)
        if dist.get_backend() == "nccl":
            total = total.cuda()
        dist.all_reduce(total)
        return tuple(total.tolist())

    def gather(self, own: list[T]) -> list[list[T]]:
        """The list of every process, in order of rank."""
        if self.size == 1:
            return [own]
        found: list[list[T]] = [[] for _ in range(self.size)]
        dist.all_gather_object(found, own)
        return found

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier()


def check_processes(size: int) -> None:
    """Refuse weights that are to be shared out among one.

    Raises:
        UsageError: there is one process.
    """
    if size == 1:
        raise UsageError(
            "`shard` shares the weights out among several processes, and this is one: start them with `torchrun --nproc_per_node N -m "
            "stepmark.cli train …`, or leave `shard` out"
        )


def shard(net: Net, workers: Workers) -> None:
    """Cut the weights of a network into parts, of which this process keeps its own, on the network's device.

    Args:
        net: made with `Weights(shard=True)`: whole, in main memory.
        workers: all processes call this.
    """
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


def own(tensor: Tensor) -> Tensor:
    """What this process holds of a parameter or a gradient: all of it, or its part; it shares the memory."""
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return tensor
    from torch.distributed.tensor import DTensor  # takes a while, and few runs need it

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def pass_of_nothing(net: Net, item: Item) -> Tensor:
    """A forward pass whose gradient is zero, for a process that has no rows where others have some.

    Args:
        net: sharded.
        item: any tree, best a small one.
    """
    return net.hidden([item]).sum() * 0


def norm_of(gradients: Sequence[Tensor], parts: Sequence[bool], workers: Workers) -> float:
    """The norm of a gradient of which some tensors are parts.

    Args:
        gradients: in float32.
        parts: which of them are parts; the others are whole, and the same in every process.
        workers: all processes call this.
    """
    if True not in parts:
        return float(torch.nn.utils.get_total_norm(gradients))
    square = {
        part: float(
            torch.nn.utils.get_total_norm([g for g, p in zip(gradients, parts, strict=True) if p is part])
        )
        ** 2
        for part in (False, True)
        if part in parts
    }
    (cut,) = workers.sum(square.get(True, 0.0))
    return math.sqrt(square.get(False, 0.0) + cut)


def gathered(net: Net, workers: Workers) -> dict[str, Tensor]:
    """The trained weights whole, in main memory of the first process; empty in the others.

    Args:
        net: sharded.
        workers: all processes call this.
    """
    from torch.distributed.tensor import DTensor

    found = {}
    for name, parameter in net.named_parameters.items():
        tensor = parameter.detach()
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if workers.first:
            found[name] = whole.cpu()
    return found


def whole_net(net: Net, objective: Objective, trained: Mapping[str, Tensor]) -> Net:
    """A network like a sharded one with the same trained weights, whole and in main memory, to be written.

    Args:
        net: sharded.
        objective: whose head it has.
        trained: from `gathered`.
    """
    weights = replace(
        net.weights,
        shard=False,
        device="cpu",
        dtype="float32" if net.dtype == torch.float32 else "bfloat16",
    )
    made = Net(net.base, net.spec, weights, max_tokens=net.max_tokens, seed=0)
    made.set_head(objective.head(made))
    with torch.no_grad():
        for name, parameter in made.named_parameters.items():
            parameter.copy_(trained[name])
    return made
