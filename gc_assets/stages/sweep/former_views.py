"""Remember the views of catalogs, and find the metadata of those that no catalog lists any more.

A view owns no data files. If its metadata is in the claim of a table, it looks like that of a view of
an unconfigured catalog. If an accepted run read the view from the same catalog, it does not refuse
plans. It is kept, because a catalog may hide the view, or answer with an error.

The memory is a side table of `orphan_files`, as that of tables (`table_memory.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from gc_assets.core.commands import command
from gc_assets.core.dropped_tables import FORGET_AFTER
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.objects import Objects
from gc_assets.core.printable import show
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import collect, map_arrow, write_parts
from gc_assets.lakes.kind import TableIdentity
from gc_assets.stages.records.accepted_runs import newest_accepted_run
from gc_assets.stages.records.dead_tables import DeadTable, read_table_id
from gc_assets.stages.sweep.foreign_metadata import directory_of, metadata_patterns
from gc_assets.stages.sweep.table_memory import catalog_identity, open_sweep
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import PartFile, read_parts
from gc_assets.state.side_tables import KNOWN_VIEWS, KNOWN_VIEWS_SIDE, VIEWS, VIEWS_SIDE
from gc_assets.state.summaries import LakeRefsSummary

# More files than these are kept by their directories.
_MAX_KEYS: Final = 1_000
_FOUND: Final = pa.schema([("key", pa.string()), ("uuid", pa.string())])


@dataclass(frozen=True, slots=True)
class KnownView:
    """A view that an accepted run read.

    Attributes:
        catalog: Identity of the catalog that listed it.
        gone_since: Time of the first accepted run that missed it, or None if a catalog lists it.
    """

    lake: str
    uuid: str
    name: str
    catalog: str
    gone_since: datetime | None = None


@dataclass(frozen=True)
class FormerViews:
    """The views that a storage remembers, and the found metadata of those that no catalog lists.

    Attributes:
        known: All views to remember after this run.
        catalogs: Identity of the current catalog of each lake.
        files: Keys of metadata of former views, with the uuid.
    """

    known: tuple[KnownView, ...]
    catalogs: Mapping[str, str]
    files: Mapping[str, str]

    def select_former(self) -> dict[str, KnownView]:
        """Return the views that left the current catalog of their lake, by uuid."""
        gone = (item for item in self.known if item.gone_since is not None)
        return {item.uuid: item for item in gone if self.catalogs.get(item.lake) == item.catalog}

    def list_prefixes(self) -> tuple[str, ...]:
        """Return the keys of the files, or their directories if they are many."""
        if len(self.files) <= _MAX_KEYS:
            return tuple(sorted(self.files))
        return tuple(sorted({f"{directory_of(key)}/" for key in self.files}))

    def describe(self, context: RunContext, storage_name: str) -> Iterator[str]:
        """Yield a message for each lake, for the report."""
        former, by_lake = self.select_former(), dict[str, list[str]]()
        for key, uuid in sorted(self.files.items()):
            by_lake.setdefault(former[uuid].lake, []).append(key)
        for lake, keys in sorted(by_lake.items()):
            view = former[self.files[keys[0]]]
            directory, way_out = directory_of(keys[0]), ""
            if directory not in {"", "metadata"}:
                location = context.resolver().address(storage_name, f"{directory.removesuffix('/metadata')}/")
                way_out = f". If it was dropped: {command('accept', view.uuid, location, by='WHO')}"
            yield (
                f"lake {lake}: metadata of views that the catalog no longer lists is kept ({count_of(len(keys), 'file')}), for example "
                f"{show(keys[0])} of view {show(view.name)}{way_out}"
            )

    def write(self, context: RunContext, run: TableRun) -> dict[str, tuple[PartFile, ...]]:
        """Write the memory of the run as a side table. Views without files are forgotten in time."""
        now, found = context.clock.now(), set(self.files.values())
        rows = [
            asdict(item) for item in self.known if item.gone_since is None or item.uuid in found or now - item.gone_since <= FORGET_AFTER
        ]
        if not rows:
            return {}
        table = pa.Table.from_pylist(rows, schema=KNOWN_VIEWS)
        return {KNOWN_VIEWS_SIDE: tuple(write_parts(table, run, context.state.files, KNOWN_VIEWS_SIDE))}


NO_FORMER_VIEWS: Final = FormerViews((), {}, {})


def find_former_views(context: RunContext, storage_name: str, refs: Iterable[PublishedTable]) -> FormerViews:
    """Return the views to remember after this run, without files.

    Args:
        refs: `lake_refs` of all lakes.
    """
    accepted = newest_accepted_run(context, storage_name)
    swept = None if accepted is None else open_sweep(context, storage_name, accepted)
    paths = [] if swept is None else swept.paths(KNOWN_VIEWS_SIDE)
    found, catalogs, times = dict[tuple[str, str], KnownView](), dict[str, str](), dict[str, datetime]()
    for table in refs:
        lake = table.receipt.owner
        catalogs[lake], times[lake] = catalog_identity(context, lake), table.summary(LakeRefsSummary).frozen_at
        for row in read_parts(context.state.files, table.paths(VIEWS_SIDE), VIEWS).to_pylist():
            found[lake, row["uuid"]] = KnownView(lake, row["uuid"], row["name"], catalogs[lake])
    listed = {uuid for _, uuid in found}
    for item in (KnownView(**row) for row in read_parts(context.state.files, paths, KNOWN_VIEWS).to_pylist()):
        if item.uuid in listed:
            item = replace(item, gone_since=None)
        elif item.gone_since is None and catalogs.get(item.lake) == item.catalog:
            item = replace(item, gone_since=times[item.lake])
        found.setdefault((item.lake, item.uuid), item)
    return FormerViews(tuple(found[key] for key in sorted(found)), catalogs, {})


def find_view_files(
    suspects: DataFrame, views: FormerViews, storage_name: str, resolver: KeyResolver, objects: Objects, dead: Sequence[DeadTable]
) -> FormerViews:
    """Return the same with the files among the suspects (column key).

    Metadata with a version that is newer than the run which first missed the view was written by
    another catalog. Metadata that a user accepted as dead is not kept.
    """
    former = views.select_former()
    if not former:
        return views
    newest = {uuid: int(item.gone_since.timestamp() * 1000) for uuid, item in former.items() if item.gone_since is not None}
    accepted = tuple(item for item in dead if item.table_uuid in set(map(read_table_id, newest)))
    task = _FindFiles(storage_name, resolver, objects, newest, accepted)
    return replace(views, files={row["key"]: row["uuid"] for row in collect(map_arrow(suspects.select("key"), task, _FOUND))})


@dataclass(frozen=True)
class _FindFiles:
    """Yield the suspects that are metadata of former views (columns `_FOUND`). Runs in executors.

    Attributes:
        newest: Time of the newest possible version of each view, in milliseconds since 1970.
    """

    storage_name: str
    resolver: KeyResolver
    objects: Objects
    newest: Mapping[str, int]
    dead: Collection[DeadTable]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = ((key, self._find_view(key)) for key in batch.column("key").to_pylist())
            yield pa.RecordBatch.from_pylist([{"key": key, "uuid": uuid} for key, uuid in found if uuid is not None], _FOUND)

    def _find_view(self, key: str) -> str | None:
        identity = self._classify(key)
        if identity is None or identity.newest is None or identity.newest > self.newest.get(identity.uuid, -1):
            return None
        is_dead = any(item.table_uuid == read_table_id(identity.uuid) and key.startswith(item.prefix) for item in self.dead)
        return None if is_dead else identity.uuid

    def _classify(self, key: str) -> TableIdentity | None:
        """Return the identity of readable metadata. `MetadataClassifier` reports the rest."""
        pattern = next((pattern for pattern in metadata_patterns() if re.search(pattern.names, key)), None)
        if pattern is None or pattern.classify is None:
            return None
        try:
            found = pattern.classify(self.objects.read(self.resolver.address(self.storage_name, key)))
        except Exception:  # noqa: BLE001 - any other program may have written this object
            return None
        return found if isinstance(found, TableIdentity) else None
