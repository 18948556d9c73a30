"""Google Cloud Storage as a kind of store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gc_assets.config.connections import Connections
from gc_assets.config.gcs import GcsConfig
from gc_assets.stores.conditional.kind import build_bucket_kind

if TYPE_CHECKING:
    from gc_assets.stores.gcs.objects import GcsObjects
    from gc_assets.stores.gcs.store import GcsStore


def _open_store(location: str, connections: Connections) -> GcsStore:
    from gc_assets.stores.gcs.store import GcsStore

    return GcsStore(location, connections)


def _open_objects(connections: Connections) -> GcsObjects:
    from gc_assets.stores.gcs.objects import GcsObjects

    return GcsObjects(connections)


GOOGLE: Final = build_bucket_kind(GcsConfig, "gs://bucket/prefix/", _open_store, _open_objects)
