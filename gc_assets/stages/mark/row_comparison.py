"""Compare two versions of the rows of `live_files` by counts and sums of row hashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.engine.tables import ROUTE, WrittenParts, collect, read_paths, row_hash, side_paths, spark_schema
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.side_tables import ROUTED_SIDES

_LOW: Final = 2**32 - 1


def published_routes(table: PublishedTable) -> dict[str, list[str]]:
    """Return the paths of a published table and its routed side tables, by route."""
    return {"": table.paths()} | {side: table.paths(side) for side in ROUTED_SIDES}


def written_routes(run: TableRun, written: WrittenParts) -> dict[str, list[str]]:
    """Return the paths of an unpublished table and its routed side tables, by route."""
    return {"": [f"{run.path}/{part.name}" for part in written.parts]} | {side: side_paths(run, written, side) for side in ROUTED_SIDES}


def read_routes(session: SparkSession, files: Files, paths: Mapping[str, Sequence[str]]) -> DataFrame:
    """Read the rows of the table and its side tables with their route. `paths` are by route."""
    frames = [read_paths(session, files, LIVE_FILES.schema, list(named)).withColumn(ROUTE, F.lit(route)) for route, named in paths.items()]
    return reduce(DataFrame.unionByName, frames)


def sum_hashes(rows: DataFrame) -> dict[str, tuple[int, int]]:
    """Return row count and sum of row hashes modulo 2^64, by route."""
    schema = spark_schema(LIVE_FILES.schema)
    columns = [f"cast(`{field.name}` as {field.dataType.simpleString()}) as `{field.name}`" for field in schema.fields]
    hashed = rows.selectExpr(*columns, ROUTE).select(ROUTE, row_hash(schema).alias("h"))
    low, high = F.col("h").bitwiseAND(F.lit(_LOW)), F.shiftrightunsigned("h", 32)
    found = collect(hashed.groupBy(ROUTE).agg(F.count("*").alias("n"), F.sum(low).alias("low"), F.sum(high).alias("high")))
    return {row[ROUTE]: (row["n"], (row["low"] + (row["high"] << 32)) % 2**64) for row in found}


def describe_differences(incremental: Mapping[str, tuple[int, int]], computed: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
    """Return a message for each route with different sums."""
    differences: list[str] = []
    for route in sorted({*incremental, *computed}):
        mine, other = incremental.get(route, (0, 0)), computed.get(route, (0, 0))
        if mine != other:
            name = f"{LIVE_FILES.name}{'/' if route else ''}{route}"
            differences.append(f"{name}: {mine[0]:,} rows by an incremental run, {other[0]:,} computed")
    return tuple(differences)
