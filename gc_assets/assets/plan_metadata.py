"""What a person needs to know of a plan to decide on it, as metadata of Dagster: its id, its state,
who said what, until when, and its gates.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import dagster as dg

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.plans import StoredPlan, load_plan
from gc_assets.state.journal import PublishedTable

NOT_APPROVED: Final = "nobody yet"
_GATES: Final = dg.TableSchema(
    columns=[dg.TableColumn("gate"), dg.TableColumn("passed", "bool"), dg.TableColumn("may_be_overridden", "bool"), dg.TableColumn("found")]
)


def plan_metadata(context: RunContext, published: PublishedTable) -> dict[str, Any]:
    """Returns the metadata of the plan that was published as `deletion_plan`, as things stand now."""
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
    """Returns what people said of the plan, and until when they can."""
    header, verdict = plan.header, plan.verdict
    if not header.has_work:
        return {"status": "nothing to do"}
    told: dict[str, Any] = {"status": plan.status_at(now)}
    if header.historical:
        return told
    rejected = {"rejected_by": ", ".join(word.by for word in verdict.rejections)} if verdict.rejections else {}
    return {
        **told,
        "approved_by": verdict.approved_by or NOT_APPROVED,
        **rejected,
        "approvals": f"{len(verdict.approvals):,} of {verdict.needed:,}",
        "approve_before": dg.MetadataValue.timestamp(header.approve_before),
        "apply_before": dg.MetadataValue.timestamp(header.apply_before),
    }
