"""Weights that are shared out among the processes of a run: each holds a part of every matrix, of its gradient and of its optimizer state.

Fully sharded data parallelism (Rajbhandari et al. 2020, "ZeRO", section 5; PyTorch's `fully_shard`, known as FSDP2). The weights of a
layer are put together where it is computed and let go after it; gradients are added over processes and cut up again. So every process must
run the same passes: one that has no rows left runs an empty one (`pass_of_nothing`).

The parts are kept in float32, from which the precision that is computed in is made when a layer is put together: they are the copies that are
updated. The head is small and every process holds all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.training.items import Item
from stepmark.training.net import Net
from stepmark.training.parallel import Workers

if TYPE_CHECKING:
    from stepmark.training.objectives.base import Objective


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
