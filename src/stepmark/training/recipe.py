"""The recipe of the default PRM, from a file of rated steps to a calibrated checkpoint."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepmark.errors import InputError, UsageError
from stepmark.labels.exact import exact_labels
from stepmark.metrics.first_error import FirstErrors
from stepmark.models.checkpoint import BUILT_IN_BASE, find_checkpoint
from stepmark.models.spec import LinearHead, Readout, ScoringSpec, TextLayout
from stepmark.problems.gsm8k import read_gsm8k
from stepmark.records import LabelledSolution
from stepmark.solutions.prm800k import read_prm800k
from stepmark.store import read_rows
from stepmark.training.data import examples
from stepmark.training.publish import calibrate, write_checkpoint
from stepmark.training.train import Measure, Train, Trainer, measure, split_problems

MARKER_SPEC = ScoringSpec(
    family="stepmark",
    summary="stepmark's own: one logit at a marker token after each step",
    source="trained by `stepmark train`",
    layout=TextLayout(
        # SmolLM2's chat format without its default system message; the marker is a token of its vocabulary that
        # no mathematics uses.
        opening="<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n",
        mark="\n<file_sep>",
        special_tokens=False,
    ),
    readout=Readout(head=LinearHead(), activation="sigmoid"),
    score_kind="probability",
    aggregate="min",
    aggregate_source="the grader is trained up to the first error only; the minimum asks for the worst step",
    threshold=0.5,
)
"""How our own checkpoints are read, before calibration."""


def labelled_rows(files: Sequence[Path], *, seed: int) -> Iterator[LabelledSolution]:
    """Step labels of several files; each file's layout is told by its first row.

    Args:
        files: PRM800K in the flat layout, or GSM8K, which gives exact labels (`labels/exact.py`).
        seed: of the errors put into GSM8K.

    Raises:
        UsageError: no file.
        InputError: a file that is neither, or a bad row.
    """
    if not files:
        raise UsageError("name at least one file of step labels")
    for file in files:
        first = next(iter(read_rows(file)))
        keys = set(first.data)
        if "instruction" in keys:
            yield from read_prm800k(file)
        elif {"question", "answer"} <= keys:
            for number, worked in enumerate(read_gsm8k(file)):
                yield from exact_labels(worked, random.Random(seed * 1_000_003 + number))
        else:
            raise InputError(
                f"expected PRM800K (instruction, responses, next_response, rating) or GSM8K (question, answer), found the keys "
                f"{sorted(keys)}",
                where=first.where,
            )


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a run gave."""

    folder: Path
    held_out: Measure
    """On steps of problems that were not trained on."""
    first_errors: FirstErrors
    """On the solutions of those problems."""
    examples: int
    problems: int


def train_marker_prm(
    rows: Iterable[LabelledSolution],
    out: Path,
    settings: Train,
    *,
    base: str = BUILT_IN_BASE,
    report: Callable[[dict[str, float]], None],
) -> Trained:
    """Train, write and calibrate. Run again with the same settings after an interruption, it goes on.

    Args:
        rows: labelled solutions.
        out: the checkpoint's folder; the state of a run in progress lies in `<out>.run`.
        base: the base model: a folder, a hub name, or the built-in one.
        report: receives the figures of every step.

    Raises:
        UsageError: `out` exists, no example is left after filtering, all held-out steps are right or all are wrong,
            or `<out>.run` is of another run.
    """
    if out.exists():
        raise UsageError(f"{out} exists; delete it or choose another --out")
    ready = examples(rows, neutral=settings.neutral)
    training, held_out = split_problems(ready, settings.held_out, settings.seed)
    if not training or not held_out:
        raise UsageError(
            f"{len(ready)} judged examples of {len(training) + len(held_out)} problems are too few to train on"
        )
    if len({label for group in held_out for e in group for label in e.labels if label is not None}) < 2:
        # Known now, and not after hours of training, when calibration would need them.
        raise UsageError(
            f"the {len(held_out)} held-out problems have no right or no wrong step; hold out more, or label more"
        )
    state = out.with_name(f"{out.name}.run")
    trainer = Trainer(find_checkpoint(base), MARKER_SPEC, settings, state)
    trainer.run(training, report=report)
    measured = measure(list(trainer.predict(held_out)))
    # Made beside the state and moved when it is whole: `out` is calibrated or not there.
    made = state / "checkpoint"
    shutil.rmtree(made, ignore_errors=True)
    folder = Path(base).expanduser()
    write_checkpoint(trainer, made, base_name=str(folder.resolve()) if folder.is_dir() else base)
    best = calibrate(made, [e for group in held_out for e in group])
    made.rename(out)
    shutil.rmtree(state)
    return Trained(
        folder=out,
        held_out=measured,
        first_errors=best,
        examples=sum(map(len, training)),
        problems=len(training),
    )
