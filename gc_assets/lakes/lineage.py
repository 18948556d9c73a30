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
        manifest_list: Address of its manifest list, or None if it is recorded in an unknown form.
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
        log: Addresses of earlier metadata files with their times in milliseconds since 1970,
            oldest first. The last one is the direct predecessor.
        updated_ms: Time of the file itself.
        snapshots: Snapshots that the file lists.
        head: Id of the current snapshot.
        is_readable: False if the history is recorded in an unknown form. All other attributes are
            then empty.
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

        Some writers do not write logs, so a file without a log is not the first one if it lists
        several snapshots or one that has a parent.
        """
        return not self.log and len(self.snapshots) < 2 and all(item.parent_id is None for item in self.snapshots)


NO_LINEAGE: Final = Lineage()
UNREADABLE_LINEAGE: Final = Lineage(is_readable=False)
