"""Regular expressions for the file names that Iceberg writers create.

Sources: `OutputFileFactory` (Spark, Flink, Hive, Kafka Connect, iceberg-go), pyiceberg
`_file_naming`, Trino `IcebergFileWriterFactory`, and `BaseMetastoreTableOperations`,
`SnapshotProducer` and `HadoopTableOperations` for metadata. Names that other tools use for plain
files as well, such as `<uuid>.parquet`, are left out.
"""

from __future__ import annotations

from typing import Final

_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_FORMAT: Final = r"\.(parquet|orc|avro|puffin)"
_DATA: Final = (
    # <partition>-<task>-<operation id>-<file>[-deletes].parquet. File numbers are int32, so they
    # have at most ten digits. This prevents accidental matches of `<number>-<uuid>`.
    r"\d{5,}-\d+-[^/]+-\d{5,10}(-[a-z]+)?" + _FORMAT,
    # pyiceberg: <partition>-<task>-<uuid>.parquet
    rf"\d{{5,}}-\d+-{_UUID}(-[a-z]+)?{_FORMAT}",
    # Trino: <query id>-<uuid>.parquet. Its Hive connector writes `_` before the UUID.
    rf"\d{{8}}_\d{{6}}_\d{{5}}_[0-9a-z]{{5}}-{_UUID}{_FORMAT}",
)
_METADATA: Final = (
    # <version>-<uuid>.metadata.json, v<version>.metadata.json of Hadoop tables, and temporary files
    # that HadoopTableOperations renames later. No other format uses this suffix.
    r"[^/]+\.metadata\.json(\.gz)?",
    rf"version-hint\.text|{_UUID}-version-hint\.temp",
    # Manifest lists (snap-<snapshot>-<attempt>-<uuid>) and manifests (<uuid>-m<number>)
    r"snap-[^/]+\.avro",
    r"[^/]+-m\d+\.avro",
    rf"(optimized|merged)-m-\d*{_UUID}\.avro",
    # Manifests in Flink sink checkpoints: <job>-<operator>-<task>-<attempt>-<checkpoint>-<file>
    r"[0-9a-f]{32}-[^/]+-\d{5,}-\d+-\d+-\d{5,}\.avro",
    # Statistics
    rf"(\d{{8}}_\d{{6}}_\d{{5}}_[0-9a-z]{{5}}|\d+)-{_UUID}\.stats",
    rf"partition-stats-\d+-{_UUID}{_FORMAT}",
)
# Both expressions match the whole name of a file.
OWN_NAMES: Final = "^(" + "|".join(_DATA + _METADATA) + ")$"
DATA_NAMES: Final = "^(" + "|".join(_DATA) + ")$"
