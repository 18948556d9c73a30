"""The Dagster resource used by all assets: the platform and its Spark."""

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
    """Arguments of all stages. `as_of` replaces the start of the run date when ages are
    measured.
    """

    platform: Platform
    runtime: SparkRuntime
    as_of: datetime | None = None

    @classmethod
    def of(cls, platform: Platform, as_of: datetime | None = None, runtime: SparkRuntime | None = None) -> Collector:
        return cls(platform, runtime or SparkRuntime.from_config(platform.config.spark), as_of)

    def run_context(self, partition_key: str) -> RunContext:
        """Return the context of a run date.

        Raises:
            UsageError: If the date is outside the partitions.
        """
        return self.platform.run_context(date.fromisoformat(partition_key), self.as_of)

    def spark(self) -> SparkSession:
        """Return the session. It is opened on first use, so steps without Spark do not start one."""
        return self.runtime.session(partial(was_small, self.platform.config))
