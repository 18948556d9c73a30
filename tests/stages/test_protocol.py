"""Run the whole protocol on a storage with an Iceberg catalog and an Icechunk repository.

The steps are plan, approve, expire, apply, restore and purge. The tests depend on each other and run in order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

import icechunk
import pytest
import zarr
from pyspark.sql import SparkSession

from gc_assets.core.errors import GateRefused
from gc_assets.lakes.file_kinds import LEAF_RANK, RANKS
from gc_assets.stages.records.plans import execution_directory, find_plan, list_plans
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder, document_tree, numbers
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse, Story, counts, days_ago, outcomes

pytestmark = [pytest.mark.spark, pytest.mark.compat]


@dataclass
class Lakes:
    """The lakes, the keys in the grace period, and the snapshots of the table before the expiry."""

    iceberg: LakeBuilder
    repository: RepositoryBuilder
    young: set[str]
    snapshots: set[str]


def list_snapshots(iceberg: LakeBuilder) -> set[str]:
    return {str(snapshot.snapshot_id) for snapshot in iceberg.catalog.load_table("db.orders").metadata.snapshots}


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story[Lakes]:
    house = Lakehouse(spark, tmp_path_factory.mktemp("protocol"))
    iceberg = LakeBuilder(house.root)
    orders = iceberg.table("db.orders", days_ago(60))
    first = orders.append(days_ago(50))
    orders.append(days_ago(30))
    orders.overwrite(days_ago(20))
    orders.tag(days_ago(19), "audit", first)
    orders.append(days_ago(2))
    lost = orders.leftovers(days_ago(10))
    young = {house.key(path) for path in orders.leftovers(days_ago(1))}
    tree = document_tree(house.warehouse / "weather", days_ago(18))
    repository = tree.builder
    lost += repository.abandon_writer("main", days_ago(15), numbers("gone", range(4)))
    snapshot = repository.abandon_snapshot("main", days_ago(14), numbers("reset", range(3)))
    lost += repository.created[snapshot]
    house.lakes = [iceberg.config("sales"), house.weather(retention={"default": "10d"})]
    return Story.start(house, Lakes(iceberg, repository, young, list_snapshots(iceberg)), {house.key(path) for path in lost})


def expired_files(story: Story[Lakes]) -> set[str]:
    """Return the keys that the expiry of the plan frees."""
    return story.house.keys("orphan_files", reason="expired")


def check_readable(story: Story[Lakes]) -> None:
    """Read all retained snapshots of the table and all refs of the repository with the libraries of the lakes."""
    table = story.builder.iceberg.catalog.load_table("db.orders")
    retained = story.house.commits("retained", "sales")
    assert retained
    for snapshot_id in retained:
        assert table.scan(snapshot_id=int(snapshot_id)).to_arrow().num_rows > 0
    repo = story.builder.repository.reopen()
    for snapshot in [repo.lookup_branch(name) for name in repo.list_branches()] + [repo.lookup_tag(name) for name in repo.list_tags()]:
        for ancestor in repo.ancestry(snapshot_id=snapshot):
            group = zarr.open_group(repo.readonly_session(snapshot_id=ancestor.id).store, mode="r") if ancestor.parent_id else None
            for _, array in group.arrays() if group else ():
                assert array[...].shape == array.shape


def batch_ranks(story: Story[Lakes], directory: str) -> list[int]:
    """Return the rank of each batch of a write-ahead log, in the order of their intents."""
    intents = sorted((story.house.root / "state" / directory).glob("share-*/*.intent.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    ranks = [{RANKS.get(json.loads(line)["kind"], LEAF_RANK) for line in path.read_text().splitlines()} for path in intents]
    assert all(len(batch) == 1 for batch in ranks)
    return [rank for batch in ranks for rank in batch]


def test_plan_contains_unreferenced_and_expired_files(story: Story[Lakes]) -> None:
    assert story.house.keys("deletion_plan", after_expiry=False) == story.garbage
    assert story.house.keys("deletion_plan", after_expiry=True) == expired_files(story)
    assert story.header.totals["quarantine"].files == len(story.garbage | expired_files(story))
    assert (story.header.after_expiry.files, story.header.held_for_expiry.files) == (len(expired_files(story)), 0)
    assert story.header.failed_gates == []


def test_young_files_are_not_orphans(story: Story[Lakes]) -> None:
    assert not story.builder.young & story.house.keys("orphan_files")


def test_plan_contains_expiry_actions(story: Story[Lakes]) -> None:
    planned = {lake: len(story.house.rows("expiry_plan", lake)) for lake in ("sales", "weather")}
    assert story.header.expiry_actions == planned
    assert min(planned.values()) > 0
    expired = [row for row in story.house.rows("orphan_files") if row["reason"] == "expired"]
    assert {row["last_commit_id"] for row in expired} <= story.house.commits("expired")
    assert {row["held_by"] for row in expired} == set(planned)


def test_each_file_is_either_live_orphan_or_young(story: Story[Lakes]) -> None:
    live, orphans = story.house.live(), story.house.keys("orphan_files")
    assert not live & orphans
    assert set(story.before) - live - orphans == story.builder.young


def test_second_run_creates_equal_plan(story: Story[Lakes]) -> None:
    assert story.house.plan().plan_id == story.header.plan_id
    assert len(list(list_plans(story.house.config))) == 1


def test_second_run_decodes_no_container(story: Story[Lakes]) -> None:
    for lake in ("sales", "weather"):
        first, *later = story.house.decoded_counts(lake)
        assert first > 0
        assert set(later) == {0}


def test_apply_without_approval_changes_nothing(story: Story[Lakes]) -> None:
    with pytest.raises(GateRefused, match="not approved"):
        story.house.apply(story.header)
    assert story.house.files() == story.before


def test_expired_files_are_not_quarantined_before_the_expiry(story: Story[Lakes]) -> None:
    story.house.approve(story.header)
    with pytest.raises(GateRefused, match="--phase expire"):
        story.house.apply(story.header, ("quarantine",))
    assert story.house.files() == story.before


def test_apply_edits_histories_then_quarantines_planned_files(story: Story[Lakes]) -> None:
    applied = story.house.apply(story.header)
    edits, planned = sum(story.header.expiry_actions.values()), story.garbage | expired_files(story)
    assert counts(applied.by_outcome) == {("expire", "done"): edits, ("quarantine", "done"): len(planned)}
    after = story.house.files()
    assert set(story.before) - set(after) == planned
    changed = {key for key, value in after.items() if story.before.get(key) != value}
    rewritten = {row["snapshot_id"] for row in story.house.rows("expiry_plan", "weather") if row["action"] == "edit_parent"}
    assert {key for key in changed if key.startswith("weather/")} == {f"weather/snapshots/{name}" for name in rewritten}
    assert all(key.endswith(".metadata.json") for key in changed if not key.startswith("weather/"))
    assert story.house.trash(story.header) == planned
    ranks = batch_ranks(story, execution_directory(story.header))
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == 4  # snapshots; manifest lists and transaction logs; manifests; data and chunks
    check_readable(story)


def test_expiry_log_and_snapshot_history_are_complete(story: Story[Lakes]) -> None:
    for lake, count in story.header.expiry_actions.items():
        log = story.house.rows("expiry_log", lake)
        assert [(row["outcome"], row["plan_id"]) for row in log] == [("done", story.header.plan_id)] * count
    removed = {row["snapshot_id"]: row["reason"] for row in story.house.rows("expiry_log", "sales") if row["action"] == "remove_snapshot"}
    history = {row["snapshot_id"]: row for row in story.house.rows("snapshot_history", "sales")}
    assert set(history) == story.builder.snapshots
    assert {name: row["reason"] for name, row in history.items() if row["expired"]} == removed
    assert {row["plan_id"] for row in history.values() if row["expired"]} == {story.header.plan_id}
    assert {name for name, row in history.items() if not row["expired"]} == list_snapshots(story.builder.iceberg)
    assert all(row["operation"] and row["summary"]["sequence-number"] and row["manifest_list"] for row in history.values())


def test_second_apply_changes_nothing(story: Story[Lakes]) -> None:
    applied = story.house.apply(story.header)
    assert applied.published is None
    assert applied.nothing_to_do is not None
    assert "applied completely" in applied.nothing_to_do


def test_restore_restores_all_bytes(story: Story[Lakes]) -> None:
    planned = story.garbage | expired_files(story)
    published, outcome_counts = story.house.restore(story.header.plan_id)
    assert outcome_counts == {"done": len(planned)}
    after = story.house.files()
    assert {key: after[key] for key in planned} == {key: story.before[key] for key in planned}
    ranks = batch_ranks(story, f"{STORAGE}/restore/{published.receipt.summary['plan_id']}")
    assert ranks == sorted(ranks, reverse=True)
    assert find_plan(story.house.config, story.header.plan_id).status_at(NOW) == "restored"


def test_later_runs_quarantine_and_purge(story: Story[Lakes]) -> None:
    house = story.house
    house.now = NOW + timedelta(days=1)
    header = house.plan()
    assert header.plan_id != story.header.plan_id
    assert house.keys("deletion_plan") >= story.garbage
    house.approve_and_apply(header)
    house.now = NOW + timedelta(days=2)
    purge = house.plan()
    assert story.garbage <= house.keys("deletion_plan", action="purge")
    assert outcomes(house.approve_and_apply(purge)) == {"done"}
    assert house.trash(header) == set()
    check_readable(story)


def test_plan_after_the_purge_contains_no_garbage(story: Story[Lakes]) -> None:
    story.house.now = NOW + timedelta(days=3)
    header = story.house.plan()
    assert not story.garbage & story.house.keys("deletion_plan")
    assert "purge" not in header.totals or not story.garbage & story.house.keys("deletion_plan", action="purge")


def test_icechunk_opens_the_repository(story: Story[Lakes]) -> None:
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(story.builder.repository.path)))
    assert repo.list_branches()
