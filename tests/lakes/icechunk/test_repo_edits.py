"""Edits of `repo` as a function of its content, compared with an independent model on random histories."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.core.errors import FormatError
from gc_assets.lakes.icechunk.ids import spell_one
from gc_assets.lakes.icechunk.repo_edits import LogEntry, RepoEdits, apply_edits, entry_document, needed_snapshots, parse_entry
from gc_assets.lakes.icechunk.repo_execution import decide
from gc_assets.lakes.icechunk.repo_info import RepoInfo, SnapshotInfo
from gc_assets.lakes.icechunk.repo_restore import decide_restore
from gc_assets.lakes.icechunk.repo_updates import Availability, RepoStatus, Update, UpdateKind
from gc_assets.lakes.protocol import ExpiryAction

SOURCE = "file:///data/repo"


def name_of(number: int) -> str:
    return spell_one(number.to_bytes(12, "big"))


IDS = [name_of(number) for number in range(30)]
ENTRY = LogEntry(UpdateKind.EXPIRATION_RAN, 10_000, "repo.0.A")


def entry(number: int, parent: int | None, *pruned: int) -> SnapshotInfo:
    metadata = (("author", bytes([number, 255])),)
    return SnapshotInfo(
        IDS[number], None if parent is None else IDS[parent], 100 + number, f"commit {number} é", metadata, tuple(IDS[at] for at in pruned)
    )


def repository(*entries: SnapshotInfo, tags: dict[str, int] | None = None, **branches: int) -> RepoInfo:
    return RepoInfo(
        header_spec=2,
        spec_version=2,
        branches={name: IDS[head] for name, head in sorted(branches.items())},
        tags={name: IDS[head] for name, head in sorted((tags or {}).items())},
        deleted_tags=("b",),
        snapshots={item.snapshot_id: item for item in sorted(entries, key=lambda item: item.snapshot_id)},
        status=RepoStatus(Availability.ONLINE, 5),
        metadata=(("owner", b"\1"),),
        updates=(
            Update(UpdateKind.NEW_COMMIT, {"branch": "main", "new_snap_id": IDS[0]}, 500),
            Update(UpdateKind.REPO_INITIALIZED, {}, 400, "old"),
        ),
        config=b"config",
        disabled_flags=(3,),
        extra=b"later",
    )


def line(count: int, **refs: int) -> RepoInfo:
    return repository(*(entry(number, number - 1 if number else None) for number in range(count)), **refs)


def edit(number: int, old: int, new: int) -> ExpiryAction:
    return ExpiryAction("edit_parent", IDS[number], "", "branch", "main", IDS[old], IDS[new], details="{}")


def edit_of(info: RepoInfo, number: int, new: int) -> ExpiryAction:
    """Return an edit with the entry of the snapshot, as in a plan."""
    item = info.snapshots[IDS[number]]
    return ExpiryAction("edit_parent", IDS[number], "", "branch", "main", item.parent_id, IDS[new], details=entry_document(item))


def removal(info: RepoInfo, number: int) -> ExpiryAction:
    item = info.snapshots[IDS[number]]
    return ExpiryAction("remove_snapshot", IDS[number], "", old_parent_id=item.parent_id, details=entry_document(item))


def deletion(ref_type: str, name: str, head: int) -> ExpiryAction:
    return ExpiryAction("delete_ref", IDS[head], "", ref_type, name, details="{}")


def test_parent_edit_keeps_logs_of_skipped_snapshots_oldest_first():
    info = repository(entry(0, None), entry(1, 0), entry(2, 1, 20, 21), entry(3, 2), entry(4, 3, 22), main=4)
    edits = RepoEdits(parents={IDS[4]: IDS[0]}, removed={IDS[1], IDS[2], IDS[3]})
    edited = apply_edits(SOURCE, info, edits, ENTRY).snapshots[IDS[4]]
    assert edited == replace(info.snapshots[IDS[4]], parent_id=IDS[0], pruned_logs=tuple(IDS[at] for at in (1, 20, 21, 2, 3, 22)))


def test_edit_adds_operations_log_entry_and_keeps_other_content():
    info = line(3, main=2)
    edited = apply_edits(SOURCE, info, RepoEdits(parents={IDS[2]: IDS[0]}, removed={IDS[1]}), ENTRY)
    newest, previous, first = edited.updates
    assert newest == Update(UpdateKind.EXPIRATION_RAN, {}, 10_000)
    assert previous == replace(info.updates[0], backup_path="repo.0.A")
    assert first == info.updates[1]
    assert list(edited.snapshots) == [IDS[0], IDS[2]]
    assert replace(edited, updates=info.updates, snapshots=info.snapshots) == info


def test_log_entry_is_newer_than_previous_one_if_clock_is_behind():
    edited = apply_edits(SOURCE, line(1, main=0), RepoEdits(), replace(ENTRY, now_us=20))
    assert edited.updates[0].updated_us == 501


def test_operations_log_over_limit_continues_in_copy():
    updates = (
        Update(UpdateKind.GC_RAN, {}, 500),
        *(Update(UpdateKind.GC_RAN, {}, 490 - at, None if at == 1 else f"copy {at}") for at in range(5)),
    )
    info = replace(line(1, main=0), updates=updates, repo_before_updates="older")
    edited = apply_edits(SOURCE, info, RepoEdits(), replace(ENTRY, max_updates=3))
    assert [update.backup_path for update in edited.updates] == [None, "repo.0.A", "copy 0", None]  # an entry without a copy stays
    assert edited.repo_before_updates == "copy 2"
    assert apply_edits(SOURCE, info, RepoEdits(), replace(ENTRY, max_updates=7)).repo_before_updates == "older"


def test_deleted_branch_name_can_be_reused_but_tag_name_cannot():
    info = repository(entry(0, None), entry(1, 0), main=0, old=1, tags={"a": 1, "c": 0})
    edited = apply_edits(SOURCE, info, RepoEdits(deleted_refs={("tag", "a"), ("branch", "old")}, removed={IDS[1]}), ENTRY)
    assert edited.branches == {"main": IDS[0]}
    assert edited.tags == {"c": IDS[0]}
    assert edited.deleted_tags == ("a", "b")


@pytest.mark.parametrize(
    "edits, message",
    [
        (RepoEdits(removed={IDS[2]}), "'main' at snapshot"),
        (RepoEdits(removed={IDS[1]}), "with the parent"),
        (RepoEdits(deleted_refs={("branch", "main")}), "no branch 'main'"),
        (RepoEdits(parents={IDS[1]: IDS[2]}), "is not an ancestor"),
        (RepoEdits(restored={IDS[0]: entry(0, 2)}), "its own ancestor"),
    ],
)
def test_edit_that_icechunk_could_not_read_is_refused(edits: RepoEdits, message: str):
    with pytest.raises(FormatError, match=message):
        apply_edits(SOURCE, line(3, main=2), edits, ENTRY)


def test_snapshot_entry_round_trips_through_json():
    item = replace(entry(3, 2, 7, 8), message='é "\n', metadata=(("", b""), ("ü", bytes(range(256)))))
    assert parse_entry(item.snapshot_id, item.parent_id, entry_document(item)) == item
    with pytest.raises(FormatError, match="damaged details"):
        parse_entry(item.snapshot_id, item.parent_id, '{"flushed_us": 1}')


def test_parent_of_commit_made_after_plan_is_kept():
    info = repository(entry(0, None), entry(1, 0), entry(2, 1), entry(3, 2), entry(4, 1), main=3, new=4)
    plan = [edit(3, 2, 0), removal(info, 1), removal(info, 2)]
    decision = decide(plan, info, plan)
    assert {outcome.action.snapshot_id: outcome.verdict for outcome in decision.settled} == {IDS[1]: "changed"}
    edited = apply_edits(SOURCE, info, decision.edits, ENTRY)
    assert list(edited.snapshots) == [IDS[0], IDS[1], IDS[3], IDS[4]]


def test_snapshot_is_not_removed_before_its_child_is_edited():
    info = line(4, main=3)
    plan = [edit(3, 2, 0), removal(info, 1), removal(info, 2)]
    decision = decide(plan, info, plan[1:])  # the policy no longer requires the edit
    assert [outcome.verdict for outcome in decision.settled] == ["changed"] * 3
    assert not decision.edits


def test_ref_is_not_deleted_if_required_edit_is_missing_from_plan():
    info = repository(entry(0, None), entry(1, 0), entry(2, 1), entry(3, 2), main=3, tags={"a": 2})
    required = [edit(3, 2, 0), deletion("tag", "a", 2), removal(info, 1), removal(info, 2)]
    assert [outcome.verdict for outcome in decide(required[1:], info, required).settled] == ["changed"] * 3
    assert not decide(required, info, required).settled


def test_spec_version_1_plan_does_not_change_version_2_repository():
    info = line(4, main=3)
    plan = [replace(edit(3, 2, 0), details=None)]
    (outcome,) = decide(plan, info, plan).settled
    assert outcome.verdict == "changed"
    assert "plan again" in (outcome.error or "")


@pytest.mark.parametrize("availability", [Availability.READ_ONLY, Availability.OFFLINE])
def test_repository_is_edited_only_if_online(availability: Availability):
    info = replace(line(4, main=3), status=RepoStatus(availability, 5, "audit"))
    plan = [edit(3, 2, 0), removal(info, 1), removal(info, 2)]
    for decision in (decide(plan, info, plan), decide_restore([*plan, removal_of_unlisted()], info, {})):
        assert not decision.edits
        assert {outcome.verdict for outcome in decision.settled} <= {"failed", "absent", "changed"}
    assert "(audit)" in (decide(plan, info, plan).settled[0].error or "")


def removal_of_unlisted() -> ExpiryAction:
    return ExpiryAction("remove_snapshot", IDS[9], "", old_parent_id=IDS[0], details=entry_document(entry(9, 0)))


def test_tag_is_kept_if_its_deletion_is_disabled():
    info = replace(repository(entry(0, None), entry(1, 0), main=0, tags={"a": 1}), disabled_flags=(5,))
    plan = [deletion("tag", "a", 1), removal(info, 1)]
    decision = decide(plan, info, plan)
    assert [outcome.verdict for outcome in decision.settled] == ["changed", "changed"]
    assert "delete_tag" in (decision.settled[0].error or "")


def test_main_is_never_deleted():
    info = line(1, main=0)
    plan = [deletion("branch", "main", 0)]
    assert [outcome.verdict for outcome in decide(plan, info, plan).settled] == ["denied"]


def test_executed_plan_has_outcome_absent():
    info = repository(entry(0, None), entry(1, 0), entry(2, 1), main=2, old=1)
    plan = [edit(2, 1, 0), removal(info, 1), deletion("branch", "old", 1)]
    edited = apply_edits(SOURCE, info, decide(plan, info, plan).edits, ENTRY)
    assert [outcome.verdict for outcome in decide(plan, edited, []).settled] == ["absent"] * 3


def test_undo_of_deleted_tag_suggests_another_name():
    info = repository(entry(0, None), entry(1, 0), main=0, tags={"a": 1})
    plan = [deletion("tag", "a", 1)]
    edited = apply_edits(SOURCE, info, decide(plan, info, plan).edits, ENTRY)
    (outcome,) = decide_restore(plan, edited, {}).settled
    assert outcome.verdict == "failed"
    assert "another name" in (outcome.error or "")


def test_undo_of_spec_version_1_plan_changes_nothing():
    info = line(4, main=3)
    plan = [replace(edit(3, 1, 2), details=None)]
    decision = decide_restore(plan, info, {})
    assert not decision.edits
    assert "upgraded since" in (decision.settled[0].error or "")


def test_undo_refuses_a_history_with_a_missing_file():
    info = line(5, main=4)
    plan = [edit(4, 3, 0), *(removal(info, number) for number in (1, 2, 3))]
    edited = apply_edits(SOURCE, info, decide(plan, info, plan).edits, ENTRY)
    decision = decide_restore(plan, edited, {IDS[2]: "a manifest is missing"})
    assert {outcome.action.snapshot_id: outcome.verdict for outcome in decision.settled} == {
        IDS[2]: "failed",
        IDS[3]: "failed",
        IDS[4]: "failed",
    }
    assert set(apply_edits(SOURCE, edited, decision.edits, ENTRY).snapshots) == {IDS[0], IDS[1], IDS[4]}


def expired_by_plan_and_rewritten_by_older_icechunk() -> tuple[RepoInfo, list[ExpiryAction], RepoInfo]:
    """Return a repository, a plan, and the content after the plan and a commit of icechunk 2.0, which drops the logs of ancestors."""
    info = repository(entry(0, None), entry(1, 0), entry(2, 1, 20, 21), entry(3, 2), entry(4, 3, 22), main=4)
    plan = [edit_of(info, 4, 0), *(removal(info, number) for number in (1, 2, 3))]
    edited = apply_edits(SOURCE, info, decide(plan, info, plan).edits, ENTRY)
    return info, plan, replace(edited, snapshots={name: replace(item, pruned_logs=()) for name, item in edited.snapshots.items()})


def test_undo_takes_logs_from_plan_if_older_icechunk_dropped_them():
    info, plan, rewritten = expired_by_plan_and_rewritten_by_older_icechunk()
    decision = decide_restore(plan, rewritten, {})
    assert not decision.settled
    assert apply_edits(SOURCE, rewritten, decision.edits, ENTRY).snapshots == info.snapshots


def test_undo_refuses_entry_without_logs_that_differs_from_plan():
    _, plan, rewritten = expired_by_plan_and_rewritten_by_older_icechunk()
    other = replace(rewritten.snapshots[IDS[4]], message="another commit")
    (outcome,) = decide_restore(plan, replace(rewritten, snapshots={**rewritten.snapshots, IDS[4]: other}), {}).settled
    assert outcome.verdict == "failed"
    assert "icechunk 2.0 drops them" in (outcome.error or "")


@st.composite
def cases(draw: st.DrawFn) -> tuple[RepoInfo, list[ExpiryAction]]:
    """A random tree with one root, refs, and a plan. Some snapshots are removed, and the others get a kept ancestor as parent."""
    count = draw(st.integers(2, 12))
    parents = [None if number == 0 else draw(st.integers(0, number - 1)) for number in range(count)]
    pruned = [draw(st.integers(0, 2)) if number else 0 for number in range(count)]
    logs = iter(range(count, 200))
    entries = [
        replace(entry(number, parents[number]), pruned_logs=tuple(name_of(next(logs)) for _ in range(pruned[number])))
        for number in range(count)
    ]
    heads = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4))
    tagged = draw(st.lists(st.integers(0, count - 1), max_size=3))
    info = repository(
        *entries,
        tags={f"t{at}": head for at, head in enumerate(tagged)},
        main=heads[0],
        **{f"r{at}": head for at, head in enumerate(heads)},
    )
    deleted = [deletion("tag", f"t{at}", head) for at, head in enumerate(tagged) if draw(st.booleans())]
    deleted += [deletion("branch", f"r{at}", head) for at, head in enumerate(heads) if draw(st.booleans())]
    gone = {("tag" if action.ref_type == "tag" else "branch", action.ref_name) for action in deleted}
    kept = {0, heads[0], *draw(st.sets(st.integers(0, count - 1)))}
    kept |= {head for at, head in enumerate(tagged) if ("tag", f"t{at}") not in gone}
    kept |= {head for at, head in enumerate(heads) if ("branch", f"r{at}") not in gone}
    plan = list(deleted)
    for number in range(1, count):
        ancestors = []
        at = parents[number]
        while at is not None:
            ancestors.append(at)
            at = parents[at]
        if number not in kept:
            plan.append(removal(info, number))
        elif parents[number] not in kept:
            plan.append(edit(number, ancestors[0], draw(st.sampled_from([at for at in ancestors if at in kept]))))
    return info, plan


@settings(max_examples=300, deadline=None)
@given(cases(), st.data())
def test_random_plans_make_planned_edits_and_can_be_undone(case: tuple[RepoInfo, list[ExpiryAction]], data: st.DataObject):
    info, plan = case
    decision = decide(plan, info, plan)
    assert not decision.settled
    edited = apply_edits(SOURCE, info, decision.edits, ENTRY)
    removed = {action.snapshot_id for action in plan if action.action == "remove_snapshot"}
    assert edited.snapshots.keys() == info.snapshots.keys() - removed
    for snapshot_id, item in edited.snapshots.items():
        assert logs_to_root(edited, snapshot_id) == logs_to_root(info, snapshot_id), "no log is lost on the way to the root"
        assert replace(item, parent_id=None, pruned_logs=()) == replace(info.snapshots[snapshot_id], parent_id=None, pruned_logs=())
    undone = apply_edits(SOURCE, edited, decide_restore(data.draw(st.permutations(plan)), edited, {}).edits, ENTRY)
    assert undone.snapshots == info.snapshots
    assert undone.branches == info.branches
    assert {*undone.tags, *undone.deleted_tags} == {*info.tags, "b"}


def logs_to_root(info: RepoInfo, snapshot_id: str) -> list[str]:
    """Return the transaction logs from the root to a snapshot, oldest first, without the root's."""
    logs: list[str] = []
    at = info.snapshots[snapshot_id]
    while at.parent_id is not None:
        logs = [*at.pruned_logs, at.snapshot_id, *logs]
        at = info.snapshots[at.parent_id]
    return [log for log in logs if log != at.snapshot_id]


@settings(max_examples=300, deadline=None)
@given(cases(), st.data())
def test_any_part_of_plan_leaves_valid_repository_and_can_be_undone(case: tuple[RepoInfo, list[ExpiryAction]], data: st.DataObject):
    info, plan = case
    approved = data.draw(st.lists(st.sampled_from(plan), unique=True)) if plan else []
    required = data.draw(st.lists(st.sampled_from(plan), unique=True)) if plan else []
    moved = data.draw(st.dictionaries(st.sampled_from(["main", "new"]), st.sampled_from(sorted(info.snapshots))))
    now = replace(info, branches=dict(sorted((info.branches | moved).items())))
    decision = decide(approved, now, required)
    assert len(decision.settled) + len(decision.accepted) == len(approved)
    edited = apply_edits(SOURCE, now, decision.edits, ENTRY)
    assert edited.snapshots.keys() >= needed_snapshots(
        now, RepoEdits(parents=decision.edits.parents, deleted_refs=decision.edits.deleted_refs, removed=now.snapshots.keys())
    )
    assert {
        action.snapshot_id for action in decision.accepted if action.action == "remove_snapshot"
    } == now.snapshots.keys() - edited.snapshots.keys()
    undone = apply_edits(SOURCE, edited, decide_restore(decision.accepted, edited, {}).edits, ENTRY)
    assert undone.snapshots == now.snapshots
    assert undone.branches == now.branches
