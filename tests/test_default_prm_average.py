"""`recipes/default_prm_average.py`: the mean of adapters, tensor by tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

recipe = pytest.importorskip("default_prm_average", reason="recipes are not here (an installed package)")


def adapter(folder: Path, value: float, rank: int = 2) -> Path:
    folder.mkdir()
    save_file({"a": torch.full((rank, 3), value)}, folder / recipe.FILE, metadata={"format": "pt"})
    (folder / "stepmark.json").write_text(f"{value}", encoding="utf-8")
    return folder


def test_tensors_are_averaged_and_the_rest_is_the_last(tmp_path: Path) -> None:
    prms = [adapter(tmp_path / str(value), value) for value in (1.0, 2.0, 6.0)]
    recipe.average(tmp_path / "out", prms)
    assert torch.equal(load_file(tmp_path / "out" / recipe.FILE)["a"], torch.full((2, 3), 3.0))
    assert (tmp_path / "out" / "stepmark.json").read_text(encoding="utf-8") == "6.0"


def test_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        recipe.average(tmp_path / "out", [adapter(tmp_path / "a", 1.0), adapter(tmp_path / "b", 1.0, rank=3)])
    assert not (tmp_path / "out").exists()
