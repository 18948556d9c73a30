"""Makes the tables that only one kind of lake has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from gc_assets.engine.progress import begin, logged
from gc_assets.engine.run_context import Night
from gc_assets.engine.tables import publish, read_rows, write_rows
from gc_assets.lakes.iceberg.tables import SNAPSHOT_HISTORY
from gc_assets.lakes.kind import KindBox
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS, POTENTIAL_COMMITS, UNCOMMITTED_OBJECTS
from gc_assets.stages.mark.lakefs.lifecycle_objects import lifecycle_objects
from gc_assets.stages.mark.lakefs.potential_commits import potential_commits
from gc_assets.stages.mark.lakefs.uncommitted_objects import uncommitted_objects
from gc_assets.stages.mark.snapshot_history import snapshot_history
from gc_assets.state.journal import Published

Stage = Callable[[Night, str], Published]
SparkStage = Callable[[SparkSession, Night, str], Published]

# Stages of boxes whose kind gives no Arrow function: first without Spark, then with it.
STAGES: Final[dict[str, Stage]] = {UNCOMMITTED_OBJECTS.name: uncommitted_objects}
SPARK_STAGES: Final[dict[str, SparkStage]] = {
    SNAPSHOT_HISTORY.name: snapshot_history,
    POTENTIAL_COMMITS.name: potential_commits,
    LIFECYCLE_OBJECTS.name: lifecycle_objects,
}


def needs_spark(box: KindBox) -> bool:
    """Says whether a stage that asks for a Spark session makes the box."""
    return box.table.name in SPARK_STAGES


def make_box(spark: SparkSession | None, night: Night, lake_name: str, box: KindBox) -> Published:
    """Publishes the box's table of a run date. The session may be null where the box needs none."""
    name = box.table.name
    if name in SPARK_STAGES:
        if spark is None:
            raise TypeError(f"{name} is made with Spark")
        return SPARK_STAGES[name](spark, night, lake_name)
    return STAGES[name](night, lake_name) if name in STAGES else logged(box.table)(_from_rows)(night, lake_name, box)


def _from_rows(night: Night, lake_name: str, box: KindBox) -> Published:
    """Publishes what the kind's own function makes of the lake's tables."""
    if box.rows is None:
        raise TypeError(f"nothing makes {box.table.name}: give its KindBox `rows`, or write a stage and enter it in {__name__}")
    state = night.state
    inputs = {table.name: night.table(table, lake_name) for table in box.after}
    rows = box.rows({table.name: read_rows(state, table, inputs[table.name]) for table in box.after})
    run = begin(night, night.group(lake_name), box.table)
    written = write_rows(rows, box.table, run, state.files)
    return publish(state, run, written, night.clock, inputs=list(inputs.values()), unsafe=night.unsafe)
