"""Cache the parsed contents of a few files, with only the newest content of each file.

The bytes are still read each time, and only parsing is saved. An entry contains their digest, so
changes by other processes are seen immediately.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

MAX_CACHED_BYTES: Final = 16 * 2**20

_T = TypeVar("_T")


class ContentCache(Generic[_T]):
    """Parsed contents of files by address. Their total size before parsing is limited.

    Callers share the values and must not change them.
    """

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parsed: dict[str, tuple[bytes, int, _T]] = {}
        self._lock = threading.Lock()

    def parse(self, address: str, content: bytes, parse: Callable[[bytes], _T]) -> _T:
        """Return the parsed content. It is not cached if it is too large, or if `parse` fails."""
        if len(content) > self._max_bytes:
            return parse(content)
        digest = hashlib.sha256(content).digest()
        with self._lock:
            found = self._parsed.get(address)
        if found is not None and found[0] == digest:
            return found[2]
        value = parse(content)
        with self._lock:
            self._parsed.pop(address, None)
            self._parsed[address] = (digest, len(content), value)
            while self._parsed and sum(size for _, size, _ in self._parsed.values()) > self._max_bytes:
                del self._parsed[next(iter(self._parsed))]
        return value
