"""Training at real size: distinct tokens a second, share of the matrix peak, memory.

`python -m benchmarks.train_size [--shape default|small|1.5b|7b] [--full] [--shard] [--token-budget N] [--steps N] [--folder FOLDER] [--quick]`

The shape `default` is the default PRM's base with the settings of recipes/default_prm.sh; the others are random weights in bfloat16
(benchmarks/size.py), with a LoRA adapter of rank 16 or `--full`. Started by torchrun, processes share a step; with `--shard` the weights too (FSDP2).

Rows are 16 solutions a problem, which part ways at random steps, each step labelled by its own sum. The share of the peak counts, for each
weight of a layer and token, 6 operations where it is trained, 4 where only the gradient passes (LoRA) and 2 below `frozen_layers`; not embedding, head and
language-modelling loss, nor what `--checkpointing` computes again. The first two steps are not counted.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.common import benchmark_parser, finish, settle
from benchmarks.grade import generated_candidates
from benchmarks.size import SHAPES, Shape, peak, resident
from stepmark.data.formats.rows import LabelledRow
from stepmark.models.backbone import load_config, load_tokenizer
from stepmark.models.places import BUILT_IN_BASE, find_checkpoint
from stepmark.records import Judgement, LabelledSolution
from stepmark.training.examples import Example, LabelRules, examples
from stepmark.training.net import Net, layout_for
from stepmark.training.objectives.steps import HardLabels
from stepmark.training.packing import TrainingItem
from stepmark.training.settings import Training
from stepmark.training.trainer import Trainer, TrainerProgress

EACH = 16
"""Solutions a problem."""
UNCOUNTED = 2
"""Steps in which kernels are chosen and memory is taken."""
_SUM = re.compile(r"(\d+) \+ (\d+) = (\d+)")


def labelled_problems(problems: int) -> Iterator[list[Example]]:
    """Of each problem its solutions, a step wrong from its first wrong sum on."""
    solutions = generated_candidates(problems, EACH)
    for start in range(0, len(solutions), EACH):
        rows = []
        for number, solution in enumerate(solutions[start : start + EACH]):
            judgements, wrong = [], False
            for text in solution.texts:
                if found := _SUM.search(text):
                    a, b, c = map(int, found.groups())
                    wrong = wrong or a + b != c
                judgements.append(
                    (Judgement(kind="correctness", judge="benchmark", rating=-1 if wrong else 1),)
                )
            rows.append(
                LabelledRow(
                    labelled=LabelledSolution(
                        solution=replace(solution, id=f"{solution.id}#{number}"), judgements=tuple(judgements)
                    ),
                    where=f"{solution.id}#{number}",
                )
            )
        yield examples(rows, LabelRules(after_error="keep"))


def base_of(shape: str, folder: Path) -> Path:
    """The base: the default PRM's, or random weights, made once by a process of its own."""
    if shape == "default":
        return find_checkpoint(BUILT_IN_BASE)
    made = folder / f"qwen-prm-{shape}"
    if not (made / "tokenizer.json").is_file():
        words = ["--write", "--shape", shape, "--folder", str(folder)]
        env = {
            key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        }
        subprocess.run([sys.executable, "-m", "benchmarks.size", *words], check=True, env=env)
    return made


def sizes_of(base: Path) -> Shape:
    """The sizes that a checkpoint's config names."""
    config = load_config(base)
    return Shape(
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads,
        inner=config.intermediate_size,
        vocabulary=config.vocab_size,
    )


def operations(shape: Shape, training: Training) -> float:
    """Floating-point operations a token of a step: forward 2 a weight, the gradient of what stands below it 2, its own 2."""
    a_layer = shape.layer_weights / shape.layers
    above = shape.layers - training.frozen_layers
    return a_layer * (2 * training.frozen_layers + (6 if training.full else 4) * above)


def main() -> None:
    parser = benchmark_parser(__doc__, "the small shape and four steps")
    parser.add_argument("--shape", choices=("default", *SHAPES), default="default")
    parser.add_argument("--full", action="store_true", help="all weights instead of a LoRA adapter")
    parser.add_argument("--shard", action="store_true", help="share the weights out (FSDP2); by torchrun")
    parser.add_argument("--checkpointing", action="store_true", help="activations are computed twice")
    parser.add_argument("--token-budget", type=int, default=1024, help="distinct tokens of a pass")
    parser.add_argument("--steps", type=int, default=20, help="of one pass for each process")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--folder", type=Path, help="where checkpoints are kept; a temporary folder otherwise"
    )
    arguments = parser.parse_args()
    shape = "small" if arguments.quick and arguments.shape != "default" else arguments.shape
    steps = 4 if arguments.quick else arguments.steps
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    objective = HardLabels()
    with tempfile.TemporaryDirectory(prefix="stepmark-train-") as temporary:
        folder = arguments.folder or Path(temporary)
        base = base_of(shape, folder)
        training = Training(
            full=arguments.full,
            shard=arguments.shard,
            gradient_checkpointing=arguments.checkpointing,
            dtype="bfloat16",
            device=arguments.device,
            token_budget=arguments.token_budget,
            max_tokens=512,
            epochs=1,
            held_out=0.0,
            save_every=10**9,
        )
        if shape == "default":
            objective = HardLabels(language_weight=0.3, language_tokens="quantities")
            training = replace(
                training, lora_rank=32, lora_alpha=64.0, frozen_layers=10, learning_rate=8e-4, head_rate=0.3
            )
        before = resident("cpu")
        began = time.perf_counter()
        net = Net(
            base, objective.spec(layout_for(load_tokenizer(base)), ""), training, max_tokens=512, seed=0
        )
        trainer = Trainer(net, objective, training, Path(temporary) / "run")
        loaded = time.perf_counter() - began
        # So many problems that an epoch has the steps; what is over is not trained on.
        needed = (steps + UNCOUNTED) * processes
        groups: list[list[Example]] = []
        plan: list[list[TrainingItem]] = []
        problems = max(8, needed * arguments.token_budget // 2000)
        while len(plan) < needed:
            groups = list(labelled_problems(problems))
            plan = [part for step in trainer.epoch(groups, 0) for part in step]
            problems *= 2
        parts = [plan[at : at + processes] for at in range(0, needed, processes)]
        trainer.epoch = lambda groups, number: parts  # type: ignore[method-assign]
        ends: list[float] = []

        def step(progress: TrainerProgress) -> None:
            settle()
            ends.append(time.perf_counter())
            if progress.step in (1, progress.steps):
                print(f"step {progress.step}/{progress.steps}: loss {progress.loss:.3f}", flush=True)

        trainer.run(groups, report=step)
        saved = time.perf_counter()
        if not trainer.workers.first:
            return
        counted = parts[UNCOUNTED:]
        took = ends[-1] - ends[UNCOUNTED - 1]
        tokens = sum(len(item.tree) for part in counted for trees in part for item in trees)
        rows = sum(len(item.rows) for part in counted for trees in part for item in trees)
        sizes = sizes_of(base)
        rate = tokens / took
        figures = {
            "tokens_a_second": rate,
            "rows_a_second": rows / took,
            "share_of_matmul_peak": rate * operations(sizes, training) / peak(net.device, sizes) / processes,
            "loading_s": loaded,
            "saving_s": saved - ends[-1],
            "processes": float(processes),
        }
        if net.device.startswith("cuda"):
            figures["peak_device_memory_gb"] = resident(net.device) / 1e9
        else:
            figures["peak_memory_gb"] = (resident("cpu") - before) / 1e9
    finish(f"train-size-{shape}", figures, {"share_of_matmul_peak": 0.4})


if __name__ == "__main__":
    main()
