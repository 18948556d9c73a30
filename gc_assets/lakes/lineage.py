"""Lineage of a metadata file: the earlier files and snapshots that it lists.

This module does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ListedSnapshot:
    """A snapshot listed in a metadata file.

    Attributes:
        at_ms: The snapshot's time in milliseconds since 1970.
        manifest_list: Address of its manifest list, or None if the file records it in an unknown
            format.
    """

    snapshot_id: str
    parent_id: str | None
    at_ms: int
    manifest_list: str | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """History of a table, as recorded in one of its metadata files.

    Attributes:
        locations: Directories of the table.
        log: Addresses of earlier metadata files with their times in milliseconds since 1970, oldest
            first. The last entry is the direct predecessor of the file.
        updated_ms: Time of the metadata file itself, in milliseconds since 1970.
        snapshots: Snapshots that the file lists.
        head: Id of the current snapshot.
        is_readable: False if the file records the history in an unknown format. All other
            attributes are then empty.
    """

    locations: tuple[str, ...] = ()
    log: tuple[tuple[str, int], ...] = ()
    updated_ms: int | None = None
    snapshots: tuple[ListedSnapshot, ...] = ()
    head: str | None = None
    is_readable: bool = True

    @property
    def is_first(self) -> bool:
        """True if this is the table's first metadata file.

        Some writers do not write a metadata log. A file without a log is therefore not the first
        one if it lists several snapshots, or a snapshot that has a parent.
        """
        return not self.log and len(self.snapshots) < 2 and all(item.parent_id is None for item in self.snapshots)

    def find_head(self, before_ms: float) -> tuple[ListedSnapshot | None, ListedSnapshot | None]:
        """Return the newest snapshot on the current branch before a given time, and its parent.

        Each of them is None if the metadata file does not list it.
        """
        by_id = {item.snapshot_id: item for item in self.snapshots}
        head = by_id.get(self.head) if self.head is not None else None
        while head is not None and head.at_ms >= before_ms:
            head = by_id.pop(head.parent_id, None) if head.parent_id is not None else None
        parent = by_id.get(head.parent_id) if head is not None and head.parent_id is not None else None
        return head, parent


NO_LINEAGE: Final = Lineage()
UNREADABLE_LINEAGE: Final = Lineage(is_readable=False)
