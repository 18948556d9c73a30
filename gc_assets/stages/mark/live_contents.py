"""Apply the rules for Nessie's contents: optional metadata, listed snapshots, claims.

The functions run in the task that walks the containers (`live_walk.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.arrow_rows import replace_columns
from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark.content_roots import HELD, RELEASED, RootTables
from gc_assets.state.parts import read_errors, read_filtered, read_parts
from gc_assets.state.schemas import LIVE_CONTENTS
from gc_assets.state.side_tables import CLAIMS, EDGES


def find_purged(roots: RootTables, logs: Mapping[str, Sequence[str]], found: pa.Table, failed: pa.Table) -> pa.Array:
    """Return the addresses of missing containers purged by gc-assets itself.

    These containers do not have to exist, because a longer retention cannot bring back files that
    were purged earlier. The metadata file of a head is never included, because its absence is a
    loss.

    Args:
        logs: Parts of `deletion_log`, keyed by storage.
        found: All containers that the walk found (`ROOTS` columns).
        failed: Containers that could not be decoded (columns address, absent).
    """
    absent = found.filter(pc.is_in(found.column("address"), failed.column("address").filter(failed.column("absent"))))
    if roots.contents is None or not absent.num_rows:
        return pa.array([], pa.string())
    contents = read_parts(roots.files, list(roots.contents), LIVE_CONTENTS.schema, ["metadata_location", "at_head"])
    heads = contents.column("metadata_location").filter(contents.column("at_head"))
    older = absent.filter(pc.invert(pc.is_in(absent.column("address"), heads)))
    purged: set[tuple[str, str]] = set()
    for storage, paths in logs.items():
        keys = pc.unique(older.column("key").filter(pc.equal(older.column("storage"), storage)))
        is_purged = pc.field("key").isin(keys) & (pc.field("outcome") == "done") & (pc.field("phase") == "purge")
        for path in paths if len(keys) else ():
            with read_errors(f"{roots.files.root}/{path}"):
                rows = read_filtered(roots.files.read(path), ["key"], is_purged)
            purged |= {(storage, key) for key in rows.column("key").to_pylist()}
    rows = older.select(["address", "storage", "key"]).to_pylist()
    return pa.array([row["address"] for row in rows if (row["storage"], row["key"]) in purged], pa.string())


def mark_optional(rows: pa.Table, addresses: pa.Array) -> pa.Table:
    """Set `must_exist` to false in the rows with the given addresses."""
    must = pc.and_(rows.column("must_exist"), pc.invert(pc.is_in(rows.column("address"), addresses)))
    return replace_columns(rows, {"must_exist": must})


def find_unlisted_snapshots(roots: RootTables, edges: Sequence[str], skipped: pa.ChunkedArray) -> dict[str, str]:
    """Return messages about metadata files that do not list the snapshot of a live content.

    The contents of such a metadata file are unreadable, because the live set lacks the snapshot's
    files. The messages are keyed by the file's address.

    Args:
        edges: Parts with the edges between containers (`EDGES` columns).
        skipped: Addresses of metadata files that are not checked, because they were not decoded.
    """
    if roots.contents is None:
        return {}
    contents = read_parts(roots.files, list(roots.contents), LIVE_CONTENTS.schema)
    is_skipped = pc.is_in(contents.column("metadata_location"), skipped)
    at_snapshot = contents.filter(pc.and_not(pc.is_valid(contents.column("snapshot_id")), is_skipped))
    locations, named = at_snapshot.column("metadata_location").combine_chunks(), [EDGES.empty_table().select(["container", "snapshot_id"])]
    for path in edges:
        rows = read_parts(roots.files, [path], EDGES, ["container", "snapshot_id"])
        named.append(rows.filter(pc.is_in(rows.column("container"), locations)))
    listed = pc.binary_join_element_wise(*pa.concat_tables(named).itercolumns(), "\x1f")
    needed = pc.binary_join_element_wise(at_snapshot.column("metadata_location"), at_snapshot.column("snapshot_id"), "\x1f")
    found: dict[str, str] = {}
    for row in at_snapshot.filter(pc.invert(pc.is_in(needed, listed))).to_pylist():
        reason = (
            f"in commit {row['commit_id']}, {row['content_key']} is at snapshot {row['snapshot_id']}, which is not among the retained "
            f"snapshots of its metadata file {row['metadata_location']}. If the file lists the snapshot, set `keep_listed_snapshots: all`. "
            "Otherwise commit the table again, or drop it, and wait until this commit expires"
        )
        found.setdefault(row["metadata_location"], reason)
    return found


def build_claims(locations: pa.Table, unlisted: pa.Table) -> pa.Table:
    """Build the distinct claims of table locations in containers.

    Args:
        locations: Table locations and UUIDs (`LOCATIONS` columns). A table claims its location.
        unlisted: Locations of contents whose files gc-assets cannot list. They become shields, so
            that no file under them is collected.

    Returns:
        Rows with the `CLAIMS` columns.
    """
    prefixes = locations.filter(pc.equal(locations.column("kind"), Kind.TABLE_LOCATION))
    uuids = locations.filter(pc.equal(locations.column("kind"), Kind.TABLE_UUID))
    tables = uuids.column("address").take(pc.index_in(prefixes.column("container"), uuids.column("container")))
    named = prefixes.select(["address", "storage", "key"]).append_column("location_of", tables)
    own, shields = (
        rows.group_by(rows.column_names, use_threads=False).aggregate([]).to_pylist()
        for rows in (named, unlisted.select(["address", "storage", "key"]))
    )
    claims = [{**row, "collect": True} for row in own] + [{**row, "collect": False} for row in shields]
    return pa.Table.from_pylist(claims, schema=CLAIMS)


def describe_losses(lake_name: str, lost: pa.Table, unlisted: pa.Table) -> Iterator[str]:
    """Yield notes about history whose metadata is missing, and about locations that are kept."""
    if lost.num_rows:
        example = lost.column("address")[0].as_py()
        yield (
            f"lake {lake_name}: {lost.num_rows:,} metadata objects of older history are missing (for example {example}). This "
            "history can no longer be read, but the heads can"
        )
    for row in unlisted.group_by(["address", "storage"], use_threads=False).aggregate([("commit_id", "min")]).to_pylist():
        content = "the files of a content in it cannot be listed"
        if row["storage"] is not None:
            yield f"lake {lake_name}: all files under {row['address']} are kept, because {content}"
        else:
            yield (
                f"lake {lake_name}: commit {row['commit_id_min']} references {row['address']}, which is outside all storages or cannot be "
                f"resolved. No files are kept for it, although {content}"
            )


def describe_missing_expired(lake_name: str, found: pa.Table, failed: pa.Table) -> Iterator[str]:
    """Yield a note about missing metadata of snapshots that the retention policy expires.

    Args:
        found: All containers that the walk found (`ROOTS` columns).
        failed: Containers that could not be decoded (columns address, absent).
    """
    absent = pc.is_in(found.column("address"), failed.column("address").filter(failed.column("absent")))
    missing = found.filter(pc.and_(absent, pc.equal(found.column("rank"), HELD)))
    if missing.num_rows:
        row = missing.slice(0, 1).to_pylist()[0]
        yield (
            f"lake {lake_name}: {missing.num_rows:,} metadata objects of snapshots that the policy expires are missing (for example "
            f"{row['kind']} {row['address']} of snapshot {row['commit_id']}). Files that only "
            "these snapshots reference are treated as unreferenced"
        )


def describe_unread_expired(lake_name: str, found: pa.Table, failed: pa.Table) -> Iterator[str]:
    """Yield a note about unreadable metadata that only expired history references.

    Args:
        found: Containers of the walk (`ROOTS` columns).
        failed: Containers that could not be decoded (columns address, error, absent).
    """
    errors = {row["address"]: row["error"] for row in failed.filter(pc.invert(failed.column("absent"))).to_pylist()}
    is_unread = pc.is_in(found.column("address"), pa.array(list(errors), pa.string()))
    unread = found.filter(pc.and_(is_unread, pc.equal(found.column("rank"), RELEASED)))
    if unread.num_rows:
        row = unread.slice(0, 1).to_pylist()[0]
        yield (
            f"lake {lake_name}: {unread.num_rows:,} metadata objects of expired history cannot be read (for example of commit "
            f"{row['commit_id']}: {errors[row['address']]}). Files that only this history references are treated as unreferenced"
        )
