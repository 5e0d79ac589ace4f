"""`stepmark train`: a grader from labelled solutions."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import Parameter

from stepmark.cli.flags import ColumnsFlag, Flag, columns_of
from stepmark.cli.prm_flags import check_device
from stepmark.errors import MissingExtraError, UsageError
from stepmark.show.progress import EVERY, can_estimate, clock_face, told_at
from stepmark.store import atomic_write, naming

if TYPE_CHECKING:
    from stepmark.training.monitor import Monitor
    from stepmark.training.objectives.base import Objective
    from stepmark.training.recipe import Recipe, Trained
    from stepmark.training.trainer import Progress

REPORT_FILE = "report.html"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """Which labels are trained on."""

    columns: ColumnsFlag = None
    """Which column of the data is what, where the names differ: problem=question,solution=response (docs: files)."""
    labels: Literal["auto", "correctness", "value"] = "auto"
    """Ratings of people, judges and exact rules (correctness), shares of rollouts (value), or ratings where a row has any."""
    judge: str | None = None
    """Only this judge's labels, "human" say."""
    neutral: Literal["positive", "negative", "drop"] = "positive"
    """What a neutral rating counts as; three classes keep it."""
    after_error: Literal["mask", "keep"] = "mask"
    """Steps after the first wrong one: masked, or trained as labelled."""
    written: Literal["drop", "keep"] = "drop"
    """Steps that a labeller of PRM800K wrote and nobody rated: left out, or right."""
    coarsen: float = 0.0
    """Share of step borders joined away, drawn anew each epoch, so that steps of many lengths are seen."""
    max_tokens: int = 1024
    """Longer rows are left out and counted."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """What is trained."""

    base: str = "stepmark:smollm2-135m-instruct"
    """The base model: a folder, a hub name, or a built-in one."""
    mark: str | None = None
    """What ends a step: a token, or a question of several words. Left out: the first known token that the base has."""
    layout: Literal["auto", "chatml", "chat", "text"] = "auto"
    """How problem and steps become text."""
    rank: int = 16
    """LoRA rank on every linear layer."""
    alpha: float | None = None
    """LoRA scale is alpha / rank. Left out: 2 x rank."""
    warm_start: str | None = None
    """Start from this LoRA adapter over the same base and its head: a folder, a hub name, or "default"."""
    full: Flag = False
    """Train all weights instead of an adapter."""
    frozen_layers: int = 0
    """The lowest layers that are not trained."""
    adapter: Flag = False
    """Write the adapter alone instead of the whole checkpoint."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What is computed in; updates are made in float32."""
    device: str = "auto"
    """Where: auto, cpu, cuda."""
    gradient_checkpointing: Flag = False
    """Compute activations twice: slower, far less memory."""
    shard: Flag = False
    """Share the weights out among the processes that torchrun started (FSDP2), for bases that do not fit one device."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """How long, how fast."""

    learning_rate: float | None = None
    """Its peak. Left out: 2e-4 with LoRA, 1e-5 with all weights."""
    head_rate: float = 1.0
    """The head's learning rate, as a multiple of that of the other weights."""
    epochs: int = 2
    """Passes over the data."""
    minutes: float | None = None
    """Stop after this long, measurements not counted; the learning rate decays by the clock where that is ahead."""
    token_budget: int = 2048
    """Distinct tokens a forward pass; bounds memory."""
    rows_per_step: int | None = None
    """Rows an optimizer step, at least. Left out: one forward pass a step."""
    limit_tokens: int | None = None
    """Distinct tokens an epoch, the same number from each source."""
    language_weight: float = 0.0
    """Weight of a language-modelling loss on right steps beside the objective's (Cobbe et al. 2021); 0: none."""
    language_tokens: Literal["arithmetic", "quantities", "all"] = "arithmetic"
    """What that loss fits: digits and signs; those and words of quantity; every token."""
    weight_decay: float = 0.0
    """Of AdamW."""
    held_out: float = 0.06
    """Share of problems kept for measuring and calibration."""
    held_out_data: str | None = None
    """Measure and calibrate on this file instead of a share."""
    tune_threshold: Flag = False
    """Take the threshold with the best first-error F1 on the held-out solutions, instead of 0.5."""
    evaluations: int = 4
    """How often the held-out problems are measured, evenly over the run."""
    patience: int | None = None
    """Stop after as many measurements without a better loss, and keep the best weights."""
    seed: int = 0
    """Of everything random."""
    log: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Tell these too."""


def train_command(
    *data: str,
    out: Path,
    objective: str = "hard",
    candidates: tuple[str, ...] = (),
    critic: Literal["thinkprm", "genprm", "r-prm"] | None = None,
    keep_all: Flag = False,
    labels: Labels = Labels(),
    network: Network = Network(),
    running: Running = Running(),
) -> int:
    """Train a PRM on labelled solutions, measure it on held-out problems, calibrate it, and write a checkpoint.

    Resumable: after an interruption or a kill, the same command continues. The state lies in OUT.run until the checkpoint, with its card, curves and page, takes
    its name. A second run with the same OUT is refused while the first one lives.
    Several processes share each step when started by `accelerate launch -m stepmark train …`.

    Args:
        data: files in any format of `stepmark convert`, or OWNER/NAME of data sets on the hub. For worked solutions without
            labels: `stepmark label exact` first.
        out: the checkpoint's folder: new, or this command's own.
        objective: hard, ce, soft, mse, beta-binomial, three-class, target-tokens, outcome, implicit-ce, implicit-dpo, generative, or
            "package.module:Class".
        candidates: of target-tokens, from wrong to right.
        critic: of generative, whose format it writes in. Left out: thinkprm.
        keep_all: of generative, train on critiques that contradict the labels too.
        labels: which labels.
        network: which weights.
        running: how long.
    """
    if not data:
        raise UsageError("expected data: files of labelled solutions, or data sets on the hub")
    _installed(network, running.log)
    from stepmark.training.monitor import HISTORY_FILE, close_all, read_history
    from stepmark.training.pace import few_steps
    from stepmark.training.recipe import train
    from stepmark.training.report import training_html
    from stepmark.training.sources import training_rows

    check_device(network.device)
    _check(network, running)
    columns = columns_of(labels.columns)
    made = _joint(_objective(objective, candidates, critic, keep_all), running)
    recipe = _recipe(made, labels, network, running)
    monitors: list[Monitor] = []
    lines = _Lines()

    def report(progress: Progress) -> None:
        if not monitors:
            # Only now: a run that is refused leaves none of theirs behind.
            monitors.extend([lines, *_others(running.log, out, recipe)])
            if (few := few_steps(progress.steps, recipe.train)) is not None and progress.step == 1:
                print(f"warning: {few}", file=sys.stderr, flush=True)
        for monitor in monitors:
            monitor.tell(progress)

    def draw(done: Trained, folder: Path) -> None:
        if (folder / REPORT_FILE).is_file():
            return
        settings = {"data": ", ".join(data), "objective": repr(recipe.objective), "base": recipe.base}
        settings |= {name: str(value) for name, value in _flat(recipe).items()}
        history = read_history(folder / HISTORY_FILE)
        with atomic_write(folder / REPORT_FILE) as page:
            page.writelines(training_html(done, history, settings, title=f"Training of {out.name}"))

    try:
        held_out = (
            None if running.held_out_data is None else training_rows([running.held_out_data], columns=columns)
        )
        with naming(out):
            done = train(
                training_rows(data, columns=columns),
                out,
                recipe,
                held_out=held_out,
                data=data,
                report=report,
                complete=draw,
            )
    finally:
        close_all(monitors)
    if done.first and done.new:
        _say(done)
    elif done.first:
        print(f"{out}: this run is done, and everything is there; its page is {out / REPORT_FILE}")
    return 0


def _installed(network: Network, log: tuple[str, ...]) -> None:
    """Refuse at once, and not after hours of training, what lacks a package.

    Raises:
        MissingExtraError: it names the package and the line to type.
    """
    needed = ("torch", "transformers", "matplotlib", *(() if network.full else ("peft",)))
    lacking = [name for name in needed if find_spec(name) is None]
    if lacking:
        raise MissingExtraError(f"training needs {', '.join(lacking)}: pip install 'stepmark[train]'")
    for name in log:
        if find_spec(name) is None:
            raise MissingExtraError(f"--log {name} needs it: pip install {name}")


def _say(done: Trained) -> None:
    for line in done.dropped.lines():
        print(line, file=sys.stderr)
    print(f"{done.folder}: {done.examples:,} examples of {done.problems:,} problems")
    found = done.held_out
    if found is not None:
        parts = [f"{found.labels:,} labels", f"loss {found.loss:.3f}"]
        parts += [f"accuracy {found.accuracy:.3f}"] if found.accuracy is not None else []
        parts += [f"AUC {found.auc:.3f}"] if found.auc is not None else []
        print("held out: " + ", ".join(parts))
    if done.first_errors is not None and found is not None:
        first = done.first_errors
        print(
            f"first errors of {found.solutions:,} held-out solutions, calibrated, at {first.threshold:g}: F1 {first.f1:.3f}"
        )
    print(f"curves: {done.folder / REPORT_FILE}")


def _flat(recipe: Recipe) -> Mapping[str, object]:
    from dataclasses import asdict

    train = asdict(recipe.train)
    return {
        **asdict(recipe.rules),
        **train.pop("weights"),
        **train,
        "mark": recipe.mark,
        "layout": recipe.layout,
    }


def _objective(name: str, candidates: tuple[str, ...], critic: str | None, keep_all: bool) -> Objective:
    from stepmark.training.objectives import OBJECTIVES
    from stepmark.training.objectives.steps import TargetTokens

    made: Objective = OBJECTIVES.load(name)()
    if candidates:
        if not isinstance(made, TargetTokens):
            raise UsageError(f"--candidates are of --objective target-tokens, found {name}")
        made = replace(made, candidates=candidates)
    if critic is not None or keep_all:
        from stepmark.models.generative import GENERATIVE
        from stepmark.training.objectives.generative import Generative

        if not isinstance(made, Generative):
            raise UsageError(f"--critic and --keep-all are of --objective generative, found {name}")
        if critic is not None:
            made = replace(made, critic=GENERATIVE[critic].settings())
        made = replace(made, keep_all=keep_all)
    return made


def _check(network: Network, running: Running) -> None:
    """Refuse flags that another one makes mean nothing."""
    for flag, given, why in (
        ("--alpha", network.full and network.alpha is not None, "is of LoRA, and --full trains all weights"),
        ("--adapter", network.full and network.adapter, "writes an adapter, and --full trains all weights"),
        ("--rank", network.full and network.rank != 16, "is of LoRA, and --full trains all weights"),
        (
            "--held-out",
            running.held_out_data is not None and running.held_out != 0.06,
            "is a share of the data, and --held-out-data names a file instead",
        ),
    ):
        if given:
            raise UsageError(f"{flag} {why}: leave one of the two out")


def _joint(objective: Objective, running: Running) -> Objective:
    """The objective with the language-modelling loss beside it, where that has a weight."""
    if not running.language_weight:
        if running.language_tokens != "arithmetic":
            raise UsageError("--language-tokens is of the loss that --language-weight adds, and that is 0")
        return objective
    from stepmark.training.objectives.base import StepObjective
    from stepmark.training.objectives.joint import Joint

    if not isinstance(objective, StepObjective):
        raise UsageError(
            f"--language-weight goes with objectives of labelled steps, not with {objective.name}"
        )
    return Joint(objective=objective, weight=running.language_weight, tokens=running.language_tokens)


def _recipe(objective: Objective, labels: Labels, network: Network, running: Running) -> Recipe:
    from stepmark.training.examples import LabelRules
    from stepmark.training.net import Weights
    from stepmark.training.recipe import Recipe
    from stepmark.training.trainer import Train

    return Recipe(
        base=network.base,
        objective=objective,
        rules=LabelRules(
            labels=labels.labels,
            neutral=labels.neutral,
            judge=labels.judge,
            after_error=labels.after_error,
            written=labels.written,
        ),
        train=Train(
            weights=Weights(
                rank=None if network.full else network.rank,
                alpha=2.0 * network.rank if network.alpha is None else network.alpha,
                frozen_layers=network.frozen_layers,
                dtype=network.dtype,
                device=network.device,
                gradient_checkpointing=network.gradient_checkpointing,
                shard=network.shard,
            ),
            learning_rate=running.learning_rate,
            head_rate=running.head_rate,
            warm_start=network.warm_start,
            minutes=running.minutes,
            weight_decay=running.weight_decay,
            epochs=running.epochs,
            token_budget=running.token_budget,
            rows_per_step=running.rows_per_step,
            limit_tokens=running.limit_tokens,
            max_tokens=labels.max_tokens,
            coarsen=labels.coarsen,
            held_out=running.held_out,
            evaluations=running.evaluations,
            patience=running.patience,
            seed=running.seed,
        ),
        mark=network.mark,
        layout=network.layout,
        adapter=network.adapter,
        tune_threshold=running.tune_threshold,
    )


def _others(log: tuple[str, ...], out: Path, recipe: Recipe) -> list[Monitor]:
    from stepmark.training.monitor import TensorBoard, WandB

    made: list[Monitor] = []
    if "tensorboard" in log:
        made.append(TensorBoard(out.with_name(f"{out.name}.tensorboard")))
    if "wandb" in log:
        made.append(
            WandB(out.name, {"objective": recipe.objective.name, "base": recipe.base, **_flat(recipe)})
        )
    return made


class _Lines:
    """A line for each measurement; between them one every ten seconds on a terminal, elsewhere also at most one a tenth of the run.

    Args:
        clock: seconds, for tests.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_line = clock()
        self._tenth = 0
        self._first: int | None = None
        self._losses: list[tuple[float, float]] = []

    def tell(self, progress: Progress) -> None:
        self._losses.append((progress.loss * progress.labels, progress.labels))
        del self._losses[:-50]
        if self._first is None:
            self._first = progress.step - 1
            self._tenth = told_at(self._first / progress.steps)
        tenth = told_at(progress.step / progress.steps)
        due = self._clock() - self._last_line >= EVERY and (tenth > self._tenth or sys.stderr.isatty())
        if progress.held_out is None and progress.step < progress.steps and not due:
            return
        self._last_line, self._tenth = self._clock(), tenth
        loss = sum(loss for loss, _ in self._losses) / sum(labels for _, labels in self._losses)
        parts = [
            f"step {progress.step:,} of {progress.steps:,}",
            f"loss {loss:.3f} (last {len(self._losses)})",
            f"{progress.rows_per_second:,.1f} rows/s, {progress.tokens_per_second:,.0f} tokens/s",
        ]
        if can_estimate(progress.step - self._first, progress.steps - self._first):
            parts.append(f"{clock_face(progress.seconds_left)} left")
        found = progress.held_out
        if found is not None:
            parts.append(f"held out: loss {found.loss:.3f}")
            parts += [f"accuracy {found.accuracy:.3f}"] if found.accuracy is not None else []
            parts += [f"AUC {found.auc:.3f}"] if found.auc is not None else []
            parts += (
                [f"first-error F1 {found.first_error_f1:.3f}"] if found.first_error_f1 is not None else []
            )
        print(", ".join(parts), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing: standard error stays open."""
