"""Pieces of text, rewards and a PRM for the adapters' tests; both sides of a test in another environment read it."""

import random
import statistics

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


def conversations(count: int, seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids of conversations and the mask of what the policy wrote: 1 to 3 turns of at least two tokens, observations between them."""
    dice = random.Random(seed)
    ids, written = [], []
    for _ in range(count):
        own, mask = [], []
        for turn in range(dice.randrange(1, 4)):
            seen = [dice.randrange(10) for _ in range(dice.randrange(1, 4))] if turn else []
            wrote = [*(dice.randrange(10) for _ in range(dice.randrange(1, 5))), PIECES.index("<eos>")]
            own += seen + wrote
            mask += [0] * len(seen) + [1] * len(wrote)
        ids.append(own)
        written.append(mask)
    return ids, written


def discounted(
    problems: list[str],
    ids: list[list[int]],
    written: list[list[int]],
    outcomes: list[float],
    gamma: float = 0.95,
) -> list[list[float]]:
    """The advantage of each token by `step_score`, in plain Python: its turn's discounted return less the mean of all turns' of the problem, over
    their deviation. A conversation that `step_score` refuses is left out, and so is one that is alone.
    """
    returns: list[list[float] | None] = []
    for problem, own, mask, outcome in zip(problems, ids, written, outcomes, strict=True):
        texts, wrote = [], False
        for token, mine in zip(own, mask, strict=True):
            if mine and not wrote:
                texts.append("")
            if mine and PIECES[token] not in CONTROL:
                texts[-1] += PIECES[token]
            wrote = bool(mine)
        try:
            scores = [step_score(problem, tuple(texts[: turn + 1])) for turn in range(len(texts))]
        except InputError:
            returns.append(None)
            continue
        scores[-1] += outcome
        returns.append(
            [sum(gamma**k * score for k, score in enumerate(scores[turn:])) for turn in range(len(scores))]
        )
    found = []
    for row, (own, mask) in enumerate(zip(ids, written, strict=True)):
        peers = [r for other, r in zip(problems, returns, strict=True) if other == problems[row] and r]
        every = [value for each in peers for value in each]
        spread = statistics.stdev(every) if len(every) > 1 else 0.0
        mine, line, turn, wrote = returns[row], [], -1, False
        for _, here in zip(own, mask, strict=True):
            turn += bool(here and not wrote)
            wrote = bool(here)
            known = mine is not None and here and problems.count(problems[row]) > 1 and spread
            line.append((mine[turn] - sum(every) / len(every)) / spread if known else 0.0)
        found.append(line)
    return found
