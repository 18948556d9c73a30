"""The one partition of the platform: the run date, UTC (design section 2). Every asset shares it.
Lakes are no second dimension.
"""

from __future__ import annotations

import dagster as dg

from gc_assets.core.clock import Clock
from gc_assets.stages.night import FIRST_RUN_DATE


def run_dates(clock: Clock) -> dg.DailyPartitionsDefinition:
    """Returns every day from 1998-01-01 to today by `clock`, today included: a night is about the
    day it runs on.

    Dagster counts the days by the real clock, so a rehearsal in the future needs as many more days
    at the end.
    """
    ahead = (clock.today() - Clock().today()).days
    return dg.DailyPartitionsDefinition(start_date=FIRST_RUN_DATE.isoformat(), end_offset=1 + max(0, ahead), timezone="UTC")
