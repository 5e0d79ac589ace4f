"""Pieces of text, rewards and a PRM for the adapters' tests; both sides of a test in another environment read it."""

from stepmark.errors import InputError
from stepmark.models.scripted import ScriptedPRM

PIECES = [*"0123456789", " + ", " = ", "\n", "\n1", "5\n6", "7\n", "<unk>", "<eos>", "<pad>"]
CONTROL = {"<unk>", "<eos>", "<pad>"}


def first(completions, **columns):
    """1 for a text of an even number of characters, nothing for one that begins with 3, which nobody can rate."""
    return [None if one.startswith("3") else float(len(one) % 2 == 0) for one in completions]


def second(completions, **columns):
    """1 for a text with a 9 in it, nothing for one that begins with 3."""
    return [None if one.startswith("3") else float("9" in one) for one in completions]


def step_score(problem: str, steps: tuple[str, ...]) -> float:
    """Some number in [0, 1] of the whole prefix; a step with 44 in it is refused, as a marker would be."""
    if "44" in steps[-1]:
        raise InputError("44 stands in the text", field="steps")
    return sum(map(ord, problem + "|".join(steps))) % 97 / 96


def steps_prm() -> ScriptedPRM:
    """Scores by `step_score`."""
    return ScriptedPRM(step_score, name="sums of letters")
