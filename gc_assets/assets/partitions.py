"""The one partition of the platform: the run date, UTC (design section 2). Every asset shares it.
Lakes are no second dimension.
"""

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
from gc_assets.state.summaries import Freeze

_log: Final = logging.getLogger(__name__)


def run_dates(clock: Clock, first: date) -> dg.DailyPartitionsDefinition:
    """Returns every day from `first` to today by `clock`, today included: a night is about the day
    it runs on.

    Dagster counts the days by the real clock, so a rehearsal in the future needs as many more days
    at the end.
    """
    ahead = (clock.today() - Clock().today()).days
    return dg.DailyPartitionsDefinition(start_date=first.isoformat(), end_offset=1 + max(0, ahead), timezone="UTC")


def first_run_date(platform: Platform) -> date:
    """Returns the run date with which the partitions begin: `first_run_date` of the configuration,
    else the first night that was run, else today.

    The analysis of an earlier date is no night. A state that cannot be read now says nothing: the
    page opens all the same.
    """
    config, today = platform.config, platform.clock.today()
    if config.first_run_date is not None:
        return min(config.first_run_date, today)
    try:
        state = State.of(config)
        runs = [run for lake in config.lakes for run in state.history(lake.name, LAKE_REFS.name)]
        return min([today, *(run.run_date for run in runs if run.headline(Freeze).is_own_day(run.run_date))])
    except (GcError, OSError) as error:
        _log.warning("the state %s cannot be read, so Dagster's partitions begin today: %s", config.state, error)
        return today
