"""Deletion of paths by commits of lifecycle rules, on the fake server: apply, kills, races, undo, and random histories."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gc_assets.core.errors import GateRefused
from gc_assets.lakes.lakefs.lake import LakeFsLake
from gc_assets.lakes.lakefs.lifecycle_commits import BRANCH, PATHS, PLAN, RULES, TEMPORARY
from gc_assets.lakes.protocol import DELETE_PATHS, UNEDITABLE, ExpiryAction, ExpiryOutcome, as_path_lake
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import Answer, FakeServer
from tests.lakes.lakefs.lakefs_lakes import serve

START = datetime(2026, 1, 1, tzinfo=UTC)
PLAN_ID = "0123456789abcdef"
DEV = "dev/a b"


@pytest.fixture
def builder(tmp_path: Path) -> RepositoryBuilder:
    builder = RepositoryBuilder(tmp_path, START)
    builder.branch(DEV)
    for number in range(5):
        builder.stage(DEV, f"tmp/{number} ü")
    builder.stage(DEV, "keep/1")
    builder.commit(DEV)
    return builder


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"scratch": {"prefix": "tmp/", "days": 10, "enabled": True}}))
    return str(path)


@pytest.fixture
def served(builder: RepositoryBuilder, rules: str) -> Iterator[tuple[LakeFsLake, FakeServer]]:
    with serve(builder.repository, lifecycle="commit", rules=rules) as found:
        yield found


@pytest.fixture
def lake(served: tuple[LakeFsLake, FakeServer]) -> LakeFsLake:
    return served[0]


def deletion(builder: RepositoryBuilder, name: str = DEV) -> ExpiryAction:
    details = json.dumps({"paths": 5, "bytes": 5, "rules": {"scratch": 5}})
    return ExpiryAction(DELETE_PATHS, builder.repository.branches[name].head, "lifecycle", "branch", name, details=details)


def list_planned(builder: RepositoryBuilder, action: ExpiryAction) -> list[str]:
    return [path for path in builder.repository.trees[action.snapshot_id] if path.startswith("tmp/")]


def delete(builder: RepositoryBuilder, lake: LakeFsLake, action: ExpiryAction, plan_id: str = PLAN_ID) -> ExpiryOutcome:
    (outcome,) = lake.delete_paths(plan_id, [action], lambda action: list_planned(builder, action), lambda: None)
    return outcome


def restore(lake: LakeFsLake, action: ExpiryAction) -> ExpiryOutcome:
    (outcome,) = lake.restore_paths(PLAN_ID, [action])
    return outcome


def paths_on(builder: RepositoryBuilder, name: str = DEV) -> set[str]:
    return set(builder.repository.resolve(name) or ())


def temporary(builder: RepositoryBuilder) -> list[str]:
    return [name for name in builder.repository.branches if name.startswith(TEMPORARY)]


def blocks(lake: LakeFsLake) -> dict[str, str | None]:
    return {ref.ref_name: ref.properties.get(UNEDITABLE) for ref in lake.freeze(START).refs}


def test_paths_are_deleted_in_one_commit_and_restored_by_revert(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    action, before = deletion(builder), paths_on(builder)
    assert as_path_lake(lake) is not None
    assert [delete(builder, lake, action).verdict for _ in range(2)] == ["done", "absent"]
    assert (paths_on(builder), temporary(builder)) == ({"keep/1"}, [])
    commit = builder.repository.commits[builder.repository.branches[DEV].head]
    assert commit.parents == [action.snapshot_id]
    assert commit.message == "Delete 5 paths by lifecycle rules: scratch"
    assert {PLAN: PLAN_ID, BRANCH: DEV, PATHS: "5", RULES: "scratch"}.items() <= commit.metadata.items()
    assert [restore(lake, action).verdict for _ in range(2)] == ["done", "absent"]
    assert paths_on(builder) == before


def mark_as_made(builder: RepositoryBuilder, commit: str) -> None:
    builder.repository.commits[commit].metadata.update({PLAN: PLAN_ID, BRANCH: DEV})


def test_late_commit_of_earlier_attempt_is_not_repeated(builder: RepositoryBuilder, served: tuple[LakeFsLake, FakeServer]) -> None:
    (lake, server), action = served, deletion(builder)

    def arrive(method: str, path: str, query: Any) -> None:
        if path.endswith("/objects/delete") and builder.repository.branches[DEV].head == action.snapshot_id:
            mark_as_made(builder, builder.commit(DEV, other=b"y"))

    server.fault = arrive
    assert (delete(builder, lake, action).verdict, temporary(builder)) == ("absent", [])
    assert len(paths_on(builder)) == 7


def test_undo_skips_empty_commit_of_second_apply(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    action, before = deletion(builder), paths_on(builder)
    assert delete(builder, lake, action).verdict == "done"
    mark_as_made(builder, builder.commit(DEV))
    assert restore(lake, action).verdict == "done"
    assert paths_on(builder) == before


def test_readers_see_all_path_deletions_or_none(builder: RepositoryBuilder, served: tuple[LakeFsLake, FakeServer]) -> None:
    (lake, server), action, before = served, deletion(builder), paths_on(builder)
    seen: list[set[str]] = []
    server.fault = lambda method, path, query: seen.append(paths_on(builder))
    assert delete(builder, lake, action).verdict == "done"
    assert [found for found in seen if found not in (before, {"keep/1"})] == []


def test_path_deletions_respect_batch_limit_of_server(tmp_path: Path, rules: str) -> None:
    builder = RepositoryBuilder(tmp_path / "large", START)
    key = builder.upload()
    for number in range(2001):
        builder.stage("main", f"tmp/{number:04}", key)
    builder.commit("main")
    with serve(builder.repository, lifecycle="commit", rules=rules) as (lake, server):
        assert delete(builder, lake, deletion(builder, "main")).verdict == "done"
        assert len([path for _, path, _ in server.requests if path.endswith("/objects/delete")]) == 3
    assert paths_on(builder, "main") == set()


def test_no_path_is_deleted_if_lease_is_lost_between_batches(tmp_path: Path, rules: str) -> None:
    """A million paths take longer than a lease."""
    builder = RepositoryBuilder(tmp_path / "large", START)
    key = builder.upload()
    for number in range(2001):
        builder.stage("main", f"tmp/{number:04}", key)
    builder.commit("main")
    action, left = deletion(builder, "main"), [0]

    def check() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise GateRefused("the lease is lost")

    with serve(builder.repository, lifecycle="commit", rules=rules) as (lake, _):
        for possible in range(4):
            left[0] = possible
            with pytest.raises(GateRefused):
                list(lake.delete_paths(PLAN_ID, [action], lambda action: list_planned(builder, action), check))
            assert (len(paths_on(builder, "main")), temporary(builder)) == (2001, [])
        left[0] = 4
        (outcome,) = lake.delete_paths(PLAN_ID, [action], lambda action: list_planned(builder, action), check)
    assert (outcome.verdict, left, paths_on(builder, "main")) == ("done", [0], set())


def test_paths_on_moved_branch_are_kept(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    action = deletion(builder)
    head = builder.commit(DEV, other=b"y")
    outcome = delete(builder, lake, action)
    assert (outcome.verdict, outcome.error) == ("changed", f"branch {DEV} points at commit {head} now")
    assert len(paths_on(builder)) == 7


def test_missing_branch_is_not_created(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    action = deletion(builder)
    builder.drop(DEV)
    outcome = delete(builder, lake, action)
    assert (outcome.verdict, outcome.error) == ("changed", f"branch {DEV} does not exist now")
    undone = restore(lake, action)
    assert undone.verdict == "changed"
    assert undone.error == f"branch {DEV} does not exist now; commit {action.snapshot_id} has the deleted paths"
    assert builder.repository.branches.keys() == {"main"}


def test_commit_without_changes_is_reported_as_changed(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    """The planned paths may have been read from another commit."""
    action = deletion(builder)
    (outcome,) = lake.delete_paths(PLAN_ID, [action], lambda _: ["tmp/missing"], lambda: None)
    assert outcome.verdict == "changed"
    assert outcome.error == f"commit {action.snapshot_id} contains none of the planned paths; run again"


def test_paths_on_branch_with_uncommitted_changes_are_kept(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    action = deletion(builder)
    builder.delete(DEV, "keep/1")
    assert blocks(lake) == {"main": None, DEV: "it has uncommitted changes"}
    outcome = delete(builder, lake, action)
    assert (outcome.verdict, outcome.error) == ("changed", f"the paths of branch {DEV} are kept: it has uncommitted changes")
    assert temporary(builder) == []


@pytest.mark.parametrize("pattern, reason", [("dev/*", "the branch protection rule 'dev/*' protects it"), ("release", None)])
def test_paths_on_branch_with_protection_rule_are_kept(
    builder: RepositoryBuilder, lake: LakeFsLake, pattern: str, reason: str | None
) -> None:
    builder.repository.protected.append(pattern)
    assert blocks(lake)[DEV] == reason
    assert delete(builder, lake, deletion(builder)).verdict == ("done" if reason is None else "changed")


def test_paths_are_deleted_on_default_but_not_hidden_branches(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    builder.branch("system", DEV, hidden=True)
    builder.commit("main", tmp_1=b"1")
    assert blocks(lake) == {"main": None, "system": "it is hidden", DEV: None}
    assert [delete(builder, lake, deletion(builder, name)).verdict for name in ("main", "system")] == ["done", "changed"]


def test_read_only_repository_is_never_edited(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    builder.repository.read_only = True
    assert set(blocks(lake).values()) == {"the repository is read-only"}


def test_only_branches_with_enabled_rule_are_checked(builder: RepositoryBuilder, tmp_path: Path) -> None:
    path = tmp_path / "named.json"
    rule = {"prefix": "tmp/", "enabled": True, "branch_days": {"main": 3}}
    path.write_text(json.dumps({"a": rule, "b": {"prefix": "x/", "days": 1, "enabled": False}}))
    builder.repository.read_only = True
    with serve(builder.repository, lifecycle="commit", rules=str(path)) as (lake, _):
        assert blocks(lake) == {"main": "the repository is read-only", DEV: None}
    with serve(builder.repository, rules=str(path)) as (lake, server):
        assert set(blocks(lake).values()) == {None}
        assert not [path for _, path, _ in server.requests if "protection" in path]


def test_paths_are_kept_if_hook_refuses_commit(builder: RepositoryBuilder, served: tuple[LakeFsLake, FakeServer]) -> None:
    lake, server = served
    server.fault = lambda method, path, query: (412, {"message": "pre-cherry-pick hook"}) if path.endswith("/cherry-pick") else None
    outcome = delete(builder, lake, deletion(builder))
    assert (outcome.verdict, len(paths_on(builder)), temporary(builder)) == ("changed", 6, [])
    assert (outcome.error or "").startswith(
        f"the deletion cannot be committed on branch {DEV}: HTTP 412: pre-cherry-pick hook; check the hooks"
    )


@pytest.mark.parametrize("status", [401, 403])
def test_all_paths_are_kept_if_deletion_of_one_is_denied(
    builder: RepositoryBuilder, served: tuple[LakeFsLake, FakeServer], status: int
) -> None:
    lake, server = served
    refused = {"errors": [{"status_code": status, "message": "Unauthorized", "path": "tmp/1"}]}
    server.fault = lambda method, path, query: (200, refused) if path.endswith("/objects/delete") else None
    outcome = delete(builder, lake, deletion(builder))
    assert (outcome.verdict, len(paths_on(builder)), temporary(builder)) == ("changed", 6, [])
    assert (outcome.error or "").endswith(f"HTTP {status}: tmp/1: Unauthorized; grant `fs:DeleteObject` to the collector's user")


def apply_and_kill(
    builder: RepositoryBuilder, served: tuple[LakeFsLake, FakeServer], action: ExpiryAction, number: int, moment: str
) -> bool:
    """Apply, with a server that answers no request from a number on. Return False if there are fewer requests.

    With the moment `after`, the request is executed and its response is lost.
    """
    lake, server = served
    killed, count = False, 0

    def fault(method: str, path: str, query: Any) -> Answer | None:
        nonlocal killed, count
        count += 1
        if count < number or (count == number and moment == "after"):
            killed = count == number
            return None
        killed = True
        return 0, None

    original = server.answer

    def answer(method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
        was_killed = killed
        found = original(method, path, query, body)
        return (0, None) if killed and not was_killed and moment == "after" else found

    server.fault, server.answer = fault, answer
    delete(builder, lake, action)
    server.fault, server.answer = (lambda method, path, query: None), original
    return killed


@pytest.mark.parametrize("moment", ["before", "after"])
def test_apply_killed_at_any_request_is_completed_by_next_apply(tmp_path: Path, rules: str, moment: str) -> None:
    number, is_killed = 1, True
    while is_killed:
        builder = RepositoryBuilder(tmp_path / f"{number}", START)
        builder.branch(DEV)
        builder.commit(DEV, tmp_1=b"1", tmp_2=b"2", keep_1=b"3")
        action, before = deletion(builder), paths_on(builder)
        with serve(builder.repository, lifecycle="commit", rules=rules) as served:
            is_killed = apply_and_kill(builder, served, action, number, moment)
            assert paths_on(builder) in (before, {"keep/1"})
            is_made = paths_on(builder) == {"keep/1"}
            assert delete(builder, served[0], action).verdict == ("absent" if is_made else "done")
            assert (paths_on(builder), temporary(builder)) == ({"keep/1"}, [])
            assert len(builder.repository.log(DEV)) == 3, "the deletion is committed once"
            assert restore(served[0], action).verdict == "done"
        number += 1
    assert number > 14


@pytest.mark.parametrize("change", ["other path", "planned path", "planned path deleted", "staged object"])
def test_branch_change_between_check_and_commit_is_kept(
    builder: RepositoryBuilder, served: tuple[LakeFsLake, FakeServer], change: str
) -> None:
    (lake, server), action = served, deletion(builder)

    def change_branch(method: str, path: str, query: object) -> Answer | None:
        if path.endswith("/cherry-pick"):
            if change == "other path":
                builder.commit(DEV, other=b"1")
            elif change == "planned path":
                builder.stage(DEV, "tmp/1 ü")
                builder.commit(DEV)
            elif change == "planned path deleted":
                builder.delete(DEV, "tmp/1 ü")
                builder.commit(DEV)
            else:
                builder.stage(DEV, "tmp/new")
        return None

    server.fault = change_branch
    outcome = delete(builder, lake, action)
    expected = {
        "other path": ("done", {"keep/1", "other"}),
        "planned path": ("changed", {"keep/1", *(f"tmp/{number} ü" for number in range(5))}),
        "planned path deleted": ("done", {"keep/1"}),
        "staged object": ("changed", {"keep/1", "tmp/new", *(f"tmp/{number} ü" for number in range(5))}),
    }
    assert (outcome.verdict, paths_on(builder)) == expected[change]
    assert temporary(builder) == []


def test_only_temporary_branches_of_interrupted_applies_are_removed(
    builder: RepositoryBuilder, served: tuple[LakeFsLake, FakeServer], caplog: pytest.LogCaptureFixture
) -> None:
    lake, server = served
    builder.branch(f"{TEMPORARY}{'0' * 16}", DEV, hidden=True)
    builder.branch(f"{TEMPORARY}of-a-user")
    assert delete(builder, lake, deletion(builder)).verdict == "done"
    assert temporary(builder) == [f"{TEMPORARY}of-a-user"]
    builder.commit(DEV, tmp_9=b"9")
    server.fault = lambda method, path, query: (403, {"message": "no"}) if method == "DELETE" else None
    with caplog.at_level(logging.WARNING):
        assert delete(builder, lake, deletion(builder), "another-plan").verdict == "done"
    assert "is not deleted: HTTP 403: no" in caplog.text


def test_undo_is_refused_if_branch_changed_after_deletion(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    action = deletion(builder)
    assert restore(lake, action).verdict == "absent", "nothing was deleted"
    assert delete(builder, lake, action).verdict == "done"
    builder.stage(DEV, "new")
    assert restore(lake, action).error == f"branch {DEV} has uncommitted changes; commit or reset them, and restore again"
    builder.reset(DEV)
    builder.commit(DEV, **{"tmp_1 ü": b"new"})
    assert restore(lake, action).error == (
        f"deleted paths of branch {DEV} were written again since; commit {action.snapshot_id} has the deleted paths"
    )
    builder.drop(DEV)
    builder.branch(DEV, "main")
    outcome = restore(lake, action)
    assert (outcome.verdict, outcome.error) == (
        "changed",
        f"branch {DEV} does not contain the commit of the plan now; commit {action.snapshot_id} has the deleted paths",
    )


def test_undo_finds_deletion_commit_on_any_page_of_log(builder: RepositoryBuilder, served: tuple[LakeFsLake, FakeServer]) -> None:
    (lake, server), action = served, deletion(builder)
    assert delete(builder, lake, action).verdict == "done"
    for number in range(5):
        builder.commit(DEV, **{f"later_{number}": b"x"})
    server.page = 2
    assert restore(lake, action).verdict == "done"
    assert len(paths_on(builder)) == 11


@pytest.mark.parametrize("seed", range(40))
def test_random_histories_lose_only_planned_paths(tmp_path: Path, rules: str, seed: int) -> None:
    """Between any two requests a writer may change the branch. Each committed path then is that of a model without the collector,
    or a planned one that no writer changed since the plan, and an undo brings these back.
    """
    choice = random.Random(seed)
    builder = RepositoryBuilder(tmp_path, START)
    names = [f"{folder}/{number}" for folder in ("tmp", "keep") for number in range(4)]
    for name in choice.sample(names, 6):
        builder.stage("main", name)
    builder.commit("main")
    action = deletion(builder, "main")
    due = list_planned(builder, action)
    base = builder.repository.trees[action.snapshot_id]
    model = dict(base)

    def write(method: str, path: str, query: object) -> None:
        while choice.random() < 0.12:
            held, name = builder.repository.branches["main"], choice.choice(names)
            builder.delete("main", name) if choice.random() < 0.4 else builder.stage("main", name)
            if choice.random() < 0.7:
                staged = dict(held.staged)
                builder.commit("main")
                model.update({path: item for path, item in staged.items() if item is not None})
                for path in [path for path, item in staged.items() if item is None]:
                    model.pop(path, None)

    with serve(builder.repository, lifecycle="commit", rules=rules) as (lake, server):
        server.fault = write
        outcome = delete(builder, lake, action)
        server.fault = lambda method, path, query: None
        committed = builder.repository.trees[builder.repository.branches["main"].head]
        if outcome.verdict == "done":
            gone = {path for path in due if model.get(path) == base[path]}
            assert committed.keys() == model.keys() - gone
            builder.reset("main")
            assert restore(lake, action).verdict in {"done", "changed", "absent"}
        else:
            assert {path: item.address for path, item in committed.items()} == {path: item.address for path, item in model.items()}
        assert temporary(builder) == []
