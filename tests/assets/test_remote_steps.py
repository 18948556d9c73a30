"""Definitions with steps that run as remote jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from gc_assets.config.models import SparkConfig
from gc_assets.definitions import build_definitions
from tests.assets.platforms import platform


def definitions(root: Path, **spark: Any) -> dg.Definitions:
    at = platform(root, mode="apply")
    settings = {"spark": SparkConfig.model_validate(spark), "page_may": frozenset({"approve", "restore"})}
    return build_definitions(replace(at, config=at.config.model_copy(update=settings)))


def test_remote_steps_keep_assets_and_checks(tmp_path: Path) -> None:
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


def test_deletion_log_is_a_separate_step(tmp_path: Path) -> None:
    run_job = definitions(tmp_path, mode="submit").resolve_job_def("run")
    assert {(node.name, node.definition.pool) for node in run_job.nodes} == {
        ("spark_job", "spark_driver"),
        ("warehouse__deletion_log", "gc_delete"),
    }


def test_remote_jobs_keep_their_config(tmp_path: Path) -> None:
    remote, local = definitions(tmp_path, mode="submit"), definitions(tmp_path)
    for name in ("apply", "restore", "analysis", "approve"):
        nodes = [defined.resolve_job_def(name).nodes for defined in (remote, local)]
        fields = [{node.name: sorted(node.definition.config_schema.config_type.fields) for node in of_mode} for of_mode in nodes]
        assert fields[0] == fields[1]
