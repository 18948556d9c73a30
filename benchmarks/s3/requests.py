"""Requests to a server, from its access log, which counts all clients alike."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from tests.s3.servers import S3Server

# A line of radosgw's log for each answered request (debug_rgw at its default of 1).
_LINE: Final = re.compile(r'beast: \S+: \S+ - \S+ \[[^]]*\] "(?P<method>[A-Z]+) (?P<target>\S+) HTTP/[\d.]+" (?P<status>\d+) ')
_SETTINGS: Final = frozenset({"versioning", "lifecycle", "location", "policy", "acl", "object-lock"})
_MARK: Final = "mark-"
_LOOK_SECONDS: Final = 0.02
_PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `kind` is the term in bills and documentation. `key` is empty for a request to
    the bucket.
    """

    kind: str
    bucket: str
    key: str
    status: int


class AccessLog:
    """The requests to a server, in the order of its answers."""

    def __init__(self, server: S3Server) -> None:
        self._endpoint = server.endpoint
        self._path = server.log / "client.rgw.a.log"
        self._read = 0

    def take(self) -> list[Request]:
        """Return the requests since the last call.

        Raises:
            RuntimeError: If the server does not log its answers.
        """
        # A line can be written after that of a later answer, so send one more request before the
        # end.
        self._read_to_mark()
        text, mark = self._read_to_mark()
        before, _, _ = text.partition(mark)
        self._read += len(text[: text.index("\n", len(before))].encode()) + 1
        return [request for request in parse_lines(before.splitlines()) if not request.bucket.startswith(_MARK)]

    def _read_to_mark(self) -> tuple[str, str]:
        """Send a marker request. Return the log up to its line, and the name of the marker."""
        mark = f"{_MARK}{uuid.uuid4().hex}"
        with suppress(urllib.error.HTTPError):
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{self._endpoint}/{mark}").close()
        until = time.monotonic() + _PATIENCE_SECONDS
        while mark not in (text := self._unread()):
            if time.monotonic() > until:
                raise RuntimeError(f"{self._path}: expected a line for each answer, found none for {mark} after {_PATIENCE_SECONDS:.0f} s")
            time.sleep(_LOOK_SECONDS)
        return text, mark

    def _unread(self) -> str:
        """Return the complete lines since the last read."""
        with self._path.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        return text[: text.rfind(b"\n") + 1].decode()


def parse_lines(lines: Iterable[str]) -> Iterator[Request]:
    for line in lines:
        found = _LINE.search(line)
        if found is not None:
            yield _request(found["method"], found["target"], int(found["status"]))


def count_by_kind(requests: Iterable[Request]) -> dict[str, int]:
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
