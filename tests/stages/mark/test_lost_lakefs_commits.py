"""Files that a lakeFS repository needed are kept for the waiting time if its server lost commits, because it was restored from a backup."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.stages.read.explain import explain
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.side_tables import POINTERS, POINTERS_SIDE
from gc_assets.state.summaries import LiveFilesSummary
from tests.depth import in_turn
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import FakeRepository
from tests.lakes.lakefs.lakefs_lakes import moment
from tests.lakes.lakefs.recorded_server import recorded_repository
from tests.lakes.lakefs.recordings import Recording
from tests.stages.lakehouse import NOW, Lakehouse, days_ago, outcomes
from tests.stages.test_lakefs_unused_ranges import GATES, Setup, serve

pytestmark = [pytest.mark.spark, in_turn]
UNTIL = "Files that it needed then are kept until 2026-11-28 03:00 UTC"  # after the first run that misses the commits, on day 1


def restore(repository: FakeRepository, backup: FakeRepository) -> None:
    """Restore the database of a server. The files in the namespace do not change."""
    state = copy.deepcopy(backup)
    for name in ("branches", "tags", "commits", "trees", "written"):
        setattr(repository, name, getattr(state, name))


@dataclass
class RestoredServer:
    """A repository that can lose the commits which a run on day 0 read.

    Attributes:
        backup: The state of the server before the lost commits.
        newest: Its state in the run.
        lost: Keys of the objects and of the ranges that only the lost commits, or objects staged with them, name.
    """

    setup: Setup
    builder: RepositoryBuilder
    backup: FakeRepository
    newest: FakeRepository
    lost: set[str]

    @property
    def house(self) -> Lakehouse:
        return self.setup.house

    def lose(self) -> None:
        restore(self.builder.repository, self.backup)

    def run(self, day: float) -> PlanHeader:
        self.setup.age()
        self.house.now = NOW + timedelta(days=day)
        return self.house.plan()

    def list_planned(self) -> set[str]:
        return self.house.keys("deletion_plan") & self.lost

    def read_lost(self) -> set[str]:
        """Return the ids of the commits that the last run keeps."""
        live = self.house.find_table("live_files", "ml")
        rows = read_parts(self.house.run_context().state.files, live.paths(POINTERS_SIDE), POINTERS).to_pylist()
        return {row["address"] for row in rows if row["former_since"] is not None}

    def read_notes(self) -> Sequence[str]:
        notes = self.house.run_context().table(LIVE_FILES, "ml").summary(LiveFilesSummary).notes
        return [note for note in notes if "its server has lost" in note]

    def leave_garbage(self) -> str:
        """Upload an object that no commit references."""
        return f"ml-data/{self.builder.upload()}"


def read_files(house: Lakehouse, repository: FakeRepository) -> set[str]:
    """Return the keys of the existing files in `data/`, and of the ranges and metaranges."""
    folder = f"{repository.name}/"
    return {key for key in house.files() if key.startswith(f"{folder}data/") or len(key.removeprefix(f"{folder}_lakefs/")) == 64}


@pytest.fixture
def restored(spark: SparkSession, tmp_path: Path) -> Iterator[RestoredServer]:
    house = Lakehouse(spark, tmp_path, settings={"gates": GATES})
    builder = RepositoryBuilder(house.warehouse, days_ago(60))
    repository = builder.repository
    with serve(house, repository) as setup:
        builder.commit("main", a=b"1", b=b"2")
        backup, before = copy.deepcopy(repository), read_files(house, repository)
        builder.now = days_ago(30)
        builder.commit("main", a=b"3", c=b"4")
        builder.branch("dev")
        builder.commit("dev", d=b"5")
        builder.drop("dev")
        builder.stage("main", "e")
        found = RestoredServer(setup, builder, backup, copy.deepcopy(repository), read_files(house, repository) - before)
        assert (found.run(0).rows, len(found.lost)) == (0, 4 + 4)
        yield found


def test_commits_lost_by_restored_server_are_kept_during_wait(restored: RestoredServer) -> None:
    """One of the commits was the head of a deleted branch."""
    restored.lose()
    garbage = restored.leave_garbage()
    header = restored.run(1)
    assert (header.failed_gates, restored.house.keys("deletion_plan") & {garbage, *restored.lost}) == ([], {garbage})
    assert restored.read_lost() == {"main-2", "dev-3"}
    (note,) = restored.read_notes()
    assert note.startswith("lake ml: on 2026-11-20, repository ml-data had 2 commits that its server has lost, for example because it was ")
    assert "restored from a backup: dev-3, main-2. " in note
    assert UNTIL in note
    assert {explain(restored.house.run_context(), key)[0].verdict for key in restored.lost} == {"live"}
    restored.run(7.5)
    assert (restored.list_planned(), len(restored.read_notes())) == (set(), 1)
    restored.run(8.1)
    assert (restored.list_planned(), restored.read_lost(), restored.read_notes()) == (restored.lost, set(), [])


def test_all_files_needed_before_are_kept_until_no_commit_is_missing(restored: RestoredServer) -> None:
    """Staged objects and expired commits of that time are recorded with one of the lost commits."""
    restored.lose()
    restored.run(1)
    partly = copy.deepcopy(restored.newest)
    del partly.commits["dev-3"]
    restore(restored.builder.repository, partly)
    restored.run(2)
    assert (restored.list_planned(), restored.read_lost()) == (set(), {"main-2", "dev-3"})


def test_newer_backup_can_be_restored_after_apply(restored: RestoredServer) -> None:
    restored.lose()
    garbage = restored.leave_garbage()
    restored.builder.branch("exp")
    restored.builder.commit("exp", f=b"6")
    header = restored.run(1)
    assert header.rows
    assert outcomes(restored.house.approve_and_apply(header)) == {"done"}
    assert garbage not in restored.house.files()
    restore(restored.builder.repository, restored.newest)
    restored.setup.read_commits()
    assert restored.lost <= restored.house.files().keys()
    header = restored.run(2)
    assert (header.failed_gates, restored.list_planned()) == ([], set())
    assert restored.read_lost() == {"exp-2"}


def test_server_restored_between_plan_and_apply_keeps_the_lost_commits(restored: RestoredServer) -> None:
    garbage = restored.leave_garbage()
    header = restored.run(1)
    assert restored.house.keys("deletion_plan") >= {garbage}
    restored.lose()
    restored.setup.age()
    assert outcomes(restored.house.approve_and_apply(header)) == {"done"}
    restore(restored.builder.repository, restored.newest)
    restored.setup.read_commits()
    assert restored.lost <= restored.house.files().keys()


def test_wait_applies_if_repository_was_unreadable_at_server_restore(restored: RestoredServer) -> None:
    restored.setup.server.fault = lambda method, path, query: (403, {"message": "denied"}) if path.endswith("/branches") else None
    restored.run(1)
    restored.setup.server.fault = lambda method, path, query: None
    restored.lose()
    for day in (2, 3):
        header = restored.run(day)
        assert (header.unreadable, restored.list_planned(), restored.read_lost()) == ((), set(), {"main-2", "dev-3"})


def test_wait_does_not_restart_after_repository_was_unreadable(restored: RestoredServer) -> None:
    restored.lose()
    restored.run(1)
    restored.setup.server.fault = lambda method, path, query: (403, {"message": "denied"}) if path.endswith("/branches") else None
    restored.run(2)
    restored.setup.server.fault = lambda method, path, query: None
    restored.run(3)
    assert (restored.list_planned(), UNTIL in restored.read_notes()[0]) == (set(), True)
    restored.run(8.1)
    assert restored.list_planned() == restored.lost


def test_damaged_metarange_of_a_lost_commit_keeps_all_files(restored: RestoredServer) -> None:
    """No run has decoded it, so the files of the commit are unknown. A user may have restored the
    backup because of the damage.
    """
    builder = restored.builder
    damaged = builder.repository.commits[builder.commit("main", f=b"6")].metarange_id
    restored.setup.lose(damaged, keep=True)
    assert len(restored.run(1).unreadable) == 1
    restored.lose()
    garbage = restored.leave_garbage()
    for day in (2, 8.5):
        header = restored.run(day)
        assert (header.rows, header.unreadable, len(restored.read_lost())) == (0, (), 3)
    restored.run(9.2)
    assert restored.house.keys("deletion_plan") >= {garbage, f"ml-data/_lakefs/{damaged}", *restored.lost}


def test_files_of_tag_lost_with_its_commit_are_kept(restored: RestoredServer) -> None:
    """The server still has the tagged commit, which would have expired without the tag."""
    builder, repository = restored.builder, restored.builder.repository
    (key,) = {f"ml-data/{item.address}" for path, item in repository.trees["main-1"].items() if path == "a"}
    builder.rules(10)
    backup = copy.deepcopy(repository)
    repository.tags["v1"] = "main-1"
    builder.now = days_ago(0.5)
    builder.commit("main", f=b"6")
    restored.run(1)
    assert key not in restored.house.keys("deletion_plan")
    restore(repository, backup)
    for day in (2, 8.5):
        restored.run(day)
        assert key not in restored.house.keys("deletion_plan")
    restored.run(9.2)
    assert key in restored.house.keys("deletion_plan")


def test_lifecycle_rules_expire_no_object_that_lost_branch_kept(restored: RestoredServer, tmp_path: Path) -> None:
    """The rule does not apply to the branch."""
    builder, repository = restored.builder, restored.builder.repository
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"scratch": {"prefix": "a", "enabled": True, "branch_days": {"main": 10}}}))
    restored.house.lakes = [restored.house.lakes[0].model_copy(update={"rules": str(rules)})]
    key = f"ml-data/{repository.trees['main-2']['a'].address}"
    builder.rules(10)
    backup = copy.deepcopy(repository)
    builder.branch("exp")
    builder.now = days_ago(0.5)
    builder.commit("exp", f=b"6")
    restored.run(1)
    assert key not in restored.house.keys("deletion_plan")
    restore(repository, backup)
    for day in (2, 8.5):
        restored.run(day)
        assert (key in restored.house.live(), key in restored.house.keys("deletion_plan")) == (True, False)
    restored.run(9.2)
    assert key in restored.house.keys("deletion_plan", reason="lifecycle")


def test_deleted_branches_and_resets_do_not_count_as_lost_commits(restored: RestoredServer) -> None:
    """The server still lists the commits, so the retention policy applies to them."""
    builder = restored.builder
    builder.repository.branches["main"].head = "main-1"
    builder.repository.branches["main"].staged.clear()
    builder.rules(1)
    header = restored.run(1)
    assert (header.failed_gates, restored.read_lost(), restored.read_notes()) == ([], set(), [])
    assert restored.list_planned() == {key for key in restored.lost if "/data/" in key}


def test_recreated_repository_with_older_commits_has_no_lost_commits(restored: RestoredServer) -> None:
    """The files of the earlier repository wait like those of a deleted repository."""
    restored.lose()
    restored.builder.repository.created = 99
    restored.run(1)
    assert (restored.read_lost(), restored.read_notes()) == (set(), [])
    assert not {key for key in restored.list_planned() if "/data/" in key}


def test_lost_commits_of_recorded_server_are_kept_during_wait(spark: SparkSession, tmp_path: Path) -> None:
    """The newest half of the commits of a recorded server is lost. It has no rules, so all commits are retained."""
    recording = Recording("basic")
    house = Lakehouse(spark, tmp_path, settings={"gates": GATES})
    repository = recorded_repository(recording, recording.unpack(house.warehouse))
    house.now = moment(max(item["as_of"] for item in recording.expected["scenarios"])) + timedelta(days=40)
    repository.rules = repository.dumped = None

    def list_planned() -> set[str]:
        house.now += timedelta(days=1)
        assert house.plan().failed_gates == []
        return {key for key in house.keys("deletion_plan") if "/data/" in key}

    with serve(house, repository):
        garbage, needed = list_planned(), list_committed(repository)
        lose_newest(repository, len(repository.commits) // 2)
        lost = (needed - list_committed(repository)) & house.keys("storage_inventory")
        assert (garbage & needed, len(lost)) == (set(), 7)
        assert list_planned() & lost == set()
        house.now += timedelta(days=7)
        assert list_planned() >= lost


def list_committed(repository: FakeRepository) -> set[str]:
    """Return the keys of the objects of all commits that are in the namespace under relative addresses."""
    return {f"{repository.name}/{item.address}" for tree in repository.trees.values() for item in tree.values() if not item.is_full}


def lose_newest(repository: FakeRepository, count: int) -> None:
    """Remove the newest commits and their descendants, and move branches and tags back to their newest ancestors."""
    commits = repository.commits
    lost = set(sorted(commits, key=lambda name: commits[name].created)[-count:])
    while descendants := {name for name, item in commits.items() if lost.intersection(item.parents)} - lost:
        lost |= descendants

    def move_back(head: str) -> str:
        return move_back(commits[head].parents[0]) if head in lost else head

    for branch in repository.branches.values():
        branch.head = move_back(branch.head)
    repository.tags = {name: head for name, head in repository.tags.items() if head not in lost}
    repository.commits = {name: item for name, item in commits.items() if name not in lost}
    repository.trees = {name: tree for name, tree in repository.trees.items() if name not in lost}
