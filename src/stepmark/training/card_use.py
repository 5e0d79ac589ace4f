"""How a written checkpoint is used: by stepmark, by transformers alone, by vLLM. The tests run what stands here."""

from __future__ import annotations

import json

from stepmark.models.spec import MlpHead, ScoringSpec
from stepmark.training.written import Written

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
