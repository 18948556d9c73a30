"""Finds the claimed files that no live set holds.

The live filter answers first. What it does not hold is compared with the live keys themselves: one
candidate that equals a live key stops the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.claims import Owner
from gc_assets.core.gates import MAX_UNLISTED
from gc_assets.core.plan import Amount, Unreadable
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session
from gc_assets.engine.tables import (
    MAX_SAMPLES,
    PARTS_DDL,
    ROUTE,
    Totals,
    WrittenParts,
    collect,
    frame_from_arrow,
    merge_written,
    publish,
    read_paths,
    read_rows,
    read_table,
    run_in_process,
    side_paths,
    write_frame,
    write_parts,
    write_rows,
)
from gc_assets.engine.tasks import fits_in_process
from gc_assets.lakes.kinds import KINDS
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS
from gc_assets.stages.mark.live_files import find_lifecycle_objects
from gc_assets.stages.records.ledger import LogReader, quarantine_ledger
from gc_assets.stages.records.purged_by_rule import purged_by_rule
from gc_assets.stages.sweep.ages import Ages
from gc_assets.stages.sweep.claims import claims_of, notes_on_claims, prefixes_of
from gc_assets.stages.sweep.exact_comparison import find_hits, may_hit
from gc_assets.stages.sweep.foreign_metadata import suspect_pattern
from gc_assets.stages.sweep.live_filter import ProbeFilter, live_count, live_keys, live_rows, live_tables
from gc_assets.stages.sweep.probe import CANDIDATE, LIVE, ListedFiles, Probe
from gc_assets.stages.sweep.sweep_checks import (
    MAX_NAMED,
    REREAD,
    Missing,
    behind_links,
    find_foreign_metadata,
    find_unlisted,
    has_links,
    missing_metadata,
    rewritten_metadata,
)
from gc_assets.state.arrow_types import STRING
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, State, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES, LIVE_FILTER, ORPHAN_FILES, STORAGE_INVENTORY
from gc_assets.state.side_tables import (
    CANDIDATES,
    CANDIDATES_SIDE,
    DEFERRED_SIDE,
    EXPIRED_SIDE,
    FALSE_NEGATIVES_SIDE,
    LIFECYCLE_SIDE,
    METADATA_SIDE,
    NAMED_TWICE_SIDE,
    NEAR_MISSES_SIDE,
    OPTIONAL_SIDE,
    RELEASED_SIDES,
    REWRITTEN,
    REWRITTEN_SIDE,
    STOPPED_SIDES,
    SUSPECTS_SIDE,
)
from gc_assets.state.summaries import LakeRefsSummary, LiveFilesSummary, OrphanFilesSummary, StorageInventorySummary

_NAMED: Final = [("strength", pa.int32()), *((name, STRING) for name in ("commit_id", "container", "kind", "lake", "table_uuid"))]
WITNESSED: Final = pa.schema([("key", STRING), ("w", pa.struct(_NAMED))])
DANGLING_COMMITS: Final = pa.schema([("key", STRING), ("dangling_commits", pa.int64())])
# Several lakes may name a released file. The lowest number wins: a lake whose history must let go
# of it first, one that has let go, one whose owner's rules release it, one that only mentions it.
HELD, RELEASED, LIFECYCLE, MENTIONED = 0, 1, 2, 3


def grace_cutoff(context: RunContext, storage_name: str, refs: list[PublishedTable]) -> datetime:
    """Returns the time from which on no file is a candidate.

    It lies the grace period before the first ref of any lake was read.
    """
    first = min(table.summary(LakeRefsSummary).frozen_at for table in refs)
    return first - context.storage(storage_name).grace


def candidate_cutoff(context: RunContext, storage_name: str, cutoff: datetime, report_as_of: datetime | None) -> datetime:
    """Returns the grace cut-off, or where a report took the place of a listing the time that lies
    the grace period before its scan, if that is earlier.
    """
    return cutoff if report_as_of is None else min(cutoff, report_as_of - context.storage(storage_name).grace)


@log_progress(ORPHAN_FILES)
def orphan_files(spark: SparkSession, context: RunContext, storage_name: str) -> PublishedTable:
    """Publishes `orphan_files` of a run date, with the evidence that the gates need.

    The receipt's facts keep counts and samples: files and bytes by class, near misses, false
    negatives, missing metadata. The plan decides whether they stop it.
    """
    state = context.state
    inventory = context.table(STORAGE_INVENTORY, storage_name)
    bloom = context.table(LIVE_FILTER, storage_name)
    live, refs = live_tables(context), [context.table(LAKE_REFS, lake.name) for lake in context.config.lakes]
    cutoff = grace_cutoff(context, storage_name, refs)
    old_before = candidate_cutoff(context, storage_name, cutoff, inventory.summary(StorageInventorySummary).report_as_of)
    lister = context.lister(storage_name)
    run = start_run(context, storage_name, ORPHAN_FILES)

    claims = claims_of(context, storage_name, [*refs, *live])
    probe = Probe(
        ProbeFilter(state.files, tuple(bloom.paths())),
        claims,
        ListedFiles(state.files, _paths(live, METADATA_SIDE), storage_name),
        ListedFiles(state.files, _paths(live, OPTIONAL_SIDE), storage_name),
        Ages.of(context, old_before, refs),
        uncollected_metadata(),
        suspect_pattern(),
        state.files,
        run,
    )
    log_activity(f"{inventory.receipt.rows:,} objects against {live_rows(live, storage_name):,} live keys")
    probed = merge_written(_probed(spark, state, inventory, probe))
    candidate_paths = side_paths(run, probed, CANDIDATES_SIDE)
    suspects = sum(part.rows for part in probed.side.get(SUSPECTS_SIDE, ()))
    strangers = find_foreign_metadata(spark, context, storage_name, side_paths(run, probed, SUSPECTS_SIDE), suspects, cutoff)
    linked = behind_links(spark, context, live_keys(spark, context, storage_name, live), inventory) if has_links(inventory) else []
    needed = sum(table.summary(LiveFilesSummary).metadata_by_storage.get(storage_name, 0) for table in live)
    # Metadata that two lakes share is needed twice and listed once. The slow comparison then
    # reports nothing missing.
    missing, reread = list[Missing](), REREAD.empty_table()
    if probed.summary.get("metadata_found", 0) < needed:
        listed = read_table(spark, state, STORAGE_INVENTORY, inventory)
        missing = missing_metadata(live_keys(spark, context, storage_name, live), listed, lister)
        reread = rewritten_metadata(spark, context, storage_name, _paths(live, METADATA_SIDE), listed)
    # The cache knows what these named. But their tables are broken, and wait until somebody mends
    # them. Where all metadata is missing, or very much, the listing is that of another place. What
    # another object of the name names is known to nobody.
    is_another_place = len(missing) >= min(MAX_NAMED, needed)
    lost = [item for item in missing if not item.is_replaced]
    broken = {Owner(item.lake, item.table_uuid): item.name for item in reversed(lost)} if not is_another_place else {}
    withheld = (*prefixes_of(context, storage_name, [*refs, *live], broken), *strangers.held())
    others = reread.filter(pc.invert(reread.column("same"))).to_pylist()
    stopping = [f"{row['kind']} {row['key']}, which was written anew in its place since it was read; run again" for row in others]
    stopping += [item.name for item in missing if is_another_place or item.is_replaced]
    # Some live files may rightly be absent, and two lakes may need one file. So the files are
    # compared one by one only where the difference is large enough to hide a loss.
    optional = sum(table.summary(LiveFilesSummary).optional_by_storage.get(storage_name, 0) for table in live)
    found = probed.totals.get((LIVE,), Totals()).rows - probed.summary.get("side_files", 0)
    found += optional - probed.summary.get("optional_found", 0)
    lacking, lacking_samples = max(0, live_rows(live, storage_name) - found), list[str]()
    if lacking > MAX_UNLISTED * live_count(live, storage_name).files:
        session = choose_session(spark, *_size_of_all(state, inventory, live))
        keys, listed = live_keys(session, context, storage_name, live), read_table(session, state, STORAGE_INVENTORY, inventory)
        gone = purged_by_rule(session, context, storage_name)
        waiting = quarantine_ledger(session, state, storage_name, rehearsal=context.clock.is_rehearsal)
        lacking, lacking_samples = find_unlisted(_of_others(keys, broken), listed, waiting, gone, lister)
    judged = sum(part.rows for part in probed.side.get(CANDIDATES_SIDE, ()))
    log_activity(f"{judged:,} candidates against the live keys themselves")
    written = write_rows(ORPHAN_FILES.schema.empty_table(), ORPHAN_FILES, run, state.files)
    if judged:
        frame = _orphans(choose_session(spark, *_size(context, judged, live)), context, storage_name, candidate_paths, live)
        if withheld:
            frame = _without(frame, withheld)
        if _may_repeat(state.files, candidate_paths, judged):
            frame = _once(frame)
        written = write_frame(frame, ORPHAN_FILES, run, state, ["reason", "lake"], STOPPED_SIDES)
    again = tuple(write_parts(reread.select(REWRITTEN.names), run, state.files, REWRITTEN_SIDE)) if reread.num_rows else ()
    written = replace(written, side={**written.side, REWRITTEN_SIDE: again}) if again else written
    for side in probed.side:
        state.files.delete_directory(f"{run.path}/{side}")
    storage_breakdown = {key[0]: value for key, value in probed.totals.items()}
    stopped = {side: sum(part.rows for part in written.side.get(side, ())) for side in STOPPED_SIDES}
    summary = OrphanFilesSummary(
        grace_cutoff=old_before,
        historical=any(table.summary(LakeRefsSummary).historical for table in refs),
        storage_breakdown={name: total.amount for name, total in sorted(storage_breakdown.items())},
        by_reason={f"{reason}/{lake}": total.amount for (reason, lake), total in sorted(written.totals.items())},
        # Ranges and metaranges that no retained commit needs. Nobody deletes them, so they are at
        # least counted.
        unneeded_metadata=Amount(files=probed.summary.get("unneeded_files", 0), bytes=probed.summary.get("unneeded_bytes", 0)),
        live_keys=live_count(live, storage_name).files,
        rewritten=reread.num_rows,
        missing_metadata=tuple(stopping[:MAX_SAMPLES]),
        missing_metadata_count=len(stopping),
        unreadable=_unreadable(context, storage_name, refs, broken),
        live_unlisted=tuple(lacking_samples),
        live_unlisted_count=lacking,
        foreign_metadata=tuple(strangers.known[:MAX_SAMPLES]),
        foreign_metadata_count=len(strangers.known),
        junk=tuple(f"{key}: {why}" for key, why in strangers.junk.items())[:MAX_SAMPLES],
        junk_count=len(strangers.junk),
        behind_links=tuple(linked[:MAX_SAMPLES]),
        behind_links_count=len(linked),
        false_negatives=stopped[FALSE_NEGATIVES_SIDE],
        near_misses=stopped[NEAR_MISSES_SIDE],
        named_twice=stopped[NAMED_TWICE_SIDE],
        stopped_samples=tuple(_samples(context, run, written)),
        problems=inventory.summary(StorageInventorySummary).problems,
        notes=tuple(notes_on_claims(context, storage_name, claims)),
    )
    return publish(
        state,
        run,
        written,
        context.clock,
        inputs=[inventory, bloom, *live, *refs],
        balances=[
            Balance(name="inventory rows probed", expected=inventory.receipt.rows, found=sum(total.rows for total in storage_breakdown.values())),
            Balance(name="candidates judged", expected=storage_breakdown.get(CANDIDATE, Totals()).rows, found=written.rows + sum(stopped.values())),
        ],
        summary=summary,
        unsafe=context.unsafe,
    )


def _probed(spark: SparkSession, state: State, inventory: PublishedTable, probe: Probe) -> Sequence[Any]:
    """Returns what the probe reports of all listed objects (rows of `PARTS_DDL`)."""
    sizes = tuple(part.size_bytes for part in inventory.parts())
    listed = ParquetScan(state.files, STORAGE_INVENTORY.schema, tuple(inventory.paths()), sizes)
    if fits_in_process(inventory.rows, len(listed.paths)):
        return run_in_process(probe, listed.read_batches())
    return collect(listed.map_arrow(spark, probe, PARTS_DDL))


def _size_of_all(state: State, inventory: PublishedTable, live: Sequence[PublishedTable]) -> tuple[int, int]:
    """Returns how many rows, in how many files, tell which live file is nowhere."""
    parts, words = [*inventory.parts(), *(part for table in live for part in table.parts())], LogReader.of(state, inventory.receipt.owner)
    return sum(part.rows for part in parts) + words.rows, len(parts) + words.pieces


def _size(context: RunContext, candidates: int, live: Sequence[PublishedTable]) -> tuple[int, int]:
    """Returns how many rows, in how many files, tell the reasons of so many candidates."""
    released = [find_lifecycle_objects(context, lake.name) for lake in context.config.lakes]
    parts = [part for table in live for side in (None, *RELEASED_SIDES) for part in table.parts(side)]
    parts += [part for table in released if table is not None for part in table.parts()]
    return candidates + sum(part.rows for part in parts), len(parts)


def _unreadable(context: RunContext, storage_name: str, refs: list[PublishedTable], broken: Mapping[Owner, str]) -> tuple[Unreadable, ...]:
    """Returns the tables whose metadata is not there, and since when."""
    if not broken:
        return ()
    last = context.state.latest(storage_name, ORPHAN_FILES.name, before=context.run_date)
    before = {(item.lake, item.table_uuid): item for item in last.summary(OrphanFilesSummary).unreadable} if last is not None else {}
    frozen = {table.receipt.owner: table for table in refs}
    found: list[Unreadable] = []
    for owner, said in sorted(broken.items(), key=lambda item: (item[0].lake, item[0].table_uuid or "")):
        table = frozen[owner.lake]
        rows = read_rows(context.state, LAKE_REFS, table, columns=["table_uuid", "table_name"]).to_pylist()
        new = Unreadable(
            lake=owner.lake,
            table_uuid=owner.table_uuid,
            table_name={row["table_uuid"]: row["table_name"] for row in rows}.get(owner.table_uuid),
            why=f"{said} is missing from the listing",
            since=table.summary(LakeRefsSummary).frozen_at,
            good_on=_last_there(context, owner, last),
        )
        earlier = before.get((owner.lake, owner.table_uuid), new)
        found.append(new.model_copy(update={"since": earlier.since, "good_on": earlier.good_on}))
    return tuple(found)


def _last_there(context: RunContext, owner: Owner, last: PublishedTable | None) -> date:
    """Returns the last run date whose sweep found all metadata of the table. Where that is none, it
    was read tonight, before it was missed.
    """
    day = last.receipt.run_date if last is not None else context.run_date
    refs = context.state.current(owner.lake, LAKE_REFS.name, day)
    known = read_rows(context.state, LAKE_REFS, refs, columns=["table_uuid"]).column("table_uuid") if refs is not None else ()
    return day if owner.table_uuid is None or owner.table_uuid in set(map(str, known)) else context.run_date


def uncollected_metadata() -> str:
    """Returns a pattern of keys of metadata that lies below no claim, of any kind of lake.

    It matches nothing where no kind has such metadata.
    """
    return "|".join(kind.uncollected_metadata for kind in KINDS.values() if kind.uncollected_metadata is not None) or "^$"


def _orphans(
    spark: SparkSession,
    context: RunContext,
    storage_name: str,
    candidate_paths: list[str],
    live: list[PublishedTable],
) -> DataFrame:
    """Returns the candidates with their reasons and witnesses.

    A candidate that equals a live key is routed to the false negatives. One that differs from a
    live key by its spelling only is routed to the near misses.
    """
    candidates = read_paths(spark, context.state.files, CANDIDATES, candidate_paths)
    judged = candidates.withColumn("exact", F.lit(None).cast("boolean"))
    if may_hit(spark, context, storage_name, live, candidate_paths):
        judged = candidates.join(find_hits(candidates, live_keys(spark, context, storage_name, live)), "key", "left")
    joined = judged.join(_witnesses(spark, context, storage_name, live), "key", "left")
    joined = joined.join(_dangling_commits(spark, context, storage_name), "key", "left")
    named = F.col("w").isNotNull()
    unnamed = _never_committed(context)
    lifecycle = F.coalesce(F.col("w.strength") == LIFECYCLE, F.lit(False))
    return joined.select(
        *[name for name in ORPHAN_FILES.schema.names if name in CANDIDATES.names],
        F.when(lifecycle, "lifecycle")
        .when(named & ((F.col("w.strength") <= RELEASED) | unnamed.isNotNull()), "expired")
        .otherwise(F.coalesce(unnamed, F.lit("unreferenced")))
        .alias("reason"),
        F.col("w.commit_id").alias("last_commit_id"),
        F.col("w.container").alias("last_container"),
        F.when(F.col("w.strength") == HELD, F.col("w.lake")).alias("held_by"),
        F.when(F.col("w.strength") == HELD, F.col("w.table_uuid")).alias("held_by_table"),
        F.col("w.kind").alias("kind"),
        F.when(lifecycle, F.col("dangling_commits")).alias("dangling_commits"),
        F.when(F.col("exact"), FALSE_NEGATIVES_SIDE).when(F.col("exact").isNotNull(), NEAR_MISSES_SIDE).otherwise("").alias(ROUTE),
    )


def _of_others(keys: DataFrame, owners: Collection[Owner]) -> DataFrame:
    """Returns the live keys that these lakes and tables do not need by themselves."""
    mine = F.lit(False)
    for owner in owners:
        mine |= (F.col("lake") == owner.lake) & (
            F.lit(True) if owner.table_uuid is None else F.col("table_uuid").eqNullSafe(owner.table_uuid)
        )
    return keys.filter(~mine)


def _without(orphans: DataFrame, prefixes: Sequence[str]) -> DataFrame:
    """Routes aside what lies below these prefixes, unless it stops the plan."""
    below = F.lit(False)
    for prefix in prefixes:
        below |= F.col("key").startswith(prefix)
    return orphans.withColumn(ROUTE, F.when((F.col(ROUTE) == "") & below, DEFERRED_SIDE).otherwise(F.col(ROUTE)))


def _may_repeat(files: Files, candidate_paths: list[str], rows: int) -> bool:
    """Says whether a key may stand twice among so many candidates. Few are looked at here, and many
    are compared by a join.
    """
    return (
        not fits_in_process(rows, len(candidate_paths))
        or len(read_parts(files, candidate_paths, CANDIDATES, ["key"])["key"].unique()) < rows
    )


def _once(orphans: DataFrame) -> DataFrame:
    """Routes aside the rows whose key stands there more than once, unless they stop the plan."""
    names = orphans.groupBy("key").agg(F.count("key").alias("names"))
    route = F.when((F.col(ROUTE) == "") & (F.col("names") > 1), NAMED_TWICE_SIDE).otherwise(F.col(ROUTE))
    return orphans.join(names, "key").select(*[route.alias(ROUTE) if name == ROUTE else F.col(name) for name in orphans.columns])


def _dangling_commits(spark: SparkSession, context: RunContext, storage_name: str) -> DataFrame:
    """Returns for each key that lifecycle rules release how many retained commits will hold a path
    to nothing (columns key, dangling_commits).
    """
    tables = [find_lifecycle_objects(context, lake.name) for lake in context.config.lakes]
    frames = [read_table(spark, context.state, LIFECYCLE_OBJECTS, table) for table in tables if table is not None]
    if not frames:
        return frame_from_arrow(spark, DANGLING_COMMITS.empty_table())
    everything = frames[0]
    for frame in frames[1:]:
        everything = everything.unionByName(frame)
    mine = everything.filter((F.col("storage") == storage_name) & ~F.col("deduplicated"))
    return mine.groupBy("key").agg(F.sum("commits").alias("dangling_commits"))


def _never_committed(context: RunContext) -> Column:
    """The owning lake's word for a file that no commit ever named; null for a lake that has none."""
    word = F.lit(None).cast("string")
    for lake in context.config.lakes:
        if (own := context.kind(lake.name).never_committed) is not None:
            word = F.when(F.col("lake") == lake.name, own).otherwise(word)
    return word


def _witnesses(spark: SparkSession, context: RunContext, storage_name: str, live: list[PublishedTable]) -> DataFrame:
    """Returns the strongest commit behind each released key (columns key, w)."""
    parts = [(table, side) for table in live for side in RELEASED_SIDES if table.paths(side)]
    frames = [
        read_paths(spark, context.state.files, LIVE_FILES.schema, table.paths(side))
        .filter(F.col("storage") == storage_name)
        .withColumn("strength", F.lit(_strength(context, table, side)))
        .select("key", F.struct("strength", "commit_id", "container", "kind", "lake", "table_uuid").alias("w"))
        for table, side in parts
    ]
    if not frames:
        return frame_from_arrow(spark, WITNESSED.empty_table())
    everything = frames[0]
    for frame in frames[1:]:
        everything = everything.unionByName(frame)
    # A lake names a key once, so a key is named twice only where there are several lakes.
    several = len({table.receipt.owner for table, _ in parts}) > 1
    return everything.groupBy("key").agg(F.min("w").alias("w")) if several else everything


def _strength(context: RunContext, live: PublishedTable, side: str) -> int:
    if side != EXPIRED_SIDE:
        return LIFECYCLE if side == LIFECYCLE_SIDE else MENTIONED
    return HELD if context.kind(live.receipt.owner).edits_history else RELEASED


def _samples(context: RunContext, run: TableRun, written: WrittenParts) -> list[str]:
    samples: list[str] = []
    for side in (FALSE_NEGATIVES_SIDE, NEAR_MISSES_SIDE):
        for part in written.side.get(side, ())[:1]:
            table = read_parts(context.state.files, [f"{run.path}/{part.name}"], ORPHAN_FILES.schema, ["key"])
            samples += [f"{side.lstrip('_')}: {key}" for key in table.column("key")[:5].to_pylist()]
    return samples


def _paths(live: list[PublishedTable], side: str) -> tuple[str, ...]:
    return tuple(path for table in live for path in table.paths(side))
