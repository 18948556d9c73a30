"""Icechunk repositories of the sizes in docs/performance.md, written by icechunk and zarr.

Each repository has one array. Each commit overwrites a moving window of its chunks, so every
snapshot has a manifest of all chunks. The clock is set to ten days after the last commit, so that a
cached repository does not age.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import icechunk
import numpy as np
import zarr

from benchmarks.cache import FINISHED, change, prepare_build

CHUNK_ELEMENTS: Final = 64
LEFTOVERS_SHARE: Final = 0.01
# The number of newest snapshots that the policy retains. The others expire.
KEPT_SNAPSHOTS: Final = 8
_PREFIXES: Final = ("snapshots", "manifests", "transactions", "chunks")


@dataclass(frozen=True, slots=True)
class Size:
    """`commits` manifests of `chunks` references. Each commit after the first one writes `window`
    new chunks.
    """

    commits: int
    chunks: int
    window: int

    @property
    def leftovers(self) -> int:
        return max(1, int((self.chunks + (self.commits - 1) * self.window) * LEFTOVERS_SHARE))


SIZES: Final = {"s": Size(22, 100, 82), "m": Size(22, 5_000, 1_440), "l": Size(22, 100_000, 4_700)}


class IcechunkLake:
    """A repository at `repository/` in `root`. `finished.json` in `root` holds its fixed times."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.repository = root / "repository"
        self.finished = root / FINISHED

    def open(self) -> icechunk.Repository:
        return icechunk.Repository.open(icechunk.local_filesystem_storage(str(self.repository)), config=_config())

    def now(self) -> datetime:
        return datetime.fromisoformat(json.loads(self.finished.read_text())["now"])

    def config(self, state: Path) -> dict[str, Any]:
        """Return the content of a `lakes.yaml` for this lake."""
        location = f"file://{self.repository}/"
        retention = {"default": {"keep": json.loads(self.finished.read_text())["cutoff"]}}
        return {
            "state": str(state),
            "storages": [{"name": "arrays", "location": location}],
            "lakes": [{"name": "weather", "kind": "icechunk", "location": location, "retention": retention}],
        }


def ensure_lake(cache: Path, name: str) -> IcechunkLake:
    """Return the cached lake of a size. Build it if it is missing or incomplete."""
    lake = IcechunkLake(cache.resolve() / f"icechunk-{name}")
    if prepare_build(lake.root):
        build(lake, SIZES[name])
    return lake


def build(lake: IcechunkLake, size: Size) -> None:
    """Write a linear history on `main`, and chunks of a session that never commits."""
    lake.root.mkdir(parents=True)
    config = _config()  # before the storage, which warns otherwise
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(lake.repository)), config=config)
    session = repository.writable_session("main")
    array = zarr.group(session.store).create_array(
        "temperature", shape=(size.chunks * CHUNK_ELEMENTS,), chunks=(CHUNK_ELEMENTS,), dtype="f4", compressors=None, fill_value=0
    )
    array[:] = np.arange(size.chunks * CHUNK_ELEMENTS, dtype="f4")
    session.commit("forecast 0")
    for number in range(1, size.commits):
        _overwrite(repository, size, first=number * size.window, chunks=size.window, message=f"forecast {number}")
    _overwrite(repository, size, first=0, chunks=size.leftovers, message=None)
    times = sorted(snapshot.written_at for snapshot in repository.ancestry(branch="main"))
    fixed = {"now": datetime.now(UTC) + timedelta(days=10), "cutoff": times[-KEPT_SNAPSHOTS]}
    lake.finished.write_text(json.dumps({name: moment.isoformat() for name, moment in fixed.items()}))


@contextmanager
def add_one_percent(lake: IcechunkLake, size: Size) -> Generator[datetime]:
    """Overwrite one percent of the chunks in one commit. Undo it afterwards.

    Yields:
        The `now` of the lake, one day later.
    """
    head = lake.repository / "refs" / "branch.main" / "ref.json"
    content, before = head.read_bytes(), _names(lake)
    with change(lake.root):
        try:
            _overwrite(lake.open(), size, first=0, chunks=max(1, size.chunks // 100), message="one more forecast")
            yield lake.now() + timedelta(days=1)
        finally:
            head.write_bytes(content)
            for path in _names(lake) - before:
                (lake.repository / path).unlink()


def _overwrite(repository: icechunk.Repository, size: Size, first: int, chunks: int, message: str | None) -> None:
    """Write a window of chunks that wraps around, and commit it if there is a message."""
    session = repository.writable_session("main")
    array = zarr.open_group(session.store)["temperature"]
    first %= size.chunks
    ahead = min(chunks, size.chunks - first)
    for start, count in ((first, ahead), (0, chunks - ahead)):
        if count:
            elements = slice(start * CHUNK_ELEMENTS, (start + count) * CHUNK_ELEMENTS)
            array[elements] = np.random.default_rng(start).random(count * CHUNK_ELEMENTS, dtype="f4")
    if message is not None:
        session.commit(message)


def _names(lake: IcechunkLake) -> set[str]:
    return {f"{prefix}/{entry.name}" for prefix in _PREFIXES for entry in os.scandir(lake.repository / prefix)}


def _config() -> icechunk.RepositoryConfig:
    icechunk.set_logs_filter("error")  # it warns of concurrent commits on a local disk; one process writes here
    return icechunk.RepositoryConfig(inline_chunk_threshold_bytes=0)
