"""Where Spark work runs: a session of this process, with executors in it or on a cluster; a Spark
Connect server; or the application that spark-submit started this process for. Stages see a
`SparkSession` and nothing else.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from py4j.protocol import Py4JError
from pydantic import Field, PrivateAttr
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gc_assets.config.models import SparkConfig
from gc_assets.config.spark import LOCAL, is_local, place_of
from gc_assets.core.errors import GcError
from gc_assets.engine.tables import READ_BY_SPARK
from gc_assets.resources.class_archive import jvm_options
from gc_assets.resources.connect_server import REUSE, use_own_server
from gc_assets.resources.executors import build_package, check_executors
from gc_assets.resources.java import ensure_java_home

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
# What every application relies on, wherever its driver was started.
APPLICATION_CONF: Final = {
    "spark.app.name": "gc-assets",
    "spark.speculation": "false",
    "spark.python.daemon.module": "gc_assets.engine.daemon",
    # Every column function would tell the JVM which line of Python called it, in eleven calls.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
# For a JVM that works on few rows: it ends before the slow compiler pays, and leaves no garbage for
# two threads. The quick compiler's own room for code would be full after some minutes.
SMALL_JVM_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# Settings of a driver that this process or pyspark's local server starts.
DRIVER_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    # A night is many short jobs: import once for all Python workers. Both cores may collect garbage
    # at once.
    JVM_OPTIONS: "-XX:+UseParallelGC",
    "spark.log.level": "FATAL",
}
# Of a driver whose executors are threads of its own: nobody else is to reach it.
LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# Which Python runs the tasks, as executors find it.
_WORKERS_PYTHON: Final = "spark.sql.execution.pyspark.python"
_EXECUTORS_PATH: Final = "spark.executorEnv.PYTHONPATH"
# Keys that Spark itself shows nobody (`spark.redaction.regex`).
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
_SUBMIT_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "=": "\\=", ":": "\\:", "#": "\\#", "!": "\\!"}


class SparkRuntime(dg.ConfigurableResource):
    """`session` is Spark in this process, opened on first use, with the executors of `master`.
    `connect` is `sc://…`, or `local[N]` for pyspark's own reusable server. `submitted` is the
    application that spark-submit started this process for.

    Executors of another machine import this package, which is sent to them. `python` is theirs.
    """

    mode: Literal["session", "connect", "submitted"] = "session"
    master: str = LOCAL
    remote: str = LOCAL
    token: str | None = Field(default=None, repr=False)
    python: str | None = None
    conf: dict[str, str] = Field(default_factory=dict[str, str])
    class_archive: bool = True
    _session: SparkSession | None = PrivateAttr(default=None)

    @classmethod
    def from_config(cls, config: SparkConfig, *, submitted: bool = False) -> SparkRuntime:
        """Returns the Spark of this process, which spark-submit started or not. Where a configuration
        asks for jobs, whatever else needs Spark has a session of its own.
        """
        mode = "submitted" if submitted else "connect" if config.mode == "connect" else "session"
        same = config.model_dump(include={"master", "remote", "python", "class_archive"})
        token = config.token.get_secret_value() if config.token is not None else None
        return cls(mode=mode, **same, token=token, conf={**config.conf, **({READ_BY_SPARK: "true"} if config.s3a else {})})

    def session(self, were_few: Callable[[], bool] = lambda: False) -> SparkSession:
        """Returns the session of this process, the same one at every call. `were_few` says whether
        it is for few rows; it is asked where executors are threads of a driver in this process.

        Raises `UsageError` where an engine elsewhere cannot run this release, and `GcError` where it
        does not answer.
        """
        if self._session is None:
            opened = {"session": lambda: self._open_classic(were_few), "connect": self._open_connect, "submitted": self._open_submitted}
            spark = opened[self.mode]()
            where = {"session": self.master, "connect": place_of(self.remote)}.get(self.mode, "") or str(spark.sparkContext.master)
            if not is_local(where):
                try:
                    check_executors(spark, where)
                except BaseException:
                    spark.stop()  # it would hold executors as long as this process lives
                    raise
            self._session = spark
        return self._session

    def application(self, options: str = DRIVER_CONF[JVM_OPTIONS]) -> dict[str, str]:
        """Returns the settings of an application whose driver starts on this machine. Options of the
        JVM that the configuration names take the place of `options`.
        """
        settings = {**self._driver_conf(options), "spark.master": self.master}
        return {**LOOPBACK, **settings} if is_local(self.master) else settings

    def _open_classic(self, were_few: Callable[[], bool]) -> SparkSession:
        if is_local(self.master):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            options = SMALL_JVM_OPTIONS if were_few() else DRIVER_CONF[JVM_OPTIONS]
            return _start_session(self.application(options))
        return self._open_remote(self.application())

    def _open_submitted(self) -> SparkSession:
        # Which master it is, spark-submit knows. This process hears of it with the session.
        return self._open_remote({**APPLICATION_CONF, **STAGE_CONF, **self.conf})

    def _open_remote(self, settings: dict[str, str]) -> SparkSession:
        """Returns a session whose executors on other machines import this package."""
        sent = build_package()
        # Executors fetch the package into the directory in which their Python starts.
        path = {_EXECUTORS_PATH: os.pathsep.join(filter(None, (sent.name, self.conf.get(_EXECUTORS_PATH))))}
        try:
            spark = _start_session({**settings, **self._worker_conf(), **path})
        except (PySparkException, Py4JError) as error:
            said = str(error).partition("\n: ")[2].partition("\n")[0] or error  # without Java's stack
            raise GcError(f"{self.master} starts no application. Is it there, and reached from here? It says: {said}") from error
        if not is_local(str(spark.sparkContext.master)):
            spark.sparkContext.addPyFile(str(sent))
        return spark

    def _open_connect(self) -> SparkSession:
        if not is_local(self.remote):
            from gc_assets.resources.connect_service import open_service  # grpc is slow to load, and of no use elsewhere

            return open_service(self.remote, self.token, {**STAGE_CONF, **self.conf, **self._worker_conf()})
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault(REUSE, "1")
        use_own_server(os.environ)
        builder = SparkSession.builder.remote(self.remote)
        for key, value in {**LOOPBACK, **self._driver_conf()}.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()

    def _worker_conf(self) -> dict[str, str]:
        return {_WORKERS_PYTHON: self.python} if self.python is not None else {}

    def _driver_conf(self, options: str = DRIVER_CONF[JVM_OPTIONS]) -> dict[str, str]:
        """Returns the settings of a driver on this machine, with the class archive if there is one."""
        home = ensure_java_home()
        settings = {**DRIVER_CONF, JVM_OPTIONS: options, **APPLICATION_CONF, **STAGE_CONF, **self.conf}
        if self.class_archive:
            settings[JVM_OPTIONS] = f"{settings[JVM_OPTIONS]} {jvm_options(home)}".strip()
        return settings


def _start_session(settings: Mapping[str, str]) -> SparkSession:
    """Returns the classic session of this process. Where pyspark starts the JVM for it, it writes the
    settings on a command line that every user of this machine can read, so secrets go by a file.
    """
    secrets = {key: value for key, value in settings.items() if _SECRET.search(key)}
    is_started = SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ  # pyright: ignore[reportPrivateUsage]
    if not secrets or is_started:
        return LazyPySparkResource(spark_config=dict(settings)).spark_session
    shown = {key: value for key, value in settings.items() if key not in secrets}
    with tempfile.TemporaryDirectory(prefix="gc-assets-conf-") as place:
        file = Path(place) / "spark.conf"
        file.write_text(properties(secrets), encoding="utf-8")
        before = os.environ.get(_SUBMIT_ARGUMENTS)
        words = f"--load-spark-defaults --properties-file {shlex.quote(str(file))} {before or 'pyspark-shell'}"
        os.environ[_SUBMIT_ARGUMENTS] = words
        try:
            return LazyPySparkResource(spark_config=shown).spark_session
        finally:
            os.environ.pop(_SUBMIT_ARGUMENTS)
            os.environ.update({_SUBMIT_ARGUMENTS: before} if before is not None else {})


def properties(settings: Mapping[str, str]) -> str:
    """Returns settings as a file of Java's properties."""
    return "".join(f"{_escape(key)}={_escape(value)}\n" for key, value in settings.items())


def _escape(text: str) -> str:
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped
