"""Model cards: only what was done and measured, front matter that the hub reads, commands that say what they must."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

import stepmark
from stepmark.models.families import FAMILIES
from stepmark.models.spec import ChatLayout, LinearHead, Readout, VocabHead
from stepmark.training.report import CardFacts, prm_card, serve_command, snippet
from stepmark.training.saving import Written

SPEC = replace(
    FAMILIES["qwen-prm"],
    family="stepmark",
    layout=ChatLayout(system=None, mark="<extra_0>"),
    readout=Readout(head=LinearHead(), activation="sigmoid", scale=1.25, shift=-0.5),
    aggregate="min",
)
WRITTEN = Written(
    folder=Path("my-prm"),
    layout="token-classification",
    architecture="LlamaForTokenClassification",
    spec=SPEC,
    tag=17,
)
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"


def card(written=WRITTEN, base=HUB, settings=None, measured=None, data="Rows."):
    facts = CardFacts(title="my-prm", base=base, settings=settings or {"learning_rate": 4e-4}, seed=3)
    return prm_card(
        facts, written, objective="hard", base_fingerprint="abc", data=data, measured=measured or {}
    )


def test_what_is_known_is_said_and_nothing_else():
    text = card(measured={"AUC of step scores": "0.7654"})
    for part in (
        "| `learning_rate` | 0.0004 |",
        "Seed: 3.",
        "| AUC of step scores | 0.7654 |",
        "sigmoid(1.25 × logit -0.5)",
        '"mark": "<extra_0>"',
        "A step under 0.5 is taken for an error. One number of a whole solution: `min`",
        "torch.sigmoid(1.25 * logits[:, 0] -0.5)",
        "depends on the licences of its base and of its data",
    ):
        assert part in text, part
    assert "## Measured\n\nNothing was measured." in card()


@pytest.mark.parametrize(
    ("written", "base", "front"),
    [
        (
            WRITTEN,
            HUB,
            {
                "library_name": "transformers",
                "base_model": HUB,
                "base_model_relation": "finetune",
                "pipeline_tag": "token-classification",
            },
        ),
        # A folder's name is nothing that the hub could link to.
        (
            replace(WRITTEN, layout="causal-lm", spec=None, tag=None),
            "here/it/is",
            {"library_name": "transformers", "pipeline_tag": "text-generation"},
        ),
        (
            replace(WRITTEN, layout="adapter", tag=None),
            HUB,
            {"library_name": "peft", "base_model": HUB, "base_model_relation": "adapter"},
        ),
    ],
)
def test_the_hub_reads_the_front_matter(written, base, front):
    data = ModelCard(card(written, base)).data.to_dict()
    assert {"stepmark", "process-reward-model"} <= set(data.pop("tags"))
    assert data == front


def test_texts_do_not_break_tables_and_fences():
    versaprm = FAMILIES["versaprm"]
    spec = replace(versaprm, layout=replace(versaprm.layout, opening="```\n{problem}"))
    text = card(replace(WRITTEN, spec=spec), settings={"mark": "`x`|y\nz"})
    assert "| `mark` | `x`\\|y z |" in text
    assert "````json\n{" in text


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_way_to_read_a_checkpoint_has_words(family):
    spec = FAMILIES[family]
    layout = "causal-lm" if isinstance(spec.readout.head, VocabHead) else "adapter"
    text = card(replace(WRITTEN, layout=layout, spec=spec, tag=None))
    assert f"`{spec.aggregate}` over its steps" in text
    assert ("No threshold is set." in text) == (spec.threshold is None)
    assert "Calibrated" not in text
    assert json.dumps(asdict(spec.layout), indent=2, ensure_ascii=False) in text


@pytest.mark.parametrize(("tag", "pooling"), [(17, "STEP"), (None, "ALL")])
def test_the_command_that_serves_a_checkpoint(tag, pooling):
    written = replace(WRITTEN, tag=tag)
    command = serve_command(written)
    words = shlex.split(command)
    assert words[:6] == ["vllm", "serve", "FOLDER", "--runner", "pooling", "--pooler-config"]
    expected = {"task": "token_classify", "tok_pooling_type": pooling}
    assert json.loads(words[6]) == expected | ({} if tag is None else {"step_tag_id": tag})
    assert f"$ {command}\n" in card(written)


@pytest.mark.parametrize(
    ("layout", "family", "command"),
    [
        ("causal-lm", "math-shepherd", "vllm serve FOLDER --enable-prompt-tokens-details"),
        ("causal-lm", "implicit", None),
        ("adapter", "math-shepherd", None),
    ],
)
def test_language_models_are_served_where_their_verdicts_are_tokens(layout, family, command):
    written = replace(WRITTEN, layout=layout, spec=FAMILIES[family], tag=None)
    assert serve_command(written) == command
    assert snippet(written) is None
    assert ("vllm serve" in card(written)) == (command is not None)


def test_the_code_of_a_card_runs(monkeypatch):
    [code] = re.findall(r"```python\n(import stepmark\n.*?)```", card(), re.S)
    asked = []
    prm = stepmark.ScriptedPRM(lambda problem, steps: asked.append(steps[-1]) or 0.9)
    monkeypatch.setattr(stepmark, "load_prm", lambda folder: prm)
    exec(code, {})  # noqa: S102 - our own text
    assert asked == [
        "First, we find the total number of rolls: 12 * 8 = 96 rolls.",
        "After selling 70 rolls, 96 - 70 = 26 rolls remain.",
    ]
