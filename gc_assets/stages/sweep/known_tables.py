"""Find the time of each table's newest commit in the configured catalogs.

If a table has newer metadata, it was written through an unconfigured catalog. The search only runs
if suspect metadata was listed. It uses Arrow in the driver and reads one row per commit and per
metadata file, but never one per data file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark.manifest_entries import find_segments
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS, LIVE_CONTENTS, LIVE_FILES
from gc_assets.state.side_tables import LOCATIONS, LOCATIONS_SIDE, SOURCES, SOURCES_SIDE, VIEWS, VIEWS_SIDE
from gc_assets.state.summaries import LiveFilesSummary


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table of a configured catalog.

    Attributes:
        newest: Time of the newest known commit, in milliseconds since 1970.
        in_use: True if writers still commit to the table through this catalog, so that young
            metadata may belong to a commit in progress.
        dropped: True if an accepted run read the table, but no catalog lists it any more.
        oldest: Time of the first commit in milliseconds since 1970. None if there are no commits,
            or 0 if the first one may be missing.
    """

    newest: int
    in_use: bool = True
    dropped: bool = False
    oldest: int | None = 0


_URN: Final = "urn:uuid:"
# An unreadable table does not indicate another catalog, so its metadata never counts as newer.
NEVER_NEWER: Final = KnownTable(2**63 - 1)
_MILLISECONDS = pa.timestamp("ms", tz="UTC")


def known_tables(context: RunContext) -> dict[str, KnownTable]:
    """Return the tables in the catalogs of all lakes, by table UUID.

    If a table is both in an Iceberg catalog and on a Nessie server, the catalog's entry is used,
    because it is more exact than the server's commits.
    """
    of_servers: dict[str, KnownTable] = {}
    of_catalogs: dict[str, KnownTable] = {}
    for lake in context.config.lakes:
        known, found = (
            (of_servers, _of_server(context, lake.name))
            if context.kind(lake.name).has_live_contents
            else (of_catalogs, _of_catalog(context, lake.name))
        )
        for uuid, item in found.items():
            other = known.get(uuid, item)
            times = [time for time in (item.oldest, other.oldest) if time is not None]
            known[uuid] = KnownTable(max(item.newest, other.newest), item.in_use or other.in_use, oldest=min(times, default=None))
    unreadable = [item for table in context.lake_tables(LIVE_FILES) for item in table.summary(LiveFilesSummary).unreadable]
    views = _views(context)
    return of_servers | views | of_catalogs | {item.table_uuid: NEVER_NEWER for item in unreadable if item.table_uuid is not None}


def find_metadata(context: RunContext, uuids: Collection[str]) -> dict[str, list[str]]:
    """Return the addresses of tables' metadata files in the configured catalogs, by table UUID.

    For a server, these are all files that commits ever referenced, newest first.
    """
    found: dict[str, list[str]] = {}
    for lake in context.config.lakes:
        if context.kind(lake.name).has_live_contents:
            pairs = _metadata_of_server(context, lake.name, uuids)
        else:
            paths = context.table(LAKE_REFS, lake.name).paths(SOURCES_SIDE)
            sources = read_parts(context.state.files, paths, SOURCES, ["table_uuid", "address"])
            mine = sources.filter(pc.is_in(sources.column("table_uuid"), pa.array(sorted(uuids), pa.string())))
            pairs = zip(mine.column("table_uuid").to_pylist(), mine.column("address").to_pylist(), strict=True)
        for uuid, address in pairs:
            found.setdefault(uuid, []).append(address)
    return {uuid: list(dict.fromkeys(addresses)) for uuid, addresses in found.items()}


def _metadata_of_server(context: RunContext, lake_name: str, uuids: Collection[str]) -> Iterator[tuple[str, str]]:
    places, commits = _read_locations(context, lake_name), _list_puts(_read_commits(context, lake_name))
    wanted = pa.array([f"{_URN}{uuid}" for uuid in sorted(uuids)], pa.string())
    rows = places.filter(pc.and_(pc.equal(places.column("kind"), Kind.TABLE_UUID), pc.is_in(places.column("address"), wanted)))
    newest = commits.group_by("address").aggregate([("at", "max")])
    at = newest.column("at_max").take(pc.index_in(rows.column("container"), newest.column("address")))
    rows = rows.append_column("at", at).filter(pc.is_valid(at)).sort_by([("at", "descending"), ("container", "descending")])
    for uuid, address in zip(rows.column("address").to_pylist(), rows.column("container").to_pylist(), strict=True):
        yield uuid.removeprefix(_URN), address


def _views(context: RunContext) -> dict[str, KnownTable]:
    """Return the views of all catalogs with the times of their newest versions, by view UUID."""
    paths = [path for table in context.lake_tables(LAKE_REFS) for path in table.paths(VIEWS_SIDE)]
    rows = read_parts(context.state.files, paths, VIEWS).to_pylist()
    return {row["uuid"]: NEVER_NEWER if row["newest"] is None else KnownTable(row["newest"]) for row in rows}


def _of_catalog(context: RunContext, lake_name: str) -> dict[str, KnownTable]:
    """Return the times of each table's oldest and newest snapshot, keyed by table UUID."""
    refs = read_rows(context.state, LAKE_REFS, context.table(LAKE_REFS, lake_name), columns=["table_uuid"])
    graph = context.table(COMMIT_GRAPH, lake_name)
    commits = read_rows(context.state, COMMIT_GRAPH, graph, columns=["table_uuid", "commit_id", "parents", "committed_at"])
    times = commits.append_column("at", _milliseconds(commits.column("committed_at"))).group_by("table_uuid")
    without = {uuid: KnownTable(0, oldest=None) for uuid in refs.column("table_uuid").to_pylist() if uuid is not None}
    incomplete = _find_incomplete(commits)
    return without | {
        row["table_uuid"]: KnownTable(row["at_max"] or 0, oldest=0 if row["table_uuid"] in incomplete else row["at_min"] or 0)
        for row in times.aggregate([("at", "max"), ("at", "min")]).to_pylist()
        if row["table_uuid"] is not None
    }


def _find_incomplete(commits: pa.Table) -> set[str | None]:
    """Return the UUIDs of tables with commits whose parents are missing."""
    parents = commits.column("parents").combine_chunks()
    owners = commits.column("table_uuid").combine_chunks().take(pc.list_parent_indices(parents))
    is_known = pc.is_in(pc.list_flatten(parents), commits.column("commit_id"))
    return set(pc.unique(owners.filter(pc.invert(is_known))).to_pylist())


def _of_server(context: RunContext, lake_name: str) -> dict[str, KnownTable]:
    contents = context.table(LIVE_CONTENTS, lake_name)
    rows = read_rows(context.state, LIVE_CONTENTS, contents, columns=["metadata_location", "on_branch"])
    on_branches = rows.column("metadata_location").filter(rows.column("on_branch"))
    return newest_commit_times(_read_locations(context, lake_name), _read_commits(context, lake_name), on_branches)


def _read_locations(context: RunContext, lake_name: str) -> pa.Table:
    paths = context.state.paths(find_segments(context, lake_name), LOCATIONS_SIDE)
    return read_parts(context.state.files, paths, LOCATIONS, ["container", "address", "kind"])


def _read_commits(context: RunContext, lake_name: str) -> pa.Table:
    return read_rows(context.state, COMMIT_GRAPH, context.table(COMMIT_GRAPH, lake_name), columns=["committed_at", "content_roots"])


def _list_puts(commits: pa.Table) -> pa.Table:
    """Return the metadata files that commits added, with the commit times.

    Returns:
        Rows with the columns address and at.
    """
    lists = commits.column("content_roots").combine_chunks()
    at = _milliseconds(commits.column("committed_at").combine_chunks())
    return pa.table({"address": pc.struct_field(pc.list_flatten(lists), "address"), "at": at.take(pc.list_parent_indices(lists))})


def newest_commit_times(places: pa.Table, commits: pa.Table, on_branches: pa.ChunkedArray) -> dict[str, KnownTable]:
    """Find the newest commit that added a metadata file of each table. Its time is 0 if unknown.

    Newer metadata that is not in any commit was written through another catalog, or on a branch
    that was dropped before a run read it.

    Args:
        places: Rows of the side table `LOCATIONS`: container, address and kind.
        commits: Commits with the columns committed_at and content_roots.
        on_branches: Addresses of the metadata files at the heads of branches.
    """
    newest = _list_puts(commits).group_by("address").aggregate([("at", "max")])
    uuids = places.filter(pc.equal(places.column("kind"), Kind.TABLE_UUID))
    in_use = pc.is_in(uuids.column("container"), pc.unique(on_branches))
    by_put = newest.column("at_max").take(pc.index_in(uuids.column("container"), newest.column("address")))
    rows = pa.table({"uuid": uuids.column("address"), "newest": pc.coalesce(by_put, pa.scalar(0, pa.int64())), "in_use": in_use})
    tables = rows.group_by("uuid").aggregate([("newest", "max"), ("in_use", "any")])
    return {row["uuid"].removeprefix(_URN): KnownTable(row["newest_max"], row["in_use_any"]) for row in tables.to_pylist()}


def _milliseconds(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert times to whole milliseconds since 1970, the precision of times in metadata files."""
    return pc.floor_temporal(times, unit="millisecond").cast(_MILLISECONDS).cast(pa.int64())
