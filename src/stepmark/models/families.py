"""The PRM families: how each published PRM is read, one spec each.

Formats were read from the authors' code and cards; where two of them disagree, `source` says whose is used.
`docs/families.md` tells the traps of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stepmark.models.published import hub_names
from stepmark.models.spec import (
    ChatLayout,
    DialogueLayout,
    EnsembleHead,
    LinearHead,
    LogRatioHead,
    MlpHead,
    PieceLayout,
    Readout,
    ScoringSpec,
    TextLayout,
    VocabHead,
)

_BOXED = r"within \boxed{}."
_QWEN_SYSTEM = "Please reason step by step, and put your final answer " + _BOXED

_QWEN_LAYOUT = ChatLayout(system=_QWEN_SYSTEM, mark="<extra_0>", step_space="keep", problem_space="keep")

_qwen = ScoringSpec(
    family="qwen-prm",
    summary="Qwen2.5-Math-PRM: a two-class head read at <extra_0> after each step",
    source="Zhang et al. 2025, The Lessons of Developing Process Reward Models; the model card",
    layout=_QWEN_LAYOUT,
    readout=Readout(head=MlpHead(), activation="softmax", good=1),
    score_kind="probability",
    aggregate="product",
    aggregate_source="the paper's best-of-8 protocol",
    threshold=0.5,
    architectures=("Qwen2ForProcessRewardModel",),
    checkpoints=hub_names("qwen-prm"),
)

_token = ScoringSpec(
    family="token-classification",
    summary="TRL style: a two-class token classifier read at the separator after each step",
    source="TRL 1.13 PRMTrainer (tokenize_row): pieces tokenised alone, BOS first, label at the last separator token",
    layout=PieceLayout(opening="{problem}", mark="\n", bos=True, step_space="keep", problem_space="keep"),
    readout=Readout(head=LinearHead(), activation="softmax", good=1),
    score_kind="probability",
    aggregate="product",
    aggregate_source="none named by TRL; ours",
    threshold=0.5,
)

_rlhflow = ScoringSpec(
    family="rlhflow",
    summary="RLHFlow: each step a user turn, '+' or '-' read before the assistant's answer",
    source="RLHFlow/RLHF-Reward-Modeling math-rm/prm_evaluate.py; history is teacher-forced with '+'",
    layout=DialogueLayout(first="{problem} {step}", verdict="+", problem_space="keep"),
    readout=Readout(head=VocabHead(candidates=("+", "-")), activation="softmax", good=0),
    score_kind="probability",
    aggregate="mean",
    aggregate_source="prm_evaluate.py",
    threshold=0.5,
    checkpoints=hub_names("rlhflow"),
)

_implicit = ScoringSpec(
    family="implicit",
    summary="Implicit PRM (EurusPRM): the log-ratio of a policy and a reference, summed to each step's end",
    source="Yuan et al. 2024; PRIME-RL/ImplicitPRM eval/processbench.py (bare problem, 'Step i: ', blank lines, the "
    "last sum to the end of the turn). Their other indices run one or two tokens into the next step; here the sum stops at the blank line, "
    "so no score sees ahead",
    layout=ChatLayout(
        prefix="Step {i}: ", mark="\n\n", ending="turn", step_space="keep", problem_space="keep"
    ),
    readout=Readout(
        head=LogRatioHead(beta=0.001, reference="Qwen/Qwen2.5-Math-7B-Instruct"), activation="identity"
    ),
    score_kind="log-ratio",
    aggregate="min",
    aggregate_source="ImplicitPRM's default for best-of-N",
    threshold=0.0,
    checkpoints=hub_names("implicit"),
)

_REASONEVAL_LAYOUT = PieceLayout(
    opening="Question:\n{problem}\nAnswer:\nLet's think step by step.\n",
    bos=True,
    read_back=1,
    step_space="keep",
    problem_space="keep",
)

_reasoneval = ScoringSpec(
    family="reasoneval",
    summary="ReasonEval: three classes; validity = p(neutral) + p(positive), redundancy = p(neutral)",
    source="Xia et al. 2024; GAIR-NLP/ReasonEval codes/examples.py. The 7B code reads the last but one token of a "
    "step (its indices are not moved for the BOS that it adds back), and so does this",
    layout=_REASONEVAL_LAYOUT,
    readout=Readout(
        head=LinearHead(weight="score_head.weight", bias=None),
        activation="softmax",
        good=2,
        neutral=1,
        class_names=("negative", "neutral", "positive"),
    ),
    score_kind="probability",
    aggregate="min",
    aggregate_source="the paper: validity is the minimum over steps",
    threshold=0.5,
    architectures=("ReasonEval_7B",),
    settings=("score_dimension",),
    tensors=("score_head.weight",),
    checkpoints=hub_names("reasoneval"),
)

_ALL = (
    _qwen,
    replace(
        _qwen,
        family="reasonflux-prm",
        summary="ReasonFlux-PRM-7B: as qwen-prm, without a system message",
        source="the model card of ReasonFlux-PRM-7B",
        layout=replace(_QWEN_LAYOUT, system=None),
        aggregate="mean",
        aggregate_source="none named by the card; ours",
        architectures=(),
        checkpoints=hub_names("reasonflux-prm"),
    ),
    ScoringSpec(
        family="skywork",
        summary="Skywork-o1-Open-PRM: a scalar value head read at the newline after each step",
        source="SkyworkAI/skywork-o1-prm-inference model_utils/io_utils.py; a step of several lines is read at its "
        "last newline",
        layout=PieceLayout(
            opening="{bos}{problem}\n", mark="\n", by_line=True, step_space="keep", problem_space="keep"
        ),
        readout=Readout(
            head=LinearHead(weight="v_head.summary.weight", bias="v_head.summary.bias"), activation="sigmoid"
        ),
        score_kind="probability",
        aggregate="mean",
        aggregate_source="the model card's best-of-64",
        threshold=0.5,
        architectures=("Qwen2ForPrmModel",),
        tensors=("v_head.summary.weight",),
        checkpoints=hub_names("skywork"),
    ),
    ScoringSpec(
        family="math-shepherd",
        summary="Math-Shepherd: '+' against '-' on the language-model head, read at ки after 'Step i: …'",
        source="Wang et al. 2023; the model card of peiyi9979/math-shepherd-mistral-7b-prm",
        layout=TextLayout(
            opening="{problem} ", prefix="Step {i}: ", mark=" ки", between="\n", problem_space="keep"
        ),
        readout=Readout(head=VocabHead(candidates=("+", "-")), activation="softmax", good=0),
        score_kind="probability",
        aggregate="min",
        aggregate_source="the paper, section 3.4",
        threshold=0.5,
        checkpoints=hub_names("math-shepherd"),
    ),
    _rlhflow,
    _implicit,
    replace(
        _implicit,
        family="implicit-per-step",
        summary="Implicit PRM, each step's own share of the log-ratio (the card's r_t = q_t - q_(t-1))",
        readout=replace(
            _implicit.readout,
            head=LogRatioHead(beta=0.001, per_step=True, reference="Qwen/Qwen2.5-Math-7B-Instruct"),
        ),
        checkpoints=(),
    ),
    _token,
    replace(
        _token,
        family="pure",
        summary="PURE-PRM-7B: as token-classification, scored as p(good) - p(bad)",
        source="Cheng et al. 2025, Stop Summation; CJReinforce/PURE PRM/eval/bon.py: no template, no BOS, separator newline",
        layout=PieceLayout(opening="{problem}", mark="\n", step_space="rstrip", problem_space="keep"),
        readout=Readout(head=LinearHead(), activation="margin", good=1),
        score_kind="margin",
        aggregate="softmin",
        aggregate_source="bon.py, temperature 0.1",
        threshold=0.0,
        checkpoints=hub_names("pure"),
    ),
    ScoringSpec(
        family="versaprm",
        summary="VersaPRM and Llama/Qwen-PRM800K: '-' against '+' read at ' \\n\\n\\n\\n' after each step",
        source="Zeng et al. 2025; mtzig/MultiDomainPRM evaluation/get_rewards_reasoning_step.py",
        layout=TextLayout(opening="{problem} \n\n", mark=" \n\n\n\n", scrub=(" \n\n\n\n",)),
        readout=Readout(head=VocabHead(candidates=("-", "+")), activation="softmax", good=1),
        score_kind="probability",
        aggregate="min",
        aggregate_source="their code reports last, mean and min; min is ours",
        threshold=0.5,
        checkpoints=hub_names("versaprm"),
    ),
    _reasoneval,
    replace(
        _reasoneval,
        family="reasoneval-34b",
        summary="ReasonEval-34B: as reasoneval, read at the last token of each step",
        layout=replace(_REASONEVAL_LAYOUT, read_back=0),
        readout=replace(
            _reasoneval.readout, head=LinearHead(weight="score_head.weight", bias="score_head.bias")
        ),
        architectures=("ReasonEval_34B",),
        settings=("score_dim",),
        checkpoints=hub_names("reasoneval-34b"),
    ),
    ScoringSpec(
        family="actprm",
        summary="ActPRM: the mean of 32 small heads' sigmoids, read at <extra_0>",
        source="Duan et al. 2025; sail-sg/ActivePRM test_actprm_on_processbench.py (the prompt of the published F1)",
        layout=ChatLayout(
            system="You are a helpful and harmless assistant. You should think step-by-step and put your final answer "
            + _BOXED,
            mark="<extra_0>",
            problem_space="keep",
        ),
        readout=Readout(head=EnsembleHead(), activation="sigmoid-mean"),
        score_kind="probability",
        aggregate="product",
        aggregate_source="none named; ours",
        threshold=0.5,
        architectures=("Qwen2ForEnsemblePRM",),
        tensors=("score.model.nn1.weight",),
        checkpoints=hub_names("actprm"),
    ),
    ScoringSpec(
        family="three-class",
        summary="A rating token after each step: positive, neutral or negative (Lightman et al.)",
        source="Lightman et al. 2023, section 2.6 and appendix; their model is unpublished, so the text and the three "
        "tokens here are ours, and a checkpoint's own stepmark.json may name others",
        layout=TextLayout(opening="{problem}\n\n", mark="\n\n"),
        readout=Readout(
            head=VocabHead(candidates=("-", "0", "+")),
            activation="softmax",
            good=2,
            neutral=1,
            class_names=("negative", "neutral", "positive"),
        ),
        score_kind="probability",
        aggregate="product",
        aggregate_source="the paper: product, neutral counted as positive",
        threshold=0.5,
    ),
    ScoringSpec(
        family="orm",
        summary="An outcome reward model: one-logit sequence classifier, read at the last step only",
        source="the Hugging Face *ForSequenceClassification convention: the chat closed by its template, the last token read",
        layout=ChatLayout(between="\n\n", closing=True, step_space="keep", problem_space="keep"),
        readout=Readout(head=LinearHead(bias=None), activation="sigmoid"),
        score_kind="probability",
        aggregate="last",
        aggregate_source="the only one there is",
        threshold=0.5,
        outcome_only=True,
    ),
)

FAMILIES: Mapping[str, ScoringSpec] = {spec.family: spec for spec in _ALL}
"""Every family that scores with a forward pass, by name."""
