"""Says what each ref alone holds, and each age: what would be garbage without it (`what_if`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.read.scenarios import MAX_SCENARIOS, Scenario, ref_names
from gc_assets.stages.read.what_if import Effect, what_if

# From a day to a year: shorter ones lie within the grace period of most storages.
AGES: Final = ("1d", "3d", "7d", "14d", "30d", "60d", "90d", "180d", "365d")


def blame_by_ref(spark: SparkSession, context: RunContext, lakes: Sequence[str]) -> list[Effect]:
    """Returns what each ref of these lakes holds alone, most bytes first. Refs of one name in
    several tables or lakes count as one.
    """
    having: dict[str, list[str]] = {}
    for lake in lakes:
        for name in ref_names(context, lake):
            having.setdefault(name, []).append(lake)
    scenarios = [Scenario(name, tuple(found), dropped=frozenset({name})) for name, found in sorted(having.items())]
    return sorted(_all(spark, context, scenarios), key=lambda effect: (-effect.freed.bytes, effect.scenario.label))


def blame_by_age(spark: SparkSession, context: RunContext, lakes: Sequence[str]) -> list[Effect]:
    """Returns what each default retention of `AGES` would change, the shortest first."""
    return list(what_if(spark, context, [Scenario(age, tuple(lakes), retention=age) for age in AGES]))


def _all(spark: SparkSession, context: RunContext, scenarios: Sequence[Scenario]) -> list[Effect]:
    return [
        effect
        for start in range(0, len(scenarios), MAX_SCENARIOS)
        for effect in what_if(spark, context, scenarios[start : start + MAX_SCENARIOS])
    ]
