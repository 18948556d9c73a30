"""The cache drops entries of containers that no commit reaches, and no later run lacks an entry."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError
from gc_assets.demo.iceberg_builder import LakeBuilder
from gc_assets.engine import tasks
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import WrittenParts, publish, write_parts
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.stages.mark import dead_entries
from gc_assets.stages.mark.dead_entries import drop_dead_entries, refuse_dropped_since
from gc_assets.stages.mark.file_entries import build_hashes
from gc_assets.state import compaction
from gc_assets.state.compaction import Segments
from gc_assets.state.index import PastRun
from gc_assets.state.journal import State, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import LIVE_FILES, MANIFEST_ENTRIES
from gc_assets.state.side_tables import CONTAINERS, CONTAINERS_SIDE, EDGES, EDGES_SIDE, HASHES, HASHES_SIDE, STATES, STATES_SIDE
from tests.depth import example_count, in_turn
from tests.stages.lakehouse import Lakehouse
from tests.stores.builders import memory_directory

pytestmark = in_turn

LAKE = "lake"
# Later than the real time, because rehearsals with a fixed clock drop nothing.
START = datetime(2101, 1, 1, tzinfo=UTC)
CONFIG = Config.model_construct(storages=(), lakes=())
Containers = Mapping[str, list[str]]


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_entries, "MIN_DEAD_ENTRIES", 1)
    monkeypatch.setattr(dead_entries, "MIN_DEAD_SHARE", 0.2)
    monkeypatch.setattr(tasks, "MAX_IN_PROCESS_FILES", 1_000)  # there is no Spark


@dataclass
class Cache:
    """Cache of a lake whose containers name files and other containers.

    `decoded` are the containers that each run decoded.
    """

    state: State
    containers: Containers
    now: datetime = START
    decoded: list[set[str]] = field(default_factory=list)
    unreadable: tuple[Any, ...] = ()

    @property
    def runs(self) -> list[PastRun]:
        return list(self.state.history(LAKE, MANIFEST_ENTRIES.name))

    @property
    def dropped_rows(self) -> int:
        return sum(segment.dropped_rows for segment in compaction.read_list(self.state.files, LAKE, MANIFEST_ENTRIES.name).content.segments)

    def run(self, roots: set[str], days: float = 1, again: Collection[str] = (), **settings: Any) -> None:
        """Do what a run does with these content roots: drop, decode what is unknown, and publish the states.

        The objects of `again` have changed.
        """
        self.now += timedelta(days=days)
        clock = Clock(not_before=self.now)
        context = RunContext(CONFIG, self.state, clock, self.now.date(), self.now, **settings)
        run = self.state.start(LAKE, MANIFEST_ENTRIES.name, self.now.date(), clock)
        drop_dead_entries(None, context, LAKE, self.runs, run)  # type: ignore[arg-type]
        known = self.list_known(self.state.segments(self.runs))
        level, decoded = roots - known | set(again), set[str]()
        while level:
            decoded |= level
            level = {child for parent in level for child in self.containers[parent] if child in self.containers} - known - decoded
        self.decoded.append(decoded)
        publish(self.state, run, self._write(run, decoded), clock)
        live = self.state.start(LAKE, LIVE_FILES.name, self.now.date(), clock)
        states = pa.Table.from_pylist([{"address": address, "expands": True} for address in sorted(self.reachable(roots))], STATES)
        side = {STATES_SIDE: tuple(write_parts(states, live, self.state.files, STATES_SIDE))}
        publish(self.state, live, WrittenParts((), 0, side), clock, summary=EMPTY | {"unreadable": self.unreadable})

    def reachable(self, roots: set[str]) -> set[str]:
        found, level = set[str](), set(roots)
        while level:
            found |= level
            level = {child for parent in level for child in self.containers[parent] if child in self.containers} - found
        return found

    def list_known(self, segments: Segments) -> set[str]:
        return set(read_parts(self.state.files, segments.paths(CONTAINERS_SIDE), CONTAINERS, ["container"]).column("container").to_pylist())

    def missing(self, roots: set[str]) -> list[str]:
        """Return the reachable containers whose entries, hashes or edges the cache lacks."""
        segments, files, reachable = self.state.segments(self.runs), self.state.files, self.reachable(roots)
        entries = read_parts(files, segments.paths(), MANIFEST_ENTRIES.schema, ["container", "address"])
        edges = read_parts(files, segments.paths(EDGES_SIDE), EDGES, ["container", "address"])
        counts = read_parts(files, segments.paths(CONTAINERS_SIDE), CONTAINERS, ["container", "files"])
        hashes = read_parts(files, segments.paths(HASHES_SIDE), HASHES, ["container"]).column("container").to_pylist()
        named, inner = (set(zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True)) for rows in (entries, edges))
        expected = Counter[str]()
        for row in counts.to_pylist():
            expected[row["container"]] += row["files"]
        return [
            address
            for address in sorted(reachable)
            if address not in expected
            or {child for parent, child in named if parent == address} != set(self.containers[address])
            or {child for parent, child in inner if parent == address} != set(self.containers[address]) & self.containers.keys()
            or hashes.count(address) != expected[address]
        ]

    def _write(self, run: TableRun, decoded: set[str]) -> WrittenParts:
        rows = [
            {"container": parent, "address": child, "key": child, "is_container": child in self.containers, "must_exist": True}
            for parent in sorted(decoded)
            for child in self.containers[parent]
        ]
        entries = pa.Table.from_pylist(rows, MANIFEST_ENTRIES.schema)
        inner = [{"container": row["container"], "address": row["address"]} for row in rows if row["is_container"]]
        index = [{"container": parent, "entries": len(self.containers[parent]), "files": self._files(parent)} for parent in sorted(decoded)]
        hashes = pa.Table.from_batches([build_hashes(batch) for batch in entries.to_batches()], HASHES)
        tables = {
            "": entries,
            EDGES_SIDE: pa.Table.from_pylist(inner, EDGES),
            CONTAINERS_SIDE: pa.Table.from_pylist(index, CONTAINERS),
            HASHES_SIDE: hashes,
        }
        parts = {side: tuple(write_parts(table, run, self.state.files, side)) for side, table in tables.items()}
        return WrittenParts(parts.pop(""), 0, {side: found for side, found in parts.items() if found})

    def _files(self, parent: str) -> int:
        return sum(child not in self.containers for child in self.containers[parent])


EMPTY = {
    "files": 0,
    "live_bytes": 0,
    "by_kind": {},
    "by_storage": {},
    "metadata_by_storage": {},
    "expired_files": 0,
    "dangling_files": 0,
    "external_files": 0,
    "unreadable": [],
}


def tree(tops: int, files: int = 3) -> Containers:
    """Return containers `top0`, `top1`, … with one inner container each."""
    tops_of = {f"top{number}": [f"inner{number}"] for number in range(tops)}
    return tops_of | {f"inner{number}": [f"file{number}-{index}" for index in range(files)] for number in range(tops)}


@pytest.fixture
def state() -> Iterator[State]:
    with memory_directory() as root:
        yield State.at(str(root))


def test_cache_drops_entries_of_long_unused_containers(state: State) -> None:
    cache = Cache(state, tree(4))
    cache.run({"top0", "top1", "top2"})
    cache.run({"top2"}, days=10)
    cache.run({"top2"}, days=dead_entries.KEEP_DAYS + 1)
    assert cache.list_known(state.segments(cache.runs)) == {"top2", "inner2"}
    assert cache.list_known(state.segments(cache.runs, complete=True)) == cache.reachable({"top0", "top1", "top2"})
    assert cache.missing({"top2"}) == []


def test_cache_keeps_entries_of_recently_unused_containers(state: State) -> None:
    cache = Cache(state, tree(4))
    for roots, days in (({"top0", "top1", "top2"}, 1), ({"top2"}, 25), ({"top2"}, 25)):
        cache.run(roots, days)
    assert cache.dropped_rows == 0
    assert cache.missing({"top0", "top1", "top2"}) == []


def test_cache_keeps_entries_of_recently_decoded_containers(state: State) -> None:
    """Runs without a listing find the candidates of its snapshot by its entries."""
    cache = Cache(state, tree(4))
    for roots, days in (({"top0"}, 1), ({"top0", "top1"}, 40), ({"top0"}, 1), ({"top0"}, 1)):
        cache.run(roots, days)
    assert cache.dropped_rows == 0


def test_reused_container_is_decoded_again_if_dropped_from_cache(state: State) -> None:
    cache = Cache(state, tree(4))
    for roots, days in (({"top0", "top1"}, 1), ({"top0"}, 1), ({"top0"}, 40), ({"top0", "top1"}, 1)):
        cache.run(roots, days)
    assert cache.decoded[-1] == {"top1", "inner1"}
    assert cache.missing({"top0", "top1"}) == []


def test_cache_keeps_children_of_kept_containers(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent is in a segment that is not worth a copy. If it comes back, its children are not decoded again."""
    monkeypatch.setattr(State, "compact", lambda *_: None)
    live = {f"live{number}" for number in range(9)}
    cache = Cache(state, {"parent": ["child"], "child": ["a"], "dead": ["b"] * 9, **{name: ["c"] for name in live}})
    for roots, days in (({"child", "dead"}, 1), ({"parent", *live}, 1), (live, 1), (live, 40)):
        cache.run(roots, days)
    assert cache.list_known(state.segments(cache.runs)) == {"parent", "child", *live}
    cache.run({"parent", *live})
    assert cache.missing({"parent", *live}) == []


def test_container_decoded_twice_is_dropped_from_all_segments_or_none(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(State, "compact", lambda *_: None)
    live = {f"live{number}" for number in range(9)}
    cache = Cache(state, {"parent": ["child"], "child": ["a"], "dead": ["b"] * 9, **{name: ["c"] for name in live}})
    cache.run({"parent", "dead"})
    cache.run(live, again={"parent"})
    cache.run(live)
    cache.run(live, days=40)
    assert cache.list_known(state.segments(cache.runs)) == {"parent", "child", *live}


@pytest.mark.parametrize("reason", ["safety limit", "verification mark", "unreadable table", "no old run"])
def test_cache_keeps_entries_if_recent_runs_are_not_reliable(state: State, reason: str) -> None:
    cache = Cache(state, tree(4))
    unreadable = {"lake": LAKE, "table_uuid": "u", "why": "damaged", "since": START.isoformat(), "storages": []}
    cache.run({"top0", "top1"})
    cache.unreadable = (unreadable,) if reason == "unreadable table" else ()
    cache.run({"top0"})
    settings: dict[str, Any] = {"safety limit": {"unsafe": ("x",)}, "verification mark": {"verification_id": "p"}}.get(reason, {})
    cache.run({"top0"}, days=20 if reason == "no old run" else 40, **settings)
    assert cache.dropped_rows == 0


def test_run_is_refused_if_cache_entries_were_dropped_meanwhile(state: State) -> None:
    """The new container `again` references a container that the run took for decoded, and that no
    later run would decode.
    """
    cache = Cache(state, {**tree(2), "again": ["inner0"]})
    cache.run({"top0", "top1"})
    cache.run({"top1"})
    runs, context = cache.runs, RunContext(CONFIG, state, Clock(not_before=START), START.date(), START)
    used = state.segments(runs)
    refuse_dropped_since(context, LAKE, runs, used)
    cache.run({"top1"}, days=40)
    assert "inner0" in cache.list_known(used) - cache.list_known(state.segments(runs))
    with pytest.raises(StateError, match="another run removed unused entries"):
        refuse_dropped_since(context, LAKE, runs, used)
    refuse_dropped_since(context, LAKE, cache.runs, state.segments(cache.runs))


@pytest.mark.parametrize("side", [STATES_SIDE, EDGES_SIDE, HASHES_SIDE])
def test_cache_keeps_entries_if_dropping_them_fails(state: State, caplog: pytest.LogCaptureFixture, side: str) -> None:
    cache = Cache(state, tree(4))
    cache.run({"top0", "top1"})
    cache.run({"top0"})
    damaged = [path for path in state.files.list("", recursive=True) if f"/{side}/" in path.name]
    for path in damaged:
        state.files.replace(path.name, b"damaged".ljust(path.size_bytes))
    cache.run({"top0"}, days=40)
    assert cache.dropped_rows == 0
    assert "were not dropped" in caplog.text
    assert any(f"{path.name} is damaged" in caplog.text for path in damaged)


def random_containers(rng: random.Random) -> Containers:
    names = [f"c{number}" for number in range(60)]
    containers: dict[str, list[str]] = {}
    for number, name in enumerate(names):
        later = names[number + 1 :]
        children = rng.sample(later, min(len(later), rng.choice([0, 0, 1, 2, 4])))
        containers[name] = [*children, *(f"f{rng.randrange(200)}" for _ in range(rng.randrange(4)))]
    return {name: sorted(set(children)) for name, children in containers.items()}


def test_random_histories_never_miss_cache_entries() -> None:
    """After every run, the cache has the entries of every reachable container, as without dropped entries."""
    dropped = repeated = 0
    for seed in range(example_count(5, 200)):
        rng = random.Random(seed)
        with memory_directory() as root:
            cache = Cache(State.at(str(root)), random_containers(rng))
            roots = set(rng.sample(sorted(cache.containers), 12))
            for _ in range(12):
                again = rng.sample(sorted(set().union(*cache.decoded)), 2) if rng.random() < 0.2 and cache.decoded else ()
                cache.run(roots, rng.choice([1, 1, 5, 20, 45]), again)
                assert cache.missing(roots) == [], f"seed {seed}"
                known = cache.list_known(cache.state.segments(cache.runs))
                assert cache.reachable(known) == known, f"seed {seed}: a known container references an unknown one"
                if rng.random() < 0.1:
                    compaction.clear_list(cache.state.files, LAKE, MANIFEST_ENTRIES.name)
                gone = set(rng.sample(sorted(roots), rng.randrange(len(roots))))
                roots = roots - gone | set(rng.sample(sorted(cache.containers), rng.randrange(1, 8)))
            dropped += cache.dropped_rows
            repeated += sum(map(len, cache.decoded)) - len(set().union(*cache.decoded))
    assert dropped
    assert repeated


@pytest.mark.spark
def test_live_set_does_not_depend_on_dropped_cache_entries(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables disappear from the catalog and come back. Every run, also an earlier one, has the same live files with and without them."""
    monkeypatch.setattr(Clock, "is_rehearsal", property(lambda _: False))
    builder = LakeBuilder(tmp_path)
    catalog = {name: value for name, value in builder.properties.items() if name != "warehouse"}
    config = {"name": "shop", "kind": "iceberg", "catalog_name": "default", "catalog": catalog}
    lake = IcebergLakeConfig.model_validate(config)
    dropping, keeping = (Lakehouse(spark, tmp_path, [lake], state=str(tmp_path / name)) for name in ("dropping", "keeping"))
    live, removed = list[tuple[datetime, list[dict[str, Any]]]](), ""
    for number, days in enumerate((1, 1, 35, 1, 35)):
        builder.table(f"db.t{number}", dropping.now).append(dropping.now)
        if number == 1:
            removed = builder.catalog.load_table("db.t0").metadata_location
            builder.catalog.drop_table("db.t0")
        if number == 3:
            builder.catalog.register_table("db.back", removed)
            builder.catalog.drop_table("db.t1")
        keeping.now = dropping.now = dropping.now + timedelta(days=days)
        dropping.mark()
        with monkeypatch.context() as patch:
            patch.setattr(dead_entries, "MIN_DEAD_ENTRIES", 10**9)
            keeping.mark()
        rows = [sorted(house.rows("live_files", "shop"), key=lambda row: row["key"]) for house in (dropping, keeping)]
        assert rows[0] == rows[1]
        live.append((dropping.now, rows[0]))
    files = dropping.run_context().state.files
    assert any(segment.dropped_rows for segment in compaction.read_list(files, "shop", MANIFEST_ENTRIES.name).content.segments)
    assert sum(dropping.decoded_counts("shop")) > sum(keeping.decoded_counts("shop"))
    for now, rows in live:
        dropping.now = now
        assert sorted(dropping.rows("live_files", "shop"), key=lambda row: row["key"]) == rows
