"""Report how many bytes each ref or retention setting retains, by means of `what_if`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.read.scenarios import MAX_SCENARIOS, Scenario, ref_names
from gc_assets.stages.read.what_if import Effect, what_if

# Anything shorter is within the grace period of most storages.
AGES: Final = ("1d", "3d", "7d", "14d", "30d", "60d", "90d", "180d", "365d")


def blame_by_ref(spark: SparkSession, context: RunContext, lakes: Sequence[str]) -> list[Effect]:
    """For each ref, compute how many bytes would become free if it did not exist.

    Refs with the same name count as one ref, even if they are in different tables or lakes.

    Returns:
        The effects of the refs, beginning with the ref that would free most bytes.
    """
    lakes_by_ref: dict[str, list[str]] = {}
    for lake in lakes:
        for name in ref_names(context, lake):
            lakes_by_ref.setdefault(name, []).append(lake)
    scenarios = [Scenario(name, tuple(found), dropped=frozenset({name})) for name, found in sorted(lakes_by_ref.items())]
    return sorted(_evaluate(spark, context, scenarios), key=lambda effect: (-effect.freed.bytes, effect.scenario.label))


def blame_by_age(spark: SparkSession, context: RunContext, lakes: Sequence[str]) -> list[Effect]:
    """Compute how many bytes would become free with each default retention in `AGES`."""
    return list(what_if(spark, context, [Scenario(age, tuple(lakes), retention=age) for age in AGES]))


def _evaluate(spark: SparkSession, context: RunContext, scenarios: Sequence[Scenario]) -> list[Effect]:
    return [
        effect
        for start in range(0, len(scenarios), MAX_SCENARIOS)
        for effect in what_if(spark, context, scenarios[start : start + MAX_SCENARIOS])
    ]
