"""How a PRM is read: one declarative record a checkpoint.

A `ScoringSpec` says how a solution becomes text (`layout`), which numbers are read where (`readout`), what they mean (`score_kind`) and how its
authors use them (`aggregate`, `threshold`). A checkpoint made by stepmark carries its spec in `stepmark.json`; for others `families.py` holds it.

"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from stepmark.errors import CheckpointError, InputError, UsageError
from stepmark.models.files import present, read_object
from stepmark.records import ScoreKind, read_record
from stepmark.store import atomic_write
from stepmark.words import indices

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


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversationLayout(Spacing):
    """An agent's conversation, message by message, whatever chat template the checkpoint has: Qwen's form. A step is read at the last token
    that closes its turn. Thoughts and tool calls are left out.

    A step that was read from no conversation is a turn by its text; its observation is the answer of a tool.
    """

    kind: Literal["conversation"] = "conversation"
    opening: str = "<|im_start|>{role}\n"
    """Before each message; answers of tools in a row share one, of the user."""
    mark: str = "<|im_end|>\n"
    """After it; read where it ends the turn of a step."""
    answer: str = "<tool_response>\n{content}\n</tool_response>"
    """A tool's answer; a line break stands between two."""
    tools: str = (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within "
        "<tools></tools> XML tags:\n<tools>{tools}\n</tools>\n\nFor each function call, return a json object with function name and arguments "
        'within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )
    """Ends the system message where the problem has tools; each stands on a line, as JSON."""

    @property
    def mark_is_text(self) -> bool:
        """The mark is a token, and white space after it."""
        return False


Layout = TextLayout | PieceLayout | ChatLayout | DialogueLayout | ConversationLayout


class HeadKind:
    """What every kind of head says of itself; `models.heads` reads it, trains it and checks it."""

    __slots__ = ()
    on_state: ClassVar[bool] = False
    """Its logits are a function of the hidden state alone, with weights of its own, which servers of classifiers compute."""

    @property
    def names(self) -> Mapping[str, str]:
        """Its parameters, and what their tensors are called in a checkpoint; none where it has no weights of its own."""
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearHead(HeadKind):
    """A linear layer on the hidden state: `weight` [classes, hidden], `bias` [classes] or none."""

    kind: Literal["linear"] = "linear"
    weight: str = "score.weight"
    bias: str | None = "score.bias"
    """Tensor name; None for a head without one."""
    on_state: ClassVar[bool] = True

    @property
    def names(self) -> Mapping[str, str]:
        """See `HeadKind.names`."""
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})


@dataclass(frozen=True, kw_only=True, slots=True)
class MlpHead(HeadKind):
    """Linear, ReLU, linear: `prefix.0.*` and `prefix.2.*`, the layout of `Qwen2ForProcessRewardModel`."""

    kind: Literal["mlp"] = "mlp"
    prefix: str = "score"
    on_state: ClassVar[bool] = True

    @property
    def names(self) -> Mapping[str, str]:
        """See `HeadKind.names`."""
        parts = [f"{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")]
        return {part: f"{self.prefix}.{part}" for part in parts}


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsembleHead(HeadKind):
    """ActPRM: members of three layers with ReLU, weights stacked [members, in, out] (not out, in)."""

    kind: Literal["ensemble"] = "ensemble"
    prefix: str = "score.model"
    """Beside it checkpoints hold a frozen twin, `score.reg_model`, which is not read."""
    on_state: ClassVar[bool] = True

    @property
    def names(self) -> Mapping[str, str]:
        """See `HeadKind.names`."""
        parts = [f"{layer}.{part}" for layer in ("nn1", "nn2", "nn_out") for part in ("weight", "bias")]
        return {part: f"{self.prefix}.{part}" for part in parts}


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabHead(HeadKind):
    """Rows of the language-model head: one logit for each candidate token, and no others."""

    kind: Literal["vocab"] = "vocab"
    candidates: tuple[str, ...]
    """Each text's last token, tokenised alone without special tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRatioHead(HeadKind):
    """Implicit PRM: `beta * (log p(policy) - log p(reference))` summed over the answer's tokens.

    Source: Yuan et al. 2024, "Free process rewards without process labels", section 3.
    """

    kind: Literal["log-ratio"] = "log-ratio"
    beta: float
    per_step: bool = False
    """False: the sum up to a step's end (q_t). True: the step's own share (q_t - q_{t-1})."""
    reference: str | None = None
    """The usual reference model."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.beta) and self.beta > 0):
            raise UsageError(f"beta should be a finite number above 0, found {self.beta}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfidenceHead(HeadKind):
    """No head: how sure the language model is of the answer's own tokens (`models.confidence`)."""

    kind: Literal["confidence"] = "confidence"
    measure: Literal["logprob", "entropy", "self-certainty", "top"]
    window: int | None = None
    """The lowest mean of so many tokens in a row; None: the mean of all."""
    per_step: bool = False
    """False: of all tokens up to a step's end. True: of the step's own."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise UsageError(f"window should be at least 1, found {self.window}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenHead(HeadKind):
    """A linear layer on the log-probabilities of the step's own tokens and on the hidden state at its end: `weight` [classes, 4 + hidden], `bias` [classes].

    The first four inputs are `token_head.token_features`; the token that is read, of the mark, is not among the step's. An outcome model reads the tokens of the whole answer.
    """

    kind: Literal["tokens"] = "tokens"
    weight: str = "score.weight"
    bias: str = "score.bias"

    @property
    def names(self) -> Mapping[str, str]:
        """See `HeadKind.names`."""
        return {"weight": self.weight, "bias": self.bias}


Head = LinearHead | MlpHead | EnsembleHead | VocabHead | LogRatioHead | ConfidenceHead | TokenHead

Activation = Literal["softmax", "margin", "sigmoid", "sigmoid-mean", "labels", "identity"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Readout:
    """From hidden states to scores."""

    head: Head
    activation: Activation
    """`softmax`: probability of class `good`. `margin`: p(good) - p(the other of two). `sigmoid` of one
    logit. `sigmoid-mean`: mean over an ensemble. `labels`: a sigmoid of each of `class_names`; the score is that of `good`. `identity`:
    as it is."""
    good: int = 0
    """Index of the class or label that means a right step."""
    neutral: int | None = None
    """Index of the class that means neither, for three-class PRMs."""
    class_names: tuple[str, ...] | None = None
    scale: float = 1.0
    shift: float = 0.0
    """Platt calibration: sigmoid(scale * logit + shift), of the one logit of `sigmoid`, of the good label's of `labels` or, for a `softmax`
    of two classes, of the good one's logit above the other's."""

    def __post_init__(self) -> None:
        names = self.class_names or ()
        if self.activation == "labels" and not (names and len(set(names)) == len(names)):
            raise UsageError(
                f"class_names should be the labels, each once (activation 'labels'), found {names}"
            )
        classes = self.classes
        if not 0 <= self.good < (classes or 1):
            raise UsageError(
                f"good should be a class's index, {indices(classes or 1)} (activation {self.activation!r}); found {self.good}"
            )
        if self.neutral is not None and (
            self.activation != "softmax" or self.neutral == self.good or not 0 <= self.neutral < 3
        ):
            raise UsageError(
                f"neutral should be a class's index of a softmax of three, 0 to 2, and another than good; found {self.neutral} (activation {self.activation!r}, good {self.good})"
            )
        for what, given in (
            ("class_names", self.class_names),
            ("candidates", self.head.candidates if isinstance(self.head, VocabHead) else None),
        ):
            if given is not None and classes is not None and len(given) != classes:
                raise UsageError(
                    f"{what} should be {classes} (activation {self.activation!r}), found {len(given)}"
                )
        if not (math.isfinite(self.scale) and math.isfinite(self.shift)):
            raise UsageError(f"scale and shift should be finite, found {self.scale} and {self.shift}")
        if (self.scale, self.shift) != (1.0, 0.0) and not self.takes_a_map:
            raise UsageError(
                "scale and shift are for sigmoids and the softmax of two; expected 1 and 0 for "
                f"{self.activation!r}, found {self.scale} and {self.shift}"
            )

    @property
    def takes_a_map(self) -> bool:
        """Whether a Platt map can be part of it: of the sigmoid of a logit, or the softmax of two."""
        return self.activation in ("sigmoid", "labels", "softmax") and self.neutral is None

    @property
    def classes(self) -> int | None:
        """Logits that the head gives; None for any number."""
        if self.activation == "softmax":
            return 2 if self.neutral is None else 3
        if self.activation == "labels":
            return len(self.class_names or ())
        return {"sigmoid": 1, "identity": 1, "margin": 2, "sigmoid-mean": None}[self.activation]


_KINDS: Mapping[Activation, ScoreKind] = {
    "softmax": "probability",
    "sigmoid": "probability",
    "sigmoid-mean": "probability",
    "labels": "probability",
    "margin": "margin",
    "identity": "unbounded",
}
"""What each activation gives."""


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
    checks: str = "none"
    """Exact checks that run beside it where a caller says "auto": "all", "none", or names with commas between them."""
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

    def __post_init__(self) -> None:
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise UsageError(f"threshold should be finite, found {self.threshold}")
        meant = _KINDS[self.readout.activation]
        if isinstance(self.readout.head, LogRatioHead):
            meant = "log-ratio"
        if self.score_kind not in (meant, "unbounded"):
            raise UsageError(
                f"score_kind should be {meant!r} for a {self.readout.head.kind} head with activation "
                f"{self.readout.activation!r}, found {self.score_kind!r}"
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max_tokens should be at least 1, found {self.max_tokens}")


def read_spec(file: Path) -> ScoringSpec:
    """A checkpoint's own spec; a `CheckpointError` that names the field where it cannot be read."""
    try:
        return read_record(ScoringSpec, read_object(file))
    except InputError as error:
        raise CheckpointError(f"{file}: {error}") from error


_FINDING = (
    "summary",
    "source",
    "aggregate_source",
    "checks",
    "architectures",
    "settings",
    "tensors",
    "checkpoints",
)
"""Fields of a spec that change no score."""


def spec_key(spec: ScoringSpec) -> str:
    """How a checkpoint is read, as one line of text for fingerprints.

    It holds the fields that differ from their defaults, so that a field that a later version adds changes no fingerprint.
    """
    [(name, read)] = _differences(spec).items()
    return json.dumps({name: {k: v for k, v in read.items() if k not in _FINDING}}, sort_keys=True)


def _differences(value: Any) -> Any:
    if not is_dataclass(value):
        return value
    pairs = ((field.name, getattr(value, field.name), field.default) for field in fields(value))
    return {type(value).__name__: {name: _differences(part) for name, part, usual in pairs if part != usual}}


NOTE_FILE = "calibration.json"
"""Beside the spec: the last map, what it was fitted on, the readout before it, and the note before this one."""


def check_readout(readout: Readout) -> None:
    """Refuse (`UsageError`) a readout that takes no Platt map: neither a sigmoid nor a softmax of two classes."""
    if not readout.takes_a_map:
        classes = " of three classes" if readout.neutral is not None else ""
        raise UsageError(
            f"the scores of this checkpoint are read by {readout.activation!r}{classes}; a calibration can be stored only where "
            "they are the sigmoid of one logit or the softmax of two"
        )


def composed(readout: Readout, scale: float, shift: float) -> Readout:
    """The readout whose scores are `sigmoid(scale * logit(score) + shift)` of the scores of the given one, whose own map is in them; see `check_readout`."""
    check_readout(readout)
    if not (math.isfinite(scale) and math.isfinite(shift)):
        raise UsageError(f"expected a finite map, found scale {scale:g} and shift {shift:g}")
    return replace(readout, scale=scale * readout.scale, shift=scale * readout.shift + shift)


def store_calibration(
    folder: str | Path, spec: ScoringSpec, *, scale: float, shift: float, note: Mapping[str, Any]
) -> ScoringSpec:
    """Put a Platt map into a checkpoint, on top of the one that is there, so that loading it again gives the calibrated scores.

    The note is written first and the spec last, each whole or not at all: what `load_prm` reads changes in one rename. The note's `after` says which
    readout it belongs to.

    Args:
        folder: the checkpoint.
        spec: what its scores were made with.
        scale, shift: of the logit of those scores.
        note: what it was fitted on and how well.

    Returns:
        The spec as it now stands in the folder.

    Raises:
        UsageError: as `composed`; the folder cannot be written to.
        CheckpointError: the note that is there cannot be read.
    """
    new = replace(spec, readout=composed(spec.readout, scale, shift))
    beside = Path(folder) / NOTE_FILE
    body = {
        **note,
        "scale": scale,
        "shift": shift,
        "before": {"scale": spec.readout.scale, "shift": spec.readout.shift},
        "after": {"scale": new.readout.scale, "shift": new.readout.shift},
        **({"earlier": read_object(beside)} if present(beside) else {}),
    }
    for path, content in ((beside, body), (Path(folder) / SPEC_FILE, asdict(new))):
        with atomic_write(path) as file:
            file.write(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return new
