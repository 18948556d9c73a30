"""Verify that a server evaluates conditional puts before relying on them.

Some servers ignore put conditions, so two processes could overwrite each other's tables and lose a
deletion log. Before its first conditional put to a bucket, each process therefore tests every kind
of condition on a canary object.

Other servers check the condition first and write later, so two concurrent writers may both succeed.
A single writer cannot detect this, so several writers race. A faulty server may pass one race by
luck, but not every race.
"""

from __future__ import annotations

import errno
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

# Writers per race. A process runs one race, and `doctor` a few. The time between check and write
# grows with the content: with this size, 7 of 10 first rounds detected versitygw, and 21 of 22 runs
# of `doctor`.
_RACERS: Final = 8
_RACE_BYTES: Final = 256 * 2**10
_ROUNDS: Final = 4


class ConditionalStore(Protocol):
    """Store operations required by the check."""

    @property
    def server(self) -> Hashable:
        """Identity of the checked server."""
        ...

    @property
    def unknown_version(self) -> str:
        """Version that no object has."""
        ...

    def uri(self, path: str) -> str: ...

    def read_version(self, path: str) -> tuple[bytes, str]: ...

    def put_if(self, path: str, content: bytes, version: str | None, condition: dict[str, str]) -> str | None: ...

    def delete(self, path: str) -> None: ...


@dataclass(frozen=True, slots=True)
class EtagQuoting:
    """Etag format expected in `If-Match`. Most servers accept it with or without quotes."""

    quote: str

    def absent(self) -> dict[str, str]:
        return {"IfNoneMatch": "*"}

    def at(self, version: str) -> dict[str, str]:
        return {"IfMatch": f"{self.quote}{version}{self.quote}"}


# Ceph 16 does not recognise a quoted etag.
_QUOTINGS: Final = (EtagQuoting(""), EtagQuoting('"'))


# Results cached in this process.
_KNOWN_QUOTINGS: Final[dict[tuple[Hashable, int], EtagQuoting]] = {}


def etag_quoting(store: ConditionalStore) -> EtagQuoting:
    """Return the etag format that the server expects in conditions.

    Raises:
        StateError: If the server ignores or rejects conditions.
        OSError: If the process has no write access.
    """
    key = (store.server, os.getpid())
    if key not in _KNOWN_QUOTINGS:
        spelling = _find_quoting(store)
        _race(store, spelling)
        _KNOWN_QUOTINGS[key] = spelling
    return _KNOWN_QUOTINGS[key]


def check_races(store: ConditionalStore) -> None:
    """Run a few races.

    Raises:
        StateError: If a race has more than one winner.
    """
    spelling = etag_quoting(store)
    for _ in range(_ROUNDS):
        _race(store, spelling)


def _find_quoting(store: ConditionalStore) -> EtagQuoting:
    with _canary(store) as name:
        first, other = name.encode(), b"other"
        if not _put(store, name, first, None, EtagQuoting("").absent()):
            raise _condition_error(store, "an object that does not exist was treated as existing")
        if _put(store, name, other, None, EtagQuoting("").absent()) or store.read_version(name)[0] != first:
            raise _condition_error(store, "a put with `If-None-Match: *` replaced an existing object")
        for spelling in _QUOTINGS:
            if _compares(store, name, spelling):
                return spelling
    raise _condition_error(store, "a put with `If-Match` replaced an object with another etag, or did not replace one with the right etag")


def _compares(store: ConditionalStore, name: str, spelling: EtagQuoting) -> bool:
    """Check that the server rejects a wrong etag and accepts the right one."""
    if _put(store, name, b"wrong", store.unknown_version, spelling.at(store.unknown_version)):
        return False
    content, version = store.read_version(name)
    return _put(store, name, content + b"+", version, spelling.at(version)) and store.read_version(name)[0] == content + b"+"


def _put(store: ConditionalStore, name: str, content: bytes, version: str | None, condition: dict[str, str]) -> bool:
    try:
        return store.put_if(name, content, version, condition) is not None
    except OSError as error:
        code = error_code(error.__cause__) if isinstance(error.__cause__, ClientError) else ""
        if error.errno == errno.ENOSYS or code in {"NotImplemented", "501"}:
            raise _condition_error(store, f"it answers {error.strerror}") from error
        raise


def _race(store: ConditionalStore, spelling: EtagQuoting) -> None:
    with _canary(store) as name:
        _refuse_two_winners(store, name, None, spelling.absent())
        version = store.read_version(name)[1]
        _refuse_two_winners(store, name, version, spelling.at(version))


def _refuse_two_winners(store: ConditionalStore, name: str, version: str | None, condition: dict[str, str]) -> None:
    start = Barrier(_RACERS)

    def race(number: int) -> bool:
        start.wait()
        return store.put_if(name, f"{name} {number} {version}".encode().ljust(_RACE_BYTES), version, condition) is not None

    with ThreadPoolExecutor(_RACERS) as pool:
        winners = sum(pool.map(race, range(_RACERS)))
    if winners != 1:
        raise _condition_error(store, f"of {_RACERS} concurrent writers with one condition {winners} succeeded, expected 1")


@contextmanager
def _canary(store: ConditionalStore) -> Generator[str]:
    name = f".canary-{uuid.uuid4().hex}"
    try:
        yield name
    finally:
        with suppress(OSError):  # a few bytes that no process reads
            store.delete(name)


def _condition_error(store: ConditionalStore, found: str) -> StateError:
    return StateError(
        f"{store.uri('')}: this server does not support conditional puts: {found}. Processes would overwrite each other, so "
        "nothing is written. Keep the state on a server that supports conditional puts (AWS S3, Ceph RGW), or on a disk"
    )
