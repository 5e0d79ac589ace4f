"""Find the family of a checkpoint: from its own spec, its name, its config, or its head's tensors.

A checkpoint that nothing identifies is refused with what was found; a wrong guess would give plausible numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepmark.catalog import unknown_name
from stepmark.errors import CheckpointError, InputError, UnknownFamilyError
from stepmark.models.backbone import read_config
from stepmark.models.checkpoint import Tensors, beside_backbone, fact_of
from stepmark.models.families import FAMILIES
from stepmark.models.files import present, read_object
from stepmark.models.spec import SPEC_FILE, ScoringSpec
from stepmark.records import read_record


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
    raise UnknownFamilyError(
        f"{name}: the PRM family cannot be told. Found architectures {architectures or 'none'} and, beside the backbone, "
        f"the tensors {heads[:6] or 'none'}"
        + (
            " (a plain language model; several families look like this)"
            if heads in ([], ["lm_head.weight"])
            else ""
        )
        + f". Name the family with `family`, of: {', '.join(FAMILIES)}"
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
            f"{folder}: a classifier with {classes} labels; {family} has {labels}. Name the family with `family`, or put a "
            f"{SPEC_FILE} beside it that says how it is read"
        )
    return FAMILIES[family]


def read_spec(file: Path) -> ScoringSpec:
    """A checkpoint's own spec.

    Raises:
        CheckpointError: not JSON, an unknown key, a wrong type; names the field.
    """
    try:
        return read_record(ScoringSpec, read_object(file))
    except InputError as error:
        raise CheckpointError(f"{file}: {error}") from error
