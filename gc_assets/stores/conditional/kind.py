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
    settings: type[StoreSettings],
    example: str,
    open_store: Callable[[str, Connections], BucketStore],
    open_objects: Callable[[Connections], BucketObjects],
) -> StoreKind:
    """Build the `StoreKind` for an object store.

    Args:
        settings: The class of the object store's settings.
        example: A location to be used as an example in messages.
        open_store: Imports the class of the store and opens the store at a location.
        open_objects: Imports the class that accesses objects by address, and creates an instance.
    """

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
