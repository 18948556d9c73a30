"""What Dagster is told: keys, dependencies, checks, pools, and that nothing which deletes starts by itself."""

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from gc_assets.assets.box import has
from gc_assets.assets.lake_boxes import in_order
from gc_assets.assets.partitions import first_night, run_dates
from gc_assets.cli.night import selection
from gc_assets.core.clock import Clock
from gc_assets.definitions import build_definitions
from gc_assets.lakes.kinds import KINDS, all_tables
from gc_assets.lakes.lakefs.config import LakeFsLakeConfig
from gc_assets.lakes.nessie.config import NessieLakeConfig
from gc_assets.resources.platform import Platform
from gc_assets.stages.tables import publish, write_rows
from gc_assets.state.journal import State
from gc_assets.state.schemas import LAKE_REFS
from tests.assets.platforms import NOW, TODAY, platform
from tests.assets.snapshot import FILE, specs, text

ROOT = Path(__file__).parents[2]
DELETION_LOG = dg.AssetKey(["warehouse", "deletion_log"])
# Written by the step of `deletion_log`.
LAKES = (
    {"name": "sales", "kind": "iceberg", "catalog": {"type": "sql", "uri": "sqlite:///catalog.db"}},
    {"name": "weather", "kind": "icechunk", "location": "file:///warehouse/weather/"},
    {"name": "shop", "kind": "nessie", "uri": "http://localhost:19120/api/v2"},
    {
        "name": "ml",
        "kind": "lakefs",
        "endpoint": "http://localhost:8000",
        "repository": "ml",
        "access_key_id": "k",
        "secret_access_key": "s",
    }
    | {"rules": "/rules.json"},
)
EXPIRY_LOGS = {"sales/expiry_log", "weather/expiry_log"}


@pytest.fixture
def definitions(tmp_path: Path) -> dg.Definitions:
    return build_definitions(platform(tmp_path))


def job_keys(definitions: dg.Definitions, name: str) -> set[str]:
    return {key.to_user_string() for key in definitions.resolve_job_def(name).asset_layer.executable_asset_keys}


def test_the_assets_are_those_of_the_snapshot() -> None:
    assert FILE.read_text() == text(), "if the change is wanted: python -m tests.assets.snapshot"


def test_every_table_of_a_lake_and_of_a_storage_is_an_asset(definitions: dg.Definitions) -> None:
    lakes = {"sales": "iceberg", "weather": "icechunk"}
    wanted = {f"{lake}/{table.name}" for table in all_tables().values() for lake, kind in lakes.items() if KINDS[kind].has(table)}
    wanted |= {f"warehouse/{table.name}" for table in all_tables().values() if table.scope == "storage"}
    assert set(specs(definitions)) == wanted


def test_a_nessie_lake_has_its_live_contents_between_the_policy_and_the_expansion(tmp_path: Path) -> None:
    at = platform(tmp_path)
    shop = NessieLakeConfig.model_validate({"name": "shop", "kind": "nessie", "uri": "http://localhost:19120/api/v2"})
    found = specs(build_definitions(replace(at, config=at.config.model_copy(update={"lakes": (*at.config.lakes, shop)}))))
    assert "shop/commit_graph" in found["shop/live_contents"]["deps"]
    assert all("shop/live_contents" in found[f"shop/{name}"]["deps"] for name in ("manifest_entries", "live_files"))


def test_a_plan_waits_for_the_listings_of_the_storages_whose_links_may_lead_into_its_own(tmp_path: Path) -> None:
    at = platform(tmp_path)
    (own,) = at.config.storages
    disk = own.model_copy(update={"name": "disk", "location": f"file://{tmp_path}/disk/"})
    bucket = own.model_copy(update={"name": "bucket", "location": "s3://bucket/prefix/", "quarantine": "deferred"})
    three = replace(at, config=at.config.model_copy(update={"storages": (own, disk, bucket)}))
    found = specs(build_definitions(three))
    inventories = {f"{name}/storage_inventory" for name in ("warehouse", "disk", "bucket")}
    assert inventories & set(found["warehouse/deletion_plan"]["deps"]) == {"disk/storage_inventory"}
    assert inventories & set(found["bucket/deletion_plan"]["deps"]) == set()
    assert [pair for pair in selection(three, [], ["warehouse"], None) if pair[0] == "disk"] == [("disk", "storage_inventory")]
    assert not [pair for pair in selection(three, [], ["warehouse"], "orphan_files") if pair[0] == "disk"]


def test_a_lakefs_lake_with_lifecycle_rules_has_their_two_assets_before_its_live_files(tmp_path: Path) -> None:
    at = platform(tmp_path)
    secrets = {"access_key_id": "k", "secret_access_key": "s"}
    lake = {"name": "ml", "kind": "lakefs", "endpoint": "http://localhost:8000", "repository": "ml", "rules": "/rules.json", **secrets}
    config = at.config.model_copy(update={"lakes": (LakeFsLakeConfig.model_validate(lake),)})
    found = specs(build_definitions(replace(at, config=config)))
    assert "ml/lifecycle_objects" in found["ml/live_files"]["deps"]
    assert found["ml/lifecycle_objects"]["deps"] == ["ml/potential_commits"]
    assert found["ml/potential_commits"]["deps"] == ["ml/current_rules", "ml/manifest_entries"]
    assert found["ml/uncommitted_objects"]["deps"] == ["ml/lake_refs"]


def test_every_asset_that_another_reads_exists(definitions: dg.Definitions) -> None:
    found = specs(definitions)
    assert {dep for spec in found.values() for dep in spec["deps"]} <= set(found)


def test_every_check_says_which_danger_it_averts(definitions: dg.Definitions) -> None:
    steps = [asset for asset in definitions.assets or () if isinstance(asset, dg.AssetsDefinition)]
    checks = [check for asset in steps for check in asset.check_specs]
    assert checks
    assert all((check.description or "").endswith(".") for check in checks)


def test_every_column_is_described(definitions: dg.Definitions) -> None:
    for asset in definitions.assets or ():
        for spec in asset.specs if isinstance(asset, dg.AssetsDefinition) else [asset]:
            assert all(column.description for column in spec.metadata["dagster/column_schema"].columns), spec.key


def test_nothing_has_an_automation_condition(definitions: dg.Definitions) -> None:
    assert all(spec["automation"] is None for spec in specs(definitions).values())


def test_the_night_of_a_storage_in_mode_plan_ends_at_its_plan(definitions: dg.Definitions) -> None:
    assert job_keys(definitions, "night") == set(specs(definitions)) - EXPIRY_LOGS - {DELETION_LOG.to_user_string()}


def test_the_night_of_a_storage_in_mode_apply_ends_with_its_deletion_log(tmp_path: Path) -> None:
    definitions = build_definitions(platform(tmp_path, mode="apply"))
    assert job_keys(definitions, "night") == set(specs(definitions)) - EXPIRY_LOGS


def test_the_job_apply_runs_nothing_but_deletion_logs(definitions: dg.Definitions) -> None:
    assert job_keys(definitions, "apply") == {"warehouse/deletion_log"}


def test_the_default_configuration_of_a_deletion_asks_for_no_plan(definitions: dg.Definitions) -> None:
    job = definitions.resolve_job_def("apply")
    config = dg.validate_run_config(job, {})["ops"]["warehouse__deletion_log"]["config"]
    assert config == {"plan_id": "", "mode": "configured"}


def test_schedule_and_sensor_are_off_until_turned_on(definitions: dg.Definitions) -> None:
    assert definitions.resolve_schedule_def("nightly").default_status is dg.DefaultScheduleStatus.STOPPED
    assert definitions.resolve_sensor_def("approved_plans").default_status is dg.DefaultSensorStatus.STOPPED


def test_the_schedule_asks_for_the_run_date_it_runs_on_and_configures_nothing(definitions: dg.Definitions) -> None:
    tick = datetime(2026, 3, 14, 2, tzinfo=UTC)
    repository = definitions.get_repository_def()
    context = dg.build_schedule_context(scheduled_execution_time=tick, repository_def=repository)
    requested = definitions.resolve_schedule_def("nightly").evaluate_tick(context).run_requests or []
    assert [(request.partition_key, request.run_config) for request in requested] == [(TODAY, {})]


def test_the_in_order_a_night_share_one_process(definitions: dg.Definitions) -> None:
    assert definitions.executor is dg.in_process_executor


def test_run_dates_end_today() -> None:
    days = run_dates(Clock(), date(2026, 3, 14)).get_partition_keys()
    assert (days[0], days[-1]) == (TODAY, Clock().today().isoformat())


def test_a_rehearsal_in_the_future_has_its_run_date() -> None:
    ahead = Clock(Clock().now() + timedelta(days=9))
    assert run_dates(ahead, NOW.date()).get_last_partition_key() == ahead.today().isoformat()


def test_a_rehearsal_in_the_past_leaves_the_run_dates_alone() -> None:
    assert run_dates(Clock(NOW - timedelta(days=900)), NOW.date()) == run_dates(Clock(), NOW.date())


def frozen(at: Platform, run_date: date, frozen_at: datetime) -> None:
    state = State.of(at.config)
    run = state.start("sales", LAKE_REFS.name, run_date, at.clock)
    written = write_rows(LAKE_REFS.schema.empty_table(), LAKE_REFS, run, state.files)
    publish(state, run, written, at.clock, facts={"frozen_at": frozen_at, "rehearsal": False})


def test_the_partitions_begin_with_the_first_night_and_no_analysis_is_one(tmp_path: Path) -> None:
    at = platform(tmp_path)
    assert first_night(at) == NOW.date()
    frozen(at, date(2026, 3, 1), NOW - timedelta(days=9))
    frozen(at, date(2026, 3, 5), NOW - timedelta(days=9))
    assert first_night(at) == date(2026, 3, 5)
    asked = replace(at, config=at.config.model_copy(update={"first_night": date(2026, 2, 1)}))
    assert first_night(asked) == date(2026, 2, 1)
    assert build_definitions(at, first=date(2026, 1, 1)).resolve_job_def("night").partitions_def == run_dates(at.clock, date(2026, 1, 1))


def test_a_state_that_cannot_be_read_does_not_keep_the_page_from_opening(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    at = platform(tmp_path)
    frozen(at, date(2026, 3, 5), NOW - timedelta(days=9))
    [index] = tmp_path.glob("state/sales/lake_refs/_index.json")
    index.write_bytes(b"{")
    assert first_night(at) == NOW.date()
    assert "cannot be read, so Dagster's partitions begin today" in caplog.text


@pytest.mark.parametrize("lake", LAKES, ids=lambda lake: lake["kind"])
def test_no_box_of_a_lake_runs_before_what_it_is_made_from(lake: dict[str, Any]) -> None:
    of_kind = KINDS[lake["kind"]].config.model_validate(lake)
    boxes, made = in_order(of_kind), list[str]()
    for box in boxes:
        makes = {shown.table.name for shown in box.shown}
        fed_by = {shown.table.name for other in boxes for shown in other.shown if makes & {table.name for table in other.feeds}}
        needed = {table.name for table in box.made_from} | fed_by
        assert {name for name in needed if has(of_kind, all_tables()[name])} <= set(made), box
        made += makes
    assert {name for name in made if has(of_kind, all_tables()[name])} == {
        table.name for table in all_tables().values() if table.scope == "lake" and KINDS[of_kind.kind].has(table) and not table.by_apply
    }


def test_dagster_loads_the_code_location_of_a_configuration(tmp_path: Path) -> None:
    config = platform(tmp_path).config
    document = {
        "state": config.state,
        "storages": [{"name": "warehouse", "location": config.storage("warehouse").location}],
        "lakes": [{"name": "weather", "kind": "icechunk", "location": f"file://{tmp_path}/warehouse/weather/"}],
    }
    path = tmp_path / "lakes.yaml"
    path.write_text(yaml.safe_dump(document))
    told = validated(tmp_path, {"GC_ASSETS_CONFIG": str(path)})
    assert "Validation successful for code location lake_gc" in told
    assert "demo lakes" not in told


def test_without_a_configuration_the_demo_lakes_are_loaded_and_dagster_says_so(tmp_path: Path) -> None:
    told = validated(tmp_path, {})
    assert "Validation successful for code location lake_gc" in told
    assert "these are the demo lakes of" in told
    assert (tmp_path / "demo" / "lakes.yaml").exists()


def validated(folder: Path, environment: dict[str, str]) -> str:
    """What `dagster definitions validate` says in a folder of its own."""
    environment = {
        **environment,
        "DAGSTER_HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    command = [str(Path(sys.executable).with_name("dagster")), "definitions", "validate", "-w", str(ROOT / "workspace.yaml")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
