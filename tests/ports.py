"""Free ports for the servers of the tests."""

from __future__ import annotations

import random
import socket

_used = set[int]()


def free_port() -> int:
    """Return a free port below the ephemeral range. Each port is returned once."""
    while True:
        port = random.SystemRandom().randrange(11_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _used:
            _used.add(port)
            return port
