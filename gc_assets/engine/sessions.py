"""A second Spark session, for queries over few rows.

Spark plans for many rows: it compiles each query, shuffles between its steps, sends small sides to
every executor by a job of its own, and looks at the sizes again in between. Over few rows that costs
more than the query. So a stage that knows from its receipts that its inputs are small takes a
session in which one task answers the query as it stands, nothing is compiled, and tables come from
this process and go back to it without a Python worker.

The queries are the same in both sessions, and so are the rows.
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

# One task joins this many rows in less than a second, and they take some 50 MB in this process and
# in Spark's.
MAX_SMALL_ROWS: Final = 100_000
# The task that joins them carries them along. To another machine Spark sends no task of more than
# 128 MB, which so many rows are below whatever their keys.
MAX_SMALL_CLUSTER_ROWS: Final = 25_000
# This process asks the state for them one by one, from an object store a few at a time.
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
    """Returns the session for a query that reads so many rows from so many files of the state:
    `spark`, or the one of few rows beside it. Spark Connect has none: a second session of one
    client does not end with its process.
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
    """Says whether all tasks run in Spark's own process. Spark Connect does not tell."""
    return not is_remote(spark) and of_this_machine(str(spark.sparkContext.master))


def is_remote(spark: SparkSession) -> bool:
    """Says whether a session is one of Spark Connect."""
    return not hasattr(spark, "sparkContext")


def was_small(config: Config) -> bool:
    """Says whether the last nights were over few rows: what storages hold, what lakes need and what
    their containers name. Nobody knows of a platform that lacks a night, or whose state cannot be
    read now.
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
    """Says whether a session is one that `fitting` made."""
    with _LOCK:
        return spark in _SESSIONS.values()


def _open_small_session(spark: SparkSession) -> SparkSession:
    few = spark.newSession()
    there = few.conf.getAll
    for key, value in {**spark.conf.getAll, **_CONF}.items():
        if there.get(key) != value and few.conf.isModifiable(key):
            few.conf.set(key, value)
    return few
