"""Every family against a plain forward pass that is written out here.

The truth of each family is a function of this file: the prompt typed out, positions found by searching the ids or by
counting pieces as the authors' scripts do, transformers' own class with ordinary attention, softmax by hand. The
only thing shared with the code under test is the tokenizer's vocabulary and the weights.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import random
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from safetensors.torch import save_file

from stepmark import load_prm
from stepmark.data.steps.splitting import split
from stepmark.errors import CheckpointError, MarkerInTextError
from stepmark.models.families import FAMILIES
from stepmark.models.spec import ChatLayout, PieceLayout, TextLayout
from stepmark.records import Problem, Solution

PENS = "A box holds 12 pens. Ann buys 3 boxes and gives 6 pens away. How many are left?"
SOLUTIONS = [
    (PENS, ["She has 12 * 3 = 36 pens.", "36 - 6 = 30, so 30 are left.", "The answer is: 30"]),
    (
        "Find x with 2x + 5 = 17.",
        ["Take 5 from both sides:\n2x = 12", "Then x = 6."],
    ),
    (
        "Où est l'école? It is 240 km away, and the train runs 60 km/h — how long?",
        [
            "Time is distance ÷ speed",
            "240/60 = 4 h\n\nwith a blank line",
            "Wait: 240/60 is 5",
            "The answer is 5 🚂",
            "Yes",
        ],
    ),
    (
        f" {PENS}\n ",
        ["  - She has 12 * 3 = 36 pens. ", "\t36 - 6 = 30, so 30 are left.\n", "\n The answer is: 30  "],
    ),
]
"""The last has white space at the ends of its texts: some authors' code keeps it, some takes it off."""
CANDIDATES = [
    ["She has 12 * 3 = 36 pens.", "36 - 6 = 30, so 30 are left.", "The answer is: 30"],
    ["She has 12 + 3 = 15 pens.", "15 - 6 = 9.", "The answer is: 9"],
    ["She has 12 * 3 = 36 pens.", "36 - 6 = 30, so 30 are left.", "The answer is 31.", "No, it is: 30"],
    ["3 boxes are 36 pens, and 36 - 6 = 30"],
]

Row = tuple[list[int], list[int]]
"""Token ids, and the indices at which the steps are read."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One checkpoint and the truth about it."""

    checkpoint: str
    row: Callable
    """(tokenizer, problem, steps) -> Row"""
    read: Callable
    """(built, outputs [rows, classes] of the network at the positions) -> scores"""
    name: str
    """The family that stepmark should take it for."""
    told: bool = True
    """The family is told without a flag."""
    settings: dict = field(default_factory=dict)
    tolerance: float = 1e-5


# ---- prompts and positions, typed out ------------------------------------------------------------------------


def chatml(system: str, problem: str, answer: str) -> str:
    return (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{problem}<|im_end|>\n"
        f"<|im_start|>assistant\n{answer}<|im_end|>\n"
    )


def plain(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def where(ids: list[int], token: int) -> list[int]:
    return [i for i, found in enumerate(ids) if found == token]


def extra_zero(system: str, *, strip: bool = False) -> Callable:
    """The cards of Qwen and ReasonFlux take the steps as they are; ActPRM's ProcessBench script strips each."""

    def row(tokenizer, problem, steps) -> Row:
        steps = [step.strip() for step in steps] if strip else steps
        ids = plain(tokenizer, chatml(system, problem, "<extra_0>".join(steps) + "<extra_0>"))
        return ids, where(ids, tokenizer.get_vocab()["<extra_0>"])

    return row


def skywork_row(tokenizer, problem, steps) -> Row:
    """The loop of SkyworkAI's io_utils.py over the lines of the response; of each step the last line counts."""
    ids = tokenizer.encode(tokenizer.bos_token + problem + "\n")
    newline = tokenizer.encode("\n")[-1]
    line_ends = []
    for line in "\n".join(steps).split("\n"):
        if line != "":
            ids += tokenizer.encode(line)
        ids.append(newline)
        line_ends.append(len(ids) - 1)
    last_lines, lines = [], 0
    for step in steps:
        lines += step.count("\n") + 1
        last_lines.append(lines - 1)
    return ids, [line_ends[line] for line in last_lines]


def shepherd_row(tokenizer, problem, steps) -> Row:
    """The card's text, in which steps have no white space at their ends: after two spaces "ки" is another token than the one that
    the card looks for."""
    response = "\n".join(f"Step {i}: {step.strip()} ки" for i, step in enumerate(steps, 1))
    ids = tokenizer.encode(f"{problem} {response}")
    assert ids[0] == tokenizer.bos_token_id
    return ids, where(ids, tokenizer.get_vocab()["▁ки"])


HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"


def rlhflow_row(tokenizer, problem, steps) -> Row:
    """The whole dialogue at once; the verdict is foretold at the token before each '+'. prm_evaluate.py strips the steps, and the chat
    template every turn."""
    text = "<|begin_of_text|>" + HEADER.format("system") + "Today is a day.<|eot_id|>"
    for i, step in enumerate(steps):
        user = f"{problem} {step.strip()}" if i == 0 else step
        text += (
            HEADER.format("user") + user.strip() + "<|eot_id|>" + HEADER.format("assistant") + "+<|eot_id|>"
        )
    ids = plain(tokenizer, text)
    vocabulary = tokenizer.get_vocab()
    answer = [
        vocabulary["<|start_header_id|>"],
        *plain(tokenizer, "assistant"),
        vocabulary["<|end_header_id|>"],
        *plain(tokenizer, "\n\n"),
        *plain(tokenizer, "+"),
        vocabulary["<|eot_id|>"],
    ]
    n = len(answer)
    starts = [i for i in range(len(ids) - n + 1) if ids[i : i + n] == answer]
    return ids, [start + n - 3 for start in starts]


def versaprm_row(tokenizer, problem, steps) -> Row:
    """get_rewards_reasoning_step.py strips question and steps."""
    text = f"{problem.strip()} \n\n" + "".join(f"{step.strip()} \n\n\n\n" for step in steps)
    ids = tokenizer.encode(text)
    tag = plain(tokenizer, " \n\n\n\n")
    assert len(tag) == 1, "the mark is one token, as in the published tokenizer"
    assert ids[0] == tokenizer.bos_token_id
    return ids, where(ids, tag[0])


def pure_row(tokenizer, problem, steps) -> Row:
    """PURE's bon.py (its copy in viviable/seccodeprm, commit a7ce027) takes white space off at the end of each step."""
    return separated_row(tokenizer, problem, [step.rstrip() for step in steps])


def separated_row(tokenizer, problem, steps) -> Row:
    """TRL's tokenize_row, with the newline as step separator."""
    ids = plain(tokenizer, problem)
    if tokenizer.bos_token_id is not None:
        ids = [tokenizer.bos_token_id, *ids]
    ends = []
    for step in steps:
        ids += plain(tokenizer, step) + plain(tokenizer, "\n")
        ends.append(len(ids) - 1)
    return ids, ends


def reasoneval_text(problem: str, steps: list[str], separator: str) -> str:
    opening = f"Question:\n{problem}\nAnswer:\nLet's think step by step.\n"
    return opening + separator + "".join(step + separator for step in steps)


def reasoneval_7b_row(tokenizer, problem, steps) -> Row:
    """codes/examples.py: separators in the text, then deleted; `<s>` is the separator, so BOS goes too and comes
    back, without the positions being moved."""
    ids = tokenizer(reasoneval_text(problem, steps, "<s>"))["input_ids"]
    separators = where(ids, tokenizer.bos_token_id)
    reads = [index - 1 - before for before, index in enumerate(separators)]
    return [tokenizer.bos_token_id] + [i for i in ids if i != tokenizer.bos_token_id], reads[2:]


def reasoneval_34b_row(tokenizer, problem, steps) -> Row:
    """As the smaller, with a separator that is not BOS (here </s>): nothing but the separators goes."""
    separator = tokenizer.eos_token_id
    ids = tokenizer(reasoneval_text(problem, steps, "</s>"))["input_ids"]
    reads = [index - 1 - before for before, index in enumerate(where(ids, separator))]
    return [i for i in ids if i != separator], reads[1:]


def three_class_row(tokenizer, problem, steps) -> Row:
    problem, steps = problem.strip(), [step.strip() for step in steps]
    ids = plain(tokenizer, problem + "\n\n" + "".join(step + "\n\n" for step in steps))
    ends = [
        len(plain(tokenizer, problem + "\n\n" + "".join(s + "\n\n" for s in steps[: k + 1]))) - 1
        for k in range(len(steps))
    ]
    return ids, ends


def outcome_row(tokenizer, problem, steps) -> Row:
    ids = plain(tokenizer, chatml("You are a tiny model.", problem, "\n\n".join(steps)))
    return ids, [len(ids) - 1]


# ---- from outputs to scores, written out ---------------------------------------------------------------------


def share(a: torch.Tensor, b: torch.Tensor) -> list[float]:
    """The first of two logits, softmaxed: e^a / (e^a + e^b)."""
    return (a.double().exp() / (a.double().exp() + b.double().exp())).tolist()


def logistic(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + (-x.double()).exp())


def read_mlp(built, hidden):
    head = built.head
    middle = (hidden @ head["score.0.weight"].T + head["score.0.bias"]).clamp(min=0)
    logits = middle @ head["score.2.weight"].T + head["score.2.bias"]
    return share(logits[:, 1], logits[:, 0])


def read_value(built, hidden):
    return logistic(
        hidden @ built.head["v_head.summary.weight"][0] + built.head["v_head.summary.bias"]
    ).tolist()


def read_verdict(good: str, bad: str) -> Callable:
    def read(built, logits):
        vocabulary = built.tokenizer.get_vocab()
        return share(logits[:, vocabulary[good]], logits[:, vocabulary[bad]])

    return read


def read_second_label(built, logits):
    return share(logits[:, 1], logits[:, 0])


def read_margin(built, logits):
    return [2 * p - 1 for p in share(logits[:, 1], logits[:, 0])]


def three(logits: torch.Tensor) -> torch.Tensor:
    powers = logits.double().exp()
    return powers / powers.sum(1, keepdim=True)


def reasoneval_logits(built, hidden):
    return hidden @ built.head["score_head.weight"].T + built.head.get("score_head.bias", torch.zeros(3))


def read_validity(built, hidden):
    p = three(reasoneval_logits(built, hidden))
    return (p[:, 1] + p[:, 2]).tolist()


def rating_logits(built, logits):
    vocabulary = built.tokenizer.get_vocab()
    return logits[:, [vocabulary["-"], vocabulary["0"], vocabulary["+"]]]


def read_rating(built, logits):
    p = three(rating_logits(built, logits))
    return (p[:, 1] + p[:, 2]).tolist()


def read_members(built, hidden):
    """One member after the other: three plain layers, a sigmoid each, then their mean."""
    w = {name.removeprefix("score.model."): tensor for name, tensor in built.head.items()}
    members = []
    for e in range(w["nn1.weight"].shape[0]):
        state = (hidden @ w["nn1.weight"][e] + w["nn1.bias"][e]).clamp(min=0)
        state = (state @ w["nn2.weight"][e] + w["nn2.bias"][e]).clamp(min=0)
        members.append(logistic((state @ w["nn_out.weight"][e] + w["nn_out.bias"][e])[:, 0]))
    return torch.stack(members).mean(0).tolist()


def read_outcome(built, logits):
    return logistic(logits[:, 0]).tolist()


QWEN_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
ACTPRM_SYSTEM = "You are a helpful and harmless assistant. You should think step-by-step and put your final answer within \\boxed{}."

FORWARD = [
    Family(checkpoint="qwen-prm", name="qwen-prm", row=extra_zero(QWEN_SYSTEM), read=read_mlp),
    Family(checkpoint="qwen-prm-sharded", name="qwen-prm", row=extra_zero(QWEN_SYSTEM), read=read_mlp),
    Family(
        checkpoint="qwen-prm",
        name="reasonflux-prm",
        told=False,
        row=extra_zero("You are a tiny model."),  # the template's own
        read=read_mlp,
    ),
    Family(checkpoint="skywork", name="skywork", row=skywork_row, read=read_value),
    Family(
        checkpoint="math-shepherd",
        name="math-shepherd",
        told=False,
        row=shepherd_row,
        read=read_verdict("▁+", "▁-"),
    ),
    Family(checkpoint="rlhflow", name="rlhflow", told=False, row=rlhflow_row, read=read_verdict("+", "-")),
    Family(
        checkpoint="rlhflow-tied", name="rlhflow", told=False, row=rlhflow_row, read=read_verdict("+", "-")
    ),
    Family(
        checkpoint="token-classification",
        name="token-classification",
        row=separated_row,
        read=read_second_label,
    ),
    Family(
        checkpoint="token-classification-bos",
        name="token-classification",
        row=separated_row,
        read=read_second_label,
    ),
    Family(checkpoint="token-classification", name="pure", told=False, row=pure_row, read=read_margin),
    Family(checkpoint="versaprm", name="versaprm", told=False, row=versaprm_row, read=read_verdict("+", "-")),
    Family(
        checkpoint="versaprm-adapter",
        name="versaprm",
        told=False,
        row=versaprm_row,
        read=read_verdict("+", "-"),
    ),
    Family(checkpoint="reasoneval", name="reasoneval", row=reasoneval_7b_row, read=read_validity),
    Family(checkpoint="reasoneval-34b", name="reasoneval-34b", row=reasoneval_34b_row, read=read_validity),
    Family(checkpoint="actprm", name="actprm", row=extra_zero(ACTPRM_SYSTEM, strip=True), read=read_members),
    Family(checkpoint="three-class", name="three-class", told=False, row=three_class_row, read=read_rating),
    Family(checkpoint="orm", name="orm", row=outcome_row, read=read_outcome),
]


@contextmanager
def adapted(built):
    """The network with what its LoRA adapter adds to each module's output: s B (A x)."""
    hooks = []
    for name, (down, up, scale) in built.lora.items():

        def add(module, args, output, down=down, up=up, scale=scale):
            return output + scale * ((args[0] @ down.T) @ up.T)

        hooks.append(built.network.get_submodule(name).register_forward_hook(add))
    try:
        yield built.network
    finally:
        for hook in hooks:
            hook.remove()


def outputs(built, rows: list[list[int]]) -> torch.Tensor:
    """One padded forward pass: logits or hidden states, [row, token, …]. Padded on the right, and masked."""
    longest = max(len(row) for row in rows)
    pad = built.tokenizer.pad_token_id
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    with torch.no_grad(), adapted(built) as network:
        if type(network).__name__ == "Qwen2ForSequenceClassification":
            # Its own forward picks one token a row; what it picks from is this.
            return network.score(network.model(ids, attention_mask=mask).last_hidden_state)
        result = network(input_ids=ids, attention_mask=mask)
    return result.last_hidden_state if "last_hidden_state" in result else result.logits


def forward_truth(family: Family, built, solutions) -> list[list[float]]:
    rows = [family.row(built.tokenizer, problem, steps) for problem, steps in solutions]
    out = outputs(built, [ids for ids, _ in rows])
    return [family.read(built, out[i, reads]) for i, (_, reads) in enumerate(rows)]


def implicit_truth(built, solutions, *, per_step: bool = False, beta: float = 0.001) -> list[list[float]]:
    """Log-ratios of all tokens of the answer up to the blank line after each step and, for the last step, to the end of the turn.

    For the last step that is what the authors' script sums (its index is that of the last token of the templated conversation,
    stripped). For the others it reads one or two tokens further, into the next step; stepmark does not, so that no score sees ahead.
    """
    rows, borders = [], []
    for problem, steps in solutions:
        frame = chatml("You are a tiny model.", problem, "").removesuffix("<|im_end|>\n")
        numbered = [f"Step {i}: {step}" for i, step in enumerate(steps, 1)]
        texts = [frame + "".join(f"{step}\n\n" for step in numbered[:k]) for k in range(len(steps))]
        texts.append(chatml("You are a tiny model.", problem, "\n\n".join(numbered)).strip())
        rows.append(plain(built.tokenizer, texts[-1]))
        borders.append([len(plain(built.tokenizer, text)) for text in texts])
    ours, theirs = outputs(built, rows), outputs(built.reference, rows)
    truth = []
    for i, (ids, ends) in enumerate(zip(rows, borders, strict=True)):
        ratio = [0.0]
        for t in range(1, len(ids)):
            log_p, log_q = (out[i, t - 1].double().log_softmax(0)[ids[t]].item() for out in (ours, theirs))
            ratio.append(log_p - log_q)
        parts = [beta * sum(ratio[a:b]) for a, b in itertools.pairwise(ends)]
        truth.append(parts if per_step else [sum(parts[: k + 1]) for k in range(len(parts))])
    return truth


IMPLICIT = [
    Family(
        checkpoint="implicit",
        name=name,
        told=False,
        row=lambda *_: None,
        read=lambda built, solutions, per_step=per_step: implicit_truth(built, solutions, per_step=per_step),
        tolerance=1e-7,  # scores are thousandths of sums of log-ratios
    )
    for name, per_step in (("implicit", False), ("implicit-per-step", True))
]
FAMILIES_HERE = FORWARD + IMPLICIT


def truth_of(family: Family, built, solutions) -> list[list[float]]:
    if family in IMPLICIT:
        return family.read(built, solutions)
    return forward_truth(family, built, solutions)


def label(family: Family) -> str:
    return family.name if family.name == family.checkpoint else f"{family.name}: {family.checkpoint}"


@pytest.fixture(params=FAMILIES_HERE, ids=label)
def case(request, zoo):
    family = request.param
    built = zoo[family.checkpoint]
    return family, built, load(family, built)


def load(family: Family, built, **settings):
    return load_prm(
        str(built.folder),
        family=None if family.told else family.name,
        reference=str(built.reference.folder) if built.reference else None,
        dtype="float32",
        device="cpu",
        **settings,
    )


def scores_of(prm, solutions) -> list[list[float | None]]:
    return [list(r.scores) for r in prm.score_many([Solution.of(p, tuple(s)) for p, s in solutions])]


def assert_close(found, expected, tolerance, *, outcome):
    """One score a step each; of an outcome model only the last."""
    assert len(found) == len(expected)
    for scores, true in zip(found, expected, strict=True):
        earlier = scores[:-1] if outcome else []
        assert earlier == [None] * len(earlier)
        assert scores[len(earlier) :] == pytest.approx(true, abs=tolerance, rel=0)


def test_scores_spread_so_that_parity_means_something(case):
    family, built, _ = case
    problems = [*SOLUTIONS, *((PENS, steps) for steps in CANDIDATES)]
    values = sorted({round(s, 9) for row in truth_of(family, built, problems) for s in row})
    assert len(values) > 5
    if family in IMPLICIT:
        assert max(map(abs, values)) > 1000 * family.tolerance
        return
    if family.name == "pure":
        values = [(v + 1) / 2 for v in values]
    assert values[0] > 0.05
    assert values[-1] < 0.96
    assert values[-1] - values[0] > 0.2


def test_scores_are_those_of_plain_forward_passes(case):
    """One at a time, together, with shared steps, in any order and in small chunks."""
    family, built, prm = case
    outcome = family.name == "orm"
    solutions = [*((PENS, steps) for steps in CANDIDATES), *SOLUTIONS]
    expected = truth_of(family, built, solutions)
    assert_close(scores_of(prm, solutions), expected, family.tolerance, outcome=outcome)
    assert prm.ledger.tokens_computed == prm.ledger.tokens_distinct < prm.ledger.tokens_in
    alone = [prm.score(problem, steps=steps) for problem, steps in solutions]
    assert_close(alone, expected, family.tolerance, outcome=outcome)
    chunked = load(family, built, token_budget=24)
    assert_close(scores_of(chunked, solutions), expected, family.tolerance, outcome=outcome)
    for seed in range(3):
        order = random.Random(seed).sample(range(len(solutions)), len(solutions))
        after = scores_of(prm, [solutions[i] for i in order])
        before = [[score for score in alone[i] if score is not None] for i in order]
        assert_close(after, before, 2e-6, outcome=outcome)


@pytest.mark.parametrize("family", [f for f in FAMILIES_HERE if f.name != "orm"], ids=label)
def test_what_follows_never_moves_a_score(zoo, family):
    """Of every family but the outcome model, which has no score before the last step. An implicit PRM reads the last step at the end of
    the turn, as its authors do: another text than where more follows."""
    end = 1 if family in IMPLICIT else 0
    prm = load(family, zoo[family.checkpoint])
    problem, steps = SOLUTIONS[2]
    whole = prm.score(problem, steps=steps)
    for t in range(1, len(steps)):
        removed = prm.score(problem, steps=steps[:t])
        changed = prm.score(
            problem, steps=[*steps[:t], "\u0301?! 99 - something else\n\nentirely", *steps[t + 1 :]]
        )
        added = prm.score(problem, steps=[*steps[:t], "1 more", *steps[t:]])
        for other in (removed, changed, added):
            same = t - end if other is removed else t
            assert other[:same] == pytest.approx(whole[:same], abs=1e-6, rel=0)
        # The scores do depend on what they should: a test that nothing moves would pass on constants.
        assert abs(changed[t] - whole[t]) > 1e-5


THREE = {"reasoneval": reasoneval_logits, "reasoneval-34b": reasoneval_logits, "three-class": rating_logits}


@pytest.mark.parametrize("name", THREE)
def test_three_classes(zoo, name):
    family = next(f for f in FORWARD if f.name == name)
    built = zoo[family.checkpoint]
    positive, negative = (load(family, built, neutral=n) for n in ("positive", "negative"))
    rows = [family.row(built.tokenizer, problem, steps) for problem, steps in SOLUTIONS]
    out = outputs(built, [ids for ids, _ in rows])
    solutions = [Solution.of(problem, tuple(steps)) for problem, steps in SOLUTIONS]
    results = zip(positive.score_many(solutions), negative.score_many(solutions), rows, strict=True)
    for i, (with_neutral, without, (_, reads)) in enumerate(results):
        p = three(THREE[name](built, out[i, reads]))
        assert with_neutral.class_names == ("negative", "neutral", "positive")
        assert with_neutral.classes == without.classes
        assert len(with_neutral.classes) == len(with_neutral.scores)
        for k, row in enumerate(with_neutral.classes):
            assert row == pytest.approx(p[k].tolist(), abs=1e-5)
            assert sum(row) == pytest.approx(1.0, abs=1e-9)
            assert with_neutral.scores[k] == pytest.approx(row[1] + row[2], abs=1e-12)
            assert without.scores[k] == pytest.approx(row[2], abs=1e-12)


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES_HERE if f.name != "implicit-per-step"], ids=lambda f: f.name
)
def test_as_an_outcome_model_only_the_last_step_has_a_score(zoo, family):
    built = zoo[family.checkpoint]
    prm, outcome = load(family, built), load(family, built, outcome=True)
    assert outcome.default_aggregate == "last"
    for problem, steps in SOLUTIONS:
        *earlier, last = outcome.score(problem, steps=steps)
        assert earlier == [None] * (len(steps) - 1)
        assert last == pytest.approx(prm.score(problem, steps=steps)[-1], abs=1e-6, rel=0)


def test_an_implicit_prm_from_an_adapter_with_a_head(zoo, tmp_path):
    """PEFT's modules_to_save: the policy's own language-model head lies beside the adapter's matrices."""
    built = zoo["implicit"]
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    network = copy.deepcopy(built.network)
    network.lm_head.weight.mul_(1.5)
    save_file(
        {"base_model.model.lm_head.weight": network.lm_head.weight}, adapter / "adapter_model.safetensors"
    )
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(built.folder), "r": 1, "lora_alpha": 1}
    (adapter / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    prm = load_prm(
        str(adapter), family="implicit", reference=str(built.reference.folder), dtype="float32", device="cpu"
    )
    changed = dataclasses.replace(built, network=network)
    for problem, steps in SOLUTIONS:
        expected = implicit_truth(changed, [(problem, steps)])[0]
        assert prm.score(problem, steps=steps) == pytest.approx(expected, abs=1e-7, rel=0)
        assert expected != pytest.approx(implicit_truth(built, [(problem, steps)])[0], abs=1e-5)


# ---- a question as mark --------------------------------------------------------------------------------------

QUESTION = "\nIs this step right?\n"


def asked_in_a_text(tokenizer, problem, steps) -> Row:
    parts = [f"{problem}\n\n", *(step + QUESTION for step in steps)]
    ids = tokenizer.encode("".join(parts))
    return ids, [len(tokenizer.encode("".join(parts[: k + 2]))) - 1 for k in range(len(steps))]


def asked_in_a_chat(tokenizer, problem, steps) -> Row:
    head = "<|begin_of_text|>" + HEADER.format("system") + "Today is a day.<|eot_id|>"
    head += HEADER.format("user") + problem + "<|eot_id|>" + HEADER.format("assistant")
    texts = [head + "".join(step + QUESTION for step in steps[: k + 1]) for k in range(len(steps))]
    return plain(tokenizer, texts[-1]), [len(plain(tokenizer, text)) - 1 for text in texts]


def asked_in_pieces(tokenizer, problem, steps) -> Row:
    ids, reads = plain(tokenizer, problem), []
    for step in steps:
        ids += plain(tokenizer, step) + plain(tokenizer, QUESTION)
        reads.append(len(ids) - 1)
    return ids, reads


@pytest.mark.parametrize(
    ("layout", "row"),
    [
        (TextLayout(opening="{problem}\n\n", mark=QUESTION, mark_is_text=True), asked_in_a_text),
        (ChatLayout(mark=QUESTION, mark_is_text=True), asked_in_a_chat),
        (PieceLayout(mark=QUESTION, mark_is_text=True), asked_in_pieces),
    ],
    ids=["text", "chat", "pieces"],
)
def test_a_question_after_each_step_is_read_at_its_last_token(zoo, tmp_path, layout, row):
    built = zoo["versaprm"]
    folder = shutil.copytree(built.folder, tmp_path / "prm")
    spec = dataclasses.replace(FAMILIES["versaprm"], family="mine", layout=layout)
    file = folder / "stepmark.json"
    file.write_text(json.dumps(dataclasses.asdict(spec)), encoding="utf-8")
    prm = load_prm(str(folder), dtype="float32", device="cpu")
    solutions = SOLUTIONS[:3]
    rows = [row(built.tokenizer, problem, steps) for problem, steps in solutions]
    assert len(plain(built.tokenizer, QUESTION)) > 4
    out = outputs(built, [ids for ids, _ in rows])
    read = read_verdict("+", "-")
    expected = [read(built, out[i, reads]) for i, (_, reads) in enumerate(rows)]
    assert_close(scores_of(prm, solutions), expected, 1e-5, outcome=False)
    # Undeclared it is refused: the published mark, cut up by the tokenizer of another model, looks the same.
    undeclared = dataclasses.replace(spec, layout=dataclasses.replace(layout, mark_is_text=False))
    file.write_text(json.dumps(dataclasses.asdict(undeclared)), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r'not one token here but.*"mark_is_text": true'):
        load_prm(str(folder), dtype="float32", device="cpu")
    with pytest.raises(MarkerInTextError, match="Is this step right"):
        prm.score(PENS, steps=["12 * 3 = 36. Is this step right? Yes."])


# ---- a text that stepmark cuts itself ------------------------------------------------------------------------

RESPONSE = (
    "To find how many pens are left:\n1. **Count the pens.** \n   - Ann buys 3 boxes.\n   \\[\n   12 * 3 = 36\n   \\]  \n"
    "2. **Take 6 away.**\n\t36 - 6 = 30"
)


@pytest.mark.parametrize(
    ("name", "how", "separator", "text"),
    [
        # Skywork's loop has a piece for each line; here the formula's lines are one step, read at its last line.
        ("skywork", "line", "\n", RESPONSE),
        ("qwen-prm", "blank-line", "\n\n", RESPONSE.replace("\n1", "\n\n1").replace("\n2", "\n\n    2")),
    ],
)
def test_a_text_is_read_with_the_white_space_of_its_lines(zoo, name, how, separator, text):
    family = next(f for f in FORWARD if f.name == name)
    built = zoo[family.checkpoint]
    steps = split(text, how)
    pieces = text.split(separator)
    assert len(steps) == (6 if name == "skywork" else 3)
    solution = Solution(problem=Problem(text=PENS), steps=steps.steps)
    ids, reads = family.row(built.tokenizer, PENS, pieces)
    encoded = load(family, built).encoder.encode(solution)
    assert encoded.ids.tolist() == ids[: reads[-1] + 1]
    assert set(encoded.reads) <= set(reads)
    out = outputs(built, [ids])
    [found] = load(family, built).score_many([solution])
    expected = family.read(built, out[0, list(encoded.reads)])
    assert list(found.scores) == pytest.approx(expected, abs=1e-5, rel=0)
