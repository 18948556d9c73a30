"""File names used by Iceberg writers.

Sources: `OutputFileFactory` (Spark, Flink, Hive, Kafka Connect, iceberg-go), pyiceberg
`_file_naming`, Trino `IcebergFileWriterFactory`, and `BaseMetastoreTableOperations`,
`SnapshotProducer` and `HadoopTableOperations` for metadata. Names that other tools also use for
plain files, such as `<uuid>.parquet`, are not included.
"""

from __future__ import annotations

from typing import Final

_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_FORMAT: Final = r"\.(parquet|orc|avro|puffin)"
_DATA: Final = (
    # <partition>-<task>-<operation id>-<file>[-deletes].parquet. The file number is an int32, so that
    # `<number>-<uuid>` does not match by chance.
    r"\d{5,}-\d+-[^/]+-\d{5,10}(-[a-z]+)?" + _FORMAT,
    # pyiceberg: <partition>-<task>-<uuid>.parquet
    rf"\d{{5,}}-\d+-{_UUID}(-[a-z]+)?{_FORMAT}",
    # Trino: <query id>-<uuid>.parquet. Its Hive connector writes `_` before the uuid.
    rf"\d{{8}}_\d{{6}}_\d{{5}}_[0-9a-z]{{5}}-{_UUID}{_FORMAT}",
)
_METADATA: Final = (
    # <version>-<uuid>.metadata.json, v<version>.metadata.json of Hadoop tables, and temporary files of
    # HadoopTableOperations, which are renamed. No other format uses this suffix.
    r"[^/]+\.metadata\.json(\.gz)?",
    rf"version-hint\.text|{_UUID}-version-hint\.temp",
    # Manifest lists (snap-<snapshot>-<attempt>-<uuid>) and manifests (<uuid>-m<number>)
    r"snap-[^/]+\.avro",
    r"[^/]+-m\d+\.avro",
    rf"(optimized|merged)-m-\d*{_UUID}\.avro",
    # Manifests of checkpoints of a Flink sink: <job>-<operator>-<task>-<attempt>-<checkpoint>-<file>
    r"[0-9a-f]{32}-[^/]+-\d{5,}-\d+-\d+-\d{5,}\.avro",
    # Statistics
    rf"(\d{{8}}_\d{{6}}_\d{{5}}_[0-9a-z]{{5}}|\d+)-{_UUID}\.stats",
    rf"partition-stats-\d+-{_UUID}{_FORMAT}",
)
# Regular expressions that match the whole name of a file.
OWN_NAMES: Final = "^(" + "|".join(_DATA + _METADATA) + ")$"
DATA_NAMES: Final = "^(" + "|".join(_DATA) + ")$"
