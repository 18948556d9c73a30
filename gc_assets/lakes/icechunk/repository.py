"""Interface to the two layouts of a repository.

Spec version 1 has one object for each ref in `refs/`, and all objects in `snapshots/` are commits.
In spec version 2, the object `repo` contains the refs and lists the snapshots. Retention, decoding
and all stages are the same for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Protocol

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.objects import Objects
from gc_assets.lakes.icechunk.backup_names import BACKUP_FOLDER, backup_time_us
from gc_assets.lakes.protocol import Commit, CommitSource, FrozenRefs, NamedPrefixes


class Repository(Protocol):
    """Source of the refs, commits and virtual chunk containers of one repository."""

    def freeze(self, as_of: datetime) -> FrozenRefs:
        """Read the mutable state. Raises `LakeUnreadable`."""
        ...

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yield the snapshots in the source's shard. Raises `LakeUnreadable`."""
        ...

    def read_prefixes(self) -> NamedPrefixes:
        """Read the virtual chunk containers. If they cannot be read, the result has the reason."""
        ...


def repo_address(repository: str) -> str:
    """Return the address of the `repo` object, which exists only in repositories of spec version 2."""
    return f"{repository}/repo"


def has_repo_object(lake: str, objects: Objects, repository: str) -> bool:
    """Check if a repository has spec version 2.

    Raises:
        LakeUnreadable: If the store fails, or if `repo` is missing but has copies, because the refs
            of spec version 1 that an upgrade can leave behind are then outdated.
    """
    address = repo_address(repository)
    try:
        if _exists(objects, address):
            return True
        copy = _find_copy(objects, f"{repository}/{BACKUP_FOLDER}/")
        if copy is None or _exists(objects, address):  # An upgrade may have just finished.
            return copy is not None
    except OSError as error:
        raise LakeUnreadable(f"lake {lake}: cannot determine whether {address} exists: {error}") from error
    raise LakeUnreadable(
        f"lake {lake}: {address} is missing, but {copy} is a copy of it, so the repository has spec version 2; restore `repo` from a "
        "backup, or from the newest copy in overwritten/ (the first by name), which lacks the last change"
    )


def _exists(objects: Objects, address: str) -> bool:
    try:
        objects.size(address)
    except FileNotFoundError:
        return False
    return True


def _find_copy(objects: Objects, folder: str) -> str | None:
    """Return the address of any copy of `repo`, or None if there is no copy."""
    addresses = (address for address, _, _ in objects.list(folder))
    return next((address for address in addresses if backup_time_us(address.removeprefix(folder)) is not None), None)
