"""What may change between plan and apply, and during the mark: nothing that came to life again is touched."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, LakeUnreadable, StateError
from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.icechunk.refs import head_document
from gc_assets.stages.read.status import storage_status
from gc_assets.stages.records.ledger import quarantine_ledger
from gc_assets.stages.records.plans import StoredPlan, execution_directory, find_plan, unfinished_plans
from gc_assets.stores.local.lease import acquire
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse, days_ago

pytestmark = pytest.mark.spark


@dataclass
class PlanFixture:
    """A table with six lost data files beside it, and the approved plan that would take them."""

    house: Lakehouse
    table: TableBuilder
    lost: list[Path]
    header: PlanHeader
    plan: StoredPlan
    before_the_state_was_lost: PlanHeader
    keys: set[str]
    keys_under_another_name: set[str]
    contents: dict[Path, bytes] = field(default_factory=dict)

    def add(self, *files: Path) -> None:
        with self.table.lake.at(NOW):
            self.table.table.add_files([f"file://{path}" for path in files], check_duplicate_files=False)

    def outcomes(self) -> dict[str, tuple[str, str | None]]:
        return {row["key"]: (row["outcome"], row["error"]) for row in self.house.rows("deletion_log")}


@pytest.fixture(scope="module")
def planned(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> PlanFixture:
    """The tests with it are one story in order: three plans, refusals that change nothing, then the plan is carried out."""
    house = Lakehouse(spark, tmp_path_factory.mktemp("changes"))
    iceberg = LakeBuilder(house.root)
    table = iceberg.table("db.t", days_ago(40))
    table.append(days_ago(30))
    lost = table.leftovers(days_ago(20), 6)
    house.lakes = [iceberg.config("sales")]
    first = house.plan()
    keys = house.keys("deletion_plan")
    house.storage, house.now = "renamed", NOW + timedelta(days=1)
    house.plan()
    renamed = house.keys("deletion_plan", "renamed")
    house.storage, house.now = STORAGE, NOW
    shutil.rmtree(house.root / "state")
    header = house.plan()
    plan = house.approve(header)
    return PlanFixture(house, table, [path for path in lost if path.suffix == ".parquet"], header, plan, first, keys, renamed)


@pytest.fixture
def untouched(planned: PlanFixture) -> Iterator[PlanFixture]:
    """Whatever the test tries, no file moves."""
    yield planned
    planned.house.settings, planned.house.now = {}, NOW
    assert all(path.exists() for path in planned.lost)


def test_a_lost_state_costs_no_data(untouched: PlanFixture) -> None:
    assert untouched.header.totals == untouched.before_the_state_was_lost.totals
    assert untouched.table.table.scan().to_arrow().num_rows == 2


def test_a_renamed_storage_plans_nothing_that_was_live_under_its_old_name(untouched: PlanFixture) -> None:
    """What the cache of decoded containers says of places was true of the old storages only."""
    assert untouched.keys_under_another_name == untouched.keys
    assert {untouched.house.key(path) for path in untouched.lost} <= untouched.keys


def test_an_expired_approval_and_another_policy_are_refused(untouched: PlanFixture) -> None:
    house, header = untouched.house, untouched.header
    house.settings = {"grace": "100h"}
    with pytest.raises(GateRefused, match="another policy"):
        house.apply(header)
    house.settings = {"mode": "plan"}
    with pytest.raises(GateRefused, match="mode plan"):
        house.apply(header)
    house.settings = {}
    house.now = header.apply_before
    with pytest.raises(GateRefused, match="could be applied until"):
        house.apply(header)


def test_a_catalog_that_cannot_be_listed_at_apply_stops_it_before_anything_moves(untouched: PlanFixture) -> None:
    catalog = untouched.house.root / "catalog.db"
    catalog.rename(f"{catalog}.aside")
    with pytest.raises(LakeUnreadable, match=r"catalog\.db does not exist"):
        untouched.house.apply(untouched.header)
    Path(f"{catalog}.aside").rename(catalog)
    assert not (untouched.house.warehouse / ".gc-assets" / "lease.json").exists()


def test_a_live_lease_of_another_apply_is_refused_by_name(untouched: PlanFixture) -> None:
    house = untouched.house
    lease = acquire(f"file://{house.warehouse}/", "another plan", "somebody else", Clock())
    with pytest.raises(GateRefused, match="somebody else"):
        house.apply(untouched.header)
    lease.release()


def test_a_plan_whose_rows_were_changed_after_approval_is_refused(untouched: PlanFixture) -> None:
    receipt = Path(untouched.house.root / "state" / untouched.plan.published.path / "_receipt.json")
    whole = receipt.read_text()
    document = json.loads(whole)
    document["summary"]["header"]["rows"] = 1
    receipt.write_text(json.dumps(document))
    with pytest.raises(StateError):
        find_plan(untouched.house.config, untouched.header.plan_id)
    receipt.write_text(whole)


def test_what_changes_after_the_plan_is_spared_and_told(planned: PlanFixture) -> None:
    """One candidate is committed meanwhile, one replaced by new bytes, one touched, one gone; the rest goes."""
    house, (revived, replaced, touched, gone, *rest) = planned.house, planned.lost
    planned.contents = {path: path.read_bytes() for path in rest}
    planned.add(revived)
    content = replaced.read_bytes()
    replaced.unlink()
    replaced.write_bytes(content)
    os.utime(touched, (NOW.timestamp(),) * 2)
    gone.unlink()
    house.apply(planned.header)
    outcome = planned.outcomes()
    assert outcome[house.key(revived)] == ("changed", "live again: lake sales needs it")
    assert outcome[house.key(replaced)][0] == "changed"
    assert outcome[house.key(touched)][0] == "changed"
    assert outcome[house.key(gone)][0] == "absent"
    assert {path.exists() for path in (revived, replaced, touched)} == {True}
    assert {path.exists() for path in rest} == {False}
    assert planned.table.table.scan().to_arrow().num_rows > 2
    assert sum(1 for verdict, _ in outcome.values() if verdict == "done") == len(outcome) - 4


def test_a_resumed_apply_keeps_on_record_what_it_had_moved_although_it_is_live_again(planned: PlanFixture) -> None:
    """Killed after the last move and before the log was published; then moved files are committed."""
    house, came_back = planned.house, planned.lost[4:]
    (house.root / "state" / "warehouse" / "apply" / planned.header.plan_id / "finished.json").unlink()
    (house.root / "state" / "warehouse" / "apply" / "_records.json").unlink()
    shutil.rmtree(house.root / "state" / "warehouse" / "deletion_log")
    for path in came_back:  # pyiceberg looks into a file that it adds; the writer of a manifest need not
        path.write_bytes(planned.contents[path])
    planned.add(*came_back)
    for path in came_back:
        path.unlink()
    house.apply(planned.header)
    assert {planned.outcomes()[house.key(path)][0] for path in came_back} == {"done"}


def test_a_quarantined_file_that_came_back_to_life_is_restored_by_the_next_plan_without_approval(planned: PlanFixture) -> None:
    house, came_back = planned.house, planned.lost[4:]
    house.now = NOW + timedelta(days=1)
    later = house.plan()
    actions = house.planned_actions()
    assert {actions[house.key(path)] for path in came_back} == {"restore"}
    assert later.failed_gates == []  # a gate that failed for what the plan puts back would stop the very step that does it
    applied = house.apply(later, ("restore",))
    assert list(applied.by_outcome) == [("restore", "done")]
    assert {path: path.read_bytes() for path in came_back} == planned.contents
    house.now = NOW + timedelta(days=2)
    assert "unfinished_apply" not in house.failed_gates(house.plan())
    assert planned.table.table.scan().to_arrow().num_rows > 2


def deleted_branch(spark: SparkSession, root: Path) -> tuple[Lakehouse, RepositoryBuilder, str, set[str]]:
    """A repository with a deleted branch, its last snapshot, and the files that only it needs."""
    house = Lakehouse(spark, root)
    repository = RepositoryBuilder.create(house.warehouse / "weather", days_ago(90))
    repository.commit("main", days_ago(2), numbers("kept", range(2)))
    repository.branch("dev", repository.repo.lookup_branch("main"))
    repository.repo.reset_branch("dev", next(reversed([s.id for s in repository.repo.ancestry(branch="main")])))
    lost = repository.commit("dev", days_ago(60), numbers("old", range(3)))
    newest = repository.commit("dev", days_ago(50), numbers("older", range(3)))
    repository.repo.delete_branch("dev")
    house.lakes = [house.weather(retention={"default": "30d"})]
    return house, repository, newest, {house.key(path) for snapshot in (lost, newest) for path in repository.created[snapshot]}


def test_history_that_a_ref_reaches_again_is_spared_although_the_policy_does_not_keep_it(spark: SparkSession, tmp_path: Path) -> None:
    house, repository, newest, private = deleted_branch(spark, tmp_path)
    header = house.plan()
    assert private <= house.keys("deletion_plan")
    house.approve(header)
    repository.branch("dev", newest)
    repository.commit("dev", NOW, numbers("new", range(3)))
    house.apply(header)
    assert {row["outcome"] for row in house.rows("deletion_log") if row["key"] in private} == {"changed"}


def test_a_half_applied_plan_holds_up_later_ones_and_a_restore_frees_it_where_it_moved_what_is_needed_to_read_the_lake(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A branch is made on a snapshot right before it is moved, then the apply is killed: from there on no mark can read the lake."""
    house, repository, newest, private = deleted_branch(spark, tmp_path)
    before, header = house.files(), house.plan()
    house.approve_and_apply(header)
    (house.root / "state" / execution_directory(header) / "finished.json").unlink()
    (house.root / "state" / STORAGE / "apply" / "_records.json").unlink()
    shutil.rmtree(house.root / "state" / STORAGE / "deletion_log")
    moved_at_last = max((house.root / "state" / execution_directory(header)).glob("share-*/*.outcome.jsonl"), key=os.path.getmtime)
    moved_at_last.unlink()
    branch = repository.path / "refs" / "branch.dev" / "ref.json"
    branch.parent.mkdir(exist_ok=True)  # deleting a branch leaves its directory
    branch.write_bytes(head_document(newest))
    with pytest.raises(LakeUnreadable, match=newest):
        house.apply(header)
    assert [failed.plan_id for failed in storage_status(house.config, house.clock, house.config.storage(STORAGE)).failed] == [
        header.plan_id
    ]

    house.now = NOW + timedelta(minutes=1)
    _, books = house.restore(header.plan_id)
    assert books == {"done": header.totals["quarantine"].files}
    assert {key: house.files()[key] for key in before} == before
    assert unfinished_plans(house.run_context().state, STORAGE) == [header.plan_id]
    house.now = NOW + timedelta(days=1)
    assert "unfinished_apply" in house.failed_gates(house.plan())
    house.settings = {"grace": "100h"}  # a crash must not lock the storage because the policy changed meanwhile
    house.apply(header)
    assert find_plan(house.config, header.plan_id).status_at(house.now) == "applied"
    assert storage_status(house.config, house.clock, house.config.storage(STORAGE)).failed == ()
    assert "unfinished_apply" not in house.failed_gates(house.plan())
    assert private <= set(house.files())
    assert quarantine_ledger(spark, house.run_context().state, STORAGE).filter("key like 'weather/snapshots/%'").isEmpty()
