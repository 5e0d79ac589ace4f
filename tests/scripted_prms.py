"""PRMs for the command line's tests: `--prm scripted_prms:NAME` calls NAME without arguments."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

from stepmark.backends import ChoiceLogprobs, Completions
from stepmark.errors import InputError, TooLongError
from stepmark.models.critics import RPRM, GenPRM, ThinkPRM
from stepmark.models.generative import GenerativePRM, generative_prm
from stepmark.models.scripted import ScriptedPolicy, ScriptedPRM


def _arithmetic(problem: str, steps: tuple[str, ...]) -> float:
    """0.9 where "a + b = c" is true, 0.1 where it is not; "marker" and "long" are refused as a model would."""
    step = steps[-1]
    if "<marker>" in step:
        raise InputError("the marker stands in the text", where=None, field="steps")
    if "<long>" in step:
        raise TooLongError("5000 tokens, more than the 4096 that the model reads", where=problem)
    left, _, right = step.partition("=")
    return 0.9 if sum(int(part) for part in left.split("+")) == int(right) else 0.1


def arithmetic() -> ScriptedPRM:
    """Knows sums."""
    return ScriptedPRM(_arithmetic, name="sums")


def sums_and_words() -> ScriptedPRM:
    """Knows sums, and is sure of nothing else."""

    def script(problem: str, steps: tuple[str, ...]) -> float:
        try:
            return _arithmetic(problem, steps)
        except ValueError:
            return 0.6

    return ScriptedPRM(script, name="sums and words")


def margins() -> ScriptedPRM:
    """The same as margins."""
    return ScriptedPRM(
        lambda p, s: 2 * _arithmetic(p, s) - 1, name="margins", score_kind="margin", default_threshold=0
    )


def breaks() -> ScriptedPRM:
    """A mistake in somebody's function."""
    return ScriptedPRM({}["weights"])


def certain() -> ScriptedPRM:
    """Is always sure."""
    return ScriptedPRM(lambda p, s: 1.0, name="certain")


def slow() -> ScriptedPRM:
    """Takes a while over every step, and as long as there is a file $HELD; keeps a log of what it was asked in the file $ASKED."""
    log = Path(os.environ["ASKED"])
    held = Path(os.environ["HELD"]) if "HELD" in os.environ else None

    def script(problem: str, steps: tuple[str, ...]) -> float:
        time.sleep(float(os.environ.get("PAUSE", "0.02")))
        while held is not None and held.exists():
            time.sleep(0.01)
        with log.open("a") as handle:
            handle.write(json.dumps([problem, *steps]) + "\n")
        return _arithmetic(problem, steps)

    return ScriptedPRM(script, name="slow")


def never() -> ScriptedPRM:
    """Must not be loaded."""
    raise AssertionError("the model was loaded before the input was checked")


def _critic(settings: ThinkPRM | GenPRM | RPRM, end: str) -> GenerativePRM:
    """Writes of the last sum in the question, and is sure of its verdict."""

    def wrong(request: Completions | ChoiceLogprobs) -> bool:
        prompt = request.prompt if isinstance(request.prompt, str) else request.prompt[-1].content
        a, b, c = (
            map(int, re.findall(r"(\d+) \+ (\d+) = (\d+)", prompt)[-1]) if " = " in prompt else (0, 0, 0)
        )
        return a + b != c

    def write(request: Completions, number: int) -> str:
        return f"I add. {end} {'No' if wrong(request) else 'Yes'}".rstrip() if end else "I add.\n</analyze>\n"

    return generative_prm(
        settings,
        ScriptedPolicy(write, lambda request: [-9.0, -0.1] if wrong(request) else [-0.1, -9.0]),
    )


def genprm() -> GenerativePRM:
    """A generative PRM that checks sums."""
    return _critic(GenPRM(), "")


def r_prm() -> GenerativePRM:
    """A generative PRM that checks sums."""
    return _critic(RPRM(samples=1), "Verification: Is the step correct (Yes/No)?")


def thinkprm() -> GenerativePRM:
    """A generative PRM that checks sums."""
    return _critic(ThinkPRM(), "\nIs the solution correct?")
