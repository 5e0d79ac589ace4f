"""`load_prm`: from a name, a folder, an address or a factory to a PRM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias

from pydantic import Field

from stepmark.catalog import Catalog
from stepmark.errors import CheckpointError, MissingExtraError, UsageError
from stepmark.models.families import find_published, full_name
from stepmark.models.files import local_folder, present
from stepmark.models.grading import Grader
from stepmark.models.identity import CheckpointFiles, identity_of, named
from stepmark.models.lazy import MEANT, Lazy, check_device, is_server, refuse_idle
from stepmark.models.places import BUILT_IN_BASE, NAMES, adapter_base, find_checkpoint, folder_of
from stepmark.models.prm import PRM
from stepmark.models.spec import spec_key
from stepmark.settings import check_arguments as check_settings
from stepmark.settings import checked

if TYPE_CHECKING:
    from stepmark.models.generative import Settings
    from stepmark.models.policies import Dtype
    from stepmark.models.spec import ScoringSpec


COMPUTING = ("dtype", "device", "token_budget")
"""Those about a model in this process."""

SHARED = (*COMPUTING, "truncate")
"""Those that a command takes once for the PRM and the outcome model beside it."""

_READING = ("family", "reference", "samples", "neutral", "truncate")

PRMLike: TypeAlias = PRM | str | Lazy[PRM]
"""A PRM, or the name that `load_prm` takes."""


@checked
def load_prm(
    name_or_path: str = "default",
    *,
    family: str | None = None,
    neutral: Literal["positive", "negative"] = "positive",
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
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
            ids (vLLM's `/pooling`) and needs `tokenizer`.
        family: how it is read (`stepmark families` lists them); None tells it from the checkpoint. Of published generative PRMs it
            has to be named where `stepmark families` does not list the checkpoint; those that stepmark trained say it themselves.
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
    return _found(
        _Settings(
            name=name_or_path,
            family=family,
            neutral=neutral,
            dtype=dtype,
            device=device,
            truncate=truncate,
            token_budget=token_budget,
            reference=reference,
            model=model,
            tokenizer=tokenizer,
            outcome=outcome,
            samples=samples,
            seed=seed,
        )
    ).load()


def lazy_prm(name_or_path: str, **arguments: Any) -> Lazy[PRM]:
    """The PRM that `load_prm` would give, loaded when it is needed.

    Args:
        name_or_path: as `load_prm` takes it.
        arguments: the other arguments of `load_prm`.
    """
    return Lazy(load_prm, full_name(name_or_path), arguments, check=check_arguments)


def check_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a device that is none, and settings that mean nothing for the PRM, as far as its name tells.

    Args:
        name: as `load_prm` takes it.
        arguments: the other arguments of `load_prm`.

    Raises:
        UsageError: one of them.
        CheckpointError: what the checkpoint says of itself cannot be read.
    """
    check_settings(load_prm, arguments)
    check_device(arguments.get("device", "auto"))
    idle = idle_settings(name, family=arguments.get("family"), tokenizer=arguments.get("tokenizer"))
    refuse_idle(arguments, idle)


def prm_identity(name_or_path: str, settings: Mapping[str, Any]) -> str:
    """The identity (`PRM.identity`) of the PRM that `load_prm` would give, without reading a checkpoint's weights into memory.

    Args:
        name_or_path: as `load_prm` takes it.
        settings: the same, by their names.

    Raises:
        StepmarkError: whatever `load_prm` raises.
    """
    return _found(_Settings(name=name_or_path, **settings)).identity()


def is_factory(name: str) -> bool:
    """Whether a PRM's name is "package.module:factory"."""
    return ":" in name and not is_server(name) and "/" not in name


def writes_critiques(name: str, *, family: str | None = None, tokenizer: str | None = None) -> bool:
    """Whether a PRM named so is read as one that writes critiques.

    Args:
        name: no factory's.
        family: as given.
        tokenizer: as given; of a server, the checkpoint that lies here.

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
    """The settings that mean nothing for a PRM, as far as its name tells; each with what the PRM is instead, and what to do.

    Args:
        name: as `load_prm` takes it.
        family: as given.
        tokenizer: as given.

    Raises:
        CheckpointError: what the checkpoint says of itself cannot be read.
    """
    if is_factory(name):
        return dict.fromkeys(MEANT, f"{name} makes its PRM itself: say it in that function")
    idle: dict[str, str] = {}
    served = is_server(name)
    if served:
        idle |= dict.fromkeys(
            COMPUTING, f"{name} is a server, which computes by itself: leave it out here, and say it there"
        )
    else:
        idle |= dict.fromkeys(("model", "tokenizer"), f"{name} is not the address of one: leave it out")
    if writes_critiques(name, family=family, tokenizer=tokenizer):
        read = f"{name} is read as one that writes critiques: leave it out"
        return dict.fromkeys(("reference", "neutral", "token_budget", "truncate"), read) | idle
    if served and tokenizer is None:
        # What only other servers are asked for is said in the words for the server that is asked.
        reads = (
            f"{name} without `tokenizer` is taken for a stepmark server, which decides how its PRM is read"
        )
        return idle | {
            key: f"{reads}: give {key} to `stepmark serve`, or, of any other server, name its `tokenizer`"
            for key in (*_READING, "seed")
        }
    read = f"{name} is read as one that writes none: leave it out, or name its `family` (stepmark families)"
    idle |= dict.fromkeys(("samples", "seed"), read)
    if served:
        idle["reference"] = f"{name} computes one model only: leave it out"
    return idle


def read_by(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of settings that are given for several models at once, those that this one reads.

    Args:
        name: as `load_prm` takes it, without family and tokenizer.
        settings: some of `SHARED`.

    Raises:
        CheckpointError: what the checkpoint says of itself cannot be read.
    """
    idle = idle_settings(name)
    return {key: value for key, value in settings.items() if key not in idle}


def prm_of(name: str, names: Catalog) -> PRM:
    """The PRM that a function or class of one's own makes.

    Args:
        name: "package.module:factory".
        names: the catalog that imports it.

    Raises:
        UsageError: there is none, it is nothing to call, it raised what is no error of stepmark's, it gave no PRM, or one without an identity.
    """
    made: PRM = names.make(name, ("name", "score_kind", "default_aggregate", "score_many"))
    identity_of(made)
    if not isinstance(made, Grader):
        raise UsageError(
            f"{name}: expected a PRM derived from stepmark.Grader, found a {type(made).__name__}"
        )
    return made


@dataclass(frozen=True, kw_only=True, slots=True)
class _Settings:
    """What `load_prm` was given."""

    name: str
    family: str | None = None
    neutral: Literal["positive", "negative"] = "positive"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    truncate: bool = False
    token_budget: int | None = None
    reference: str | None = None
    model: str | None = None
    tokenizer: str | None = None
    outcome: bool = False
    samples: int | None = None
    seed: int = 0


class _Found(Protocol):
    """A PRM that is found and not loaded yet."""

    def identity(self) -> str:
        """What `PRM.identity` will be."""

    def load(self) -> PRM:
        """The PRM."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Made:
    """A PRM that costs nothing to load: on a server, or made by a user's function."""

    prm: PRM

    def identity(self) -> str:
        """See `_Found.identity`."""
        return identity_of(self.prm)

    def load(self) -> PRM:
        """See `_Found.load`."""
        return self.prm


def _found(given: _Settings) -> _Found:
    """The PRM that the settings name; see `load_prm`, also for what it raises."""
    if not given.name.strip():
        raise UsageError(
            "expected a PRM (default, a short name, a folder, a hub name, an address or package.module:factory), found an empty text"
        )
    # The hub's full name stands in outputs and manifests.
    given = replace(
        given,
        name=full_name(given.name),
        tokenizer=None if given.tokenizer is None else full_name(given.tokenizer),
    )
    about = {key: value for key, value in asdict(given).items() if key not in ("name", "outcome")}
    refuse_idle(about, idle_settings(given.name, family=given.family, tokenizer=given.tokenizer))
    if is_factory(given.name):
        return _Made(prm=prm_of(given.name, NAMES))
    served = is_server(given.name)
    if writes_critiques(given.name, family=given.family, tokenizer=given.tokenizer):
        return _critic(given)
    if served and given.tokenizer is None:
        return _Made(prm=_remote(given.name, given.model, outcome=given.outcome))
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        extra = "default" if given.name in NAMES else "local"
        raise MissingExtraError(
            f"reading a checkpoint needs torch and transformers: pip install 'stepmark[{extra}]'"
        ) from error
    return _Made(prm=_served(given, given.tokenizer)) if given.tokenizer is not None else _local(given)


def _critic_of(name: str, seed: int) -> Settings | str:
    """The family of a published generative PRM, or the critic that a checkpoint of our own says it is."""
    from stepmark.models.generative import critic_spec_of

    published = find_published(name)
    if published is not None:
        return published.family
    folder = local_folder(name)
    found = None if folder is None else critic_spec_of(folder)
    assert found is not None
    return replace(found.settings, seed=seed)


def _critic(given: _Settings) -> _Found:
    """A generative PRM, on a server or of a checkpoint."""
    from stepmark.models.generative import critic_settings, generative_prm

    family = (
        _critic_of(given.name if given.tokenizer is None else given.tokenizer, given.seed)
        if given.family is None
        else given.family
    )
    settings = critic_settings(family, samples=given.samples, seed=given.seed)
    if not is_server(given.name):
        return _Critic(name=given.name, settings=settings, dtype=given.dtype, device=given.device)
    from stepmark.models.policies.openai import OpenAIPolicy
    from stepmark.models.policies.transport import key_variable

    served = OpenAIPolicy(given.name, given.model, tokenizer=given.tokenizer, api_key_env=key_variable())
    return _Made(prm=generative_prm(settings, served))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Critic:
    """A generative PRM of a checkpoint."""

    name: str
    settings: Settings
    dtype: Dtype
    device: str

    def identity(self) -> str:
        """See `_Found.identity`."""
        from stepmark.models.generative import critic_identity
        from stepmark.models.policies import policy_identity

        return critic_identity(
            policy_identity(self.name, dtype=self.dtype, device=self.device), self.settings
        )

    def load(self) -> PRM:
        """See `_Found.load`."""
        from stepmark.models.generative import generative_prm
        from stepmark.models.policies.local import LocalPolicy

        return generative_prm(
            self.settings, LocalPolicy.load(self.name, dtype=self.dtype, device=self.device)
        )


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
        "needed here: name the checkpoint's folder or hub name with `tokenizer`"
    )


def _served(given: _Settings, tokenizer: str) -> PRM:
    from stepmark.models.backbone import load_config, load_tokenizer, token_limit
    from stepmark.models.detect import spec_of
    from stepmark.models.encoding import Encoder
    from stepmark.models.policies.transport import key_variable
    from stepmark.models.pooling import PoolingPRM

    folder = find_checkpoint(tokenizer)
    files = CheckpointFiles(folder, weights=False)
    spec = spec_of(folder, tokenizer, given.family)
    _refuse_neutral(spec, given.name, given.neutral)
    if given.outcome:
        spec = replace(spec, outcome_only=True, aggregate="last")
    encoder = Encoder(
        load_tokenizer(folder),
        spec.layout,
        max_tokens=spec.max_tokens or token_limit(load_config(folder)),
        truncate=given.truncate,
        outcome_only=spec.outcome_only,
    )
    encoder.check()
    return PoolingPRM(
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


def _local(given: _Settings) -> _Checkpoint:
    """How a checkpoint is read; nothing of its weights is read here."""
    from stepmark.models.backbone import compute_device
    from stepmark.models.detect import spec_of
    from stepmark.models.spec import LogRatioHead

    place = compute_device(given.device)
    name, folder = given.name, folder_of(given.name)
    # Noted before anything is read: what was loaded is then known by these files.
    files = [CheckpointFiles(folder)]
    spec = spec_of(folder, name, given.family)
    _refuse_neutral(spec, name, given.neutral)
    head = spec.readout.head
    if given.outcome:
        if isinstance(head, LogRatioHead) and head.per_step:
            raise UsageError(
                f"{spec.family} gives each step its own share of the log-ratio, and the last share is no verdict on the "
                "whole; read the outcome with `family` implicit, whose last score is the sum of them all"
            )
        spec = replace(spec, outcome_only=True, aggregate="last")
    reference = None
    if isinstance(head, LogRatioHead):
        other = given.reference or head.reference
        if other is None:
            raise UsageError(f"{name}: an implicit PRM needs its reference model; name it with `reference`")
        reference = find_checkpoint(other)
        files.append(CheckpointFiles(reference))
    elif given.reference is not None:
        raise UsageError(f"`reference` is for implicit PRMs; {name} is read as {spec.family}")
    return _Checkpoint(
        given=given,
        folder=folder,
        reference=reference,
        files=tuple(files),
        spec=spec,
        device=place,
        dtype=_dtype(given.dtype, place, _base(folder)[1]),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Checkpoint:
    """A PRM of a checkpoint, and how it is read."""

    given: _Settings
    folder: Path
    reference: Path | None
    """The folder of an implicit PRM's reference model."""
    files: tuple[CheckpointFiles, ...]
    """The checkpoint's, then the reference's."""
    spec: ScoringSpec
    device: str
    dtype: Any
    """A torch dtype."""

    def identity(self) -> str:
        """See `_Found.identity`."""
        return named(
            self.given.name,
            [files.fingerprint() for files in self.files],
            spec_key(self.spec),
            self.given.neutral,
            self.given.truncate,
            str(self.dtype),
        )

    def load(self) -> PRM:
        """See `_Found.load`."""
        from stepmark.models.backbone import token_limit
        from stepmark.models.encoding import Encoder
        from stepmark.models.engine import Engine
        from stepmark.models.heads import build_head, output_rows
        from stepmark.models.local import HeadPRM, ImplicitPRM
        from stepmark.models.prm import Ledger

        name, spec, place = self.given.name, self.spec, self.device
        budget = self.given.token_budget or (2048 if place == "cpu" else 16384)
        backbone, tokens, source, extra = _assemble(self.folder, self.dtype, place, spec)
        encoder = Encoder(
            tokens,
            spec.layout,
            max_tokens=spec.max_tokens or token_limit(backbone.config),
            truncate=self.given.truncate,
            outcome_only=spec.outcome_only,
        )
        encoder.check()
        engine = Engine(backbone, device=place, token_budget=budget, ledger=Ledger())
        if self.reference is None:
            head = build_head(spec.readout.head, source, extra, backbone, tokens, place)
            return HeadPRM(
                name=name,
                spec=spec,
                encoder=encoder,
                engine=engine,
                head=head,
                neutral=self.given.neutral,
                identity=self.identity,
            )
        # In another precision than the policy's the log-ratio would hold the rounding of one of the two.
        their_backbone, their_tokens, their_source, their_extra = _assemble(
            self.reference, self.dtype, place, spec
        )
        if their_tokens.get_vocab() != tokens.get_vocab():
            raise CheckpointError(
                f"the reference {self.reference} has another vocabulary than {name}; their tokens cannot be compared"
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
            identity=self.identity,
        )


def _refuse_neutral(spec: ScoringSpec, name: str, neutral: str) -> None:
    if spec.readout.neutral is None:
        why = f"{name} is read as {spec.family}, which has no neutral class: leave it out"
        refuse_idle({"neutral": neutral}, {"neutral": why})


def _base(folder: Path) -> tuple[Path, bool]:
    """The folder of the whole checkpoint, which for an adapter is its base's; and whether it is meant to compute in bfloat16."""
    from stepmark.models.backbone import read_config
    from stepmark.models.checkpoint import adapter_config

    named, base = adapter_base(folder) or ("", folder)
    if named:
        adapter_config(folder)
    stored = read_config(base)
    # Our adapters are trained over a base in bfloat16, though the copy on disk is float32.
    return base, named == BUILT_IN_BASE or "bfloat16" in (stored.get("dtype"), stored.get("torch_dtype"))


def _assemble(
    folder: Path, dtype: Any, device: str, spec: ScoringSpec
) -> tuple[Any, Any, Any, Mapping[str, Any]]:
    """Backbone, tokenizer, tensors, and what came with an adapter, of a checkpoint or an adapter over one."""
    from stepmark.models.backbone import load_backbone, load_tokenizer, read_config
    from stepmark.models.checkpoint import Tensors, adapter_head, merge_adapter
    from stepmark.models.heads import check_head

    base, _ = _base(folder)
    adapted = base != folder
    facts = Tensors(base).facts | (adapter_head(folder) if adapted else {})
    hidden = read_config(base).get("hidden_size")
    check_head(
        spec.readout.head,
        facts,
        folder=folder,
        hidden=hidden if isinstance(hidden, int) else None,
        classes=spec.readout.classes,
    )
    backbone = load_backbone(base, dtype=dtype, device=device)
    source = Tensors(base)
    extra = merge_adapter(backbone, folder) if adapted else {}
    has_own = present(folder / "tokenizer.json") or present(folder / "tokenizer_config.json")
    tokenizer = load_tokenizer(folder if has_own else base)
    return backbone, tokenizer, source, extra


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
        raise UsageError(f"dtype should be float32, bfloat16 or auto, found {dtype!r}")
    return known[dtype]
