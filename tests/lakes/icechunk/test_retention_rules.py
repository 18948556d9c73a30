"""The rules of retention on minimal histories. Snapshots are letters, times are days of January."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.graph import ENTRY
from gc_assets.lakes.icechunk.repository_settings import ONLINE, RepositorySettings
from gc_assets.lakes.icechunk.retention import retain
from gc_assets.lakes.protocol import Commit, CommitSource, ExpiryAction, FrozenRefs, Ref, Retention
from gc_assets.state.schemas import EXPIRY_PLAN, REACHABLE_SNAPSHOTS
from tests.lakes.icechunk.icechunk_lakes import FAR_FUTURE, deleted_refs, edits, graph_of, in_state, states

AS_OF = datetime(2026, 2, 1, tzinfo=UTC)


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


def history(*rows: tuple[str, str | None, int]) -> list[Commit]:
    """Commits as (id, parent, day)."""
    return [Commit(commit, () if parent is None else (parent,), day(at), ()) for commit, parent, at in rows]


LINE = history(("a", None, 1), ("b", "a", 2), ("c", "b", 3), ("d", "c", 20), ("e", "d", 25))


def decide(
    commits: list[Commit],
    branches: dict[str, str] | None = None,
    tags: dict[str, str] | None = None,
    retention: dict[str, Any] | None = None,
    grace_cutoff: datetime = FAR_FUTURE,
    made: tuple[ExpiryAction, ...] = (),
    spec_version: int = 1,
    **expiry: Any,
) -> Retention:
    config = {
        "name": "x",
        "kind": "icechunk",
        "location": "/x",
        "retention": retention or {"default": {"keep": "2026-01-10"}, "dangling": "2026-01-10"},
        "expiry": expiry,
    }
    refs = [Ref(name, "branch", head) for name, head in (branches or {}).items()]
    refs += [Ref(name, "tag", head) for name, head in (tags or {}).items()]
    source = CommitSource("/x", properties=RepositorySettings(spec_version, ONLINE, frozenset()).to_properties())
    frozen = FrozenRefs("x", "icechunk", tuple(refs), (source,), (), (), edits=made)
    return retain(frozen, graph_of(commits), AS_OF, grace_cutoff, IcechunkLakeConfig.model_validate(config))


def reason(retention: Retention, commit: str) -> str:
    return next(row["reason"] for row in retention.reachable.to_pylist() if row["commit_id"] == commit)


def test_snapshot_at_cutoff_is_kept_and_older_one_expires():
    retention = {"default": {"keep": "2026-01-03"}}
    assert in_state(decide(LINE, {"main": "e"}, retention=retention), "expired") == {"b"}
    just_after = {"default": {"keep": "2026-01-03T00:00:00.000001"}}
    assert in_state(decide(LINE, {"main": "e"}, retention=just_after), "expired") == {"b", "c"}


def test_all_snapshots_are_kept_without_policy():
    everything = decide(LINE, {"main": "c"}, retention={"tags": "keep"})
    assert set(states(everything).values()) == {"retained"}
    assert everything.expiry.num_rows == 0


def test_keep_last_ignores_age():
    retention = decide(LINE, {"main": "e"}, retention={"default": {"keep_last": 3}})
    assert edits(retention) == {"c": "a"}
    assert in_state(retention, "expired") == {"b"}


def test_snapshot_is_kept_by_age_or_count():
    retention = decide(LINE, {"main": "e"}, retention={"default": {"max_age": "1d", "keep_last": 2}})
    assert edits(retention) == {"d": "a"}


def test_first_matching_pattern_applies():
    rules = {"default": {"keep": "2026-01-10"}, "refs": [{"match": "ma.*", "keep": "forever"}, {"match": "main", "keep": 1}]}
    assert decide(LINE, {"main": "e"}, retention=rules).expiry.num_rows == 0


def test_ref_with_unlimited_retention_prevents_edits_of_ancestors():
    rules = {"default": {"keep": "2026-01-22"}, "refs": [{"match": "release", "keep": "forever"}]}
    commits = [*LINE, *history(("f", "e", 26))]
    retention = decide(commits, {"main": "f", "release": "e"}, retention=rules)
    assert retention.expiry.num_rows == 0
    assert "keeps its history permanently" in reason(retention, "b")


def test_ref_with_longer_retention_moves_edit_to_older_snapshot():
    rules = {"default": {"keep": "2026-01-22"}, "refs": [{"match": "release", "keep": "2026-01-03"}]}
    assert edits(decide(LINE, {"main": "e", "release": "e"}, retention=rules)) == {"c": "a"}
    apart = decide(LINE, {"main": "e", "release": "d"}, retention=rules)
    assert edits(apart) == {"e": "a", "c": "a"}, "release does not need e"


def test_tag_keeps_expired_snapshot():
    retention = decide(LINE, {"main": "e"}, {"old": "b"})
    assert states(retention)["b"] == "retained"
    assert in_state(retention, "expired") == {"c"}


def test_head_never_expires_in_both_semantics():
    for semantics in ("seed", "icechunk-v1"):
        kept = in_state(decide(LINE, {"main": "e", "old": "c"}, {"t": "b"}, semantics=semantics), "retained")
        assert {"e", "c", "b", "a"} <= kept


def test_expired_tag_is_deleted_with_its_history():
    policy = {"default": {"keep": "2026-01-10"}, "tags": "policy"}
    retention = decide(LINE, {"main": "e"}, {"old": "c"}, policy, delete_expired_tags=True)
    assert deleted_refs(retention) == {"old"}
    assert in_state(retention, "expired") == {"b", "c"}
    assert deleted_refs(decide(LINE, {"main": "e"}, {"old": "c"}, policy)) == set()


def test_expired_tag_on_retained_snapshot_is_kept():
    policy = {"default": {"keep": "2026-01-10"}, "tags": "policy"}
    assert deleted_refs(decide(LINE, {"main": "e"}, {"first": "a"}, policy, delete_expired_tags=True)) == set()
    assert deleted_refs(decide(LINE, {"main": "c"}, {"tip": "c"}, policy, delete_expired_tags=True)) == set()


def test_tags_are_not_deleted_if_retention_keeps_tags():
    retention = decide(LINE, {"main": "e"}, {"old": "c"}, delete_expired_tags=True)
    assert deleted_refs(retention) == set()
    assert any("retention.tags is `keep`" in note for note in retention.notes)


def test_expired_branch_is_deleted_except_main():
    commits = [*LINE, *history(("x", "b", 4))]
    retention = decide(commits, {"main": "c", "fix": "x"}, delete_expired_branches=True)
    assert deleted_refs(retention) == {"fix"}
    assert in_state(retention, "expired") == {"x"}


@pytest.mark.parametrize("semantics", ["seed", "icechunk-v1"])
def test_head_of_deleted_ref_is_never_edited(semantics: str):
    commits = [*LINE, *history(("x", "b", 4), ("y", "x", 5))]
    retention = decide(commits, {"main": "e", "fix": "y"}, delete_expired_branches=True, semantics=semantics)
    assert deleted_refs(retention) == {"fix"}
    assert edits(retention) == {"d": "a"}


def test_ignored_tag_is_deleted_if_its_snapshot_expires():
    ignore = {"default": {"keep": "2026-01-10"}, "tags": "ignore"}
    retention = decide(LINE, {"main": "e"}, {"old": "c", "new": "d"}, ignore)
    assert in_state(retention, "expired") == {"b", "c"}
    assert deleted_refs(retention) == {"old"}


def test_branch_and_tag_with_the_same_name_are_kept():
    policy = {"default": {"keep": "2026-01-10"}, "tags": "policy"}
    retention = decide(LINE, {"main": "e", "x": "c"}, {"x": "b"}, policy, delete_expired_tags=True, delete_expired_branches=True)
    assert deleted_refs(retention) == set()
    row = next(row for row in retention.reachable.to_pylist() if row["commit_id"] == "b")
    assert row["refs"] == ["branch x", "main", "tag x"]
    assert any("both named 'x'" in note for note in retention.notes)


def test_young_dangling_snapshot_is_retained_with_ancestry():
    commits = [*LINE, *history(("x", "c", 4), ("p", "c", 5), ("q", "p", 11))]
    retention = decide(commits, {"main": "e"})
    assert in_state(retention, "dangling") == {"x"}
    assert "younger than" in reason(retention, "q")
    assert "an ancestor of snapshot q" in reason(retention, "p")
    assert states(retention)["c"] == "retained"
    assert edits(retention) == {"d": "a"}


def test_dangling_cutoff_is_independent_of_default_rule():
    commits = [*LINE, *history(("x", "a", 24), ("y", "a", 25))]  # as of the first of February
    for default in ("forever", "1d"):
        retention = decide(commits, {"main": "e"}, retention={"default": default}, grace_cutoff=day(30))
        assert in_state(retention, "dangling") == {"x"}, "default: seven days"
        assert "younger than 7d (retention.dangling)" in reason(retention, "y")
        shorter = decide(commits, {"main": "e"}, retention={"default": default, "dangling": "2d"}, grace_cutoff=day(30))
        assert in_state(shorter, "dangling") == {"x", "y"}
    assert in_state(decide(commits, {"main": "e"}, retention={"default": "forever"}, grace_cutoff=day(24)), "dangling") == set()


def test_unlimited_dangling_retention_is_noted():
    commits, for_ever = [*LINE, *history(("x", "c", 4))], {"default": "1d", "dangling": "forever"}
    retention = decide(commits, {"main": "e"}, retention=for_ever)
    assert states(retention)["x"] == "retained"
    assert any("1 snapshot that no ref reaches is kept" in note for note in retention.notes)
    assert not any("reaches are kept" in note for note in decide(LINE, {"main": "e"}, retention=for_ever).notes)


def test_snapshots_unreachable_after_own_edits_are_not_kept():
    policy = {"default": {"keep": "forever"}, "dangling": "forever", "refs": [{"match": "main", "keep": "2026-01-10"}]}
    plan_actions = decide(LINE, {"main": "e"}, retention=policy)
    assert in_state(plan_actions, "expired") == {"b", "c"}
    (edit,) = (ExpiryAction(**row) for row in plan_actions.expiry.to_pylist())
    edited = history(("a", None, 1), ("b", "a", 2), ("c", "b", 3), ("d", "a", 20), ("e", "d", 25), ("x", "a", 4))
    assert in_state(decide(edited, {"main": "e"}, retention=policy, made=(edit,)), "dangling") == {"b", "c"}
    assert in_state(decide(edited, {"main": "e"}, retention=policy), "dangling") == set()  # an edit by another tool may be a mistake


def test_expired_dangling_snapshot_is_kept_in_grace_period():
    commits = [*LINE, *history(("x", "a", 9))]
    assert states(decide(commits, {"main": "e"}, grace_cutoff=day(9)))["x"] == "retained"
    assert states(decide(commits, {"main": "e"}, grace_cutoff=day(10)))["x"] == "dangling"


def test_root_younger_than_descendants_is_noted_and_history_kept():
    skewed = history(("a", None, 15), ("b", "a", 2), ("c", "b", 20))
    for semantics in ("seed", "icechunk-v1"):
        retention = decide(skewed, {"main": "c"}, semantics=semantics)
        assert set(states(retention).values()) == {"retained"}
        assert any("wrong clock" in note for note in retention.notes)


def test_seed_semantics_ignore_expired_head_with_younger_ancestor():
    skewed = history(("a", None, 1), ("b", "a", 2), ("c", "b", 20), ("d", "c", 3))
    assert in_state(decide(skewed, {"main": "d"}), "expired") == set()
    assert in_state(decide(skewed, {"main": "d"}, semantics="icechunk-v1"), "expired") == {"b"}


def test_snapshots_on_parent_cycle_are_kept_and_noted():
    commits = history(("a", "b", 1), ("b", "a", 2), ("c", "b", 3), ("d", "c", 20))
    retention = decide(commits, {"main": "d"}, semantics="icechunk-v1")
    assert set(states(retention).values()) == {"retained"}
    assert retention.expiry.num_rows == 0
    assert any("cycle" in note for note in retention.notes)


def test_snapshots_connected_to_reachable_cycle_are_kept():
    """One of the parents is wrong, so any of them may be an ancestor."""
    commits = history(("r", None, 1), ("a", "b", 2), ("b", "a", 3), ("d", "b", 5), ("x", "r", 4))
    assert set(states(decide(commits, {"main": "d"})).values()) == {"retained"}
    assert in_state(decide(commits, {"main": "x"}), "dangling") == {"d"}, "no ref reaches the cycle"


def test_dangling_snapshot_may_have_missing_parent():
    commits = [*LINE, *history(("x", "gone", 4))]
    retention = decide(commits, {"main": "e"})
    assert in_state(retention, "dangling") == {"x"}
    assert not any("gone" in note for note in retention.notes)


def test_retain_refuses_unreadable_reachable_snapshot():
    damaged = Commit("b", (), day(2), (), summary={"unreadable": "snapshot b is damaged"})
    commits = [commit for commit in LINE if commit.commit_id != "b"] + [damaged]
    with pytest.raises(LakeUnreadable, match=r"snapshot b is damaged.*main reaches it"):
        decide(commits, {"main": "e"})


def test_snapshot_row_lists_at_most_100_refs_and_counts_all():
    retention = decide(LINE, {"main": "e"}, {f"t{n:03}": "e" for n in range(150)})
    row = retention.reachable.to_pylist()[0]
    assert row["refs_count"] == 151
    assert row["refs"] == ["main", *(f"t{n:03}" for n in range(99))]


def test_retention_tables_have_published_schemas():
    retention = decide(LINE, {"main": "e"})
    assert retention.reachable.schema == REACHABLE_SNAPSHOTS.schema
    assert retention.expiry.schema == EXPIRY_PLAN.schema
    assert retention.reachable["commit_id"].to_pylist() == [commit.commit_id for commit in LINE]


def to_entries(commits: list[Commit]) -> list[Commit]:
    """Return the commits as entries of `repo`."""
    return [replace(commit, summary={ENTRY: f"entry of {commit.commit_id}"}) for commit in commits]


def rows(retention: Retention, action: str) -> list[tuple[str, str | None, str | None]]:
    found = [row for row in retention.expiry.to_pylist() if row["action"] == action]
    assert all(row["details"] for row in found)
    return [(row["snapshot_id"], row["old_parent_id"], row["new_parent_id"]) for row in found]


def test_icechunk_semantics_depend_on_spec_version():
    tags, branches = {"t": "c"}, {"main": "e"}
    for name in ("icechunk", "icechunk-v1"):
        assert edits(decide(LINE, branches, tags, semantics=name)) == {"c": "a", "d": "a"}
        assert edits(decide(to_entries(LINE), branches, tags, semantics=name, spec_version=2)) == {"c": "a"}


def test_only_snapshots_listed_in_repo_get_remove_action():
    commits = [*to_entries(LINE), *history(("f", None, 3))]
    retention = decide(commits, {"main": "e"}, spec_version=2)
    assert rows(retention, "edit_parent") == [("d", "c", "a")]
    assert rows(retention, "remove_snapshot") == [("b", "a", None), ("c", "b", None)]
    assert in_state(retention, "dangling") == {"f"}


def test_snapshot_in_grace_period_and_ancestors_stay_in_repo():
    commits = to_entries([*LINE, *history(("x", "b", 4), ("y", "x", 28))])
    retention = decide(commits, {"main": "e"}, spec_version=2, grace_cutoff=day(27))
    assert rows(retention, "remove_snapshot") == [("c", "b", None)]
    assert rows(retention, "edit_parent") == [("d", "c", "a")]


def test_expired_tag_on_branch_head_is_deleted_only_by_icechunk_semantics():
    commits, expiry = to_entries(LINE[:3]), {"delete_expired_tags": True}
    retention = {"default": {"keep": "2026-01-10"}, "tags": "policy"}
    for semantics, gone in (("seed", set[str]()), ("icechunk", {"t"})):
        found = decide(commits, {"main": "c"}, {"t": "c"}, retention, semantics=semantics, spec_version=2, **expiry)
        assert deleted_refs(found) == gone
        assert "c" in in_state(found, "retained")


def test_icechunk_semantics_never_delete_tag_on_first_snapshot():
    retention = {"default": {"keep": "2026-01-10"}, "tags": "policy"}
    found = decide(to_entries(LINE), {"main": "e"}, {"t": "a"}, retention, semantics="icechunk", spec_version=2, delete_expired_tags=True)
    assert deleted_refs(found) == set()


@pytest.mark.parametrize("semantics", ["seed", "icechunk"])
def test_kept_snapshot_always_has_parent_listed_in_repo(semantics: str):
    rnd = random.Random(7)
    for _ in range(300):
        count = rnd.randint(1, 12)
        commits = history(*((str(n), str(rnd.randrange(n)) if n else None, n + 1) for n in range(count)))
        branches = {"main": str(rnd.randrange(count)), "dev": str(rnd.randrange(count))}
        tags = {f"t{n}": str(rnd.randrange(count)) for n in range(rnd.randint(0, 3))}
        at = day(rnd.randint(1, 14)).isoformat()
        retention = {
            "default": {"keep": at},
            "dangling": day(rnd.randint(1, 14)).isoformat(),
            "tags": rnd.choice(["policy", "keep", "ignore"]),
        }
        retention["refs"] = [{"match": "dev", "keep": rnd.choice(["forever", 2, day(3).isoformat()])}]
        expiry = {"delete_expired_tags": rnd.random() < 0.5, "delete_expired_branches": rnd.random() < 0.5}
        found = decide(
            to_entries(commits), branches, tags, retention, day(rnd.randint(8, 20)), semantics=semantics, spec_version=2, **expiry
        )
        parents = {commit.commit_id: next(iter(commit.parents), None) for commit in commits} | edits(found)
        removed = {snapshot for snapshot, _, _ in rows(found, "remove_snapshot")}
        assert all(parents[commit] not in removed for commit in parents.keys() - removed)
        assert removed == parents.keys() - in_state(found, "retained")
        gone = {(row["ref_type"], row["ref_name"]) for row in found.expiry.to_pylist() if row["action"] == "delete_ref"}
        heads = [head for name, head in branches.items() if ("branch", name) not in gone]
        assert not removed.intersection([*heads, *(head for name, head in tags.items() if ("tag", name) not in gone)])
        assert ("branch", "main") not in gone
