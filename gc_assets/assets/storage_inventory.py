"""`storage_inventory`: every object of a storage as its listing shows it."""

from collections.abc import Sequence

import dagster as dg

from gc_assets.assets.checks import COMPLETE, RECEIPT
from gc_assets.assets.failures import plain_failures
from gc_assets.assets.results import Figures, materialized
from gc_assets.assets.spec import LakeConfig, RunDates, box, key_of, storage_spec
from gc_assets.config import StorageConfig
from gc_assets.core.receipts import Published
from gc_assets.schemas import LAKE_REFS, STORAGE_INVENTORY
from gc_assets.stages import storage_inventory as stage
from resources.collector import Collector

CHECKS = [RECEIPT, COMPLETE]


def storage_inventory(storage: StorageConfig, lakes: Sequence[LakeConfig], run_dates: RunDates) -> dg.AssetsDefinition:
    """Listed after every lake's refs were frozen: what they name must be in it, and the grace period counts from the freezing."""
    spec = storage_spec(storage, STORAGE_INVENTORY, run_dates, [key_of(lake, LAKE_REFS) for lake in lakes])

    @box([spec], CHECKS)
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures():
            night = collector.night(context.partition_key)
            stage.storage_inventory(collector.spark(), night, storage.name)
            return materialized(night, storage.name, STORAGE_INVENTORY, CHECKS, _figures, _report)

    return run


def _figures(published: Published) -> Figures:
    facts = published.receipt.facts
    return {"stored_files": facts["objects"], "stored_bytes": facts["bytes"], "not_files": sum(facts["problems"].values())}


def _report(published: Published) -> str:
    problems = published.receipt.facts["problem_samples"]
    if not problems:
        return "Everything that was met is a plain file."
    rows = [f"| `{item['key']}` | {item['kind']} | {item['detail']} |" for item in problems]
    return "\n".join(["Kept, never candidates:", "", "| where | what | found |", "|---|---|---|", *rows])
