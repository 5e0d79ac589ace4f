"""Folders that one run at a time writes to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from stepmark.errors import UsageError
from stepmark.store import LOCK_FILE, held


def names(folder):
    return sorted(one.name for one in folder.iterdir())


def test_a_second_run_is_refused_until_the_first_ends(tmp_path):
    out = tmp_path / "out"
    with held(out):
        assert names(out) == [LOCK_FILE]
        with pytest.raises(UsageError, match=f"another run is writing {out}; wait for it, or"), held(out):
            pass
        (out / "made").write_text("here")
        with held(tmp_path / "other"):
            pass
    assert names(tmp_path) == ["out"] and names(out) == ["made"]
    with held(out):
        pass
    assert names(out) == ["made"]


def test_what_was_made_and_is_empty_is_removed_again(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(KeyError), held(tmp_path / "mine" / "deep" / "out"):
        raise KeyError
    assert names(tmp_path) == ["mine"] and names(tmp_path / "mine") == []
    with held(tmp_path / "mine"):
        pass
    assert names(tmp_path) == ["mine"]  # it was there before


def test_a_folder_that_the_run_itself_removes_is_no_error(tmp_path):
    with held(tmp_path / "out"):
        (tmp_path / "out" / LOCK_FILE).unlink()
        (tmp_path / "out").rmdir()
    assert names(tmp_path) == []


def test_what_cannot_be_held_is_refused_by_its_name(tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(UsageError, match=f"cannot write into {place}: "), held(place):
            pass
    assert names(tmp_path) == ["file"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL on Windows")
def test_a_killed_run_holds_nothing(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from stepmark.store import held\n"
        "with held(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert names(tmp_path / "out") == [LOCK_FILE]
    with held(tmp_path / "out"):
        pass
    assert names(tmp_path / "out") == []
