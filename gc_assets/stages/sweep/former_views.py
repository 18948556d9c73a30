"""Keep track of catalogs' views, and find metadata of views that catalogs no longer list.

Views do not own data files. If a view's metadata is in a table's claim, it looks as if the view
belonged to an unconfigured catalog, which would stop plans. This is prevented if an accepted run
read the view from the same catalog. The metadata is then kept, because the catalog may hide the
view or respond with an error.

Known views are stored in a side table of `orphan_files`, like known tables (`table_memory.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Final

import pyarrow as pa

from gc_assets.core.commands import command
from gc_assets.core.dropped_tables import FORGET_AFTER
from gc_assets.core.printable import show
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import write_parts
from gc_assets.stages.sweep.foreign_metadata import directory_of
from gc_assets.stages.sweep.table_memory import catalog_identity, find_accepted_sweep
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import PartFile, read_parts
from gc_assets.state.side_tables import KNOWN_VIEWS, KNOWN_VIEWS_SIDE, VIEWS, VIEWS_SIDE
from gc_assets.state.summaries import LakeRefsSummary

# If there are more files, their directories are kept instead.
_MAX_KEYS: Final = 1_000


@dataclass(frozen=True, slots=True)
class KnownView:
    """A view that an accepted run read.

    Attributes:
        catalog: Identity of the catalog that listed it.
        gone_since: When an accepted run first did not find the view. None if a catalog lists it.
    """

    lake: str
    uuid: str
    name: str
    catalog: str
    gone_since: datetime | None = None


@dataclass(frozen=True)
class FormerViews:
    """A storage's known views, and the metadata of views that catalogs no longer list.

    Attributes:
        known: Views to remember for the next run.
        catalogs: Identity of each lake's current catalog.
        files: Keys of former views' metadata, with the view's UUID.
    """

    known: tuple[KnownView, ...]
    catalogs: Mapping[str, str]
    files: Mapping[str, str]

    def select_former(self) -> dict[str, KnownView]:
        """Return the views that their lake's current catalog no longer lists, keyed by view UUID."""
        gone = (item for item in self.known if item.gone_since is not None)
        return {item.uuid: item for item in gone if self.catalogs.get(item.lake) == item.catalog}

    def list_times(self) -> dict[str, datetime]:
        """Return when a run first did not find each former view, keyed by view UUID.

        Metadata with a later version must have been written through another catalog.
        """
        return {uuid: item.gone_since for uuid, item in self.select_former().items() if item.gone_since is not None}

    def list_prefixes(self) -> tuple[str, ...]:
        """Return the files' keys, or their directories if there are too many."""
        if len(self.files) <= _MAX_KEYS:
            return tuple(sorted(self.files))
        return tuple(sorted({f"{directory_of(key)}/" for key in self.files}))

    def describe(self, context: RunContext, storage_name: str) -> Iterator[str]:
        """Yield a report message for each lake that has metadata of former views."""
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
        """Write the known views to a side table of the run.

        A view is omitted if it has been missing for `FORGET_AFTER` and its files are gone.
        """
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
    """Find the views to remember for the next run, without their metadata files.

    Args:
        refs: `lake_refs` of all lakes.
    """
    swept = find_accepted_sweep(context, storage_name)
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
