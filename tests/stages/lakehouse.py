"""A storage with real lakes on it, nights run over it, and what is on the disk: the vocabulary of the stage tests."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from gc_assets.config.models import Config, LakeConfig, StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.phases import PHASES
from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.kinds import all_tables
from gc_assets.stages.books.plans import StoredPlan, approve, find_plan
from gc_assets.stages.delete.apply import Applied, apply_plan
from gc_assets.stages.delete.plan import deletion_plan, header_of
from gc_assets.stages.mark.snapshot_history import snapshot_history
from gc_assets.stages.mark.whole import mark
from gc_assets.stages.night import Night
from gc_assets.stages.sweep.live_filter import live_filter
from gc_assets.stages.sweep.orphan_files import orphan_files
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from gc_assets.stages.tables import read_rows

NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
STORAGE = "warehouse"


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


@dataclass
class Lakehouse:
    """One storage `<root>/warehouse`, its lakes, and a clock that stands at `now`."""

    spark: SparkSession
    root: Path
    lakes: list[LakeConfig] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    now: datetime = NOW
    storage: str = STORAGE

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    @property
    def config(self) -> Config:
        settings = {"mode": "apply", "quarantine_days": 0, **self.settings}
        storage = StorageConfig.model_validate({"name": self.storage, "location": f"file://{self.warehouse}/", **settings})
        return Config(state=str(self.root / "state"), storages=(storage,), lakes=tuple(self.lakes))

    @property
    def clock(self) -> Clock:
        return Clock(self.now)

    def tonight(self) -> Night:
        return Night.of(self.config, self.clock, self.clock.today())

    def mark(self) -> None:
        for lake in self.config.lakes:
            mark(self.spark, self.tonight(), lake.name)
            if lake.kind == "iceberg":
                snapshot_history(self.spark, self.tonight(), lake.name)

    def plan(self) -> PlanHeader:
        """A whole night up to its plan."""
        self.mark()
        night = self.tonight()
        live_filter(self.spark, night, self.storage)
        storage_inventory(self.spark, night, self.storage)
        orphan_files(self.spark, night, self.storage)
        return header_of(deletion_plan(self.spark, night, self.storage))

    def approved(self, header: PlanHeader, *overrides: str) -> StoredPlan:
        approve(self.config, self.clock, header.plan_id, "tester", overrides)
        return find_plan(self.config, header.plan_id)

    def apply(self, header: PlanHeader, phases: tuple[str, ...] = PHASES) -> Applied:
        return apply_plan(self.spark, self.tonight(), find_plan(self.config, header.plan_id), phases)

    def rows(self, asset: str, group: str = STORAGE) -> list[dict[str, Any]]:
        state = self.tonight().state
        table = all_tables()[asset]
        return read_rows(state, table, state.require(group, asset, self.clock.today())).to_pylist(maps_as_pydicts="strict")

    def keys(self, asset: str, group: str = STORAGE) -> set[str]:
        return {row["key"] for row in self.rows(asset, group)}

    def leftovers(self) -> set[str]:
        """Planned keys that no commit names, whatever histories the plan edits."""
        return {row["key"] for row in self.rows("deletion_plan") if row["reason"] == "unreferenced"}

    def live(self) -> set[str]:
        return {row["key"] for lake in self.config.lakes for row in self.rows("live_files", lake.name) if row["storage"] == STORAGE}

    def key(self, path: Path | str) -> str:
        """The canonical key of a file below the warehouse."""
        return str(Path(str(path).removeprefix("file://")).relative_to(self.warehouse))

    def files(self) -> dict[str, tuple[str, int]]:
        """Key to (sha256, mtime in ns) of every regular file but the collector's own."""
        found: dict[str, tuple[str, int]] = {}
        for path in self.warehouse.rglob("*"):
            if path.is_file() and not path.is_symlink() and ".gc-assets" not in path.parts:
                found[self.key(path)] = (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        return found

    def failed_gates(self, header: PlanHeader) -> set[str]:
        return {gate.name for gate in header.failed_gates}
