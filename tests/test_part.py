"""The part of a run: what stands in it, what another run takes from it, what is refused; killed at every moment, the output is the same."""

import json
import sys
from pathlib import Path

import pytest

from killing import Runs
from stepmark.data.reading import read_rows
from stepmark.errors import InputError, UsageError
from stepmark.store import PartFile, resumed

RUN = {"command": "squares", "settings": {"t": 1}}
MODELS = {"prm": "m#0"}
ROW = "{}".format


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def squares(asked, *, stop_at=None):
    """A command: it gives the square of a number, refuses a negative one, and breaks at `stop_at`."""

    def compute(rows):
        for row in rows:
            if row == stop_at:
                raise RuntimeError("stopped")
            asked.append(row)
            yield row**2

    def keep(row, result):
        if row < 0:
            raise InputError(f"{row} is negative")
        return {"row": row, "square": result}

    def run(out, rows, made_by=RUN, models=MODELS, **more):
        with PartFile(out, made_by) as part:
            part.identify(models)
            given = list(resumed(part, rows, ROW, compute, keep, **more))
            part.finish({"rows": len(rows)}, {} if out is None else {out: lambda result: [result]})
        return given

    return run


def stopped(out, rows, stop_at):
    asked = []
    with pytest.raises(RuntimeError):
        squares(asked, stop_at=stop_at)(out, rows)
    return asked


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_part_is_plain_json_lines_and_goes_when_the_output_is_whole(tmp_path):
    out, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    stopped(out, [1, 2, 3], stop_at=3)
    assert names(tmp_path) == ["out.jsonl.part"]
    first, *results = lines(part)
    assert first.pop("stepmark")
    assert first == {**RUN, "models": MODELS}
    assert results == [{"key": str(n), "result": {"row": n, "square": n * n}} for n in (1, 2)]
    squares([])(out, [1, 2, 3])
    assert names(tmp_path) == ["out.jsonl", "out.jsonl.manifest.json"]
    assert lines(out) == [{"row": n, "square": n * n} for n in (1, 2, 3)]
    manifest = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
    assert manifest.pop("stepmark")
    assert manifest == {**RUN, "models": MODELS, "rows": 3}


@pytest.mark.parametrize(
    "rows",
    [
        [1, 2, 3, 4, 5],
        [1, 20, 3, 4, 5],
        [3, 4],
        [0, 1, 2, 3, 4, 5, 6, 7],
        [5, 3, 1, 4, 2],
        [1, 1, 9, 2, 2, 9],
        [-1, 1, 2, -2, 4],
        iter([1, 2, 3, 4, 5]),
    ],
    ids=[
        "same",
        "corrected",
        "shortened",
        "extended",
        "reordered",
        "equal rows",
        "without results",
        "fed again",
    ],
)
def test_only_what_is_missing_is_done_and_the_file_is_as_if_never_stopped(tmp_path, rows):
    rows = list(rows)
    out, whole, asked = tmp_path / "out", tmp_path / "whole", []
    before = stopped(out, [1, 2, 3, 4, 5], stop_at=4)
    given = squares(asked)(out, rows)
    assert asked == [row for row in rows if row not in before]
    assert [row for row, _, result in given if result is None] == [row for row in rows if row in before]
    expected = squares([])(whole, rows)
    assert [(row, str(kept)) for row, kept, _ in given] == [(row, str(kept)) for row, kept, _ in expected]
    assert out.read_bytes() == whole.read_bytes()
    beside = [Path(f"{path}.manifest.json").read_bytes() for path in (out, whole)]
    assert beside[0] == beside[1]


def test_errors_stand_in_their_place_and_nothing_is_kept_of_them(tmp_path):
    bad = InputError("bad", where="in.jsonl:2")
    for missing in ([1, 3], []):
        asked = []
        with PartFile(tmp_path / "out", RUN) as part:
            part.identify(MODELS)

            def compute(rows, asked=asked):
                for row in rows:
                    asked.append(row)
                    yield row

            given = list(resumed(part, [1, bad, 3], ROW, compute, lambda row, _: {"row": row}))
        assert [row for row, _, _ in given] == [1, None, 3]
        assert given[1][1:] == (bad, None)
        assert asked == missing
        assert len(lines(tmp_path / "out.part")) == 3
    with pytest.raises(InputError, match="negative"):
        squares([])(tmp_path / "other", [1, -1, 2], keep_going=False)
    assert len(lines(tmp_path / "other.part")) == 2


def test_rows_that_an_interrupted_run_has_done_are_given_before_more_is_read(tmp_path):
    stopped(tmp_path / "out", [1, 2, 3], stop_at=3)
    read = []
    with PartFile(tmp_path / "out", RUN) as part:
        part.identify(MODELS)
        rows = (read.append(n) or n for n in range(1, 4))
        given = resumed(part, rows, ROW, lambda left: (n * n for n in left), lambda row, _: {})
        assert [next(given)[0], len(read)] == [1, 1]
        assert [next(given)[0], len(read)] == [2, 2]


@pytest.mark.parametrize("torn", [b"", b"{", b'{"key": "3", "result": {"row": 3}}'])
def test_a_torn_last_line_is_cut_off(tmp_path, torn):
    out, part = tmp_path / "out", tmp_path / "out.part"
    stopped(out, [1, 2, 3], stop_at=3)
    whole = part.read_bytes()
    part.write_bytes(whole + torn)
    stopped(out, [1, 2, 3], stop_at=3)
    assert part.read_bytes() == whole
    asked = []
    squares(asked)(out, [1, 2, 3])
    assert asked == [3]


@pytest.mark.parametrize("length", [0, 1, 9, 30])
def test_a_torn_first_line_is_written_again(tmp_path, length):
    stopped(tmp_path / "out", [1, 2], stop_at=2)
    part = tmp_path / "out.part"
    part.write_bytes(part.read_bytes()[:length])
    assert squares([])(tmp_path / "out", [1], {"command": "another"})
    assert lines(tmp_path / "out") == [{"row": 1, "square": 1}]


@pytest.mark.parametrize(
    "damage",
    [
        b"no JSON",
        b'{"key": "2", "result"',
        b"\0\0\0\0",
        b"[1]",
        b'{"key": "2"}',
        b'{"key": "2", "result": 4}',
        b"[" * 100_000,
    ],
    ids=lambda damage: str(damage[:24]),
)
def test_a_damaged_line_is_named_and_without_it_the_run_goes_on(tmp_path, damage):
    part = tmp_path / "out.part"
    stopped(tmp_path / "out", [1, 2, 3, 4], stop_at=4)
    whole = part.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*whole[:2], damage + b"\n", *whole[3:]])
    part.write_bytes(damaged)
    with pytest.raises(UsageError, match=r"out\.part:3 is damaged"):
        squares([])(tmp_path / "out", [1, 2, 3, 4])
    assert part.read_bytes() == damaged
    part.write_bytes(b"".join([*whole[:2], *whole[3:]]))
    asked = []
    squares(asked)(tmp_path / "out", [1, 2, 3, 4])
    assert asked == [2, 4]


@pytest.mark.parametrize("content", [b"my notes\n", b"my notes", b'{"a": 1}\n', b"\n"])
def test_a_file_of_someone_else_is_left_alone(tmp_path, content):
    part = tmp_path / "out.part"
    part.write_bytes(content)
    with pytest.raises(UsageError, match=r"out\.part"):
        PartFile(tmp_path / "out", RUN)
    assert part.read_bytes() == content


def test_another_run_is_refused_and_says_what_differs(tmp_path):
    out, part = tmp_path / "out", tmp_path / "out.part"
    stopped(out, [1, 2], stop_at=2)
    kept = part.read_bytes()
    for made_by, models, differs in (
        ({**RUN, "settings": {"t": 2}}, MODELS, [r"settings\.t", "1", "2"]),
        ({"command": "cubes", "settings": {"t": 1}}, MODELS, ["command", "squares", "cubes"]),
        ({**RUN, "more": 7}, MODELS, ["more", "null", "7"]),
        (RUN, {"prm": "m#1"}, [r"models\.prm", "m#0", "m#1"]),
        (RUN, {**MODELS, "orm": "o#2"}, [r"models\.orm", "null", "o#2"]),
    ):
        with pytest.raises(UsageError, match=".*".join(differs)) as caught:
            squares([])(out, [1, 2], made_by, models)
        assert str(part) in str(caught.value)
        assert part.read_bytes() == kept
    squares([])(out, [1, 2])


def test_where_nothing_is_done_any_run_may_begin(tmp_path):
    stopped(tmp_path / "out", [1], stop_at=1)
    assert names(tmp_path) == []
    part = tmp_path / "out.part"
    stopped(tmp_path / "out", [1, 2], stop_at=2)
    part.write_bytes(part.read_bytes().splitlines(keepends=True)[0])
    squares([])(tmp_path / "out", [3], {"command": "another"}, {"prm": "m#1"})
    manifest = json.loads((tmp_path / "out.manifest.json").read_text())
    assert (manifest["command"], manifest["models"]) == ("another", {"prm": "m#1"})


def test_two_runs_at_once(tmp_path):
    with PartFile(tmp_path / "out", RUN) as first:
        first.identify(MODELS)
        first.add("1", {"row": 1})
        with pytest.raises(UsageError, match="another run is writing"):
            PartFile(tmp_path / "out", RUN)
        first.finish({}, {tmp_path / "out": lambda result: [result]})
        with PartFile(tmp_path / "out", RUN) as second:  # the first is done
            assert second.kept == 0
    assert lines(tmp_path / "out") == [{"row": 1}]


def test_a_finished_file_is_replaced_only_when_the_next_is_finished(tmp_path):
    out = tmp_path / "out"
    squares([])(out, [1])
    stopped(out, [2, 3], stop_at=3)
    assert names(tmp_path) == ["out", "out.manifest.json", "out.part"]
    assert lines(out) == [{"row": 1, "square": 1}]
    squares([])(out, [2, 3])
    assert names(tmp_path) == ["out", "out.manifest.json"]
    assert len(lines(out)) == 2


def test_results_may_make_several_files(tmp_path):
    with PartFile(tmp_path / "out.jsonl.gz", RUN) as part:
        part.identify(MODELS)
        part.add("a", {"rows": [{"x": "é"}, {"x": 2}], "tree": {"t": 1}})
        part.add("b", {"rows": [], "tree": {"t": 2}})
        outputs = {
            tmp_path / "trees.jsonl": lambda result: [result["tree"]],
            tmp_path / "out.jsonl.gz": lambda result: result["rows"],
        }
        part.finish({}, outputs)
    assert [row.data for row in read_rows(tmp_path / "out.jsonl.gz")] == [{"x": "é"}, {"x": 2}]
    assert lines(tmp_path / "trees.jsonl") == [{"t": 1}, {"t": 2}]
    assert names(tmp_path) == ["out.jsonl.gz", "out.jsonl.gz.manifest.json", "trees.jsonl"]


def test_a_run_without_a_file_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []
    given = squares(asked)(None, [1, 1, 2])
    assert (asked, [kept["square"] for _, kept, _ in given]) == ([1, 1, 2], [1, 1, 4])
    assert names(tmp_path) == []


# --- killed at every moment


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL on Windows")
def test_killed_at_every_moment_the_same_command_makes_the_same_file(tmp_path):
    folder = tmp_path / "watched"
    folder.mkdir()
    rows = [
        {"problem": f"{n} + {n}?", "steps": [f"{n} + {n} = {2 * n}", f"{n} + 1 = {n + 1 + n % 2}"]}
        for n in range(4)
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole, out = tmp_path / "whole.jsonl", folder / "out.jsonl"
    words = ["grade", tmp_path / "in.jsonl", "--prm", "scripted_prms:arithmetic", "--out"]
    runs = Runs(folder, "stepmark.cli.grade", "stepmark.scoring.run", "scripted_prms")
    try:
        assert runs([*words, whole]).code == 0
        at = 0
        while (ended := runs([*words, out], at=at)).code != 0:
            assert ended.code == -9, ended.err
            assert set(names(folder)) - {"out.jsonl.part", "out.jsonl", "out.jsonl.manifest.json"} <= {
                name for name in names(folder) if name.endswith(".tmp")
            }
            again = runs([*words, out])
            assert again.code == 0, (ended.moments[-1], again.err)
            assert out.read_bytes() == whole.read_bytes(), ended.moments[-1]
            assert names(folder) == ["out.jsonl", "out.jsonl.manifest.json"]
            for name in names(folder):
                (folder / name).unlink()
            at += 1
        assert at >= 6  # the part opened, file and manifest drafted and renamed, the part removed
    finally:
        runs.close()
