"""The lake kinds that exist, and how one is opened. Each kind's libraries are imported only when a lake of it is configured."""

from __future__ import annotations

from typing import Final

from gc_assets.config import IcebergLakeConfig, IcechunkLakeConfig, NessieLakeConfig
from gc_assets.lakes.protocol import EditableObjects, Lake

# Kinds whose lakes are `ExpiringLake`s: their history is edited before the files of expired commits are free.
EDITED_HISTORIES: Final = frozenset({"iceberg", "icechunk"})


def open_lake(config: IcebergLakeConfig | IcechunkLakeConfig | NessieLakeConfig, objects: EditableObjects) -> Lake:
    """The lake of a configuration entry. Raises `UsageError` where the kind's extra is not installed."""
    if isinstance(config, IcebergLakeConfig):
        from gc_assets.lakes.iceberg.lake import IcebergLake

        return IcebergLake(config, objects)
    if isinstance(config, NessieLakeConfig):
        from gc_assets.lakes.nessie.lake import NessieLake

        return NessieLake(config)
    from gc_assets.lakes.icechunk.lake import IcechunkLake

    return IcechunkLake(config, objects)
