"""Training a grader: ours and TRL's PRMTrainer on the same rows, turn about in one run.

`python -m benchmarks.train [--quick] [--precision bfloat16|autocast|float32] [--threads N] [--install]`

Three sets of rows: whole solutions with every step labelled, sixteen of a problem (Math-Shepherd's shape; its 445,000 rows are some thirty for each
training problem of GSM8K and MATH); branches of PRM800K, all or nearly all of a problem, each trained at its last step; and one solution a problem,
which share nothing. Both sides begin with the same base, train all weights on the same rows in the same order, the same number a step, with the
same learning rates, end a step in one token, and the network that each has made is then measured by one evaluator on the same held-out rows. The two
take turns, a step each, because a machine's speed changes with time; a ratio is of neighbouring turns.

How much rows share decides much, so it is held to real data. Of four made solutions of a problem the tokens in the rows are 1.33 times the distinct
ones; of four real ones (GPT-3 fine-tuned on GSM8K, of six lines or more) 1.30. Of the branches, 17 problems of 72 to 79 rows, 12.1 times;
of all rows of PRM800K phase 1 up to 1,024 tokens 12.6 (every sixth problem). A run takes problems at even places in the order of that number.

TRL runs in an environment of its own (`--trl-python`, or made once with `--install` from `benchmarks/peers/trl.txt`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import PEERS, benchmark_parser, data_folder, finish, peer_python
from benchmarks.train_rows import branches, for_trl, labels, whole_solutions
from stepmark import load_prm
from stepmark.models.backbone import load_tokenizer
from stepmark.models.encoding import Encoder
from stepmark.models.packed_tree import Ints, pack
from stepmark.models.places import BUILT_IN_BASE, find_checkpoint
from stepmark.models.prm import PRM
from stepmark.models.spec import TextLayout
from stepmark.records import StepScores
from stepmark.training.examples import Example, known_value
from stepmark.training.net import Net, layout_for
from stepmark.training.objectives.steps import CrossEntropy
from stepmark.training.packing import TrainingItem
from stepmark.training.saving import write_trained
from stepmark.training.settings import Training
from stepmark.training.trainer import Trainer, TrainerProgress, schedule

MICRO = 8
"""Rows of one forward pass of TRL: its default. More rows make more padding."""
LONGEST = 1024
"""Tokens of a row, TRL's default; longer rows are left out for both."""
BUDGET = 4096
"""Distinct tokens of a forward pass of ours: every problem is one tree."""
BRANCHES = 72
"""Rows of a PRM800K problem: half of the data set's rows are of problems with 84 or more."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One set: groups of one problem each, all of the same size."""

    name: str
    training: Sequence[Sequence[Example]]
    held_out: Sequence[Example]
    a_step: int
    """Rows an optimizer step."""
    last_only: bool = False
    """Each row is trained at its last step alone."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one trainer did. Seconds and processor seconds a turn."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    prepared: float
    """Seconds to turn rows into tokens, before the first step."""
    tokens: int
    """Tokens of all rows as this side encodes them, each row by itself."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Both sides of one set."""

    rows: int
    ours: Side
    trl: Side
    distinct: int
    """Tokens that ours computed."""
    loss_ours: float
    loss_trl: float
    held_out: int
    """Labelled steps that the losses are of."""


class Trl:
    """TRL in its own process, which trains one step at a time when told to."""

    def __init__(self, python: Path, folder: Path, job: dict[str, Any], rows: Sequence[Example]) -> None:
        folder.mkdir(parents=True)
        listed = folder / "rows.jsonl"
        listed.write_text("".join(json.dumps(row) + "\n" for row in for_trl(rows)), encoding="utf-8")
        self.out = folder / "trained"
        given = folder / "job.json"
        given.write_text(json.dumps(job | {"rows": str(listed), "out": str(self.out)}), encoding="utf-8")
        self.log = (folder / "log").open("w", encoding="utf-8")
        self.process = subprocess.Popen(
            [str(python), str(PEERS / "trl_train.py"), str(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            # What this process runs with is not what TRL is to import.
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        )

    def __enter__(self) -> Trl:
        return self

    def __exit__(self, *unused: object) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            assert pipe is not None
            pipe.close()
        self.process.terminate()
        self.process.wait()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"'):  # TRL prints a dict of its own in single quotes
                found: dict[str, Any] = json.loads(line)
                return found
        self.log.flush()
        raise SystemExit(f"TRL stopped: {Path(self.log.name).read_text(encoding='utf-8')[-2000:]}")

    def ready(self) -> dict[str, Any]:
        """What it says of itself and of the rows as it encoded them."""
        return self._line()

    def turn(self) -> tuple[float, float]:
        """One step: seconds, and seconds of processor time."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self._line()
        return line["seconds"], line["cpu"]

    def trained(self) -> Path:
        """The folder of what it trained."""
        assert self._line()["done"]
        return self.out


def in_order(
    steps: Sequence[Sequence[Sequence[TrainingItem]]], groups: Sequence[Sequence[Example]], a_step: int
) -> list[Example]:
    """The rows of each optimizer step of ours, step after step, for the other side to train on in the same order.

    In a step, problem by problem, they stand in the order of their file.

    Raises:
        ValueError: a step has another number of rows.
    """
    place = {row.where: n for n, row in enumerate(row for group in groups for row in group)}
    found = []
    for step in steps:
        rows = [row.example for part in step for item in part for row in item.rows]
        if len(rows) != a_step:
            raise ValueError(f"a step of {len(rows)} rows where {a_step} were expected")
        found += sorted(rows, key=lambda row: place[row.where])
    return found


def held_out_loss(prm: PRM, rows: Sequence[Example]) -> float:
    """Mean binary cross-entropy of the scores of labelled steps, in nats: the same evaluator whoever trained it."""
    losses = []
    for row, result in zip(rows, prm.score_many([row.solution for row in rows]), strict=True):
        assert isinstance(result, StepScores)
        for target, score in zip(row.targets, result.scores, strict=True):
            if target is not None:
                assert score is not None
                p = min(max(score, 1e-7), 1 - 1e-7)
                losses.append(-math.log(p if known_value(target) > 0.5 else 1 - p))
    return sum(losses) / len(losses)


def layout_of(tokenizer: Any) -> TextLayout:
    """The library's own layout, a step ended in its one token without a line break before it: TRL's separator is one token too."""
    layout = layout_for(tokenizer)
    assert isinstance(layout, TextLayout)
    return replace(layout, mark=layout.mark.strip())


def spread(groups: Sequence[Sequence[Example]], count: int, share: Sequence[float]) -> list[int]:
    """The places of so many groups, evenly over their order by `share`."""
    order = sorted(range(len(groups)), key=lambda at: share[at])
    return [order[(2 * n + 1) * len(order) // (2 * count)] for n in range(count)]


def compare(rows: Rows, arguments: argparse.Namespace, python: Path, folder: Path) -> Outcome:
    """Train with both, turn about, and measure what came out."""
    base = find_checkpoint(arguments.base)
    objective = CrossEntropy()
    settings = Training(
        full=True,
        dtype="float32" if arguments.precision == "float32" else "bfloat16",
        device="cpu",
        learning_rate=arguments.learning_rate,
        epochs=1,
        rows_per_step=rows.a_step,
        token_budget=BUDGET,
        max_tokens=None,
        held_out=0.0,
        save_every=10**9,
        seed=arguments.seed,
    )
    net = Net(
        base,
        objective.spec(layout_of(load_tokenizer(base)), ""),
        settings,
        max_tokens=None,
        seed=arguments.seed,
    )
    trainer = Trainer(net, objective, settings, folder / f"{rows.name}.run")
    began = time.perf_counter()
    steps = trainer.epoch(rows.training, 0)
    prepared = time.perf_counter() - began
    order = in_order(steps, rows.training, rows.a_step)
    job = {
        "model": str(base),
        "precision": arguments.precision,
        "batch": min(MICRO, rows.a_step),
        "accumulate": rows.a_step // min(MICRO, rows.a_step),
        "rates": [settings.peak * schedule(n + 1, len(steps), settings.warmup) for n in range(len(steps))],
        "betas": trainer.optimizer.param_groups[0]["betas"],
        "clip": settings.clip,
        "seed": arguments.seed,
        "threads": torch.get_num_threads(),
        "last_step_only": rows.last_only,
    }
    with Trl(python, folder / rows.name, job, order) as other:
        said = other.ready()
        if said["labels"] != labels(order) or said["rows"] != len(order):
            raise SystemExit(
                f"TRL sees {said['labels']} labels in {said['rows']} rows, ours {labels(order)} in {len(order)}"
            )
        ours = Side(
            prepared=prepared, tokens=sum(len(r.path) for s in steps for p in s for i in p for r in i.rows)
        )
        trl = Side(prepared=said["prepared"], tokens=said["tokens"])
        mark = [0.0, 0.0]

        def turn(progress: TrainerProgress) -> None:
            ours.seconds.append(time.perf_counter() - mark[0])
            ours.processor.append(time.process_time() - mark[1])
            seconds, processor = other.turn()
            trl.seconds.append(seconds)
            trl.processor.append(processor)
            print(
                f"  {rows.name} {progress.step}/{progress.steps}: ours {ours.seconds[-1]:.1f} s, TRL {seconds:.1f} s",
                flush=True,
            )
            mark[:] = time.perf_counter(), time.process_time()

        # Encoding is timed above; what `run` repeats of it is not a part of the first step.
        trainer.epoch = lambda groups, number: steps  # type: ignore[method-assign]
        # Once through without a step, as the other side has done: memory is taken and kernels are chosen.
        objective.fit(net, steps[0][0]).loss.backward()  # type: ignore[no-untyped-call]
        for parameter in trainer.parameters:
            parameter.grad = None
        mark[:] = time.perf_counter(), time.process_time()
        trainer.run(rows.training, report=turn)
        their_folder = other.trained()
    write_trained(folder / f"{rows.name}-ours", net, adapter=False, base_name=arguments.base, notes={})
    del trainer, net
    return Outcome(
        rows=len(order),
        ours=ours,
        trl=trl,
        distinct=sum(len(i.tree) for s in steps for p in s for i in p),
        loss_ours=held_out_loss(load_prm(str(folder / f"{rows.name}-ours"), dtype="float32"), rows.held_out),
        loss_trl=held_out_loss(
            load_prm(str(their_folder), family="token-classification", dtype="float32"), rows.held_out
        ),
        held_out=labels(rows.held_out),
    )


def sets(data: Path, base: Path, *, quick: bool, steps: int | None) -> Iterator[Rows]:
    """The three sets of rows; problems held out are never trained on."""
    gsm8k, prm800k = data / "gsm8k" / "train.jsonl.gz", data / "prm800k" / "phase1_train.jsonl.gz"
    tokenizer = load_tokenizer(base)
    encoder = Encoder(tokenizer, layout_of(tokenizer), max_tokens=None)

    encoded: dict[str | None, Ints] = {}

    def tokens(row: Example) -> Ints:
        if row.where not in encoded:
            encoded[row.where] = encoder.encode(row.solution).ids
        return encoded[row.where]

    def short(row: Example) -> bool:
        return len(tokens(row)) <= LONGEST

    def fits(group: Sequence[Example]) -> bool:
        return all(map(short, group)) and len(pack(list(map(tokens, group)))) <= BUDGET

    def share(group: Sequence[Example]) -> float:
        rows = list(map(tokens, group))
        return sum(map(len, rows)) / len(pack(rows))

    most = BRANCHES * 11 // 10
    for name, each, a_step, count, source in (
        ("whole", 16, 16 if quick else 32, 2 if quick else 6, whole_solutions(gsm8k, each=16)),
        (
            "branches",
            BRANCHES,
            BRANCHES,
            1 if quick else 3,
            branches(prm800k, each=BRANCHES, most=most, fits=short),
        ),
        ("single", 1, 16, 1 if quick else 2, whole_solutions(gsm8k, each=1, seed=1)),
    ):
        wanted = (steps or count) * a_step // each
        extra = max(4, 24 // each) if quick else max(8, 96 // each)
        encoded.clear()
        found = filter(fits, source)
        # Of many problems, because those next to each other are alike.
        kept = list(found if name == "branches" else islice(found, 4 * (wanted + extra)))
        random.Random(0).shuffle(kept)
        if len(kept) < wanted + extra:
            raise SystemExit(
                f"{name}: {wanted + extra} problems of {each} rows are needed, found {len(kept)}"
            )
        taken = spread(kept, wanted, list(map(share, kept))) if name == "branches" else list(range(wanted))
        held_out = [group for at, group in enumerate(kept) if at not in set(taken)][:extra]
        yield Rows(
            name=name,
            training=[kept[at] for at in taken],
            # Of PRM800K's many rows a problem a few are enough to measure by.
            held_out=[e for group in held_out for e in group[:: max(1, each // 16)]],
            a_step=a_step,
            last_only=name == "branches",
        )


def median(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the middle 95% of the medians of 10,000 resamples."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), size=(10_000, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(np.median(values)), float(low), float(high)


def told(rows: Rows, one: Outcome) -> dict[str, float]:
    """Print what one set gave, and its figures."""
    ratios = [b / a for a, b in zip(one.ours.seconds, one.trl.seconds, strict=True)]
    middle, low, high = median(ratios)
    for side, name, computed in ((one.ours, "ours", one.distinct), (one.trl, "TRL", one.trl.tokens)):
        spent = sum(side.seconds)
        print(
            f"  {name:5} {spent:8.1f} s in {len(side.seconds)} steps ({sum(side.processor):.1f} s of processor time), {side.prepared:.2f} s of encoding, "
            f"{one.rows / spent:7.2f} rows/s, {computed} tokens computed of {side.tokens} in the rows"
        )
    processor = sum(one.trl.processor) / sum(one.ours.processor)
    whole = (sum(one.trl.seconds) + one.trl.prepared) / (sum(one.ours.seconds) + one.ours.prepared)
    print(
        f"  rows a second over TRL's: median of {len(ratios)} neighbouring turns {middle:.2f} [{low:.2f}, {high:.2f}]; all turns with encoding "
        f"{whole:.2f}; in processor time {processor:.2f}\n"
        f"  held-out loss of {one.held_out} steps: ours {one.loss_ours:.4f}, TRL {one.loss_trl:.4f}; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    suffix = {"whole": "", "branches": "_branches", "single": "_single"}[rows.name]
    return {
        f"speedup_over_trl{suffix}": middle,
        f"speedup_over_trl{suffix}_low": low,
        f"speedup_over_trl{suffix}_high": high,
        f"speedup_in_processor_time{suffix}": processor,
        f"tokens_over_distinct{suffix}": one.ours.tokens / one.distinct,
        f"held_out_loss_ours{suffix}": one.loss_ours,
        f"held_out_loss_trl{suffix}": one.loss_trl,
    }


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--precision",
        default="bfloat16",
        choices=["bfloat16", "autocast", "float32"],
        help="TRL's: weights in bfloat16 (its fastest here), float32 weights under bfloat16 autocast (its default), "
        "float32. Ours computes in bfloat16 with float32 copies for the first two.",
    )
    parser.add_argument("--base", default=BUILT_IN_BASE)
    parser.add_argument("--learning-rate", type=float, default=1e-5, help="both sides' own default")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="optimizer steps of each set")
    parser.add_argument("--sets", default="whole,branches,single")
    parser.add_argument("--trl-python", type=Path)
    parser.add_argument("--install", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    data, python = data_folder(), peer_python("trl", arguments.trl_python, install=arguments.install)
    if data is None:
        print("skipped: no development data; set STEPMARK_DATA to a folder that holds gsm8k and prm800k")
        return
    if python is None:
        print(
            "skipped: TRL 1.13.0 is not here; --install makes an environment for it, or name one's Python with --trl-python"
        )
        return
    figures: dict[str, float] = {"load_before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        for rows in sets(data, find_checkpoint(arguments.base), quick=arguments.quick, steps=arguments.steps):
            if rows.name in arguments.sets.split(","):
                print(f"{rows.name}: {rows.a_step} rows a step, of {len(rows.training)} problems", flush=True)
                figures |= told(rows, compare(rows, arguments, python, Path(folder)))
    figures["load_after"] = os.getloadavg()[0]
    finish("train", figures, {"speedup_over_trl": 2.0, "speedup_over_trl_branches": 15.0})


if __name__ == "__main__":
    main()
