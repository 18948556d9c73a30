"""What a server was asked, as its own access log tells it: no client counts for itself, and each one is counted alike."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

# A line of radosgw's log (debug_rgw at its default of 1) for each request that it has answered.
_LINE: Final = re.compile(r'beast: \S+: \S+ - \S+ \[[^]]*\] "(?P<method>[A-Z]+) (?P<target>\S+) HTTP/[\d.]+" (?P<status>\d+) ')
_SETTINGS: Final = frozenset({"versioning", "lifecycle", "location", "policy", "acl", "object-lock"})
_QUIET_SECONDS: Final = 0.3
_PATIENCE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """`kind` is the word that bills and documents use. `key` is empty where a bucket was asked for."""

    kind: str
    bucket: str
    key: str
    status: int


class AccessLog:
    """The requests to a server, taken in the order in which they were answered."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "client.rgw.a.log"
        self._read = 0

    def take(self) -> list[Request]:
        """Those since the last call. Waits until the server has written no more for a while."""
        self._settle()
        with self._path.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return list(parsed(whole.decode(errors="replace").splitlines()))

    def _settle(self) -> None:
        until, size = time.monotonic() + _PATIENCE_SECONDS, -1
        while size != self._path.stat().st_size and time.monotonic() < until:
            size = self._path.stat().st_size
            time.sleep(_QUIET_SECONDS)


def parsed(lines: Iterable[str]) -> Iterator[Request]:
    for line in lines:
        found = _LINE.search(line)
        if found is not None:
            yield _request(found["method"], found["target"], int(found["status"]))


def by_kind(requests: Iterable[Request]) -> dict[str, int]:
    return dict(Counter(request.kind for request in requests).most_common())


def _request(method: str, target: str, status: int) -> Request:
    parts = urlsplit(target)
    bucket, _, key = unquote(parts.path).removeprefix("/").partition("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    return Request(_kind(method, key, query), bucket, key, status)


def _kind(method: str, key: str, query: dict[str, list[str]]) -> str:
    if method == "POST" and "delete" in query:
        return "DELETE of many"
    if method == "GET" and not key:
        return "other" if _SETTINGS & set(query) else "LIST"
    return method
