"""`reachable_snapshots` and `expiry_plan`: what the policy makes of every commit, and the edits of history it asks for.

For a Nessie lake `live_contents` comes of the same step.
"""

from collections.abc import Iterator
from functools import partial

import dagster as dg

from gc_assets.assets.checks import COMPLETE, RECEIPT
from gc_assets.assets.failures import plain_failures
from gc_assets.assets.histories import expiry_markdown, history_markdown
from gc_assets.assets.results import Figures, materialized
from gc_assets.assets.spec import LakeConfig, RunDates, box, key_of, lake_spec
from gc_assets.core.receipts import Published
from gc_assets.lakes.protocol import DANGLING, EXPIRED, RETAINED
from gc_assets.schemas import COMMIT_GRAPH, CURRENT_RULES, EXPIRY_PLAN, LIVE_CONTENTS, REACHABLE_SNAPSHOTS
from gc_assets.stages import reachable_snapshots as stage
from resources.collector import Collector

CHECKS = [RECEIPT, COMPLETE]


def reachable_snapshots(lake: LakeConfig, run_dates: RunDates) -> dg.AssetsDefinition:
    deps = [key_of(lake, COMMIT_GRAPH), key_of(lake, CURRENT_RULES)]
    tables = (REACHABLE_SNAPSHOTS, EXPIRY_PLAN, *([LIVE_CONTENTS] if LIVE_CONTENTS.is_of(lake.kind) else []))
    specs = [lake_spec(lake, table, run_dates, deps) for table in tables]

    @box(specs, CHECKS)
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> Iterator[dg.MaterializeResult]:
        with plain_failures():
            night = collector.night(context.partition_key)
            stage.reachable_snapshots(collector.spark(), night, lake.name)
            results = [
                materialized(night, lake.name, REACHABLE_SNAPSHOTS, CHECKS, _commits, partial(history_markdown, night)),
                materialized(night, lake.name, EXPIRY_PLAN, CHECKS, _actions, partial(expiry_markdown, night)),
            ]
            if LIVE_CONTENTS in tables:
                results.append(materialized(night, lake.name, LIVE_CONTENTS, CHECKS, _contents))
        yield from (result for result in results if result.asset_key in context.selected_asset_keys)

    return run


def _actions(published: Published) -> Figures:
    return {"expiry_actions": published.receipt.rows}


def _contents(published: Published) -> Figures:
    return {"live_contents": published.receipt.rows}


def _commits(published: Published) -> Figures:
    return {f"{state}_commits": published.receipt.facts[state] for state in (RETAINED, EXPIRED, DANGLING)}
