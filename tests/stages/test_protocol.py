"""The whole protocol on one storage with an Iceberg catalog and an Icechunk repository: plan, approve, apply, restore, purge.

The tests of this module are one story in order; each stands on what the one before it did.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import icechunk
import pytest
import zarr
from pyspark.sql import SparkSession

from gc_assets.config import IcechunkLakeConfig
from gc_assets.core.errors import GateRefused
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.approvals import find_plan, plans
from gc_assets.stages.restore import restore
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder, document_tree, numbers
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse, days_ago

pytestmark = pytest.mark.spark


@dataclass
class Story:
    house: Lakehouse
    iceberg: LakeBuilder
    repository: RepositoryBuilder
    garbage: set[str]
    young: set[str]
    before: dict[str, tuple[str, int]]
    header: PlanHeader


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    house = Lakehouse(spark, tmp_path_factory.mktemp("protocol"))
    iceberg = LakeBuilder(house.root)
    orders = iceberg.table("db.orders", days_ago(60))
    first = orders.append(days_ago(50))
    orders.append(days_ago(30))
    orders.overwrite(days_ago(20))
    orders.tag(days_ago(19), "audit", first)
    orders.append(days_ago(2))
    lost = orders.leftovers(days_ago(10))
    young = orders.leftovers(days_ago(1))
    tree = document_tree(house.warehouse / "weather", days_ago(40))
    repository = tree.builder
    lost += repository.abandon_writer("main", days_ago(15), numbers("gone", range(4)))
    snapshot = repository.abandon_snapshot("main", days_ago(14), numbers("reset", range(3)))
    lost += repository.created[snapshot]
    weather = IcechunkLakeConfig.model_validate(
        {"name": "weather", "kind": "icechunk", "location": f"file://{house.warehouse}/weather/", "retention": {"default": "10d"}}
    )
    house.lakes = [iceberg.config("sales"), weather]
    return Story(house, iceberg, repository, {house.key(p) for p in lost}, {house.key(p) for p in young}, house.files(), house.plan())


def readable(story: Story) -> None:
    """Every retained snapshot of the table and every ref of the repository reads back in full, by the lakes' own libraries."""
    table = story.iceberg.catalog.load_table("db.orders")
    retained = {row["commit_id"] for row in story.house.rows("reachable_snapshots", "sales") if row["state"] == "retained"}
    assert retained
    for snapshot_id in retained:
        assert table.scan(snapshot_id=int(snapshot_id)).to_arrow().num_rows > 0
    repo = story.repository.reopen()
    for snapshot in [repo.lookup_branch(name) for name in repo.list_branches()] + [repo.lookup_tag(name) for name in repo.list_tags()]:
        for ancestor in repo.ancestry(snapshot_id=snapshot):
            group = zarr.open_group(repo.readonly_session(snapshot_id=ancestor.id).store, mode="r") if ancestor.parent_id else None
            for _, array in group.arrays() if group else ():
                assert array[...].shape == array.shape


def test_a_plan_holds_exactly_the_old_unreferenced_files(story: Story) -> None:
    assert story.house.keys("deletion_plan") == story.garbage
    assert story.header.totals["quarantine"].files == len(story.garbage)
    assert story.header.failed_gates == []


def test_young_files_are_left_alone(story: Story) -> None:
    assert not story.young & story.house.keys("orphan_files")


def test_files_of_expired_snapshots_stand_in_orphan_files_and_are_held_for_expiry(story: Story) -> None:
    expired = [row for row in story.house.rows("orphan_files") if row["reason"] == "expired"]
    assert expired
    assert story.header.held_for_expiry.files == len(expired)
    gone = {row["commit_id"] for row in story.house.rows("reachable_snapshots", "sales") if row["state"] == "expired"}
    assert {row["last_commit_id"] for row in expired} <= gone
    assert not {row["key"] for row in expired} & story.house.keys("deletion_plan")


def test_every_file_is_live_or_orphan_or_young_or_unowned(story: Story) -> None:
    live, orphans = story.house.live(), story.house.keys("orphan_files")
    assert not live & orphans
    rest = set(story.before) - live - orphans
    assert rest == story.young


def test_planning_again_gives_the_same_plan(story: Story) -> None:
    assert story.house.plan().plan_id == story.header.plan_id
    assert len(list(plans(story.house.config))) == 1


def test_the_second_mark_decodes_nothing(story: Story) -> None:
    state = story.house.tonight().state
    for lake in ("sales", "weather"):
        segments = [published.receipt.facts["decoded"] for published in state.runs(lake, "manifest_entries")]
        assert segments[0] > 0
        assert set(segments[1:]) == {0}


def test_a_plan_without_approval_is_refused_and_changes_nothing(story: Story) -> None:
    with pytest.raises(GateRefused, match="not approved"):
        story.house.apply(story.header)
    assert story.house.files() == story.before


def test_apply_moves_exactly_the_planned_files_to_the_trash(story: Story) -> None:
    story.house.approved(story.header)
    applied = story.house.apply(story.header)
    assert {key: total.rows for key, total in applied.books.items()} == {("quarantine", "done"): len(story.garbage)}
    assert story.house.files() == {key: value for key, value in story.before.items() if key not in story.garbage}
    trash = story.house.warehouse / ".gc-assets" / "trash" / story.header.plan_id
    assert {str(path.relative_to(trash)) for path in trash.rglob("*") if path.is_file()} == story.garbage
    readable(story)


def test_applying_twice_changes_nothing_and_says_so(story: Story) -> None:
    applied = story.house.apply(story.header)
    assert applied.published is None
    assert applied.nothing_to_do is not None
    assert "applied in full" in applied.nothing_to_do


def test_restore_puts_everything_back_byte_for_byte(story: Story) -> None:
    _, books = restore(story.house.spark, story.house.tonight(), STORAGE, plan_id=story.header.plan_id)
    assert {name: total.rows for name, total in books.items()} == {"done": len(story.garbage)}
    assert story.house.files() == story.before
    assert find_plan(story.house.config, story.header.plan_id).status_at(NOW) == "restored"


def test_a_later_night_quarantines_again_and_the_one_after_purges(story: Story) -> None:
    house = story.house
    house.now = NOW + timedelta(days=1)
    header = house.plan()
    assert header.plan_id != story.header.plan_id
    assert house.keys("deletion_plan") >= story.garbage
    house.approved(header)
    house.apply(header)
    house.now = NOW + timedelta(days=2)
    purge = house.plan()
    planned = {row["key"]: row["action"] for row in house.rows("deletion_plan")}
    assert story.garbage <= {key for key, action in planned.items() if action == "purge"}
    house.approved(purge)
    applied = house.apply(purge)
    assert all(outcome == "done" for _, outcome in applied.books)
    trash = house.warehouse / ".gc-assets" / "trash" / header.plan_id
    assert not [path for path in trash.rglob("*") if path.is_file()]
    readable(story)


def test_after_the_purge_there_is_nothing_left_to_do(story: Story) -> None:
    story.house.now = NOW + timedelta(days=3)
    header = story.house.plan()
    assert not story.garbage & story.house.keys("deletion_plan")
    assert "purge" not in header.totals or not story.garbage & {
        row["key"] for row in story.house.rows("deletion_plan") if row["action"] == "purge"
    }


def test_the_repository_still_opens_for_its_own_library(story: Story) -> None:
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(story.repository.path)))
    assert repo.list_branches()
