"""The model card of a trained checkpoint: a pure function from a record to the Markdown of its README.md.

It holds only what is in the record; what is not known is left out, and where a reader would look for it the card says that it is
not there. The front matter is what the Hugging Face hub reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepmark.models.detect import read_spec
from stepmark.models.spec import (
    SPEC_FILE,
    ChatLayout,
    DialogueLayout,
    EnsembleHead,
    LinearHead,
    LogRatioHead,
    MlpHead,
    PieceLayout,
    ScoringSpec,
    TextLayout,
)
from stepmark.store import atomic_write
from stepmark.training.checkpoint import Written

FOLDER = "FOLDER"
"""Stands for the checkpoint in what is shown."""


def serve_command(written: Written) -> str | None:
    """The line that serves a checkpoint on vLLM's `/pooling`; None where `/pooling` cannot serve it.

    Pooled are the tokens that end a step, where one token id tells them, else all tokens; `stepmark grade` reads both.
    """
    if written.layout not in ("token-classification", "qwen2-prm"):
        return None
    pooler: dict[str, object] = {"task": "token_classify", "tok_pooling_type": "ALL"}
    if written.tag is not None:
        pooler |= {"tok_pooling_type": "STEP", "step_tag_id": written.tag}
    return f"vllm serve {FOLDER} --runner pooling --pooler-config '{json.dumps(pooler)}'"


def snippet(written: Written) -> str | None:
    """Python that gives the logits with transformers alone, given `ids`, token ids of a marked text; None for adapters and
    language models, which need none of ours."""
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


def use(written: Written, base: str) -> str:
    """The section of the card."""
    spec = written.spec
    if spec is None:
        return (
            "With stepmark, which asks for critiques as `stepmark.json` says:\n\n"
            + _console(f"stepmark grade solutions.jsonl --prm {FOLDER}")
            + "\n\nElsewhere it is an ordinary language model (`AutoModelForCausalLM`, any server)."
        )
    said = [
        "With stepmark, which finds step ends by construction and applies everything in `stepmark.json`:",
        _console(f"stepmark grade solutions.jsonl --prm {FOLDER}"),
        f'```python\nimport stepmark\n\nprm = stepmark.load_prm("{FOLDER}")\nprm.score("A bakery bakes 12 trays of 8 rolls and sells 70. How many are left?", '
        '["12 * 8 = 96 rolls are baked.", "96 - 70 = 26 rolls are left."])\n```',
    ]
    if written.layout == "adapter":
        said.append(f"It is a LoRA adapter over `{base}`, which must be there too.")
    alone = snippet(written)
    if alone is not None:
        said += [
            "With transformers alone, where `ids` are the token ids of a marked text (below; the end of each step is the position to "
            "read):",
            f"```python\n{alone}\n```",
            _probability(spec),
        ]
    elif written.layout == "causal-lm":
        said.append("With transformers alone it is an ordinary language model (`AutoModelForCausalLM`).")
    served = serve_command(written)
    if served is not None:
        said += [
            "On vLLM:",
            f"```console\n$ {served}\n$ stepmark grade solutions.jsonl --prm http://127.0.0.1:8000 --tokenizer {FOLDER}\n```",
        ]
    elif written.layout == "causal-lm":
        said.append("vLLM's `/pooling` does not serve it: it reads the language-model head.")
    return "\n\n".join(said)


def _probability(spec: ScoringSpec) -> str:
    readout = spec.readout
    mapped = (readout.scale, readout.shift) != (1.0, 0.0)
    if readout.activation == "sigmoid":
        inner = f"{readout.scale:.6g} * logits[:, 0] {_signed(readout.shift)}" if mapped else "logits[:, 0]"
        return f"The score of a step is `torch.sigmoid({inner})` at its end."
    if readout.activation == "softmax" and readout.neutral is None:
        good, other = readout.good, 1 - readout.good
        above = f"logits[:, {good}] - logits[:, {other}]"
        if mapped:
            return f"The score of a step is `torch.sigmoid({readout.scale:.6g} * ({above}) {_signed(readout.shift)})` at its end."
        return f"The score of a step is `logits.softmax(-1)[:, {good}]` at its end."
    if readout.activation == "softmax":
        return f"Label {readout.good} means right and label {readout.neutral} neutral, after `logits.softmax(-1)`."
    head = "the two layers" if isinstance(readout.head, MlpHead) else "the layer"
    return f"The activation of {head} is `{readout.activation}`."


def _signed(number: float) -> str:
    return f"{'-' if number < 0 else '+'} {abs(number):.6g}"


def _console(line: str) -> str:
    return f"```console\n$ {line}\n```"


CARD_FILE = "README.md"

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Data:
    """One source of training rows."""

    name: str
    """As a reader can find it: a file's name, a data set."""
    rows: int
    """Read."""
    kept: int
    """Trained on or held out; the rest was left out."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Why the others were left out: reason to count. A row may be counted at one reason only."""
    note: str = ""
    """Who labelled it, its licence, its version: whatever its user states."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number."""

    what: str
    """Such as "AUC of step scores"."""
    on: str
    """Which data, how many: "412 steps of 57 held-out problems"."""
    value: float
    interval: tuple[float, float] | None = None
    """95 %, where one was computed."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a model card says."""

    title: str
    base: str
    """The base model: a hub name, or how it came about."""
    base_fingerprint: str | None = None
    """Of the base's weights, configuration and tokenizer (`models.identity.checkpoint_fingerprint`); None where it is not known."""
    written: Written
    """What was written, and how it is read."""
    objective: str
    """Its name and one line."""
    data: tuple[Data, ...]
    split: str = ""
    """How problems were held out."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Of the run, by name."""
    seeds: Mapping[str, int] = field(default_factory=dict)
    """What each drew: "order", "held-out problems"."""
    measured: tuple[Figure, ...] = ()
    """Nothing that was not measured."""
    notes: tuple[str, ...] = ()
    """Paragraphs of the user's own: limits, how long it took, on what machine."""
    licence: str | None = None
    """A hub identifier such as "apache-2.0"; None leaves it to the user, and the card says so."""
    made_with: Mapping[str, str] = field(default_factory=dict)
    """Versions: "stepmark", "torch", "transformers"."""


def write_card(record: Card) -> Path:
    """Write the card as `README.md` into its checkpoint's folder, whole or not at all.

    Said is how the checkpoint is read now: a calibration that was stored since it was written counts.
    """
    folder = record.written.folder
    if record.written.spec is not None and (folder / SPEC_FILE).is_file():
        record = replace(record, written=replace(record.written, spec=read_spec(folder / SPEC_FILE)))
    path = folder / CARD_FILE
    with atomic_write(path) as file:
        file.write(card(record))
    return path


def card(record: Card) -> str:
    """The card's Markdown, front matter first."""
    parts = [
        _front(record),
        f"# {record.title}",
        f"A process reward model, trained by [stepmark](https://pypi.org/project/stepmark/) on {_code(record.base)}: "
        f"{_kind(record.written.spec)}. It grades a solution step by step.",
        "## How to use it",
        use(record.written, record.base),
        *_reading(record.written.spec),
        "## Data",
        *_data(record),
        "## Training",
        f"Objective: {record.objective}."
        + (
            f" The base's weights, configuration and tokenizer have the fingerprint {_code(record.base_fingerprint)}."
            if record.base_fingerprint is not None
            else ""
        ),
        *_settings(record),
        "## Measured",
        _measured(record),
        *record.notes,
        "## Licence",
        _licence(record),
    ]
    return "\n\n".join(parts) + "\n"


def _front(record: Card) -> str:
    layout = record.written.layout
    lines = [
        # JSON strings are YAML strings, whatever is in them.
        f"library_name: {'peft' if layout == 'adapter' else 'transformers'}",
        *([f"license: {json.dumps(record.licence)}"] if record.licence is not None else []),
    ]
    if _HUB_NAME.fullmatch(record.base):
        relation = "adapter" if layout == "adapter" else "finetune"
        lines += [f"base_model: {json.dumps(record.base)}", f"base_model_relation: {relation}"]
    pipeline = "text-generation" if layout == "causal-lm" else "token-classification"
    if layout != "adapter":
        lines.append(f"pipeline_tag: {pipeline}")
    lines += ["tags:", *(f"- {tag}" for tag in ("stepmark", "process-reward-model", "prm", "reasoning"))]
    return "\n".join(["---", *lines, "---"])


def _kind(spec: ScoringSpec | None) -> str:
    """The head in words."""
    if spec is None:
        return "a language model that writes a critique of each step and ends it with a verdict"
    head, readout = spec.readout.head, spec.readout
    if isinstance(head, LogRatioHead):
        return "an implicit one, read as the log-ratio of itself and a reference"
    if isinstance(head, LinearHead | MlpHead | EnsembleHead):
        labels = "one logit" if readout.activation == "sigmoid" else "several logits"
        if readout.activation in ("softmax", "margin"):
            labels = "two labels" if readout.neutral is None else "three labels"
        where = "at the end of the last step" if spec.outcome_only else "at the end of each step"
        return f"{labels}, read {where}"
    return f"the logits of the tokens {', '.join(map(repr, head.candidates))}, read at the end of each step"


def _reading(spec: ScoringSpec | None) -> list[str]:
    """How steps are marked and what the numbers mean."""
    if spec is None:
        return []
    layout, readout = spec.layout, spec.readout
    paragraphs = ["## How steps are marked"]
    if isinstance(layout, TextLayout):
        paragraphs.append(
            _fenced(
                layout.opening + f"{layout.prefix}STEP{layout.mark}{layout.between}", "problem and first step"
            )
        )
    elif isinstance(layout, ChatLayout):
        system = (
            "no system message" if layout.system is None else f"the system message {_code(layout.system)}"
        )
        mark = (
            "at the end of the closed conversation"
            if layout.closing
            else f"after each step {_code(_shown(layout.mark))}"
        )
        paragraphs.append(
            f"The checkpoint's chat template, {system}; the steps are one assistant turn, read {mark}."
        )
    elif isinstance(layout, DialogueLayout):
        paragraphs.append(
            f"The checkpoint's chat template; each step is a user turn, answered by a verdict such as {_code(layout.verdict)}, and is "
            "read before the verdict."
        )
    elif isinstance(layout, PieceLayout):
        mark = f"read at {_code(_shown(layout.mark))} after it" if layout.mark else "read at its last token"
        paragraphs.append(
            f"The problem ({_code(_shown(layout.opening))}), then each step, tokenised alone and {mark}."
        )
    ends = {"keep": "kept", "strip": "taken off", "rstrip": "taken off at its end only"}
    paragraphs.append(
        f"White space around a step is {ends[layout.step_space]}, around the problem {ends[layout.problem_space]}."
    )
    meaning = {
        "probability": "the probability that the step is right",
        "margin": "P(right) - P(wrong), from -1 to 1",
        "log-ratio": "a log-ratio, without bounds",
        "unbounded": "a number without bounds",
    }[spec.score_kind]
    point = (
        f"A step under {spec.threshold:g} is taken for an error. "
        if spec.threshold is not None
        else "No threshold is set. "
    )
    paragraphs.append(
        f"A score is {meaning}. {point}One number of a whole solution: {_code(spec.aggregate)} over its steps. All of this stands in "
        "`stepmark.json`."
    )
    if (readout.scale, readout.shift) != (1.0, 0.0):
        paragraphs.append(
            f"Calibrated: a score is sigmoid({readout.scale:.4g} × logit {'-' if readout.shift < 0 else '+'} {abs(readout.shift):.4g}). stepmark applies that; logits from "
            "other readers are without it."
        )
    return paragraphs


def _data(record: Card) -> list[str]:
    if not record.data:
        return ["Not stated."]
    rows = ["| source | rows | kept | left out |", "| --- | --- | --- | --- |"]
    for source in record.data:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in source.dropped.items())
        note = f" ({source.note})" if source.note else ""
        rows.append(f"| {_cell(source.name + note)} | {source.rows:,} | {source.kept:,} | {_cell(reasons)} |")
    return ["\n".join(rows), *([record.split] if record.split else [])]


def _settings(record: Card) -> list[str]:
    paragraphs = []
    if record.settings:
        lines = [
            f"| {_cell(_code(name))} | {_cell(_value(value))} |" for name, value in record.settings.items()
        ]
        paragraphs.append("\n".join(["| setting | value |", "| --- | --- |", *lines]))
    if record.seeds:
        paragraphs.append(
            "Seeds: " + ", ".join(f"{name} {seed}" for name, seed in record.seeds.items()) + "."
        )
    if record.made_with:
        paragraphs.append(
            "Made with " + ", ".join(f"{name} {version}" for name, version in record.made_with.items()) + "."
        )
    return paragraphs


def _measured(record: Card) -> str:
    if not record.measured:
        return "Nothing was measured."
    rows = ["| what | on | value |", "| --- | --- | --- |"]
    for figure in record.measured:
        interval = "" if figure.interval is None else f" [{figure.interval[0]:.4g}, {figure.interval[1]:.4g}]"
        rows.append(f"| {_cell(figure.what)} | {_cell(figure.on)} | {figure.value:.4g}{interval} |")
    note = "\n\nIn brackets: 95 % intervals." if any(f.interval is not None for f in record.measured) else ""
    return "\n".join(rows) + note


def _licence(record: Card) -> str:
    if record.licence is not None:
        return f"{_code(record.licence)}. The base and the data have licences of their own."
    return (
        "Not stated here: what this checkpoint may be used for depends on the licences of its base and of its data. Look at both "
        "before publishing it, and put `license:` into the head of this file."
    )


def _fenced(text: str, what: str) -> str:
    fence = "`" * (3 + max((len(run) for run in re.findall("`+", text) if len(run) >= 3), default=0))
    return f"The text, {what} (each further step follows in the same way), read at the last token of what stands after STEP:\n\n{fence}text\n{text}\n{fence}"


def _shown(text: str) -> str:
    """White space made visible."""
    return text.replace("\n", "\\n")


def _code(text: str) -> str:
    """Inline code, whatever backticks are in it."""
    runs = {len(run) for run in re.findall("`+", text)}
    fence = "`" * next(n for n in range(1, len(runs) + 2) if n not in runs)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
