"""Provide a second Spark session for queries over small inputs.

Spark plans for large inputs: it generates code, shuffles, broadcasts small tables with a separate
job, and measures sizes in between. Over a few rows this costs more than the query itself. A stage
whose receipts show small inputs uses a session in which a single task runs the query without code
generation. Tables enter and leave this session without a Python worker.

Queries and results are the same in both sessions.
"""

from __future__ import annotations

from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from gc_assets.config.models import Config
from gc_assets.config.spark import is_local as of_this_machine
from gc_assets.core.errors import GcError
from gc_assets.state.journal import State
from gc_assets.state.schemas import LIVE_FILES, MANIFEST_ENTRIES, STORAGE_INVENTORY

# One task joins this many rows in less than a second. They need about 50 MB in this process and in
# Spark's process.
MAX_SMALL_ROWS: Final = 100_000
# The task contains the rows. Spark sends at most 128 MB with a task to another machine; this many
# rows are smaller, whatever their keys.
MAX_SMALL_CLUSTER_ROWS: Final = 25_000
# This process reads the files in single requests, a few at a time.
MAX_SMALL_FILES: Final = 64
_CONF: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_SESSIONS: Final = WeakKeyDictionary[SparkSession, SparkSession]()
_LOCK: Final = Lock()


def choose_session(spark: SparkSession, rows: int, files: int) -> SparkSession:
    """Return the session for a query that reads this many rows from this many files of the state.

    Small inputs get the small session, all others `spark`. Spark Connect has no small session,
    because a second session of a client outlives its process.
    """
    if (
        rows > (MAX_SMALL_ROWS if is_local(spark) else min(MAX_SMALL_ROWS, MAX_SMALL_CLUSTER_ROWS))
        or files > MAX_SMALL_FILES
        or is_remote(spark)
    ):
        return spark
    with _LOCK:
        if spark not in _SESSIONS:
            _SESSIONS[spark] = _open_small_session(spark)
        return _SESSIONS[spark]


def is_local(spark: SparkSession) -> bool:
    """Return True if all tasks run in Spark's own process. With Spark Connect this is unknown, so
    False.
    """
    return not is_remote(spark) and of_this_machine(str(spark.sparkContext.master))


def is_remote(spark: SparkSession) -> bool:
    """Return True for a session of Spark Connect."""
    return not hasattr(spark, "sparkContext")


def was_small(config: Config) -> bool:
    """Return True if the last runs were small: inventories, live files and container entries.

    Returns False if a storage or lake has no earlier run, or if the state is unreadable.
    """
    state = State.of(config)
    try:
        newest = [state.latest(storage.name, STORAGE_INVENTORY.name) for storage in config.storages]
        newest += [state.latest(lake.name, LIVE_FILES.name) for lake in config.lakes]
        named = [sum(run.rows for run in state.history(lake.name, MANIFEST_ENTRIES.name)) for lake in config.lakes]
    except (GcError, OSError):
        return False
    rows = [table.rows for table in newest if table is not None]
    return len(rows) == len(newest) and max([*rows, *named]) <= MAX_SMALL_ROWS


def is_small(spark: SparkSession) -> bool:
    """Return True for a session that `choose_session` opened for small inputs."""
    with _LOCK:
        return spark in _SESSIONS.values()


def _open_small_session(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    existing = session.conf.getAll
    for key, value in {**spark.conf.getAll, **_CONF}.items():
        if existing.get(key) != value and session.conf.isModifiable(key):
            session.conf.set(key, value)
    return session
