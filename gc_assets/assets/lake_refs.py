"""`lake_refs`: what a run believes of a lake, frozen before anything else is read."""

import dagster as dg

from gc_assets.assets.checks import RECEIPT
from gc_assets.assets.failures import plain_failures
from gc_assets.assets.results import Figures, materialized
from gc_assets.assets.spec import LakeConfig, RunDates, box, lake_spec
from gc_assets.core.receipts import Published
from gc_assets.schemas import LAKE_REFS
from gc_assets.stages import lake_refs as stage
from resources.collector import Collector


def lake_refs(lake: LakeConfig, run_dates: RunDates) -> dg.AssetsDefinition:
    @box([lake_spec(lake, LAKE_REFS, run_dates, spark=False)], [RECEIPT], pool=None)
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures():
            night = collector.night(context.partition_key)
            stage.lake_refs(night, lake.name)
            return materialized(night, lake.name, LAKE_REFS, [RECEIPT], _figures, _report)

    return run


def _figures(published: Published) -> Figures:
    facts = published.receipt.facts
    return {"refs": published.receipt.rows, "claimed_prefixes": facts["claims"], "pinned_files": facts["pinned"]}


def _report(published: Published) -> str:
    facts = published.receipt.facts
    lines = [f"Frozen at **{facts['frozen_at']}**, as of {facts['as_of']}, refs digest `{facts['refs_digest']}`."]
    if facts["historical"]:
        lines.append("**Historical**: frozen on another day than its own. Its plan can be shown and never applied.")
    if facts["rehearsal"]:
        lines.append("**Rehearsal**: the clock was set by hand.")
    return "\n\n".join(lines + [f"- {note}" for note in facts["notes"]])
