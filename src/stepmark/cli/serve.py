"""`stepmark serve`: the command of `stepmark.serve`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Group, Parameter

from stepmark.cli import options as opt
from stepmark.models.policies import lazy_policy
from stepmark.serving.run import serve
from stepmark.serving.settings import ChatModel, ServerSettings

SERVER = Parameter(name="*", group=Group("Server", sort_key=4))
CHAT = Parameter(name="*", group=Group("Chat model", sort_key=4.5))


@opt.documented_by(serve)
def serve_command(
    *,
    prm: opt.PRMOptions = opt.PRMOptions(),
    host: Annotated[str, opt.in_common("--host")] = "127.0.0.1",
    port: Annotated[int, opt.in_common("--port")] = 8008,
    keys: Annotated[opt.FileOrDash | None, opt.in_common("--keys")] = None,
    open: Annotated[bool, opt.in_common("--open")] = False,
    policy: opt.PolicyName | None = None,
    truncate: Annotated[bool, opt.in_model("--truncate", help=opt.TRUNCATE)] = False,
    seed: Annotated[int, opt.in_model("--seed", help=opt.SEED)] = 0,
    settings: Annotated[ServerSettings, SERVER] = ServerSettings(),
    chat: Annotated[ChatModel, CHAT] = ChatModel(),
    quiet: Annotated[bool, opt.in_output("--quiet")] = False,
    place: opt.PRMDevice = opt.PRMDevice(),
    policy_quantize: opt.PolicyQuantize | None = None,
) -> int:
    """See `stepmark.serve`."""
    writer = None if policy is None else lazy_policy(policy, quantize=policy_quantize, **vars(place))
    reader = prm.lazy(truncate=truncate, seed=seed, **vars(place))
    serve(
        reader, writer, host=host, port=port, keys=keys, open=open, settings=settings, chat=chat, quiet=quiet
    )
    return 0
