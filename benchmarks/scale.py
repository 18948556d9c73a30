"""First and second nights over many tables, on engines of different sizes.

`CLUSTER` is a standalone cluster of two workers on this machine, with a Python worker and an executor of its own each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from benchmarks import iceberg_lake, many_tables
from benchmarks.comparison import Measured, Subject, nights_of
from benchmarks.many_tables import Size

CLUSTER: Final = "cluster"


class Tables(Subject):
    """Many tables, and the engine that collects them."""

    def __init__(self, size: Size, cache: Path, engine: str) -> None:
        self.kind, self.size = f"{size.tables:,} tables of {size.commits:,} commits", engine
        self.lake = many_tables.ensure_lake(cache, size)
        self.now = self.lake.now
        self._shape, self._engine = size, engine
        self._spark: dict[str, Any] = {"master": engine}

    def changed(self) -> AbstractContextManager[datetime]:
        return iceberg_lake.changed(self.lake, iceberg_lake.Size(self._shape.tables, self._shape.commits, 1))

    @contextmanager
    def running(self) -> Generator[None]:
        if self._engine != CLUSTER:
            yield
            return
        from tests.cluster import CONF, running

        with tempfile.TemporaryDirectory(prefix="gc-assets-cluster-") as folder, running(Path(folder)) as cluster:
            self._spark = {"master": cluster.master, "conf": CONF}
            yield

    def config(self, state: Path) -> dict[str, Any]:
        return {**self.lake.config(state), "spark": self._spark}


def measure(size: Size, cache: Path, engines: tuple[str, ...]) -> dict[str, list[Measured]]:
    """The nights by engine, each in a process of its own."""
    return {engine: nights_of(Tables(size, cache, engine), cache, peer=False, warm=False) for engine in engines}
