"""The whole protocol on a lakeFS repository: plan, approve, apply, restore, purge, and objects that must never be planned.

The tests of the first part depend on each other and run in order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import LakeUnreadable
from gc_assets.stages.read.explain import explain
from gc_assets.stages.records.plans import find_plan
from gc_assets.stages.sweep.storage_inventory import find_baseline, last_inventory, storage_inventory
from tests.depth import in_turn
from tests.lakes.lakefs.builder import RepositoryBuilder, xid
from tests.lakes.lakefs.fake_server import SECRET, FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of
from tests.stages.lakefs_reader import unreadable_paths
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse, Story, counts, days_ago, outcomes

pytestmark = [pytest.mark.spark, pytest.mark.compat, in_turn]

PREFIX = "ml-data/"


class FilledRepository(RepositoryBuilder):
    """A repository with garbage for each reason, and with live objects."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, days_ago(60))
        self.rules(10, main=20)
        self.commit("main", a_1=b"a1", a_2=b"a2")
        first = {path: item.address for path, item in self.repository.trees[self.repository.branches["main"].head].items()}
        self.repository.tags["v1"] = self.repository.branches["main"].head
        self.now = days_ago(50)
        expired = self.stage("main", "a/1")
        self.commit("main")
        self.now = days_ago(40)
        head = self.stage("main", "a/1")
        self.commit("main")
        self.now = days_ago(30)
        lost = self.stage("main", "tmp")
        self.reset("main")
        staged = self.stage("main", "staged")
        self.now = days_ago(2)
        young = self.upload()
        self.now = days_ago(10)
        named_young = self.upload(name=xid(NOW - timedelta(hours=20)))
        self.dead = {expired: "expired", lost: "uncommitted"}
        self.kept = {*first.values(), head, staged, young, named_young}

    def one(self, reason: str) -> str:
        return next(key for key, why in self.dead.items() if why == reason)


@contextmanager
def serve(house: Lakehouse, builder: RepositoryBuilder) -> Iterator[FakeServer]:
    """Serve the repository and configure it as the lake of the storage."""
    server = FakeServer(builder.repository)
    with server.running() as url:
        house.lakes = [config_of(url, "ml-data", location=f"file://{builder.namespace}")]
        yield server


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story[FilledRepository]]:
    house = Lakehouse(spark, tmp_path_factory.mktemp("lakefs"))
    builder = FilledRepository(house.warehouse)
    with serve(house, builder):
        yield Story.start(house, builder, {f"{PREFIX}{key}" for key in builder.dead})


def readable(story: Story[FilledRepository]) -> None:
    """Assert that all objects of retained commits and all staged objects exist."""
    assert unreadable_paths(story.house) == set()
    repository = story.builder.repository
    for branch in repository.branches:
        for item in (repository.resolve(branch) or {}).values():
            assert (story.builder.namespace / item.address).is_file()


def test_plan_contains_expired_and_uncommitted_objects(story: Story[FilledRepository]) -> None:
    assert story.header.failed_gates == []
    assert story.house.orphans(PREFIX) == story.builder.dead
    assert story.house.planned_actions() == dict.fromkeys(story.garbage, "quarantine")
    assert story.header.held_for_expiry.files == 0


def test_every_object_is_expected_as_kept_or_garbage(story: Story[FilledRepository]) -> None:
    assert story.builder.files() == story.builder.kept | story.builder.dead.keys()


def test_explain_reports_deletion_reason(story: Story[FilledRepository]) -> None:
    def verdict(key: str) -> tuple[str, str]:
        (found,) = explain(story.house.run_context(), f"{PREFIX}{key}")
        return found.verdict, found.sentence

    explanation = {key: verdict(key) for key in story.builder.kept | story.builder.dead.keys()}
    assert {explanation[key][0] for key in story.builder.dead} == {"planned"}
    young = sorted(sentence for kind, sentence in explanation.values() if kind == "young")
    assert len(young) == 2
    assert "younger than the grace period" in young[0]
    assert "the time in its name is so recent that lake ml may still link it" in young[1]
    assert {kind for key, (kind, _) in explanation.items() if key in story.builder.kept} == {"live", "young"}


def test_state_contains_no_credentials(story: Story[FilledRepository]) -> None:
    written = [path for path in (story.house.root / "state").rglob("*") if path.is_file()]
    assert len(written) > 20
    for path in written:
        assert SECRET.encode() not in path.read_bytes(), path


def test_second_run_decodes_no_container(story: Story[FilledRepository]) -> None:
    story.house.mark()
    first, *later = story.house.decoded_counts("ml")
    assert first > 0
    assert set(later) == {0}


def test_apply_quarantines_exactly_the_planned_files(story: Story[FilledRepository]) -> None:
    assert counts(story.house.approve_and_apply(story.header).by_outcome) == {("quarantine", "done"): len(story.garbage)}
    assert story.builder.files() == story.builder.kept
    readable(story)


def test_quarantined_file_of_expired_commit_is_not_restored(story: Story[FilledRepository]) -> None:
    story.house.now = NOW + timedelta(days=1)
    story.house.settings = {"quarantine_days": 30}
    story.house.plan()
    assert story.house.planned_actions() == {}
    story.house.settings = {}


def test_linked_quarantined_file_is_restored(story: Story[FilledRepository]) -> None:
    """H15: an address can be linked at any age, so only quarantine and a new check of live files
    are safe.
    """
    revived = story.builder.one("uncommitted")
    story.builder.stage("main", "linked", revived)
    story.house.now = NOW + timedelta(days=2)
    header = story.house.plan()
    assert story.house.planned_actions(PREFIX)[revived] == "restore"
    story.house.approve_and_apply(header, ("restore",))
    assert revived in story.builder.files()
    readable(story)
    story.builder.repository.branches["main"].staged.pop("linked")


def test_restore_restores_all_files(story: Story[FilledRepository]) -> None:
    story.house.restore(story.header.plan_id)
    assert story.builder.files() == story.builder.kept | story.builder.dead.keys()
    assert story.before.items() <= story.house.files().items()
    assert find_plan(story.house.config, story.header.plan_id).status_at(story.house.now) == "restored"


def test_later_runs_quarantine_and_purge(story: Story[FilledRepository]) -> None:
    house = story.house
    house.now = NOW + timedelta(days=3)
    header = house.plan()
    dead = house.keys("deletion_plan")
    assert story.garbage <= dead
    house.approve_and_apply(header)
    house.now = NOW + timedelta(days=4)
    purge = house.plan()
    assert house.keys("deletion_plan", action="purge") == dead
    assert outcomes(house.approve_and_apply(purge)) == {"done"}
    assert not story.garbage & house.files().keys()
    readable(story)


def test_purged_files_are_not_reported_as_lost_after_longer_retention(story: Story[FilledRepository]) -> None:
    """With the longer rule, purged files are live again. Their absence is no sign of a loss, because we purged them."""
    house = story.house
    story.builder.rules(365)
    house.now = NOW + timedelta(days=5)
    assert house.plan().failed_gates == []
    assert f"{PREFIX}{story.builder.one('expired')}" in house.live()
    assert unreadable_paths(house) == {"a/1"}


# Single runs


@dataclass
class Fresh:
    """An empty repository on its own storage, and its server."""

    house: Lakehouse
    builder: RepositoryBuilder
    server: FakeServer


@pytest.fixture
def fresh(spark: SparkSession, tmp_path: Path) -> Iterator[Fresh]:
    house = Lakehouse(spark, tmp_path)
    builder = RepositoryBuilder(house.warehouse, days_ago(60))
    with serve(house, builder) as server:
        yield Fresh(house, builder, server)


def test_apply_refuses_plan_if_new_commits_reference_planned_files(fresh: Fresh) -> None:
    """H7: lakeFS sweeps a mark of any age without revalidation. H6: a commit can hide objects from the plan while it runs."""
    builder = fresh.builder
    builder.rules(1)
    builder.branch("dev")
    old, of_dev = builder.commit("main", a=b"1"), builder.commit("dev", a=b"2")
    expired = {builder.repository.trees[commit]["a"].address for commit in (old, of_dev)}
    builder.now = days_ago(40)
    builder.commit("main", a=b"3")
    builder.commit("dev", a=b"4")
    lost, hidden = builder.upload(), builder.upload()
    header = fresh.house.plan()
    assert fresh.house.planned_actions(PREFIX).keys() == {*expired, lost, hidden}
    fresh.house.approve(header)
    builder.branch("revived", old)
    builder.rules(1, dev=365)
    builder.stage("main", "hidden", hidden)
    builder.commit("main")
    builder.stage("main", "late", lost)
    applied = fresh.house.apply(header)
    assert counts(applied.by_outcome) == {("quarantine", "changed"): 4}
    assert {*expired, lost, hidden} <= builder.files()


def test_missing_range_makes_the_lake_unreadable(fresh: Fresh) -> None:
    builder = fresh.builder
    builder.commit("main", a=b"1")
    dumps = {path.name for path in (builder.namespace / "_lakefs").iterdir()}
    metarange = builder.repository.commits[builder.repository.branches["main"].head].metarange_id
    (victim,) = dumps - {metarange}
    (builder.namespace / "_lakefs" / victim).unlink()
    [unreadable] = fresh.house.plan().unreadable
    assert (unreadable.is_whole_lake, unreadable.good_on) == (True, None)
    assert re.search(f"range .*_lakefs/{victim} cannot be read", unreadable.why)
    assert not fresh.house.planned_actions()


def test_minimum_file_age_of_server_applies_with_zero_grace_period(fresh: Fresh) -> None:
    builder = fresh.builder
    fresh.house.settings = {"grace": timedelta(0)}
    fresh.server.grace_period = 6 * 3600
    builder.commit("main", a=b"1")
    builder.now = NOW - timedelta(hours=6, minutes=30)
    young = builder.upload()
    builder.now = NOW - timedelta(hours=7, minutes=30)
    old = builder.upload()
    fresh.house.plan()
    assert fresh.house.planned_actions(PREFIX) == {old: "quarantine"}
    assert young in builder.files()


@dataclass
class SharedStorage:
    """A run with stray objects in the root of the repository, and a lake of another server on the same storage.

    `others` are objects from before the repository, whose creation does not check `data/`.
    """

    planned: dict[str, str]
    orphans: dict[str, str]
    lost: str
    strays: tuple[str, ...] = ("README.md", f"{'0123456789abcdef' * 2}-00001")
    others: tuple[str, ...] = ("data/loose.bin", "data/raw/2024.parquet")


@pytest.fixture(scope="module")
def crowded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStorage]:
    house = Lakehouse(spark, tmp_path_factory.mktemp("crowded"))
    builder = RepositoryBuilder(house.warehouse, days_ago(60))
    with serve(house, builder):
        builder.commit("main", a=b"1")
        lost, foreign, other_root, staged = (builder.upload() for _ in range(4))
        (builder.namespace / "data" / "raw").mkdir()
        for name in (*SharedStorage.strays, *SharedStorage.others):
            (builder.namespace / name).write_bytes(b"stray")
            os.utime(builder.namespace / name, (days_ago(400).timestamp(),) * 2)
        importer = RepositoryBuilder(house.warehouse, days_ago(60), "importer")
        importer.stage("main", "imported", f"local://{builder.namespace}/{foreign}")
        importer.stage("main", "in a container", f"local:///lakefs-blockstore/ml-data/{other_root}")
        importer.commit("main")
        importer.stage("main", "staged", f"local:///lakefs-blockstore/ml-data/{staged}")
        server = FakeServer(importer.repository)
        with server.running() as url:
            other = config_of(url, "importer", location=f"file://{importer.namespace}").model_copy(update={"name": "importer"})
            house.lakes = [*house.lakes, other]
            house.plan()
        yield SharedStorage(house.planned_actions(PREFIX), house.orphans(PREFIX), lost)


def test_objects_in_namespace_root_are_unowned(crowded: SharedStorage) -> None:
    """H8: lakeFS deletes all objects in the root, including parts of uploads."""
    assert crowded.orphans.keys().isdisjoint(crowded.strays)


def test_objects_in_data_with_paths_unlike_lakefs_are_foreign(crowded: SharedStorage) -> None:
    """lakeFS deletes those in directories. H11: it never deletes objects directly in data/."""
    assert {name: crowded.orphans.get(name) for name in crowded.others} == dict.fromkeys(crowded.others, "foreign")


def test_expired_objects_are_kept_if_another_lake_needs_them(crowded: SharedStorage) -> None:
    """H13: the live set of a storage is the union of all lakes, regardless of the mount point of the other server."""
    assert crowded.planned == {crowded.lost: "quarantine"}


def test_incremental_and_full_listing_give_equal_plans(fresh: Fresh) -> None:
    """Quarantined files are not in the inventory of the next run."""
    builder, house = fresh.builder, fresh.house
    house.now = datetime.now(UTC) + timedelta(days=400)  # after all modification times of directories
    builder.commit("main", a=b"1")
    first = builder.upload()
    house.plan()
    assert house.planned_actions(PREFIX).keys() == {first}
    builder.now = days_ago(30)
    second = builder.upload()
    house.now += timedelta(days=1)
    header = house.plan()
    summary = house.summary("storage_inventory")
    assert (summary["flow"], summary["reused_directories"], summary["reused_objects"]) == ("optimized", 1, 2)
    assert house.planned_actions(PREFIX).keys() == {first, second}
    house.lakes = [house.lakes[0].model_copy(update={"full_listing": timedelta(0)})]
    assert house.plan().rows_digest == header.rows_digest
    summary = house.summary("storage_inventory")
    assert (summary["flow"], summary["reused_objects"]) == ("clean", 0)

    house.lakes = [house.lakes[0].model_copy(update={"full_listing": timedelta(days=7)})]
    house.approve_and_apply(header)
    house.now += timedelta(days=1)
    house.plan()
    summary = house.summary("storage_inventory")
    assert (summary["flow"], summary["reused_directories"]) == ("optimized", 0)
    assert house.planned_actions(PREFIX) == {first: "purge", second: "purge"}


def test_full_listing_is_made_every_seven_days(fresh: Fresh) -> None:
    house = fresh.house
    fresh.builder.commit("main", a=b"1")
    published = storage_inventory(house.spark, house.run_context(), STORAGE)
    house.now += timedelta(days=6)
    baseline = find_baseline(house.run_context(), last_inventory(house.run_context(), STORAGE))
    assert baseline is not None
    assert baseline.receipt == published.receipt
    house.now += timedelta(days=1)
    assert find_baseline(house.run_context(), last_inventory(house.run_context(), STORAGE)) is None


def test_hidden_repository_makes_only_one_lake_unreadable(fresh: Fresh) -> None:
    """The other lakes of the storage are collected, and the repository's files are kept, also in
    the first run.
    """
    house, builder = fresh.house, fresh.builder
    builder.commit("main", a=b"1")
    unknown = [lake.model_copy(update={"name": "hidden", "repository": "hidden", "location": None}) for lake in house.lakes]
    house.lakes = [*house.lakes, *unknown]
    old = f"{PREFIX}{builder.upload()}"
    [hidden] = house.plan().unreadable
    assert (hidden.lake, hidden.is_whole_lake, hidden.good_on) == ("hidden", True, None)
    assert set(house.planned_actions()) == {old}
    house.lakes = house.lakes[:1]
    assert not house.plan().unreadable
    house.now += timedelta(days=1)
    fresh.server.repositories.clear()
    [unread] = house.plan().unreadable
    assert (unread.lake, unread.good_on) == ("ml", (house.now - timedelta(days=1)).date())
    assert not house.planned_actions()


def test_clock_difference_from_server_stops_run(fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this machine may be wrong, and the ages of all files depend on it."""
    fresh.builder.commit("main", a=b"1")
    monkeypatch.setattr("gc_assets.lakes.lakefs.lake.MAX_SKEW", timedelta(seconds=-1))
    with pytest.raises(LakeUnreadable, match="Synchronize the clocks"):
        fresh.house.mark()
