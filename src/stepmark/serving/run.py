"""`stepmark.serve`: one PRM for many clients, over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field

from stepmark.errors import MissingExtraError, UsageError
from stepmark.models.lazy import Lazy
from stepmark.models.load import PRMLike, lazy_prm, read_by
from stepmark.models.policies import PolicyLike
from stepmark.serving.settings import CHAT, DEFAULTS, ChatModel, ServerSettings
from stepmark.settings import checked

PORT = 8008
"""Default port."""


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
        MissingExtraError: fastapi, uvicorn or prometheus-client is not installed.
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"stepmark serve needs the package {error.name}: pip install 'stepmark[serve]'"
        ) from None
    from stepmark.serving.app import Place, run
    from stepmark.serving.chat import chat_extensions
    from stepmark.serving.guard import Keys

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
        given.load if isinstance(given, Lazy) else lambda: given,
        settings,
        place,
        what=given.name,
        keys=allowed,
        extensions=extensions,
        quiet=quiet,
    )
