"""The PRM families: how each published PRM is read, one spec each, and the published checkpoints of each.

The one place for formats and hub names: `load_prm`, `stepmark families` and the tables in `docs/families.md` read it. Formats were read
from the authors' code and cards; where two of them disagree, `source` says whose is used. Sizes are counted from the architecture of the
base model. A licence or figure that we have not seen at its source is None.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stepmark.models.spec import (
    ChatLayout,
    ConfidenceHead,
    ConversationLayout,
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
from stepmark.report.tables import ABSENT, Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """The architecture of a base model."""

    backbone: int
    """Parameters without the output layer."""
    output: int
    """Parameters of the output layer; 0 where it is the table of embeddings again."""


QWEN_1_5B = Base(backbone=1_543_714_304, output=0)
QWEN_1_5B_UNTIED = Base(backbone=1_543_714_304, output=233_373_696)
QWEN_7B = Base(backbone=7_070_619_136, output=544_997_376)
QWEN_14B = Base(backbone=13_991_465_984, output=778_567_680)
QWEN_32B = Base(backbone=31_985_308_672, output=778_567_680)
QWEN_72B = Base(backbone=71_460_495_360, output=1_245_708_288)
MISTRAL_7B = Base(backbone=7_110_660_096, output=131_072_000)
QWEN3_4B = Base(backbone=4_022_468_096, output=0)
LLAMA_8B = Base(backbone=7_504_924_672, output=525_336_576)
LLEMMA_34B = Base(backbone=33_481_826_304, output=262_144_000)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedCheckpoint:
    """A published PRM checkpoint."""

    name: str
    """Short name, for `load_prm` and `--prm`."""
    hub: str
    """Name on the Hugging Face hub."""
    family: str
    """How it is read: a name in `FAMILIES` or `GENERATIVE`."""
    base: Base
    """The architecture that its parameters are counted from."""
    language_models: int = 0
    """Whole language models, with their output layers, that stepmark loads for it; 0: one backbone without its output layer."""
    licence: str | None = None
    """As its model card names it."""
    processbench: float | None = None
    """Published F1 on ProcessBench in percent: the mean over its four subsets."""
    source: str | None = None
    """Where that figure was published."""

    @property
    def parameters(self) -> int:
        """Parameters of the checkpoint, its small scoring head left out."""
        return self.base.backbone + self.base.output

    @property
    def memory(self) -> float:
        """Gigabytes (10^9 bytes) that the weights take in bfloat16; computing takes more."""
        loaded = self.language_models * self.parameters if self.language_models else self.base.backbone
        return 2 * loaded / 1e9


_LESSONS = "Zhang et al. 2025, arXiv:2501.07301, table 7"
_ACTPRM = "Duan et al. 2025, arXiv:2504.10559, table 1"
_PURE = "Cheng et al. 2025, README of CJReinforce/PURE"
_RPRM = "She et al. 2025, README of NJUNLP/R-PRM, 10 critiques a step"
_GENPRM = "Zhao et al. 2025, arXiv:2504.00891, table 1, one critique a step, its generated code run"
_GENPRM_8 = "Zhao et al. 2025, arXiv:2504.00891, table 1, 8 critiques a step, their generated code run"
_APACHE = "apache-2.0"
_SKYWORK = "Skywork community"


_ROWS: tuple[tuple[str, str, str, Base, int, str | None, float | None, str | None], ...] = (
    # short name, hub name, family, base, whole language models, licence, ProcessBench F1, its source
    ("qwen-7b", "Qwen/Qwen2.5-Math-PRM-7B", "qwen-prm", QWEN_7B, 0, "qwen", 73.5, _LESSONS),
    ("qwen-72b", "Qwen/Qwen2.5-Math-PRM-72B", "qwen-prm", QWEN_72B, 0, "qwen", 78.3, _LESSONS),
    ("qwen-7b-prm800k", "Qwen/Qwen2.5-Math-7B-PRM800K", "qwen-prm", QWEN_7B, 0, "qwen", 56.5, _LESSONS),
    ("reasonflux-7b", "Gen-Verse/ReasonFlux-PRM-7B", "reasonflux-prm", QWEN_7B, 0, None, None, None),
    ("skywork-1.5b", "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-1.5B", "skywork", QWEN_1_5B, 0, _SKYWORK, 36.4, _LESSONS),
    ("skywork-7b", "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B", "skywork", QWEN_7B, 0, _SKYWORK, 42.1, _LESSONS),
    ("math-shepherd", "peiyi9979/math-shepherd-mistral-7b-prm", "math-shepherd", MISTRAL_7B, 0, None, 31.5, _LESSONS),
    ("rlhflow-mistral", "RLHFlow/Llama3.1-8B-PRM-Mistral-Data", "rlhflow", LLAMA_8B, 0, None, 28.4, _LESSONS),
    ("rlhflow-deepseek", "RLHFlow/Llama3.1-8B-PRM-Deepseek-Data", "rlhflow", LLAMA_8B, 0, None, 26.6, _LESSONS),
    ("eurus-stage1", "PRIME-RL/EurusPRM-Stage1", "implicit", QWEN_7B, 2, _APACHE, 31.2, _LESSONS),
    ("eurus", "PRIME-RL/EurusPRM-Stage2", "implicit", QWEN_7B, 2, _APACHE, 31.3, _LESSONS),
    ("pure", "jinachris/PURE-PRM-7B", "pure", QWEN_7B, 0, None, 57.5, _PURE),
    ("versa", "UW-Madison-Lee-Lab/VersaPRM", "versaprm", LLAMA_8B, 0, None, None, None),
    ("llama-prm800k", "UW-Madison-Lee-Lab/Llama-PRM800K", "versaprm", LLAMA_8B, 0, None, None, None),
    ("versa-qwen-prm800k", "UW-Madison-Lee-Lab/Qwen-PRM800K", "versaprm", QWEN_7B, 0, None, None, None),
    ("reasoneval-7b", "GAIR/ReasonEval-7B", "reasoneval", MISTRAL_7B, 0, None, None, None),
    ("reasoneval-34b", "GAIR/ReasonEval-34B", "reasoneval-34b", LLEMMA_34B, 0, "llama2", None, None),
    ("actprm", "sail/ActPRM", "actprm", QWEN_7B, 0, None, 75.0, _ACTPRM),
    ("actprm-x", "sail/ActPRM-X", "actprm", QWEN_7B, 0, _APACHE, 76.0, _ACTPRM),
    ("thinkprm-1.5b", "launch/ThinkPRM-1.5B", "thinkprm", QWEN_1_5B_UNTIED, 1, _APACHE, None, None),
    ("thinkprm-7b", "launch/ThinkPRM-7B", "thinkprm", QWEN_7B, 1, None, None, None),
    ("thinkprm-14b", "launch/ThinkPRM-14B", "thinkprm", QWEN_14B, 1, _APACHE, None, None),
    ("genprm-1.5b", "GenPRM/GenPRM-1.5B", "genprm", QWEN_1_5B_UNTIED, 1, None, 63.4, _GENPRM_8),
    ("genprm-7b", "GenPRM/GenPRM-7B", "genprm", QWEN_7B, 1, None, 75.2, _GENPRM),
    ("genprm-32b", "GenPRM/GenPRM-32B", "genprm", QWEN_32B, 1, None, 77.6, _GENPRM),
    ("r-prm-sft", "kevinpro/R-PRM-7B-SFT", "r-prm", QWEN_7B, 1, None, 65.2, _RPRM),
    ("r-prm", "kevinpro/R-PRM-7B-DPO", "r-prm", QWEN_7B, 1, _APACHE, 70.4, _RPRM),
    ("openhands-critic", "OpenHands/openhands-critic-4b-v1.0", "openhands-critic", QWEN3_4B, 0, "mit", None, None),
)  # fmt: skip
_PUBLISHED = tuple(
    PublishedCheckpoint(
        name=name,
        hub=hub,
        family=family,
        base=base,
        language_models=models,
        licence=licence,
        processbench=f1,
        source=source,
    )
    for name, hub, family, base, models, licence, f1, source in _ROWS
)

PUBLISHED: Mapping[str, PublishedCheckpoint] = {checkpoint.name: checkpoint for checkpoint in _PUBLISHED}
"""Published checkpoints by short name."""

_BY_HUB_NAME = {checkpoint.hub: checkpoint for checkpoint in _PUBLISHED}


def hub_names(family: str) -> tuple[str, ...]:
    """Hub names of the published checkpoints of a family."""
    return tuple(checkpoint.hub for checkpoint in _PUBLISHED if checkpoint.family == family)


def find_published(name: str) -> PublishedCheckpoint | None:
    """The published checkpoint of a short name or hub name; None for any other name and for a folder of that name."""
    checkpoint = PUBLISHED.get(name) or _BY_HUB_NAME.get(name)
    return None if checkpoint is None or Path(name).is_dir() else checkpoint


def full_name(name: str) -> str:
    """The hub name that a short name stands for; any other name, and a folder of that name, as it is."""
    checkpoint = find_published(name)
    return name if checkpoint is None else checkpoint.hub


def nearest_names(name: str, others: Iterable[str] = ()) -> list[str]:
    """Known names near one that could not be loaded, the nearest first, at most three; none for a name that is known.

    Args:
        name: what was asked for.
        others: known names beside the short names and hub names here.
    """
    if find_published(name) is not None:
        return []
    folded = {known.lower(): known for known in [*others, *PUBLISHED]}
    folded |= {checkpoint.hub.lower(): checkpoint.hub for checkpoint in _PUBLISHED}
    near = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.7)
    return [folded[known] for known in near]


def table() -> Table:
    """The published checkpoints, highest ProcessBench F1 first; the note lists the sources of the figures by number."""
    ranked = sorted(_PUBLISHED, key=lambda checkpoint: -(checkpoint.processbench or 0))
    sources = dict.fromkeys(checkpoint.source for checkpoint in ranked if checkpoint.source)
    numbers = {source: str(number) for number, source in enumerate(sources, 1)}
    rows = [
        (
            checkpoint.name,
            checkpoint.hub,
            f"{checkpoint.memory:.1f} GB",
            checkpoint.licence or ABSENT,
            ABSENT if checkpoint.processbench is None else f"{checkpoint.processbench:.1f}",
            numbers.get(checkpoint.source or "", ABSENT),
        )
        for checkpoint in ranked
    ]
    return Table(
        title="Published PRMs",
        columns=("name", "on the hub", "bfloat16", "licence", "ProcessBench F1", "source"),
        rows=tuple(rows),
        align=("left", "left", "right", "left", "right", "right"),
        note="Sources: " + "; ".join(f"({number}) {source}" for source, number in numbers.items()) + ".",
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
)

_implicit = ScoringSpec(
    family="implicit",
    summary="Implicit PRM (EurusPRM): the log-ratio of a policy and a reference, summed to each step's end",
    source="Yuan et al. 2024; PRIME-RL/ImplicitPRM eval/processbench.py (bare problem, 'Step i: ', blank lines, the "
    "last sum to the end of the turn). Their other indices run one or two tokens into the next step; here the sum stops at the blank line, "
    "so no score sees ahead. processbench.py writes 'Step i: ' before every step, again before one that brings it; here, as in the best-of-N of "
    "their prm_eval_utils.py, it stands once",
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
)

_CRITIC_LABELS = (
    "success", "sentiment_positive", "sentiment_neutral", "sentiment_negative",
    # what the agent did
    "misunderstood_intention", "did_not_follow_instruction", "insufficient_analysis", "insufficient_clarification",
    "improper_tool_use_or_setup", "loop_behavior", "insufficient_testing", "insufficient_debugging", "incomplete_implementation",
    "file_management_errors", "scope_creep", "risky_actions_or_permission", "other_agent_issue",
    "infrastructure_external_issue", "infrastructure_agent_caused_issue",
    # what the user will say next
    "clarification_or_restatement", "correction", "direction_change", "vcs_update_requests", "progress_or_scope_concern",
    "frustration_or_complaint", "removal_or_reversion_request", "other_user_issue",
)  # fmt: skip
"""In the order of the head's rows."""

_critic = ScoringSpec(
    family="openhands-critic",
    summary="OpenHands' critic of agents: success and 26 traits of the conversation so far, a sigmoid each, read where a turn ends",
    source="Wang et al. 2026, arXiv 2603.03800; OpenHands/software-agent-sdk openhands/sdk/critic/impl/api (client.py, critic.py): messages by "
    "the template of Qwen3-4B-Instruct-2507 with the tools and without thoughts and tool calls, the last token pooled (vLLM's /classify), "
    "labels in the order of the client. The client reads the whole conversation; here every turn is read, as if the conversation ended there",
    layout=ConversationLayout(step_space="keep", problem_space="keep"),
    readout=Readout(head=LinearHead(bias=None), activation="labels", good=0, class_names=_CRITIC_LABELS),
    score_kind="probability",
    aggregate="last",
    aggregate_source="the client scores the conversation at its end",
    threshold=0.5,
)

_CONFIDENCE = tuple(
    ScoringSpec(
        family=family,
        summary=f"Training-free, of the policy itself: {words}, of all tokens up to a step's end",
        source=source,
        layout=ChatLayout(mark="\n\n", ending="turn"),
        readout=Readout(head=head, activation="identity"),
        score_kind="unbounded",
        aggregate="last",
        aggregate_source="the last score is that of the whole",
    )
    for family, words, source, head in (
        ("mean-logprob", "the mean log-probability", "folklore", ConfidenceHead(measure="logprob")),
        ("entropy", "the mean entropy, below 0", "folklore", ConfidenceHead(measure="entropy")),
        ("self-certainty", "KL(uniform, p)", "Kang et al. 2025, arXiv 2502.18581", ConfidenceHead(measure="self-certainty")),
        ("deepconf", "the lowest mean confidence of 2,048 tokens in a row", "Fu et al. 2025, arXiv 2508.15260; facebookresearch/deepconf",
         ConfidenceHead(measure="top", window=2048)),
    )
)  # fmt: skip

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
    ),
    ScoringSpec(
        family="math-shepherd",
        summary="Math-Shepherd: '+' against '-' on the language-model head, read at ки after 'Step i: …'",
        source="Wang et al. 2023; the model card of peiyi9979/math-shepherd-mistral-7b-prm. Its data number the steps from 1; here a step that "
        "brings another number ('Step 4:' as the third) is numbered all the same, which PRMBench's evaluator leaves as it is",
        layout=TextLayout(
            opening="{problem} ", prefix="Step {i}: ", mark=" ки", between="\n", problem_space="keep"
        ),
        readout=Readout(head=VocabHead(candidates=("+", "-")), activation="softmax", good=0),
        score_kind="probability",
        aggregate="min",
        aggregate_source="the paper, section 3.4",
        threshold=0.5,
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
    ),
    _token,
    replace(
        _token,
        family="pure",
        summary="PURE-PRM-7B: as token-classification, scored as p(good) - p(bad)",
        source="Cheng et al. 2025, Stop Summation; PURE's PRM/eval/bon.py (read in its copy in viviable/seccodeprm, commit a7ce027): no template, "
        "no BOS, white space taken off at the end of a step, separator newline. Their RL (experience_maker.py, commit 41f9363) puts the newline in "
        "the place of the whole token that ends in a blank line",
        layout=PieceLayout(opening="{problem}", mark="\n", step_space="rstrip", problem_space="keep"),
        readout=Readout(head=LinearHead(), activation="margin", good=1),
        score_kind="margin",
        aggregate="softmin",
        aggregate_source="bon.py, temperature 0.1",
        threshold=0.0,
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
    _critic,
    *_CONFIDENCE,
)

FAMILIES: Mapping[str, ScoringSpec] = {
    spec.family: replace(spec, checkpoints=hub_names(spec.family)) for spec in _ALL
}
"""Every family that scores with a forward pass, by name."""
