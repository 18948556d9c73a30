"""Read the cached entries of decoded containers (table `manifest_entries`) as Spark frames."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_paths
from gc_assets.stages.mark.file_entries import IS_FILE_ENTRY
from gc_assets.stages.mark.manifest_entries import find_segments
from gc_assets.state.schemas import MANIFEST_ENTRIES
from gc_assets.state.summaries import SegmentSummary


def read_cached_entries(spark: SparkSession, context: RunContext, lake_name: str) -> DataFrame:
    """Read the files listed in a lake's decoded containers, except those marked as deleted.

    Returns:
        A frame with the columns of `manifest_entries`, without `address` if all files are in
        configured storages.
    """
    state = context.state
    cache = state.segments(find_segments(context, lake_name))
    has_external = any(segment.summary(SegmentSummary).external for segment in cache.runs)
    # The address column is as large as all other columns together.
    columns = [name for name in MANIFEST_ENTRIES.schema.names if has_external or name != "address"]
    rows = read_paths(spark, state.files, MANIFEST_ENTRIES.schema, cache.paths(), columns, only=("is_container", False))
    return rows.filter(IS_FILE_ENTRY)
