"""Rows as people have them: files of every kind and Python objects give the same rows, and errors say where."""

import builtins
import csv
import gzip
import io
import json
import sys
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.data.columns import parse_columns
from stepmark.data.reading import Row, read_rows
from stepmark.errors import InputError, MissingExtraError, UsageError
from stepmark.records import Judgement, LabelledSolution, Problem, Refusal, Solution, Step, record_row
from stepmark.store import fingerprint

ROWS = [
    {"problem": "What is 2 + 3?", "steps": ["2 + 3 = 5", 'so "5"'], "answer": "5", "meta": {"level": 1}},
    {"problem": "Two\nlines, and a comma", "solution": "x = 1\r\ny = 2", "id": "b"},
]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def data(rows):
    return [row.data for row in rows]


def refused(source, *parts, where=None, **settings):
    with pytest.raises(InputError) as caught:
        list(read_rows(source, **settings))
    for part in parts:
        assert part in str(caught.value)
    if where is not None:
        assert caught.value.where == where
    return caught.value


# --- every kind of file, written by hand

JSONL = '{"problem": "What is 2 + 3?", "steps": ["2 + 3 = 5", "so \\"5\\""], "answer": "5", "meta": {"level": 1}}\n{"problem": "Two\\nlines, and a comma", "solution": "x = 1\\r\\ny = 2", "id": "b"}\n'
LIST = "[\n" + JSONL.strip().replace("\n", ",\n") + "\n]\n"
CSV = (
    "problem,steps,answer,meta,solution,id\n"
    'What is 2 + 3?,"[""2 + 3 = 5"", ""so \\""5\\""""]",5,"{""level"": 1}",,\n'
    '"Two\nlines, and a comma",,,,"x = 1\r\ny = 2",b\n'
)
TSV = CSV.replace(",", "\t").replace("lines\t and", "lines, and").replace('5""\t ', '5"", ')


@pytest.mark.parametrize(
    ("name", "text", "places"),
    [
        ("a.jsonl", JSONL, [":1", ":2"]),
        ("a.txt", JSONL, [":1", ":2"]),
        ("a.json", JSONL, [":1", ":2"]),
        ("a.json", LIST, [", row 1", ", row 2"]),
        ("a.csv", CSV, [":2", ":3"]),
        ("a.CSV", "\n" + CSV, [":3", ":4"]),
        ("a.csv", "\ufeff" + CSV, [":2", ":3"]),
        ("a.tsv", TSV, [":2", ":3"]),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_every_kind_of_file(tmp_path, name, text, places, packed):
    name, content = (name + ".gz", gzip.compress(text.encode())) if packed else (name, text)
    path = write(tmp_path / name, content)
    rows = list(read_rows(path))
    assert data(rows) == ROWS
    assert [row.where for row in rows] == [f"{path}{place}" for place in places]
    assert [row.place for row in rows] == [f"{name}:{place[-1]}" for place in places]


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    steps = pa.array([ROWS[0]["steps"], None], pa.list_(pa.string()))
    meta = pa.array([{"level": 1}, None])
    columns = {name: [row.get(name) for row in ROWS] for name in ("problem", "answer", "solution", "id")}
    parquet.write_table(pa.table({**columns, "steps": steps, "meta": meta}), path)
    rows = list(read_rows(path))
    assert data(rows) == ROWS
    assert [row.where for row in rows] == [f"{path}, row 1", f"{path}, row 2"]
    refused(path, "there is no column 'nope'", "found 'problem', 'answer'", columns={"id": "nope"})
    refused(write(tmp_path / "b.parquet", path.read_bytes()[:-40]), "damaged", where=f"{tmp_path}/b.parquet")
    # Named otherwise, it is recognised all the same.
    refused(
        write(tmp_path / "c.jsonl", path.read_bytes()), "a Parquet file: give it a name that ends in .parquet"
    )
    refused(write(tmp_path / "c.csv", path.read_bytes()), "a Parquet file", where=f"{tmp_path}/c.csv:1")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install \"stepmark\[hub\]\""):
        list(read_rows(write(tmp_path / "a.parquet", b"PAR1 something")))


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(JSONL.encode())))
    rows = list(read_rows("-", columns={"question": "problem"}))
    assert [row.where for row in rows] == ["stdin:1", "stdin:2"]
    assert rows[1].data["question"] == "Two\nlines, and a comma"


# --- Python objects


def test_dicts():
    rows = list(read_rows(dict(row) for row in ROWS))
    assert rows == [Row(data=ROWS[0], line=1, by_line=False), Row(data=ROWS[1], line=2, by_line=False)]
    assert [row.where for row in rows] == ["row 1", "row 2"]
    kept = {"problem": "p", "solution": None, "when": date(2026, 1, 2), "pair": (1, "x")}
    assert data(read_rows([kept])) == [
        {"problem": "p", "solution": None, "when": "2026-01-02", "pair": [1, "x"]}
    ]


def test_records():
    solution = Solution(
        problem=Problem(text="p", id="q1", answer="5", source="a set"),
        steps=(Step(text="a", lead="- "), Step(text="b")),
        id="s",
        source="a model",
    )
    judged = LabelledSolution(
        solution=solution, judgements=((Judgement(kind="correctness", judge="human", rating=1),), ())
    )
    rows = list(read_rows([solution.problem, solution, judged]))
    assert [row.record for row in rows] == [solution.problem, solution, judged]
    assert rows[0].data == {"problem": "p", "answer": "5", "id": "q1", "source": "a set"}
    assert rows[1].data == {
        "problem": "p",
        "steps": ["a", "b"],
        "answer": "5",
        "id": "s",
        "source": "a model",
        "problem_id": "q1",
        "problem_source": "a set",
    }
    assert rows[2].data["judgements"] == [[{"kind": "correctness", "judge": "human", "rating": 1}], []]
    assert rows[2].data["solution"]["steps"] == [{"text": "a", "lead": "- "}, {"text": "b"}]
    assert record_row(Problem(text="p")) == {"problem": "p"}


def test_pandas():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {"problem": ["p", "q"], "answer": [18, None], "steps": [["a"], None], "n": [1, 2]}, index=[7, 9]
    )
    rows = list(read_rows(frame, columns={"reference": "answer"}))
    assert data(rows) == [
        {"problem": "p", "reference": 18.0, "steps": ["a"], "n": 1},
        {"problem": "q", "n": 2},
    ]
    assert rows[1].where == "row 2"
    assert all(type(value) in (str, int, float, list) for row in rows for value in row.data.values())
    refused(
        frame, "there is no column 'nope'", "found 'problem', 'answer', 'steps', 'n'", columns={"id": "nope"}
    )
    refused(frame["problem"], "found a Series; give the frame")
    refused(pd.DataFrame([[1, 2]], columns=["a", "a"]), "stands twice", "'a'")
    refused(pd.DataFrame([[1, 2]]), "names of columns", "found 0")

    class Own(pd.DataFrame):
        pass

    assert data(read_rows(Own({"problem": ["p"]}))) == [{"problem": "p"}]


def test_polars():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"problem": ["p", "q"], "steps": [["a"], None]})
    assert data(read_rows(frame)) == [{"problem": "p", "steps": ["a"]}, {"problem": "q"}]
    refused(frame.lazy(), "frame.collect()")


def test_datasets():
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_list([{"problem": "p", "steps": ["a"]}, {"problem": "q", "steps": None}])
    expected = [{"problem": "p", "steps": ["a"]}, {"problem": "q"}]
    assert data(read_rows(dataset)) == expected
    assert data(read_rows(dataset.to_iterable_dataset())) == expected
    assert data(read_rows(dataset, columns={"question": "problem"}))[1] == {"question": "q"}
    refused(datasets.DatasetDict(train=dataset), "choose a split")


def test_the_libraries_are_not_imported():
    import subprocess

    script = (
        "import sys\nfrom stepmark.data.reading import read_rows\nlist(read_rows([{'a': 1}]))\n"
        "print([name for name in ('pandas', 'polars', 'pyarrow', 'datasets') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("What is 2 + 3? The answer is 5.", "found the text 'What is 2 + 3?"),
        ('{"problem": "p"}', "found the text"),
        ("rows.jsonl", "there is no such file"),
        ("", "found an empty text"),
        ({"problem": "p", "steps": ["a"]}, "found one dict; put it in a list"),
        (Solution.of("p", ["a"]), "found one record; put it in a list"),
        (3, "found an object of type int"),
        ([{"problem": "p"}, 3], "row 2"),
        (
            [{"p": 1j}],
            "row 1, field 'p'",
        ),
        ([{"p": float("nan")}], "row 1, field 'p': found NaN"),
        ([{"p": "\ud800"}], "row 1, field 'p': half of a surrogate pair"),
        ([], "there are no rows"),
    ],
    ids=str,
)
def test_what_holds_no_rows(source, part):
    assert part in str(refused(source))


def test_a_wrong_kind_is_refused_at_the_call():
    for source in (3, "no such file here", {"problem": "p"}):
        with pytest.raises(InputError):
            read_rows(source)


# --- CSV and TSV

BAD_TABLES = [
    (
        "a.csv",
        "problem,id\np,1\nq,2,3\nr,4\n",
        3,
        ["expected 2 cells, as the header has, found 3", "in quotes"],
    ),
    ("a.csv", 'problem,id\n"p\np",1\n"q" q,2\nr,4\n', 4, ['written twice ("")']),
    (
        "a.csv",
        "problem,steps\np,\nq,one; two\nr,\n",
        3,
        ["field 'steps'", "expected a JSON list", "'one; two'"],
    ),
    ("a.csv", "problem,steps\np,\nq,\"['a', 'b']\"\nr,\n", 3, ["a JSON list", "to_parquet"]),
    ("a.csv", "problem,meta\np,\nq,[1]\nr,\n", 3, ["field 'meta'", "expected a JSON object", "found a list"]),
    ("a.tsv", "problem\tid\np\t1\nq\t2\t3\nr\t4\n", 3, ["expected 2 cells"]),
]


@pytest.mark.parametrize(
    ("name", "text", "line", "parts"), BAD_TABLES, ids=[str(bad[1]) for bad in BAD_TABLES]
)
def test_bad_rows_of_tables(tmp_path, name, text, line, parts):
    path = write(tmp_path / name, text)
    error = refused(path, *parts, where=f"{path}:{line}")
    first, bad, last = read_rows(path, keep_going=True)
    assert isinstance(first, Row) and isinstance(last, Row) and last.data["problem"] == "r"
    assert isinstance(bad, Refusal) and str(bad.error) == str(error)


@pytest.mark.parametrize(
    ("text", "place", "part"),
    [
        ("problem,\np,1\n", ":1", "column 2 has no name: the first line of a CSV file names its columns"),
        ("problem,problem\np,1\n", ":1", "field 'problem': the column stands twice"),
        ("\n" + "x" * 101 + ",5\np,1\n", ":2", "found 'xxx"),
        ('"a\nb",5\np,1\n', ":1", "found 'a\\nb'"),
        ("problem,id\np,1\ncaf\udce9,2\nr,4\n", ":3", "byte 0xe9 at byte offset 18 "),
        ("problem,id\np,1\nq\0,2\nr,4\n", ":3", "NUL byte"),
        ("problem,id\n", "", "there are no rows"),
        ('problem,id\np,1\n"q,2\nr,3\n', ":3", "end of data"),
        ("\udcff\udcfep\0", ":1", "iconv -f UTF-16"),
    ],
)
@pytest.mark.parametrize("keep_going", [False, True])
def test_tables_that_cannot_be_read(tmp_path, text, place, part, keep_going):
    path = write(tmp_path / "a.csv", text.encode("utf-8", "surrogateescape"))
    if keep_going and "end of data" in part:  # the only one that is a row's
        assert [isinstance(row, Row) for row in read_rows(path, keep_going=True)] == [True, False]
        return
    assert part in str(refused(path, where=f"{path}{place}", keep_going=keep_going))


def test_lines_are_counted_inside_quoted_cells(tmp_path):
    path = write(tmp_path / "a.csv", 'problem,id\r\n"a\r\n\r\nb",1\r\n\r\n"c\nd",2\r\ne,3')
    rows = list(read_rows(path))
    assert [(row.line, row.data["problem"]) for row in rows] == [(2, "a\r\n\r\nb"), (6, "c\nd"), (8, "e")]


@pytest.mark.parametrize(("text", "found"), [("p;id\na, b;1\n", "a, b"), ("p\tid\na, b\t1\n", "a, b")])
def test_a_csv_file_with_another_separator(tmp_path, text, found):
    assert data(read_rows(write(tmp_path / "a.csv", text))) == [{"p": found, "id": "1"}]


def test_what_cells_hold(tmp_path):
    text = (
        ",problem,label,correct,solutions,messages,answer,note\n"
        '0,p,1,True,"[""a"", ""b""]","[{""role"": ""user""}]",018,true\n'
        "1,q,+ and -,,,,,\n"
    )
    first, second = data(read_rows(write(tmp_path / "a.csv", text)))
    assert first == {
        "index": "0",  # the column without a name that pandas writes first
        "problem": "p",
        "label": 1,
        "correct": True,
        "solutions": ["a", "b"],
        "messages": [{"role": "user"}],
        "answer": "018",
        "note": "true",
    }
    assert second == {"index": "1", "problem": "q", "label": "+ and -"}


# --- columns


def test_columns():
    assert parse_columns("problem=question, solution = a=b") == {"problem": "question", "solution": "a=b"}
    for bad in ("problem", "=question", "problem=", "", "problem=a,problem=b", "problem=a,"):
        with pytest.raises(UsageError, match="`columns`"):
            parse_columns(bad)


def test_columns_are_read_under_our_names():
    row = {"question": "p", "problem": 17, "Lösung": "s", "level": 3, "meta": {"k": 1}}
    (read,) = read_rows([row], columns={"problem": "question", "solution": "Lösung", "meta.hard": "level"})
    assert read.data == {"problem": "p", "solution": "s", "meta": {"k": 1, "problem": 17, "hard": 3}}
    assert read.as_read == row
    (same,) = read_rows([row])
    assert same.as_read is same.data
    refused([{"a": 1, "meta": "x"}], "row 1, field 'meta'", "expected an object", columns={"meta.b": "a"})


def test_a_cell_is_read_by_the_name_that_the_caller_gives_its_column(tmp_path):
    path = write(tmp_path / "a.csv", 'question,trace,steps\np,"[""a""]",3\n')
    (row,) = read_rows(path, columns={"problem": "question", "steps": "trace", "meta.count": "steps"})
    assert row.data == {"problem": "p", "steps": ["a"], "meta": {"count": "3"}}
    assert row.as_read == {"question": "p", "trace": ["a"], "steps": "3"}


def test_a_column_that_is_not_there(tmp_path):
    columns = {"problem": "frage"}
    found = "there is no column 'frage', which is to be read as 'problem'"
    table = write(tmp_path / "a.csv", "question,id\np,1\n")
    lines = write(tmp_path / "a.jsonl", '{"question": "p", "id": 1}\n')
    listed = write(tmp_path / "a.json", '[{"question": "p", "id": 1}]')
    for source, where in ((table, ":1"), (lines, ":1"), (listed, ", row 1")):
        refused(source, found, "found 'question', 'id'", where=f"{source}{where}", columns=columns)
        refused(source, found, columns=columns, keep_going=True)
    refused([{"question": "p"}], found, columns=columns)
    # A later row of JSON lines may lack it: what is absent is absent.
    assert data(read_rows([{"frage": "p"}, {"id": 2}], columns=columns)) == [{"problem": "p"}, {"id": 2}]


# --- the same rows, in every kind of source

texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1).filter(
    str.strip
)
values = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts
rows_ = st.lists(
    st.fixed_dictionaries(
        {"problem": texts},
        optional={
            "steps": st.lists(texts, min_size=1, max_size=3),
            "solution": texts,
            "answer": texts,
            "id": texts,
            "meta": st.dictionaries(texts, values, min_size=1, max_size=2),
        },
    ),
    min_size=1,
    max_size=4,
)


@given(rows=rows_)
@settings(max_examples=40, deadline=None)
def test_the_same_rows_from_every_source(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("rows")
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    sources = [
        rows,
        (row for row in rows),
        write(folder / "a.jsonl", lines),
        write(folder / "a.json", json.dumps(rows, indent=1)),
    ]
    for name, separator in (("a.csv", ","), ("a.tsv", "\t")):
        text = io.StringIO()
        # Python's writer leaves a bare carriage return without quotes.
        quoting = csv.QUOTE_ALL if "\\r" in lines else csv.QUOTE_MINIMAL
        table = csv.writer(text, delimiter=separator, lineterminator="\n", quoting=quoting)
        table.writerow(names)
        for row in rows:
            cells = (row.get(name, "") for name in names)
            table.writerow([cell if isinstance(cell, str) else json.dumps(cell) for cell in cells])
        sources.append(write(folder / name, text.getvalue()))
    for source in sources:
        assert data(read_rows(source)) == rows


@given(rows=rows_)
@settings(max_examples=40, deadline=None)
def test_the_same_rows_from_parquet_and_frames(tmp_path_factory, rows):
    pa = pytest.importorskip("pyarrow")
    pd = pytest.importorskip("pandas")
    from pyarrow import parquet

    plain = [{name: value for name, value in row.items() if name != "meta"} for row in rows]
    names = list(dict.fromkeys(name for row in plain for name in row))
    path = tmp_path_factory.mktemp("rows") / "a.parquet"
    parquet.write_table(
        pa.Table.from_pylist([{name: row.get(name) for name in names} for row in plain]), path
    )
    assert data(read_rows(path)) == plain
    frame = pd.DataFrame({name: [row.get(name) for row in plain] for name in names})
    assert data(read_rows(frame)) == plain


# --- how many there are


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("a.csv", 'problem,id\n"two\nlines",1\n\nq,2\n', 2),
        ("a.tsv", "problem\tid\np\t1\n", 1),
        ("a.json", '[{"a": 1},\n\n{"a": 2}]', 2),
        ("a.json", '{"a": 1}\n{"a": 2}\n', 2),
        ("a.jsonl", '{"a": 1}\n{"a": 2}\n{"a": 3}', 3),
        ("a.csv", "problem,\n", 1),  # which cannot be read: its lines
    ],
)
def test_a_fingerprint_counts_rows(tmp_path, name, text, rows):
    assert fingerprint(write(tmp_path / name, text)).lines == rows
    packed = fingerprint(write(tmp_path / f"{name}.gz", gzip.compress(text.encode())))
    assert packed.lines == rows


def test_a_fingerprint_counts_the_rows_of_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"a": list(range(7))}), tmp_path / "a.parquet")
    assert fingerprint(tmp_path / "a.parquet").lines == 7


def test_a_spreadsheet_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"a\.xlsx: a spreadsheet is not read: save it as CSV UTF-8"):
        list(read_rows(write(tmp_path / "a.xlsx", b"PK\x03\x04")))
