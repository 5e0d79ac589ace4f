"""`stepmark.serve`: one PRM for many clients, over HTTP."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Annotated

from pydantic import Field

from stepmark.errors import MissingExtraError, UsageError
from stepmark.hosting import is_loopback, link_of, listen
from stepmark.models.lazy import Lazy
from stepmark.models.load import PRMLike, lazy_prm, read_by
from stepmark.models.policies import PolicyLike, policy_of
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
    """Serve a PRM over HTTP until Ctrl-C or SIGTERM: scores and ranked candidates, for many clients at once.

    With a policy the server answers as a chat model too, at /v1/chat/completions: a search with the policy and the PRM writes the answer.

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
    from stepmark.serving.app import run
    from stepmark.serving.chat import POLICY
    from stepmark.serving.guard import Keys
    from stepmark.serving.service import Service

    if open and keys is not None:
        raise UsageError("`open` answers every client and `keys` only some: give one of them")
    if keys is None and not open and not is_loopback(host):
        raise UsageError(
            f"`host` {host} lets other machines ask: give `keys`, a file of those who may (a line each: NAME KEY), or `open` for all"
        )
    given = lazy_prm(prm) if isinstance(prm, str) else prm
    if isinstance(given, Lazy):
        given = given.with_arguments(**read_by(given.name, {"token_budget": settings.token_budget}))
        given.check()
    allowed = None if keys is None else Keys.read(Path(keys))
    writer = None if policy is None else policy_of(policy)
    if isinstance(writer, Lazy):
        writer.check()
    elif writer is None and chat != CHAT:
        changed = next(
            item.name for item in fields(chat) if getattr(chat, item.name) != getattr(CHAT, item.name)
        )
        raise UsageError(f"`{changed}` is for the chat model, which needs `policy`, the model that writes")

    def log(line: str) -> None:
        with suppress(
            OSError, ValueError
        ):  # a log that nobody reads must not keep a server from answering or ending
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    with listen(host, port) as listening:  # clients that come while the model loads wait
        log(f"loading {given.name}")
        model = given.load() if isinstance(given, Lazy) else given
        if isinstance(writer, Lazy):
            log(f"loading {writer.name}")
            writer = writer.with_arguments(**POLICY).load()
        service = Service(model, settings, policy=writer, chat=chat, log=log, log_requests=not quiet)
        hosts = {"127.0.0.1", "localhost", "[::1]", host}
        run(
            service,
            listening,
            link=link_of(host, listening.getsockname()[1]),
            keys=allowed,
            hosts=frozenset(hosts) if keys is None and not open else None,
        )
