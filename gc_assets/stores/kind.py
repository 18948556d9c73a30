"""The description of a kind of store, created by the kind's package.

`stores/store.py` lists all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gc_assets.config.connections import Connections
    from gc_assets.core.findings import Finding
    from gc_assets.core.objects import EditableObjects
    from gc_assets.stores.protocol import PathAlias, QuarantineMode, ReportFiles, SourceBucket, Store, SymbolicLink


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A kind of store.

    Attributes:
        scheme: The URL scheme of its locations.
        example: An example location for messages.
        quarantines: The supported quarantine modes.
        open: Opens the store of a location.
        anywhere: Returns an accessor for objects at any address of the scheme, inside or outside
            the configured storages.
        report_files: Returns the reader of inventory reports at addresses of the scheme.
        source_bucket: Returns the bucket of a location, for comparison with reports about it. None
            if reports cannot replace a listing.
        settings: The storage's configuration key for access to the scheme, or None.
        read_identity: Returns the identity of the object at any address of the scheme. Returns None
            if it cannot be read or is not comparable with identities of the given storage.
        find_path_aliases: Returns directories with two paths in storages (name, location).
        find_links: Returns the symbolic links found by a bounded scan of a storage (name,
            location).
        examine_state: Yields findings about objects that the store itself would delete from a
            state.
        preloaded: Modules that are imported before Spark's Python workers are forked.
    """

    scheme: str
    example: str
    quarantines: tuple[QuarantineMode, ...]
    open: Callable[[str, Connections], Store]
    anywhere: Callable[[Connections], EditableObjects]
    report_files: Callable[[Connections], ReportFiles]
    read_identity: Callable[[str, str, Connections], str | None]
    source_bucket: Callable[[str, Connections], SourceBucket] | None = None
    settings: str | None = None
    find_path_aliases: Callable[[Sequence[tuple[str, str]]], list[PathAlias]] = lambda _: []
    find_links: Callable[[str, str], Iterable[SymbolicLink]] = lambda _, __: ()
    examine_state: Callable[[str, Connections], Iterable[Finding]] = lambda _, __: ()
    preloaded: tuple[str, ...] = ()
