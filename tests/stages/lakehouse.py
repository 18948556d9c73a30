"""A storage with real lakes on it, nights run over it, and what is on the disk: the vocabulary of the stage tests."""

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
from gc_assets.stages.mark.mark_lake import mark
from gc_assets.stages.mark.snapshot_history import snapshot_history
from gc_assets.stages.records.plans import StoredPlan, approve, find_plan
from gc_assets.stages.sweep.live_filter import live_filter
from gc_assets.stages.sweep.orphan_files import orphan_files
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from gc_assets.state.journal import PublishedTable

NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
STORAGE = "warehouse"
B = TypeVar("B")
K = TypeVar("K")


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def counts(books: Mapping[K, Totals]) -> dict[K, int]:
    """Books with their rows only."""
    return {outcome: total.rows for outcome, total in books.items()}


def outcomes(applied: ApplyResult) -> set[str]:
    return {outcome for _, outcome in applied.by_outcome}


@dataclass
class Lakehouse:
    """One storage `<root>/warehouse`, its lakes, and a clock that stands at `now`. The state is `<root>/state` unless `state` says."""

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
        """The Icechunk repository at `<warehouse>/weather/`."""
        location = f"file://{self.warehouse}/weather/"
        return IcechunkLakeConfig.model_validate({"name": "weather", "kind": "icechunk", "location": location, **settings})

    def run_context(self) -> RunContext:
        return RunContext.of(self.config, self.clock, self.clock.today())

    def mark(self) -> None:
        for lake in self.config.lakes:
            mark(self.spark, self.run_context(), lake.name)

    def plan(self) -> PlanHeader:
        """A whole night up to its plan; the record of snapshots only where the plan removes some."""
        self.mark()
        return self.sweep()

    def sweep(self) -> PlanHeader:
        """What a night does after its mark."""
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
        """Approves and applies."""
        self.approve(header)
        return self.apply(header, phases)

    def restore(self, plan_id: str) -> tuple[PublishedTable, dict[str, int]]:
        """Puts back what a plan moved; the log, and how many files came to each outcome."""
        published, books = restore(lambda: self.spark, self.run_context(), self.storage, plan_id=plan_id)
        return published, counts(books)

    def rows(self, asset: str, group: str = STORAGE) -> list[dict[str, Any]]:
        return self.rows_of(self.find_table(asset, group))

    def rows_of(self, published: PublishedTable) -> list[dict[str, Any]]:
        rows = read_rows(self.run_context().state, all_tables()[published.receipt.asset], published)
        return rows.to_pylist(maps_as_pydicts="strict")

    def find_table(self, asset: str, group: str = STORAGE) -> PublishedTable:
        return self.run_context().state.require(group, asset, self.clock.today())

    def summary(self, asset: str, group: str = STORAGE) -> dict[str, Any]:
        return self.find_table(asset, group).receipt.summary

    def decoded_counts(self, lake: str) -> list[int]:
        """How many containers each mark decoded, in the order of the marks."""
        return [published.receipt.summary["decoded"] for published in self.run_context().state.runs(lake, "manifest_entries")]

    def keys(self, asset: str, group: str = STORAGE, **columns: Any) -> set[str]:
        """Keys of the rows with these values in these columns."""
        return {row["key"] for row in self.rows(asset, group) if columns.items() <= row.items()}

    def planned_actions(self, below: str = "") -> dict[str, str]:
        """Key, without this prefix, to action."""
        return self._values_by_key("deletion_plan", "action", below)

    def orphans(self, below: str = "") -> dict[str, str]:
        """Key, without this prefix, to reason."""
        return self._values_by_key("orphan_files", "reason", below)

    def _values_by_key(self, asset: str, column: str, below: str) -> dict[str, str]:
        rows = self.rows(asset)
        found = {row["key"].removeprefix(below): row[column] for row in rows}
        assert len(found) == len(rows), "a key stands there twice"
        return found

    def leftovers(self) -> set[str]:
        """Planned keys that no commit names, whatever histories the plan edits."""
        return self.keys("deletion_plan", reason="unreferenced")

    def live(self) -> set[str]:
        return {key for lake in self.config.lakes for key in self.keys("live_files", lake.name, storage=STORAGE)}

    def commits(self, state: str, *lakes: str) -> set[str]:
        """Ids of the commits in this state; of all lakes where none is named."""
        rows = (row for lake in lakes or [lake.name for lake in self.lakes] for row in self.rows("reachable_snapshots", lake))
        return {row["commit_id"] for row in rows if row["state"] == state}

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

    def trash(self, header: PlanHeader) -> set[str]:
        """Keys that the plan's trash holds."""
        trash = self.warehouse / ".gc-assets" / "trash" / header.plan_id
        return {str(path.relative_to(trash)) for path in trash.rglob("*") if path.is_file()}

    def failed_gates(self, header: PlanHeader) -> set[str]:
        return {gate.name for gate in header.failed_gates}


@dataclass
class Story(Generic[B]):
    """Lakes of a builder and the first plan over them, for the tests of a module that carry it on in order."""

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
