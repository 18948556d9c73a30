"""Run the whole protocol on an Icechunk repository of spec version 2, on a disk and in a bucket.

The library that wrote the repository is the oracle. The tests of a story depend on each other and run in order.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.config.s3 import S3Config
from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.stages.delete.expire import undo_expiry
from gc_assets.stages.records.plans import find_plan
from tests.dates import next_noon
from tests.depth import in_turn
from tests.lakes.icechunk.v2.builder import DocumentTree, RepositoryBuilder, document_tree, microseconds, numbers
from tests.lakes.icechunk.v2.library import Library
from tests.s3.servers import REGION
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_mirror import SERVER, mirror_on_s3
from tests.stages.lakehouse import NOW, Lakehouse, counts, days_ago, outcomes
from tests.stores.s3_bench import S3Bench, open_s3_bench

pytestmark = [pytest.mark.spark, in_turn]

FOLDERS = ("snapshots", "manifests", "transactions", "chunks")
POLICY = {"retention": {"default": "10d"}, "expiry": {"semantics": "icechunk"}}
NOTHING = {"snapshots": 0, "manifests": 0, "chunks": 0, "transaction_logs": 0}


@dataclass
class WeatherStory:
    """A repository in a house, and its first plan.

    Attributes:
        target: The repository for the library.
        lost: The files of a writer without a commit.
        dangling: A snapshot that no ref reaches, but `repo` lists.
        expected: The files that remain after the library expired and collected a copy.
    """

    house: Lakehouse
    library: Library
    target: Path | dict[str, Any]
    before: set[str]
    lost: set[str]
    dangling: str
    expected: set[str]
    header: PlanHeader

    def files(self) -> set[str]:
        return files_of(self.house)

    def call(self, operation: str, **arguments: Any) -> Any:
        return self.library.call(self.target, operation, **arguments)

    def garbage(self) -> dict[str, int]:
        """Return the counts of what the library would collect, of any age."""
        return self.call("garbage_collect", older_than=None, dry_run=True)


def files_of(house: Lakehouse) -> set[str]:
    """Return the keys in the folders that the library collects."""
    keys = house.contents().keys() if isinstance(house, BucketLakehouse) else house.files().keys()
    return {key for key in keys if key.split("/")[0] == "weather" and key.split("/")[1] in FOLDERS}


def collect_by_library(tree: DocumentTree, copy: Path) -> set[str]:
    """Expire and collect a copy with the library, and return the remaining files."""
    shutil.copytree(tree.builder.path, copy)
    tree.builder.library.call(copy, "expire", older_than=microseconds(days_ago(10)))
    tree.builder.library.call(copy, "garbage_collect", older_than=None)
    return {f"weather/{folder}/{file.name}" for folder in FOLDERS for file in (copy / folder).iterdir()}


def bucket_target(bench: S3Bench) -> dict[str, Any]:
    return {
        "bucket": bench.bucket,
        "prefix": f"{bench.prefix}weather",
        "endpoint_url": bench.server.endpoint,
        "allow_http": True,
        "access_key_id": bench.server.access_key,
        "secret_access_key": bench.server.secret_key,
        "region": REGION,
        "force_path_style": True,
    }


@pytest.fixture(scope="module", params=["disk", "bucket"])
def story(
    request: pytest.FixtureRequest, spark: SparkSession, icechunk2: Library, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WeatherStory]:
    root = tmp_path_factory.mktemp("version2")
    house = Lakehouse(spark, root)
    tree = document_tree(icechunk2, house.warehouse / "weather", days_ago(18))
    lost = {house.key(path) for path in tree.builder.abandon_writer("main", days_ago(15), numbers("gone", range(4)))}
    dangling = tree.builder.abandon_snapshot("main", days_ago(14), numbers("reset", range(3)))
    expected = collect_by_library(tree, root / "copy")
    if request.param == "disk":
        house.lakes = [house.weather(**POLICY)]
        yield WeatherStory(house, icechunk2, tree.builder.path, files_of(house), lost, dangling, expected, house.plan())
        return
    with open_s3_bench(SERVER, prefix="lakes/") as bench:
        mirror_on_s3(bench).copy(house.warehouse, house.warehouse)
        location = f"{bench.store.location}weather/"
        house = BucketLakehouse(spark, root, bench=bench, s3=bench.connections.default(S3Config))
        house.lakes = [IcechunkLakeConfig.model_validate({"name": "weather", "kind": "icechunk", "location": location, **POLICY})]
        yield WeatherStory(house, icechunk2, bucket_target(bench), files_of(house), lost, dangling, expected, house.plan())


def removals(story: WeatherStory) -> set[str]:
    return {row["snapshot_id"] for row in story.house.rows("expiry_plan", "weather") if row["action"] == "remove_snapshot"}


def test_plan_removes_listed_snapshots_before_their_files(story: WeatherStory) -> None:
    assert story.house.keys("deletion_plan", after_expiry=False) == story.lost
    released = story.house.keys("deletion_plan", after_expiry=True)
    assert released == story.house.keys("orphan_files", reason="expired")
    assert removals(story) == story.house.commits("expired") | {story.dangling}
    assert {key for key in released if "/snapshots/" in key} == {f"weather/snapshots/{snapshot}" for snapshot in removals(story)}
    assert story.header.failed_gates == []


def test_apply_leaves_the_same_files_as_icechunk(story: WeatherStory) -> None:
    assert story.house.keys("deletion_plan") == story.before - story.expected
    applied = story.house.approve_and_apply(story.header)
    edits, files = sum(story.header.expiry_actions.values()), len(story.before - story.expected)
    assert counts(applied.by_outcome) == {("expire", "done"): edits, ("quarantine", "done"): files}
    assert story.files() == story.expected
    assert story.garbage() == NOTHING
    assert story.call("report")["ancestry"].keys() >= {"branch main", "branch develop", "tag tag1"}


def test_second_run_has_an_empty_plan(story: WeatherStory) -> None:
    header = story.house.plan()
    assert (header.expiry_actions, story.house.keys("deletion_plan", action="quarantine")) == ({}, set())


def test_restore_and_undo_bring_back_files_and_history(story: WeatherStory) -> None:
    _, restored = story.house.restore(story.header.plan_id)
    assert restored == {"done": len(story.before - story.expected)}
    assert story.files() == story.before
    undone = undo_expiry(story.house.run_context(), find_plan(story.house.config, story.header.plan_id))
    assert undone == {"undone": sum(story.header.expiry_actions.values())}
    listed = {entry["id"] for entry in story.call("repo_info")["snapshots"]}
    assert {f"weather/snapshots/{snapshot}" for snapshot in listed} == {key for key in story.before if "/snapshots/" in key}


def test_later_runs_quarantine_and_purge(story: WeatherStory) -> None:
    house = story.house
    house.now = NOW + timedelta(days=30)  # in a bucket, the restored objects are new
    header = house.plan()
    planned = house.keys("deletion_plan", action="quarantine")
    assert planned >= story.before - story.expected
    assert outcomes(house.approve_and_apply(header)) == {"done"}
    house.now = NOW + timedelta(days=31)
    purge = house.plan()
    assert house.keys("deletion_plan", action="purge") == planned
    assert outcomes(house.approve_and_apply(purge)) == {"done"}
    assert story.files() == story.before - planned
    assert story.garbage() == NOTHING


def test_old_repo_copies_are_collected_without_losing_log_entries(spark: SparkSession, icechunk2: Library, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, now=next_noon(days=40))
    house.lakes = [house.weather()]
    builder = RepositoryBuilder.create(icechunk2, house.warehouse / "weather", days_ago(60), updates_in_a_file=3)
    for number in range(12):
        builder.commit("main", days_ago(50 - number), numbers("values", [number]))
    log, copies = builder.call("ops_log"), len(list((builder.path / "overwritten").iterdir()))
    house.plan()
    planned = house.orphans("weather/")
    assert {key.split("/")[0] for key in planned} == {"overwritten"}
    assert set(planned.values()) == {"unreferenced"}
    assert copies // 3 < len(planned) < copies
    assert planned.keys() == house.planned_actions("weather/").keys()
    for key in planned:
        (builder.path / key).unlink()
    builder.call("open")
    assert builder.call("ops_log") == log
