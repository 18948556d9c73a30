"""First and second nights over many tables, or over one table of very many files, on engines of different sizes.

`CLUSTER` is a standalone cluster of two workers on this machine, with a Python worker and an executor of its own each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

from benchmarks import iceberg_lake, many_tables, one_table
from benchmarks.comparison import Measured, Passes, Subject, nights_of
from benchmarks.iceberg_lake import IcebergLake
from benchmarks.many_tables import Size

CLUSTER: Final = "cluster"


class Scaled(Subject):
    """A large lake, and the engine that collects it. `full_every` is that of its configuration."""

    full_every: int | None = None

    def __init__(self, lake: IcebergLake, kind: str, engine: str, changed: Callable[[], AbstractContextManager[datetime]]) -> None:
        self.kind, self.size, self.lake, self.now = kind, engine, lake, lake.now
        self._engine, self._changed = engine, changed
        self._spark: dict[str, Any] = {"master": engine}

    @classmethod
    def of_tables(cls, size: Size, cache: Path, engine: str) -> Self:
        lake, of = many_tables.ensure_lake(cache, size), iceberg_lake.Size(size.tables, size.commits, 1)
        return cls(lake, f"{size.tables:,} tables of {size.commits:,} commits", engine, lambda: iceberg_lake.changed(lake, of))

    @classmethod
    def of_files(cls, files: int, cache: Path, engine: str) -> Self:
        lake = one_table.ensure_lake(cache, files)
        return cls(lake, f"one table of {files:,} files", engine, lambda: one_table.changed(lake, files))

    def changed(self) -> AbstractContextManager[datetime]:
        return self._changed()

    @contextmanager
    def running(self) -> Generator[None]:
        if self._engine != CLUSTER:
            yield
            return
        from tests.cluster import CONF, running

        with tempfile.TemporaryDirectory(prefix="gc-assets-cluster-") as folder, running(Path(folder)) as cluster:
            self._spark = {"master": cluster.master, "conf": CONF}
            yield

    def computing(self) -> Self:
        """The same lake and engine, and no night carries live files over."""
        other = copy(self)
        other.size, other.full_every = f"{self.size}, all computed", 0
        return other

    def config(self, state: Path) -> dict[str, Any]:
        carrying = {} if self.full_every is None else {"full_every": self.full_every}
        return {**self.lake.config(state), "spark": self._spark, **carrying}


def measure(subjects: Iterable[Scaled], cache: Path) -> dict[str, list[Measured]]:
    """The nights by engine, each in a process of its own."""
    return {subject.size: nights_of(subject, cache, Passes(warm=False)) for subject in subjects}
