"""Scores that go back to tracers: their bodies, and a server that checks what their published schemas say."""

from __future__ import annotations

import base64
import json
import re
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import stepmark
from stepmark.cli import main
from stepmark.errors import BackendError, InputError, UsageError
from stepmark.integrations.push import push_scores

ASK, FIRST, WRONG = "Pens cost 4 each; I buy 3 and a 5 euro book.", "4 * 3 = 12.", "12 + 5 = 18."
TRACE, CALLS = "0af7651916cd43dd8448eb211c80319c", ("b7ad6b7169203331", "00f067aa0ba902b7")
UUIDS = [str(uuid.UUID(int=n)) for n in range(4)]

CHAT = [
    {"role": "user", "content": ASK},
    {"role": "assistant", "content": FIRST},
    {"role": "user", "content": "Go on."},
]
TURNS = [(CHAT[:1], FIRST), (CHAT, WRONG)]


def langfuse(trace: str = TRACE, calls: tuple[str, ...] = CALLS) -> list[dict[str, Any]]:
    return [
        {"id": id_, "traceId": trace, "type": "GENERATION", "startTime": f"2026-01-01T00:00:0{n}Z", "input": prompt,
         "output": {"role": "assistant", "content": text}}
        for n, (id_, (prompt, text)) in enumerate(zip(calls, TURNS, strict=True))
    ]  # fmt: skip


def langsmith() -> list[dict[str, Any]]:
    trace, *calls, project = UUIDS
    return [
        {"id": id_, "trace_id": trace, "session_id": project, "run_type": "llm", "start_time": f"2026-01-01T00:00:0{n}",
         "inputs": {"messages": prompt}, "outputs": {"messages": [{"role": "assistant", "content": text}]}}
        for n, (id_, (prompt, text)) in enumerate(zip(calls, TURNS, strict=True))
    ]  # fmt: skip


def otel() -> list[dict[str, Any]]:
    def attribute(name: str, value: Any) -> dict[str, Any]:
        return {"key": name, "value": {"stringValue": json.dumps(value)}}

    spans = [
        {"traceId": TRACE, "spanId": id_, "startTimeUnixNano": str(n),
         "attributes": [attribute("gen_ai.input.messages", prompt),
                        attribute("gen_ai.output.messages", [{"role": "assistant", "content": text}])]}
        for n, (id_, (prompt, text)) in enumerate(zip(CALLS, TURNS, strict=True))
    ]  # fmt: skip
    return [{"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}]


TRACERS = {
    "langfuse-scores": langfuse,
    "langsmith-feedback": langsmith,
    "phoenix-annotations": otel,
}
PRM = stepmark.ScriptedPRM({FIRST: 0.9, WRONG: 0.2}, name="toy")


def graded(tmp_path: Path, rows: list[dict[str, Any]], **settings: Any) -> Path:
    traces, out = tmp_path / "traces.jsonl", tmp_path / "graded.jsonl"
    traces.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stepmark.grade(traces, PRM, out=out, progress=False, **settings)
    return out


# --- the published schemas, as far as our bodies use them ---------------------------------------------------------

Schema = dict[str, tuple[bool, Any]]
"""Of each field: whether it is required, and its type or the schema of an object."""

TEXT, NUMBER = str, (int, float)
LANGFUSE: Schema = {
    "id": (False, TEXT), "traceId": (False, TEXT), "sessionId": (False, TEXT), "observationId": (False, TEXT),
    "datasetRunId": (False, TEXT), "name": (True, TEXT), "value": (True, (int, float, str)), "comment": (False, TEXT),
    "metadata": (False, dict), "environment": (False, TEXT), "queueId": (False, TEXT), "dataType": (False, TEXT),
    "configId": (False, TEXT), "source": (False, TEXT),
}  # fmt: skip
LANGSMITH: Schema = {
    "id": (True, uuid.UUID), "run_id": (True, uuid.UUID), "trace_id": (True, uuid.UUID), "session_id": (False, uuid.UUID),
    "key": (True, TEXT), "score": (False, NUMBER), "value": (False, TEXT), "comment": (False, TEXT),
    "feedback_source": (True, {"type": (True, TEXT), "metadata": (False, dict)}),
}  # fmt: skip
RESULT: Schema = {"label": (False, TEXT), "score": (False, NUMBER), "explanation": (False, TEXT)}
PHOENIX: Schema = {
    "name": (True, TEXT), "annotator_kind": (True, TEXT), "result": (False, RESULT), "metadata": (False, dict),
    "identifier": (False, TEXT),
}  # fmt: skip


def check(body: Any, schema: Schema) -> None:
    assert isinstance(body, dict)
    assert body.keys() <= schema.keys()
    for name, (required, kind) in schema.items():
        if name not in body:
            assert not required, name
        elif isinstance(kind, dict):
            check(body[name], kind)
        elif kind is uuid.UUID:
            uuid.UUID(body[name])
        else:
            assert isinstance(body[name], kind), name


def check_log(body: dict[str, Any]) -> dict[str, Any]:
    """An OTLP JSON export of logs: the event and its attributes by name."""
    (resource,) = body["resourceLogs"]
    (scope,) = resource["scopeLogs"]
    (record,) = scope["logRecords"]
    assert record["eventName"] == "gen_ai.evaluation.result"
    assert re.fullmatch("[0-9a-f]{32}", record["traceId"])
    assert "spanId" not in record or re.fullmatch("[0-9a-f]{16}", record["spanId"])
    attributes = {}
    for pair in record["attributes"]:
        ((kind, value),) = pair["value"].items()
        assert {"stringValue": str, "doubleValue": float}[kind] is type(value)
        attributes[pair["key"]] = value
    assert attributes.keys() >= {"gen_ai.evaluation.name", "gen_ai.evaluation.score.value"}
    return {"trace": record["traceId"], "span": record.get("spanId"), **attributes}


class Collector:
    """A local server that takes what the schemas take, and remembers what it took."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                status, message = collector.status, ""
                try:
                    collector.take(self.path, body)
                except (AssertionError, KeyError, ValueError) as error:
                    status, message = 422, repr(error)
                reply = json.dumps({"id": "1"} if status == 200 else {"message": message}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path: str, body: dict[str, Any]) -> None:
        if path == "/api/public/scores":
            check(body, LANGFUSE)
            assert body["dataType"] in ("NUMERIC", "BOOLEAN", "CATEGORICAL", "CORRECTION", "TEXT")
        elif path == "/feedback":
            check(body, LANGSMITH)
            assert body["feedback_source"]["type"] in ("api", "model", "app", "auto_eval")
        elif match := re.fullmatch(r"/v1/(span|trace)_annotations\?sync=true", path):
            assert body.keys() == {"data"}
            for annotation in body["data"]:
                check(annotation, {**PHOENIX, f"{match[1]}_id": (True, TEXT)})
                assert annotation["annotator_kind"] in ("LLM", "CODE", "HUMAN")
        elif path == "/v1/logs":
            check_log(body)
        else:
            raise ValueError(f"no such path: {path}")
        self.taken.append((path, body))


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


def environment(monkeypatch: pytest.MonkeyPatch, to: str, address: str) -> None:
    for name, value in {
        "langfuse-scores": {
            "LANGFUSE_BASE_URL": address,
            "LANGFUSE_PUBLIC_KEY": "pk",
            "LANGFUSE_SECRET_KEY": "sk",
        },
        "langsmith-feedback": {"LANGSMITH_ENDPOINT": address, "LANGSMITH_API_KEY": "key"},
        "phoenix-annotations": {"PHOENIX_ENDPOINT": address, "PHOENIX_API_KEY": "key"},
    }[to].items():
        monkeypatch.setenv(name, value)


SENT = {
    "langfuse-scores": ("authorization", f"Basic {base64.b64encode(b'pk:sk').decode()}"),
    "langsmith-feedback": ("x-api-key", "key"),
    "phoenix-annotations": ("authorization", "Bearer key"),
}

# --- bodies -------------------------------------------------------------------------------------------------------


def test_langfuse_scores_name_the_observation_of_their_turn(tmp_path: Path):
    first, second, whole = stepmark.convert(graded(tmp_path, langfuse(), checks="all"), "langfuse-scores")
    for body in (first, second, whole):
        check(body, LANGFUSE)
        assert body["traceId"] == TRACE
    assert [one.get("observationId") for one in (first, second, whole)] == [*CALLS, None]
    assert [one["value"] for one in (first, second, whole)] == [0.9, 0.2, 0.2]
    assert (first["name"], whole["name"]) == ("stepmark.turn", "stepmark.trace")
    assert "comment" not in first and "17" in second["comment"]
    assert second["metadata"] == {"prm": "toy", "score_kind": "probability", "threshold": 0.5, "turn": 2}


def test_langsmith_feedback_names_the_run_and_the_project(tmp_path: Path):
    first, second, whole = stepmark.convert(graded(tmp_path, langsmith()), "langsmith-feedback")
    for body in (first, second, whole):
        check(body, LANGSMITH)
        assert (body["trace_id"], body["session_id"]) == (UUIDS[0], UUIDS[3])
    assert [one["run_id"] for one in (first, second, whole)] == [UUIDS[1], UUIDS[2], UUIDS[0]]


def test_phoenix_annotations_are_of_spans_and_of_the_trace(tmp_path: Path):
    first, second, whole = stepmark.convert(graded(tmp_path, otel()), "phoenix-annotations")
    assert [first["span_id"], second["span_id"], whole["trace_id"]] == [*CALLS, TRACE]
    assert [one["result"]["label"] for one in (first, second, whole)] == ["pass", "fail", "fail"]


@pytest.mark.parametrize("to", TRACERS)
def test_equal_scores_have_equal_ids_and_no_two_the_same(tmp_path: Path, to: str):
    out = graded(tmp_path, TRACERS[to]())
    bodies = list(stepmark.convert(out, to))
    assert bodies == list(stepmark.convert(out, to))
    assert len({body["identifier" if "phoenix" in to else "id"] for body in bodies}) == 3


@pytest.mark.parametrize("to", TRACERS)
def test_scores_of_records_are_those_of_the_file(tmp_path: Path, to: str):
    if to == "langsmith-feedback":
        pytest.skip("records have no place for the project of a run")
    out = graded(tmp_path, TRACERS[to]())
    rows = [json.loads(line) for line in (tmp_path / "traces.jsonl").read_text().splitlines()]
    assert list(stepmark.convert(list(stepmark.grade(rows, PRM, progress=False)), to)) == list(
        stepmark.convert(out, to)
    )


def test_a_turn_whose_call_was_not_logged_has_no_score_of_its_own(tmp_path: Path):
    rows = langfuse()[1:]  # the first turn is known from the second call's prompt alone
    bodies = list(stepmark.convert(graded(tmp_path, rows), "langfuse-scores"))
    assert [(body.get("observationId"), body["value"]) for body in bodies] == [(CALLS[1], 0.2), (None, 0.2)]
    assert bodies[0]["metadata"]["turn"] == 2


@pytest.mark.parametrize("to", TRACERS)
def test_what_is_no_graded_trace_is_left_out_and_told(tmp_path: Path, to: str):
    plain = [{"problem": ASK, "steps": [FIRST, WRONG]}]
    with pytest.raises(InputError, match="grade"):
        stepmark.convert(plain, to)
    with pytest.raises(InputError, match="ids"):
        stepmark.convert(graded(tmp_path, plain), to)


def test_ids_of_another_tracer_are_none_of_opentelemetry(tmp_path: Path):
    with pytest.raises(InputError, match="hexadecimal"):
        stepmark.convert(graded(tmp_path, langfuse("trace-1", ("a", "b"))), "phoenix-annotations")


# --- sending ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", TRACERS)
def test_scores_are_sent_as_the_schema_takes_them(tmp_path: Path, to: str, collector: Collector, monkeypatch):
    environment(monkeypatch, to, collector.address)
    out = graded(tmp_path, TRACERS[to]())
    assert collector.taken == []
    assert "3 scores" in push_scores(out, to)
    name, value = SENT[to]
    assert all(headers[name] == value for headers in collector.headers)
    sent = [body for _, whole in collector.taken for body in (whole.get("data", [whole]))]
    assert sent == list(stepmark.convert(out, to))


@pytest.mark.parametrize("to", ["langfuse-scores", "langsmith-feedback"])
def test_a_missing_key_is_an_error_before_anything_is_graded(tmp_path: Path, to: str, monkeypatch, capsys):
    for name in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY", "LANGSMITH_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TRACERS[to]()))
    out = tmp_path / "graded.jsonl"
    words = [
        "grade",
        str(tmp_path / "traces.jsonl"),
        "--prm",
        "scripted_prms:certain",
        "--out",
        str(out),
        "--push",
        to,
    ]
    assert main(words) == 2
    assert "_KEY" in capsys.readouterr().err
    assert not out.exists()


def test_the_command_grades_keeps_and_sends(tmp_path: Path, collector: Collector, monkeypatch, capsys):
    environment(monkeypatch, "langfuse-scores", collector.address)
    traces, out = tmp_path / "traces.jsonl", tmp_path / "graded.jsonl"
    traces.write_text("".join(json.dumps(row) + "\n" for row in langfuse()))
    words = ["grade", str(traces), "--prm", "scripted_prms:certain"]
    assert main([*words, "--out", str(out)]) == 0
    assert collector.taken == []  # nothing is sent without the flag
    out.unlink()
    assert main([*words, "--out", str(out), "--push", "langfuse-scores"]) == 0
    assert [body["value"] for _, body in collector.taken] == [1.0, 1.0, 1.0]
    assert out.exists()
    assert "sk" not in capsys.readouterr().err
    assert main([*words, "--push", "langfuse-scores"]) == 2


def test_scores_of_a_graded_file_are_sent_by_convert(tmp_path: Path, collector: Collector, monkeypatch):
    environment(monkeypatch, "langfuse-scores", collector.address)
    out = graded(tmp_path, langfuse())
    assert (
        main(["convert", str(out), "--to", "langfuse-scores", "--out", str(tmp_path / "bodies.jsonl")]) == 0
    )
    assert collector.taken == []
    assert main(["convert", str(out), "--to", "langfuse-scores", "--push"]) == 0
    assert [body["value"] for _, body in collector.taken] == [0.9, 0.2, 0.2]


def test_a_server_that_declines_is_told_with_what_it_has(tmp_path: Path, collector: Collector, monkeypatch):
    environment(monkeypatch, "langfuse-scores", collector.address)
    out = graded(tmp_path, langfuse())
    collector.status = 401
    with pytest.raises(BackendError, match="LANGFUSE_SECRET_KEY") as caught:
        push_scores(out, "langfuse-scores")
    assert "0 scores of 3" in str(caught.value)
    with pytest.raises(UsageError):
        push_scores(out, "langfuse")
