"""What live contents mean for the metadata objects below them: which may be gone, which snapshot each needs, whose places they name.

Arrow in one executor task. Lakes without `live_contents` have none of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.parts import read_parts
from gc_assets.lakes.protocol import Kind
from gc_assets.schemas import CLAIMS, LIVE_CONTENTS
from gc_assets.stages.content_roots import RootTables


def collected_before(roots: RootTables, logs: Mapping[str, Sequence[str]], found: pa.Table, failed: pa.Table) -> pa.Array:
    """Addresses of `found` that only older live contents show, that are gone, and that a plan of ours purged.

    A longer cut-off cannot bring back what a shorter one let go. `logs` are the parts of each storage's `deletion_log`.
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


def need_not_exist(rows: pa.Table, addresses: pa.Array) -> pa.Table:
    """Roots or edges of which those addresses may be absent."""
    must = pc.and_(rows.column("must_exist"), pc.invert(pc.is_in(rows.column("address"), addresses)))
    at = rows.schema.get_field_index("must_exist")
    return rows.set_column(at, rows.schema.field(at), must)


def refuse_unlisted_snapshots(lake_name: str, roots: RootTables, edges: pa.Table, lost: pa.Table) -> None:
    """Raises `LakeUnreadable` for a live content at a snapshot that its metadata file does not keep: its files would be in no live set."""
    if roots.contents is None:
        return
    contents = read_parts(roots.files, list(roots.contents), LIVE_CONTENTS.schema)
    gone = pc.is_in(contents.column("metadata_location"), lost.column("address"))
    shown = contents.filter(pc.and_not(pc.is_valid(contents.column("snapshot_id")), gone))
    listed = pc.binary_join_element_wise(edges.column("container"), edges.column("snapshot_id"), "\x1f")
    named = pc.binary_join_element_wise(shown.column("metadata_location"), shown.column("snapshot_id"), "\x1f")
    for row in shown.filter(pc.invert(pc.is_in(named, listed))).slice(0, 1).to_pylist():
        raise LakeUnreadable(
            f"lake {lake_name}: commit {row['commit_id']} shows {row['content_key']} at snapshot {row['snapshot_id']}, which its metadata "
            f"file {row['metadata_location']} does not keep; commit the table anew, or set `keep_listed_snapshots: all` if it lists it"
        )


def claims_made(places: pa.Table, unlisted: pa.Table) -> pa.Table:
    """What containers say to be a table's own, each prefix once, and the places of contents that nobody here can list, shielded."""
    own = places.filter(pc.equal(places.column("kind"), Kind.TABLE_LOCATION))
    rows = pa.concat_tables(
        [
            item.select(["address", "storage", "key"]).append_column("collect", pa.array([collect] * item.num_rows, pa.bool_()))
            for item, collect in ((own, True), (unlisted, False))
        ],
        promote_options="default",
    )
    once = rows.group_by(["address", "storage", "key", "collect"]).aggregate([])
    nobody = pa.nulls(once.num_rows, pa.string())
    return once.append_column("table_uuid", nobody).append_column("table_name", nobody).select(CLAIMS.names).cast(CLAIMS)


def notes_on(lake_name: str, lost: pa.Table, unlisted: pa.Table) -> Iterator[str]:
    """Sentences for the report: live history whose metadata is gone, and places that are kept whole."""
    if lost.num_rows:
        example = lost.column("address")[0].as_py()
        yield (
            f"lake {lake_name}: {lost.num_rows:,} metadata objects of older history are gone (for example {example}); readers of that "
            "history fail, readers of the heads do not"
        )
    for address in pc.unique(unlisted.column("address")).to_pylist():
        yield f"lake {lake_name}: everything below {address} is kept, because the files of a content there cannot be listed"
