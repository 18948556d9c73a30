"""Each gate at its limit and above. The message of a failed gate contains its numbers and its
override.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime

import pytest

from gc_assets.core import gates
from gc_assets.core.plan import Amount, BranchShare, GateResult, LiveCount, Unreadable

GB = 10**9
UNREADABLE = Unreadable(
    lake="sales", table_name="db.t", table_uuid="u", why="torn", since=datetime(2026, 1, 2, tzinfo=UTC), good_on=date(2026, 1, 1)
)

NEVER_READ = UNREADABLE.model_copy(update={"good_on": None, "storages": ("warehouse",)})
SET_ASIDE = NEVER_READ.model_copy(update={"set_aside": "set aside by ada"})


def small(files: int = 0, size: int = 0) -> Amount:
    return Amount(files=files, bytes=size)


EDGES: list[tuple[str, GateResult, GateResult]] = [
    ("live_set", gates.live_set(1, 3), gates.live_set(0, 3)),
    ("live_drop", gates.live_drop(LiveCount(80), LiveCount(100), 0.2), gates.live_drop(LiveCount(79), LiveCount(100), 0.2)),
    ("live_drop", gates.live_drop(LiveCount(100), LiveCount(100), 0.0), gates.live_drop(LiveCount(99), LiveCount(100), 0.0)),
    ("unreadable_tables", gates.unreadable_tables([UNREADABLE], 1), gates.unreadable_tables([UNREADABLE, UNREADABLE], 1)),
    ("unreadable_tables", gates.unreadable_tables([UNREADABLE, SET_ASIDE], 1), gates.unreadable_tables([UNREADABLE, NEVER_READ], 1)),
    ("metadata_present", gates.metadata_present(0, []), gates.metadata_present(1, ["m.avro"])),
    (
        "live_drop",
        gates.live_drop(LiveCount(98, {"a": 90, "b": 8}), LiveCount(100, {"a": 90, "b": 10}), 0.2),
        gates.live_drop(LiveCount(97, {"a": 90, "b": 7}), LiveCount(100, {"a": 90, "b": 10}), 0.2),
    ),
    ("lakes_present", gates.lakes_present([]), gates.lakes_present(["sales (not in lakes.yaml, 3 files before)"])),
    ("live_listed", gates.live_listed(1000, 1, ["a"]), gates.live_listed(999, 1, ["a"])),
    ("no_live_candidate", gates.no_live_candidate(0, []), gates.no_live_candidate(1, ["a"])),
    ("spelling", gates.spelling(0, [], 2, ["a%20b"]), gates.spelling(1, ["a%20b"])),
    ("storages_apart", gates.storages_apart([]), gates.storages_apart([("outer", "inner")])),
    ("links", gates.links(0, []), gates.links(1, ["a"])),
    ("unknown_addresses", gates.unknown_addresses(9, 0, []), gates.unknown_addresses(9, 1, ["a and https://h/a"])),
    ("foreign_metadata", gates.foreign_metadata(0, []), gates.foreign_metadata(1, ["table 5e1f"])),
    ("unfinished_apply", gates.unfinished_apply([]), gates.unfinished_apply(["5e1f"])),
    ("damaged_histories", gates.damaged_histories([]), gates.damaged_histories(["Lake sales: a lost tag."])),
    ("delete_bytes", gates.delete_bytes(small(1, GB), GB), gates.delete_bytes(small(1, GB + 1), GB)),
    (
        "delete_share",
        gates.delete_share(small(20, 1), small(100, 100), 0.2, configured=True),
        gates.delete_share(small(21, 1), small(100, 100), 0.2, configured=True),
    ),
    (
        "delete_share",
        gates.delete_share(small(1, 20), small(100, 100), 0.2, configured=True),
        gates.delete_share(small(1, 21), small(100, 100), 0.2, configured=True),
    ),
]


@pytest.mark.parametrize("name, inside, outside", EDGES)
def test_gate_passes_at_limit_and_fails_above(name: str, inside: GateResult, outside: GateResult) -> None:
    assert (inside.name, outside.name) == (name, name)
    assert inside.passed
    assert not outside.passed


@pytest.mark.parametrize("name, inside, outside", EDGES)
def test_failed_gate_message_contains_override(name: str, inside: GateResult, outside: GateResult) -> None:
    way_out = f"approve with `--override {name}`" if outside.overridable else "This gate cannot be overridden."
    assert way_out in outside.message
    assert "--override" not in inside.message
    assert inside.overridable == outside.overridable


def test_gates_that_prove_wrong_live_set_cannot_be_overridden() -> None:
    fixed = {name for name, _, outside in EDGES if not outside.overridable}
    marks = {"live_set", "lakes_present", "metadata_present", "no_live_candidate", "spelling"}
    assert fixed == marks | {"storages_apart", "links", "unfinished_apply"}


@pytest.mark.parametrize(
    "refused, numbers",
    [
        (gates.live_set(0, 1234), ["0 live files", "1,234 refs"]),
        (gates.live_drop(LiveCount(700), LiveCount(1000), 0.2), ["700", "1,000", "30.0%", "max_live_drop allows 20.0%"]),
        (
            gates.lakes_present(["sales (not in lakes.yaml, 3 files before)"]),
            ["1 lake that", "is missing", "sales", "gc-assets forget LAKE"],
        ),
        (gates.metadata_present(1234, ["m.avro"]), ["1,234 live metadata objects", "m.avro"]),
        (gates.live_listed(2000, 1000, ["data/a"]), ["1,000 of 2,000", "0.1%", "data/a"]),
        (gates.no_live_candidate(2, ["data/a"]), ["2 candidates", "data/a", "bug"]),
        (gates.spelling(2, ["data/a%20b"]), ["2 candidates", "data/a%20b", "Rename"]),
        (gates.storages_apart([("outer", "inner")]), ["outer and inner"]),
        (gates.links(3, ["data/a"]), ["3 live files", "data/a"]),
        (gates.unknown_addresses(9, 3, ["data/a and https://h/a"]), ["3 planned files", "data/a and https://h/a", "`aliases`"]),
        (gates.unknown_addresses(9, 3, ["data/a and /data/a"], 3), ["3 planned files have the size", "data/a and /data/a", "chmod o+x"]),
        (gates.unknown_addresses(9, 3, ["data/a and /data/a"], 1), ["chmod o+x", "`aliases`"]),
        (gates.foreign_metadata(3, ["table 5e1f"]), ["3 metadata objects", "table 5e1f; and 2 more. ", "lakes.yaml"]),
        (gates.unfinished_apply(["5e1f (its time ends tomorrow)"]), ["1 plan was", "5e1f (its time", "gc-assets apply PLAN_ID --end"]),
        (gates.delete_bytes(small(1, 3 * GB), 2 * GB), ["3 GB planned", "max_delete_bytes allows 2 GB"]),
        (
            gates.delete_share(small(500, 1), small(1000, 1000), 0.2, configured=True),
            ["500 of 1,000 files", "50.0%", "max_delete_share allows 20.0%"],
        ),
    ],
)
def test_failed_gate_message_contains_numbers_and_examples(refused: GateResult, numbers: list[str]) -> None:
    assert not refused.passed
    assert [text for text in numbers if text not in refused.message] == []


@pytest.mark.parametrize("gate", [gates.metadata_present, gates.no_live_candidate, gates.spelling, gates.links, gates.foreign_metadata])
def test_failed_gate_message_contains_at_most_five_examples(gate: Callable[..., GateResult]) -> None:
    message = gate(100, [f"object-{index}" for index in range(100)]).message
    assert "object-4" in message
    assert "object-5" not in message


def test_foreign_metadata_message_lists_each_table_once() -> None:
    reason = "table 5e1f, which is in no configured catalog; if it is dead: `gc-assets accept 5e1f file:///a/ --by WHO`"
    message = gates.foreign_metadata(3, [f"a/1.json: {reason}", f"a/2.json: {reason}", "b/1.json: table 6f"]).message
    assert message.startswith("3 metadata objects under claimed prefixes do not belong to a configured lake: ")
    assert message.count("gc-assets accept 5e1f") == 1
    assert "a/1.json and 1 more: table 5e1f" in message
    assert "b/1.json: table 6f" in message


@pytest.mark.parametrize("count, samples, rest", [(5, 5, None), (12, 12, 7), (100, 20, 95)])
def test_foreign_metadata_message_counts_omitted_files(count: int, samples: int, rest: int | None) -> None:
    message = gates.foreign_metadata(count, [f"a/{number}.json: table {number}" for number in range(samples)]).message
    assert message.count("; and ") == (rest is not None)
    assert rest is None or f"table 4; and {rest} more. " in message


def test_live_drop_passes_first_run() -> None:
    assert gates.live_drop(LiveCount(1), None, 0.0).passed


def test_live_drop_passes_growth_and_empty_baseline() -> None:
    assert gates.live_drop(LiveCount(200), LiveCount(100), 0.0).passed
    assert gates.live_drop(LiveCount(5), LiveCount(0), 0.0).passed


def test_live_drop_ignores_lake_that_user_forgot() -> None:
    before = LiveCount(100, {"a": 60, "b": 40}).without({"b"})
    assert gates.live_drop(LiveCount(60, {"a": 60}), before, 0.0).passed
    assert not gates.live_drop(LiveCount(59, {"a": 59}), before, 0.0).passed
    assert LiveCount(100).without({"b"}) == LiveCount(100), "a plan of an older release does not say which lake needed what"


def test_live_drop_does_not_count_expired_files() -> None:
    live, before = LiveCount(600, {"a": 590, "b": 10}), LiveCount(1000, {"a": 980, "b": 20})
    passed = gates.live_drop(live, before, 0.2, LiveCount(200, {"a": 194, "b": 6}))
    assert passed.passed
    expired = {"expired": 200, "expired_in_a": 194, "expired_in_b": 6}
    assert passed.numbers == {"live": 600, "before": 1000, "drop": 0.2, "limit": 0.2} | expired
    for number in ("down 40.0%", "expired 20.0% (200 files)", "A drop of 20.0% is not explained", "max_live_drop allows 20.0%"):
        assert number in passed.message
    assert not gates.live_drop(live, before, 0.2, LiveCount(199, {"a": 193, "b": 6})).passed
    of_lake = gates.live_drop(live, before, 0.2, LiveCount(200, {"a": 195, "b": 5}))
    assert not of_lake.passed
    assert "lake b 10 after 20 (5 expired)" in of_lake.message


def test_live_drop_reports_loss_of_everything() -> None:
    fallen = gates.live_drop(LiveCount(0), LiveCount(1_000_000), 0.99)
    assert not fallen.passed
    assert fallen.numbers["drop"] == 1.0


@pytest.mark.parametrize("files, size", [(1_000, 10**9), (1, 1)])
def test_small_plan_passes_default_delete_share(files: int, size: int) -> None:
    verdict = gates.delete_share(small(files, size), small(files, size), 0.2, configured=False)
    assert verdict.passed
    assert "not applied to a plan of at most 1,000 files and 1 GB" in verdict.message


@pytest.mark.parametrize("files, size", [(1_001, 1), (1, 10**9 + 1)])
def test_larger_plan_fails_default_delete_share(files: int, size: int) -> None:
    assert not gates.delete_share(small(files, size), small(files, size), 0.2, configured=False).passed


def test_small_plan_fails_configured_delete_share() -> None:
    assert not gates.delete_share(small(2, 2), small(4, 4), 0.2, configured=True).passed


@pytest.mark.parametrize(
    "branches, configured, passed",
    [
        ({"main": (1_000, 1.0)}, False, True),
        ({"main": (1_001, 0.51)}, False, False),
        ({"main": (1_001, 0.5)}, False, True),
        ({"main": (1_000, 0.001), "dev": (2, 0.67)}, False, True),
        ({"main": (1_001, 0.001), "dev": (2, 0.67)}, False, True),
        ({"main": (1_001, 0.001), "dev": (2, 0.67)}, True, False),
        ({"main": (2, 0.51)}, True, False),
        ({"main": (100_000, 0.1)}, False, True),
        ({"main": (100_001, 0.1)}, False, False),
    ],
)
def test_number_of_paths_deleted_by_commits_is_limited(branches: dict[str, tuple[int, float]], configured: bool, passed: bool) -> None:
    shares = [BranchShare(share, f"branch {name} of lake ml", paths) for name, (paths, share) in branches.items()]
    gate = gates.deleted_paths(sum(item.paths for item in shares), 100_000, shares, 0.5, configured=configured)
    assert (gate.name, gate.passed, gate.overridable) == ("deleted_paths", passed, True)
    assert ("Check the lifecycle rules" in gate.message) != passed


def test_plan_for_empty_storage_has_delete_share_of_one() -> None:
    """A plan with 5 of 0 files must not have a share of 0 %."""
    assert not gates.delete_share(small(5, 0), small(0, 0), 1.0, configured=True).passed
    assert not gates.delete_share(small(5, 5), small(5, 0), 1.0, configured=True).passed
    assert gates.delete_share(small(), small(), 0.0, configured=True).passed


def test_empty_live_set_refuses_only_plan_with_deletions() -> None:
    assert gates.live_set(0, 3, planned=0).passed
    assert gates.live_set(0, 0, planned=5).passed  # a new repository with leftovers


@pytest.mark.parametrize("tables, text", [(1, "1 dropped table has planned files"), (2, "2 dropped tables have planned files")])
def test_number_of_dropped_tables_is_in_the_message(tables: int, text: str) -> None:
    assert gates.dropped_tables(tables, 0, [], []).message.startswith(f"{text}; max_dropped_tables allows 0.")
