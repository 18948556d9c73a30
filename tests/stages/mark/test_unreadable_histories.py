"""Random histories of tables that become unreadable and readable and share files: no live file is purged.

Each run executes the walk over written tables with the last known state of the previous run. The
plan (quarantine under claims, purge if all tables are readable, restore) is simulated in a few lines.
The expected result is what every table needs, readable or not. Some tables are unreadable in the
first run, so no run ever read them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.plan import Unreadable
from gc_assets.engine.tables import merge_written, write_parts
from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark.content_roots import RootTables
from gc_assets.stages.mark.last_known import LastKnown
from gc_assets.stages.mark.live_walk import CachePaths, LiveWalk
from gc_assets.state.files import Files
from gc_assets.state.journal import State, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import (
    CLAIMS,
    CLAIMS_SIDE,
    CONTAINERS,
    EDGES,
    PINNED,
    STATES,
    STATES_SIDE,
    UNREADABLE_CONTAINERS,
    UNREADABLE_ROOTS_SIDE,
)
from tests.depth import example_count, in_turn

pytestmark = in_turn

START = datetime(2026, 1, 1, tzinfo=UTC)
STORAGE = "warehouse"


class AddressesAreKeys(KeyResolver):
    """Every address is the key of a file in the storage."""

    def resolve(self, addresses: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
        return pa.array([STORAGE] * len(addresses), pa.string()), pa.array(addresses.to_pylist(), pa.string())


@dataclass
class Table:
    """A table: snapshots (manifest lists) of manifests, and a claim."""

    uuid: str
    snapshots: list[str] = field(default_factory=list)
    metadata_broken: bool = False


@dataclass
class World:
    chance: random.Random
    manifests_of: dict[str, list[str]] = field(default_factory=dict)
    files_of: dict[str, list[str]] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    counter: int = 0

    def name(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def needs(self, table: Table) -> set[str]:
        manifests = {manifest for snapshot in table.snapshots for manifest in self.manifests_of[snapshot]}
        return {file for manifest in manifests for file in self.files_of[manifest]} | manifests | set(table.snapshots)

    def all_files(self) -> set[str]:
        return {file for files in self.files_of.values() for file in files}

    def commit(self, table: Table) -> None:
        """Add own files, files of others (`add_files`) or manifests of others (a clone); drop old snapshots."""
        manifest = self.name(f"{table.uuid}/m")
        own = [self.name(f"{table.uuid}/f") for _ in range(self.chance.randint(0, 2))]
        others = [file for other in self.tables.values() if not other.metadata_broken for file in sorted(self.needs(other)) if "/f" in file]
        self.files_of[manifest] = own + (self.chance.sample(others, min(len(others), 2)) if self.chance.random() < 0.6 else [])
        shared = [name for other in self.tables.values() for snapshot in other.snapshots for name in self.manifests_of[snapshot]]
        snapshot = self.name(f"{table.uuid}/s")
        inherited = self.manifests_of[table.snapshots[-1]] if table.snapshots and self.chance.random() < 0.5 else []
        clone = [self.chance.choice(shared)] if shared and self.chance.random() < 0.4 else []
        self.manifests_of[snapshot] = list(dict.fromkeys([*inherited, manifest, *clone]))
        table.snapshots = [*table.snapshots[self.chance.randint(0, 1) :], snapshot][-2:]

    def pass_a_day(self) -> None:
        for table in self.tables.values():
            if self.chance.random() < 0.6:
                self.commit(table)
            table.metadata_broken = self.chance.random() < (0.6 if table.metadata_broken else 0.2)
        containers = [*self.manifests_of, *self.files_of]
        self.broken = {name for name in containers if self.chance.random() < (0.5 if name in self.broken else 0.04)}


@dataclass(frozen=True)
class _PartWriter:
    """Writes the inputs of a walk as parts of one run, and returns their paths."""

    files: Files
    run: TableRun

    def __call__(self, name: str, rows: list[dict[str, Any]], schema: pa.Schema) -> tuple[str, ...]:
        written = write_parts(pa.Table.from_pylist(rows, schema), self.run, self.files, name)
        return tuple(f"{self.run.path}/{part.name}" for part in written)

    def write_roots(self, tables: list[Table]) -> RootTables:
        snapshots = [(table, snapshot) for table in tables for snapshot in table.snapshots]
        graph = self("graph", [_commit(*item) for item in snapshots], COMMIT_GRAPH.schema)
        reachable = self("reachable", [_retained_row(*item) for item in snapshots], REACHABLE_SNAPSHOTS.schema)
        return RootTables(self.files, graph, reachable, (), self("pinned", [], PINNED), edited=True)

    def write_cache(self, world: World, cached: set[str], broken: set[str]) -> CachePaths:
        of_snapshots = sorted(cached & world.manifests_of.keys())
        edges = [_edge(snapshot, manifest) for snapshot in of_snapshots for manifest in world.manifests_of[snapshot]]
        containers = [{"container": name, "kind": "k", "container_size_bytes": 1, "entries": 1} for name in sorted(cached)]
        failed = [{"address": name, "kind": "k", "error": "broken", "absent": False} for name in sorted(broken)]
        return CachePaths(
            self("edges", edges, EDGES), self("cached", containers, CONTAINERS), self("failed", failed, UNREADABLE_CONTAINERS), ()
        )


@dataclass
class Collector:
    root: Path
    world: World
    cached: set[str] = field(default_factory=set)
    quarantined: set[str] = field(default_factory=set)
    purged: set[str] = field(default_factory=set)
    last_known: LastKnown | None = None
    last_good: dict[str, set[str]] = field(default_factory=dict)
    runs: int = 0
    unreadable_runs: int = 0
    never_read_runs: int = 0
    quarantined_before: set[str] = field(default_factory=set)

    def run(self) -> None:
        self.runs += 1
        now = START + timedelta(days=self.runs)
        files = State.at(str(self.root)).files
        run = TableRun("sales", "live_files", date(2026, 1, 1) + timedelta(days=self.runs), f"run{self.runs}")
        parts = _PartWriter(files, run)
        readable = [table for table in self.world.tables.values() if not table.metadata_broken]
        listed = {snapshot for table in readable for snapshot in table.snapshots}
        known = listed | {manifest for snapshot in listed & (self.cached | self._sound()) for manifest in self.world.manifests_of[snapshot]}
        self.cached |= known & self._sound()
        roots = parts.write_roots(readable)
        unread = {table.uuid: "broken" for table in self.world.tables.values() if table.metadata_broken}
        unknown = {uuid for uuid in unread if self.last_known is None or uuid not in self.last_known.uuids}
        claims = parts("claims", [*map(_claim, readable), *map(_unread_claim, sorted(unknown))], CLAIMS)
        walk = LiveWalk(
            "sales",
            roots,
            parts.write_cache(self.world, self.cached, known & self.world.broken),
            {},
            run,
            claims,
            self.last_known,
            {uuid: reason for uuid, reason in unread.items() if uuid not in unknown},
            is_last_known_read=True,
        )
        report = merge_written([row for batch in walk(iter([pa.RecordBatch.from_pydict({"id": [0]})])) for row in batch.to_pylist()])
        states = read_parts(files, report.paths(run, STATES_SIDE), STATES).to_pylist()
        expanding = {row["address"] for row in states if row["expands"]} & self.cached
        live = {row["key"] for row in states} | {file for name in expanding for file in self.world.files_of.get(name, [])}
        paths = [*claims, *report.paths(run, CLAIMS_SIDE)]
        shields = {row["key"] for row in read_parts(files, paths, CLAIMS).to_pylist() if not row["collect"]}
        found: dict[str, str] = report.summary["unreadable"]
        unreadable = found | dict.fromkeys(unknown, "broken")
        self._plan(live, shields, {f"{table.uuid}/" for table in readable} - shields, unreadable)
        for uuid, table in self.world.tables.items():
            if uuid not in unreadable:
                self.last_good[uuid] = self.world.needs(table)
        unreadable_tables = tuple(
            Unreadable(lake="sales", table_uuid=uuid, table_name=uuid, why=reason, since=now, good_on=good_on)
            for uuid, reason in found.items()
            for good_on in [run.run_date if uuid in self.last_good else None]
        )
        names = {table.uuid for table in readable} | {item.table_uuid for item in unreadable_tables if item.table_uuid}
        self.last_known = LastKnown(
            files,
            run.run_date,
            roots,
            tuple(report.paths(run, UNREADABLE_ROOTS_SIDE)),
            (*claims, *report.paths(run, CLAIMS_SIDE)),
            {name: {name} for name in names},
            found.keys() - self.last_good.keys(),
            unreadable_tables,
            {},
            AddressesAreKeys([]),
        )
        self._check(unreadable)

    def _sound(self) -> set[str]:
        return ({*self.world.manifests_of, *self.world.files_of}) - self.world.broken

    def _plan(self, live: set[str], shields: set[str], claims: set[str], unreadable: dict[str, str]) -> None:
        self.quarantined -= live
        if not unreadable:
            self.purged |= self.quarantined
            self.quarantined = set()
        claimed = {file for file in self.world.all_files() if any(file.startswith(claim) for claim in claims)}
        self.quarantined |= {file for file in claimed - live - self.purged if not any(file.startswith(shield) for shield in shields)}
        self.unreadable_runs += bool(unreadable)
        self.never_read_runs += bool(unreadable.keys() - self.last_good.keys())

    def _check(self, unreadable: dict[str, str]) -> None:
        for uuid, table in self.world.tables.items():
            files = {file for file in self.world.needs(table) if "/f" in file}
            assert not files & self.purged, f"purged although table {uuid} needs it"
            assert uuid in unreadable or not files & self.quarantined, f"in quarantine although readable table {uuid} needs it"
            if uuid in unreadable:
                needed = {file for file in self.last_good.get(uuid, ()) if "/f" in file}
                assert not needed & self.quarantined, f"in quarantine although unreadable table {uuid} needed it when it was last read"
                own = {file for file in self.quarantined - self.quarantined_before if file.startswith(f"{uuid}/")}
                assert not own, f"quarantined under the claim of unreadable table {uuid}"
        self.quarantined_before = set(self.quarantined)


def _root(snapshot: str) -> dict[str, Any]:
    location = {"address": snapshot, "storage": STORAGE, "key": snapshot}
    return {**location, "kind": Kind.MANIFEST_LIST, "is_container": True, "size_bytes": None, "must_exist": True}


def _commit(table: Table, snapshot: str) -> dict[str, Any]:
    return {
        "table_uuid": table.uuid,
        "commit_id": snapshot,
        "parents": [],
        "committed_at": START,
        "content_roots": [_root(snapshot)],
        "summary": [],
    }


def _retained_row(table: Table, snapshot: str) -> dict[str, Any]:
    return {"table_uuid": table.uuid, "commit_id": snapshot, "state": "retained", "refs": ["main"], "refs_count": 1, "reason": "r"}


def _claim(table: Table) -> dict[str, Any]:
    key = f"{table.uuid}/"
    return {"address": key, "storage": STORAGE, "key": key, "table_uuid": table.uuid, "table_name": table.uuid, "collect": True}


def _unread_claim(uuid: str) -> dict[str, Any]:
    key = f"{uuid}/"
    return {"address": key, "storage": STORAGE, "key": key, "table_name": uuid, "collect": False}


def _edge(snapshot: str, manifest: str) -> dict[str, Any]:
    location = {"address": manifest, "storage": STORAGE, "key": manifest, "kind": Kind.MANIFEST, "must_exist": True}
    return {**location, "container": snapshot, "container_size_bytes": 1}


def histories(root: Path, seeds: range) -> Iterator[Collector]:
    for seed in seeds:
        world = World(random.Random(seed))
        for number in range(4):
            table = Table(f"t{number}")
            world.tables[table.uuid] = table
            world.commit(table)
        collector = Collector(root / str(seed), world)
        if seed % 2:
            world.pass_a_day()
        collector.run()
        for _ in range(8):
            world.pass_a_day()
            collector.run()
        world.broken = set()
        for table in world.tables.values():
            table.metadata_broken = False
        collector.run()
        yield collector


@pytest.mark.parametrize("first", range(0, example_count(10, 20), 10))
def test_no_live_file_is_deleted_while_tables_are_unreadable(tmp_path: Path, first: int) -> None:
    found = list(histories(tmp_path, range(first, first + 10)))
    assert sum(item.unreadable_runs for item in found) > 20
    assert sum(item.never_read_runs for item in found) > 5
    assert sum(len(item.purged) for item in found) > 20
    assert all(not item.quarantined & {file for table in item.world.tables.values() for file in item.world.needs(table)} for item in found)
