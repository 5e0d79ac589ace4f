"""The line at the end of `make test` says what was skipped and what to type."""

import subprocess
import sys
from pathlib import Path

from skips import closing_line


def test_nothing_skipped():
    assert closing_line([]) is None


def test_counts_by_what_is_missing_most_first():
    reasons = [
        "Skipped: bubblewrap does not work here: no bwrap",
        "Skipped: needs Chromium: install the package `chromium`",
        "Skipped: needs Chromium: install the package `chromium`",
        "Skipped: root reads everything",
    ]
    assert closing_line(reasons) == (
        "skipped 4: 2 for Chromium, 1 for bubblewrap, 1 for other reasons. "
        "To run them: apt-get install chromium; apt-get install bubblewrap"
    )


def test_packages_extras_data_and_peers():
    reasons = [
        "Skipped: could not import 'datasets': No module named 'datasets'",
        "Skipped: the extra `cluster` is not installed",
        "Skipped: no development data: set STEPMARK_DATA to a folder with gsm8k/train.jsonl.gz",
        "STEPMARK_INSPECT_PYTHON does not name the Python of an environment with inspect_ai",
    ]
    assert closing_line(reasons) == (
        "skipped 4: 1 for datasets, 1 for the extra cluster, 1 for data, 1 for environments of peers. "
        "To run them: pip install datasets; pip install 'stepmark[cluster]'; STEPMARK_DATA=FOLDER make test; see benchmarks/peers"
    )


def test_only_reasons_without_a_remedy():
    assert closing_line(["root reads everything"]) == "skipped 1: 1 for other reasons"


def test_it_is_printed_at_the_end_of_a_run(tmp_path):
    tests = Path(__file__).parent
    for name in ("conftest.py", "skips.py", "ordering.py"):
        (tmp_path / name).write_bytes((tests / name).read_bytes())
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_it():\n    pytest.skip('needs Chromium: install it')\n", encoding="utf-8"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "\nskipped 1: 1 for Chromium. To run them: apt-get install chromium\n" in output
