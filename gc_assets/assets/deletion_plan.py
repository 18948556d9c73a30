"""`deletion_plan`: what one approval would execute. Decides and changes nothing."""

from collections.abc import Sequence

import dagster as dg

from gc_assets.assets.checks import GATES, PLAN_INTACT, RECEIPT
from gc_assets.assets.failures import plain_failures
from gc_assets.assets.results import Figures, materialized
from gc_assets.assets.spec import LakeConfig, RunDates, box, key_of, storage_spec
from gc_assets.config import StorageConfig
from gc_assets.core.plan import PlanHeader
from gc_assets.core.receipts import Published
from gc_assets.core.units import format_bytes
from gc_assets.schemas import DELETION_PLAN, EXPIRY_PLAN, ORPHAN_FILES
from gc_assets.stages import deletion_plan as stage
from resources.collector import Collector

CHECKS = [RECEIPT, PLAN_INTACT, GATES]


def deletion_plan(storage: StorageConfig, lakes: Sequence[LakeConfig], run_dates: RunDates) -> dg.AssetsDefinition:
    deps = [key_of(storage, ORPHAN_FILES), *(key_of(lake, EXPIRY_PLAN) for lake in lakes)]

    @box([storage_spec(storage, DELETION_PLAN, run_dates, deps)], CHECKS)
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures():
            night = collector.night(context.partition_key)
            stage.deletion_plan(collector.spark(), night, storage.name)
            return materialized(night, storage.name, DELETION_PLAN, CHECKS, _figures, _report)

    return run


def _figures(published: Published) -> Figures:
    header = stage.header_of(published)
    figures = {
        "planned_files": header.rows,
        "planned_bytes": sum(amount.bytes for amount in header.totals.values()),
        "after_expiry_files": header.after_expiry.files,
        "after_expiry_bytes": header.after_expiry.bytes,
        "held_for_expiry_files": header.held_for_expiry.files,
        "held_for_expiry_bytes": header.held_for_expiry.bytes,
        "waiting_in_quarantine_files": header.quarantined.files,
        "expiry_actions": sum(header.expiry_actions.values()),
        "live_files": header.live_files,
        "live_bytes": header.live_bytes,
        "gates_failed": len(header.failed_gates),
    }
    for action in (stage.QUARANTINE, stage.PURGE, stage.RESTORE):
        amount = header.totals.get(action)
        figures |= {f"{action}_files": amount.files if amount else 0, f"{action}_bytes": amount.bytes if amount else 0}
    return figures


def _report(published: Published) -> str:
    header = stage.header_of(published)
    amounts = [f"| {name} | {amount.files:,} | {format_bytes(amount.bytes)} |" for name, amount in header.totals.items()]
    gates = [f"| {gate.name} | {'passed' if gate.passed else '**refused**'} | {gate.message} |" for gate in header.gates]
    return "\n".join(
        [
            f"Plan `{header.plan_id}` for `{header.location}`",
            "",
            "| action | files | bytes |",
            "|---|--:|--:|",
            *(amounts or ["| nothing to do | 0 | 0 B |"]),
            "",
            _next_step(header),
            "",
            "| gate | verdict | numbers |",
            "|---|---|---|",
            *gates,
        ]
    )


def _next_step(header: PlanHeader) -> str:
    if header.historical:
        return "**Historical**: this date was never frozen on its day. The plan can be shown and never applied."
    if not header.has_work:
        return "Nothing to approve."
    return f"Approve before {header.approve_before:%Y-%m-%d %H:%M}Z: `gc-assets approve {header.plan_id[:12]} --by WHO`"
