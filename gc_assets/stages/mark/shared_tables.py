"""Find planned edits that remove history which another lake with the same table keeps.

Several lakes may collect one table, for example because their `tables` patterns overlap, or because
it is in two catalogs. The same applies to repositories. All history that any of these lakes keeps
is then kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH, DELETE_REF, REMOVE_SNAPSHOT
from gc_assets.stages.mark.deleted_repositories import identify
from gc_assets.stages.mark.lake_refs import locate_server
from gc_assets.stages.mark.resolution import find_resolvable
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import EXPIRY_PLAN, LAKE_REFS, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import EDITS_SIDE, SOURCES, SOURCES_SIDE
from gc_assets.state.summaries import LakeRefsSummary

# Table UUID, action, snapshot id and ref name.
EditKey = tuple[str | None, str, str, str | None]
_KEY: Final = ["table_uuid", "action", "snapshot_id", "ref_name"]
# Columns that `SharedTables.find_kept_edits` needs.
EDIT_COLUMNS: Final = [*_KEY, "table_name"]
_REF_EDITS: Final = (DELETE_REF, DELETE_IDLE_BRANCH)


@dataclass(frozen=True, slots=True)
class KeptBy:
    """Another lake that keeps history to be removed by an edit, and a reason for messages."""

    lake: str
    reason: str


def list_expiry_tables(context: RunContext, lake: str) -> list[tuple[PublishedTable, str | None]]:
    """List the tables that contain a lake's planned history edits.

    If the edits are in a side table, its name is returned with the table. In both cases, the rows
    have the columns of `expiry_plan`.
    """
    tables: list[tuple[PublishedTable, str | None]] = [(context.table(EXPIRY_PLAN, lake), None)]
    if (edited := context.kind(lake).table_with(TableRole.PATH_EDITS, context.config.lake(lake))) is not None:
        tables.append((context.table(edited, lake), EDITS_SIDE))
    return tables


def read_expiry(context: RunContext, lake: str, columns: list[str] | None = None) -> pa.Table:
    """Read a lake's planned history edits, with all or some columns of `expiry_plan`."""
    paths = [path for table, side in list_expiry_tables(context, lake) for path in table.paths(side)]
    return read_parts(context.state.files, paths, EXPIRY_PLAN.schema, columns)


def edit_keys(rows: pa.Table) -> list[EditKey]:
    return list(zip(*(rows.column(name).to_pylist() for name in _KEY), strict=True))


@dataclass(frozen=True, slots=True)
class SharedTables:
    """Tables and repositories that several lakes collect.

    Attributes:
        listed: UUIDs of the tables that each lake's catalog lists.
        selected: UUIDs of the listed tables that each lake's configuration selects.
        by_uuid: Lakes that select the same table, keyed by table UUID.
        neighbours: For each lake, all lakes with the same repository, catalog or server. Some of
            them may read different catalogs at the same address.
    """

    context: RunContext
    listed: Mapping[str, frozenset[str]]
    selected: Mapping[str, frozenset[str]]
    by_uuid: Mapping[str, frozenset[str]]
    neighbours: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, context: RunContext, lakes: Collection[str]) -> SharedTables:
        """Find the tables and repositories that some lakes share."""
        listed, selected = dict[str, frozenset[str]](), dict[str, frozenset[str]]()
        by_uuid, by_place = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
        for lake in lakes if len(lakes) > 1 else ():
            config, tables = context.config.lake(lake), _list_tables(context, lake)
            listed[lake] = frozenset(table_uuid for table_uuid, _ in tables)
            selected[lake] = frozenset(table_uuid for table_uuid, name in tables if config.collects(name))
            for place in _locate_history(context, lake):
                by_place[place].add(lake)
            for table_uuid in selected[lake]:
                by_uuid[table_uuid].add(lake)
        return cls(
            context,
            listed,
            selected,
            {table_uuid: frozenset(found) for table_uuid, found in by_uuid.items() if len(found) > 1},
            {lake: others for lake in listed if len(others := _unite(lake, by_place.values())) > 1},
        )

    @property
    def is_empty(self) -> bool:
        """True if lakes do not share anything, so that their edits do not have to be read."""
        return not self.by_uuid and not self.neighbours

    def find_kept_edits(self, lake: str, edits: pa.Table) -> dict[EditKey, KeptBy]:
        """Return a lake's history edits that remove what another lake keeps.

        Another lake whose configuration selects the table keeps

        - a listed snapshot or ref that it does not remove,
        - schemas and partition specs that it does not remove,
        - everything in a table of its own catalog that it has not read in this run.

        All edits of a repository are returned unless both lakes make exactly the same edits,
        because some of them alone could cut off history.

        Args:
            lake: Name of the lake.
            edits: The lake's edits, with the `EDIT_COLUMNS` columns.
        """
        found: dict[EditKey, KeptBy] = {}
        for other in sorted(self._find_others(lake, edits)):
            found = {key: KeptBy(other, reason) for key, reason in self._find_kept_by(lake, edits, other)} | found
        return found

    def _find_others(self, lake: str, edits: pa.Table) -> set[str]:
        """Return lakes that share a lake's catalog, and lakes that select one of its edited tables."""
        if lake not in self.listed or not edits.num_rows:
            return set()
        of_tables = frozenset[str]().union(*(self.by_uuid.get(table_uuid, frozenset()) for table_uuid in _uuids_of(edits)))
        return {*self.neighbours.get(lake, ()), *of_tables} - {lake}

    def _find_kept_by(self, lake: str, edits: pa.Table, other: str) -> Iterator[tuple[EditKey, str]]:
        """Yield the edits of `lake` that `other` would not make, each with the reason."""
        context = self.context
        config, label = context.config.lake(other), context.config.label_of(other)
        is_same_catalog, uuids = other in self.neighbours.get(lake, ()), _uuids_of(edits)
        of_repository = pc.is_null(edits.column("table_uuid"))
        if is_same_catalog and pc.any(of_repository).as_py() and _repository_edits(context, lake) != _repository_edits(context, other):
            reason = (
                f"lake {label} has the same repository but plans other edits. Remove one of these lakes, or give both the same `retention`"
            )
            yield from ((key, reason) for key in edit_keys(edits.filter(of_repository)))
        # Catalogs of two accounts may have the same address, but they do not share tables.
        if is_same_catalog and not (self.listed[other] and self.listed[lake].isdisjoint(self.listed[other])):
            unread = _select_tables(edits, uuids - self.listed[other])
            reason = f"lake {label} collects this table too, but has not read it in this run"
            of_unread = zip(edit_keys(unread), unread.column("table_name").to_pylist(), strict=True)
            yield from ((key, reason) for key, name in of_unread if config.collects(name))
        if shared := uuids & self.selected[other]:
            reason = (
                f"lake {label} collects this table too, and keeps the history that these edits remove. "
                "Use the same `retention` in both lakes, or let only one of them collect it (`tables`)"
            )
            keeps = _OtherHistory.read(context, other, pa.array(sorted(shared), pa.string()))
            yield from ((key, reason) for key in edit_keys(_select_tables(edits, shared)) if keeps.keeps(key))


def _locate_history(context: RunContext, lake: str) -> Iterator[str]:
    """Yield the values that identify a lake's history: server, repository and own locations."""
    yield locate_server(context, lake)
    repository = context.table(LAKE_REFS, lake).summary(LakeRefsSummary).repository
    if repository is not None:
        yield identify(repository).uuid
    resolver = context.resolver()
    for location in find_resolvable(context.config.lake(lake).own_locations(), resolver):
        if (place := resolver.locate_one(location)) is not None:
            yield ":".join(place)


def _unite(lake: str, groups: Iterable[Collection[str]]) -> frozenset[str]:
    """Return all lakes that share at least one group with a lake."""
    return frozenset[str]().union(*(group for group in groups if lake in group))


def _list_tables(context: RunContext, lake: str) -> list[tuple[str, str | None]]:
    """List the UUID and name of each table in a lake's catalog.

    If a table has several names, it occurs several times.
    """
    sources = read_parts(context.state.files, context.table(LAKE_REFS, lake).paths(SOURCES_SIDE), SOURCES, ["table_uuid", "table_name"])
    found = zip(sources.column("table_uuid").to_pylist(), sources.column("table_name").to_pylist(), strict=True)
    return [(table_uuid, name) for table_uuid, name in found if table_uuid]


def _uuids_of(edits: pa.Table) -> set[str]:
    return set(edits.column("table_uuid").drop_null().unique().to_pylist())


def _select_tables(edits: pa.Table, uuids: Collection[str]) -> pa.Table:
    return edits.filter(pc.is_in(edits.column("table_uuid"), pa.array(sorted(uuids), pa.string())))


@dataclass(frozen=True, slots=True)
class _OtherHistory:
    """The snapshots and refs that another lake has of some tables, and its planned edits."""

    snapshots: frozenset[tuple[str, str]]
    refs: frozenset[tuple[str, str]]
    edits: frozenset[EditKey]

    @classmethod
    def read(cls, context: RunContext, lake: str, uuids: pa.Array) -> _OtherHistory:
        files = context.state.files

        def pairs(rows: pa.Table) -> frozenset[tuple[str, str]]:
            mine = rows.filter(pc.is_in(rows.column("table_uuid"), uuids))
            return frozenset(zip(*(column.to_pylist() for column in mine.columns), strict=True))

        commits = read_parts(
            files, context.table(REACHABLE_SNAPSHOTS, lake).paths(), REACHABLE_SNAPSHOTS.schema, ["table_uuid", "commit_id"]
        )
        refs = read_parts(files, context.table(LAKE_REFS, lake).paths(), LAKE_REFS.schema, ["table_uuid", "ref_name"])
        return cls(pairs(commits), pairs(refs), frozenset(map(_effect, edit_keys(read_expiry(context, lake, _KEY)))))

    def keeps(self, key: EditKey) -> bool:
        uuid, action, snapshot_id, ref_name = key
        if _effect(key) in self.edits:
            return False
        if action == REMOVE_SNAPSHOT:
            return (uuid, snapshot_id) in self.snapshots
        return action not in _REF_EDITS or (uuid, ref_name) in self.refs


def _effect(key: EditKey) -> EditKey:
    """Replace the action in an edit's key, so that both actions that delete a ref are equal."""
    uuid, action, snapshot_id, ref_name = key
    return uuid, DELETE_REF if action in _REF_EDITS else action, snapshot_id, ref_name


def _repository_edits(context: RunContext, lake: str) -> set[tuple[str | None, ...]]:
    """Return a lake's edits that do not belong to a table, without their descriptions."""
    rows = read_expiry(context, lake)
    rows = rows.filter(pc.is_null(rows.column("table_uuid"))).drop_columns(["reason", "table_name", "table_uuid"])
    return set(zip(*(column.to_pylist() for column in rows.columns), strict=True))
