"""Figures of tables on the assets that write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from gc_assets.assets.observations import CHECK, observations
from gc_assets.assets.user_assets import Binding, find_bindings, written_tables
from gc_assets.core.clock import Clock
from gc_assets.definitions import build_definitions
from gc_assets.lakes.kinds import config_of
from gc_assets.resources.platform import Platform
from tests.assets.platforms import platform
from tests.cli.lakes import SmallLake, small_lake
from tests.depth import full_suite_only

NOW = datetime.now(UTC)
TODAY = NOW.date().isoformat()


class TableManager(dg.ConfigurableIOManagerFactory):
    """Has the fields that the IO managers of dagster-iceberg have."""

    name: str = "default"
    namespace: str | None = None

    def create_io_manager(self, context: dg.InitResourceContext) -> dg.IOManager:
        raise NotImplementedError


def iceberg_manager(namespace: str | None = None) -> dg.ConfigurableIOManagerFactory:
    made = type("PyArrowIcebergIOManager", (TableManager,), {"__module__": "dagster_iceberg.io_manager.arrow"})
    return made(namespace=namespace)


def asset(key: Sequence[str], **options: Any) -> dg.AssetsDefinition:
    @dg.asset(key=dg.AssetKey(list(key)), **options)
    def write() -> None: ...

    return write


def read_names(*assets: dg.AssetsDefinition, **resources: Any) -> dict[str, str]:
    repository = dg.Definitions(assets=assets, resources=resources).get_repository_def()
    found = written_tables(list(repository.assets_defs_by_key.values()))
    return {key.to_user_string(): ".".join(parts) for key, parts in found.items()}


def project(lake: SmallLake, **settings: Any) -> Platform:
    document = {
        "state": f"{lake.root}/state",
        "storages": [{"name": "warehouse", "location": f"file://{lake.builder.warehouse}/", "money": {"usd_per_gb_month": 23}}],
        "lakes": [{"name": "sales", "kind": "iceberg", "catalog": lake.builder.properties, **settings}],
    }
    return Platform(config_of(document), Clock(NOW), (), lake.lakes_yaml)


def test_namespace_of_iceberg_io_manager_takes_precedence_over_asset_key() -> None:
    found = read_names(
        asset(["orders"]),
        asset(["crm", "people"]),
        asset(["crm", "calls"], metadata={"schema": "archive"}),
        asset(["crm", "visits"], io_manager_key="plain"),
        asset(["lost"], io_manager_key="plain"),
        asset(["other"], io_manager_key="unrelated"),
        io_manager=iceberg_manager("shop"),
        plain=iceberg_manager(),
        unrelated=TableManager(namespace="shop"),
    )
    assert found == {
        "orders": "shop.orders",
        "crm/people": "shop.people",
        "crm/calls": "archive.calls",
        "crm/visits": "crm.visits",
        "lost": "public.lost",
    }


def test_namespace_can_be_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESPACE_OF_TEST", "shop")
    manager = type(iceberg_manager())(namespace=dg.EnvVar("NAMESPACE_OF_TEST"))
    assert read_names(asset(["orders"]), io_manager=manager) == {"orders": "shop.orders"}


def test_dbt_model_is_matched_only_if_engine_writes_iceberg() -> None:
    name = {"dagster/table_name": "lake.shop.orders"}
    found = read_names(
        asset(["marts", "orders"], metadata=name, kinds={"dbt", "trino"}),
        asset(["dwh", "orders"], metadata=name, kinds={"dbt", "snowflake"}),
    )
    assert found == {"marts/orders": "lake.shop.orders"}


def test_gc_assets_does_not_match_own_assets_to_tables(tmp_path: Path) -> None:
    ours = build_definitions(platform(tmp_path)).get_repository_def().assets_defs_by_key.values()
    assert written_tables(list(ours)) == {}


def test_asset_matching_tables_of_two_lakes_is_skipped(tmp_path: Path) -> None:
    config = config_of(
        {
            "state": f"{tmp_path}/state",
            "storages": [{"name": "warehouse", "location": f"file://{tmp_path}/warehouse/"}],
            "lakes": [
                {"name": name, "kind": "iceberg", "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path}/{name}.db"}}
                for name in ("a", "b")
            ],
        }
    )
    key = dg.AssetKey(["orders"])
    both = [("a", "shop.orders"), ("b", "shop.orders"), ("b", "shop.visits")]
    assert find_bindings(config, both, {key: ("shop", "orders")}) == []
    assert find_bindings(config, both, {key: ("shop", "visits")}) == [Binding(key, "b", "shop.visits")]


ASSETS = [
    {"key": "marts/orders", "table": "shop.orders", "max_garbage_share": 0.01},
    {"key": "marts/visits", "table": "shop.visits"},
    {"key": "ingest", "max_garbage_share": 1.0},
]


@pytest.fixture(scope="module")
def planned(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallLake, Platform, dg.ExecuteInProcessResult]:
    """Execute the `run` job with bound assets."""
    lake = small_lake(tmp_path_factory.mktemp("observed"))
    at = project(lake, assets=ASSETS, max_garbage_share=0.9)
    definitions = dg.Definitions.merge(build_definitions(at), dg.Definitions(assets=[asset(["marts", "orders"])]))
    result = definitions.resolve_job_def("run").execute_in_process(partition_key=TODAY, instance=dg.DagsterInstance.ephemeral())
    assert result.success
    return lake, at, result


def read_metadata(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    events = [event.asset_observation_data.asset_observation for event in result.all_events if event.is_asset_observation]
    return {event.asset_key.to_user_string(): {name: value.value for name, value in event.metadata.items()} for event in events}


@pytest.mark.spark
def test_matched_asset_gets_figures_of_the_table(planned: tuple[SmallLake, Platform, dg.ExecuteInProcessResult]) -> None:
    lake, _, result = planned
    found = read_metadata(result)
    assert found.keys() == {"marts/orders", "marts/visits", "ingest"}
    orders = found["marts/orders"]
    assert orders["garbage_files"] == len(lake.leftovers)
    assert orders["garbage_bytes"] == sum(path.stat().st_size for path in lake.leftovers)
    assert (orders["snapshots"], orders["expiring_snapshots"], orders["small_files"]) == (3, 2, 1)
    assert orders["reclaimable_usd"] == pytest.approx((orders["garbage_bytes"] + orders["expired_bytes"]) / 1e9 * 23)
    assert (orders["gc_lake"], orders["gc_table"], orders["gc_run_date"]) == ("sales", "shop.orders", TODAY)
    ingest = found["ingest"]
    for name in ("garbage_bytes", "expired_files", "snapshots", "small_files"):
        assert ingest[name] == orders[name] + found["marts/visits"][name]
    assert ingest["live_bytes"] > orders["live_bytes"] + found["marts/visits"]["live_bytes"]  # and the current metadata


@pytest.mark.spark
def test_check_compares_garbage_share_with_limit_of_asset(planned: tuple[SmallLake, Platform, dg.ExecuteInProcessResult]) -> None:
    checks = {item.asset_key.to_user_string(): item for item in planned[2].get_asset_check_evaluations() if item.check_name == CHECK}
    assert {key: (item.passed, item.metadata["max_garbage_share"].value) for key, item in checks.items()} == {
        "marts/orders": (False, 0.01),
        "marts/visits": (True, 0.9),
        "ingest": (True, 1.0),
    }
    assert checks["marts/orders"].severity == dg.AssetCheckSeverity.WARN
    assert "at most 1.0% are allowed" in str(checks["marts/orders"].description)


@pytest.mark.spark
def test_rehearsal_figures_are_marked(planned: tuple[SmallLake, Platform, dg.ExecuteInProcessResult]) -> None:
    _, at, result = planned
    assert at.clock.is_rehearsal
    assert all(metadata["rehearsal"].startswith("REHEARSAL: ") for metadata in read_metadata(result).values())
    checks = [item for item in result.get_asset_check_evaluations() if item.check_name == CHECK]
    assert all(str(item.description).startswith("REHEARSAL ") and "rehearsal" in item.metadata for item in checks)


@pytest.mark.spark
def test_check_can_run_alone_and_uses_newest_run(planned: tuple[SmallLake, Platform, dg.ExecuteInProcessResult]) -> None:
    _, at, result = planned
    key = dg.AssetCheckKey(dg.AssetKey(["ingest"]), CHECK)
    alone = dg.define_asset_job("alone", dg.AssetSelection.checks(key))
    definitions = dg.Definitions.merge(build_definitions(at), dg.Definitions(jobs=[alone]))
    (found,) = (
        definitions.resolve_job_def("alone").execute_in_process(instance=dg.DagsterInstance.ephemeral()).get_asset_check_evaluations()
    )
    assert found.metadata["garbage_bytes"].value == read_metadata(result)["ingest"]["garbage_bytes"]


def test_check_before_first_run_warns_without_failing_user_job(tmp_path: Path) -> None:
    at = project(small_lake(tmp_path), assets=ASSETS, max_garbage_share=0.9)
    ingest = asset(["ingest"], partitions_def=dg.StaticPartitionsDefinition(["eu"]))
    job = dg.define_asset_job("ingest", dg.AssetSelection.assets("ingest"))
    definitions = dg.Definitions.merge(build_definitions(at), dg.Definitions(assets=[ingest], jobs=[job]))
    result = definitions.resolve_job_def("ingest").execute_in_process(partition_key="eu", instance=dg.DagsterInstance.ephemeral())
    (found,) = result.get_asset_check_evaluations()
    reason = "no run has planned all storages yet. Run the `run` job."
    assert (result.success, found.passed, found.severity) == (True, False, dg.AssetCheckSeverity.WARN)
    assert found.description == f"the figures of the table cannot be read: {reason}"


@pytest.mark.spark
def test_check_of_asset_with_other_partitions_uses_newest_run(
    planned: tuple[SmallLake, Platform, dg.ExecuteInProcessResult],
) -> None:
    _, at, result = planned
    ingest = asset(["ingest"], partitions_def=dg.StaticPartitionsDefinition(["eu"]))
    job = dg.define_asset_job("ingest", dg.AssetSelection.assets("ingest"))
    definitions = dg.Definitions.merge(build_definitions(at), dg.Definitions(assets=[ingest], jobs=[job]))
    run = definitions.resolve_job_def("ingest").execute_in_process(partition_key="eu", instance=dg.DagsterInstance.ephemeral())
    (found,) = run.get_asset_check_evaluations()
    assert found.metadata["garbage_bytes"].value == read_metadata(result)["ingest"]["garbage_bytes"]


@pytest.mark.spark
@pytest.mark.parametrize("clock", [Clock(), Clock(NOW - timedelta(days=2))], ids=["real_clock", "earlier_day"])
def test_check_ignores_rehearsals_and_future_run_dates(
    planned: tuple[SmallLake, Platform, dg.ExecuteInProcessResult], clock: Clock
) -> None:
    job = dg.define_asset_job("alone", dg.AssetSelection.checks(dg.AssetCheckKey(dg.AssetKey(["ingest"]), CHECK)))
    definitions = dg.Definitions.merge(build_definitions(replace(planned[1], clock=clock)), dg.Definitions(jobs=[job]))
    run = definitions.resolve_job_def("alone").execute_in_process(instance=dg.DagsterInstance.ephemeral())
    (found,) = run.get_asset_check_evaluations()
    assert found.description == "the figures of the table cannot be read: no run has planned all storages yet. Run the `run` job."


@pytest.mark.spark
def test_assets_of_the_same_code_location_are_matched(planned: tuple[SmallLake, Platform, dg.ExecuteInProcessResult]) -> None:
    lake, _, result = planned
    own = dg.Definitions(assets=[asset(["orders"]), asset(["visits_2"])], resources={"io_manager": iceberg_manager("shop")})
    at = project(lake, max_garbage_share=0.9)
    (event,) = observations(at.run_context(NOW.date()), list(own.get_repository_def().assets_defs_by_key.values()))
    assert event.asset_key == dg.AssetKey("orders")
    assert event.metadata["live_bytes"].value == read_metadata(result)["marts/orders"]["live_bytes"]
    with_checks = build_definitions(at, own=own).get_repository_def().asset_graph.asset_check_keys
    assert {key.asset_key.to_user_string() for key in with_checks if key.name == CHECK} == {"orders"}


@pytest.mark.spark
def test_lake_has_no_figures_until_all_storages_are_swept(planned: tuple[SmallLake, Platform, dg.ExecuteInProcessResult]) -> None:
    at = planned[1]
    storages = (at.config.storages[0].model_copy(update={"name": "unswept"}),)
    context = replace(at, config=at.config.model_copy(update={"storages": storages})).run_context(NOW.date())
    assert list(observations(context, [])) == []


@pytest.mark.spark
def test_lake_figures_are_emitted_by_one_storage_only(planned: tuple[SmallLake, Platform, dg.ExecuteInProcessResult]) -> None:
    _, at, _ = planned
    empty = at.config.storages[0].model_copy(update={"name": "empty", "location": f"file://{at.path.parent}/empty/"})
    context = replace(at, config=at.config.model_copy(update={"storages": (empty, *at.config.storages)})).run_context(NOW.date())
    assert [len(list(observations(context, [], name))) for name in ("empty", "warehouse")] == [0, len(ASSETS)]


@full_suite_only
@pytest.mark.spark
def test_lost_metadata_gives_no_figures_and_past_date_uses_newest_run(
    planned: tuple[SmallLake, Platform, dg.ExecuteInProcessResult],
) -> None:
    """The last test of the module, because it changes the state."""
    lake, at, _ = planned
    past = (NOW - timedelta(days=2)).date()
    job = build_definitions(replace(at, config=at.config.model_copy(update={"first_run_date": past}))).resolve_job_def("run")

    def run_checks(run_date: str) -> dict[str, dg.AssetCheckEvaluation]:
        result = job.execute_in_process(partition_key=run_date, instance=dg.DagsterInstance.ephemeral())
        return {item.asset_key.to_user_string(): item for item in result.get_asset_check_evaluations() if item.check_name == CHECK}

    assert {item.metadata["gc_run_date"].value for item in run_checks(past.isoformat()).values()} == {TODAY}
    current = Path(str(lake.builder.catalog.load_table("shop.orders").metadata_location).removeprefix("file://"))
    current.rename(lake.root / current.name)
    lost = run_checks(TODAY)
    assert [(item.passed, "is missing from the listing" in str(item.description)) for item in lost.values()] == [(False, True)] * 3
