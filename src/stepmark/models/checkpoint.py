"""Checkpoints on disk: what tensors they hold, of which family they are, and LoRA adapters over a base.

Safetensors are preferred; a `.bin` is read with `weights_only=True`, which executes nothing.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepmark.errors import CheckpointError, UnknownFamilyError
from stepmark.models.families import FAMILIES
from stepmark.models.files import ADAPTER_FILE, check_file, check_written, present, read_object, weight_files
from stepmark.models.spec import SPEC_FILE, ScoringSpec, read_spec
from stepmark.registry import unknown_name
from stepmark.words import amount

# Settings of PEFT's LoraConfig that change what the adapter computes.
_VARIANTS = (
    "use_dora",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
    "alora_invocation_tokens",
    "layer_replication",
    "trainable_token_indices",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
)


FLOATING = frozenset({"float64", "float32", "float16", "bfloat16"})
"""The types of plain weights; of any other, the numbers mean something only with scales or tables beside them."""
_SAFETENSORS_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool",
    **{f"{'U' * unsigned}I{bits}": f"{'u' * unsigned}int{bits}" for unsigned in (0, 1) for bits in (8, 16, 32, 64)},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFact:
    """What is known of a tensor before it is read."""

    file: Path
    """Where it is stored."""
    shape: tuple[int, ...]
    """Its sizes."""
    dtype: str
    """As torch names it; as safetensors does where that is another ("F8_E4M3")."""

    @classmethod
    def of(cls, tensor: Tensor, file: Path) -> TensorFact:
        """Of a tensor that is in memory."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        return cls(file=file, shape=tuple(tensor.shape), dtype=dtype)

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


class Tensors:
    """The tensors of a checkpoint folder, read one by one without loading the rest.

    Args:
        folder: of the checkpoint.
        extra: tensors in memory that take the place of those in the folder: what came with an adapter.

    Raises:
        CheckpointError: no weights, an unreadable file, a tensor in two files, or one that is not where the index of the shards puts it.
    """

    def __init__(self, folder: Path, extra: Mapping[str, Tensor] | None = None) -> None:
        self.folder, self._extra = folder, dict(extra or {})
        self.files = weight_files(folder)
        self.facts: dict[str, TensorFact] = {}
        self._loaded: dict[Path, dict[str, Tensor]] = {}
        for file in self.files.every:
            for name, fact in self._facts(file):
                if name in self.facts:
                    raise CheckpointError(
                        f"{folder}: both {self.facts[name].file.name} and {file.name} hold a tensor {name!r}, and which one is meant "
                        "cannot be known; keep the files of one model only"
                    )
                self.facts[name] = fact
        for name, file in self.files.places.items():
            if name not in self.facts or self.facts[name].file != file:
                where = f"it is in {self.facts[name].file.name}" if name in self.facts else "no file holds it"
                raise CheckpointError(
                    f"{self.files.index} puts {name!r} into {file.name}, and {where}; fetch the whole checkpoint again"
                )

        self.facts |= {name: TensorFact.of(tensor, folder) for name, tensor in self._extra.items()}

    def _facts(self, file: Path) -> Iterable[tuple[str, TensorFact]]:
        check_file(file)
        check_written(file)
        if file.suffix == ".bin":
            return [(name, TensorFact.of(tensor, file)) for name, tensor in self._bin(file).items()]
        from safetensors import SafetensorError, safe_open

        facts = []
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                    part = opened.get_slice(name)
                    code = part.get_dtype()
                    dtype = _SAFETENSORS_TYPES.get(code, code)
                    facts.append((name, TensorFact(file=file, shape=tuple(part.get_shape()), dtype=dtype)))
        except (SafetensorError, OSError, MemoryError) as error:
            raise CheckpointError(
                f"{file} is not a readable safetensors file ({error}); fetch it again"
            ) from error
        return facts

    def _bin(self, file: Path) -> dict[str, Tensor]:
        if file not in self._loaded:
            try:
                # Files of before torch 1.6 are no zip archives, and only archives can be mapped.
                mapped = zipfile.is_zipfile(file)
                loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
            except Exception as error:  # torch raises many kinds for a corrupt or an unsafe file
                raise CheckpointError(f"{file} cannot be read with weights_only=True: {error}") from error
            if not isinstance(loaded, dict) or not all(isinstance(t, Tensor) for t in loaded.values()):
                raise CheckpointError(f"{file} should hold tensors by name, and nothing else")
            self._loaded[file] = loaded
        return self._loaded[file]

    @property
    def names(self) -> frozenset[str]:
        """All tensor names."""
        return frozenset(self.facts)

    def get(self, name: str) -> Tensor:
        """One tensor; a `CheckpointError` where there is none."""
        return self.read([name])[name]

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Some tensors by name, each file opened once; a `CheckpointError` where one is missing."""
        tensors: dict[str, Tensor] = {}
        by_file: dict[Path, list[str]] = {}
        for name in names:
            if name in self._extra:
                tensors[name] = self._extra[name]
            else:
                by_file.setdefault(fact_of(self.facts, name, self.folder).file, []).append(name)
        for file, inside in by_file.items():
            if file.suffix == ".bin":
                tensors |= {name: self._bin(file)[name] for name in inside}
                continue
            from safetensors import safe_open

            with safe_open(file, framework="pt") as opened:
                tensors |= {name: opened.get_tensor(name) for name in inside}
        return tensors


def fact_of(facts: Mapping[str, TensorFact], name: str, folder: Path) -> TensorFact:
    """What is known of one tensor; a `CheckpointError` that lists the heads that there are where it is not there."""
    fact = facts.get(name)
    if fact is None:
        raise CheckpointError(
            f"{folder}: no tensor {name!r}; beside the backbone it holds {beside_backbone(facts)[:8]}"
        )
    return fact


def beside_backbone(names: Iterable[str]) -> list[str]:
    """Of tensor names, those that belong to no decoder layer, embedding or final norm: heads."""
    parts = ("layers.", "embed_tokens.", "model.norm.", "norm.weight", "rotary")
    return sorted(n for n in names if not any(p in n for p in parts))


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` as it is."""
    file = folder / "config.json"
    if not present(file):
        raise CheckpointError(f"{folder} holds no config.json: it is not a checkpoint")
    return read_object(file)


# Families.


def spec_of(folder: Path, name: str, family: str | None) -> ScoringSpec:
    """The scoring spec of a checkpoint folder.

    Args:
        folder: where it lies.
        name: what the caller called it; a hub name or a folder named like a published checkpoint counts.
        family: a family named by the caller, which decides.

    Raises:
        UnknownNameError: `family` is no family.
        UnknownFamilyError: nothing identifies the family.
        CheckpointError: the checkpoint's own spec cannot be read.
    """
    if family is not None:
        if family not in FAMILIES:
            raise unknown_name("PRM family", family, FAMILIES)
        return FAMILIES[family]
    if present(folder / SPEC_FILE):
        return read_spec(folder / SPEC_FILE)
    named = _by_name(name)
    if named is not None:
        return named
    if not present(folder / "config.json"):
        raise UnknownFamilyError(
            f"{folder} holds neither config.json nor {SPEC_FILE}; an adapter alone does not tell its family: name one "
            f"with `family`, of: {', '.join(FAMILIES)}"
        )
    config = read_config(folder)
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(
        isinstance(name_given, str) for name_given in architectures
    ):
        raise CheckpointError(
            f"{folder}/config.json: architectures should be a list of names, found {architectures!r}"
        )
    tensors = Tensors(folder)
    spec = _by_contents(folder, architectures, config, tensors)
    if spec is not None:
        return spec
    for architecture in architectures:
        if architecture.endswith("ForTokenClassification"):
            return _classifier(folder, tensors, "token-classification", 2)
        if architecture.endswith("ForSequenceClassification"):
            return _classifier(folder, tensors, "orm", 1)
    heads = beside_backbone(tensors.facts)
    known = f"`family`, of: {', '.join(FAMILIES)}"
    if heads in ([], ["lm_head.weight"]):
        raise UnknownFamilyError(
            f"{name} is a language model without a PRM's head ({', '.join(architectures) or 'no architectures'}): train a PRM on this "
            f"base first (stepmark train), or name a PRM, such as `prm` default. If it is a PRM that scores with the language "
            f"model's own head, name its {known}"
        )
    raise UnknownFamilyError(
        f"{name}: the PRM family is not recognised. Found architectures {architectures or 'none'} and, beside the backbone, "
        f"the tensors {heads[:6]}. Name it with {known}"
    )


def _by_name(name: str) -> ScoringSpec | None:
    base = name.rstrip("/").rsplit("/", 1)[-1].lower()
    for spec in FAMILIES.values():
        if any(base == known.rsplit("/", 1)[-1].lower() for known in spec.checkpoints):
            return spec
    return None


def _by_contents(
    folder: Path, architectures: list[str], config: dict[str, Any], tensors: Tensors
) -> ScoringSpec | None:
    """The family that the architecture means, or else a setting, or else a head's tensor."""
    specs = FAMILIES.values()
    for claims in (
        [spec for spec in specs if set(spec.architectures) & set(architectures)],
        [spec for spec in specs if set(spec.settings) & set(config)],
        [spec for spec in specs if set(spec.tensors) & tensors.names],
    ):
        if len(claims) > 1:
            # ReasonEval's two sizes have the same tensors and are read at different tokens.
            raise UnknownFamilyError(
                f"{folder} may be of several families: {', '.join(spec.family for spec in claims)}. Name one with `family`"
            )
        if claims:
            return claims[0]
    return None


def _classifier(folder: Path, tensors: Tensors, family: str, labels: int) -> ScoringSpec:
    shape = fact_of(tensors.facts, "score.weight", folder).shape
    classes = shape[0] if shape else 0
    if classes != labels:
        raise UnknownFamilyError(
            f"{folder}: a classifier with {amount(classes, 'label')}; {family} has {labels}. Name the family with `family`, or put a "
            f"{SPEC_FILE} beside it that says how it is read"
        )
    return FAMILIES[family]


# Adapters.


def adapter_head(folder: Path) -> dict[str, TensorFact]:
    """What an adapter's folder holds beside LoRA weights, under the names that it has in the whole model."""
    facts = Tensors(folder).facts.items()
    return {_bare(name): fact for name, fact in facts if ".lora_" not in name}


def merge_adapter(backbone: Any, folder: Path) -> dict[str, Tensor]:
    """Add a LoRA adapter (PEFT layout) to a backbone's weights, in float32, in place.

    Source: Hu et al. 2021, "LoRA", equation 3: W + alpha / r * B A.

    Returns:
        The adapter's other tensors, by name: a head that was saved with it.

    Raises:
        CheckpointError: a variant of LoRA that this does not implement, or tensors that do not fit the adapter's config or the base.
    """
    config = adapter_config(folder)
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    tensors = Tensors(folder)
    pairs = _pairs(tensors, config, backbone)
    halves = tensors.read(name for pair in pairs.values() for name in pair)
    for target, (down, up) in pairs.items():
        weight = backbone.get_parameter(f"{target}.weight")
        added = scale * (halves[up].float() @ halves[down].float())
        with torch.no_grad():
            weight.copy_((weight.float() + added.to(weight.device)).to(weight.dtype))
    merged = {name for pair in pairs.values() for name in pair}
    others = {_bare(name): tensors.get(name) for name in sorted(tensors.names - merged)}
    return {name: t for name, t in others.items() if not _replaced(backbone, name, t, folder)}


def _bare(name: str) -> str:
    return name.removeprefix("base_model.model.")


def _pairs(tensors: Tensors, config: Mapping[str, Any], backbone: Any) -> dict[str, tuple[str, str]]:
    """The names of A and B by the module of the backbone that they change, all known to fit."""
    folder, rank = tensors.folder, config["r"]
    weights = {name: tuple(weight.shape) for name, weight in backbone.named_parameters()}
    pairs: dict[str, tuple[str, str]] = {}
    for name, fact in sorted(tensors.facts.items()):
        if fact.dtype not in FLOATING:
            raise CheckpointError(
                f"{fact.file}: {name} is of type {fact.dtype}; expected one of {', '.join(sorted(FLOATING))}"
            )
        module, part, _ = _bare(name).partition(".lora_")
        if not part or not name.endswith((".lora_A.weight", ".lora_B.weight")):
            continue
        target = module.removeprefix("model.")
        if f"{target}.weight" not in weights:
            raise CheckpointError(f"{folder}: the adapter changes {target!r}, which the base does not have")
        down, up = (name.replace(name[-len("A.weight") :], f"{side}.weight") for side in "AB")
        out, into = weights[f"{target}.weight"]
        for half, shape in ((down, (rank, into)), (up, (out, rank))):
            actual = fact_of(tensors.facts, half, folder).shape
            if actual != shape:
                raise CheckpointError(
                    f"{fact.file}: {half} has the shape {actual}; expected {shape}, for {ADAPTER_FILE} says r = {rank} and the base's "
                    f"{target} is {(out, into)}"
                )
        pairs[target] = (down, up)
    if lacking := sorted(_targets(config, backbone) - pairs.keys()):
        raise CheckpointError(
            f"{folder}: by target_modules of {ADAPTER_FILE} the adapter changes {', '.join(lacking[:3])} ({amount(len(lacking), 'module')}), "
            "and its weights hold nothing for them; fetch the whole adapter, or name the layers that it changes in layers_to_transform"
        )
    return pairs


def _targets(config: Mapping[str, Any], backbone: Any) -> set[str]:
    """The linear modules that the config says are changed; empty where it says so by a pattern, which only peft can read."""
    names, layers = config.get("target_modules"), config.get("layers_to_transform")
    if not isinstance(names, list) or config.get("exclude_modules"):
        return set()
    numbers = None if layers is None else {str(n) for n in (layers if isinstance(layers, list) else [layers])}
    return {
        module
        for module, kind in backbone.named_modules()
        if isinstance(kind, torch.nn.Linear)
        and any(f".model.{module}".endswith(f".{name}") for name in names)
        and (numbers is None or numbers & set(module.split(".")))
    }


def _replaced(backbone: Any, name: str, tensor: Tensor, folder: Path) -> bool:
    """Put a tensor that the adapter holds whole (PEFT's `modules_to_save`) into the backbone; False for a head's."""
    target = name.removeprefix("model.")
    if target.split(".")[0] not in dict(backbone.named_children()) and "lora_" not in name:
        return False
    weight = dict(backbone.named_parameters()).get(target)
    if weight is None or weight.shape != tensor.shape:
        raise CheckpointError(
            f"{folder}: the adapter holds {name!r} of shape {tuple(tensor.shape)}, which stepmark cannot put into the "
            "base; merge it with peft"
        )
    with torch.no_grad():
        weight.copy_(tensor)
    return True


def adapter_config(folder: Path) -> dict[str, Any]:
    """`adapter_config.json`, known to be of a LoRA adapter that `merge_adapter` can merge; else a `CheckpointError`."""
    file = folder / ADAPTER_FILE
    config = read_object(file)
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{file}: expected peft_type LORA; merge another kind of adapter with peft")
    for option in _VARIANTS:
        if config.get(option):
            raise CheckpointError(
                f"{folder}: the adapter uses {option}, which stepmark does not merge; merge it with peft"
            )
    for key in ("r", "lora_alpha"):
        value = config.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise CheckpointError(f"{file}: {key} should be a number above 0, found {value!r}")
    return config
