"""Dagster metadata of a plan: id, status, approvals, deadlines and gates."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import dagster as dg

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.plans import StoredPlan, load_plan
from gc_assets.state.journal import PublishedTable

NOT_APPROVED: Final = "not approved"
_GATES: Final = dg.TableSchema(
    columns=[dg.TableColumn("gate"), dg.TableColumn("passed", "bool"), dg.TableColumn("may_be_overridden", "bool"), dg.TableColumn("found")]
)


def plan_metadata(context: RunContext, published: PublishedTable) -> dict[str, Any]:
    """Return the metadata of a published plan and its current status."""
    plan = load_plan(context.config, published)
    header = plan.header
    gates = [
        dg.TableRecord({"gate": gate.name, "passed": gate.passed, "may_be_overridden": gate.overridable, "found": gate.message})
        for gate in header.gates
    ]
    return {
        "plan_id": header.plan_id,
        **verdict_metadata(plan, context.clock.now()),
        "failed_gates": ", ".join(gate.name for gate in header.failed_gates) or "none",
        "gates": dg.MetadataValue.table(gates, _GATES),
    }


def verdict_metadata(plan: StoredPlan, now: datetime) -> dict[str, Any]:
    """Return the decisions on a plan, and its deadlines."""
    header, verdict = plan.header, plan.verdict
    if not header.has_work:
        return {"status": "nothing to do"}
    metadata: dict[str, Any] = {"status": plan.status_at(now)}
    if header.historical:
        return metadata
    rejected = {"rejected_by": ", ".join(event.by for event in verdict.rejections)} if verdict.rejections else {}
    return {
        **metadata,
        "approved_by": verdict.approved_by or NOT_APPROVED,
        **rejected,
        "approvals": f"{len(verdict.approvals):,} of {verdict.needed:,}",
        "approve_before": dg.MetadataValue.timestamp(header.approve_before),
        "apply_before": dg.MetadataValue.timestamp(header.apply_before),
    }
