"""The lake kinds that exist, and how one is opened. Each kind's libraries are imported only when a lake of it is configured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from gc_assets.config import AnyLake, IcebergLakeConfig, LakeFsLakeConfig, NessieLakeConfig
from gc_assets.lakes.protocol import EditableObjects, Lake

# Kinds whose lakes are `ExpiringLake`s: their history is edited before the files of expired commits are free.
EDITED_HISTORIES: Final = frozenset({"iceberg", "icechunk"})
# Kinds with a word of their own for a file that no commit ever named; whatever any commit named, a dangling one too, has expired.
NEVER_COMMITTED: Final = {"lakefs": "uncommitted"}
# Metadata below no claim, so that nobody deletes it: a pattern of keys by kind, to count what no retained commit needs.
UNCOLLECTED_METADATA: Final = {"lakefs": r"(^|/)_lakefs/[0-9a-f]{64}$"}


def open_lake(config: AnyLake, objects: EditableObjects, storages: Sequence[str] = ()) -> Lake:
    """The lake of a configuration entry. Raises `UsageError` where the kind's extra is not installed.

    `storages` are the configured storages' locations, among which a lakeFS server's own word for its storage is looked up.
    """
    if isinstance(config, IcebergLakeConfig):
        from gc_assets.lakes.iceberg.lake import IcebergLake

        return IcebergLake(config, objects)
    if isinstance(config, NessieLakeConfig):
        from gc_assets.lakes.nessie.lake import NessieLake

        return NessieLake(config)
    if isinstance(config, LakeFsLakeConfig):
        from gc_assets.lakes.lakefs.lake import LakeFsLake

        return LakeFsLake(config, objects, storages)
    from gc_assets.lakes.icechunk.lake import IcechunkLake

    return IcechunkLake(config, objects)


def named_times(kind: str) -> Callable[[pa.Array], pa.Array] | None:
    """How a kind's object names tell when they were handed out (keys to UTC timestamps, null where one tells none); null where none do."""
    if kind == "lakefs":
        from gc_assets.lakes.lakefs import xids

        return xids.named_times
    return None
