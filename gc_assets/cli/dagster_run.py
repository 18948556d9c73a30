"""Runs one run date through Dagster, in this process, and says what came of it.

The only module of the command line that runs Dagster's assets. They are the assets of
`definitions.py`. An ephemeral instance holds the run unless `DAGSTER_HOME` names one, whose web
page then shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, Protocol, cast

import dagster as dg

from gc_assets.assets.failures import read_failure
from gc_assets.assets.step_log import FORWARDED
from gc_assets.cli.context import Mode, open_session, with_full, with_mode
from gc_assets.cli.dagster_events import has_instance
from gc_assets.core import errors
from gc_assets.core.errors import GcError, UsageError
from gc_assets.core.plan import PlanHeader
from gc_assets.core.suggest import did_you_mean
from gc_assets.definitions import build_definitions
from gc_assets.lakes.kinds import all_tables, kind_of
from gc_assets.resources.collector import Collector
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.state.schemas import CURRENT_RULES, DELETION_LOG, DELETION_PLAN, LAKE_REFS, POLICY_TABLE, STORAGE_INVENTORY
from gc_assets.stores.store import find_link_sources

ROWS_METADATA: Final = "dagster/row_count"
LOGGER: Final = "command_line"
WITHOUT_SPARK: Final = frozenset({POLICY_TABLE.name, CURRENT_RULES.name, LAKE_REFS.name})


@dataclass(frozen=True, slots=True)
class PublishedAsset:
    """An asset that this run has just published, `seconds` after it began."""

    group: str
    asset: str
    rows: int | None
    seconds: float


class RunObserver(Protocol):
    """Is told how a run goes."""

    def set_activity(self, text: str) -> None:
        """Something begins that is no asset."""
        ...

    def start_assets(self, assets: int) -> None:
        """So many assets are to be made."""
        ...

    def finish_asset(self, step: PublishedAsset) -> None:
        """An asset was published."""
        ...


def run_partition(
    platform: Platform,
    run_date: date,
    *,
    as_of: datetime | None = None,
    lakes: Collection[str] = (),
    storages: Collection[str] = (),
    through: str | None = None,
    mode: Mode | None = None,
    full: bool = False,
    watch: RunObserver,
    verbose: bool = False,
) -> tuple[PlanHeader, ...]:
    """Runs the night and returns the plans that this run made, one per storage that it swept, in
    the configuration's order.

    Without `lakes` and `storages` everything runs. A storage needs all lakes; a lake alone needs no
    storage. `through` names the last asset wanted. In mode `apply` files that came back to life are
    restored; a plan that asks for anything else waits for its approval. With `full` no row of
    `live_files` is carried over from an earlier night.

    Raises the first error of the run as it was. A plan that its gates refuse is returned.
    """
    chosen = with_full(with_mode(platform, mode), full)
    run_context = chosen.run_context(run_date, as_of)  # refuses a wrong date before anything starts
    assets = build_definitions(chosen, as_of, first=run_date)
    there = {key for asset in assets.assets or () if isinstance(asset, dg.AssetsDefinition) for key in asset.keys}
    keys = [key for key in select_assets(chosen, lakes, storages, through) if dg.AssetKey(list(key)) in there]
    if through is not None and all_tables()[through].scope == "lake" and not any(name == through for _, name in keys):
        raise UsageError(f"--through {through}: none of the chosen lakes has this table, or only `apply` writes it")
    in_jobs = chosen.config.spark.in_jobs
    if not in_jobs and {asset for _, asset in keys} - WITHOUT_SPARK:
        watch.set_activity("starting Spark")
        open_session(cast(Collector, (assets.resources or {})["collector"]), verbose=verbose)
    watch.start_assets(len(keys))
    if in_jobs:
        watch.set_activity("at work in a job")
    definitions = dg.Definitions.merge(assets, dg.Definitions(loggers={LOGGER: _logger(watch, verbose)}))
    job = definitions.resolve_implicit_global_asset_job_def()
    with _instance() as instance:
        result = job.execute_in_process(
            run_config={"loggers": {LOGGER: {"config": {}}}},
            instance=instance,
            partition_key=run_date.isoformat(),
            asset_selection=[dg.AssetKey(list(key)) for key in keys],
            raise_on_error=False,
        )
    made = [
        header_of(run_context.state.require(storage.name, DELETION_PLAN.name, run_date))
        for storage in chosen.config.storages
        if _is_published(result, storage.name, DELETION_PLAN.name)
    ]
    if not result.success:
        _raise_failure(result, refused={header.storage for header in made if header.failed_gates})
    return tuple(made)


def select_assets(platform: Platform, lakes: Collection[str], storages: Collection[str], through: str | None) -> list[tuple[str, str]]:
    """Returns the (group, asset) pairs to materialize, in the order of the flow. Raises
    `UsageError` for a name that does not exist.
    """
    config = platform.config
    some_lakes = [config.lake(name).name for name in lakes]
    some_storages = [config.storage(name) for name in storages]
    everything = not some_lakes and not some_storages
    chosen_storages = config.storages if everything else some_storages
    chosen_lakes = some_lakes if some_lakes and not some_storages else [lake.name for lake in config.lakes]
    tables = all_tables()
    names = list(tables)
    if through is not None and through not in names:
        raise UsageError(f"--through {through}: no such asset; there are {', '.join(names)}{did_you_mean(through, names)}")
    if through is not None and tables[through].scope == "storage" and not chosen_storages:
        raise UsageError(f"--through {through}: it is a table of a storage, and --lake alone runs none; name the storage with --storage")
    until = names if through is None else names[: names.index(through) + 1]
    kinds = {lake.name: kind_of(lake) for lake in config.lakes}
    of_lakes = [table for table in map(tables.__getitem__, until) if table.scope == "lake" and not table.by_apply]
    keys = [(lake, table.name) for lake in chosen_lakes for table in of_lakes if kinds[lake].has(table)]
    beside = {other.name for storage in chosen_storages for other in find_link_sources(storage, config.storages)}
    if DELETION_PLAN.name in until:
        keys += [(name, STORAGE_INVENTORY.name) for name in sorted(beside - {storage.name for storage in chosen_storages})]
    return keys + [
        (storage.name, name)
        for storage in chosen_storages
        for name in until
        if tables[name].scope == "storage" and (name != DELETION_LOG.name or storage.mode == "apply")
    ]


def _instance() -> AbstractContextManager[dg.DagsterInstance]:
    return dg.DagsterInstance.get() if has_instance() else dg.DagsterInstance.ephemeral()


def _is_published(result: dg.ExecuteInProcessResult, group: str, asset: str) -> bool:
    events = result.get_asset_materialization_events()
    return any(event.asset_key == dg.AssetKey([group, asset]) for event in events)


def _raise_failure(result: dg.ExecuteInProcessResult, refused: set[str]) -> None:
    """Raises what stopped the first failed step. A plan that its own gates refuse is no failure of
    the run.
    """
    for event in result.all_events:
        if not event.is_step_failure:
            continue
        failure = event.step_failure_data
        told = failure.user_failure_data
        if told is not None and told.description is not None:
            raise _error_class(str(told.metadata["error"].value if "error" in told.metadata else ""))(told.description)
        if failure.error is not None and failure.error.cls_name == dg.DagsterExecutionInterruptedError.__name__:
            raise KeyboardInterrupt
        cause = read_failure(event)  # in its own words; Dagster's log (`-v`) has the traces
        if cause.checks and _failed_checks(result, event) <= {(storage, DELETION_PLAN.name) for storage in refused}:
            continue
        raise GcError(cause.text)


def _failed_checks(result: dg.ExecuteInProcessResult, failure: dg.DagsterEvent) -> set[tuple[str, ...]]:
    """Returns the assets of a step with a blocking check that failed."""
    checks = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    events = [event for event in result.all_events if event.event_type is checks and event.step_key == failure.step_key]
    evaluations = [event.asset_check_evaluation_data for event in events]
    return {tuple(check.asset_key.path) for check in evaluations if check.blocking and not check.passed}


def _error_class(name: str) -> type[GcError]:
    kind = getattr(errors, name, GcError)
    return kind if isinstance(kind, type) and issubclass(kind, GcError) else GcError


def _logger(watch: RunObserver, verbose: bool) -> dg.LoggerDefinition:
    @dg.logger
    def command_line(_: dg.InitLoggerContext) -> logging.Logger:
        logger = logging.Logger(LOGGER, level=logging.DEBUG)
        logger.addHandler(_EventHandler(watch))
        if verbose:
            shown = logging.StreamHandler()
            shown.addFilter(lambda record: not hasattr(record, FORWARDED))  # `-v` prints it where it was logged
            shown.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(shown)
        return logger

    return command_line


class _EventHandler(logging.Handler):
    """Turns Dagster's materialization events into steps, as they happen."""

    def __init__(self, watch: RunObserver) -> None:
        super().__init__()
        self._watch = watch
        self._began: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        event: dg.DagsterEvent | None = getattr(record, "dagster_meta", {}).get("dagster_event")
        if event is None:
            return
        if event.is_step_start:
            self._began[event.step_key or ""] = record.created
        if event.is_step_materialization:
            materialization = event.step_materialization_data.materialization
            *_, group, asset = materialization.asset_key.path
            rows = materialization.metadata.get(ROWS_METADATA)
            seconds = record.created - self._began.get(event.step_key or "", record.created)
            self._watch.finish_asset(PublishedAsset(group, asset, cast(int, rows.value) if rows is not None else None, seconds))
