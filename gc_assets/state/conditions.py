"""Proves, before anything depends on it, that a server compares before it replaces.

Some servers take a put with a condition and ignore the condition. Two processes would then publish
over each other, and a deletion log would be forgotten. So each process tries every kind of
condition on a canary object of its own, once for each bucket, before its first conditional put.

Other servers compare first and write later. Two writers at once may then both succeed, which no
single writer can see. So some writers race as well. A server may pass by luck, but not every time.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Barrier
from typing import Final, Protocol

from botocore.exceptions import ClientError

from gc_assets.core.errors import StateError
from gc_assets.s3.client import error_code

# An etag that no object of ours has.
_UNKNOWN_ETAG: Final = "0" * 32
# So many writers race, once in each process and a few times where `doctor` looks. The time from
# comparing to writing grows with the content: of this size, 7 of 10 first rounds found versitygw
# out, and 21 of 22 looks of `doctor`.
_RACERS: Final = 8
_RACE_BYTES: Final = 256 * 2**10
_ROUNDS: Final = 4


class ConditionalStore(Protocol):
    """Objects below a place, as far as a canary needs them."""

    @property
    def server(self) -> Hashable:
        """What one proof holds for."""
        ...

    def uri(self, path: str) -> str: ...

    def read_version(self, path: str) -> tuple[bytes, str]: ...

    def put_if(self, path: str, content: bytes, version: str | None, condition: dict[str, str]) -> str | None: ...

    def delete(self, path: str) -> None: ...


@dataclass(frozen=True, slots=True)
class EtagQuoting:
    """How a server wants an etag written: most take it with or without quotes, some only in one
    way.
    """

    quote: str

    def absent(self) -> dict[str, str]:
        return {"IfNoneMatch": "*"}

    def at(self, version: str) -> dict[str, str]:
        return {"IfMatch": f"{self.quote}{version}{self.quote}"}


# Ceph 16 takes a quoted etag for another one.
_QUOTINGS: Final = (EtagQuoting(""), EtagQuoting('"'))


# What this process knows of each server.
_KNOWN_QUOTINGS: Final[dict[tuple[Hashable, int], EtagQuoting]] = {}


def etag_quoting(place: ConditionalStore) -> EtagQuoting:
    """Return how conditions are written for the server of a place.

    Raises `StateError` where the server ignores or refuses them, and `OSError` where it may not be
    written to.
    """
    key = (place.server, os.getpid())
    if key not in _KNOWN_QUOTINGS:
        spelling = _find_quoting(place)
        _race(place, spelling)
        _KNOWN_QUOTINGS[key] = spelling
    return _KNOWN_QUOTINGS[key]


def check_races(place: ConditionalStore) -> None:
    """Raise `StateError` where one of a few races has more than one winner."""
    spelling = etag_quoting(place)
    for _ in range(_ROUNDS):
        _race(place, spelling)


def _find_quoting(place: ConditionalStore) -> EtagQuoting:
    with _canary(place) as name:
        first, other = name.encode(), b"other"
        if not _put(place, name, first, None, EtagQuoting("").absent()):
            raise _unsupported(place, "an object that was not there counted as there")
        if _put(place, name, other, None, EtagQuoting("").absent()) or place.read_version(name)[0] != first:
            raise _unsupported(place, "a put with `If-None-Match: *` replaced an object that was there")
        for spelling in _QUOTINGS:
            if _compares(place, name, spelling):
                return spelling
    raise _unsupported(place, "a put with `If-Match` replaced an object with another etag, or none with the right one")


def _compares(place: ConditionalStore, name: str, spelling: EtagQuoting) -> bool:
    """Return True if the server refuses another object's etag and takes the right one."""
    if _put(place, name, b"wrong", _UNKNOWN_ETAG, spelling.at(_UNKNOWN_ETAG)):
        return False
    content, version = place.read_version(name)
    return _put(place, name, content + b"+", version, spelling.at(version)) and place.read_version(name)[0] == content + b"+"


def _put(place: ConditionalStore, name: str, content: bytes, version: str | None, condition: dict[str, str]) -> bool:
    try:
        return place.put_if(name, content, version, condition) is not None
    except OSError as error:
        if isinstance(error.__cause__, ClientError) and error_code(error.__cause__) in {"NotImplemented", "501"}:
            raise _unsupported(place, f"it answers {error.strerror}") from error
        raise


def _race(place: ConditionalStore, spelling: EtagQuoting) -> None:
    with _canary(place) as name:
        _refuse_two_winners(place, name, None, spelling.absent())
        version = place.read_version(name)[1]
        _refuse_two_winners(place, name, version, spelling.at(version))


def _refuse_two_winners(place: ConditionalStore, name: str, version: str | None, condition: dict[str, str]) -> None:
    start = Barrier(_RACERS)

    def race(number: int) -> bool:
        start.wait()
        return place.put_if(name, f"{name} {number} {version}".encode().ljust(_RACE_BYTES), version, condition) is not None

    with ThreadPoolExecutor(_RACERS) as pool:
        winners = sum(pool.map(race, range(_RACERS)))
    if winners != 1:
        raise _unsupported(place, f"of {_RACERS} writers at once under one condition {winners} were told that they succeeded, expected 1")


@contextmanager
def _canary(place: ConditionalStore) -> Generator[str]:
    name = f".canary-{uuid.uuid4().hex}"
    try:
        yield name
    finally:
        with suppress(OSError):  # a few bytes that nobody reads
            place.delete(name)


def _unsupported(place: ConditionalStore, found: str) -> StateError:
    return StateError(
        f"{place.uri('')}: this server does not compare before it replaces: {found}. Processes would publish over each other, so "
        "nothing is written here. Keep the state on a server that honours conditional puts (AWS S3, Ceph RGW), or on a disk"
    )
