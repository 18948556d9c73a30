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

# One task joins this many rows in less than a second, and they take some 50 MB in this process and
# in the driver's.
FEW_ROWS: Final = 100_000
# This process asks the state for them one by one, from an object store a few at a time.
FEW_FILES: Final = 64
_CONF: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_SESSIONS: Final = WeakKeyDictionary[SparkSession, SparkSession]()
_TURN: Final = Lock()


def fitting(spark: SparkSession, rows: int, files: int) -> SparkSession:
    """Returns the session for a query that reads so many rows from so many files of the state:
    `spark`, or the one of few rows beside it.
    """
    if rows > FEW_ROWS or files > FEW_FILES:
        return spark
    with _TURN:
        if spark not in _SESSIONS:
            _SESSIONS[spark] = _beside(spark)
        return _SESSIONS[spark]


def is_of_few(spark: SparkSession) -> bool:
    """Says whether a session is one that `fitting` made."""
    with _TURN:
        return spark in _SESSIONS.values()


def _beside(spark: SparkSession) -> SparkSession:
    clone = getattr(spark, "cloneSession", None)  # only Spark Connect has it
    few = clone() if clone is not None else spark.newSession()
    there = few.conf.getAll
    for key, value in {**spark.conf.getAll, **_CONF}.items():
        if there.get(key) != value and few.conf.isModifiable(key):
            few.conf.set(key, value)
    return few
