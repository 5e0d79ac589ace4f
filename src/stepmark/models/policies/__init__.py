"""Policies: models that write text, and that say how likely a given text is next.

Three kinds, one protocol: `ScriptedPolicy` (answers given by hand, for trying a method out and for tests),
`LocalPolicy` (a transformers model in this process), `OpenAIPolicy` (any OpenAI-compatible server: vLLM,
SGLang, llama.cpp). None of them is imported before it is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol, TypeAlias

from pydantic import Field

from stepmark.backends import Completing
from stepmark.errors import UsageError
from stepmark.models.lazy import LOADING, Bits, Lazy, check_device, is_server, note_idle
from stepmark.models.prm import PromptTokens
from stepmark.registry import FACTORY, Registry
from stepmark.settings import check_arguments, checked

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
"""The precision of a policy in this process; "auto": as saved."""


class Policy(Completing, Protocol):
    """A model that continues text. One that computes requests together is a `backends.BatchPolicy`; any other has these coroutines."""

    @property
    def name(self) -> str:
        """Its name in outputs."""

    @property
    def tokens_written(self) -> int:
        """Tokens written so far, as far as the machine that wrote them counts them. Only grows."""


POLICIES = Registry(
    "policy",
    {
        "scripted": "stepmark.models.scripted:ScriptedPolicy",
        "local": "stepmark.models.policies.local:LocalPolicy",
        "openai": "stepmark.models.policies.openai:OpenAIPolicy",
    },
)
"""The classes, by name."""


def reading_of(policy: Policy) -> PromptTokens | None:
    """The prompt tokens of a policy; None for one that does not run in this process."""
    read = getattr(policy, "read", None)
    return read if isinstance(read, PromptTokens) else None


def in_process(address: str) -> bool:
    """Whether the policy of an address is a model that computes in this process."""
    # The names of the models that ship with stepmark (`stepmark:…`) look like factories too.
    factory = FACTORY.fullmatch(address) and not address.startswith("stepmark:")
    return not factory and not address.startswith(("http://", "https://"))


def _identity(
    address: str, *, dtype: Dtype = "auto", quantize: Bits | None = None, device: str = "auto", **_: Any
) -> str:
    if in_process(address):
        from stepmark.models.policies.local import checkpoint_identity

        identity = checkpoint_identity(address, dtype=dtype, quantize=quantize)
        if identity is not None:
            return identity()
    return load_policy(address, dtype=dtype, quantize=quantize, device=device).identity


PolicyLike: TypeAlias = Policy | str | Lazy[Policy]
"""A policy, or the address that `load_policy` takes."""


def lazy_policy(address: str, **arguments: Any) -> Lazy[Policy]:
    """The policy that `load_policy` would give with these arguments, loaded when it is needed."""
    return Lazy(load_policy, address, arguments, check=check_policy, identity=_identity)


def policy_of(policy: PolicyLike) -> Policy | Lazy[Policy]:
    """A policy as a run takes it, not loaded yet where it is a name; a `UsageError` for anything else."""
    if isinstance(policy, str):
        return lazy_policy(policy)
    if not isinstance(policy, Lazy) and not callable(getattr(policy, "complete", None)):
        raise UsageError(
            f"expected a policy (a folder, a hub name, an address, package.module:factory, or what load_policy gives), found {policy!r}"
        )
    return policy


def check_policy(address: str, arguments: Mapping[str, Any]) -> None:
    """Refuse (`UsageError`) arguments of `load_policy` that cannot work; warn of those that have no effect."""
    check_arguments(load_policy, arguments)
    check_device(arguments.get("device", "auto"), several=True)
    if not in_process(address):
        where = "computes on its server" if is_server(address) else "is made by that function"
        why = f"the policy {address} {where}"
        note_idle(arguments, dict.fromkeys(("dtype", "quantize", "device"), why))


@checked
def load_policy(
    address: str,
    *,
    dtype: Dtype = "auto",
    quantize: Bits | None = None,
    device: str = "auto",
    counts: bool = False,
    memory_tokens: Annotated[int, Field(ge=0)] = 0,
) -> Policy:
    """A policy by its address.

    Args:
        address: the policy: a folder or hub name that transformers can load; `http://host:port/v1#model` for a server (without `#model`
            the server's only model is taken; the key in `STEPMARK_API_KEY` is sent, if there is one); `package.module:factory`, whose
            call gives a policy; or `stepmark:arithmetic`, the tiny model of the arithmetic world.
        dtype: precision of a local model: "auto" (as saved), "float32", "bfloat16", "float16".
        quantize: keep a local model's layers' weights in 8 or 4 bit. Such a policy writes other texts, and has another identity.
        device: device of a local model: "cpu", "cuda", "cuda:1", "auto" (one GPU if there is one), or "all": the layers are spread over all GPUs.
        counts: ask a server for log-probabilities, which tell the tokens of each of several samples.
        memory_tokens: of a local model: see `LocalPolicy`.

    Raises:
        CheckpointError: no such local model.
        BackendError: the server does not answer.
        UsageError: an empty address, or a factory that failed or gave no policy.
        MissingExtraError: a local model, and torch or transformers is not installed.
    """
    if not address.strip():
        raise UsageError(
            "expected a policy (a folder, a hub name, an address or package.module:factory), found an empty text"
        )
    check_policy(address, {"dtype": dtype, "quantize": quantize, "device": device})
    if address.startswith(("http://", "https://")):
        from stepmark.models.http import key_variable
        from stepmark.models.policies.openai import OpenAIPolicy

        url, _, model = address.partition("#")
        return OpenAIPolicy(url, model or None, api_key_env=key_variable(), logprobs=counts)
    if not in_process(address):
        policy: Policy = POLICIES.make(address, ("name", "identity", "complete"))
        return policy
    from stepmark.models.policies.local import LocalPolicy

    with LOADING:
        return LocalPolicy.load(
            address, dtype=dtype, quantize=quantize, device=device, memory_tokens=memory_tokens
        )
