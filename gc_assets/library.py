"""Python API for the results of runs: tables, plans, approvals, quarantine and explanations.

Everything is read from the state (the directory of gc-assets' own tables and plans), so you need
neither Spark nor access to the lakes and storages. The only file that is ever written is the index
of plans, if it is missing.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from gc_assets.config.models import Config
from gc_assets.core.deprecation import RenamedAttribute, warn_renamed_attribute
from gc_assets.core.errors import StateError, UsageError
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_paths
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.kinds import all_tables, owners_of, table_with
from gc_assets.resources.platform import Platform, load_platform
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.read.browse import paths_of
from gc_assets.stages.read.explain import Explanation, explain
from gc_assets.stages.read.snapshot_views import history_views
from gc_assets.stages.read.table_rows import read_table_rows
from gc_assets.stages.records.ledger import read_quarantine
from gc_assets.stages.records.plans import ListedPlan, StoredPlan, find_plan, list_plans, load_plan
from gc_assets.state.journal import State
from gc_assets.state.schemas import DELETION_PLAN, LAKE_REFS, LIVE_FILES, Table


def open(path: str | os.PathLike[str] | None = None) -> PublishedRuns:
    """Open the results of all runs of a configuration.

    For example, `open().run().live_files("sales")` reads the live files found by the newest run.

    Args:
        path: The path of a `lakes.yaml`. By default, `$GC_ASSETS_CONFIG` or `./lakes.yaml` is used.

    Raises:
        UsageError: If the configuration is missing or invalid.
        StateError: If the names recorded in the state cannot be read.
    """
    return PublishedRuns(load_platform(os.environ, None if path is None else os.fspath(path)))


_TABLES: Final = all_tables()


def _table_method(name: str):
    table = _TABLES[name]

    def read(self: PublishedRun, owner: str | None = None, columns: Collection[str] | None = None) -> pa.Table:
        return self.table(table.name, owner, columns)

    read.__name__ = table.name
    read.__doc__ = f"{table.doc} `owner` is the {table.scope}, required if there are several."
    return read


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """The results of one run date (a day in UTC). Each published table has a method that reads it.

    Most tables describe this run only. `deletion_log` and `expiry_log` contain all executions of
    the date's plans, and `manifest_entries` contains all entries decoded up to the date.

    The methods for tables take these arguments:

    - `owner`: The name of the lake or storage. You can omit it if only one has the table.
    - `columns`: The columns to read. By default, all columns are read.

    They raise `StateError` if the run date does not have the table, and `UsageError` if the lake or
    storage never has such a table.
    """

    context: RunContext

    night = RenamedAttribute("context")

    policy_table = _table_method("policy_table")
    current_rules = _table_method("current_rules")
    lake_refs = _table_method("lake_refs")
    commit_graph = _table_method("commit_graph")
    reachable_snapshots = _table_method("reachable_snapshots")
    expiry_plan = _table_method("expiry_plan")
    expiry_log = _table_method("expiry_log")
    snapshot_history = _table_method("snapshot_history")
    live_contents = _table_method("live_contents")
    manifest_entries = _table_method("manifest_entries")
    live_files = _table_method("live_files")
    uncommitted_objects = _table_method("uncommitted_objects")
    potential_commits = _table_method("potential_commits")
    lifecycle_objects = _table_method("lifecycle_objects")
    lifecycle_paths = _table_method("lifecycle_paths")
    live_filter = _table_method("live_filter")
    storage_inventory = _table_method("storage_inventory")
    orphan_files = _table_method("orphan_files")
    deletion_plan = _table_method("deletion_plan")
    deletion_log = _table_method("deletion_log")

    @property
    def run_date(self) -> date:
        """The run date, which is a day in UTC."""
        return self.context.run_date

    def table(self, name: str, owner: str | None = None, columns: Collection[str] | None = None) -> pa.Table:
        """Read a table by name into memory.

        Args:
            name: The name of a published table, such as `live_files`.
            owner: The name of the lake or storage. You can omit it if only one has the table.
            columns: The columns to read. By default, all columns are read.

        Raises:
            StateError: If the run date does not have the table.
            UsageError: If the table, owner or a column does not exist.
        """
        table, group = self._table(name, owner, columns)
        schema = table.schema if columns is None else pa.schema([table.schema.field(column) for column in columns])
        return pa.Table.from_batches(read_table_rows(self.context, table, group, columns), schema)

    def frame(self, spark: SparkSession, name: str, owner: str | None = None, columns: Collection[str] | None = None) -> DataFrame:
        """Return a table as a lazy Spark data frame.

        The arguments and errors are those of `table`. Spark's executors must be able to read the
        state.
        """
        table, group = self._table(name, owner, columns)
        names = None if columns is None else list(columns)
        if table is LIVE_FILES:
            return LiveSet(self.context, self.context.table(table, group)).read(spark, columns=names)
        paths = paths_of(self.context.state, table, group, self.run_date)
        return read_paths(spark, self.context.state.files, table.schema, paths, names)

    def plan(self, storage: str | None = None) -> StoredPlan:
        """Load the plan of a storage, with the results of its gates and the decisions about it.

        To read the files in the plan, use `deletion_plan`.

        Args:
            storage: The storage, required if there are several.

        Raises:
            StateError: If the run date has no plan, or the plan is damaged or was changed.
            UsageError: If the storage does not exist.
        """
        name = _owner(self.context.config, DELETION_PLAN, storage)
        return load_plan(self.context.config, self.context.table(DELETION_PLAN, name))

    def explain(self, key: str, storage: str | None = None) -> list[Explanation]:
        """Explain why a file is kept, planned or deleted.

        Args:
            key: A canonical key or an address. A part is sufficient if only one file matches.
            storage: The storage to search. By default, all storages are searched.

        Returns:
            One explanation for each storage that contains the key, or for each searched storage if
            none does.

        Raises:
            StateError: If the run date has no tables.
            UsageError: If the storage does not exist or does not contain the address, or more than
                one file matches.
        """
        return explain(self.context, key, storage and self.context.config.storage_of_user(storage).name)

    def snapshot_views(self, spark: SparkSession, lake: str | None = None) -> None:
        """Create temporary views for querying the history of an Iceberg lake with Spark SQL.

        The views are `snapshot_history`, `manifest_entries` and `all_snapshots`. There is also a
        table function, `expired_snapshots(table)`. If views of another lake exist, they are
        replaced.

        Args:
            lake: The lake, required if there are several Iceberg lakes.

        Raises:
            StateError: If the run date has no history.
            UsageError: If the lake does not exist or is not an Iceberg lake.
        """
        history_views(spark, self.context, _owner(self.context.config, table_with(TableRole.HISTORY), lake))

    def _table(self, name: str, owner: str | None, columns: Collection[str] | None) -> tuple[Table, str]:
        if name not in _TABLES:
            raise UsageError(f"unknown table {name!r}; available: {', '.join(_TABLES)}")
        table = _TABLES[name]
        if unknown := [column for column in columns or () if column not in table.schema.names]:
            raise UsageError(f"{name} has no column {', '.join(unknown)}; its columns are {', '.join(table.schema.names)}")
        return table, _owner(self.context.config, table, owner)


@dataclass(frozen=True, slots=True)
class PublishedRuns:
    """Entry point of the API: the runs, plans and quarantined files of a configuration."""

    platform: Platform

    night = RenamedAttribute("run")
    quarantined = RenamedAttribute("read_quarantine")

    @property
    def now(self) -> datetime:
        """The time (UTC) at which the status of plans is evaluated."""
        return self.platform.clock.now()

    def dates(self) -> list[date]:
        """List all run dates, oldest first.

        A date is listed once a run has read the refs of a lake.
        """
        state = State.of(self.platform.config)
        return sorted({day for lake in self.platform.config.lakes for day in state.dates(lake.name, LAKE_REFS.name)})

    def run(self, run_date: date | str | None = None) -> PublishedRun:
        """Select a run.

        Args:
            run_date: A date, or a string such as `2026-11-22`. By default, the newest run is
                selected.

        Raises:
            UsageError: If `run_date` is not a valid run date.
            StateError: If there is no run yet.
        """
        if run_date is None:
            dates = self.dates()
            if not dates:
                raise StateError(f"{self.platform.path} has no run yet. Run gc-assets run.")
            run_date = dates[-1]
        return PublishedRun(self.platform.run_context(_parse_date(run_date)))

    def plans(self, storage: str | None = None, *, empty: bool = False) -> list[ListedPlan]:
        """List the deletion plans, grouped by storage, newest first in each group.

        Args:
            storage: List only plans of this storage.
            empty: Include plans that contain no actions.

        Raises:
            UsageError: If the storage does not exist.
        """
        config = self.platform.config
        return list(list_plans(config, None if storage is None else config.storage_of_user(storage).name, empty=empty))

    def plan(self, plan_id: str) -> StoredPlan:
        """Load a plan and verify that its rows are unchanged.

        Args:
            plan_id: The plan id. Its first 8 characters are enough.

        Raises:
            UsageError: If no plan has the id, or several begin with it.
            StateError: If the plan is damaged or was changed.
        """
        return find_plan(self.platform.config, plan_id)

    def read_quarantine(self, storage: str | None = None) -> pa.Table:
        """Read which files are in quarantine. A file with several copies has several rows.

        Args:
            storage: The storage, required if there are several.

        Returns:
            One row per quarantined copy, with the columns of `deletion_log` and `quarantined_at`
            (UTC). `source_plan_id` contains the id of the plan that quarantined the file.

        Raises:
            UsageError: If the storage does not exist.
        """
        config = self.platform.config
        return read_quarantine(State.of(config), _owner(config, DELETION_PLAN, storage))


_RENAMED_CLASSES: Final = {"Nights": PublishedRuns, "PublishedNight": PublishedRun}


def __getattr__(name: str) -> Any:
    if name not in _RENAMED_CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed_attribute(f"{__name__}.{name}", _RENAMED_CLASSES[name].__name__)
    return _RENAMED_CLASSES[name]


def _owner(config: Config, table: Table, given: str | None) -> str:
    by_label = {config.label_of(name): name for name in owners_of(config, table)}
    names = list(by_label.values())
    if given is None and len(names) == 1:
        return names[0]
    if given in by_label:
        return by_label[given]
    if given not in names:
        problem = f"pass the {table.scope}" if given is None else f"no {table.scope} {given!r} with this table"
        raise UsageError(f"{table.name}: {problem}; configured: {', '.join(by_label) or 'none'}")
    return given


def _parse_date(text: date | str) -> date:
    if isinstance(text, date):
        return text.date() if isinstance(text, datetime) else text
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"run date {text!r}: expected a date, YYYY-MM-DD") from None
