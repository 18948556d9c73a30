"""Undo of an expiry, as far as the format allows."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import icechunk
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.lakes.protocol import ExpiryAction, ReversibleLake
from tests.lakes.icechunk.builder import DocumentTree, RepositoryBuilder, document_tree, set_value
from tests.lakes.icechunk.icechunk_lakes import FAR_FUTURE, expire, files_of, lake_at, parents_now, plan_actions, verdicts
from tests.stores.builders import memory_directory

START = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = datetime(2026, 2, 1, tzinfo=UTC)
LOST = "0123456789ABCDEFGHJ0"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> DocumentTree:
    tree = document_tree(tmp_path_factory.mktemp("undo") / "repo", START)
    tree.builder.repo.create_branch("old", tree.ids[7])
    return tree


def copy_of(built: DocumentTree, path: Path) -> DocumentTree:
    shutil.copytree(built.builder.path, path)
    storage = icechunk.local_filesystem_storage(str(path))
    return DocumentTree(RepositoryBuilder(path, icechunk.Repository.open(storage)), built.ids, built.cutoff)


@pytest.fixture
def tree(built: DocumentTree, tmp_path: Path) -> DocumentTree:
    return copy_of(built, tmp_path / "repo")


def lake_of(tree: DocumentTree, tags: str = "keep", **expiry) -> IcechunkLake:
    return lake_at(tree.builder.path, {"default": {"keep": tree.cutoff.isoformat()}, "tags": tags}, **expiry)


def expire_tree(tree: DocumentTree, tags: str = "keep", **expiry) -> tuple[IcechunkLake, list[ExpiryAction]]:
    """Expire the tree. Return the lake and the actions of its log."""
    lake = lake_of(tree, tags, **expiry)
    plan = plan_actions(lake, AS_OF)
    assert verdicts(expire(lake, AS_OF, plan)) == {"done"}
    return lake, plan


def test_undo_restores_every_byte(tree: DocumentTree, built: DocumentTree):
    lake, plan = expire_tree(tree, delete_expired_branches=True)
    assert {action.action for action in plan} == {"edit_parent", "delete_ref"}
    assert verdicts(lake.undo(plan)) == {"done"}
    assert files_of(tree.builder.path, ".") == files_of(built.builder.path, ".")


def test_icechunk_lake_implements_reversible_lake(tree: DocumentTree):
    assert isinstance(lake_of(tree), ReversibleLake)


def test_second_undo_returns_outcome_absent(tree: DocumentTree):
    lake, plan = expire_tree(tree, delete_expired_branches=True)
    assert verdicts(lake.undo(plan)) == {"done"}
    assert verdicts(lake.undo(plan)) == {"absent"}


def test_plan_after_undo_equals_first_plan(tree: DocumentTree):
    lake, plan = expire_tree(tree, delete_expired_branches=True)
    list(lake.undo(plan))
    assert plan_actions(lake, AS_OF) == plan


def test_undo_fails_for_deleted_tag(tree: DocumentTree):
    lake, plan = expire_tree(tree, "policy", delete_expired_tags=True, delete_expired_branches=True)
    outcomes = {(outcome.action.ref_type, outcome.action.ref_name): outcome for outcome in lake.undo(plan)}
    failed = {ref[1] for ref, outcome in outcomes.items() if outcome.verdict == "failed"}
    assert failed == {"tag1", "tag2"}
    assert f"create a tag with another name at snapshot {tree.ids[3]}" in outcomes["tag", "tag1"].error
    assert tree.builder.reopen().list_tags() == set()
    assert "old" in tree.builder.reopen().list_branches(), "a branch is"
    tree.builder.reopen().create_tag("tag1 again", tree.ids[3])


def test_undo_skips_snapshot_with_changed_parent(tree: DocumentTree):
    lake, plan = expire_tree(tree)
    edit = next(action for action in plan if action.ref_name == "main")
    [outcome] = lake.undo([ExpiryAction("edit_parent", edit.snapshot_id, "", None, None, edit.old_parent_id, tree.ids[1])])
    assert outcome.verdict == "changed"
    assert f"expected the parent {tree.ids[1]}, found {tree.ids[0]}" in outcome.error
    assert parents_now(lake, AS_OF)[edit.snapshot_id] == tree.ids[0]


def test_undo_skips_branch_recreated_after_plan(tree: DocumentTree):
    lake, plan = expire_tree(tree, delete_expired_branches=True)
    tree.builder.reopen().create_branch("old", tree.ids[14])
    [outcome] = [outcome for outcome in lake.undo(plan) if outcome.action.ref_name == "old"]
    assert outcome.verdict == "changed"
    assert tree.builder.reopen().lookup_branch("old") == tree.ids[14]


def test_undo_keeps_later_commits(tree: DocumentTree):
    lake, plan = expire_tree(tree)
    session = tree.builder.reopen().writable_session("main")
    set_value("values", 0, 55)(zarr.open_group(session.store))
    session.commit("after the expiry")
    assert verdicts(lake.undo(plan)) == {"done"}
    history = [info.message for info in tree.builder.reopen().ancestry(branch="main")]
    assert history[:3] == ["after the expiry", "snapshot 14", "snapshot 13"]
    assert [message for message in history if message.startswith("snapshot")] == [f"snapshot {n}" for n in (14, 13, 12, 5, 4, 2, 1)]


def test_undo_refuses_history_with_missing_snapshot(tree: DocumentTree):
    lake, plan = expire_tree(tree)
    tree.builder.snapshot_file(tree.ids[6]).unlink()
    outcome = {outcome.action.ref_name: outcome for outcome in lake.undo(plan)}
    assert {name for name in outcome if outcome[name].verdict == "done"} == {"main"}
    for name in ("develop", "test", "qa"):
        assert outcome[name].verdict == "failed"
        assert f"lacks snapshot {tree.ids[6]}; restore this snapshot, then undo again" in outcome[name].error
    assert all(tree.builder.reopen().ancestry(branch=branch) for branch in ("develop", "test", "qa"))


@pytest.mark.parametrize("damage", ["gone", "shorter"])
def test_undo_refuses_history_with_missing_manifest(tree: DocumentTree, built: DocumentTree, damage: str):
    lake, plan = expire_tree(tree, delete_expired_branches=True)
    [manifest] = [path for path in built.builder.created[tree.ids[7]] if path.parent.name == "manifests"]
    lost = tree.builder.path / "manifests" / manifest.name
    lost.unlink() if damage == "gone" else lost.write_bytes(lost.read_bytes()[:-1])
    outcome = {outcome.action.ref_name: outcome for outcome in lake.undo(plan)}
    assert {name for name in outcome if outcome[name].verdict == "failed"} == {"old", "test", "qa"}
    assert all(manifest.name in outcome[name].error for name in ("old", "test", "qa"))
    assert "old" not in tree.builder.reopen().list_branches()
    tree.builder.reopen().garbage_collect(FAR_FUTURE, dry_run=True)  # fails if a needed manifest is missing


def test_undo_refuses_parent_cycle(tree: DocumentTree):
    lake = lake_of(tree)
    before = files_of(tree.builder.path, ".")
    [outcome] = lake.undo([ExpiryAction("edit_parent", tree.ids[2], "", None, None, tree.ids[4], tree.ids[1])])
    assert outcome.verdict == "failed"
    assert f"would have a cycle at {tree.ids[2]}" in outcome.error
    assert files_of(tree.builder.path, ".") == before


def test_undo_fails_for_incomplete_rows_and_unreadable_repository(tree: DocumentTree):
    lake, plan = expire_tree(tree)
    rows = [ExpiryAction("edit_parent", tree.ids[12], ""), ExpiryAction("remove_snapshot", tree.ids[6], "")]
    assert [outcome.verdict for outcome in lake.undo(rows)] == ["failed", "failed"]
    (tree.builder.path / "refs/tag.tag1/ref.json").write_bytes(b"")
    outcomes = list(lake.undo(plan))
    assert verdicts(outcomes) == {"failed"}
    assert all("tag 'tag1' cannot be read" in outcome.error for outcome in outcomes)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_undo_works_for_any_subset_of_actions_in_any_order(built: DocumentTree, data: st.DataObject):
    with memory_directory() as base:
        tree = copy_of(built, base / "repo")
        lake, plan = expire_tree(tree, semantics="icechunk-v1", delete_expired_branches=True)
        undone = data.draw(st.lists(st.sampled_from(plan), unique=True))
        assert verdicts(lake.undo(undone)) <= {"done"}
        parents = parents_now(lake, AS_OF)
        for action in plan:
            if action.action == "edit_parent":
                assert parents[action.snapshot_id] == (action.old_parent_id if action in undone else action.new_parent_id)
        repo = tree.builder.reopen()
        assert ("old" in repo.list_branches()) == any(action.ref_name == "old" and action.action == "delete_ref" for action in undone)
        assert all(list(repo.ancestry(branch=branch))[-1].id == tree.ids[0] for branch in repo.list_branches())
        assert verdicts(lake.undo([action for action in plan if action not in undone])) <= {"done"}
        assert files_of(base / "repo", ".") == files_of(built.builder.path, ".")
