"""Iceberg's six retention steps with both sides of each limit, then the overrides of the configuration."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from gc_assets.core.errors import LakeUnreadable
from gc_assets.state.schemas import EXPIRY_PLAN, REACHABLE_SNAPSHOTS
from tests.lakes.iceberg.snapshot_histories import (
    AS_OF,
    DAY,
    DAY_MS,
    actions,
    branch,
    chain,
    commit,
    retained_ids,
    row,
    run_retention,
    source,
    states,
    tag,
)

MS = 1 / DAY_MS  # a millisecond in days


def test_step_1_main_never_expires() -> None:
    result = run_retention(chain(1000), [branch("main", "s0", max_ref_age_ms=1)])
    assert retained_ids(result) == {"s0"}
    assert actions(result, "delete_ref") == []


@pytest.mark.parametrize("days, lapses", [(10, False), (10 + MS, True)])
def test_step_1_ref_expires_after_max_ref_age(days: float, lapses: bool) -> None:
    result = run_retention(chain(days), [tag("v1", "s0", max_ref_age_ms=10 * DAY_MS)])
    assert states(result) == {"s0": "expired" if lapses else "retained"}
    assert actions(result, "delete_ref") == ([("s0", "v1")] if lapses else [])


@pytest.mark.parametrize("days, lapses", [(10, False), (10 + MS, True)])
def test_step_1_table_max_ref_age_is_the_default(days: float, lapses: bool) -> None:
    result = run_retention(chain(days), [branch("dev", "s0")], source(max_ref_age_ms=10 * DAY_MS))
    assert actions(result, "delete_ref") == ([("s0", "dev")] if lapses else [])


def test_step_1_ref_without_max_ref_age_never_expires() -> None:
    result = run_retention(chain(5000), [tag("v1", "s0"), branch("dev", "s0")])
    assert retained_ids(result) == {"s0"}


def test_step_1_expired_ref_is_planned_with_its_type() -> None:
    result = run_retention(chain(10), [tag("v1", "s0", max_ref_age_ms=1), branch("dev", "s0", max_ref_age_ms=1)])
    lapsed = [row for row in result.expiry.to_pylist() if row["action"] == "delete_ref"]
    assert [(row["ref_name"], row["ref_type"]) for row in lapsed] == [("v1", "tag"), ("dev", "branch")]


def test_step_2_head_of_kept_ref_is_kept() -> None:
    result = run_retention(chain(100, 99, 98), [branch("main", "s2")])
    assert retained_ids(result) == {"s2"}
    assert row(result, "s2")["reason"] == "kept: head of branch main"


def test_tag_keeps_expired_snapshot() -> None:
    result = run_retention(chain(100, 99, 98), [branch("main", "s2"), tag("v1", "s0")])
    assert retained_ids(result) == {"s0", "s2"}
    assert row(result, "s0")["reason"] == "kept: head of tag v1"


@pytest.mark.parametrize("days, expected", [(5, "retained"), (5 + MS, "expired")])
def test_step_3_ancestor_is_kept_up_to_max_snapshot_age(days: float, expected: str) -> None:
    assert states(run_retention(chain(days, 1), [branch("main", "s1")]))["s0"] == expected


def test_step_3_branch_keeps_min_snapshots_of_any_age() -> None:
    result = run_retention(chain(103, 102, 101, 100), [branch("main", "s3", min_snapshots_to_keep=3)])
    assert retained_ids(result) == {"s1", "s2", "s3"}
    assert row(result, "s1")["reason"] == "kept: among the newest 3 of branch main"


def test_step_3_settings_of_branch_override_the_table() -> None:
    refs = [branch("main", "s2"), branch("dev", "s2", max_snapshot_age_ms=50 * DAY_MS)]
    assert retained_ids(run_retention(chain(60, 40, 1), refs)) == {"s1", "s2"}


def test_step_3_walk_stops_at_first_expired_ancestor() -> None:
    result = run_retention(chain(1, 30, 2), [branch("main", "s2")])
    assert states(result) == {"s0": "expired", "s1": "expired", "s2": "retained"}


def test_step_4_tag_does_not_keep_ancestors() -> None:
    result = run_retention(chain(20, 10), [tag("v1", "s1")])
    assert states(result) == {"s0": "expired", "s1": "retained"}
    assert "history of tag v1" in row(result, "s0")["reason"]


def test_step_4_young_ancestors_of_tag_are_kept() -> None:
    assert retained_ids(run_retention(chain(20, 4, 1), [tag("v1", "s2")])) == {"s1", "s2"}


@pytest.mark.parametrize("days, expected", [(5, "retained"), (5 + MS, "dangling")])
def test_step_5_unreferenced_snapshot_expires_by_max_snapshot_age(days: float, expected: str) -> None:
    result = run_retention([*chain(1), commit("staged", "s0", days)], [branch("main", "s0")])
    assert states(result)["staged"] == expected


@pytest.mark.parametrize("days, expected", [(9, "retained"), (9 + MS, "dangling")])
def test_dangling_cutoff_replaces_max_snapshot_age(days: float, expected: str) -> None:
    result = run_retention([*chain(9, 1), commit("staged", "s0", days)], [branch("main", "s1")], policy={"dangling": "9d"})
    assert states(result) == {"s0": "expired", "s1": "retained", "staged": expected}
    assert "retention.dangling" in row(result, "staged")["reason"]


def test_step_5_snapshots_of_expired_ref_are_unreferenced() -> None:
    refs = [branch("main", "s0"), branch("dev", "d1", max_ref_age_ms=1)]
    result = run_retention([*chain(1), commit("d0", "s0", 6), commit("d1", "d0", 4)], refs)
    assert states(result) == {"s0": "retained", "d0": "expired", "d1": "retained"}
    assert actions(result, "delete_ref") == [("d1", "dev")]


def test_step_5_tag_in_history_does_not_end_branch() -> None:
    refs = [tag("a", "s1"), branch("main", "s2", max_snapshot_age_ms=1)]
    assert retained_ids(run_retention(chain(3, 2, 1), refs)) == {"s1", "s2"}


def test_step_6_all_other_snapshots_are_removed() -> None:
    result = run_retention([*chain(30, 20, 1), commit("staged", "s0", 10)], [branch("main", "s2")])
    assert actions(result, "remove_snapshot") == [("s0", None), ("s1", None), ("staged", None)]
    assert result.reachable.schema == REACHABLE_SNAPSHOTS.schema
    assert result.expiry.schema == EXPIRY_PLAN.schema


def test_dangling_snapshot_from_the_future_is_kept() -> None:
    assert retained_ids(run_retention([*chain(1), commit("late", None, -3)], [branch("main", "s0")])) == {"s0", "late"}


@pytest.mark.parametrize("days, expected", [(7, "retained"), (7 + MS, "dangling")])
def test_snapshot_younger_than_grace_period_is_kept(days: float, expected: str) -> None:
    result = run_retention([*chain(1), commit("staged", "s0", days)], [branch("main", "s0")], source(max_snapshot_age_ms=1), grace_days=7)
    assert states(result)["staged"] == expected
    if expected == "retained":
        assert row(result, "staged")["reason"] == "kept: younger than the grace period"


def test_table_without_snapshots_has_no_rows() -> None:
    result = run_retention([], [branch("main", None)])
    assert result.reachable.num_rows == result.expiry.num_rows == 0


# Rows


def test_expiry_reason_contains_branch_and_rule() -> None:
    result = run_retention(chain(30, 1), [branch("main", "s1"), tag("v2", "s1")])
    assert row(result, "s0")["reason"] == (
        "expired: older than max-snapshot-age 5d on branch main and not among its newest 1 (and 1 other ref)"
    )
    assert actions(result, "remove_snapshot") == [("s0", None)]


def test_retention_reason_contains_branch_and_rule() -> None:
    result = run_retention(chain(4, 1), [branch("main", "s1")])
    assert row(result, "s0")["reason"] == "kept: within max-snapshot-age 5d of branch main"


def test_retention_reason_of_future_snapshot_contains_reference_time() -> None:
    """A snapshot that is older than a short limit by the clock can still be kept, because ages
    count from the reference time.
    """
    result = run_retention(chain(-0.2, -0.4), [branch("main", "s1")], source(max_snapshot_age_ms=1))
    assert row(result, "s0")["reason"] == "kept: within max-snapshot-age 1 ms of branch main, counted from 2026-06-01 00:00Z"


@pytest.mark.parametrize("keep", ["forever", "2026-01-01"])
def test_retention_reason_without_duration_contains_no_reference_time(keep: str) -> None:
    result = run_retention(chain(-0.2, -0.4), [branch("main", "s1")], policy={"refs": [{"match": "main", "keep": keep}]})
    assert "counted from" not in row(result, "s0")["reason"]


def test_keep_until_is_when_age_limit_ends_or_null() -> None:
    result = run_retention(chain(4, 3, 1), [branch("main", "s2")])
    assert row(result, "s0")["keep_until"] == AS_OF + DAY
    assert row(result, "s1")["keep_until"] == AS_OF + 2 * DAY
    assert row(result, "s2")["keep_until"] is None


def test_keep_until_of_ancestor_is_not_after_keep_until_of_child() -> None:
    result = run_retention([commit("a", None, 1), commit("b", "a", 4), commit("c", "b", 0)], [branch("main", "c")])
    assert row(result, "a")["keep_until"] == AS_OF + DAY


def test_keep_until_of_tag_ends_with_max_ref_age() -> None:
    result = run_retention(chain(4), [tag("v1", "s0", max_ref_age_ms=10 * DAY_MS)])
    assert row(result, "s0")["keep_until"] == AS_OF + 6 * DAY


def test_longest_rule_sets_keep_until() -> None:
    refs = [branch("main", "s1"), branch("dev", "s1", max_snapshot_age_ms=90 * DAY_MS), tag("v1", "s0", max_ref_age_ms=8 * DAY_MS)]
    assert row(run_retention(chain(4, 1), refs), "s0")["keep_until"] == AS_OF + 86 * DAY


def test_expiring_branch_does_not_shorten_keep_until_of_another_branch() -> None:
    refs = [branch("dev", "s1", max_ref_age_ms=3 * DAY_MS), branch("main", "s2")]
    result = run_retention(chain(3, 2, 1), refs)
    assert row(result, "s1")["keep_until"] == AS_OF + 3 * DAY
    assert row(result, "s0")["keep_until"] == AS_OF + 2 * DAY
    assert row(result, "s0")["reason"] == "kept: within max-snapshot-age 5d of branch main"


def test_snapshot_row_lists_at_most_100_refs_and_counts_all() -> None:
    result = run_retention(chain(3, 2), [branch("main", "s1"), *(tag(f"t{index:03}", "s1") for index in range(150))])
    assert row(result, "s0")["refs"] == ["main", *(f"t{index:03}" for index in range(99))]
    assert row(result, "s0")["refs_count"] == 151


# Overrides of the configuration


@pytest.mark.parametrize(
    "policy, expected",
    [
        ({}, {"s2", "s3"}),
        ({"max_snapshot_age": "15d"}, {"s1", "s2", "s3"}),
        ({"max_snapshot_age": "1d"}, {"s3"}),
        ({"max_snapshot_age": "1d", "min_snapshots_to_keep": 3}, {"s1", "s2", "s3"}),
        ({"refs": [{"match": "main", "keep": "forever"}]}, {"s0", "s1", "s2", "s3"}),
        ({"refs": [{"match": "mai", "keep": "forever"}]}, {"s2", "s3"}),
        ({"refs": [{"match": "main", "keep": 2}]}, {"s2", "s3"}),
        ({"refs": [{"match": "main", "keep": 1}]}, {"s3"}),
        ({"refs": [{"match": "main", "keep": "12d"}]}, {"s1", "s2", "s3"}),
        ({"refs": [{"match": "m.*", "keep": 1}, {"match": "main", "keep": "forever"}]}, {"s3"}),
        ({"refs": [{"match": "main", "max_age": "1d", "keep_last": 3}]}, {"s1", "s2", "s3"}),
        ({"refs": [{"match": "main", "keep": (AS_OF - 10 * DAY).isoformat()}]}, {"s1", "s2", "s3"}),
        ({"refs": [{"match": "main", "keep": (AS_OF - 10 * DAY + timedelta(microseconds=1)).isoformat()}]}, {"s2", "s3"}),
    ],
)
def test_configuration_overrides_retention_of_branch(policy: dict[str, Any], expected: set[str]) -> None:
    assert retained_ids(run_retention(chain(20, 10, 4, 2), [branch("main", "s3")], policy=policy)) == expected


def test_settings_of_ref_override_the_configuration() -> None:
    result = run_retention(chain(20, 10, 2), [branch("main", "s2", max_snapshot_age_ms=15 * DAY_MS)], policy={"max_snapshot_age": "1d"})
    assert retained_ids(result) == {"s1", "s2"}


def test_pattern_overrides_settings_of_ref() -> None:
    policy = {"refs": [{"match": "main", "keep": 1}]}
    assert retained_ids(run_retention(chain(3, 2), [branch("main", "s1", max_snapshot_age_ms=99 * DAY_MS)], policy=policy)) == {"s1"}


def test_configured_max_ref_age_replaces_table_setting() -> None:
    result = run_retention(chain(4), [tag("v1", "s0")], source(max_ref_age_ms=1, max_snapshot_age_ms=1), policy={"max_ref_age": "5d"})
    assert retained_ids(result) == {"s0"}


def test_branch_that_matches_pattern_does_not_expire() -> None:
    result = run_retention(chain(40), [branch("dev", "s0", max_ref_age_ms=1)], policy={"refs": [{"match": "dev", "keep": "1d"}]})
    assert retained_ids(result) == {"s0"}


@pytest.mark.parametrize("keep, stays", [("10d", False), ("40d", True), (3, True), ("forever", True)])
def test_tag_that_matches_pattern_expires_by_age(keep: Any, stays: bool) -> None:
    result = run_retention(chain(40), [tag("v1", "s0")], policy={"refs": [{"match": "v.*", "keep": keep}]})
    assert retained_ids(result) == ({"s0"} if stays else set())
    assert actions(result, "delete_ref") == ([] if stays else [("s0", "v1")])


def test_tag_never_expires_if_tags_is_keep() -> None:
    refs = [tag("v1", "s0", max_ref_age_ms=1), branch("dev", "s0", max_ref_age_ms=1)]
    result = run_retention(chain(40), refs, policy={"tags": "keep"})
    assert retained_ids(result) == {"s0"}
    assert actions(result, "delete_ref") == [("s0", "dev")]


@pytest.mark.parametrize("forever", [2**63 - 1, 2**63])
def test_unlimited_age_keeps_everything(forever: int) -> None:
    result = run_retention(chain(9000, 1), [branch("main", "s1")], source(max_snapshot_age_ms=forever))
    assert retained_ids(result) == {"s0", "s1"}
    assert row(result, "s0")["keep_until"] is None


def test_keep_until_after_year_9999_is_null() -> None:
    result = run_retention(chain(9000, 1), [branch("main", "s1")], source(max_snapshot_age_ms=10**16))
    assert row(result, "s0")["state"] == "retained"
    assert row(result, "s0")["keep_until"] is None


# Uncollected tables, tables registered twice


@pytest.mark.parametrize(
    "uncollected, why", [(source(collect=False), "no pattern"), (source(collect=False, gc_enabled="false"), "gc.enabled is false")]
)
def test_table_that_is_not_collected_keeps_everything(uncollected: Any, why: str) -> None:
    refs = [branch("main", "s1"), tag("old", "s0", max_ref_age_ms=1)]
    result = run_retention([*chain(90, 80), commit("staged", None, 70)], refs, uncollected)
    assert retained_ids(result) == {"s0", "s1", "staged"}
    assert result.expiry.num_rows == 0
    assert all(why in item["reason"] for item in result.reachable.to_pylist())


def test_table_registered_twice_keeps_snapshots_of_both_names() -> None:
    refs = [branch("main", "s1", "db.a"), branch("main", "s2", "db.b")]
    result = run_retention(chain(40, 30, 20), refs, source("db.a"), source("db.b"))
    assert states(result) == {"s0": "expired", "s1": "retained", "s2": "retained"}
    assert row(result, "s0")["refs"] == ["db.a:main", "db.b:main"]


def test_ref_expires_only_if_no_registered_name_keeps_it() -> None:
    lapsing = [tag("v1", "s0", "db.a", max_ref_age_ms=1)]
    twice = (source("db.a"), source("db.b"))
    assert actions(run_retention(chain(40), lapsing, *twice), "delete_ref") == [("s0", "v1")]
    assert actions(run_retention(chain(40), [*lapsing, tag("v1", "s0", "db.b")], *twice), "delete_ref") == []


def test_table_keeps_everything_if_one_registered_name_is_not_collected() -> None:
    refs = [branch("main", "s1", "db.a"), branch("main", "s0", "db.b")]
    assert retained_ids(run_retention(chain(40, 30), refs, source("db.a"), source("db.b", collect=False))) == {"s0", "s1"}


def test_tables_with_equal_names_and_ids_are_independent() -> None:
    other = "22222222-0000-0000-0000-000000000000"
    commits = [*chain(40, 1), commit("s0", None, 40, other, "db.u")]
    result = run_retention(commits, [branch("main", "s1"), branch("main", "s0", "db.u", other)], source(), source("db.u", other))
    assert [item["state"] for item in result.reachable.to_pylist()] == ["expired", "retained", "retained"]


# Broken graphs


def test_ref_to_missing_snapshot_stops_the_run() -> None:
    with pytest.raises(LakeUnreadable, match=r"table db\.t: tag 'v1' points at snapshot gone"):
        run_retention(chain(1), [tag("v1", "gone")])


def test_commit_of_unknown_table_stops_run() -> None:
    with pytest.raises(LakeUnreadable, match="the commit graph has table 3333"):
        run_retention([commit("s0", None, 1, "3333")], [])


def test_history_ends_at_parent_missing_from_metadata() -> None:
    assert retained_ids(run_retention([commit("b", "expired-long-ago", 3), commit("c", "b", 1)], [branch("main", "c")])) == {"b", "c"}


def test_snapshots_on_a_cycle_are_kept_and_reported() -> None:
    commits = [commit("a", "b", 40), commit("b", "a", 41), commit("tail", "a", 39)]
    result = run_retention(commits, [branch("main", "tail")])
    assert retained_ids(result) == {"a", "b", "tail"}
    assert result.notes == ("table db.t: the parents of 2 snapshots form a cycle; they are kept",)


# Cost: the limits are at least ten times the measured times; quadratic work exceeds them by far


def measure_seconds(commits: Any, refs: Any, *sources: Any) -> float:
    started = time.process_time()
    run_retention(commits, refs, *sources)
    return time.process_time() - started


@pytest.mark.parametrize("days", [1, 400], ids=["all kept", "all expired"])
def test_retention_time_for_8000_snapshots_and_9000_refs_is_not_quadratic(days: int) -> None:
    count = 8_000
    commits = chain(*(days + (count - index) / count for index in range(count)))
    refs = [branch("main", f"s{count - 1}"), *(tag(f"t{index}", f"s{index}", max_ref_age_ms=DAY_MS) for index in range(count))]
    refs += [branch(f"b{index}", f"s{count - 1 - index}") for index in range(1_000)]
    assert measure_seconds(commits, refs) < 8


def test_retention_time_for_flat_history_is_not_quadratic() -> None:
    commits = [commit("root", None, 2), *(commit(f"c{index}", "root", 1) for index in range(8_000))]
    assert measure_seconds(commits, [branch(f"b{index}", f"c{index}") for index in range(8_000)]) < 8


def test_expiry_reason_contains_cutoff_given_as_timestamp() -> None:
    policy = {"refs": [{"match": ".*", "keep": "2026-01-01T00:00:00+00:00"}]}
    reasons = {row["reason"] for row in run_retention(chain(1000, 999, 1), [branch("main", "s2")], policy=policy).reachable.to_pylist()}
    assert any("older than retention.refs[0] (2026-01-01T00:00:00+00:00)" in reason for reason in reasons), reasons
    assert not any("since" in reason for reason in reasons)
