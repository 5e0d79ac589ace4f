"""Ports for servers that are stopped and started again at the same address."""

from __future__ import annotations

import os
import socket
from itertools import count

_tried = count()


def lasting_port() -> int:
    """A free port below the range that the system hands out: no other test's connection takes it while its server is down.

    It is above 10080 too, the highest port that browsers refuse (net::ERR_UNSAFE_PORT; Fetch standard, "bad port").
    """
    while True:
        port = 10_100 + (os.getpid() * 97 + next(_tried)) % 20_000
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
