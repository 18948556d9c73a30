"""The lifecycle rules of the lakeFS proposal (*lifecycle policy Spark job*), with its tables and examples."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.core.errors import UsageError
from gc_assets.lakes.lakefs.lifecycle import BEGINNING, OTHERS, Rule, branch_bound, class_of, commit_bound, evaluate
from gc_assets.lakes.lakefs.lifecycle_rules import parse_rules, rule_rows
from tests.lakes.lakefs.recordings import Recording

RULE1 = {"prefix": "foo/bar", "days": 10, "enabled": True, "branch_days": {"b1": 5, "b2": 8}}
RULE2 = {"prefix": "foo/zoo", "enabled": True, "branch_days": {"b1": 5}}


def january(day: int, hour: int = 0) -> datetime:
    return datetime(1998, 1, day, hour, tzinfo=UTC)


def table(rules: dict[str, Any], day: int) -> list[tuple[str, str, str | None, datetime]]:
    rows = rule_rows(parse_rules("rules.json", json.dumps(rules)), january(day))
    return [(row["rule_id"], row["prefix"], row["branch"], row["date_to_be_deleted"]) for row in rows]


def is_released(rules: list[Rule], path: str, age: datetime, branches: Collection[str]) -> bool:
    reach = [{class_of(rules, branch) for branch in branches}]
    return bool(evaluate(rules, pa.array([path]), _ages(age), np.zeros(1, np.int64), reach).released[0])


def _ages(*moments: datetime) -> pa.Array:
    return pa.array(moments, pa.timestamp("us", tz="UTC"))


def test_policy_rows_match_lifecycle_proposal() -> None:
    """For 8 days on the 20th the proposal prints the 18th, but the result is the 12th (10 days: the 10th, 5 days: the 15th)."""
    assert table({"rule1": RULE1}, 19) == [
        ("rule1", "foo/bar", None, january(9)),
        ("rule1", "foo/bar", "b1", january(14)),
        ("rule1", "foo/bar", "b2", january(11)),
    ]
    assert table({"rule1": RULE1, "rule2": RULE2}, 20) == [
        ("rule1", "foo/bar", None, january(10)),
        ("rule1", "foo/bar", "b1", january(15)),
        ("rule1", "foo/bar", "b2", january(12)),
        ("rule2", "foo/zoo", "b1", january(15)),
    ]


def test_policy_rows_match_recording() -> None:
    lifecycle = Recording("lifecycle").expected["lifecycle"]
    for run, (name, policy) in enumerate(list(lifecycle["policies"].items())[:2], start=1):
        day = int(name[-2:])
        expected = [
            (row["rule_id"], row["prefix"], row["branch"], datetime.fromisoformat(row["date_to_be_deleted"]).replace(tzinfo=UTC))
            for row in lifecycle["policy_table"]
            if row["run_id"] == run
        ]
        assert sorted(table(policy, day), key=str) == sorted(expected, key=str)


def rules_of(**rules: dict[str, Any]) -> list[Rule]:
    rows = rule_rows(parse_rules("rules.json", json.dumps({name: {"enabled": True, **rule} for name, rule in rules.items()})), january(20))
    return [Rule.of(row) for row in rows]


@pytest.mark.parametrize(
    "path, goes",
    [
        ("models/a/x.ckpt", True),
        ("models/a/b/x.ckpt", True),
        ("models/a/x.bin", False),
        ("models/x.ckpt.old", False),
        ("other/x.ckpt", False),
    ],
)
def test_glob_rule_expires_only_matching_paths(path: str, goes: bool) -> None:
    rules = rules_of(r={"glob": "models/**.ckpt", "days": 10})
    assert is_released(rules, path, january(1), ["main"]) is goes


def test_star_does_not_match_a_slash() -> None:
    rules = rules_of(r={"glob": "tmp/*.log", "days": 10})
    assert is_released(rules, "tmp/a.log", january(1), ["main"])
    assert not is_released(rules, "tmp/a/b.log", january(1), ["main"])


def test_longer_prefix_has_priority_over_glob() -> None:
    rules = rules_of(all={"glob": "tmp/**", "days": 1}, keep={"prefix": "tmp/keep/", "days": 1000})
    assert is_released(rules, "tmp/a", january(1), ["main"])
    assert not is_released(rules, "tmp/keep/a", january(1), ["main"])


def test_longer_retention_applies_if_glob_and_prefix_are_equally_long() -> None:
    rules = rules_of(glob={"glob": "tmp/*.log", "days": 1}, prefix={"prefix": "tmp/", "days": 1000})
    assert not is_released(rules, "tmp/a.log", january(1), ["main"])


def test_rules_with_different_globs_are_not_equal() -> None:
    first, second = (rules_of(r={"glob": glob, "days": 10})[0] for glob in ("tmp/*.a", "tmp/*.b"))
    assert first.prefix == second.prefix
    assert first != second


@pytest.mark.parametrize("rule", [{"days": 1}, {"prefix": "a", "glob": "a*", "days": 1}, {"glob": "", "days": 1}])
def test_lifecycle_rule_needs_either_prefix_or_glob(rule: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="r: exactly one of prefix and glob is required"):
        rules_of(r=rule)


def bounds(everyone: int | None, **branches: int | None) -> list[Rule]:
    """Return the printed bounds: for all branches, then by branch (None: no finished deletion)."""
    rules = [Rule("all", "foo", None, january(20), last_deleted=everyone and january(everyone))]
    return rules + [Rule(name, "foo", name, january(20), last_deleted=day and january(day)) for name, day in branches.items()]


PRINTED = bounds(9, b1=None, b2=17, b3=5)


@pytest.mark.parametrize(
    "branches, bound",
    [(["b1"], BEGINNING), (["b3"], january(5)), (["b1", "b3"], january(5)), (["b1", "b2", "b3"], january(9))],
)
def test_potential_commit_bounds_match_lifecycle_proposal(branches: list[str], bound: datetime) -> None:
    assert commit_bound(PRINTED, branches) == bound


def test_branch_cutoff_bound_includes_rules_for_all_branches() -> None:
    assert branch_bound(PRINTED, "b2") == january(9)
    assert branch_bound(PRINTED, "main") == january(9)
    assert branch_bound([rule for rule in PRINTED if rule.branch], "main") is None


def test_commit_reachable_from_branch_without_rules_is_not_potential() -> None:
    assert commit_bound([Rule("r", "", "b1", january(20))], ["b1", "main"]) is None
    assert commit_bound(PRINTED, []) is None


@pytest.mark.parametrize("key, rows", [("potential_commits_seed_example", "table"), ("potential_commits_run2", None)])
def test_potential_commits_match_recording(key: str, rows: str | None) -> None:
    recording = Recording("lifecycle")
    lifecycle = recording.expected["lifecycle"]
    if rows is not None:
        rules, expected = PRINTED, lifecycle[key]["commits"]
    else:
        last = {(row["prefix"], row["branch"]): row["last_deleted"] for row in lifecycle["current_rules"]}
        rules = [
            Rule("r", prefix, branch, january(20), last_deleted=day and datetime.fromisoformat(day).replace(tzinfo=UTC))
            for (prefix, branch), day in last.items()
        ]
        expected = lifecycle[key]
    found = set()
    for commit_id, commit in recording.expected["commits"].items():
        branches = [ref.removeprefix("branch:") for ref in commit["reached_by"] if ref.startswith("branch:")]
        bound = commit_bound(rules, branches)
        if bound is not None and commit["meta_range_id"] and datetime.fromtimestamp(commit["creation_date"], UTC) > bound:
            found.add(commit_id)
    reached = {commit_id for commit_id in expected if expected[commit_id]["branches"]}
    assert found == {commit_id for commit_id in reached if recording.expected["commits"][commit_id]["meta_range_id"]}


def test_deduplication_matches_lifecycle_proposal() -> None:
    """foo/bar/a and foo/tar/a have address 1, foo/bar/b 4, foo/tar/b and foo/other/c 2: 4 and 1 are released, 2 is kept."""
    rules = [Rule("bar", "foo/bar", None, january(10)), Rule("tar", "foo/tar", None, january(10))]
    entries = {"foo/bar/a": 1, "foo/bar/b": 4, "foo/tar/a": 1, "foo/tar/b": 2, "foo/other/c": 2}
    bounds_printed = {path: is_released(rules, path, january(5), ["main"]) for path in entries}
    assert {address for address in entries.values() if all(bounds_printed[p] for p, a in entries.items() if a == address)} == {1, 4}


@pytest.mark.parametrize("moment, goes", [(january(9, 23), True), (january(10), False), (january(10, 1), False)])
def test_object_older_than_rule_date_expires(moment: datetime, goes: bool) -> None:
    assert is_released([Rule("r", "foo", None, january(10))], "foo/a", moment, ["main"]) is goes


def test_object_expires_only_if_rules_of_all_its_branches_allow_it() -> None:
    rules = [Rule("r", "foo", None, january(10)), Rule("r", "foo", "b1", january(15))]
    assert is_released(rules, "foo/a", january(12), ["b1"])
    assert not is_released(rules, "foo/a", january(12), ["b1", "main"])
    assert is_released(rules, "foo/a", january(8), ["b1", "main"])


def test_object_on_branch_without_rule_is_kept() -> None:
    assert not is_released([Rule("r", "foo", "b1", january(15))], "foo/a", january(1), ["b1", "main"])
    assert not is_released([Rule("r", "foo", None, january(15))], "foo/a", january(1), [])


def test_branch_rule_has_priority_over_rule_for_all_branches() -> None:
    rules = [Rule("r", "foo", None, january(15)), Rule("r", "foo", "b1", january(5))]
    assert not is_released(rules, "foo/a", january(8), ["b1"])
    assert is_released(rules, "foo/a", january(8), ["main"])


def test_rule_with_longest_prefix_applies() -> None:
    rules = [Rule("outer", "foo", None, january(15)), Rule("inner", "foo/bar", None, january(5))]
    assert is_released(rules, "foo/zoo", january(8), ["main"])
    assert not is_released(rules, "foo/bar/a", january(8), ["main"])
    assert not is_released(rules, "foo/barn/m-1228", january(8), ["main"])
    assert is_released(rules, "foo/barn/m-1228", january(4), ["main"])


def test_disabled_rule_does_not_expire_objects() -> None:
    rules = [Rule("outer", "", None, january(15)), Rule("inner", "foo", None, january(15), enabled=False)]
    assert not is_released(rules, "foo/a", january(8), ["main"])
    assert is_released(rules, "other", january(8), ["main"])


def test_longest_retention_applies_if_prefixes_are_equal() -> None:
    rules = [Rule("a", "foo", None, january(15)), Rule("b", "foo", None, january(5))]
    assert not is_released(rules, "foo/a", january(8), ["main"])


def test_branches_without_own_rules_share_one_class() -> None:
    assert {class_of(PRINTED, f"feature-{number}") for number in range(1000)} == {OTHERS}
    assert class_of(PRINTED, "b1") == "b1"


def test_expired_object_lists_rules_that_apply() -> None:
    rules = [Rule("all", "foo", None, january(15)), Rule("own", "foo", "b1", january(15))]
    verdicts = evaluate(rules, pa.array(["foo/a", "bar"]), _ages(january(1), january(1)), np.zeros(2, np.int64), [{OTHERS, "b1"}])
    assert verdicts.released.tolist() == [True, False]
    assert verdicts.rules.to_pylist() == [["all", "own"], []]


prefixes = st.sampled_from(["", "a", "a/", "a/b", "b", "ab"])
names = st.sampled_from([None, "b1", "b2"])
some_rules = st.lists(
    st.builds(
        Rule,
        rule_id=st.sampled_from(["r1", "r2", "r3"]),
        prefix=prefixes,
        branch=names,
        date_to_be_deleted=st.integers(1, 9).map(january),
        enabled=st.booleans(),
    ),
    max_size=6,
)
some_objects = st.lists(
    st.tuples(
        st.sampled_from(["a/b/x", "a/x", "ab", "b", "c", "a"]),
        st.integers(1, 9).map(january),
        st.frozensets(st.sampled_from(["b1", "b2", "main", "dev"])),
    ),
    max_size=20,
)


@given(some_rules, some_objects)
def test_vectorized_rules_match_plain_loop(rules: list[Rule], objects: list[tuple[str, datetime, frozenset[str]]]) -> None:
    def goes_on(branch: str, path: str, age: datetime) -> bool:
        for length in range(len(path), -1, -1):
            for own in (branch, None):
                matching = [rule for rule in rules if rule.branch == own and rule.prefix == path[:length]]
                if matching:
                    return all(rule.enabled for rule in matching) and age < min(rule.date_to_be_deleted for rule in matching)
        return False

    reaches = sorted({frozenset(class_of(rules, b) for b in branches) for _, _, branches in objects}, key=sorted)
    reach = np.array([reaches.index(frozenset(class_of(rules, b) for b in branches)) for _, _, branches in objects], np.int64)
    paths, ages = pa.array([path for path, _, _ in objects], pa.string()), _ages(*(age for _, age, _ in objects))
    found = evaluate(rules, paths, ages, reach, reaches).released.tolist()
    assert found == [bool(branches) and all(goes_on(b, path, age) for b in branches) for path, age, branches in objects]


@pytest.mark.parametrize(
    "text, found",
    [
        ("{", "the document: Invalid JSON"),
        ("[]", "the document"),
        ('{"r": {"prefix": "a", "days": -1, "enabled": true}}', "r.days: Input should be greater than or equal to 0"),
        ('{"r": {"prefix": "a", "days": "10", "enabled": true}}', "r.days: Value error, expected an integer number of days"),
        ('{"r": {"prefix": "a", "days": true, "enabled": true}}', "r.days: Value error, expected an integer number of days"),
        ('{"r": {"prefix": "a", "days": 1}}', "r.enabled: Field required"),
        ('{"r": {"prefix": 5, "days": 1, "enabled": true}}', "r.prefix: Input should be a valid string"),
        ('{"r": {"prefix": "a", "dayz": 1, "enabled": true}}', "r.dayz: Extra inputs are not permitted"),
        ('{"r": {"prefix": "a", "enabled": true, "branch_days": {"b": 1.5}}}', "r.branch_days.b: Value error"),
        ('{"r": {"prefix": "a", "enabled": true}}', "r: the rule has no effect; set days or branch_days"),
    ],
)
def test_invalid_rule_error_contains_yaml_path(text: str, found: str) -> None:
    with pytest.raises(UsageError, match=r"lifecycle rules in policies/ml.json are not valid") as refused:
        parse_rules("policies/ml.json", text)
    assert found in str(refused.value)


def test_rule_days_count_from_start_of_run_date() -> None:
    rows = rule_rows(parse_rules("r", json.dumps({"r": RULE1})), january(20) + timedelta(hours=0))
    assert rows[0]["date_to_be_deleted"] == january(10)
