"""Read cached entries (`manifest_entries`) as frames."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_paths
from gc_assets.stages.mark.file_entries import IS_FILE_ENTRY
from gc_assets.stages.mark.manifest_entries import count_file_rows, find_segments
from gc_assets.state.compaction import Segments
from gc_assets.state.files import Files
from gc_assets.state.receipts import PartFile
from gc_assets.state.schemas import MANIFEST_ENTRIES
from gc_assets.state.summaries import SegmentSummary


@dataclass(frozen=True, slots=True)
class CachedEntries:
    """Parts with cached entries.

    Attributes:
        paths: The parts, relative to the state.
        rows: Approximate number of file entries.
        has_external: True if some files are outside all storages.
        schema: Schema of the parts.
        scratch: Temporary parts, which this run deletes afterwards.
    """

    paths: tuple[str, ...]
    rows: int
    has_external: bool
    schema: pa.Schema = MANIFEST_ENTRIES.schema
    scratch: tuple[PartFile, ...] = ()

    @classmethod
    def from_segments(cls, cache: Segments) -> CachedEntries:
        has_external = any(segment.summary(SegmentSummary).external for segment in cache.runs)
        return cls(tuple(cache.paths()), count_file_rows(cache.runs), has_external)

    def read(self, spark: SparkSession, files: Files) -> DataFrame:
        """Read the files listed in decoded containers, except those marked as deleted.

        Returns:
            Columns of `manifest_entries`, without `address` if all files are in storages.
        """
        # The address column is as large as all other columns together.
        columns = [name for name in self.schema.names if self.has_external or name != "address"]
        rows = read_paths(spark, files, self.schema, self.paths, columns, only=("is_container", False))
        return rows.filter(IS_FILE_ENTRY)


def read_cached_entries(spark: SparkSession, context: RunContext, lake_name: str) -> DataFrame:
    """Read all cached entries of a lake. See `CachedEntries.read`."""
    return CachedEntries.from_segments(context.state.segments(find_segments(context, lake_name))).read(spark, context.state.files)
