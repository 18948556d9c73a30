"""`policy_table` and `current_rules` of a lake."""

import dagster as dg

from gc_assets.assets.checks import RECEIPT
from gc_assets.assets.failures import plain_failures
from gc_assets.assets.results import materialized
from gc_assets.assets.spec import LakeConfig, RunDates, box, key_of, lake_spec
from gc_assets.schemas import CURRENT_RULES, POLICY_TABLE
from gc_assets.stages import policy
from resources.collector import Collector


def policy_table(lake: LakeConfig, run_dates: RunDates) -> dg.AssetsDefinition:
    @box([lake_spec(lake, POLICY_TABLE, run_dates, spark=False)], [RECEIPT], pool=None)
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures():
            night = collector.night(context.partition_key)
            policy.policy_table(night, lake.name)
            return materialized(night, lake.name, POLICY_TABLE, [RECEIPT], lambda it: {"rules": it.receipt.facts["rules"]})

    return run


def current_rules(lake: LakeConfig, run_dates: RunDates) -> dg.AssetsDefinition:
    spec = lake_spec(lake, CURRENT_RULES, run_dates, [key_of(lake, POLICY_TABLE)], spark=False)

    @box([spec], [RECEIPT], pool=None)
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.MaterializeResult:
        with plain_failures():
            night = collector.night(context.partition_key)
            policy.current_rules(night, lake.name)
            return materialized(night, lake.name, CURRENT_RULES, [RECEIPT], lambda it: {"rules": it.receipt.rows})

    return run
