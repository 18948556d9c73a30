"""Find the cause of an error, so that several errors with one cause are reported once."""

from __future__ import annotations

import re
from typing import Final

_URL: Final = re.compile(r"(https?://[^/\s\"']+)/[^\s\"']*")
_PYTHON_HOST: Final = re.compile(r"host='([^']+)', port=(\d+)")


def strip_paths(text: str) -> str:
    """Return a text in which each web address is only its scheme, host and port."""
    return _URL.sub(r"\1", text)


def cause_of(error: BaseException) -> str:
    """Return the cause of an error without the place that it concerns, or "" if it is not known.

    The cause is that of an operating system or a server, such as a refused connection. Errors about
    the content of one object have none.
    """
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        current = current.__cause__ or current.__context__
    for item in reversed(seen):
        if host := _PYTHON_HOST.search(str(item)):
            return f"cannot connect to {host[1]}:{host[2]}; check the network, and `s3.endpoint` or the address of the catalog"
    reasons = [item.strerror for item in seen if isinstance(item, OSError) and not isinstance(item, FileNotFoundError)]
    return next((strip_paths(reason) for reason in reversed(reasons) if reason), "")
