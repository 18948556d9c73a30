"""Check that the metadata of a table's retained snapshots is readable.

Every manifest list is decoded. Every manifest in it must exist and have the recorded length. If its
length differs, the manifest must contain the recorded number of entries. Manifests with the
recorded length are not decoded here, because the run before the plan and the run after the expiry
decode them. Only a plan of the second run deletes files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import FormatError, LakeUnreadable
from gc_assets.core.objects import Objects
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg.manifests import decode
from gc_assets.lakes.iceberg.metadata import Snapshot
from gc_assets.lakes.protocol import Container

# Manifest lists of a table share most of their manifests. A table may have thousands of lists with
# thousands of rows, so duplicates are removed after this number of lists.
_LISTS_PER_BATCH = 64
_UNKNOWN_SIZE = -1
_LISTED = ("address", "size_bytes", "expected_entries")


@dataclass(slots=True)
class ReadabilityChecker:
    """Checks that metadata objects are readable. Each is checked once, because it is immutable."""

    objects: Objects
    readers: Executor
    _checked_lists: set[str] = field(default_factory=set[str])
    _checked_manifests: set[tuple[str, int, int | None]] = field(default_factory=set[tuple[str, int, int | None]])

    def check(self, table_name: str, snapshots: Iterable[Snapshot]) -> None:
        """Check the manifest lists of snapshots, and the manifests that they list.

        Raises:
            LakeUnreadable: If an object cannot be read. The message shows the table and the object.
        """
        unchecked = [snapshot for snapshot in snapshots if snapshot.manifest_list not in self._checked_lists]
        try:
            for start in range(0, len(unchecked), _LISTS_PER_BATCH):
                lists = unchecked[start : start + _LISTS_PER_BATCH]
                rows = pa.concat_tables(self.readers.map(self._read_manifest_list, lists)).group_by(_LISTED).aggregate([])
                manifests = {*zip(*(rows[name].to_pylist() for name in _LISTED), strict=True)} - self._checked_manifests
                deque(self.readers.map(self._check_size, manifests), maxlen=0)
                self._checked_manifests |= manifests
                self._checked_lists.update(snapshot.manifest_list for snapshot in lists)
        except (OSError, FormatError) as error:
            raise LakeUnreadable(
                f"table {table_name}: {error}; a retained snapshot needs this object, so no snapshot was removed. Restore the "
                "object, then apply again"
            ) from error

    def _read_manifest_list(self, snapshot: Snapshot) -> pa.Table:
        try:
            raw = self.objects.read(snapshot.manifest_list)
        except FileNotFoundError:
            raise FormatError(f"manifest list {snapshot.manifest_list} of snapshot {snapshot.snapshot_id} does not exist") from None
        rows = decode(Container(snapshot.manifest_list, Kind.MANIFEST_LIST, snapshot_id=snapshot.snapshot_id), raw)
        return pa.table({name: rows[name] for name in _LISTED} | {"size_bytes": pc.fill_null(rows["size_bytes"], _UNKNOWN_SIZE)})

    def _check_size(self, manifest: tuple[str, int, int | None]) -> None:
        address, promised, entries = manifest
        try:
            size = self.objects.size(address)
        except FileNotFoundError:
            raise FormatError(f"manifest {address} does not exist") from None
        if promised not in {size, _UNKNOWN_SIZE}:
            decode(Container(address, Kind.MANIFEST, promised, entries), self.objects.read(address))
