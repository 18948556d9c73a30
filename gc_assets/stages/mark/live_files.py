"""Publishes the live set of a lake: every file below its retained commits, each with a witness.

What only the other commits name is written beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from gc_assets.core.errors import FormatError, LakeUnreadable, StoreError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.plan import Unreadable
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import (
    merge_written,
    publish,
    read_rows,
    report_parts,
    write_parts,
)
from gc_assets.engine.tasks import run_single_task
from gc_assets.lakes.file_kinds import ROOT_KINDS, Kind
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS
from gc_assets.stages.mark.content_roots import (
    HELD,
    RELEASED,
    SPARED,
    RootTables,
    closure,
    find_root_inputs,
    open_root_tables,
    read_content_roots,
)
from gc_assets.stages.mark.edges import read_edges
from gc_assets.stages.mark.incremental import (
    Baseline,
    BaselineInvalid,
    FullRecompute,
    PreviousNeeds,
    build_needs,
    find_baseline,
    fingerprint,
    full_recompute_reason,
    segments_digest,
    segments_with_rows,
)
from gc_assets.stages.mark.last_known import WHOLE_LAKE, LastKnown, as_optional_live, find_last_known, unreadable_root_rows
from gc_assets.stages.mark.live_contents import build_claims, describe_losses, find_purged, mark_optional, refuse_unlisted_snapshots
from gc_assets.stages.mark.manifest_entries import count_file_rows, count_segment_rows, find_segments, length_identity
from gc_assets.stages.mark.witnesses import ALL_ROWS_REUSABLE, LiveRowWriter
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import COMMIT_GRAPH, DELETION_LOG, LAKE_REFS, LIVE_FILES, MANIFEST_ENTRIES, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import (
    CLAIMS,
    CLAIMS_SIDE,
    CONTAINERS,
    CONTAINERS_SIDE,
    DANGLING_SIDE,
    DIRECT_FILES,
    DIRECT_FILES_SIDE,
    EDGES_SIDE,
    EXPIRED_SIDE,
    EXTERNAL_SIDE,
    LIFECYCLE_SIDE,
    LOCATIONS,
    LOCATIONS_SIDE,
    METADATA,
    METADATA_SIDE,
    NEEDS_SIDE,
    OPTIONAL_SIDE,
    PUBLISHED_SIDES,
    ROOTS,
    ROUTED_SIDES,
    UNKNOWN_SIDE,
    UNREADABLE_CONTAINERS,
    UNREADABLE_CONTAINERS_SIDE,
    UNREADABLE_ROOTS,
    UNREADABLE_ROOTS_SIDE,
    WITNESSES,
    WITNESSES_SIDE,
)
from gc_assets.state.summaries import CommitGraphSummary, LakeRefsSummary, LiveFilesSummary, ReachableSnapshotsSummary, UnreadTable

# No two witnesses that differ are equal in these. Where one names a file as several kinds, each kind
# has a number of its own.
_ORDER: Final = ("rank", "commit_id", "table_uuid", "container", "expands", "must_exist", "kind")
SEVERAL: Final = "\x1f"


@log_progress(LIVE_FILES)
def live_files(spark: SparkSession, context: RunContext, lake_name: str) -> PublishedTable:
    """Publishes `live_files` of a run date.

    Side tables hold the files that only expired or only dangling commits name, those that lifecycle
    rules release, and external addresses.

    A table whose containers could not be decoded, where retained commits or history that is yet to
    be edited need them, is sick. So is one that could not be read at all. All that such a table
    needs by tonight's word, and all that it needed when it was last read in full, is live; its
    claims become shields. The facts name it, also where no night ever read it: the plan then stops
    the storages concerned. Raises `LakeUnreadable` where no earlier night read the lake, because
    then the live set would be too small.

    Rows that nothing touched since an earlier night are carried over from it (`carried`).
    """
    cache = find_segments(context, lake_name)
    lifecycle = find_lifecycle_objects(context, lake_name)
    base = find_baseline(context, lake_name, cache, lifecycle)
    try:
        return _published(spark, context, lake_name, cache, lifecycle, base)
    except BaselineInvalid as doubt:
        uncompared = base.summary.uncompared_runs + 1 if isinstance(base, Baseline) else base.uncompared_runs
        return _published(spark, context, lake_name, cache, lifecycle, FullRecompute(str(doubt), uncompared_runs=uncompared))


def _published(
    spark: SparkSession,
    context: RunContext,
    lake_name: str,
    cache: list[PastRun],
    lifecycle: PublishedTable | None,
    base: Baseline | FullRecompute,
) -> PublishedTable:
    """Publishes the table. Raises `BaselineInvalid` where the base turns out to be none; nothing is left."""
    state = context.state
    inputs = find_root_inputs(context, lake_name)
    frozen = inputs[LAKE_REFS.name].summary(LakeRefsSummary)
    has_unread = bool(_unread_tables(inputs))
    memory = find_last_known(context, lake_name, frozen.frozen_at) if has_unread else None
    entries = context.table(MANIFEST_ENTRIES, lake_name)
    there = state.pieces(cache)
    run = start_run(context, context.group(lake_name), LIVE_FILES)
    cached = count_file_rows(cache)
    before = None
    if isinstance(base, Baseline) and not has_unread:
        before = PreviousNeeds.of(base, state.paths(base.came, CONTAINERS_SIDE), context.config.full_every, cached)
    close = LiveWalk(
        lake_name,
        open_root_tables(context, lake_name, inputs),
        tuple(there.paths(EDGES_SIDE)),
        tuple(there.paths(CONTAINERS_SIDE)),
        tuple(entries.paths(UNREADABLE_CONTAINERS_SIDE)),
        tuple(there.paths(LOCATIONS_SIDE)),
        _logs(context),
        run,
        tuple(inputs[LAKE_REFS.name].paths(CLAIMS_SIDE)),
        memory,
        _unread(lake_name, inputs, memory),
        before,
    )
    log_activity(f"following what the commits need through {len(cache):,} segments of decoded containers")
    sides = (EDGES_SIDE, CONTAINERS_SIDE, LOCATIONS_SIDE)
    read = sum(table.rows for table in inputs.values()) + sum(count_segment_rows(cache, side) for side in sides)
    paths = len(close.edges) + len(close.containers) + len(close.places)
    try:
        closed = merge_written(run_single_task(spark, close, read, paths))
    except LakeUnreadable:
        # Where all is well nobody needs to know what the last night knew.
        memory = find_last_known(context, lake_name, frozen.frozen_at) if not has_unread else None
        if memory is None:
            raise
        closed = merge_written(run_single_task(spark, replace(close, memory=memory), read, paths))
    kept_sides = {side: closed.side.pop(side) for side in PUBLISHED_SIDES if side in closed.side}
    unreadable = _unreadable(context, lake_name, inputs[LAKE_REFS.name], memory, closed.summary["sick"])
    known = cached + sum(part.rows for parts in closed.side.values() for part in parts)
    known += lifecycle.rows if lifecycle is not None else 0
    full = full_recompute_reason(base, closed.summary, context.config.full_every, unreadable=bool(unreadable), entries=cached)
    source = LiveRowWriter(spark, context, lake_name, run, there, closed, None if unreadable else lifecycle, known)
    try:
        made = source.made(base, full)
    except BaselineInvalid:
        state.files.delete_directory(run.path)
        raise
    for side in closed.side:
        state.files.delete_directory(f"{run.path}/{side}")
    written = replace(made.written, side={**made.written.side, **kept_sides})
    aside = {side: sum(part.rows for part in written.side.get(side, ())) for side in ROUTED_SIDES}
    summary = LiveFilesSummary(
        files=written.rows,
        metadata_by_storage=closed.summary["metadata_by_storage"],
        optional_by_storage=closed.summary["optional_by_storage"],
        notes=(*closed.summary["notes"], *(item.told for item in unreadable), *made.notes),
        live_bytes=sum(amount.bytes for amount in made.by_storage.values()),
        by_kind=made.by_kind,
        by_storage=made.by_storage,
        possible_by_storage=made.possible_by_storage,
        expired_files=aside[EXPIRED_SIDE],
        dangling_files=aside[DANGLING_SIDE],
        lifecycle_files=aside[LIFECYCLE_SIDE],
        external_files=aside[EXTERNAL_SIDE],
        unreadable=unreadable,
        fingerprint=fingerprint(context, lake_name),
        segments=tuple(run.run_id for run in segments_with_rows(cache)),
        segments_digest=segments_digest(cache),
        **made.how,
    )
    balances = [] if made.carried is None else [Balance(name="rows carried over", expected=made.carried.expected, found=made.carried.found)]
    return publish(
        state,
        run,
        written,
        context.clock,
        inputs=[*inputs.values(), entries, *([lifecycle] if lifecycle else [])],
        balances=balances,
        summary=summary,
        unsafe=context.unsafe,
    )


def _unread_tables(inputs: Mapping[str, PublishedTable]) -> list[UnreadTable]:
    graph, reachable = (
        inputs[COMMIT_GRAPH.name].summary(CommitGraphSummary),
        inputs[REACHABLE_SNAPSHOTS.name].summary(ReachableSnapshotsSummary),
    )
    whole = [UnreadTable(table_name=None, why=why) for why in (graph.unread, reachable.unread) if why is not None]
    return [*inputs[LAKE_REFS.name].summary(LakeRefsSummary).unread, *whole]


def _unread(lake_name: str, inputs: Mapping[str, PublishedTable], memory: LastKnown | None) -> dict[str, str]:
    """Returns why tables could not be read at all, by their uuid (`WHOLE`: the lake). Tables that
    no earlier night read are left out.

    Raises `LakeUnreadable` where no earlier night read the lake.
    """
    unread = _unread_tables(inputs)
    if unread and memory is None:
        raise LakeUnreadable(never_read_message(lake_name, unread[0].table_name, unread[0].why))
    found: dict[str, str] = {}
    for item in unread:
        for uuid in [WHOLE_LAKE] if item.table_name is None else memory.uuids.get(item.table_name, []) if memory is not None else []:
            found.setdefault(uuid, item.why)
    return found


def _unreadable(
    context: RunContext, lake_name: str, refs: PublishedTable, memory: LastKnown | None, found: Mapping[str, str]
) -> tuple[Unreadable, ...]:
    """Returns all that is sick: what the walk `found`, and tables that no night ever read."""
    summary = refs.summary(LakeRefsSummary)
    if memory is None:
        return ()
    rows = read_rows(context.state, LAKE_REFS, refs, columns=["table_uuid", "table_name"]).to_pylist()
    names = {row["table_uuid"]: row["table_name"] for row in rows if row["table_uuid"] is not None}
    places: dict[str, list[str]] = {}
    for row in read_parts(context.state.files, refs.paths(CLAIMS_SIDE), CLAIMS).to_pylist():
        if row["table_uuid"] is not None and row["storage"] is not None:
            places.setdefault(row["table_uuid"], []).append(row["storage"])
    before = {item.table_name: item for item in memory.unreadable if item.good_on is None}
    resolver = context.resolver()
    unknown: list[Unreadable] = []
    for item in summary.unread:
        if item.table_name is None or item.table_name in memory.uuids:
            continue
        place = _place(resolver, item.address)
        since = before[item.table_name].since if item.table_name in before else summary.frozen_at
        storages = () if place is None else (place[0],)
        unknown.append(Unreadable(lake=lake_name, table_name=item.table_name, why=item.why, since=since, storages=storages))
    return (*memory.list_unreadable(found, names, places, lake_name, summary.frozen_at), *unknown)


def _place(resolver: KeyResolver, address: str | None) -> tuple[str, str] | None:
    try:
        return resolver.resolve_one(address) if address is not None else None
    except (FormatError, StoreError):
        return None


def _logs(context: RunContext) -> dict[str, tuple[str, ...]]:
    """Returns the parts of `deletion_log` of each storage, of all time."""
    names = [storage.name for storage in context.config.storages]
    return {name: tuple(context.state.paths(context.state.history(name, DELETION_LOG.name))) for name in names}


def find_lifecycle_objects(context: RunContext, lake_name: str) -> PublishedTable | None:
    """Returns `lifecycle_objects` of the run, null for a lake without lifecycle rules."""
    return context.table(LIFECYCLE_OBJECTS, lake_name) if context.config.lake(lake_name).has_lifecycle else None


@dataclass(frozen=True)
class LiveWalk:
    """Walks from content roots to every container, and writes witnesses and directly named files.

    One task, here or in an executor (`run_single_task`).
    """

    lake_name: str
    roots: RootTables
    edges: tuple[str, ...]
    containers: tuple[str, ...]
    unreadable: tuple[str, ...]
    places: tuple[str, ...]
    logs: dict[str, tuple[str, ...]]
    run: TableRun
    claims: tuple[str, ...]
    memory: LastKnown | None
    unread: dict[str, str]
    before: PreviousNeeds | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = self.roots.files
        for _ in batches:
            every_root = read_content_roots(self.roots)
            unlisted = pc.equal(every_root.column("kind"), Kind.UNLISTED_LOCATION)
            listed = every_root.filter(pc.invert(unlisted))
            index, known = self._index()
            roots, unreadable_roots, edges, unreadable = self._rooted(listed, read_edges(files, self.edges), index)
            found = self._without_gone(closure(roots, edges))
            lengths, lost, unknown, _ = self._lengths(index, found)
            refuse_unlisted_snapshots(self.lake_name, self.roots, edges, lost)
            leaves = roots.filter(pc.invert(roots.column("is_container")))
            witnesses, direct, needs = _witnessed(found, lengths, leaves)
            metadata = _identified(_metadata(found, lengths, leaves), index)
            claims = build_claims(read_parts(files, list(self.places), LOCATIONS), every_root.filter(unlisted))
            if self.memory is not None and unreadable:
                shields = self.memory.shields(unreadable, [read_parts(files, list(self.claims), CLAIMS), claims])
                claims = pa.concat_tables([claims, shields])
            sides = {
                WITNESSES_SIDE: witnesses,
                DIRECT_FILES_SIDE: direct,
                METADATA_SIDE: metadata,
                OPTIONAL_SIDE: _optional(leaves),
                CLAIMS_SIDE: claims,
                UNKNOWN_SIDE: unknown,
                UNREADABLE_ROOTS_SIDE: unreadable_roots,
                NEEDS_SIDE: needs,
            }
            changed, told = ({}, {}) if self.before is None or unreadable else self.before.compare(files, needs, index, known, edges)
            sides |= changed
            if told and self.before is not None and self.before.is_all(told):
                del sides[WITNESSES_SIDE], sides[DIRECT_FILES_SIDE]
                told[ALL_ROWS_REUSABLE] = True
            parts = [part for side, rows in sides.items() for part in write_parts(rows, self.run, files, side)]
            notes = list(describe_losses(self.lake_name, lost, every_root.filter(unlisted)))
            counts = {"metadata_by_storage": _count_by_storage(metadata), "optional_by_storage": _count_by_storage(sides[OPTIONAL_SIDE])}
            yield report_parts(parts, summary={**counts, **told, "notes": notes, "sick": unreadable})

    def _index(self) -> tuple[pa.Table, pa.ChunkedArray]:
        """Returns the decoded containers, and those of segments that the base knew."""
        columns = ["container", "container_size_bytes", "etag", "digest", "entries"]
        new = self.before.came if self.before is not None else frozenset[str]()
        earlier = read_parts(self.roots.files, [path for path in self.containers if path not in new], CONTAINERS, columns)
        came = read_parts(self.roots.files, [path for path in self.containers if path in new], CONTAINERS, columns)
        return pa.concat_tables([earlier, came]), earlier.column("container")

    def _rooted(self, roots: pa.Table, edges: pa.Table, index: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table, dict[str, str]]:
        """Returns all roots with what sick tables need or needed, the latter alone (columns
        `UNREADABLE_ROOTS`), the edges, and why which table is sick, by its key.

        A container that several tables share names one of them, so the rest is looked at anew
        without that table, until nothing that is needed is broken.
        """
        unreadable = dict(self.unread)
        while True:
            well = roots.filter(pc.invert(_is_of(roots, unreadable)))
            found = closure(well, edges)
            collected = find_purged(self.roots, self.logs, found, self._failed())
            if len(collected):
                roots, edges = (mark_optional(rows, collected) for rows in (roots, edges))
                found = closure(roots.filter(pc.invert(_is_of(roots, unreadable))), edges)
            broken = self._lengths(index, found)[3]
            if not broken.num_rows:
                break
            errors = {row["address"]: row["error"] for row in self._failed().to_pylist()}
            if self.memory is None:
                raise LakeUnreadable(_explain(self.lake_name, broken, errors))
            for row in broken.to_pylist():
                key = row["table_uuid"] or WHOLE_LAKE
                unreadable.setdefault(key, errors.get(row["address"], f"{row['kind']} {row['address']} was never decoded"))
        if self.memory is None or not unreadable:
            return roots, UNREADABLE_ROOTS.empty_table(), edges, unreadable
        remembered = self.memory.roots_of(unreadable)
        self._require_decoded(closure(remembered.filter(remembered.column("in_full")).select(ROOTS.names), edges), index)
        is_mine = pc.and_(_is_of(roots, unreadable), pc.less_equal(roots.column("rank"), HELD))
        of_unreadable = pa.concat_tables([remembered, unreadable_root_rows(roots.filter(is_mine), in_full=False)])
        return (
            pa.concat_tables([roots.filter(pc.invert(is_mine)), as_optional_live(of_unreadable.select(ROOTS.names))]),
            of_unreadable,
            edges,
            unreadable,
        )

    def _require_decoded(self, remembered: pa.Table, index: pa.Table) -> None:
        """Raises `LakeUnreadable` where nobody knows any more what a sick table needed: this
        release, or these storages, never read it.
        """
        failed = self._failed()
        absent = pc.is_in(remembered.column("address"), failed.column("address").filter(failed.column("absent")))
        optional = pc.or_(pc.equal(remembered.column("rank"), SPARED), pc.invert(remembered.column("must_exist")))
        lacking = pc.invert(pc.is_in(remembered.column("address"), index.column("container")))
        needed = remembered.filter(pc.and_not(lacking, pc.and_(absent, optional)))
        if needed.num_rows:
            errors = {row["address"]: row["error"] for row in failed.to_pylist()}
            raise LakeUnreadable(_explain(self.lake_name, needed, errors))

    def _lengths(self, index: pa.Table, found: pa.Table) -> tuple[pa.ChunkedArray, pa.Table, pa.Table, pa.Table]:
        """Returns four things about the containers of `found`, by the decoded ones in `index`: the
        decoded length of each, the rows of those that live contents show and that are gone, those
        that are gone and were never decoded (columns `METADATA`), and those that must be kept and
        were not decoded.

        The length is null for a container that could not be read and that only freed commits need,
        and for one that is gone and need not exist. Where the parent tells a length, only an object
        of that length counts: Icechunk's expiry writes a snapshot anew under its name.

        A snapshot that no ref reaches and whose metadata is gone cannot be read by anyone
        (icechunk.md 5, H12). What is left of it is kept while it is young, and it stops no plan.

        What could not be read tonight is undecoded, even if an earlier object of that name was once
        decoded.
        """
        longest = index.group_by("container").aggregate([("container_size_bytes", "max")])
        told = found.column("size_bytes")
        any_length = longest.column("container_size_bytes_max").take(pc.index_in(found.column("address"), longest.column("container")))
        as_told = pc.is_in(length_identity(found, "address", "size_bytes"), length_identity(index, "container", "container_size_bytes"))
        lengths = pc.if_else(pc.is_null(told), any_length, pc.if_else(as_told, told, pa.scalar(None, pa.int64())))
        failed = self._failed()
        lost = pc.or_(pc.is_null(lengths), pc.is_in(found.column("address"), failed.column("address")))
        absent = pc.is_in(found.column("address"), failed.column("address").filter(failed.column("absent")))
        optional = pc.or_(pc.equal(found.column("rank"), SPARED), pc.invert(found.column("must_exist")))
        wanted = pc.and_(lost, pc.less(found.column("rank"), RELEASED))
        needed = found.filter(pc.and_not(wanted, pc.and_(absent, optional)))
        gone = found.filter(wanted) if self.roots.contents is not None else found.slice(0, 0)
        unknown = found.append_column("container_size_bytes", any_length).filter(pc.and_(wanted, pc.is_null(any_length)))
        return pc.if_else(lost, pa.scalar(None, pa.int64()), lengths), gone, _as_metadata(unknown), needed

    def _without_gone(self, found: pa.Table) -> pa.Table:
        """Returns the containers with `must_exist` false where no ref reaches them and they are
        gone: the libraries' own collectors leave such husks, and nobody can read them.
        """
        failed = self._failed()
        absent = pc.is_in(found.column("address"), failed.column("address").filter(failed.column("absent")))
        gone = found.column("address").filter(pc.and_(absent, pc.equal(found.column("rank"), SPARED)))
        return mark_optional(found, gone.combine_chunks())

    def _failed(self) -> pa.Table:
        return read_parts(self.roots.files, list(self.unreadable), UNREADABLE_CONTAINERS, ["address", "error", "absent"])


def _is_of(roots: pa.Table, unreadable: Collection[str]) -> pa.ChunkedArray:
    """Marks the roots of these tables (`WHOLE`: all)."""
    if WHOLE_LAKE in unreadable:
        return pa.chunked_array([pa.array(np.ones(roots.num_rows, bool))])
    return pc.is_in(roots.column("table_uuid"), pa.array(sorted(unreadable), pa.string()))


def never_read_message(lake_name: str, table_name: str | None, why: str) -> str:
    """Says that nothing stands in for what could not be read."""
    what = f"table {table_name}" if table_name is not None else "the repository"
    return f"{why}\n  lake {lake_name}: no earlier night read {what} in full, so nobody knows what it needs, and there is no plan"


def _witnessed(found: pa.Table, lengths: pa.ChunkedArray, leaves: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Returns the witnesses in order of strength, the files that commits and containers are or name
    themselves, and both in one table without numbers (columns `NEEDS`).
    """
    count = found.num_rows
    direct = pa.concat_tables([found, leaves])
    who = ["rank", "commit_id", "table_uuid", "must_exist", "kind"]
    own = direct.select(who).append_column("container", direct.column("parent"))
    below = found.select(who).append_column("container", found.column("address"))
    everyone = pa.concat_tables([own, below]).append_column("expands", pa.array([False] * direct.num_rows + [True] * count))
    order = pc.sort_indices(everyone, sort_keys=[(name, "ascending") for name in _ORDER])
    numbers = np.empty(everyone.num_rows, np.int64)
    numbers[order.to_numpy()] = np.arange(everyone.num_rows)
    columns = {"must_exist": "container_must_exist"}
    everyone = everyone.rename_columns([columns.get(name, name) for name in everyone.column_names])
    witnesses = everyone.append_column("witness", pa.array(numbers)).select(WITNESSES.names).cast(WITNESSES)
    decoded = pa.chunked_array([*lengths.chunks, pa.nulls(leaves.num_rows, pa.int64())], pa.int64())
    files = direct.append_column("witness", pa.array(numbers[: direct.num_rows])).append_column("container_size_bytes", decoded)
    return witnesses, files.select(DIRECT_FILES.names).cast(DIRECT_FILES), build_needs(direct, np.arange(direct.num_rows) < count, decoded)


def _metadata(found: pa.Table, lengths: pa.ChunkedArray, leaves: pa.Table) -> pa.Table:
    """Returns the live metadata objects that must exist (columns `METADATA`).

    They are decoded containers and files of the present state.
    """
    containers = found.append_column("container_size_bytes", lengths).filter(pc.is_valid(lengths))
    present = leaves.filter(pc.is_null(leaves.column("commit_id")))
    rows = pa.concat_tables([containers, present.append_column("container_size_bytes", pa.nulls(present.num_rows, pa.int64()))])
    wanted = pc.and_(pc.less_equal(rows.column("rank"), SPARED), pc.and_(rows.column("must_exist"), pc.is_valid(rows.column("storage"))))
    return _as_metadata(rows.filter(wanted))


def _optional(leaves: pa.Table) -> pa.Table:
    """Returns the live files that reading starts from and that may be absent, each once (columns
    `METADATA`).

    Nothing else asks for them.
    """
    optional = pc.and_(pc.is_in(leaves.column("kind"), pa.array(ROOT_KINDS)), pc.invert(leaves.column("must_exist")))
    live = pc.and_(pc.less_equal(leaves.column("rank"), SPARED), pc.is_valid(leaves.column("storage")))
    mine = leaves.filter(pc.and_(optional, live))
    rows = mine.group_by(["storage", "key"]).aggregate([("kind", "min")]).rename_columns(["storage", "key", "kind"])
    return _as_metadata(rows)


def _as_metadata(rows: pa.Table) -> pa.Table:
    there = {name: rows.column(name) for name in rows.column_names}
    return pa.table({field.name: there.get(field.name, pa.nulls(rows.num_rows, field.type)) for field in METADATA}).cast(METADATA)


def _identified(metadata: pa.Table, index: pa.Table) -> pa.Table:
    """Returns the rows with the identities and digests of the objects of that length that were
    decoded.
    """
    by = index.group_by(["container", "container_size_bytes"]).aggregate([("etag", "distinct"), ("digest", "distinct")])
    at = pc.index_in(length_identity(metadata, "address", "container_size_bytes"), length_identity(by, "container", "container_size_bytes"))
    for name in ("etag", "digest"):
        joined = pc.binary_join(by.column(f"{name}_distinct"), SEVERAL).take(at)
        metadata = metadata.set_column(METADATA.get_field_index(name), METADATA.field(name), joined)
    return metadata


def _count_by_storage(rows: pa.Table) -> dict[str, int]:
    counts = rows.group_by("storage").aggregate([([], "count_all")]).to_pylist()
    return {row["storage"]: row["count_all"] for row in counts}


def _explain(lake_name: str, needed: pa.Table, errors: dict[str, str]) -> str:
    named = needed.slice(0, 5).to_pylist()
    lines = [
        f"  {errors.get(row['address'], row['kind'] + ' ' + row['address'] + ' was never decoded')} (needed by commit {row['commit_id']})"
        for row in named
    ]
    more = [f"  and {needed.num_rows - len(named):,} more"] if needed.num_rows > len(named) else []
    return "\n".join(
        [
            f"lake {lake_name}: {needed.num_rows:,} metadata objects of commits that must be kept cannot be read, so there is no plan:",
            *lines,
            *more,
            "  Bring them back (`gc-assets restore --key KEY` if they are in quarantine, else from a backup), then run again.",
        ]
    )
