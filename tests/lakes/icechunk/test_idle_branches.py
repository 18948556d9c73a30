from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH, PROTECTED, ExpiryAction, ExpiryOutcome, as_branch_lake
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers
from tests.lakes.icechunk.icechunk_lakes import lake_at
from tests.lakes.icechunk.v2.builder import RepositoryBuilder as NewRepositoryBuilder
from tests.lakes.icechunk.v2.builder import numbers as new_numbers
from tests.lakes.icechunk.v2.library import Library

START = datetime(2026, 1, 1, tzinfo=UTC)
RULES: Any = {"delete_idle": [{"match": ".*", "after": "30d"}]}


@dataclass(frozen=True)
class Repository:
    """A repository with the branch `tmp` at a commit that main does not reach.

    `commit` commits to a branch and returns the snapshot. `branch` creates one.
    """

    path: Path
    commit: Callable[[str], str]
    branch: Callable[[str, str], object]
    tag: Callable[[str, str], object]

    @property
    def lake(self) -> IcechunkLake:
        return lake_at(self.path, RULES)

    @property
    def heads(self) -> dict[str, str | None]:
        return {ref.ref_name: ref.head_commit_id for ref in self.lake.freeze(START).refs if ref.ref_type == "branch"}

    def deletion(self, name: str = "tmp") -> ExpiryAction:
        return ExpiryAction(DELETE_IDLE_BRANCH, str(self.heads[name]), "idle", "branch", name)

    def delete(self, action: ExpiryAction) -> ExpiryOutcome:
        (outcome,) = self.lake.delete_branches([action])
        return outcome

    def recreate(self, action: ExpiryAction) -> ExpiryOutcome:
        (outcome,) = self.lake.recreate_branches([action])
        return outcome


@pytest.fixture(params=["icechunk 1", "icechunk 2"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    path, names = tmp_path / "repo", map("values{}".format, count())
    if request.param == "icechunk 1":
        old = RepositoryBuilder.create(path, START)
        found = Repository(path, lambda branch: old.commit(branch, START, numbers(next(names), [1, 2])), old.branch, old.tag)
    else:
        new = NewRepositoryBuilder.create(request.getfixturevalue("icechunk2"), path, START)
        found = Repository(path, lambda branch: new.commit(branch, START, new_numbers(next(names), [1, 2])), new.branch, new.tag)
    found.branch("tmp", str(found.heads["main"]))
    found.commit("tmp")
    return found


def test_undo_recreates_deleted_branch_at_its_head(repository: Repository) -> None:
    action, before = repository.deletion(), repository.heads
    assert as_branch_lake(repository.lake) is not None
    assert [repository.delete(action).verdict for _ in range(2)] == ["done", "absent"]
    assert repository.heads.keys() == {"main"}
    assert [repository.recreate(action).verdict for _ in range(2)] == ["done", "absent"]
    assert repository.heads == before


def test_branch_that_moved_after_plan_is_kept(repository: Repository) -> None:
    action = repository.deletion()
    moved = repository.commit("tmp")
    outcome = repository.delete(action)
    assert (outcome.verdict, repository.heads["tmp"]) == ("changed", moved)
    assert f"expected the head {action.snapshot_id}, found {moved}" in (outcome.error or "")


def test_another_branch_at_deleted_head_is_kept(repository: Repository) -> None:
    action = repository.deletion()
    repository.branch("other", action.snapshot_id)
    assert repository.delete(action).verdict == "done"
    assert repository.heads["other"] == action.snapshot_id


def test_main_and_branch_with_name_of_tag_are_protected(repository: Repository) -> None:
    repository.tag("tmp", str(repository.heads["main"]))
    reasons = {ref.ref_name: ref.properties.get(PROTECTED) for ref in repository.lake.freeze(START).refs if ref.ref_type == "branch"}
    assert reasons == {"main": "it is the main branch", "tmp": "several refs have its name"}
    outcomes = [repository.delete(repository.deletion(name)) for name in ("main", "tmp")]
    assert [outcome.verdict for outcome in outcomes] == ["changed", "changed"]
    assert repository.heads.keys() == {"main", "tmp"}


def test_main_is_protected_without_idle_branch_rules(repository: Repository) -> None:
    """A rule that is added later on the same date applies to the refs that were already read."""
    reasons = {ref.ref_name: ref.properties.get(PROTECTED) for ref in lake_at(repository.path).freeze(START).refs}
    assert reasons == {"main": "it is the main branch", "tmp": None}


def test_undo_does_not_overwrite_branch_name_in_use(repository: Repository) -> None:
    action, main = repository.deletion(), repository.heads["main"]
    assert repository.delete(action).verdict == "done"
    repository.branch("tmp", str(main))
    assert (repository.recreate(action).verdict, repository.heads["tmp"]) == ("changed", main)


def test_undo_fails_if_snapshot_is_lost(repository: Repository) -> None:
    action = repository.deletion()
    assert repository.delete(action).verdict == "done"
    lost = ExpiryAction(DELETE_IDLE_BRANCH, "0123456789ABCDEFGHJ0", "idle", "branch", "tmp")
    outcome = repository.recreate(lost)
    assert outcome.verdict == "failed"
    assert "lacks snapshot 0123456789ABCDEFGHJ0" in (outcome.error or "")
    assert repository.heads.keys() == {"main"}


def test_branches_of_offline_repository_are_kept(icechunk2: Library, tmp_path: Path) -> None:
    builder = NewRepositoryBuilder.create(icechunk2, tmp_path / "repo", START)
    builder.branch("tmp", builder.head())
    repository = Repository(tmp_path / "repo", str, builder.branch, builder.tag)
    action = repository.deletion()
    builder.call("set_status", availability="read_only", reason="audit")
    (ref,) = (ref for ref in repository.lake.freeze(START).refs if ref.ref_name == "tmp")
    assert ref.properties[PROTECTED] == "the repository is read-only"
    outcome = repository.delete(action)
    assert (outcome.verdict, "tmp" in repository.heads) == ("changed", True)
