"""Run SQL on a lake with Iceberg's own runtime for Spark, in the environment of the benchmarks' peer.

The module is also the program that runs there, so it imports nothing of this project at the top.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.lakes.iceberg.builder import LakeBuilder


def run_sql(builder: LakeBuilder, statements: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Return the rows of each statement. `{catalog}` in a statement is the name of the catalog in Spark."""
    from benchmarks.peer_iceberg import PACKAGES, ensure_environment

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gc-assets" / "iceberg-spark"
    cache.mkdir(parents=True, exist_ok=True)
    python = ensure_environment(cache)
    name = builder.catalog_name
    request = {
        "packages": PACKAGES,
        "catalog": f"spark.sql.catalog.{name}",
        "database": builder.properties["uri"].removeprefix("sqlite:///"),
        "warehouse": builder.properties["warehouse"],
        "statements": [statement.format(catalog=name) for statement in statements],
    }
    done = subprocess.run([python, __file__], input=json.dumps(request), capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stderr[-4000:])
    found: list[list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    from pyspark.sql import SparkSession

    request = json.load(sys.stdin)
    catalog = request["catalog"]
    settings = {
        "spark.jars.packages": request["packages"],
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{catalog}.uri": f"jdbc:sqlite:{request['database']}",
        f"{catalog}.warehouse": request["warehouse"],
        f"{catalog}.jdbc.schema-version": "V1",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    rows = [[row.asDict(recursive=True) for row in spark.sql(statement).collect()] for statement in request["statements"]]
    print(json.dumps(rows, default=str))  # noqa: T201  (the answer)
    spark.stop()


if __name__ == "__main__":
    main()
