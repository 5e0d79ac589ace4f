"""`load_prm`: from a name, a folder, an address or a factory to a PRM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field

from stepmark.errors import CheckpointError, MissingExtraError, UsageError
from stepmark.models.families import FAMILIES, find_published, full_name
from stepmark.models.files import local_folder, present
from stepmark.models.identity import CheckpointFiles, named
from stepmark.models.lazy import LOADING, UNSAID, Bits, Lazy, check_device, is_server, note_idle
from stepmark.models.places import BUILT_IN, BUILT_IN_BASE, NAMES, adapter_base, find_checkpoint, folder_of
from stepmark.models.prm import PRM, identity_of
from stepmark.models.spec import (
    ConfidenceHead,
    ConversationLayout,
    LogRatioHead,
    TextLayout,
    TokenHead,
    VocabHead,
    spec_key,
)
from stepmark.settings import check_arguments as check_settings
from stepmark.settings import checked

if TYPE_CHECKING:
    from stepmark.models.checkpoint import Tensors
    from stepmark.models.encoding import Encoder
    from stepmark.models.generative import Settings
    from stepmark.models.spec import ScoringSpec
    from stepmark.registry import Registry


SHARED = ("dtype", "quantize", "device", "token_budget", "truncate")
"""Settings that a command takes once for the PRM and the outcome model beside it."""

PRMLike: TypeAlias = PRM | str | Lazy[PRM]
"""A PRM, or the name that `load_prm` takes."""


@checked
def load_prm(
    name_or_path: str = "default",
    *,
    family: str | None = None,
    neutral: Literal["positive", "negative"] = "positive",
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    quantize: Bits | None = None,
    device: str = "auto",
    truncate: bool = False,
    token_budget: Annotated[int, Field(ge=1)] | None = None,
    reference: str | None = None,
    model: str | None = None,
    tokenizer: str | None = None,
    outcome: bool = False,
    samples: Annotated[int, Field(ge=1)] | None = None,
    seed: int = 0,
) -> PRM:
    """Load a process reward model.

    Args:
        name_or_path: "default" (the PRM that ships with stepmark), a checkpoint's folder, a hub name, the
            short name of a published PRM ("qwen-7b"; `stepmark families` lists them), the address of a server ("http://…"; the key in `STEPMARK_API_KEY` is sent, if there is one), or "package.module:factory" whose call gives a PRM.
            A server is asked whether it is a stepmark server (`stepmark serve`), which reads texts; any other one is sent token
            ids (vLLM, SGLang) and needs `tokenizer`, unless it serves a published PRM under its hub name.
        family: the PRM's family (`stepmark families` lists them); default: from the checkpoint. Published generative PRMs that
            `stepmark families` does not list need it.
        neutral: for three-class PRMs, whether a neutral step counts as good (Lightman et al. 2023, Table 4).
        dtype: "float32", "bfloat16", or "auto": bfloat16 where the device computes in it natively and the
            checkpoint is stored in it, else float32.
        quantize: keep the layers' weights in 8 or 4 bit; they compute in `dtype`. Such a PRM has other scores, and another identity.
        device: "cpu", "cuda", "cuda:1", "auto" (one GPU if there is one), or "all": the layers are spread over all GPUs.
        truncate: score what fits of a solution that is too long and leave the later steps None, instead of
            raising.
        token_budget: tokens a forward pass; bounds memory. Default: 2,048 on CPU; on CUDA by free memory, 2,048 to 16,384.
        reference: for implicit PRMs, the reference model; default: the family's. It computes in the PRM's own
            precision.
        model: for servers, the served model's name, where there are several.
        tokenizer: for servers that take token ids, the folder or hub name of the checkpoint's tokenizer; a stepmark server needs none.
        outcome: read only the last step: the checkpoint as an outcome reward model.
        samples: for generative PRMs, critiques a step; default: the family's.
        seed: for generative PRMs, the seed of their samples.

    Raises:
        CheckpointError: missing, corrupt, or of a family that cannot be told.
        UsageError: settings that do not go together, one that means nothing for the PRM that is named, or a factory that failed.
        BackendError: a server failed.
        MissingExtraError: torch or transformers is not installed.
    """
    arguments: dict[str, Any] = dict(locals())
    with LOADING:
        _, load = _find(_Settings(name=arguments.pop("name_or_path"), **arguments))
        return load()


def lazy_prm(name_or_path: str, **arguments: Any) -> Lazy[PRM]:
    """The PRM that `load_prm` would give with these arguments, loaded when it is needed."""
    return Lazy(load_prm, full_name(name_or_path), arguments, check=check_arguments, identity=_identity)


def check_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a device that is none, and warn of settings that have no effect for the PRM, as far as its name tells.

    Raises:
        UsageError: one of them.
        CheckpointError: what the checkpoint says of itself cannot be read.
    """
    check_settings(load_prm, arguments)
    check_device(arguments.get("device", "auto"), several=True)
    idle = idle_settings(name, family=arguments.get("family"), tokenizer=arguments.get("tokenizer"))
    note_idle(arguments, idle)


def _identity(name: str, **settings: Any) -> str:
    identity, _ = _find(_Settings(name=name, **settings))
    return identity()


def is_factory(name: str) -> bool:
    """Whether a PRM's name is "package.module:factory"."""
    return ":" in name and not is_server(name) and "/" not in name and name not in BUILT_IN


def writes_critiques(name: str, *, family: str | None = None, tokenizer: str | None = None) -> bool:
    """Whether a PRM named so (no factory's) is read as one that writes critiques.

    Raises:
        CheckpointError: what the checkpoint says of itself cannot be read.
    """
    from stepmark.models.generative import GENERATIVE, critic_spec_of

    if family is not None:
        return family in GENERATIVE
    place = name if tokenizer is None else tokenizer
    published = find_published(place)
    if published is not None:
        return published.family in GENERATIVE
    # Only of what lies here: whether to fetch a name from the hub is not decided by asking this.
    folder = local_folder(place)
    return folder is not None and critic_spec_of(folder) is not None


def idle_settings(name: str, *, family: str | None = None, tokenizer: str | None = None) -> dict[str, str]:
    """The settings that mean nothing for a PRM, as far as its name tells; each with what the PRM is, and what to do.

    Raises:
        CheckpointError: what the checkpoint says of itself cannot be read.
    """
    served = is_server(name)
    reads: tuple[str, ...]
    if is_factory(name):
        what, reads = "is made by that function", ()
    elif writes_critiques(name, family=family, tokenizer=tokenizer):
        place = ("model", "tokenizer") if served else ("dtype", "quantize", "device")
        what, reads = "is read as one that writes critiques", ("family", "samples", "seed", *place)
    elif served and tokenizer is None:
        what = (
            "without `tokenizer` is taken for a stepmark server, which computes by itself and decides how its PRM is read; name "
            "another server's `tokenizer`"
        )
        reads = ("model",)
    elif served:
        what = "is a server, which computes by itself a PRM that writes no critiques; name its `family`"
        reads = ("family", "neutral", "truncate", "model", "tokenizer")
    else:
        what = "is read here, as one that writes no critiques; name its `family` (`stepmark families`)"
        reads = ("family", "neutral", "truncate", "reference", "dtype", "quantize", "device", "token_budget")
    return {setting: f"{name} {what}" for setting in UNSAID if setting not in reads}


def read_by(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of settings (some of `SHARED`) that are given for several models at once, those that this one reads."""
    idle = idle_settings(name)
    return {key: value for key, value in settings.items() if key not in idle}


def prm_of(name: str, names: Registry) -> PRM:
    """The PRM that a user's function or class makes.

    Raises:
        UsageError: there is none, it raised an error of another kind than stepmark's, or gave no PRM with an identity.
    """
    made: PRM = names.make(name, ("name", "score_kind", "default_aggregate", "score_many"))
    identity_of(made)
    if not isinstance(made, PRM):
        raise UsageError(f"{name}: expected a PRM derived from stepmark.PRM, found a {type(made).__name__}")
    return made


@dataclass(frozen=True, kw_only=True, slots=True)
class _Settings:
    """What `load_prm` was given."""

    name: str
    family: str | None = None
    neutral: Literal["positive", "negative"] = "positive"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    quantize: Bits | None = None
    device: str = "auto"
    truncate: bool = False
    token_budget: int | None = None
    reference: str | None = None
    model: str | None = None
    tokenizer: str | None = None
    outcome: bool = False
    samples: int | None = None
    seed: int = 0


_Loading = tuple[Callable[[], str], Callable[[], PRM]]
"""What gives a PRM's `identity` without loading it, and what loads it."""


def _made(prm: PRM) -> _Loading:
    """Of a PRM that costs nothing to load: on a server, or made by a user's function."""
    return lambda: prm.identity, lambda: prm


def _find(given: _Settings) -> _Loading:
    """The PRM that the settings name; see `load_prm`, also for what it raises."""
    if not given.name.strip():
        raise UsageError(
            "expected a PRM (default, a short name, a folder, a hub name, an address or package.module:factory), found an empty text"
        )
    # The hub's full name stands in outputs and manifests.
    tokenizer = None if given.tokenizer is None else full_name(given.tokenizer)
    given = replace(given, name=full_name(given.name), tokenizer=tokenizer)
    about = {key: value for key, value in asdict(given).items() if key not in ("name", "outcome")}
    idle = idle_settings(given.name, family=given.family, tokenizer=tokenizer)
    note_idle(about, idle)
    defaults: dict[str, Any] = {name: UNSAID.get(name) for name in idle}
    given = replace(given, **defaults)
    if is_factory(given.name):
        return _made(prm_of(given.name, NAMES))
    if writes_critiques(given.name, family=given.family, tokenizer=tokenizer):
        return _critic(given)
    if is_server(given.name) and tokenizer is None:
        served = _remote(given.name, given.model, outcome=given.outcome)
        if isinstance(served, PRM):
            return _made(served)
        tokenizer = served
    if missing := [package for package in ("torch", "transformers") if find_spec(package) is None]:
        extra = "default" if given.name in NAMES else "local"
        raise MissingExtraError(
            f"reading a checkpoint needs {' and '.join(missing)}: pip install 'stepmark[{extra}]'"
        )
    return _checkpoint(given) if tokenizer is None else _made(_served(given, tokenizer))


def critic_settings_of(
    place: str, family: str | None, *, samples: int | None = None, seed: int = 0
) -> Settings:
    """The settings of a PRM that writes critiques; see `writes_critiques` and `generative_prm`."""
    from stepmark.models.generative import critic_settings, critic_spec_of

    named_so: str | Settings | None = family
    if family is None:
        published = find_published(place)
        if published is not None:
            named_so = published.family
        else:  # a critic that stepmark trained says which it is
            folder = local_folder(place)
            spec = None if folder is None else critic_spec_of(folder)
            assert spec is not None
            named_so = replace(spec.settings, seed=seed)
    assert named_so is not None
    return critic_settings(named_so, samples=samples, seed=seed)


def _critic(given: _Settings) -> _Loading:
    """A generative PRM, on a server or of a checkpoint."""
    from stepmark.models.generative import generative_prm as prm
    from stepmark.models.policies import lazy_policy

    place = given.name if given.tokenizer is None else given.tokenizer
    settings = critic_settings_of(place, given.family, samples=given.samples, seed=given.seed)
    if is_server(given.name):
        from stepmark.models.http import key_variable
        from stepmark.models.policies.openai import OpenAIPolicy

        key = key_variable()
        served = OpenAIPolicy(given.name, given.model, tokenizer=given.tokenizer, api_key_env=key)
        return _made(prm(settings, served))

    how: Any = {"dtype": given.dtype, "quantize": given.quantize, "device": given.device}

    def load() -> PRM:
        from stepmark.models.policies.local import LocalPolicy

        return prm(settings, LocalPolicy.load(given.name, **how))

    def identity() -> str:
        return named(lazy_policy(given.name, **how).identity, settings)

    return identity, load


def _remote(address: str, model: str | None, *, outcome: bool) -> PRM | str:
    """The PRM of a stepmark server; of another one, the published PRM that it serves by its hub name."""
    from stepmark.errors import BackendError, UnreachableError
    from stepmark.models.http import Patience, Server, key_variable, root_of
    from stepmark.models.remote.client import RemotePRM, served_models

    # Another kind of server is not asked for long; a stepmark server that is loading is waited for.
    patience = Patience(retries=4, first_wait=0.2, timeout=120)
    with Server(root_of(address), patience=patience, key=key_variable()) as asking:
        try:
            prms, others = served_models(asking)
        except UnreachableError:
            raise
        except BackendError as error:
            reason = str(error)
        else:
            if prms and outcome:
                raise UsageError(
                    f"{address} is a stepmark server, which decides how its PRM is read: give outcome to a model that is read here"
                )
            if prms:
                return RemotePRM(address, model=model)
            known = find_published((model or "") if len(others) != 1 else others[0])
            if known is not None and known.family in FAMILIES:
                return known.hub
            reason = f"it serves {', '.join(map(repr, others)) or 'no model'}, and no PRM of stepmark's"
    raise UsageError(
        f"{address} does not answer as a stepmark server ({reason}); token ids are sent to any other server, so its tokenizer is "
        "needed here: name the checkpoint's folder or hub name with `tokenizer`"
    )


def _served(given: _Settings, tokenizer: str) -> PRM:
    """A PRM behind a server that takes token ids."""
    from stepmark.models.backbone import load_config, load_tokenizer, token_limit
    from stepmark.models.completions import CompletionsPRM
    from stepmark.models.http import key_variable
    from stepmark.models.pooling import ClassifyPRM, PoolingPRM

    folder = find_checkpoint(tokenizer, weights=False)
    files = CheckpointFiles(folder, weights=False)
    spec = _spec(given, folder, tokenizer)
    encoder = _encoder(given, spec, load_tokenizer(folder), token_limit(load_config(folder)))
    served: type[CompletionsPRM | ClassifyPRM | PoolingPRM] = PoolingPRM
    if isinstance(spec.readout.head, VocabHead):
        served = CompletionsPRM
    elif isinstance(spec.layout, ConversationLayout) and not _is_token_classifier(folder):
        served = ClassifyPRM
    return served(
        given.name,
        spec,
        encoder,
        identity=lambda: named(
            given.name, files.fingerprint(), spec_key(spec), given.neutral, given.truncate
        ),
        model=given.model,
        neutral=given.neutral,
        api_key_env=key_variable(),
    )


def _is_token_classifier(folder: Path) -> bool:
    """Whether a server of the checkpoint reads every token, and not the last one only."""
    from stepmark.models.checkpoint import read_config

    return any(
        "ForTokenClassification" in str(name) for name in read_config(folder).get("architectures") or ()
    )


def _spec(given: _Settings, folder: Path, name: str) -> ScoringSpec:
    """How a checkpoint is read, by its own spec or family and by the settings."""
    from stepmark.models.checkpoint import spec_of

    spec = spec_of(folder, name, given.family)
    if spec.readout.neutral is None:
        why = f"{given.name} is read as {spec.family}, which has no neutral class"
        note_idle({"neutral": given.neutral}, {"neutral": why})
    if not given.outcome:
        return spec
    if isinstance(spec.readout.head, LogRatioHead) and spec.readout.head.per_step:
        raise UsageError(
            f"{spec.family} gives each step its own share of the log-ratio, and the last share is no verdict on the "
            "whole; read the outcome with `family` implicit, whose last score is the sum of them all"
        )
    return replace(spec, outcome_only=True, aggregate="last")


def _encoder(given: _Settings, spec: ScoringSpec, tokenizer: Any, limit: int | None) -> Encoder:
    from stepmark.models.encoding import Encoder

    encoder = Encoder(
        tokenizer,
        spec.layout,
        max_tokens=spec.max_tokens or limit,
        truncate=given.truncate,
        outcome_only=spec.outcome_only,
    )
    encoder.check()
    return encoder


def _checkpoint(given: _Settings) -> _Loading:
    """A PRM of a checkpoint. Nothing of its weights is read before `load`."""
    from stepmark.models.backbone import compute_devices

    devices = compute_devices(given.device)
    device = devices[0]
    name, folder = given.name, folder_of(given.name)
    # Noted before anything is read: these files identify what is loaded.
    files = [CheckpointFiles(folder)]
    spec = _spec(given, folder, name)
    head, reference = spec.readout.head, None
    if isinstance(head, LogRatioHead):
        other = given.reference or head.reference
        if other is None:
            raise UsageError(f"{name}: an implicit PRM needs its reference model; name it with `reference`")
        reference = find_checkpoint(other)
        files.append(CheckpointFiles(reference))
    elif given.reference is not None:
        raise UsageError(f"`reference` is for implicit PRMs; {name} is read as {spec.family}")
    dtype = compute_dtype(given.dtype, device, base_of(folder)[1])

    def identity() -> str:
        prints = [noted.fingerprint() for noted in files]
        more = () if given.quantize is None else (given.quantize,)
        return named(name, prints, spec_key(spec), given.neutral, given.truncate, str(dtype), *more)

    def load() -> PRM:
        from stepmark.models.confidence import ConfidencePRM
        from stepmark.models.engine import Engine, token_budget
        from stepmark.models.heads import HeadFunction, build_head, output_rows
        from stepmark.models.local_prm import HeadPRM, ImplicitPRM, LocalPRM, no_head
        from stepmark.models.prm import Ledger
        from stepmark.models.token_head import TokenHeadPRM

        kinds: dict[type, type[LocalPRM]] = {
            ConfidenceHead: ConfidencePRM,
            LogRatioHead: ImplicitPRM,
            TokenHead: TokenHeadPRM,
        }
        kind = kinds.get(type(head), HeadPRM)
        models: list[tuple[Engine, Any]] = []
        own: HeadFunction = no_head
        # The reference in the policy's precision: else the log-ratio would hold the rounding of one of the two.
        for place in filter(None, (folder, reference)):
            backbone, tokens, tensors = _assemble(place, dtype, devices, given.quantize, spec)
            if not models:
                tokenizer = tokens
            elif tokens.get_vocab() != tokenizer.get_vocab():
                raise CheckpointError(
                    f"the reference {reference} has another vocabulary than {name}; their tokens cannot be compared"
                )
            budget = given.token_budget or token_budget(backbone, device)
            engine = Engine(backbone, device=device, token_budget=budget, ledger=Ledger())
            reads_output = kind is not HeadPRM
            output = output_rows(tensors, backbone).to(device, backbone.dtype) if reads_output else None
            if not isinstance(head, ConfidenceHead | LogRatioHead):
                own = build_head(head, tensors, backbone, tokens, device)
            models.append((engine, output))
        limits = [engine.token_limit for engine, _ in models if engine.token_limit is not None]
        return kind(
            name=name,
            spec=spec,
            encoder=_encoder(given, spec, tokenizer, min(limits, default=None)),
            models=models,
            head=own,
            neutral=given.neutral,
            identity=identity,
        )

    return identity, load


def base_of(folder: Path) -> tuple[Path, bool]:
    """The folder of the whole checkpoint, which for an adapter is its base's; and whether it is meant to compute in bfloat16."""
    from stepmark.models.checkpoint import adapter_config, read_config

    named, base = adapter_base(folder) or ("", folder)
    if named:
        adapter_config(folder)
    stored = read_config(base)
    # Our adapters are trained over a base in bfloat16, though the copy on disk is float32.
    return base, named == BUILT_IN_BASE or "bfloat16" in (stored.get("dtype"), stored.get("torch_dtype"))


def _assemble(
    folder: Path, dtype: Any, devices: list[str], quantize: Bits | None, spec: ScoringSpec
) -> tuple[Any, Any, Tensors]:
    """Backbone, tokenizer and tensors of a checkpoint, or of an adapter over one."""
    from stepmark.models.backbone import load_decoder, load_tokenizer
    from stepmark.models.checkpoint import Tensors, adapter_head, merge_adapter, read_config
    from stepmark.models.decoder import decoder_config
    from stepmark.models.heads import check_head
    from stepmark.models.tokenizer import read_tokenizer

    base, _ = base_of(folder)
    facts = Tensors(base).facts | (adapter_head(folder) if base != folder else {})
    size = read_config(base).get("hidden_size")
    hidden = size if isinstance(size, int) else None
    check_head(spec.readout.head, facts, folder=folder, hidden=hidden, classes=spec.readout.classes)
    config = decoder_config(base) if quantize is None and len(devices) == 1 else None
    if config is None:
        from transformers import AutoModel

        from stepmark.models import attention
        from stepmark.models.placement import load_placed

        attention.register()
        how = {"dtype": dtype, "devices": devices, "quantize": quantize}
        backbone, others = load_placed(AutoModel, folder, base, attn_implementation=attention.NAME, **how)
    else:
        backbone = load_decoder(base, config, dtype=dtype, device=devices[0])
        others = {} if base == folder else merge_adapter(backbone, folder)
    has_own = present(folder / "tokenizer.json") or present(folder / "tokenizer_config.json")
    place = folder if has_own else base
    tokenizer = read_tokenizer(place) if isinstance(spec.layout, TextLayout) else None
    return backbone, tokenizer or load_tokenizer(place), Tensors(base, others)


def compute_dtype(dtype: str, device: str, bfloat16_checkpoint: bool) -> Any:
    """The torch dtype that a setting means on a device."""
    import torch

    from stepmark.models.backbone import has_bfloat16

    if dtype == "auto":
        return torch.bfloat16 if bfloat16_checkpoint and has_bfloat16(device) else torch.float32
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if dtype not in known:
        raise UsageError(f"dtype should be float32, bfloat16 or auto, found {dtype!r}")
    return known[dtype]
