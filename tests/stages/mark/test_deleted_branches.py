"""Histories of idle branches that plans deleted, within the grace period. Without Spark."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.core.errors import LakeUnreadable, StoreError
from gc_assets.lakes.iceberg.config import IcebergRetention
from gc_assets.lakes.iceberg.retention import retain as retain_snapshots
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.graph import ENTRY
from gc_assets.lakes.icechunk.repository_settings import ONLINE, RepositorySettings
from gc_assets.lakes.icechunk.retention import retain
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH, RETAINED, Commit, CommitSource, FrozenRefs, Ref, Retention
from gc_assets.stages.mark.idle_branches import BranchLog, find_deleted_branches, keep_deleted
from tests.lakes.iceberg.snapshot_histories import UUID, branch, build_refs, chain, commit, graph, source
from tests.lakes.iceberg.snapshot_histories import retained_ids as retained_snapshots
from tests.lakes.icechunk.icechunk_lakes import FAR_FUTURE, deleted_refs, edits, graph_of, in_state, lake_at

AS_OF = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
LAKE = lake_at(Path("/x"))
LINE = [Commit(f"s{number}", (f"s{number - 1}",) if number > 1 else (), AS_OF - (100 - number) * DAY, ()) for number in range(1, 100)]


def log_row(outcome: str, **changes: Any) -> dict[str, Any]:
    row = {"plan_id": "p", "action": DELETE_IDLE_BRANCH, "table_uuid": None, "table_name": None, "ref_name": "tmp", "snapshot_id": "s95"}
    return {**row, "details": None, "outcome": outcome, "at": AS_OF - DAY, **changes}


def freeze(**branches: str) -> FrozenRefs:
    refs = tuple(Ref(name, "branch", head) for name, head in branches.items())
    properties = RepositorySettings(1, ONLINE, frozenset()).to_properties()
    return FrozenRefs("x", "icechunk", refs, (CommitSource("/x", properties=properties),), (), ())


def decide(
    commits: Sequence[Commit], refs: FrozenRefs, deleted: Sequence[Ref], retention: dict[str, Any], **expiry: Any
) -> tuple[Retention, Retention]:
    """Return the retention without deleted branches, and the one that keeps them."""
    document = {"name": "x", "kind": "icechunk", "location": "/x", "retention": retention, "expiry": expiry}
    config, table = IcechunkLakeConfig.model_validate(document), graph_of(commits)

    def apply(of: FrozenRefs) -> Retention:
        return retain(of, table, AS_OF, FAR_FUTURE, config)

    return apply(refs), keep_deleted(LAKE, refs, deleted, table, apply)


def follow(commits: Iterable[Commit], heads: Iterable[str], new_parents: dict[str, str]) -> set[str]:
    """Return the histories of the heads after the edits."""
    parents = {item.commit_id: next(iter(item.parents), None) for item in commits} | new_parents
    found: set[str] = set()
    for head in heads:
        at: str | None = head
        while at is not None and at not in found:
            found.add(at)
            at = parents[at]
    return found


def test_history_kept_only_for_undo_of_deleted_branch_is_not_edited() -> None:
    rules = {"default": "7d", "refs": [{"match": "tmp", "keep": "forever"}]}
    without, kept = decide(LINE, freeze(main="s99"), [Ref("tmp", "branch", "s95")], rules)
    assert edits(without) == {"s93": "s1"}
    assert (edits(kept), in_state(kept, "expired"), in_state(kept, "dangling")) == ({}, set(), set())


def test_rule_for_deleted_branch_applies_if_its_name_is_in_use_again() -> None:
    rules = {"default": "7d", "refs": [{"match": "tmp", "keep": "forever"}]}
    refs = freeze(main="s99", tmp="s3")
    deleted = find_deleted_branches(BranchLog.of([log_row("done")]), AS_OF - 3 * DAY, refs, graph_of(LINE))
    without, kept = decide(LINE, refs, deleted, rules)
    assert edits(without) == {"s93": "s1"}
    assert (edits(kept), in_state(kept, "expired")) == ({}, set())


def test_deleted_branch_with_shorter_retention_does_not_delay_edits() -> None:
    rules = {"default": "7d", "refs": [{"match": "tmp", "keep": "2d"}]}
    without, kept = decide(LINE, freeze(main="s99"), [Ref("tmp", "branch", "s95")], rules)
    assert kept == without
    assert edits(kept) == {"s93": "s1"}


@pytest.mark.parametrize("is_listed", [False, True], ids=["icechunk 1", "icechunk 2"])
def test_histories_stay_complete_for_undo_of_deleted_branches(*, is_listed: bool) -> None:
    """After the planned edits, the commits of existing and of deleted branches are all kept."""
    delayed = 0
    for seed in range(150):
        dice = random.Random(seed)
        commits = [Commit("c0", (), AS_OF - 50 * DAY, (), summary={ENTRY: "{}"} if is_listed else {})]
        for number in range(1, 30):
            parent = dice.choice(commits[-3:])
            at = parent.committed_at + dice.randrange(1, 4) * DAY
            commits.append(Commit(f"c{number}", (parent.commit_id,), at, (), summary=commits[0].summary))
        names = [item.commit_id for item in commits[5:]]
        refs = freeze(main=dice.choice(names), dev=dice.choice(names))
        deleted = [Ref(name, "branch", dice.choice(names)) for name in ("tmp-a", "tmp-b")]
        rules = [{"match": name, "keep": dice.choice(["forever", 2, "10d", "40d"])} for name in ("tmp-a", "tmp-b", "main")]
        expiry: dict[str, Any] = {"semantics": dice.choice(["seed", "icechunk"]), "delete_expired_branches": dice.random() < 0.5}
        without, kept = decide(commits, refs, deleted, {"default": "10d", "dangling": "5d", "refs": rules}, **expiry)
        heads = [str(ref.head_commit_id) for ref in (*refs.refs, *deleted) if ref.ref_name not in deleted_refs(kept)]
        assert follow(commits, heads, edits(kept)) <= in_state(kept, RETAINED), seed
        removed = {row["snapshot_id"] for row in kept.expiry.to_pylist() if row["action"] == "remove_snapshot"}
        assert removed == (in_state(kept, "expired") | in_state(kept, "dangling") if is_listed else set()), seed
        assert edits(kept).items() <= edits(without).items()
        new = in_state(kept, RETAINED) - in_state(without, RETAINED)
        assert new <= follow(commits, [str(ref.head_commit_id) for ref in deleted], {}), seed
        delayed += edits(kept) != edits(without)
    assert 10 < delayed < 100


def test_renamed_table_keeps_history_of_deleted_branch() -> None:
    commits = [*chain(100, 90), commit("tmp", "s0", 80)]
    refs = build_refs([branch("main", "s1", "db.new")], [source("db.new", max_snapshot_age_ms=1)])
    log = BranchLog.of([log_row("done", table_uuid=UUID, table_name="db.t", snapshot_id="tmp")])
    deleted = find_deleted_branches(log, AS_OF - 3 * DAY, refs, graph(commits))

    def apply(of: FrozenRefs) -> Retention:
        return retain_snapshots(of, graph(commits), AS_OF, FAR_FUTURE, IcebergRetention())

    assert retained_snapshots(apply(refs)) == {"s1"}
    assert retained_snapshots(keep_deleted(LAKE, refs, deleted, graph(commits), apply)) == {"s1", "tmp"}


@pytest.mark.parametrize(
    "rows, branches, is_kept",
    [
        ([log_row("done")], {}, True),
        ([log_row("done"), log_row("failed")], {}, True),
        ([log_row("done"), log_row("denied")], {}, True),
        ([log_row("changed")], {}, True),
        ([log_row("changed")], {"tmp": "s95"}, False),
        ([log_row("failed")], {"tmp": "s96"}, False),
        ([log_row("done")], {"tmp": "s96"}, True),
        ([log_row("done"), log_row("undone")], {}, False),
        ([log_row("done", at=AS_OF - 4 * DAY)], {}, False),
    ],
    ids=[
        "deleted",
        "failed undo",
        "denied undo",
        "ended after an interrupted apply",
        "not deleted",
        "moved before a failed deletion",
        "created again at another head",
        "undone and deleted by a user",
        "after the grace period",
    ],
)
def test_missing_branch_counts_as_deleted(rows: list[dict[str, Any]], branches: dict[str, str], is_kept: bool) -> None:
    found = find_deleted_branches(BranchLog.of(rows), AS_OF - 3 * DAY, freeze(main="s99", **branches), graph_of(LINE))
    assert [ref.head_commit_id for ref in found] == (["s95"] if is_kept else [])


def fail_if(name: str, error: Exception, commits: pa.Table, refs: FrozenRefs) -> Retention:
    if any(ref.ref_name == name for ref in refs.refs):
        raise error
    return retain_snapshots(refs, commits, AS_OF, FAR_FUTURE, IcebergRetention())


def test_unreadable_history_of_a_deleted_branch_keeps_all_commits_of_its_table() -> None:
    commits = graph([*chain(100, 90), *(commit(f"u{index}", None, 50 - index, "u", "db.u") for index in range(2))])
    sources = [source(max_snapshot_age_ms=1), source("db.u", "u", max_snapshot_age_ms=1)]
    refs = build_refs([branch("main", "s1"), branch("main", "u1", "db.u", "u")], sources)
    deleted, error = [branch("tmp", "s1")], LakeUnreadable("a damaged snapshot")
    kept = keep_deleted(LAKE, refs, deleted, commits, lambda of: fail_if("tmp", error, commits, of))
    assert retained_snapshots(kept) == {"s0", "s1", "u1"}
    assert {row["table_uuid"] for row in kept.expiry.to_pylist()} == {"u"}
    assert "the history of deleted idle branches (tmp) cannot be read, so their tables keep all commits" in kept.notes[-1]


@pytest.mark.parametrize("error, table", [(StoreError("the store does not answer"), UUID), (LakeUnreadable("damaged"), None)])
def test_store_error_and_unreadable_lake_without_tables_are_raised(error: Exception, table: str | None) -> None:
    refs, commits = build_refs([branch("main", "s1")], [source()]), graph(chain(100, 90))
    with pytest.raises(type(error), match=str(error)):
        keep_deleted(LAKE, refs, [Ref("tmp", "branch", "s1", table)], commits, lambda of: fail_if("tmp", error, commits, of))
