"""Ray itself, for `cluster`: loaded without its usage statistics, joined without a minute's wait, its reports in a line."""

from __future__ import annotations

import importlib
import os
import socket
from typing import Any

from stepmark.errors import BackendError, MissingExtraError, UsageError


def loaded_ray() -> Any:
    """The module.

    Raises:
        MissingExtraError: it is not installed.
    """
    # Read when ray is loaded: it otherwise tells its makers about this machine.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError:
        raise MissingExtraError("a Ray cluster needs ray: pip install 'stepmark[cluster]'") from None


def connect(ray: Any, address: str) -> bool:
    """Join the cluster; whether it was us who did, and not our caller before.

    Raises:
        UsageError: no such form of an address.
        BackendError: there is no cluster.
        MissingExtraError: the address needs Ray's client, which is not installed.
    """
    if ray.is_initialized():
        return False
    own = address == "local"
    if not own and address != "auto":
        _check_reachable(address)
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            **({"include_dashboard": False} if own else {}),
        )
    except ImportError as error:  # Ray's client needs grpcio
        raise MissingExtraError(
            f"{address} needs Ray's client: pip install 'stepmark[cluster]' ({error})"
        ) from None
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BackendError(
            f"cannot join a Ray cluster at {address!r}: {error}. Start one with `ray start --head`, or run this on one of "
            f"its nodes, or give ray://HOST:10001, or 'local'"
        ) from error
    return True


def _check_reachable(address: str) -> None:
    # Ray itself tries for a minute and then ends the process.
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(
            f"the cluster's address: expected auto, HOST:PORT, ray://HOST:PORT or local, found {address!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise BackendError(
            f"nothing answers at {address} ({error}): is the cluster up? Ray prints its address when it starts"
        ) from None


def short(error: Exception) -> str:
    """What happened, from Ray's report, which is a page of advice."""
    words = " ".join(str(error).split())
    for before, after in (
        ("The actor is dead because ", " Some common causes"),
        ("The actor died because ", " Node Id"),
        (" is unavailable: ", " rpc_code"),
    ):
        if before in words:
            return words.rpartition(before)[2].partition(after)[0][:240].rstrip(".")
    return words[:240] or type(error).__name__
