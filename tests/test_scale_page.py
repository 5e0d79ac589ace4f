"""`docs/scale.md`: its arithmetic against a computation of its own."""

from __future__ import annotations

import re
from math import log2
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "scale.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def run():
    """What the page's computation leaves."""
    namespace: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE[PAGE.index("## What a million") :], re.M | re.S):
        exec(compile(block, "scale.md", "exec"), namespace)  # noqa: S102
    return namespace


def test_a_graded_and_a_labelled_solution_by_hand(run):
    work, hours = run["WORK"], run["gpu_hours"]
    seconds = 2 * 6.53e9 * (79 + 573) / 1.3 / (0.40 * 989e12)
    assert hours(**work["grade, PRM of 7B"]) * 3600 == pytest.approx(seconds)
    # Of 10.1 prefixes that were measured there are 5.5; each had rollouts of 8223 / 10.1 tokens.
    assert work["every step, k=8"]["written"] == pytest.approx(8223 / 184.5 * 573 * 5.5 / 10.1)
    halved = work["binary, stop at success"]["written"]
    assert halved == pytest.approx(1622 / 184.5 * 573 * log2(6.5) / log2(11.1))
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


def test_the_sentences_beside_the_tables_count_right(run):
    names = run
    tokens = 1e6 * names["WORK"]["grade, PRM of 7B"]["read"]
    assert tokens == pytest.approx(502e6, rel=0.01)
    for rate, hours in re.findall(r"\| ([\d,]+) \| ([\d.]+) hours \|", PAGE):
        assert tokens / int(rate.replace(",", "")) / 3600 == pytest.approx(float(hours), rel=0.03)
    assert names["POLICY"] == pytest.approx(7.62e9 - 152_064 * 3_584, rel=0.001)
    assert names["PRM_7B"] == pytest.approx(7.62e9 - 2 * 152_064 * 3_584, rel=0.001)
