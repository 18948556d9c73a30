"""Decides what live contents say of the metadata objects below them.

Some of those objects may be absent. Some contents name a snapshot that must be listed. Others name
places, which become claims.

Arrow in one task. Lakes without `live_contents` need none of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark.content_roots import RootTables
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import LIVE_CONTENTS
from gc_assets.state.side_tables import CLAIMS


def find_purged(roots: RootTables, logs: Mapping[str, Sequence[str]], found: pa.Table, failed: pa.Table) -> pa.Array:
    """Returns the addresses of `found` that are absent because a plan of ours purged them.

    A head's own metadata file is never among them: its absence is a loss. The rest may be gone,
    because a longer cut-off cannot bring back what a shorter one let go.

    `failed` are the containers that could not be decoded. `logs` are the parts of each storage's
    `deletion_log`.
    """
    absent = found.filter(pc.is_in(found.column("address"), failed.column("address").filter(failed.column("absent"))))
    if roots.contents is None or not absent.num_rows:
        return pa.array([], pa.string())
    shown = read_parts(roots.files, list(roots.contents), LIVE_CONTENTS.schema, ["metadata_location", "at_head"])
    heads = shown.column("metadata_location").filter(shown.column("at_head"))
    older = absent.filter(pc.invert(pc.is_in(absent.column("address"), heads)))
    purged: set[tuple[str, str]] = set()
    for storage, paths in logs.items():
        keys = pc.unique(older.column("key").filter(pc.equal(older.column("storage"), storage)))
        done = pc.field("key").isin(keys) & (pc.field("outcome") == "done") & (pc.field("phase") == "purge")
        for path in paths if len(keys) else ():
            rows = pq.read_table(pa.BufferReader(roots.files.read(path)), columns=["key"], filters=done)
            purged |= {(storage, key) for key in rows.column("key").to_pylist()}
    rows = older.select(["address", "storage", "key"]).to_pylist()
    return pa.array([row["address"] for row in rows if (row["storage"], row["key"]) in purged], pa.string())


def mark_optional(rows: pa.Table, addresses: pa.Array) -> pa.Table:
    """Returns the rows (roots or edges) with `must_exist` false for these addresses."""
    must = pc.and_(rows.column("must_exist"), pc.invert(pc.is_in(rows.column("address"), addresses)))
    at = rows.schema.get_field_index("must_exist")
    return rows.set_column(at, rows.schema.field(at), must)


def refuse_unlisted_snapshots(lake_name: str, roots: RootTables, edges: pa.Table, lost: pa.Table) -> None:
    """Raises `LakeUnreadable` for a live content at a snapshot that its metadata file does not
    keep.

    The files of such a snapshot would be in no live set. Contents whose metadata file is in `lost`
    are passed over.
    """
    if roots.contents is None:
        return
    contents = read_parts(roots.files, list(roots.contents), LIVE_CONTENTS.schema)
    gone = pc.is_in(contents.column("metadata_location"), lost.column("address"))
    shown = contents.filter(pc.and_not(pc.is_valid(contents.column("snapshot_id")), gone))
    of_shown = edges.filter(pc.is_in(edges.column("container"), shown.column("metadata_location").combine_chunks()))
    listed = pc.binary_join_element_wise(*(of_shown.column(name).cast(pa.string()) for name in ("container", "snapshot_id")), "\x1f")
    named = pc.binary_join_element_wise(shown.column("metadata_location"), shown.column("snapshot_id"), "\x1f")
    for row in shown.filter(pc.invert(pc.is_in(named, listed))).slice(0, 1).to_pylist():
        raise LakeUnreadable(
            f"lake {lake_name}: commit {row['commit_id']} shows {row['content_key']} at snapshot {row['snapshot_id']}, which its metadata "
            f"file {row['metadata_location']} does not keep; commit the table anew, or set `keep_listed_snapshots: all` if it lists it"
        )


def build_claims(places: pa.Table, unlisted: pa.Table) -> pa.Table:
    """Returns the claims (columns `CLAIMS`) that containers make, each once.

    A container names the location of its table, and the table claims it. `unlisted` are places of
    contents whose files nobody here can list. They become shields: nothing below them is collected.
    """
    locations = places.filter(pc.equal(places.column("kind"), Kind.TABLE_LOCATION))
    uuids = places.filter(pc.equal(places.column("kind"), Kind.TABLE_UUID))
    tables = uuids.column("address").take(pc.index_in(locations.column("container"), uuids.column("container")))
    named = locations.select(["address", "storage", "key"]).append_column("location_of", tables)
    own, shields = (
        rows.group_by(rows.column_names, use_threads=False).aggregate([]).to_pylist()
        for rows in (named, unlisted.select(["address", "storage", "key"]))
    )
    claims = [{**row, "collect": True} for row in own] + [{**row, "collect": False} for row in shields]
    return pa.Table.from_pylist(claims, schema=CLAIMS)


def describe_losses(lake_name: str, lost: pa.Table, unlisted: pa.Table) -> Iterator[str]:
    """Yields sentences for the report.

    They name live history whose metadata is gone, and places that are kept whole.
    """
    if lost.num_rows:
        example = lost.column("address")[0].as_py()
        yield (
            f"lake {lake_name}: {lost.num_rows:,} metadata objects of older history are gone (for example {example}); readers of that "
            "history fail, readers of the heads do not"
        )
    for address in pc.unique(unlisted.column("address")).to_pylist():
        yield f"lake {lake_name}: everything below {address} is kept, because the files of a content there cannot be listed"
