"""Partitions of the assets. All of them are partitioned by run date (UTC) and nothing else."""

from __future__ import annotations

import logging
from datetime import date
from typing import Final

import dagster as dg

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GcError
from gc_assets.resources.platform import Platform
from gc_assets.state.journal import State
from gc_assets.state.schemas import LAKE_REFS
from gc_assets.state.summaries import FreezeTime

_log: Final = logging.getLogger(__name__)


def run_dates(clock: Clock, first: date) -> dg.DailyPartitionsDefinition:
    """Build daily partitions from `first` up to and including today.

    Since Dagster uses the real clock, a rehearsal in the future needs additional partitions.
    """
    ahead = (clock.today() - Clock().today()).days
    return dg.DailyPartitionsDefinition(start_date=first.isoformat(), end_offset=1 + max(0, ahead), timezone="UTC")


def first_run_date(platform: Platform) -> date:
    """Determine the date of the first partition.

    `first_run_date` in the configuration takes precedence. By default, the partitions begin with
    the first run that was not historical, or today if no such run exists. They also begin today if
    the state is unreadable, so that the code location can be loaded anyway.
    """
    config, today = platform.config, platform.clock.today()
    if config.first_run_date is not None:
        return min(config.first_run_date, today)
    try:
        state = State.of(config)
        runs = [run for lake in config.lakes for run in state.history(lake.name, LAKE_REFS.name)]
        return min([today, *(run.run_date for run in runs if run.summary(FreezeTime).is_own_day(run.run_date))])
    except (GcError, OSError) as error:
        _log.warning("Cannot read the state %s, so Dagster's partitions begin today: %s. Run gc-assets doctor.", config.state, error)
        return today
