"""Local disks as a kind of store.

Modules that list or move files are only imported when they are needed, because most commands do
neither.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from gc_assets.config.connections import Connections
from gc_assets.core.objects import EditableObjects
from gc_assets.core.paths import FILE
from gc_assets.stores.kind import StoreKind

if TYPE_CHECKING:
    from gc_assets.stores.protocol import PathAlias, QuarantineMode, ReportFiles, Store, SymbolicLink

QUARANTINES: Final[tuple[QuarantineMode, ...]] = ("trash", "deferred")


def _open(location: str, connections: Connections) -> Store:
    from gc_assets.stores.local.store import LocalStore

    del connections
    return LocalStore(location)


def _anywhere(connections: Connections) -> EditableObjects:
    from gc_assets.stores.local.editing import EditableLocalObjects

    return EditableLocalObjects(read_seconds=connections.read_seconds)


def _report_files(connections: Connections) -> ReportFiles:
    from gc_assets.stores.local.report_files import LocalReportFiles

    del connections
    return LocalReportFiles()


def _read_identity(address: str, location: str, connections: Connections) -> str | None:
    from gc_assets.stores.local.mounts import has_same_inodes
    from gc_assets.stores.local.objects import local_path

    found = _anywhere(connections).cached_identity(address)
    return found if found is not None and has_same_inodes(os.path.dirname(local_path(address)), local_path(location)) else None  # noqa: PTH120


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
    _report_files,
    _read_identity,
    find_path_aliases=_find_path_aliases,
    find_links=_find_links,
    preloaded=("gc_assets.stores.local.store",),
)
