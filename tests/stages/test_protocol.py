"""The whole protocol on one storage with an Iceberg catalog and an Icechunk repository: plan, approve, expire, apply, restore, purge.

The tests of this module are one story in order; each stands on what the one before it did.
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

pytestmark = pytest.mark.spark


@dataclass
class Lakes:
    """The catalog and the repository, keys too young to be collected, and the table's snapshots before any expiry."""

    iceberg: LakeBuilder
    repository: RepositoryBuilder
    young: set[str]
    snapshots: set[str]


def listed(iceberg: LakeBuilder) -> set[str]:
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
    return Story.start(house, Lakes(iceberg, repository, young, listed(iceberg)), {house.key(path) for path in lost})


def freed(story: Story[Lakes]) -> set[str]:
    """What the plan's own expiry frees."""
    return story.house.keys("orphan_files", reason="expired")


def readable(story: Story[Lakes]) -> None:
    """Every retained snapshot of the table and every ref of the repository reads back in full, by the lakes' own libraries."""
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


def ranks_acted_on(story: Story[Lakes], directory: str) -> list[int]:
    """The rank of each batch of a write-ahead log, in the order in which the batches were begun."""
    intents = sorted((story.house.root / "state" / directory).glob("share-*/*.intent.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    ranks = [{RANKS.get(json.loads(line)["kind"], LEAF_RANK) for line in path.read_text().splitlines()} for path in intents]
    assert all(len(batch) == 1 for batch in ranks)
    return [rank for batch in ranks for rank in batch]


def test_a_plan_holds_the_old_unreferenced_files_and_what_its_own_expiry_frees(story: Story[Lakes]) -> None:
    assert story.house.keys("deletion_plan", after_expiry=False) == story.garbage
    assert story.house.keys("deletion_plan", after_expiry=True) == freed(story)
    assert story.header.totals["quarantine"].files == len(story.garbage | freed(story))
    assert (story.header.after_expiry.files, story.header.held_for_expiry.files) == (len(freed(story)), 0)
    assert story.header.failed_gates == []


def test_young_files_are_left_alone(story: Story[Lakes]) -> None:
    assert not story.builder.young & story.house.keys("orphan_files")


def test_the_edits_of_history_are_part_of_the_plan(story: Story[Lakes]) -> None:
    planned = {lake: len(story.house.rows("expiry_plan", lake)) for lake in ("sales", "weather")}
    assert story.header.expiry_actions == planned
    assert min(planned.values()) > 0
    expired = [row for row in story.house.rows("orphan_files") if row["reason"] == "expired"]
    assert {row["last_commit_id"] for row in expired} <= story.house.commits("expired")
    assert {row["held_by"] for row in expired} == set(planned)


def test_every_file_is_live_or_orphan_or_young_or_unowned(story: Story[Lakes]) -> None:
    live, orphans = story.house.live(), story.house.keys("orphan_files")
    assert not live & orphans
    assert set(story.before) - live - orphans == story.builder.young


def test_planning_again_gives_the_same_plan(story: Story[Lakes]) -> None:
    assert story.house.plan().plan_id == story.header.plan_id
    assert len(list(list_plans(story.house.config))) == 1


def test_second_mark_decodes_nothing(story: Story[Lakes]) -> None:
    for lake in ("sales", "weather"):
        first, *later = story.house.decoded_counts(lake)
        assert first > 0
        assert set(later) == {0}


def test_a_plan_without_approval_is_refused_and_changes_nothing(story: Story[Lakes]) -> None:
    with pytest.raises(GateRefused, match="not approved"):
        story.house.apply(story.header)
    assert story.house.files() == story.before


def test_files_that_expiry_frees_are_not_quarantined_before_it(story: Story[Lakes]) -> None:
    story.house.approve(story.header)
    with pytest.raises(GateRefused, match="--phase expire"):
        story.house.apply(story.header, ("quarantine",))
    assert story.house.files() == story.before


def test_apply_edits_the_histories_first_and_then_moves_exactly_the_planned_files_to_the_trash(story: Story[Lakes]) -> None:
    applied = story.house.apply(story.header)
    edits, planned = sum(story.header.expiry_actions.values()), story.garbage | freed(story)
    assert counts(applied.by_outcome) == {("expire", "done"): edits, ("quarantine", "done"): len(planned)}
    after = story.house.files()
    assert set(story.before) - set(after) == planned
    changed = {key for key, value in after.items() if story.before.get(key) != value}
    rewritten = {row["snapshot_id"] for row in story.house.rows("expiry_plan", "weather") if row["action"] == "edit_parent"}
    assert {key for key in changed if key.startswith("weather/")} == {f"weather/snapshots/{name}" for name in rewritten}
    assert all(key.endswith(".metadata.json") for key in changed if not key.startswith("weather/"))
    assert story.house.trash(story.header) == planned
    ranks = ranks_acted_on(story, execution_directory(story.header))
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == 4  # snapshots; manifest lists and transaction logs; manifests; data and chunks
    readable(story)


def test_the_log_has_an_outcome_for_every_edit_and_the_history_every_snapshot_ever_made(story: Story[Lakes]) -> None:
    for lake, count in story.header.expiry_actions.items():
        log = story.house.rows("expiry_log", lake)
        assert [(row["outcome"], row["plan_id"]) for row in log] == [("done", story.header.plan_id)] * count
    removed = {row["snapshot_id"]: row["reason"] for row in story.house.rows("expiry_log", "sales") if row["action"] == "remove_snapshot"}
    history = {row["snapshot_id"]: row for row in story.house.rows("snapshot_history", "sales")}
    assert set(history) == story.builder.snapshots
    assert {name: row["reason"] for name, row in history.items() if row["expired"]} == removed
    assert {row["plan_id"] for row in history.values() if row["expired"]} == {story.header.plan_id}
    assert {name for name, row in history.items() if not row["expired"]} == listed(story.builder.iceberg)
    assert all(row["operation"] and row["summary"]["sequence-number"] and row["manifest_list"] for row in history.values())


def test_applying_twice_changes_nothing_and_says_so(story: Story[Lakes]) -> None:
    applied = story.house.apply(story.header)
    assert applied.published is None
    assert applied.nothing_to_do is not None
    assert "applied completely" in applied.nothing_to_do


def test_restore_puts_everything_back_byte_for_byte(story: Story[Lakes]) -> None:
    planned = story.garbage | freed(story)
    published, books = story.house.restore(story.header.plan_id)
    assert books == {"done": len(planned)}
    after = story.house.files()
    assert {key: after[key] for key in planned} == {key: story.before[key] for key in planned}
    ranks = ranks_acted_on(story, f"{STORAGE}/restore/{published.receipt.summary['plan_id']}")
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
    readable(story)


def test_after_the_purge_there_is_nothing_left_to_do(story: Story[Lakes]) -> None:
    story.house.now = NOW + timedelta(days=3)
    header = story.house.plan()
    assert not story.garbage & story.house.keys("deletion_plan")
    assert "purge" not in header.totals or not story.garbage & story.house.keys("deletion_plan", action="purge")


def test_the_repository_still_opens_for_its_own_library(story: Story[Lakes]) -> None:
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(story.builder.repository.path)))
    assert repo.list_branches()
