"""Provide a second Spark session that is faster for small inputs.

Code generation, shuffles, broadcast jobs and size statistics make Spark fast for large inputs. For
a few rows, they take longer than the query itself. If receipts show that the inputs of a stage are
small, its queries use a session that runs them as a single task without code generation. It also
exchanges tables with the driver's Python process without a Python worker.

Queries are the same in both sessions, and so are their results.
"""

from __future__ import annotations

from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from gc_assets.config.models import Config
from gc_assets.config.spark import is_local as is_local_master
from gc_assets.core.errors import GcError
from gc_assets.engine.arrow_frames import has_arrow_frames
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.listings import open_listing
from gc_assets.state.schemas import LIVE_FILES, MANIFEST_ENTRIES, STORAGE_INVENTORY
from gc_assets.state.summaries import LiveFilesSummary

# A single task joins this many rows in less than a second. This process and Spark's process need
# about 50 MB each.
MAX_SMALL_ROWS: Final = 100_000
# Rows are serialised into the task. Spark limits a remote task to 128 MB, which this number of rows
# never reaches.
MAX_SMALL_CLUSTER_ROWS: Final = 25_000
# This process reads files with single requests, a few at a time.
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
    """Choose the session for a query, given the number of rows and of files that it reads.

    With Spark Connect, `spark` is always returned, because a second session of a client outlives
    its process. The same applies to Spark 3.5, which needs Python workers to exchange tables.
    """
    if (
        rows > (MAX_SMALL_ROWS if is_local(spark) else min(MAX_SMALL_ROWS, MAX_SMALL_CLUSTER_ROWS))
        or files > MAX_SMALL_FILES
        or is_remote(spark)
        or not has_arrow_frames(spark)
    ):
        return spark
    with _LOCK:
        if spark not in _SESSIONS:
            _SESSIONS[spark] = _open_small_session(spark)
        return _SESSIONS[spark]


def is_local(spark: SparkSession) -> bool:
    """Check if all tasks run in Spark's own process. This is never true with Spark Connect."""
    return not is_remote(spark) and is_local_master(str(spark.sparkContext.master))


def is_remote(spark: SparkSession) -> bool:
    """Check if this is a session of Spark Connect."""
    return not hasattr(spark, "sparkContext")


def was_small(config: Config) -> bool:
    """Check if all tables were small in the last runs, so that they are likely to be small again.

    The result is False if a storage or lake has no run yet, or if the state is unreadable.
    """
    state = State.of(config)
    try:
        newest = [state.latest(storage.name, STORAGE_INVENTORY.name) for storage in config.storages]
        newest = [open_listing(state, table) if table is not None else None for table in newest]
        newest += [state.latest(lake.name, LIVE_FILES.name) for lake in config.lakes]
        named = [sum(run.rows for run in state.history(lake.name, MANIFEST_ENTRIES.name)) for lake in config.lakes]
        rows = [_count_rows(table) for table in newest if table is not None]
    except (GcError, OSError):
        return False
    return len(rows) == len(newest) and max([*rows, *named]) <= MAX_SMALL_ROWS


def _count_rows(table: PublishedTable) -> int:
    """Count the rows of a table, or the files of `live_files`, which has no rows of its own."""
    return table.summary(LiveFilesSummary).files if table.receipt.asset == LIVE_FILES.name else table.rows


def is_small(spark: SparkSession) -> bool:
    """Check if this is a session for small inputs, which `choose_session` has opened."""
    with _LOCK:
        return spark in _SESSIONS.values()


def large_session(spark: SparkSession) -> SparkSession:
    """Return the original session that belongs to a session for small inputs.

    Any other session is returned unchanged.
    """
    with _LOCK:
        return next((large for large, small in _SESSIONS.items() if small is spark), spark)


def _open_small_session(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    existing = session.conf.getAll
    for key, value in {**spark.conf.getAll, **_CONF}.items():
        if existing.get(key) != value and session.conf.isModifiable(key):
            session.conf.set(key, value)
    return session
