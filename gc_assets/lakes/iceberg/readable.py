"""Checks whether what the retained snapshots of a table need can be read, at the cost of reading
their metadata once.

Every manifest list is read and decoded whole. Every manifest that a list names must exist with the
length that the list promises. Manifests are not decoded again: the mark before a plan has done
that, and so does the mark after it, which alone frees files.
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

# Lists repeat each other's manifests: of thousands with thousands of rows each, only so many are in
# memory before they are made distinct.
_LISTS_AT_ONCE = 64
_NOT_SAID = -1


@dataclass(slots=True)
class Readable:
    """Remembers what has been checked. These objects never change, so a second attempt reads only
    what is new.
    """

    objects: Objects
    readers: Executor
    _lists: set[str] = field(default_factory=set[str])
    _manifests: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])

    def check(self, table_name: str, snapshots: Iterable[Snapshot]) -> None:
        """Raises `LakeUnreadable` naming the table, the snapshot and the object that cannot be
        read.
        """
        new = [snapshot for snapshot in snapshots if snapshot.manifest_list not in self._lists]
        try:
            for start in range(0, len(new), _LISTS_AT_ONCE):
                lists = new[start : start + _LISTS_AT_ONCE]
                named = pa.concat_tables(self.readers.map(self._decoded, lists)).group_by(["address", "size_bytes"]).aggregate([])
                manifests = {*zip(named["address"].to_pylist(), named["size_bytes"].to_pylist(), strict=True)} - self._manifests
                deque(self.readers.map(self._measure, manifests), maxlen=0)
                self._manifests |= manifests
                self._lists.update(snapshot.manifest_list for snapshot in lists)
        except (OSError, FormatError) as error:
            raise LakeUnreadable(
                f"table {table_name}: {error}; a snapshot that stays needs it, so nothing was removed. Restore the object, then apply again"
            ) from error

    def _decoded(self, snapshot: Snapshot) -> pa.Table:
        try:
            raw = self.objects.read(snapshot.manifest_list)
        except FileNotFoundError:
            raise FormatError(f"manifest list {snapshot.manifest_list} of snapshot {snapshot.snapshot_id} does not exist") from None
        rows = decode(Container(snapshot.manifest_list, Kind.MANIFEST_LIST), raw)
        return pa.table({"address": rows["address"], "size_bytes": pc.fill_null(rows["size_bytes"], _NOT_SAID)})

    def _measure(self, manifest: tuple[str, int]) -> None:
        address, promised = manifest
        try:
            size = self.objects.size(address)
        except FileNotFoundError:
            raise FormatError(f"manifest {address} does not exist") from None
        if promised not in {size, _NOT_SAID}:
            raise FormatError(f"manifest {address} has {size:,} bytes, its manifest list promises {promised:,}")
