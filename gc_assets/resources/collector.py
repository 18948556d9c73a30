"""The Dagster resource that all assets use."""

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
    """The platform and the Spark session that stages use.

    Attributes:
        platform: The platform.
        runtime: Opens the Spark session.
        as_of: Reference time for ages, if it is not the start of the run date.
    """

    platform: Platform
    runtime: SparkRuntime
    as_of: datetime | None = None

    @classmethod
    def of(cls, platform: Platform, as_of: datetime | None = None, runtime: SparkRuntime | None = None) -> Collector:
        return cls(platform, runtime or SparkRuntime.from_config(platform.config.spark), as_of)

    def run_context(self, partition_key: str) -> RunContext:
        """Create the run context for a partition.

        Raises:
            UsageError: If the date is outside the range of run dates.
        """
        return self.platform.run_context(date.fromisoformat(partition_key), self.as_of)

    def spark(self) -> SparkSession:
        """Return the Spark session, which is opened on first use, because not all steps need Spark."""
        return self.runtime.session(partial(was_small, self.platform.config))
