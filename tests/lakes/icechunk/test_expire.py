"""Execution of planned history edits: done, skipped and failed actions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk
import pytest
import zarr

from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.lakes.icechunk.snapshots import with_parent
from gc_assets.lakes.protocol import ExpiringLake, ExpiryAction
from gc_assets.stores.local.editing import EditableLocalObjects
from tests.lakes.icechunk.builder import DocumentTree, RepositoryBuilder, document_tree, set_file_time, set_value
from tests.lakes.icechunk.icechunk_lakes import (
    FAR_FUTURE,
    expire,
    files_of,
    in_state,
    lake_at,
    parents_now,
    plan_actions,
    retention_of,
    verdicts,
)
from tests.stores.builders import memory_directory

START = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = datetime(2026, 2, 1, tzinfo=UTC)
STEPS = ("main", "develop", "test", "qa")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> DocumentTree:
    return document_tree(tmp_path_factory.mktemp("expire") / "repo", START)


@pytest.fixture
def tree(built: DocumentTree, tmp_path: Path) -> DocumentTree:
    """A writable copy of the document tree."""
    path = Path(shutil.copytree(built.builder.path, tmp_path / "repo"))
    storage = icechunk.local_filesystem_storage(str(path))
    return DocumentTree(RepositoryBuilder(path, icechunk.Repository.open(storage)), built.ids, built.cutoff)


def lake_of(tree: DocumentTree, tags: str = "keep", **expiry) -> IcechunkLake:
    return lake_at(tree.builder.path, {"default": {"keep": tree.cutoff.isoformat()}, "tags": tags}, **expiry)


def walk(tree: DocumentTree, branch: str) -> list[int]:
    """Return the history of a branch according to the library, as numbers of the document."""
    number = {snapshot: n for n, snapshot in tree.ids.items()}
    return [number[info.id] for info in tree.builder.reopen().ancestry(branch=branch)]


def unreachable(tree: DocumentTree) -> set[int]:
    """Return the snapshots that no ref reaches according to the library."""
    repo = tree.builder.reopen()
    walks = [repo.ancestry(branch=name) for name in repo.list_branches()] + [repo.ancestry(tag=name) for name in repo.list_tags()]
    return set(tree.ids) - tree.numbers_of({info.id for ancestry in walks for info in ancestry})


def test_expire_matches_each_step_of_document(tree: DocumentTree):
    lake = lake_of(tree)
    plan = {action.ref_name: action for action in plan_actions(lake, AS_OF)}
    histories = {
        "main": {"main": [14, 13, 12, 0], "develop": [11, 10, 6, 3, 2, 1, 0], "test": [9, 7, 6, 3, 2, 1, 0], "qa": [8, 7, 6, 3, 2, 1, 0]},
        "develop": {"main": [14, 13, 12, 0], "develop": [11, 10, 0], "test": [9, 7, 6, 3, 2, 1, 0], "qa": [8, 7, 6, 3, 2, 1, 0]},
        "test": {"main": [14, 13, 12, 0], "develop": [11, 10, 0], "test": [9, 0], "qa": [8, 7, 6, 3, 2, 1, 0]},
        "qa": {"main": [14, 13, 12, 0], "develop": [11, 10, 0], "test": [9, 0], "qa": [8, 0]},
    }
    dangling = {"main": set(), "develop": set(), "test": set(), "qa": {6, 7}}
    for step in STEPS:
        assert verdicts(expire(lake, AS_OF, [plan[step]])) == {"done"}
        assert {branch: walk(tree, branch) for branch in STEPS} == histories[step], step
        assert unreachable(tree) == dangling[step], step


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "expiry,gone",
    [
        ({"semantics": "seed"}, {6, 7}),
        ({"semantics": "icechunk-v1"}, {1, 2, 4, 6, 7}),
        ({"semantics": "seed", "tags": "policy", "delete_expired_tags": True}, {1, 2, 3, 4, 5, 6, 7}),
        ({"semantics": "icechunk-v1", "tags": "policy", "delete_expired_tags": True}, {1, 2, 3, 4, 5, 6, 7}),
    ],
)
def test_icechunk_gc_deletes_exactly_the_expired_snapshots(
    tree: DocumentTree, built: DocumentTree, expiry: dict, gone: set[int], order: int
):
    lake = lake_of(tree, **expiry)
    outcomes = expire(lake, AS_OF, plan_actions(lake, AS_OF)[::order])
    assert verdicts(outcomes) == {"done"}
    assert unreachable(tree) == gone
    assert tree.numbers_of(in_state(retention_of(lake, AS_OF), "dangling")) == gone
    kept = {n: values(tree, n) for n in set(tree.ids) - gone - {0}}
    before = tree.builder.files()
    tree.builder.reopen().garbage_collect(FAR_FUTURE)
    freed = {path.relative_to(tree.builder.path) for path in before - tree.builder.files()}
    own = {path.relative_to(built.builder.path) for n in gone for path in built.builder.created[tree.ids[n]]}
    assert freed == own - shared_chunks(own, gone, tree, built)
    assert {n: values(tree, n) for n in kept} == kept


def shared_chunks(own: set[Path], gone: set[int], tree: DocumentTree, built: DocumentTree) -> set[Path]:
    """Return chunks of deleted snapshots that a kept snapshot also contains: the last writer of each value before it."""
    parents = {commit: parent for commit, parent in parents_now(lake_at(built.builder.path), AS_OF).items() if parent is not None}
    number = {snapshot: n for n, snapshot in tree.ids.items()}
    needed: set[Path] = set()
    for kept in set(tree.ids) - gone:
        seen, at = set(), tree.ids[kept]
        while at in parents:
            writes = range(8) if number[at] == 1 else [number[at] % 8]
            for index in set(writes) - seen:
                needed |= {path.relative_to(built.builder.path) for path in chunk_files(built, at, index)}
            seen.update(writes)
            at = parents[at]
    return needed & own


def chunk_files(built: DocumentTree, snapshot: str, index: int) -> list[Path]:
    """Return the chunk that a commit wrote at an index. Each file contains one number."""
    chunks = [path for path in built.builder.created[snapshot] if path.parent.name == "chunks"]
    return [path for path in chunks if len(chunks) == 1 or int.from_bytes(path.read_bytes(), "little") == index]


def values(tree: DocumentTree, n: int) -> list[int]:
    session = tree.builder.reopen().readonly_session(snapshot_id=tree.ids[n])
    return zarr.open_group(session.store, mode="r")["values"][:].tolist()


def test_icechunk_lake_implements_expiring_lake(tree: DocumentTree):
    assert isinstance(lake_of(tree), ExpiringLake)


def test_plan_rows_contain_old_parents_and_ref_types(tree: DocumentTree):
    plan = plan_actions(lake_of(tree, "policy", semantics="seed", delete_expired_tags=True), AS_OF)
    parents = parents_now(lake_of(tree), AS_OF)
    assert {action.snapshot_id: action.old_parent_id for action in plan if action.action == "edit_parent"} == {
        tree.ids[n]: parents[tree.ids[n]] for n in (8, 9, 10, 12)
    }
    assert {(action.ref_type, action.ref_name) for action in plan} == {
        ("tag", "tag1"),
        ("tag", "tag2"),
        *(("branch", branch) for branch in STEPS),
    }


def test_parent_edit_keeps_flushed_at_and_updates_modification_time(tree: DocumentTree):
    file = tree.builder.snapshot_file(tree.ids[12])
    set_file_time(file, START)
    expire(lake_of(tree), AS_OF)
    assert file.stat().st_mtime > START.timestamp()
    info = next(info for info in tree.builder.reopen().ancestry(branch="main") if info.id == tree.ids[12])
    assert info.written_at == START + timedelta(days=12)


def test_expire_changes_only_edited_snapshots_and_deleted_refs(tree: DocumentTree):
    before = files_of(tree.builder.path, ".")
    expire(lake_of(tree, "policy", delete_expired_tags=True), AS_OF)
    after = files_of(tree.builder.path, ".")
    assert {name for name in before if before[name] != after.get(name)} == {f"snapshots/{tree.ids[n]}" for n in (8, 9, 10, 12)}
    assert {name: after[name] for name in after.keys() - before.keys()} == {
        f"refs/tag.{tag}/ref.json.deleted": b"" for tag in ("tag1", "tag2")
    }


def test_second_expire_returns_outcome_absent(tree: DocumentTree):
    lake = lake_of(tree, "policy", delete_expired_tags=True)
    plan = plan_actions(lake, AS_OF)
    assert verdicts(expire(lake, AS_OF, plan)) == {"done"}
    before = files_of(tree.builder.path, ".")
    again = expire(lake, AS_OF, plan)
    assert verdicts(again) == {"absent"}
    assert all(outcome.error for outcome in again)
    assert files_of(tree.builder.path, ".") == before
    assert plan_actions(lake, AS_OF) == []


def test_next_plan_contains_rest_of_half_executed_plan(tree: DocumentTree):
    lake = lake_of(tree, "policy", delete_expired_tags=True)
    plan = plan_actions(lake, AS_OF)
    expire(lake, AS_OF, plan[:2])
    assert {(row.action, row.snapshot_id, row.new_parent_id) for row in plan_actions(lake, AS_OF)} == {
        (row.action, row.snapshot_id, row.new_parent_id) for row in plan[2:]
    }


def test_parents_are_edited_before_refs_are_deleted(tree: DocumentTree):
    lake = lake_of(tree, "policy", delete_expired_tags=True)
    outcomes = expire(lake, AS_OF, plan_actions(lake, AS_OF)[::-1])
    assert [outcome.action.action for outcome in outcomes] == ["edit_parent"] * 4 + ["delete_ref"] * 2


def test_expire_executes_only_approved_actions(tree: DocumentTree):
    lake = lake_of(tree)
    plan = [action for action in plan_actions(lake, AS_OF) if action.ref_name == "qa"]
    assert [outcome.action for outcome in expire(lake, AS_OF, plan)] == plan
    assert walk(tree, "qa") == [8, 0]
    assert walk(tree, "main") == [14, 13, 12, 5, 4, 2, 1, 0]


def test_tag_is_kept_while_a_branch_reaches_its_snapshot(tree: DocumentTree):
    lake = lake_of(tree, "policy", delete_expired_tags=True)
    plan = [action for action in plan_actions(lake, AS_OF) if action.ref_name != "develop"]
    outcome = {outcome.action.ref_name: outcome for outcome in expire(lake, AS_OF, plan)}
    assert outcome["tag1"].verdict == "changed"
    assert "still reaches" in outcome["tag1"].error
    assert outcome["tag2"].verdict == "done"
    assert tree.builder.reopen().list_tags() == {"tag1"}


def assert_only_changed(tree: DocumentTree, plan: list[ExpiryAction], lake: IcechunkLake, changed: set[str], sentence: str) -> None:
    """Expire, and assert that the actions of these refs are `changed` with a message and the others `done`."""
    before = parents_now(lake, AS_OF)
    outcomes = expire(lake, AS_OF, plan)
    assert {outcome.action.ref_name for outcome in outcomes if outcome.verdict == "changed"} == changed
    assert {outcome.verdict for outcome in outcomes if outcome.action.ref_name not in changed} <= {"done"}
    for outcome in outcomes:
        if outcome.verdict == "changed":
            assert sentence in outcome.error
            assert outcome.action.snapshot_id not in before or (
                parents_now(lake, AS_OF)[outcome.action.snapshot_id] == before[outcome.action.snapshot_id]
            )


def test_history_of_branch_reset_after_plan_is_kept(tree: DocumentTree):
    lake = lake_of(tree)
    plan = plan_actions(lake, AS_OF)
    tree.builder.repo.reset_branch("main", tree.ids[5])
    assert_only_changed(tree, plan, lake, {"main"}, "no longer requires this edit")
    assert walk(tree, "main") == [5, 4, 2, 1, 0]


def test_history_of_branch_created_after_plan_is_kept(tree: DocumentTree):
    lake = lake_of(tree)
    plan = plan_actions(lake, AS_OF)
    tree.builder.repo.create_branch("late", tree.ids[7])
    assert_only_changed(tree, plan, lake, set(), "")
    assert walk(tree, "late") == [7, 6, 3, 2, 1, 0]


def test_new_ref_with_longer_retention_prevents_edit(tree: DocumentTree):
    rules = {"default": {"keep": tree.cutoff.isoformat()}, "refs": [{"match": "release/.*|audit", "keep": "forever"}]}
    lake = lake_at(tree.builder.path, rules)
    plan = plan_actions(lake, AS_OF)
    tree.builder.repo.create_tag("audit", tree.ids[14])
    assert_only_changed(tree, plan, lake, {"main"}, "no longer requires this edit")
    assert walk(tree, "main") == [14, 13, 12, 5, 4, 2, 1, 0]


def test_changed_retention_rules_prevent_edit(tree: DocumentTree):
    plan = plan_actions(lake_of(tree), AS_OF)
    later = {"default": {"keep": (tree.cutoff + timedelta(days=5)).isoformat()}}
    assert_only_changed(tree, plan, lake_at(tree.builder.path, later), {"main", "develop", "test", "qa"}, "no longer requires this edit")


def test_edit_to_parent_that_differs_from_policy_is_refused(tree: DocumentTree):
    lake = lake_of(tree)
    plan = [replace(action, new_parent_id=tree.ids[1]) for action in plan_actions(lake, AS_OF)]
    outcomes = expire(lake, AS_OF, plan)
    assert verdicts(outcomes) == {"changed"}
    assert all(f"it requires the parent {tree.ids[0]}, but the plan has {tree.ids[1]}" in outcome.error for outcome in outcomes)


def test_parent_changed_by_another_expiry_is_not_overwritten(tree: DocumentTree):
    lake = lake_of(tree)
    plan = plan_actions(lake, AS_OF)
    tree.builder.reopen().expire_snapshots(START + timedelta(days=4, hours=1))  # by the library with an older threshold
    changed = {action.ref_name for action in plan if parents_now(lake, AS_OF)[action.snapshot_id] != action.old_parent_id}
    assert_only_changed(tree, plan, lake, changed, "expected the parent")


def test_ref_moved_after_the_plan_is_not_deleted(tree: DocumentTree):
    tree.builder.repo.create_branch("old", tree.ids[7])
    tree.builder.repo.create_branch("older", tree.ids[6])
    lake = lake_of(tree, "policy", delete_expired_branches=True)
    plan = plan_actions(lake, AS_OF)
    assert {"old", "older"} <= {action.ref_name for action in plan if action.action == "delete_ref"}
    tree.builder.repo.reset_branch("old", tree.ids[14])
    tree.builder.repo.delete_branch("older")
    outcome = {outcome.action.ref_name: outcome for outcome in expire(lake, AS_OF, plan)}
    assert (outcome["old"].verdict, outcome["older"].verdict) == ("changed", "absent")
    assert f"found {tree.ids[14]}" in outcome["old"].error
    assert walk(tree, "old") == [14, 13, 12, 0]


def test_missing_snapshot_prevents_its_actions(tree: DocumentTree):
    lake = lake_of(tree)
    plan = plan_actions(lake, AS_OF)
    tree.builder.repo.delete_branch("qa")
    tree.builder.snapshot_file(tree.ids[8]).unlink()
    assert_only_changed(tree, plan, lake, {"qa"}, "is no longer in snapshots/")


def test_unknown_or_incomplete_action_fails(tree: DocumentTree):
    lake = lake_of(tree)
    [edit, *_] = plan_actions(lake, AS_OF)
    rows = [
        ExpiryAction("remove_snapshot", tree.ids[6], ""),
        ExpiryAction("delete_ref", tree.ids[3], "", ref_name="tag1"),
        replace(edit, old_parent_id=None),
    ]
    outcomes = expire(lake, AS_OF, rows)
    assert [outcome.verdict for outcome in outcomes] == ["denied"] * 3
    assert all("plan again" in outcome.error for outcome in outcomes)


def test_main_is_never_deleted(tree: DocumentTree):
    tree.builder.repo.reset_branch("main", tree.ids[7])
    lake = lake_of(tree, "policy", delete_expired_tags=True, delete_expired_branches=True)
    outcomes = expire(lake, AS_OF, [ExpiryAction("delete_ref", tree.ids[7], "", "branch", "main")])
    assert verdicts(outcomes) == {"changed"}
    assert tree.builder.reopen().lookup_branch("main") == tree.ids[7]


def break_snapshot(tree: DocumentTree) -> None:
    file = tree.builder.snapshot_file(tree.ids[5])
    file.write_bytes(file.read_bytes()[:-7])


def make_spec_2(tree: DocumentTree) -> None:
    file = tree.builder.snapshot_file(tree.ids[5])
    raw = bytearray(file.read_bytes())
    raw[36] = 2
    file.write_bytes(raw)


BAD: dict[str, tuple[Callable[[DocumentTree], object], str]] = {
    "a missing snapshot that a ref points at": (lambda tree: tree.builder.snapshot_file(tree.ids[14]).unlink(), "branch 'main'"),
    "a truncated snapshot": (break_snapshot, "{5}"),
    "a snapshot of spec 2": (make_spec_2, "spec version 2"),
    "an empty object of spec 2": (lambda tree: (tree.builder.path / "repo").write_bytes(b""), "expected an Icechunk header"),
    "the bytes of another snapshot": (
        lambda tree: shutil.copy(tree.builder.snapshot_file(tree.ids[4]), tree.builder.snapshot_file(tree.ids[5])),
        "has the content of snapshot {4}",
    ),
    "an unreadable tag": (lambda tree: (tree.builder.path / "refs/tag.tag1/ref.json").write_bytes(b'{"snap'), "tag 'tag1' cannot be read"),
    "no refs": (lambda tree: shutil.rmtree(tree.builder.path / "refs"), "no branch and no tag"),
}


@pytest.mark.parametrize("damage", list(BAD))
def test_unreadable_object_fails_all_actions(tree: DocumentTree, damage: str):
    lake = lake_of(tree, "policy", delete_expired_tags=True)
    plan = plan_actions(lake, AS_OF)
    act, found = BAD[damage]
    act(tree)
    before = files_of(tree.builder.path, ".")
    outcomes = expire(lake, AS_OF, plan)
    assert [outcome.action for outcome in outcomes] == plan
    assert verdicts(outcomes) == {"failed"}
    expected = found.format(*tree.ids.values()) if "{" in found else found
    assert all(expected in outcome.error for outcome in outcomes)
    assert files_of(tree.builder.path, ".") == before


def test_history_with_missing_snapshot_does_not_expire(tree: DocumentTree):
    lake = lake_of(tree)
    plan = plan_actions(lake, AS_OF)
    tree.builder.snapshot_file(tree.ids[4]).unlink()
    outcomes = expire(lake, AS_OF, plan)
    assert verdicts(outcomes) == {"failed"}
    assert all(f"has the parent {tree.ids[4]}, which is not in snapshots/" in outcome.error for outcome in outcomes)


def test_root_younger_than_descendants_prevents_edits(tree: DocumentTree):
    lake = lake_of(tree)
    plan = plan_actions(lake, AS_OF)
    RepositoryBuilder.set_time(with_created(tree), tree.ids[0], START + timedelta(days=20))
    outcomes = expire(lake, AS_OF, plan)
    assert len(outcomes) == 4
    assert verdicts(outcomes) == {"changed"}


def with_created(tree: DocumentTree) -> RepositoryBuilder:
    tree.builder.created[tree.ids[0]] = []
    return tree.builder


class Interfering(EditableLocalObjects):
    """Runs a function before the first change of an object."""

    def __init__(self, act: Callable[[], object]) -> None:
        object.__setattr__(self, "_act", [act])

    def _interfere(self) -> None:
        if self._act:
            self._act.pop()()

    def replace(self, address: str, content: bytes, etag: str) -> None:
        self._interfere()
        super().replace(address, content, etag)

    def create(self, address: str, content: bytes, *, new_directories: int = 1) -> None:
        self._interfere()
        super().create(address, content, new_directories=new_directories)

    def remove(self, address: str, etag: str) -> None:
        self._interfere()
        super().remove(address, etag)


def with_objects(lake: IcechunkLake, objects: EditableLocalObjects) -> IcechunkLake:
    return IcechunkLake(lake._config, objects)


def test_history_of_concurrent_commit_is_kept(tree: DocumentTree):
    lake = lake_of(tree)
    session = tree.builder.repo.writable_session("main")
    set_value("values", 0, 77)(zarr.open_group(session.store))
    during = with_objects(lake, Interfering(lambda: session.commit("while history expires")))
    assert verdicts(expire(during, AS_OF, plan_actions(lake, AS_OF))) == {"done"}
    repo = tree.builder.reopen()
    assert [info.message for info in repo.ancestry(branch="main")][:2] == ["while history expires", "snapshot 14"]
    assert zarr.open_group(repo.readonly_session("main").store, mode="r")["values"][0] == 77
    assert parents_now(lake, AS_OF)[tree.ids[12]] == tree.ids[0]


class WhileReading(Interfering):
    """Runs a function before the first read of a snapshot, after the refs were read."""

    def read(self, address: str) -> bytes:
        if "/snapshots/" in address:
            self._interfere()
        return super().read(address)


@pytest.mark.parametrize("commits", [False, True])
def test_history_of_branch_created_during_read_is_kept(tree: DocumentTree, commits: bool):
    retention = {"default": {"keep": tree.cutoff.isoformat()}, "refs": [{"match": "release", "keep": "forever"}]}
    lake = lake_at(tree.builder.path, retention)
    plan = [action for action in plan_actions(lake, AS_OF) if action.ref_name == "main"]
    assert plan
    history = [info.id for info in tree.builder.repo.ancestry(branch="main")]

    def write() -> None:
        tree.builder.repo.create_branch("release", history[0])
        session = tree.builder.repo.writable_session("release")
        set_value("values", 0, 79)(zarr.open_group(session.store))
        if commits:
            session.commit("released")

    [outcome] = expire(with_objects(lake, WhileReading(write)), AS_OF, plan)
    assert outcome.verdict == "changed"
    released = [info.id for info in tree.builder.reopen().ancestry(branch="release")]
    assert released[-len(history) :] == history
    assert len(released) == len(history) + commits


def test_concurrent_commit_prevents_branch_deletion(tree: DocumentTree):
    tree.builder.repo.create_branch("old", tree.ids[7])
    lake = lake_of(tree, delete_expired_branches=True)
    plan = plan_actions(lake, AS_OF)
    expire(lake, AS_OF, [action for action in plan if action.action == "edit_parent"])
    session = tree.builder.reopen().writable_session("old")
    set_value("values", 0, 78)(zarr.open_group(session.store))
    deletion = [action for action in plan if action.ref_name == "old"]
    [outcome] = expire(with_objects(lake, Interfering(lambda: session.commit("not too old for me"))), AS_OF, deletion)
    assert outcome.verdict == "changed"
    assert [info.message for info in tree.builder.reopen().ancestry(branch="old")][:2] == ["not too old for me", "snapshot 7"]


def test_concurrently_deleted_tag_has_outcome_absent(tree: DocumentTree):
    lake = lake_of(tree, "policy", delete_expired_tags=True)
    plan = plan_actions(lake, AS_OF)
    expire(lake, AS_OF, [action for action in plan if action.action == "edit_parent"])
    tags = [action for action in plan if action.ref_name == "tag1"]
    [outcome] = expire(with_objects(lake, Interfering(lambda: tree.builder.repo.delete_tag("tag1"))), AS_OF, tags)
    assert outcome.verdict == "absent"


def test_edit_already_made_concurrently_has_outcome_absent(tree: DocumentTree):
    lake = lake_of(tree)
    plan = [action for action in plan_actions(lake, AS_OF) if action.ref_name == "main"]
    [outcome] = expire(with_objects(lake, Interfering(lambda: expire(lake, AS_OF, plan))), AS_OF, plan)
    assert (outcome.verdict, walk(tree, "main")) == ("absent", [14, 13, 12, 0])


def test_different_concurrent_edit_is_not_overwritten(tree: DocumentTree):
    lake, file = lake_of(tree), tree.builder.snapshot_file(tree.ids[9])
    plan = [action for action in plan_actions(lake, AS_OF) if action.ref_name == "test"]

    def another_tool() -> None:
        concurrent = file.with_name("upload#1")
        concurrent.write_bytes(with_parent("9", file.read_bytes(), tree.ids[3]))
        concurrent.rename(file)

    [outcome] = expire(with_objects(lake, Interfering(another_tool)), AS_OF, plan)
    assert outcome.verdict == "changed"
    assert f"expected the parent {tree.ids[7]}, found {tree.ids[3]}" in outcome.error
    assert walk(tree, "test") == [9, 3, 2, 1, 0]


class OverwritingStore(EditableLocalObjects):
    """A store in which another process overwrites each written object."""

    def replace(self, address: str, content: bytes, etag: str) -> None:
        before = self.read(address)
        super().replace(address, content, etag)
        super().replace(address, before, self.read_with_etag(address)[1])


def test_edit_fails_if_written_bytes_differ(tree: DocumentTree):
    lake = lake_of(tree)
    [outcome, *_] = expire(with_objects(lake, OverwritingStore()), AS_OF, plan_actions(lake, AS_OF))
    assert outcome.verdict == "failed"
    assert "the bytes read differ from the written ones" in outcome.error


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Run the block as a user without write access to the folder. Root ignores permissions."""
    ours = os.geteuid() == 0
    folder.chmod(0o555)
    if ours:
        os.seteuid(65534)
    try:
        yield
    finally:
        if ours:
            os.seteuid(0)
        folder.chmod(0o755)


def test_read_only_directory_fails_only_affected_action(built: DocumentTree):
    with memory_directory() as base:
        base.chmod(0o755)
        path = Path(shutil.copytree(built.builder.path, base / "repo"))
        for file in (*path.glob("refs/*"), *path.glob("snapshots/*")):
            file.chmod(0o777)
        lake = lake_at(path, {"default": {"keep": built.cutoff.isoformat()}, "tags": "policy"}, delete_expired_tags=True)
        plan = plan_actions(lake, AS_OF)
        with read_only(path / "snapshots"):
            outcomes = expire(lake, AS_OF, plan)
        edits = [outcome for outcome in outcomes if outcome.action.action == "edit_parent"]
        assert verdicts(edits) == {"denied"}
        for outcome in edits:
            assert f"snapshots/{outcome.action.snapshot_id} cannot be changed: Permission denied" in outcome.error
        deletions = [outcome for outcome in outcomes if outcome.action.action == "delete_ref"]
        assert {outcome.action.ref_name: outcome.verdict for outcome in deletions} == {"tag1": "changed", "tag2": "changed"}
        assert verdicts(expire(lake, AS_OF, plan)) == {"done"}, "once it is mended"


def test_temporary_files_are_neither_snapshots_nor_refs(tree: DocumentTree):
    lake = lake_of(tree)
    commits, refs = set(parents_now(lake, AS_OF)), lake.freeze(AS_OF).refs
    (tree.builder.path / "snapshots" / f"{tree.ids[3]}#123456789").write_bytes(b"half")
    (tree.builder.path / "refs" / "branch.gone").mkdir()
    (tree.builder.path / "refs" / "branch.gone" / "ref.json#99").write_bytes(b"{}")
    assert set(parents_now(lake, AS_OF)) == commits
    assert lake.freeze(AS_OF).refs == refs
    assert "#123456789" in " ".join(lake.freeze(AS_OF).notes), "collected like other leftovers"
    repo = tree.builder.reopen()
    assert repo.list_branches() == set(STEPS)
    assert repo.garbage_collect(FAR_FUTURE).snapshots_deleted == 0


def test_ref_deletion_leaves_the_same_files_as_icechunk(tree: DocumentTree, tmp_path: Path):
    tree.builder.repo.create_branch("old", tree.ids[7])
    sister = Path(shutil.copytree(tree.builder.path, tmp_path / "sister"))
    lake = lake_of(tree, "policy", semantics="icechunk-v1", delete_expired_tags=True, delete_expired_branches=True)
    assert verdicts(expire(lake, AS_OF)) == {"done"}
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(sister)))
    repo.expire_snapshots(tree.cutoff, delete_expired_branches=True, delete_expired_tags=True)
    assert files_of(tree.builder.path, "refs") == files_of(sister, "refs")
    temporary_files = {f"snapshots/{tree.ids[n]}" for n in (3, 5, 7)}
    ours, theirs = files_of(tree.builder.path, "snapshots"), files_of(sister, "snapshots")
    assert {name for name in ours if ours[name] != theirs[name]} == temporary_files, "the snapshots whose refs go are not edited by us"
