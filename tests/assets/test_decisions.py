"""The jobs by which a person decides on the page: there only where lakes.yaml says so, and no more than the commands."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from gc_assets.assets import decisions
from gc_assets.core.errors import UsageError
from gc_assets.definitions import build_definitions
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import find_plan, unfinished_plans
from gc_assets.state.journal import State
from tests.assets.platforms import NOW, platform, stored_plan

OPS = {"approve": "approve_plan", "reject": "reject_plan", "restore": "put_files_back"}


def deciding(root: Path, *may: str, **storage: Any) -> Platform:
    at = platform(root, **storage)
    return replace(at, config=at.config.model_copy(update={"page_may": frozenset(may)}))


def launched(at: Platform, job: str, **config: Any) -> dg.ExecuteInProcessResult:
    definitions = build_definitions(at)
    return definitions.resolve_job_def(job).execute_in_process(
        run_config={"ops": {OPS[job]: {"config": config}}}, instance=dg.DagsterInstance.ephemeral(), raise_on_error=False
    )


def told(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    assert result.success
    (event,) = (event for event in result.all_events if event.is_successful_output)
    return {name: value.value for name, value in event.step_output_data.metadata.items()}


def refusal(result: dg.ExecuteInProcessResult, job: str) -> tuple[str, str]:
    assert not result.success
    failure = result.failure_data_for_node(OPS[job]).user_failure_data
    return str(failure.metadata["error"].value), failure.description


def jobs(at: Platform) -> set[str]:
    return {job.name for job in build_definitions(at).get_repository_def().get_all_jobs()} & OPS.keys()


@pytest.mark.parametrize("may", [(), ("approve",), ("reject", "restore")])
def test_the_page_has_a_job_for_what_it_may_and_for_nothing_else(tmp_path: Path, may: tuple[str, ...]) -> None:
    assert jobs(deciding(tmp_path, *may)) == set(may)


def test_an_approval_on_the_page_is_the_word_that_the_command_records(tmp_path: Path) -> None:
    at = deciding(tmp_path, "approve")
    header = header_of(stored_plan(at))
    found = told(launched(at, "approve", plan_id=header.plan_id[:12], by=" kim ", comment="as agreed"))
    (word,) = find_plan(at.config, header.plan_id).verdict.events
    assert (word.decision, word.by, word.at, word.comment, word.overrides) == ("approved", "kim", NOW, "as agreed", ())
    assert (found["storage"], found["plan_id"], found["status"]) == ("warehouse", header.plan_id, "approved")
    assert "2 files (200 B) go to quarantine" in found["can_be_undone"]


@pytest.mark.parametrize("job, by", [("approve", "approved_by"), ("reject", "rejected_by")])
def test_a_word_on_the_page_is_shown_with_the_plan(tmp_path: Path, job: str, by: str) -> None:
    at = deciding(tmp_path, job)
    header = header_of(stored_plan(at))
    result = launched(at, job, plan_id=header.plan_id, by="kim")
    (event,) = (event for event in result.all_events if event.is_asset_observation)
    observed = event.asset_observation_data.asset_observation
    assert (observed.asset_key, observed.partition) == (dg.AssetKey(["warehouse", "deletion_plan"]), NOW.date().isoformat())
    assert (observed.metadata["plan_id"].value, observed.metadata[by].value) == (header.plan_id, "kim")


def test_an_approval_on_the_page_applies_nothing(tmp_path: Path) -> None:
    at = deciding(tmp_path, "approve", mode="apply")
    launched(at, "approve", plan_id=header_of(stored_plan(at)).plan_id, by="kim")
    state = State.at(at.config.state)
    assert unfinished_plans(state, "warehouse") == []
    assert "deletion_log" not in state.files.directories("warehouse")


def test_a_second_name_that_is_asked_for_is_asked_for_on_the_page_too(tmp_path: Path) -> None:
    at = deciding(tmp_path, "approve", approvals_needed=2)
    plan_id = header_of(stored_plan(at)).plan_id
    assert told(launched(at, "approve", plan_id=plan_id, by="kim"))["missing"].startswith("approved by 1 of 2 names")
    assert told(launched(at, "approve", plan_id=plan_id, by="ada"))["status"] == "approved"


def test_a_failed_gate_refuses_on_the_page_unless_it_is_overridden_by_name(tmp_path: Path) -> None:
    at = deciding(tmp_path, "approve")
    plan_id = header_of(stored_plan(at, max_delete_bytes=1)).plan_id
    error, message = refusal(launched(at, "approve", plan_id=plan_id, by="kim"), "approve")
    assert error == "GateRefused"
    assert "delete_bytes" in message
    launched(at, "approve", plan_id=plan_id, by="kim", override=["delete_bytes"])
    assert find_plan(at.config, plan_id).verdict.overrides == ("delete_bytes",)


def test_a_decision_without_a_name_is_refused(tmp_path: Path) -> None:
    at = deciding(tmp_path, "approve")
    plan_id = header_of(stored_plan(at)).plan_id
    assert refusal(launched(at, "approve", plan_id=plan_id, by=" "), "approve")[0] == "UsageError"
    with pytest.raises(dg.DagsterInvalidConfigError, match="by"):
        launched(at, "approve", plan_id=plan_id)
    assert find_plan(at.config, plan_id).verdict.events == ()


@pytest.mark.parametrize("job", ["approve", "reject"])
def test_a_word_is_not_said_again_by_a_run_that_repeats_another(tmp_path: Path, job: str) -> None:
    """Else the daemon, which runs a lost run again, would take back what the same name said since."""
    at = deciding(tmp_path, job)
    plan_id = header_of(stored_plan(at)).plan_id
    assert build_definitions(at).resolve_job_def(job).tags["dagster/max_retries"] == "0"
    first = launched(at, job, plan_id=plan_id, by="kim").dagster_run
    with pytest.raises(UsageError, match=f"repeats run {first.run_id}.*launch the job anew"):
        decisions.refuse_reexecution(first._replace(run_id="another", parent_run_id=first.run_id))
    decisions.refuse_reexecution(first)


def test_a_rejection_on_the_page_holds_the_plan_back(tmp_path: Path) -> None:
    at = deciding(tmp_path, "reject")
    plan_id = header_of(stored_plan(at)).plan_id
    found = told(launched(at, "reject", plan_id=plan_id, by="kim", comment="orders is being migrated"))
    assert found["status"] == "rejected"
    assert "orders is being migrated" in found["missing"]
    assert find_plan(at.config, plan_id).verdict.rejections[0].by == "kim"


@pytest.mark.parametrize(
    "config, said",
    [
        ({}, "a plan, a prefix or a key"),
        ({"prefix": "data/", "history": True}, "name the plan with --plan"),
        ({"key": "file:///elsewhere/file"}, "in no configured storage"),
        ({"plan_id": "f" * 64}, "no plan with the id"),
        ({"prefix": "data/", "storage": "lost"}, "the configuration has warehouse"),
    ],
)
def test_a_restore_of_nothing_that_there_is_is_refused_before_spark_starts(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    error, message = refusal(launched(deciding(tmp_path, "restore"), "restore", **config), "restore")
    assert error == "UsageError"
    assert said in message
