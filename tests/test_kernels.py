"""A process that computes ever other shapes does not grow: measured in one of its own."""

import os
import subprocess
import sys

import pytest

from stepmark.models.backbone import CACHES, KEPT, bound_kernels

GROWTH = """
import torch
import torch.nn.functional as F
from stepmark.models.backbone import bound_kernels

bound_kernels()
torch.set_num_threads(1)
weight = torch.randn(64, 64, dtype=torch.bfloat16)


def after(rows):
    with torch.inference_mode():
        for count in rows:
            F.linear(torch.randn(count, 64, dtype=torch.bfloat16), weight)
    with open("/proc/self/statm") as handle:
        return int(handle.read().split()[1]) * 4096


full = after(range(1, 301))
print(after(range(301, 601)) - full)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc, which is Linux's")
def test_shapes_that_do_not_come_again_are_not_kept():
    environment = {name: value for name, value in os.environ.items() if name not in CACHES}
    done = subprocess.run(
        [sys.executable, "-c", GROWTH], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # Where torch computes bfloat16 with kernels that it compiles, 300 more shapes would be 200 MB, and are 6 to 17; elsewhere nothing.
    assert int(done.stdout) < 80 << 20


def test_what_is_set_already_stays(monkeypatch):
    monkeypatch.setenv(CACHES[0], "7")
    monkeypatch.setenv(CACHES[1], "")  # so that it is as it was in the end
    monkeypatch.delenv(CACHES[1])
    bound_kernels()
    assert [os.environ[name] for name in CACHES] == ["7", str(KEPT)]
