"""Formats without a lake kind, and the files by which their datasets are recognised.

A dataset of such a format may be in a location claimed by a lake. No commit of the lake references
its files, so they would look like leftovers of a failed writer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class OtherFormat:
    """Format that is not read by the collector.

    Attributes:
        name: Name for messages.
        sign: Regular expression for keys of files that exist only in this format. Its only group,
            `root`, is the directory of the dataset, ending in `/`, or empty.
        is_table: True if such a file also makes the gate `foreign_metadata` refuse plans.
    """

    name: str
    sign: str
    is_table: bool = False


def _in_root(file: str) -> str:
    """Match a file by its path relative to the dataset's directory (the outermost possible one)."""
    return rf"^(?P<root>(?s:.*?/)??){file}"


def _in_directory(suffix: str) -> str:
    """Match all files in a directory with a name that has the given suffix."""
    return rf"^(?P<root>(?s:.*?/)??[^/]+{suffix}/)"


OTHER_FORMATS: Final = (
    OtherFormat("Delta Lake", _in_root(r"_delta_log/"), is_table=True),
    OtherFormat("Hudi", _in_root(r"\.hoodie/"), is_table=True),
    OtherFormat("Hudi", _in_root(r"\.hoodie_partition_metadata")),
    OtherFormat("Paimon", _in_root(r"(?:snapshot/(?:snapshot-\d+|LATEST|EARLIEST)|schema/schema-\d+)$")),
    OtherFormat("Lance", _in_root(r"_versions/\d+\.manifest$")),
    OtherFormat("Lance", _in_directory(r"\.lance")),
    OtherFormat("Zarr", _in_root(r"(?:zarr\.json|\.zarray|\.zgroup|\.zmetadata)$")),
    OtherFormat("Zarr", _in_directory(r"\.zarr")),
    OtherFormat(
        "Spark streaming checkpoint",
        _in_root(r"(?:offsets|commits|sources/\d+|state/\d+/\d+)/\d+(?:\.(?:compact|delta|snapshot))?$"),
    ),
    OtherFormat("Spark streaming sink", _in_root(r"_spark_metadata/")),
    OtherFormat("Flink checkpoint", _in_root(r"chk-\d+/_metadata$")),
    OtherFormat("Hive ACID table", _in_root(r"(?:(?:base|delta|delete_delta)_\d+(?:_[v\d]+)*/)?_orc_acid_version$")),
    OtherFormat("TileDB", _in_root(r"(?:__tiledb_group\.tdb|__schema/|__array_schema\.tdb)")),
)
