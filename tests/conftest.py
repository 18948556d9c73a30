"""One Spark session for the whole suite, in the mode that `GC_ASSETS_TEST_SPARK` names: `session` (default) or `connect`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from resources.spark import SparkRuntime

# Small lakes and many short jobs: the quick compiler saves more than it costs.
TEST_CONF = {
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    mode = os.environ.get("GC_ASSETS_TEST_SPARK", "session")
    runtime = SparkRuntime(mode=mode, master="local[2]", remote="local[2]", conf=TEST_CONF)
    yield runtime.session()
    if mode == "session":
        runtime.session().stop()
