"""Execute one run date with Dagster, in this process.

No other module of the command line executes assets. If `DAGSTER_HOME` is set, the run is recorded
in that Dagster instance and shows up in the UI. Without `DAGSTER_HOME`, an ephemeral instance is
used.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, Protocol, cast

import dagster as dg

from gc_assets.assets.failures import read_failure
from gc_assets.assets.names import asset_key, owner_and_table, prefixed_key
from gc_assets.assets.step_log import FORWARDED
from gc_assets.cli.context import Mode, open_session, with_mode
from gc_assets.cli.dagster_events import has_instance
from gc_assets.config.models import Config, StorageConfig
from gc_assets.core import errors
from gc_assets.core.errors import GcError, UsageError
from gc_assets.core.plan import PlanHeader
from gc_assets.core.suggest import did_you_mean
from gc_assets.definitions import build_definitions
from gc_assets.engine.telemetry import stage_span
from gc_assets.lakes.kinds import all_tables, kind_of
from gc_assets.resources.collector import Collector
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.state.schemas import CURRENT_RULES, DELETION_LOG, DELETION_PLAN, LAKE_REFS, POLICY_TABLE, STORAGE_INVENTORY, Table
from gc_assets.stores.store import find_link_sources

ROWS_METADATA: Final = "dagster/row_count"
LOGGER: Final = "command_line"
WITHOUT_SPARK: Final = frozenset({POLICY_TABLE.name, CURRENT_RULES.name, LAKE_REFS.name})


@dataclass(frozen=True, slots=True)
class RunSelection:
    """The part of a run requested by the user, by default all of it.

    Attributes:
        lakes: Restrict the run to these lakes. Unless `storages` is also set, no storage is listed
            and searched for garbage.
        storages: Restrict the run to these storages. The live files of all lakes are computed,
            because any lake may use files of the storages.
        through: Stop after this asset.
    """

    lakes: Collection[str] = ()
    storages: Collection[str] = ()
    through: str | None = None


@dataclass(frozen=True, slots=True)
class PublishedAsset:
    """A published asset, as reported to the observer when its step ends."""

    group: str
    asset: str
    rows: int | None
    seconds: float


class RunObserver(Protocol):
    """Callbacks that display the progress of a run."""

    def set_activity(self, text: str) -> None:
        """Display an activity that belongs to no asset, such as starting Spark."""
        ...

    def start_assets(self, assets: int) -> None:
        """Prepare for a run that will publish this number of assets."""
        ...

    def finish_asset(self, step: PublishedAsset) -> None:
        """Display an asset that has just been published."""
        ...


def run_partition(
    platform: Platform,
    run_date: date,
    selection: RunSelection = RunSelection(),
    *,
    as_of: datetime | None = None,
    mode: Mode | None = None,
    observer: RunObserver,
    verbose: bool = False,
    recorded: bool = True,
) -> tuple[PlanHeader, ...]:
    """Execute the assets of one run date.

    Args:
        as_of: Evaluate the policy as of this time instead of the start of the run date.
        mode: Use this mode instead of the one configured for each storage. In `apply` mode, the run
            restores quarantined files that are live again.
        observer: Is notified of the progress.
        recorded: Whether the run is recorded in the instance of `DAGSTER_HOME`, if there is one.

    Returns:
        The plans that the run created, in the order of the configured storages.

    Raises:
        GcError: If a step fails. It is the error of the first failed step. A plan that its gates
            refuse is not a failure, so it is returned like any other plan.
    """
    platform = with_mode(platform, mode)
    run_context = platform.run_context(run_date, as_of)  # validates the date before anything starts
    assets = build_definitions(platform, as_of, first=run_date)
    keys = _defined_assets(assets, platform, selection)
    in_jobs = platform.config.spark.runs_in_jobs
    if not in_jobs and {asset for _, asset in keys} - WITHOUT_SPARK:
        observer.set_activity("starting Spark")
        open_session(cast(Collector, (assets.resources or {})["collector"]), verbose=verbose)
    observer.start_assets(len(keys))
    if in_jobs:
        observer.set_activity("running a job")
    selected = [prefixed_key(platform.config, *key) for key in keys]
    with stage_span("run", {"gc_assets.stage": "run", "gc_assets.run_date": str(run_date)}):  # the parent span of all stages
        result = _execute(assets, run_date, selected, _logger(observer, verbose), _instance(recorded=recorded))
    plans = [
        header_of(run_context.state.require(storage.name, DELETION_PLAN.name, run_date))
        for storage in platform.config.storages
        if _is_published(result, asset_key(platform.config, storage.name, DELETION_PLAN))
    ]
    if not result.success:
        _raise_failure(result)
    return tuple(plans)


def _defined_assets(definitions: dg.Definitions, platform: Platform, selection: RunSelection) -> list[tuple[str, str]]:
    defined = {key for asset in definitions.assets or () if isinstance(asset, dg.AssetsDefinition) for key in asset.keys}
    keys = [key for key in select_assets(platform, selection) if prefixed_key(platform.config, *key) in defined]
    through = selection.through
    if through is not None and all_tables()[through].scope == "lake" and not any(name == through for _, name in keys):
        raise UsageError(f"--through {through}: no selected lake has this table, or only `apply` writes it")
    return keys


def _execute(
    assets: dg.Definitions,
    run_date: date,
    keys: Sequence[dg.AssetKey],
    logger: dg.LoggerDefinition,
    of_run: AbstractContextManager[dg.DagsterInstance],
) -> dg.ExecuteInProcessResult:
    job = dg.Definitions.merge(assets, dg.Definitions(loggers={LOGGER: logger})).resolve_implicit_global_asset_job_def()
    with of_run as instance:
        return job.execute_in_process(
            run_config={"loggers": {LOGGER: {"config": {}}}},
            instance=instance,
            partition_key=run_date.isoformat(),
            asset_selection=keys,
            raise_on_error=False,
        )


def select_assets(platform: Platform, selection: RunSelection) -> list[tuple[str, str]]:
    """Resolve a selection to `(owner, asset)` pairs, in the order in which the stages run.

    Raises:
        UsageError: If the selection contains an unknown lake, storage or asset.
    """
    config = platform.config
    named_lakes = [config.lake_of_user(name).name for name in selection.lakes]
    named_storages = [config.storage_of_user(name) for name in selection.storages]
    storages = named_storages if named_lakes or named_storages else config.storages
    lakes = named_lakes if named_lakes and not named_storages else [lake.name for lake in config.lakes]
    tables = _tables_through(selection.through, with_storages=bool(storages))
    return [*_lake_assets(config, lakes, tables), *_storage_assets(config, storages, tables)]


def select_lakes_and_storages(platform: Platform, selection: RunSelection) -> tuple[list[str], list[str]]:
    """Return the lakes and storages that a run must be able to read.

    A run without a selected storage still reads metadata of lakes, which can be in any storage. In
    this case, all storages are returned.
    """
    pairs = select_assets(platform, selection)
    lakes = [owner for owner, name in pairs if name == LAKE_REFS.name]
    storages = [owner for owner, name in pairs if name == STORAGE_INVENTORY.name]
    return lakes, list(dict.fromkeys(storages)) or [storage.name for storage in platform.config.storages]


def _tables_through(through: str | None, *, with_storages: bool) -> list[Table]:
    tables = all_tables()
    names = list(tables)
    if through is None:
        return list(tables.values())
    if through not in names:
        raise UsageError(f"--through {through}: unknown asset; available: {', '.join(names)}{did_you_mean(through, names)}")
    if tables[through].scope == "storage" and not with_storages:
        raise UsageError(f"--through {through}: this table is made for each storage, but --lake only selects lakes. Add --storage NAME.")
    return [tables[name] for name in names[: names.index(through) + 1]]


def _lake_assets(config: Config, lakes: Collection[str], tables: Sequence[Table]) -> Iterator[tuple[str, str]]:
    kinds = {lake.name: kind_of(lake) for lake in config.lakes}
    for lake in lakes:
        for table in tables:
            if table.scope == "lake" and not table.by_apply and kinds[lake].has(table):
                yield lake, table.name


def _storage_assets(config: Config, storages: Sequence[StorageConfig], tables: Sequence[Table]) -> Iterator[tuple[str, str]]:
    if any(
        table.name == DELETION_PLAN.name for table in tables
    ):  # a plan reads the inventories of storages that may have links into its own
        sources = {other.name for storage in storages for other in find_link_sources(storage, config.storages)}
        yield from ((name, STORAGE_INVENTORY.name) for name in sorted(sources - {storage.name for storage in storages}))
    for storage in storages:
        for table in tables:
            if table.scope == "storage" and (table.name != DELETION_LOG.name or storage.mode == "apply"):
                yield storage.name, table.name


def _instance(*, recorded: bool) -> AbstractContextManager[dg.DagsterInstance]:
    return dg.DagsterInstance.get() if recorded and has_instance() else dg.DagsterInstance.ephemeral()


def _is_published(result: dg.ExecuteInProcessResult, key: dg.AssetKey) -> bool:
    events = result.get_asset_materialization_events()
    return any(event.asset_key == key for event in events)


def _raise_failure(result: dg.ExecuteInProcessResult) -> None:
    """Re-raise the error of the first failed step with its original class and message."""
    for event in result.all_events:
        if not event.is_step_failure:
            continue
        failure = event.step_failure_data
        data = failure.user_failure_data
        if data is not None and data.description is not None:
            raise _error_class(str(data.metadata["error"].value if "error" in data.metadata else ""))(data.description)
        if failure.error is not None and failure.error.cls_name == dg.DagsterExecutionInterruptedError.__name__:
            raise KeyboardInterrupt
        raise GcError(read_failure(event).text)  # Dagster's log (`-v`) contains the traceback


def _error_class(name: str) -> type[GcError]:
    kind = getattr(errors, name, GcError)
    return kind if isinstance(kind, type) and issubclass(kind, GcError) else GcError


def _logger(observer: RunObserver, verbose: bool) -> dg.LoggerDefinition:
    @dg.logger
    def command_line(_: dg.InitLoggerContext) -> logging.Logger:
        logger = logging.Logger(LOGGER, level=logging.DEBUG)
        logger.addHandler(_EventHandler(observer))
        if verbose:
            shown = logging.StreamHandler()
            shown.addFilter(lambda record: not hasattr(record, FORWARDED))  # `-v` prints it already
            shown.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(shown)
        return logger

    return command_line


class _EventHandler(logging.Handler):
    """Translate Dagster's log events into calls of a `RunObserver`."""

    def __init__(self, observer: RunObserver) -> None:
        super().__init__()
        self._watch = observer
        self._began: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        event: dg.DagsterEvent | None = getattr(record, "dagster_meta", {}).get("dagster_event")
        if event is None:
            return
        if event.is_step_start:
            self._began[event.step_key or ""] = record.created
        if event.is_step_materialization:
            materialization = event.step_materialization_data.materialization
            group, asset = owner_and_table(materialization.asset_key)
            rows = materialization.metadata.get(ROWS_METADATA)
            seconds = record.created - self._began.get(event.step_key or "", record.created)
            self._watch.finish_asset(PublishedAsset(group, asset, cast(int, rows.value) if rows is not None else None, seconds))
