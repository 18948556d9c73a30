"""What the collector knows of disks before it opens a directory of one. What lists and moves files is
imported when a function here is called, not before: most commands do neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from gc_assets.config.s3 import Connections
from gc_assets.core.objects import EditableObjects
from gc_assets.core.paths import FILE
from gc_assets.stores.kind import StoreKind

if TYPE_CHECKING:
    from gc_assets.stores.protocol import PathAlias, QuarantineMode, ReportFiles, Store, SymbolicLink

QUARANTINES: Final[tuple[QuarantineMode, ...]] = ("trash", "deferred")


def _open(location: str, places: Connections) -> Store:
    from gc_assets.stores.local.store import LocalStore

    del places
    return LocalStore(location)


def _anywhere(places: Connections) -> EditableObjects:
    from gc_assets.stores.local.editing import EditableLocalObjects

    return EditableLocalObjects(read_seconds=places.read_seconds)


def _delivery(places: Connections) -> ReportFiles:
    from gc_assets.stores.local.report_files import LocalReportFiles

    return LocalReportFiles(places)


def _find_path_aliases(locations: Sequence[tuple[str, str]]) -> list[PathAlias]:
    from gc_assets.stores.local.mounts import find_mounted_aliases

    return find_mounted_aliases(locations)


def _find_links(name: str, location: str) -> Iterable[SymbolicLink]:
    from gc_assets.stores.local.doctor_checks import find_links

    return find_links(name, location)


LOCAL: Final = StoreKind(
    FILE,
    "file:///data/warehouse/",
    QUARANTINES,
    _open,
    _anywhere,
    _delivery,
    find_path_aliases=_find_path_aliases,
    find_links=_find_links,
    preloaded=("gc_assets.stores.local.store",),
)
