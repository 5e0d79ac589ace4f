from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    """Tiny checkpoints of every family by name; see checkpoints.py. Imported here: torch takes seconds."""
    import torch

    from checkpoints import Zoo

    torch.set_num_threads(1)
    return Zoo(tmp_path_factory.mktemp("zoo"))
