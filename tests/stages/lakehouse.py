"""A storage with real lakes: run stages on it and read tables and files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

from pyspark.sql import SparkSession

from gc_assets.config.models import Config, LakeConfig, StorageConfig
from gc_assets.config.s3 import S3Config
from gc_assets.core.clock import Clock
from gc_assets.core.phases import PHASES
from gc_assets.core.plan import PlanHeader
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import Totals, read_rows
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.kinds import all_tables
from gc_assets.stages.delete.apply import ApplyResult, apply_plan
from gc_assets.stages.delete.plan import deletion_plan, header_of
from gc_assets.stages.delete.restore import restore
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.mark.mark_lake import mark
from gc_assets.stages.mark.snapshot_history import snapshot_history
from gc_assets.stages.records.plans import StoredPlan, approve, find_plan
from gc_assets.stages.sweep.live_filter import live_filter
from gc_assets.stages.sweep.orphan_files import orphan_files
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import LIVE_FILES

NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
STORAGE = "warehouse"
B = TypeVar("B")
K = TypeVar("K")


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def counts(totals: Mapping[K, Totals]) -> dict[K, int]:
    """Return the number of rows of each outcome."""
    return {outcome: total.rows for outcome, total in totals.items()}


def outcomes(applied: ApplyResult) -> set[str]:
    return {outcome for _, outcome in applied.by_outcome}


@dataclass
class Lakehouse:
    """The storage `<root>/warehouse` with its lakes, and a clock fixed at `now`.

    The state is in `<root>/state` unless `state` is set.
    """

    spark: SparkSession
    root: Path
    lakes: list[LakeConfig] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    now: datetime = NOW
    storage: str = STORAGE
    state: str | None = None
    s3: S3Config = field(default_factory=S3Config)

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    @property
    def config(self) -> Config:
        settings = {"mode": "apply", "rehearsals": "allowed", "quarantine_days": 0, **self.settings}
        storage = StorageConfig.model_validate({"name": self.storage, "location": f"file://{self.warehouse}/", **settings})
        return Config(state=self.state or str(self.root / "state"), storages=(storage,), lakes=tuple(self.lakes), s3=self.s3)

    @property
    def clock(self) -> Clock:
        return Clock(self.now)

    def weather(self, **settings: Any) -> IcechunkLakeConfig:
        """Return the configuration of the Icechunk repository in `<warehouse>/weather/`."""
        location = f"file://{self.warehouse}/weather/"
        return IcechunkLakeConfig.model_validate({"name": "weather", "kind": "icechunk", "location": location, **settings})

    def run_context(self) -> RunContext:
        return RunContext.of(self.config, self.clock, self.clock.today())

    def mark(self) -> None:
        for lake in self.config.lakes:
            mark(self.spark, self.run_context(), lake.name)

    def plan(self) -> PlanHeader:
        """Run all stages up to the plan, and `snapshot_history` if the plan removes snapshots."""
        self.mark()
        return self.sweep()

    def sweep(self) -> PlanHeader:
        """Run the stages after the mark."""
        context = self.run_context()
        live_filter(self.spark, context, self.storage)
        storage_inventory(self.spark, context, self.storage)
        orphan_files(self.spark, context, self.storage)
        header = header_of(deletion_plan(self.spark, context, self.storage))
        for lake in self.config.lakes:
            if header.expiry_actions.get(lake.name) and lake.kind == "iceberg":
                snapshot_history(self.spark, context, lake.name)
        return header

    def approve(self, header: PlanHeader, *overrides: str) -> StoredPlan:
        approve(self.config, self.clock, header.plan_id, "tester", overrides)
        return find_plan(self.config, header.plan_id)

    def apply(self, header: PlanHeader, phases: tuple[str, ...] = PHASES) -> ApplyResult:
        return apply_plan(self.spark, self.run_context(), find_plan(self.config, header.plan_id), phases)

    def approve_and_apply(self, header: PlanHeader, phases: tuple[str, ...] = PHASES) -> ApplyResult:
        self.approve(header)
        return self.apply(header, phases)

    def restore(self, plan_id: str) -> tuple[PublishedTable, dict[str, int]]:
        """Restore the files of a plan. Return the log and the number of files by outcome."""
        published, totals = restore(lambda: self.spark, self.run_context(), self.storage, plan_id=plan_id)
        return published, counts(totals)

    def rows(self, asset: str, group: str = STORAGE) -> list[dict[str, Any]]:
        return self.rows_of(self.find_table(asset, group))

    def rows_of(self, published: PublishedTable) -> list[dict[str, Any]]:
        context, table = self.run_context(), all_tables()[published.receipt.asset]
        if table is LIVE_FILES:
            return [row for batch in LiveSet(context, published).batches() for row in batch.to_pylist()]
        rows = read_rows(context.state, table, published)
        return rows.to_pylist(maps_as_pydicts="strict")

    def find_table(self, asset: str, group: str = STORAGE) -> PublishedTable:
        return self.run_context().state.require(group, asset, self.clock.today())

    def summary(self, asset: str, group: str = STORAGE) -> dict[str, Any]:
        return self.find_table(asset, group).receipt.summary

    def decoded_counts(self, lake: str) -> list[int]:
        """Return the number of decoded containers of each mark, oldest first."""
        return [published.receipt.summary["decoded"] for published in self.run_context().state.runs(lake, "manifest_entries")]

    def keys(self, asset: str, group: str = STORAGE, **columns: Any) -> set[str]:
        """Return the keys of the rows with these column values."""
        return {row["key"] for row in self.rows(asset, group) if columns.items() <= row.items()}

    def planned_actions(self, prefix: str = "") -> dict[str, str]:
        """Map each planned key, without the prefix, to its action."""
        return self._values_by_key("deletion_plan", "action", prefix)

    def orphans(self, prefix: str = "") -> dict[str, str]:
        """Map each orphan, without the prefix, to its reason."""
        return self._values_by_key("orphan_files", "reason", prefix)

    def _values_by_key(self, asset: str, column: str, prefix: str) -> dict[str, str]:
        rows = self.rows(asset)
        found = {row["key"].removeprefix(prefix): row[column] for row in rows}
        assert len(found) == len(rows), "a key is repeated"
        return found

    def leftovers(self) -> set[str]:
        """Return the planned keys that no commit references."""
        return self.keys("deletion_plan", reason="unreferenced")

    def live(self) -> set[str]:
        return {key for lake in self.config.lakes for key in self.keys("live_files", lake.name, storage=STORAGE)}

    def commits(self, state: str, *lakes: str) -> set[str]:
        """Return the ids of the commits in a state. Without `lakes`, read all lakes."""
        rows = (row for lake in lakes or [lake.name for lake in self.lakes] for row in self.rows("reachable_snapshots", lake))
        return {row["commit_id"] for row in rows if row["state"] == state}

    def key(self, path: Path | str) -> str:
        """Return the canonical key of a file in the warehouse."""
        return str(Path(str(path).removeprefix("file://")).relative_to(self.warehouse))

    def files(self) -> dict[str, tuple[str, int]]:
        """Map the key of each regular file to (sha256, mtime in ns), without those of gc-assets."""
        found: dict[str, tuple[str, int]] = {}
        for path in self.warehouse.rglob("*"):
            if path.is_file() and not path.is_symlink() and ".gc-assets" not in path.parts:
                found[self.key(path)] = (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        return found

    def trash(self, header: PlanHeader) -> set[str]:
        """Return the keys in the trash of a plan."""
        trash = self.warehouse / ".gc-assets" / "trash" / header.plan_id
        return {str(path.relative_to(trash)) for path in trash.rglob("*") if path.is_file()}

    def failed_gates(self, header: PlanHeader) -> set[str]:
        return {gate.name for gate in header.failed_gates}


@dataclass
class Story(Generic[B]):
    """Lakes and their first plan, for the tests of a module that run in order."""

    house: Lakehouse
    builder: B
    garbage: set[str]
    before: dict[str, tuple[str, int]]
    header: PlanHeader

    @classmethod
    def start(cls, house: Lakehouse, builder: B, garbage: set[str]) -> Story[B]:
        return cls(house, builder, garbage, house.files(), house.plan())

    def without_garbage(self) -> dict[str, tuple[str, int]]:
        return {key: value for key, value in self.before.items() if key not in self.garbage}
