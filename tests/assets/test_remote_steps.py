"""Definitions with steps that run as remote jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from gc_assets.config.models import SparkConfig
from gc_assets.definitions import build_definitions
from gc_assets.remote.job_request import JobReport
from gc_assets.remote.jobs import Jobs
from tests.assets.platforms import TODAY, platform


def definitions(root: Path, **spark: Any) -> dg.Definitions:
    at = platform(root, mode="apply")
    settings = {"spark": SparkConfig.model_validate(spark), "page_may": frozenset({"approve", "restore"})}
    return build_definitions(replace(at, config=at.config.model_copy(update=settings)))


def test_remote_mode_defines_the_same_assets_and_checks_as_local_mode(tmp_path: Path) -> None:
    def assets(defined: dg.Definitions) -> dict[str, Any]:
        graph = defined.resolve_asset_graph()
        nodes = [graph.get(key) for key in graph.get_all_asset_keys()]
        return {
            node.key.to_user_string(): (
                node.parent_keys,
                node.check_keys,
                node.group_name,
                node.kinds,
                node.tags,
                node.description,
                node.metadata,
                node.partitions_def,
                node.freshness_policy,
            )
            for node in nodes
        }

    assert assets(definitions(tmp_path, mode="submit")) == assets(definitions(tmp_path))


def test_deletion_log_is_a_separate_remote_step(tmp_path: Path) -> None:
    run_job = definitions(tmp_path, mode="submit").resolve_job_def("run")
    assert {(node.name, node.definition.pool) for node in run_job.nodes} == {
        ("spark_job", "spark_driver"),
        ("warehouse__deletion_log", "gc_delete"),
    }


def test_remote_jobs_have_the_same_config_fields_as_local_jobs(tmp_path: Path) -> None:
    remote, local = definitions(tmp_path, mode="submit"), definitions(tmp_path)
    for name in ("apply", "restore", "analysis", "approve"):
        nodes = [defined.resolve_job_def(name).nodes for defined in (remote, local)]
        fields = [{node.name: sorted(node.definition.config_schema.config_type.fields) for node in of_mode} for of_mode in nodes]
        assert fields[0] == fields[1]


def test_refused_plan_of_one_storage_does_not_skip_deletion_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps of a run are one job. If a refusal fails its step, the restores of every storage wait."""
    at = platform(tmp_path, mode="apply")
    first = at.config.storage("warehouse")
    other = first.model_copy(update={"name": "archive", "location": f"file://{tmp_path}/archive/"})
    config = at.config.model_copy(update={"storages": (first, other), "spark": SparkConfig(mode="submit")})
    defined = build_definitions(replace(at, config=config)).resolve_job_def("run")
    graph = build_definitions(replace(at, config=config)).resolve_asset_graph()
    order = [key for level in graph.toposorted_asset_keys_by_level for key in level]
    requested: list[list[tuple[str, ...]]] = []

    def run_job(_: Jobs, context: dg.AssetExecutionContext, **request: Any) -> Iterator[JobReport]:
        requested.append(request["assets"])
        for key in sorted(map(dg.AssetKey, request["assets"]), key=order.index):
            yield JobReport(event=dg.serialize_value(dg.AssetMaterialization(key, partition=context.partition_key)))
            for check in sorted(graph.get_check_keys_for_assets([key]), key=str):
                passed = (check.name, key.path[0]) != ("gates", "warehouse")
                yield JobReport(event=dg.serialize_value(dg.AssetCheckEvaluation(key, check.name, passed=passed)))
        yield JobReport(done=True)

    monkeypatch.setattr(Jobs, "run", run_job)
    result = defined.execute_in_process(partition_key=TODAY, instance=dg.DagsterInstance.ephemeral(), raise_on_error=False)
    assert result.success
    assert sorted(requested[1:]) == [[("archive", "deletion_log")], [("warehouse", "deletion_log")]]
    failed = [check for check in result.get_asset_check_evaluations() if not check.passed]
    assert [(check.check_name, check.asset_key.path[0]) for check in failed] == [("gates", "warehouse")]
