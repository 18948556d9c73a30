"""The specs of all assets: keys, dependencies, checks, pools, and no automation of deletions."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
import yaml
from pydantic import ValidationError

from gc_assets.assets.asset_step import has_table
from gc_assets.assets.lake_assets import sort_steps
from gc_assets.assets.lineage import ORIGINS
from gc_assets.assets.partitions import first_run_date, run_dates
from gc_assets.assets.sources import MAX_TABLES
from gc_assets.cli.dagster_run import RunSelection, select_assets
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError
from gc_assets.definitions import build_definitions
from gc_assets.engine.tables import publish, write_rows
from gc_assets.lakes.kinds import KINDS, all_tables
from gc_assets.lakes.lakefs.config import LakeFsLakeConfig
from gc_assets.lakes.nessie.config import NessieLakeConfig
from gc_assets.resources.platform import Platform, load_platform
from gc_assets.state.journal import State
from gc_assets.state.schemas import LAKE_REFS
from tests.assets.platforms import NOW, TODAY, platform
from tests.assets.snapshot import FILE, specs, text
from tests.cli.lakes import write_config
from tests.depth import full_suite_only

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
# External assets.
SOURCES = {"sales/catalog", "weather/repository"}


@pytest.fixture
def definitions(tmp_path: Path) -> dg.Definitions:
    return build_definitions(platform(tmp_path))


def every_spec(definitions: dg.Definitions) -> Iterator[dg.AssetSpec]:
    for asset in definitions.assets or ():
        assert isinstance(asset, dg.AssetsDefinition | dg.AssetSpec)
        yield from asset.specs if isinstance(asset, dg.AssetsDefinition) else [asset]


def job_keys(definitions: dg.Definitions, name: str) -> set[str]:
    return {key.to_user_string() for key in definitions.resolve_job_def(name).asset_layer.executable_asset_keys}


def test_specs_match_the_snapshot() -> None:
    assert FILE.read_text() == text(), "if the change is wanted: python -m tests.assets.snapshot"


def test_every_table_is_an_asset(definitions: dg.Definitions) -> None:
    lakes = {"sales": "iceberg", "weather": "icechunk"}
    wanted = {f"{lake}/{table.name}" for table in all_tables().values() for lake, kind in lakes.items() if KINDS[kind].has(table)}
    wanted |= {f"warehouse/{table.name}" for table in all_tables().values() if table.scope == "storage"}
    assert set(specs(definitions)) == wanted | SOURCES


def test_nessie_manifest_entries_and_live_files_depend_on_live_contents(tmp_path: Path) -> None:
    at = platform(tmp_path)
    shop = NessieLakeConfig.model_validate({"name": "shop", "kind": "nessie", "uri": "http://localhost:19120/api/v2"})
    found = specs(build_definitions(replace(at, config=at.config.model_copy(update={"lakes": (*at.config.lakes, shop)}))))
    assert "shop/commit_graph" in found["shop/live_contents"]["deps"]
    assert all("shop/live_contents" in found[f"shop/{name}"]["deps"] for name in ("manifest_entries", "live_files"))


def test_plan_depends_on_inventories_of_storages_with_links(tmp_path: Path) -> None:
    at = platform(tmp_path)
    (own,) = at.config.storages
    disk = own.model_copy(update={"name": "disk", "location": f"file://{tmp_path}/disk/"})
    bucket = own.model_copy(update={"name": "bucket", "location": "s3://bucket/prefix/", "quarantine": "deferred"})
    three = replace(at, config=at.config.model_copy(update={"storages": (own, disk, bucket)}))
    found = specs(build_definitions(three))
    inventories = {f"{name}/storage_inventory" for name in ("warehouse", "disk", "bucket")}
    assert inventories & set(found["warehouse/deletion_plan"]["deps"]) == {"disk/storage_inventory"}
    assert inventories & set(found["bucket/deletion_plan"]["deps"]) == set()
    assert [pair for pair in select_assets(three, RunSelection(storages=["warehouse"])) if pair[0] == "disk"] == [
        ("disk", "storage_inventory")
    ]
    assert not [pair for pair in select_assets(three, RunSelection(storages=["warehouse"], through="orphan_files")) if pair[0] == "disk"]


def test_lakefs_live_files_depend_on_lifecycle_assets(tmp_path: Path) -> None:
    at = platform(tmp_path)
    secrets = {"access_key_id": "k", "secret_access_key": "s"}
    lake = {"name": "ml", "kind": "lakefs", "endpoint": "http://localhost:8000", "repository": "ml", "rules": "/rules.json", **secrets}
    config = at.config.model_copy(update={"lakes": (LakeFsLakeConfig.model_validate(lake),)})
    found = specs(build_definitions(replace(at, config=config)))
    assert {dep for spec in found.values() for dep in spec["deps"]} <= set(found)
    assert "ml/lifecycle_objects" in found["ml/live_files"]["deps"]
    assert found["ml/lifecycle_objects"]["deps"] == ["ml/potential_commits"]
    assert found["ml/potential_commits"]["deps"] == ["ml/current_rules", "ml/manifest_entries"]
    assert found["ml/uncommitted_objects"]["deps"] == ["ml/lake_refs"]


def test_lakefs_deletions_by_commit_are_used_by_plan_only(tmp_path: Path) -> None:
    at = platform(tmp_path)
    lake = {"name": "ml", "kind": "lakefs", "endpoint": "http://localhost:8000", "repository": "ml", "rules": "/rules.json"}
    lake |= {"access_key_id": "k", "secret_access_key": "s", "lifecycle": "commit"}
    config = at.config.model_copy(update={"lakes": (LakeFsLakeConfig.model_validate(lake),)})
    found = specs(build_definitions(replace(at, config=config)))
    assert "ml/lifecycle_objects" not in found
    assert found["ml/lifecycle_paths"]["deps"] == ["ml/potential_commits"]
    assert {"ml/expiry_plan", "ml/lifecycle_paths"} <= set(found["warehouse/deletion_plan"]["deps"])
    assert {"ml/expiry_plan", "ml/lifecycle_paths"} <= set(found["ml/expiry_log"]["deps"])
    assert not {"ml/lifecycle_paths", "ml/potential_commits"} & set(found["ml/live_files"]["deps"])


def test_every_dependency_exists(definitions: dg.Definitions) -> None:
    found = specs(definitions)
    assert {dep for spec in found.values() for dep in spec["deps"]} <= set(found)


def test_every_check_has_a_description(definitions: dg.Definitions) -> None:
    steps = [asset for asset in definitions.assets or () if isinstance(asset, dg.AssetsDefinition)]
    checks = [check for asset in steps for check in asset.check_specs]
    assert checks
    assert all((check.description or "").endswith(".") for check in checks)


def test_every_column_has_a_description(definitions: dg.Definitions) -> None:
    for spec in every_spec(definitions):
        if spec.key.to_user_string() not in SOURCES:
            assert all(column.description for column in spec.metadata["dagster/column_schema"].columns), spec.key


def test_no_asset_has_an_automation_condition(definitions: dg.Definitions) -> None:
    assert all(spec["automation"] is None for spec in specs(definitions).values())


def test_run_in_plan_mode_ends_with_deletion_plan(definitions: dg.Definitions) -> None:
    assert job_keys(definitions, "run") == set(specs(definitions)) - EXPIRY_LOGS - SOURCES - {DELETION_LOG.to_user_string()}


def test_run_in_apply_mode_ends_with_deletion_log(tmp_path: Path) -> None:
    definitions = build_definitions(platform(tmp_path, mode="apply"))
    assert job_keys(definitions, "run") == set(specs(definitions)) - EXPIRY_LOGS - SOURCES


def test_apply_job_runs_only_deletion_logs(definitions: dg.Definitions) -> None:
    assert job_keys(definitions, "apply") == {"warehouse/deletion_log"}


def test_deletion_config_has_no_default_plan_id(definitions: dg.Definitions) -> None:
    job = definitions.resolve_job_def("apply")
    config = dg.validate_run_config(job, {})["ops"]["warehouse__deletion_log"]["config"]
    assert config == {"plan_id": "", "mode": "configured"}


def test_schedule_and_sensor_are_off_by_default(definitions: dg.Definitions) -> None:
    assert definitions.resolve_schedule_def("nightly").default_status is dg.DefaultScheduleStatus.STOPPED
    assert definitions.resolve_sensor_def("approved_plans").default_status is dg.DefaultSensorStatus.STOPPED


def test_schedule_requests_run_date_of_the_tick(definitions: dg.Definitions) -> None:
    tick = datetime(2026, 3, 14, 2, tzinfo=UTC)
    repository = definitions.get_repository_def()
    context = dg.build_schedule_context(scheduled_execution_time=tick, repository_def=repository)
    requested = definitions.resolve_schedule_def("nightly").evaluate_tick(context).run_requests or []
    assert [(request.partition_key, request.run_config) for request in requested] == [(TODAY, {})]


def test_run_uses_one_process_with_any_executor(definitions: dg.Definitions) -> None:
    own = dg.Definitions.merge(definitions, dg.Definitions(executor=dg.multiprocess_executor))
    for name in ("run", "apply"):
        assert own.resolve_job_def(name).executor_def is dg.in_process_executor


def test_every_job_schedule_and_sensor_has_a_description(definitions: dg.Definitions) -> None:
    repository = definitions.get_repository_def()
    jobs = [job for job in repository.get_all_jobs() if not job.name.startswith("__")]
    for described in (*jobs, *repository.schedule_defs, *repository.sensor_defs):
        assert (described.description or "").endswith("."), described.name


def test_only_the_plan_has_a_freshness_policy(definitions: dg.Definitions) -> None:
    fresh = {key: spec["freshness"] for key, spec in specs(definitions).items() if spec["freshness"] is not None}
    assert fresh == {"warehouse/deletion_plan": "warns after 1 day, 2:00:00, fails after 1 day, 6:00:00"}


def test_expiry_log_is_between_plan_and_deletions(
    definitions: dg.Definitions,
) -> None:
    found = specs(definitions)
    assert set(found["sales/expiry_log"]["deps"]) == {"sales/expiry_plan", "warehouse/deletion_plan"}
    assert set(found["warehouse/deletion_log"]["deps"]) >= EXPIRY_LOGS


def with_lake(at: Platform, name: str, **settings: Any) -> Platform:
    """Return the platform with other settings of one lake."""
    lakes = [lake.model_validate({**lake.model_dump(), **settings}) if lake.name == name else lake for lake in at.config.lakes]
    return replace(at, config=at.config.model_copy(update={"lakes": tuple(lakes)}))


def test_lake_asset_depends_on_configured_writer_assets(tmp_path: Path) -> None:
    at = with_lake(platform(tmp_path), "weather", assets=({"key": "ingest/forecast"}, {"key": "stations"}))
    found = specs(build_definitions(at))
    assert found["weather/repository"]["deps"] == ["ingest/forecast", "stations"]
    assert "weather/repository" in found["weather/lake_refs"]["deps"]
    assert {"ingest/forecast", "stations"} & set(found) == set()  # they are of another code location, or of this one's other half


def test_tables_without_configured_writer_become_source_assets(tmp_path: Path) -> None:
    at = with_lake(platform(tmp_path), "sales", assets=({"key": "analytics/orders", "table": "shop.orders"},))
    publish_refs(at, date(2026, 3, 1), NOW, tables=["shop.dropped"])
    publish_refs(at, date(2026, 3, 5), NOW, tables=["shop.orders", "shop.returns", "shop.orders"])
    found = specs(build_definitions(at))
    assert found["sales/catalog"]["deps"] == ["analytics/orders", "sales/tables/shop/returns"]
    assert {key for key in found if key.startswith("sales/tables")} == {"sales/tables/shop/returns"}
    assert (found["sales/tables/shop/returns"]["group"], found["sales/tables/shop/returns"]["kinds"]) == ("gc/sales", ["iceberg"])


def test_number_of_source_tables_is_limited(tmp_path: Path) -> None:
    at = platform(tmp_path)
    publish_refs(at, NOW.date(), NOW, tables=[f"shop.t{number:03}" for number in range(MAX_TABLES + 7)])
    found = specs(build_definitions(at))
    assert len([key for key in found if key.startswith("sales/tables")]) == MAX_TABLES
    assert str(found["sales/catalog"]["description"]).endswith("7 tables are not shown.")


def test_lake_owners_and_tags_override_platform_defaults(tmp_path: Path) -> None:
    at = with_lake(platform(tmp_path), "weather", owners=("team:weather", "ada@example.org"), tags={"domain": "weather"})
    platform_owners = at.config.model_copy(update={"owners": ("team:lakes",), "tags": {"domain": "lakes", "acme/tier": "1"}})
    found = specs(build_definitions(replace(at, config=platform_owners)))
    assert found["weather/live_files"]["owners"] == ["team:weather", "ada@example.org"]
    assert found["warehouse/deletion_log"]["owners"] == found["sales/expiry_log"]["owners"] == ["team:lakes"]
    assert found["weather/repository"]["tags"] == {"domain": "weather", "acme/tier": "1"}
    assert found["sales/lake_refs"]["tags"] == {"gc/scope": "lake", "domain": "lakes", "acme/tier": "1"}


def test_owners_and_writers_do_not_change_the_policy_digest(tmp_path: Path) -> None:
    at = platform(tmp_path)
    shown = {"owners": ("team:weather",), "tags": {"a": "b"}, "assets": ({"key": "ingest/forecast"},)}
    assert with_lake(at, "weather", **shown).config.policy_digest() == at.config.policy_digest()
    storage = at.config.storages[0].model_copy(update={"owners": ("team:weather",), "tags": {"a": "b"}})
    assert at.config.model_copy(update={"storages": (storage,)}).policy_digest() == at.config.policy_digest()


@pytest.mark.parametrize(
    "shown",
    [
        {"owners": ["data-platform"]},
        {"owners": ["team:"]},
        {"tags": {"dagster/kind": "s3"}},
        {"tags": {"a b": "c"}},
        {"tags": {"a": "b c"}},
        {"assets": [{"key": "analytics//orders"}]},
        {"assets": [{"key": "analytics/orders", "table": ""}]},
    ],
    ids=str,
)
def test_invalid_owners_and_tags_are_refused_early(tmp_path: Path, shown: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        with_lake(platform(tmp_path), "weather", **shown)


def test_column_lineage_refers_to_upstream_columns(definitions: dg.Definitions) -> None:
    found, tables = specs(definitions), all_tables()
    upstream: dict[str, set[str]] = {}

    def all_upstream(key: str) -> set[str]:
        if key not in upstream:
            upstream[key] = {above for dep in found[key]["deps"] for above in (dep, *all_upstream(dep))}
        return upstream[key]

    for name, origins in ORIGINS.items():
        group = "warehouse" if tables[name].scope == "storage" else "sales"
        for column, (source, origin) in origins.items():
            assert tables[name].schema.field(column).type == source.schema.field(origin).type, (name, column)
            assert f"{group}/{name}" not in found or f"{group}/{source.name}" in all_upstream(f"{group}/{name}"), (name, column)


def test_run_date_partitions_end_today() -> None:
    days = run_dates(Clock(), date(2026, 3, 14)).get_partition_keys()
    assert (days[0], days[-1]) == (TODAY, Clock().today().isoformat())


def test_future_rehearsal_has_a_partition() -> None:
    ahead = Clock(Clock().now() + timedelta(days=9))
    assert run_dates(ahead, NOW.date()).get_last_partition_key() == ahead.today().isoformat()


def test_past_rehearsal_does_not_remove_partitions() -> None:
    assert run_dates(Clock(NOW - timedelta(days=900)), NOW.date()) == run_dates(Clock(), NOW.date())


def publish_refs(at: Platform, run_date: date, frozen_at: datetime, tables: Sequence[str] = ()) -> None:
    state = State.of(at.config)
    run = state.start("sales", LAKE_REFS.name, run_date, at.clock)
    rows = pa.Table.from_pylist([{"table_name": name} for name in tables], schema=LAKE_REFS.schema)
    written = write_rows(rows, LAKE_REFS, run, state.files)
    publish(state, run, written, at.clock, summary={"frozen_at": frozen_at, "rehearsal": False})


def test_partitions_begin_with_the_first_run(tmp_path: Path) -> None:
    at = platform(tmp_path)
    assert first_run_date(at) == NOW.date()
    publish_refs(at, date(2026, 3, 1), NOW - timedelta(days=9))
    publish_refs(at, date(2026, 3, 5), NOW - timedelta(days=9))
    assert first_run_date(at) == date(2026, 3, 5)
    request = replace(at, config=at.config.model_copy(update={"first_run_date": date(2026, 2, 1)}))
    assert first_run_date(request) == date(2026, 2, 1)
    assert build_definitions(at, first=date(2026, 1, 1)).resolve_job_def("run").partitions_def == run_dates(at.clock, date(2026, 1, 1))


def test_unreadable_state_does_not_fail_loading(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    at = platform(tmp_path)
    publish_refs(at, date(2026, 3, 5), NOW - timedelta(days=9))
    [index] = tmp_path.glob("state/sales/lake_refs/_index.json")
    index.write_bytes(b"{")
    assert first_run_date(at) == NOW.date()
    assert "so Dagster's partitions begin today" in caplog.text
    assert specs(build_definitions(at))["sales/catalog"]["deps"] == []
    assert "so Dagster shows no tables of lake sales" in caplog.text


def test_unreadable_registry_fails_runs_but_not_loading(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    lakes_yaml = write_config(tmp_path, {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"})
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "registry.json").write_text("{")
    with pytest.raises(StateError, match=r"registry\.json is damaged"):
        load_platform({}, str(lakes_yaml))
    assert "warehouse/deletion_plan" in specs(build_definitions(lakes_yaml))
    with pytest.raises(StateError, match="Reload the code location"):
        load_platform({}, str(lakes_yaml), require_names=False).run_context(NOW.date())


@pytest.mark.parametrize("lake", LAKES, ids=lambda lake: lake["kind"])
def test_steps_are_sorted_by_dependency(lake: dict[str, Any]) -> None:
    of_kind = KINDS[lake["kind"]].config.model_validate(lake)
    boxes, made = sort_steps(of_kind), list[str]()
    for box in boxes:
        makes = {shown.table.name for shown in box.outputs}
        fed_by = {shown.table.name for other in boxes for shown in other.outputs if makes & {table.name for table in other.feeds}}
        needed = {table.name for table in box.inputs} | fed_by
        assert {name for name in needed if has_table(of_kind, all_tables()[name])} <= set(made), box
        made += makes
    assert {name for name in made if has_table(of_kind, all_tables()[name])} == {
        table.name for table in all_tables().values() if table.scope == "lake" and has_table(of_kind, table) and not table.by_apply
    }


def test_dagster_loads_the_code_location(tmp_path: Path) -> None:
    config = platform(tmp_path).config
    document = {
        "state": config.state,
        "storages": [{"name": "warehouse", "location": config.storage("warehouse").location}],
        "lakes": [{"name": "weather", "kind": "icechunk", "location": f"file://{tmp_path}/warehouse/weather/"}],
    }
    path = tmp_path / "lakes.yaml"
    path.write_text(yaml.safe_dump(document))
    output = validate_definitions(tmp_path, {"GC_ASSETS_CONFIG": str(path)})
    assert "Validation successful for code location lake_gc" in output
    assert "demo lakes" not in output


@full_suite_only
def test_missing_configuration_loads_the_demo(tmp_path: Path) -> None:
    output = validate_definitions(tmp_path, {})
    assert "Validation successful for code location lake_gc" in output
    assert "using the demo lakes of" in output
    assert (tmp_path / "demo" / "lakes.yaml").exists()


def validate_definitions(folder: Path, environment: dict[str, str]) -> str:
    """Return the output of `dagster definitions validate` in a temporary directory."""
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
