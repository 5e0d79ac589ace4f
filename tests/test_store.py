"""Reading strictly, writing whole or not at all, resuming; folders that are held; the results of a run."""

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
    PartFile,
    Results,
    atomic_rows,
    atomic_write,
    check_outputs,
    encode_row,
    fingerprint,
    held,
    run_input,
    write_manifest,
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
            PartFile(path, {})
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


def names(folder):
    return sorted(path.name for path in folder.iterdir())


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
def test_drafts_of_killed_processes_are_written_over_and_those_of_living_ones_stay(tmp_path):
    target = tmp_path / "out.jsonl"
    killed_in_a_draft(target)
    assert names(tmp_path) == [".out.jsonl.tmp"]
    with drafting(target, "lives") as living:
        assert living.stdout.readline() == "writing\n"
        with pytest.raises(UsageError, match="another run"), atomic_write(target):
            pass
        living.communicate("go on\n")
    assert living.returncode == 0
    assert target.read_text() == "half"
    assert names(tmp_path) == ["out.jsonl"]


# --- rows


def test_rows_take_the_place_of_a_file_and_of_its_manifest_when_they_are_whole(tmp_path):
    out = tmp_path / "out.jsonl"
    with atomic_rows(out) as row:
        row({"a": "é"})
    write_manifest(out, {"run": 1})
    with pytest.raises(RuntimeError), atomic_rows(out) as row:
        row({"a": 2})
        raise RuntimeError
    assert out.read_text(encoding="utf-8") == '{"a": "é"}\n'
    assert json.loads((tmp_path / "out.jsonl.manifest.json").read_text())["run"] == 1
    with atomic_rows(out) as row:
        row({"a": 2})
    assert names(tmp_path) == ["out.jsonl"]  # what the manifest said was of another file


def test_a_packed_file_is_a_function_of_its_rows(tmp_path):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        with atomic_rows(tmp_path / name) as row:
            row({"a": 1})
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert [row.data for row in read_rows(tmp_path / "a.jsonl.gz")] == [{"a": 1}]


def test_streams(capfdbinary, tmp_path):
    for target in ("-", "/dev/stdout"):
        with atomic_rows(target) as row:
            row({"a": "é"})
            assert capfdbinary.readouterr().out == '{"a": "é"}\n'.encode()  # at once
        write_manifest(target, {})
    with atomic_rows(None) as row:
        row({"a": 1})
    write_manifest(None, {})
    assert capfdbinary.readouterr().out == b"" and names(tmp_path) == []


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
