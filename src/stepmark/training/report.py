"""What a reader gets beside a checkpoint: its model card (`README.md`) and the page of its run (`report.html`).

A card states what was done and measured, and says where something a reader would look for is not known. Its front matter is what the
Hugging Face hub reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from stepmark.metrics.intervals import Interval
from stepmark.models.spec import (
    ConfidenceHead,
    LogRatioHead,
    ScoringSpec,
    TokenHead,
    VocabHead,
)
from stepmark.report.evaluation import Report, Section, Tile, evaluation_html
from stepmark.report.plots import Lines, Series
from stepmark.training.held_out import CHANCE
from stepmark.training.measure import Trained
from stepmark.training.saving import Written
from stepmark.version import __version__
from stepmark.words import amount

CARD_FILE = "README.md"
FOLDER = "FOLDER"
"""Stands for the checkpoint in the card's commands."""
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_POINTS = 200
"""Of a curve, at most."""


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What the cards of a PRM and of a policy share."""

    title: str
    base: str
    """The model that was trained: a hub name, a folder or a built-in one."""
    settings: Mapping[str, object]
    seed: int


def card_text(
    facts: CardFacts,
    *,
    pipeline: str | None,
    tags: Sequence[str],
    about: str,
    sections: Mapping[str, str],
    adapter: bool = False,
) -> str:
    """A model card as Markdown, front matter first."""
    front = [f"library_name: {'peft' if adapter else 'transformers'}"]
    if _HUB_NAME.fullmatch(facts.base):
        # JSON strings are YAML strings, whatever is in them.
        relation = "adapter" if adapter else "finetune"
        front += [f"base_model: {json.dumps(facts.base)}", f"base_model_relation: {relation}"]
    if pipeline is not None:
        front.append(f"pipeline_tag: {pipeline}")
    front += ["tags:", *(f"- {tag}" for tag in tags)]
    versions = {"stepmark": __version__} | {name: version(name) for name in ("torch", "transformers")}
    made_with = ", ".join(f"{name} {number}" for name, number in versions.items())
    parts = ["\n".join(["---", *front, "---"]), f"# {facts.title}", about]
    for title, text in sections.items():
        parts += [f"## {title}", text]
    parts += [
        "## Settings",
        _table(
            "setting", "value", rows=[(_code(name), _value(value)) for name, value in facts.settings.items()]
        ),
        f"Seed: {facts.seed}. Made with {made_with}.",
        "## Licence",
        "Not stated here: what this checkpoint may be used for depends on the licences of its base and of its data. Look at both before "
        "publishing it, and put `license:` into the head of this file.",
    ]
    return "\n\n".join(parts) + "\n"


def prm_card(
    facts: CardFacts,
    written: Written,
    *,
    objective: str,
    base_fingerprint: str,
    data: str,
    measured: Mapping[str, str],
) -> str:
    """The card of a trained PRM. `written` has the spec as it is read now; `measured` is figure to its value and where it was measured."""
    figures = _table("what", "value", rows=list(measured.items())) if measured else "Nothing was measured."
    reading = {} if written.spec is None else {"How steps are marked": _reading(written.spec)}
    adapter = written.layout == "adapter"
    pipeline = "text-generation" if written.layout == "causal-lm" else "token-classification"
    return card_text(
        facts,
        pipeline=None if adapter else pipeline,
        tags=("stepmark", "process-reward-model", "prm", "reasoning"),
        about="A process reward model, trained by stepmark on "
        f"{_code(facts.base)}: {_kind(written.spec)}. It grades a solution step by step.",
        sections={
            "How to use it": _use(written, facts.base),
            **reading,
            "Data": data,
            "Training": f"Objective: {objective}. The base's weights, configuration and tokenizer have the fingerprint "
            f"{_code(base_fingerprint)}.",
            "Measured": figures,
        },
        adapter=adapter,
    )


def serve_command(written: Written) -> str | None:
    """The line that serves a checkpoint on vLLM; None where vLLM cannot serve it.

    Of heads, the tokens that end a step are pooled where one token id marks them, else all tokens; `stepmark grade` reads both. Verdicts that are
    tokens are read from a language model.
    """
    if (
        written.layout == "causal-lm"
        and written.spec is not None
        and isinstance(written.spec.readout.head, VocabHead)
    ):
        return f"vllm serve {FOLDER} --enable-prompt-tokens-details"
    if written.layout not in ("token-classification", "qwen2-prm"):
        return None
    pooler: dict[str, object] = {"task": "token_classify", "tok_pooling_type": "ALL"}
    if written.tag is not None:
        pooler |= {"tok_pooling_type": "STEP", "step_tag_id": written.tag}
    return f"vllm serve {FOLDER} --runner pooling --pooler-config '{json.dumps(pooler)}'"


def snippet(written: Written) -> str | None:
    """Python that gives the logits with transformers alone, given `ids`, token ids of a marked text; None for adapters and language models."""
    if written.layout == "token-classification":
        return f"""import torch
from transformers import AutoModelForTokenClassification

model = AutoModelForTokenClassification.from_pretrained("{FOLDER}").eval()
with torch.inference_mode():
    logits = model(torch.tensor([ids])).logits[0]  # [tokens, labels]; read them where steps end"""
    if written.layout == "qwen2-prm":
        return f"""from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModel

model = AutoModel.from_pretrained("{FOLDER}").eval()
tensors = {{}}
for file in Path("{FOLDER}").glob("*.safetensors"):
    tensors |= {{name: t for name, t in load_file(file).items() if name.startswith("score.")}}
with torch.inference_mode():
    hidden = model(torch.tensor([ids])).last_hidden_state[0].float()
    middle = torch.relu(hidden @ tensors["score.0.weight"].T + tensors["score.0.bias"])
    logits = middle @ tensors["score.2.weight"].T + tensors["score.2.bias"]  # [tokens, 2]; label 1 is right"""
    return None


def _use(written: Written, base: str) -> str:
    grade = f"stepmark grade solutions.jsonl --prm {FOLDER}"
    if written.spec is None:
        return (
            f"With stepmark, which asks for critiques as `stepmark.json` says:\n\n```console\n$ {grade}\n```\n\n"
            "Elsewhere it is an ordinary language model (`AutoModelForCausalLM`, any server)."
        )
    parts = [
        "With stepmark, which finds step ends by construction and applies everything in `stepmark.json`:",
        f"```console\n$ {grade}\n```",
        f'```python\nimport stepmark\n\nprm = stepmark.load_prm("{FOLDER}")\n'
        'prm.score("A bakery bakes 12 trays of 8 rolls and sells 70. How many are left?", '
        'steps=["First, we find the total number of rolls: 12 * 8 = 96 rolls.", "After selling 70 rolls, 96 - 70 = 26 rolls remain."])\n```',
    ]
    if written.layout == "adapter":
        parts.append(f"It is a LoRA adapter over `{base}`, which must be there too.")
    elif written.layout == "causal-lm":
        parts.append("With transformers alone it is an ordinary language model (`AutoModelForCausalLM`).")
    else:
        parts += [
            "With transformers alone, where `ids` are the token ids of a marked text (below; the end of each step is the position to read):",
            f"```python\n{snippet(written)}\n```",
            _probability(written.spec),
        ]
    if (command := serve_command(written)) is not None:
        parts.append(
            f"On vLLM:\n\n```console\n$ {command}\n$ stepmark grade solutions.jsonl --prm http://127.0.0.1:8000 --tokenizer {FOLDER}\n```"
        )
    return "\n\n".join(parts)


def _probability(spec: ScoringSpec) -> str:
    readout = spec.readout
    if readout.activation == "softmax" and readout.neutral is not None:
        return f"Label {readout.good} means right and label {readout.neutral} neutral, after `logits.softmax(-1)`."
    if readout.activation == "labels":
        score = f"the score is that of `{(readout.class_names or ())[readout.good]}`"
        if (readout.scale, readout.shift) != (1.0, 0.0):
            score += f", of {readout.scale:.6g} times its logit {readout.shift:+.6g}"
        return f"`torch.sigmoid(logits)` at the end of a step are the probabilities of its labels, by `id2label`; {score}."
    if readout.activation not in ("sigmoid", "softmax"):
        return f"The activation of the head is `{readout.activation}`."
    logit = "logits[:, 0]"
    if readout.activation == "softmax":
        logit = f"(logits[:, {readout.good}] - logits[:, {1 - readout.good}])"
    if (readout.scale, readout.shift) != (1.0, 0.0):
        logit = f"{readout.scale:.6g} * {logit} {readout.shift:+.6g}"
    return f"The score of a step is `torch.sigmoid({logit})` at its end."


def _kind(spec: ScoringSpec | None) -> str:
    """The head in words."""
    if spec is None:
        return "a language model that writes a critique of each step and ends it with a verdict"
    head, readout = spec.readout.head, spec.readout
    if isinstance(head, LogRatioHead):
        return "an implicit one, read as the log-ratio of itself and a reference"
    if isinstance(head, ConfidenceHead):
        return "the policy itself, read as how sure it is of its tokens"
    if not isinstance(head, VocabHead):
        labels = "one logit" if readout.activation == "sigmoid" else "several logits"
        if readout.activation in ("softmax", "margin"):
            labels = "two labels" if readout.neutral is None else "three labels"
        tokens = " and from the probabilities of its tokens" if isinstance(head, TokenHead) else ""
        return f"{labels}, read at the end of {'the last' if spec.outcome_only else 'each'} step{tokens}"
    return f"the logits of the tokens {', '.join(map(repr, head.candidates))}, read at the end of each step"


def _reading(spec: ScoringSpec) -> str:
    """How steps are marked and what the numbers mean."""
    readout = spec.readout
    layout = json.dumps(asdict(spec.layout), indent=2, ensure_ascii=False)
    fence = "`" * (3 + max((len(run) for run in re.findall("`{3,}", layout)), default=0))
    meaning = {
        "probability": "the probability that the step is right",
        "margin": "P(right) - P(wrong), from -1 to 1",
        "log-ratio": "a log-ratio, without bounds",
        "unbounded": "a number without bounds",
    }[spec.score_kind]
    point = "No threshold is set."
    if spec.threshold is not None:
        point = f"A step under {spec.threshold:g} is taken for an error."
    parts = [
        f"A solution becomes text by this layout ({_code(spec.layout.kind)}):\n\n{fence}json\n{layout}\n{fence}",
        f"A score is {meaning}. {point} One number of a whole solution: {_code(spec.aggregate)} over its steps. All of this stands in "
        "`stepmark.json`.",
    ]
    if (readout.scale, readout.shift) != (1.0, 0.0):
        parts.append(
            f"Calibrated: a score is sigmoid({readout.scale:.4g} × logit {readout.shift:+.4g}). stepmark applies that; logits from other readers "
            "are without it."
        )
    return "\n\n".join(parts)


def _table(*columns: str, rows: Sequence[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _code(text: str) -> str:
    """Inline code, whatever backticks are in it; line breaks made visible."""
    runs = {len(run) for run in re.findall("`+", text)}
    fence = "`" * next(n for n in range(1, len(runs) + 2) if n not in runs)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    shown = text.replace("\n", "\\n")
    return f"{fence}{pad}{shown}{pad}{fence}"


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def training_html(
    trained: Trained, history: Sequence[Mapping[str, Any]], settings: Mapping[str, str], *, title: str
) -> Iterator[str]:
    """The page of a run in chunks, from the lines of its history (`state.read_lines`)."""
    measured = [(float(row["step"]), row["held_out"]) for row in history if row.get("held_out")]
    curves = {
        name: Series(
            name=name, x=tuple(step for step, _ in measured), y=tuple(item[key] for _, item in measured)
        )
        for name, key in (
            ("held out", "loss"),
            ("AUC", "auc"),
            ("first-error F1 at 0.5", "first_error_f1"),
        )
        if any(item[key] is not None for _, item in measured)
    }
    held_out = curves.pop("held out", None)
    plots = [
        Lines(
            title="Loss a label",
            x_label="optimizer step",
            y_label="loss",
            series=(
                smoothed("training", history, x="step", y="loss", weight="labels"),
                *(() if held_out is None else (held_out,)),
            ),
            note=f"Training: means over at most {_POINTS} equal stretches of the run.",
        )
    ]
    if "AUC" in curves:
        ends = (measured[0][0], measured[-1][0])
        curves["chance"] = Series(name="chance (AUC)", x=ends, y=(CHANCE, CHANCE))
    if curves:
        plots.append(
            Lines(
                title="Held-out problems, not calibrated",
                x_label="optimizer step",
                y_label="share",
                series=tuple(curves.values()),
                y_range=(0.0, 1.0),
            )
        )
    start = f", starting from {trained.start}" if trained.start else ""
    trained_on = (
        f"Trained on {amount(trained.examples, 'example')} of {amount(trained.problems, 'problem')}{start}."
    )
    # With a comparison the last one is its verdict.
    figures = trained.figures[1:] if trained.comparison is None else trained.figures[1:-1]
    yield from evaluation_html(
        Report(
            title=title,
            verdict="" if trained.comparison is None else trained.comparison.verdict,
            facts=(trained_on, *figures, *trained.dropped.lines()),
            tiles=_tiles(trained),
            sections=(Section(title="Curves", items=tuple(plots)),),
            settings=settings,
        )
    )


def _tiles(trained: Trained) -> tuple[Tile, ...]:
    measured, compared = trained.held_out, trained.comparison
    if measured is None:
        return ()
    if compared is None:
        return (
            Tile(
                label="Loss", value=f"{measured.loss:.3f}", detail=amount(measured.labels, "held-out label")
            ),
        )
    detail = f"{amount(compared.steps, f'held-out {compared.unit}')}; chance is 50"
    tiles = [_tile("AUC, %", compared.auc, detail)]
    if compared.baseline_auc is not None:
        tiles.append(_tile(f"AUC of {compared.baseline_name}, %", compared.baseline_auc, "the same steps"))
    if compared.f1 is not None and compared.threshold is not None:
        how = "chosen on the same solutions" if compared.tuned else "not tuned"
        tiles.append(_tile("First-error F1, %", compared.f1, f"threshold {compared.threshold:.3g}, {how}"))
    return tuple(tiles)


def _tile(label: str, figure: Interval, detail: str) -> Tile:
    if figure.low is None or figure.high is None:
        return Tile(label=label, value=f"{100 * (figure.value or 0):.1f}", detail=detail)
    interval = f"[{100 * figure.low:.1f}, {100 * figure.high:.1f}]"
    return Tile(label=label, value=f"{100 * (figure.value or 0):.1f}", detail=f"{interval}; {detail}")


def smoothed(
    name: str, history: Sequence[Mapping[str, Any]], *, x: str, y: str, weight: str | None = None
) -> Series:
    """A curve of means of `y` over equal stretches of a history, weighted by the field `weight`, each at the last `x` of its stretch."""
    each = max(1, -(-len(history) // _POINTS))
    xs, ys = [], []
    for at in range(0, len(history), each):
        rows = history[at : at + each]
        values = [(row[y], 1.0 if weight is None else row[weight]) for row in rows if row.get(y) is not None]
        xs.append(float(rows[-1][x]))
        ys.append(sum(v * w for v, w in values) / sum(w for _, w in values) if values else None)
    return Series(name=name, x=tuple(xs), y=tuple(ys))
