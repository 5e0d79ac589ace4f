"""A real `vllm serve`, for slow tests: `STEPMARK_VLLM_PYTHON` names the Python of an environment with vLLM."""

from __future__ import annotations

import os
import socket
import subprocess
import time

import httpx
import pytest

PYTHON = os.environ.get("STEPMARK_VLLM_PYTHON")
needs_vllm = pytest.mark.skipif(
    PYTHON is None, reason="STEPMARK_VLLM_PYTHON does not name the Python of an environment with vLLM"
)


class Vllm:
    """`vllm` with some words (`serve FOLDER …`) on a free port, in float32, or a recipe that takes its engine's settings; gives its address."""

    def __init__(self, words, log, *, recipe=None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        assert PYTHON is not None
        self.log = log
        place = ["--host", "127.0.0.1", "--port", str(self.port)]
        command = ["-m", "vllm.entrypoints.cli.main"] if recipe is None else [str(recipe)]
        place += ["--dtype", "float32", "--enforce-eager"] if recipe is None else []
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [PYTHON, *command, *words, *place],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={
                    "VLLM_CPU_KVCACHE_SPACE": "1",
                    "VLLM_CPU_OMP_THREADS_BIND": "0",
                    "HF_HUB_OFFLINE": "1",
                    "VLLM_NO_USAGE_STATS": "1",
                    # Else the tests' own libraries would come before vLLM's.
                    **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                },
            )

    def __enter__(self) -> str:
        url = f"http://127.0.0.1:{self.port}"
        for _ in range(300):
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{url}/health", timeout=2.0, trust_env=False).status_code == 200:
                    return url
            except httpx.HTTPError:
                pass
            time.sleep(1)
        self.__exit__()
        raise AssertionError(f"vLLM did not start:\n{self.log.read_text()[-3000:]}")

    def __exit__(self, *_) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
