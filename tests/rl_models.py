"""PRMs for the tests of `stepmark rl`: `--prm rl_models:NAME` calls NAME without arguments."""

from __future__ import annotations

from stepmark.models.scripted import ScriptedPRM


def wordy() -> ScriptedPRM:
    """Likes long steps, whatever they say: easily pleased."""
    return ScriptedPRM(lambda _problem, steps: 1 - 1 / (1 + len(steps[-1]) / 10), name="wordy")


def margin() -> ScriptedPRM:
    """Another kind of scores."""
    return ScriptedPRM(
        lambda _problem, steps: 1 - 2 / (1 + len(steps[-1]) / 10), name="margin", score_kind="margin"
    )
