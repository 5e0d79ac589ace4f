"""`docs/scale.md`: its arithmetic against a computation of its own, and its table is what its code prints."""

from __future__ import annotations

import contextlib
import io
import re
from math import log2
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "scale.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def run():
    """What the page's code leaves, and what it prints."""
    namespace: dict[str, object] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S):
            exec(compile(block, "scale.md", "exec"), namespace)  # noqa: S102
    return namespace, printed.getvalue()


def test_the_table_is_what_the_code_prints(run):
    _, printed = run
    [table] = re.findall(r"^```text\n(.*?)^```$", PAGE, re.M | re.S)
    assert table.rstrip() in printed


def test_a_graded_and_a_labelled_solution_by_hand(run):
    work = run[0]["WORK"]
    hours = run[0]["gpu_hours"]
    seconds = 2 * 6.53e9 * (79 + 573) / 1.3 / (0.40 * 989e12)
    found = work["grade, PRM of 7B"]
    assert hours(found["weights"], read=found["read"]) * 3600 == pytest.approx(seconds)
    every = work["every step, k=8"]
    # 8 rollouts of each of 5.5 prefixes are 44; each was 8223 / 80.8 of 184.5 tokens long.
    assert every["rollouts"] == pytest.approx(80.8 * 5.5 / 10.1)
    assert every["rollouts"] == pytest.approx(44, rel=0.01)
    assert every["written"] == pytest.approx(8223 / 184.5 * 573 * 5.5 / 10.1)
    halved = work["binary, stop at success"]
    assert halved["rollouts"] == pytest.approx(17 * log2(6.5) / log2(11.1))
    assert work["Bayesian, 12 rollouts"]["written"] == pytest.approx(927 / 184.5 * 573)


def test_what_it_takes_from_other_pages_stands_there():
    docs = Path(__file__).resolve().parents[1] / "docs"
    label = (docs / "label.md").read_text(encoding="utf-8")
    for cells in ("80.8 | 8,223", "16.5 | 1,976", "17.0 | 1,622", "11.0 | 927"):
        assert f"| {cells} |" in label, f"docs/label.md no longer says {cells}: docs/scale.md counts with it"


def test_the_solutions_of_the_methods_table_are_as_long_as_it_says():
    from stepmark.problems.arithmetic_world import count_tokens, wrong_solutions

    cases = [case.solution for case in wrong_solutions(400, seed=0, steps=(4, 16))]
    assert sum(len(one.steps) for one in cases) / 400 == pytest.approx(11.1, abs=0.01)
    assert sum(count_tokens("\n".join(one.texts)) for one in cases) / 400 == pytest.approx(184.5, abs=0.1)


def test_what_a_core_or_a_disk_does_in_a_day():
    """86,400 times the lower end of the rate that stands beside it, to the digits that are shown."""
    table = PAGE.partition("| what | a second | so a core, or a disk, in a day |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert len(rows) == 11
    for what, rate, day in rows:
        lowest = 10 if "about ten" in rate else int(rate.partition(" ")[0].replace(",", ""))
        [(digits, power)] = re.findall(r"^([\d.]+)·10([⁰¹²³⁴⁵⁶⁷⁸⁹]+)", day)
        told = float(digits) * 10 ** int(power.translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")))
        assert lowest * 86_400 == pytest.approx(told, rel=0.05), what


def test_the_sentences_below_the_table_count_right(run):
    names, _ = run
    rolled = [work for work in names["WORK"].values() if "rollouts" in work]
    seconds = [
        3600 * names["gpu_hours"](work["weights"], read=work["read"], written=work["written"])
        for work in rolled
    ]
    # Verdicts of a GPU's rollouts.
    a_second = [work["rollouts"] / spent for work, spent in zip(rolled, seconds, strict=True)]
    assert "a GPU that writes them keeps three or four cores busy" in PAGE
    assert sorted(round(one / 10) for one in a_second) == [3, 3, 3, 4]
    assert "Qwen2.5-7B: 7.62e9 less one table of 152,064 x 3,584" in PAGE
    assert names["POLICY"] == pytest.approx(7.62e9 - 152_064 * 3_584, rel=0.001)
    assert names["PRM_7B"] == pytest.approx(7.62e9 - 2 * 152_064 * 3_584, rel=0.001)
