"""Estimate how a run would differ with another retention policy or fewer refs.

The live files of each scenario are compared with the run's inventory and orphans, to find files
that would become garbage or live. This neither reads lakes, nor lists storages, nor publishes
tables.
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
from gc_assets.core.foreign import SIDE_FILE
from gc_assets.core.plan import Amount
from gc_assets.core.units import count_of
from gc_assets.engine.progress import log_activity
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import PARTS_DDL, collect, merge_written, read_paths, read_table, report_parts, spark_schema
from gc_assets.engine.tasks import run_single_task
from gc_assets.stages.mark.cached_entries import read_cached_entries
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.read.browse import name_tables
from gc_assets.stages.read.scenarios import MAX_SCENARIOS, SCRATCH, Scenario, ScenarioTask, delete_scratch, refuse_mixed, require_refs
from gc_assets.stages.sweep.ages import Ages
from gc_assets.stages.sweep.claims import claims_of, prefixes_of
from gc_assets.stages.sweep.foreign_files import protected_keys
from gc_assets.stages.sweep.listings import Listing
from gc_assets.stages.sweep.probe import with_owner
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import PartWriter
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES, ORPHAN_FILES, STORAGE_INVENTORY
from gc_assets.state.side_tables import SCENARIO_CONTAINERS, SCENARIO_CONTAINERS_SIDE, SCENARIO_FILES, SCENARIO_FILES_SIDE
from gc_assets.state.summaries import LakeRefsSummary, OrphanFilesSummary

# Bit 0 of `live` is set if the file is live in the run, and bit n if it is in the n-th scenario.
CURRENT_RUN: Final = 1
OBJECTS: Final = ("key", "size_bytes", "last_modified", "live")
CHANGED_FILES: Final = pa.schema(
    [("key", pa.string()), ("size_bytes", pa.int64()), ("lake", pa.string()), ("table_uuid", pa.string()), ("live", pa.int64())]
)


@dataclass(frozen=True, slots=True)
class Difference:
    """How a scenario affects the files of one table in a storage.

    Attributes:
        table: The name of the table that claims the files, or None for a single repository.
        freed: Live files that would become garbage.
        kept: Garbage that would become live.
    """

    storage: str
    lake: str
    table: str | None
    freed: Amount
    kept: Amount


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a scenario on all storages.

    Attributes:
        expired: Number of additional commits that would expire.
        notes: Messages about the limits of these numbers.
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
    """Evaluate scenarios for a run, and return the effect of each scenario.

    Raises:
        UsageError: If a ref does not exist, if a lake does not support scenarios (see
            `ScenarioTask.of`), or if there are more than `MAX_SCENARIOS`.
        StateError: If the run has no sweep, or the lakes were marked again after the sweep.
    """
    with ExitStack() as scratch:
        return Comparison.of(spark, context, scenarios, scratch).effects()


# Files with the same storage, lake, table and bits: these three names, the bits of the scenarios in
# which the files are live, and the number and size of the files.
_Group = tuple[tuple[str, str, str | None], int, Amount]


def _differences(groups: Sequence[_Group], bit: int) -> Iterator[Difference]:
    """Yield how a scenario differs from the run, beginning with the table that frees most bytes."""
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
    """Compares the live files of scenarios with the live files of the run.

    Attributes:
        live: Files that are live in some scenarios but not in all, and all live side files, with
            the `SCENARIO_FILES` columns. The run counts as a scenario.
        all_bits: The bits of a file that is live in the run and in all scenarios.
        expired: How many fewer commits are retained than in the run, keyed by scenario.
        unknown: How many needed metadata objects were never decoded, keyed by lake.
    """

    spark: SparkSession
    context: RunContext
    scenarios: Mapping[int, Scenario]
    live: DataFrame
    all_bits: int
    expired: Mapping[int, int]
    unknown: Mapping[str, int]

    @classmethod
    def of(cls, spark: SparkSession, context: RunContext, scenarios: Sequence[Scenario], scratch: ExitStack) -> Comparison:
        """Apply each scenario to all lakes, and write the live files that differ.

        Args:
            scratch: Deletes the temporary files in the state when it is closed.
        """
        if len(scenarios) > MAX_SCENARIOS:
            raise UsageError(f"{count_of(len(scenarios), 'scenario', 'were')} given; at most {MAX_SCENARIOS} can be compared in one call")
        for scenario in scenarios:
            require_refs(context, scenario)
        numbered = dict(enumerate(scenarios, 1))
        all_bits = (1 << (len(scenarios) + 1)) - 1
        frames: list[DataFrame] = []
        expired, unknown = dict.fromkeys(numbered, 0), dict[str, int]()
        for lake in context.config.lakes:
            mine = {bit: scenario for bit, scenario in numbered.items() if lake.name in scenario.lakes}
            others = reduce(or_, (1 << bit for bit in numbered if bit not in mine), 0)
            if not mine or others:
                kept = LiveSet(context, context.table(LIVE_FILES, lake.name)).read(spark, columns=["storage", "key"])
                frames.append(kept.withColumn("live", F.lit(others | CURRENT_RUN).cast("long")))
            if not mine:
                continue
            log_activity(f"lake {lake.name}: applying the policy of {count_of(len(mine), 'scenario')}")
            follow = ScenarioTask.of(context, lake.name, mine)
            scratch.callback(delete_scratch, context.state.files, follow.run)
            written = merge_written(run_single_task(spark, follow, follow.rows, len(follow.edges) + len(follow.containers)))
            for bit, count in written.summary["expired"].items():
                expired[int(bit)] += count
            unknown[lake.name] = written.summary["unknown"]
            below = read_paths(spark, context.state.files, SCENARIO_CONTAINERS, written.paths(follow.run, SCENARIO_CONTAINERS_SIDE))
            frames.append(read_paths(spark, context.state.files, SCENARIO_FILES, written.paths(follow.run, SCENARIO_FILES_SIDE)))
            frames.append(read_cached_entries(spark, context, lake.name).join(below, "container").select(*SCENARIO_FILES.names))
        located = reduce(DataFrame.unionByName, frames).filter(F.col("storage").isNotNull())
        live = located.groupBy("storage", "key").agg(F.bit_or("live").alias("live"))
        disputed = live.filter((F.col("live") != all_bits) | F.col("key").rlike(SIDE_FILE))
        run = context.state.start(SCRATCH, LIVE_FILES.name, context.run_date, context.clock)
        scratch.callback(delete_scratch, context.state.files, run)
        log_activity("comparing their live files")
        written = merge_written(collect(disputed.mapInArrow(_WriteScenarioFiles(context.state.files, run), PARTS_DDL)))
        rows = read_paths(spark, context.state.files, SCENARIO_FILES, written.paths(run))
        return cls(spark, context, numbered, rows, all_bits, expired, unknown)

    def effects(self) -> tuple[Effect, ...]:
        """Compute the effect of each scenario, in the order in which they were given."""
        names = name_tables(self.context.state, self.context.lake_tables(LAKE_REFS))
        groups: list[_Group] = []
        for storage in self.context.config.storages:
            log_activity(f"storage {storage.name}: comparing with its garbage")
            grouped = self.files(storage.name).groupBy("lake", "table_uuid", "live")
            for row in collect(grouped.agg(F.count("key").alias("files"), F.coalesce(F.try_sum("size_bytes"), F.lit(0)).alias("bytes"))):
                table = names.get((row["lake"], row["table_uuid"]), row["table_uuid"])
                groups.append(((storage.name, row["lake"], table), row["live"], Amount(files=row["files"], bytes=row["bytes"])))
        return tuple(
            Effect(scenario, self.expired[bit], tuple(_differences(groups, bit)), tuple(self.notes(scenario)))
            for bit, scenario in self.scenarios.items()
        )

    def files(self, storage_name: str) -> DataFrame:
        """Return the files of a storage that are garbage in some scenarios but live in others.

        The run counts as a scenario. Each file occurs at most once.

        Returns:
            A frame with the `CHANGED_FILES` columns.
        """
        context, spark = self.context, self.spark
        orphans, inventory = context.table(ORPHAN_FILES, storage_name), Listing.of(context, storage_name).inventory
        refs, live = context.lake_tables(LAKE_REFS), context.lake_tables(LIVE_FILES)
        refuse_mixed(orphans, [inventory, *live, *refs])
        summary = orphans.summary(OrphanFilesSummary)
        broken = {Owner(item.lake, item.table_uuid) for item in summary.unreadable}
        deferred = prefixes_of(context, storage_name, [*refs, *live], broken)
        collected = _FindCollectable(
            claims_of(context, storage_name, [*refs, *live]),
            Ages.of(context, summary.grace_cutoff, refs, summary.clock_lead),
            deferred,
            protected_keys(context, storage_name),
        )
        listed = self._find_disputed(storage_name, read_table(spark, context.state, STORAGE_INVENTORY, inventory))
        live_now = (F.col("live").bitwiseAND(CURRENT_RUN)) == CURRENT_RUN
        freed = listed.filter(live_now).select(*OBJECTS).mapInArrow(collected, spark_schema(CHANGED_FILES))
        garbage = self._find_disputed(storage_name, read_table(spark, context.state, ORPHAN_FILES, orphans))
        return freed.unionByName(garbage.filter(~live_now).select(*CHANGED_FILES.names))

    def _find_disputed(self, storage_name: str, objects: DataFrame) -> DataFrame:
        """Select objects that are not live in all scenarios, and add the `live` column.

        A side file is live whenever its main file is.
        """
        files = self.live.filter(F.col("storage") == storage_name).select("key", "live")
        disputed = files.filter(F.col("live") != self.all_bits)
        of_main = disputed.select(F.col("key").alias("main"), F.col("live").alias("with_main"))
        side_files = (
            objects.filter(F.col("key").rlike(SIDE_FILE))
            .withColumn("main", F.regexp_replace("key", SIDE_FILE, "$1$2"))
            .join(of_main, "main")
            .join(files, "key", "left")
            .withColumn("live", F.coalesce("live", F.lit(0)).bitwiseOR(F.col("with_main")))
            .filter(F.col("live") != self.all_bits)
            .select(*objects.columns, "live")
        )
        direct = objects.join(disputed, "key").select(*objects.columns, "live")
        return direct.join(side_files.select("key"), "key", "left_anti").select(*objects.columns, "live").unionByName(side_files)

    def notes(self, scenario: Scenario) -> Iterator[str]:
        """Yield messages that help to interpret the numbers of a scenario."""
        for lake in scenario.lakes:
            if scenario.retention is not None:
                changed = self.context.config.lake(lake).with_retention(scenario.retention)
                source = f"lakes.yaml with --retention {scenario.retention}"
                kept = self.context.kind(lake).describe_retention(changed, {}, source)
                yield f"lake {lake} would keep {kept}, unless refs or tables have their own settings"
            frozen = self.context.table(LAKE_REFS, lake).summary(LakeRefsSummary).policy_digest
            if frozen != self.context.config.policy_digest():
                yield f"lake {lake}: the configuration changed after the run, and the numbers include the effect of that change"
            if count := self.unknown.get(lake):
                yield f"lake {lake}: {count_of(count, 'metadata object')} that would be kept were never read; their files are not counted"


@dataclass(frozen=True)
class _WriteScenarioFiles:
    """Writes rows with the `SCENARIO_FILES` columns as parts of an unpublished run."""

    files: Files
    run: TableRun

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.run.path, SCENARIO_FILES)
        for batch in batches:
            writer.write(batch)
        yield report_parts(writer.close())


@dataclass(frozen=True)
class _FindCollectable:
    """Selects objects that would be deletion candidates if no lake needed them.

    It yields the `CHANGED_FILES` columns, including the lake and the table that claim the object.
    """

    claims: Claims
    ages: Ages
    deferred: tuple[str, ...]
    protected: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            owned = with_owner(batch, self.claims)
            owned = owned.filter(pc.is_valid(owned.column("lake")))
            owned = owned.filter(self.ages.is_old(owned))
            if self.protected is not None:
                owned = owned.filter(pc.invert(pc.match_substring_regex(owned.column("key"), self.protected)))
            for prefix in self.deferred:
                owned = owned.filter(pc.invert(pc.starts_with(owned.column("key"), prefix)))
            yield owned.select(CHANGED_FILES.names).cast(CHANGED_FILES)
