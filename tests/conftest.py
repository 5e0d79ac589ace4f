from __future__ import annotations

import os

import pytest
from hypothesis import settings

from ordering import begun_first
from skips import closing_line

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


@pytest.hookimpl(
    trylast=True
)  # after those that are not to run are gone: the shares are cut from what is left
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        long = [item for item in items if item.get_closest_marker("long")]
        rest = [item for item in items if not item.get_closest_marker("long")]
        items[:] = begun_first(long, rest, workers)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    """Tiny checkpoints of every family by name; see checkpoints.py. Imported here: torch takes seconds."""
    import torch

    from checkpoints import Zoo

    torch.set_num_threads(1)
    return Zoo(tmp_path_factory.mktemp("zoo"))


_CLOSING = pytest.StashKey[str | None]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [
        report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        for report in skipped
    ]
    config.stash[_CLOSING] = closing_line(reasons)


def pytest_unconfigure(config: pytest.Config) -> None:
    # After pytest's own summary, so that it is the last line of the run.
    if (line := config.stash.get(_CLOSING, None)) is not None:
        print(line)
