"""`stepmark serve`: one PRM for many clients, over HTTP."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter

from stepmark.cli.flags import Flag
from stepmark.cli.prm_flags import PRMFlags
from stepmark.cli.serve_search import NO_MODEL, ModelOptions, extension
from stepmark.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from stepmark.serving.service import Settings

DEFAULT_PORT = 8008

_COUNTS = (
    "token_budget",
    "memory_tokens",
    "queue_tokens",
    "samples",
    "max_body",
    "max_solutions",
    "max_steps",
    "max_characters",
    "sessions",
    "session_memory",
)
"""Options that are 1 or more, where they are given."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions(PRMFlags):
    """What is served, where, and how much of it at once."""

    host: str = "127.0.0.1"
    """The address to listen on. Other machines reach another one than 127.0.0.1; then --keys is needed, or --open."""
    port: int = DEFAULT_PORT
    """Where it listens; 0 for any that is free."""
    keys: Path | None = None
    """A file of those who may ask, a line each: NAME KEY."""
    open: Flag = False
    """Anybody who reaches the server may ask."""
    name: str | None = None
    """The model's name for clients. Left out: the PRM's own; of a folder, its last part."""
    truncate: Flag = False
    """Leave steps beyond the model's length without a score (null) instead of refusing the solution."""
    model: str | None = None
    """The model's name on the server that --prm names."""
    aggregate: str | None = None
    """How step scores become one number where a request does not say. Left out: the PRM's own way."""
    threshold: float | None = None
    """A step under it is an error where a request does not say. Left out: the PRM's own."""
    token_budget: int | None = None
    """Tokens that a batch computes. Left out: 2,048 on CPU, 16,384 on CUDA."""
    memory_tokens: int | None = None
    """Tokens whose keys and values are kept, over all clients. Left out: 65,536."""
    queue_tokens: int | None = None
    """Tokens that may wait; more are refused with 429. Left out: 32 batches."""
    timeout: float = 60.0
    """Seconds a request may take where it does not say (504 afterwards)."""
    body_timeout: float = 30.0
    """Seconds a request's body may take to arrive (408 afterwards)."""
    write_timeout: float = 60.0
    """Seconds that a client may leave each piece (64 KiB) of its answer unread; then its connection is ended."""
    grace: float = 30.0
    """Seconds that SIGTERM or Ctrl-C gives to what is in work."""
    max_body: int = 8
    """Megabytes (2^20 bytes) a request."""
    max_solutions: int = 1024
    """Solutions, candidates, steps of a session or sequences a request."""
    max_steps: int = 1024
    """Steps a solution."""
    max_characters: int = 200_000
    """Characters of a text that is to be cut into steps."""
    sessions: int = 1024
    """Sessions at once."""
    session_nodes: int = 4096
    """Steps that a session holds at once."""
    session_memory: int = 1024
    """Megabytes (2^20 bytes), about, that all sessions hold: texts, and what is known of their tokens. For more, the longest idle ones go."""
    session_idle: float = 600.0
    """Seconds without a request after which a session is forgotten."""
    quiet: Flag = False
    """No line for each request."""


def serve_command(*, options: ServeOptions = ServeOptions(), model: ModelOptions = NO_MODEL) -> int:
    """Serve a PRM over HTTP: scores, candidates in order, growing prefixes, for many clients at once.

    Args:
        options: the flags.
        model: the flags of best-of-N as a model.
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"stepmark serve needs the package {error.name}: pip install 'stepmark[serve]'"
        ) from None
    from stepmark.cli.serve_run import Place, run
    from stepmark.serving.keys import Keys

    settings = checked(options)
    shared = _also(model)
    options.check_meant(truncate=options.truncate, also=shared)
    keys = None if options.keys is None else Keys.read(options.keys)
    place = Place(host=options.host, port=options.port, everybody=options.open)
    completions = extension(model, dtype=options.dtype, device=options.device)
    if completions is not None:
        print(
            f"as a model: {completions.settings.model} at /v1/chat/completions, written by {model.policy}",
            file=sys.stderr,
        )
    return run(
        lambda: options.load(truncate=options.truncate, also=shared),
        settings,
        place,
        what=options.prm,
        keys=keys,
        extensions=() if completions is None else (completions,),
        quiet=options.quiet,
    )


def _also(model: ModelOptions) -> tuple[str, ...]:
    """The PRM's flags that mean something here too: of batches, whatever the PRM is, and of a policy in this process."""
    from stepmark.models.policies import in_process

    policy = model.policy is not None and in_process(model.policy)
    return ("token_budget", *(("dtype", "device") if policy else ()))


def checked(options: ServeOptions) -> Settings:
    """The settings, with everything found wrong that can be before a model loads.

    Raises:
        UsageError: a flag that cannot work.
    """
    from stepmark.metrics.aggregate import check_aggregate
    from stepmark.serving.service import Settings

    if options.aggregate is not None:
        check_aggregate(options.aggregate, "probability")
    options.check_device()
    if options.threshold is not None and options.threshold != options.threshold:
        raise UsageError("--threshold nan: expected a number")
    if not 0 <= options.port <= 65535:
        raise UsageError(f"--port {options.port}: expected 0 to 65535")
    if options.open and options.keys is not None:
        raise UsageError("--open lets everybody ask and --keys only some: give one of them")
    options.check_least([*((name, 1) for name in _COUNTS), ("session_nodes", 2)])
    for name in ("timeout", "body_timeout", "write_timeout", "session_idle"):
        if not 0 < getattr(options, name) < float("inf"):
            raise UsageError(
                f"--{name.replace('_', '-')} {getattr(options, name)}: expected more than 0 seconds"
            )
    if not 0 <= options.grace < float("inf"):
        raise UsageError(f"--grace {options.grace}: expected 0 seconds or more")
    return Settings(
        name=options.name,
        aggregate=options.aggregate,
        threshold=options.threshold,
        token_budget=options.token_budget,
        memory_tokens=options.memory_tokens,
        queue_tokens=options.queue_tokens,
        timeout=options.timeout,
        body_timeout=options.body_timeout,
        write_timeout=options.write_timeout,
        grace=options.grace,
        max_body=options.max_body << 20,
        max_solutions=options.max_solutions,
        max_steps=options.max_steps,
        max_characters=options.max_characters,
        sessions=options.sessions,
        session_nodes=options.session_nodes,
        session_memory=options.session_memory << 20,
        session_idle=options.session_idle,
    )
