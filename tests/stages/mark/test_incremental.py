"""Incremental runs of `live_files` publish the same rows as a full recompute."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from gc_assets.core.hashing import xxhash64
from gc_assets.core.plan import Unreadable
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS
from gc_assets.lakes.protocol import EXPIRED, RETAINED
from gc_assets.stages.mark import incremental, live_rows, needs
from gc_assets.stages.mark import live_files as stage
from gc_assets.stages.mark.content_roots import closure, rank_by_contents
from gc_assets.stages.mark.incremental import NeedChanges
from gc_assets.stages.mark.live_files import live_files
from gc_assets.stages.mark.needs import DecodedContainers, PreviousNeeds, compare_needs
from gc_assets.stages.mark.reused_rows import is_in_sorted
from gc_assets.stages.mark.witnesses import build_witnesses
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import LIVE_CONTENTS
from gc_assets.state.side_tables import CHANGED_CONTAINERS_SIDE, EXPIRED_SIDE, NEEDS, NEEDS_SIDE, ROOTS
from tests.depth import example_count, full_suite_only, select_cases
from tests.stages.mark.incremental_histories import (
    LAKE,
    LAKES,
    NOW,
    ROOT,
    Commit,
    World,
    always_incremental,
    build_context,
    frequent_compaction,
    large_lake,
    play,
    read_rows_by_route,
    receipt_counts,
    write,
)

KEYS = st.sampled_from("abcd")
IDS = st.sampled_from(["1", "2", None])


# All histories are in one lake, so that one run marks all of them.
HISTORIES = 200


@pytest.mark.spark
@pytest.mark.parametrize("kind", LAKES)
def test_incremental_runs_equal_full_runs_over_random_histories(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    events = play(spark, tmp_path, kind, HISTORIES, runs=example_count(5, 20)).events
    assert events["reused"] > events["rows"] // 4


@pytest.mark.spark
@pytest.mark.parametrize("kind", select_cases(["lakefs"], ["iceberg", "icechunk", "nessie"]))
@pytest.mark.parametrize("broadcast_rows", select_cases([0], [10**6]))
def test_in_process_and_spark_runs_publish_the_same_rows(spark: SparkSession, tmp_path: Path, kind: str, broadcast_rows: int) -> None:
    runs = example_count(2, 20)
    in_process = play(spark, tmp_path / "in_process", kind, HISTORIES, runs)
    with large_lake(broadcast_rows):
        with_spark = play(spark, tmp_path / "spark", kind, HISTORIES, runs)
    assert with_spark.events["reused"]
    assert with_spark == in_process


@pytest.mark.spark
def test_compacted_segments_of_old_and_new_entries_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    with frequent_compaction():
        events = play(spark, tmp_path, "iceberg", histories=example_count(2, 6), runs=example_count(4, 6)).events
    assert events["reused"] > events["rows"] // 3
    assert list(tmp_path.glob(f"incremental/{LAKE}/manifest_entries/_folds/*"))


@dataclass
class Scene:
    """A small lake of two tables with an incremental state and a state of full runs."""

    spark: SparkSession
    root: Path
    kind: str = "iceberg"
    now: datetime = NOW
    world: World = field(default_factory=lambda: World(random.Random(7)))
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        one = self.world.container("a", Kind.MANIFEST, [self.file("first"), self.file("both")])
        two = self.world.container("a", Kind.MANIFEST, [self.file("second"), self.file("both")])
        self.commit("1", "a", [one, two])
        self.commit("2", "a", [one])
        self.commit("3", "b", [two], leaf="first")

    def file(self, name: str, storage: str = "one", **more: Any) -> dict[str, Any]:
        location = {"address": f"file:///{storage}/{name}", "storage": storage, "key": name}
        return {**location, "kind": Kind.DATA, "must_exist": True, "is_container": False, "size_bytes": 7, "entry_status": None, **more}

    def commit(self, name: str, table: str, manifests: list[dict[str, Any]], leaf: str | None = None) -> None:
        """Add a commit with a list of these manifests, and with the file `leaf` as a second root."""
        roots = [self.world.container(table, Kind.MANIFEST_LIST, manifests)]
        roots += [self.file(leaf)] if leaf is not None else []
        names = ("address", "kind", "is_container", "size_bytes", "must_exist", "storage", "key")
        self.world.commits[name] = Commit(table, [{column: root[column] for column in names} for root in roots])

    def run_context(self, state: str = "incremental", **more: Any) -> RunContext:
        return build_context(self.root, LAKES[self.kind], self.now, state=state, **{"full_every": 100, **self.settings, **more})

    def live(self, **more: Any) -> PublishedTable:
        """Publish the table of the next run."""
        run_context = self.run_context(**more)
        write(self.world, run_context)
        self.world.end_run()
        found = live_files(self.spark, run_context, LAKE)
        self.now += timedelta(days=1)
        return found

    def assert_equals_full_run(self, found: PublishedTable) -> None:
        """Compare a table with a full run in a new state."""
        everything = World(random.Random(0), self.world.commits, pinned=self.world.pinned, released=self.world.released)
        everything.pending = self.world.history
        shutil.rmtree(self.root / "full", ignore_errors=True)
        run_context = self.run_context("full", full_every=0)
        write(everything, run_context)
        computed = live_files(self.spark, run_context, LAKE)
        assert read_rows_by_route(self.run_context(), found) == read_rows_by_route(run_context, computed)
        assert receipt_counts(found) == receipt_counts(computed)

    def part(self, table: PublishedTable, side: str | None = None) -> Path:
        return self.root / "incremental" / table.paths(side)[0]


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path) -> Iterator[Scene]:
    with always_incremental():
        yield Scene(spark, tmp_path)


def reason(table: PublishedTable) -> str | None:
    return table.receipt.summary["full_recompute_reason"]


def drop(name: str) -> Callable[[World], None]:
    return lambda world: world.gone.update({name: world.commits.pop(name)})


def change_state(name: str, state: str, refs: int = 1) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.commits[name].state, world.commits[name].refs = state, refs

    return change


def may_be_absent(world: World) -> None:
    for commit in world.commits.values():
        commit.roots[0]["must_exist"] = False


def move(world: World) -> None:
    """Rewrite the container of `first`, so that the file is in another storage."""
    address, rows = next((name, rows) for name, rows in world.named.items() if any(row["key"] == "first" for row in rows))
    world.decode(address, [{**row, "address": f"file:///two/{row['key']}", "storage": "two"} for row in rows])


def name_directly(world: World) -> None:
    root = world.commits["1"].roots[0]
    world.commits["1"].roots.append({**root, "address": "file:///one/second", "key": "second", "kind": Kind.DATA, "is_container": False})


CHANGES: dict[str, tuple[Callable[[World], None], int]] = {
    "nothing": (lambda _: None, 0),
    "the strongest witness is removed": (drop("1"), 6),
    "one of two containers of a file is removed": (drop("3"), 2),
    "a commit expires": (change_state("1", EXPIRED), 6),
    "no ref reaches a commit": (change_state("1", RETAINED, refs=0), 6),
    "the entries of a container become optional": (may_be_absent, 8),
    "a file moves to another storage": (move, 3),
    "a commit names a file of a container directly": (name_directly, 1),
}


@pytest.mark.spark
@pytest.mark.parametrize("change, most", CHANGES.values(), ids=CHANGES)
def test_only_dirty_rows_are_computed_again(scene: Scene, change: Callable[[World], None], most: int) -> None:
    first = scene.live()
    assert reason(first) == "there is no previous run"
    change(scene.world)
    second = scene.live()
    assert reason(second) is None
    assert first.receipt.rows - second.receipt.summary["reused_files"] <= most
    scene.assert_equals_full_run(second)


@pytest.mark.spark
def test_removed_commits_that_return_give_the_same_rows(scene: Scene) -> None:
    first = scene.live()
    commits = dict(scene.world.commits)
    scene.world.commits = {"3": commits["3"]}
    assert scene.live().receipt.rows < first.receipt.rows
    scene.world.commits = commits
    third = scene.live()
    assert reason(third) is None
    assert receipt_counts(third) == receipt_counts(first)
    scene.assert_equals_full_run(third)


@pytest.mark.spark
def test_new_unreadable_table_removes_no_rows_of_other_tables(scene: Scene) -> None:
    """The walk finds no difference: only the frozen refs record the new table."""
    first = scene.live()
    scene.world.unread = [{"table_name": "born", "why": "truncated", "address": None}]
    second = scene.live()
    assert [item["table_name"] for item in second.receipt.summary["unreadable"]] == ["born"]
    assert reason(second) == "some tables are unreadable"
    assert read_rows_by_route(scene.run_context(), second) == read_rows_by_route(scene.run_context(), first)


@pytest.mark.spark
def test_entries_of_a_rewritten_container_are_dirty(scene: Scene) -> None:
    """The new object names as many containers as the old one named files, and its commit is retained again."""
    old = scene.world.container("c", Kind.MANIFEST_LIST, [scene.file("old")])
    scene.world.commits["4"] = Commit("c", [{name: old[name] for name in ROOT}], EXPIRED)
    assert scene.live().receipt.summary["expired_files"] == 2
    scene.world.replace_files(old["address"], scene.world.commits["4"])
    change_state("4", RETAINED)(scene.world)
    second = scene.live()
    assert reason(second) is None
    assert second.receipt.summary["expired_files"] == 0
    scene.assert_equals_full_run(second)


@pytest.mark.spark
def test_empty_baseline_causes_a_full_recompute(scene: Scene) -> None:
    first = scene.live()
    commits, scene.world.commits = scene.world.commits, {}
    assert scene.live().receipt.rows == 0
    scene.world.commits = commits
    third = scene.live()
    assert reason(third) == "the previous run has no rows"
    assert receipt_counts(third) == receipt_counts(first)


@pytest.mark.spark
def test_changed_released_files_are_dirty(spark: SparkSession, tmp_path: Path) -> None:
    with always_incremental():
        scene = Scene(spark, tmp_path, "lakefs")
        for released in ({("one", "first"): False}, {("one", "first"): False}, {("one", "second"): False, ("one", "both"): True}, {}):
            scene.world.released = released
            found = scene.live()
            assert found.receipt.summary["lifecycle_files"] == len([kept for kept in released.values() if not kept])
            scene.assert_equals_full_run(found)
        assert reason(found) is None


@pytest.mark.spark
def test_run_without_changes_copies_parts_and_starts_no_job(scene: Scene) -> None:
    if not hasattr(scene.spark, "sparkContext"):
        pytest.skip("Spark Connect does not count jobs")
    first = scene.live()
    jobs = scene.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs
    jobs_before = jobs()
    second = scene.live()
    assert jobs() == jobs_before
    assert second.receipt.files == first.receipt.files
    assert second.receipt.digest == first.receipt.digest
    scene.assert_equals_full_run(second)


@pytest.mark.spark
def test_unreadable_table_causes_full_recomputes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    first = scene.live()
    unknown = Unreadable(lake=LAKE, table_name="never read", why="truncated", since=NOW)
    with monkeypatch.context() as patch:
        patch.setattr(stage, "list_unreadable", lambda *_: (unknown,))
        second = scene.live()
    assert reason(second) == "some tables are unreadable"
    assert (second.receipt.rows, second.receipt.digest) == (first.receipt.rows, first.receipt.digest)
    third = scene.live()
    assert reason(third) == "the previous run has unreadable tables"
    assert third.receipt.digest == first.receipt.digest


@pytest.mark.spark
def test_small_lake_is_recomputed_after_a_change(spark: SparkSession, tmp_path: Path) -> None:
    scene = Scene(spark, tmp_path)
    scene.live()
    assert reason(scene.live()) is None
    drop("3")(scene.world)
    third = scene.live()
    assert reason(third) == "the table is small"
    scene.assert_equals_full_run(third)


@pytest.mark.spark
def test_many_dirty_rows_cause_a_full_recompute(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.live()
    monkeypatch.setattr(incremental, "MAX_DIRTY_SHARE", 0.25)
    drop("1")(scene.world)
    assert str(reason(scene.live())).startswith("up to ")


@pytest.mark.spark
def test_rows_with_another_fingerprint_are_not_reused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.live()
    other = "the previous run used another release, other storages or other settings"
    scene.settings = {"storages": ("one", "two", "three")}
    scene.world.pending = scene.world.history
    assert reason(scene.live()) == other
    monkeypatch.setattr(incremental, "ROW_VERSION", 0)
    assert reason(scene.live()) == other
    assert reason(scene.live()) is None


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.spark
@pytest.mark.parametrize("side", [None, NEEDS_SIDE, EXPIRED_SIDE])
def test_damaged_part_of_equal_length_is_not_reused(scene: Scene, side: str | None) -> None:
    change_state("2", EXPIRED)(scene.world)
    change_state("1", EXPIRED)(scene.world)
    flip(scene.part(scene.live(), side))
    drop("2")(scene.world)
    second = scene.live()
    assert "differs from the published bytes" in str(reason(second))
    scene.assert_equals_full_run(second)


@pytest.mark.spark
@pytest.mark.parametrize("side", [None, NEEDS_SIDE])
def test_run_with_a_missing_part_is_no_baseline(scene: Scene, side: str | None) -> None:
    scene.part(scene.live(), side).unlink()
    second = scene.live()
    assert "is missing" in str(reason(second))
    scene.assert_equals_full_run(second)


@pytest.mark.spark
def test_run_with_a_missing_segment_is_no_baseline(scene: Scene) -> None:
    scene.live()
    run_context = scene.run_context()
    (segment,) = run_context.state.history(LAKE, "manifest_entries")
    shutil.rmtree(scene.root / "incremental" / segment.path)
    run_context.state.repair()
    scene.world.pending = scene.world.history
    second = scene.live()
    assert reason(second) == "segments of the entry cache are missing"
    scene.assert_equals_full_run(second)


@pytest.mark.spark
def test_real_run_reuses_no_rehearsal(scene: Scene) -> None:
    scene.live(unsafe=("a rehearsal",))
    assert reason(scene.live()) == "the previous runs used other safety limits or a rehearsal clock"
    assert reason(scene.live(unsafe=("a rehearsal",))) is None
    assert reason(scene.live()) is None


@pytest.mark.spark
def test_only_verification_marks_reuse_verification_marks(scene: Scene) -> None:
    first = scene.live()
    drop("1")(scene.world)
    verification = replace(scene.run_context(), verification_id="plan-1")
    write(scene.world, verification)
    scene.world.pending = []
    marked = live_files(scene.spark, verification, LAKE)
    assert marked.receipt.group == f"_recheck/plan-1/{LAKE}"
    assert marked.receipt.summary["reused_from"] == first.receipt.run_id
    scene.assert_equals_full_run(marked)
    assert scene.live().receipt.summary["reused_from"] == first.receipt.run_id


@pytest.mark.spark
def test_interrupted_run_is_no_baseline(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    first = scene.live()
    drop("1")(scene.world)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage, "publish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            scene.live()
    scene.now += timedelta(days=1)
    third = scene.live()
    assert third.receipt.summary["reused_from"] == first.receipt.run_id
    scene.assert_equals_full_run(third)


@pytest.mark.spark
def test_repeated_and_past_dates_reuse_the_newest_run(scene: Scene) -> None:
    scene.live()
    scene.now -= timedelta(days=1)
    again = scene.live()
    assert again.receipt.summary["incremental_runs"] == 1
    drop("3")(scene.world)
    past = scene.run_context(run_date=(NOW - timedelta(days=30)).date())
    write(scene.world, past)
    scene.world.pending = []
    found = live_files(scene.spark, past, LAKE)
    assert found.receipt.summary["reused_from"] == again.receipt.run_id
    scene.assert_equals_full_run(found)
    scene.assert_equals_full_run(scene.live())


@pytest.mark.spark
def test_concurrent_runs_reuse_the_same_rows(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other run publishes, including a segment, after this run has found its baseline."""
    scene.live()
    drop("1")(scene.world)
    walk, others = stage.LiveWalk.__call__, list[Any]()

    def walk_after_other_run(task: Any, batches: Any) -> Any:
        if not others:
            others.append(None)
            scene.commit("9", "b", [scene.world.container("b", Kind.MANIFEST, [scene.file("late")])])
            others[0] = scene.live()
            del scene.world.commits["9"]
        return walk(task, batches)

    with monkeypatch.context() as patch:
        patch.setattr(stage.LiveWalk, "__call__", walk_after_other_run)
        run_context = scene.run_context()
        write(scene.world, run_context)
        found = live_files(scene.spark, run_context, LAKE)
    assert found.receipt.summary["reused_from"] == others[0].receipt.summary["reused_from"]
    scene.assert_equals_full_run(found)
    scene.now += timedelta(days=1)
    scene.assert_equals_full_run(scene.live())


@pytest.mark.spark
def test_periodic_comparison_reports_wrong_reused_rows(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.live()
    drop("1")(scene.world)
    scene.commit("4", "b", [scene.world.container("b", Kind.MANIFEST, [scene.file("new")])])
    with monkeypatch.context() as patch:
        patch.setattr(needs, "compare_needs", lambda *_: (pa.array([], pa.string()), pa.array([], pa.string())))
        patch.setattr(incremental.Baseline, "new_rows", 0)
        assert reason(scene.live()) is None
    third = scene.live(full_every=2)
    assert str(reason(third)).startswith("every 2 runs")
    assert third.receipt.summary["differences"]
    assert "please report this error" in third.receipt.summary["notes"][-1]
    scene.assert_equals_full_run(third)
    scene.live(full_every=0)
    scene.live(unsafe=("a rehearsal",))
    for full_every in (2, 10, 1):
        found = scene.live(full_every=full_every)
        assert reason(found) == f"reused rows of this release were wrong on {third.receipt.run_date}"
        assert found.receipt.summary["distrusted_on"] == str(third.receipt.run_date)
    monkeypatch.setattr(incremental, "ROW_VERSION", 0)
    assert "used another release" in str(reason(scene.live(full_every=2)))
    next_one = scene.live(full_every=2)
    assert (reason(next_one), next_one.receipt.summary["incremental_runs"]) == (None, 1)
    last = scene.live(full_every=1)
    assert (last.receipt.summary["incremental_runs"], last.receipt.summary["differences"]) == (0, [])


@pytest.mark.spark
def test_full_recomputes_for_other_reasons_do_not_delay_the_comparison(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incremental, "MAX_DIRTY_SHARE", 0)
    reasons = []
    for name in "abcdef":
        scene.commit(name, name, [scene.world.container(name, Kind.MANIFEST, [scene.file(f"new {name}")])])
        reasons.append(str(reason(scene.live(full_every=3)))[:5])
    assert reasons == ["there", "up to", "up to", "every", "up to", "up to"]


@pytest.mark.spark
def test_unreadable_tables_do_not_delay_the_comparison(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = Unreadable(lake=LAKE, table_name="never read", why="truncated", since=NOW)
    reasons = []
    for number in range(5):
        with monkeypatch.context() as patch:
            if number == 1:
                patch.setattr(stage, "list_unreadable", lambda *_: (unknown,))
            reasons.append(str(reason(scene.live(full_every=4)))[:22])
    assert reasons == ["there is no previous r", "some tables are unread", "the previous run has u", "None", "every 4 runs all rows "]


@pytest.mark.spark
def test_damaged_baseline_is_not_compared(scene: Scene) -> None:
    flip(scene.part(scene.live()))
    second = scene.live(full_every=1)
    assert str(reason(second)).startswith("the previous run is damaged")
    assert second.receipt.summary["differences"] == []
    assert second.receipt.summary["distrusted_on"] is None


@pytest.mark.spark
def test_run_from_the_future_is_no_baseline(scene: Scene) -> None:
    first = scene.live()
    scene.now += timedelta(days=70 * 365)
    scene.live()
    scene.now -= timedelta(days=70 * 365)
    assert scene.live().receipt.summary["reused_from"] == first.receipt.run_id


@pytest.mark.spark
def test_wrong_amounts_of_the_baseline_cause_a_full_recompute(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.live()
    drop("1")(scene.world)
    with monkeypatch.context() as patch:
        patch.setattr(live_rows, "amend_amounts", lambda previous, *_: previous)
        second = scene.live()
    assert "files, but" in str(reason(second))
    scene.assert_equals_full_run(second)


@pytest.mark.spark
def test_damaged_released_files_cause_a_full_recompute(spark: SparkSession, tmp_path: Path) -> None:
    with always_incremental():
        scene = Scene(spark, tmp_path, "lakefs")
        scene.world.released = {("one", "first"): False}
        scene.live()
        (part,) = (tmp_path / "incremental" / LAKE / LIFECYCLE_OBJECTS.name).glob("**/*.parquet")
        flip(part)
        scene.world.released = {("one", "second"): False}
        for full_every in (100, 1):
            found = scene.live(full_every=full_every)
            assert found.receipt.summary["lifecycle_files"] == 1
            scene.assert_equals_full_run(found)


@full_suite_only
@pytest.mark.spark
def test_comparison_of_correct_rows_finds_no_differences(scene: Scene) -> None:
    scene.live()
    for change in (drop("1"), lambda world: world.commits.update(world.gone), change_state("3", EXPIRED), move):
        change(scene.world)
        found = scene.live(full_every=1)
        assert (str(reason(found))[:5], found.receipt.summary["differences"]) == ("every", [])
        scene.assert_equals_full_run(found)


@pytest.mark.spark
def test_full_every_0_reuses_no_rows(scene: Scene) -> None:
    scene.live()
    assert reason(scene.live(full_every=0)) == "full_every is 0"


# Tests of pure functions.

NEED = st.fixed_dictionaries(
    {
        "storage": st.sampled_from(["s", None]),
        "key": KEYS,
        "address": KEYS,
        "kind": st.just("data"),
        "size_bytes": st.sampled_from([1, None]),
        "must_exist": st.booleans(),
        "container_size_bytes": st.none(),
        "rank": st.sampled_from([0, 2]),
        "commit_id": IDS,
        "table_uuid": IDS,
        "container": IDS,
        "expands": st.booleans(),
    }
)
NEED_LISTS = st.lists(NEED, max_size=6, unique_by=lambda row: (row["address"], row["expands"]) if row["expands"] else id(row))
ENTRIES = st.lists(st.tuples(KEYS, KEYS), max_size=8)


def inputs_by_key(needs: list[dict[str, Any]], entries: list[tuple[str, str]]) -> dict[str, list[tuple[Any, ...]]]:
    """Return all inputs of the row of each key, by brute force."""
    found: dict[str, set[tuple[Any, ...]]] = {}
    for row in needs:
        found.setdefault(row["key"], set()).add(tuple(row.values()))
        for container, key in entries:
            if row["expands"] and row["address"] == container:
                need = tuple(row[name] for name in ("rank", "commit_id", "table_uuid", "must_exist"))
                found.setdefault(key, set()).add((container, *need))
    return {key: sorted(names, key=repr) for key, names in found.items()}


def test_kind_of_a_file_does_not_depend_on_the_order_of_witnesses() -> None:
    """A commit names a file twice, as two kinds."""
    twice = [{**equal_roots().slice(0, 1).to_pylist()[0], "kind": kind} for kind in (Kind.DATA, Kind.POSSIBLE_OBJECT)]
    nothing, lengths = ROOTS.empty_table(), pa.chunked_array([], pa.int64())
    found = [build_witnesses(nothing, lengths, pa.Table.from_pylist(rows, ROOTS))[1].sort_by("kind") for rows in (twice, twice[::-1])]
    assert found[0] == found[1]


@given(NEED_LISTS, NEED_LISTS, ENTRIES, ENTRIES)
@settings(max_examples=200)
def test_keys_with_changed_inputs_are_dirty(
    previous: list[dict[str, Any]], current: list[dict[str, Any]], known: list[tuple[str, str]], new: list[tuple[str, str]]
) -> None:
    containers, keys = compare_needs(pa.Table.from_pylist(previous, NEEDS), pa.Table.from_pylist(current, NEEDS))
    changed = set(containers.to_pylist())
    dirty = set(keys.to_pylist()) | {key for container, key in known if container in changed} | {key for _, key in new}
    old_inputs, new_inputs = inputs_by_key(previous, known), inputs_by_key(current, known + new)
    assert {key for key in old_inputs.keys() | new_inputs.keys() if old_inputs.get(key) != new_inputs.get(key)} <= dirty


@given(NEED_LISTS, st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_equal_needs_in_another_order_have_no_differences(rows: list[dict[str, Any]], chance: random.Random) -> None:
    other = [*rows, *rows[:2]]
    chance.shuffle(other)
    containers, keys = compare_needs(pa.Table.from_pylist(rows, NEEDS), pa.Table.from_pylist(other, NEEDS))
    assert (len(containers), len(keys)) == (0, 0)


@given(st.lists(st.text(), unique=True), st.lists(st.text()))
@settings(max_examples=200)
def test_dirty_rows_are_found_in_sorted_hashes(dirty: list[str], keys: list[str]) -> None:
    ordered = sorted(xxhash64(pa.array(dirty, pa.string())))
    found = is_in_sorted(xxhash64(pa.array(keys, pa.string())), pa.array(ordered, pa.int64()).to_numpy())
    assert found.tolist() == [key in dirty for key in keys]


def equal_roots() -> pa.Table:
    """Return roots of a container that two tables need by equal commit ids and two parents."""
    root = {"address": "m", "kind": "manifest", "is_container": True, "must_exist": True, "storage": "s", "key": "m", "rank": 0}
    return pa.Table.from_pylist(
        [{**root, "commit_id": "1", "table_uuid": uuid, "parent": parent} for uuid in "ab" for parent in "xy"], ROOTS
    )


def test_witness_of_a_container_does_not_depend_on_the_order_of_roots() -> None:
    roots = equal_roots()
    edges = pa.table({name: pa.array([], pa.string()) for name in ("container", "address", "kind", "storage", "key", "snapshot_id")})
    edges = edges.append_column("size_bytes", pa.array([], pa.int64())).append_column("must_exist", pa.array([], pa.bool_()))
    found = [closure(roots.take(order), edges).to_pylist() for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1])]
    assert found[0] == found[1] == found[2]


def test_commit_of_a_content_does_not_depend_on_the_order_of_contents() -> None:
    rows = [{"metadata_location": "m", "ref_name": "main", "at_head": True, "commit_id": commit} for commit in "213"]
    contents = pa.Table.from_pylist(rows, LIVE_CONTENTS.schema)
    found = [
        rank_by_contents(equal_roots(), contents.take(order), tolerant=False).column("commit_id")
        for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2])
    ]
    assert found[0].to_pylist() == ["1"] * 4
    assert found[0] == found[1] == found[2]


def test_numbers_of_witnesses_depend_only_on_content() -> None:
    leaves, nothing = equal_roots(), ROOTS.empty_table()

    def number_witnesses(order: list[int]) -> dict[int, tuple[Any, ...]]:
        witnesses, _, _ = build_witnesses(nothing, pa.chunked_array([], pa.int64()), leaves.take(order))
        return {row.pop("witness"): tuple(row.values()) for row in witnesses.to_pylist()}

    assert number_witnesses([0, 1, 2, 3]) == number_witnesses([3, 2, 1, 0]) == number_witnesses([2, 0, 3, 1])


@pytest.mark.parametrize("new", [[], ["list", "manifest"]], ids=["decoded once", "decoded again as the other"])
def test_changed_container_with_files_makes_its_entries_dirty(new: list[str]) -> None:
    """A manifest of four files that was rewritten with four containers still makes its old entries dirty."""
    known = pa.table({"container": ["list", "manifest", "manifest"], "entries": [2, 1, 3]})
    decoded_again = pa.table({"container": pa.array(new, pa.string()), "entries": pa.array([2, 4][: len(new)], pa.int64())})
    inside = ["list", "list", *(["list", "list", *["manifest"] * 4] if new else [])]
    rows = [{"address": name, "key": name, "storage": "s", "rank": 0, "expands": True, "must_exist": True} for name in ("list", "manifest")]
    current, edges = pa.Table.from_pylist(rows, NEEDS), pa.table({"container": inside})
    files: Any = None
    previous, index = PreviousNeeds("", (), frozenset(), False, True), pa.concat_tables([known, decoded_again])
    sides, summary = previous.compare(files, current, DecodedContainers(index, known.column("container"), edges))
    assert sides[CHANGED_CONTAINERS_SIDE].to_pylist() == [{"container": "manifest"}]
    assert summary == NeedChanges(entries=4, keys=2, containers=1)
