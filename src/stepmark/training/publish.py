"""Write what was trained as a checkpoint: adapter with head, scoring spec, card. Written whole or not at all."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from stepmark.errors import UsageError
from stepmark.metrics.first_error import FirstErrors, best_threshold, first_errors
from stepmark.metrics.scaling import platt
from stepmark.models.calibration import store_calibration
from stepmark.models.detect import read_spec
from stepmark.models.load import load_prm
from stepmark.models.spec import SPEC_FILE, ScoringSpec
from stepmark.records import Refusal, Solution
from stepmark.training.data import Example
from stepmark.training.train import Trainer


def write_checkpoint(trainer: Trainer, folder: Path, *, base_name: str) -> None:
    """Adapter (PEFT layout, bfloat16), head and spec in a new folder.

    Args:
        folder: must not exist yet.
        base_name: what `adapter_config.json` names as the base.

    Raises:
        UsageError: the folder exists.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists; delete it or choose another")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        tensors = {
            f"base_model.model.{name.removeprefix('base_model.model.').replace('.default', '')}": tensor
            for name, tensor in trainer.model.state_dict().items()
            if "lora_" in name
        }
        tensors = {name: t.to(torch.bfloat16).contiguous() for name, t in tensors.items()}
        for name, tensor in trainer.head.state_dict().items():
            tensors[f"base_model.model.score.{name}"] = tensor.float().contiguous()
        save_file(tensors, work / "adapter_model.safetensors", metadata={"format": "pt"})
        config = {
            "peft_type": "LORA",
            "base_model_name_or_path": base_name,
            "r": trainer.settings.rank,
            "lora_alpha": trainer.settings.alpha,
            "bias": "none",
            "target_modules": sorted(
                {n.split(".lora_")[0].rsplit(".", 1)[-1] for n in tensors if ".lora_" in n}
            ),
        }
        _write_json(work / "adapter_config.json", config)
        _write_json(work / SPEC_FILE, asdict(trainer.spec))
        _write_json(work / "train.json", asdict(trainer.settings))
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def calibrate(folder: Path, held_out: Sequence[Example], *, name: str = "held-out problems") -> FirstErrors:
    """Fit Platt scaling on held-out problems, write it into the checkpoint's spec, and measure first errors there.

    The threshold stays the spec's (0.5: more likely wrong than right). The best one on the held-out problems is
    measured and noted, not used: it moves with the length of steps and of solutions, which differ elsewhere.

    The held-out solutions are graded as a user would grade them. A solution counts as wrong where its last
    judged step is wrong (training rows stop there). It counts as right where its last judged step is right and no
    other right one goes on from it: a beginning of a solution has fewer chances to be suspected, and the threshold is
    for whole solutions.

    Returns:
        The first-error figures on those same solutions at the spec's threshold.
    """
    spec_file = folder / SPEC_FILE
    prm = load_prm(str(folder))
    rows, labels = [], []
    whole, truth = [], []
    solutions: list[Solution] = [e.solution for e in held_out]
    beginnings = {
        (e.solution.problem.text, *e.solution.texts[:n])
        for e in held_out
        if e.labels[-1] == 1.0
        for n in range(1, len(e.solution.steps))
    }
    for example, result in zip(held_out, prm.score_many(solutions, keep_going=True), strict=True):
        label = example.labels[-1]
        if isinstance(result, Refusal) or label is None:
            continue
        rows.append([s for s in result.scores if s is not None])
        labels.append(label)
        if label < 0.5 or (example.solution.problem.text, *example.solution.texts) not in beginnings:
            whole.append(len(rows) - 1)
            truth.append(len(rows[-1]) - 1 if label < 0.5 else -1)
    logits = [_logit(row[-1]) for row in rows]
    scale, shift = platt(logits, labels)
    moved = [[_sigmoid(scale * _logit(s) + shift) for s in rows[i]] for i in whole]
    spec: ScoringSpec = read_spec(spec_file)
    threshold = 0.5 if spec.threshold is None else spec.threshold
    found, best = first_errors(moved, truth, threshold), best_threshold(moved, truth)
    store_calibration(
        folder,
        spec,
        scale=scale,
        shift=shift,
        note={
            "on": name,
            "steps": len(rows),
            "solutions": len(whole),
            "first_errors": asdict(found),
            "best_threshold": asdict(best),
        },
    )
    return found


def _write_json(file: Path, data: object) -> None:
    temporary = file.with_suffix(".part")
    temporary.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.rename(file)


def _logit(p: float) -> float:
    q = min(max(p, 1e-7), 1 - 1e-7)
    return float(torch.logit(torch.tensor(q, dtype=torch.float64)))


def _sigmoid(x: float) -> float:
    return float(torch.sigmoid(torch.tensor(x, dtype=torch.float64)))
