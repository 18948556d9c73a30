"""Finds the claimed files that no live set holds: filter first, then the exact comparison, where one hit aborts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.claims import Claims, Owner
from gc_assets.core.files import Files
from gc_assets.core.gates import MAX_UNLISTED
from gc_assets.core.parts import PartWriter, read_parts
from gc_assets.core.paths import loose
from gc_assets.core.receipts import Balance, Published, Run
from gc_assets.lakes.registry import EDITED_HISTORIES, NEVER_COMMITTED, UNCOLLECTED_METADATA
from gc_assets.schemas import (
    CLAIMS,
    COMMIT_GRAPH,
    LAKE_REFS,
    LIFECYCLE_OBJECTS,
    LIVE_CONTENTS,
    LIVE_FILES,
    LIVE_FILTER,
    ORPHAN_FILES,
    PROBLEMS,
    STORAGE_INVENTORY,
)
from gc_assets.stages.ages import Ages
from gc_assets.stages.foreign_metadata import SUSPECT, foreign_metadata
from gc_assets.stages.known_tables import known_tables
from gc_assets.stages.lake_refs import CLAIMS_SIDE
from gc_assets.stages.live_files import (
    DANGLING_SIDE,
    EXPIRED_SIDE,
    LIFECYCLE_SIDE,
    METADATA,
    METADATA_SIDE,
    OPTIONAL_SIDE,
    released_by_lifecycle,
)
from gc_assets.stages.live_filter import ProbeFilter, live_count, live_keys, live_rows, live_tables
from gc_assets.stages.night import Night
from gc_assets.stages.purged_by_rule import purged_by_rule
from gc_assets.stages.quarantine_ledger import quarantine_ledger
from gc_assets.stages.storage_inventory import PROBLEMS_SIDE
from gc_assets.stages.tables import (
    MAX_SAMPLES,
    PARTS_DDL,
    ROUTE,
    Totals,
    Written,
    collect,
    merge_written,
    paths_of,
    publish,
    read_paths,
    read_table,
    report_parts,
    write_frame,
)
from gc_assets.stores.local import LocalObjects

CANDIDATES_SIDE, SUSPECTS_SIDE = "_candidates", "_suspects"
FALSE_NEGATIVES_SIDE, NEAR_MISSES_SIDE = "_false_negatives", "_near_misses"
# Candidates beyond this many compressed bytes (some millions) are compared by a join instead of in every worker's memory.
IN_MEMORY_CANDIDATES: Final = 64 * 2**20
WITNESS_DDL: Final = (
    "key string, w struct<strength: int, commit_id: string, container: string, kind: string, lake: string, table_uuid: string>"
)
# Of several lakes that name a released file: one whose history must let go of it first, one that has let go, one whose owner's
# rules release it, one that only mentions it.
HELD, RELEASED, LIFECYCLE, MENTIONED = 0, 1, 2, 3
CANDIDATES: Final = pa.schema([*STORAGE_INVENTORY.schema, ORPHAN_FILES.schema.field("lake"), ORPHAN_FILES.schema.field("table_uuid")])
# A gate names a few and counts the rest, up to here.
MAX_NAMED: Final = 1_000
LIVE, YOUNG, UNOWNED, CANDIDATE = "live", "young", "unowned", "candidate"


def grace_cutoff(night: Night, storage_name: str, refs: list[Published]) -> datetime:
    """What is younger than this is never a candidate: the grace period before the first ref of any lake was read."""
    first = min(datetime.fromisoformat(table.receipt.facts["frozen_at"]) for table in refs)
    return first - night.storage(storage_name).grace


def orphan_files(spark: SparkSession, night: Night, storage_name: str) -> Published:
    """`orphan_files` of a run date, with what the gates need: byte waterfall, near misses, false negatives, missing metadata.

    The receipt's facts keep counts and samples; whether they stop a plan is decided where the plan is made.
    """
    state = night.state
    inventory = state.require(storage_name, STORAGE_INVENTORY.name, night.run_date)
    bloom = state.require(storage_name, LIVE_FILTER.name, night.run_date)
    live, refs = live_tables(night), [state.require(lake.name, LAKE_REFS.name, night.run_date) for lake in night.config.lakes]
    cutoff = grace_cutoff(night, storage_name, refs)
    run = state.start(storage_name, ORPHAN_FILES.name, night.run_date, night.clock)

    probe = _Probe(
        ProbeFilter(state.files, tuple(bloom.paths())),
        claims_of(night, storage_name, refs),
        ListedFiles(state.files, _paths(live, METADATA_SIDE), storage_name),
        ListedFiles(state.files, _paths(live, OPTIONAL_SIDE), storage_name),
        Ages.of(cutoff, refs),
        "|".join(UNCOLLECTED_METADATA.values()),
        state.files,
        run,
    )
    listed = read_table(spark, state, STORAGE_INVENTORY, inventory)
    probed = merge_written(collect(listed.withColumn("key_hash", F.xxhash64("key")).mapInArrow(probe, PARTS_DDL)))
    candidate_paths = paths_of(run, probed, CANDIDATES_SIDE)
    candidates = read_paths(spark, state.files, CANDIDATES, candidate_paths)

    keys = live_keys(spark, night, storage_name, live)
    foreign = _foreign(spark, night, storage_name, paths_of(run, probed, SUSPECTS_SIDE), cutoff)
    linked = _behind_links(spark, night, keys, inventory)
    needed = sum(table.receipt.facts["metadata_by_storage"].get(storage_name, 0) for table in live)
    # Metadata that two lakes share is needed twice and found once, and the slow comparison then finds nothing missing.
    missing = _missing_metadata(keys, listed) if probed.facts.get("metadata_found", 0) < needed else []
    # Some live files may rightly be absent, and two lakes may need one file; only where that could hide a loss is it counted out.
    optional = sum(table.receipt.facts.get("optional_by_storage", {}).get(storage_name, 0) for table in live)
    found = probed.totals.get((LIVE,), Totals()).rows + optional - probed.facts.get("optional_found", 0)
    unlisted, unlisted_samples = max(0, live_rows(live, storage_name) - found), list[str]()
    if unlisted > MAX_UNLISTED * live_count(live, storage_name):
        gone = purged_by_rule(spark, night, storage_name)
        unlisted, unlisted_samples = _unlisted(keys, listed, quarantine_ledger(spark, state, storage_name), gone)
    frame = _orphans(spark, night, storage_name, candidates, candidate_paths, keys, live)
    written = write_frame(frame, ORPHAN_FILES, run, state, ["reason", "lake"], [FALSE_NEGATIVES_SIDE, NEAR_MISSES_SIDE])
    for side in probed.side:
        state.files.delete_directory(f"{run.path}/{side}")
    waterfall = {key[0]: value for key, value in probed.totals.items()}
    stopped = {side: sum(part.rows for part in written.side.get(side, ())) for side in (FALSE_NEGATIVES_SIDE, NEAR_MISSES_SIDE)}
    facts = {
        "grace_cutoff": cutoff.isoformat(),
        "historical": any(table.receipt.facts["historical"] for table in refs),
        "waterfall": {name: {"files": total.rows, "bytes": total.size_bytes} for name, total in sorted(waterfall.items())},
        "by_reason": {
            f"{reason}/{lake}": {"files": total.rows, "bytes": total.size_bytes} for (reason, lake), total in sorted(written.totals.items())
        },
        # Ranges and metaranges that no retained commit needs: nobody deletes them, so that at least they are counted.
        "unneeded_metadata": {"files": probed.facts.get("unneeded_files", 0), "bytes": probed.facts.get("unneeded_bytes", 0)},
        "live_keys": live_count(live, storage_name),
        "missing_metadata": missing[:MAX_SAMPLES],
        "missing_metadata_count": len(missing),
        "live_unlisted": unlisted_samples,
        "live_unlisted_count": unlisted,
        "foreign_metadata": foreign[:MAX_SAMPLES],
        "foreign_metadata_count": len(foreign),
        "behind_links": linked[:MAX_SAMPLES],
        "behind_links_count": len(linked),
        "false_negatives": stopped[FALSE_NEGATIVES_SIDE],
        "near_misses": stopped[NEAR_MISSES_SIDE],
        "stopped_samples": _samples(night, run, written),
        "problems": inventory.receipt.facts.get("problems", {}),
    }
    return publish(
        state,
        run,
        written,
        night.clock,
        inputs=[inventory, bloom, *live, *refs],
        balances=[
            Balance(name="inventory rows probed", expected=inventory.receipt.rows, found=sum(total.rows for total in waterfall.values())),
            Balance(name="candidates judged", expected=waterfall.get(CANDIDATE, Totals()).rows, found=written.rows + sum(stopped.values())),
        ],
        facts=facts,
        unsafe=night.unsafe,
    )


def claims_of(night: Night, storage_name: str, refs: list[Published]) -> Claims:
    """Frozen claims, and those that the lakes' metadata made while it was read."""
    rows: list[tuple[str, Owner, bool]] = []
    for table in [*refs, *live_tables(night)]:
        claims = read_parts(night.state.files, table.paths(CLAIMS_SIDE), CLAIMS).to_pylist()
        mine = [row for row in claims if row["storage"] == storage_name]
        rows += [(row["key"], Owner(table.receipt.group, row["table_uuid"]), row["collect"]) for row in mine]
    # The collector's own tables are no lake's garbage, wherever somebody put them.
    own = night.resolver().resolve_one(f"{night.config.state.rstrip('/')}/")
    if own is not None and own[0] == storage_name:
        rows.append((own[1], Owner("state", None), False))
    return Claims.of(rows)


def _missing_metadata(keys: DataFrame, listed: DataFrame) -> list[str]:
    """Live metadata objects that the inventory lacks or shows with another length, as sentences, `MAX_NAMED` at most."""
    needed = keys.filter("must_exist and (container_size_bytes is not null or commit_id is null)").select(
        "key", "kind", F.col("container_size_bytes").alias("decoded_bytes")
    )
    present = listed.select("key", F.col("size_bytes").alias("listed_bytes")).join(F.broadcast(needed), "key")
    sound = present.filter("decoded_bytes is null or decoded_bytes = listed_bytes").select("key")
    rows = collect(needed.join(sound, "key", "left_anti").select("key", "kind").limit(MAX_NAMED))
    return sorted(f"{row['kind']} {row['key']}" for row in rows)


def _unlisted(keys: DataFrame, listed: DataFrame, quarantined: DataFrame, purged: DataFrame) -> tuple[int, list[str]]:
    """Live files that must exist and are neither in the inventory nor in quarantine (the plan puts those back): how many, and a few.

    What a rule of the lake that needs it let go before (`purged`: key, lake) need not exist for that lake.
    """
    needed = keys.filter("must_exist").join(purged, ["key", "lake"], "left_anti").select("key").distinct()
    lost = needed.join(listed.select("key"), "key", "left_anti").join(quarantined.select("key"), "key", "left_anti")
    count = collect(lost.agg(F.count("key").alias("files")))[0]["files"]
    return count, sorted(row["key"] for row in collect(lost.limit(MAX_SAMPLES))) if count else []


def _foreign(spark: SparkSession, night: Night, storage_name: str, suspects: list[str], cutoff: datetime) -> list[str]:
    if not suspects:
        return []
    frame = read_paths(spark, night.state.files, CANDIDATES, suspects).withColumn("is_old", F.col("last_modified") < F.lit(cutoff))
    frame = frame.join(_named_by_commits(spark, night, storage_name), "key", "left_anti")
    found = foreign_metadata(frame, storage_name, night.resolver(), LocalObjects(), known_tables(night))
    return sorted(f"{row['key']}: {row['why']}" for row in collect(found.limit(MAX_NAMED)))


def _named_by_commits(spark: SparkSession, night: Night, storage_name: str) -> DataFrame:
    """Keys of the metadata files that a commit of a configured server put, whether or not it is kept: none of them is foreign."""
    named = spark.createDataFrame([], "key string")
    for lake in night.config.lakes:
        if LIVE_CONTENTS.is_of(lake.kind):
            graph = night.state.require(lake.name, COMMIT_GRAPH.name, night.run_date)
            roots = read_table(spark, night.state, COMMIT_GRAPH, graph).select(F.explode("content_roots").alias("root"))
            named = named.unionByName(roots.filter(F.col("root.storage") == storage_name).select("root.key"))
    return named.distinct()


def _behind_links(spark: SparkSession, night: Night, keys: DataFrame, inventory: Published) -> list[str]:
    """Live keys at or below a symbolic link of the storage."""
    if not inventory.receipt.facts["problems"].get("symlink"):
        return []
    problems = read_paths(spark, night.state.files, PROBLEMS, inventory.paths(PROBLEMS_SIDE))
    at = problems.filter("kind = 'symlink'").select(F.col("key").alias("link"))
    below = F.col("key").startswith(F.concat("link", F.lit("/"))) | (F.col("key") == F.col("link"))
    return sorted(row["key"] for row in collect(keys.join(F.broadcast(at), below).select("key").limit(MAX_NAMED)))


def _orphans(
    spark: SparkSession,
    night: Night,
    storage_name: str,
    candidates: DataFrame,
    candidate_paths: list[str],
    keys: DataFrame,
    live: list[Published],
) -> DataFrame:
    """Candidates with reason and witness, routed aside where a live key equals them exactly or but for spelling."""
    judged = candidates.withColumn("exact", F.lit(None).cast("boolean"))
    if _any_hit(night, keys, candidate_paths):
        judged = candidates.join(_hits(candidates, keys), "key", "left")
    joined = judged.join(_witnesses(spark, night, storage_name, live), "key", "left")
    joined = joined.join(_dangling_commits(spark, night, storage_name), "key", "left")
    named = F.col("w").isNotNull()
    unnamed = _never_committed(night)
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


def _dangling_commits(spark: SparkSession, night: Night, storage_name: str) -> DataFrame:
    """How many retained commits will hold a path to nothing, by key, for what lifecycle rules release."""
    tables = [released_by_lifecycle(night, lake.name) for lake in night.config.lakes]
    frames = [read_table(spark, night.state, LIFECYCLE_OBJECTS, table) for table in tables if table is not None]
    if not frames:
        return spark.createDataFrame([], "key string, dangling_commits long")
    everything = frames[0]
    for frame in frames[1:]:
        everything = everything.unionByName(frame)
    mine = everything.filter((F.col("storage") == storage_name) & ~F.col("deduplicated"))
    return mine.groupBy("key").agg(F.sum("commits").alias("dangling_commits"))


def _never_committed(night: Night) -> Column:
    """The owning lake's word for a file that no commit ever named; null for a lake that has none."""
    word = F.lit(None).cast("string")
    for lake in night.config.lakes:
        if lake.kind in NEVER_COMMITTED:
            word = F.when(F.col("lake") == lake.name, NEVER_COMMITTED[lake.kind]).otherwise(word)
    return word


def _any_hit(night: Night, keys: DataFrame, candidate_paths: list[str]) -> bool:
    """Whether any live key equals a candidate, exactly or but for spelling: the exact comparison, in one pass over the live keys."""
    if not candidate_paths:
        return False
    if sum(night.state.files.size(path) for path in candidate_paths) > IN_MEMORY_CANDIDATES:
        return True  # too many to hold in a worker: the join tells
    hits = keys.select("key").mapInArrow(_Equal(night.state.files, tuple(candidate_paths)), "hits long")
    return sum(row["hits"] for row in collect(hits)) > 0


def _hits(candidates: DataFrame, keys: DataFrame) -> DataFrame:
    """Which candidates equal a live key, and whether exactly; asked only when some do."""
    spelled = candidates.select("key").mapInArrow(_Loose(), "key string, loose string")
    live_spelled = keys.select("key").mapInArrow(_Loose(), "live_key string, loose string")
    return spelled.join(live_spelled, "loose").groupBy("key").agg(F.max(F.col("key") == F.col("live_key")).alias("exact"))


def _witnesses(spark: SparkSession, night: Night, storage_name: str, live: list[Published]) -> DataFrame:
    """The strongest expired or dangling commit behind each released key (columns key, w)."""
    parts = [(table, side) for table in live for side in (EXPIRED_SIDE, DANGLING_SIDE, LIFECYCLE_SIDE) if table.paths(side)]
    frames = [
        read_paths(spark, night.state.files, LIVE_FILES.schema, table.paths(side))
        .filter(F.col("storage") == storage_name)
        .withColumn("strength", F.lit(_strength(night, table, side)))
        .select("key", F.struct("strength", "commit_id", "container", "kind", "lake", "table_uuid").alias("w"))
        for table, side in parts
    ]
    if not frames:
        return spark.createDataFrame([], WITNESS_DDL)
    everything = frames[0]
    for frame in frames[1:]:
        everything = everything.unionByName(frame)
    # A lake names a key once; only several lakes can name it twice.
    several = len({table.receipt.group for table, _ in parts}) > 1
    return everything.groupBy("key").agg(F.min("w").alias("w")) if several else everything


def _strength(night: Night, live: Published, side: str) -> int:
    if side != EXPIRED_SIDE:
        return LIFECYCLE if side == LIFECYCLE_SIDE else MENTIONED
    return HELD if night.config.lake(live.receipt.group).kind in EDITED_HISTORIES else RELEASED


def _samples(night: Night, run: Run, written: Written) -> list[str]:
    samples: list[str] = []
    for side in (FALSE_NEGATIVES_SIDE, NEAR_MISSES_SIDE):
        for part in written.side.get(side, ())[:1]:
            table = read_parts(night.state.files, [f"{run.path}/{part.name}"], ORPHAN_FILES.schema, ["key"])
            samples += [f"{side.lstrip('_')}: {key}" for key in table.column("key")[:5].to_pylist()]
    return samples


@dataclass(frozen=True)
class _Probe:
    """Sorts inventory rows into live, unowned, young and candidate, and writes the candidates; runs in executors."""

    live: ProbeFilter
    claims: Claims
    metadata: ListedFiles
    optional: ListedFiles
    ages: Ages
    uncollected: str
    files: Files
    run: Run

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.run.path, CANDIDATES, CANDIDATES_SIDE)
        suspects = PartWriter(self.files, self.run.path, CANDIDATES, SUSPECTS_SIDE)
        totals: dict[tuple[str, ...], Totals] = {}

        def count(name: str, rows: pa.RecordBatch) -> None:
            size = pc.sum(rows.column("size_bytes")).as_py() or 0
            totals[(name,)] = totals.get((name,), Totals()) + Totals(rows.num_rows, size)

        found = optional = 0
        unneeded = Totals()
        for batch in batches:
            found += self.metadata.found(batch)
            optional += self.optional.found(batch)
            hits = self.live.contains(batch.column("key_hash").to_numpy())
            count(LIVE, batch.filter(pa.array(hits)))
            rest = batch.filter(pa.array(np.logical_not(hits)))
            lake, table_uuid = self.claims.resolve(rest.column("key"))
            owned = rest.append_column("lake", lake).append_column("table_uuid", table_uuid)
            unowned = owned.filter(pc.is_null(lake))
            count(UNOWNED, unowned)
            metadata = unowned.filter(pc.match_substring_regex(unowned.column("key"), self.uncollected))
            unneeded += Totals(metadata.num_rows, pc.sum(metadata.column("size_bytes")).as_py() or 0)
            owned = owned.filter(pc.is_valid(lake))
            suspects.write(owned.filter(pc.match_substring_regex(owned.column("key"), SUSPECT)).select(CANDIDATES.names))
            old = self.ages.old(owned)
            count(YOUNG, owned.filter(pc.invert(old)))
            candidates = owned.filter(old)
            count(CANDIDATE, candidates)
            writer.write(candidates.select(CANDIDATES.names))
        yield report_parts(
            [*writer.close(), *suspects.close()],
            totals=totals,
            facts={
                "metadata_found": found,
                "optional_found": optional,
                "unneeded_files": unneeded.rows,
                "unneeded_bytes": unneeded.size_bytes,
            },
        )


@dataclass(frozen=True)
class _Loose:
    """Adds the spelling-insensitive form of keys."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = batch.column(0)
            yield pa.RecordBatch.from_arrays([keys, loose(keys)], ["key", "loose"])


@dataclass(frozen=True)
class _Equal:
    """Counts live keys that equal a candidate in their spelling-insensitive form, which equal keys share."""

    files: Files
    candidates: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        candidates = _loose_candidates(self.files, self.candidates)
        hits = 0
        for batch in batches:
            hits += pc.sum(pc.is_in(loose(batch.column("key")), value_set=candidates)).as_py() or 0
        yield pa.RecordBatch.from_pydict({"hits": [hits]})


@lru_cache(maxsize=1)
def _loose_candidates(files: Files, paths: tuple[str, ...]) -> pa.Array:
    return loose(read_parts(files, list(paths), CANDIDATES, ["key"]).column("key").combine_chunks())


@dataclass(frozen=True)
class ListedFiles:
    """Live files of a storage that are looked for in its inventory (parts with columns `METADATA`). Pickles as paths."""

    files: Files
    paths: tuple[str, ...]
    storage: str

    def found(self, objects: pa.RecordBatch) -> int:
        """How many of them are among these objects, with the length that was decoded where one was."""
        needed = _sought(self.files, self.paths, self.storage)
        at = pc.index_in(objects.column("key"), value_set=needed.column("key"))
        listed = objects.column("size_bytes").filter(pc.is_valid(at))
        lengths = needed.column("container_size_bytes").take(at.filter(pc.is_valid(at)))
        return pc.sum(pc.fill_null(pc.equal(listed, lengths), True)).as_py() or 0


@lru_cache(maxsize=2)
def _sought(files: Files, paths: tuple[str, ...], storage: str) -> pa.Table:
    rows = read_parts(files, list(paths), METADATA)
    return rows.filter(pc.equal(rows.column("storage"), storage)).combine_chunks()


def _paths(live: list[Published], side: str) -> tuple[str, ...]:
    return tuple(path for table in live for path in table.paths(side))
