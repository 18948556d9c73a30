"""A Spark task that reports which versions of gc-assets, Python and pyspark an executor has."""

from __future__ import annotations

import platform
import socket
from collections.abc import Iterator
from importlib import import_module
from typing import Final

import pyarrow as pa
import pyspark

from gc_assets._version import __version__
from gc_assets.engine.daemon import PRELOADED

EXECUTOR_DDL: Final = "version string, python string, spark string, machine string"


def describe_executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Describe this executor in a row with the `EXECUTOR_DDL` columns.

    Spark calls this function on an executor (`mapInArrow`). It also imports all modules that stages
    need, so that a missing dependency is detected.
    """
    for name in PRELOADED:
        import_module(name)
    for _ in batches:
        row = {"version": __version__, "python": platform.python_version(), "spark": pyspark.__version__, "machine": socket.gethostname()}
        yield pa.RecordBatch.from_pylist([row])
