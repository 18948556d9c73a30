"""gc-assets as a library: what the nights found, as Arrow tables or Spark frames; the plans, what
people said of them, and what is in quarantine; why a file is kept.

Reads the state, and changes nothing but the index of plans, which it rebuilds where that is lost.
It opens no lake and no storage, and starts no Spark.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from gc_assets.config.models import Config
from gc_assets.core.errors import StateError, UsageError
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_paths
from gc_assets.lakes.iceberg.tables import SNAPSHOT_HISTORY
from gc_assets.lakes.kinds import all_tables, owners_of
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS, POTENTIAL_COMMITS, UNCOMMITTED_OBJECTS
from gc_assets.resources.platform import Platform, load_platform
from gc_assets.stages.read.browse import batches, runs_of
from gc_assets.stages.read.explain import Explanation, explain
from gc_assets.stages.read.snapshot_views import history_views
from gc_assets.stages.records.ledger import read_quarantine
from gc_assets.stages.records.plans import ListedPlan, StoredPlan, find_plan, list_plans, load_plan
from gc_assets.state import schemas
from gc_assets.state.journal import State
from gc_assets.state.schemas import DELETION_PLAN, LAKE_REFS, Table


def open(path: str | os.PathLike[str] | None = None) -> PublishedRuns:
    """Opens what the nights of a `lakes.yaml` found: of the one given, else of `GC_ASSETS_CONFIG`,
    else of `./lakes.yaml`.

    Raises `UsageError` for whatever is wrong with the file.
    """
    return PublishedRuns(load_platform(os.environ, None if path is None else os.fspath(path)))


def _table_method(table: Table):
    def read(self: PublishedRun, owner: str | None = None, columns: Collection[str] | None = None) -> pa.Table:
        return self.table(table.name, owner, columns)

    read.__name__ = table.name
    read.__doc__ = f"{table.doc} `owner` is the {table.scope}; needed where there are several."
    return read


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """The tables of one run date, by methods of their names. `owner` is the lake or storage that a
    table belongs to, and can be left out where only one has it. `columns` are those wanted.

    The tables that only the execution of a plan writes (`deletion_log`, `expiry_log`) hold all
    executions of the date's plans; `manifest_entries` holds everything decoded up to the date.

    All methods raise `StateError` where the date has no such table, and `UsageError` for an owner
    without it.
    """

    context: RunContext

    policy_table = _table_method(schemas.POLICY_TABLE)
    current_rules = _table_method(schemas.CURRENT_RULES)
    lake_refs = _table_method(schemas.LAKE_REFS)
    commit_graph = _table_method(schemas.COMMIT_GRAPH)
    reachable_snapshots = _table_method(schemas.REACHABLE_SNAPSHOTS)
    expiry_plan = _table_method(schemas.EXPIRY_PLAN)
    expiry_log = _table_method(schemas.EXPIRY_LOG)
    snapshot_history = _table_method(SNAPSHOT_HISTORY)
    live_contents = _table_method(schemas.LIVE_CONTENTS)
    manifest_entries = _table_method(schemas.MANIFEST_ENTRIES)
    live_files = _table_method(schemas.LIVE_FILES)
    uncommitted_objects = _table_method(UNCOMMITTED_OBJECTS)
    potential_commits = _table_method(POTENTIAL_COMMITS)
    lifecycle_objects = _table_method(LIFECYCLE_OBJECTS)
    live_filter = _table_method(schemas.LIVE_FILTER)
    storage_inventory = _table_method(schemas.STORAGE_INVENTORY)
    orphan_files = _table_method(schemas.ORPHAN_FILES)
    deletion_plan = _table_method(schemas.DELETION_PLAN)
    deletion_log = _table_method(schemas.DELETION_LOG)

    @property
    def run_date(self) -> date:
        return self.context.run_date

    def table(self, name: str, owner: str | None = None, columns: Collection[str] | None = None) -> pa.Table:
        """Returns a table by its name, whole and in memory."""
        table, paths = self._table(name, owner, columns)
        wanted = table.schema if columns is None else pa.schema([table.schema.field(column) for column in columns])
        return pa.Table.from_batches(batches(self.context.state, table.schema, paths, columns), wanted)

    def frame(self, spark: SparkSession, name: str, owner: str | None = None, columns: Collection[str] | None = None) -> DataFrame:
        """Returns a table by its name as a frame of your Spark session, which reads it when it is
        asked to.
        """
        table, paths = self._table(name, owner, columns)
        return read_paths(spark, self.context.state.files, table.schema, paths, None if columns is None else list(columns))

    def plan(self, storage: str | None = None) -> StoredPlan:
        """Returns the plan of a storage: its header with gates and totals, and what people said of
        it. Its rows are `deletion_plan`.
        """
        name = _owner(self.context.config, DELETION_PLAN, storage)
        return load_plan(self.context.config, self.context.table(DELETION_PLAN, name))

    def explain(self, key: str, storage: str | None = None) -> list[Explanation]:
        """Returns why a file is kept, planned or gone, by its canonical key or its address; one
        explanation for each storage that knows the key.
        """
        return explain(self.context, key, storage)

    def snapshot_views(self, spark: SparkSession, lake: str | None = None) -> None:
        """Create temporary views over the history of an Iceberg lake in a Spark session.

        The session gets the views `snapshot_history`, `manifest_entries` and `all_snapshots`, and
        the table function `expired_snapshots(table)`. They replace the views of another lake.
        """
        history_views(spark, self.context, _owner(self.context.config, SNAPSHOT_HISTORY, lake))

    def _table(self, name: str, owner: str | None, columns: Collection[str] | None) -> tuple[Table, list[str]]:
        tables = all_tables()
        if name not in tables:
            raise UsageError(f"there is no table {name!r}; there are {', '.join(tables)}")
        table = tables[name]
        if unknown := [column for column in columns or () if column not in table.schema.names]:
            raise UsageError(f"{name} has no column {', '.join(unknown)}; it has {', '.join(table.schema.names)}")
        runs = runs_of(self.context.state, table, _owner(self.context.config, table, owner), self.run_date)
        return table, [path for run in runs for path in run.paths()]


@dataclass(frozen=True, slots=True)
class PublishedRuns:
    """All nights of a platform, and the books that they share: plans and quarantine."""

    platform: Platform

    @property
    def now(self) -> datetime:
        """The platform's clock, by which plans are ready or too late."""
        return self.platform.clock.now()

    def dates(self) -> list[date]:
        """Returns the run dates that some lake was frozen on or for, oldest first."""
        state = State.of(self.platform.config)
        return sorted({day for lake in self.platform.config.lakes for day in state.dates(lake.name, LAKE_REFS.name)})

    def run(self, run_date: date | str | None = None) -> PublishedRun:
        """Returns one night, by its run date (`2026-11-22`); without one the newest.

        Raises `UsageError` for what is no run date, and `StateError` where no night was run.
        """
        if run_date is None:
            dates = self.dates()
            if not dates:
                raise StateError(f"no night of {self.platform.path} was run yet; run `gc-assets run`")
            run_date = dates[-1]
        return PublishedRun(self.platform.run_context(_parse_date(run_date)))

    def plans(self, storage: str | None = None, *, empty: bool = False) -> list[ListedPlan]:
        """Returns the plans of all storages or of one, newest first within a storage; with `empty`
        those too that have nothing to do.
        """
        return list(list_plans(self.platform.config, None if storage is None else self.platform.config.storage(storage).name, empty=empty))

    def plan(self, plan_id: str) -> StoredPlan:
        """Returns a plan by its id or the first characters of it (8 at least). Every byte of its rows
        is verified.
        """
        return find_plan(self.platform.config, plan_id)

    def read_quarantine(self, storage: str | None = None) -> pa.Table:
        """Returns what is in quarantine in a storage, one row per copy, with the plan that put it
        there (`source_plan_id`) and when (`quarantined_at`).
        """
        config = self.platform.config
        return read_quarantine(State.of(config), _owner(config, DELETION_PLAN, storage))


def _owner(config: Config, table: Table, given: str | None) -> str:
    names = owners_of(config, table)
    if given is None and len(names) == 1:
        return names[0]
    if given not in names:
        which = f"say which {table.scope}" if given is None else f"there is no {table.scope} {given!r} with this table"
        raise UsageError(f"{table.name}: {which}; the configuration has {', '.join(names) or 'none'}")
    return given


def _parse_date(text: date | str) -> date:
    if isinstance(text, date):
        return text.date() if isinstance(text, datetime) else text
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"run date {text!r}: expected a date, YYYY-MM-DD") from None
