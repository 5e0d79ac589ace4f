"""What a process of load does: jobs in, results out, a JSON line each. It imports nothing heavy: its processor time is told."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any


def answer_jobs(load: Callable[[dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]) -> None:
    """Run each job of standard input and write its result to standard output, until there are no more."""
    # Not `for line in sys.stdin`, which reads ahead.
    while line := sys.stdin.readline():
        print(json.dumps(asyncio.run(load(json.loads(line)))), flush=True)
