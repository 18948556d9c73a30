"""Plans of rules that count snapshots (`keep_last`), applied after the refs moved.

Every commit moves the end of such a rule. The plan is still made, because it keeps more than the policy, and no more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import icechunk
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.core.units import Cutoff
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.graph import commit_table
from gc_assets.lakes.icechunk.repo_edits import apply_edits
from gc_assets.lakes.icechunk.repo_execution import decide
from gc_assets.lakes.icechunk.repo_info import RepoInfo, SnapshotInfo, parse_repo
from gc_assets.lakes.icechunk.repo_writer import write_repo
from gc_assets.lakes.icechunk.repository_v2 import RepositoryV2
from gc_assets.lakes.icechunk.retention import retain
from gc_assets.lakes.protocol import ExpiryAction, ExpiryOutcome
from tests.lakes.icechunk.builder import document_tree, set_value
from tests.lakes.icechunk.icechunk_lakes import expire, lake_at, parents_now, plan_actions
from tests.lakes.icechunk.test_repo_edits import ENTRY, IDS, SOURCE, entry, line, repository
from tests.lakes.icechunk.v2.recordings import unpack_recording

START = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = datetime(2098, 1, 1, tzinfo=UTC)
COUNT = 3
BRANCHES = ("main", "develop", "test", "qa")
SEMANTICS = ("seed", "icechunk")
RETENTION = {
    "default": {"keep_last": COUNT},
    "dangling": "2097-01-01",
    "refs": [{"match": "all", "keep": "forever"}, {"match": "idle", "keep": "2097-01-01"}],
}


def commit_to_v1(path: Path) -> None:
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
    for name in BRANCHES:
        session = repo.writable_session(name)
        set_value("values", 0, 77)(zarr.open_group(session.store))
        session.commit("after the plan")


def commit_to_v2(path: Path) -> None:
    """Change `repo` as commits do."""
    file = path / "repo"
    info = parse_repo("repo", file.read_bytes())
    new = {name: SnapshotInfo(IDS[number], info.branches[name], 4 * 10**15, "after the plan") for number, name in enumerate(BRANCHES)}
    branches = {**info.branches, **{name: item.snapshot_id for name, item in new.items()}}
    listed = {**info.snapshots, **{item.snapshot_id: item for item in new.values()}}
    file.write_bytes(write_repo("repo", file.read_bytes(), replace(info, branches=branches, snapshots=dict(sorted(listed.items())))))


@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.parametrize("spec_version", [1, 2])
def test_plan_is_made_after_commits_on_all_branches(tmp_path: Path, spec_version: int, semantics: str) -> None:
    if spec_version == 1:
        path, commit = document_tree(tmp_path / "repo", START).builder.path, commit_to_v1
    else:
        path, commit = unpack_recording("document", tmp_path).path, commit_to_v2
    lake = lake_at(path, {"default": {"keep_last": 2}, "dangling": "2097-01-01"}, semantics=semantics)
    plan = plan_actions(lake, AS_OF)
    assert {action.action for action in plan} == ({"edit_parent"} if spec_version == 1 else {"edit_parent", "remove_snapshot"})
    commit(path)
    assert {(outcome.verdict, outcome.error) for outcome in expire(lake, AS_OF, plan)} == {("done", None)}
    parents = parents_now(lake, AS_OF)
    assert all(parents[action.snapshot_id] == action.new_parent_id for action in plan if action.action == "edit_parent")


def retention_rows(info: RepoInfo, semantics: str = "icechunk", planned: Sequence[str] = ()) -> list[ExpiryAction]:
    """Return the edits that the policy requires."""
    settings = {"name": "x", "kind": "icechunk", "location": "/x", "retention": RETENTION, "expiry": {"semantics": semantics}}
    opened = RepositoryV2("x", cast(Any, None), "/x", Cutoff())
    table, config = commit_table(opened.listed_commits(info)), IcechunkLakeConfig.model_validate(settings)
    found = retain(opened.state_without_files(info), table, AS_OF, AS_OF, config, planned)
    return [ExpiryAction(**row) for row in found.expiry.to_pylist()]


def apply(plan: Sequence[ExpiryAction], info: RepoInfo, semantics: str = "icechunk") -> tuple[RepoInfo, list[ExpiryOutcome]]:
    """Apply a plan to other content. Return the new content, and the outcomes of actions that were not made."""
    planned = [action.snapshot_id for action in plan if action.action == "edit_parent"]
    decision = decide(plan, info, retention_rows(info, semantics, planned))
    return apply_edits(SOURCE, info, decision.edits, ENTRY), list(decision.settled)


def ancestry(info: RepoInfo, head: str) -> list[str]:
    found: list[str] = []
    at: str | None = head
    while at is not None:
        found.append(at)
        at = info.snapshots[at].parent_id
    return found


def commit(info: RepoInfo, number: int, branch: str = "main", parent: int | None = None) -> RepoInfo:
    """Add a snapshot on a branch, or move the branch to it if `parent` is given."""
    item = replace(entry(number, 0), parent_id=info.branches[branch] if parent is None else IDS[parent])
    branches = dict(sorted({**info.branches, branch: item.snapshot_id}.items()))
    return replace(info, branches=branches, snapshots=dict(sorted({**info.snapshots, item.snapshot_id: item}.items())))


def test_plan_keeps_snapshots_that_were_kept_when_it_was_made() -> None:
    info = line(11, main=10)
    plan = retention_rows(info)
    edited, refused = apply(plan, commit(info, 11))
    assert not refused
    assert ancestry(edited, IDS[11]) == [IDS[number] for number in (11, 10, 9, 8, 0)]
    assert set(edited.snapshots) == {IDS[number] for number in (11, 10, 9, 8, 0)}


def test_plan_is_refused_if_branch_was_reset_so_that_rule_keeps_more() -> None:
    info = line(11, main=10)
    plan = retention_rows(info)
    for head in (9, 6, 2):
        now = replace(info, branches={"main": IDS[head]})
        edited, refused = apply(plan, now)
        assert ancestry(edited, IDS[head]) == ancestry(now, IDS[head])
        assert [outcome.verdict for outcome in refused if outcome.action.action == "edit_parent"] == ["changed"]


@pytest.mark.parametrize("head", range(11))
@pytest.mark.parametrize("name", ["new", "all"])
def test_snapshots_that_rule_of_new_ref_keeps_stay(head: int, name: str) -> None:
    info = line(11, main=10)
    plan, now = retention_rows(info), commit(info, 11)
    count = len(info.snapshots) if name == "all" else COUNT
    for moved in (replace(now, tags={name: IDS[head]}), replace(now, branches=dict(sorted({**now.branches, name: IDS[head]}.items())))):
        edited, _ = apply(plan, moved)
        assert ancestry(edited, IDS[head])[:count] == ancestry(moved, IDS[head])[:count]


def test_history_that_another_ref_does_not_lose_stays() -> None:
    """In `seed`, a ref with an expired head keeps its history, unless an edit of another ref is on it."""
    info = line(11, main=10)
    plan = retention_rows(info, "seed")
    moved = commit(replace(info, branches={"idle": IDS[8], "main": IDS[10]}), 11)
    edited, refused = apply(plan, moved, "seed")
    assert ancestry(edited, IDS[8]) == ancestry(moved, IDS[8])
    assert refused


def test_plan_is_made_after_amended_commit() -> None:
    info = line(11, main=10)
    plan = retention_rows(info)
    edited, refused = apply(plan, commit(info, 11, parent=9))
    assert not refused
    assert ancestry(edited, IDS[11]) == [IDS[number] for number in (11, 9, 8, 0)]


@st.composite
def moved_histories(draw: st.DrawFn) -> tuple[RepoInfo, RepoInfo]:
    """Return a random history, and the same one after commits, resets, and new and deleted refs."""
    count, numbers = draw(st.integers(3, 12)), iter(range(12, 30))
    parents = [None if number == 0 else draw(st.integers(max(0, number - 2), number - 1)) for number in range(count)]
    heads = draw(st.dictionaries(st.sampled_from(["main", "b", "idle"]), st.integers(0, count - 1), min_size=1))
    tags = draw(st.dictionaries(st.sampled_from(["t", "all"]), st.integers(0, count - 1), max_size=1))
    info = repository(*(entry(number, parent) for number, parent in enumerate(parents)), tags=tags, **{"main": count - 1, **heads})
    now = info
    for step in draw(st.lists(st.sampled_from(["commit", "commit", "commit", "branch", "tag", "delete"]), max_size=6)):
        at, name = draw(st.sampled_from(sorted(now.snapshots))), draw(st.sampled_from(["main", "b", "c", "idle", "all"]))
        if step == "commit" and name in now.branches:
            now = commit(now, next(numbers), name)
        elif step == "branch":
            now = replace(now, branches=dict(sorted({**now.branches, name: at}.items())))
        elif step == "tag":
            now = replace(now, tags=dict(sorted({**now.tags, f"{name} tag": at}.items())))
        elif step == "delete" and name != "main":
            now = replace(now, branches={key: head for key, head in now.branches.items() if key != name})
    return info, now


@settings(max_examples=200, deadline=None)
@given(moved_histories(), st.sampled_from(SEMANTICS))
def test_plan_removes_nothing_that_current_policy_keeps(case: tuple[RepoInfo, RepoInfo], semantics: str) -> None:
    info, now = case
    plan, required = retention_rows(info, semantics), retention_rows(now, semantics)
    edited, _ = apply(plan, now, semantics)
    by_policy, _ = apply(required, now, semantics)
    for head in {*now.branches.values(), *now.tags.values()}:
        assert set(ancestry(by_policy, head)) <= set(ancestry(edited, head))
    for name, head in {**now.branches, **now.tags}.items():
        if name != "idle":
            kept = len(now.snapshots) if name == "all" else COUNT
            assert ancestry(edited, head)[:kept] == ancestry(now, head)[:kept]
