"""Build real Iceberg lakes for tests: the builder of the demo, extended for tests.

The extensions are rollbacks, statistics files and all types of delete files.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table.update import SetPartitionStatisticsUpdate, SetStatisticsUpdate
from pyroaring import BitMap

from gc_assets.demo import iceberg_builder
from gc_assets.demo.iceberg_builder import BY_PART, SCHEMA, apply_updates, clock_at, parquet_bytes
from gc_assets.lakes.iceberg.config import IcebergLakeConfig

__all__ = ["BY_PART", "SCHEMA", "LakeBuilder", "TableBuilder", "clock_at"]


class LakeBuilder(iceberg_builder.LakeBuilder):
    def config(self, name: str = "sales", **settings: Any) -> IcebergLakeConfig:
        """Return the configuration of this lake. `settings` are further keys of `lakes.yaml`."""
        return IcebergLakeConfig.model_validate(
            {"name": name, "kind": "iceberg", "catalog": self.properties, "catalog_name": self.catalog_name, **settings}
        )

    def table(
        self,
        name: str,
        at: datetime,
        *,
        partitioned: bool = False,
        properties: Mapping[str, str] | None = None,
        location: str | None = None,
    ) -> TableBuilder:
        super().table(name, at, partitioned=partitioned, properties=properties, location=location)
        return TableBuilder(self, name)

    def keep_times(self) -> None:
        """Keep the modification times of the files that exist now, for example those of another catalog."""
        self._dated = self.files()

    def register(self, name: str, metadata_location: str) -> TableBuilder:
        """Register a metadata file under another name."""
        self.catalog.register_table(name, metadata_location)
        return TableBuilder(self, name)


class TableBuilder(iceberg_builder.TableBuilder):
    @property
    def uuid(self) -> str:
        return str(self.table.metadata.table_uuid)

    @property
    def metadata_location(self) -> str:
        return self.table.metadata_location

    def data_files(self) -> set[Path]:
        """Return the data files of the current snapshot."""
        return {self.path(task.file.file_path) for task in self.table.scan().plan_files()}

    def rollback(self, at: datetime, snapshot_id: str) -> None:
        """Move `main` to an earlier snapshot, so that no ref reaches the later ones."""
        self._set_ref(at, "main", "branch", snapshot_id, {})

    def set_properties(self, at: datetime, properties: Mapping[str, str]) -> None:
        with self.lake.at(at), self.table.transaction() as transaction:
            transaction.set_properties(dict(properties))

    def statistics(self, at: datetime, snapshot_id: str) -> tuple[str, str]:
        """Write a table and a partition statistics file for a snapshot, and return their addresses."""
        table = self.table
        puffin = table.location_provider().new_metadata_location(f"{snapshot_id}-{uuid.uuid4()}.stats")
        partitions = table.location_provider().new_metadata_location(f"partition-stats-{snapshot_id}-{uuid.uuid4()}.parquet")
        with self.lake.at(at), table.transaction() as transaction:
            size = self._write(puffin, _puffin([]))
            named = {"snapshot-id": int(snapshot_id), "statistics-path": puffin, "file-size-in-bytes": size}
            statistics = {**named, "file-footer-size-in-bytes": size - 4, "blob-metadata": []}
            size = self._write(partitions, parquet_bytes(pa.table({"part": ["a"], "record_count": [2]})))
            per_partition = {"snapshot-id": int(snapshot_id), "statistics-path": partitions, "file-size-in-bytes": size}
            apply_updates(
                transaction,
                SetStatisticsUpdate.model_validate({"snapshot-id": int(snapshot_id), "statistics": statistics}),
                SetPartitionStatisticsUpdate.model_validate({"partition-statistics": per_partition}),
            )
        return puffin, partitions

    def equality_deletes(self, at: datetime, id_: int = 1) -> str:
        """Delete rows by `id`. pyiceberg cannot scan the table afterwards."""
        deletes = parquet_bytes(pa.table({"id": pa.array([id_], pa.int64())}))
        target = self._newest_data_file()
        return self._commit_deletes(at, target, DataFileContent.EQUALITY_DELETES, FileFormat.PARQUET, deletes, equality_ids=[1])

    def deletion_vector(self, at: datetime, position: int = 0) -> str:
        """Delete one row of the newest data file by a deletion vector in a Puffin file."""
        target = self._newest_data_file()
        vector = _puffin([(_deletion_vector([position]), {"referenced-data-file": target.file_path, "cardinality": "1"})])
        return self._commit_deletes(at, target, DataFileContent.POSITION_DELETES, FileFormat.PUFFIN, vector)


def _deletion_vector(positions: Sequence[int]) -> bytes:
    """Return a `deletion-vector-v1` blob (Puffin specification): length, magic, Roaring bitmap, CRC-32."""
    bitmap = (1).to_bytes(8, "little") + (0).to_bytes(4, "little") + BitMap(positions).serialize()
    body = b"\xd1\xd3\x39\x64" + bitmap
    return len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


def _puffin(blobs: Sequence[tuple[bytes, Mapping[str, str]]]) -> bytes:
    """Return a Puffin file of deletion vectors: magic, blobs, footer (magic, JSON, length, flags, magic)."""
    content, described = b"PFA1", []
    for blob, properties in blobs:
        described.append(
            {
                "type": "deletion-vector-v1",
                "fields": [2147483546],  # the row position's reserved field id
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": dict(properties),
            }
        )
        content += blob
    footer = json.dumps({"blobs": described}).encode()
    return content + b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"
