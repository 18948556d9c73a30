"""Resident process that measures the stages of one run date, without Dagster."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.meter import Meter
from benchmarks.resident import answer
from gc_assets.config.file import load_config
from gc_assets.core.clock import Clock
from gc_assets.engine.progress import count_jobs
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import was_small
from gc_assets.lakes.kinds import config_models
from gc_assets.resources.spark import SparkRuntime
from gc_assets.stages.delete.plan import deletion_plan, header_of
from gc_assets.stages.mark.commit_graph import commit_graph
from gc_assets.stages.mark.lake_refs import lake_refs
from gc_assets.stages.mark.live_files import live_files
from gc_assets.stages.mark.manifest_entries import manifest_entries
from gc_assets.stages.mark.policy import current_rules, policy_table
from gc_assets.stages.mark.reachable_snapshots import reachable_snapshots
from gc_assets.stages.sweep.live_filter import live_filter
from gc_assets.stages.sweep.orphan_files import orphan_files
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from gc_assets.state.journal import PublishedTable

Stage = Callable[[], PublishedTable]


class StageRunner:
    """Measures runs in one Spark session."""

    def __init__(self) -> None:
        self._meter = Meter(os.getpid())
        self._runtime: SparkRuntime | None = None

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Measure one run.

        Args:
            request: `config` is a path, `now` the time of the run.

        Returns:
            The usage of each stage and of the whole run, and the numbers of files in its plan.
        """
        now = datetime.fromisoformat(request["now"])
        config = load_config(Path(request["config"]), os.environ, config_models())
        context = RunContext.of(config, Clock(now), now.date(), as_of=now)
        stages: list[dict[str, Any]] = []
        with self._meter.measure() as total:
            with self._meter.measure() as usage:
                self._runtime = self._runtime or SparkRuntime.from_config(config.spark)
                spark = self._runtime.session(partial(was_small, config))
            stages.append({"stage": "session", "rows": 0, "jobs": 0, "state_bytes": 0, **asdict(usage)})
            for name, stage in build_stages(spark, context):
                jobs = count_jobs(spark) or 0
                with self._meter.measure() as usage:
                    published = stage()
                rows, size = published.receipt.rows, sum(part.size_bytes for part in published.receipt.parts)
                stages.append({"stage": name, "rows": rows, "jobs": (count_jobs(spark) or 0) - jobs, "state_bytes": size, **asdict(usage)})
        found = published.receipt.summary
        header = header_of(published)
        return {
            "stages": stages,
            "total": asdict(total),
            "cpu_since_start": self._meter.cpu_seconds(),
            "live_files": header.live_files,
            "unreferenced": header.by_reason["unreferenced"].files if "unreferenced" in header.by_reason else 0,
            "held_for_expiry": header.held_for_expiry.files,
            "plan_id": found["plan_id"],
        }


def build_stages(spark: SparkSession, context: RunContext) -> list[tuple[str, Stage]]:
    """Return the stages in their order; the last one makes the plan. A benchmark has one lake and
    one storage.
    """
    lake, storage = context.config.lakes[0].name, context.config.storages[0].name
    return [
        ("policy_table", lambda: policy_table(context, lake)),
        ("current_rules", lambda: current_rules(context, lake)),
        ("lake_refs", lambda: lake_refs(context, lake)),
        ("commit_graph", lambda: commit_graph(spark, context, lake)),
        ("reachable_snapshots", lambda: reachable_snapshots(spark, context, lake)[0]),
        ("manifest_entries", lambda: manifest_entries(spark, context, lake)),
        ("live_files", lambda: live_files(spark, context, lake)),
        ("live_filter", lambda: live_filter(spark, context, storage)),
        ("storage_inventory", lambda: storage_inventory(spark, context, storage)),
        ("orphan_files", lambda: orphan_files(spark, context, storage)),
        ("deletion_plan", lambda: deletion_plan(spark, context, storage)),
    ]


if __name__ == "__main__":
    answer(StageRunner().run)
