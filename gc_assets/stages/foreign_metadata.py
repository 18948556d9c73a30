"""Recognises metadata of tables and repositories that no configured lake knows, below claimed prefixes (reliability.md H1).

Such a find means that some catalog was not asked: its live files would look unreferenced.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from gc_assets.core.paths import KeyResolver
from gc_assets.lakes.protocol import Objects
from gc_assets.stages.known_tables import Known

# Names that only metadata of the named system has; the first is decided by its content, the others by their place alone.
ICEBERG: Final = r"\.metadata\.json(\.gz)?$"
SUSPECT: Final = ICEBERG + r"|(^|/)refs/(branch|tag)\.[^/]+/ref\.json$|(^|/)_lakefs/|(^|/)_delta_log/|(^|/)\.hoodie/|(^|/)repo$"
ICECHUNK_MAGIC: Final = "ICE🧊CHUNK".encode()
FOREIGN_DDL: Final = "key string, why string"


def foreign_metadata(
    suspects: DataFrame, storage_name: str, resolver: KeyResolver, objects: Objects, known_tables: Mapping[str, Known]
) -> DataFrame:
    """The suspects (columns key, is_old; names that match `SUSPECT`) that are foreign, each with the reason.

    `known_tables` maps the uuid of each table of a configured catalog to what it knows of it. Metadata with a newer snapshot, old
    where the table is in use, means that the catalog is behind: a copy, or one that the writers left.
    """
    return suspects.select("key", "is_old").mapInArrow(_Judge(storage_name, resolver, objects, known_tables), FOREIGN_DDL)


@dataclass(frozen=True)
class _Judge:
    storage_name: str
    resolver: KeyResolver
    objects: Objects
    known_tables: Mapping[str, Known]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            pairs = zip(batch.column("key").to_pylist(), batch.column("is_old").to_pylist(), strict=True)
            judged = [(key, self._why(key, is_old=is_old)) for key, is_old in pairs]
            found = [(key, why) for key, why in judged if why]
            yield pa.RecordBatch.from_arrays(
                [pa.array([k for k, _ in found], pa.string()), pa.array([w for _, w in found], pa.string())], ["key", "why"]
            )

    def _why(self, key: str, *, is_old: bool) -> str | None:
        name = key.rpartition("/")[2]
        if ".metadata.json" in name:
            return self._table(key, is_old=is_old)
        if name == "repo":
            return "an Icechunk repository of spec v2" if self._read(key).startswith(ICECHUNK_MAGIC) else None
        return "metadata of a repository or table of another kind"

    def _table(self, key: str, *, is_old: bool) -> str | None:
        try:
            raw = self._read(key)
            document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
            uuid = document["table-uuid"] if "table-uuid" in document else document["view-uuid"]
            newest = max((item["timestamp-ms"] for item in document.get("snapshots", [])), default=0)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"table metadata that cannot be read ({error})"
        known = self.known_tables.get(uuid)
        if known is None:
            return f"table {uuid}, which no configured catalog knows"
        if newest > known.newest and (is_old or not known.in_use):
            return f"table {uuid} with a newer snapshot than its catalog knows: the catalog is a copy or behind, or a commit failed here"
        return None

    def _read(self, key: str) -> bytes:
        return self.objects.read(self.resolver.address(self.storage_name, key))
