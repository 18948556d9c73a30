"""Find plan rows whose files may be foreign (see `core/foreign.py`).

The rules apply to plans of earlier releases and to quarantined files as well. After a file was
quarantined, a user may withdraw an acceptance, or a dataset in another format may appear.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.errors import StateError
from gc_assets.core.foreign import OTHER_FORMAT, RULES, ForeignRules
from gc_assets.core.phases import PURGE, QUARANTINE
from gc_assets.core.plan import PlanHeader
from gc_assets.core.printable import show
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import collect, frame_from_arrow, map_arrow, read_table
from gc_assets.lakes.kinds import KINDS
from gc_assets.stages.records.dead_tables import read_table_id, withdrawn_since
from gc_assets.stages.records.plans import list_plans
from gc_assets.stages.sweep.adopted_files import NO_ADOPTED_FILES
from gc_assets.stages.sweep.claims import claims_of
from gc_assets.stages.sweep.dropped_tables import DROPPED, DroppedFinder, build_claims, claims_with_dropped, load_dropped_tables
from gc_assets.stages.sweep.foreign_files import (
    ForeignFinder,
    find_datasets,
    find_known,
    foreign_rules,
    outermost,
    protected_keys,
    read_datasets,
)
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.schemas import DELETION_PLAN
from gc_assets.state.side_tables import FOREIGN_DATASETS, TARGETS
from gc_assets.stores.protocol import Store

GATE: Final = "new_claims"
UNREFERENCED: Final = "unreferenced"
_FOREIGN_COPIES: Final = pa.schema([("key", pa.string()), ("source_plan_id", pa.string()), ("rule", pa.string())])


def never_named() -> frozenset[str]:
    """Return the plan reasons that imply that no commit ever referenced the file."""
    return frozenset({UNREFERENCED, *(kind.files.never_committed for kind in KINDS.values() if kind.files.never_committed is not None)})


def is_checked(header: PlanHeader) -> bool:
    """Return True if the release that made the plan already left out foreign files."""
    return any(gate.name == GATE for gate in header.gates)


@dataclass(frozen=True)
class ForeignRows:
    """Finds plan rows that must not be executed because their files are protected or foreign.

    It is pickled and sent to Spark executors.

    Attributes:
        protected: Regular expression for keys that are never removed, or None.
        finder: Finds foreign files, or None if the rows are not checked for them.
        purges: Keys of foreign copies that the plan purges, with the rule that applies to each.
        dropped: Finds the rules for files of dropped tables. None if no table is dropped.
        withdrawn: Prefixes of dead tables whose acceptance was withdrawn after the plan was made.
            Remembered dropped tables are not included.
    """

    protected: str | None = None
    finder: ForeignFinder | None = None
    purges: Mapping[str, str] = field(default_factory=dict[str, str])
    dropped: DroppedFinder | None = None
    withdrawn: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        context: RunContext,
        header: PlanHeader,
        tables: Sequence[PublishedTable],
        live: Sequence[PublishedTable],
        rows: DataFrame,
        uploads: pa.Table,
    ) -> Self:
        """Prepare to check the rows of a plan.

        Args:
            context: The run context of the verification mark.
            tables: `lake_refs` and `live_files` of all lakes.
            live: `live_files` of all lakes.
            uploads: The plan's unfinished uploads (`UPLOADS` columns).
        """
        storage = header.storage
        dropped = load_dropped_tables(context, storage, tables)
        claims = claims_of(context, storage, tables, build_claims(dropped))
        rules = foreign_rules(context, storage, claims, tables, [item.table for item in dropped.tables])
        checked = rows.filter(F.col("action").isin(QUARANTINE, PURGE)).select("key", "lake")
        if uploads.num_rows:
            checked = checked.unionByName(frame_from_arrow(spark, uploads.select(["key", "lake"])))
        finder = prepare_finder(spark, context, storage, rules, live, checked, is_earlier=not is_checked(header))
        purges = rows.filter(F.col("action") == PURGE).select("key", "etag", "lake", "source_plan_id")
        copies = foreign_copies(spark, context, storage, tables, live, purges)
        found = {row["key"]: row["rule"] for row in collect(copies)} if copies is not None else {}
        of_dropped = DroppedFinder.of(dropped, finder, rules, NO_ADOPTED_FILES) if dropped.tables else None
        remembered = {read_table_id(item.table.table_uuid) for item in dropped.tables}
        withdrawn = [item.prefix for item in withdrawn_since(context, storage, header.as_of) if item.table_uuid not in remembered]
        return cls(protected_keys(context, storage), finder, found, of_dropped, tuple(withdrawn))

    @classmethod
    def of_uploads(
        cls,
        spark: SparkSession,
        context: RunContext,
        storage_name: str,
        tables: Sequence[PublishedTable],
        live: Sequence[PublishedTable],
        uploads: pa.Table,
    ) -> Self:
        """Prepare to check unfinished uploads (`UPLOADS` columns). For the arguments see `of`."""
        rules = foreign_rules(context, storage_name, claims_of(context, storage_name, tables), tables)
        finder = prepare_finder(spark, context, storage_name, rules, live, frame_from_arrow(spark, uploads.select(["key", "lake"])))
        return cls(protected_keys(context, storage_name), finder)

    def find_reasons(self, batch: pa.RecordBatch, modified: pa.Array, lake: pa.Array) -> pa.Array:
        """Explain for each row why its file or upload must not be removed.

        Args:
            batch: Rows of `deletion_plan` or uploads.
            modified: Modification times of the objects.
            lake: The lakes that claim the objects.

        Returns:
            A column of reasons. Rows that may be removed are null.
        """
        keys = batch.column("key")
        found = pa.nulls(batch.num_rows, pa.string())
        if self.finder is not None:
            files = pa.RecordBatch.from_arrays([keys, modified, lake], names=["key", "last_modified", "lake"])
            rules = self._with_dropped(batch, files, self._relevant(batch, self.finder.find_rules(files))).to_pylist()
            texts = [None if rule is None else f"it may belong to others: {RULES[rule]}" for rule in rules]
            found = pa.array(texts, pa.string())
        for prefix in self.withdrawn:
            text = pa.scalar(f"the acceptance of a dead table under {show(prefix)} was withdrawn after the plan was made")
            found = pc.if_else(pc.starts_with(keys, prefix), text, found)
        if self.protected is not None:
            is_protected = pc.match_substring_regex(keys, self.protected)
            found = pc.if_else(is_protected, pa.scalar("`protect` in lakes.yaml matches its key"), found)
        return found

    def _with_dropped(self, batch: pa.RecordBatch, files: pa.RecordBatch, rules: pa.Array) -> pa.Array:
        """Replace the rules for files of dropped tables, whose claims have a different age."""
        if self.dropped is None or "reason" not in batch.schema.names:
            return rules
        is_dropped = pc.and_(pc.equal(batch.column("action"), QUARANTINE), pc.equal(batch.column("reason"), DROPPED))
        rows = files.append_column("foreign_rule", rules).append_column("kind", batch.column("kind"))
        return self.dropped.find_rules(rows, is_dropped)

    def _relevant(self, batch: pa.RecordBatch, rules: pa.Array) -> pa.Array:
        """Remove the rules that do not apply to plan rows.

        If a commit referenced a file, only the rule about other formats applies. For quarantined
        copies, the plan does not record whether a commit referenced them, so their rules come from
        `purges`.
        """
        if "reason" not in batch.schema.names:  # uploads
            return rules
        nothing = pa.scalar(None, pa.string())
        is_purge = pc.equal(batch.column("action"), PURGE)
        is_unnamed = pc.is_in(batch.column("reason"), pa.array(sorted(never_named()), pa.string()))
        applies = pc.if_else(pc.or_(is_unnamed, _is(rules, OTHER_FORMAT)), rules, nothing)
        of_copies = pa.array(map(self.purges.get, batch.column("key").to_pylist()), pa.string()) if self.purges else nothing
        return pc.if_else(is_purge, of_copies, applies)


def prepare_finder(
    spark: SparkSession,
    context: RunContext,
    storage_name: str,
    rules: ForeignRules,
    live: Sequence[PublishedTable],
    files: DataFrame,
    *,
    is_earlier: bool = False,
) -> ForeignFinder:
    """Prepare a task that finds foreign files.

    Args:
        rules: Rules that decide which files are foreign.
        live: `live_files` of all lakes.
        files: The files that will be checked, with the columns key and lake.
        is_earlier: True for files in plans of earlier releases, whose sweeps did not record
            datasets in other formats.
    """
    targets = {row["target"] for row in collect(map_arrow(files, _FindTargets(rules), TARGETS).distinct())}
    known = find_known(spark, context, storage_name, live, targets)
    # Sweeps of earlier releases did not record datasets, so infer them from the planned keys.
    signs = collect(map_arrow(files.select("key"), _FindDatasets(), FOREIGN_DATASETS).distinct()) if is_earlier else []
    listed = pa.Table.from_pylist([row.asDict() for row in signs], FOREIGN_DATASETS)
    found = outermost(listed, rules.claims).column("key").to_pylist()
    return ForeignFinder(rules, known, read_datasets(context, storage_name).union(found))


def foreign_copies(
    spark: SparkSession,
    context: RunContext,
    storage_name: str,
    tables: Sequence[PublishedTable],
    live: Sequence[PublishedTable],
    copies: DataFrame,
) -> DataFrame | None:
    """Find quarantined files that may not belong to the lake (foreign files).

    When they were quarantined, these files were not foreign, or a user had accepted them.

    Args:
        tables: `lake_refs` and `live_files` of all lakes.
        live: `live_files` of all lakes.
        copies: Quarantined copies with the columns key, etag, lake and source_plan_id.

    Returns:
        The foreign copies with the columns key, source_plan_id and rule, or None if no copy is
        foreign.
    """
    claimed = copies.filter(F.col("lake").isNotNull()).select("key", "etag", "lake", "source_plan_id")
    if not collect(claimed.select("key").limit(1)):
        return None
    rules = foreign_rules(context, storage_name, claims_with_dropped(context, storage_name, tables), tables)
    finder = prepare_finder(spark, context, storage_name, rules, live, claimed.select("key", "lake"), is_earlier=True)
    found = map_arrow(claimed, _FindForeign(finder, context.store(storage_name)), _FOREIGN_COPIES)
    sources = {row["source_plan_id"] for row in collect(found.select("source_plan_id").distinct())}
    if not sources:
        return None
    for plan in list_plans(context.config, storage_name, empty=True):
        if plan.header.plan_id in sources:
            found = _leave_out_named(spark, context.state, found, plan.header.plan_id, plan.run)
    return found


def _leave_out_named(spark: SparkSession, state: State, copies: DataFrame, plan_id: str, run: PastRun) -> DataFrame:
    """Remove copies that a commit referenced, unless they are in a dataset of another format."""
    try:
        planned = read_table(spark, state, DELETION_PLAN, state.open(run), columns=["key", "reason"])
    except StateError:  # without the plan, no file is known to be referenced
        return copies
    named = planned.filter(~F.col("reason").isin(*never_named())).select(
        "key", F.lit(plan_id).alias("source_plan_id"), F.lit(True).alias("_named")
    )
    columns = copies.columns
    both = copies.join(named, ["key", "source_plan_id"], "left")
    return both.filter(F.col("_named").isNull() | (F.col("rule") == OTHER_FORMAT)).select(*columns)


@dataclass(frozen=True)
class _FindTargets:
    """Yields the search targets for a check of files (columns key and lake)."""

    rules: ForeignRules

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([self.rules.find_targets(batch)], schema=TARGETS)


@dataclass(frozen=True)
class _FindDatasets:
    """Infers datasets in other formats from keys."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield find_datasets(batch.column("key"))


@dataclass(frozen=True)
class _FindForeign:
    """Yields the foreign copies among quarantined ones, unless a commit referenced them."""

    finder: ForeignFinder
    store: Store

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rules = self.finder.find_rules(_with_times(batch, self.store))
            found = batch.select(["key", "source_plan_id"]).append_column("rule", rules)
            yield found.filter(pc.is_valid(rules))


def _with_times(batch: pa.RecordBatch, store: Store) -> pa.RecordBatch:
    times = store.modification_times(batch.column("etag"))
    return pa.RecordBatch.from_arrays([batch.column("key"), times, batch.column("lake")], names=["key", "last_modified", "lake"])


def _is(rules: pa.Array, rule: str) -> pa.Array:
    return pc.fill_null(pc.equal(rules, rule), False)
