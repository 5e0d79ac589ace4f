"""`stepmark.serve` and its command: the same settings, a server that answers, and errors in Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
import httpx

import stepmark
from stepmark.errors import SettingError, StepmarkError, UsageError

TESTS = Path(__file__).parent
SCRIPT = """
import stepmark
from scripted_prms import certain

stepmark.serve(certain(), port=0, settings=stepmark.ServerSettings(name="mine", aggregate="min"), quiet=True)
print("after the server")
"""


def test_a_script_serves_a_prm_of_its_own_until_it_is_ended():
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**environment, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            line = next(line for line in server.stderr if line.startswith("Serving mine on "))
            address = line.split()[3]
            body = {"problem": "p", "steps": ["1 + 1 = 2"]}
            answer = httpx.post(f"{address}/v1/score", json=body, trust_env=False, timeout=60).json()
            assert answer["aggregate"] == "min"
            server.send_signal(signal.SIGINT)
            out, rest = server.communicate(timeout=60)
            assert (server.returncode, out) == (0, "after the server\n"), rest
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"port": 70000}, SettingError, r"port=70000"),
        ({"port": "80"}, SettingError, "port='80': expected"),
        ({"host": "192.0.2.1"}, UsageError, "`keys`"),
        ({"keys": "no-such-file", "open": True}, UsageError, "give one of them"),
        ({"keys": "no-such-file"}, StepmarkError, "no-such-file"),
        ({"chat": stepmark.ChatModel(search="majority")}, UsageError, "`policy`"),
        ({"prm": "no-such-folder/x", "device": "gpu"}, TypeError, "device"),
    ],
)
def test_errors_say_what_was_expected(settings, error, message):
    with pytest.raises(error, match=message):
        stepmark.serve(**{"prm": "scripted_prms:certain"} | settings)


def test_a_setting_is_checked_when_it_is_made():
    with pytest.raises(SettingError, match="timeout=0"):
        stepmark.ServerSettings(timeout=0)
    with pytest.raises(UsageError, match="'code'"):
        stepmark.ChatModel(isolation="unsafe")
    assert stepmark.ChatModel(verifier="code", isolation="unsafe").isolation == "unsafe"


def test_a_server_in_the_background_answers_until_it_is_closed():
    prm = stepmark.ScriptedPRM({"1 + 1 = 2": 0.9, "1 + 1 = 3": 0.1}, name="sums")
    with stepmark.BackgroundServer(prm, stepmark.ServerSettings(aggregate="mean")) as server:
        with stepmark.load_prm(server.address) as remote:
            scored = remote.grade("What is 1 + 1?", steps=["1 + 1 = 2", "1 + 1 = 3"])
            assert (scored.scores, scored.score) == ((0.9, 0.1), 0.5)
        address = server.address
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health", trust_env=False)
