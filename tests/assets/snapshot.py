"""The specs of all assets as JSON. `python -m tests.assets.snapshot` updates the snapshot after an
intended change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg

from gc_assets.definitions import build_definitions
from tests.assets.platforms import platform

FILE = Path(__file__).with_name("specs.json")


def specs(definitions: dg.Definitions) -> dict[str, Any]:
    """Return the spec of every asset by key."""
    assets: dict[str, Any] = {}
    for definition in definitions.assets or ():
        assert isinstance(definition, dg.AssetsDefinition | dg.AssetSpec)
        # A log that another asset's step writes has no step, and what others make has none here.
        step = definition if isinstance(definition, dg.AssetsDefinition) else None
        for spec in definition.specs if isinstance(definition, dg.AssetsDefinition) else [definition]:
            partitions = spec.partitions_def
            assert partitions is None or isinstance(partitions, dg.DailyPartitionsDefinition)
            assets[spec.key.to_user_string()] = {
                "deps": sorted(dep.asset_key.to_user_string() for dep in spec.deps),
                "description": spec.description,
                "group": spec.group_name,
                "kinds": sorted(spec.kinds),
                "owners": list(spec.owners),
                "tags": {name: value for name, value in spec.tags.items() if not name.startswith("dagster/")},
                "partitions": f"daily from {partitions.start:%Y-%m-%d}, {partitions.timezone}" if partitions else None,
                "freshness": freshness_windows(spec.freshness_policy),
                "automation": spec.automation_condition,
                "pool": step.op.pool if step else None,
                "retries": step.op.retry_policy if step else None,
                "checks": {
                    check.name: "blocking" if check.blocking else "reports"
                    for check in (step.check_specs if step else ())
                    if check.asset_key == spec.key
                },
            }
    return dict(sorted(assets.items()))


def freshness_windows(policy: Any) -> str | None:
    """Return the time windows of a freshness policy."""
    return policy and f"warns after {policy.warn_window.to_timedelta()}, fails after {policy.fail_window.to_timedelta()}"


def text() -> str:
    return json.dumps(specs(build_definitions(platform(Path("anywhere")))), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
