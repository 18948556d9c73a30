"""The description of Azure Blob Storage as a kind of store.

The client's libraries are imported by the functions here, because they load slowly and are an
optional dependency.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gc_assets.config.azure import AzureConfig
from gc_assets.config.connections import Connections
from gc_assets.core.findings import Finding
from gc_assets.core.objects import EditableObjects
from gc_assets.core.paths import AZURE as SCHEME
from gc_assets.stores.kind import StoreKind

if TYPE_CHECKING:
    from gc_assets.stores.protocol import QuarantineMode, ReportFiles, SourceBucket, Store

QUARANTINES: Final[tuple[QuarantineMode, ...]] = ("versioned", "trash", "deferred")


def _open(location: str, connections: Connections) -> Store:
    from gc_assets.stores.azure.store import AzureStore

    return AzureStore(location, connections)


def _anywhere(connections: Connections) -> EditableObjects:
    from gc_assets.stores.azure.objects import AzureObjects

    return AzureObjects(connections)


def _report_files(connections: Connections) -> ReportFiles:
    from gc_assets.stores.azure.objects import AzureObjects
    from gc_assets.stores.conditional.report_files import BucketReportFiles

    return BucketReportFiles(AzureObjects(connections))


def _read_identity(address: str, location: str, connections: Connections) -> str | None:
    from gc_assets.stores.azure.objects import AzureObjects

    del location
    return AzureObjects(connections).identity(address)


def _source_bucket(location: str, connections: Connections) -> SourceBucket:
    from gc_assets.azure.bucket import AzureBucket
    from gc_assets.stores.conditional.inventory_bucket import InventoryBucket

    return InventoryBucket(AzureBucket.of(location, connections.settings_for(location, AzureConfig)))


def _examine_state(location: str, connections: Connections) -> Iterable[Finding]:
    from gc_assets.azure.bucket import AzureBucket
    from gc_assets.stores.azure.doctor_checks import examine_state

    return examine_state(AzureBucket.of(location, connections.settings_for(location, AzureConfig)))


AZURE: Final = StoreKind(
    SCHEME,
    "abfss://container@account.dfs.core.windows.net/prefix/",
    QUARANTINES,
    _open,
    _anywhere,
    _report_files,
    _read_identity,
    _source_bucket,
    settings="azure",
    examine_state=_examine_state,
)
