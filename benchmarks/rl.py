"""Policy training on the arithmetic world: accuracy against rollouts for each credit method, a run that is hacked, and each defence.

`python -m benchmarks.rl [--quick] [--seeds 5] [--updates 100] [--prm recipe|exact|first-error] [--steps 3 6] [--only METHOD …] [--report] [--out FOLDER]`

All runs start from the tiny policy that ships with stepmark, on bare calculations of 3 to 6 steps (`--steps`), and are measured on the same held-out problems, one
solution each. Seeds differ in the order of problems and in all that is sampled. The PRM is either one that the recipe's commands train on the spot from the same
small network (`recipe`: rollouts, formulas, exact errors), or the world's own truth: a step scores 0.95, and 0.05 if it is wrong in itself (`exact`) or if it or a step
before it is (`first-error`). Those are never mistaken: they show what a credit method is good for, and the other what a PRM is.

`rollouts_ratio_to_outcome` is the best process-reward method's rollouts to reach outcome GRPO's final accuracy over outcome GRPO's own, of mean curves
over seeds, each made never to fall (`rl_figures.mean_curve`); `rollouts_ratio_to_most_of_its_gain` is the same for nine tenths of what outcome GRPO gained, which depends less on
chance. The best of several is a little too good; the table has all of them with intervals over seeds. Where none reaches it there is no figure, and that is said.

A finished run's history stays in FOLDER and is not run again; an unfinished run goes on from its last saved state. `--report` runs nothing and prints
what is there. `--quick` is one seed of a few small updates with the exact checker: it shows that all parts work, and its figures mean nothing.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from benchmarks.common import benchmark_parser, finish
from benchmarks.rl_figures import (
    MOST_SEEDS,
    ROBUST,
    Point,
    best_ratio,
    hacking_table,
    learning_table,
    mean_interval,
    ratio,
)
from benchmarks.rl_methods import HACKED, HACKING, LEARNING, METHODS, OUTCOME, Method
from benchmarks.rl_prms import exact_prm, first_error_prm, recipe_prm
from stepmark.models.backbone import quiet_loading
from stepmark.models.places import ARITHMETIC
from stepmark.models.prm import PRM
from stepmark.problems.arithmetic import arithmetic_problems
from stepmark.records import Problem
from stepmark.rl.actor import Actor
from stepmark.rl.hacking import Watched
from stepmark.rl.monitor import Monitor
from stepmark.rl.policy_trainer import PolicyTrainer
from stepmark.rl.prime import OnlineImplicit
from stepmark.rl.settings import Implicit, PolicyTraining
from stepmark.store import atomic_write
from stepmark.verifiers.base import load_verifier

RESULT_FILE = "result.json"
RATE = 3e-4
IMPLICIT_RATE = 1 / 3
"""Of the policy's: the implicit PRM's."""


Truth = Literal["recipe", "exact", "first-error"]


@dataclass(frozen=True, kw_only=True)
class World:
    """What all runs share."""

    prm: Truth = "recipe"
    training: int = 2000
    held_out: int = 200
    lengths: tuple[int, int] = (3, 6)
    """Steps of a problem, from and to."""
    settings: PolicyTraining = field(
        default_factory=lambda: PolicyTraining(
            updates=100,
            problems=16,
            group=8,
            max_tokens=160,
            learning_rate=RATE,
            evaluate_every=5,
            save_every=10,
        )
    )

    def problems(self) -> tuple[list[Problem], list[Problem]]:
        """To learn on and to measure on."""

        def made(count: int, seed: int) -> list[Problem]:
            found = arithmetic_problems(count, seed=seed, steps=self.lengths, surface="formula", largest=99)
            return [one.problem for one in found]

        held_out = made(self.held_out, 6)
        texts = {problem.text for problem in held_out}
        return [problem for problem in made(self.training, 5) if problem.text not in texts], held_out

    def told(self, method: Method, seed: int) -> dict[str, Any]:
        """All that decides a run, as plain data."""
        settings = asdict(self.of(method, seed))
        body: dict[str, Any] = {
            "prm": self.prm if method.credit.needs.steps else None,
            "training": self.training,
            "held_out": self.held_out,
            "lengths": self.lengths,
            "credit": repr(method.credit),
            "settings": {key: value for key, value in settings.items() if key != "save_every"},
        }
        if method.credit.needs.tokens:
            body["implicit_rate"] = IMPLICIT_RATE
        plain: dict[str, Any] = json.loads(json.dumps(body))
        return plain

    def of(self, method: Method, seed: int) -> PolicyTraining:
        """A run's settings."""
        return replace(
            self.settings,
            seed=seed,
            kl_weight=method.kl_weight,
            value_weight=method.value_weight,
            learning_rate=method.rate * self.settings.peak,
        )


def quick() -> World:
    """A few small updates."""
    settings = PolicyTraining(
        updates=4,
        problems=4,
        group=4,
        max_tokens=96,
        learning_rate=RATE,
        evaluate_every=2,
        save_every=2,
    )
    return World(prm="exact", training=100, held_out=24, settings=settings)


def prm_of(which: Truth, out: Path) -> PRM:
    """The PRM of a world; what is trained for it is kept in `out`."""
    if which == "recipe":
        return recipe_prm(out / "recipe-prm")
    return exact_prm() if which == "exact" else first_error_prm()


def points(rows: Sequence[Watched]) -> list[Point]:
    """The monitor's rows, as far as the tables need them."""
    found = []
    for row in rows:
        assert row.accuracy.value is not None  # an evaluation has solutions
        found.append(
            Point(
                update=row.update,
                rollouts=row.rollouts,
                accuracy=row.accuracy.value,
                step_return=None if row.step_return is None else row.step_return.value,
                steps=None if row.steps is None else row.steps.value,
                tokens=None if row.tokens is None else row.tokens.value,
                divergence=None if row.divergence is None else row.divergence.value,
                alarmed=row.alarmed,
            )
        )
    return found


def finished(folder: Path, told: Mapping[str, Any]) -> list[Point] | None:
    """The history of a finished run; None where there is none.

    Raises:
        SystemExit: there is one of other settings.
    """
    file = folder / RESULT_FILE
    if not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    if found["told"] != dict(told):
        raise SystemExit(f"{file} is of other settings; take another --out")
    return [Point(**point) for point in found["points"]]


def train(folder: Path, world: World, method: Method, seed: int, prm: PRM | None, place: Path) -> list[Point]:
    """One run, from its saved state if there is one; its history is kept. A PRM that is fitted anew begins as the one in `place`."""
    told = world.told(method, seed)
    began = time.process_time()
    resumed = (folder / "state.pt").is_file()
    settings = world.of(method, seed)
    needs = method.credit.needs
    actor = Actor.load(
        ARITHMETIC,
        dtype="float32",
        device="cpu",
        # Of the runs with rewards of a PRM alone the divergence is shown, whatever holds it.
        reference=settings.kl_weight > 0 or method in HACKING.values(),
        values=needs.values,
    )
    implicit = None
    if needs.tokens:
        start = Actor.load(ARITHMETIC, dtype="float32", device="cpu", reference=True)
        implicit = OnlineImplicit(start, Implicit(learning_rate=IMPLICIT_RATE * settings.peak))
    used = prm if needs.steps else None
    monitor = Monitor(
        actor,
        folder,
        prm=used,
        implicit=implicit,
        seed=seed,
    )
    training, held_out = world.problems()
    with load_verifier("number") as verifier:
        PolicyTrainer(
            actor,
            training,
            held_out,
            verifier,
            method.credit,
            settings,
            out=folder,
            prm=used,
            token_rewards=implicit,
            listeners=[monitor],
        ).run()
    found = points(monitor.rows)
    with atomic_write(folder / RESULT_FILE) as handle:
        seconds = None if resumed else time.process_time() - began
        json.dump(
            {"told": told, "processor_seconds": seconds, "points": [asdict(one) for one in found]},
            handle,
            indent=1,
        )
    (folder / "state.pt").unlink()
    shutil.rmtree(folder / "best", ignore_errors=True)
    return found


def place(out: Path, world: World, name: str, seed: int) -> Path:
    """A run's folder."""
    words = "".join(letter if letter.isalnum() else "-" for letter in name.lower())
    return out / world.prm / words / f"seed-{seed}"


def collect(
    out: Path, world: World, names: Sequence[str], seeds: int, *, run: bool
) -> dict[str, dict[int, list[Point]]]:
    """Histories by method and seed; seed by seed, so that what there is of an unfinished benchmark can be compared."""
    found: dict[str, dict[int, list[Point]]] = {name: {} for name in names}
    prm: PRM | None = None
    for seed in range(seeds):
        for name in names:
            method, folder = METHODS[name], place(out, world, name, seed)
            known = finished(folder, world.told(method, seed))
            if known is None and run:
                if prm is None and method.credit.needs.steps:
                    prm = prm_of(world.prm, out)
                began = time.process_time()
                with quiet_loading():
                    known = train(folder, world, method, seed, prm, out / "recipe-prm" / "prm")
                print(
                    f"{name}, seed {seed}: accuracy {known[0].accuracy:.3f} to {known[-1].accuracy:.3f} after {known[-1].rollouts:,} rollouts, "
                    f"{time.process_time() - began:.0f} s of processor time",
                    flush=True,
                )
            if known is not None:
                found[name][seed] = known
    return {name: runs for name, runs in found.items() if runs}


def figures_of(runs: Mapping[str, Mapping[int, Sequence[Point]]]) -> dict[str, float]:
    """The benchmark's figures; those that are not known are left out."""
    figures: dict[str, float] = {}
    if OUTCOME in runs:
        base = runs[OUTCOME]
        for figure, share, goal in (
            ("rollouts_ratio_to_outcome", 1.0, "outcome GRPO's final accuracy"),
            ("rollouts_ratio_to_most_of_its_gain", ROBUST, f"{ROBUST:.0%} of what outcome GRPO gained"),
        ):
            ratios = {
                name: ratio(
                    [seeds[n] for n in seeds if n in base],
                    [base[n] for n in seeds if n in base],
                    share=share,
                )
                for name, seeds in runs.items()
                if name in LEARNING and METHODS[name].process and set(seeds) & set(base)
            }
            best = best_ratio(ratios)
            if best is None:
                print(f"{figure}: none: no process-reward method reached {goal}")
            else:
                figures[figure] = best[1]
                print(f"{figure}: {best[1]:.2f}, of {best[0]}")
        final = mean_interval([run[-1].accuracy for run in base.values()]).value
        assert final is not None
        figures["outcome_final_accuracy"] = final
    if HACKED in runs:
        hacked = list(runs[HACKED].values())
        figures["hacked_runs_alarmed"] = sum(run[-1].alarmed is not None for run in hacked) / len(hacked)
        change = mean_interval([run[-1].accuracy - run[0].accuracy for run in hacked]).value
        assert change is not None
        figures["hacked_accuracy_change"] = change
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = benchmark_parser(__doc__, "one seed of a few small updates")
    parser.add_argument("--seeds", type=int, help="default: 5, with --quick 1")
    parser.add_argument("--updates", type=int)
    parser.add_argument("--problems", type=int, help="of an update; default: 16")
    parser.add_argument("--evaluate-every", type=int, help="updates; default: 5")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument(
        "--steps", type=int, nargs=2, metavar=("FROM", "TO"), help="of the problems; default: 3 6"
    )
    parser.add_argument("--prm", choices=get_args(Truth), help="default: recipe, with --quick exact")
    parser.add_argument(
        "--only", nargs="+", choices=sorted(METHODS), metavar="METHOD", help=", ".join(METHODS)
    )
    parser.add_argument("--report", action="store_true", help="run nothing; the tables of what is there")
    parser.add_argument("--out", type=Path, help="default: runs/rl, with --quick runs/rl-quick")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    world = quick() if options.quick else World()
    seeds = options.seeds or (1 if options.quick else 5)
    if not 1 <= seeds <= MOST_SEEDS:
        parser.error(f"--seeds: expected 1 to {MOST_SEEDS}, found {seeds}")
    changes = {
        name: getattr(options, name) for name in ("updates", "problems", "evaluate_every", "learning_rate")
    }
    settings = replace(world.settings, **{key: value for key, value in changes.items() if value is not None})
    lengths = world.lengths if options.steps is None else (options.steps[0], options.steps[1])
    if not 1 <= lengths[0] <= lengths[1]:
        parser.error(
            f"--steps: expected FROM of 1 or more and TO not below it, found {lengths[0]} {lengths[1]}"
        )
    world = replace(world, settings=settings, prm=options.prm or world.prm, lengths=lengths)
    torch.set_num_threads(options.threads)
    out = options.out or Path("runs") / ("rl-quick" if options.quick else "rl")
    names = [name for name in METHODS if options.only is None or name in options.only]
    runs = collect(out, world, names, seeds, run=not options.report)
    if not runs:
        parser.error(f"{out} has no finished run")
    learning = {name: runs[name] for name in LEARNING if name in runs}
    if OUTCOME in learning:
        print(f"\nAccuracy on {world.held_out} held-out problems, %, against rollouts ({world.prm} PRM):\n")
        print("\n".join(learning_table(learning, OUTCOME)))
    hacking = {name: runs[name] for name in HACKING if name in runs}
    if hacking:
        print(f"\nThe {world.prm} PRM's reward, and defences:\n")
        print("\n".join(hacking_table(hacking)))
    print()
    finish("rl", figures_of(runs), {"rollouts_ratio_to_outcome": 0.5})
    return 0


if __name__ == "__main__":
    sys.exit(main())
