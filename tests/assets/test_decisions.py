"""The Dagster jobs `approve`, `reject` and `restore`."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from gc_assets.assets import decisions
from gc_assets.assets.waiting_plans import waiting_plans
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError, UsageError
from gc_assets.definitions import build_definitions
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import approve, find_plan, record_finished, unfinished_plans
from gc_assets.state.journal import State
from tests.assets.launches import OPS, launch, output_metadata
from tests.assets.platforms import NOW, platform, stored_plan
from tests.depth import in_turn

pytestmark = in_turn


def decision_platform(root: Path, *may: str, **storage: Any) -> Platform:
    at = platform(root, **storage)
    return replace(at, config=at.config.model_copy(update={"page_may": frozenset(may)}))


def refusal(result: dg.ExecuteInProcessResult, job: str) -> tuple[str, str]:
    assert not result.success
    failure = result.failure_data_for_node(OPS[job]).user_failure_data
    return str(failure.metadata["error"].value), failure.description


def jobs(at: Platform) -> set[str]:
    return {job.name for job in build_definitions(at).get_repository_def().get_all_jobs()} & OPS.keys()


@pytest.mark.parametrize("may", [(), ("approve",), ("reject", "restore")])
def test_page_may_setting_selects_the_decision_jobs(tmp_path: Path, may: tuple[str, ...]) -> None:
    assert jobs(decision_platform(tmp_path, *may)) == set(may)


def test_approve_job_records_the_approval(tmp_path: Path) -> None:
    at = decision_platform(tmp_path, "approve", "restore")
    header = header_of(stored_plan(at))
    found = output_metadata(launch(at, "approve", plan_id=header.plan_id[:12], by=" kim ", comment="as agreed"))
    (word,) = find_plan(at.config, header.plan_id).verdict.events
    assert (word.decision, word.by, word.at, word.comment, word.overrides) == ("approved", "kim", NOW, "as agreed", ())
    assert (found["storage"], found["plan_id"], found["status"]) == ("warehouse", header.plan_id, "approved")
    assert found["can_be_undone"].startswith("2 files (200 B) to quarantine")
    assert "the \\`restore\\` job\\\nwith" in found["can_be_undone"]


@pytest.mark.parametrize("job, by", [("approve", "approved_by"), ("reject", "rejected_by")])
def test_decision_adds_an_observation_to_the_plan_asset(tmp_path: Path, job: str, by: str) -> None:
    at = decision_platform(tmp_path, job)
    header = header_of(stored_plan(at))
    result = launch(at, job, plan_id=header.plan_id, by="kim")
    (event,) = (event for event in result.all_events if event.is_asset_observation)
    observed = event.asset_observation_data.asset_observation
    assert (observed.asset_key, observed.partition) == (dg.AssetKey(["warehouse", "deletion_plan"]), NOW.date().isoformat())
    assert (observed.metadata["plan_id"].value, observed.metadata[by].value) == (header.plan_id[:12], "kim")
    status = "approved" if job == "approve" else "rejected"
    assert observed.metadata["status"].value == status
    assert f"**{status}**" in str(observed.metadata["plan"].value)


def test_approve_job_does_not_apply_the_plan(tmp_path: Path) -> None:
    at = decision_platform(tmp_path, "approve", mode="apply")
    launch(at, "approve", plan_id=header_of(stored_plan(at)).plan_id, by="kim")
    state = State.at(at.config.state)
    assert unfinished_plans(state, "warehouse") == []
    assert "deletion_log" not in state.files.directories("warehouse")


def test_approve_job_reports_missing_approvals(tmp_path: Path) -> None:
    at = decision_platform(tmp_path, "approve", approvals_needed=2)
    plan_id = header_of(stored_plan(at)).plan_id
    assert output_metadata(launch(at, "approve", plan_id=plan_id, by="kim"))["missing"].startswith("approved by 1 of 2 people")
    assert output_metadata(launch(at, "approve", plan_id=plan_id, by="ada"))["status"] == "approved"


def test_approve_job_requires_override_of_failed_gate(tmp_path: Path) -> None:
    at = decision_platform(tmp_path, "approve")
    plan_id = header_of(stored_plan(at, max_delete_bytes=1)).plan_id
    error, message = refusal(launch(at, "approve", plan_id=plan_id, by="kim"), "approve")
    assert error == "GateRefused"
    assert "delete_bytes" in message
    launch(at, "approve", plan_id=plan_id, by="kim", override=["delete_bytes"])
    assert find_plan(at.config, plan_id).verdict.overrides == ("delete_bytes",)


def test_approve_job_reports_a_newer_plan(tmp_path: Path) -> None:
    at = decision_platform(tmp_path, "approve")
    older = header_of(stored_plan(at)).plan_id
    newer = header_of(stored_plan(at, files=3, created_at=NOW + timedelta(minutes=1))).plan_id
    found = output_metadata(launch(at, "approve", plan_id=older, by="kim"))
    assert found["other_plans"].startswith(f"Plan {newer[:12]} of 2026-03-14 (ready) is newer.")
    assert "other_plans" not in output_metadata(launch(at, "approve", plan_id=newer, by="kim"))


def test_approve_job_refuses_a_plan_made_under_another_policy(tmp_path: Path) -> None:
    """The sensor of the same page would request an apply that can only fail."""
    at = decision_platform(tmp_path, "approve", mode="apply")
    plan_id = header_of(stored_plan(at, policy_digest="0" * 16)).plan_id
    error, message = refusal(launch(at, "approve", plan_id=plan_id, by="kim"), "approve")
    assert error == "GateRefused"
    assert message == (
        f"Plan {plan_id[:12]} cannot be applied, because the policy in lakes.yaml has changed since it was made. "
        "Make a new plan with the `run` job."
    )
    assert find_plan(at.config, plan_id).verdict.events == ()


def test_decision_without_a_user_name_is_refused(tmp_path: Path) -> None:
    at = decision_platform(tmp_path, "approve")
    plan_id = header_of(stored_plan(at)).plan_id
    for launched in ({"by": " "}, {}):
        error, message = refusal(launch(at, "approve", plan_id=plan_id, **launched), "approve")
        assert (error, message) == ("UsageError", "Enter your name in `by`. It is recorded with the decision.")
    assert find_plan(at.config, plan_id).verdict.events == ()


@pytest.mark.parametrize("job", ["approve", "reject"])
def test_reexecuted_decision_is_refused(tmp_path: Path, job: str) -> None:
    """A re-execution by the daemon could replace a later decision of the same name."""
    at = decision_platform(tmp_path, job)
    plan_id = header_of(stored_plan(at)).plan_id
    assert build_definitions(at).resolve_job_def(job).tags["dagster/max_retries"] == "0"
    first = launch(at, job, plan_id=plan_id, by="kim").dagster_run
    with pytest.raises(UsageError, match=f"re-executes run {first.run_id}.*Launch the job again"):
        decisions.refuse_reexecution(first._replace(run_id="another", parent_run_id=first.run_id))
    decisions.refuse_reexecution(first)


def test_reject_job_blocks_the_plan(tmp_path: Path) -> None:
    at = decision_platform(tmp_path, "reject")
    plan_id = header_of(stored_plan(at)).plan_id
    found = output_metadata(launch(at, "reject", plan_id=plan_id, by="kim", comment="orders is being migrated"))
    assert found["status"] == "rejected"
    assert "orders is being migrated" in found["missing"]
    assert find_plan(at.config, plan_id).verdict.rejections[0].by == "kim"


@pytest.mark.parametrize(
    "config, expected",
    [
        ({}, "Choose a plan in the field Partition, or enter `plan_id`, `prefix` or `key`. No applied plan was found."),
        ({"prefix": "data/", "history": True}, "Pass the plan with `plan_id`"),
        ({"key": "file:///elsewhere/file"}, "in no configured storage"),
        ({"plan_id": "f" * 64}, "no plan with the id"),
        ({"prefix": "data/", "storage": "lost"}, "configured: warehouse"),
    ],
)
def test_restore_of_unknown_files_starts_no_spark(tmp_path: Path, config: dict[str, Any], expected: str) -> None:
    error, message = refusal(launch(decision_platform(tmp_path, "restore"), "restore", **config), "restore")
    assert error == "UsageError"
    assert expected in message


def test_decision_on_an_earlier_plan_does_not_replace_the_current_plan_card(tmp_path: Path) -> None:
    at = decision_platform(tmp_path, "approve")
    earlier = header_of(stored_plan(at))
    stored_plan(replace(at, clock=Clock(NOW + timedelta(minutes=1))), files=3)
    result = launch(at, "approve", plan_id=earlier.plan_id, by="kim")
    (event,) = (event for event in result.all_events if event.is_asset_observation)
    metadata = event.asset_observation_data.asset_observation.metadata
    assert {name: value.value for name, value in metadata.items()} == {"earlier_plan": f"{earlier.plan_id[:12]}: approved"}


def default_config(at: Platform, job: str) -> dict[str, Any]:
    """Return the configuration with which the launchpad begins, which must be valid."""
    return dg.validate_run_config(build_definitions(at).resolve_job_def(job), {})["ops"][OPS[job]]["config"]


@pytest.mark.parametrize("job", OPS)
def test_default_configuration_is_valid_without_plans(tmp_path: Path, job: str) -> None:
    assert default_config(decision_platform(tmp_path, job), job).get("plan_id") in {None, ""}


@pytest.mark.parametrize("job", OPS)
def test_launchpad_default_has_no_plan_id(tmp_path: Path, job: str) -> None:
    """A plan that waited when the code location was loaded may be decided or applied before the launch."""
    at = decision_platform(tmp_path, job)
    header = header_of(stored_plan(at))
    if job == "restore":
        record_finished(State.of(at.config), header, {"at": NOW.isoformat()})
    assert len(waiting_plans(at, job)) == 1
    assert not default_config(at, job).get("plan_id")
    assert not default_config(at, job).get("by")


@pytest.mark.parametrize("job", ["approve", "reject"])
def test_launch_without_plan_id_is_refused(tmp_path: Path, job: str) -> None:
    at = decision_platform(tmp_path, job)
    header = header_of(stored_plan(at))
    listed = f"{header.plan_id[:12]} (warehouse, 2026-03-14, 2 files, 200 B)"
    for launched in ({}, {"plan_id": ""}, {"plan_id": " "}, default_config(at, job)):
        error, message = refusal(launch(at, job, **{**launched, "by": "kim"}), job)
        assert error == "UsageError"
        assert message == f"Choose a plan in the field Partition, or enter its id in `plan_id`. These plans wait: {listed}."
    assert find_plan(at.config, header.plan_id).verdict.events == ()


def test_waiting_plans_are_listed_newest_first_with_refusals(tmp_path: Path) -> None:
    at = decision_platform(tmp_path, "approve")
    refused = header_of(stored_plan(at, max_delete_bytes=1)).plan_id[:12]
    newer = header_of(stored_plan(replace(at, clock=Clock(NOW + timedelta(minutes=1))), files=3)).plan_id[:12]
    _, message = refusal(launch(at, "approve", by="kim"), "approve")
    plans = f"{newer} (warehouse, 2026-03-14, 3 files, 300 B); {refused} (warehouse, 2026-03-14, 2 files, 200 B, refused by its gates)"
    assert message.endswith(f"These plans wait, the newest first: {plans}.")


@pytest.mark.parametrize("job", ["approve", "reject"])
def test_launchpad_lists_currently_waiting_plans(tmp_path: Path, job: str) -> None:
    at = decision_platform(tmp_path, job)
    definition = build_definitions(at).resolve_job_def(job)
    assert partition_keys(definition) == []
    header = header_of(stored_plan(at))
    (name,) = partition_keys(definition)
    assert name == f"{header.plan_id[:12]} 2026-03-14 warehouse"
    config = definition.partitioned_config.get_run_config_for_partition_key(name)
    assert config["ops"][OPS[job]]["config"]["plan_id"] == header.plan_id[:12]
    assert dg.validate_run_config(definition, config)
    assert not definition.execute_in_process(partition_key=name, instance=dg.DagsterInstance.ephemeral(), raise_on_error=False).success


def test_approve_launchpad_omits_plans_made_under_another_policy(tmp_path: Path) -> None:
    """They can be rejected, but no apply of this lakes.yaml would execute them."""
    at = decision_platform(tmp_path, "approve", "reject")
    header = header_of(stored_plan(at, policy_digest="0" * 64))
    assert [partition_keys(build_definitions(at).resolve_job_def(job)) for job in ("approve", "reject")] == [
        [],
        [f"{header.plan_id[:12]} 2026-03-14 warehouse"],
    ]
    _, message = refusal(launch(at, "approve", by="kim"), "approve")
    assert message.endswith("No plan is waiting. Launch the `run` job to make a plan.")


def launch_with_partition(at: Platform, job: str, partition: str, **config: Any) -> dg.ExecuteInProcessResult:
    """Launch a job like the launchpad with a chosen partition and an edited configuration."""
    return (
        build_definitions(at)
        .resolve_job_def(job)
        .execute_in_process(
            run_config={"ops": {OPS[job]: {"config": config}}},
            tags={"dagster/partition": partition},
            instance=dg.DagsterInstance.ephemeral(),
            raise_on_error=False,
        )
    )


@pytest.mark.parametrize("job", ["approve", "reject"])
def test_plan_id_that_differs_from_the_partition_is_refused(tmp_path: Path, job: str) -> None:
    at = decision_platform(tmp_path, job)
    other = header_of(stored_plan(at)).plan_id
    chosen = header_of(stored_plan(replace(at, clock=Clock(NOW + timedelta(minutes=1))), files=3)).plan_id
    partition = f"{chosen[:12]} 2026-03-14 warehouse"
    assert partition_keys(build_definitions(at).resolve_job_def(job)) == [partition, f"{other[:12]} 2026-03-14 warehouse"]
    for entered in (other, other[:12], other[:8]):
        error, message = refusal(launch_with_partition(at, job, partition, plan_id=entered, by="kim"), job)
        assert error == "UsageError"
        assert message.startswith(f"Partition `{partition}` selects plan {chosen[:12]}, but `plan_id` contains {entered[:12]}. ")
    error, message = refusal(launch_with_partition(at, job, partition, plan_id="", by="kim"), job)
    assert message.startswith(f"Partition `{partition}` selects plan {chosen[:12]}, but `plan_id` is empty. ")
    assert [find_plan(at.config, plan_id).verdict.events for plan_id in (other, chosen)] == [(), ()]


@pytest.mark.parametrize("characters", [8, 12, 20, 64])
def test_decision_applies_to_the_plan_of_the_partition(tmp_path: Path, characters: int) -> None:
    at = decision_platform(tmp_path, "approve")
    plan_id = header_of(stored_plan(at)).plan_id
    (partition,) = partition_keys(build_definitions(at).resolve_job_def("approve"))
    found = output_metadata(launch_with_partition(at, "approve", partition, plan_id=plan_id[:characters], by="kim"))
    assert found["status"] == "approved"


@pytest.mark.parametrize(
    "config, expected",
    [
        ({"plan_id": "f" * 64}, "`plan_id` contains ffffffffffff"),
        ({"prefix": "data/"}, "`plan_id` is empty"),
        ({"key": "data/1", "plan_id": ""}, "`plan_id` is empty"),
    ],
)
def test_restore_of_files_outside_the_selected_plan_is_refused(tmp_path: Path, config: dict[str, Any], expected: str) -> None:
    at = decision_platform(tmp_path, "restore")
    partition = "3f9c2a71d004 2026-03-14 warehouse"
    error, message = refusal(launch_with_partition(at, "restore", partition, **config), "restore")
    assert error == "UsageError"
    assert message.startswith(f"Partition `{partition}` selects plan 3f9c2a71d004, but {expected}. ")


def partition_keys(definition: dg.JobDefinition) -> list[str]:
    assert definition.partitions_def is not None
    return list(definition.partitions_def.get_partition_keys())


def test_decided_and_expired_plans_are_not_listed_as_waiting(tmp_path: Path) -> None:
    at = decision_platform(tmp_path, "approve", "reject")
    header = header_of(stored_plan(at))
    approve(at.config, at.clock, header.plan_id, "kim")
    assert [len(waiting_plans(at, job)) for job in OPS] == [0, 1, 0]
    late = replace(at, clock=Clock(NOW + timedelta(days=4)))
    assert [len(waiting_plans(late, job)) for job in OPS] == [0, 0, 0]


def test_unreadable_plan_index_fails_the_plan_list_but_not_loading(tmp_path: Path) -> None:
    at = decision_platform(tmp_path, "approve")
    stored_plan(at)
    (index,) = tmp_path.glob("state/warehouse/deletion_plan/_index.json")
    index.write_bytes(b"{")
    job = build_definitions(at).get_repository_def().get_job("approve")
    assert default_config(at, "approve")["plan_id"] == ""
    with pytest.raises(StateError, match=r"_index\.json"):
        partition_keys(job)
    error, message = refusal(launch(at, "approve", by="kim"), "approve")
    assert (error, "_index.json" in message) == ("StateError", True)


def test_refusal_recommends_page_actions_instead_of_commands(tmp_path: Path) -> None:
    at = decision_platform(tmp_path, "approve", "restore")
    plan_id = header_of(stored_plan(at)).plan_id
    late = replace(at, clock=Clock(NOW + timedelta(hours=25)))
    _, message = refusal(launch(late, "approve", plan_id=plan_id, by="kim"), "approve")
    assert "Make a new plan with the `run` job" in message
    assert "gc-assets" not in message
