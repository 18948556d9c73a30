"""Where Spark work runs: a session of this process, or a Spark Connect server. Stages see a
`SparkSession` and nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final, Literal

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr
from pyspark.sql import SparkSession

from gc_assets.config.models import SparkConfig
from gc_assets.resources.class_archive import jvm_options
from gc_assets.resources.connect_server import REUSE, keep_apart
from gc_assets.resources.java import ensure_java_home
from gc_assets.stages.tables import BY_SPARK

# What every stage relies on. Times are UTC, casts are strict, batches are large enough for
# vectorised Python, and the list of a table's parts is taken by the driver (a job for listing costs
# more than the listing). A limit looks at all partitions at once.
STAGE_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.limit.initialNumPartitions": "100000",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.adaptive.enabled": "true",
}
JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
# For a JVM that works on few rows: it ends before the slow compiler pays, and leaves no garbage for
# two threads. The quick compiler's own room for code would be full after some minutes.
QUICK: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# Settings of a driver that this process or pyspark's local server starts.
DRIVER_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.speculation": "false",
    # A night is many short jobs: import once for all Python workers. Both cores may collect garbage
    # at once.
    JVM_OPTIONS: "-XX:+UseParallelGC",
    "spark.python.daemon.module": "gc_assets.stages.daemon",
    "spark.log.level": "FATAL",
    # Every column function would tell the JVM which line of Python called it, in eleven calls.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


class SparkRuntime(dg.ConfigurableResource):
    """`session` is Spark in this process, opened on first use. `connect` is `sc://…`, or `local[N]`
    for pyspark's own reusable server.
    """

    mode: Literal["session", "connect"] = "session"
    master: str = "local[*]"
    remote: str = "local[*]"
    conf: dict[str, str] = Field(default_factory=dict[str, str])
    class_archive: bool = True
    _session: SparkSession | None = PrivateAttr(default=None)

    @classmethod
    def from_config(cls, config: SparkConfig) -> SparkRuntime:
        conf = {**config.conf, **({BY_SPARK: "true"} if config.s3a else {})}
        return cls(mode=config.mode, master=config.master, remote=config.remote, conf=conf, class_archive=config.class_archive)

    def session(self, were_few: Callable[[], bool] = lambda: False) -> SparkSession:
        """Returns the session of this process, the same one at every call. `were_few` says whether
        it is for few rows; it is asked where a driver is started in this process.
        """
        if self._session is None:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            self._session = self._connect() if self.mode == "connect" else self._classic(few=were_few())
        return self._session

    def _classic(self, *, few: bool) -> SparkSession:
        settings = {**self._driver(QUICK if few else DRIVER_CONF[JVM_OPTIONS]), "spark.master": self.master, "spark.app.name": "gc-assets"}
        return LazyPySparkResource(spark_config=settings).spark_session

    def _connect(self) -> SparkSession:
        local = self.remote.startswith("local")
        if local:
            os.environ.setdefault(REUSE, "1")
            keep_apart(os.environ)
        builder = SparkSession.builder.remote(self.remote).appName("gc-assets")
        settings = self._driver() if local else {**STAGE_CONF, **self.conf}
        for key, value in settings.items():
            if local or key.startswith("spark.sql."):
                builder = builder.config(key, value)
        return builder.getOrCreate()

    def _driver(self, options: str = DRIVER_CONF[JVM_OPTIONS]) -> dict[str, str]:
        """Returns the settings of a driver on this machine, with the class archive if there is one.
        Options of the JVM that the configuration names take the place of `options`.
        """
        home = ensure_java_home()
        settings = {**DRIVER_CONF, JVM_OPTIONS: options, **STAGE_CONF, **self.conf}
        if self.class_archive:
            settings[JVM_OPTIONS] = f"{settings[JVM_OPTIONS]} {jvm_options(home)}".strip()
        return settings
