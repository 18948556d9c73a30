"""Changes between plan and apply and during the mark: files that became live again are kept."""

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

from gc_assets.core import gates
from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, LakeUnreadable, StateError
from gc_assets.core.plan import GateResult, PlanHeader
from gc_assets.lakes.icechunk.refs import head_document
from gc_assets.stages.read.status import storage_status
from gc_assets.stages.records.ledger import quarantine_ledger
from gc_assets.stages.records.plans import StoredPlan, execution_directory, find_plan, unfinished_plans
from gc_assets.stores.local.lease import acquire
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]


@dataclass
class PlanFixture:
    """A table with six unreferenced data files, and the approved plan that contains them."""

    house: Lakehouse
    table: TableBuilder
    lost: list[Path]
    header: PlanHeader
    plan: StoredPlan
    before_state_loss: PlanHeader
    keys: set[str]
    keys_of_renamed_storage: set[str]
    contents: dict[Path, bytes] = field(default_factory=dict)

    def add(self, *files: Path) -> None:
        with self.table.lake.at(NOW):
            self.table.table.add_files([f"file://{path}" for path in files], check_duplicate_files=False)

    def outcomes(self) -> dict[str, tuple[str, str | None]]:
        return {row["key"]: (row["outcome"], row["error"]) for row in self.house.rows("deletion_log")}


@pytest.fixture(scope="module")
def planned(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> PlanFixture:
    """Make three plans. The tests run in order: refusals that change nothing, then the apply."""
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
def unchanged(planned: PlanFixture) -> Iterator[PlanFixture]:
    """Check that the test moves no file."""
    yield planned
    planned.house.settings, planned.house.now = {}, NOW
    assert all(path.exists() for path in planned.lost)


def test_lost_state_does_not_change_plan_or_lose_data(unchanged: PlanFixture) -> None:
    assert unchanged.header.totals == unchanged.before_state_loss.totals
    assert unchanged.table.table.scan().to_arrow().num_rows == 2


def test_plan_for_renamed_storage_contains_no_live_file(unchanged: PlanFixture) -> None:
    """The cache of decoded containers contains the old storage names."""
    assert unchanged.keys_of_renamed_storage == unchanged.keys
    assert {unchanged.house.key(path) for path in unchanged.lost} <= unchanged.keys


def test_apply_refuses_expired_plan_and_changed_policy(unchanged: PlanFixture) -> None:
    house, header = unchanged.house, unchanged.header
    house.settings = {"grace": "100h"}
    with pytest.raises(GateRefused, match=r"the policy in lakes\.yaml has changed"):
        house.apply(header)
    house.settings = {"mode": "plan"}
    with pytest.raises(GateRefused, match="plan mode"):
        house.apply(header)
    house.settings = {}
    house.now = header.apply_before
    with pytest.raises(GateRefused, match="its apply had to start before"):
        house.apply(header)


def test_apply_with_missing_catalog_changes_nothing(unchanged: PlanFixture) -> None:
    catalog = unchanged.house.root / "catalog.db"
    catalog.rename(f"{catalog}.aside")
    with pytest.raises(LakeUnreadable, match=r"catalog\.db does not exist"):
        unchanged.house.apply(unchanged.header)
    Path(f"{catalog}.aside").rename(catalog)
    assert not (unchanged.house.warehouse / ".gc-assets" / "lease.json").exists()


def test_apply_is_refused_while_another_user_has_lease(unchanged: PlanFixture) -> None:
    house = unchanged.house
    lease = acquire(f"file://{house.warehouse}/", "another plan", "another owner", Clock())
    with pytest.raises(GateRefused, match="another owner"):
        house.apply(unchanged.header)
    lease.release()


def test_plan_changed_after_approval_is_refused(unchanged: PlanFixture) -> None:
    receipt = Path(unchanged.house.root / "state" / unchanged.plan.published.path / "_receipt.json")
    original = receipt.read_text()
    document = json.loads(original)
    document["summary"]["header"]["rows"] = 1
    receipt.write_text(json.dumps(document))
    with pytest.raises(StateError):
        find_plan(unchanged.house.config, unchanged.header.plan_id)
    receipt.write_text(original)


def test_apply_keeps_files_that_changed_after_plan(planned: PlanFixture) -> None:
    """One candidate is committed, one replaced, one gets a new time, one is removed. The others are quarantined."""
    house, (revived, replaced, retimed, gone, *rest) = planned.house, planned.lost
    planned.contents = {path: path.read_bytes() for path in rest}
    planned.add(revived)
    content = replaced.read_bytes()
    replaced.unlink()
    replaced.write_bytes(content)
    os.utime(retimed, (NOW.timestamp(),) * 2)
    gone.unlink()
    house.apply(planned.header)
    outcome = planned.outcomes()
    assert outcome[house.key(revived)] == ("changed", "live again: lake sales needs it")
    assert outcome[house.key(replaced)][0] == "changed"
    assert outcome[house.key(retimed)][0] == "changed"
    assert outcome[house.key(gone)][0] == "absent"
    assert {path.exists() for path in (revived, replaced, retimed)} == {True}
    assert {path.exists() for path in rest} == {False}
    assert planned.table.table.scan().to_arrow().num_rows > 2
    assert sum(1 for verdict, _ in outcome.values() if verdict == "done") == len(outcome) - 4


def test_resumed_apply_records_moved_files_that_are_live_again(planned: PlanFixture) -> None:
    """The apply is killed between the last move and the log, then moved files are committed."""
    house, revived_files = planned.house, planned.lost[4:]
    (house.root / "state" / "warehouse" / "apply" / planned.header.plan_id / "finished.json").unlink()
    (house.root / "state" / "warehouse" / "apply" / "_records.json").unlink()
    shutil.rmtree(house.root / "state" / "warehouse" / "deletion_log")
    for path in revived_files:  # pyiceberg reads a file that it adds
        path.write_bytes(planned.contents[path])
    planned.add(*revived_files)
    for path in revived_files:
        path.unlink()
    house.apply(planned.header)
    assert {planned.outcomes()[house.key(path)][0] for path in revived_files} == {"done"}


def test_next_plan_restores_live_quarantined_files_without_approval(planned: PlanFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that fails in the verification mark does not refuse a restore, which removes nothing."""
    house, revived_files = planned.house, planned.lost[4:]
    house.now = NOW + timedelta(days=1)
    later = house.plan()
    actions = house.planned_actions()
    assert {actions[house.key(path)] for path in revived_files} == {"restore"}
    assert later.failed_gates == []  # a gate that fails because of files to restore would block their restore
    failed = GateResult(name="live_drop", passed=False, message="no live file", overridable=True)
    with monkeypatch.context() as patch:
        patch.setattr(gates, "live_drop", lambda *_: failed)
        applied = house.apply(later, ("restore",))
    assert list(applied.by_outcome) == [("restore", "done")]
    assert {path: path.read_bytes() for path in revived_files} == planned.contents
    house.now = NOW + timedelta(days=2)
    assert "unfinished_apply" not in house.failed_gates(house.plan())
    assert planned.table.table.scan().to_arrow().num_rows > 2


def deleted_branch(spark: SparkSession, root: Path) -> tuple[Lakehouse, RepositoryBuilder, str, set[str]]:
    """Return a repository with a deleted branch, the last snapshot of it, and its private files."""
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


def test_apply_keeps_history_reachable_from_new_ref(spark: SparkSession, tmp_path: Path) -> None:
    house, repository, newest, private = deleted_branch(spark, tmp_path)
    header = house.plan()
    assert private <= house.keys("deletion_plan")
    house.approve(header)
    repository.branch("dev", newest)
    repository.commit("dev", NOW, numbers("new", range(3)))
    house.apply(header)
    assert {row["outcome"] for row in house.rows("deletion_log") if row["key"] in private} == {"changed"}


def test_restore_unblocks_half_applied_plan_of_unreadable_lake(spark: SparkSession, tmp_path: Path) -> None:
    """A branch is created on a snapshot just before the move, then the apply is killed. After this no mark can read the lake."""
    house, repository, newest, private = deleted_branch(spark, tmp_path)
    before, header = house.files(), house.plan()
    house.approve_and_apply(header)
    (house.root / "state" / execution_directory(header) / "finished.json").unlink()
    (house.root / "state" / STORAGE / "apply" / "_records.json").unlink()
    shutil.rmtree(house.root / "state" / STORAGE / "deletion_log")
    last_outcome = max((house.root / "state" / execution_directory(header)).glob("share-*/*.outcome.jsonl"), key=os.path.getmtime)
    last_outcome.unlink()
    branch = repository.path / "refs" / "branch.dev" / "ref.json"
    branch.parent.mkdir(exist_ok=True)  # deleting a branch leaves its directory
    branch.write_bytes(head_document(newest))
    with pytest.raises(LakeUnreadable, match=newest):
        house.apply(header)
    assert [failed.plan_id for failed in storage_status(house.config, house.clock, house.config.storage(STORAGE)).failed] == [
        header.plan_id
    ]

    house.now = NOW + timedelta(minutes=1)
    _, outcomes = house.restore(header.plan_id)
    assert outcomes == {"done": header.totals["quarantine"].files}
    assert {key: house.files()[key] for key in before} == before
    assert unfinished_plans(house.run_context().state, STORAGE) == [header.plan_id]
    house.now = NOW + timedelta(days=1)
    assert "unfinished_apply" in house.failed_gates(house.plan())
    house.settings = {"grace": "100h"}  # a changed policy must not block the storage after a crash
    house.apply(header)
    assert find_plan(house.config, header.plan_id).status_at(house.now) == "partially applied"
    assert storage_status(house.config, house.clock, house.config.storage(STORAGE)).failed == ()
    assert "unfinished_apply" not in house.failed_gates(house.plan())
    assert private <= set(house.files())
    assert quarantine_ledger(spark, house.run_context().state, STORAGE).filter("key like 'weather/snapshots/%'").isEmpty()
