"""Weights in 8 and 4 bit: linear layers that hold whole numbers with scales, and compute in the network's precision.

`int8`: a row of the weight shares one scale, w = s * q with q in -127 … 127.
`int4`: 64 neighbours of a row share a scale and a minimum, w = s * q + m with q in 0 … 15; 4.5 bits a weight. A layer whose width is not divisible by 64,
or whose height is odd, is in 8 bit.

Each pass makes the numbers of one layer plain again and multiplies as before. That costs about the same for one token as for thousands, which is what
passes of the engine have. It is plain torch: the same on every device, with no package beside it. Norms, embeddings and heads stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from stepmark.models.lazy import Bits

GROUP = 64
"""Neighbours that share a scale in 4 bit."""
_ROWS = 256
"""Rows that are made plain at a time: they stay in a processor's cache."""


class QuantizedLinear(nn.Module):
    """A linear layer in 8 or 4 bit, for inference.

    Args:
        linear: is read, and not changed.
        bits: of its weight.
    """

    packed: Tensor
    """int8 [out, in]; or uint8 [out / 2, in]: rows of the first half in the low bits, of the second half in the high bits."""
    scale: Tensor
    """[out, 1] in 8 bit, [out, in / 64, 1] in 4 bit; of the weight's type."""
    low: Tensor | None
    """The minimum of each group in 4 bit, as `scale`."""

    def __init__(self, linear: nn.Linear, bits: Bits) -> None:
        super().__init__()
        weight = linear.weight.detach()
        rows, width = weight.shape
        self.out_features, self.in_features = rows, width
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)
        four = bits == "int4" and width % GROUP == 0 and rows % 2 == 0
        make = _four if four else _eight
        parts = [make(weight[start : start + _ROWS]) for start in range(0, rows, _ROWS)]
        packed, scale = (torch.cat([part[at] for part in parts]) for at in (0, 1))
        self.register_buffer("packed", packed[: rows // 2] | packed[rows // 2 :] << 4 if four else packed)
        self.register_buffer("scale", scale)
        self.register_buffer("low", torch.cat([part[2] for part in parts]) if four else None)

    def plain(self) -> Tensor:
        """The weight that it stands for, [out, in]."""
        if self.low is None:
            return self.packed * self.scale
        out = self.scale.new_empty(self.out_features, self.in_features // GROUP, GROUP)
        half = self.out_features // 2
        step = _ROWS if out.device.type == "cpu" else half
        for start in range(0, half, step):
            packed = self.packed[start : start + step]
            for first, numbers in ((start, packed & 15), (half + start, packed >> 4)):
                at = slice(first, first + len(packed))
                out[at] = numbers.view(len(packed), -1, GROUP)
                out[at].mul_(self.scale[at]).add_(self.low[at])
        return out.view(self.out_features, -1)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., in] times the weight, [..., out]."""
        shape, x = (
            x.shape[:-1],
            x.reshape(-1, self.in_features),
        )  # of other strides, torch would copy the weight for every row
        if self.low is None and x.dtype != torch.float16:
            # Whole numbers to 127 are exact in bfloat16: the scale is left for the product, which in float16 could overflow.
            out = nn.functional.linear(x, self.packed.to(x.dtype)).mul_(self.scale[:, 0])
            out = out if self.bias is None else out.add_(self.bias)
        else:
            out = nn.functional.linear(x, self.plain(), self.bias)
        return out.view(*shape, self.out_features)


def _least(dtype: torch.dtype) -> float:
    """A scale above 0, for rows of zeros."""
    return max(1e-12, torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)


def _eight(weight: Tensor) -> tuple[Tensor, ...]:
    values = weight.float()
    scale = (values.abs().amax(1, keepdim=True) / 127).clamp(min=_least(weight.dtype)).to(weight.dtype)
    return (values / scale.float()).round().clamp(-127, 127).to(torch.int8), scale


def _four(weight: Tensor) -> tuple[Tensor, ...]:
    values = weight.float().view(len(weight), -1, GROUP)
    low = values.amin(-1, keepdim=True).to(weight.dtype)
    scale = ((values.amax(-1, keepdim=True) - low.float()) / 15).clamp(min=_least(weight.dtype))
    scale = scale.to(weight.dtype)
    numbers = ((values - low.float()) / scale.float()).round().clamp(0, 15)
    return numbers.to(torch.uint8).view(len(weight), -1), scale, low


def elements(network: nn.Module) -> int:
    """Weights of a network, whatever they are stored in."""
    quantized = (m for m in network.modules() if isinstance(m, QuantizedLinear))
    return sum(p.numel() for p in network.parameters()) + sum(
        m.out_features * m.in_features for m in quantized
    )


def weights_of(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All that a network's weights are, by name: parameters, and what quantized layers hold."""
    yield from network.named_parameters()
    for name, module in network.named_modules():
        if isinstance(module, QuantizedLinear):
            yield from ((f"{name}.{part}", tensor) for part, tensor in module.named_buffers())


def quantized_bytes(rows: int, width: int, bits: Bits | None, itemsize: int) -> int:
    """Bytes of a linear weight [rows, width] whose plain elements have `itemsize` bytes."""
    if bits is None:
        return rows * width * itemsize
    if bits == "int4" and width % GROUP == 0 and rows % 2 == 0:
        return rows * width // 2 + 2 * rows * (width // GROUP) * itemsize
    return rows * width + rows * itemsize
