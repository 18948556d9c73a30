"""Data formats that no lake kind reads, and the files by which their datasets are recognized.

Datasets in such a format may be inside a location that a lake claims. Since no commit of the lake
references their files, they would otherwise look like leftovers of a failed write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class OtherFormat:
    """A data format that gc-assets does not read.

    Attributes:
        name: Name for messages.
        sign: Regular expression for the keys of files that only this format writes. The only group,
            `root`, captures the directory of the dataset, which ends in `/` or is empty.
        is_table: True if the plan check `foreign_metadata` fails because of such a file.
    """

    name: str
    sign: str
    is_table: bool = False


def _in_root(file: str) -> str:
    """Return a regular expression that finds a dataset's directory by the path of a file in it.

    If directories that match are nested, the outermost one is the dataset's directory.
    """
    return rf"^(?P<root>(?s:.*?/)??){file}"


def _in_directory(suffix: str) -> str:
    """Return a regular expression for all files in a directory whose name ends with a suffix."""
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
