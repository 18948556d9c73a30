"""What is staged: the objects that a reader of a branch sees and the branch's head commit does not
hold.

Staging is read from the two listings. They show what the server's own `prepare_uncommited` misses:
a file uploaded again with identical bytes, and every full address (research/lakefs.md 12, H5). The
server's list is read all the same and united with them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.objects import Objects
from gc_assets.lakes.lakefs.addresses import METADATA
from gc_assets.lakes.lakefs.client import ListedObject, RefGone, RepositoryClient

# Listing waits for the server and not for the processor.
_LISTERS: Final = 8


@dataclass(frozen=True, slots=True)
class StagedObject:
    """An address that a branch's staging area names. It is full as a listing spells it, or relative
    where only the server's list has it.

    `branch` and `path` are null where the server's list does not say. `written_at` is in seconds.
    """

    address: str
    branch: str | None
    path: str | None
    size_bytes: int | None
    written_at: int


def staged_objects(client: RepositoryClient, heads: Mapping[str, str]) -> list[StagedObject]:
    """Returns what all branches (head commit by name) have staged, by branch and path. A branch
    deleted meanwhile has nothing staged.

    Raises `RefGone` for a branch that cannot be listed and is still there.
    """
    with ThreadPoolExecutor(_LISTERS) as listers:
        found = list(listers.map(lambda branch: _staged_or_gone(client, branch, heads[branch]), sorted(heads)))
    gone = [item for item in found if isinstance(item, RefGone)]
    still = client.branches().keys() if gone else ()
    for branch, item in zip(sorted(heads), found, strict=True):
        if isinstance(item, RefGone) and branch in still:
            raise item
    return [item for of_branch in found if not isinstance(of_branch, RefGone) for item in of_branch]


def _staged_or_gone(client: RepositoryClient, branch: str, head: str) -> list[StagedObject] | RefGone:
    try:
        return list(_staged_on(client, branch, head))
    except RefGone as error:
        return error


def _staged_on(client: RepositoryClient, branch: str, head: str) -> Iterator[StagedObject]:
    committed = client.objects(head)
    below: ListedObject | None = next(committed, None)
    for item in client.objects(branch):
        while below is not None and below.path < item.path:
            below = next(committed, None)
        if below is None or below.path != item.path or below.address != item.address:
            yield StagedObject(item.address, branch, item.path, item.size_bytes, item.written_at)


def listed_by_server(lake: str, objects: Objects, location: str, where: Sequence[str]) -> list[StagedObject]:
    """Returns the addresses in the files that `prepare_uncommited` wrote, relative to the namespace
    at `location`.

    Raises `LakeUnreadable` for a page whose files are not there: what they protect would be lost.
    """
    found: list[StagedObject] = []
    for place in where:
        tail = place.rpartition(f"/{METADATA}")[2].rstrip("/")
        prefix = f"{location}{METADATA}{tail}/"
        try:
            files = [address for address, _, _ in objects.list(prefix)]
            tables = [pq.read_table(io.BytesIO(objects.read(address)), columns=["physical_address", "creation_date"]) for address in files]
        except (OSError, pa.ArrowException) as error:
            raise LakeUnreadable(f"lake {lake}: the server's list of uncommitted objects in {prefix} cannot be read: {error}") from error
        if not files:
            raise LakeUnreadable(
                f"lake {lake}: the server wrote its list of uncommitted objects to {place}, and there is none in {prefix}; "
                "check that `location` is where this repository's storage namespace lies"
            )
        rows = [row for table in tables for row in table.to_pylist()]
        found += [StagedObject(row["physical_address"], None, None, None, row["creation_date"]) for row in rows]
    return found
