"""What the collector knows of buckets before it opens one. The client's libraries are imported when
a function here is called, not before: they are slow to load, and of no use on a disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gc_assets.config.s3 import Connections
from gc_assets.core.findings import Finding
from gc_assets.core.objects import EditableObjects
from gc_assets.core.paths import S3 as SCHEME
from gc_assets.stores.kind import StoreKind

if TYPE_CHECKING:
    from gc_assets.stores.protocol import QuarantineMode, ReportFiles, SourceBucket, Store

QUARANTINES: Final[tuple[QuarantineMode, ...]] = ("versioned", "trash", "deferred")


def _open(location: str, places: Connections) -> Store:
    from gc_assets.stores.s3.store import S3Store

    return S3Store(location, places)


def _anywhere(places: Connections) -> EditableObjects:
    from gc_assets.stores.s3.objects import S3Objects

    return S3Objects(places)


def _delivery(places: Connections) -> ReportFiles:
    from gc_assets.stores.s3.report_files import S3ReportFiles

    return S3ReportFiles(places)


def _source_bucket(location: str, places: Connections) -> SourceBucket:
    from gc_assets.stores.s3.inventory_bucket import S3SourceBucket

    return S3SourceBucket.at(location, places)


def _examine_state(location: str, places: Connections) -> Iterable[Finding]:
    from gc_assets.stores.s3.bucket import Bucket
    from gc_assets.stores.s3.doctor_checks import examine_state

    return examine_state(Bucket.of(location, places.settings_for(location)))


S3: Final = StoreKind(
    SCHEME,
    "s3://bucket/prefix/",
    QUARANTINES,
    _open,
    _anywhere,
    _delivery,
    _source_bucket,
    settings="s3",
    examine_state=_examine_state,
)
