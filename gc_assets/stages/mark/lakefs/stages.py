"""The stages that compute the tables of lakeFS, keyed by table name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS, LIFECYCLE_PATHS, POTENTIAL_COMMITS, UNCOMMITTED_OBJECTS
from gc_assets.stages.mark.lakefs.lifecycle_objects import lifecycle_objects
from gc_assets.stages.mark.lakefs.lifecycle_paths import lifecycle_paths
from gc_assets.stages.mark.lakefs.potential_commits import potential_commits
from gc_assets.stages.mark.lakefs.uncommitted_objects import uncommitted_objects
from gc_assets.state.journal import PublishedTable

Stage = Callable[[RunContext, str], PublishedTable]
SparkStage = Callable[[SparkSession, RunContext, str], PublishedTable]

STAGES: Final[dict[str, Stage]] = {UNCOMMITTED_OBJECTS.name: uncommitted_objects}
SPARK_STAGES: Final[dict[str, SparkStage]] = {
    POTENTIAL_COMMITS.name: potential_commits,
    LIFECYCLE_OBJECTS.name: lifecycle_objects,
    LIFECYCLE_PATHS.name: lifecycle_paths,
}
