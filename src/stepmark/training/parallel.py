"""Data parallel training: processes that share the rows of each optimizer step and add up their gradients.

Started by `accelerate launch` or `torchrun`, or not at all (one process). Each process takes its share of the forward passes of a step;
sums of losses, labels and gradients are added over processes **before** the one division by all labels, so that any number of processes
takes the step that one would.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

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
