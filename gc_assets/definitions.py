"""The Dagster code location, with all assets, jobs, schedules and sensors of a configuration.

There are three jobs: `run` finds garbage and creates plans, `apply` executes an approved plan, and
`analysis` evaluates a date in the past. `page_may` can add `approve`, `reject` and `restore`.

Nothing starts on its own. The schedule and the sensors are off by default, and no asset has an
automation condition.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Final

import dagster as dg

from gc_assets.assets.analysis import analysis
from gc_assets.assets.asset_step import build_owner_mapper
from gc_assets.assets.decisions import decisions
from gc_assets.assets.lake_assets import expiry_log_specs, lake_assets
from gc_assets.assets.names import asset_key
from gc_assets.assets.notifications import notification_sensors
from gc_assets.assets.observations import check_bindings, garbage_checks
from gc_assets.assets.partitions import first_run_date, run_dates
from gc_assets.assets.sensors import approved_plans
from gc_assets.assets.sources import list_tables, source_assets
from gc_assets.assets.storage_assets import storage_assets
from gc_assets.config.models import Config
from gc_assets.core.errors import UsageError
from gc_assets.remote.jobs import Jobs
from gc_assets.remote.steps import remote_jobs, remote_steps
from gc_assets.resources.collector import Collector
from gc_assets.resources.platform import CONFIG_VARIABLE, Platform, config_path, load_platform
from gc_assets.resources.spark import SparkRuntime
from gc_assets.state.schemas import DELETION_LOG

DEMO_DIRECTORY: Final = Path("demo")
# All steps of a run share one Spark session. If every step had its own process, each one would have
# to start Spark.
EXECUTOR: Final = dg.in_process_executor
RUN: Final = "run"
RUN_DESCRIPTION: Final = "Find garbage and create plans. In storages in apply mode, restore quarantined files that are needed again."
# Until 0.4, the `run` job had this name. It is removed in 0.5.
OLD_RUN: Final = "night"
OLD_RUN_DESCRIPTION: Final = "Deprecated, and removed in 0.5: use the `run` job."
APPLY_DESCRIPTION: Final = "Execute one approved plan."
SCHEDULE_DESCRIPTION: Final = "Start the `run` job for the new run date daily at 02:00 UTC. It plans, and deletes nothing."


def build_definitions(
    platform: Platform | str | os.PathLike[str],
    as_of: datetime | None = None,
    first: date | None = None,
    *,
    runtime: SparkRuntime | None = None,
    own: dg.Definitions | None = None,
) -> dg.Definitions:
    """Build the Dagster definitions for a configuration.

    This is fast and safe to call while a code location is being loaded: it does not start Spark or
    open a lake or storage. The result has no executor, so you can merge it with other definitions.

    Args:
        platform: The path of a `lakes.yaml`, or a platform.
        as_of: Evaluate the policy as of this time instead of the start of the run date.
        first: The first partition. By default, the configuration or the state determines it.
        runtime: Use this Spark for all stages instead of the one configured with `spark.mode`.
        own: The definitions of your project. gc-assets looks for assets that write tables of the
            lakes, and adds the `garbage_share` check to them. They do not become part of the
            result.

    Raises:
        UsageError: If the configuration is missing or invalid.
    """
    if not isinstance(platform, Platform):
        if not Path(platform).exists():
            raise UsageError(f"configuration {platform} does not exist; correct the path, or create the file with `gc-assets init`")
        platform = load_platform(os.environ, os.fspath(platform), require_names=False)
    begin = first or first_run_date(platform)
    config, days = platform.config, run_dates(platform.clock, begin)
    assets = [asset for lake in config.lakes for asset in lake_assets(config, lake, days)]
    assets += [asset for storage in config.storages for asset in storage_assets(config, storage, days)]

    single = [*decisions(platform), analysis(begin)]
    if runtime is None and config.spark.runs_in_jobs:
        jobs = Jobs(platform, as_of, begin)
        assets, single = remote_steps(assets, jobs), remote_jobs(single, jobs)

    tables = {lake.name: list_tables(config, lake) for lake in config.lakes}
    checks = garbage_checks(config, check_bindings(config, [(lake, table) for lake in tables for table in tables[lake]], own))
    run, old_run, apply = _jobs(config, assets, checks)
    nightly = dg.build_schedule_from_partitioned_job(run, name="nightly", hour_of_day=2, minute_of_hour=0, description=SCHEDULE_DESCRIPTION)

    specs = [spec for lake in config.lakes for spec in expiry_log_specs(config, lake, days)]
    specs += [spec for lake in config.lakes for spec in source_assets(config, lake, tables[lake.name])]
    return dg.Definitions(
        assets=dg.map_asset_specs(build_owner_mapper(config), [*assets, *specs]),
        asset_checks=checks,
        jobs=[run, old_run, apply, *single],
        schedules=[nightly],
        sensors=[approved_plans(config, apply, begin), *notification_sensors(config)],
        resources={"collector": Collector.of(platform, as_of, runtime)},
    )


def _jobs(
    config: Config, assets: Sequence[dg.AssetsDefinition], checks: Sequence[dg.AssetChecksDefinition]
) -> tuple[dg.UnresolvedAssetJobDefinition, ...]:
    """Define the `run` job, its deprecated alias, and the `apply` job."""
    deletions = {storage.name: asset_key(config, storage.name, DELETION_LOG) for storage in config.storages}
    planning = [key for asset in assets for key in asset.keys if key not in deletions.values()]
    # In apply mode, deletion_log is part of a run. Without a plan id, it only restores files that
    # are needed again.
    restoring = [deletions[storage.name] for storage in config.storages if storage.mode == "apply"]
    selection = dg.AssetSelection.assets(*planning, *restoring)
    if checks:
        selection |= dg.AssetSelection.checks(*(key for check in checks for key in check.check_keys))
    return (
        dg.define_asset_job(RUN, selection, description=RUN_DESCRIPTION, executor_def=EXECUTOR),
        dg.define_asset_job(OLD_RUN, selection, description=OLD_RUN_DESCRIPTION, executor_def=EXECUTOR),
        dg.define_asset_job("apply", dg.AssetSelection.assets(*deletions.values()), description=APPLY_DESCRIPTION, executor_def=EXECUTOR),
    )


@dg.definitions
def defs() -> dg.Definitions:
    """Build the definitions for `$GC_ASSETS_CONFIG` or ./lakes.yaml.

    If there is no configuration, the demo in ./demo is used and created if necessary. All runs,
    including manual materializations, use a single process.
    """
    environment = dict(os.environ)
    if CONFIG_VARIABLE not in environment and not config_path(environment).exists():
        environment[CONFIG_VARIABLE] = str(_demo_config())
    return dg.Definitions.merge(build_definitions(load_platform(environment, require_names=False)), dg.Definitions(executor=EXECUTOR))


def _demo_config() -> Path:
    from gc_assets.demo.sample import ensure_demo  # imported here, because its libraries are optional

    path = ensure_demo(DEMO_DIRECTORY)
    dg.get_dagster_logger("gc_assets").info("No ./lakes.yaml, and GC_ASSETS_CONFIG is not set: using the demo lakes of %s", path)
    return path
