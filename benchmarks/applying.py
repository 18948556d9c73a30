"""Resident process that measures applies: it plans, approves and applies in one Spark session."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import pyarrow.compute as pc

from benchmarks.meter import Meter
from benchmarks.resident import answer
from benchmarks.steps import logged_steps
from gc_assets.cli.context import open_spark
from gc_assets.cli.dagster_run import PublishedAsset, run_partition
from gc_assets.engine.tables import read_rows
from gc_assets.resources.platform import load_platform
from gc_assets.stages.delete.apply import ApplyResult, apply_plan
from gc_assets.stages.records.plans import approve, find_plan
from gc_assets.state.journal import State
from gc_assets.state.schemas import DELETION_LOG


class _SilentObserver:
    def set_activity(self, text: str) -> None: ...
    def start_assets(self, assets: int) -> None: ...
    def finish_asset(self, step: PublishedAsset) -> None: ...


class PlanApplier:
    """Applies new plans in one process and measures each apply alone."""

    def __init__(self) -> None:
        self._meter = Meter(os.getpid())

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Plan, approve and apply once.

        Args:
            request: `config` is the path of a `lakes.yaml` with one storage in `apply` mode.

        Returns:
            The usage of the apply (`total`), the seconds of its `steps`, the numbers of files
            `planned` and `moved`, and the seconds between the first and the last move (`moving`).
        """
        platform = load_platform(os.environ, request["config"])
        day = platform.clock.today()
        (header,) = run_partition(platform, day, mode="plan", observer=_SilentObserver())
        approve(platform.config, platform.clock, header.plan_id, "benchmark")
        spark = open_spark(platform)
        with logged_steps() as steps, self._meter.measure() as usage:
            applied = apply_plan(spark, platform.run_context(day), find_plan(platform.config, header.plan_id))
        return {
            "total": asdict(usage),
            "steps": steps,
            "planned": header.totals["quarantine"].files,
            "moved": applied.by_outcome["quarantine", "done"].rows,
            "moving": _seconds_moving(State.of(platform.config), applied),
        }


def _seconds_moving(state: State, applied: ApplyResult) -> float:
    """Return the seconds between the first and the last recorded outcome."""
    if applied.published is None:
        return 0.0
    found = pc.min_max(read_rows(state, DELETION_LOG, applied.published, columns=["at"]).column("at")).as_py()
    return (found["max"] - found["min"]).total_seconds()


if __name__ == "__main__":
    answer(PlanApplier().run)
