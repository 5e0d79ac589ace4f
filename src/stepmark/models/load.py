"""`load_prm`: from a name, a folder, an address or a factory to a PRM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepmark.errors import CheckpointError, MissingExtraError, UsageError
from stepmark.models.named import (
    idle_settings,
    is_factory,
    is_server,
    prm_of,
    refuse_idle,
    writes_critiques,
)
from stepmark.models.places import NAMES, folder_of
from stepmark.models.prm import PRM

if TYPE_CHECKING:
    from stepmark.models.generative import Settings
    from stepmark.models.spec import ScoringSpec


def load_prm(
    name_or_path: str = "default",
    *,
    family: str | None = None,
    neutral: Literal["positive", "negative"] = "positive",
    dtype: str = "auto",
    device: str = "auto",
    truncate: bool = False,
    token_budget: int | None = None,
    reference: str | None = None,
    model: str | None = None,
    tokenizer: str | None = None,
    outcome: bool = False,
    samples: int | None = None,
    seed: int = 0,
) -> PRM:
    """Load a process reward model.

    Args:
        name_or_path: "default" (the PRM that ships with stepmark), a checkpoint's folder, a hub name, the
            address of a server ("http://…"; the key in `STEPMARK_API_KEY` is sent, if there is one), or "package.module:factory" whose call gives a PRM.
            A server is asked whether it is a stepmark server (`stepmark serve`), which reads texts; any other one is sent token
            ids (vLLM's `/pooling`) and needs `tokenizer`.
        family: how it is read (`stepmark families` lists them); None tells it from the checkpoint. Of published generative PRMs it
            has to be named; those that stepmark trained say it themselves.
        neutral: for three-class PRMs, whether a neutral step counts as good (Lightman et al. 2023, Table 4).
        dtype: "float32", "bfloat16", or "auto": bfloat16 where the device computes in it natively and the
            checkpoint is stored in it, else float32.
        device: "cpu", "cuda", "cuda:1", or "auto".
        truncate: score what fits of a solution that is too long and leave the later steps None, instead of
            raising.
        token_budget: tokens a forward pass; bounds memory. None: 2,048 on CPU, 16,384 on CUDA.
        reference: for implicit PRMs, the reference model; None takes the one that the family names. It computes in the PRM's own
            precision.
        model: for servers, the served model's name; None where it serves one.
        tokenizer: for servers that take token ids, the folder or hub name of the checkpoint's tokenizer; None for a stepmark server.
        outcome: read only the last step: the checkpoint as an outcome reward model.
        samples: for generative PRMs, critiques a step; None for the family's default.
        seed: for generative PRMs, the seed of their samples.

    Raises:
        CheckpointError: missing, corrupt, or of a family that cannot be told.
        UsageError: settings that do not go together, one that means nothing for the PRM that is named, or a factory that failed.
        BackendError: a server failed.
        MissingExtraError: torch or transformers is not installed.
    """
    if not name_or_path.strip():
        raise UsageError(
            "expected a PRM (default, a folder, a hub name, an address or package.module:factory), found an empty text"
        )
    given = {
        "family": family,
        "reference": reference,
        "model": model,
        "tokenizer": tokenizer,
        "samples": samples,
        "seed": seed,
        "neutral": neutral,
        "truncate": truncate,
        "dtype": dtype,
        "device": device,
        "token_budget": token_budget,
    }
    refuse_idle(given, idle_settings(name_or_path, family=family, tokenizer=tokenizer))
    if is_factory(name_or_path):
        return prm_of(name_or_path, NAMES)
    served = is_server(name_or_path)
    if writes_critiques(name_or_path, family=family, tokenizer=tokenizer):
        return _generative(
            _own_critic(name_or_path if tokenizer is None else tokenizer, seed) if family is None else family,
            name_or_path,
            dtype=dtype,
            device=device,
            model=model,
            tokenizer=tokenizer,
            samples=samples,
            seed=seed,
        )
    if served and tokenizer is None:
        return _remote(name_or_path, model, outcome=outcome)
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        extra = "default" if name_or_path in NAMES else "local"
        raise MissingExtraError(
            f"reading a checkpoint needs torch and transformers: pip install 'stepmark[{extra}]'"
        ) from error
    if served and tokenizer is not None:
        return _served(
            name_or_path,
            family=family,
            neutral=neutral,
            truncate=truncate,
            model=model,
            tokenizer=tokenizer,
            outcome=outcome,
        )
    return _local(
        name_or_path,
        family=family,
        neutral=neutral,
        dtype=dtype,
        device=device,
        truncate=truncate,
        token_budget=token_budget,
        reference=reference,
        outcome=outcome,
    )


def _own_critic(name: str, seed: int) -> Settings:
    """The critic that a checkpoint of our own says it is."""
    from stepmark.models.generative import critic_spec_of

    found = critic_spec_of(Path(name).expanduser())
    assert found is not None
    return replace(found.settings, seed=seed)


def _generative(
    family: str | Settings,
    name: str,
    *,
    dtype: str,
    device: str,
    model: str | None,
    tokenizer: str | None,
    samples: int | None,
    seed: int,
) -> PRM:
    from stepmark.models.generative import generative_prm

    if is_server(name):
        from stepmark.models.policies.openai import OpenAIPolicy
        from stepmark.models.policies.transport import key_variable

        served = OpenAIPolicy(name, model, tokenizer=tokenizer, api_key_env=key_variable())
        return generative_prm(family, served, samples=samples, seed=seed)
    from stepmark.models.policies.local import LocalPolicy

    policy = LocalPolicy.load(name, dtype=dtype, device=device)
    return generative_prm(family, policy, samples=samples, seed=seed)


def _remote(address: str, model: str | None, *, outcome: bool) -> PRM:
    """The PRM of a stepmark server."""
    from stepmark.errors import BackendError, UnreachableError
    from stepmark.models.policies.transport import Patience
    from stepmark.models.remote.client import Client
    from stepmark.models.remote.prm import RemotePRM

    # Another server than stepmark's is not asked for long; a server that says that it is loading is waited for.
    with Client(address, patience=Patience(retries=4, first_wait=0.2, timeout=120)) as asking:
        try:
            listing = asking.listing()
        except UnreachableError:
            raise
        except BackendError as error:
            found = str(error)
        else:
            if listing.prms and outcome:
                raise UsageError(
                    f"{address} is a stepmark server, which decides how its PRM is read: give outcome to a model that is read here"
                )
            if listing.prms:
                return RemotePRM(Client(address, model=model))
            found = (
                f"it serves {', '.join(map(repr, listing.others)) or 'no model'}, and no PRM of stepmark's"
            )
    raise UsageError(
        f"{address} does not answer as a stepmark server ({found}); token ids are sent to any other server, so its tokenizer is "
        "needed here: name the checkpoint's folder or hub name with --tokenizer"
    )


def _served(
    address: str,
    *,
    family: str | None,
    neutral: Literal["positive", "negative"],
    truncate: bool,
    model: str | None,
    tokenizer: str,
    outcome: bool,
) -> PRM:
    from stepmark.models.backbone import load_config, load_tokenizer, token_limit
    from stepmark.models.checkpoint import find_checkpoint
    from stepmark.models.detect import spec_of
    from stepmark.models.encoding import Encoder
    from stepmark.models.policies.transport import key_variable
    from stepmark.models.pooling import PoolingPRM

    folder = find_checkpoint(tokenizer)
    spec = spec_of(folder, tokenizer, family)
    _refuse_neutral(spec, address, neutral)
    if outcome:
        spec = replace(spec, outcome_only=True, aggregate="last")
    encoder = Encoder(
        load_tokenizer(folder),
        spec.layout,
        max_tokens=spec.max_tokens or token_limit(load_config(folder)),
        truncate=truncate,
        outcome_only=spec.outcome_only,
    )
    encoder.check()
    return PoolingPRM(address, spec, encoder, model=model, neutral=neutral, api_key_env=key_variable())


def _local(
    name: str,
    *,
    family: str | None,
    neutral: Literal["positive", "negative"],
    dtype: str,
    device: str,
    truncate: bool,
    token_budget: int | None,
    reference: str | None,
    outcome: bool,
) -> PRM:
    import torch

    from stepmark.models.backbone import token_limit
    from stepmark.models.checkpoint import find_checkpoint
    from stepmark.models.detect import spec_of
    from stepmark.models.encoding import Encoder
    from stepmark.models.engine import Engine
    from stepmark.models.heads import build_head, output_rows
    from stepmark.models.local import HeadPRM, ImplicitPRM
    from stepmark.models.prm import Ledger
    from stepmark.models.spec import LogRatioHead

    folder = folder_of(name)
    spec = spec_of(folder, name, family)
    _refuse_neutral(spec, name, neutral)
    if outcome:
        if isinstance(spec.readout.head, LogRatioHead) and spec.readout.head.per_step:
            raise UsageError(
                f"{spec.family} gives each step its own share of the log-ratio, and the last share is no verdict on the "
                "whole; read the outcome with --family implicit, whose last score is the sum of them all"
            )
        spec = replace(spec, outcome_only=True, aggregate="last")
    if reference is not None and not isinstance(spec.readout.head, LogRatioHead):
        raise UsageError(f"--reference is for implicit PRMs; {name} is read as {spec.family}")
    place = _device(device)
    budget = token_budget or (2048 if place == "cpu" else 16384)
    backbone, tokens, source, extra = _assemble(folder, dtype, place)
    encoder = Encoder(
        tokens,
        spec.layout,
        max_tokens=spec.max_tokens or token_limit(backbone.config),
        truncate=truncate,
        outcome_only=spec.outcome_only,
    )
    encoder.check()
    engine = Engine(backbone, device=place, token_budget=budget, ledger=Ledger())
    if isinstance(spec.readout.head, LogRatioHead):
        other = reference or spec.readout.head.reference
        if other is None:
            raise UsageError(f"{name}: an implicit PRM needs its reference model; name it with --reference")
        # In another precision than the policy's the log-ratio would hold the rounding of one of the two.
        same = {torch.float32: "float32", torch.bfloat16: "bfloat16"}[backbone.dtype]
        their_backbone, their_tokens, their_source, their_extra = _assemble(
            find_checkpoint(other), same, place
        )
        if their_tokens.get_vocab() != tokens.get_vocab():
            raise CheckpointError(
                f"the reference {other} has another vocabulary than {name}; their tokens cannot be compared"
            )
        if spec.max_tokens is None:
            limits = (token_limit(backbone.config), token_limit(their_backbone.config))
            encoder.max_tokens = min((limit for limit in limits if limit is not None), default=None)
        # The reference reads the same tokens; its cost is not the solution's, so it keeps a ledger of its own.
        their_engine = Engine(their_backbone, device=place, token_budget=budget, ledger=Ledger())
        return ImplicitPRM(
            name=name,
            spec=spec,
            encoder=encoder,
            policy=(engine, output_rows(source, backbone, extra).to(place, backbone.dtype)),
            reference=(
                their_engine,
                output_rows(their_source, their_backbone, their_extra).to(place, their_backbone.dtype),
            ),
        )
    head = build_head(spec.readout.head, source, extra, backbone, tokens, place)
    return HeadPRM(name=name, spec=spec, encoder=encoder, engine=engine, head=head, neutral=neutral)


def _refuse_neutral(spec: ScoringSpec, name: str, neutral: str) -> None:
    if spec.readout.neutral is None:
        why = f"{name} is read as {spec.family}, which has no neutral class: leave it out"
        refuse_idle({"neutral": neutral}, {"neutral": why})


def _assemble(folder: Path, dtype: str, device: str) -> tuple[Any, Any, Any, Mapping[str, Any]]:
    """Backbone, tokenizer, tensors, and what came with an adapter, of a checkpoint or an adapter over one."""
    from stepmark.models.backbone import load_backbone, load_tokenizer, read_config
    from stepmark.models.checkpoint import (
        BUILT_IN_BASE,
        Tensors,
        adapter_config,
        find_checkpoint,
        merge_adapter,
    )

    adapter = folder / "adapter_config.json"
    base, wants_bfloat16 = folder, False
    if adapter.is_file():
        named = adapter_config(folder).get("base_model_name_or_path")
        if not isinstance(named, str):
            raise CheckpointError(f"{adapter} names no base_model_name_or_path")
        base = find_checkpoint(named)
        # Our adapters are trained over a base in bfloat16, though the copy on disk is float32.
        wants_bfloat16 = named == BUILT_IN_BASE
    config = read_config(base)
    stored = config.get("dtype") or config.get("torch_dtype")
    backbone = load_backbone(
        base, dtype=_dtype(dtype, device, wants_bfloat16 or stored == "bfloat16"), device=device
    )
    source = Tensors(base)
    extra = merge_adapter(backbone, folder) if adapter.is_file() else {}
    has_own = (folder / "tokenizer.json").is_file() or (folder / "tokenizer_config.json").is_file()
    tokenizer = load_tokenizer(folder if has_own else base)
    return backbone, tokenizer, source, extra


def _device(device: str) -> str:
    import torch

    if device != "auto":
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UsageError(
                "--device cuda: this machine or this build of torch has no CUDA; use --device cpu"
            )
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _dtype(dtype: str, device: str, bfloat16_checkpoint: bool) -> Any:
    import torch

    if dtype == "auto":
        native = (
            torch.cuda.is_bf16_supported()
            if device.startswith("cuda")
            else torch.cpu._is_avx512_bf16_supported()
        )
        return torch.bfloat16 if native and bfloat16_checkpoint else torch.float32
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if dtype not in known:
        raise UsageError(f"--dtype is float32, bfloat16 or auto, found {dtype!r}")
    return known[dtype]
