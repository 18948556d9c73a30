"""Compare the metadata files to which a catalog points with those of an earlier run.

A pointer of the earlier run is *former* if no pointer of this run continues its history. This
occurs if a catalog was restored from a backup, a table was registered again with older metadata, or
one of several names of a table was dropped.

The functions are pure, except for the metadata files that `Histories` reads. It follows logs only
to the time of the earlier run; `stages/sweep/metadata_lineage.py` follows them to the first file.
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
# The clocks of writers and of the collector may differ by this much.
_MAX_SKEW: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Pointer:
    """The metadata file to which a catalog points by one name of a table.

    Attributes:
        heads: Ids of the snapshots to which the table's refs point.
        read_at: Time of the last run that read it.
        former_since: Time of the first run that found it to be former, otherwise None.
        missing_since: Time of the first run that missed its table, otherwise None.
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
    """The pointers of one table in an earlier run and in this one."""

    before: Sequence[Pointer]
    now: Sequence[Pointer]

    @property
    def is_single(self) -> bool:
        """True if the table had and has one name. A log of one name may list a pointer of another."""
        return len(self.before) == len(self.now) == 1

    def find_moved(self) -> list[Pointer]:
        """Return the earlier pointers whose name or address is not in this run."""
        current = {(item.table_name, item.address) for item in self.now}
        return [item for item in self.before if (item.table_name, item.address) not in current]

    def find_successors(self, former: Pointer) -> list[Pointer]:
        """Return the pointers that may continue the history of an earlier one: that of its name, or
        those of new names if the table was renamed.
        """
        known = {item.table_name for item in self.before}
        own = [item for item in self.now if item.table_name == former.table_name]
        return own or [item for item in self.now if item.table_name not in known]


def group_pointers(before: Iterable[Pointer], now: Iterable[Pointer]) -> dict[str, Succession]:
    """Group the pointers of two runs by table uuid. Only tables with pointers in both are returned."""
    earlier, current = defaultdict[str, list[Pointer]](list), defaultdict[str, list[Pointer]](list)
    for item in before:
        earlier[item.table_uuid].append(item)
    for item in now:
        current[item.table_uuid].append(item)
    return {uuid: Succession(earlier[uuid], items) for uuid, items in current.items() if uuid in earlier}


@dataclass(frozen=True)
class Histories:
    """The metadata logs of tables. Each file is read once.

    Attributes:
        read: Returns the lineage in a metadata file. Raises FileNotFoundError if it does not exist,
            and any other error if it cannot be read.
        identify: Returns the same value for all addresses of a file.
    """

    read: Callable[[str], Lineage]
    identify: Callable[[str], object]
    _found: dict[object, Lineage | None] = field(default_factory=dict[object, Lineage | None], repr=False)

    def find_former(self, table: Succession) -> list[Pointer]:
        """Return the earlier pointers of a table whose history no current pointer continues."""
        return [item for item in table.find_moved() if not any(self._continues(item, other) for other in table.find_successors(item))]

    def _continues(self, former: Pointer, current: Pointer) -> bool:
        """Check whether `current` continues the history of `former`.

        If the logs do not reach back that far, it does if it lists all heads of `former`, or if
        `former` was deleted, as writers do with old metadata.
        """
        if (is_listed := self._is_in_logs(former, current.address)) is not None:
            return is_listed
        newest = self._read(current.address)
        if newest is not None and newest.is_readable and former.heads <= {item.snapshot_id for item in newest.snapshots}:
            return True
        return self._read(former.address) is None

    def _is_in_logs(self, former: Pointer, start: str) -> bool | None:
        """Follow the logs from `start` to the file that was current when `former` was read.

        Returns None if the logs end before that time.
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
        """Return the lineage in a file, or None if the file does not exist."""
        key = self.identify(address)
        if key not in self._found:
            try:
                self._found[key] = self.read(address)
            except FileNotFoundError:
                self._found[key] = None
            except Exception:  # noqa: BLE001 - other programs write the metadata, and unknown history is kept
                self._found[key] = UNREADABLE_LINEAGE
        return self._found[key]
