"""`commit_graph`: every commit of a lake, dangling ones too."""

import dagster as dg

from gc_assets.assets.checks import RECEIPT
from gc_assets.assets.failures import plain_failures
from gc_assets.assets.results import materialized
from gc_assets.assets.spec import LakeConfig, RunDates, box, key_of, lake_spec
from gc_assets.schemas import COMMIT_GRAPH, LAKE_REFS
from gc_assets.stages import commit_graph as stage
from resources.collector import Collector


def commit_graph(lake: LakeConfig, run_dates: RunDates) -> dg.AssetsDefinition:
    @box([lake_spec(lake, COMMIT_GRAPH, run_dates, [key_of(lake, LAKE_REFS)])], [RECEIPT])
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures():
            night = collector.night(context.partition_key)
            stage.commit_graph(collector.spark(), night, lake.name)
            return materialized(night, lake.name, COMMIT_GRAPH, [RECEIPT], lambda it: {"commits": it.receipt.rows})

    return run
