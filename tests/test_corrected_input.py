"""A run that a bad row stopped, over the corrected file: what is unchanged is kept, and the result is that of a run that was never stopped."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import pytest

import stepmark
from stepmark.backends import Completions
from stepmark.errors import InputError, StepmarkError, UsageError

ROWS = [
    {
        "id": f"r{n}",
        "problem": f"{n} + {n}?",
        "steps": [f"{n} + {n} = {2 * n}", "Done."],
        "answer": str(2 * n),
    }
    for n in range(8)
]
BAD = {"id": "bad", "problem": " ", "steps": ["x"], "answer": "1"}


def file_of(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


class Counting:
    """A PRM and a policy that count what they are asked, and break where a problem is `breaks`."""

    def __init__(self, name: str = "counting", breaks: object = None) -> None:
        self.asked: Counter[str] = Counter()
        self.breaks = breaks
        self.prm = stepmark.ScriptedPRM(self._score, name=name)
        self.policy = stepmark.ScriptedPolicy(self._write)

    def _score(self, problem: str, steps: list[str]) -> float:
        self._ask(problem)
        return 0.9

    def _write(self, asked: Completions, *_: object) -> str:
        [message] = asked.prompt
        self._ask(message.content.partition("\n")[0])
        return "The answer is 4."

    def _ask(self, problem: str) -> None:
        if problem == self.breaks:
            raise StepmarkError("the server is away")
        self.asked[problem] += 1


def grade(file: Path | str, out: Path, models: Counting) -> object:
    return stepmark.grade(file, models.prm, out=out, progress=False)


def sample(file: Path | str, out: Path, models: Counting) -> object:
    return stepmark.sample(file, models.policy, n=1, verifier="number", out=out, progress=False, in_flight=1)


def label(file: Path, out: Path, models: Counting) -> object:
    method = stepmark.labels.EveryStep(k=1)
    return stepmark.label(
        file, method=method, policy=models.policy, verifier="number", out=out, progress=False, in_flight=1
    )


def search(file: Path | str, out: Path, models: Counting) -> object:
    method = stepmark.searches.BestOfN(n=1)
    return stepmark.search(
        file, method=method, policy=models.policy, prm=models.prm, out=out, progress=False, in_flight=1
    )


OTHER = [{**row, "id": f"n{n}", "problem": f"{n} + {n}, or what?"} for n, row in enumerate(ROWS)]
CHANGES = {
    "corrected": [ROWS[0], OTHER[1], *ROWS[2:]],
    "shortened": ROWS[2:],
    "longer": [OTHER[5], *ROWS, OTHER[6]],
    "reordered": ROWS[::-1],
}
"""What becomes of the file; with ids, no result says where its row stands."""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("run", [grade, sample, label, search])
def test_unchanged_rows_are_kept(tmp_path, run, change):
    rows = CHANGES[change]
    run(file_of(tmp_path / "whole.jsonl", rows), tmp_path / "expected.jsonl", Counting())
    file, out = file_of(tmp_path / "rows.jsonl", ROWS), tmp_path / "out.jsonl"
    first, second = Counting(breaks=ROWS[5]["problem"]), Counting()
    with pytest.raises(StepmarkError, match="away"):
        run(file, out, first)
    assert set(first.asked) == {row["problem"] for row in ROWS[:5]}
    file_of(file, rows)
    run(file, out, second)
    assert set(second.asked) == {row["problem"] for row in rows} - set(first.asked)
    expected = (tmp_path / "expected.jsonl").read_text(encoding="utf-8").replace("whole.jsonl", "rows.jsonl")
    assert out.read_text(encoding="utf-8") == expected
    assert not [path.name for path in tmp_path.iterdir() if ".part" in path.name]


@pytest.mark.parametrize("run", [grade, sample, search])
def test_standard_input_that_is_fed_again_goes_on(tmp_path, monkeypatch, run):
    out, first, second = tmp_path / "out.jsonl", Counting(breaks=ROWS[3]["problem"]), Counting()
    text = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    with pytest.raises(StepmarkError, match="away"):
        run("-", out, first)
    assert set(first.asked) == {row["problem"] for row in ROWS[:3]}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    run("-", out, second)
    assert set(second.asked) == {row["problem"] for row in ROWS[3:]}
    run(file_of(tmp_path / "rows.jsonl", ROWS), tmp_path / "whole.jsonl", Counting())
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_second_correction_keeps_what_both_runs_did(tmp_path):
    file, out = file_of(tmp_path / "rows.jsonl", [*ROWS[:2], BAD, *ROWS[3:]]), tmp_path / "out.jsonl"
    with pytest.raises(InputError):
        grade(file, out, Counting())
    file_of(file, [ROWS[7], *ROWS[:5], BAD, ROWS[6]])  # another order, another bad row
    second = Counting()
    with pytest.raises(InputError):
        grade(file, out, second)
    assert set(second.asked) == {ROWS[n]["problem"] for n in (7, 2, 3, 4)}
    file_of(file, ROWS)
    third = Counting()
    results = grade(file, out, third)
    assert set(third.asked) == {ROWS[n]["problem"] for n in (5, 6)}
    assert [one.id for one in results] == [row["id"] for row in ROWS]
    assert "6 rows of an interrupted run" in results.summary
    assert not [path.name for path in tmp_path.iterdir() if ".part" in path.name]


def test_a_row_that_was_left_out_is_graded_once_corrected(tmp_path):
    file, out = file_of(tmp_path / "rows.jsonl", [ROWS[0], BAD, ROWS[2]]), tmp_path / "out.jsonl"

    def failing(problem: str, steps: list[str]) -> float:
        if problem == ROWS[2]["problem"]:
            raise StepmarkError("the server is away")
        return 0.9

    with pytest.raises(StepmarkError, match="away"):
        stepmark.grade(
            file, stepmark.ScriptedPRM(failing, name="counting"), out=out, progress=False, keep_going=True
        )
    file_of(file, ROWS[:3])
    again = Counting()
    results = stepmark.grade(file, again.prm, out=out, progress=False, keep_going=True)
    assert set(again.asked) == {ROWS[1]["problem"], ROWS[2]["problem"]}
    assert [one.id for one in results] == ["r0", "r1", "r2"]


def test_results_of_other_settings_or_another_model_are_refused(tmp_path):
    file, out = file_of(tmp_path / "rows.jsonl", [*ROWS[:2], BAD]), tmp_path / "out.jsonl"
    with pytest.raises(InputError):
        grade(file, out, Counting())
    file_of(file, [*ROWS[:2], {**BAD, "problem": "1?", "steps": [" "]}])
    for _ in range(2):
        with pytest.raises(UsageError, match="threshold"):
            stepmark.grade(file, Counting().prm, out=out, threshold=0.7, progress=False)
        with pytest.raises(UsageError, match="another model"):
            grade(file, out, Counting("another"))
        with pytest.raises(InputError):
            grade(file, out, Counting())
