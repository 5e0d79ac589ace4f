from __future__ import annotations

import os

import pytest
from hypothesis import settings

# A crowded machine must not fail a test: how long an example takes is asserted nowhere. The examples are the same in every run, so that one in a thousand
# does not stop a change that has nothing to do with it; `make fuzz` draws others.
settings.register_profile("stepmark", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("STEPMARK_EXAMPLES", "stepmark"))

# The servers of the tests are on this machine and take no key.
for name in (
    "STEPMARK_API_KEY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
):
    os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: item.get_closest_marker("long") is None
    )  # a long test last keeps one worker waiting


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    """Tiny checkpoints of every family by name; see checkpoints.py. Imported here: torch takes seconds."""
    import torch

    from checkpoints import Zoo

    torch.set_num_threads(1)
    return Zoo(tmp_path_factory.mktemp("zoo"))
