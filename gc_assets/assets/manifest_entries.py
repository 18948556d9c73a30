"""`manifest_entries`: the children of containers that were never decoded before."""

import dagster as dg

from gc_assets.assets.checks import EVERYTHING_DECODED, RECEIPT
from gc_assets.assets.failures import plain_failures
from gc_assets.assets.results import Figures, materialized
from gc_assets.assets.spec import LakeConfig, RunDates, box, key_of, lake_spec
from gc_assets.core.receipts import Published
from gc_assets.schemas import EXPIRY_PLAN, LIVE_CONTENTS, MANIFEST_ENTRIES, REACHABLE_SNAPSHOTS
from gc_assets.stages import manifest_entries as stage
from resources.collector import Collector

CHECKS = [RECEIPT, EVERYTHING_DECODED]


def manifest_entries(lake: LakeConfig, run_dates: RunDates) -> dg.AssetsDefinition:
    roots = (REACHABLE_SNAPSHOTS, EXPIRY_PLAN, *([LIVE_CONTENTS] if LIVE_CONTENTS.is_of(lake.kind) else []))
    spec = lake_spec(lake, MANIFEST_ENTRIES, run_dates, [key_of(lake, table) for table in roots])

    @box([spec], CHECKS)
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures():
            night = collector.night(context.partition_key)
            stage.manifest_entries(collector.spark(), night, lake.name)
            return materialized(night, lake.name, MANIFEST_ENTRIES, CHECKS, _figures)

    return run


def _figures(published: Published) -> Figures:
    facts = published.receipt.facts
    return {
        "decoded_containers": facts["decoded"],
        "decoded_entries": facts["entries"],
        "unreadable_containers": facts["unreadable"],
        "cache_segments": facts["segments"],
    }
