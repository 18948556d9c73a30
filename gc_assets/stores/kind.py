"""What a kind of store tells the rest of the collector about itself: one value, which the kind's
package makes. `stores/store.py` lists all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gc_assets.config.s3 import Places
    from gc_assets.core.findings import Finding
    from gc_assets.core.objects import EditableObjects
    from gc_assets.stores.protocol import PathAlias, QuarantineMode, ReportFiles, SourceBucket, Store, SymbolicLink


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A kind of store, as its package offers it.

    `scheme` and `example` are how lakes.yaml spells its locations, `quarantines` the modes it can
    have at all, `open` makes the store of a location. `anywhere` makes what reaches every address
    of the scheme, in a configured storage or not, and `report_files` what reads reports there.
    `source_bucket` makes what reports about a location are compared with, null where reports cannot take
    the place of a listing. `settings` is the key of a storage that says how places of the scheme
    are reached, null where nothing needs to be said. `find_path_aliases` finds places that have two names
    in storages (name, location), and `find_links` the symbolic links there, as far as a quick look meets
    them. `examine_state` returns findings about what the store itself deletes at the location of a
    state. `preloaded` are modules that Spark's Python workers are forked with.
    """

    scheme: str
    example: str
    quarantines: tuple[QuarantineMode, ...]
    open: Callable[[str, Places], Store]
    anywhere: Callable[[Places], EditableObjects]
    report_files: Callable[[Places], ReportFiles]
    source_bucket: Callable[[str, Places], SourceBucket] | None = None
    settings: str | None = None
    find_path_aliases: Callable[[Sequence[tuple[str, str]]], list[PathAlias]] = lambda _: []
    find_links: Callable[[str, str], Iterable[SymbolicLink]] = lambda _, __: ()
    examine_state: Callable[[str, Places], Iterable[Finding]] = lambda _, __: ()
    preloaded: tuple[str, ...] = ()
