"""`live_files`: every file that a retained commit needs."""

import dagster as dg

from gc_assets.assets.checks import LIVE_WHILE_REFS, RECEIPT
from gc_assets.assets.failures import plain_failures
from gc_assets.assets.lifecycle import has_rules
from gc_assets.assets.results import Figures, materialized
from gc_assets.assets.spec import LakeConfig, RunDates, box, key_of, lake_spec
from gc_assets.assets.waterfalls import amounts_table
from gc_assets.core.receipts import Published
from gc_assets.schemas import LIFECYCLE_OBJECTS, LIVE_CONTENTS, LIVE_FILES, MANIFEST_ENTRIES, REACHABLE_SNAPSHOTS
from gc_assets.stages import live_files as stage
from resources.collector import Collector

CHECKS = [RECEIPT, LIVE_WHILE_REFS]


def live_files(lake: LakeConfig, run_dates: RunDates) -> dg.AssetsDefinition:
    deps = [key_of(lake, table) for table in (REACHABLE_SNAPSHOTS, MANIFEST_ENTRIES)]
    if LIVE_CONTENTS.is_of(lake.kind):
        deps.append(key_of(lake, LIVE_CONTENTS))
    if has_rules(lake):
        deps.append(key_of(lake, LIFECYCLE_OBJECTS))
    spec = lake_spec(lake, LIVE_FILES, run_dates, deps)

    @box([spec], CHECKS)
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures():
            night = collector.night(context.partition_key)
            stage.live_files(collector.spark(), night, lake.name)
            return materialized(night, lake.name, LIVE_FILES, CHECKS, _figures, _report)

    return run


def _figures(published: Published) -> Figures:
    facts = published.receipt.facts
    return {
        "live_files": facts["files"],
        "live_bytes": facts["live_bytes"],
        "expired_files": facts["expired_files"],
        "dangling_files": facts["dangling_files"],
        "external_files": facts["external_files"],
    }


def _report(published: Published) -> str:
    facts = published.receipt.facts
    return "\n\n".join([amounts_table("Kind of file", facts["by_kind"]), *(f"- {note}" for note in facts["notes"])])
