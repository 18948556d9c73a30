"""S3 as a kind of store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gc_assets.config.connections import Connections
from gc_assets.config.s3 import S3Config
from gc_assets.stores.conditional.kind import build_bucket_kind

if TYPE_CHECKING:
    from gc_assets.stores.s3.objects import S3Objects
    from gc_assets.stores.s3.store import S3Store


def _open_store(location: str, connections: Connections) -> S3Store:
    from gc_assets.stores.s3.store import S3Store

    return S3Store(location, connections)


def _open_objects(connections: Connections) -> S3Objects:
    from gc_assets.stores.s3.objects import S3Objects

    return S3Objects(connections)


S3: Final = build_bucket_kind(S3Config, "s3://bucket/prefix/", _open_store, _open_objects)
