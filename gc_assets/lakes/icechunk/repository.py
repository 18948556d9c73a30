"""Common interface of the two layouts of Icechunk repositories.

In spec version 1, each ref is an object in `refs/`, and every object in `snapshots/` is a commit.
In spec version 2, the object `repo` contains the refs and lists the snapshots. Retention, decoding
and all stages work in the same way for both.
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
    """Reads the refs, commits and virtual chunk containers of one repository."""

    def freeze(self, as_of: datetime) -> FrozenRefs:
        """Read the mutable state of the repository. Raises `LakeUnreadable` if that fails."""
        ...

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yield the snapshots in a source's shard. Raises `LakeUnreadable` if that fails."""
        ...

    def read_prefixes(self) -> NamedPrefixes:
        """Read the virtual chunk containers (named prefixes), or return the reason for a failure."""
        ...


def repo_address(repository: str) -> str:
    """Return the address of the `repo` object. Only repositories with spec version 2 have one."""
    return f"{repository}/repo"


def has_repo_object(lake: str, objects: Objects, repository: str) -> bool:
    """Return True if a repository has spec version 2.

    Raises:
        LakeUnreadable: If the store fails, or if `repo` is missing although copies of it exist. An
            upgrade can leave refs of spec version 1 behind, which are outdated in this case.
    """
    address = repo_address(repository)
    try:
        if _exists(objects, address):
            return True
        copy = _find_copy(objects, f"{repository}/{BACKUP_FOLDER}/")
        if copy is None or _exists(objects, address):  # An upgrade may have finished just now.
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
    """Return the address of any backup copy of `repo`, or None if no copy exists."""
    addresses = (address for address, _, _ in objects.list(folder))
    return next((address for address in addresses if backup_time_us(address.removeprefix(folder)) is not None), None)
