"""Iceberg's own collector on the same lake: a dry run of Spark's `remove_orphan_files` on every
table, in one JVM.

A resident process in its own environment, because Iceberg's runtime 1.11.0 supports pyspark 4.1 and
no later release.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.meter import Meter
from benchmarks.resident import answer

PACKAGES = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0,org.xerial:sqlite-jdbc:3.50.3.0"
ON_S3 = "org.apache.iceberg:iceberg-aws-bundle:1.11.0"
_FETCH = f"from pyspark.sql import SparkSession; SparkSession.builder.config('spark.jars.packages', '{PACKAGES}').getOrCreate().stop()"


def ensure_environment(cache: Path) -> Path:
    """Return the Python of the peer's environment. Create it and download Iceberg's jars if needed,
    so that no measured start does.
    """
    home = cache.resolve() / "peer-venv"
    python = home / "bin" / "python"
    if not (home / "finished").exists():
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "pyspark[sql]==4.1.*"], check=True)
        subprocess.run([python, "-c", _FETCH], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (home / "finished").touch()
    return python


class Peer:
    """Runs the procedure on all tables and measures it."""

    def __init__(self) -> None:
        self._meter = Meter(os.getpid())
        self._spark: Any = None

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the usage and the number of orphans.

        Args:
            request: `catalog_file`, `catalog_name`, `warehouse`, `tables` and `older_than` select
                the files. `s3` are the properties of a catalog on S3, whose files are listed by
                Iceberg's S3FileIO, without a jar of Hadoop.
        """
        with self._meter.measure() as usage:
            self._spark = self._spark or self._session(request)
            orphans = sum(self._orphans(request, table) for table in request["tables"])
        return {"total": asdict(usage), "cpu_since_start": self._meter.cpu_seconds(), "unreferenced": orphans}

    def _orphans(self, request: dict[str, Any], table: str) -> int:
        call = (
            f"CALL {request['catalog_name']}.system.remove_orphan_files(table => '{table}', dry_run => true, "
            f"older_than => TIMESTAMP '{request['older_than']}'{', prefix_listing => true' if 's3' in request else ''})"
        )
        return len(self._spark.sql(call).collect())

    def _session(self, request: dict[str, Any]) -> Any:
        from pyspark.sql import SparkSession  # imported from the environment of the peer

        catalog = f"spark.sql.catalog.{request['catalog_name']}"
        settings = {
            "spark.jars.packages": f"{PACKAGES},{ON_S3}" if "s3" in request else PACKAGES,
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            f"{catalog}.uri": f"jdbc:sqlite:{request['catalog_file']}",
            f"{catalog}.warehouse": request["warehouse"],
            f"{catalog}.jdbc.schema-version": "V1",
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.memory": "2g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.log.level": "ERROR",
        }
        builder = SparkSession.builder.master("local[*]").appName("peer")
        for name, value in request.get("s3", {}).items():
            settings[f"{catalog}.{name}"] = value
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        # Without this the procedure refuses an `older_than` less than a day before the real time.
        # Objects on S3 are always that new.
        session._jsparkSession.sessionState().conf().setConfString("spark.testing", "true")
        return session


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    answer(Peer().run)
