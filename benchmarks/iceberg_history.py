"""Write Iceberg tables with a given history: real manifest lists and metadata.json, one shared data
file.

A commit through pyiceberg takes at least a tenth of a second, and its time cannot be chosen.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyiceberg.manifest import write_manifest_list

from tests.lakes.iceberg.builder import LakeBuilder

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Snap:
    """A snapshot to write. `statistics` adds an entry of each kind, whose file does not exist."""

    snapshot_id: int
    parent_id: int | None
    committed_at: datetime
    statistics: bool = False


@dataclass(frozen=True, slots=True)
class HistoryWriter:
    """Writes tables into a lake. The first one is real, the others use its data file and manifest.

    `summary` is part of the summary of each snapshot.
    """

    lake: LakeBuilder
    at: datetime
    summary: Mapping[str, str] = field(default_factory=dict[str, str])
    _model: dict[str, Any] = field(default_factory=dict[str, Any])

    def table(
        self,
        name: str,
        snapshots: Sequence[Snap],
        refs: Mapping[str, Mapping[str, Any]],
        properties: Mapping[str, str] | None = None,
        log: Sequence[int] = (),
        without_lists: Collection[int] = (),
    ) -> str:
        """Write a table `db.<name>` and return its uuid.

        Args:
            refs: As in metadata.json.
            log: The ids of the snapshots that were current, in order.
            without_lists: The snapshots whose manifest lists are not written.
        """
        model = self._load_model()
        location = f"file://{self.lake.warehouse}/db/{name}"
        stamps = {snap.snapshot_id: (snap.committed_at - _EPOCH).total_seconds() for snap in snapshots}
        stamps = {snapshot_id: int(seconds * 1000) for snapshot_id, seconds in stamps.items()}
        main = refs.get("main")
        document = {
            **model["metadata"],
            "table-uuid": str(uuid.uuid4()),
            "location": location,
            "last-sequence-number": len(snapshots) + 1,
            "properties": dict(properties or {}),
            "current-snapshot-id": main["snapshot-id"] if main else -1,
            "snapshots": [
                self._snapshot(location, snap, stamps, number, written=snap.snapshot_id not in without_lists)
                for number, snap in enumerate(snapshots, 2)
            ],
            "refs": dict(refs),
            "snapshot-log": [{"snapshot-id": snapshot_id, "timestamp-ms": stamps[snapshot_id]} for snapshot_id in log],
            "metadata-log": [],
            "statistics": [_statistics(location, snap, "stats") for snap in snapshots if snap.statistics],
            "partition-statistics": [_statistics(location, snap, "parquet") for snap in snapshots if snap.statistics],
        }
        address = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
        with model["io"].new_output(address).create() as target:
            target.write(json.dumps(document).encode())
        self.lake.register(f"db.{name}", address)
        return document["table-uuid"]

    def _load_model(self) -> dict[str, Any]:
        if not self._model:
            model = self.lake.table("db.model", self.at)
            model.append(self.at)
            table = model.table
            self._model["io"] = table.io
            self._model["manifests"] = table.metadata.snapshots[0].manifests(table.io)
            self._model["metadata"] = json.loads(table.metadata.model_dump_json())
        return self._model

    def _snapshot(self, location: str, snap: Snap, stamps: Mapping[int, int], number: int, *, written: bool) -> dict[str, Any]:
        address = f"{location}/metadata/snap-{snap.snapshot_id}-{uuid.uuid4()}.avro"
        if written:
            output = self._model["io"].new_output(address)
            with write_manifest_list(2, output, snap.snapshot_id, snap.parent_id, number, "deflate") as writer:
                writer.add_manifests(self._model["manifests"])
        parent = {} if snap.parent_id is None else {"parent-snapshot-id": snap.parent_id}
        return {
            "snapshot-id": snap.snapshot_id,
            **parent,
            "sequence-number": number,
            "timestamp-ms": stamps[snap.snapshot_id],
            "manifest-list": address,
            "summary": {"operation": "append", **self.summary},
            "schema-id": 0,
        }


def _statistics(location: str, snap: Snap, suffix: str) -> dict[str, Any]:
    path = f"{location}/metadata/{snap.snapshot_id}.{suffix}"
    own = {"snapshot-id": snap.snapshot_id, "statistics-path": path, "file-size-in-bytes": 8}
    return own if suffix == "parquet" else {**own, "file-footer-size-in-bytes": 4, "blob-metadata": []}
