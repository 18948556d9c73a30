"""The origin of a metadata file: the files and snapshots that it follows. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ListedSnapshot:
    """A snapshot that a metadata file lists.

    Attributes:
        at_ms: Its time in milliseconds since 1970.
        manifest_list: Address of its manifest list, None in an unknown form.
    """

    snapshot_id: str
    parent_id: str | None
    at_ms: int
    manifest_list: str | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """The history of a table, as one of its metadata files records it.

    Attributes:
        locations: Addresses of the directories of the table.
        log: Addresses of earlier metadata files, the oldest first, each with its time in milliseconds
            since 1970. The last one is the file that this one follows.
        updated_ms: Time of the file itself.
        snapshots: The listed snapshots.
        head: Id of the current snapshot.
        is_readable: False if the file records its history in an unknown way. Everything else is then
            empty.
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

        A file without a log that lists several snapshots is that of a writer without logs.
        """
        return not self.log and len(self.snapshots) < 2 and all(item.parent_id is None for item in self.snapshots)


NO_LINEAGE: Final = Lineage()
UNREADABLE_LINEAGE: Final = Lineage(is_readable=False)
