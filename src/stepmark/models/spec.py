"""How a PRM is read: one declarative record a checkpoint.

A `ScoringSpec` says how a solution becomes text (`layout`), which numbers are read where (`readout`), what
they mean (`score_kind`) and how its authors use them (`aggregate`, `threshold`). Nothing about a family
stands anywhere else. A checkpoint made by stepmark carries its spec in `stepmark.json`; for others
`families.py` holds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from stepmark.records import ScoreKind

SPEC_FILE = "stepmark.json"


Space = Literal["keep", "strip", "rstrip"]
"""What is done with white space at the ends of a text: it is kept, taken off, or taken off at the end only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spacing:
    """White space around the texts that a layout is given. Specs written before there was this choice strip both."""

    step_space: Space = "strip"
    """Around each step. White space only is no step, whatever stands here."""
    problem_space: Space = "strip"
    """Around the problem."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextLayout(Spacing):
    """One plain text, tokenised in one go: opening, then for each step `prefix + step + mark`."""

    kind: Literal["text"] = "text"
    opening: str = "{problem}\n"
    """Text before the first step; `{problem}` stands for the problem."""
    prefix: str = ""
    """Before each step; `{i}` is its number from 1. Left out where a step already begins with it."""
    mark: str
    """After each step; its last token is read."""
    mark_is_text: bool = False
    """The mark is a text of several tokens, such as a question. Otherwise a mark that is more than white space must be one token, so
    that a checkpoint with a tokenizer of another PRM is refused."""
    between: str = ""
    """Between a mark and the next step."""
    special_tokens: bool = True
    """Let the tokenizer add what it adds by default (BOS)."""
    scrub: tuple[str, ...] = ()
    """Strings that the authors' code deletes from problem and steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceLayout(Spacing):
    """Every piece tokenised alone and the ids joined: what TRL, Skywork and ReasonEval trained on."""

    kind: Literal["pieces"] = "pieces"
    opening: str = "{problem}"
    """`{problem}` and `{bos}` (the tokenizer's BOS text, empty when it has none)."""
    prefix: str = ""
    """As in `TextLayout`; tokenised with the step."""
    mark: str = ""
    """Tokenised alone after each step; empty: the step's own last token is read."""
    mark_is_text: bool = False
    """As in `TextLayout`."""
    bos: bool = False
    """Start with the BOS id, if the tokenizer has one."""
    by_line: bool = False
    """Skywork: each line of a step is a piece, and a newline id follows each."""
    read_back: int = 0
    """Read this many tokens before the last (ReasonEval-7B: 1, see `families.py`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatLayout(Spacing):
    """The checkpoint's chat template; all steps in one assistant turn, `prefix + step + mark` each."""

    kind: Literal["chat"] = "chat"
    system: str | None = None
    user: str = "{problem}"
    prefix: str = ""
    mark: str = ""
    """After each step; its last token is read. Empty only with `closing`."""
    mark_is_text: bool = False
    """As in `TextLayout`."""
    ending: Literal["mark", "turn"] = "mark"
    """What follows the last step and is read there: its mark, or what the template ends the turn with (its white space at the end
    left out)."""
    between: str = ""
    closing: bool = False
    """Read at the last token of the closed template instead (outcome models)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DialogueLayout(Spacing):
    """The checkpoint's chat template; each step a user turn, answered by a verdict.

    What is read is the token before the verdict; history is teacher-forced with `verdict`.
    """

    kind: Literal["dialogue"] = "dialogue"
    system: str | None = None
    first: str = "{problem} {step}"
    """The first user turn."""
    verdict: str = "+"


Layout = TextLayout | PieceLayout | ChatLayout | DialogueLayout


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearHead:
    """A linear layer on the hidden state: `weight` [classes, hidden], `bias` [classes] or none."""

    kind: Literal["linear"] = "linear"
    weight: str = "score.weight"
    bias: str | None = "score.bias"
    """Tensor name; used only if the checkpoint has it (a bias-free head simply has none)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MlpHead:
    """Linear, ReLU, linear: `prefix.0.*` and `prefix.2.*`, the layout of `Qwen2ForProcessRewardModel`."""

    kind: Literal["mlp"] = "mlp"
    prefix: str = "score"


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsembleHead:
    """ActPRM: members of three layers with ReLU, weights stacked [members, in, out] (not out, in)."""

    kind: Literal["ensemble"] = "ensemble"
    prefix: str = "score.model"
    """Beside it checkpoints hold a frozen twin, `score.reg_model`, which is not read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabHead:
    """Rows of the language-model head: one logit for each candidate token, and no others."""

    kind: Literal["vocab"] = "vocab"
    candidates: tuple[str, ...]
    """Each text's last token, tokenised alone without special tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRatioHead:
    """Implicit PRM: `beta * (log p(policy) - log p(reference))` summed over the answer's tokens.

    Source: Yuan et al. 2024, "Free process rewards without process labels", section 3.
    """

    kind: Literal["log-ratio"] = "log-ratio"
    beta: float
    per_step: bool = False
    """False: the sum up to a step's end (q_t). True: the step's own share (q_t - q_{t-1})."""
    reference: str | None = None
    """The usual reference model."""


Head = LinearHead | MlpHead | EnsembleHead | VocabHead | LogRatioHead

Activation = Literal["softmax", "margin", "sigmoid", "sigmoid-mean", "identity"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Readout:
    """From hidden states to scores."""

    head: Annotated[Head, field()]
    activation: Activation
    """`softmax`: probability of class `good`. `margin`: p(good) - p(the other of two). `sigmoid` of one
    logit. `sigmoid-mean`: mean over an ensemble. `identity`: as it is."""
    good: int = 0
    """Index of the class that means a right step."""
    neutral: int | None = None
    """Index of the class that means neither, for three-class PRMs."""
    class_names: tuple[str, ...] | None = None
    scale: float = 1.0
    shift: float = 0.0
    """Platt calibration: sigmoid(scale * logit + shift), of the one logit of `sigmoid` or, for a `softmax` of two classes, of
    the good one's logit above the other's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoringSpec:
    """Everything that turns a checkpoint into scores."""

    family: str
    summary: str
    """One line for the list of families."""
    source: str
    """Where the format was published or read."""
    layout: Layout
    readout: Readout
    score_kind: ScoreKind
    aggregate: str
    """The authors' way to one number; where they name none, the docs say so."""
    aggregate_source: str = ""
    threshold: float | None = None
    """Under it a step is an error. None: the scores have no such point."""
    outcome_only: bool = False
    """An outcome reward model: only the last step is read."""
    max_tokens: int | None = None
    """None: the backbone's own limit."""
    architectures: tuple[str, ...] = ()
    """`config.json` architectures that mean this family and no other."""
    settings: tuple[str, ...] = ()
    """Keys of `config.json` that mean this family when the architecture does not decide."""
    tensors: tuple[str, ...] = ()
    """Head tensors that mean this family when neither decides."""
    checkpoints: tuple[str, ...] = ()
    """Hub names known to be of this family."""
