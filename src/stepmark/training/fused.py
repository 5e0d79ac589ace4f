"""The small operations of a decoder with their gradients written out: fewer passes over memory, and no more kept than the gradient needs.

Each is the same function as its plain form in PyTorch; the tests hold values and gradients to it. Rows are tokens. On a CPU the operations
between matrix products go over blocks of rows that stay in its cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_BLOCK = 2**18
"""Elements of a block: about a megabyte in float32."""


def _blocks(like: Tensor) -> Iterator[slice]:
    rows = len(like) if like.device.type != "cpu" else max(1, _BLOCK // max(1, like[0].numel()))
    for start in range(0, len(like), max(1, rows)):
        yield slice(start, start + rows)


def add_norm(x: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual stream after a branch, and its root mean square norm (Zhang and Sennrich 2019).

    Args:
        x: [rows, width], the residual stream.
        branch: [rows, width], what is added to it; None adds nothing.
        weight: [width].
        eps: added to the mean square.

    Returns:
        x + branch, and that divided by its root mean square, times `weight`; the square is taken in float32.
    """
    found: tuple[Tensor, Tensor] = _AddNorm.apply(x, branch, weight, eps)  # type: ignore[no-untyped-call]
    return found


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, branch: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(x.dtype, torch.float32)
        total = x.view_as(x) if branch is None else torch.empty_like(x)
        normed = torch.empty_like(x)
        inverse = torch.empty(len(x), 1, dtype=wide, device=x.device)
        for rows in _blocks(x):
            if branch is not None:
                torch.add(x[rows], branch[rows], out=total[rows])
            h = total[rows].to(wide)
            r = torch.linalg.vector_norm(h, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps)
            r = torch.rsqrt(r, out=inverse[rows])
            # Rounded before the weight, as transformers does.
            torch.mul((h * r).to(x.dtype), weight, out=normed[rows])
        ctx.save_for_backward(total, weight, inverse)
        ctx.branched = branch is not None
        return total, normed

    @staticmethod
    def backward(
        ctx: Any, d_total: Tensor, d_normed: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        total, weight, inverse = ctx.saved_tensors
        wide, w = inverse.dtype, weight.to(inverse.dtype)
        d_weight = torch.zeros_like(w) if ctx.needs_input_grad[2] else None
        d_x = torch.empty_like(total)
        for rows in _blocks(total):
            g = d_normed[rows].to(wide)
            unit = total[rows].to(wide) * inverse[rows]
            if d_weight is not None:
                d_weight += (g * unit).sum(0)
            g = g * w
            mean = torch.linalg.vecdot(g, unit).unsqueeze(-1).div_(total.shape[-1])
            g.addcmul_(unit, mean, value=-1).mul_(inverse[rows])
            torch.add(g, d_total[rows], out=g)
            d_x[rows] = g
        return (
            d_x if ctx.needs_input_grad[0] else None,
            d_x if ctx.branched else None,
            None if d_weight is None else d_weight.to(weight.dtype),
            None,
        )


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020), elementwise on [rows, width]."""
    found: Tensor = _SwiGLU.apply(gate, up)  # type: ignore[no-untyped-call]
    return found


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        out = torch.empty_like(gate)
        for rows in _blocks(gate):
            torch.mul(F.silu(gate[rows]), up[rows], out=out[rows])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        d_gate, d_up = torch.empty_like(gate), torch.empty_like(up)
        for rows in _blocks(gate):
            g = gate[rows]
            torch.mul(F.silu(g), grad[rows], out=d_up[rows])
            d_gate[rows] = torch.ops.aten.silu_backward(grad[rows] * up[rows], g)
        return d_gate, d_up


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021), the halves of a head as pairs.

    Args:
        x: [rows, heads * dim].
        cos: [rows, dim / 2], of each row's angles.
        sin: the same.

    Returns:
        [heads, rows, dim].
    """
    found: Tensor = _Rotary.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return found


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        half = cos.shape[-1]
        heads = x.view(len(x), -1, 2 * half).transpose(0, 1)
        out = torch.empty(heads.shape, dtype=x.dtype, device=x.device)
        _turn(heads, cos, sin, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        heads, rows, dim = grad.shape
        out = torch.empty(rows, heads * dim, dtype=grad.dtype, device=grad.device)
        _turn(grad, cos, -sin, out.view(rows, heads, dim).transpose(0, 1))
        return out, None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Turn each pair by its angle; [heads, rows, dim]."""
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half:]
    out[..., :half] = (a * cos).addcmul_(b, sin, value=-1)
    out[..., half:] = (b * cos).addcmul_(a, sin)


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """A linear layer: its own weights, or frozen ones and a low-rank difference (LoRA, Hu et al. 2021)."""

    weight: Tensor
    """[out, in]."""
    bias: Tensor | None = None
    """[out]."""
    down: Tensor | None = None
    """A: [rank, in]; with it `weight` and `bias` are not trained."""
    up: Tensor | None = None
    """B: [out, rank]."""
    scale: float = 0.0


def linears(x: Tensor, layers: Sequence[Weight]) -> tuple[Tensor, ...]:
    """Linear layers of one input [rows, in]: [rows, out] of each.

    A low-rank difference is a product of its own beside that of the weights, as peft has it: added to weights in bfloat16, differences as small as
    those at the beginning of a training would be rounded away. Gradients go to the factors alone.
    """
    given = [t for w in layers for t in (w.weight, w.bias, w.down, w.up)]
    found: tuple[Tensor, ...] = _Linears.apply(x, tuple(w.scale for w in layers), *given)  # type: ignore[no-untyped-call]
    return found


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: tuple[float, ...], *given: Tensor | None) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *given)
        ctx.scales = scales
        found = []
        for at, scale in enumerate(scales):
            weight, bias, down, up = given[4 * at : 4 * at + 4]
            assert weight is not None
            y = F.linear(x, weight, bias)
            if down is not None and up is not None:
                y.addmm_(x @ down.t(), up.t(), alpha=scale)
            found.append(y)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *given = ctx.saved_tensors
        d_x: Tensor | None = None
        found: list[Tensor | None] = []
        for at, (scale, g) in enumerate(zip(ctx.scales, grads, strict=True)):
            weight, _, down, up = given[4 * at : 4 * at + 4]
            needs = ctx.needs_input_grad[2 + 4 * at : 6 + 4 * at]
            if ctx.needs_input_grad[0]:
                d_x = g @ weight if d_x is None else d_x.addmm_(g, weight)
            found += [g.t() @ x if needs[0] else None, g.sum(0) if needs[1] else None]
            if down is None or up is None:
                found += [None, None]
                continue
            inner = (g @ up).mul_(scale)
            if d_x is not None:
                d_x.addmm_(inner, down)
            found += [
                inner.t() @ x if needs[2] else None,
                g.t() @ (x @ down.t()).mul_(scale) if needs[3] else None,
            ]
        return d_x, None, *found
