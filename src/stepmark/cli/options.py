"""What commands share: the panels of the help, and options that several commands take, each written once.

An option is an annotated parameter of a command's function: `threshold: Annotated[float | None, in_common("--threshold")] = None`. Its help is that
of the argument of the same name in the docstring of the function that the command calls (`documented_by`). `in_common`, `in_data` and so on say in which panel of the help it stands. The settings of a method
are the fields of its class: `FIELDS` makes each a flag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import Group, Parameter, Token

from stepmark.data.columns import parse_columns
from stepmark.models.lazy import Bits, Lazy
from stepmark.models.load import lazy_prm
from stepmark.models.policies import Dtype
from stepmark.models.prm import PRM

Command = TypeVar("Command", bound=Callable[..., int])


def documented_by(function: Callable[..., object]) -> Callable[[Command], Command]:
    """Give a command the docstring of the function that it calls: its help, and that of options whose names are those of arguments."""

    def take(command: Command) -> Command:
        command.__doc__ = function.__doc__
        return command

    return take


METHOD = Group("Method", sort_key=4)
MACHINE = Group("Machine", sort_key=6)
in_common = partial(Parameter, group=Group("Common", sort_key=1))
in_data = partial(Parameter, group=Group("Data", sort_key=2))
in_model = partial(Parameter, group=Group("Model", sort_key=3))
in_method = partial(Parameter, group=METHOD)
in_output = partial(Parameter, group=Group("Output", sort_key=5))
in_machine = partial(Parameter, group=MACHINE)


def without(*names: str) -> Parameter:
    """The options of a class without these."""
    return Parameter(parse=re.compile(rf"^(?!({'|'.join(names)})$)"))


FIELDS = Parameter(name="*", group=METHOD, consume_multiple=True)
"""The fields of a class as flags, of a method mostly: each has its name, type, default and description from the class."""


def fields_but(*names: str) -> Parameter:
    """The fields of a class as flags (`FIELDS`), without these."""
    return Parameter.combine(FIELDS, without(*names))


CLUSTER = Parameter(name="*", group=MACHINE)

TRUNCATE = (
    "Score what fits of a solution that is too long and leave the later steps None, instead of raising."
)
SEED = "For generative PRMs, the seed of their samples."
ROWS = "JSON lines, CSV, TSV, Parquet or a JSON list, or a folder of them"


def _only_a_dash(type_: object, value: str | None) -> None:
    # With leading hyphens allowed, a misspelt option in front of the file would be taken for the file.
    if value is not None and value.startswith("-") and value != "-":
        raise ValueError(f"There is no option {value}; a file of that name is written ./{value}")


FileOrDash = Annotated[str, Parameter(allow_leading_hyphen=True, validator=_only_a_dash)]
"""A file's name, or "-"."""


def _columns(type_: object, tokens: Sequence[Token]) -> dict[str, str]:
    return parse_columns(tokens[0].value)


Columns = Annotated[
    Mapping[str, str],
    in_common(
        "--columns",
        converter=_columns,
        n_tokens=1,
        accepts_keys=False,
        help="Names of columns, where they differ: problem=question,solution=response.",
    ),
]
KeepGoing = Annotated[
    bool, in_common("--keep-going", help="Leave out rows that cannot be used, and list them at the end.")
]
Limit = Annotated[
    int, in_common("--limit", help="Take only this many problems, evenly spaced over the data.")
]
Split = Annotated[
    str,
    in_common(
        "--split",
        help="How a text is split into steps: auto, line, blank-line, numbered, sentence, marker, code, agent, thought, whole, token, or limit:N (words).",
    ),
]
Reasoning = Annotated[
    Literal["keep", "only", "drop"],
    in_data(
        "--reasoning",
        help="What becomes of a thought (<think>, reasoning_content): keep it as steps, grade it only, or drop it.",
    ),
]
Verifier = Annotated[
    str,
    in_common(
        "--verifier",
        help='What compares final answers: math, number, choice, text, code (runs unit tests), or "package.module:Class".',
    ),
]
Answers = Annotated[
    Literal["stated", "marked"],
    in_method(
        "--answers",
        help='Which answers of a solution count: stated, also its concluding statement; marked, only a box, ####, "the answer is".',
    ),
]
IsolationOption = Annotated[
    Literal["bubblewrap", "unsafe"],
    in_method(
        "--isolation",
        help="With the verifier code, what keeps programs apart: bubblewrap, a sandbox; or unsafe, which is none: they can use the network and your files. Default: bubblewrap.",
    ),
]
PolicyName = Annotated[
    str,
    in_common(
        "--policy",
        help="The policy: a folder or hub name that transformers can load; http://host:port/v1#model for a server (without #model the server's only model is taken; the key in STEPMARK_API_KEY is sent, if there is one); package.module:factory, whose call gives a policy; or stepmark:arithmetic, the tiny model of the arithmetic world.",
    ),
]
Quantize = Annotated[
    Bits,
    in_machine(
        "--quantize",
        help="Keep a local model's layers' weights in 8 or 4 bit. Such a policy writes other texts, and has another identity.",
    ),
]
PolicyQuantize = Annotated[
    Bits,
    in_machine(
        "--policy-quantize",
        help="Keep a local policy's layers' weights in 8 or 4 bit. Such a policy writes other texts, and has another identity.",
    ),
]
Settings = Annotated[
    tuple[str, ...],
    in_common(
        "--set",
        help="A field of the method, as name=value; repeat for several. Nested: how.temperature=0.5.",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PRMOptions:
    """Which PRM, and how it is read."""

    prm: Annotated[str, in_common("--prm")] = "default"
    """"default" (the PRM that ships with stepmark), a checkpoint's folder, a hub name, the short name of a published PRM ("qwen-7b"; stepmark
    families lists them), the address of a server ("http://…"; the key in STEPMARK_API_KEY is sent, if there is one), or
    "package.module:factory" whose call gives a PRM. A server is asked whether it is a stepmark server (stepmark serve), which reads texts; any
    other one is sent token ids (vLLM, SGLang) and needs tokenizer."""
    family: Annotated[str | None, in_model("--family")] = None
    """The PRM's family (stepmark families lists them); default: from the checkpoint. Published generative PRMs that stepmark families does not list need it."""
    neutral: Annotated[Literal["positive", "negative"], in_model("--neutral")] = "positive"
    """For three-class PRMs, whether a neutral step counts as good (Lightman et al. 2023, Table 4)."""
    reference: Annotated[str | None, in_model("--reference")] = None
    """For implicit PRMs, the reference model; default: the family's. It computes in the PRM's own precision."""
    model: Annotated[str | None, in_model("--model")] = None
    """For servers, the served model's name, where there are several."""
    tokenizer: Annotated[str | None, in_model("--tokenizer")] = None
    """For servers that take token ids, the folder or hub name of the checkpoint's tokenizer; a stepmark server needs none."""
    samples: Annotated[int | None, in_model("--samples")] = None
    """For generative PRMs, critiques a step; default: the family's."""
    quantize: Annotated[Bits | None, in_machine("--quantize")] = None
    """Keep the layers' weights in 8 or 4 bit; they compute in dtype. Such a PRM has other scores, and another identity."""

    def lazy(self, **more: Any) -> Lazy[PRM]:
        """The PRM, loaded when it is needed.

        Args:
            more: further arguments of `load_prm`.
        """
        arguments = {**vars(self), **more}
        return lazy_prm(arguments.pop("prm"), **arguments)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PRMDevice:
    """Where and in what precision a PRM computes."""

    dtype: Annotated[Literal["auto", "float32", "bfloat16"], in_machine("--dtype")] = "auto"
    """"float32", "bfloat16", or "auto": bfloat16 where the device computes in it natively and the checkpoint is stored in it, else float32."""
    device: Annotated[str, in_machine("--device")] = "auto"
    """"cpu", "cuda", "cuda:1", "auto" (one GPU if there is one), or "all": the layers are spread over all GPUs."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BatchDevice(PRMDevice):
    """Where a PRM computes, and how much at once."""

    token_budget: Annotated[int | None, in_machine("--token-budget")] = None
    """Tokens a forward pass; bounds memory. Default: 2,048 on CPU; on CUDA by free memory, 2,048 to 16,384."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PolicyDevice:
    """Where and in what precision a policy computes."""

    dtype: Annotated[Dtype, in_machine("--dtype")] = "auto"
    """Precision of a local model: "auto" (as saved), "float32", "bfloat16", "float16"."""
    device: Annotated[str, in_machine("--device")] = "auto"
    """Device of a local model: "cpu", "cuda", "cuda:1", "auto" (one GPU if there is one), or "all": the layers are spread over all GPUs."""
