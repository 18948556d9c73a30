"""A small Iceberg lake with its configuration, for tests of the command line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder

SPARK = {"master": "local[2]", "conf": {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}}


@dataclass(frozen=True)
class SmallLake:
    """`orders` has an expired and a live snapshot and four files of failed writers. In `visits`,
    the tag `audit` keeps an old snapshot.

    `young` is an unreferenced file within the grace period, and `unowned` is outside of all tables.
    """

    root: Path
    builder: LakeBuilder
    orders: TableBuilder
    leftovers: list[Path]
    young: Path
    unowned: Path
    lakes_yaml: Path

    def configure(self, **storage: object) -> Path:
        """Write `lakes.yaml` with further settings of the storage."""
        return write_config(self.root, self.builder.properties, **storage)

    def keys(self) -> set[str]:
        return {str(path.relative_to(self.builder.warehouse)) for path in self.builder.files() if ".gc-assets" not in path.parts}


def write_config(root: Path, catalog: dict[str, str], **storage: object) -> Path:
    """Write the `lakes.yaml` of a storage `warehouse` and an Iceberg lake `sales`. YAML can contain
    JSON.
    """
    document = {
        "state": "./state",
        "storages": [{"name": "warehouse", "location": f"file://{root}/warehouse/", **storage}],
        "lakes": [{"name": "sales", "kind": "iceberg", "catalog": catalog}],
        "spark": SPARK,
    }
    path = root / "lakes.yaml"
    path.write_text(json.dumps(document))
    return path


def small_lake(root: Path) -> SmallLake:
    """Create the lake. Everything except `young` is at least ten days old, so that the default
    grace period protects none of it.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    builder = LakeBuilder(root)
    orders = builder.table("shop.orders", now - timedelta(days=40), properties={"history.expire.max-snapshot-age-ms": "864000000"})
    orders.append(now - timedelta(days=30))
    orders.overwrite(now - timedelta(days=12))
    visits = builder.table("shop.visits", now - timedelta(days=40))
    first = visits.append(now - timedelta(days=35))
    visits.tag(now - timedelta(days=34), "audit", first)
    visits.overwrite(now - timedelta(days=11))
    leftovers = orders.leftovers(now - timedelta(days=20))
    (young,) = orders.leftovers(now - timedelta(hours=1), count=0)
    unowned = builder.warehouse / "notes of someone.txt"
    unowned.write_text("not a table's")
    builder.date_files(now - timedelta(days=50))
    lake = SmallLake(root, builder, orders, leftovers, young, unowned, root / "lakes.yaml")
    lake.configure()
    return lake
