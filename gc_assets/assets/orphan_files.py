"""`orphan_files`: claimed files that no live set holds and that are older than the grace period."""

from collections.abc import Sequence

import dagster as dg

from gc_assets.assets.checks import COMPLETE, NO_LIVE_CANDIDATE, RECEIPT
from gc_assets.assets.failures import plain_failures
from gc_assets.assets.results import Figures, materialized
from gc_assets.assets.spec import LakeConfig, RunDates, box, key_of, storage_spec
from gc_assets.assets.waterfalls import steps_of, waterfall_markdown
from gc_assets.config import StorageConfig
from gc_assets.core.receipts import Published
from gc_assets.schemas import LAKE_REFS, LIVE_FILTER, ORPHAN_FILES, STORAGE_INVENTORY
from gc_assets.stages import orphan_files as stage
from resources.collector import Collector

CHECKS = [RECEIPT, COMPLETE, NO_LIVE_CANDIDATE]


def orphan_files(storage: StorageConfig, lakes: Sequence[LakeConfig], run_dates: RunDates) -> dg.AssetsDefinition:
    """The lakes' refs bring the claims: only a claimed file can be a candidate."""
    deps = [key_of(storage, LIVE_FILTER), key_of(storage, STORAGE_INVENTORY), *(key_of(lake, LAKE_REFS) for lake in lakes)]

    @box([storage_spec(storage, ORPHAN_FILES, run_dates, deps)], CHECKS)
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures():
            night = collector.night(context.partition_key)
            stage.orphan_files(collector.spark(), night, storage.name)
            return materialized(night, storage.name, ORPHAN_FILES, CHECKS, _figures, _report)

    return run


def _figures(published: Published) -> Figures:
    steps = {step.label: step for step in steps_of(published.receipt.facts)}
    expired, garbage = steps["expired history"], steps["garbage"]
    return {
        "orphan_files": published.receipt.rows,
        "orphan_bytes": expired.size_bytes + garbage.size_bytes,
        "reclaimable_files": garbage.files,
        "reclaimable_bytes": garbage.size_bytes,
        "expired_files": expired.files,
        "expired_bytes": expired.size_bytes,
        "unowned_files": steps["unowned"].files,
        "within_grace_files": steps["within the grace period"].files,
    }


def _report(published: Published) -> str:
    return f"{waterfall_markdown(published.receipt.facts)}\n\nGrace cut-off: {published.receipt.facts['grace_cutoff']}."
