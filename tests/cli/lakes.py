"""A small real Iceberg lake with its configuration, as the command line's tests use it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder

SPARK = {"master": "local[2]", "conf": {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}}


@dataclass(frozen=True)
class SmallLake:
    """`orders` has an expired and a live snapshot and four crash leftovers; in `visits` the tag `audit` keeps an old snapshot.

    `young` is a leftover within the grace period, `unowned` lies where no table is.
    """

    root: Path
    builder: LakeBuilder
    orders: TableBuilder
    leftovers: list[Path]
    young: Path
    unowned: Path
    lakes_yaml: Path

    def configure(self, **storage: object) -> Path:
        """Writes `lakes.yaml`; `storage` are further settings of the storage."""
        return write_config(self.root, self.builder.properties, **storage)

    def keys(self) -> set[str]:
        return {str(path.relative_to(self.builder.warehouse)) for path in self.builder.files() if ".gc-assets" not in path.parts}


def write_config(root: Path, catalog: dict[str, str], **storage: object) -> Path:
    """`lakes.yaml` of one storage `warehouse` and one Iceberg lake `sales` (YAML holds JSON)."""
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
    """Everything but `young` is at least ten days old, so the default grace protects none of it."""
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
