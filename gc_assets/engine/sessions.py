"""Second Spark session for queries over small inputs.

Spark optimises for large inputs with code generation, shuffles, broadcast jobs and size statistics.
For a few rows, this costs more than the query itself. If the receipts of a stage show small inputs,
its query runs as a single task without code generation. No Python worker is needed to move tables
in or out of this session.

Queries and results are the same in both sessions.
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

# A single task joins this many rows in less than a second, with about 50 MB in this process and in
# Spark's process.
MAX_SMALL_ROWS: Final = 100_000
# The rows are serialised into the task. Spark limits a remote task to 128 MB, which this many rows
# never reach.
MAX_SMALL_CLUSTER_ROWS: Final = 25_000
# Files are read in this process with single requests, a few at a time.
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
    """Choose the session for a query over this many rows in this many state files.

    Small inputs get the small session, all others `spark`. Spark Connect has no small session,
    because a second session of a client outlives its process. Spark 3.5 has none, because it needs
    Python workers to move tables.
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
    """Check if all tasks run in Spark's own process. Returns False with Spark Connect."""
    return not is_remote(spark) and is_local_master(str(spark.sparkContext.master))


def is_remote(spark: SparkSession) -> bool:
    """Check for a Spark Connect session."""
    return not hasattr(spark, "sparkContext")


def was_small(config: Config) -> bool:
    """Check if the inventories, live files and container entries of the last runs were small.

    Returns False if a storage or lake has no earlier run, or if the state is unreadable.
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
    """Return the number of rows. For `live_files`, which has no rows, return the number of files."""
    return table.summary(LiveFilesSummary).files if table.receipt.asset == LIVE_FILES.name else table.rows


def is_small(spark: SparkSession) -> bool:
    """Check if `choose_session` opened this session for small inputs."""
    with _LOCK:
        return spark in _SESSIONS.values()


def large_session(spark: SparkSession) -> SparkSession:
    """Return the session for which `choose_session` opened this small one, or the session itself."""
    with _LOCK:
        return next((large for large, small in _SESSIONS.items() if small is spark), spark)


def _open_small_session(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    existing = session.conf.getAll
    for key, value in {**spark.conf.getAll, **_CONF}.items():
        if existing.get(key) != value and session.conf.isModifiable(key):
            session.conf.set(key, value)
    return session
