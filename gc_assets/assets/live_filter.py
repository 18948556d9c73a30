"""`live_filter`: the bloom filter over a storage's live keys, of all lakes together."""

from collections.abc import Sequence

import dagster as dg

from gc_assets.assets.checks import COMPLETE, HOLDS_LIVE_KEYS, RECEIPT
from gc_assets.assets.failures import plain_failures
from gc_assets.assets.results import Figures, materialized
from gc_assets.assets.spec import LakeConfig, RunDates, box, key_of, storage_spec
from gc_assets.config import StorageConfig
from gc_assets.core.receipts import Published
from gc_assets.schemas import LIVE_FILES, LIVE_FILTER
from gc_assets.stages import live_filter as stage
from resources.collector import Collector

CHECKS = [RECEIPT, COMPLETE, HOLDS_LIVE_KEYS]


def live_filter(storage: StorageConfig, lakes: Sequence[LakeConfig], run_dates: RunDates) -> dg.AssetsDefinition:
    """Depends on every lake: any of them may point into the storage."""
    spec = storage_spec(storage, LIVE_FILTER, run_dates, [key_of(lake, LIVE_FILES) for lake in lakes])

    @box([spec], CHECKS)
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures():
            night = collector.night(context.partition_key)
            stage.live_filter(collector.spark(), night, storage.name)
            return materialized(night, storage.name, LIVE_FILTER, CHECKS, _figures)

    return run


def _figures(published: Published) -> Figures:
    facts = published.receipt.facts
    return {
        "live_keys": facts["keys"],
        "filter_slices": facts["slices"],
        "bits_per_key": float(facts["bits_per_key"]),
        "false_positive_rate_measured": float(facts["false_positives_measured"]),
    }
