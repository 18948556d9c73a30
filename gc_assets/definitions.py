"""The code location: every asset, job, schedule and sensor of a configuration.

`night` finds out and plans, `apply` executes one approved plan, `analysis` works out an earlier
date. `approve`, `reject` and `restore` are there where `page_may` names them. The schedule and the
sensors are off until somebody turns them on, and nothing has an automation condition.
"""

from __future__ import annotations

import os
from datetime import date, datetime
from pathlib import Path
from typing import Final

import dagster as dg

from gc_assets.assets.analysis import analysis
from gc_assets.assets.asset_step import build_owner_mapper
from gc_assets.assets.decisions import decisions
from gc_assets.assets.lake_assets import expiry_log_specs, lake_assets
from gc_assets.assets.notifications import notification_sensors
from gc_assets.assets.partitions import first_run_date, run_dates
from gc_assets.assets.results import asset_key
from gc_assets.assets.sensors import approved_plans
from gc_assets.assets.sources import list_tables, source_assets
from gc_assets.assets.storage_assets import storage_assets
from gc_assets.remote.jobs import Jobs
from gc_assets.remote.steps import remote_jobs, remote_steps
from gc_assets.resources.collector import Collector
from gc_assets.resources.platform import CONFIG_VARIABLE, Platform, config_path, load_platform
from gc_assets.resources.spark import SparkRuntime
from gc_assets.state.schemas import DELETION_LOG

DEMO_DIRECTORY: Final = Path("demo")
# The boxes of a night are a chain and share one Spark session; a process for each would start one
# each.
EXECUTOR: Final = dg.in_process_executor
RUN_DESCRIPTION: Final = "Finds out what is garbage and plans; where a storage is in mode apply it also puts back what is needed again."
APPLY_DESCRIPTION: Final = "Executes one approved plan, by its id."
SCHEDULE_DESCRIPTION: Final = "The job `night` for the day that begins, at 02:00 UTC. It plans, and deletes nothing."


def build_definitions(
    platform: Platform | str | os.PathLike[str],
    as_of: datetime | None = None,
    first: date | None = None,
    *,
    runtime: SparkRuntime | None = None,
) -> dg.Definitions:
    """All definitions of a platform, or of the `lakes.yaml` at a path. Building them opens no lake,
    no storage and no Spark. They can be merged with those of another project, whose executor they
    leave alone.

    `as_of` replaces the start of the run date. The partitions begin with `first`; without it the
    configuration or the state says with which night. `runtime` is the Spark of this process, which
    runs the stages whatever the configuration says. Raises `UsageError` for whatever is wrong with
    the file.
    """
    if not isinstance(platform, Platform):
        platform = load_platform(os.environ, os.fspath(platform))
    begin = first or first_run_date(platform)
    config, days = platform.config, run_dates(platform.clock, begin)
    assets = [asset for lake in config.lakes for asset in lake_assets(lake, days)]
    assets += [asset for storage in config.storages for asset in storage_assets(storage, config.lakes, config.storages, days)]

    single = [*decisions(config), analysis(begin)]
    if runtime is None and config.spark.in_jobs:
        jobs = Jobs(platform, as_of, begin)
        assets, single = remote_steps(assets, jobs), remote_jobs(single, jobs)

    deletions = {storage.name: asset_key(storage.name, DELETION_LOG) for storage in config.storages}
    planning = [key for asset in assets for key in asset.keys if key not in deletions.values()]
    # Without a plan id deletion_log does one thing only, and in mode apply only: it puts back what
    # the night found needed again.
    restoring = [deletions[storage.name] for storage in config.storages if storage.mode == "apply"]
    night = dg.define_asset_job(
        "night", dg.AssetSelection.assets(*planning, *restoring), description=RUN_DESCRIPTION, executor_def=EXECUTOR
    )
    apply = dg.define_asset_job(
        "apply", dg.AssetSelection.assets(*deletions.values()), description=APPLY_DESCRIPTION, executor_def=EXECUTOR
    )

    specs = [spec for lake in config.lakes for spec in expiry_log_specs(lake, config.storages, days)]
    specs += [spec for lake in config.lakes for spec in source_assets(lake, list_tables(config, lake))]
    return dg.Definitions(
        assets=dg.map_asset_specs(build_owner_mapper(config), [*assets, *specs]),
        jobs=[night, apply, *single],
        schedules=[
            dg.build_schedule_from_partitioned_job(night, name="nightly", hour_of_day=2, minute_of_hour=0, description=SCHEDULE_DESCRIPTION)
        ],
        sensors=[approved_plans(apply), *notification_sensors(config)],
        resources={"collector": Collector.of(platform, as_of, runtime)},
    )


@dg.definitions
def defs() -> dg.Definitions:
    """The definitions of `GC_ASSETS_CONFIG` or ./lakes.yaml; of the demo lakes in ./demo where
    there is neither. What is launched by hand runs in one process too.
    """
    environment = dict(os.environ)
    if CONFIG_VARIABLE not in environment and not config_path(environment).exists():
        environment[CONFIG_VARIABLE] = str(_demo_config())
    return dg.Definitions.merge(build_definitions(load_platform(environment)), dg.Definitions(executor=EXECUTOR))


def _demo_config() -> Path:
    from gc_assets.demo.sample import ensure_demo  # the demo builds lakes with libraries that a platform with a configuration need not have

    path = ensure_demo(DEMO_DIRECTORY)
    dg.get_dagster_logger("gc_assets").info(
        "There is no lakes.yaml here and GC_ASSETS_CONFIG is not set: these are the demo lakes of %s", path
    )
    return path
