"""The Dagster resource of every asset: the platform with the Spark it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from functools import partial

from pyspark.sql import SparkSession

from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import was_small
from gc_assets.resources.platform import Platform
from gc_assets.resources.spark import SparkRuntime


@dataclass(frozen=True)
class Collector:
    """What an asset needs to call a stage. `as_of` replaces the start of the run date in a run that
    asks for it.
    """

    platform: Platform
    runtime: SparkRuntime
    as_of: datetime | None = None

    @classmethod
    def of(cls, platform: Platform, as_of: datetime | None = None, runtime: SparkRuntime | None = None) -> Collector:
        return cls(platform, runtime or SparkRuntime.from_config(platform.config.spark), as_of)

    def run_context(self, partition_key: str) -> RunContext:
        """Returns the night of a run date. Raises `UsageError` for a date outside the partitions."""
        return self.platform.run_context(date.fromisoformat(partition_key), self.as_of)

    def spark(self) -> SparkSession:
        """The session, opened on first use: assets that need no Spark start none."""
        return self.runtime.session(partial(was_small, self.platform.config))
