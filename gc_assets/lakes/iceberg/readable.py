"""Whether what the retained snapshots of a table need can be read, at the cost of their metadata once.

Every manifest list is read and decoded whole; every manifest that one names must exist with the length it promises. Manifests are not
decoded again: the mark before a plan has done that, and the mark after it, which alone frees files, does.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import FormatError, LakeUnreadable
from gc_assets.lakes.iceberg import manifests
from gc_assets.lakes.iceberg.metadata import Snapshot
from gc_assets.lakes.protocol import Container, Kind, Objects


@dataclass(slots=True)
class Readable:
    """Remembers what has been checked: these objects never change, so a second attempt reads only what is new."""

    objects: Objects
    readers: Executor
    _lists: set[str] = field(default_factory=set[str])
    _manifests: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])

    def check(self, table_name: str, snapshots: Iterable[Snapshot]) -> None:
        """Raises `LakeUnreadable` naming the table, the snapshot and the object that cannot be read."""
        owners = {snapshot.manifest_list: snapshot.snapshot_id for snapshot in snapshots if snapshot.manifest_list not in self._lists}
        try:
            named = list(self.readers.map(self._decoded, owners, owners.values()))
            if named:
                pairs = pa.concat_tables(named).group_by(["address", "size_bytes"]).aggregate([])
                new = {*zip(pairs["address"].to_pylist(), pairs["size_bytes"].to_pylist(), strict=True)} - self._manifests
                for _ in self.readers.map(self._measured, *zip(*new, strict=True)) if new else ():
                    pass
                self._manifests |= new
        except (OSError, FormatError) as error:
            raise LakeUnreadable(
                f"table {table_name}: {error}; a snapshot that stays needs it, so nothing was removed. Restore the object, then apply again"
            ) from error
        self._lists.update(owners)

    def _decoded(self, address: str, snapshot_id: str) -> pa.Table:
        try:
            raw = self.objects.read(address)
        except FileNotFoundError:
            raise FormatError(f"manifest list {address} of snapshot {snapshot_id} does not exist") from None
        rows = manifests.decode(Container(address, Kind.MANIFEST_LIST), raw)
        return pa.table({"address": rows["address"], "size_bytes": pc.fill_null(rows["size_bytes"], -1)})

    def _measured(self, address: str, promised: int) -> None:
        try:
            size = self.objects.size(address)
        except FileNotFoundError:
            raise FormatError(f"manifest {address} does not exist") from None
        if promised not in {size, -1}:  # -1: the list does not say
            raise FormatError(f"manifest {address} has {size:,} bytes, its manifest list promises {promised:,}")
