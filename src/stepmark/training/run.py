"""`stepmark.train`: labelled solutions in; a measured and calibrated PRM out, written whole or not at all and resumed where it stopped."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, get_args

from stepmark.data.columns import Columns
from stepmark.data.formats.rows import LabelledRow
from stepmark.data.labelled import read_labelled
from stepmark.data.reading import ENDINGS, STDIO, Source, check_readable, row_files
from stepmark.errors import MissingExtraError, UsageError
from stepmark.models.files import fetch
from stepmark.models.lazy import note_idle
from stepmark.progress import EVERY, can_estimate, clock_face, told_at
from stepmark.settings import checked
from stepmark.store import atomic_write, naming
from stepmark.training.examples import LabelRules
from stepmark.training.measure import Trained
from stepmark.training.settings import Training

Rows = Source | Sequence[str | Path]


def training_rows(
    rows: Rows,
    *,
    split: str = "train",
    columns: Columns | None = None,
) -> Iterator[LabelledRow]:
    """Labelled rows of one or several sources, one after the other.

    Rows that `stepmark grade` wrote are read as what was graded, with `critiques` under `meta`; scores are no labels. Labels are those of the
    row or, beside a critique, of any other row.

    Args:
        rows: names of files in any format of `stepmark convert`, or "OWNER/NAME" of data sets on the hub; or rows in Python.
        split: which files of a hub data set are taken: those with this word in their name, or all where none has it.
        columns: as `store.read_rows`.
    """
    names = _names(rows)
    if names is None:
        yield from read_labelled(rows, columns=columns)
        return
    for name in names:
        for file in _files(name, split):
            yield from read_labelled(file, columns=columns)


def check_sources(rows: Rows | None) -> None:
    """Refuse, before anything is loaded, rows that cannot be read: no names, or files that are not there."""
    names = None if rows is None else _names(rows)
    if names == []:
        raise UsageError("expected rows: files of labelled solutions, or data sets on the hub")
    for name in names or ():
        if _is_local(name) and not Path(name).expanduser().is_dir():
            check_readable(Path(name).expanduser())


def _is_local(name: str) -> bool:
    """Whether a name is of a file or folder here, and not of a data set on the hub."""
    return Path(name).expanduser().exists() or name.count("/") != 1 or name.endswith(ENDINGS)


def _names(rows: Rows) -> list[str] | None:
    """The names of files or data sets; None for rows in Python."""
    if isinstance(rows, str | Path):
        return [str(rows)]
    named = isinstance(rows, list | tuple) and all(isinstance(row, str | Path) for row in rows)
    return [str(row) for row in rows] if named else None


def _files(name: str, split: str) -> list[str]:
    """The files of a name; those of the hub are downloaded, and those with the split in their names taken, or all where none has it."""
    path = Path(name).expanduser()
    if path.is_dir():
        return row_files(path)
    if _is_local(name):
        return [str(path)]
    folder = fetch(name, [f"*{ending}" for ending in ENDINGS], kind="dataset")
    files = sorted(f for f in folder.rglob("*") if f.name.endswith(ENDINGS) and f.is_file())
    chosen = [f for f in files if split in f.name] or files
    if not chosen:
        raise UsageError(f"{name}: the data set holds no {', '.join(ENDINGS)}")
    return [str(file) for file in chosen]


if TYPE_CHECKING:
    from stepmark.training.objectives.base import Objective
    from stepmark.training.recipe import Recipe
    from stepmark.training.trainer import TrainerProgress
else:
    Objective = object  # its module imports torch, and the command line reads this annotation

REPORT_FILE = "report.html"
Log = Literal["tensorboard", "wandb", "trackio"]


@checked
def train(
    rows: Source | Sequence[str | Path],
    *,
    out: str | Path,
    base: str | None = None,
    objective: str | Objective | None = None,
    settings: Sequence[str] = (),
    family: str | None = None,
    rules: LabelRules = LabelRules(),  # noqa: B008 - frozen
    training: Training = Training(),  # noqa: B008 - frozen
    held_out_data: Source | Sequence[str | Path] | None = None,
    columns: Mapping[str, str] | None = None,
    log: Sequence[Log] = (),
    progress: bool = True,
    on_warning: Callable[[str], None] | None = None,
) -> Trained:
    """Train a PRM on labelled solutions, measure it on held-out problems, calibrate it, and write a checkpoint.

    A row is a solution with labels of its steps, in any format that `stepmark convert` reads. A run that is interrupted continues when the
    same call is made again, and gives the same checkpoint; a finished run is not repeated. Its state lies in `<out>.run` meanwhile.
    Several processes share each step when started by `accelerate launch -m stepmark train …`.

    Args:
        rows: a file, several files, or "OWNER/NAME" of a data set on the hub; or dicts, records, a data set or a data frame.
        out: the checkpoint's folder: new, or that of this run.
        base: the model that is trained: a folder, a hub name, or a built-in one. Default: the default PRM goes on being trained, or its base
            where the objective or the layout is another.
        objective: what is fitted: hard, ce, soft, mse, beta-binomial, three-class, target-tokens, outcome, implicit-ce, implicit-dpo,
            generative, or "package.module:Class". Default: hard; with `family`, the one for its head.
        settings: a field of the objective, as name=value; repeat for several.
        family: train in the prompt, layout and head of this published family (`stepmark families`). Default: a layout of stepmark's own.
        rules: which labels are trained on.
        training: which weights are trained, and for how long.
        held_out_data: measure and calibrate on these rows instead of a share of the problems.
        columns: names of columns, where they differ: problem=question,solution=response.
        log: send figures to these too: tensorboard, wandb, trackio.
        progress: show on standard error how far the run is.
        on_warning: called with a warning, such as of few optimizer steps. Default: it is shown with the progress.

    Returns:
        The checkpoint's folder and what was measured; `prm()` loads the PRM.

    Raises:
        InputError: a row that is not of its format, or labels of a kind that the objective is not for.
        UsageError: a setting that cannot work, too few rows, or `out` of another run.
        CheckpointError: the base cannot be trained, or the checkpoint is not read as it was trained.
        MissingExtraError: a package that training needs is not installed.
    """
    if not isinstance(out, str | Path) or str(out) == STDIO:
        raise UsageError(f"`out`: expected the name of a folder, found {out!r}")
    if held_out_data is not None:
        note_idle({"held_out": training.held_out}, {"held_out": "`held_out_data` names the rows"})
    if family is not None:
        own = {"mark": training.mark, "layout": None if training.layout == "auto" else training.layout}
        note_idle(own, dict.fromkeys(own, f"the `family` {family} has its own"))
    for given in (rows, held_out_data):
        check_sources(given)
    check_packages("torch", "transformers", "matplotlib", *(() if training.full else ("peft",)))
    for name in log:
        if name not in get_args(Log):
            raise UsageError(f"`log` {name}: expected {', '.join(get_args(Log))}")
        if find_spec(name) is None:
            raise MissingExtraError(f"`log` {name} needs it: pip install {name}")
    from stepmark.training.objectives import load_objective
    from stepmark.training.recipe import Recipe, run_recipe
    from stepmark.training.report import training_html
    from stepmark.training.saving import TRAIN_FILE
    from stepmark.training.state import HISTORY_FILE, read_lines
    from stepmark.training.trainer import few_steps

    if objective is None and family is None:
        objective = "hard"
    if objective is None and settings:
        raise UsageError("`settings` are fields of an `objective`: name it too")
    made, source = (None, None) if objective is None else load_objective(objective, settings)
    if family is not None:
        from stepmark.training.objectives.published import in_family

        made = in_family(made, family)
    assert made is not None
    recipe = Recipe(base=base, objective=made, source=source, rules=rules, training=training, family=family)
    folder, data = Path(out), _names(rows) or ["rows"]

    def complete(done: Trained, place: Path) -> None:
        if (place / REPORT_FILE).is_file():
            return
        notes = json.loads((place / TRAIN_FILE).read_text(encoding="utf-8"))
        shown = {"data": ", ".join(data), "objective": repr(recipe.objective), "base": notes["base"]}
        used = {"family": recipe.family, **notes["rules"], **notes["settings"]}
        shown |= {name: str(value) for name, value in used.items()}
        with atomic_write(place / REPORT_FILE) as page:
            history = read_lines(place / HISTORY_FILE)
            page.writelines(training_html(done, history, shown, title=f"Training of {folder.name}"))

    recording: list[Recorder] = []
    warn = on_warning or (partial(print, file=sys.stderr, flush=True) if progress else lambda _: None)

    with ExitStack() as closing, naming(folder):

        def report(figures: TrainerProgress) -> None:
            if not recording:
                # Only now: a run that is refused leaves none of theirs behind.
                if progress:
                    recording.append(ProgressLines(sys.stderr).record)
                config = {"objective": recipe.objective.name, "base": recipe.base, **_flat(recipe)}
                recording.extend(recorders(log, folder, config, closing))
                few = few_steps(figures.steps, training)
                if few is not None and figures.step == 1:
                    warn(f"warning: {few}")
            for record in recording:
                record(figures)

        return run_recipe(
            training_rows(rows, columns=columns),
            folder,
            recipe,
            held_out=None if held_out_data is None else training_rows(held_out_data, columns=columns),
            data=data,
            report=report,
            complete=complete,
        )


def check_packages(*names: str) -> None:
    """Refuse at once, and not after hours of training, what lacks a package."""
    lacking = [name for name in names if find_spec(name) is None]
    if lacking:
        raise MissingExtraError(f"training needs {', '.join(lacking)}: pip install 'stepmark[train]'")


def _flat(recipe: Recipe) -> Mapping[str, object]:
    return {"family": recipe.family, **asdict(recipe.rules), **asdict(recipe.training)}


Recorder = Callable[["TrainerProgress"], None]
"""Records every optimizer step."""


def recorders(
    log: Sequence[Log], out: Path, config: Mapping[str, object], closing: ExitStack
) -> Iterator[Recorder]:
    """The trackers of accelerate: TensorBoard's event files in `<out>.tensorboard`, a run named like the checkpoint in Weights & Biases or trackio; `closing` ends them.

    The project is $WANDB_PROJECT, or "stepmark". Everything else is read from the trackers' own settings.
    """
    from accelerate.tracking import TensorBoardTracker, TrackioTracker, WandBTracker

    project = os.environ.get("WANDB_PROJECT", "stepmark")
    trackers: Mapping[Log, Callable[[], Any]] = {
        "tensorboard": lambda: TensorBoardTracker(f"{out.name}.tensorboard", logging_dir=out.parent),
        "wandb": lambda: WandBTracker(project, name=out.name, resume="allow"),
        "trackio": lambda: TrackioTracker(project, name=out.name, resume="allow"),
    }
    plain = {k: v if isinstance(v, bool | int | float | str | None) else str(v) for k, v in config.items()}
    for name in log:
        tracker = trackers[name]()
        tracker.start()
        closing.callback(tracker.finish)
        tracker.store_init_configuration(plain)
        yield partial(_record, tracker)


def _record(tracker: Any, progress: TrainerProgress) -> None:
    tracker.log(scalars(progress), step=progress.step)


class ProgressLines:
    """A line for each measurement; between them one every ten seconds on a terminal, elsewhere one after ten seconds and then at most one a tenth
    of the run."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._last_line = clock()
        self._tenth = -1
        """The tenth of the run whose line was written; -1: none yet."""
        self._first: int | None = None
        """Steps of an earlier run."""
        self._counts: list[tuple[float, float]] = []

    def record(self, progress: TrainerProgress) -> None:
        """Print its line, where one is due."""
        self._counts = [*self._counts[-49:], (progress.loss * progress.labels, progress.labels)]
        if self._first is None:
            self._first = progress.step - 1
        tenth = told_at(progress.step / progress.steps)
        due = self._clock() - self._last_line >= EVERY and (tenth > self._tenth or self._stream.isatty())
        if progress.held_out is None and progress.step < progress.steps and not due:
            return
        self._last_line, self._tenth = self._clock(), tenth
        loss = sum(loss for loss, _ in self._counts) / sum(labels for _, labels in self._counts)
        parts = [
            f"step {progress.step:,} of {progress.steps:,}",
            f"loss {loss:.3f} (last {len(self._counts)})",
            f"{progress.rows_per_second:,.1f} rows/s, {progress.tokens_per_second:,.0f} tokens/s",
        ]
        if can_estimate(progress.step - self._first, progress.steps - self._first):
            parts.append(f"{clock_face(progress.seconds_left)} left")
        if (measured := progress.held_out) is not None:
            parts.append(f"held out: {', '.join(measured.words())}")
            if measured.first_error_f1 is not None:
                parts.append(f"first-error F1 {measured.first_error_f1:.3f}")
        print(", ".join(parts), file=self._stream, flush=True)


def scalars(progress: TrainerProgress) -> dict[str, float]:
    """What a step has to plot; what is not known is left out."""
    named = (
        ("train", progress, ("loss", "gradient", "learning_rate")),
        ("speed", progress, ("tokens_per_second", "rows_per_second")),
        ("held_out", progress.held_out, ("loss", "auc", "first_error_f1")),
    )
    return {
        f"{part}/{name}": value
        for part, record, names in named
        if record is not None
        for name in names
        if (value := getattr(record, name)) is not None
    }
