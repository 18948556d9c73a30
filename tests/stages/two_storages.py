"""A house with two storages on local disks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.delete.plan import deletion_plan, header_of
from gc_assets.stages.sweep.live_filter import live_filter
from gc_assets.stages.sweep.orphan_files import orphan_files
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from tests.stages.lakehouse import Lakehouse

DISKS = ("disk1", "disk2")


class TwoStorages(Lakehouse):
    """The storages `<root>/disk1` and `<root>/disk2`, of which `disks` are configured."""

    def __init__(self, spark: SparkSession, root: Path, disks: tuple[str, ...] = DISKS, **settings: Any) -> None:
        super().__init__(spark, root, settings=settings)
        self.disks = disks
        for disk in DISKS:
            (root / disk).mkdir()

    @property
    def config(self) -> Config:
        settings = {"mode": "apply", "rehearsals": "allowed", "quarantine_days": 0, **self.settings}
        storages = [
            StorageConfig.model_validate({"name": name, "location": f"file://{self.root / name}/", **settings}) for name in self.disks
        ]
        return Config(state=self.state or str(self.root / "state"), storages=tuple(storages), lakes=tuple(self.lakes))

    def plans(self) -> dict[str, PlanHeader]:
        """Run all stages of all storages."""
        self.mark()
        self.sweep_all()
        return {name: self.plan_of(name) for name in self.disks}

    def sweep_all(self) -> None:
        context = self.run_context()
        for stage in (live_filter, storage_inventory, orphan_files):
            for name in self.disks:
                stage(self.spark, context, name)

    def plan_of(self, name: str) -> PlanHeader:
        return header_of(deletion_plan(self.spark, self.run_context(), name))

    def planned_keys(self, name: str) -> set[str]:
        """Return the keys in the plan of a storage."""
        return {row["key"] for row in self.rows("deletion_plan", name)}
