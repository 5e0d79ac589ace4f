"""Reading strictly, writing whole or not at all, resuming; folders that are held; the results of a run."""

import contextlib
import gzip
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepmark.data.json_rows import parse_row
from stepmark.data.reading import Row, check_readable, read_rows
from stepmark.errors import InputError, UsageError
from stepmark.records import Refusal, Solution
from stepmark.store import (
    LOCK_FILE,
    Results,
    ResumableRows,
    StreamedRows,
    atomic_write,
    check_outputs,
    encode_row,
    fingerprint,
    held,
    open_rows,
    run_input,
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(), json_values, max_size=5)


def write(path, content):
    path.write_bytes(content)
    return path


# --- reading


@given(objects)
def test_what_is_written_is_read_back(row):
    line = encode_row(row)
    assert line.count(b"\n") == 1
    assert parse_row(line) == row


def test_rows_and_their_places(tmp_path):
    path = write(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"b": "\xe2\x80\xa8"}')
    rows = list(read_rows(path))
    assert rows == [
        Row(data={"a": 1}, file=str(path), line=1),
        Row(data={"b": "\u2028"}, file=str(path), line=4),  # a line separator inside a string ends no line
    ]
    assert rows[1].where == f"{path}:4"


def test_gzip_by_its_name(tmp_path):
    path = write(tmp_path / "a.jsonl.gz", gzip.compress(b'{"a": 1}\n{"a": 2}\n'))
    assert [row.data["a"] for row in read_rows(path)] == [1, 2]


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}\n[]\n')))
    rows = read_rows("-")
    assert next(rows).where == "stdin:1"
    with pytest.raises(InputError, match=r"^stdin:2: expected a JSON object, found a list"):
        next(rows)


BAD_LINES = [
    (b'{"a": 1', [":2: not JSON", "column 8, where the line ends"]),
    (b"{'a': 1}", [":2: not JSON", "double quotes", "column 2", "\"'a': 1}\""]),
    (b'{"a": 1} {"b": 2}', [":2: not JSON: Extra data at column 10"]),
    (b"[1, 2]", [":2: expected a JSON object, found a list", "a name that ends in .json"]),
    (b'{"a": 1, "b": 2, "a": 3}', [":2, field 'a': the key stands twice"]),
    (b'{"meta": {"x": 1, "x": 1}}', ["field 'x'", "twice"]),
    (b'{"a": NaN}', ["NaN", "null"]),
    (b'{"a": 1e999}', ["1e999", "too large"]),
    (b'{"a": ' + b"9" * 5000 + b"}", ["not readable"]),
    (b'{"a": ' + b"[" * 100_000, ["nested too deeply"]),
    (
        b'{"a": ' * 200 + b"[]" + b"}" * 200,
        ["nested too deeply, more than 200 lists and objects in each other"],
    ),
    (b'{"a": "caf\xe9"}', [":2: not UTF-8: byte 0xe9 at byte offset 22", "Write the file as UTF-8"]),
    (b'{"a": "\\ud83d"}', ["half of a surrogate pair (\\ud83d)"]),
]


@pytest.mark.parametrize(("line", "parts"), BAD_LINES, ids=[str(line[:20]) for line, _ in BAD_LINES])
def test_bad_lines(tmp_path, line, parts):
    path = write(tmp_path / "a.jsonl", b'{"good": 1}\n' + line + b'\n{"good": 3}\n')
    rows = read_rows(path)
    assert next(rows).data == {"good": 1}
    with pytest.raises(InputError) as caught:
        next(rows)
    assert str(caught.value).startswith(f"{path}:2")
    for part in parts:
        assert part in str(caught.value)

    first, bad, last = read_rows(path, keep_going=True)
    assert isinstance(first, Row) and isinstance(last, Row) and last.line == 3
    assert isinstance(bad, Refusal) and str(bad.error) == str(caught.value)


def test_the_byte_offset_is_that_of_the_file(tmp_path):
    content = b'\xef\xbb\xbf{"a": 1}\n{"b": "\xff"}\n'
    with pytest.raises(InputError, match=f"byte 0xff at byte offset {content.index(0xFF)} "):
        list(read_rows(write(tmp_path / "a.jsonl", content)))


def test_the_deepest_row_that_is_read_is_written_again():
    row = parse_row(b'{"a": ' + b"[" * 199 + b"]" * 199 + b"}")

    def deep(frames):
        return encode_row(row) if frames == 0 else deep(frames - 1)

    assert parse_row(deep(300)) == row
    assert parse_row(b'{"a": "' + b"[{" * 500 + b'"}') == {"a": "[{" * 500}
    assert len(parse_row(b'{"a": [' + b"[]," * 500 + b"[]]}")["a"]) == 501


def test_links_that_lead_back_to_themselves(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for path in (tmp_path / "a", tmp_path / "a" / "x.jsonl"):
        with pytest.raises(InputError, match=f"^{path}: "):
            read_rows(path)
        with pytest.raises(UsageError, match=f"^cannot write {path}: "):
            ResumableRows(path, {})
        with pytest.raises(UsageError, match=f"^cannot write {path}: "), atomic_write(path):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_surrogate_pair_is_a_character(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"a": "\\ud83d\\ude00"}\n')
    assert next(read_rows(path)).data == {"a": "\U0001f600"}


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (gzip.compress(b"{}\n", mtime=0), "gzip file"),
        (b"PAR1\x15\x04\xff", "Parquet"),
        ('{"a": 1}\n'.encode("utf-16"), "iconv -f UTF-16"),
        (b'{\n  "a": 1\n}\n', "jq -c ."),
        (b'[\n  {"a": 1}\n]\n', "a name that ends in .json"),
    ],
)
def test_mistaken_files_are_recognised(tmp_path, content, hint):
    with pytest.raises(InputError, match=r":1: ") as caught:
        list(read_rows(write(tmp_path / "a.jsonl", content)))
    assert hint in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n  \n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("keep_going", [False, True])
def test_no_rows(tmp_path, content, keep_going):
    with pytest.raises(InputError, match="expected one JSON object a line"):
        list(read_rows(write(tmp_path / "a.jsonl", content), keep_going=keep_going))


def test_a_missing_file_is_refused_before_reading(tmp_path):
    write(tmp_path / "solutions.jsonl", b"{}")
    with pytest.raises(InputError, match=r"there is no such file\. Did you mean '.*solutions\.jsonl'"):
        read_rows(tmp_path / "solution.jsonl")
    with pytest.raises(InputError, match=r"there is no such file$"):
        read_rows(tmp_path / "nowhere" / "x")
    with pytest.raises(InputError, match="found a folder"):
        check_readable(tmp_path)


def test_of_a_folder_the_files_of_rows_are_read_in_the_order_of_their_names(tmp_path):
    write(tmp_path / "b.csv", b"a\n2\n")
    write(tmp_path / "a.jsonl", b'{"a": 0}\n{"a": 1}\n')
    write(tmp_path / "a.jsonl.manifest.json", b"{}")
    write(tmp_path / "notes.txt", b"x")
    rows = [(row.data["a"], row.place) for row in read_rows(tmp_path)]
    assert rows == [(0, "a.jsonl:1"), (1, "a.jsonl:2"), ("2", "b.csv:2")]
    given = run_input(tmp_path, again=True)
    assert (given.rows, given.manifest["bytes"]) == (3, 18 + 4)
    write(tmp_path / "b.csv", b"a\n3\n")
    assert run_input(tmp_path).manifest["sha256"] != given.manifest["sha256"]
    with pytest.raises(UsageError, match="lies in the folder that is read"):
        check_outputs({"out": tmp_path / "c.jsonl"}, tmp_path)
    check_outputs({"out": tmp_path / "report.html"}, tmp_path)
    for name in ("a.csv", "a.csv.gz", "a.parquet"):
        with pytest.raises(UsageError, match=r"written as JSON lines, not as a table: name it a\.jsonl"):
            check_outputs({"out": tmp_path / name})
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no file in this folder ends in"):
        read_rows(tmp_path / "empty")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(tmp_path):
    write(tmp_path / "a", b"{}").chmod(0)
    with pytest.raises(InputError, match="permission denied"):
        read_rows(tmp_path / "a")


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_damaged_gzip(tmp_path, keep_going):
    whole = gzip.compress(b"".join(b'{"a": %d}\n' % i for i in range(1000)))
    for damaged in (whole[: len(whole) // 2], whole[:40] + bytes(20) + whole[60:], b'{"a": 1}\n'):
        with pytest.raises(InputError, match="damaged or cut off"):
            list(read_rows(write(tmp_path / "a.gz", damaged), keep_going=keep_going))


def test_reading_is_a_stream(tmp_path):
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb", buffering=0) as source:
        rows = read_rows(f"/dev/fd/{read_end}")
        source.write(b'{"a": 1}\n')
        assert next(rows).data == {"a": 1}  # before the second row exists
        source.write(b'{"a": 2}\n')
        assert next(rows).data == {"a": 2}
    assert list(rows) == []
    os.close(read_end)


# --- fingerprints


def test_fingerprint(tmp_path):
    path = write(tmp_path / "a", b"abc")
    found = fingerprint(path)
    # The SHA-256 of "abc": FIPS 180-2, appendix B.1.
    assert found.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (found.bytes, found.lines) == (3, 1)
    packed = write(tmp_path / "a.gz", gzip.compress(b"1\n2\n3"))
    assert fingerprint(packed).lines == 3
    assert fingerprint("-") is None
    assert fingerprint("/dev/null") is None


# --- writing whole or not at all


def test_atomic_write(tmp_path):
    path = tmp_path / "a.txt"
    with atomic_write(path) as handle:
        handle.write("one\n")
        assert not path.exists()
    assert path.read_bytes() == b"one\n"
    with pytest.raises(RuntimeError), atomic_write(path) as handle:
        handle.write("two\n")
        raise RuntimeError
    assert path.read_bytes() == b"one\n"
    assert names(tmp_path) == ["a.txt"]


def test_atomic_write_keeps_a_link_and_a_device(tmp_path):
    target = write(tmp_path / "target", b"old")
    (tmp_path / "link").symlink_to(target)
    with atomic_write(tmp_path / "link") as handle:
        handle.write("new")
    assert (tmp_path / "link").is_symlink()
    assert target.read_text() == "new"
    with atomic_write("/dev/null") as handle:
        handle.write("x")
    assert not Path("/dev/null").is_file()


def test_where_nothing_can_be_written(tmp_path):
    with (
        pytest.raises(UsageError, match=r"there is no folder .*nowhere; make it first"),
        atomic_write(tmp_path / "nowhere" / "a"),
    ):
        pass
    with pytest.raises(UsageError, match="it is a folder"), atomic_write(tmp_path):
        pass


# --- resuming


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_finished_file(tmp_path):
    out = tmp_path / "out.jsonl"
    rows = ResumableRows(out, {"prm": "p"})
    assert rows.done == 0
    rows.write({"a": "é"})
    rows.refuse(InputError("bad", where="in.jsonl:2"))
    rows.write({"a": 2})
    assert names(tmp_path) == ["out.jsonl.part", "out.jsonl.part.manifest.json"]
    rows.finish({"seen": 3})
    assert names(tmp_path) == ["out.jsonl", "out.jsonl.manifest.json"]
    assert out.read_text(encoding="utf-8") == '{"a": "é"}\n{"a": 2}\n'
    manifest = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
    assert manifest.pop("stepmark")
    assert manifest == {"prm": "p", "seen": 3, "rows": 2, "left_out": 1}


@pytest.mark.parametrize("torn", [b"", b'{"a": 3', b'!{"error"', b"{"])
def test_resuming_cuts_a_torn_line_and_repeats_nothing(tmp_path, torn):
    out = tmp_path / "out.jsonl"
    first = ResumableRows(out, {"settings": {"t": (1, 2)}})
    first.write({"a": 1})
    first.refuse(InputError("bad", where="in.jsonl:2"))
    first.close()
    with (tmp_path / "out.jsonl.part").open("ab") as part:
        part.write(torn)

    second = ResumableRows(out, {"settings": {"t": (1, 2)}})
    assert second.done == 2
    row, refusal = second.earlier()
    assert row == {"a": 1}
    assert str(refusal) == "in.jsonl:2: bad"
    second.write({"a": 3})
    assert len(list(second.earlier())) == 2  # the rows of this run are not "earlier"
    second.finish({})
    assert out.read_text() == '{"a": 1}\n{"a": 3}\n'


def test_another_manifest_is_refused_and_says_what_differs(tmp_path):
    out = tmp_path / "out.jsonl"
    first = ResumableRows(out, {"settings": {"prm": "a", "dtype": "auto"}, "input": {"sha256": "1"}})
    first.write({"a": 1})
    first.close()
    with pytest.raises(UsageError) as caught:
        ResumableRows(out, {"settings": {"prm": "b", "dtype": "auto"}, "input": None})
    message = str(caught.value)
    assert 'settings.prm was "a" and is now "b"' in message
    assert 'input was {"sha256": "1"} and is now null' in message
    assert "dtype" not in message
    assert f"{out}.part" in message
    # And it was left as it was.
    ResumableRows(out, {"settings": {"prm": "a", "dtype": "auto"}, "input": {"sha256": "1"}}).close()


def test_another_manifest_is_fine_where_nothing_was_done(tmp_path):
    out = tmp_path / "out.jsonl"
    ResumableRows(out, {"prm": "a"}).close()
    assert names(tmp_path) == []
    (tmp_path / "out.jsonl.part").write_bytes(b"{")
    (tmp_path / "out.jsonl.part.manifest.json").write_text('{"prm": "a"}')
    rows = ResumableRows(out, {"prm": "b"})
    assert rows.done == 0
    rows.write({"x": 1})
    rows.finish({})
    assert out.read_text() == '{"x": 1}\n'
    assert json.loads((tmp_path / "out.jsonl.manifest.json").read_text())["prm"] == "b"


@pytest.mark.parametrize("manifest", ["", "{", "[1]", "null", "[" * 100_000])
def test_a_damaged_manifest_says_what_to_delete(tmp_path, manifest):
    first = ResumableRows(tmp_path / "out.jsonl", {"prm": "a"})
    first.write({"x": 1})
    first.close()
    kept = (tmp_path / "out.jsonl.part").read_bytes()
    (tmp_path / "out.jsonl.part.manifest.json").write_text(manifest)
    with pytest.raises(
        UsageError,
        match=rf"^{tmp_path}/out.jsonl.part.manifest.json is damaged .*Delete {tmp_path}/out.jsonl.part to start again",
    ):
        ResumableRows(tmp_path / "out.jsonl", {"prm": "a"})
    assert (tmp_path / "out.jsonl.part").read_bytes() == kept


@pytest.mark.parametrize("content", [b"my notes\n", b"my notes"])
def test_a_part_of_someone_else_is_left_alone(tmp_path, content):
    part = write(tmp_path / "out.jsonl.part", content)
    with pytest.raises(UsageError, match="part"):
        ResumableRows(tmp_path / "out.jsonl", {})
    assert part.read_bytes() == content


def test_two_runs_at_once(tmp_path):
    first = ResumableRows(tmp_path / "out", {})
    with pytest.raises(UsageError, match="another run is writing"):
        ResumableRows(tmp_path / "out", {})
    first.write({"a": 1})
    first.finish({})
    assert (tmp_path / "out").read_text() == '{"a": 1}\n'


def part_of(folder, rows, manifest=None):
    """The part of an interrupted run, as bytes a line."""
    run = ResumableRows(folder / "out", manifest or {})
    for row in rows:
        run.write(row)
    run.close()
    return (folder / "out.part").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda a, b, c: [a, b, c, b"\0\0\0\n"], 4),
        (lambda a, b, c: [b, a, c], 1),  # of one length
        (lambda a, b, c: [a, c], 2),
        (lambda a, b, c: [a, b.replace(b"0.2", b"0.3"), c], 2),
        (lambda a, b, c: [a, b[:17] + b"!" + b[17:], c], 2),
    ],
)
def test_a_part_that_was_changed_is_refused_with_its_first_wrong_line(tmp_path, change, line):
    lines = part_of(tmp_path, [{"scores": [0.1 * n]} for n in (1, 2, 4)])
    assert len({len(one) for one in lines}) == 1
    (tmp_path / "out.part").write_bytes(b"".join(change(*lines)))
    with pytest.raises(UsageError, match=rf"out\.part:{line} "):
        ResumableRows(tmp_path / "out", {})
    # It was left as it was; put right, it goes on.
    (tmp_path / "out.part").write_bytes(b"".join(lines))
    run = ResumableRows(tmp_path / "out", {})
    assert (run.done, [row["scores"] for row in run.earlier()]) == (3, [[0.1], [0.2], [0.4]])
    run.close()


def test_rows_of_another_model_do_not_go_into_a_part(tmp_path):
    for identity in ("m#1", "m#0"):  # where no row is there yet, any model may begin
        first = ResumableRows(tmp_path / "out", {"settings": {"prm": "m"}})
        first.identify({"prm": identity})
        if identity == "m#0":
            first.write({"a": 1})
        first.close()
    for models, said in (
        ({"prm": "m#1"}, r'models\.prm was "m#0" and is now "m#1"'),
        ({"prm": "m#0", "orm": "o#2"}, r'models\.orm was null and is now "o#2"'),
    ):
        second = ResumableRows(tmp_path / "out", {"settings": {"prm": "m"}})
        with pytest.raises(UsageError, match=said):
            second.identify(models)
        second.close()
    third = ResumableRows(tmp_path / "out", {"settings": {"prm": "m"}})
    third.identify({"prm": "m#0"})
    third.finish({})
    manifest = json.loads((tmp_path / "out.manifest.json").read_text())
    assert manifest["models"] == {"prm": "m#0"}


def test_results_may_make_several_files(tmp_path):
    run = ResumableRows(tmp_path / "out.jsonl", {"a": 1})
    run.write({"rows": [{"x": 1}, {"x": 2}], "tree": {"t": 1}})
    run.refuse(InputError("bad"))
    run.write({"rows": [], "tree": {"t": 2}})
    assert [isinstance(one, InputError) for one in run.results()] == [False, True, False]
    run.finish(
        {"solutions": 2},
        {
            str(tmp_path / "trees.jsonl"): lambda result: [result["tree"]],
            str(tmp_path / "out.jsonl"): lambda result: result["rows"],
        },
    )
    assert (tmp_path / "out.jsonl").read_text() == '{"x": 1}\n{"x": 2}\n'
    assert (tmp_path / "trees.jsonl").read_text() == '{"t": 1}\n{"t": 2}\n'
    assert names(tmp_path) == ["out.jsonl", "out.jsonl.manifest.json", "trees.jsonl"]
    manifest = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
    assert manifest.pop("stepmark")
    assert manifest == {"a": 1, "solutions": 2}


# --- drafts


DIES_IN_A_DRAFT = """
import os, signal, sys
from stepmark.store import atomic_write
with atomic_write(sys.argv[1]) as handle:
    handle.write("half")
    handle.flush()
    if sys.argv[2] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    print("writing", flush=True)
    sys.stdin.readline()
"""


def drafting(path, how):
    return subprocess.Popen(
        [sys.executable, "-c", DIES_IN_A_DRAFT, str(path), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def killed_in_a_draft(path):
    with drafting(path, "dies") as process:
        assert process.wait() == -signal.SIGKILL


@pytest.mark.skipif(sys.platform == "win32", reason="needs file locks")
def test_drafts_of_killed_processes_go_and_those_of_living_ones_stay(tmp_path):
    target = tmp_path / "out.jsonl"
    killed_in_a_draft(target)
    stale = names(tmp_path)
    assert len(stale) == 1 and stale[0].endswith(".tmp")
    (tmp_path / ".out.jsonl.mine.tmp").write_text("of somebody else")
    (tmp_path / ".out.jsonl.part.0123456789ab.tmp").write_text("of another file")
    others = [".out.jsonl.mine.tmp", ".out.jsonl.part.0123456789ab.tmp"]
    with drafting(target, "lives") as living:
        assert living.stdout.readline() == "writing\n"
        [theirs] = set(names(tmp_path)) - {*others}
        assert theirs not in stale
        with atomic_write(target) as handle:
            handle.write("ours")
        assert names(tmp_path) == sorted([*others, theirs, "out.jsonl"])
        living.communicate("go on\n")
    assert living.returncode == 0
    assert target.read_text() == "half"  # the last to finish
    assert names(tmp_path) == sorted([*others, "out.jsonl"])


@pytest.mark.skipif(sys.platform == "win32", reason="needs file locks")
def test_a_run_that_begins_removes_what_a_killed_one_drafted(tmp_path):
    for name in ("out", "out.manifest.json", "out.part.manifest.json"):
        killed_in_a_draft(tmp_path / name)
    assert len(names(tmp_path)) == 3
    run = ResumableRows(tmp_path / "out", {})
    assert names(tmp_path) == ["out.part", "out.part.manifest.json"]
    run.close()


def test_a_pipe_cannot_be_resumed(tmp_path):
    rows = ResumableRows(tmp_path / "out", {}, resumable=False)
    rows.write({"a": 1})
    rows.close()
    assert names(tmp_path) == []
    killed = ResumableRows(tmp_path / "out", {})
    killed.write({"a": 1})
    killed.close()
    with pytest.raises(UsageError, match="a pipe cannot be read again"):
        ResumableRows(tmp_path / "out", {}, resumable=False)


def test_a_finished_file_is_replaced_only_when_the_next_is_finished(tmp_path):
    out = tmp_path / "out"
    for value in (1, 2):
        rows = ResumableRows(out, {"run": value})
        rows.write({"a": value})
        if value == 2:
            assert out.read_text() == '{"a": 1}\n'
            assert json.loads((tmp_path / "out.manifest.json").read_text())["run"] == 1
        rows.finish({})
    assert out.read_text() == '{"a": 2}\n'
    assert json.loads((tmp_path / "out.manifest.json").read_text())["run"] == 2


def test_a_packed_file_is_a_function_of_its_rows(tmp_path):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        rows = ResumableRows(tmp_path / name, {})
        rows.write({"a": 1})
        rows.finish({})
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert [row.data for row in read_rows(tmp_path / "a.jsonl.gz")] == [{"a": 1}]


def test_streams(capfdbinary, tmp_path):
    for target in (None, "-"):
        rows = open_rows(target, {})
        assert isinstance(rows, StreamedRows)
        rows.write({"a": "é"})
        rows.refuse(InputError("bad"))
        rows.finish({})
    assert capfdbinary.readouterr().out == 2 * '{"a": "é"}\n'.encode()
    rows = open_rows("/dev/null", {})
    rows.write({"a": 1})
    rows.finish({})
    assert not Path("/dev/null.part").exists()
    for target, type_ in (("/dev/stdout", StreamedRows), (tmp_path / "x", ResumableRows)):
        with contextlib.closing(open_rows(target, {})) as rows:
            assert isinstance(rows, type_)


# --- folders that one run at a time writes to


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


# --- the results of a run: a sequence of its records

RECORDS = [Solution.of(f"Problem {number}?", ["1 + 1 = 2"], id=str(number)) for number in range(7)]


def results(records=RECORDS, **more):
    return Results(lambda: iter(records), len(records), **more)


def test_a_sequence():
    found = results()
    assert len(found) == 7
    assert list(found) == RECORDS and list(found) == RECORDS
    assert found[0] == RECORDS[0] and found[-1] == RECORDS[6] and found[2:4] == RECORDS[2:4]
    assert RECORDS[3] in found
    with pytest.raises(IndexError, match="there are 7 records, found index 7"):
        found[7]


def test_it_says_what_it_is():
    assert repr(results()) == "<7 Solutions>"
    assert (
        repr(results(RECORDS[:1], out=Path("a.jsonl"), refused=["row 2: no"]))
        == "<1 Solution, 1 row left out, in a.jsonl>"
    )
    assert repr(results([])) == "<0 records>"


def test_a_notebook_shows_the_first_five():
    page = results()._repr_html_()
    assert page.count("Problem ") == 5
    assert "<p>2 more</p>" in page and "&lt;7 Solutions&gt;" in page
