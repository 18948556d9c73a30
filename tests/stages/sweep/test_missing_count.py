"""The count of missing live files by key hashes equals a join of the keys."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from gc_assets.core.claims import Owner
from gc_assets.core.hashing import xxhash64
from gc_assets.core.sorted_hashes import sort_distinct
from gc_assets.engine.tables import MAX_SAMPLES, frame_from_arrow
from gc_assets.stages.mark.live_files import live_files
from gc_assets.stages.records.purged_by_rule import BY_RULE
from gc_assets.stages.sweep import orphan_files
from gc_assets.stages.sweep.live_keys import LiveKeys
from gc_assets.stages.sweep.missing_count import count_missing, hash_excused
from gc_assets.stages.sweep.sweep_checks import MissingLiveFiles
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.side_tables import MISSING_LIVE, MISSING_LIVE_SIDE, STATES, STATES_SIDE
from tests.depth import example_count, select_cases
from tests.lakes.iceberg.builder import LakeBuilder
from tests.records import STORAGE, run_context_at
from tests.stages.lakehouse import Lakehouse, days_ago
from tests.stages.live_sets import publish_live_set
from tests.stages.mark.lake_histories import LAKE as HISTORY
from tests.stages.mark.lake_histories import LAKES, NOW, Row, World, build_context, expected_rows, write

pytestmark = pytest.mark.spark
RUN = TableRun(STORAGE, "orphan_files", NOW.date(), "run")


def keys_frame(spark: SparkSession, keys: Collection[str]) -> DataFrame:
    return frame_from_arrow(spark, pa.table({"key": pa.array(sorted(keys), pa.string())}))


def purged_frame(spark: SparkSession, purged: Collection[tuple[str, str]]) -> DataFrame:
    return frame_from_arrow(spark, pa.Table.from_pylist([{"key": key, "lake": lake} for key, lake in sorted(purged)], BY_RULE))


def count_in(
    keys: LiveKeys,
    named: Collection[str],
    listed: Collection[str],
    broken: Collection[Owner] = (),
    quarantined: Collection[str] = (),
    purged: Collection[tuple[str, str]] = (),
) -> MissingLiveFiles:
    unlisted = sort_distinct(xxhash64(pa.array(sorted(set(named) - set(listed)), pa.string())))
    excused = hash_excused(keys_frame(keys.spark, quarantined), purged_frame(keys.spark, purged))
    return count_missing(keys, unlisted, broken, excused, PartWriter(files_of(keys), RUN.path, MISSING_LIVE, MISSING_LIVE_SIDE))


def files_of(keys: LiveKeys) -> Files:
    return keys.sets[0].context.state.files


def find_recorded(keys: LiveKeys, missing: MissingLiveFiles, named: Collection[str]) -> list[tuple[str, str]]:
    """Return the recorded files as pairs of lake and key."""
    rows = read_parts(files_of(keys), [f"{RUN.path}/{part.name}" for part in missing.parts], MISSING_LIVE).to_pylist()
    names = dict(zip(xxhash64(pa.array(named, pa.string())).tolist(), named, strict=True))
    return sorted((row["lake"], names[row["key_hash"]]) for row in rows)


def expected_missing(rows: Sequence[Row], absent: Collection[str], broken: set[Owner]) -> tuple[MissingLiveFiles, list[str]]:
    """Find the missing files and their keys by brute force, in rows of `live_files`."""
    lost = [row for row in rows if row["must_exist"] and row["key"] in absent]
    lost = [row for row in lost if not broken & {Owner(HISTORY, None), Owner(HISTORY, row["table_uuid"])}]
    owners = Counter(Owner(HISTORY, row["table_uuid"]) for row in lost)
    names = sorted({row["key"] for row in lost})
    return MissingLiveFiles(len(names), tuple(names[:MAX_SAMPLES]), owners), names


@pytest.mark.parametrize("kind", select_cases(["lakefs", "iceberg"], ["icechunk", "nessie"]))
def test_missing_files_of_random_histories_equal_brute_force(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    chance, tables, found = random.Random(kind), 30, list[int]()
    world = World(chance)
    for number in range(tables):
        for _ in range(2):
            world.commit(f"t{number:03}")
    for day in range(example_count(3, 10)):
        locations = sorted({(row["storage"], row["key"]) for row in world.known_files() if row["storage"]})
        world.released = {location: chance.random() < 0.3 for location in chance.sample(locations, 20)}
        context = build_context(tmp_path, LAKES[kind], NOW + timedelta(days=day))
        write(world, context)
        published = live_files(spark, context, HISTORY)
        has_rules = LAKES[kind].has_lifecycle and not published.receipt.summary["unreadable"]
        released = {at for at, deduplicated in world.released.items() if not deduplicated} if has_rules else set()
        states = read_parts(context.state.files, published.paths(STATES_SIDE), STATES).to_pylist()
        by_route = expected_rows(world, states, released=released)
        rows = [row for row in by_route[""] if row["storage"] == "one"]
        named = sorted({row["key"] for route in by_route.values() for row in route if row["storage"] == "one"})
        keys = LiveKeys.of(spark, context, "one", [published])
        for _ in range(example_count(10, 20)):
            listed, quarantined, purged = (set(chance.sample(named, chance.randint(0, len(named) // 2))) for _ in range(3))
            broken = {Owner(HISTORY, f"t{number:03}") for number in chance.sample(range(tables), chance.choice([0, 0, 1, 5]))}
            broken |= {Owner(HISTORY, None)} if chance.random() < 0.1 else set()
            missing = count_in(keys, named, listed, broken, quarantined, {(key, HISTORY) for key in purged})
            expected, lost = expected_missing(rows, set(named) - listed - quarantined - purged, broken)
            assert missing == expected
            assert find_recorded(keys, missing, named) == [(HISTORY, key) for key in lost]
            found.append(missing.files)
        world.end_run()
        world.pass_a_day(2 * tables)
    assert max(found) > MAX_SAMPLES
    assert len(set(found)) > 5


def publish_lakes(spark: SparkSession, root: Path, *live: Sequence[str]) -> LiveKeys:
    """Publish the live sets of lakes whose files are in one storage and in a second one."""
    context = run_context_at(root, other=f"file://{root}/other/")
    lakes = tuple(context.config.lakes[0].model_copy(update={"name": name}) for name in "ab")
    context = replace(context, config=context.config.model_copy(update={"lakes": lakes}))
    named = zip("ab", live, strict=True)
    tables = [publish_live_set(context, lake, {STORAGE: keys, "other": ["unlisted/file"]}) for lake, keys in named]
    return LiveKeys.of(spark, context, STORAGE, tables)


def test_missing_file_of_two_lakes_is_counted_once_for_both(spark: SparkSession, tmp_path: Path) -> None:
    keys = publish_lakes(spark, tmp_path, ["both", "first", "listed"], ["both", "second"])
    named = ["both", "first", "listed", "second"]
    missing = count_in(keys, named, ["listed"])
    assert missing == MissingLiveFiles(3, ("both", "first", "second"), {Owner("a", None): 2, Owner("b", None): 2})
    assert find_recorded(keys, missing, named) == [("a", "both"), ("a", "first"), ("b", "both"), ("b", "second")]


def test_file_purged_by_lifecycle_rule_is_missing_only_for_other_lakes(spark: SparkSession, tmp_path: Path) -> None:
    keys = publish_lakes(spark, tmp_path, ["both", "first"], ["both"])
    missing = count_in(keys, ["both", "first"], [], purged={("both", "a"), ("first", "a")})
    assert missing == MissingLiveFiles(1, ("both",), {Owner("b", None): 1})


def test_plan_does_not_change_if_missing_files_are_counted_by_hash(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, house = LakeBuilder(tmp_path), Lakehouse(spark, tmp_path)
    table = lake.table("db.t", days_ago(40))
    for days in (30, 29):
        table.append(days_ago(days))
    house.lakes = [lake.config("sales")]
    for path in (path for path in lake.files() if path.suffix == ".parquet"):
        path.unlink()
    named = house.plan()
    fields = ("live_unlisted_count", "live_unlisted", "unlisted_lakes")
    expected = {name: house.summary("orphan_files")[name] for name in fields}
    monkeypatch.setattr(orphan_files, "MAX_KEYS", 0)
    counted = house.plan()
    assert {name: house.summary("orphan_files")[name] for name in fields} == expected
    assert counted.plan_id == named.plan_id
    assert expected["live_unlisted_count"] == 2
