"""`snapshot_history`: every snapshot of an Iceberg lake's tables, also those that were expired."""

import dagster as dg

from gc_assets.assets.checks import RECEIPT
from gc_assets.assets.failures import plain_failures
from gc_assets.assets.results import Figures, materialized
from gc_assets.assets.spec import LakeConfig, RunDates, box, key_of, lake_spec
from gc_assets.core.receipts import Published
from gc_assets.schemas import COMMIT_GRAPH, REACHABLE_SNAPSHOTS, SNAPSHOT_HISTORY
from gc_assets.stages import snapshot_history as stage
from resources.collector import Collector

CHECKS = [RECEIPT]


def snapshot_history(lake: LakeConfig, run_dates: RunDates) -> dg.AssetsDefinition:
    deps = [key_of(lake, COMMIT_GRAPH), key_of(lake, REACHABLE_SNAPSHOTS)]

    @box([lake_spec(lake, SNAPSHOT_HISTORY, run_dates, deps)], CHECKS)
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures():
            night = collector.night(context.partition_key)
            stage.snapshot_history(collector.spark(), night, lake.name)
            return materialized(night, lake.name, SNAPSHOT_HISTORY, CHECKS, _figures)

    return run


def _figures(published: Published) -> Figures:
    return {"listed_snapshots": published.receipt.facts["listed"], "expired_snapshots": published.receipt.facts["expired"]}
