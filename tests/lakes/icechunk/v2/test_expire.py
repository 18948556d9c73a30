"""Expiry and undo of repositories of spec version 2, compared with library 2.x."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from gc_assets.lakes.icechunk.envelope import SPEC_V1_AND_V2
from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.lakes.icechunk.repo_info import RepoInfo, parse_repo
from gc_assets.lakes.icechunk.repo_updates import Availability, RepoStatus, UpdateKind
from gc_assets.lakes.icechunk.repo_writer import write_repo
from gc_assets.lakes.icechunk.snapshots import parse_snapshot
from gc_assets.lakes.protocol import ExpiryAction, ExpiryOutcome
from gc_assets.stores.local.editing import EditableLocalObjects
from tests.depth import example_count, in_turn
from tests.lakes.icechunk.icechunk_lakes import FAR_FUTURE, commits_of, expire, graph_of, lake_at, plan_actions, verdicts
from tests.lakes.icechunk.v2.builder import (
    DocumentTree,
    RandomTree,
    RepositoryBuilder,
    document_tree,
    microseconds,
    random_tree,
    set_value,
)
from tests.lakes.icechunk.v2.library import Library
from tests.process_kills import exit_code, kill_before

pytestmark = in_turn

START = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = datetime(2026, 2, 1, tzinfo=UTC)
STEPS = ("fchmod", "fsync", "rename", "exchange_with", "link", "unlink")
GROUPS, TREES_A_GROUP = example_count(1, 12), 12


@pytest.fixture(scope="module")
def built(icechunk2: Library, tmp_path_factory: pytest.TempPathFactory) -> DocumentTree:
    return document_tree(icechunk2, tmp_path_factory.mktemp("document") / "repo", START)


@pytest.fixture
def tree(built: DocumentTree, tmp_path: Path) -> DocumentTree:
    return replace(built, builder=copy_of(built.builder, tmp_path / "repo"))


def copy_of(builder: RepositoryBuilder, path: Path) -> RepositoryBuilder:
    shutil.copytree(builder.path, path)
    return RepositoryBuilder(builder.library, path)


def lake_of(path: Path, cutoff: datetime, tags: str = "keep", **expiry: object) -> IcechunkLake:
    at = cutoff.isoformat()
    return lake_at(path, {"default": {"keep": at}, "dangling": at, "tags": tags}, **{"semantics": "icechunk", **expiry})


def repo_of(path: Path) -> RepoInfo:
    return parse_repo("repo", (path / "repo").read_bytes())


def reach(info: RepoInfo, heads: Sequence[str]) -> set[str]:
    reached: set[str] = set()
    for head in heads:
        at: str | None = head
        while at is not None and at not in reached:
            reached.add(at)
            at = info.snapshots[at].parent_id
    return reached


def heads(info: RepoInfo) -> list[str]:
    return [*info.branches.values(), *info.tags.values()]


def everything(builder: RepositoryBuilder) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Return the refs and the content of each snapshot that a ref reaches, read by the library."""
    _, refs, contents = builder.library.run(builder.path, [("open", {}), ("refs", {}), ("contents", {})])
    return refs, contents


def assert_done(outcomes: Sequence[ExpiryOutcome]) -> None:
    assert {outcome.verdict: outcome.error for outcome in outcomes} in ({}, {"done": None})


@pytest.mark.parametrize("deletes", [False, True])
def test_expiry_of_document_tree_matches_icechunk(tree: DocumentTree, tmp_path: Path, deletes: bool):
    sister = copy_of(tree.builder, tmp_path / "sister")
    released = sister.call("expire", older_than=microseconds(tree.cutoff), delete_tags=deletes, delete_branches=deletes)
    lake = lake_of(
        tree.builder.path, tree.cutoff, "policy" if deletes else "keep", delete_expired_tags=deletes, delete_expired_branches=deletes
    )
    assert_done(expire(lake, AS_OF))
    ours, theirs = repo_of(tree.builder.path), repo_of(sister.path)
    assert tree.numbers_of(set(tree.ids.values()) - ours.snapshots.keys()) == tree.numbers_of(set(released))
    assert_equal(ours, theirs)
    assert plan_actions(lake, AS_OF) == []


def assert_equal(ours: RepoInfo, theirs: RepoInfo) -> None:
    assert ours.snapshots == theirs.snapshots
    assert_equal_refs(ours, theirs)


def assert_equal_refs(ours: RepoInfo, theirs: RepoInfo) -> None:
    assert (ours.branches, ours.tags, ours.deleted_tags) == (theirs.branches, theirs.tags, theirs.deleted_tags)
    assert [update.kind for update in ours.updates] == [update.kind for update in theirs.updates]
    assert replace(ours, snapshots={}, updates=()) == replace(theirs, snapshots={}, updates=())


def test_icechunk_can_use_repository_after_expiry(tree: DocumentTree):
    builder = tree.builder
    before = everything(builder)[1]
    root, tip = tree.ids[0], builder.head()
    diff = builder.call("diff", before=root, after=tip)
    operations = builder.call("ops_log")
    assert_done(expire(lake_of(builder.path, tree.cutoff), AS_OF))
    builder.call("open")
    assert builder.call("diff", before=root, after=tip) == diff, "the logs of removed snapshots are still used"
    log = builder.call("ops_log")
    assert "Expiration" in log[0][0]
    assert [kind for kind, _, _ in log[1:]] == [kind for kind, _, _ in operations]
    commit = builder.call("commit", writes=[set_value("values", 0, 99)])
    after = everything(builder)[1]
    assert {snapshot: before[snapshot] for snapshot in after.keys() - {commit}} == {name: after[name] for name in after.keys() - {commit}}
    assert builder.call("expire", older_than=microseconds(tree.cutoff)) == [], "nothing is left to expire"
    assert len(builder.call("ops_log")) == len(operations) + 3


class Case:
    """A random tree, a cut-off between its times, and a choice of refs to delete."""

    def __init__(self, tree: RandomTree, seed: int) -> None:
        ordered = sorted(tree.times.values())
        self.tree = tree
        self.cutoff = ordered[len(ordered) // 2 + (seed * 7) % (len(ordered) - len(ordered) // 2)] + timedelta(seconds=seed % 2)
        self.tags, self.branches = seed % 3 == 0, seed % 4 == 0

    def lake(self, path: Path, semantics: str) -> IcechunkLake:
        return lake_of(
            path,
            self.cutoff,
            "policy" if self.tags else "keep",
            semantics=semantics,
            delete_expired_tags=self.tags,
            delete_expired_branches=self.branches,
        )


@pytest.mark.parametrize("group", range(GROUPS))
def test_expiry_of_random_trees_matches_icechunk(icechunk2: Library, tmp_path: Path, group: int):
    edited = 0
    for seed in range(group * TREES_A_GROUP, (group + 1) * TREES_A_GROUP):
        tree = random_tree(icechunk2, tmp_path / f"{seed}", seed, START)
        case, sister = Case(tree, seed), copy_of(tree.builder, tmp_path / f"{seed}-sister")
        old = copy_of(tree.builder, tmp_path / f"{seed}-seed")
        before = repo_of(tree.builder.path)
        released = sister.call("expire", older_than=microseconds(case.cutoff), delete_tags=case.tags, delete_branches=case.branches)
        plan = plan_actions(case.lake(tree.builder.path, "icechunk"), AS_OF)
        assert_done(expire(case.lake(tree.builder.path, "icechunk"), AS_OF, plan))
        ours, theirs = repo_of(tree.builder.path), repo_of(sister.path)
        if released or ours != before:
            edited += 1
            compare(ours, theirs, case.cutoff, seed)
        assert everything(tree.builder) == everything(sister), seed
        assert_document(old, case, seed)
    assert edited > TREES_A_GROUP // 3


def compare(ours: RepoInfo, theirs: RepoInfo, cutoff: datetime, seed: int) -> None:
    """Compare with the library, which does not keep the ancestors of young snapshots that no ref reaches."""
    assert (ours.branches, ours.tags, ours.deleted_tags) == (theirs.branches, theirs.tags, theirs.deleted_tags), seed
    by_refs = reach(theirs, heads(theirs))
    assert {name: ours.snapshots[name] for name in by_refs} == {name: theirs.snapshots[name] for name in by_refs}, seed
    young = [name for name, entry in ours.snapshots.items() if entry.flushed_at >= cutoff]
    assert theirs.snapshots.keys() <= ours.snapshots.keys(), seed
    assert ours.snapshots.keys() == theirs.snapshots.keys() | reach(ours, young), seed


def assert_document(builder: RepositoryBuilder, case: Case, seed: int) -> None:
    """Expire by the seed document, and compare with its steps on the listed parents."""
    before = repo_of(builder.path)
    parents = {name: entry.parent_id for name, entry in before.snapshots.items()}
    times = {name: entry.flushed_at for name, entry in before.snapshots.items()}
    contents = everything(builder)[1]
    assert_done(expire(case.lake(builder.path, "seed"), AS_OF))
    after = repo_of(builder.path)
    refs = {**{("b", name): head for name, head in before.branches.items()}, **{("t", name): head for name, head in before.tags.items()}}
    gone = {
        ref
        for ref, head in refs.items()
        if ((ref[0] == "t" and case.tags) or (ref[0] == "b" and case.branches and ref[1] != "main")) and times[head] < case.cutoff
    }
    for ref, head in refs.items():
        walk = [head]
        while (parent := parents[walk[-1]]) is not None:
            walk.append(parent)
        if ref not in gone and times[head] >= case.cutoff:
            last = [name for name in walk if times[name] >= case.cutoff][-1]
            parents[last] = walk[-1] if last != walk[-1] else None
    reached = reach(
        replace(before, snapshots={name: replace(before.snapshots[name], parent_id=parents[name]) for name in parents}),
        [head for ref, head in refs.items() if ref not in gone],
    )
    kept = {ref for ref in refs if ref not in gone or refs[ref] in reached}
    assert {*[("b", name) for name in after.branches], *[("t", name) for name in after.tags]} == kept, seed
    assert {name: after.snapshots[name].parent_id for name in reached} == {name: parents[name] for name in reached}, seed
    young = [name for name in times if times[name] >= case.cutoff]
    assert after.snapshots.keys() == reached | reach(after, young), seed
    found = everything(builder)[1]
    assert found == {name: contents[name] for name in found}, seed


class Interfering(EditableLocalObjects):
    """Runs functions before changes of `repo`, one before each."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        object.__setattr__(self, "_acts", [*reversed(acts)])

    def replace(self, address: str, content: bytes, etag: str) -> None:
        if self._acts:
            self._acts.pop()()
        super().replace(address, content, etag)


class Overwriting(EditableLocalObjects):
    """Runs a function after a change of `repo`."""

    def __init__(self, act: Callable[[], object]) -> None:
        object.__setattr__(self, "_acts", [act])

    def replace(self, address: str, content: bytes, etag: str) -> None:
        super().replace(address, content, etag)
        if self._acts:
            self._acts.pop()()


def with_objects(lake: IcechunkLake, objects: EditableLocalObjects) -> IcechunkLake:
    return IcechunkLake(lake._config, objects)


def messages(builder: RepositoryBuilder, branch: str = "main") -> list[str]:
    builder.call("open")
    return [item[3] for item in builder.call("ancestry", snapshot=builder.head(branch))]


def test_commits_made_between_read_and_write_are_kept(tree: DocumentTree):
    lake, builder = lake_of(tree.builder.path, tree.cutoff), tree.builder
    plan = plan_actions(lake, AS_OF)
    commits = [
        lambda number=number: builder.call("commit", writes=[set_value("values", 1, number)], message=f"{number}") for number in (1, 2)
    ]
    assert_done(expire(with_objects(lake, Interfering(*commits)), AS_OF, plan))
    assert messages(builder)[:3] == ["2", "1", "snapshot 14"]
    assert repo_of(builder.path).snapshots[tree.ids[12]].parent_id == tree.ids[5]
    assert plan_actions(lake, AS_OF) == []
    assert [update.kind for update in repo_of(builder.path).updates[:3]] == [
        UpdateKind.EXPIRATION_RAN,
        UpdateKind.NEW_COMMIT,
        UpdateKind.NEW_COMMIT,
    ]


def test_snapshot_is_kept_if_branch_is_created_at_it_during_expiry(tree: DocumentTree):
    lake, builder = lake_of(tree.builder.path, tree.cutoff), tree.builder
    plan = plan_actions(lake, AS_OF)

    def write() -> None:
        builder.call("create_branch", name="late", snapshot=tree.ids[6])
        builder.call("commit", branch="late", writes=[set_value("values", 1, 5)], message="late")

    outcomes = expire(with_objects(lake, Interfering(write)), AS_OF, plan)
    assert {outcome.verdict for outcome in outcomes} == {"done", "changed"}
    changed = {outcome.action.snapshot_id for outcome in outcomes if outcome.verdict == "changed"}
    assert tree.ids[6] in changed
    assert messages(builder, "late")[:2] == ["late", "snapshot 6"]
    assert all(isinstance(values, dict) for values in everything(builder)[1].values())


def test_overwritten_repo_change_is_repeated(tree: DocumentTree):
    lake, builder = lake_of(tree.builder.path, tree.cutoff), tree.builder
    raw = (builder.path / "repo").read_bytes()
    assert_done(expire(with_objects(lake, Overwriting(lambda: (builder.path / "repo").write_bytes(raw))), AS_OF))
    assert plan_actions(lake, AS_OF) == []


def test_expiry_fails_if_new_repo_object_cannot_be_read(tree: DocumentTree):
    lake, repo = lake_of(tree.builder.path, tree.cutoff), tree.builder.path / "repo"
    plan, written = plan_actions(lake, AS_OF), []

    def damage() -> None:
        written.append(repo.read_bytes())
        repo.write_bytes(b"damaged")

    outcomes = expire(with_objects(lake, Overwriting(damage)), AS_OF, plan)
    assert verdicts(outcomes) == {"failed"}
    assert "may have been changed" in (outcomes[0].error or "")
    repo.write_bytes(written[0])
    assert verdicts(expire(lake, AS_OF, plan)) == {"absent"}


def test_expiry_gives_up_without_change_if_writers_are_busy(tree: DocumentTree, monkeypatch: pytest.MonkeyPatch):
    for limit in ("_LONGEST_PAUSE", "_LEAST_SECONDS"):
        monkeypatch.setattr(f"gc_assets.lakes.icechunk.repo_file.{limit}", 0.0)
    repo = tree.builder.path / "repo"
    lake, raw = lake_of(tree.builder.path, tree.cutoff), repo.read_bytes()

    def touch() -> None:
        repo.unlink()
        repo.write_bytes(raw)

    outcomes = expire(with_objects(lake, Interfering(*[touch] * 50)), AS_OF, plan_actions(lake, AS_OF))
    assert verdicts(outcomes) == {"failed"}
    assert repo.read_bytes() == raw
    assert "apply again" in (outcomes[0].error or "")


def test_history_of_reset_branch_is_kept_if_committed_to_after_plan(tree: DocumentTree):
    lake, builder = lake_of(tree.builder.path, tree.cutoff), tree.builder
    plan = plan_actions(lake, AS_OF)
    builder.call("reset_branch", name="main", snapshot=tree.ids[4])
    builder.call("commit", writes=[set_value("values", 1, 6)], message="on 4")
    outcomes = expire(lake, AS_OF, plan)
    assert tree.ids[4] in {outcome.action.snapshot_id for outcome in outcomes if outcome.verdict == "changed"}
    assert messages(builder)[:2] == ["on 4", "snapshot 4"]


def edit_file(tree: DocumentTree, edit: Callable[[RepoInfo], RepoInfo]) -> None:
    file = tree.builder.path / "repo"
    file.write_bytes(write_repo("repo", file.read_bytes(), edit(repo_of(tree.builder.path))))


def test_expiry_entry_is_newer_than_entry_from_future(tree: DocumentTree):
    builder, at = tree.builder, microseconds(datetime(2090, 1, 1, tzinfo=UTC))
    edit_file(tree, lambda info: replace(info, updates=(replace(info.updates[0], updated_us=at), *info.updates[1:])))
    assert_done(expire(lake_of(builder.path, tree.cutoff), AS_OF))
    assert repo_of(builder.path).updates[0].updated_us == at + 1
    builder.call("open")
    assert "Expiration" in builder.call("ops_log")[0][0]


def test_plan_completes_after_partly_executed_plan(tree: DocumentTree):
    retention = {"default": {"keep": tree.cutoff.isoformat()}, "dangling": "forever"}
    lake = lake_at(tree.builder.path, retention, semantics="icechunk")
    part = [action for action in plan_actions(lake, AS_OF) if action.action == "edit_parent"]
    assert_done(expire(lake, AS_OF, part))
    refs = replace(lake.freeze(AS_OF), edits=tuple(part))
    later = [ExpiryAction(**row) for row in lake.retain(refs, graph_of(commits_of(lake, refs)), AS_OF, FAR_FUTURE).expiry.to_pylist()]
    assert_done(expire(lake, AS_OF, later))


def test_second_expiry_has_outcome_absent_and_changes_nothing(tree: DocumentTree):
    lake = lake_of(tree.builder.path, tree.cutoff)
    plan = plan_actions(lake, AS_OF)
    expire(lake, AS_OF, plan)
    raw, copies = (tree.builder.path / "repo").read_bytes(), list((tree.builder.path / "overwritten").iterdir())
    assert verdicts(expire(lake, AS_OF, plan)) == {"absent"}
    assert (tree.builder.path / "repo").read_bytes() == raw
    assert list((tree.builder.path / "overwritten").iterdir()) == copies


def test_operations_log_references_copy_of_replaced_repo(tree: DocumentTree):
    raw = (tree.builder.path / "repo").read_bytes()
    assert_done(expire(lake_of(tree.builder.path, tree.cutoff), AS_OF))
    name = repo_of(tree.builder.path).updates[1].backup_path
    assert name is not None
    assert (tree.builder.path / "overwritten" / name).read_bytes() == raw


@pytest.mark.parametrize("availability", [Availability.READ_ONLY, Availability.OFFLINE])
def test_expiry_skips_repository_that_is_not_online(tree: DocumentTree, availability: Availability):
    lake = lake_of(tree.builder.path, tree.cutoff)
    plan = plan_actions(lake, AS_OF)
    if availability == Availability.READ_ONLY:
        tree.builder.call("set_status", availability="read_only", reason="audit")
    else:  # the library cannot write it yet
        edit_file(tree, lambda info: replace(info, status=RepoStatus(availability, 5, "audit")))
    raw = (tree.builder.path / "repo").read_bytes()
    outcomes = expire(lake, AS_OF, plan)
    assert verdicts(outcomes) == {"changed"}
    assert "audit" in (outcomes[0].error or "")
    assert (tree.builder.path / "repo").read_bytes() == raw
    assert plan_actions(lake, AS_OF) == []


def test_expired_tag_is_kept_if_tag_deletion_is_disabled(tree: DocumentTree):
    lake = lake_of(tree.builder.path, tree.cutoff, "policy", delete_expired_tags=True)
    plan = plan_actions(lake, AS_OF)
    tree.builder.call("set_feature_flag", name="delete_tag", setting=False)
    deletions = [outcome for outcome in expire(lake, AS_OF, plan) if outcome.action.action == "delete_ref"]
    assert deletions
    assert verdicts(deletions) == {"changed"}
    assert repo_of(tree.builder.path).tags.keys() == repo_of(tree.builder.path).tags.keys() | {item.action.ref_name for item in deletions}
    assert not [action for action in plan_actions(lake, AS_OF) if action.action == "delete_ref"]
    everything(tree.builder)


def test_plan_made_before_upgrade_changes_nothing(icechunk2: Library, tmp_path: Path):
    old = document_tree(icechunk2, tmp_path / "repo", START, spec_version=1)
    lake = lake_of(old.builder.path, old.cutoff)
    plan = plan_actions(lake, AS_OF)
    assert plan
    old.builder.call("upgrade", delete_v1_files=True)
    raw = (old.builder.path / "repo").read_bytes()
    assert verdicts(expire(lake, AS_OF, plan)) == {"changed"}
    assert (old.builder.path / "repo").read_bytes() == raw
    assert_done(expire(lake, AS_OF))
    assert plan_actions(lake, AS_OF) == []


@pytest.fixture(params=["created with version 2", "upgraded"])
def any_tree(request: pytest.FixtureRequest, built: DocumentTree, icechunk2: Library, tmp_path: Path) -> DocumentTree:
    if request.param != "upgraded":
        return replace(built, builder=copy_of(built.builder, tmp_path / "repo"))
    old = document_tree(icechunk2, tmp_path / "repo", START, spec_version=1)
    old.builder.call("upgrade", delete_v1_files=True)
    return old


def test_undo_restores_the_history_and_keeps_later_commits(any_tree: DocumentTree):
    tree, builder = any_tree, any_tree.builder
    builder.branch("old", tree.ids[7])
    before, reads = repo_of(builder.path), everything(builder)[1]
    lake = lake_of(builder.path, tree.cutoff, delete_expired_branches=True)
    plan = plan_actions(lake, AS_OF)
    assert {action.action for action in plan} == {"edit_parent", "remove_snapshot", "delete_ref"}
    assert_done(expire(lake, AS_OF, plan))
    commit = builder.call("commit", writes=[set_value("values", 1, 6)], message="later")
    assert_done(list(lake.undo(plan)))
    after = repo_of(builder.path)
    assert {name: entry for name, entry in after.snapshots.items() if name != commit} == before.snapshots
    assert after.branches == before.branches | {"main": commit}
    found = everything(builder)[1]
    assert {name: found[name] for name in reads} == reads
    assert messages(builder)[:2] == ["later", "snapshot 14"]
    assert verdicts(lake.undo(plan)) == {"absent"}
    assert [(action.action, action.snapshot_id) for action in plan_actions(lake, AS_OF)] == [
        (action.action, action.snapshot_id) for action in plan
    ]


@pytest.mark.parametrize("folder", ["snapshots", "manifests", "transactions"])
def test_undo_refuses_a_history_with_a_missing_file(tree: DocumentTree, folder: str):
    lake = lake_of(tree.builder.path, tree.cutoff)
    plan = plan_actions(lake, AS_OF)
    assert_done(expire(lake, AS_OF, plan))
    lost = tree.ids[6]
    if folder == "manifests":
        lost = next(name for name in parse_manifests(tree, 6) if name not in parse_manifests(tree, 7) + parse_manifests(tree, 5))
    (tree.builder.path / folder / lost).rename(tree.builder.path / "lost")
    outcomes = list(lake.undo(plan))
    assert {outcome.verdict for outcome in outcomes} == {"done", "failed"}
    failed = next(outcome for outcome in outcomes if outcome.action.snapshot_id == tree.ids[6])
    assert f"{folder}/{lost}" in (failed.error or "")
    everything(tree.builder)
    (tree.builder.path / "lost").rename(tree.builder.path / folder / lost)
    assert verdicts(lake.undo(plan)) == {"done", "absent"}
    everything(tree.builder)


def parse_manifests(tree: DocumentTree, number: int) -> list[str]:
    file = tree.builder.path / "snapshots" / tree.ids[number]
    return [item.manifest_id for item in parse_snapshot(str(file), file.read_bytes(), SPEC_V1_AND_V2).manifest_files]


def test_killed_expiry_and_undo_are_completed_by_next_run(tree: DocumentTree, tmp_path: Path):
    lake = lake_of(tree.builder.path, tree.cutoff)
    plan = plan_actions(lake, AS_OF)
    states = [repo_of(tree.builder.path).snapshots]
    expired = copy_of(tree.builder, tmp_path / "expired")
    assert_done(expire(lake_of(expired.path, tree.cutoff), AS_OF, plan))
    states.append(repo_of(expired.path).snapshots)
    for start, change, wanted in ((tree.builder, expire_plan, states[1]), (expired, undo_plan, states[0])):
        for step in count(1, example_count(4, 1)):
            builder = copy_of(start, tmp_path / "killed")
            code = exit_code(kill_before, step, STEPS, change, lake_of(builder.path, tree.cutoff), plan)
            assert code in {0, -signal.SIGKILL}
            assert repo_of(builder.path).snapshots in states, "an edit is made completely or not at all"
            assert verdicts(change(lake_of(builder.path, tree.cutoff), plan)) <= {"done", "absent"}
            assert repo_of(builder.path).snapshots == wanted
            if code == 0:
                everything(builder)
            shutil.rmtree(builder.path)
            if code == 0:
                break
        assert step > 8


def expire_plan(lake: IcechunkLake, plan: Sequence[ExpiryAction]) -> list[ExpiryOutcome]:
    return expire(lake, AS_OF, plan)


def undo_plan(lake: IcechunkLake, plan: Sequence[ExpiryAction]) -> list[ExpiryOutcome]:
    return list(lake.undo(plan))
