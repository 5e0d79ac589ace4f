"""Training-free scores: values of tokens by hand, and a tiny policy against plain torch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from stepmark.models.confidence import ConfidencePRM, step_confidences, token_values
from stepmark.models.encoding import Encoder
from stepmark.models.engine import Engine
from stepmark.models.prm import Ledger
from stepmark.models.spec import ConfidenceHead, Readout, ScoringSpec, TextLayout
from stepmark.records import Problem, Solution, Step
from test_engine import alone, tiny
from tiny_language_model import tiny_tokenizer


def test_values_of_tokens_by_hand():
    p = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]], dtype=torch.float64)
    table, which, ids = p.log(), np.array([0, 0, 1]), np.array([0, 1, 0])
    assert token_values("logprob", table, which, ids).tolist() == pytest.approx(
        [math.log(0.5), math.log(0.25), 0]
    )
    entropy = 0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25)
    assert token_values("entropy", table, which, ids).tolist() == pytest.approx([entropy, entropy, 0])
    kl = sum(1 / 3 * math.log((1 / 3) / q) for q in (0.5, 0.25, 0.25))
    assert token_values("self-certainty", table[:1], which[:2], ids[:2]).tolist() == pytest.approx([kl, kl])
    top = -(math.log(0.5) + 2 * math.log(0.25)) / 3  # three tokens, all among the likeliest 20
    assert token_values("top", table[:1], which[:2], ids[:2]).tolist() == pytest.approx([top, top])


def test_scores_of_steps_by_hand():
    values, ends = np.array([4.0, 2.0, 0.0, 6.0]), [0, 1, 4]
    assert step_confidences(values, ends, ConfidenceHead(measure="top")) == [4, 3]
    assert step_confidences(values, ends, ConfidenceHead(measure="top", per_step=True)) == [4, 8 / 3]
    assert step_confidences(values, ends, ConfidenceHead(measure="top", window=2)) == [4, 1]  # 3, 1, 3
    assert step_confidences(values, ends, ConfidenceHead(measure="top", window=9)) == [4, 3]


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("measure", ["logprob", "entropy", "self-certainty", "top"])
def test_a_policy_grades_what_it_wrote_and_no_tool(measure, per_step):
    tokenizer = tiny_tokenizer()
    model = tiny(vocabulary=len(tokenizer), seed=0)
    output = torch.randn(len(tokenizer), 32, generator=torch.Generator().manual_seed(2)) / 4
    layout = TextLayout(opening="{problem}\n", mark="\n")
    head = ConfidenceHead(measure=measure, per_step=per_step)
    spec = ScoringSpec(
        family="own", summary="", source="", layout=layout, readout=Readout(head=head, activation="identity"),
        score_kind="unbounded", aggregate="last",
    )  # fmt: skip
    prm = ConfidencePRM(
        name="tiny", spec=spec, encoder=Encoder(tokenizer, layout, max_tokens=None), identity=lambda: "tiny#1",
        models=[(Engine(model, device="cpu", token_budget=64, ledger=Ledger()), output)],
    )  # fmt: skip
    steps = (Step(text="the sum is 5", observation="\n\nTool:\nno, it is wrong"), Step(text="it is correct"))
    text = "which?\nthe sum is 5\n"
    begin, text = len(text), text + "Tool:\nno, it is wrong\n\n"
    spans = [(7, begin), (len(text), len(text) + len("it is correct\n"))]
    text += "it is correct\n"
    out = tokenizer(text, return_offsets_mapping=True)
    p = torch.softmax((alone(model, out["input_ids"]) @ output.T).double(), -1)
    values: list[list[float]] = [[], []]
    for at in range(1, len(out["input_ids"])):
        here, token = p[at - 1], out["input_ids"][at]
        value = {
            "logprob": here[token].log(),
            "entropy": (here * here.log()).sum(),
            "self-certainty": -(here * len(here)).log().mean(),
            "top": -here.log().sort().values[-20:].mean(),
        }[measure]
        for own, (low, high) in zip(values, spans, strict=True):
            if low <= out["offset_mapping"][at][0] < high:
                own.append(float(value))
    wanted = [np.mean(values[0]), np.mean(values[1] if per_step else values[0] + values[1])]
    solution = Solution(problem=Problem(text="which?"), steps=steps)
    (result,) = prm.score_many([solution])
    assert result.scores == pytest.approx(wanted, abs=1e-4)
    prefixes = [replace(solution, steps=steps[: end + 1]) for end in range(len(steps))]
    session = prm.open_session()
    replies = [reply for prefix in prefixes for reply in session.score_last([prefix])]
    assert [reply.score for reply in replies] == pytest.approx(wanted, abs=1e-4)
