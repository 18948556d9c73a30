"""How new each table is by the catalogs that are configured: metadata of it that is newer was written by a catalog that was not asked.

Arrow in the driver, and only in nights that found metadata to judge: a row per commit and metadata file, never per file.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.parts import read_parts
from gc_assets.lakes.protocol import Kind
from gc_assets.schemas import COMMIT_GRAPH, LAKE_REFS, LIVE_CONTENTS, PLACES
from gc_assets.stages.decoding import PLACES_SIDE
from gc_assets.stages.manifest_entries import segment_paths, segments
from gc_assets.stages.night import Night
from gc_assets.stages.tables import read_rows


@dataclass(frozen=True, slots=True)
class Known:
    """A table of a configured catalog: milliseconds after which it has nothing of it, and whether its writers still commit there.

    Where they do, young metadata may be a commit that is under way.
    """

    newest: int
    in_use: bool = True


_MILLISECONDS = pa.timestamp("ms", tz="UTC")


def known_tables(night: Night) -> dict[str, Known]:
    """Every table of every lake by uuid.

    What the catalog of an Iceberg lake says of its table is more exact than a server's commits, and stands where both know it.
    """
    of_servers: dict[str, Known] = {}
    of_catalogs: dict[str, Known] = {}
    for lake in night.config.lakes:
        known, found = (
            (of_servers, _of_server(night, lake.name)) if LIVE_CONTENTS.is_of(lake.kind) else (of_catalogs, _of_catalog(night, lake.name))
        )
        for uuid, item in found.items():
            other = known.get(uuid, item)
            known[uuid] = Known(max(item.newest, other.newest), item.in_use or other.in_use)
    return of_servers | of_catalogs


def _of_catalog(night: Night, lake_name: str) -> dict[str, Known]:
    """The newest snapshot of each table; 0 for one without snapshots."""
    refs = read_rows(night.state, LAKE_REFS, night.state.require(lake_name, LAKE_REFS.name, night.run_date), columns=["table_uuid"])
    graph = night.state.require(lake_name, COMMIT_GRAPH.name, night.run_date)
    commits = read_rows(night.state, COMMIT_GRAPH, graph, columns=["table_uuid", "committed_at"])
    newest = commits.set_column(1, "at", _milliseconds(commits.column("committed_at"))).group_by("table_uuid").aggregate([("at", "max")])
    without = {uuid: Known(0) for uuid in refs.column("table_uuid").to_pylist() if uuid is not None}
    return without | {row["table_uuid"]: Known(row["at_max"] or 0) for row in newest.to_pylist() if row["table_uuid"] is not None}


def _of_server(night: Night, lake_name: str) -> dict[str, Known]:
    graph = night.state.require(lake_name, COMMIT_GRAPH.name, night.run_date)
    contents = night.state.require(lake_name, LIVE_CONTENTS.name, night.run_date)
    shown = read_rows(night.state, LIVE_CONTENTS, contents, columns=["metadata_location", "on_branch"])
    return newest_puts(
        read_parts(night.state.files, segment_paths(segments(night, lake_name), PLACES_SIDE), PLACES, ["container", "address", "kind"]),
        read_rows(night.state, COMMIT_GRAPH, graph, columns=["committed_at", "content_roots"]),
        shown.column("metadata_location").filter(shown.column("on_branch")),
    )


def newest_puts(places: pa.Table, commits: pa.Table, on_branches: pa.ChunkedArray) -> dict[str, Known]:
    """For each table the time of the newest commit that put a metadata file of it; 0 where none did.

    Of one that a branch shows now (`on_branches`: metadata files) it is the time of the newest commit of all: newer metadata that
    no commit names may then come from a branch that was dropped, which leaves no other trace, and is no sign of another catalog.
    """
    lists = commits.column("content_roots").combine_chunks()
    at = _milliseconds(commits.column("committed_at").combine_chunks())
    put = pa.table({"address": pc.struct_field(pc.list_flatten(lists), "address"), "at": at.take(pc.list_parent_indices(lists))})
    newest = put.group_by("address").aggregate([("at", "max")])
    uuids = places.filter(pc.equal(places.column("kind"), Kind.TABLE_UUID))
    in_use = pc.is_in(uuids.column("container"), pc.unique(on_branches))
    by_put = newest.column("at_max").take(pc.index_in(uuids.column("container"), newest.column("address")))
    known = pc.coalesce(pc.if_else(in_use, pc.max(at), by_put), pa.scalar(0, pa.int64()))
    rows = pa.table({"uuid": uuids.column("address"), "newest": known, "in_use": in_use})
    tables = rows.group_by("uuid").aggregate([("newest", "max"), ("in_use", "any")])
    return {row["uuid"].removeprefix("urn:uuid:"): Known(row["newest_max"], row["in_use_any"]) for row in tables.to_pylist()}


def _milliseconds(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Whole milliseconds since 1970, as metadata files write times."""
    return pc.floor_temporal(times, unit="millisecond").cast(_MILLISECONDS).cast(pa.int64())
