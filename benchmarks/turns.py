"""Credit for turns in a small world of tools with known truth: learning at equal rollouts, PRMs that err or can be hacked, and watching an agent.

`python -m benchmarks.turns [--quick] [--seeds 5] [--updates 60]`

A tabular policy learns by plain policy gradient, 64 rollouts an update (8 problems, 8 attempts each). Turn rewards are the scores of a PRM that knows the world,
less 0.5: exact (0.9 for a right turn, 0.1 for a wrong one), noisy (a normal number of deviation 0.4 added, so that one turn in six is misjudged), or hackable
(every look-up counts as right). Accuracy is the exact probability of success on held-out problems. Each method runs at the best of the rates by the
mean of its curve on two other seeds. `rollouts_ratio_to_outcome` is of mean curves over seeds (`rl_figures.ratio`), the best method's with exact rewards; it is of the table's best and so a
little too good. The cosine is of the starting policy's advantages with the exact ones.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.common import benchmark_parser, finish
from benchmarks.rl_figures import (
    MOST_SEEDS,
    Point,
    best_ratio,
    hacking_table,
    learning_table,
    mean_interval,
    ratio,
    shown,
)
from benchmarks.tool_world import ACTIONS, EXACT, Action, PRMNoise, ToolProblem, ToolWorld
from benchmarks.turns_policy import (
    Credit,
    Method,
    Setting,
    Table,
    Worlds,
    cosine,
    scores,
    success,
    train,
)
from stepmark.models.prm import PRM
from stepmark.models.watch import TurnJudge
from stepmark.rl.credit.turns import discounted, mt_grpo, outcome_broadcast

OUTCOME = "outcome_broadcast"
RATES = (8.0, 16.0, 32.0, 64.0, 128.0)
TUNING = (101, 102)
"""Seeds on which rates are chosen."""
NOISY, HACKABLE = PRMNoise(deviation=0.4), PRMNoise(likes="look up")
CREDITS: Mapping[str, Credit] = {
    OUTCOME: outcome_broadcast,
    "discounted": discounted,
    "mt_grpo": mt_grpo,
}


def methods(noise: PRMNoise | None, ending: str, *, skill: float = 3.5) -> dict[str, Method]:
    """The credit methods that differ from the baseline where turns have these rewards, by name."""
    left_out = (OUTCOME,) if noise is not None else (OUTCOME, "mt_grpo")
    return {
        f"{name}, {ending}": Method(credit=credit, noise=noise, skill=skill)
        for name, credit in CREDITS.items()
        if name not in left_out
    }


WITHOUT, KNOWING, ERRING = (
    methods(None, "outcome only"),
    methods(EXACT, "exact PRM"),
    methods(NOISY, "noisy PRM"),
)
LEARNING = {OUTCOME: Method(credit=CREDITS[OUTCOME]), **WITHOUT, **KNOWING, **ERRING}
HALF = 4.5
"""Skill of an agent that succeeds in about 40 %."""
HONEST = methods(NOISY, "noisy PRM, half trained", skill=HALF)
HACKED = methods(HACKABLE, "hackable PRM, half trained", skill=HALF)


def best_rate(method: Method, setting: Setting, worlds: Worlds, seeds: Sequence[int]) -> float:
    """The rate whose curves lie highest."""

    def height(rate: float) -> float:
        runs = [train(method, setting, worlds, rate=rate, seed=seed) for seed in seeds]
        return sum(point.accuracy for run in runs for point in run)

    return max(RATES, key=height)


def watched(
    problem: ToolProblem,
    dice: random.Random,
    *,
    table: Table,
    prm: PRM | None = None,
    judge: TurnJudge | None = None,
    ruled_out: Mapping[str, frozenset[Action]] | None = None,
    doubt: float = 1.0,
) -> tuple[bool, int]:
    """An episode in which the agent goes back where the watch says so and gives up where it says stop: success, and the turns that were written.

    Args:
        prm: scores the turns; None for an agent that nobody watches.
        judge: gives the sentences of the feedback.
        ruled_out: sentence of the judge to the turns that it rules out.
        doubt: how many times as likely as before such a turn is in the next attempt.
    """
    watch = None if prm is None else prm.watch(problem.problem, retries=8, judge=judge)
    states, written = [problem.start], 0
    weights = dict.fromkeys(ACTIONS, 1.0)
    while not states[-1].answered and len(states) <= problem.turns:
        state = states[-1]
        chances = table(problem.view(state))
        weighed = [weights[action] * chance for action, chance in zip(ACTIONS, chances, strict=True)]
        [action] = dice.choices(ACTIONS, weighed if any(weighed) else chances)
        written += 1
        if watch is not None:
            seen = watch.add(problem.text_of(state, action))
            assert seen is not None
            if seen.advice == "stop":
                return False, written
            if seen.to is not None:
                watch.back(seen.to)
                del states[seen.to + 1 :]
                for item in seen.feedback:
                    for other in (ruled_out or {}).get(item.sentence, ()):
                        weights[other] *= doubt
                continue
            watch.add({"role": "tool", "content": problem.observation(state, action)})
        weights = dict.fromkeys(ACTIONS, 1.0)
        states.append(problem.act(state, action))
    return states[-1].answered and states[-1].right, written


def best_of(
    problem: ToolProblem, dice: random.Random, *, table: Table, noise: PRMNoise, count: int
) -> tuple[bool, int]:
    """The episode of several that the PRM scores highest on average."""
    made = [problem.play(table, dice) for _ in range(count)]
    best = max(made, key=lambda one: sum(scores(noise, one)) / len(one.turns))
    return best.success, sum(len(one.turns) for one in made)


def watching_table(problems: Sequence[ToolProblem], seeds: int) -> tuple[list[str], dict[str, float]]:
    """Success and turns of two agents, with and without the watch."""
    lines = ["| agent | way | success, % | turns written |", "| --- | --- | ---: | ---: |"]
    figures: dict[str, float] = {}
    world = ToolWorld()
    prms = {name: world.prm(problems, noise) for name, noise in (("noisy PRM", NOISY), ("exact PRM", EXACT))}
    for agent, table in (("starting", Table()), ("half trained", Table(skill=HALF))):
        ways: dict[str, Callable[[ToolProblem, random.Random], tuple[bool, int]]] = {
            "alone": partial(watched, table=table),
            "best of 2, noisy PRM": partial(best_of, table=table, noise=NOISY, count=2),
            **{f"watched, {name}": partial(watched, table=table, prm=prm) for name, prm in prms.items()},
        }
        for way, attempt in ways.items():
            rates, lengths = [], []
            for seed in range(seeds):
                dice = random.Random(f"watch {seed}")
                done = [attempt(problem, dice) for problem in problems]
                rates.append(sum(right for right, _ in done) / len(done))
                lengths.append(sum(turns for _, turns in done) / len(done))
            rate = mean_interval(rates)
            assert rate.value is not None
            lines.append(f"| {agent} | {way} | {shown(rate)} | {sum(lengths) / len(lengths):.1f} |")
            figures[f"{agent}_{way}".replace(", ", "_").replace(" ", "_")] = rate.value
    return lines, figures


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = benchmark_parser(__doc__, "two seeds, half of the updates, one rate for all")
    parser.add_argument("--seeds", type=int, help="default: 5, with --quick 2")
    parser.add_argument("--updates", type=int, help="default: 60, with --quick 30")
    options = parser.parse_args(argv)
    seeds = options.seeds or (2 if options.quick else 5)
    if not 1 <= seeds <= MOST_SEEDS:
        parser.error(f"--seeds: expected 1 to {MOST_SEEDS}, found {seeds}")
    torch.set_num_threads(1)
    setting = replace(Setting(), updates=options.updates or (30 if options.quick else 60))
    worlds = setting.worlds()
    print(f"Success of the starting policy: {success(Table(), worlds[1]):.3f}")
    runs: dict[str, dict[int, list[Point]]] = {}
    facts = ["| method | rate | cosine with the exact advantage |", "| --- | ---: | ---: |"]
    for name, method in (LEARNING | HONEST | HACKED).items():
        rate = 32.0 if options.quick else best_rate(method, setting, worlds, TUNING)
        runs[name] = {seed: train(method, setting, worlds, rate=rate, seed=seed) for seed in range(seeds)}
        near = mean_interval([cosine(method, setting, worlds[0], seed=seed) for seed in range(seeds)])
        facts.append(f"| {name} | {rate:g} | {shown(near, 2, 1.0)} |")
        print(f"{name}: rate {rate:g}, {runs[name][0][-1].accuracy:.3f} on seed 0", flush=True)

    def print_table(title: str, lines: Sequence[str]) -> None:
        print(f"\n{title}:\n\n" + "\n".join(lines))

    table = learning_table({name: runs[name] for name in LEARNING}, OUTCOME)
    print_table("Success on held-out problems, %, against rollouts", table)
    print_table("Rates, and advantages of the starting policy", facts)
    table = hacking_table({name: runs[name] for name in HONEST | HACKED})
    print_table("A PRM's rewards and the hacking monitor (steps are turns)", table)
    watching, success_rates = watching_table(worlds[1], seeds)
    print_table("Watching", [*watching, ""])

    def mean_end(name: str) -> float:
        return sum(run[-1].accuracy for run in runs[name].values()) / seeds

    def alarmed(names: Iterable[str]) -> float:
        ends = [run[-1] for name in names for run in runs[name].values()]
        return sum(end.alarmed is not None for end in ends) / len(ends)

    figures = {
        "outcome_final_accuracy": mean_end(OUTCOME),
        "hackable_runs_alarmed": alarmed(HACKED),
        "other_runs_alarmed": alarmed(HONEST),
    }
    base = list(runs[OUTCOME].values())
    for ending, rows in (("", KNOWING), ("_noisy", ERRING), ("_no_prm", WITHOUT)):
        best = best_ratio({name: ratio(list(runs[name].values()), base) for name in rows})
        if best is None:
            print(f"rollouts_ratio_to_outcome{ending}: none reached its final accuracy")
        else:
            figures[f"rollouts_ratio_to_outcome{ending}"] = best[1]
    finish("turns", figures | success_rates, {"rollouts_ratio_to_outcome": 0.5})
    return 0


if __name__ == "__main__":
    sys.exit(main())
