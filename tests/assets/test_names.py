"""Prefixes of asset keys and groups, for use in another project."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from gc_assets.assets import names
from gc_assets.assets.lineage import column_lineage
from gc_assets.assets.names import group_name, owner_and_table, step_name
from gc_assets.assets.plan_events import plan_event
from gc_assets.cli.dagster_run import RunSelection, run_partition
from gc_assets.config.dagster_names import DagsterNames
from gc_assets.definitions import build_definitions
from gc_assets.resources.collector import Collector
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import approve, find_plan
from gc_assets.state.schemas import ORPHAN_FILES
from tests.assets.platforms import NOW, platform, stored_plan
from tests.assets.snapshot import specs

pytestmark = pytest.mark.compat


def with_names(at: Platform, **settings: Any) -> Platform:
    return replace(at, config=at.config.model_copy(update={"dagster": DagsterNames.model_validate(settings)}))


@pytest.mark.parametrize(
    "prefix, group", [("gc/", "gc/sales"), ("", "sales"), ("lakes_", "lakes_sales"), ("platform/lakes/", "platform/lakes/sales")]
)
def test_group_has_the_configured_prefix(tmp_path: Path, prefix: str, group: str) -> None:
    found = specs(build_definitions(with_names(platform(tmp_path), group_prefix=prefix)))
    expected = group if names.allows_separators() else group.replace("/", "_")
    assert {spec["group"] for key, spec in found.items() if key.startswith("sales/")} == {expected}


def test_older_dagster_gets_groups_without_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "allows_separators", lambda: False)
    assert group_name(platform(tmp_path).config, "sales") == "gc_sales"


@pytest.mark.parametrize(
    "settings",
    [{"group_prefix": "/gc"}, {"group_prefix": "a b/"}, {"key_prefix": "gc/"}, {"key_prefix": ""}, {"key_prefix": "a b"}],
    ids=str,
)
def test_invalid_prefix_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        DagsterNames.model_validate(settings)


def test_asset_keys_and_dependencies_have_the_prefix(tmp_path: Path) -> None:
    own = {"assets": ({"key": "analytics/orders"},)}
    at = platform(tmp_path)
    lakes = tuple(lake.model_validate({**lake.model_dump(), **own}) for lake in at.config.lakes)
    at = with_names(replace(at, config=at.config.model_copy(update={"lakes": lakes})), key_prefix="platform/gc")
    found = specs(build_definitions(at))
    assert {key.rpartition("/")[0] for key in found} == {"platform/gc/sales", "platform/gc/warehouse", "platform/gc/weather"}
    deps = {dep for spec in found.values() for dep in spec["deps"]}
    assert deps - found.keys() == {"analytics/orders"}  # an asset of the other project


def test_column_lineage_has_the_prefix(tmp_path: Path) -> None:
    config = with_names(platform(tmp_path), key_prefix="gc").config
    found = column_lineage(config, "warehouse", ORPHAN_FILES)["dagster/column_lineage"]
    origins = {dep.asset_key.to_user_string() for deps in found.deps_by_column.values() for dep in deps}
    assert origins == {"gc/warehouse/storage_inventory"}


def test_op_names_in_run_config_have_no_prefix(tmp_path: Path) -> None:
    job = build_definitions(with_names(platform(tmp_path), key_prefix="gc")).resolve_job_def("apply")
    assert set(dg.validate_run_config(job, {})["ops"]) == {"warehouse__deletion_log"}
    assert step_name(dg.AssetKey(["gc", "warehouse", "deletion_log"])) == "warehouse__deletion_log"
    assert owner_and_table(dg.AssetKey(["gc", "warehouse", "deletion_log"])) == ("warehouse", "deletion_log")


def test_sensor_and_observations_use_prefixed_keys(tmp_path: Path) -> None:
    at = with_names(platform(tmp_path, mode="apply"), key_prefix="gc")
    header = header_of(stored_plan(at))
    approve(at.config, at.clock, header.plan_id, "kim")
    definitions = build_definitions(at)
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance, resources={"collector": Collector.of(at)}, definitions=definitions)
        (request,) = definitions.resolve_sensor_def("approved_plans").evaluate_tick(context).run_requests or ()
    assert request.asset_selection == [dg.AssetKey(["gc", "warehouse", "deletion_log"])]
    assert plan_event(at.run_context(NOW.date()), find_plan(at.config, header.plan_id)).asset_key.path == [
        "gc",
        "warehouse",
        "deletion_plan",
    ]


class _Observer:
    def __init__(self) -> None:
        self.published: list[tuple[str, str]] = []

    def set_activity(self, text: str) -> None: ...

    def start_assets(self, assets: int) -> None: ...

    def finish_asset(self, step: Any) -> None:
        self.published.append((step.group, step.asset))


def test_command_line_runs_assets_with_a_prefix(tmp_path: Path) -> None:
    at = with_names(platform(tmp_path), key_prefix="platform/gc")
    observer = _Observer()
    run_partition(at, NOW.date(), RunSelection(lakes=["sales"], through="policy_table"), observer=observer)
    assert observer.published == [("sales", "policy_table")]
