"""The live set of a lake: states of containers joined with their cached entries."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import StateError
from gc_assets.core.plan import Amount
from gc_assets.engine.tables import ROUTE
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.protocol import EXPIRED
from gc_assets.stages.mark import live_set
from gc_assets.stages.mark.container_scan import KIND_COUNT
from gc_assets.stages.mark.entry_scan import KEYED
from gc_assets.stages.mark.live_files import live_files
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.side_tables import EXPIRED_SIDE, LIFECYCLE_SIDE
from tests.depth import example_count, in_turn, select_cases
from tests.records import publish_table
from tests.stages.mark.history_runs import play
from tests.stages.mark.lake_histories import (
    LAKE,
    LAKES,
    NOW,
    ROOT,
    Commit,
    World,
    build_context,
    frequent_compaction,
    large_lake,
    read_rows_by_route,
    write,
)
from tests.stages.mark.live_set_oracle import PARTLY_RELEASED, SITUATIONS

pytestmark = in_turn

# All histories are in one lake, so that one run marks all of them.
HISTORIES = example_count(100, 200)


@pytest.mark.spark
@pytest.mark.parametrize("kind", LAKES)
def test_live_files_of_random_histories_equal_brute_force(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    events = play(spark, tmp_path, kind, HISTORIES, runs=example_count(5, 10))
    assert min(events["live"], events["_external"]) > HISTORIES
    situations = [*SITUATIONS, *([PARTLY_RELEASED] if kind == "lakefs" else [])]
    assert [name for name in situations if not events[name]] == []


@pytest.mark.spark
@pytest.mark.parametrize("kind", select_cases(["lakefs"], ["iceberg", "icechunk", "nessie"]))
def test_spark_computes_the_live_files_of_random_histories(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    with large_lake():
        events = play(spark, tmp_path, kind, HISTORIES, runs=example_count(2, 10), with_spark=True)
    assert events["live"] > HISTORIES


@pytest.mark.spark
def test_live_files_do_not_depend_on_compaction(spark: SparkSession, tmp_path: Path) -> None:
    with frequent_compaction():
        play(spark, tmp_path, "iceberg", histories=example_count(4, 6), runs=example_count(4, 6))
    assert list(tmp_path.glob("state/lake/manifest_entries/_folds/*"))


@dataclass
class Scene:
    """A small lake of two tables. Three files: `first`, `both` and `second`."""

    spark: SparkSession
    root: Path
    kind: str = "iceberg"
    now: datetime = NOW
    world: World = field(default_factory=lambda: World(random.Random(7)))

    def __post_init__(self) -> None:
        one = self.world.container("a", Kind.MANIFEST, [file("first"), file("both")])
        two = self.world.container("a", Kind.MANIFEST, [file("second", size_bytes=9), file("both", size_bytes=9)])
        self.commit("1", "a", [one, two])
        self.commit("2", "a", [one])
        self.commit("3", "b", [two], leaf="first")

    def commit(self, name: str, table: str, manifests: list[dict[str, Any]], leaf: str | None = None) -> None:
        """Add a commit with a list of these manifests, and with the file `leaf` as a second root."""
        roots = [self.world.container(table, Kind.MANIFEST_LIST, manifests)]
        roots += [file(leaf)] if leaf is not None else []
        self.world.commits[name] = Commit(table, [{column: root[column] for column in ROOT} for root in roots])

    def live(self, **more: Any) -> LiveSet:
        """Publish the live set of the next run."""
        context = replace(build_context(self.root, LAKES[self.kind], self.now), **more)
        write(self.world, context)
        self.world.end_run()
        self.now += timedelta(days=1)
        return LiveSet(context, live_files(self.spark, context, LAKE))


def file(name: str, **more: Any) -> dict[str, Any]:
    location = {"address": f"file:///one/{name}", "storage": "one", "key": name}
    return {**location, "kind": Kind.DATA, "must_exist": True, "is_container": False, "size_bytes": 7, "entry_status": None, **more}


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path) -> Scene:
    return Scene(spark, tmp_path)


def rows_by_key(live: LiveSet, *keys: str, spark: SparkSession | None = None) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in live.rows_of(spark, pa.array(keys, pa.string())).to_pylist()}


@pytest.mark.spark
@pytest.mark.parametrize("entries", [0, 10**6], ids=["by containers", "by entries"])
def test_live_rows_of_selected_keys_equal_full_rows(scene: Scene, monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    monkeypatch.setattr(live_set, "MAX_IN_PROCESS_ENTRIES", entries)
    for name in "13":
        scene.world.commits[name].state = EXPIRED
    live = scene.live()
    found = read_rows_by_route(scene.spark, live)
    everything = {row["key"]: {**row, ROUTE: route} for route, rows in found.items() for row in rows}
    assert {everything[key][ROUTE] for key in ("first", "both", "second")} == {"", EXPIRED_SIDE}
    for session in (None, scene.spark):
        assert rows_by_key(live, "first", "second", "unknown", spark=session) == {key: everything[key] for key in ("first", "second")}
        assert rows_by_key(live, *everything, spark=session) == everything
        assert rows_by_key(live, spark=session) == {}


@pytest.mark.spark
@pytest.mark.parametrize("entries", [0, 10**6], ids=["on executors", "in this process"])
def test_files_of_table_are_found_by_witness(scene: Scene, monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """A file that several tables reference belongs to each of them, unlike in the rows of the live
    set.
    """
    monkeypatch.setattr(live_set, "MAX_IN_PROCESS_ENTRIES", entries)
    scene.world.commits["1"].state = EXPIRED
    only = scene.world.container("c", Kind.MANIFEST, [file("first"), file("other")])
    scene.commit("4", "c", [only])
    live = scene.live()
    found = dict[str, set[str]]()
    for table in ("a", "b", "c", "unknown"):
        witnesses = live.find_witnesses({table})
        rows = live.run_on(scene.spark, witnesses, _Keep(witnesses.column("witness").to_pylist()), KEYED)
        found[table] = set(rows.column("key").to_pylist()) & {"first", "both", "second", "other"}
    assert found["c"] == {"first", "other"}
    assert "second" not in found["a"]
    assert "first" in found["b"]
    assert found["unknown"] == set()


@dataclass(frozen=True)
class _Keep:
    """Task that keeps the files of some witnesses."""

    witnesses: list[int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            witness = pa.array(batch.column("strongest").to_numpy() // KIND_COUNT)
            yield batch.filter(pc.is_in(witness, pa.array(self.witnesses, pa.int64())))


@pytest.mark.spark
def test_live_files_can_be_listed_in_buckets_or_up_to_limit(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    live = scene.live()
    found = read_rows_by_route(scene.spark, live)[""]
    monkeypatch.setattr(live_set, "MAX_IN_PROCESS_ENTRIES", 0)
    monkeypatch.setattr(live_set, "MAX_BUCKET_ENTRIES", 2)
    assert read_rows_by_route(scene.spark, live)[""] == found
    for limit in (0, 1, 3, len(found) + 5):
        some = [row for batch in live.batches(limit=limit) for row in batch.to_pylist()]
        assert len(some) == min(limit, len(found))
        assert all(row in found for row in some)


@pytest.mark.spark
def test_containers_are_found_by_address(scene: Scene) -> None:
    live = scene.live()
    named = rows_by_key(live, "second")["second"]
    manifest = live.container(named["container"])
    assert manifest is not None
    assert rows_by_key(live, manifest["key"])[manifest["key"]] == manifest
    assert live.container("file:///one/unknown") is None


@pytest.mark.spark
def test_live_set_totals_equal_sums_of_rows(scene: Scene) -> None:
    scene.world.commits["2"].state = EXPIRED
    live = scene.live()
    rows = [row for batch in live.batches() for row in batch.to_pylist()]
    expected = Counter[tuple[str, str | None]]()
    for row in rows:
        expected[row["table_uuid"], row["commit_id"]] += row["size_bytes"] or 0
    assert {key: amount.bytes for key, amount in live.totals.by_all("table_uuid", "commit_id").items()} == dict(expected)


@pytest.mark.spark
def test_equal_histories_have_equal_live_set_digests(scene: Scene) -> None:
    first = scene.live().table
    commits = dict(scene.world.commits)
    scene.world.commits = {"3": commits["3"]}
    assert scene.live().table.receipt.digest != first.receipt.digest
    scene.world.commits = dict(reversed(commits.items()))
    assert scene.live().table.receipt.digest == first.receipt.digest


@pytest.mark.spark
def test_verification_mark_leaves_out_files_released_for_deletion(spark: SparkSession, tmp_path: Path) -> None:
    scene = Scene(spark, tmp_path, "lakefs")
    scene.world.released = {("one", "first"): False, ("one", "both"): True}
    live = scene.live(verification_id="plan-1")
    assert live.table.receipt.group == f"_recheck/plan-1/{LAKE}"
    assert {key: row[ROUTE] for key, row in rows_by_key(live, "first", "both").items()} == {"first": LIFECYCLE_SIDE, "both": ""}


@pytest.mark.spark
def test_missing_cache_segment_is_reported(scene: Scene) -> None:
    live = scene.live()
    (segment,) = live.context.state.history(LAKE, "manifest_entries")
    shutil.rmtree(scene.root / "state" / segment.path)
    live.context.state.repair()
    with pytest.raises(StateError, match="the cache of containers lacks entries of 2 containers, such as file:///one/a/m00001"):
        list(LiveSet(live.context, live.table).batches())


@pytest.mark.spark
def test_run_without_hashes_of_live_container_is_not_published(scene: Scene) -> None:
    scene.live()
    for part in scene.root.glob("state/lake/manifest_entries/**/_hashes/*.parquet"):
        pq.write_table(pq.read_table(part).slice(1), part)
    with pytest.raises(StateError, match="wrong number of entries for 1 containers, such as file:///one/a/m00001"):
        scene.live()


@pytest.mark.spark
def test_live_file_rows_of_earlier_releases_are_read(spark: SparkSession, tmp_path: Path) -> None:
    context = build_context(tmp_path, LAKES["iceberg"])
    live, expired = ([{"storage": "one", "key": key, "kind": Kind.DATA, "lake": LAKE, "table_uuid": "a", "size_bytes": 5}] for key in "ab")
    table = publish_table(context, LAKE, LIVE_FILES, live, {EXPIRED_SIDE: pa.Table.from_pylist(expired, LIVE_FILES.schema)})
    found = LiveSet(context, table)
    assert not found.is_view
    assert {key: row[ROUTE] for key, row in rows_by_key(found, "a", "b", "c").items()} == {"a": "", "b": EXPIRED_SIDE}
    assert [row["key"] for row in found.read(spark, EXPIRED_SIDE).collect()] == ["b"]
    assert [row["key"] for batch in found.batches() for row in batch.to_pylist()] == ["a"]
    assert found.totals.by_all("storage", "table_uuid") == {("one", "a"): Amount(files=1, bytes=5)}
