from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from gc_assets.core.idle_branches import Branch, BranchKey, IdleRule, Sighting, describe_unused_rules, explain_idle, find_unchanged_since

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
TMP = IdleRule("retention.delete_idle[0]", "tmp/.*", 30 * DAY)
OLD = NOW - 100 * DAY


def is_idle(head_at: datetime | None = OLD, since: datetime | None = OLD, name: str = "tmp/a", protected: str | None = None) -> bool:
    return explain_idle(Branch(name, head_at, since, protected), [TMP], NOW) is not None


def test_branch_with_old_head_is_idle() -> None:
    assert is_idle()


@pytest.mark.parametrize(
    "head_at, since",
    [
        (NOW - 30 * DAY, OLD),
        (OLD, NOW - 30 * DAY),
        (OLD, None),
        (None, OLD),
        (NOW + DAY, OLD),
    ],
    ids=["young commit", "new at an old commit", "never seen before", "commit of unknown time", "commit in the future"],
)
def test_branch_not_proven_idle_is_kept(head_at: datetime | None, since: datetime | None) -> None:
    assert not is_idle(head_at, since)


def test_idle_limit_itself_does_not_count_as_idle() -> None:
    limit = NOW - 30 * DAY
    assert (is_idle(limit, OLD), is_idle(limit - timedelta(microseconds=1), limit - timedelta(microseconds=1))) == (False, True)


@pytest.mark.parametrize("name", ["my/tmp/a", "tmp", "xtmp/a"])
def test_branch_pattern_matches_full_name(name: str) -> None:
    assert not is_idle(name=name)


def test_protected_branch_is_kept() -> None:
    assert not is_idle(protected="it is the default branch")


def test_main_branch_is_kept_even_without_protection() -> None:
    anything = IdleRule("retention.delete_idle[0]", ".*", DAY)
    assert [explain_idle(Branch(name, OLD, OLD), [anything], NOW) is None for name in ("main", "mainly")] == [True, False]


def test_first_matching_idle_rule_applies() -> None:
    keep = IdleRule("retention.delete_idle[0]", "tmp/keep", 1000 * DAY)
    branch = Branch("tmp/keep", OLD, OLD)
    assert (explain_idle(branch, [keep, TMP], NOW), explain_idle(branch, [TMP, keep], NOW) is None) == (None, False)


def test_idle_rule_that_matches_no_branch_is_reported() -> None:
    rules = [TMP, IdleRule("retention.delete_idle[1]", "tmp/a", DAY)]
    (found,) = describe_unused_rules(rules, ["tmp/a", "main"])
    assert found.startswith("retention.delete_idle[1] (match 'tmp/a') applies to no branch")


def sighting(age: int, *, table: str | None = None, **heads: str) -> Sighting:
    return Sighting(NOW - age * DAY, {(table, name): head for name, head in heads.items()}, frozenset({table}) if heads else frozenset())


def test_moved_branch_is_unchanged_since_first_run_after_move() -> None:
    seen = [sighting(1, a="x"), sighting(2, a="x"), sighting(3, a="y"), sighting(4, a="x")]
    assert find_unchanged_since({(None, "a"): "x"}, seen, OLD) == {(None, "a"): NOW - 2 * DAY}


def test_recreated_branch_is_unchanged_since_its_recreation() -> None:
    seen = [sighting(1, a="x", b="x"), sighting(2, b="x"), sighting(3, a="x", b="x")]
    assert find_unchanged_since({(None, "a"): "x"}, seen, OLD) == {(None, "a"): NOW - DAY}


def test_run_that_could_not_read_table_does_not_count_for_idle_time() -> None:
    seen = [sighting(1, a="x"), sighting(2), sighting(3, a="x")]
    assert find_unchanged_since({(None, "a"): "x"}, seen, OLD) == {(None, "a"): NOW - 3 * DAY}


def test_random_histories_delete_only_unchanged_branches() -> None:
    """Each day, branches are moved, deleted or left alone; the oracle reads the whole history."""
    for seed in range(100):
        dice = random.Random(seed)
        names = [(dice.choice(["t", "u"]), f"tmp/{number}") for number in range(6)]
        days: list[dict[BranchKey, str] | None] = []
        heads: dict[BranchKey, str] = {}
        for _ in range(60):
            for name in names:
                if dice.random() < 0.03:
                    heads[name] = dice.choice("xyz")
                elif dice.random() < 0.01:
                    heads.pop(name, None)
            days.append(dict(heads) if dice.random() < 0.8 else None)
        seen = [
            Sighting(NOW - age * DAY, day, frozenset(table for table, _ in day))
            for age, day in enumerate(reversed(days), 1)
            if day is not None
        ]
        rule = IdleRule("retention.delete_idle[0]", "tmp/.*", dice.randrange(2, 50) * DAY)
        since = find_unchanged_since(heads, seen, NOW - rule.after)
        found = {name for name in heads if explain_idle(Branch(name[1], OLD, since.get(name)), [rule], NOW) is not None}
        expected = set()
        for name, head in heads.items():
            known = [item for item in seen if any(table == name[0] for table, _ in item.heads)]
            same = [item.at for item in known if item.heads.get(name) == head]
            other = max((item.at for item in known if item.heads.get(name) != head), default=datetime.min.replace(tzinfo=UTC))
            if any(other < at < NOW - rule.after for at in same):
                expected.add(name)
        assert found == expected, seed
