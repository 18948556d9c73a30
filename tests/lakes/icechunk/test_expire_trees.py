"""Expiry of random histories, compared with the library (`icechunk-v1`) and with a literal reading of the document."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk
import pytest
import zarr

from tests.depth import example_count
from tests.lakes.icechunk.builder import RandomTree, random_tree
from tests.lakes.icechunk.icechunk_lakes import FAR_FUTURE, expire, files_of, lake_at, parents_now, plan_actions, verdicts
from tests.stores.builders import memory_directory

START = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = datetime(2026, 2, 1, tzinfo=UTC)
GROUPS, TREES_A_GROUP = example_count(1, 15), 20
Ref = tuple[str, str]


def open_repository(path: Path) -> icechunk.Repository:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))


def refs_of(repo: icechunk.Repository) -> dict[Ref, str]:
    return {("branch", name): repo.lookup_branch(name) for name in repo.list_branches()} | {
        ("tag", name): repo.lookup_tag(name) for name in repo.list_tags()
    }


def ancestry(parents: Mapping[str, str | None], head: str) -> list[str]:
    walk = [head]
    while (parent := parents[walk[-1]]) is not None:
        walk.append(parent)
    return walk


def reach(parents: Mapping[str, str | None], heads: Iterable[str]) -> set[str]:
    return {snapshot for head in heads for snapshot in ancestry(parents, head)}


def expire_by_document(
    tree: RandomTree, refs: Mapping[Ref, str], removable: set[Ref], cutoff: datetime, semantics: str
) -> tuple[dict[str, str | None], set[Ref]]:
    """Return the parents after expiry and the deleted refs, by the steps of the document.

    A ref is deleted if its whole history is expired and no other ref reaches its snapshot afterwards.
    """
    times, edited = tree.times, dict(tree.parents)
    expired_refs = {ref for ref in removable if all(times[snapshot] < cutoff for snapshot in ancestry(tree.parents, refs[ref]))}
    remaining = [head for ref, head in refs.items() if ref not in expired_refs]
    for head in remaining:
        walk = ancestry(edited, head)
        if semantics == "seed" and times[head] < cutoff:
            continue
        editable = [head, *(snapshot for snapshot in walk if times[snapshot] >= cutoff)][-1]
        if editable != walk[-1]:
            edited[editable] = walk[-1]
    still_reached = reach(edited, remaining)
    return edited, {ref for ref in expired_refs if refs[ref] not in still_reached}


class Case:
    """A random tree, a cut-off between or at its times, and the refs that may be deleted."""

    def __init__(self, path: Path, seed: int) -> None:
        self.monotonic = seed % 3 != 0
        self.tree = random_tree(path / "tree", seed, START, monotonic=self.monotonic)
        rnd = random.Random(-seed)
        ordered = sorted(self.tree.times.values())
        self.cutoff = rnd.choice(ordered) + rnd.choice([timedelta(0), timedelta(seconds=1)])
        self.delete_tags, self.delete_branches = rnd.random() < 0.4, rnd.random() < 0.4
        self.refs = refs_of(self.tree.builder.reopen())
        self.removable = {
            ref
            for ref in self.refs
            if (ref[0] == "tag" and self.delete_tags) or (ref[0] == "branch" and self.delete_branches and ref[1] != "main")
        }

    @property
    def deletes(self) -> bool:
        return self.delete_tags or self.delete_branches

    def copy(self, path: Path) -> Path:
        return Path(shutil.copytree(self.tree.builder.path, path))

    def expire_copy(self, path: Path, semantics: str) -> Path:
        """Expire a copy, and assert that all actions are done and no action remains."""
        lake = lake_at(
            self.copy(path),
            {"default": {"keep": self.cutoff.isoformat()}, "tags": "policy" if self.delete_tags else "keep"},
            semantics=semantics,
            delete_expired_tags=self.delete_tags,
            delete_expired_branches=self.delete_branches,
        )
        plan = plan_actions(lake, AS_OF)
        assert verdicts(expire(lake, AS_OF, plan)) <= {"done"}
        assert plan_actions(lake, AS_OF) == []
        return path


@pytest.mark.parametrize("group", range(GROUPS))
def test_expiry_of_random_trees_matches_icechunk_and_document(group: int):
    compared = 0
    for seed in range(group * TREES_A_GROUP, (group + 1) * TREES_A_GROUP):
        with memory_directory() as base:
            case = Case(base, seed)
            for semantics in ("seed", "icechunk-v1"):
                assert_equals_document(case, case.expire_copy(base / semantics, semantics), semantics, seed)
            compared += equals_library(case, base / "icechunk-v1", case.copy(base / "sister"), seed)
            if seed % 10 == 0:
                assert_snapshots_readable(base / "seed", case)
    assert compared > TREES_A_GROUP // 3


def assert_equals_document(case: Case, ours: Path, semantics: str, seed: int) -> None:
    parents, deleted = expire_by_document(case.tree, case.refs, case.removable, case.cutoff, semantics)
    assert parents_now(lake_at(ours), AS_OF) == parents, seed
    repo = open_repository(ours)
    assert refs_of(repo) == {ref: head for ref, head in case.refs.items() if ref not in deleted}, seed
    kept = reach(parents, refs_of(repo).values())
    assert repo.garbage_collect(FAR_FUTURE, dry_run=True).snapshots_deleted == len(parents) - len(kept), seed


def equals_library(case: Case, ours: Path, sister: Path, seed: int) -> bool:
    """Return False if the library panics or deletes a ref with a retained snapshot in its history."""
    before = reach(case.tree.parents, case.refs.values())
    try:
        released = open_repository(sister).expire_snapshots(
            case.cutoff, delete_expired_branches=case.delete_branches, delete_expired_tags=case.delete_tags
        )
    except BaseException as error:
        if "PanicException" not in type(error).__name__ or case.monotonic:
            raise
        return False
    if case.deletes and not case.monotonic:
        return False
    our_refs, their_refs = refs_of(open_repository(ours)), refs_of(open_repository(sister))
    parents = parents_now(lake_at(ours), AS_OF)
    still_reached = reach(parents, our_refs.values())
    assert their_refs.items() <= our_refs.items(), seed
    assert {our_refs[ref] for ref in our_refs.keys() - their_refs.keys()} <= reach(parents, their_refs.values()), "icechunk issue 1534"
    assert reach(parents_now(lake_at(sister), AS_OF), their_refs.values()) == still_reached, seed
    lost = before - still_reached
    # The library sometimes omits heads of deleted refs.
    assert released - still_reached == lost or (case.deletes and released - still_reached < lost), seed

    mine, theirs = files_of(ours, "snapshots"), files_of(sister, "snapshots")
    assert mine.keys() == theirs.keys()
    leftovers = {f"snapshots/{head}" for ref, head in case.refs.items() if ref not in our_refs}
    assert {name for name in mine if mine[name] != theirs[name]} <= leftovers, seed
    if not case.deletes:
        assert files_of(ours, ".") == files_of(sister, "."), seed
    found, wanted = (open_repository(path).garbage_collect(FAR_FUTURE, dry_run=True) for path in (ours, sister))
    for count in ("snapshots_deleted", "manifests_deleted", "chunks_deleted", "transaction_logs_deleted", "attributes_deleted"):
        assert getattr(found, count) == getattr(wanted, count), (seed, count)
    return True


def assert_snapshots_readable(ours: Path, case: Case) -> None:
    """Assert that all values are unchanged after a garbage collection by the library."""
    repo = open_repository(ours)
    kept = {info.id for ref in refs_of(repo).values() for info in repo.ancestry(snapshot_id=ref)}
    before = {snapshot: values(case.tree.builder.reopen(), snapshot) for snapshot in kept}
    repo.garbage_collect(FAR_FUTURE)
    assert {snapshot: values(open_repository(ours), snapshot) for snapshot in kept} == before


def values(repo: icechunk.Repository, snapshot: str) -> dict[str, list[int]]:
    store = repo.readonly_session(snapshot_id=snapshot).store
    try:
        group = zarr.open_group(store, mode="r")
    except FileNotFoundError:
        return {}  # the first snapshot is empty
    return {name: array[:].tolist() for name, array in group.arrays()}
