"""Random histories, compared with the library (`icechunk-v1`, dangling snapshots) and with a literal reading of the document (`seed`)."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.retention import retain
from gc_assets.lakes.protocol import Commit, FrozenRefs, Ref
from tests.depth import example_count, in_turn
from tests.lakes.icechunk.builder import RandomTree, random_tree
from tests.lakes.icechunk.icechunk_lakes import FAR_FUTURE, commits_of, edits, graph_of, in_state, lake_at, retention_of

pytestmark = in_turn

START = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = datetime(2026, 2, 1, tzinfo=UTC)
GROUPS = example_count(2, 20)
TREES_A_GROUP = 12


def ancestry(parents: dict[str, str | None], head: str) -> list[str]:
    walk = [head]
    while (parent := parents[walk[-1]]) is not None:
        walk.append(parent)
    return walk


def reach(parents: dict[str, str | None], heads: list[str]) -> set[str]:
    return {snapshot for head in heads for snapshot in ancestry(parents, head)}


def heads_of(repo: icechunk.Repository) -> list[str]:
    return [*map(repo.lookup_branch, repo.list_branches()), *map(repo.lookup_tag, repo.list_tags())]


def seed_by_document(
    parents: dict[str, str | None], times: dict[str, datetime], heads: list[str], cutoff: datetime
) -> dict[str, str | None]:
    """Apply the four steps of the document to a copy of the history."""
    edited = dict(parents)
    for head in heads:
        if times[head] < cutoff:
            continue
        walk = ancestry(edited, head)
        editable = [snapshot for snapshot in walk if times[snapshot] >= cutoff][-1]
        if editable != walk[-1]:
            edited[editable] = walk[-1]
    return edited


def cutoffs(tree: RandomTree) -> list[datetime]:
    """Return a cut-off between two times and one at the time of a snapshot."""
    ordered = sorted(tree.times.values())
    return [ordered[len(ordered) // 2] + timedelta(seconds=1), ordered[len(ordered) * 2 // 3]]


def policy(cutoff: datetime, **more: str) -> dict:
    return {"default": {"keep": cutoff.isoformat()}, "dangling": cutoff.isoformat(), **more}


@pytest.mark.parametrize("monotonic", [True, False])
@pytest.mark.parametrize("group", range(GROUPS // 2))
def test_retention_of_random_trees_matches_icechunk_and_document(tmp_path: Path, group: int, monotonic: bool):
    for seed in range(group * TREES_A_GROUP, (group + 1) * TREES_A_GROUP):
        tree = random_tree(tmp_path / str(seed), seed, START, monotonic=monotonic)
        heads = heads_of(tree.builder.reopen())
        everything, now = set(tree.parents), reach(tree.parents, heads)
        cutoff = cutoffs(tree)[seed % 2]
        young_dangling = [snapshot for snapshot in everything - now if tree.times[snapshot] >= cutoff]

        edited = seed_by_document(tree.parents, tree.times, heads, cutoff)
        by_text, spared = reach(edited, heads), reach(edited, young_dangling)
        ours = retention_of(lake_at(tree.builder.path, policy(cutoff), semantics="seed"), AS_OF)
        assert in_state(ours, "expired") == now - by_text - spared, seed
        assert in_state(ours, "dangling") == everything - now - spared, seed

        ours = retention_of(lake_at(tree.builder.path, policy(cutoff), semantics="icechunk-v1"), AS_OF)
        sister = tmp_path / f"sister{seed}"
        shutil.copytree(tree.builder.path, sister)
        storage = icechunk.local_filesystem_storage(str(sister))
        collected = icechunk.Repository.open(storage).garbage_collect(FAR_FUTURE, dry_run=True)
        assert collected.snapshots_deleted == len(everything - now), seed
        try:
            icechunk.Repository.open(storage).expire_snapshots(cutoff)
        except BaseException as error:
            if "PanicException" not in type(error).__name__:
                raise
            assert any("wrong clock" in note for note in ours.notes), seed
            continue
        frozen = lake_at(sister).freeze(AS_OF)
        parents = {commit.commit_id: next(iter(commit.parents), None) for commit in commits_of(lake_at(sister), frozen)}
        by_library, spared = reach(parents, heads), reach(parents, young_dangling)
        assert in_state(ours, "expired") == now - by_library - spared, seed
        collected = icechunk.Repository.open(storage).garbage_collect(FAR_FUTURE, dry_run=True)
        assert collected.snapshots_deleted == len(everything - by_library), seed


@pytest.mark.parametrize("group", range(example_count(2, 4)))
def test_deletion_of_expired_refs_matches_icechunk(tmp_path: Path, group: int):
    for seed in range(1000 + group * TREES_A_GROUP, 1000 + (group + 1) * TREES_A_GROUP):
        tree = random_tree(tmp_path / str(seed), seed, START)
        cutoff = cutoffs(tree)[seed % 2]
        everything, now = set(tree.parents), reach(tree.parents, heads_of(tree.builder.reopen()))
        young_dangling = [snapshot for snapshot in everything - now if tree.times[snapshot] >= cutoff]
        expiry = {"semantics": "icechunk-v1", "delete_expired_tags": True, "delete_expired_branches": True}
        ours = retention_of(lake_at(tree.builder.path, policy(cutoff, tags="policy"), **expiry), AS_OF)
        repo = tree.builder.reopen()
        repo.expire_snapshots(cutoff, delete_expired_branches=True, delete_expired_tags=True)
        lake = lake_at(tree.builder.path)
        parents = {commit.commit_id: next(iter(commit.parents), None) for commit in commits_of(lake, lake.freeze(AS_OF))}
        spared = reach(parents, young_dangling)
        assert in_state(ours, "expired") == now - reach(parents, heads_of(tree.builder.reopen())) - spared, seed


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[int | None, int]], list[tuple[str, int, object]]]:
    """Snapshots as (parent, hour), refs as (name, head, cut-off)."""
    count = draw(st.integers(1, 14))
    snapshots = [(draw(st.integers(0, n - 1)) if n else None, draw(st.integers(0, 30))) for n in range(count)]
    cutoff = st.one_of(st.just("forever"), st.integers(1, 5), st.integers(0, 30).map(lambda hour: START + timedelta(hours=hour)))
    refs = [(f"r{n}", draw(st.integers(0, count - 1)), draw(cutoff)) for n in range(draw(st.integers(1, 5)))]
    return snapshots, refs


@settings(max_examples=300, deadline=None)
@given(histories(), st.sampled_from(["seed", "icechunk-v1"]))
def test_kept_snapshots_stay_in_the_history_of_their_ref(drawn, semantics: str):
    snapshots, refs = drawn
    retention = retain(*inputs(snapshots, refs, semantics))
    parents = dict(enumerate(parent for parent, _ in snapshots))
    for row in retention.expiry.to_pylist():
        parents[int(row["snapshot_id"])] = int(row["new_parent_id"])
    for _, head, cutoff in refs:
        walk = numbered_walk(dict(enumerate(parent for parent, _ in snapshots)), head)
        kept = kept_by(cutoff, walk, snapshots)
        after = numbered_walk(parents, head)
        assert set(kept) <= set(after)
        assert walk[-1] == after[-1], "the first snapshot stays the first"
        assert [snapshot for snapshot in walk if snapshot in after] == after, "nothing is reordered"
        last = walk.index(kept[-1]) if kept else -1
        assert after[: last + 1] == walk[: last + 1], "what is kept stays connected as it was"


@settings(max_examples=300, deadline=None)
@given(histories(), st.sampled_from(["seed", "icechunk-v1"]))
def test_snapshot_states_match_reachability_after_planned_edits(drawn, semantics: str):
    snapshots, refs = drawn
    retention = retain(*inputs(snapshots, refs, semantics))
    before = dict(enumerate(parent for parent, _ in snapshots))
    after = dict(before)
    for row in retention.expiry.to_pylist():
        assert row["action"] == "edit_parent"
        after[int(row["snapshot_id"])] = int(row["new_parent_id"])
    now = {n for _, head, _ in refs for n in numbered_walk(before, head)}
    then = {n for _, head, _ in refs for n in numbered_walk(after, head)}
    assert {int(s) for s in in_state(retention, "expired")} == now - then
    for row in retention.reachable.to_pylist():
        through = sorted(name for name, head, _ in refs if int(row["commit_id"]) in numbered_walk(before, head))
        assert row["refs"] == through
        assert row["refs_count"] == len(through)


@settings(max_examples=300, deadline=None)
@given(histories(), st.sampled_from(["seed", "icechunk-v1"]), st.data())
def test_next_plan_contains_exactly_remaining_edits(drawn, semantics: str, data: st.DataObject):
    snapshots, refs = drawn
    plan = edits(retain(*inputs(snapshots, refs, semantics)))
    made = data.draw(st.sets(st.sampled_from(sorted(plan)))) if plan else set()
    later = [(int(plan[str(n)]) if str(n) in made else parent, hour) for n, (parent, hour) in enumerate(snapshots)]
    assert edits(retain(*inputs(later, refs, semantics))) == {snapshot: parent for snapshot, parent in plan.items() if snapshot not in made}


def inputs(snapshots, refs, semantics: str):
    commits = [
        Commit(str(n), () if parent is None else (str(parent),), START + timedelta(hours=hour), ())
        for n, (parent, hour) in enumerate(snapshots)
    ]
    rules = [{"match": name, "keep": cutoff} for name, _, cutoff in refs]
    # All unreachable snapshots are older than this, so that only refs keep snapshots.
    retention = {"default": {"keep": FAR_FUTURE}, "refs": rules}
    config = IcechunkLakeConfig.model_validate(
        {"name": "x", "kind": "icechunk", "location": "/x", "retention": retention, "expiry": {"semantics": semantics}}
    )
    frozen = FrozenRefs("x", "icechunk", tuple(Ref(name, "branch", str(head)) for name, head, _ in refs), (), (), ())
    return frozen, graph_of(commits), AS_OF, FAR_FUTURE, config


def numbered_walk(parents, head: int) -> list[int]:
    walk = [head]
    while parents[walk[-1]] is not None:
        walk.append(parents[walk[-1]])
    return walk


def kept_by(cutoff, walk: list[int], snapshots) -> list[int]:
    if cutoff == "forever":
        return walk
    if isinstance(cutoff, int):
        return walk[:cutoff]
    return [n for n in walk if START + timedelta(hours=snapshots[n][1]) >= cutoff]
