"""Read the lakeFS lifecycle rules that apply to a run date."""

from __future__ import annotations

from dataclasses import replace

from gc_assets.core.errors import GateRefused
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.lakefs.config import LakeFsLakeConfig
from gc_assets.lakes.lakefs.lifecycle import Rule
from gc_assets.lakes.lakefs.lifecycle_rules import read_rules, rule_rows
from gc_assets.stages.mark.policy import rule_key
from gc_assets.state.schemas import CURRENT_RULES, POLICY_TABLE


def read_lifecycle_rules(context: RunContext, lake_name: str) -> list[Rule]:
    """Read a run date's rules for objects, enabled or not, with the time of their last deletion.

    Raises:
        GateRefused: If this is a verification mark and the rules file has changed since the plan.
    """
    lake = context.config.lake(lake_name)
    policy = read_rows(context.state, POLICY_TABLE, context.table(POLICY_TABLE, lake_name))
    current = read_rows(context.state, CURRENT_RULES, context.table(CURRENT_RULES, lake_name))
    bounds = {rule_key(row): row["last_deleted"] for row in current.to_pylist()}
    rows = [row for row in policy.to_pylist() if row["scope"] == "objects" and row["run_date"] == context.run_date]
    rules = [Rule.of({**row, "last_deleted": bounds.get(rule_key(row))}) for row in rows]
    if context.verification_id is not None and isinstance(lake, LakeFsLakeConfig) and lake.rules is not None:
        in_file = [Rule.of(row) for row in rule_rows(read_rules(lake.rules), context.as_of)]
        if in_file != [replace(rule, last_deleted=None) for rule in rules]:
            raise GateRefused(f"lake {lake_name}: the lifecycle rules in {lake.rules} changed after the plan was made. Make a new plan")
    return rules
