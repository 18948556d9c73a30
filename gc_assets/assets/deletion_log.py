"""`deletion_log`: the one asset that changes a lake's files, and only by an approved plan id in mode `apply`.

Checks of earlier steps guard their own run only, so the stage refuses, marks anew and compares by itself (design 6.4).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final

import dagster as dg

from gc_assets.assets.checks import COMPLETE, NO_FAILED_KEY, RECEIPT
from gc_assets.assets.failures import plain_failures
from gc_assets.assets.results import Figures, materialized
from gc_assets.assets.spec import DELETE_POOL, LakeConfig, RunDates, box, key_of, storage_spec
from gc_assets.assets.waterfalls import amounts_table
from gc_assets.config import StorageConfig
from gc_assets.core.errors import UsageError
from gc_assets.core.receipts import Published
from gc_assets.schemas import DELETION_LOG, DELETION_PLAN, EXPIRY_LOG
from gc_assets.stages.approvals import StoredPlan, find_plan, load
from gc_assets.stages.deletion_log import EXPIRE, PHASES, Applied, apply_plan
from gc_assets.stages.deletion_plan import RESTORE
from gc_assets.stages.night import Night
from resources.collector import Collector

CHECKS: Final = [RECEIPT, COMPLETE, NO_FAILED_KEY]


class Mode(Enum):
    """`configured` is what lakes.yaml says for the storage: `plan` unless somebody wrote otherwise."""

    configured = "configured"
    plan = "plan"
    apply = "apply"


class ApplyPlan(dg.Config):
    """What to execute. As it stands it changes nothing that an approval has to allow."""

    plan_id: str = ""
    mode: Mode = Mode.configured


def deletion_log(storage: StorageConfig, lakes: Sequence[LakeConfig], run_dates: RunDates) -> dg.AssetsDefinition:
    deps = [key_of(storage, DELETION_PLAN), *(key_of(lake, EXPIRY_LOG) for lake in lakes if EXPIRY_LOG.is_of(lake.kind))]
    spec = storage_spec(storage, DELETION_LOG, run_dates, deps)

    @box([spec], CHECKS, pool=DELETE_POOL)
    def run(context: dg.AssetExecutionContext, config: ApplyPlan, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures(retry_io=False):
            night = in_mode(collector.night(context.partition_key), storage, config.mode)
            plan, phases, why_not = chosen(night, storage.name, config.plan_id)
            applied = apply_plan(collector.spark(), night, plan, phases) if plan is not None else Applied(None, {}, why_not)
            if plan is not None and applied.nothing_to_do is None and EXPIRE in phases:
                for event in _edits(night, plan, context.partition_key):
                    context.log_event(event)
            return _result(night, spec, plan, applied)

    return run


def _edits(night: Night, plan: StoredPlan, partition: str) -> Iterator[dg.AssetMaterialization]:
    """`expiry_log` of each lake whose history the plan edited."""
    for lake in plan.header.expiry_actions:
        receipt = night.state.require(lake, EXPIRY_LOG.name, night.run_date).receipt
        figures = {f"{verdict}_edits": count for verdict, count in receipt.facts["books"].items()}
        metadata = {"plan_id": plan.header.plan_id, **figures, "dagster/row_count": receipt.rows}
        yield dg.AssetMaterialization([lake, EXPIRY_LOG.name], partition=partition, metadata=metadata)


def in_mode(night: Night, storage: StorageConfig, mode: Mode) -> Night:
    """The night with the storage's mode as the run asks for it; the policy and its digest stay as they are."""
    if mode is Mode.configured:
        return night
    storages = tuple(item.model_copy(update={"mode": mode.value}) if item.name == storage.name else item for item in night.config.storages)
    return replace(night, config=night.config.model_copy(update={"storages": storages}))


def chosen(night: Night, storage_name: str, plan_id: str) -> tuple[StoredPlan | None, tuple[str, ...], str]:
    """The plan to execute with its phases, or None and the sentence that says why nothing is.

    Without a plan id only tonight's own plan counts, and only what it puts back: a file that is needed again waits for
    nobody. Raises `UsageError` where the plan is another storage's or another run date's.
    """
    if plan_id:
        plan = find_plan(night.config, plan_id)
        if (plan.header.storage, plan.header.run_date) != (storage_name, night.run_date):
            raise UsageError(
                f"plan {plan.header.plan_id} is storage {plan.header.storage}'s of {plan.header.run_date}, "
                f"this is {storage_name} of {night.run_date}; run deletion_log of that storage and partition"
            )
        return plan, PHASES, ""
    if night.storage(storage_name).mode != "apply":
        return None, (), "no approved plan id was given and the storage is in mode plan: nothing was changed"
    if night.run_date != night.clock.today():
        return None, (), f"no approved plan id was given and {night.run_date} is past: nothing was changed"
    published = night.state.require(storage_name, DELETION_PLAN.name, night.run_date)
    plan = load(night.state, published)
    if RESTORE not in plan.header.totals:
        return None, (), "no approved plan id was given and no quarantined file is needed again: nothing was changed"
    return plan, (RESTORE,), ""


def _result(night: Night, spec: dg.AssetSpec, plan: StoredPlan | None, applied: Applied) -> dg.MaterializeResult:
    """The partition's log as it is on disk; where nothing was done this time, the sentence that says why."""
    *_, storage_name, _ = spec.key.path
    said = {"nothing_changed": applied.nothing_to_do} if applied.nothing_to_do else {}
    if plan is not None:
        said["plan_id"] = plan.header.plan_id
    if night.state.current(storage_name, DELETION_LOG.name, night.run_date) is not None:
        return materialized(night, storage_name, DELETION_LOG, CHECKS, _figures, _report, said)
    passed = [dg.AssetCheckResult(passed=True, check_name=check.name, description="nothing was done") for check in CHECKS]
    return dg.MaterializeResult(asset_key=spec.key, metadata={**_amounts({}), **said}, check_results=passed)


def _figures(published: Published) -> Figures:
    return _amounts(published.receipt.facts["books"])


def _amounts(books: dict[str, dict[str, int]]) -> dict[str, int]:
    of_files = [phase for phase in PHASES if phase != EXPIRE]
    figures = {f"{phase}d_{unit}": books.get(f"{phase}/done", {}).get(unit, 0) for phase in of_files for unit in ("files", "bytes")}
    other = {name: amount for name, amount in books.items() if not name.endswith("/done")}
    return figures | {
        f"{outcome}_files": sum(amount["files"] for name, amount in other.items() if name.endswith(f"/{outcome}"))
        for outcome in ("absent", "changed", "denied", "failed")
    }


def _report(published: Published) -> str:
    facts = published.receipt.facts
    by = f", approved by {facts['approved_by']}" if facts.get("approved_by") else ""
    return f"Plan `{facts['plan_id']}`{by}.\n\n" + amounts_table("phase/outcome", facts["books"])
