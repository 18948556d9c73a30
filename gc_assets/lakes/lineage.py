"""The origin of a metadata file, i.e. the earlier files and the snapshots that it follows.

The functions are pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ListedSnapshot:
    """A snapshot listed in a metadata file.

    Attributes:
        at_ms: The snapshot's time in milliseconds since 1970.
        manifest_list: Address of its manifest list, or None if its form is unknown.
    """

    snapshot_id: str
    parent_id: str | None
    at_ms: int
    manifest_list: str | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """The history of a table, as recorded in one of its metadata files.

    Attributes:
        locations: Addresses of the table's directories.
        log: Addresses of earlier metadata files, oldest first, each with its time in milliseconds
            since 1970. The last one is the direct predecessor.
        updated_ms: Time of the file itself.
        snapshots: The listed snapshots.
        head: Id of the current snapshot.
        is_readable: False if the file records its history in an unknown way. All other attributes
            are then empty.
    """

    locations: tuple[str, ...] = ()
    log: tuple[tuple[str, int], ...] = ()
    updated_ms: int | None = None
    snapshots: tuple[ListedSnapshot, ...] = ()
    head: str | None = None
    is_readable: bool = True

    @property
    def is_first(self) -> bool:
        """True if the file is the first one of its table.

        A file that lists several snapshots but has no log is from a writer that does not write
        logs.
        """
        return not self.log and len(self.snapshots) < 2 and all(item.parent_id is None for item in self.snapshots)


NO_LINEAGE: Final = Lineage()
UNREADABLE_LINEAGE: Final = Lineage(is_readable=False)
