"""Azure Blob Storage as a kind of store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gc_assets.config.azure import AzureConfig
from gc_assets.config.connections import Connections
from gc_assets.stores.conditional.kind import build_bucket_kind

if TYPE_CHECKING:
    from gc_assets.stores.azure.objects import AzureObjects
    from gc_assets.stores.azure.store import AzureStore


def _open_store(location: str, connections: Connections) -> AzureStore:
    from gc_assets.stores.azure.store import AzureStore

    return AzureStore(location, connections)


def _open_objects(connections: Connections) -> AzureObjects:
    from gc_assets.stores.azure.objects import AzureObjects

    return AzureObjects(connections)


AZURE: Final = build_bucket_kind(AzureConfig, "abfss://container@account.dfs.core.windows.net/prefix/", _open_store, _open_objects)
