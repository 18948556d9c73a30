"""The description of S3 as a kind of store.

The client's libraries are imported by the functions here, because they load slowly and local
storages do not need them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gc_assets.config.connections import Connections
from gc_assets.config.s3 import S3Config
from gc_assets.core.findings import Finding
from gc_assets.core.objects import EditableObjects
from gc_assets.core.paths import S3 as SCHEME
from gc_assets.stores.kind import StoreKind

if TYPE_CHECKING:
    from gc_assets.stores.protocol import QuarantineMode, ReportFiles, SourceBucket, Store

QUARANTINES: Final[tuple[QuarantineMode, ...]] = ("versioned", "trash", "deferred")


def _open(location: str, connections: Connections) -> Store:
    from gc_assets.stores.s3.store import S3Store

    return S3Store(location, connections)


def _anywhere(connections: Connections) -> EditableObjects:
    from gc_assets.stores.s3.objects import S3Objects

    return S3Objects(connections)


def _report_files(connections: Connections) -> ReportFiles:
    from gc_assets.stores.conditional.report_files import BucketReportFiles
    from gc_assets.stores.s3.objects import S3Objects

    return BucketReportFiles(S3Objects(connections))


def _read_identity(address: str, location: str, connections: Connections) -> str | None:
    from gc_assets.stores.s3.objects import S3Objects

    del location
    return S3Objects(connections).identity(address)


def _source_bucket(location: str, connections: Connections) -> SourceBucket:
    from gc_assets.s3.bucket import S3Bucket
    from gc_assets.stores.conditional.inventory_bucket import InventoryBucket

    return InventoryBucket(S3Bucket.of(location, connections.settings_for(location, S3Config)))


def _examine_state(location: str, connections: Connections) -> Iterable[Finding]:
    from gc_assets.s3.bucket import S3Bucket
    from gc_assets.stores.s3.doctor_checks import examine_state

    return examine_state(S3Bucket.of(location, connections.settings_for(location, S3Config)))


S3: Final = StoreKind(
    SCHEME,
    "s3://bucket/prefix/",
    QUARANTINES,
    _open,
    _anywhere,
    _report_files,
    _read_identity,
    _source_bucket,
    settings="s3",
    examine_state=_examine_state,
)
