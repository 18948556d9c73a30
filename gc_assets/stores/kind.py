"""The definition of a kind of store, such as S3.

`stores/store.py` lists all kinds. To add one, write a `StoreKind` for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gc_assets.buckets.protocol import ConditionalBucket
    from gc_assets.config.connections import Connections
    from gc_assets.core.findings import Finding
    from gc_assets.core.objects import EditableObjects
    from gc_assets.stores.protocol import PathAlias, QuarantineMode, ReportFiles, Store, SymbolicLink


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A kind of store, such as S3 or a local disk.

    Attributes:
        scheme: The URL scheme of its locations.
        example: A location to be used as an example in messages.
        quarantines: The quarantine modes that the kind of store supports.
        open: Opens the store at a location.
        anywhere: Returns an accessor for all addresses of the scheme, whether or not they are in a
            configured storage.
        report_files: Returns a reader for inventory reports at addresses of the scheme.
        report_bucket: Opens the bucket that a report describes. None if storages of this kind
            cannot use reports.
        settings: The key in a storage's configuration with settings for this kind, if there are
            any.
        read_identity: Called with an address and a storage's location. Returns the identity of the
            object, or None if it is unreadable or not comparable with identities in the storage.
        find_path_aliases: Called with the names and locations of storages. Returns directories that
            have two paths in these storages.
        find_links: Called with the name and location of a storage. Returns the symbolic links that
            a bounded scan finds.
        examine_state: Checks for `gc-assets doctor` that the store will not delete objects of
            gc-assets' state by itself, for example because of a lifecycle rule.
        preloaded: Modules to import before Spark forks its Python workers, so that the workers
            share their memory.
    """

    scheme: str
    example: str
    quarantines: tuple[QuarantineMode, ...]
    open: Callable[[str, Connections], Store]
    anywhere: Callable[[Connections], EditableObjects]
    report_files: Callable[[Connections], ReportFiles]
    read_identity: Callable[[str, str, Connections], str | None]
    report_bucket: Callable[[str, Connections], ConditionalBucket] | None = None
    settings: str | None = None
    find_path_aliases: Callable[[Sequence[tuple[str, str]]], list[PathAlias]] = lambda _: []
    find_links: Callable[[str, str], Iterable[SymbolicLink]] = lambda _, __: ()
    examine_state: Callable[[str, Connections], Iterable[Finding]] = lambda _, __: ()
    preloaded: tuple[str, ...] = ()
