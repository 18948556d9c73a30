"""Rows of `live_files` that are carried over from an earlier night are those that computing all of them gives."""

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
from tests.depth import deep, some, times
from tests.stages.mark.carrying import (
    LAKE,
    LAKES,
    NOW,
    ROOT,
    Commit,
    World,
    always_carrying,
    folding,
    night_of,
    of_many_rows,
    play,
    rows_of,
    told,
    write,
)

KEYS = st.sampled_from("abcd")
SOMEBODY = st.sampled_from(["1", "2", None])


# Beside each other in one lake, so that a night marks all of them.
HISTORIES = 200


@pytest.mark.spark
@pytest.mark.parametrize("kind", LAKES)
def test_rows_of_random_histories_that_are_carried_over_are_those_of_a_full_computation(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    events = play(spark, tmp_path, kind, HISTORIES, nights=times(5, 20)).events
    assert events["carried"] > events["rows"] // 4


@pytest.mark.spark
@pytest.mark.parametrize("kind", some(["lakefs"], ["iceberg", "icechunk", "nessie"]))
@pytest.mark.parametrize("broadcast_rows", some([0], [10**6]))
def test_random_histories_are_marked_alike_here_and_where_spark_joins_and_executors_copy(
    spark: SparkSession, tmp_path: Path, kind: str, broadcast_rows: int
) -> None:
    nights = times(2, 20)
    here = play(spark, tmp_path / "here", kind, HISTORIES, nights)
    with of_many_rows(broadcast_rows):
        there = play(spark, tmp_path / "there", kind, HISTORIES, nights)
    assert there.events["carried"]
    assert there == here


@pytest.mark.spark
def test_rows_are_those_of_a_full_computation_where_a_fold_holds_old_and_new_segments(spark: SparkSession, tmp_path: Path) -> None:
    with folding():
        events = play(spark, tmp_path, "iceberg", histories=times(2, 6), nights=times(4, 6)).events
    assert events["carried"] > events["rows"] // 3
    assert list(tmp_path.glob(f"carrying/{LAKE}/manifest_entries/_folds/*"))


@dataclass
class Scene:
    """A small lake of two tables, and its nights: one state carries over, another computes everything."""

    spark: SparkSession
    root: Path
    kind: str = "iceberg"
    now: datetime = NOW
    world: World = field(default_factory=lambda: World(random.Random(7)))
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        one = self.world.container("a", Kind.MANIFEST, [self.file("first"), self.file("both")])
        two = self.world.container("a", Kind.MANIFEST, [self.file("second"), self.file("both")])
        self.put("1", "a", [one, two])
        self.put("2", "a", [one])
        self.put("3", "b", [two], leaf="first")

    def file(self, name: str, storage: str = "one", **more: Any) -> dict[str, Any]:
        place = {"address": f"file:///{storage}/{name}", "storage": storage, "key": name}
        return {**place, "kind": Kind.DATA, "must_exist": True, "is_container": False, "size_bytes": 7, "entry_status": None, **more}

    def put(self, name: str, table: str, manifests: list[dict[str, Any]], leaf: str | None = None) -> None:
        """A commit of a list of these manifests, which itself names a file if there is a `leaf`."""
        roots = [self.world.container(table, Kind.MANIFEST_LIST, manifests)]
        roots += [self.file(leaf)] if leaf is not None else []
        names = ("address", "kind", "is_container", "size_bytes", "must_exist", "storage", "key")
        self.world.commits[name] = Commit(table, [{column: root[column] for column in names} for root in roots])

    def run_context(self, state: str = "carrying", **more: Any) -> RunContext:
        return night_of(self.root, LAKES[self.kind], self.now, state=state, **{"full_every": 100, **self.settings, **more})

    def live(self, **more: Any) -> PublishedTable:
        """The next night's table."""
        run_context = self.run_context(**more)
        write(self.world, run_context)
        self.world.end()
        found = live_files(self.spark, run_context, LAKE)
        self.now += timedelta(days=1)
        return found

    def equal(self, found: PublishedTable) -> None:
        """Holds it against what is computed from a state of its own."""
        everything = World(random.Random(0), self.world.commits, pinned=self.world.pinned, released=self.world.released)
        everything.pending = self.world.history
        shutil.rmtree(self.root / "computing", ignore_errors=True)
        run_context = self.run_context("computing", full_every=0)
        write(everything, run_context)
        computed = live_files(self.spark, run_context, LAKE)
        assert rows_of(self.run_context(), found) == rows_of(run_context, computed)
        assert told(found) == told(computed)

    def part(self, table: PublishedTable, side: str | None = None) -> Path:
        return self.root / "carrying" / table.paths(side)[0]


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path) -> Iterator[Scene]:
    with always_carrying():
        yield Scene(spark, tmp_path)


def why(table: PublishedTable) -> str | None:
    return table.receipt.summary["full_recompute_reason"]


def drop(name: str) -> Callable[[World], None]:
    return lambda world: world.gone.update({name: world.commits.pop(name)})


def judge(name: str, state: str, refs: int = 1) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.commits[name].state, world.commits[name].refs = state, refs

    return change


def may_be_absent(world: World) -> None:
    for commit in world.commits.values():
        commit.roots[0]["must_exist"] = False


def move(world: World) -> None:
    """The container of `first` is another object by now, which says that the file lies elsewhere."""
    address, rows = next((name, rows) for name, rows in world.named.items() if any(row["key"] == "first" for row in rows))
    world.decode(address, [{**row, "address": f"file:///two/{row['key']}", "storage": "two"} for row in rows])


def name_directly(world: World) -> None:
    root = world.commits["1"].roots[0]
    world.commits["1"].roots.append({**root, "address": "file:///one/second", "key": "second", "kind": Kind.DATA, "is_container": False})


CHANGES: dict[str, tuple[Callable[[World], None], int]] = {
    "nothing": (lambda _: None, 0),
    "the strongest witness goes and a weaker one remains": (drop("1"), 6),
    "one of two containers that name a file goes": (drop("3"), 2),
    "a commit expires": (judge("1", EXPIRED), 6),
    "no ref reaches a commit": (judge("1", RETAINED, refs=0), 6),
    "what a container names need not exist any more": (may_be_absent, 8),
    "a file is in another storage": (move, 3),
    "a commit names a file of a container itself": (name_directly, 1),
}


@pytest.mark.spark
@pytest.mark.parametrize("change, most", CHANGES.values(), ids=CHANGES)
def test_only_rows_that_a_change_touches_are_computed_anew(scene: Scene, change: Callable[[World], None], most: int) -> None:
    first = scene.live()
    assert why(first) == "there is no previous run"
    change(scene.world)
    second = scene.live()
    assert why(second) is None
    assert first.receipt.rows - second.receipt.summary["reused_files"] <= most
    scene.equal(second)


@pytest.mark.spark
def test_what_went_is_as_it_was_when_it_comes_back(scene: Scene) -> None:
    first = scene.live()
    there = dict(scene.world.commits)
    scene.world.commits = {"3": there["3"]}
    assert scene.live().receipt.rows < first.receipt.rows
    scene.world.commits = there
    third = scene.live()
    assert why(third) is None
    assert told(third) == told(first)
    scene.equal(third)


@pytest.mark.spark
def test_a_new_table_that_nobody_can_read_takes_no_row_from_the_others(scene: Scene) -> None:
    """The walk finds all as it was. That the new table is sick stands elsewhere."""
    first = scene.live()
    scene.world.unread = [{"table_name": "born", "why": "it is torn", "address": None}]
    second = scene.live()
    assert [item["table_name"] for item in second.receipt.summary["unreadable"]] == ["born"]
    assert why(second) == "some tables are unreadable"
    assert rows_of(scene.run_context(), second) == rows_of(scene.run_context(), first)


@pytest.mark.spark
def test_what_a_container_named_is_touched_although_the_container_names_as_many_containers_by_now(scene: Scene) -> None:
    """Its object was replaced in the night in which its commit is kept again."""
    old = scene.world.container("c", Kind.MANIFEST_LIST, [scene.file("old")])
    scene.world.commits["4"] = Commit("c", [{name: old[name] for name in ROOT}], EXPIRED)
    assert scene.live().receipt.summary["expired_files"] == 2
    scene.world.turn(old["address"], scene.world.commits["4"])
    judge("4", RETAINED)(scene.world)
    second = scene.live()
    assert why(second) is None
    assert second.receipt.summary["expired_files"] == 0
    scene.equal(second)


@pytest.mark.spark
def test_a_lake_that_was_empty_for_a_night_is_computed(scene: Scene) -> None:
    first = scene.live()
    there, scene.world.commits = scene.world.commits, {}
    assert scene.live().receipt.rows == 0
    scene.world.commits = there
    third = scene.live()
    assert why(third) == "the previous run has no rows"
    assert told(third) == told(first)


@pytest.mark.spark
def test_another_word_of_the_lifecycle_rules_touches_the_files_that_they_name(spark: SparkSession, tmp_path: Path) -> None:
    with always_carrying():
        scene = Scene(spark, tmp_path, "lakefs")
        for released in ({("one", "first"): False}, {("one", "first"): False}, {("one", "second"): False, ("one", "both"): True}, {}):
            scene.world.released = released
            found = scene.live()
            assert found.receipt.summary["lifecycle_files"] == len([kept for kept in released.values() if not kept])
            scene.equal(found)
        assert why(found) is None


@pytest.mark.spark
def test_a_night_without_a_change_copies_the_parts_byte_by_byte_and_starts_no_job(scene: Scene) -> None:
    if not hasattr(scene.spark, "sparkContext"):
        pytest.skip("Spark Connect does not tell how many jobs there were")
    first = scene.live()
    jobs = scene.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs
    before = jobs()
    second = scene.live()
    assert jobs() == before
    assert second.receipt.files == first.receipt.files
    assert second.receipt.digest == first.receipt.digest
    scene.equal(second)


@pytest.mark.spark
def test_a_night_that_cannot_read_a_table_names_all_files_though_nothing_changed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    first = scene.live()
    unknown = Unreadable(lake=LAKE, table_name="never read", why="it is torn", since=NOW)
    with monkeypatch.context() as unreadable:
        unreadable.setattr(stage, "list_unreadable", lambda *_: (unknown,))
        second = scene.live()
    assert why(second) == "some tables are unreadable"
    assert (second.receipt.rows, second.receipt.digest) == (first.receipt.rows, first.receipt.digest)
    third = scene.live()
    assert why(third) == "the previous run has unreadable tables"
    assert third.receipt.digest == first.receipt.digest


@pytest.mark.spark
def test_a_small_lake_is_computed_unless_nothing_changed(spark: SparkSession, tmp_path: Path) -> None:
    scene = Scene(spark, tmp_path)
    scene.live()
    assert why(scene.live()) is None
    drop("3")(scene.world)
    third = scene.live()
    assert why(third) == "the table is small"
    scene.equal(third)


@pytest.mark.spark
def test_where_much_is_touched_everything_is_computed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.live()
    monkeypatch.setattr(incremental, "MAX_DIRTY_SHARE", 0.25)
    drop("1")(scene.world)
    assert str(why(scene.live())).startswith("up to ")


@pytest.mark.spark
def test_rows_of_another_release_other_storages_or_other_rules_are_not_carried_over(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.live()
    other = "the previous run used another release, other storages or other settings"
    scene.settings = {"storages": ("one", "two", "three")}
    scene.world.pending = scene.world.history
    assert why(scene.live()) == other
    monkeypatch.setattr(incremental, "ROW_VERSION", 0)
    assert why(scene.live()) == other
    assert why(scene.live()) is None


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.spark
@pytest.mark.parametrize("side", [None, NEEDS_SIDE, EXPIRED_SIDE])
def test_a_part_of_other_bytes_and_equal_length_is_not_carried_over(scene: Scene, side: str | None) -> None:
    judge("2", EXPIRED)(scene.world)
    judge("1", EXPIRED)(scene.world)
    flip(scene.part(scene.live(), side))
    drop("2")(scene.world)
    second = scene.live()
    assert "differs from the published bytes" in str(why(second))
    scene.equal(second)


@pytest.mark.spark
@pytest.mark.parametrize("side", [None, NEEDS_SIDE])
def test_a_night_that_lacks_a_part_is_no_base(scene: Scene, side: str | None) -> None:
    scene.part(scene.live(), side).unlink()
    second = scene.live()
    assert "is missing" in str(why(second))
    scene.equal(second)


@pytest.mark.spark
def test_a_night_that_knew_a_segment_that_is_gone_is_no_base(scene: Scene) -> None:
    scene.live()
    run_context = scene.run_context()
    (gone,) = run_context.state.history(LAKE, "manifest_entries")
    shutil.rmtree(scene.root / "carrying" / gone.path)
    run_context.state.repair()
    scene.world.pending = scene.world.history
    second = scene.live()
    assert why(second) == "segments of the entry cache are missing"
    scene.equal(second)


@pytest.mark.spark
def test_no_real_night_carries_over_what_a_rehearsal_made_and_a_rehearsal_takes_what_nights_made(scene: Scene) -> None:
    scene.live(unsafe=("a rehearsal",))
    assert why(scene.live()) == "the previous runs used other safety limits or a rehearsal clock"
    assert why(scene.live(unsafe=("a rehearsal",))) is None
    assert why(scene.live()) is None


@pytest.mark.spark
def test_a_fresh_mark_carries_over_what_a_night_made_and_no_night_what_a_fresh_mark_made(scene: Scene) -> None:
    first = scene.live()
    drop("1")(scene.world)
    again = replace(scene.run_context(), verification_id="plan-1")
    write(scene.world, again)
    scene.world.pending = []
    marked = live_files(scene.spark, again, LAKE)
    assert marked.receipt.group == f"_recheck/plan-1/{LAKE}"
    assert marked.receipt.summary["reused_from"] == first.receipt.run_id
    scene.equal(marked)
    assert scene.live().receipt.summary["reused_from"] == first.receipt.run_id


@pytest.mark.spark
def test_a_night_that_died_before_it_published_is_no_base(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    first = scene.live()
    drop("1")(scene.world)

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(stage, "publish", dies)
        with pytest.raises(KeyboardInterrupt):
            scene.live()
    scene.now += timedelta(days=1)
    third = scene.live()
    assert third.receipt.summary["reused_from"] == first.receipt.run_id
    scene.equal(third)


@pytest.mark.spark
def test_a_date_that_is_run_again_and_one_of_the_past_carry_over_what_the_newest_run_made(scene: Scene) -> None:
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
    scene.equal(found)
    scene.equal(scene.live())


@pytest.mark.spark
def test_two_nights_at_once_carry_over_the_same_rows(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other night publishes, also a segment, after this one has looked for its base."""
    scene.live()
    drop("1")(scene.world)
    close, others = stage.LiveWalk.__call__, list[PublishedTable]()

    def meanwhile(task: Any, batches: Any) -> Any:
        if not others:
            others.append(None)
            scene.put("9", "b", [scene.world.container("b", Kind.MANIFEST, [scene.file("late")])])
            others[0] = scene.live()
            del scene.world.commits["9"]
        return close(task, batches)

    with monkeypatch.context() as both:
        both.setattr(stage.LiveWalk, "__call__", meanwhile)
        run_context = scene.run_context()
        write(scene.world, run_context)
        found = live_files(scene.spark, run_context, LAKE)
    assert found.receipt.summary["reused_from"] == others[0].receipt.summary["reused_from"]
    scene.equal(found)
    scene.now += timedelta(days=1)
    scene.equal(scene.live())


@pytest.mark.spark
def test_every_so_many_nights_all_is_computed_and_what_was_missed_is_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.live()
    drop("1")(scene.world)
    scene.put("4", "b", [scene.world.container("b", Kind.MANIFEST, [scene.file("new")])])
    with monkeypatch.context() as wrong:
        wrong.setattr(needs, "compare_needs", lambda *_: (pa.array([], pa.string()), pa.array([], pa.string())))
        wrong.setattr(incremental.Baseline, "new_rows", 0)
        assert why(scene.live()) is None
    third = scene.live(full_every=2)
    assert str(why(third)).startswith("every 2 runs")
    assert third.receipt.summary["differences"]
    assert "please report this error" in third.receipt.summary["notes"][-1]
    scene.equal(third)
    scene.live(full_every=0)
    scene.live(unsafe=("a rehearsal",))
    for full_every in (2, 10, 1):
        found = scene.live(full_every=full_every)
        assert why(found) == f"reused rows of this release were wrong on {third.receipt.run_date}"
        assert found.receipt.summary["distrusted_on"] == str(third.receipt.run_date)
    monkeypatch.setattr(incremental, "ROW_VERSION", 0)
    assert "used another release" in str(why(scene.live(full_every=2)))
    next_one = scene.live(full_every=2)
    assert (why(next_one), next_one.receipt.summary["incremental_runs"]) == (None, 1)
    last = scene.live(full_every=1)
    assert (last.receipt.summary["incremental_runs"], last.receipt.summary["differences"]) == (0, [])


@pytest.mark.spark
def test_nights_that_compute_all_for_another_reason_do_not_put_the_comparison_off(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incremental, "MAX_DIRTY_SHARE", 0)
    reasons = []
    for name in "abcdef":
        scene.put(name, name, [scene.world.container(name, Kind.MANIFEST, [scene.file(f"new {name}")])])
        reasons.append(str(why(scene.live(full_every=3)))[:5])
    assert reasons == ["there", "up to", "up to", "every", "up to", "up to"]


@pytest.mark.spark
def test_nights_that_cannot_read_everything_do_not_put_the_comparison_off(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = Unreadable(lake=LAKE, table_name="never read", why="it is torn", since=NOW)
    reasons = []
    for run_context in range(5):
        with monkeypatch.context() as unreadable:
            if run_context == 1:
                unreadable.setattr(stage, "list_unreadable", lambda *_: (unknown,))
            reasons.append(str(why(scene.live(full_every=4)))[:22])
    assert reasons == ["there is no previous r", "some tables are unread", "the previous run has u", "None", "every 4 runs all rows "]


@pytest.mark.spark
def test_a_base_that_is_damaged_when_all_is_to_be_compared_is_not_compared_with(scene: Scene) -> None:
    flip(scene.part(scene.live()))
    second = scene.live(full_every=1)
    assert str(why(second)).startswith("the previous run is damaged")
    assert second.receipt.summary["differences"] == []
    assert second.receipt.summary["distrusted_on"] is None


@pytest.mark.spark
def test_a_night_of_a_clock_that_ran_ahead_is_the_base_of_none(scene: Scene) -> None:
    first = scene.live()
    scene.now += timedelta(days=70 * 365)
    scene.live()
    scene.now -= timedelta(days=70 * 365)
    assert scene.live().receipt.summary["reused_from"] == first.receipt.run_id


@pytest.mark.spark
def test_sums_that_are_not_those_of_the_rows_are_carried_on_by_no_night(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.live()
    drop("1")(scene.world)
    with monkeypatch.context() as wrong:
        wrong.setattr(live_rows, "amend_amounts", lambda before, *_: before)
        second = scene.live()
    assert "files, but" in str(why(second))
    scene.equal(second)


@pytest.mark.spark
def test_released_files_of_the_earlier_night_that_are_damaged_are_no_base(spark: SparkSession, tmp_path: Path) -> None:
    with always_carrying():
        scene = Scene(spark, tmp_path, "lakefs")
        scene.world.released = {("one", "first"): False}
        scene.live()
        (part,) = (tmp_path / "carrying" / LAKE / LIFECYCLE_OBJECTS.name).glob("**/*.parquet")
        flip(part)
        scene.world.released = {("one", "second"): False}
        for full_every in (100, 1):
            found = scene.live(full_every=full_every)
            assert found.receipt.summary["lifecycle_files"] == 1
            scene.equal(found)


@deep
@pytest.mark.spark
def test_a_comparison_finds_nothing_where_nothing_was_missed(scene: Scene) -> None:
    scene.live()
    for change in (drop("1"), lambda world: world.commits.update(world.gone), judge("3", EXPIRED), move):
        change(scene.world)
        found = scene.live(full_every=1)
        assert (str(why(found))[:5], found.receipt.summary["differences"]) == ("every", [])
        scene.equal(found)


@pytest.mark.spark
def test_full_every_0_never_carries_over(scene: Scene) -> None:
    scene.live()
    assert why(scene.live(full_every=0)) == "full_every is 0"


# The pure core: which containers and keys differ.

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
        "commit_id": SOMEBODY,
        "table_uuid": SOMEBODY,
        "container": SOMEBODY,
        "expands": st.booleans(),
    }
)
NEEDED = st.lists(NEED, max_size=6, unique_by=lambda row: (row["address"], row["expands"]) if row["expands"] else id(row))
ENTRIES = st.lists(st.tuples(KEYS, KEYS), max_size=8)


def named(needs: list[dict[str, Any]], entries: list[tuple[str, str]]) -> dict[str, list[tuple[Any, ...]]]:
    """By brute force: all that a row of each key follows from."""
    found: dict[str, set[tuple[Any, ...]]] = {}
    for row in needs:
        found.setdefault(row["key"], set()).add(tuple(row.values()))
        for container, key in entries:
            if row["expands"] and row["address"] == container:
                judged = tuple(row[name] for name in ("rank", "commit_id", "table_uuid", "must_exist"))
                found.setdefault(key, set()).add((container, *judged))
    return {key: sorted(names, key=repr) for key, names in found.items()}


def test_which_kind_a_file_has_does_not_depend_on_the_order_of_those_who_name_it() -> None:
    """A commit names a file twice, as another kind each time."""
    twice = [{**tied().slice(0, 1).to_pylist()[0], "kind": kind} for kind in (Kind.DATA, Kind.POSSIBLE_OBJECT)]
    nothing, lengths = ROOTS.empty_table(), pa.chunked_array([], pa.int64())
    found = [build_witnesses(nothing, lengths, pa.Table.from_pylist(rows, ROOTS))[1].sort_by("kind") for rows in (twice, twice[::-1])]
    assert found[0] == found[1]


@given(NEEDED, NEEDED, ENTRIES, ENTRIES)
@settings(max_examples=200)
def test_no_key_is_named_otherwise_that_is_not_touched(
    then: list[dict[str, Any]], now: list[dict[str, Any]], known: list[tuple[str, str]], came: list[tuple[str, str]]
) -> None:
    containers, keys = compare_needs(pa.Table.from_pylist(then, NEEDS), pa.Table.from_pylist(now, NEEDS))
    changed = set(containers.to_pylist())
    touched = set(keys.to_pylist()) | {key for container, key in known if container in changed} | {key for _, key in came}
    before, after = named(then, known), named(now, known + came)
    assert {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)} <= touched


@given(NEEDED, st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_equal_needs_differ_in_nothing_whatever_their_order(rows: list[dict[str, Any]], chance: random.Random) -> None:
    other = [*rows, *rows[:2]]
    chance.shuffle(other)
    containers, keys = compare_needs(pa.Table.from_pylist(rows, NEEDS), pa.Table.from_pylist(other, NEEDS))
    assert (len(containers), len(keys)) == (0, 0)


@given(st.lists(st.text(), unique=True), st.lists(st.text()))
@settings(max_examples=200)
def test_touched_rows_are_found_among_ordered_hashes(touched: list[str], keys: list[str]) -> None:
    ordered = sorted(xxhash64(pa.array(touched, pa.string())))
    found = is_in_sorted(xxhash64(pa.array(keys, pa.string())), pa.array(ordered, pa.int64()).to_numpy())
    assert found.tolist() == [key in touched for key in keys]


def tied() -> pa.Table:
    """A container that two tables need through commits of one id, by two parents."""
    root = {"address": "m", "kind": "manifest", "is_container": True, "must_exist": True, "storage": "s", "key": "m", "rank": 0}
    return pa.Table.from_pylist(
        [{**root, "commit_id": "1", "table_uuid": uuid, "parent": parent} for uuid in "ab" for parent in "xy"], ROOTS
    )


def test_who_needs_a_container_does_not_depend_on_the_order_of_its_roots() -> None:
    roots = tied()
    edges = pa.table({name: pa.array([], pa.string()) for name in ("container", "address", "kind", "storage", "key", "snapshot_id")})
    edges = edges.append_column("size_bytes", pa.array([], pa.int64())).append_column("must_exist", pa.array([], pa.bool_()))
    found = [closure(roots.take(order), edges).to_pylist() for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1])]
    assert found[0] == found[1] == found[2]


def test_the_commit_that_shows_a_content_does_not_depend_on_the_order_of_contents() -> None:
    shown = [{"metadata_location": "m", "ref_name": "main", "at_head": True, "commit_id": commit} for commit in "213"]
    contents = pa.Table.from_pylist(shown, LIVE_CONTENTS.schema)
    found = [
        rank_by_contents(tied(), contents.take(order), tolerant=False).column("commit_id") for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2])
    ]
    assert found[0].to_pylist() == ["1"] * 4
    assert found[0] == found[1] == found[2]


def test_witnesses_of_one_rank_and_commit_are_numbered_by_what_they_are() -> None:
    leaves, nothing = tied(), ROOTS.empty_table()

    def numbered(order: list[int]) -> dict[int, tuple[Any, ...]]:
        witnesses, _, _ = build_witnesses(nothing, pa.chunked_array([], pa.int64()), leaves.take(order))
        return {row.pop("witness"): tuple(row.values()) for row in witnesses.to_pylist()}

    assert numbered([0, 1, 2, 3]) == numbered([3, 2, 1, 0]) == numbered([2, 0, 3, 1])


@pytest.mark.parametrize("came", [[], ["list", "manifest"]], ids=["decoded once", "decoded again, as the other"])
def test_a_container_touches_no_entry_only_if_it_never_named_a_file(came: list[str]) -> None:
    """A manifest of four files was decoded again tonight and names four containers: its entries of before are no less touched."""
    known = pa.table({"container": ["list", "manifest", "manifest"], "entries": [2, 1, 3]})
    again = pa.table({"container": pa.array(came, pa.string()), "entries": pa.array([2, 4][: len(came)], pa.int64())})
    inside = ["list", "list", *(["list", "list", *["manifest"] * 4] if came else [])]
    rows = [{"address": name, "key": name, "storage": "s", "rank": 0, "expands": True, "must_exist": True} for name in ("list", "manifest")]
    current, edges = pa.Table.from_pylist(rows, NEEDS), pa.table({"container": inside})
    files: Any = None
    before, index = PreviousNeeds("", (), frozenset(), False, True), pa.concat_tables([known, again])
    sides, summary = before.compare(files, current, DecodedContainers(index, known.column("container"), edges))
    assert sides[CHANGED_CONTAINERS_SIDE].to_pylist() == [{"container": "manifest"}]
    assert summary == NeedChanges(entries=4, keys=2, containers=1)
