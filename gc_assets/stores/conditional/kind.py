"""Build the definitions of object stores as kinds of stores.

Client libraries are only imported when they are needed, because they are slow to load and may not
be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gc_assets.buckets.protocol import ConditionalBucket
from gc_assets.config.connections import Connections, StoreSettings
from gc_assets.core.errors import GcError
from gc_assets.core.findings import Finding
from gc_assets.stores.kind import StoreKind

if TYPE_CHECKING:
    from gc_assets.stores.conditional.objects import BucketObjects
    from gc_assets.stores.conditional.store import BucketStore
    from gc_assets.stores.protocol import ReportFiles


def build_bucket_kind(
    settings: type[StoreSettings], example: str, load: Callable[[], tuple[type[BucketStore], type[BucketObjects]]]
) -> StoreKind:
    """Build the `StoreKind` for an object store.

    Args:
        settings: The class of the object store's settings.
        example: A location to be used as an example in messages.
        load: Imports the class of the store, and the class that accesses objects by address.
    """

    def open_store(location: str, connections: Connections) -> BucketStore:
        return load()[0](location, connections)

    def open_objects(connections: Connections) -> BucketObjects:
        return load()[1](connections)

    def report_files(connections: Connections) -> ReportFiles:
        from gc_assets.stores.conditional.report_files import BucketReportFiles

        return BucketReportFiles(open_objects(connections))

    def read_identity(address: str, location: str, connections: Connections) -> str | None:
        del location
        try:
            return open_objects(connections).identity(address)
        except (GcError, OSError):
            return None

    def report_bucket(location: str, connections: Connections) -> ConditionalBucket:
        return open_store(location, connections).bucket

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
        report_bucket,
        settings=settings.KEY,
        examine_state=examine_state,
    )
