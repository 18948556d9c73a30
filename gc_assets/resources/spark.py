"""Open the Spark session that a configuration specifies.

It can be a session in this process with local or remote executors, a session on a Spark Connect
server, or the application of the spark-submit that started this process. Stages need not
distinguish these, because they only use a `SparkSession`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import dagster as dg
import pyspark
from dagster_pyspark import LazyPySparkResource
from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError
from pydantic import Field, PrivateAttr
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gc_assets.config.models import SparkConfig
from gc_assets.config.spark import LOCAL, is_local, without_parameters
from gc_assets.core.errors import GcError
from gc_assets.engine.sessions import is_remote
from gc_assets.engine.tables import READ_BY_SPARK
from gc_assets.resources.class_archive import jvm_options
from gc_assets.resources.connect_server import use_own_server
from gc_assets.resources.executors import build_package, check_executors
from gc_assets.resources.java import ensure_java_home
from gc_assets.resources.spark_version import is_spark_3, minor, require_connect, require_equal, require_supported

# All stages rely on these settings. Times are in UTC, casts are strict, and batches are large
# enough for vectorised Python. The driver lists the parts of a table itself, because a job would
# take longer. A query with a limit reads all partitions at the same time.
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
# Settings for all applications, wherever their driver runs.
APPLICATION_CONF: Final = {
    "spark.app.name": "gc-assets",
    "spark.speculation": "false",
    "spark.python.daemon.module": "gc_assets.engine.daemon",
    # If enabled, each column function sends its line of Python to the JVM, which takes eleven calls.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
# JVM options for small runs. They end before an optimizing compiler pays off, and create little
# garbage. The code cache is larger than usual for the quick compiler, because it would otherwise be
# full after some minutes.
SMALL_JVM_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# Settings for a driver that this process or pyspark's local server starts.
DRIVER_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    # A run consists of many short jobs, so all cores should collect garbage at the same time.
    JVM_OPTIONS: "-XX:+UseParallelGC",
    "spark.log.level": "FATAL",
}
# If executors are threads of the driver, other machines must not be able to connect to it.
LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# Sets the Python that executors use.
_WORKERS_PYTHON: Final = "spark.sql.execution.pyspark.python"
_EXECUTORS_PATH: Final = "spark.executorEnv.PYTHONPATH"
# Looking up these names searches all jars. This takes a tenth of the JVM's CPU time in a small run.
_JAVA_CLASSES: Final = (
    "functions",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.SparkSession",
    "PythonUtils",
    "PythonSQLUtils",
)
# Spark redacts the values of these keys as well (`spark.redaction.regex`).
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
_SUBMIT_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "=": "\\=", ":": "\\:", "#": "\\#", "!": "\\!"}


class SparkRuntime(dg.ConfigurableResource):
    """A Dagster resource that opens the Spark session when it is first needed.

    If executors are on other machines, gc-assets is sent to them.

    Attributes:
        mode: `session` for a session of this process, `connect` for a Spark Connect server, or
            `submitted` for the application of spark-submit.
        master: The Spark master in `session` mode.
        remote: The server in `connect` mode, or `local[N]` for pyspark's reusable local server.
        token: The access token for the Spark Connect server.
        python: The Python that executors on other machines use.
        conf: Further Spark settings.
        class_archive: Whether a local JVM maps the class archive.
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
        """Create the runtime for a configuration.

        If steps run as remote jobs, the runtime opens a session of this process for all other work.

        Args:
            config: The Spark settings of the configuration.
            submitted: Whether spark-submit has started this process.
        """
        mode = "submitted" if submitted else "connect" if config.mode == "connect" else "session"
        same = config.model_dump(include={"master", "remote", "python", "class_archive"})
        token = config.token.get_secret_value() if config.token is not None else None
        return cls(mode=mode, **same, token=token, conf={**config.conf, **({READ_BY_SPARK: "true"} if config.s3a else {})})

    def session(self, was_small: Callable[[], bool] = lambda: False) -> SparkSession:
        """Open the Spark session of this process. Later calls return the same session.

        Args:
            was_small: Returns whether the work is expected to be small. It is only called if
                executors are threads of the driver on this machine.

        Raises:
            UsageError: If the version of Spark is not supported, or if executors on other machines
                cannot run this release.
            GcError: If the Spark master or server does not answer.
        """
        if self._session is None:
            require_supported(pyspark.__version__, "this process")
            opened = {"session": lambda: self._open_classic(was_small), "connect": self._open_connect, "submitted": self._open_submitted}
            spark = opened[self.mode]()
            addresses = {"session": self.master, "connect": without_parameters(self.remote)}
            where = addresses.get(self.mode) or str(spark.sparkContext.master)
            try:
                require_equal(spark.version, where)  # SPARK_HOME can point to another Spark
                if not is_local(where):
                    check_executors(spark, where)
            except BaseException:
                spark.stop()  # otherwise it would occupy executors until this process ends
                raise
            self._session = spark
        return self._session

    def application(self, options: str = DRIVER_CONF[JVM_OPTIONS]) -> dict[str, str]:
        """Return all settings for a Spark application whose driver starts on this machine.

        Args:
            options: The JVM options to use if the configuration contains none.
        """
        settings = {**self._driver_conf(options), "spark.master": self.master}
        return {**LOOPBACK, **settings} if is_local(self.master) else settings

    def _open_classic(self, was_small: Callable[[], bool]) -> SparkSession:
        if is_local(self.master):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            options = SMALL_JVM_OPTIONS if was_small() else DRIVER_CONF[JVM_OPTIONS]
            return _start_session(self.application(options))
        return self._open_remote(self.application())

    def _open_submitted(self) -> SparkSession:
        # The master is not set here, because spark-submit has set it.
        return self._open_remote({**APPLICATION_CONF, **STAGE_CONF, **self.conf})

    def _open_remote(self, settings: dict[str, str]) -> SparkSession:
        """Open a session with executors on other machines, and send them this package."""
        sent = build_package()
        # Executors fetch the package into the working directory of their Python.
        path = {_EXECUTORS_PATH: os.pathsep.join(filter(None, (sent.name, self.conf.get(_EXECUTORS_PATH))))}
        try:
            spark = _start_session({**settings, **self._worker_conf(), **path})
        except (PySparkException, Py4JError) as error:
            reason = str(error).partition("\n: ")[2].partition("\n")[0] or str(error)  # without Java's stack trace
            # A master with another minor version rejects the application without giving a reason.
            raise GcError(
                f"Cannot start an application on {self.master}: {reason.rstrip('.')}. Check that the master runs, is reachable and has "
                f"Spark {minor(pyspark.__version__)}, because this process has pyspark {pyspark.__version__}."
            ) from error
        if not is_local(str(spark.sparkContext.master)):
            spark.sparkContext.addPyFile(str(sent))
        return spark

    def _open_connect(self) -> SparkSession:
        require_connect()
        if not is_local(self.remote):
            from gc_assets.resources.connect_service import open_service  # grpc is slow to import

            return open_service(self.remote, self.token, {**STAGE_CONF, **self.conf, **self._worker_conf()})
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        directory = use_own_server(os.environ)
        active = SparkSession.getActiveSession()
        if active is not None and is_remote(active):
            return active  # pyspark has one session per process
        from pyspark.sql.connect.local_server import reuse_or_start_local_connect_server

        from gc_assets.resources.connect_sessions import session_pool

        url = reuse_or_start_local_connect_server(self.remote, {**LOOPBACK, **self._driver_conf()})
        settings = {**STAGE_CONF, **self.conf}  # all other settings only matter when the server starts

        def connect(session_id: str) -> SparkSession:
            builder = SparkSession.builder.remote(f"{url}/;session_id={session_id}")
            for key, value in settings.items():
                builder = builder.config(key, value)
            return builder.getOrCreate()

        return session_pool(directory / "sessions").open(settings, connect)

    def _worker_conf(self) -> dict[str, str]:
        return {_WORKERS_PYTHON: self.python} if self.python is not None else {}

    def _driver_conf(self, options: str = DRIVER_CONF[JVM_OPTIONS]) -> dict[str, str]:
        """Return the settings for a driver on this machine, with the class archive if possible."""
        home = ensure_java_home()
        settings = {**DRIVER_CONF, JVM_OPTIONS: options, **APPLICATION_CONF, **STAGE_CONF, **self.conf}
        if self.class_archive:
            settings[JVM_OPTIONS] = f"{settings[JVM_OPTIONS]} {jvm_options(home)}".strip()
        return settings


def _start_session(settings: Mapping[str, str]) -> SparkSession:
    """Start a classic session in this process.

    Secrets are passed to the JVM in a file, because all users of a machine can read the command
    line on which pyspark passes settings.
    """
    secrets = {key: value for key, value in settings.items() if _SECRET.search(key)}
    is_started = SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ  # pyright: ignore[reportPrivateUsage]
    if not secrets or is_started:
        return _keep_classes(LazyPySparkResource(spark_config=dict(settings)).spark_session)
    shown = {key: value for key, value in settings.items() if key not in secrets}
    with tempfile.TemporaryDirectory(prefix="gc-assets-conf-") as directory:
        file = Path(directory) / "spark.conf"
        home = Path(os.environ.get("SPARK_HOME") or pyspark.__path__[0])
        options = write_properties(file, secrets, pyspark.__version__, home)
        previous = os.environ.get(_SUBMIT_ARGUMENTS)
        os.environ[_SUBMIT_ARGUMENTS] = f"{shlex.join(options)} {previous or 'pyspark-shell'}"
        try:
            return _keep_classes(LazyPySparkResource(spark_config=shown).spark_session)
        finally:
            os.environ.pop(_SUBMIT_ARGUMENTS)
            os.environ.update({_SUBMIT_ARGUMENTS: previous} if previous is not None else {})


def _keep_classes(spark: SparkSession) -> SparkSession:
    """Cache Java classes that pyspark would otherwise look up again for each column and query."""
    names: Any = spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
    for name in _JAVA_CLASSES:
        found = getattr(names, name)
        if isinstance(found, JavaClass):  # if this version of Spark lacks the class, py4j returns a package
            setattr(names, name, found)
    return spark


def write_properties(file: Path, settings: Mapping[str, str], version: str, home: Path) -> list[str]:
    """Write settings to a file for spark-submit, which still applies `spark-defaults.conf`.

    Args:
        file: The file to write.
        settings: The settings to write.
        version: The version of Spark.
        home: The directory of the Spark distribution.

    Returns:
        The options that make spark-submit read the file.
    """
    if not is_spark_3(version):
        file.write_text(properties(settings), encoding="utf-8")
        return ["--load-spark-defaults", "--properties-file", str(file)]
    # Spark 3.5 reads only one file, so the defaults are copied. The last value of a key applies.
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    former = defaults.read_text(encoding="utf-8") + "\n" if defaults.is_file() else ""
    file.write_text(former + properties(settings), encoding="utf-8")
    return ["--properties-file", str(file)]


def properties(settings: Mapping[str, str]) -> str:
    """Format settings as a Java properties file."""
    return "".join(f"{_escape(key)}={_escape(value)}\n" for key, value in settings.items())


def _escape(text: str) -> str:
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped
