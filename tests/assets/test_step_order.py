"""All storages are swept before the first plan, because a plan uses the sweeps of all storages."""

import dagster as dg

from gc_assets.assets.asset_step import PRIORITY_TAG
from gc_assets.assets.partitions import run_dates
from gc_assets.assets.storage_assets import storage_assets
from gc_assets.core.clock import Clock
from gc_assets.lakes.kinds import config_of
from tests.stages.lakehouse import NOW

CONFIG = config_of(
    {
        "state": "s3://state/",
        "storages": [{"name": name, "location": f"s3://{name}/"} for name in ("first", "second")],
        "lakes": [{"name": "weather", "kind": "icechunk", "location": "s3://first/weather/"}],
    }
)


def test_sweeps_of_all_storages_start_before_plans() -> None:
    dates = run_dates(Clock(NOW), NOW.date())
    assets = [asset for storage in CONFIG.storages for asset in storage_assets(CONFIG, storage, dates)]
    priorities = {asset.key.path[-1]: int(asset.op.tags.get(PRIORITY_TAG, 0)) for asset in assets}
    assert priorities["deletion_plan"] < min(priorities[name] for name in ("live_filter", "storage_inventory", "orphan_files"))


def test_plan_does_not_depend_on_the_sweep_of_another_storage() -> None:
    """A storage that cannot be listed does not stop the plans of the others."""
    dates = run_dates(Clock(NOW), NOW.date())
    assets = storage_assets(CONFIG, CONFIG.storages[0], dates)
    plan = next(asset for asset in assets if asset.key.path[-1] == "deletion_plan")
    assert dg.AssetKey(["second", "orphan_files"]) not in plan.asset_deps[plan.key]
