"""Metadata that Dagster shows about a plan, such as its status, approvals and gates."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import dagster as dg

from gc_assets.assets.markdown import escape_markdown, wrap_markdown
from gc_assets.assets.page_actions import to_page_message
from gc_assets.assets.plan_card import SHORT_ID, plan_card
from gc_assets.config.models import Config
from gc_assets.core.plan import PlanHeader
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.read.plan_tables import TableAmounts, amounts_by_table, list_largest
from gc_assets.stages.read.reversibility import reversibility_json
from gc_assets.stages.read.run_tables import UNOWNED_NOTES, unowned_files
from gc_assets.stages.records.plans import StoredPlan, load_plan
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import ORPHAN_FILES

NOT_APPROVED: Final = "not approved"
MAX_TABLES: Final = 20
_GATES: Final = dg.TableSchema(
    columns=[dg.TableColumn("gate"), dg.TableColumn("passed", "bool"), dg.TableColumn("may_be_overridden", "bool"), dg.TableColumn("found")]
)
# Dagster does not wrap table cells, so messages of passed gates are shortened.
_MAX_FOUND: Final = 90
_TABLES: Final = dg.TableSchema(columns=[dg.TableColumn(name) for name in ("table", "cannot_be_undone", "can_be_undone")])


def plan_metadata(context: RunContext, published: PublishedTable) -> dict[str, Any]:
    """Return all metadata about a plan that Dagster shows right after the run."""
    plan = load_plan(context.config, published)
    header, tables = plan.header, amounts_by_table(context, plan.header, published)
    return {
        **_status_metadata(context, plan, tables),
        "failed_gates": ", ".join(gate.name for gate in header.failed_gates) or "none",
        **_count_unowned(context, header.storage),
        "tables": _tables(tables),
        "gates": gates_table(header, context.config),
        "plan_digest": header.plan_id,
    }


def status_metadata(context: RunContext, plan: StoredPlan) -> dict[str, Any]:
    """Return the metadata about a plan that a later decision, apply or restore changes."""
    return _status_metadata(context, plan, amounts_by_table(context, plan.header, plan.published))


def reversibility_metadata(
    header: PlanHeader, config: Config, *, restored: bool = False, applied_at: datetime | None = None
) -> dict[str, dg.MarkdownMetadataValue]:
    """Describe in Markdown which effects of a plan can be undone."""
    sentences = reversibility_json(header, config, restored=restored, applied_at=applied_at)
    return {name: _paragraph(to_page_message(text, config)) for name, text in sentences.items()}


def gates_table(header: PlanHeader, config: Config) -> dg.TableMetadataValue:
    """Show the result of every gate as a table, failed gates first."""
    rows = [
        {
            "gate": gate.name,
            "passed": gate.passed,
            "may_be_overridden": gate.overridable,
            "found": _shorten_if(to_page_message(gate.message, config), is_shortened=gate.passed),
        }
        for gate in sorted(header.gates, key=lambda gate: gate.passed)
    ]
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows], _GATES)


def _count_unowned(context: RunContext, storage: str) -> dict[str, Any]:
    """Return metadata with the amount of files that no lake claims, if any."""
    if context.find(ORPHAN_FILES, storage) is None or not (amount := unowned_files(context, storage)).files:
        return {}
    return {"unowned": _paragraph(f"{amount}. {' '.join(UNOWNED_NOTES)}")}


def _paragraph(text: str) -> dg.MarkdownMetadataValue:
    """Convert a string to Markdown, the only kind of metadata shown by Dagster on several lines."""
    return dg.MetadataValue.md(wrap_markdown(escape_markdown(text)))


def _shorten_if(text: str, *, is_shortened: bool) -> str:
    return textwrap.shorten(text, _MAX_FOUND, placeholder=" …") if is_shortened else text


def _status_metadata(context: RunContext, plan: StoredPlan, tables: Sequence[TableAmounts]) -> dict[str, Any]:
    card = plan_card(plan, context.config, context.clock.now(), tables)
    return {"plan": dg.MetadataValue.md(card), **_verdict_metadata(context, plan)}


def _verdict_metadata(context: RunContext, plan: StoredPlan) -> dict[str, Any]:
    """Return a plan's status, who approved or rejected it, and until when it can be applied."""
    header, verdict = plan.header, plan.verdict
    plan_id = header.plan_id[:SHORT_ID]
    if not header.has_work and not header.failed_gates:
        return {"status": "nothing to do", "plan_id": plan_id}
    metadata: dict[str, Any] = {"status": plan.status_at(context.clock.now()), "plan_id": plan_id}
    if header.historical:
        return metadata
    rejected = {"rejected_by": ", ".join(event.by for event in verdict.rejections)} if verdict.rejections else {}
    overridden = {"overridden_gates": ", ".join(gate.name for gate in plan.overridden_gates)} if plan.overridden_gates else {}
    return {
        **metadata,
        "approved_by": verdict.approved_by or NOT_APPROVED,
        **overridden,
        **rejected,
        "approvals": f"{len(verdict.approvals):,} of {verdict.needed:,}",
        "approve_before": dg.MetadataValue.timestamp(header.approve_before),
        **apply_deadline(header),
    }


def apply_deadline(header: PlanHeader) -> dict[str, Any]:
    """Return the deadline for applying a plan. A plan without actions has none."""
    return {"apply_before": dg.MetadataValue.timestamp(header.apply_before)} if header.has_work else {}


def _tables(tables: Sequence[TableAmounts]) -> dg.TableMetadataValue:
    """Show a plan's effects on the largest tables, with the remaining tables summed in one row."""
    rows = [(item.name, *item.effects) for item in list_largest(tables, MAX_TABLES)]
    columns = [column.name for column in _TABLES.columns]
    return dg.MetadataValue.table([dg.TableRecord(dict(zip(columns, row, strict=True))) for row in rows], _TABLES)
