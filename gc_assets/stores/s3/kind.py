"""S3 as a kind of store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gc_assets.config.s3 import S3Config
from gc_assets.stores.conditional.kind import build_bucket_kind

if TYPE_CHECKING:
    from gc_assets.stores.s3.objects import S3Objects
    from gc_assets.stores.s3.store import S3Store


def _load() -> tuple[type[S3Store], type[S3Objects]]:
    from gc_assets.stores.s3.objects import S3Objects
    from gc_assets.stores.s3.store import S3Store

    return S3Store, S3Objects


S3: Final = build_bucket_kind(S3Config, "s3://bucket/prefix/", _load)
