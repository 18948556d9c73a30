"""First and second runs with many tables, or with one very large table, on engines of different
sizes.

`CLUSTER` is a standalone cluster of two workers on this machine, each with its own executor and
Python worker.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

from benchmarks import iceberg_lake, many_tables, one_table
from benchmarks.comparison import Measurement, Passes, Subject, measure_subject
from benchmarks.iceberg_lake import IcebergLake
from benchmarks.many_tables import Size

CLUSTER: Final = "cluster"


class ScaleSubject(Subject):
    """A large lake and the engine that collects it."""

    def __init__(self, lake: IcebergLake, kind: str, engine: str, add_one_percent: Callable[[], AbstractContextManager[datetime]]) -> None:
        self.kind, self.size, self.lake, self.now = kind, engine, lake, lake.now
        self._engine, self._changed = engine, add_one_percent
        self._spark: dict[str, Any] = {"master": engine}

    @classmethod
    def of_tables(cls, size: Size, cache: Path, engine: str) -> Self:
        lake, of = many_tables.ensure_lake(cache, size), iceberg_lake.Size(size.tables, size.commits, 1)
        return cls(lake, f"{size.tables:,} tables of {size.commits:,} commits", engine, lambda: iceberg_lake.add_one_percent(lake, of))

    @classmethod
    def of_files(cls, files: int, cache: Path, engine: str) -> Self:
        lake = one_table.ensure_lake(cache, files)
        return cls(lake, f"one table of {files:,} files", engine, lambda: one_table.add_one_percent(lake, files))

    def add_one_percent(self) -> AbstractContextManager[datetime]:
        return self._changed()

    @contextmanager
    def running(self) -> Generator[None]:
        if self._engine != CLUSTER:
            yield
            return
        from tests.cluster import CONF, run_cluster

        with tempfile.TemporaryDirectory(prefix="gc-assets-cluster-") as folder, run_cluster(Path(folder)) as cluster:
            self._spark = {"master": cluster.master, "conf": CONF}
            yield

    def config(self, state: Path) -> dict[str, Any]:
        return {**self.lake.config(state), "spark": self._spark}


def measure(subjects: Iterable[ScaleSubject], cache: Path) -> dict[str, list[Measurement]]:
    """Measure the runs by engine, each in its own process."""
    return {subject.size: measure_subject(subject, cache, Passes(warm=False)) for subject in subjects}
