"""What this run understands the policy to be (`policy_table`) and how far earlier runs carried it out (`current_rules`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.config import AnyLake, IcechunkLakeConfig, LakeFsLakeConfig, NessieLakeConfig, RefRule
from gc_assets.core.errors import GateRefused, UsageError
from gc_assets.core.receipts import Published
from gc_assets.core.units import Cutoff
from gc_assets.lakes.lakefs.lifecycle import Rule
from gc_assets.lakes.lakefs.lifecycle_rules import LifecycleRule, parse_rules, rule_rows
from gc_assets.schemas import CURRENT_RULES, POLICY_TABLE
from gc_assets.stages.approvals import plans
from gc_assets.stages.night import Night
from gc_assets.stages.tables import publish, read_rows, write_rows


def policy_table(night: Night, lake_name: str) -> Published:
    """The rules of this run date below those of all earlier ones, so that it stays known what each run meant."""
    state = night.state
    run = state.start(lake_name, POLICY_TABLE.name, night.run_date, night.clock)
    rules = pa.Table.from_pylist(
        [{**rule, "run_id": run.run_id, "run_date": night.run_date} for rule in _rules(night.config.lake(lake_name), night.as_of)],
        schema=POLICY_TABLE.schema,
    )
    before = state.latest(lake_name, POLICY_TABLE.name, before=night.run_date)
    rows = pa.concat_tables([read_rows(state, POLICY_TABLE, before), rules]) if before is not None else rules
    written = write_rows(rows, POLICY_TABLE, run, state.files)
    facts = {"rules": rules.num_rows, "policy_digest": night.config.policy_digest()}
    return publish(state, run, written, night.clock, inputs=[before] if before else [], facts=facts, unsafe=night.unsafe)


def current_rules(night: Night, lake_name: str) -> Published:
    """The rules of this run date with `last_deleted`: the same rule's bound on the newest date whose deletions finished in full.

    A policy row proves nothing was deleted: dates whose plans were not applied, failed or were restored do not count.
    """
    state = night.state
    policy = state.require(lake_name, POLICY_TABLE.name, night.run_date)
    rows = read_rows(state, POLICY_TABLE, policy)
    mine = rows.filter(pc.equal(rows.column("run_date"), pa.scalar(night.run_date)))
    finished = finished_dates(night)
    bounds: dict[tuple[Any, ...], datetime | None] = {}
    for row in sorted(rows.to_pylist(), key=lambda item: item["run_date"]):
        if row["enabled"] and row["run_date"] in finished and row["run_date"] < night.run_date:
            bounds[(row["rule_id"], row["prefix"], row["branch"])] = row["date_to_be_deleted"]
    current = [
        {
            **{name: row[name] for name in ("rule_id", "prefix", "branch", "date_to_be_deleted", "scope")},
            "last_deleted": bounds.get((row["rule_id"], row["prefix"], row["branch"])),
        }
        for row in mine.to_pylist()
        if row["enabled"]
    ]
    run = state.start(lake_name, CURRENT_RULES.name, night.run_date, night.clock)
    written = write_rows(pa.Table.from_pylist(current, schema=CURRENT_RULES.schema), CURRENT_RULES, run, state.files)
    return publish(state, run, written, night.clock, inputs=[policy], unsafe=night.unsafe)


def finished_dates(night: Night) -> set[date]:
    """Run dates with at least one plan, all of them applied in full and none restored since."""
    done: set[date] = set()
    open_: set[date] = set()
    for plan in plans(night.config):
        applied = plan.finished is not None and plan.restored_at is None
        (done if applied else open_).add(plan.header.run_date)
    return done - open_


def _rules(lake: AnyLake, as_of: datetime) -> list[dict[str, Any]]:
    if isinstance(lake, LakeFsLakeConfig) and lake.rules is not None:
        return [*_rules(lake.model_copy(update={"rules": None}), as_of), *rule_rows(read_lifecycle_rules(lake.rules), as_of)]
    if isinstance(lake, LakeFsLakeConfig) and lake.retention.source == "server":
        # The server's rules are read with the refs that they are about, and frozen there.
        return [_rule("retention.source=server", None, Cutoff(forever=True), as_of)]
    if isinstance(lake, IcechunkLakeConfig | LakeFsLakeConfig | NessieLakeConfig):
        default = _rule("retention.default", None, lake.retention.default.as_cutoff(), as_of)
        return [default, *_ref_rules(lake.retention.refs, as_of)]
    retention = lake.retention
    table = Cutoff(max_age=retention.max_snapshot_age, keep_last=retention.min_snapshots_to_keep)
    return [_rule("retention.source=table", None, table, as_of), *_ref_rules(retention.refs, as_of)]


def has_lifecycle(night: Night, lake_name: str) -> bool:
    lake = night.config.lake(lake_name)
    return isinstance(lake, LakeFsLakeConfig) and lake.rules is not None


def newest_finished(night: Night) -> date | None:
    """The newest run date before this one whose deletions finished in full."""
    return max((day for day in finished_dates(night) if day < night.run_date), default=None)


def lifecycle_rules(night: Night, lake_name: str) -> list[Rule]:
    """The rules about objects that hold for the run date, enabled or not, with `last_deleted`.

    Raises `GateRefused` where an apply looks again and the rules file says something else by now.
    """
    lake = night.config.lake(lake_name)
    policy = read_rows(night.state, POLICY_TABLE, night.state.require(lake_name, POLICY_TABLE.name, night.run_date))
    current = read_rows(night.state, CURRENT_RULES, night.state.require(lake_name, CURRENT_RULES.name, night.run_date))
    bounds = {(row["rule_id"], row["prefix"], row["branch"]): row["last_deleted"] for row in current.to_pylist()}
    rows = [row for row in policy.to_pylist() if row["scope"] == "objects" and row["run_date"] == night.run_date]
    rules = [Rule.of({**row, "last_deleted": bounds.get((row["rule_id"], row["prefix"], row["branch"]))}) for row in rows]
    if night.recheck is not None and isinstance(lake, LakeFsLakeConfig) and lake.rules is not None:
        now = [Rule.of(row) for row in rule_rows(read_lifecycle_rules(lake.rules), night.as_of)]
        if now != [replace(rule, last_deleted=None) for rule in rules]:
            raise GateRefused(f"lake {lake_name}: the lifecycle rules in {lake.rules} are no longer those of the plan; make a new plan")
    return rules


def read_lifecycle_rules(path: str) -> Mapping[str, LifecycleRule]:
    """The rules in a lake's rules file, as they are now. Raises `UsageError` naming the file and what is wrong with it."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"lifecycle rules in {path} cannot be read: {error}; correct `rules` of the lake") from error
    return parse_rules(path, text)


def _ref_rules(rules: tuple[RefRule, ...], as_of: datetime) -> list[dict[str, Any]]:
    return [_rule(f"retention.refs[{index}]", rule.match, rule.as_cutoff(), as_of) for index, rule in enumerate(rules)]


def _rule(rule_id: str, branch: str | None, cutoff: Cutoff, as_of: datetime) -> dict[str, Any]:
    return {
        "rule_id": rule_id,
        "prefix": "",
        "branch": branch,
        "date_to_be_deleted": cutoff.moment(as_of),
        "keep_last": cutoff.keep_last,
        "scope": "snapshots",
        "enabled": True,
    }
