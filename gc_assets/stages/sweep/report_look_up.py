"""Look up live files that an inventory report lacks, and refuse the report if it is partial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import StoreError
from gc_assets.core.phases import RESTORE
from gc_assets.stages.records.ledger import LogReader
from gc_assets.state.arrow_types import STRING, TIMESTAMP
from gc_assets.stores.inventories.completeness import MAX_LAG, describe_partial, must_list
from gc_assets.stores.listing import find_objects
from gc_assets.stores.protocol import Report, Store, StoredObject

# A partial report may lack many files, but the first one in such a group is enough to refuse it.
_GROUP_KEYS = 1_000


@dataclass(frozen=True, slots=True)
class ReportLookUp:
    """The `LookUp` of a report.

    Attributes:
        store: The storage.
        report: The report.
        log: The deletion logs of the storage.
    """

    store: Store
    report: Report
    log: LogReader

    def look_up(self, keys: Sequence[str]) -> list[int | None]:
        sizes = list[int | None]()
        for start in range(0, len(keys), _GROUP_KEYS):
            group = keys[start : start + _GROUP_KEYS]
            found = find_objects(self.store, group)
            due = {key: item.modified for key, item in zip(group, found, strict=True) if item is not None and self._must_list(item)}
            for key in sorted(due.keys() - self._find_restored(due)):
                address = f"{self.store.location.rstrip('/')}/{key}"
                raise StoreError(describe_partial(self.report.name, self.report.as_of, address, due[key]))
            sizes += [None if item is None else item.size_bytes for item in found]
        return sizes

    def _must_list(self, found: StoredObject) -> bool:
        return must_list(self.report.as_of, found.modified)

    def _find_restored(self, keys: Iterable[str]) -> set[str]:
        """Return the files that were in quarantine at the time of the scan.

        If a version of a file becomes visible again, its modification time does not change.
        """
        wanted = pa.array(keys, STRING)
        if not len(wanted):
            return set()
        entries = self.log.read_keys(wanted)
        # Entries of rehearsals are always included, because their times are simulated.
        is_late = pc.greater_equal(entries.column("at"), pa.scalar(self.report.as_of - MAX_LAG, TIMESTAMP))
        is_late = pc.or_(is_late, pc.fill_null(entries.column("rehearsal"), False))
        restored = entries.filter(pc.and_(pc.equal(entries.column("phase"), RESTORE), is_late))
        return set(restored.column("key").to_pylist())
