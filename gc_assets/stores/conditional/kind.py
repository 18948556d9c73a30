"""Build the description of a kind of bucket store.

The client's libraries are imported on use, because they load slowly and may not be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gc_assets.config.connections import Connections, StoreSettings
from gc_assets.core.findings import Finding
from gc_assets.stores.kind import StoreKind

if TYPE_CHECKING:
    from gc_assets.stores.conditional.objects import BucketObjects
    from gc_assets.stores.conditional.store import BucketStore
    from gc_assets.stores.protocol import ReportFiles, SourceBucket


def build_bucket_kind(
    settings: type[StoreSettings],
    example: str,
    open_store: Callable[[str, Connections], BucketStore],
    open_objects: Callable[[Connections], BucketObjects],
) -> StoreKind:
    """Build the `StoreKind` for a bucket client.

    Args:
        settings: The client's settings.
        example: An example location for messages.
        open_store: Imports the store class and returns the store of a location.
        open_objects: Imports and returns an accessor for objects at any address of the scheme.
    """

    def report_files(connections: Connections) -> ReportFiles:
        from gc_assets.stores.conditional.report_files import BucketReportFiles

        return BucketReportFiles(open_objects(connections))

    def read_identity(address: str, location: str, connections: Connections) -> str | None:
        del location
        return open_objects(connections).identity(address)

    def source_bucket(location: str, connections: Connections) -> SourceBucket:
        from gc_assets.stores.conditional.inventory_bucket import InventoryBucket

        return InventoryBucket(open_store(location, connections).bucket)

    def examine_state(location: str, connections: Connections) -> Iterable[Finding]:
        return open_store(location, connections).examine_state()

    return StoreKind(
        settings.SCHEME,
        example,
        ("versioned", "trash", "deferred"),
        open_store,
        open_objects,
        report_files,
        read_identity,
        source_bucket,
        settings=settings.KEY,
        examine_state=examine_state,
    )
