"""Verify that a server supports conditional puts correctly.

Some servers ignore the conditions of a put. Two processes could then overwrite each other's tables,
and a deletion log could be lost. Before the first conditional put to a bucket, each process
therefore tests all kinds of conditions on a canary object.

Other servers check the condition first and write later, so that two concurrent writers may both
succeed. A single writer cannot detect this, so several writers race against each other. A faulty
server may be lucky in one race, but hardly in all of them.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Generator, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Barrier
from typing import Final, Protocol

from gc_assets.core.errors import StateError

# Number of writers in a race. A process runs a single race, and `doctor` runs a few. The larger the
# content, the more time passes between check and write. With this size, 7 of 10 first races and 21
# of 22 runs of `doctor` detected the problem in versitygw.
_RACERS: Final = 8
_RACE_BYTES: Final = 256 * 2**10
_ROUNDS: Final = 4


class ConditionalStore(Protocol):
    """The operations of a store that the check requires."""

    @property
    def server(self) -> Hashable:
        """Identifies the server, which is tested only once."""
        ...

    @property
    def unknown_version(self) -> str:
        """A version that no object has."""
        ...

    def uri(self, path: str) -> str: ...

    def read_version(self, path: str) -> tuple[bytes, str]: ...

    def put_if(self, path: str, content: bytes, version: str | None) -> str | None: ...

    def delete(self, path: str) -> None: ...


# Servers that have been tested, with the id of the process, because forked processes test again.
_TESTED: Final[set[tuple[Hashable, int]]] = set()


def require_conditions(store: ConditionalStore) -> None:
    """Test the server, unless this process has already done so.

    Raises:
        StateError: If the server ignores or rejects conditions.
        OSError: If the process does not have write access, or the server does not respond. The next
            call repeats the test.
    """
    key = (store.server, os.getpid())
    if key not in _TESTED:
        _test_conditions(store)
        _race(store)
        _TESTED.add(key)


def check_races(store: ConditionalStore) -> None:
    """Run several races between concurrent writers.

    Raises:
        StateError: If more than one writer succeeds in a race.
    """
    require_conditions(store)
    for _ in range(_ROUNDS):
        _race(store)


def _test_conditions(store: ConditionalStore) -> None:
    with _canary(store) as name:
        first, other = name.encode(), b"other"
        if not _put(store, name, first, None):
            raise _condition_error(store, "an object that does not exist was treated as existing")
        if _put(store, name, other, None) or store.read_version(name)[0] != first:
            raise _condition_error(store, "a put with `If-None-Match: *` replaced an existing object")
        is_rejected = not _put(store, name, b"wrong", store.unknown_version)
        content, version = store.read_version(name)
        is_replaced = is_rejected and _put(store, name, content + b"+", version)
        if not is_replaced or store.read_version(name)[0] != content + b"+":
            found = "a put with `If-Match` replaced an object with another etag, or did not replace one with the right etag"
            raise _condition_error(store, found)


def _put(store: ConditionalStore, name: str, content: bytes, version: str | None) -> bool:
    try:
        return store.put_if(name, content, version) is not None
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise _condition_error(store, f"it answers {error.strerror}") from error
        raise


def _race(store: ConditionalStore) -> None:
    with _canary(store) as name:
        _refuse_two_winners(store, name, None)
        _refuse_two_winners(store, name, store.read_version(name)[1])


def _refuse_two_winners(store: ConditionalStore, name: str, version: str | None) -> None:
    start = Barrier(_RACERS)

    def race(number: int) -> bool:
        start.wait()
        return store.put_if(name, f"{name} {number} {version}".encode().ljust(_RACE_BYTES), version) is not None

    with ThreadPoolExecutor(_RACERS) as pool:
        winners = sum(pool.map(race, range(_RACERS)))
    if winners != 1:
        raise _condition_error(store, f"{winners} of {_RACERS} concurrent writers with the same condition succeeded, expected 1")


@contextmanager
def _canary(store: ConditionalStore) -> Generator[str]:
    name = f".canary-{uuid.uuid4().hex}"
    try:
        yield name
    finally:
        with suppress(OSError):  # if this fails, only a few unused bytes are left
            store.delete(name)


def _condition_error(store: ConditionalStore, found: str) -> StateError:
    return StateError(
        f"{store.uri('')}: this server does not support conditional puts: {found}. Processes would overwrite each other, so "
        "nothing is written. Keep the state on a server that supports conditional puts (AWS S3, Ceph RGW), or on a disk"
    )
