"""Heads and readouts against numbers worked by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from stepmark.errors import CheckpointError
from stepmark.models.checkpoint import Tensors
from stepmark.models.heads import build_head, output_rows, step_scores
from stepmark.models.spec import EnsembleHead, LinearHead, LogRatioHead, MlpHead, Readout, VocabHead
from tiny_language_model import tiny_tokenizer

torch.set_num_threads(1)

THREE = ("negative", "neutral", "positive")
LN2, LN3 = math.log(2), math.log(3)


def readout(activation, **more):
    return Readout(head=LinearHead(), activation=activation, **more)


def scored(activation, logits, neutral="positive", **more):
    return step_scores(readout(activation, **more), torch.tensor(logits), neutral)


def test_softmax_of_two_classes():
    # e^(ln 3) : e^0 = 3 : 1.
    assert scored("softmax", [[0.0, LN3], [LN3, 0.0]], good=1) == (pytest.approx([0.75, 0.25]), None)
    assert scored("softmax", [[0.0, LN3]], good=0) == (pytest.approx([0.25]), None)
    assert scored("softmax", [[7.0, 7.0]], good=1) == ([0.5], None)
    assert scored("softmax", [[-500.0, 500.0]], good=1) == ([1.0], None)


def test_margin_is_good_minus_bad():
    assert scored("margin", [[0.0, LN3], [LN3, 0.0], [2.0, 2.0]], good=1) == (
        pytest.approx([0.5, -0.5, 0.0]),
        None,
    )
    assert scored("margin", [[0.0, LN3]], good=0) == (pytest.approx([-0.5]), None)


def test_sigmoid_of_one_logit():
    # 1 / (1 + e^-ln 3) = 3 / 4.
    assert scored("sigmoid", [[0.0], [LN3], [-LN3]]) == (pytest.approx([0.5, 0.75, 0.25]), None)


def test_platt_scale_and_shift():
    # 2 * ln 3 - ln 3 = ln 3, so 3 / 4; and 2 * 0 - ln 3 gives 1 / 4.
    assert scored("sigmoid", [[LN3], [0.0]], scale=2.0, shift=-LN3) == (pytest.approx([0.75, 0.25]), None)
    # A shift alone, and a scale that turns the sign around.
    assert scored("sigmoid", [[0.0]], shift=LN3) == (pytest.approx([0.75]), None)
    assert scored("sigmoid", [[LN3]], scale=-1.0) == (pytest.approx([0.25]), None)


def test_sigmoid_mean_is_the_mean_of_the_members_probabilities():
    # Members say 3/4 and 1/2: the mean is 5/8, not the sigmoid of the mean logit.
    assert scored("sigmoid-mean", [[LN3, 0.0]]) == (pytest.approx([0.625]), None)


@pytest.mark.parametrize(("neutral", "score"), [("positive", 0.75), ("negative", 0.25)])
def test_three_classes(neutral, score):
    """e^0 : e^ln 2 : e^0, that is 1/4, 1/2, 1/4 for negative, neutral, positive."""
    three = readout("softmax", good=2, neutral=1, class_names=THREE)
    scores, classes = step_scores(three, torch.tensor([[0.0, LN2, 0.0]]), neutral)
    assert scores == pytest.approx([score])
    assert classes == [pytest.approx((0.25, 0.5, 0.25))]


@pytest.mark.parametrize(
    ("activation", "more", "right"),
    [
        ("softmax", {"good": 1}, 2),
        ("margin", {"good": 1}, 2),
        ("sigmoid", {}, 1),
        ("identity", {}, 1),
        ("softmax", {"good": 2, "neutral": 1}, 3),
    ],
)
def test_another_number_of_classes_is_an_error(activation, more, right):
    for found in {1, 2, 3, 5} - {right}:
        with pytest.raises(
            CheckpointError, match=f"head has {right} class(es)?, the checkpoint's has {found}"
        ):
            step_scores(readout(activation, **more), torch.zeros(4, found), "positive")
    assert len(step_scores(readout(activation, **more), torch.zeros(4, right), "positive")[0]) == 4


@pytest.mark.parametrize("activation", ["softmax", "margin", "sigmoid", "sigmoid-mean", "identity"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_never_a_score(activation, bad):
    classes = 2 if activation in ("softmax", "margin") else 1
    logits = torch.zeros(3, classes)
    logits[1, 0] = bad
    with pytest.raises(CheckpointError, match="NaN or an infinity"):
        step_scores(readout(activation, good=classes - 1), logits, "positive")


# Building heads from tensors. Hidden size 2, and rows (1, 2) and (-3, 1).

ROWS = torch.tensor([[1.0, 2.0], [-3.0, 1.0]])


@pytest.fixture
def build(tmp_path):
    def build(head, tensors, extra=None, *, tie=False, embedding=None, tokenizer=None):
        save_file({"unused": torch.zeros(1), **tensors}, tmp_path / "model.safetensors")
        backbone = SimpleNamespace(
            config=SimpleNamespace(hidden_size=2, tie_word_embeddings=tie),
            get_input_embeddings=lambda: torch.nn.Embedding.from_pretrained(embedding),
        )
        function = build_head(head, Tensors(tmp_path, extra), backbone, tokenizer, "cpu")
        return function(ROWS).tolist()

    return build


def test_linear_head(build):
    weight = torch.tensor([[1.0, 0.0], [1.0, -1.0]])
    plain = LinearHead(bias=None)
    assert build(plain, {"score.weight": weight}) == [[1.0, -1.0], [-3.0, -4.0]]
    with_bias = {"score.weight": weight, "score.bias": torch.tensor([10.0, 0.0])}
    assert build(LinearHead(), with_bias) == [[11.0, -1.0], [7.0, -4.0]]
    # Stored in half precision, computed in float32.
    assert build(plain, {"score.weight": weight.bfloat16()}) == [[1.0, -1.0], [-3.0, -4.0]]


def test_mlp_head(build):
    """relu(x1 + 1, x2 - x1) = (2, 1) and (0, 4); then (a + b, 2a - b + 0.5)."""
    tensors = {
        "score.0.weight": torch.tensor([[1.0, 0.0], [-1.0, 1.0]]),
        "score.0.bias": torch.tensor([1.0, 0.0]),
        "score.2.weight": torch.tensor([[1.0, 1.0], [2.0, -1.0]]),
        "score.2.bias": torch.tensor([0.0, 0.5]),
    }
    assert build(MlpHead(), tensors) == [[3.0, 3.5], [4.0, -3.5]]


def test_ensemble_head(build):
    """Two members, weights [members, in, out]: not symmetric, so a transposed reading gives other numbers.

    Member 1: relu(x @ [[1, 0], [2, 1]]) = relu(x1 + 2 x2, x2) = (5, 2) and (0, 1); the second layer swaps;
    out: 3 a - b + 1. Member 2: everything 0 and the last bias -7.
    """
    tensors = {
        "score.model.nn1.weight": torch.tensor([[[1.0, 0.0], [2.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]]),
        "score.model.nn1.bias": torch.zeros(2, 2),
        "score.model.nn2.weight": torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]),
        "score.model.nn2.bias": torch.zeros(2, 2),
        "score.model.nn_out.weight": torch.tensor([[[3.0], [-1.0]], [[0.0], [0.0]]]),
        "score.model.nn_out.bias": torch.tensor([[1.0], [-7.0]]),
    }
    # Swapped: (2, 5) -> 6 - 5 + 1; (1, 0) -> 3 - 0 + 1.
    assert build(EnsembleHead(), tensors) == [[2.0, -7.0], [4.0, -7.0]]


def vocabulary(tokenizer, **rows):
    """A language-model head that is 0 but for some tokens."""
    weight = torch.zeros(len(tokenizer), 2)
    for token, row in rows.values():
        weight[tokenizer.convert_tokens_to_ids(token)] = torch.tensor(row)
    return weight


def test_vocabulary_head_reads_two_rows_in_the_order_of_the_candidates(build):
    tokenizer = tiny_tokenizer()
    weight = vocabulary(tokenizer, plus=("+", [1.0, 1.0]), minus=("-", [0.0, 2.0]))
    head = VocabHead(candidates=("+", "-"))
    assert build(head, {"lm_head.weight": weight}, tokenizer=tokenizer) == [[3.0, 4.0], [-2.0, 2.0]]
    head = VocabHead(candidates=("-", "+"))
    assert build(head, {"lm_head.weight": weight}, tokenizer=tokenizer) == [[4.0, 3.0], [2.0, -2.0]]
    # Tied to the embedding; and the head's own rows come before a tie.
    tied = {"tie": True, "embedding": weight, "tokenizer": tokenizer}
    assert build(head, {}, **tied) == [[4.0, 3.0], [2.0, -2.0]]
    assert build(head, {"lm_head.weight": weight * 2}, **tied) == [[8.0, 6.0], [4.0, -4.0]]


def test_vocabulary_head_needs_verdicts_that_the_tokenizer_tells_apart(build):
    tokenizer = tiny_tokenizer()
    weight = {"lm_head.weight": torch.zeros(len(tokenizer), 2)}
    with pytest.raises(CheckpointError, match="end in the same token"):
        build(VocabHead(candidates=("x+", "y+")), weight, tokenizer=tokenizer)
    with pytest.raises(CheckpointError, match="does not know the verdict ''"):
        build(VocabHead(candidates=("+", "")), weight, tokenizer=tokenizer)
    with pytest.raises(CheckpointError, match=r"lm_head.weight: expected the shape \(None, 2\).*, 3\)"):
        build(VocabHead(candidates=("+", "-")), {"lm_head.weight": torch.zeros(9, 3)}, tokenizer=tokenizer)
    with pytest.raises(CheckpointError, match=r"lm_head.weight only 3 rows"):
        build(VocabHead(candidates=("+", "-")), {"lm_head.weight": torch.zeros(3, 2)}, tokenizer=tokenizer)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        build(VocabHead(candidates=("+", "-")), {}, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("head", "tensors", "message"),
    [
        (
            LinearHead(),
            {"score.weight": torch.zeros(1, 3)},
            r"score.weight: expected the shape \(None, 2\).*\(1, 3\)",
        ),
        (LinearHead(), {"score.weight": torch.zeros(2)}, r"expected the shape \(None, 2\).*\(2,\)"),
        (LinearHead(), {"v_head.weight": torch.zeros(1, 2)}, r"no tensor 'score.weight'.*v_head.weight"),
        (
            MlpHead(),
            {
                "score.0.weight": torch.zeros(4, 2),
                "score.0.bias": torch.zeros(4),
                "score.2.weight": torch.zeros(3, 4),
                "score.2.bias": torch.zeros(3),
            },
            r"score.2.weight: expected the shape \(2, 4\).*\(3, 4\)",
        ),
        (
            LinearHead(),
            {"score.weight": torch.zeros(2, 2), "score.bias": torch.zeros(1)},
            r"score.bias: expected the shape \(2,\).*\(1,\)",
        ),
        (
            EnsembleHead(),
            {"score.model.nn1.weight": torch.zeros(2, 5, 2), "score.model.nn1.bias": torch.zeros(2, 2)},
            r"nn1.weight: expected the shape \(None, 2, None\).*\(2, 5, 2\)",
        ),
        (LogRatioHead(beta=1.0), {}, "two language models"),
    ],
)
def test_heads_that_do_not_fit_are_refused(build, head, tensors, message):
    with pytest.raises(CheckpointError, match=message):
        build(head, tensors)


def test_output_rows_are_not_cast(tmp_path):
    """The language-model head of a 7B model in bfloat16 stays in bfloat16."""
    save_file({"lm_head.weight": torch.ones(3, 2, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    backbone = SimpleNamespace(config=SimpleNamespace(tie_word_embeddings=False))
    assert output_rows(Tensors(tmp_path), backbone).dtype == torch.bfloat16
