"""Published PRM checkpoints: short names, sizes, licences and published ProcessBench figures.

The one place for hub names: `load_prm`, the scoring specs, `stepmark families` and the table in `docs/families.md` read it.
Sizes are counted from the architecture of the base model. A licence or figure that we have not seen at its source is None.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stepmark.show.tables import ABSENT, Table


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
LLAMA_8B = Base(backbone=7_504_924_672, output=525_336_576)
LLEMMA_34B = Base(backbone=33_481_826_304, output=262_144_000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
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

_ALL = (
    Published(
        name="qwen-7b",
        hub="Qwen/Qwen2.5-Math-PRM-7B",
        family="qwen-prm",
        base=QWEN_7B,
        licence="qwen",
        processbench=73.5,
        source=_LESSONS,
    ),
    Published(
        name="qwen-72b",
        hub="Qwen/Qwen2.5-Math-PRM-72B",
        family="qwen-prm",
        base=QWEN_72B,
        licence="qwen",
        processbench=78.3,
        source=_LESSONS,
    ),
    Published(
        name="qwen-7b-prm800k",
        hub="Qwen/Qwen2.5-Math-7B-PRM800K",
        family="qwen-prm",
        base=QWEN_7B,
        licence="qwen",
        processbench=56.5,
        source=_LESSONS,
    ),
    Published(name="reasonflux-7b", hub="Gen-Verse/ReasonFlux-PRM-7B", family="reasonflux-prm", base=QWEN_7B),
    Published(
        name="skywork-1.5b",
        hub="Skywork/Skywork-o1-Open-PRM-Qwen-2.5-1.5B",
        family="skywork",
        base=QWEN_1_5B,
        licence=_SKYWORK,
        processbench=36.4,
        source=_LESSONS,
    ),
    Published(
        name="skywork-7b",
        hub="Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B",
        family="skywork",
        base=QWEN_7B,
        licence=_SKYWORK,
        processbench=42.1,
        source=_LESSONS,
    ),
    Published(
        name="math-shepherd",
        hub="peiyi9979/math-shepherd-mistral-7b-prm",
        family="math-shepherd",
        base=MISTRAL_7B,
        processbench=31.5,
        source=_LESSONS,
    ),
    Published(
        name="rlhflow-mistral",
        hub="RLHFlow/Llama3.1-8B-PRM-Mistral-Data",
        family="rlhflow",
        base=LLAMA_8B,
        processbench=28.4,
        source=_LESSONS,
    ),
    Published(
        name="rlhflow-deepseek",
        hub="RLHFlow/Llama3.1-8B-PRM-Deepseek-Data",
        family="rlhflow",
        base=LLAMA_8B,
        processbench=26.6,
        source=_LESSONS,
    ),
    Published(
        name="eurus-stage1",
        hub="PRIME-RL/EurusPRM-Stage1",
        family="implicit",
        base=QWEN_7B,
        language_models=2,
        licence=_APACHE,
        processbench=31.2,
        source=_LESSONS,
    ),
    Published(
        name="eurus",
        hub="PRIME-RL/EurusPRM-Stage2",
        family="implicit",
        base=QWEN_7B,
        language_models=2,
        licence=_APACHE,
        processbench=31.3,
        source=_LESSONS,
    ),
    Published(
        name="pure",
        hub="jinachris/PURE-PRM-7B",
        family="pure",
        base=QWEN_7B,
        processbench=57.5,
        source=_PURE,
    ),
    Published(name="versa", hub="UW-Madison-Lee-Lab/VersaPRM", family="versaprm", base=LLAMA_8B),
    Published(name="llama-prm800k", hub="UW-Madison-Lee-Lab/Llama-PRM800K", family="versaprm", base=LLAMA_8B),
    Published(
        name="versa-qwen-prm800k", hub="UW-Madison-Lee-Lab/Qwen-PRM800K", family="versaprm", base=QWEN_7B
    ),
    Published(name="reasoneval-7b", hub="GAIR/ReasonEval-7B", family="reasoneval", base=MISTRAL_7B),
    Published(
        name="reasoneval-34b",
        hub="GAIR/ReasonEval-34B",
        family="reasoneval-34b",
        base=LLEMMA_34B,
        licence="llama2",
    ),
    Published(
        name="actprm", hub="sail/ActPRM", family="actprm", base=QWEN_7B, processbench=75.0, source=_ACTPRM
    ),
    Published(
        name="actprm-x",
        hub="sail/ActPRM-X",
        family="actprm",
        base=QWEN_7B,
        licence=_APACHE,
        processbench=76.0,
        source=_ACTPRM,
    ),
    Published(
        name="thinkprm-1.5b",
        hub="launch/ThinkPRM-1.5B",
        family="thinkprm",
        base=QWEN_1_5B_UNTIED,
        language_models=1,
        licence=_APACHE,
    ),
    Published(
        name="thinkprm-7b", hub="launch/ThinkPRM-7B", family="thinkprm", base=QWEN_7B, language_models=1
    ),
    Published(
        name="thinkprm-14b",
        hub="launch/ThinkPRM-14B",
        family="thinkprm",
        base=QWEN_14B,
        language_models=1,
        licence=_APACHE,
    ),
    Published(
        name="genprm-1.5b",
        hub="GenPRM/GenPRM-1.5B",
        family="genprm",
        base=QWEN_1_5B_UNTIED,
        language_models=1,
        processbench=63.4,
        source=_GENPRM_8,
    ),
    Published(
        name="genprm-7b",
        hub="GenPRM/GenPRM-7B",
        family="genprm",
        base=QWEN_7B,
        language_models=1,
        processbench=75.2,
        source=_GENPRM,
    ),
    Published(
        name="genprm-32b",
        hub="GenPRM/GenPRM-32B",
        family="genprm",
        base=QWEN_32B,
        language_models=1,
        processbench=77.6,
        source=_GENPRM,
    ),
    Published(
        name="r-prm-sft",
        hub="kevinpro/R-PRM-7B-SFT",
        family="r-prm",
        base=QWEN_7B,
        language_models=1,
        processbench=65.2,
        source=_RPRM,
    ),
    Published(
        name="r-prm",
        hub="kevinpro/R-PRM-7B-DPO",
        family="r-prm",
        base=QWEN_7B,
        language_models=1,
        licence=_APACHE,
        processbench=70.4,
        source=_RPRM,
    ),
)

PUBLISHED: Mapping[str, Published] = {checkpoint.name: checkpoint for checkpoint in _ALL}
"""Published checkpoints by short name."""

_BY_HUB_NAME = {checkpoint.hub: checkpoint for checkpoint in _ALL}


def hub_names(family: str) -> tuple[str, ...]:
    """Hub names of the published checkpoints of a family."""
    return tuple(checkpoint.hub for checkpoint in _ALL if checkpoint.family == family)


def find_published(name: str) -> Published | None:
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
    folded |= {checkpoint.hub.lower(): checkpoint.hub for checkpoint in _ALL}
    near = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.7)
    return [folded[known] for known in near]


def table() -> Table:
    """The published checkpoints, highest ProcessBench F1 first; the note lists the sources of the figures by number."""
    ranked = sorted(_ALL, key=lambda checkpoint: -(checkpoint.processbench or 0))
    sources = dict.fromkeys(checkpoint.source for checkpoint in ranked if checkpoint.source)
    numbers = {source: str(number) for number, source in enumerate(sources, 1)}
    return Table(
        title="Published PRMs",
        columns=("name", "on the hub", "parameters", "bfloat16", "licence", "ProcessBench F1", "source"),
        rows=tuple(
            (
                checkpoint.name,
                checkpoint.hub,
                f"{checkpoint.parameters / 1e9:.1f}B",
                f"{checkpoint.memory:.1f} GB",
                checkpoint.licence or ABSENT,
                ABSENT if checkpoint.processbench is None else f"{checkpoint.processbench:.1f}",
                numbers.get(checkpoint.source or "", ABSENT),
            )
            for checkpoint in ranked
        ),
        align=("left", "left", "right", "right", "left", "right", "right"),
        note="Sources: " + "; ".join(f"({number}) {source}" for source, number in numbers.items()) + ".",
    )
