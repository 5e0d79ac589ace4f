"""Freed memory is kept: counted in page faults, in a process of its own."""

import subprocess
import sys

import pytest

from stepmark.training.trainer import keep_freed_memory

FAULTS = """
import resource, sys
from stepmark.training.trainer import keep_freed_memory

if sys.argv[1] == "keep" and not keep_freed_memory():
    raise SystemExit("not glibc")
for _ in range(2):
    del_me = b"x" * 2**26
    del del_me
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    del_me = b"x" * 2**26
    del del_me
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=False)
    if "not glibc" in done.stderr:
        pytest.skip("the C library is not glibc")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted on Linux")
def test_memory_that_was_freed_is_at_hand():
    # 64 MB four times: 65,536 pages of 4 kB where they are given back, hardly any where they are kept.
    assert faults("keep") < 500 < faults("as it is")


def test_another_c_library_is_told_nothing(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert keep_freed_memory() is False
