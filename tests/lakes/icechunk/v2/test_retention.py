"""Removals of listed snapshots: which are planned, and what later runs do with the removed ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.demo.icechunk_builder import set_file_time
from gc_assets.lakes.icechunk.graph import ENTRY
from gc_assets.lakes.protocol import EDIT_PARENT, REMOVE_SNAPSHOT, ExpiryAction
from tests.lakes.icechunk.icechunk_lakes import FAR_FUTURE, commits_of, expire, graph_of, lake_at, plan_actions, retention_of, states
from tests.lakes.icechunk.v2.builder import RepositoryBuilder, numbers, random_tree, set_value
from tests.lakes.icechunk.v2.library import Library

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def built(icechunk2: Library, tmp_path: Path) -> RepositoryBuilder:
    """Build commits at days 1 to 5 on main, and one at day 6 that no ref reaches."""
    builder = RepositoryBuilder.create(icechunk2, tmp_path / "repo", START)
    for day in range(1, 6):
        builder.commit("main", START + timedelta(days=day), numbers("values", range(4)) if day == 1 else set_value("values", 0, day))
    builder.abandon_snapshot("main", START + timedelta(days=6), set_value("values", 0, 6))
    return builder


def removals(actions: list[ExpiryAction]) -> set[str]:
    return {action.snapshot_id for action in actions if action.action == REMOVE_SNAPSHOT}


def test_unreachable_snapshot_in_repo_is_removed_after_dangling_time(built: RepositoryBuilder):
    lake = lake_at(built.path)
    (dangling,) = [snapshot for snapshot, at in built.times.items() if at == START + timedelta(days=6)]
    assert removals(plan_actions(lake, START + timedelta(days=12))) == set()
    assert removals(plan_actions(lake, START + timedelta(days=14))) == {dangling}


def test_snapshot_with_younger_file_time_is_kept(built: RepositoryBuilder):
    """The library compares the storage time too."""
    (dangling,) = [snapshot for snapshot, at in built.times.items() if at == START + timedelta(days=6)]
    as_of = START + timedelta(days=30)
    set_file_time(built.snapshot_file(dangling), as_of - timedelta(days=2))
    lake = lake_at(built.path)
    assert removals(plan_actions(lake, as_of)) == set()
    assert removals(plan_actions(lake, as_of + timedelta(days=6))) == {dangling}


def test_commits_lost_by_restored_repo_object_are_kept_for_dangling_time(built: RepositoryBuilder):
    older = (built.path / "repo").read_bytes()
    newest = built.commit("main", START + timedelta(days=8), set_value("values", 0, 8))
    (built.path / "repo").write_bytes(older)
    lake = lake_at(built.path)
    assert states(retention_of(lake, START + timedelta(days=14)))[newest] == "retained"
    assert newest not in removals(plan_actions(lake, START + timedelta(days=40))), "it is not listed"


def test_snapshot_in_the_grace_period_is_not_removed(built: RepositoryBuilder):
    lake = lake_at(built.path, {"default": {"keep_last": 2}, "dangling": "1d"})
    as_of = START + timedelta(days=14)
    assert len(removals(plan_actions(lake, as_of))) == 4
    assert removals(plan_actions(lake, as_of, grace_cutoff=START + timedelta(hours=12))) == set()


def test_snapshot_removed_by_own_edit_is_not_kept_for_dangling_time(built: RepositoryBuilder):
    """Without this rule, files of young expired snapshots would stay for a week after the edit."""
    as_of = START + timedelta(days=7)
    lake = lake_at(built.path, {"default": "3d"})
    actions = plan_actions(lake, as_of)
    removed = removals(actions)
    assert removed
    assert {outcome.verdict for outcome in expire(lake, as_of, actions)} == {"done"}
    refs = lake.freeze(as_of)
    commits = graph_of(commits_of(lake, refs))
    found = states(lake.retain(replace(refs, edits=tuple(actions)), commits, as_of, FAR_FUTURE))
    assert {found[snapshot] for snapshot in removed} == {"dangling"}
    unknown = states(lake.retain(refs, commits, as_of, FAR_FUTURE))
    assert {unknown[snapshot] for snapshot in removed} == {"retained"}, "removed by another program"


@pytest.mark.parametrize("semantics", ["seed", "icechunk"])
def test_kept_snapshots_never_lose_their_parent(icechunk2: Library, tmp_path: Path, semantics: str):
    edits = removed_count = 0
    for seed in range(8):
        tree = random_tree(icechunk2, tmp_path / str(seed), seed, START)
        as_of = START + timedelta(days=30)
        for cutoff in sorted(tree.times.values())[::3]:
            rules = {"default": {"keep": cutoff.isoformat()}, "dangling": cutoff.isoformat()}
            lake = lake_at(tree.builder.path, rules, semantics=semantics, delete_expired_tags=True)
            found = retention_of(lake, as_of)
            actions = [ExpiryAction(**row) for row in found.expiry.to_pylist()]
            removed = removals(actions)
            commits = commits_of(lake, lake.freeze(as_of))
            listed = {commit.commit_id for commit in commits if ENTRY in commit.summary}
            state = states(found)
            assert removed == {snapshot for snapshot in listed if state[snapshot] != "retained"}
            parents = {commit.commit_id: next(iter(commit.parents), None) for commit in commits if commit.commit_id in listed}
            changed = {action.snapshot_id: action.new_parent_id for action in actions if action.action == EDIT_PARENT}
            parents |= changed
            assert not {parents[snapshot] for snapshot in listed - removed} & removed
            edits, removed_count = edits + len(changed), removed_count + len(removed)
    assert min(edits, removed_count) > 4
