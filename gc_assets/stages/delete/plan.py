"""Makes the plan of a night: what to quarantine, purge and restore, the gates' verdicts, and the
digest to approve.

Decides and never acts. The same inputs give the same plan id, so planning twice is planning once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core import gates
from gc_assets.core.claims import Claims
from gc_assets.core.hashing import digest as digest_rows
from gc_assets.core.phases import PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import UNNAMED, Amount, GateResult, LiveCount, PlanHeader, Unreadable, Uploads, repeat, seal
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session, is_small
from gc_assets.engine.tables import (
    ROUTE,
    Totals,
    WrittenParts,
    collect,
    map_arrow,
    merge_written,
    publish,
    read_paths,
    read_table,
    report_parts,
    side_paths,
    write_frame,
    write_parts,
)
from gc_assets.engine.tasks import run_single_task
from gc_assets.stages.delete.deferred_rows import list_unreadable
from gc_assets.stages.delete.uploads import find_old_uploads, upload_totals
from gc_assets.stages.mark.content_roots import has_live_roots
from gc_assets.stages.records.accepted_runs import AcceptedRun, last_accepted_plan
from gc_assets.stages.records.dead_tables import dead_tables
from gc_assets.stages.records.ledger import (
    QUARANTINED_COPY,
    LogReader,
    first_of_each_key,
    newest_first,
    quarantine_ledger,
    read_copies,
    removed_since,
)
from gc_assets.stages.records.plans import list_damage, unfinished_plans, used_plan_ids
from gc_assets.stages.sweep.claims import claims_of
from gc_assets.stages.sweep.link_aliases import planned_by_alias
from gc_assets.stages.sweep.live_filter import expired_keys, live_count, live_keys, live_tables
from gc_assets.state.arrow_types import BOOL, STRING
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, State, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import DELETION_PLAN, EXPIRY_PLAN, LAKE_REFS, ORPHAN_FILES, STORAGE_INVENTORY
from gc_assets.state.side_tables import (
    CLAIMS,
    CLAIMS_SIDE,
    EXPIRED_SIDE,
    EXPIRY_ACTIONS,
    EXPIRY_SIDE,
    HELD_SIDE,
    METADATA,
    UNKNOWN_SIDE,
    UPLOADS_SIDE,
    WAITING_SIDE,
)
from gc_assets.state.summaries import DeletionPlanSummary, LakeRefsSummary, OrphanFilesSummary, Planned, StorageInventorySummary

HEADER: Final = "_header.json"
OWNED: Final = pa.schema(
    [*(field for field in QUARANTINED_COPY if field.name != "rehearsal"), ("is_live", BOOL), ("fits", BOOL), ("lake", STRING)]
)


@log_progress(DELETION_PLAN)
def deletion_plan(spark: SparkSession, context: RunContext, storage_name: str) -> PublishedTable:
    """Publishes `deletion_plan` of a run date.

    Its header is in the receipt's facts and beside the table as `_header.json`. The plan holds the
    edits of history that the policy asks for (`planned_actions`) and the files that these edits
    free (`after_expiry`). It leaves out files held by history that this plan does not edit
    (`held_for_expiry`): another plan edits that. Beside all this it holds the uploads that nobody
    finished (`planned_uploads`).
    """
    state = context.state
    orphans = context.table(ORPHAN_FILES, storage_name)
    inventory = context.table(STORAGE_INVENTORY, storage_name)
    live, refs = live_tables(context), [context.table(LAKE_REFS, lake.name) for lake in context.config.lakes]
    run = start_run(context, storage_name, DELETION_PLAN)
    log_activity(f"{orphans.receipt.rows:,} orphan files")
    unreadable = (*list_unreadable(live), *orphans.summary(OrphanFilesSummary).unreadable)
    expiry = _plan_expiry(spark, context, storage_name, refs, unreadable, run)
    words = LogReader.of(state, storage_name)
    session = choose_session(spark, *_size(words, orphans, live, inventory, expiry))
    rows, withheld = _rows(session, context, storage_name, orphans, live, inventory, refs, expiry, unreadable, run, words)
    totals_by = ["action", "reason", "after_expiry", "kind"]
    written = write_frame(rows, DELETION_PLAN, run, state, totals_by, [WAITING_SIDE, HELD_SIDE])
    parts = [f"{run.path}/{part.name}" for part in written.parts]
    aliases = planned_by_alias(spark, context, storage_name, live, lambda: read_paths(spark, state.files, DELETION_PLAN.schema, parts))
    uploads, later = find_old_uploads(context, storage_name, orphans.summary(OrphanFilesSummary).grace_cutoff, refs, live, unreadable)
    told = upload_totals(uploads, later)
    header = _header(
        context, storage_name, orphans, inventory, live, refs, written, expiry, unreadable, aliases, told, _amount_of(withheld)
    )
    aborted = {UPLOADS_SIDE: tuple(write_parts(uploads, run, state.files, UPLOADS_SIDE))} if uploads.num_rows else {}
    written = replace(written, side={**written.side, **expiry.side, **aborted})
    header = _earlier_or(context, storage_name, header)
    state.files.replace(f"{run.path}/{HEADER}", header.model_dump_json(indent=1).encode())
    summary = DeletionPlanSummary(plan_id=header.plan_id, header=header)
    return publish(state, run, written, context.clock, inputs=[orphans, inventory, *live, *refs], summary=summary, unsafe=context.unsafe)


def _plan_expiry(
    spark: SparkSession,
    context: RunContext,
    storage_name: str,
    refs: list[PublishedTable],
    unreadable: tuple[Unreadable, ...],
    run: TableRun,
) -> WrittenParts:
    """Writes the edits of history of every table that claims a part of the storage and is not sick.

    `summary` count them per lake.
    """
    sources = [(table.receipt.owner, context.table(EXPIRY_PLAN, table.receipt.owner), table.paths(CLAIMS_SIDE)) for table in refs]
    copy = _CopyExpiry(
        storage_name,
        tuple((lake, tuple(plan.paths()), tuple(claims)) for lake, plan, claims in sources),
        context.state.files,
        run,
        unreadable,
    )
    return merge_written(
        run_single_task(spark, copy, sum(plan.rows for _, plan, _ in sources), sum(len(plan.paths()) + 1 for _, plan, _ in sources))
    )


def planned_actions(state: State, plan: PublishedTable) -> pa.Table:
    """Returns the plan's edits of history (columns `EXPIRY_ACTIONS`)."""
    return read_parts(state.files, plan.paths(EXPIRY_SIDE), EXPIRY_ACTIONS)


@dataclass(frozen=True)
class _CopyExpiry:
    """Copies rows of `expiry_plan` beside the plan, where nothing changes them any more.

    `summary` count them by lake. One task, here or in an executor (`run_single_task`).
    """

    storage: str
    sources: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]
    files: Files
    run: TableRun
    unreadable: tuple[Unreadable, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            tables = [self._actions(*source) for source in self.sources]
            rows = pa.concat_tables([EXPIRY_ACTIONS.empty_table(), *tables])
            counts = {table.column("lake")[0].as_py(): table.num_rows for table in tables if table.num_rows}
            yield report_parts(
                write_parts(rows, self.run, self.files, EXPIRY_SIDE) if rows.num_rows else [], digest_rows(rows), summary=counts
            )

    def _actions(self, lake: str, plan: tuple[str, ...], claims: tuple[str, ...]) -> pa.Table:
        rows = read_parts(self.files, list(plan), EXPIRY_PLAN.schema)
        here = read_parts(self.files, list(claims), CLAIMS)
        here = here.filter(pc.equal(here.column("storage"), self.storage))
        mine = rows.filter(pc.is_in(pc.fill_null(rows.column("table_uuid"), ""), pc.fill_null(here.column("table_uuid"), "").unique()))
        uuids = mine.column("table_uuid").to_pylist()
        mine = mine.filter(pa.array([not any(item.covers(lake, uuid) for item in self.unreadable) for uuid in uuids], pa.bool_()))
        return mine.add_column(0, EXPIRY_ACTIONS.field("lake"), pa.repeat(pa.scalar(lake), mine.num_rows)).cast(EXPIRY_ACTIONS)


def _size(
    words: LogReader, orphans: PublishedTable, live: list[PublishedTable], inventory: PublishedTable, expiry: WrittenParts
) -> tuple[int, int]:
    """Returns how many rows, in how many files, a plan is made of: where something was ever
    quarantined, also those of the ledger and of what it is compared with.
    """
    sources = [*orphans.parts(), *expiry.side.get(EXPIRY_SIDE, ())]
    if words.parts:
        sources += [*inventory.parts(), *(part for table in live for side in (None, EXPIRED_SIDE) for part in table.parts(side))]
    rows, files = sum(part.rows for part in sources), len(sources)
    return rows + words.rows, files + words.part_count


def header_of(published: PublishedTable) -> PlanHeader:
    return published.summary(DeletionPlanSummary).header


def _frozen_at(refs: list[PublishedTable]) -> datetime:
    return min(table.summary(LakeRefsSummary).frozen_at for table in refs)


def _rows(
    spark: SparkSession,
    context: RunContext,
    storage_name: str,
    orphans: PublishedTable,
    live: list[PublishedTable],
    inventory: PublishedTable,
    refs: list[PublishedTable],
    expiry: WrittenParts,
    unreadable: tuple[Unreadable, ...],
    run: TableRun,
    words: LogReader,
) -> tuple[DataFrame, DataFrame | None]:
    """Returns the planned keys, and those that would be purged if nothing were sick (null: none).

    Three groups of keys are routed aside: those that wait in quarantine, those that wait for
    another plan's edits, and those whose name was taken meanwhile.
    """
    state, storage = context.state, context.storage(storage_name)
    histories = read_paths(spark, state.files, EXPIRY_ACTIONS, side_paths(run, expiry, EXPIRY_SIDE)).select(
        F.concat_ws("/", "lake", "table_uuid").alias("history"), F.lit(True).alias("edited")
    )
    edited = histories.distinct() if is_small(spark) else F.broadcast(histories.distinct())
    found = (
        read_table(spark, state, ORPHAN_FILES, orphans)
        .withColumn("history", F.concat_ws("/", "held_by", "held_by_table"))
        .join(edited, "history", "left")
    )
    nothing = F.lit(None).cast("string")
    fresh = found.select(
        "key",
        F.lit(QUARANTINE).alias("action"),
        "size_bytes",
        "etag",
        "version_id",
        "reason",
        "lake",
        "dangling_commits",
        F.col("held_by").isNotNull().alias("after_expiry"),
        "held_by",
        "held_by_table",
        nothing.alias("source_plan_id"),
        F.lit(storage.quarantine).alias("quarantine"),
        "kind",
        F.when(F.col("held_by").isNull() | F.col("edited"), "").otherwise(HELD_SIDE).alias(ROUTE),
    )
    if not words.parts:
        return fresh, None
    ledger = read_copies(spark, words, rehearsal=context.clock.is_rehearsal).drop("rehearsal")
    # Deferred quarantine moves nothing, so the sweep sees what waits there again each night.
    # Another object of the same name is new garbage.
    deferred = F.col("quarantine") == "deferred"
    fresh = fresh.join(ledger.filter(deferred).select("key", "etag"), ["key", "etag"], "left_anti").select(*fresh.columns)
    # A report is older than the night: what was quarantined or purged since is still in it.
    as_of = inventory.summary(StorageInventorySummary).report_as_of
    left = removed_since(spark, words, as_of) if as_of is not None else None
    if left is not None:
        fresh = fresh.join(left, ["key", "etag"], "left_anti").select(*fresh.columns)
    size = F.coalesce("size_bytes", "container_size_bytes").alias("needed_bytes")
    needed = live_keys(spark, context, storage_name, live).select("key", F.lit(True).alias("is_live"), size)
    held = expired_keys(spark, context, storage_name, live).select("key", F.lit(False).alias("is_live"), size)
    needs = needed.unionByName(held).groupBy("key").agg(F.max("is_live").alias("is_live"), F.collect_set("needed_bytes").alias("sizes"))
    is_needed = F.col("is_live").isNotNull()  # live again, or in history that a ref reaches again
    # Of several copies of a name the one of the size that the lake records is put back, else the
    # newest. The one that waits longest is purged first.
    fits = ~is_needed | (F.size("sizes") == 0) | F.array_contains("sizes", F.col("size_bytes"))
    waited = F.when(is_needed, newest_first()).otherwise(-newest_first())
    copies = ledger.join(needs, "key", "left").withColumn("fits", fits)
    one = first_of_each_key(copies, ~F.col("fits"), waited).drop("sizes")
    owned = map_arrow(one, _Owned(claims_of(context, storage_name, [*refs, *live])), OWNED)
    listed = read_table(spark, state, STORAGE_INVENTORY, inventory, columns=["key", "etag"])
    listed = listed.join(owned.select("key"), "key", "left_semi")
    if left is not None:
        listed = listed.join(left, ["key", "etag"], "left_anti")
    # A listing may name an object twice. A copy in quarantine stands in the plan once all the same.
    judged = owned.join(listed.groupBy("key").agg(F.max("etag").alias("listed_etag")), "key", "left")
    taken = F.when(deferred, F.col("listed_etag") != F.col("etag")).otherwise(F.col("listed_etag").isNotNull())
    due = F.col("quarantined_at") <= F.lit(_frozen_at(refs) - timedelta(days=storage.quarantine_days))
    restore = is_needed & ~F.coalesce(taken, F.lit(False))
    # A purge takes only what a lake still claims: a lake that left the configuration may need the
    # rest by now. It takes nothing while live metadata that nobody ever read waits in quarantine.
    # Once that is back, the next night knows what it needs. Nor while a table cannot be read: what
    # it took up meanwhile is not known.
    unknown = bool(unreadable) or _needs_unread_metadata(spark, context, live)
    ripe = ~is_needed & due & F.col("lake").isNotNull()
    purge = ripe & F.lit(not unknown)
    back = judged.select(
        "key",
        F.when(is_needed, RESTORE).otherwise(PURGE).alias("action"),
        "size_bytes",
        "etag",
        "version_id",
        F.when(~F.col("fits"), "live again, of another size than the lake records")
        .when(F.col("is_live"), "live again")
        .when(is_needed, "in reachable history again")
        .otherwise("still dead")
        .alias("reason"),
        "lake",
        F.lit(None).cast("long").alias("dangling_commits"),
        F.lit(False).alias("after_expiry"),
        nothing.alias("held_by"),
        nothing.alias("held_by_table"),
        "source_plan_id",
        "quarantine",
        "kind",
        F.when(restore | purge, "").otherwise(WAITING_SIDE).alias(ROUTE),
    )
    return fresh.unionByName(back), judged.filter(ripe) if unreadable else None


def _amount_of(files: DataFrame | None) -> Amount:
    if files is None:
        return Amount()
    (row,) = collect(files.agg(F.count("key").alias("files"), F.coalesce(F.sum("size_bytes"), F.lit(0)).alias("bytes")))
    return Amount(files=row["files"], bytes=row["bytes"])


def _needs_unread_metadata(spark: SparkSession, context: RunContext, live: list[PublishedTable]) -> bool:
    """Says whether quarantine holds a live metadata object that was never decoded."""
    paths = [path for table in live for path in table.paths(UNKNOWN_SIDE)]
    if not paths:
        return False
    unknown = read_paths(spark, context.state.files, METADATA, paths)
    quarantined = [
        quarantine_ledger(spark, context.state, storage.name).join(unknown.filter(F.col("storage") == storage.name), "key", "left_semi")
        for storage in context.config.storages
    ]
    return any(collect(found.select("key").limit(1)) for found in quarantined)


@dataclass(frozen=True)
class _Owned:
    """Adds the lake that claims each key tonight; null where no lake collects there any more."""

    claims: Claims

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.append_column("lake", self.claims.resolve(batch.column("key"))[0])


def _header(
    context: RunContext,
    storage_name: str,
    orphans: PublishedTable,
    inventory: PublishedTable,
    live: list[PublishedTable],
    refs: list[PublishedTable],
    written: WrittenParts,
    expiry: WrittenParts,
    unreadable: tuple[Unreadable, ...],
    aliases: list[str],
    uploads: Uploads,
    withheld: Amount,
) -> PlanHeader:
    storage, found, counted = context.storage(storage_name), orphans.summary(OrphanFilesSummary), live_count(live, storage_name)
    totals: dict[str, Totals] = {}
    reasons: dict[str, Totals] = {}
    kinds: dict[str, dict[str, Totals]] = {}
    freed = held = Totals()
    for (action, reason, after_expiry, kind), amount in written.totals.items():
        totals[action] = totals.get(action, Totals()) + amount
        of_action = kinds.setdefault(action, {})
        of_action[kind or UNNAMED] = of_action.get(kind or UNNAMED, Totals()) + amount
        if action == QUARANTINE:
            reasons[reason] = reasons.get(reason, Totals()) + amount
        if after_expiry == "true":
            freed += amount
    if HELD_SIDE in written.side:
        expired = [Totals(amount.files, amount.bytes) for name, amount in found.by_reason.items() if name.startswith("expired/")]
        going = reasons.get("expired", Totals())
        held = sum(expired, Totals(-going.rows, -going.size_bytes))
    planned = totals.get(QUARANTINE, Totals())
    return seal(
        context.config.plan_secret(),
        storage=storage_name,
        location=storage.location,
        quarantine=storage.quarantine,
        run_date=context.run_date,
        as_of=min(table.summary(LakeRefsSummary).as_of for table in refs),
        frozen_at=_frozen_at(refs),
        grace_cutoff=found.grace_cutoff,
        created_at=context.clock.now(),
        historical=any(table.summary(LakeRefsSummary).historical for table in refs),
        rehearsal=context.clock.is_rehearsal or any(table.summary(LakeRefsSummary).rehearsal for table in refs),
        unsafe=tuple(sorted({*context.unsafe, *(text for table in refs for text in table.receipt.unsafe)})),
        refs_digests={table.receipt.owner: table.summary(LakeRefsSummary).refs_digest for table in refs},
        policy_digest=context.config.policy_digest(),
        live_files=counted.files,
        live_by_lake=dict(sorted(counted.by_lake.items())),
        live_bytes=found.storage_breakdown.get("live", Amount()).bytes,
        totals={name: _amount(amount) for name, amount in sorted(totals.items())},
        by_reason={name: _amount(amount) for name, amount in sorted(reasons.items())},
        by_kind={action: {kind: _amount(amount) for kind, amount in sorted(amounts.items())} for action, amounts in sorted(kinds.items())},
        after_expiry=_amount(freed),
        held_for_expiry=_amount(held),
        unreadable=unreadable,
        quarantined=Amount(files=sum(part.rows for part in written.side.get(WAITING_SIDE, ()))),
        expiry_actions=dict(sorted(expiry.summary.items())),
        expiry_digest=f"{expiry.digest:016x}",
        gates=tuple(_gates(context, storage_name, orphans, inventory, counted, refs, unreadable, _amount(planned), aliases, withheld)),
        rows=written.rows,
        rows_digest=f"{written.digest:016x}",
        uploads=uploads,
    )


def _amount(total: Totals) -> Amount:
    return Amount(files=total.rows, bytes=total.size_bytes)


def _gates(
    context: RunContext,
    storage_name: str,
    orphans: PublishedTable,
    inventory: PublishedTable,
    live: LiveCount,
    refs: list[PublishedTable],
    unreadable: tuple[Unreadable, ...],
    planned: Amount,
    aliases: list[str],
    withheld: Amount,
) -> list[GateResult]:
    found, limits = orphans.summary(OrphanFilesSummary), context.storage(storage_name).gates
    accepted = last_accepted_plan(context, storage_name)
    earlier = AcceptedRun.of(context, accepted) if accepted is not None else None
    samples = found.stopped_samples
    dead = [str(word) for word in dead_tables(context, storage_name)]
    listed = inventory.summary(StorageInventorySummary)
    stored = Amount(files=listed.objects, bytes=listed.bytes)
    return [
        gates.live_set(live.files, sum(table.receipt.rows for table in refs if live.files or has_live_roots(context, table.receipt.owner))),
        gates.live_drop(live, earlier.count(live) if earlier is not None else None, limits.max_live_drop),
        gates.lakes_present(earlier.missing_lakes(live) if earlier is not None else []),
        gates.unreadable_tables(unreadable, limits.max_unreadable, withheld),
        gates.never_read(unreadable, storage_name),
        gates.metadata_present(found.missing_metadata_count, found.missing_metadata),
        gates.live_listed(live.files, found.live_unlisted_count, found.live_unlisted),
        gates.no_live_candidate(found.false_negatives, [name for name in samples if name.startswith("false_negatives")]),
        gates.spelling(found.near_misses, [name for name in samples if name.startswith("near_misses")]),
        gates.links(found.behind_links_count + len(aliases), [*found.behind_links, *aliases]),
        gates.storages_apart(context.overlapping_storages(storage_name)),
        gates.foreign_metadata(found.foreign_metadata_count, found.foreign_metadata, found.junk_count, found.junk, dead),
        gates.unfinished_apply(unfinished_plans(context.state, storage_name)),
        gates.damaged_histories(list_damage(context.state, [lake.name for lake in context.config.lakes])),
        gates.delete_bytes(planned, limits.max_delete_bytes),
        gates.delete_share(planned, stored, limits.max_delete_share, chosen="max_delete_share" in limits.model_fields_set),
    ]


def _earlier_or(context: RunContext, storage_name: str, header: PlanHeader) -> PlanHeader:
    """Returns the header of the same plan made before, else this one.

    The earlier time of creation stays, so making a plan again never prolongs it. A plan that was
    applied or put back is used up and never comes back as itself: the same is then another plan.
    """
    made = {run.headline(Planned).plan.plan_id: run for run in context.state.history(storage_name, DELETION_PLAN.name)}
    if header.plan_id in made:
        used = used_plan_ids(context.config, storage_name)
        while header.plan_id in used:
            header = repeat(header, context.config.plan_secret())
    return header_of(context.state.open(made[header.plan_id])) if header.plan_id in made else header
