"""`potential_commits` and `lifecycle_objects` of a lakeFS lake: what its rules by path prefix release."""

import dagster as dg

from gc_assets.assets.checks import RECEIPT
from gc_assets.assets.failures import plain_failures
from gc_assets.assets.results import Figures, materialized
from gc_assets.assets.spec import LakeConfig, RunDates, box, key_of, lake_spec
from gc_assets.config import LakeFsLakeConfig
from gc_assets.core.receipts import Published
from gc_assets.schemas import CURRENT_RULES, LIFECYCLE_OBJECTS, MANIFEST_ENTRIES, POTENTIAL_COMMITS
from gc_assets.stages import lifecycle_objects as objects_stage
from gc_assets.stages import potential_commits as commits_stage
from resources.collector import Collector


def has_rules(lake: LakeConfig) -> bool:
    """Whether the lake has lifecycle rules; only then are there these two assets."""
    return isinstance(lake, LakeFsLakeConfig) and lake.rules is not None


def potential_commits(lake: LakeConfig, run_dates: RunDates) -> dg.AssetsDefinition:
    spec = lake_spec(lake, POTENTIAL_COMMITS, run_dates, [key_of(lake, CURRENT_RULES), key_of(lake, MANIFEST_ENTRIES)])

    @box([spec], [RECEIPT])
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures():
            night = collector.night(context.partition_key)
            commits_stage.potential_commits(collector.spark(), night, lake.name)
            return materialized(night, lake.name, POTENTIAL_COMMITS, [RECEIPT], _commits, _notes)

    return run


def lifecycle_objects(lake: LakeConfig, run_dates: RunDates) -> dg.AssetsDefinition:
    @box([lake_spec(lake, LIFECYCLE_OBJECTS, run_dates, [key_of(lake, POTENTIAL_COMMITS)])], [RECEIPT])
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures():
            night = collector.night(context.partition_key)
            objects_stage.lifecycle_objects(collector.spark(), night, lake.name)
            return materialized(night, lake.name, LIFECYCLE_OBJECTS, [RECEIPT], _objects)

    return run


def _commits(published: Published) -> Figures:
    return {"commits": published.receipt.facts["commits"], "potential_commits": published.receipt.facts["potential"]}


def _notes(published: Published) -> str:
    return "\n".join(f"- {note}" for note in published.receipt.facts["notes"])


def _objects(published: Published) -> Figures:
    facts, nothing = published.receipt.facts, {"files": 0, "bytes": 0}
    released, kept = facts.get("released", nothing), facts.get("deduplicated", nothing)
    return {"released_objects": released["files"], "released_bytes": released["bytes"], "deduplicated_objects": kept["files"]}
