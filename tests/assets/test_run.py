"""A complete run through Dagster on an Iceberg lake."""

import base64
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from gc_assets.config.models import Gates
from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused
from gc_assets.core.plan import PlanHeader
from gc_assets.definitions import build_definitions
from gc_assets.lakes.kinds import KINDS, all_tables, config_of
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import approve
from gc_assets.state.journal import State
from gc_assets.state.schemas import DELETION_PLAN, EXPIRY_LOG, LIVE_FILES
from gc_assets.state.summaries import LiveFilesSummary
from tests.lakes.iceberg.builder import LakeBuilder

pytestmark = pytest.mark.spark

NOW = datetime.now(UTC)
TODAY = NOW.date().isoformat()
LOG, PLAN = dg.AssetKey(["warehouse", "deletion_log"]), dg.AssetKey(["warehouse", "deletion_plan"])


Lake = tuple[Platform, list[Path]]  # and the leftovers in it


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def sales(root: Path) -> Lake:
    """Create a table with expired history in apply mode, five files of a failed writer, and one that no lake claims."""
    lake = LakeBuilder(root)
    table = lake.table("sales.orders", days_ago(60), properties={"history.expire.max-snapshot-age-ms": str(10 * 86_400_000)})
    for days in (50, 40, 6, 5):
        table.append(days_ago(days))
    leftovers = table.leftovers(days_ago(20), 4)
    (Path(lake.warehouse) / "notes.txt").write_text("belongs to no table")
    document = {
        "state": f"{root}/state",
        "storages": [{"name": "warehouse", "location": f"file://{lake.warehouse}/", "mode": "apply", "rehearsals": "allowed"}],
        "lakes": [{"name": "sales", "kind": "iceberg", "catalog": lake.properties}],
        "spark": {"master": "local[2]", "conf": {"spark.sql.shuffle.partitions": "4"}},
    }
    return Platform(config_of(document), Clock(NOW), (), root / "lakes.yaml"), leftovers


def run(
    at: Platform, job: str, partition_key: str = TODAY, selection: list[dg.AssetKey] | None = None, **config: Any
) -> dg.ExecuteInProcessResult:
    definitions = build_definitions(at)
    job_definition = definitions.resolve_job_def(job) if selection is None else definitions.resolve_implicit_global_asset_job_def()
    return job_definition.execute_in_process(
        partition_key=partition_key,
        asset_selection=selection,
        run_config={"ops": {"warehouse__deletion_log": {"config": config}}} if config else {},
        instance=dg.DagsterInstance.ephemeral(),
        raise_on_error=False,
    )


def first_run_date(at: Platform, moment: datetime) -> Platform:
    return replace(at, config=at.config.model_copy(update={"first_run_date": moment.date()}))


def materializations(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetMaterialization]:
    events = result.get_asset_materialization_events()
    return {event.asset_key.to_user_string(): event.step_materialization_data.materialization for event in events}


def plan_of(at: Platform, partition_key: str = TODAY) -> PlanHeader:
    day = datetime.fromisoformat(partition_key).date()
    return header_of(State.at(at.config.state).require("warehouse", DELETION_PLAN.name, day))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Lake:
    return sales(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="module")
def run_result(lake: Lake) -> dg.ExecuteInProcessResult:
    return run(lake[0], "run")


@pytest.fixture
def copy_platform(lake: Lake, run_result: dg.ExecuteInProcessResult, tmp_path: Path) -> Callable[..., Platform]:
    """Return the platform after its run, with a copy of the state and other settings of the
    storage.
    """

    def copy_state(**settings: Any) -> Platform:
        config = lake[0].config
        shutil.copytree(config.state, tmp_path / "state")
        storage = config.storage("warehouse").model_copy(update=settings)
        return replace(lake[0], config=config.model_copy(update={"state": str(tmp_path / "state"), "storages": (storage,)}))

    return copy_state


def test_run_publishes_every_table(lake: Lake, run_result: dg.ExecuteInProcessResult) -> None:
    assert run_result.success
    of_iceberg = {table.name for table in all_tables().values() if table.scope == "storage" or KINDS["iceberg"].has(table)}
    assert {key.partition("/")[2] for key in materializations(run_result)} == of_iceberg - {EXPIRY_LOG.name}
    assert plan_of(lake[0]).by_reason["unreferenced"].files == len(lake[1])


def test_every_blocking_check_passes(run_result: dg.ExecuteInProcessResult) -> None:
    evaluations = run_result.get_asset_check_evaluations()
    assert len(evaluations) >= len(all_tables())
    assert all(evaluation.passed for evaluation in evaluations)


def test_run_in_apply_mode_deletes_nothing(lake: Lake, run_result: dg.ExecuteInProcessResult) -> None:
    report = materializations(run_result)["warehouse/deletion_log"].metadata["nothing_changed"].value
    assert "no approved plan id" in str(report)
    assert all(path.exists() for path in lake[1])


def test_metadata_matches_published_rows(lake: Lake, run_result: dg.ExecuteInProcessResult) -> None:
    state = State.at(lake[0].config.state)
    for key, materialization in materializations(run_result).items():
        group, name = key.split("/")
        published = state.current(group, name, NOW.date())
        if published is None:  # the deletion_log of a run that deleted nothing
            continue
        # The rows of `live_files` are computed when they are read.
        rows = published.summary(LiveFilesSummary).files if name == LIVE_FILES.name else published.receipt.rows
        assert materialization.metadata["dagster/row_count"].value == rows, key
        assert materialization.metadata["dagster/uri"].value == state.files.uri(published.path), key
        assert materialization.tags["dagster/data_version"] == published.receipt.digest, key
        sampled, is_view = len(materialization.metadata["sample"].records), name == LIVE_FILES.name  # a sample of its containers only
        assert 0 < sampled <= rows if is_view else sampled == min(20, rows), key


def test_orphan_report_contains_storage_breakdown(run_result: dg.ExecuteInProcessResult) -> None:
    metadata = materializations(run_result)["warehouse/orphan_files"].metadata
    assert "data:image/svg+xml;base64," in str(metadata["report"].value)
    assert metadata["reclaimable_files"].value == 5
    assert metadata["expired_files"].value == metadata["orphan_files"].value - 5


def test_report_contains_history_before_and_after(run_result: dg.ExecuteInProcessResult) -> None:
    found = materializations(run_result)
    assert "| sales.orders | 4 | 2 | 2 | 0 |" in str(found["sales/reachable_snapshots"].metadata["report"].value)
    edits = str(found["sales/expiry_plan"].metadata["report"].value)
    assert "| sales.orders | remove_snapshot | 2 |" in edits
    now, after = (base64.b64decode(text.partition(")")[0]).decode() for text in edits.split("base64,")[1:])
    assert (now.count("<circle"), after.count("<circle")) == (4, 2)
    ElementTree.fromstring(now)  # noqa: S314  (our own drawing: an image that is no XML shows as a broken link)


def test_numeric_metadata_is_never_boolean(run_result: dg.ExecuteInProcessResult) -> None:
    for materialization in materializations(run_result).values():
        for name, value in materialization.metadata.items():
            assert not isinstance(value, dg.BoolMetadataValue), name
            if isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue) and not name.startswith("dagster/"):
                assert not name.endswith(("_id", "id")), name


def test_every_numeric_metadata_entry_has_a_figure_with_unit(run_result: dg.ExecuteInProcessResult) -> None:
    for key, materialization in materializations(run_result).items():
        metadata = materialization.metadata
        numbers = {name for name, value in metadata.items() if isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue)}
        if "figures" not in metadata:  # the deletion_log of a run that deleted nothing
            assert key == "warehouse/deletion_log"
            continue
        figures = {str(record.data["figure"]).replace(" ", "_"): str(record.data["amount"]) for record in metadata["figures"].records}
        assert figures.keys() == {name for name in numbers if not name.startswith("dagster/")}, key
        assert all(re.fullmatch(r"[-\d.,e]+ ([a-zA-Z]+( per key)?|%)", amount) for amount in figures.values()), figures


def test_plan_metadata_has_status_deadlines_and_gates(lake: Lake, run_result: dg.ExecuteInProcessResult) -> None:
    metadata, header = materializations(run_result)["warehouse/deletion_plan"].metadata, plan_of(lake[0])
    report = [metadata[name].value for name in ("plan_id", "status", "approved_by", "approvals", "failed_gates")]
    assert report == [header.plan_id[:12], "ready", "not approved", "0 of 1", "none"]
    assert metadata["approve_before"].value == header.approve_before.timestamp()
    assert metadata["apply_before"].value == header.apply_before.timestamp()
    assert {record.data["gate"] for record in metadata["gates"].records} == {gate.name for gate in header.gates}


def test_plan_metadata_counts_unowned_files(run_result: dg.ExecuteInProcessResult) -> None:
    metadata = materializations(run_result)["warehouse/deletion_plan"].metadata
    assert str(metadata["unowned"].value).startswith("1 file (19 B). No lake claims them, so they are\\\nnot planned.")


def test_metadata_contains_column_lineage(run_result: dg.ExecuteInProcessResult) -> None:
    found = {key: item.metadata.get("dagster/column_lineage") for key, item in materializations(run_result).items()}
    lineage = found["warehouse/orphan_files"]
    assert isinstance(lineage, dg.TableColumnLineageMetadataValue)
    assert lineage.value.deps_by_column["etag"] == [dg.TableColumnDep(dg.AssetKey(["warehouse", "storage_inventory"]), "etag")]
    assert found["warehouse/storage_inventory"] is None


def test_repeated_run_makes_an_identical_plan(copy_platform: Callable[..., Platform]) -> None:
    at = copy_platform()
    before = plan_of(at)
    result = run(at, "run", selection=[PLAN])
    assert result.success
    assert plan_of(at) == before


def test_failed_gate_fails_the_check_but_not_the_step(copy_platform: Callable[..., Platform], lake: Lake) -> None:
    at = copy_platform(gates=Gates(max_delete_bytes=1))
    result = run(at, "run", selection=[PLAN, LOG])
    assert result.success
    assert list(materializations(result)) == ["warehouse/deletion_plan", "warehouse/deletion_log"]
    (gates,) = [check for check in result.get_asset_check_evaluations() if check.check_name == "gates"]
    assert (gates.passed, gates.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "max_delete_bytes allows 1 B" in (gates.description or "")
    assert gates.metadata["failed_gates"].value == "delete_bytes"
    assert materializations(result)["warehouse/deletion_plan"].metadata["status"].value == "refused"
    assert all(path.exists() for path in lake[1])


def test_refused_plan_cannot_be_approved_or_applied(copy_platform: Callable[..., Platform], lake: Lake) -> None:
    at = copy_platform(gates=Gates(max_delete_bytes=1))
    run(at, "run", selection=[PLAN])
    with pytest.raises(GateRefused):
        approve(at.config, at.clock, plan_of(at).plan_id, "kim")
    result = run(at, "apply", plan_id=plan_of(at).plan_id)
    assert result.failure_data_for_node("warehouse__deletion_log").user_failure_data.metadata["error"].value == "GateRefused"
    assert all(path.exists() for path in lake[1])


def test_run_of_a_past_date_without_recorded_refs_is_historical(copy_platform: Callable[..., Platform], lake: Lake) -> None:
    at, past = first_run_date(copy_platform(), days_ago(3)), days_ago(3).date().isoformat()
    run_result = run(at, "run", past)
    assert run_result.success
    assert plan_of(at, past).historical
    metadata = materializations(run_result)
    assert "Historical" in str(metadata["sales/lake_refs"].metadata["report"].value)
    assert "Historical" in str(metadata["warehouse/deletion_plan"].metadata["report"].value)
    result = run(at, "apply", past, plan_id=plan_of(at, past).plan_id)
    assert "it is historical" in result.failure_data_for_node("warehouse__deletion_log").user_failure_data.description
    assert all(path.exists() for path in lake[1])


def test_analysis_job_refuses_run_dates_with_a_partition(copy_platform: Callable[..., Platform], lake: Lake) -> None:
    at, past = copy_platform(), days_ago(4).date().isoformat()

    def run_analysis(run_date: str) -> dg.ExecuteInProcessResult:
        job = build_definitions(at).resolve_job_def("analysis")
        config = {"ops": {"work_out": {"config": {"run_date": run_date}}}}
        return job.execute_in_process(run_config=config, instance=dg.DagsterInstance.ephemeral(), raise_on_error=False)

    result = run_analysis(past)
    assert result.success
    assert plan_of(at, past).historical
    [metadata] = [event.step_output_data.metadata for event in result.all_node_events if event.is_successful_output]
    assert "Historical" in str(metadata["warehouse"].value)
    report = run_analysis(TODAY).failure_data_for_node("work_out").user_failure_data.description
    assert report == f"run_date {TODAY}: the partitions begin on {TODAY}, so this date has a partition. Launch the `run` job for it."
    assert all(path.exists() for path in lake[1])


def test_apply_of_approved_plan_moves_only_planned_files(lake: Lake, run_result: dg.ExecuteInProcessResult) -> None:
    """The last test of the module, because it changes the files of the others."""
    at, leftovers = lake
    before = {path for path in (Path(at.config.state).parent / "warehouse").rglob("*") if path.is_file()}
    header = plan_of(at)
    approve(at.config, at.clock, header.plan_id, "kim")
    applied = run(at, "apply", plan_id=header.plan_id)
    events = materializations(applied)
    metadata = events["warehouse/deletion_log"].metadata
    gone = {path for path in before if not path.exists()}
    assert (metadata["quarantined_files"].value, metadata["failed_files"].value) == (len(gone), 0)
    assert gone > set(leftovers)
    assert events["sales/expiry_log"].metadata["done_edits"].value == header.expiry_actions["sales"] > 0
    (observed,) = (event.asset_observation_data.asset_observation for event in applied.all_events if event.is_asset_observation)
    assert (observed.asset_key, observed.partition, observed.metadata["status"].value) == (PLAN, TODAY, "applied")
    assert f"| quarantine | {len(gone)} files |" in str(observed.metadata["plan"].value)
    effects = [str(metadata[name].value) for name in ("outcomes", "can_be_undone", "becomes_free")]
    can_be_undone, becomes_free = (text.replace("\\\n", " ") for text in effects[1:])
    assert re.match(rf"{len(gone)} files \(\S+ kB\) in quarantine: ", can_be_undone)
    assert ", at the earliest on 20" in becomes_free
    assert max(len(line) for text in effects for line in text.splitlines()) <= 60, effects
    twice = materializations(run(at, "apply", plan_id=header.plan_id))["warehouse/deletion_log"].metadata
    assert "applying it again changes nothing" in str(twice["nothing_changed"].value)
    assert twice["quarantined_files"].value == len(gone)
