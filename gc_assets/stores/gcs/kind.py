"""The description of Google Cloud Storage as a kind of store.

The client's libraries are imported by the functions here, because they load slowly and are an
optional dependency.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gc_assets.config.connections import Connections
from gc_assets.config.gcs import GcsConfig
from gc_assets.core.findings import Finding
from gc_assets.core.objects import EditableObjects
from gc_assets.core.paths import GCS as SCHEME
from gc_assets.stores.kind import StoreKind

if TYPE_CHECKING:
    from gc_assets.stores.protocol import QuarantineMode, ReportFiles, SourceBucket, Store

QUARANTINES: Final[tuple[QuarantineMode, ...]] = ("versioned", "trash", "deferred")


def _open(location: str, connections: Connections) -> Store:
    from gc_assets.stores.gcs.store import GcsStore

    return GcsStore(location, connections)


def _anywhere(connections: Connections) -> EditableObjects:
    from gc_assets.stores.gcs.objects import GcsObjects

    return GcsObjects(connections)


def _report_files(connections: Connections) -> ReportFiles:
    from gc_assets.stores.conditional.report_files import BucketReportFiles
    from gc_assets.stores.gcs.objects import GcsObjects

    return BucketReportFiles(GcsObjects(connections))


def _read_identity(address: str, location: str, connections: Connections) -> str | None:
    from gc_assets.stores.gcs.objects import GcsObjects

    del location
    return GcsObjects(connections).identity(address)


def _source_bucket(location: str, connections: Connections) -> SourceBucket:
    from gc_assets.gcs.bucket import GcsBucket
    from gc_assets.stores.conditional.inventory_bucket import InventoryBucket

    return InventoryBucket(GcsBucket.of(location, connections.settings_for(location, GcsConfig)))


def _examine_state(location: str, connections: Connections) -> Iterable[Finding]:
    from gc_assets.gcs.bucket import GcsBucket
    from gc_assets.stores.gcs.doctor_checks import examine_state

    return examine_state(GcsBucket.of(location, connections.settings_for(location, GcsConfig)))


GOOGLE: Final = StoreKind(
    SCHEME,
    "gs://bucket/prefix/",
    QUARANTINES,
    _open,
    _anywhere,
    _report_files,
    _read_identity,
    _source_bucket,
    settings="gcs",
    examine_state=_examine_state,
)
