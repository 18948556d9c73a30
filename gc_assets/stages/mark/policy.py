"""Record the retention policy of each run in `policy_table`, and its rules in `current_rules`.

`current_rules` also contains the time up to which earlier plans have executed each rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.engine.progress import log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, read_rows, write_rows
from gc_assets.stages.records.plans import list_plans
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import CURRENT_RULES, POLICY_TABLE
from gc_assets.state.summaries import PolicyTableSummary


@log_progress(POLICY_TABLE)
def policy_table(context: RunContext, lake_name: str) -> PublishedTable:
    """Publish this run date's rules together with the rules of all earlier dates.

    The table is a history of the policies used by runs.
    """
    state = context.state
    run = start_run(context, lake_name, POLICY_TABLE)
    rules = pa.Table.from_pylist(
        [
            {**rule, "run_id": run.run_id, "run_date": context.run_date}
            for rule in context.config.lake(lake_name).policy_rows(context.as_of)
        ],
        schema=POLICY_TABLE.schema,
    )
    previous = state.latest(lake_name, POLICY_TABLE.name, before=context.run_date)
    rows = pa.concat_tables([read_rows(state, POLICY_TABLE, previous), rules]) if previous is not None else rules
    written = write_rows(rows, POLICY_TABLE, run, state.files)
    summary = PolicyTableSummary(rules=rules.num_rows, policy_digest=context.config.policy_digest())
    return publish(state, run, written, context.clock, inputs=[previous] if previous else [], summary=summary, unsafe=context.unsafe)


@log_progress(CURRENT_RULES)
def current_rules(context: RunContext, lake_name: str) -> PublishedTable:
    """Publish the enabled rules of this run date, and the time of their last deletion.

    `last_deleted` is the rule's `date_to_be_deleted` on the newest earlier run date whose plan was
    completely applied. Dates with unapplied, failed or restored plans are ignored.
    """
    state = context.state
    policy = context.table(POLICY_TABLE, lake_name)
    rows = read_rows(state, POLICY_TABLE, policy)
    own = rows.filter(pc.equal(rows.column("run_date"), pa.scalar(context.run_date)))
    finished = find_finished_dates(context)
    bounds: dict[tuple[Any, ...], datetime | None] = {}
    for row in sorted(rows.to_pylist(), key=lambda item: item["run_date"]):
        if row["enabled"] and row["run_date"] in finished and row["run_date"] < context.run_date:
            bounds[rule_key(row)] = row["date_to_be_deleted"]
    current = [
        {
            **{name: row[name] for name in ("rule_id", "prefix", "branch", "date_to_be_deleted", "scope", "glob")},
            "last_deleted": bounds.get(rule_key(row)),
        }
        for row in own.to_pylist()
        if row["enabled"]
    ]
    run = start_run(context, lake_name, CURRENT_RULES)
    written = write_rows(pa.Table.from_pylist(current, schema=CURRENT_RULES.schema), CURRENT_RULES, run, state.files)
    return publish(state, run, written, context.clock, inputs=[policy], unsafe=context.unsafe)


def rule_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values that identify a rule across runs: its id, its paths and its branch."""
    return row["rule_id"], row["prefix"], row["glob"], row["branch"]


def find_finished_dates(context: RunContext) -> set[date]:
    """Return the run dates whose plans were all applied completely and not restored.

    Empty plans are ignored. Therefore, a date that has only empty plans is not included.
    """
    finished: set[date] = set()
    unfinished: set[date] = set()
    for plan in list_plans(context.config):
        applied = plan.record.finished_at is not None and plan.record.restored_at is None
        (finished if applied else unfinished).add(plan.header.run_date)
    return finished - unfinished


def newest_finished_date(context: RunContext) -> date | None:
    """Return the newest earlier run date whose deletions are complete, or None."""
    return max((day for day in find_finished_dates(context) if day < context.run_date), default=None)
