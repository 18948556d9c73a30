"""Find staged objects, which are listed on a branch but not in its head commit.

A comparison of the listings of a branch and its head also finds objects that the server's
`prepare_uncommited` omits: files uploaded again with the same content, and all objects with full
addresses. The list that this request returns is read in addition.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.objects import Objects
from gc_assets.lakes.lakefs.addresses import METADATA
from gc_assets.lakes.lakefs.client import ListedObject, RefDeleted, RepositoryClient
from gc_assets.lakes.lakefs.exact_paths import is_exact

# Listing has to wait for the server, not for the processor.
_LISTERS: Final = 8


@dataclass(frozen=True, slots=True)
class StagedObject:
    """An object in the staging area of a branch.

    Attributes:
        address: A full address from a listing, or a relative one from the server's list.
        branch: None if only the server's list contains the object.
        path: None if only the server's list contains the object.
        written_at: When the object was written, in seconds since 1970.
    """

    address: str
    branch: str | None
    path: str | None
    size_bytes: int | None
    written_at: int


def staged_objects(client: RepositoryClient, heads: Mapping[str, str]) -> list[StagedObject]:
    """Find the staged objects of all branches, ordered by branch and path.

    A branch that is deleted in the meantime does not have staged objects any more, so it is
    skipped.

    Args:
        client: Client of the repository.
        heads: Head of each branch.

    Raises:
        RefDeleted: If a branch or its head cannot be listed, but the branch still exists.
    """
    with ThreadPoolExecutor(_LISTERS) as listers:
        found = list(listers.map(lambda branch: _try_staged_on(client, branch, heads[branch]), sorted(heads)))
    deleted = [item for item in found if isinstance(item, RefDeleted)]
    existing = client.branches().keys() if deleted else ()
    for branch, item in zip(sorted(heads), found, strict=True):
        if isinstance(item, RefDeleted) and branch in existing:
            raise item
    return [item for of_branch in found if not isinstance(of_branch, RefDeleted) for item in of_branch]


def is_listed(client: RepositoryClient, branch: str, commit: str) -> bool:
    """Return True if a listing of this name shows the branch, not a commit with this id prefix.

    Since December 2022 (lakeFS #4743), the server prefers a branch to an abbreviated commit id, but
    still not to a complete one.

    Raises:
        RefDeleted: If the branch does not exist.
    """
    if client.is_branch(branch):
        return True
    return any(one != other for one, other in zip_longest(client.objects(branch), client.objects(commit)))


def _try_staged_on(client: RepositoryClient, branch: str, head: str) -> list[StagedObject] | RefDeleted:
    try:
        return list(_staged_on(client, branch, head))
    except RefDeleted as error:
        return error


def _staged_on(client: RepositoryClient, branch: str, head: str) -> Iterator[StagedObject]:
    """Yield the objects that differ from the head, and all whose path is not exact.

    Such a path cannot be found in the other listing, because several paths may look like it.
    """
    committed = (item for item in client.objects(head) if is_exact(item.path))
    committed_item: ListedObject | None = next(committed, None)
    for item in client.objects(branch):
        while is_exact(item.path) and committed_item is not None and committed_item.path < item.path:
            committed_item = next(committed, None)
        if committed_item is None or committed_item.path != item.path or committed_item.address != item.address:
            yield StagedObject(item.address, branch, item.path, item.size_bytes, item.written_at)


def read_server_list(lake: str, objects: Objects, location: str, pages: Sequence[str]) -> list[StagedObject]:
    """Read the files that `prepare_uncommited` wrote. Addresses are relative to the namespace.

    Args:
        lake: Name of the lake for error messages.
        objects: Reads the files.
        location: Location of the namespace.
        pages: Locations of the pages on the server.

    Raises:
        LakeUnreadable: If a page has no files, or a file cannot be read.
    """
    found: list[StagedObject] = []
    for page in pages:
        tail = page.rpartition(f"/{METADATA}")[2].rstrip("/")
        prefix = f"{location}{METADATA}{tail}/"
        try:
            files = [address for address, _, _ in objects.list(prefix)]
            tables = [pq.read_table(io.BytesIO(objects.read(address)), columns=["physical_address", "creation_date"]) for address in files]
        except (OSError, pa.ArrowException) as error:
            raise LakeUnreadable(f"lake {lake}: the server's list of uncommitted objects in {prefix} cannot be read: {error}") from error
        if not files:
            raise LakeUnreadable(
                f"lake {lake}: the server wrote its list of uncommitted objects to {page}, but {prefix} contains no file; "
                "check that `location` is the location of this repository's storage namespace"
            )
        rows = [row for table in tables for row in table.to_pylist()]
        found += [StagedObject(row["physical_address"], None, None, None, row["creation_date"]) for row in rows]
    return found
