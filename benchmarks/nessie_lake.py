"""Nessie lakes of the sizes that nessie-gc was measured with.

S, M and L differ in volume. D is deep, R has many refs, and W has one wide table. A real server
keeps the history in RocksDB next to the files, so a lake is built once. Manifests are written as
for Iceberg lakes. Every metadata file lists one snapshot, as with Nessie's Iceberg REST. Everything
is live.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from benchmarks.cache import FINISHED, change, prepare_build
from benchmarks.iceberg_lake import NOW, SCHEMA, SPEC, TableWriter
from benchmarks.peer_nessie import PHASES, START_SECONDS
from gc_assets.demo.iceberg_builder import clock_at
from tests.lakes.nessie.builder import BranchBuilder, NessieBuilder
from tests.lakes.nessie.server import NEWEST, Server, fetch


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of a lake. `refs` branches start in the history of `main`, each with one commit."""

    tables: int
    commits: int
    files_per_commit: int
    refs: int = 0


SIZES: Final = {
    "s": Size(10, 5, 45),
    "m": Size(50, 10, 90),
    "l": Size(100, 20, 140),
    "d": Size(4, 250, 20),
    "r": Size(5, 200, 2, refs=110),
    # More files than the filter of the peer holds: it skips such a table and reports success.
    "w": Size(1, 14, 100_000),
}
# Wall seconds of mark and of sweep of nessie-gc, built from source, on lakes of these shapes. Each
# includes about two seconds of JVM start (two shared cores, -Xmx1g, H2 file store). They replace
# the peer, whose jar is not in any package registry.
PEER: Final = {"s": (3.6, 4.2), "m": (4.4, 7.4), "l": (7.2, 22.6), "d": (6.5, 39.0), "r": (14.7, 17.3)}


def peer_seconds(size: str) -> float | None:
    """Return the recorded seconds of nessie-gc without its start, or None if there is no record."""
    return sum(PEER[size]) - START_SECONDS * len(PHASES) if size in PEER else None


class NessieLake:
    """The store of a server (`rocks/`) and its warehouse, both in `root`. The server runs inside
    `running`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warehouse = root / "warehouse"
        settings = {"nessie.version.store.type": "ROCKSDB", "nessie.version.store.persist.rocks.database-path": str(root / "rocks")}
        self.server = Server(fetch(NEWEST), root, settings)

    def builder(self) -> NessieBuilder:
        return NessieBuilder(self.server.uri, self.warehouse)

    @contextmanager
    def running(self) -> Generator[None]:
        self.server.start()
        try:
            yield
        finally:
            self.server.stop()

    def config(self, state: Path) -> dict[str, Any]:
        """Return the content of a `lakes.yaml` for this lake."""
        return {
            "state": str(state),
            "storages": [{"name": "warehouse", "location": f"file://{self.warehouse}/"}],
            "lakes": [{"name": "shop", "kind": "nessie", "uri": self.server.uri}],
        }


def ensure_lake(cache: Path, name: str) -> NessieLake:
    """Return the cached lake of a size. Build it if it is missing or incomplete."""
    lake = NessieLake(cache.resolve() / f"nessie-{name}")
    if prepare_build(lake.root):
        lake.root.mkdir(parents=True)
        with lake.running():
            build(lake, SIZES[name])
        (lake.root / FINISHED).write_text("{}")
    return lake


def build(lake: NessieLake, size: Size) -> None:
    """Write one table after the other, then the branches, distributed evenly over the history."""
    nessie = lake.builder()
    main = nessie.on()
    for index in range(size.tables):
        writer = _table(main, f"shop.orders_{index:03}")
        for commit in range(size.commits):
            writer.commit(NOW - timedelta(days=size.commits - commit), size.files_per_commit, rewrite=False)
    log = _log(nessie)
    for number in range(size.refs):
        nessie.branch(f"branch_{number:03}", at=log[number * len(log) // size.refs])
        branch = nessie.on(f"branch_{number:03}")
        TableWriter(branch.catalog.load_table("shop.orders_000")).commit(NOW - timedelta(days=5), size.files_per_commit, rewrite=False)


@contextmanager
def add_one_percent(lake: NessieLake, size: Size) -> Generator[datetime]:
    """Add one percent of files, in one commit to each of at most ten tables. Undo it afterwards.

    Yields:
        The time of the next run, one day later.
    """
    later = NOW + timedelta(days=1)
    nessie = lake.builder()
    before = nessie.head()
    files, tables = max(1, size.tables * size.commits * size.files_per_commit // 100), min(size.tables, 10)
    catalog = nessie.on().catalog
    writers = [TableWriter(catalog.load_table(f"shop.orders_{index:03}")) for index in range(tables)]
    with change(lake.root):
        try:
            for writer in writers:
                writer.commit(later - timedelta(hours=6), max(1, files // tables), rewrite=False)
            yield later
        finally:
            nessie.assign("main", before)
            for writer in writers:
                for path in writer.written:
                    path.unlink()


def _table(main: BranchBuilder, name: str) -> TableWriter:
    with clock_at(NOW - timedelta(days=400)):
        main.catalog.create_table(name, SCHEMA, partition_spec=SPEC)
    return TableWriter(main.catalog.load_table(name))


def _log(nessie: NessieBuilder) -> list[str]:
    """Return the commits of `main`, newest first."""
    found: list[str] = []
    token: dict[str, str] = {}
    while True:
        page = nessie.api.get("trees/main/history", params={"max-records": 250, **token}).json()
        found += [entry["commitMeta"]["hash"] for entry in page["logEntries"]]
        if not page["hasMore"]:
            return found
        token = {"page-token": page["token"]}
