"""Model cards: only what is in the record, front matter that the hub reads, commands that say what they must."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st

from stepmark.models.families import FAMILIES
from stepmark.models.spec import ChatLayout, DialogueLayout, LinearHead, PieceLayout, Readout, VocabHead
from stepmark.training.card import Card, Data, Figure, card, serve_command, snippet, write_card
from stepmark.training.checkpoint import Written

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
FULL = Card(
    title="my-prm",
    base="HuggingFaceTB/SmolLM2-135M-Instruct",
    written=WRITTEN,
    objective="hard: binary cross-entropy of one logit",
    data=(
        Data(
            name="prm800k.jsonl",
            rows=12_345,
            kept=12_000,
            dropped={"after an error": 300, "longer than 512 tokens": 45},
            note="people, MIT",
        ),
    ),
    split="6% of the problems were held out, whole.",
    settings={"learning_rate": 4e-4, "rank": 16},
    seeds={"order": 3},
    measured=(
        Figure(what="AUC of step scores", on="412 steps of 57 held-out problems", value=0.7654),
        Figure(what="first-error F1", on="57 solutions", value=0.4, interval=(0.31, 0.49)),
    ),
    notes=("Trained in an hour.",),
    licence="apache-2.0",
    made_with={"stepmark": "0.1.0"},
)
BARE = Card(title="t", base="here/it/is", written=WRITTEN, objective="hard", data=())


def test_what_is_in_the_record_is_said():
    text = card(FULL)
    for said in (
        "| prm800k.jsonl (people, MIT) | 12,345 | 12,000 | 300 after an error; 45 longer than 512 tokens |",
        "6% of the problems were held out, whole.",
        "| `learning_rate` | 0.0004 |",
        "Seeds: order 3.",
        "| AUC of step scores | 412 steps of 57 held-out problems | 0.7654 |",
        "| first-error F1 | 57 solutions | 0.4 [0.31, 0.49] |",
        "In brackets: 95 % intervals.",
        "Trained in an hour.",
        "Made with stepmark 0.1.0.",
        "`apache-2.0`. The base and the data have licences of their own.",
        "sigmoid(1.25 × logit - 0.5)",
        "`<extra_0>`",
        "A step under 0.5 is taken for an error. One number of a whole solution: `min` over its steps.",
        "torch.sigmoid(1.25 * logits[:, 0] - 0.5)",
    ):
        assert said in text, said
    assert text.index("## Data") < text.index("## Measured") < text.index("## Licence")


def test_what_is_not_known_is_not_said():
    text = card(BARE)
    assert "## Measured\n\nNothing was measured." in text
    assert "## Data\n\nNot stated." in text
    assert "Seeds" not in text
    assert "Made with" not in text
    assert "interval" not in text
    assert "depends on the licences of its base and of its data" in text
    assert "license:" in text.split("## Licence")[1]
    # Its only numbers are those of the spec and of the example.
    body = text.split("---", 2)[2]
    numbers = set(re.findall(r"(?<![\w.-])\d+(?:\.\d+)?", body.split("## How steps are marked")[1]))
    assert numbers == {"0.5", "1.25"}


@pytest.mark.parametrize(
    ("record", "front"),
    [
        (
            FULL,
            {
                "library_name": "transformers",
                "license": "apache-2.0",
                "base_model": "HuggingFaceTB/SmolLM2-135M-Instruct",
                "base_model_relation": "finetune",
                "pipeline_tag": "token-classification",
            },
        ),
        # A folder's name is nothing that the hub could link to.
        (BARE, {"library_name": "transformers", "pipeline_tag": "token-classification"}),
        (
            replace(FULL, written=replace(WRITTEN, layout="adapter", tag=None), licence=None),
            {
                "library_name": "peft",
                "base_model": "HuggingFaceTB/SmolLM2-135M-Instruct",
                "base_model_relation": "adapter",
            },
        ),
        (
            replace(BARE, written=replace(WRITTEN, layout="causal-lm", spec=None, tag=None)),
            {"library_name": "transformers", "pipeline_tag": "text-generation"},
        ),
    ],
    ids=["whole", "folder", "adapter", "language model"],
)
def test_the_hub_reads_the_front_matter(record, front):
    data = ModelCard(card(record)).data.to_dict()
    tags = data.pop("tags")
    assert {"stepmark", "process-reward-model"} <= set(tags)
    assert data == front


@given(
    licence=st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), min_size=1),
    owner=st.from_regex(r"[A-Za-z0-9_]{1,8}", fullmatch=True),
)
def test_front_matter_holds_any_text(licence, owner):
    data = ModelCard(card(replace(FULL, licence=licence, base=f"{owner}/no.1-x"))).data.to_dict()
    assert data["license"] == licence
    assert data["base_model"] == f"{owner}/no.1-x"


def test_texts_do_not_break_tables_and_fences():
    text = card(
        replace(
            FULL,
            data=(Data(name="a|b\nc", rows=1, kept=1),),
            settings={"mark": "`x`"},
            written=replace(
                WRITTEN,
                spec=replace(
                    FAMILIES["versaprm"],
                    layout=replace(FAMILIES["versaprm"].layout, opening="```\n{problem}"),
                ),
            ),
        )
    )
    assert "| a\\|b c | 1 | 1 |  |" in text
    assert "````text\n```\n{problem}STEP" in text


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_way_to_read_a_checkpoint_has_words(family):
    spec = FAMILIES[family]
    layout = "causal-lm" if isinstance(spec.readout.head, VocabHead) else "adapter"
    text = card(replace(BARE, written=replace(WRITTEN, layout=layout, spec=spec, tag=None)))
    assert "## How steps are marked" in text
    assert f"`{spec.aggregate}` over its steps" in text
    if spec.threshold is None:
        assert "No threshold is set." in text
    assert "Calibrated" not in text
    words = {ChatLayout: "chat template", DialogueLayout: "user turn", PieceLayout: "tokenised alone"}
    assert words.get(type(spec.layout), "STEP") in text


# Serving


@pytest.mark.parametrize(
    ("layout", "tag", "pooler"),
    [
        (
            "token-classification",
            17,
            {"task": "token_classify", "tok_pooling_type": "STEP", "step_tag_id": 17},
        ),
        ("token-classification", None, {"task": "token_classify", "tok_pooling_type": "ALL"}),
        ("qwen2-prm", 151651, {"task": "token_classify", "tok_pooling_type": "STEP", "step_tag_id": 151651}),
    ],
)
def test_the_command_that_serves_a_checkpoint(layout, tag, pooler):
    written = replace(WRITTEN, layout=layout, tag=tag)
    command = serve_command(written)
    words = shlex.split(command)
    assert words[:5] == ["vllm", "serve", "FOLDER", "--runner", "pooling"]
    assert words[5] == "--pooler-config"
    assert json.loads(words[6]) == pooler
    text = card(replace(FULL, written=written))
    assert (
        f"$ {command}\n$ stepmark grade solutions.jsonl --prm http://127.0.0.1:8000 --tokenizer FOLDER"
        in text
    )


@pytest.mark.parametrize("layout", ["causal-lm", "adapter"])
def test_what_pooling_cannot_serve_has_no_command(layout):
    written = replace(WRITTEN, layout=layout, tag=None)
    assert serve_command(written) is None
    assert snippet(written) is None
    assert "vllm serve" not in card(replace(FULL, written=written))


def test_a_card_says_what_stands_in_the_folder_now(tmp_path):
    """A calibration that came after writing."""
    later = replace(SPEC, readout=replace(SPEC.readout, scale=3.5))
    (tmp_path / "stepmark.json").write_text(json.dumps(asdict(later)))
    path = write_card(replace(FULL, written=replace(WRITTEN, folder=tmp_path)))
    assert path == tmp_path / "README.md"
    assert "sigmoid(3.5 × logit - 0.5)" in path.read_text(encoding="utf-8")
