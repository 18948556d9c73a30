"""Where the servers of the tests listen."""

from __future__ import annotations

import random
import socket

_given = set[int]()


def free_port() -> int:
    """A port below those that a system gives to whoever asks for any. It is given once."""
    while True:
        port = random.SystemRandom().randrange(11_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            return port
