"""The average of a training's last adapters: less noise than any of them.

    python recipes/default_prm_average.py OUT PRM PRM …

Each PRM is a folder of one training, warm-started from the one before, with an adapter of the same shape. OUT is the last one with the mean of
their tensors (Wortsman et al. 2022, arXiv 2203.05482, "uniform soup"). Its map to probabilities and its threshold are those of the last: choose
the threshold anew (`recipes/default_prm_threshold.py`).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

FILE = "adapter_model.safetensors"


def average(out: Path, prms: list[Path]) -> None:
    """Write the average to the new folder `out`."""
    adapters = [load_file(prm / FILE) for prm in prms]
    for prm, adapter in zip(prms, adapters, strict=True):
        if {name: tensor.shape for name, tensor in adapter.items()} != {
            name: tensor.shape for name, tensor in adapters[0].items()
        }:
            raise SystemExit(f"{prm}: expected the tensors and shapes of {prms[0]}")
    mean = {
        name: torch.stack([adapter[name].float() for adapter in adapters]).mean(0).to(tensor.dtype)
        for name, tensor in adapters[-1].items()
    }
    with safe_open(prms[-1] / FILE, "pt") as file:
        metadata = file.metadata()
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(prms[-1], part)
    save_file(mean, part / FILE, metadata=metadata)
    part.rename(out)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    average(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
