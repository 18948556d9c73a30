"""Compare a catalog's metadata pointers with those that an earlier run recorded.

A pointer is the address of the current metadata file that a catalog records for a table name. A
pointer from the earlier run is *former* if no current pointer continues its history. This happens
when a catalog is restored from a backup, a table is registered again with older metadata, or one of
a table's names is dropped.

The functions are pure, except that `Histories` reads metadata files. It follows their metadata logs
only back to the time of the earlier run, whereas `stages/sweep/metadata_lineage.py` follows them to
the first file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from gc_assets.lakes.lineage import UNREADABLE_LINEAGE, Lineage

# A log lists up to 100 files by default, so this covers 20,000 commits between two runs.
MAX_LOGS: Final = 200
# Allowed difference between the clocks of writers and of the collector.
_MAX_SKEW: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Pointer:
    """Metadata file to which a catalog points for one of a table's names.

    Attributes:
        heads: Ids of the snapshots at the heads of the table's refs.
        read_at: When a run last read the pointer.
        former_since: When a run first found the pointer to be former, or None.
        missing_since: When a run first found the table to be missing, or None.
    """

    table_uuid: str
    table_name: str | None
    address: str
    heads: frozenset[str]
    read_at: datetime
    former_since: datetime | None = None
    missing_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Succession:
    """Metadata pointers of one table in an earlier run and in the current run."""

    before: Sequence[Pointer]
    now: Sequence[Pointer]

    @property
    def is_single(self) -> bool:
        """True if the table has one name in both runs. Metadata logs of several names may overlap."""
        return len(self.before) == len(self.now) == 1

    def find_moved(self) -> list[Pointer]:
        """Return the earlier run's pointers whose name is missing or has another address now."""
        current = {(item.table_name, item.address) for item in self.now}
        return [item for item in self.before if (item.table_name, item.address) not in current]

    def find_successors(self, former: Pointer) -> list[Pointer]:
        """Return the current pointers that may continue the history of an earlier run's pointer.

        The result is the current pointer with the same table name. If the name no longer exists,
        the table may have been renamed, so every pointer with a new name is returned.
        """
        known = {item.table_name for item in self.before}
        own = [item for item in self.now if item.table_name == former.table_name]
        return own or [item for item in self.now if item.table_name not in known]


def group_pointers(before: Iterable[Pointer], now: Iterable[Pointer]) -> dict[str, Succession]:
    """Pair the pointers of two runs by table UUID. Tables found in only one run are left out."""
    earlier, current = defaultdict[str, list[Pointer]](list), defaultdict[str, list[Pointer]](list)
    for item in before:
        earlier[item.table_uuid].append(item)
    for item in now:
        current[item.table_uuid].append(item)
    return {uuid: Succession(earlier[uuid], items) for uuid, items in current.items() if uuid in earlier}


@dataclass(frozen=True)
class Histories:
    """Metadata logs of tables. Each metadata file is read at most once.

    Attributes:
        read: Returns the lineage recorded in a metadata file. Raises FileNotFoundError if the file
            does not exist, and any other exception if it cannot be read.
        identify: Maps every address of the same file to the same value.
    """

    read: Callable[[str], Lineage]
    identify: Callable[[str], object]
    _found: dict[object, Lineage | None] = field(default_factory=dict[object, Lineage | None], repr=False)

    def find_former(self, table: Succession) -> list[Pointer]:
        """Return the earlier run's pointers whose history no current pointer continues."""
        return [item for item in table.find_moved() if not any(self._continues(item, other) for other in table.find_successors(item))]

    def _continues(self, former: Pointer, current: Pointer) -> bool:
        """Return True if the metadata file of `current` continues the history of `former`.

        If the logs do not reach back far enough, the result is also True in two other cases. Either
        `current` lists all heads of `former`, or the file of `former` was deleted, as writers do
        with old metadata.
        """
        if (is_listed := self._is_in_logs(former, current.address)) is not None:
            return is_listed
        newest = self._read(current.address)
        if newest is not None and newest.is_readable and former.heads <= {item.snapshot_id for item in newest.snapshots}:
            return True
        return self._read(former.address) is None

    def _is_in_logs(self, former: Pointer, start: str) -> bool | None:
        """Search metadata logs for the file of `former`, from `start` back to the earlier run.

        Returns None if the logs end before that time, so that the answer is unknown.
        """
        wanted, current = self.identify(former.address), start
        if self.identify(current) == wanted:
            return True
        for _ in range(MAX_LOGS):
            found = self._read(current)
            if found is None or not found.is_readable:
                return None
            if wanted in {self.identify(name) for name, _ in found.log}:
                return True
            if not found.log:
                return False if found.is_first else None
            current, at_ms = found.log[0]
            if at_ms < (former.read_at - _MAX_SKEW).timestamp() * 1000:
                return False
        return None

    def _read(self, address: str) -> Lineage | None:
        """Return the lineage recorded in a file, or None if the file does not exist."""
        key = self.identify(address)
        if key not in self._found:
            try:
                self._found[key] = self.read(address)
            except FileNotFoundError:
                self._found[key] = None
            except Exception:  # noqa: BLE001 - other programs write the metadata, and unknown history is kept
                self._found[key] = UNREADABLE_LINEAGE
        return self._found[key]
