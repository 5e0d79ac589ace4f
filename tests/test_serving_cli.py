"""`stepmark serve`: its flags, its greeting, and how it ends."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from cyclopts import App

import serving_site  # noqa: F401  (it skips where fastapi is not installed)
from stepmark.cli import main
from stepmark.cli.serve import serve_command
from stepmark.serving.errors import TYPES
from stepmark.serving.settings import ChatModel, ServerSettings

TESTS = Path(__file__).parent
_OF_MODELS = ("--neutral", "--reference", "--samples", "--seed")  # of `load_prm`, on the pages of PRMs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "70000"], "--port 70000"),
        (["--host", "::"], "--host ::"),
        (["--host", "192.0.2.1"], "--open"),
        (["--keys", "no-such-file"], "no-such-file"),
        (["--keys", "no-such-file", "--open"], "give one of them"),
        (["--aggregate", "prod"], "Did you mean 'product'?"),
        (["--device", "tpu"], "--device tpu"),
        (["--threshold", "nan"], "--threshold nan"),
        (["--max-solutions", "0"], "--max-solutions 0"),
        (["--token-budget", "-3"], "--token-budget -3"),
        (["--timeout", "0"], "--timeout 0.0"),
        (["--grace", "-1"], "--grace -1.0"),
        (["--prot", "80"], "prot"),
        (["--prm", "scripted_prms:nothing", "--port", "0"], "nothing"),
        (["--prm", "scripted_prms:margins", "--port", "0", "--aggregate", "product"], "made of probabilities"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_and_ends_with_2(words, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_missing_package_is_named_with_the_line_to_type(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve"]) == 2
    said = capsys.readouterr().err
    assert "pip install 'stepmark[serve]'" in said


def test_flags_become_settings(monkeypatch):
    given = {}
    monkeypatch.setattr("stepmark.cli.serve.serve", lambda prm, policy, **settings: given.update(settings))
    assert main(["serve", "--max-body-mb", "2", "--name", "mine", "--timeout", "5"]) == 0
    assert given["settings"] == ServerSettings(max_body_mb=2, name="mine", timeout=5.0)
    assert given["settings"].max_body == 2 << 20
    assert given["chat"] == ChatModel()


def test_the_page_names_every_flag_and_every_error_with_its_status():
    page = (TESTS.parent / "docs" / "serve.md").read_text(encoding="utf-8")
    command = App()
    command.default(serve_command)
    names = {argument.name for argument in command.assemble_argument_collection() if argument.show}
    assert len(names) > 30
    for name in names - set(_OF_MODELS):
        assert f"`{name}`" in page, name
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)`", page, re.M)
    table = {kind: int(status) for status, kind in rows}
    assert table == TYPES


def test_a_server_greets_serves_finishes_what_is_in_work_and_ends_with_0(tmp_path):
    asked, held, keys = tmp_path / "asked", tmp_path / "held", tmp_path / "keys"
    keys.write_text("alice alices-key-0123456789\n")
    environment = {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        "PYTHONPATH": str(TESTS),
        "ASKED": str(asked),
        "HELD": str(held),
    }
    command = [sys.executable, "-m", "stepmark", "serve", "--prm", "scripted_prms:slow", "--port", "0"]
    with subprocess.Popen(
        [*command, "--keys", str(keys)], env=environment, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            said = []
            for line in server.stderr:
                said.append(line)
                if line.startswith("All of it:"):
                    break
            greeting = "".join(said)
            found = re.search(r"Serving slow on (http://127\.0\.0\.1:\d+) ", greeting)
            assert found, greeting
            address = found[1]
            # The line to try is a command that a shell can run, and asks what it shows.
            words = shlex.split(re.search(r"Try it: +(.*)", greeting)[1])
            assert words[:2] == ["curl", f"{address}/v1/score"]
            assert "Authorization: Bearer $STEPMARK_API_KEY" in words
            headers = {"authorization": "Bearer alices-key-0123456789"}
            with httpx.Client(base_url=address, headers=headers, trust_env=False, timeout=60) as client:
                assert client.get("/health").status_code == 200
                body = {"problem": "p", "steps": ["1 + 1 = 2"]}
                answers = []

                def ask():
                    answers.append(client.post("/v1/score", json=body))

                held.touch()
                asking = threading.Thread(target=ask)
                asking.start()
                while not re.search("queue_requests 1|computing_tokens [1-9]", client.get("/metrics").text):
                    assert asking.is_alive()
                server.send_signal(signal.SIGTERM)
                rest = ""
                while "SIGTERM: nothing new is taken" not in rest:
                    line = server.stderr.readline()
                    assert line, rest
                    rest += line
                held.unlink()
                asking.join()
            assert answers[0].status_code == 200, answers[0].text
            assert answers[0].json()["results"][0]["scores"] == [0.9]
            rest += server.stderr.read()
            assert server.wait(60) == 0, rest
            assert re.search(r"127\.0\.0\.1 alice POST /v1/score 200 \d", rest)
            assert rest.endswith("stopped\n")
        finally:
            server.kill()


def test_a_log_that_nobody_reads_keeps_no_server_from_ending():
    environment = {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        "PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))),
    }
    command = [sys.executable, "-m", "stepmark", "serve", "--prm", "scripted_prms:arithmetic", "--port", "0"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            lines = iter(server.stderr.readline, "")
            address = next(found[1] for line in lines if (found := re.search(r"on (http://\S+) ", line)))
            while not server.stderr.readline().startswith("All of it:"):
                pass
            server.stderr.close()
            with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
                body = {"problem": "p", "steps": ["1 + 1 = 2"]}
                assert [client.post("/v1/score", json=body).status_code for _ in range(2)] == [200, 200]
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        finally:
            server.kill()
