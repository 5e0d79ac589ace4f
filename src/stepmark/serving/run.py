"""`stepmark.serve`: one PRM for many clients, over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from stepmark.errors import MissingExtraError, UsageError
from stepmark.models.lazy import Lazy
from stepmark.models.load import PRMLike, lazy_prm
from stepmark.models.named import is_server, read_by
from stepmark.models.policies import Policy, PolicyLike, lazy_policy
from stepmark.models.prm import PRM
from stepmark.serving.settings import CHAT, DEFAULTS, ChatModel, ServerSettings
from stepmark.settings import checked

if TYPE_CHECKING:
    from stepmark.serving.routes_completions import Completions
    from stepmark.serving.writers import Writer

PORT = 8008
"""Default port."""
_POLICY_MEMORY = 65_536
"""Tokens whose keys and values a policy in this process keeps."""


@checked
def serve(
    prm: PRMLike = "default",
    policy: PolicyLike | None = None,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Field(ge=0, le=65535)] = PORT,
    keys: str | Path | None = None,
    open: bool = False,
    settings: ServerSettings = DEFAULTS,
    chat: ChatModel = CHAT,
    quiet: bool = False,
) -> None:
    """Serve a PRM over HTTP until Ctrl-C or SIGTERM: scores, candidates in order, growing prefixes, for many clients at once.

    With a policy the server answers as a chat model too, at /v1/chat/completions: the policy writes several completions and the PRM chooses.

    Args:
        prm: the PRM, or its name: "default", a hub name, a folder, the address of a server, or "package.module:factory".
        policy: the policy of the chat model, or its name: http://HOST/v1#MODEL, a model's folder or hub name, or "package.module:factory".
            Default: the PRM alone is served.
        host: the address to listen on. Other machines reach another address than 127.0.0.1; then `keys` is needed, or `open`.
        port: where it listens; 0 for any port that is free.
        keys: a file of those who may ask, a line each: NAME KEY.
        open: answer every client that reaches the server.
        settings: how it serves, and limits.
        chat: how it answers as a chat model.
        quiet: no line for each request on standard error.

    Raises:
        UsageError: a setting that cannot work, an address that cannot be listened on, or that lets other machines ask without keys.
        CheckpointError: the PRM or the policy cannot be loaded.
        MissingExtraError: fastapi or uvicorn is not installed.
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"stepmark serve needs the package {error.name}: pip install 'stepmark[serve]'"
        ) from None
    from stepmark.serving.keys import Keys
    from stepmark.serving.listening import Place, run

    if open and keys is not None:
        raise UsageError("`open` answers every client and `keys` only some: give one of them")
    given = lazy_prm(prm) if isinstance(prm, str) else prm
    if isinstance(given, Lazy):
        given = given.with_arguments(**read_by(given.name, {"token_budget": settings.token_budget}))
        given.check()
    place = Place(host=host, port=port, everybody=open)
    place.check(keyed=keys is not None)
    allowed = None if keys is None else Keys.read(Path(keys))
    extensions = chat_extensions(policy, chat)
    if extensions and not quiet:
        name = policy.name if not isinstance(policy, str) and policy is not None else policy
        sys.stderr.write(f"as a model: {chat.model} at /v1/chat/completions, written by {name}\n")
    run(
        _loading(given),
        settings,
        place,
        what=given.name,
        keys=allowed,
        extensions=extensions,
        quiet=quiet,
    )


def _loading(prm: PRM | Lazy[PRM]) -> Callable[[], PRM]:
    return prm.load if isinstance(prm, Lazy) else lambda: prm


def chat_extensions(policy: PolicyLike | None, chat: ChatModel) -> list[Completions]:
    """What makes a server answer as a chat model; nothing without a policy.

    Raises:
        UsageError: settings of the chat model without a policy.
    """
    if policy is None:
        if chat != CHAT:
            name = next(name for name in ChatModel.__slots__ if getattr(chat, name) != getattr(CHAT, name))  # type: ignore[attr-defined]
            raise UsageError(f"`{name}` is for the chat model, which needs `policy`, the model that writes")
        return []
    from stepmark.serving.routes_completions import Completions

    model = lazy_policy(policy) if isinstance(policy, str) else policy
    if isinstance(model, Lazy):
        model.check()
    served = isinstance(model, Lazy) and is_server(model.name)
    if chat.stepwise:
        return [Completions(chat, policy=lambda: _policy(model, chat), together=served)]

    def writer() -> Writer:
        from stepmark.serving.writers import ServedWriter, ThreadWriter

        return ServedWriter(model.name) if served else ThreadWriter(_policy(model, chat))

    return [Completions(chat, writer)]


def _policy(policy: Policy | Lazy[Policy], chat: ChatModel) -> Policy:
    """The policy, loaded; of a server, with the patience that an answer allows."""
    if not isinstance(policy, Lazy):
        return policy
    if not is_server(policy.name):
        return policy.with_arguments(memory_tokens=_POLICY_MEMORY).load()
    from stepmark.models.policies.openai import OpenAIPolicy
    from stepmark.models.policies.transport import Patience, key_variable

    url, _, model = policy.name.partition("#")
    patience = Patience(retries=2, max_wait=10.0, timeout=chat.chat_timeout)
    return OpenAIPolicy(url, model or None, api_key_env=key_variable(), patience=patience)
