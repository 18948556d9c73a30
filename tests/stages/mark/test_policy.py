"""Policies of all runs are recorded, and a rule is executed only if a deletion finished in full."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gc_assets.core.clock import Clock, start_of_day
from gc_assets.core.errors import StateError
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.kinds import config_of
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.mark.policy import current_rules, find_finished_dates, policy_table
from gc_assets.stages.records.plans import execution_directory
from gc_assets.state.journal import State
from gc_assets.state.schemas import CURRENT_RULES, POLICY_TABLE
from tests.assets.platforms import NOW, platform, stored_plan

RETENTION = {"default": "10d", "refs": [{"match": "release/.*", "keep": "forever"}, {"match": "dev", "max_age": "1d", "keep_last": 3}]}


@pytest.fixture
def at(tmp_path: Path) -> Platform:
    return with_retention(platform(tmp_path), RETENTION)


def with_retention(at: Platform, retention: dict[str, Any]) -> Platform:
    lakes = [{"name": "weather", "kind": "icechunk", "location": "file:///w/", "retention": retention}]
    document = at.config.model_dump(mode="json", exclude={"lakes"}) | {"lakes": lakes}
    return Platform(config_of(document), Clock(NOW), at.unsafe, at.path)


def context_of(at: Platform, day: str) -> Any:
    return at.run_context(datetime.fromisoformat(day).date())


def rules(at: Platform, day: str) -> dict[str, datetime | None]:
    """Run both stages for a date and return `last_deleted` by rule."""
    policy_table(context_of(at, day), "weather")
    rows = read_rows(State.at(at.config.state), CURRENT_RULES, current_rules(context_of(at, day), "weather")).to_pylist()
    return {row["rule_id"]: row["last_deleted"] for row in rows}


def plan_of(at: Platform, day: str, *records: str, files: int = 2) -> None:
    directory = execution_directory(header_of(stored_plan(at, run_date=day, files=files)))
    for name in records:
        State.at(at.config.state).files.replace(f"{directory}/{name}.json", json.dumps({"at": NOW.isoformat()}).encode())


def at_midcontext_of(day: str) -> datetime:
    return datetime.fromisoformat(day).replace(tzinfo=UTC)


def test_rules_are_recorded_with_cutoffs_of_run_date(at: Platform) -> None:
    published = policy_table(context_of(at, "2026-03-12"), "weather")
    rows = read_rows(State.at(at.config.state), POLICY_TABLE, published).to_pylist()
    found = {row["rule_id"]: (row["branch"], row["date_to_be_deleted"], row["keep_last"]) for row in rows}
    assert found == {
        "retention.default": (None, at_midcontext_of("2026-03-02"), None),
        "retention.refs[0]": ("release/.*", None, None),
        "retention.refs[1]": ("dev", at_midcontext_of("2026-03-11"), 3),
    }
    assert {(row["scope"], row["enabled"], row["run_id"]) for row in rows} == {("snapshots", True, published.receipt.run_id)}
    assert published.receipt.summary["policy_digest"] == at.config.policy_digest()


def test_iceberg_lake_without_overrides_has_one_rule_for_table_settings(tmp_path: Path) -> None:
    at = platform(tmp_path)
    rows = read_rows(State.at(at.config.state), POLICY_TABLE, policy_table(context_of(at, "2026-03-12"), "sales")).to_pylist()
    assert [(row["rule_id"], row["date_to_be_deleted"], row["keep_last"]) for row in rows] == [("retention.source=table", None, None)]


def test_policy_rows_of_earlier_runs_are_kept(at: Platform) -> None:
    policy_table(context_of(at, "2026-03-10"), "weather")
    later = with_retention(at, {"default": "20d"})
    rows = read_rows(State.at(at.config.state), POLICY_TABLE, policy_table(context_of(later, "2026-03-12"), "weather")).to_pylist()
    assert [(row["run_date"].day, row["rule_id"], row["date_to_be_deleted"]) for row in rows] == [
        (10, "retention.default", at_midcontext_of("2026-02-28")),
        (10, "retention.refs[0]", None),
        (10, "retention.refs[1]", at_midcontext_of("2026-03-09")),
        (12, "retention.default", at_midcontext_of("2026-02-20")),
    ]


def test_repeated_run_replaces_only_its_own_rules(at: Platform) -> None:
    for _ in range(2):
        policy_table(context_of(at, "2026-03-10"), "weather")
    published = [policy_table(context_of(at, "2026-03-12"), "weather") for _ in range(2)][-1]
    assert published.receipt.rows == 6


def test_rule_has_no_deletion_bound_before_deletion_finished(at: Platform) -> None:
    assert set(rules(at, "2026-03-10").values()) == {None}
    plan_of(at, "2026-03-10")
    assert set(rules(at, "2026-03-11").values()) == {None}


def test_finished_deletion_sets_deletion_bound_of_each_rule(at: Platform) -> None:
    rules(at, "2026-03-10")
    plan_of(at, "2026-03-10", "finished")
    assert rules(at, "2026-03-12") == {
        "retention.default": at_midcontext_of("2026-02-28"),
        "retention.refs[0]": None,
        "retention.refs[1]": at_midcontext_of("2026-03-09"),
    }


def test_newest_finished_deletion_sets_deletion_bound(at: Platform) -> None:
    for day in ("2026-03-08", "2026-03-09", "2026-03-10"):
        rules(at, day)
    plan_of(at, "2026-03-08", "finished")
    plan_of(at, "2026-03-09", "finished", files=3)
    plan_of(at, "2026-03-10", files=4)
    assert rules(at, "2026-03-12")["retention.default"] == at_midcontext_of("2026-02-27")


def test_restored_deletion_sets_no_deletion_bound(at: Platform) -> None:
    rules(at, "2026-03-10")
    plan_of(at, "2026-03-10", "finished", "restored")
    assert set(rules(at, "2026-03-12").values()) == {None}


def test_date_with_unfinished_plan_sets_no_deletion_bound(at: Platform) -> None:
    plan_of(at, "2026-03-10", "finished", files=2)
    plan_of(at, "2026-03-10", files=3)
    plan_of(at, "2026-03-11", "finished", files=4)
    assert find_finished_dates(context_of(at, "2026-03-12")) == {context_of(at, "2026-03-11").run_date}


def test_deletions_of_same_or_later_dates_set_no_deletion_bound(at: Platform) -> None:
    for day in ("2026-03-10", "2026-03-12"):
        rules(at, day)
        plan_of(at, day, "finished")
    assert set(rules(at, "2026-03-10").values()) == {None}


def test_rule_with_changed_ref_pattern_counts_as_another_rule(at: Platform) -> None:
    rules(at, "2026-03-10")
    plan_of(at, "2026-03-10", "finished")
    other = with_retention(at, {**RETENTION, "refs": [{"match": "dev/.*", "keep": "1d"}, {"match": "dev", "keep": "1d"}]})
    assert rules(other, "2026-03-12") == {
        "retention.default": at_midcontext_of("2026-02-28"),
        "retention.refs[0]": None,
        "retention.refs[1]": at_midcontext_of("2026-03-09"),
    }


def test_current_rules_need_policy_of_run_date(at: Platform) -> None:
    policy_table(context_of(at, "2026-03-10"), "weather")
    with pytest.raises(StateError, match="weather/policy_table has no table for 2026-03-11; run"):
        current_rules(context_of(at, "2026-03-11"), "weather")


def test_deletion_bounds_count_from_start_of_run_date(at: Platform) -> None:
    assert context_of(at, "2026-03-12").as_of == start_of_day(context_of(at, "2026-03-12").run_date) == at_midcontext_of("2026-03-12")
