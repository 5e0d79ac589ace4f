"""The PRM that ships with stepmark: an adapter and a head over SmolLM2-135M-Instruct.

Its folder holds `stepmark.json` (how it is read), the adapter with the head, and `README.md`, its card.
"""

from __future__ import annotations

from pathlib import Path

from stepmark.errors import CheckpointError


def default_folder() -> Path:
    """The folder of the shipped checkpoint.

    Raises:
        CheckpointError: the installation lacks it.
    """
    folder = Path(__file__).parent / "checkpoints" / "default"
    if not (folder / "adapter_model.safetensors").is_file():
        raise CheckpointError(
            f"this installation of stepmark lacks its default PRM ({folder}); install it again"
        )
    return folder


NOTICE = (
    "the default PRM is a small demonstration model (135M weights): its first-error F1 on ProcessBench GSM8K is 36.8 of 100, 43.4 with its "
    "exact checks; for work that matters name a larger one, such as `prm` qwen-7b (`stepmark families` lists them)"
)
"""What a run with it says once. The figures are of the development half, at its threshold (docs/default-prm.md)."""
