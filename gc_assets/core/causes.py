"""Find the cause of an error, so that errors with the same cause can be reported together."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import Final

CANNOT_CONNECT: Final = "cannot connect"
_URL: Final = re.compile(r"(https?://[^/\s\"']+)/[^\s\"']*")
_SERVER: Final = re.compile(r"https?://([^/\s\"']+)/")
_PYTHON_HOST: Final = re.compile(r"host='([^']+)', port=(\d+)")


def strip_paths(text: str) -> str:
    """Remove the path from each HTTP URL in a string, so that scheme, host and port remain."""
    return _URL.sub(r"\1", text)


def cause_of(error: BaseException) -> str:
    """Return the cause of an error without the name of the affected object, or "" if unknown.

    Only failures of the operating system or a server, such as a refused connection, are considered
    a cause. Errors about the content of a single object are not.
    """
    chain = _error_chain(error)
    if (server := _find_server(chain)) is not None:
        return f"{CANNOT_CONNECT} to {server}; check the network, and `s3.endpoint` or the address of the catalog"
    reasons = [item.strerror for item in chain if isinstance(item, OSError) and not isinstance(item, FileNotFoundError)]
    return next((strip_paths(reason) for reason in reversed(reasons) if reason), "")


def _error_chain(error: BaseException) -> list[BaseException]:
    """Return the error followed by its causes, with the root cause at the end."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        current = current.__cause__ or current.__context__
    return seen


def _find_server(chain: Sequence[BaseException]) -> str | None:
    """Find the host and port of the server that could not be reached."""
    for item in reversed(chain):
        if host := _PYTHON_HOST.search(str(item)):
            return f"{host[1]}:{host[2]}"
    if any(isinstance(item, ConnectionError | socket.gaierror) for item in chain):
        named = (_SERVER.search(str(item)) for item in chain)
        return next((found[1] for found in named if found is not None), None)
    return None
