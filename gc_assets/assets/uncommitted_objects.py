"""`uncommitted_objects` of a lakeFS lake: what its branches have staged."""

import dagster as dg

from gc_assets.assets.checks import RECEIPT
from gc_assets.assets.failures import plain_failures
from gc_assets.assets.results import materialized
from gc_assets.assets.spec import LakeConfig, RunDates, box, key_of, lake_spec
from gc_assets.schemas import LAKE_REFS, UNCOMMITTED_OBJECTS
from gc_assets.stages import uncommitted_objects as stage
from resources.collector import Collector


def uncommitted_objects(lake: LakeConfig, run_dates: RunDates) -> dg.AssetsDefinition:
    @box([lake_spec(lake, UNCOMMITTED_OBJECTS, run_dates, [key_of(lake, LAKE_REFS)], spark=False)], [RECEIPT], pool=None)
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures():
            night = collector.night(context.partition_key)
            stage.uncommitted_objects(night, lake.name)
            return materialized(
                night, lake.name, UNCOMMITTED_OBJECTS, [RECEIPT], lambda it: {"staged_objects": it.receipt.facts["objects"]}
            )

    return run
