"""The flags of `stepmark serve` that make best-of-N a model: `--search best-of-n --policy …`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from cyclopts import Parameter

from stepmark.errors import UsageError

if TYPE_CHECKING:
    from stepmark.models.policies import Dtype, Policy
    from stepmark.serving.conversations import Completing
    from stepmark.serving.routes_completions import Completions
    from stepmark.serving.writers import Writer


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """Best-of-N as a model, at /v1/chat/completions."""

    search: Literal["best-of-n", "majority", "weighted-vote", "beam", "dvts", "rebase", "mcts"] | None = None
    """Answer as a model too: --policy writes several completions, and one is given: best-of-n the one with the highest score, majority one with the
    commonest answer, weighted-vote one with the answer of the highest sum of scores. The others write step by step (stepmark search)."""
    policy: str | None = None
    """For --search, what writes: http://HOST/v1#MODEL, a model's folder or hub name, or "package.module:factory"."""
    n: int = 8
    """For --search, completions to choose from (step by step: steps that a round writes; of mcts, simulations); a request may say otherwise."""
    n_most: int = 64
    """For --search, completions that a request may ask for."""
    temperature: float = 0.7
    """For --search, of the completions where a request does not say."""
    split: str = "auto"
    """For --search, how a completion is cut into steps (stepmark split)."""
    marker: str | None = None
    """For --search, the text that ends each step, for --split marker and auto."""
    verifier: str = "math"
    """For --search, what says which answers are equal: math, number, choice, text, or "package.module:Class"."""
    search_name: str | None = None
    """For --search, the model's name for clients. Left out: such as best-of-8."""
    search_timeout: float = 300.0
    """For --search, seconds that an answer may take where a request does not say (504 afterwards)."""
    policy_requests: int = 32
    """For --search, conversations that the policy works on at once; four times as many may wait, more are refused with 429."""


NO_MODEL = ModelOptions()
"""Only the PRM is served."""


def extension(options: ModelOptions, *, dtype: Dtype, device: str) -> Completions | None:
    """What makes a server answer as a model; None where no search is asked for.

    Raises:
        UsageError: a search without a policy, flags of a search without one, or a setting that cannot work.
    """
    if options.search is None:
        for field in fields(ModelOptions):
            if getattr(options, field.name) != field.default:
                raise UsageError(
                    f"--{field.name.replace('_', '-')} is for best-of-N as a model: say --search best-of-n too"
                )
        return None
    if options.policy is None:
        raise UsageError("--search needs --policy, which writes: http://HOST/v1#MODEL, or a model's folder")
    from stepmark.serving.conversations import Completing
    from stepmark.serving.routes_completions import Completions

    settings = Completing(
        search=options.search,
        n=options.n,
        most=options.n_most,
        temperature=options.temperature,
        split=options.split,
        marker=None if options.marker is None else options.marker.replace("\\n", "\n"),
        verifier=options.verifier,
        name=options.search_name,
        timeout=options.search_timeout,
        at_once=options.policy_requests,
    )
    if settings.stepwise:
        return Completions(
            settings,
            policy=policy_of(options.policy, settings, dtype=dtype, device=device),
            together=options.policy.startswith(("http://", "https://")),
        )
    return Completions(settings, writer_of(options.policy, dtype=dtype, device=device))


def policy_of(address: str, settings: Completing, *, dtype: Dtype, device: str) -> Callable[[], Policy]:
    """What loads the policy of an address for a search that writes step by step; see `writer_of`."""

    def load() -> Policy:
        if address.startswith(("http://", "https://")):
            from stepmark.models.policies.openai import OpenAIPolicy
            from stepmark.models.policies.transport import Patience, key_variable

            url, _, model = address.partition("#")
            # Nobody waits longer than the answer may take.
            patience = Patience(retries=2, max_wait=10.0, timeout=settings.timeout)
            return OpenAIPolicy(url, model or None, api_key_env=key_variable(), patience=patience)
        from stepmark.models.policies import load_policy

        return load_policy(address, dtype=dtype, device=device, memory_tokens=65_536)

    return load


def writer_of(policy: str, *, dtype: Dtype, device: str) -> Callable[[], Writer]:
    """What loads the policy of an address.

    Args:
        policy: as in `models.policies.load_policy`.
        dtype: of a model in this process.
        device: of the same.
    """

    def load() -> Writer:
        from stepmark.serving.writers import ServedWriter, ThreadWriter

        if policy.startswith(("http://", "https://")):
            return ServedWriter(policy)
        from stepmark.models.policies import load_policy

        return ThreadWriter(load_policy(policy, dtype=dtype, device=device, memory_tokens=65_536))

    return load
