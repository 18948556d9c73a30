"""A lake kind that only the tests define is supported by all of the product without further
changes.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.clock import Clock
from gc_assets.core.plan import PlanHeader
from gc_assets.definitions import build_definitions
from gc_assets.lakes.kinds import KINDS, all_tables, config_of
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.delete.restore import restore
from gc_assets.stages.records.plans import approve
from gc_assets.state.journal import State
from gc_assets.state.schemas import DELETION_PLAN
from tests.depth import in_turn
from tests.lakes import toy

pytestmark = [pytest.mark.spark, in_turn]

NOW = datetime.now(UTC)


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def toys(root: Path) -> Platform:
    """Create two branches, an old commit with a file that a retained commit needs, and an
    unreferenced file.
    """
    lake = root / "warehouse" / "toys"
    toy.write(lake, "c1", None, days_ago(60), {"old": b"old", "shared": b"shared"})
    toy.write(lake, "c2", "c1", days_ago(40), {"shared": b"shared", "two": b"2"}, "main")
    toy.write(lake, "c3", "c2", days_ago(5), {"three": b"33", "shared": b"shared"}, "main")
    toy.write(lake, "d1", "c2", days_ago(4), {"four": b"444"}, "dev")
    toy.write(lake, "gone", None, days_ago(20), {"leftover": b"left over"})
    (lake / "manifests" / "gone.json").unlink()
    document = {
        "state": f"{root}/state",
        "storages": [
            {"name": "warehouse", "location": f"file://{root}/warehouse/", "mode": "apply", "rehearsals": "allowed", "quarantine_days": 1}
        ],
        "lakes": [{"name": "toys", "kind": "toy", "location": f"file://{lake}"}],
    }
    return Platform(config_of(document), Clock(NOW), (), root / "lakes.yaml")


def run(at: Platform, job: str, plan_id: str | None = None) -> dict[str, dg.AssetMaterialization]:
    config = {"ops": {"warehouse__deletion_log": {"config": {"plan_id": plan_id}}}} if plan_id is not None else {}
    result = (
        build_definitions(at)
        .resolve_job_def(job)
        .execute_in_process(partition_key=at.clock.today().isoformat(), run_config=config, instance=dg.DagsterInstance.ephemeral())
    )
    events = result.get_asset_materialization_events()
    return {event.asset_key.to_user_string(): event.step_materialization_data.materialization for event in events}


def plan_header(at: Platform) -> PlanHeader:
    return header_of(State.at(at.config.state).require("warehouse", DELETION_PLAN.name, at.clock.today()))


def approve_and_apply(at: Platform) -> PlanHeader:
    """Approve and execute the current plan."""
    header = plan_header(at)
    approve(at.config, at.clock, header.plan_id, "kim")
    run(at, "apply", header.plan_id)
    return header


def files(root: Path) -> set[str]:
    lake = root / "warehouse" / "toys"
    return {str(path.relative_to(lake)) for path in lake.rglob("*") if path.is_file()}


def test_added_lake_kind_works_from_assets_to_purge(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "toy", toy.KIND)
    at = toys(tmp_path)
    everything = files(tmp_path)
    garbage = {"data/old", "manifests/c1.json", "data/two", "manifests/c2.json", "data/leftover"}

    page = run(at, "run")
    of_toys = {name for name, table in all_tables().items() if toy.KIND.has(table)}
    assert {key.partition("/")[2] for key in page if key.startswith("toys/")} == of_toys
    assert page["toys/toy_branches"].metadata["sample"].value.records[0].data == {"ref_name": "dev", "commits": 1}
    header = plan_header(at)
    assert {reason: amount.files for reason, amount in header.by_reason.items()} == {"expired": 4, "unreferenced": 1}

    approve_and_apply(at)
    assert files(tmp_path) == everything - garbage
    restore(lambda: spark, at.run_context(at.clock.today()), "warehouse", header.plan_id)
    assert files(tmp_path) == everything

    tomorrow = replace(at, clock=Clock(NOW + timedelta(days=1)))
    run(tomorrow, "run")
    assert set(approve_and_apply(tomorrow).totals) == {"quarantine"}
    later = replace(at, clock=Clock(NOW + timedelta(days=3)))
    run(later, "run")
    assert set(approve_and_apply(later).totals) == {"purge"}
    assert files(tmp_path) == everything - garbage
    trash = [path for path in (tmp_path / "warehouse").rglob("*") if path.is_file() and path.name in {Path(name).name for name in garbage}]
    assert trash == []
