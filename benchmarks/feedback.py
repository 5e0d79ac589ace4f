"""What a sentence is worth to an agent that is watched: feedback text against scores alone, in the world of tools with known truth.

`python -m benchmarks.feedback [--quick] [--seeds 5]`

The agents of `benchmarks.turns` are watched by its PRMs, exact and noisy (one turn in six is misjudged), with at most 8 returns. An agent that is sent back

- draws its turn again (scores alone);
- reads the sentences of `Watch` and weighs them: a turn that they rule out is a sixth as likely as before (feedback);
- obeys them: it never writes what they rule out (feedback, obeyed).

The sentences come from a `Judge` with three criteria, whose model knows the world and errs where the PRM errs: of a right turn that the PRM takes for wrong
it gives a wrong reason. So the text alone is compared, not a better judge. Differences are of the same seeds, with Student's 95 % interval.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch

from benchmarks.common import benchmark_parser, finish
from benchmarks.rl_figures import MOST_SEEDS, mean_interval, shown
from benchmarks.tool_world import ACTIONS, EXACT, Action, PRMNoise, ToolProblem, ToolState, ToolWorld
from benchmarks.turns import HALF, NOISY, watched
from benchmarks.turns_policy import Table
from stepmark.backends import Completions
from stepmark.labels.judge import Judge
from stepmark.models.scripted import ScriptedPolicy
from stepmark.models.watch import Feedback, TurnJudge
from stepmark.records import Solution

CRITERIA = {
    "look_up": "It looks a number up where it holds none of the operation that is due, and only there.",
    "operation": "It computes with the operation that the story names.",
    "end": "It answers when all operations are done, and not before.",
}
_LOOK_UPS: tuple[Action, ...] = ("look up", "look up another")
_SIGNS: tuple[Action, ...] = ("+", "-", "*", "/")
_NOT_NAMED = 'The story does not name "{}" here.'
RULED_OUT: Mapping[str, frozenset[Action]] = {
    "Operations are left: do not answer yet.": frozenset({"answer"}),
    "All operations are done: answer now.": frozenset(ACTIONS) - {"answer"},
    "You hold the number: compute with it.": frozenset({*_LOOK_UPS, "answer"}),
    "Look up the number of this operation, not of another.": frozenset(ACTIONS) - {"look up"},
    "Look a number up before you compute.": frozenset({*_SIGNS, "answer"}),
    **{_NOT_NAMED.format(sign): frozenset({sign}) for sign in _SIGNS},
}
"""What a sentence tells an agent that reads it: the turns not to write here."""
DOUBT = 1 / 6
"""How often the noisy judge errs: what weighing multiplies the chance of a turn by that a sentence rules out."""


def reason(problem: ToolProblem, state: ToolState, action: Action) -> tuple[str, str]:
    """The criterion that a turn fails and the sentence about it; of a right turn a wrong one, which is what a judge that errs says."""
    view = problem.view(state)
    if view.wording == "end" and action != "answer":
        return "end", "All operations are done: answer now."
    if action == "answer":
        return "end", "Operations are left: do not answer yet."
    if action in _LOOK_UPS:
        if view.held == "its number" or action == "look up":
            return "look_up", "You hold the number: compute with it."
        return "look_up", "Look up the number of this operation, not of another."
    if view.held != "its number":
        return "look_up", "Look a number up before you compute."
    return "operation", _NOT_NAMED.format(action)


_PROBLEM = re.compile(r"\[Problem\]\n\n(.*?)\n\n\[Solution\]", re.DOTALL)
_TURN = re.compile(r"<paragraph_\d+>\n(.*?)\n</paragraph_\d+>", re.DOTALL)


def judge_of(problems: Iterable[ToolProblem], noise: PRMNoise) -> TurnJudge:
    """A judge by `CRITERIA` whose model knows these problems, and calls wrong what a PRM with this noise scores under 0.5."""
    known = {item.problem.text: item for item in problems}

    def write(request: Completions, number: int) -> str:
        text = str(request.prompt[0].content)  # type: ignore[union-attr]
        asked = _PROBLEM.search(text)
        assert asked is not None
        problem = known[asked[1]]
        episode = problem.replay(_TURN.findall(text))
        verdicts = {name: {"verdict": "pass", "reason": ""} for name in CRITERIA}
        if noise.score(episode) < 0.5:
            name, sentence = reason(problem, *episode.turns[-1])
            verdicts[name] = {"verdict": "fail", "reason": sentence}
        return json.dumps(verdicts)

    judge = Judge(criteria=CRITERIA, votes=1, temperature=0)  # type: ignore[arg-type]
    ask = judge.watching(ScriptedPolicy(write, name="tool world"))
    asked: dict[tuple[str, ...], Sequence[Feedback]] = {}

    def remembered(solution: Solution) -> Sequence[Feedback]:
        # Attempts at one problem repeat each other.
        key = (solution.problem.text, *solution.texts)
        if key not in asked:
            asked[key] = ask(solution)
        return asked[key]

    return remembered


def table_of(problems: Sequence[ToolProblem], seeds: int) -> tuple[list[str], dict[str, float]]:
    """Success and turns of two agents by the ways in which they are sent back, and what the text adds."""
    lines = [
        "| agent | PRM and judge | scores alone | feedback | gain | obeyed | gain |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    figures: dict[str, float] = {}
    for agent, table in (("starting", Table()), ("half trained", Table(skill=HALF))):
        for name, noise in (("noisy", NOISY), ("exact", EXACT)):
            play = partial(watched, table=table, prm=ToolWorld().prm(problems, noise), ruled_out=RULED_OUT)
            judge = judge_of(problems, noise)
            ways = (play, partial(play, judge=judge, doubt=DOUBT), partial(play, judge=judge, doubt=0.0))
            rates: list[list[float]] = []
            turns: list[float] = []
            for run in ways:
                done = [
                    [run(problem, dice) for problem in problems]
                    for dice in (random.Random(f"feedback {seed}") for seed in range(seeds))
                ]
                rates.append([sum(right for right, _ in of_seed) / len(of_seed) for of_seed in done])
                turns.append(sum(count for of_seed in done for _, count in of_seed) / seeds / len(problems))
            cells = [shown(mean_interval(rates[0])) + f" ({turns[0]:.0f})"]
            for way, rate, length in zip(("feedback", "obeyed"), rates[1:], turns[1:], strict=True):
                gain = mean_interval([a - b for a, b in zip(rate, rates[0], strict=True)])
                cells += [f"{shown(mean_interval(rate))} ({length:.0f})", shown(gain)]
                key = f"{agent}_{name}_{way}_gain".replace(" ", "_")
                figures |= {key: gain.value or 0.0} | ({} if gain.low is None else {f"{key}_low": gain.low})
            lines.append(f"| {agent} | {name} | {' | '.join(cells)} |")
    return lines, figures


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = benchmark_parser(__doc__, "two seeds")
    parser.add_argument("--seeds", type=int, help="default: 5, with --quick 2")
    options = parser.parse_args(argv)
    seeds = options.seeds or (2 if options.quick else 5)
    if not 1 <= seeds <= MOST_SEEDS:
        parser.error(f"--seeds: expected 1 to {MOST_SEEDS}, found {seeds}")
    torch.set_num_threads(1)
    lines, figures = table_of(ToolWorld().problems(50, seed=2), seeds)
    print("Success in percent (turns written):\n\n" + "\n".join(lines) + "\n")
    finish(
        "feedback",
        figures,
        {"starting_exact_feedback_gain_low": 0.0, "starting_noisy_feedback_gain_low": 0.0},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
