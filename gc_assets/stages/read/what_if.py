"""Says what another retention, or fewer refs, would make of a night: which files would be garbage
that are none, and which garbage would be live.

Compares what `scenarios` finds live with the night's own inventory and orphans. No lake is read, no
storage is listed, and nothing is published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.claims import Claims, Owner
from gc_assets.core.errors import UsageError
from gc_assets.core.plan import Amount
from gc_assets.engine.progress import log_activity
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import PARTS_DDL, collect, merge_written, read_paths, read_table, report_parts, side_paths, spark_schema
from gc_assets.engine.tasks import run_single_task
from gc_assets.stages.mark.cached_entries import read_cached_entries
from gc_assets.stages.read.scenarios import MAX_SCENARIOS, SCRATCH, Scenario, ScenarioTask, delete_scratch, refuse_mixed, require_refs
from gc_assets.stages.read.usage import table_names
from gc_assets.stages.sweep.ages import Ages
from gc_assets.stages.sweep.claims import claims_of, prefixes_of
from gc_assets.stages.sweep.live_filter import live_tables
from gc_assets.stages.sweep.probe import SIDE_FILE, with_owner
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import PartWriter
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES, ORPHAN_FILES, STORAGE_INVENTORY
from gc_assets.state.side_tables import SCENARIO_CONTAINERS, SCENARIO_CONTAINERS_SIDE, SCENARIO_FILES, SCENARIO_FILES_SIDE
from gc_assets.state.summaries import LakeRefsSummary, OrphanFilesSummary

# Bit 0 of `live` stands for the night's own word, bit n for the n-th scenario.
CURRENT_RUN: Final = 1
OBJECTS: Final = ("key", "size_bytes", "last_modified", "live")
CHANGED_FILES: Final = pa.schema(
    [("key", pa.string()), ("size_bytes", pa.int64()), ("lake", pa.string()), ("table_uuid", pa.string()), ("live", pa.int64())]
)


@dataclass(frozen=True, slots=True)
class Difference:
    """What would become of files that one table (null: a lake that is one repository) claims in a
    storage. `freed` is live now and would be garbage, `kept` is garbage now and would be live.
    """

    storage: str
    lake: str
    table: str | None
    freed: Amount
    kept: Amount


@dataclass(frozen=True, slots=True)
class Effect:
    """What a scenario would change. `expired` is how many commits fewer than the night retained it
    would retain. `notes` are sentences on what the numbers leave out.
    """

    scenario: Scenario
    expired: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()

    @property
    def freed(self) -> Amount:
        return Amount.total(item.freed for item in self.differences)

    @property
    def kept(self) -> Amount:
        return Amount.total(item.kept for item in self.differences)


def what_if(spark: SparkSession, context: RunContext, scenarios: Sequence[Scenario]) -> tuple[Effect, ...]:
    """Returns the effect of each scenario on a night that was swept, in the order in which they are
    given.

    Raises `UsageError` for a ref that the lakes do not have, for a lake that cannot answer
    (`ScenarioTask.of`) and for more than `MAX_SCENARIOS`. Raises `StateError` where the night was not
    swept, or was marked again since.
    """
    with ExitStack() as scratch:
        return Comparison.of(spark, context, scenarios, scratch).effects()


# Storage, lake and table, the bits under which the files are live, and how much they are.
_Group = tuple[tuple[str, str, str | None], int, Amount]


def _differences(groups: Sequence[_Group], bit: int) -> Iterator[Difference]:
    """Yields where a scenario judges otherwise than the night, most bytes first."""
    found: dict[tuple[str, str, str | None], tuple[list[Amount], list[Amount]]] = {}
    for place, live, amount in groups:
        was_live = bool(live & CURRENT_RUN)
        if bool(live >> bit & 1) != was_live:
            freed, kept = found.setdefault(place, ([], []))
            (freed if was_live else kept).append(amount)
    differences = [Difference(*place, Amount.total(freed), Amount.total(kept)) for place, (freed, kept) in found.items()]
    yield from sorted(differences, key=lambda item: (-item.freed.bytes, -item.kept.bytes, item.storage, item.lake, item.table or ""))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Under which words files are live (`live`: columns `SCENARIO_FILES`), of those on which the words differ,
    and of side files. `everywhere` is the mark of a file that is live under all of them.
    """

    spark: SparkSession
    context: RunContext
    scenarios: Mapping[int, Scenario]
    live: DataFrame
    everywhere: int
    expired: Mapping[int, int]
    unknown: Mapping[str, int]

    @classmethod
    def of(cls, spark: SparkSession, context: RunContext, scenarios: Sequence[Scenario], scratch: ExitStack) -> Comparison:
        """Lets the policies of all lakes speak once for each scenario. What is written aside for it
        goes when `scratch` is closed.
        """
        if len(scenarios) > MAX_SCENARIOS:
            raise UsageError(f"{len(scenarios):,} scenarios at once; at most {MAX_SCENARIOS} are compared")
        for scenario in scenarios:
            require_refs(context, scenario)
        numbered = dict(enumerate(scenarios, 1))
        everywhere = (1 << (len(scenarios) + 1)) - 1
        frames: list[DataFrame] = []
        expired, unknown = dict.fromkeys(numbered, 0), dict[str, int]()
        for lake in context.config.lakes:
            mine = {bit: scenario for bit, scenario in numbered.items() if lake.name in scenario.lakes}
            others = reduce(or_, (1 << bit for bit in numbered if bit not in mine), 0)
            if not mine or others:
                kept = read_table(spark, context.state, LIVE_FILES, context.table(LIVE_FILES, lake.name), columns=["storage", "key"])
                frames.append(kept.withColumn("live", F.lit(others | CURRENT_RUN).cast("long")))
            if not mine:
                continue
            log_activity(f"lake {lake.name}: the policy's word on {len(mine):,} scenarios")
            follow = ScenarioTask.of(context, lake.name, mine)
            scratch.callback(delete_scratch, context.state.files, follow.run)
            written = merge_written(run_single_task(spark, follow, follow.rows, len(follow.edges) + len(follow.containers)))
            for bit, count in written.summary["expired"].items():
                expired[int(bit)] += count
            unknown[lake.name] = written.summary["unknown"]
            below = read_paths(spark, context.state.files, SCENARIO_CONTAINERS, side_paths(follow.run, written, SCENARIO_CONTAINERS_SIDE))
            frames.append(read_paths(spark, context.state.files, SCENARIO_FILES, side_paths(follow.run, written, SCENARIO_FILES_SIDE)))
            frames.append(read_cached_entries(spark, context, lake.name).join(below, "container").select(*SCENARIO_FILES.names))
        placed = reduce(DataFrame.unionByName, frames).filter(F.col("storage").isNotNull())
        live = placed.groupBy("storage", "key").agg(F.bit_or("live").alias("live"))
        told = live.filter((F.col("live") != everywhere) | F.col("key").rlike(SIDE_FILE))
        run = context.state.start(SCRATCH, LIVE_FILES.name, context.run_date, context.clock)
        scratch.callback(delete_scratch, context.state.files, run)
        log_activity("comparing their live files")
        written = merge_written(collect(told.mapInArrow(_Write(context.state.files, run), PARTS_DDL)))
        parts = [f"{run.path}/{part.name}" for part in written.parts]
        return cls(spark, context, numbered, read_paths(spark, context.state.files, SCENARIO_FILES, parts), everywhere, expired, unknown)

    def effects(self) -> tuple[Effect, ...]:
        """Returns the effect of each scenario."""
        names = table_names(self.context)
        groups: list[_Group] = []
        for storage in self.context.config.storages:
            log_activity(f"storage {storage.name}: what would be garbage")
            grouped = self.files(storage.name).groupBy("lake", "table_uuid", "live")
            for row in collect(grouped.agg(F.count("key").alias("files"), F.coalesce(F.sum("size_bytes"), F.lit(0)).alias("bytes"))):
                table = names.get((row["lake"], row["table_uuid"]), row["table_uuid"])
                groups.append(((storage.name, row["lake"], table), row["live"], Amount(files=row["files"], bytes=row["bytes"])))
        return tuple(
            Effect(scenario, self.expired[bit], tuple(_differences(groups, bit)), tuple(self.notes(scenario)))
            for bit, scenario in self.scenarios.items()
        )

    def files(self, storage_name: str) -> DataFrame:
        """Returns the files of a storage that some scenario judges otherwise than the night, each
        once (columns `CHANGED_FILES`): garbage by the one and live by the other.
        """
        context, spark = self.context, self.spark
        orphans, inventory = context.table(ORPHAN_FILES, storage_name), context.table(STORAGE_INVENTORY, storage_name)
        refs, live = [context.table(LAKE_REFS, lake.name) for lake in context.config.lakes], live_tables(context)
        refuse_mixed(orphans, [inventory, *live, *refs])
        summary = orphans.summary(OrphanFilesSummary)
        broken = {Owner(item.lake, item.table_uuid) for item in summary.unreadable}
        withheld = prefixes_of(context, storage_name, [*refs, *live], broken)
        collected = _Collected(claims_of(context, storage_name, [*refs, *live]), Ages.of(context, summary.grace_cutoff, refs), withheld)
        listed = self._disputed(storage_name, read_table(spark, context.state, STORAGE_INVENTORY, inventory))
        live_now = (F.col("live").bitwiseAND(CURRENT_RUN)) == CURRENT_RUN
        freed = listed.filter(live_now).select(*OBJECTS).mapInArrow(collected, spark_schema(CHANGED_FILES))
        garbage = self._disputed(storage_name, read_table(spark, context.state, ORPHAN_FILES, orphans))
        return freed.unionByName(garbage.filter(~live_now).select(*CHANGED_FILES.names))

    def _disputed(self, storage_name: str, objects: DataFrame) -> DataFrame:
        """Returns the objects on which the words differ, with `live`. A side file is live where its
        main file is.
        """
        files = self.live.filter(F.col("storage") == storage_name).select("key", "live")
        disputed = files.filter(F.col("live") != self.everywhere)
        of_main = disputed.select(F.col("key").alias("main"), F.col("live").alias("with_main"))
        sides = (
            objects.filter(F.col("key").rlike(SIDE_FILE))
            .withColumn("main", F.regexp_replace("key", SIDE_FILE, "$1$2"))
            .join(of_main, "main")
            .join(files, "key", "left")
            .withColumn("live", F.coalesce("live", F.lit(0)).bitwiseOR(F.col("with_main")))
            .filter(F.col("live") != self.everywhere)
            .select(*objects.columns, "live")
        )
        direct = objects.join(disputed, "key").select(*objects.columns, "live")
        return direct.join(sides.select("key"), "key", "left_anti").select(*objects.columns, "live").unionByName(sides)

    def notes(self, scenario: Scenario) -> Iterator[str]:
        """Yields sentences on what a scenario's numbers leave out."""
        for lake in scenario.lakes:
            frozen = self.context.table(LAKE_REFS, lake).summary(LakeRefsSummary).policy_digest
            if frozen != self.context.config.policy_digest():
                yield f"lake {lake}: the configuration is not that of the night any more, and the numbers count what changed there too"
            if count := self.unknown.get(lake):
                yield f"lake {lake}: {count:,} metadata objects that would be kept again were never read; what they name is not counted"


@dataclass(frozen=True)
class _Write:
    """Writes rows (columns `SCENARIO_FILES`) as parts of a run that is not published."""

    files: Files
    run: TableRun

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.run.path, SCENARIO_FILES)
        for batch in batches:
            writer.write(batch)
        yield report_parts(writer.close())


@dataclass(frozen=True)
class _Collected:
    """Keeps the objects that the night's sweep would take for candidates if nothing needed them,
    with the lake and the table that claim them (columns `CHANGED_FILES`).
    """

    claims: Claims
    ages: Ages
    withheld: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            owned = with_owner(batch, self.claims)
            owned = owned.filter(pc.is_valid(owned.column("lake")))
            owned = owned.filter(self.ages.is_old(owned))
            for prefix in self.withheld:
                owned = owned.filter(pc.invert(pc.starts_with(owned.column("key"), prefix)))
            yield owned.select(CHANGED_FILES.names).cast(CHANGED_FILES)
