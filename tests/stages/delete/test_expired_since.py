"""Which commits the retention policy has expired since the last accepted run."""

from __future__ import annotations

import pytest

from gc_assets.lakes.protocol import DANGLING, EXPIRED, RETAINED
from gc_assets.stages.delete.expired_since import CommitName, CommitState, ExpiredCommits

COMMIT: CommitName = ("table", "c1")


def state(name: str, *refs: str, count: int | None = None) -> CommitState:
    return CommitState(name, frozenset(refs), len(refs) if count is None else count)


@pytest.mark.parametrize(
    "before, now, expected",
    [
        pytest.param(state(RETAINED, "main"), state(EXPIRED, "main"), True, id="the policy expired it"),
        pytest.param(state(RETAINED, "main"), state(EXPIRED, "main", "new"), True, id="a new ref reaches it too"),
        pytest.param(state(RETAINED, "main"), state(RETAINED, "main"), False, id="it is still retained"),
        pytest.param(state(RETAINED, "main"), state(DANGLING), False, id="no ref reaches it"),
        pytest.param(state(RETAINED, "main", "audit"), state(EXPIRED, "main"), False, id="a ref was moved or deleted"),
        pytest.param(state(RETAINED), state(EXPIRED, "main"), False, id="its refs are unknown, and a ref is lost"),
        pytest.param(state(RETAINED, "a", count=101), state(EXPIRED, "a", count=101), False, id="one of many refs may be lost"),
        pytest.param(None, state(EXPIRED, "main"), False, id="the accepted run did not have it"),
        pytest.param(state(RETAINED, "main"), None, False, id="this run does not have it"),
    ],
)
def test_commit_counts_as_expired_only_if_policy_expired_it(before: CommitState | None, now: CommitState | None, expected: bool) -> None:
    lost = frozenset({("table", "lost"), ("other", "main")})
    commits = ExpiredCommits({COMMIT: before} if before else {}, {COMMIT: now} if now else {}, lost_refs=lost)
    assert commits.contains(COMMIT) is expected


def test_ref_deleted_by_accepted_plan_does_not_count_as_missing() -> None:
    before, now = {COMMIT: state(RETAINED, "main", "old")}, {COMMIT: state(EXPIRED, "main")}
    assert not ExpiredCommits(before, now).contains(COMMIT)
    assert ExpiredCommits(before, now, deleted_refs=frozenset({("table", "old")})).contains(COMMIT)
    assert not ExpiredCommits(before, now, deleted_refs=frozenset({("other", "old")})).contains(COMMIT)


def test_commit_with_too_many_refs_to_record_counts_as_expired() -> None:
    many = state(RETAINED, "a", count=101)
    commits = ExpiredCommits({COMMIT: many}, {COMMIT: state(EXPIRED, "b", count=101)})
    assert commits.contains(COMMIT)
