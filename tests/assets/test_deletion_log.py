"""Runs of the `deletion_log` asset that are refused or change nothing."""

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from gc_assets.core.clock import Clock
from gc_assets.core.phases import QUARANTINE
from gc_assets.definitions import build_definitions
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.state.journal import State
from tests.assets.platforms import NOW, TODAY, platform, stored_plan

OP = "warehouse__deletion_log"


def deletion(at: Platform, partition_key: str = TODAY, **config: Any) -> dg.ExecuteInProcessResult:
    """Materialize only `deletion_log`. No Spark may be started, because nothing is executed."""
    job = build_definitions(at, first=date(2026, 1, 1)).resolve_job_def("apply")
    return job.execute_in_process(
        run_config={"ops": {OP: {"config": config}}},
        partition_key=partition_key,
        instance=dg.DagsterInstance.ephemeral(),
        raise_on_error=False,
    )


def metadata_of(result: dg.ExecuteInProcessResult) -> str:
    assert result.success
    (event,) = result.get_asset_materialization_events()
    return str(event.step_materialization_data.materialization.metadata["nothing_changed"].value)


def refusal(result: dg.ExecuteInProcessResult) -> tuple[str, str]:
    assert not result.success
    failure = result.failure_data_for_node(OP).user_failure_data
    return str(failure.metadata["error"].value), failure.description


def changed_files(at: Platform) -> bool:
    state = State.at(at.config.state)
    return "deletion_log" in state.files.directories("warehouse") or "apply" in state.files.directories("warehouse")


def test_mode_plan_without_plan_id_deletes_nothing(tmp_path: Path) -> None:
    at = platform(tmp_path)
    stored_plan(at)
    assert "plan mode" in metadata_of(deletion(at))
    assert not changed_files(at)


def test_reason_for_no_change_is_the_first_metadata_entry(tmp_path: Path) -> None:
    """So the page shows the reason above the counts, which are all zero."""
    at = platform(tmp_path, mode="apply")
    stored_plan(at)
    (event,) = deletion(at).get_asset_materialization_events()
    assert next(iter(event.step_materialization_data.materialization.metadata)) == "nothing_changed"


def test_mode_apply_without_plan_id_waits_for_approval(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    stored_plan(at)
    assert "no quarantined file is needed again" in metadata_of(deletion(at))
    assert not changed_files(at)


def test_past_run_date_without_plan_id_deletes_nothing(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    stored_plan(at, run_date="2026-03-13")
    assert "is in the past" in metadata_of(deletion(at, "2026-03-13"))
    assert not changed_files(at)


def test_unapproved_plan_is_refused(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    header = header_of(stored_plan(at))
    error, message = refusal(deletion(at, plan_id=header.plan_id))
    assert error == "GateRefused"
    assert "is not approved" in message
    assert not changed_files(at)


def test_plan_id_does_not_override_mode_plan(tmp_path: Path) -> None:
    at = platform(tmp_path)
    error, message = refusal(deletion(at, plan_id=header_of(stored_plan(at)).plan_id))
    assert error == "GateRefused"
    assert "plan mode" in message


def test_run_mode_overrides_storage_mode(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    _, message = refusal(deletion(at, plan_id=header_of(stored_plan(at)).plan_id, mode="plan"))
    assert "plan mode" in message


def test_historical_plan_is_refused(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    header = header_of(stored_plan(at, run_date="2026-01-20", historical=True))
    error, message = refusal(deletion(at, "2026-01-20", plan_id=header.plan_id))
    assert error == "GateRefused"
    assert "it is historical, because no run read the lakes on 2026-01-20" in message


def test_plan_from_another_run_date_is_refused(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    header = header_of(stored_plan(at, run_date="2026-03-13"))
    error, message = refusal(deletion(at, TODAY, plan_id=header.plan_id))
    assert error == "UsageError"
    assert "2026-03-13" in message


def test_unknown_plan_id_is_a_usage_error(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    assert refusal(deletion(at, plan_id="f" * 64))[0] == "UsageError"


def test_edited_plan_is_refused(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    published = stored_plan(at)
    receipt = tmp_path / "state" / published.path / "_receipt.json"
    receipt.write_text(receipt.read_text().replace('"live_files": 7', '"live_files": 8').replace('"live_files":7', '"live_files":8'))
    error, message = refusal(deletion(at, plan_id=header_of(published).plan_id))
    assert error == "DamagedRunError"
    assert "was changed after" in message


def test_future_run_date_is_a_usage_error(tmp_path: Path) -> None:
    at = platform(tmp_path, now=NOW)
    tomorrow = (Clock(NOW).today() + timedelta(days=1)).isoformat()
    assert refusal(deletion(at, tomorrow))[0] == "UsageError"


def test_plan_stays_ready_until_it_is_applied(tmp_path: Path) -> None:
    at = platform(tmp_path, mode="apply")
    header = header_of(stored_plan(at))
    deletion(at)
    assert header.totals[QUARANTINE].files == 2
    assert header.status_at(at.clock.now()) == "ready"
