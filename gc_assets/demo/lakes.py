"""The two lakes of the demo, an Iceberg catalog and an Icechunk repository in one storage.

Both contain files that failed writers have left behind. A file is as old as its commit.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from gc_assets.demo.iceberg_builder import LakeBuilder
from gc_assets.demo.icechunk_builder import RepositoryBuilder, document_history, numbers, set_file_time, set_value

CATALOG_NAME = "demo"
DAY = timedelta(days=1)


def build_shop(root: Path, warehouse: Path, now: datetime, address: str | None = None) -> None:
    """Create three Iceberg tables.

    `shop.orders` has a branch and a tag, `shop.returns` has delete files, and `shop.customers` is
    not partitioned. In each table, some snapshots are older than Iceberg's default maximum age of
    five days, and some data files are only needed by those snapshots.

    Args:
        address: The address of the warehouse in the metadata.
    """
    lake = LakeBuilder(root, CATALOG_NAME, warehouse=warehouse, address=address)

    orders = lake.table("shop.orders", now - 60 * DAY, partitioned=True)
    orders.append(now - 59 * DAY, range(4_000), "north")
    closed = orders.append(now - 45 * DAY, range(4_000, 6_500), "north")
    orders.tag(now - 45 * DAY, "quarter_closed", closed)
    orders.append(now - 30 * DAY, range(6_500, 9_000), "south")
    orders.delete(now - 20 * DAY, "part == 'north'")
    latest = orders.append(now - 4 * DAY, range(9_000, 10_000), "south")
    orders.branch(now - 4 * DAY, "audit", latest)
    orders.append(now - 2 * DAY, range(10_000, 10_400), "south", branch="audit")
    orders.append(now - 1 * DAY, range(10_400, 11_000), "south")

    returns = lake.table("shop.returns", now - 50 * DAY, partitioned=True, properties={"format-version": "2"})
    returns.append(now - 49 * DAY, range(1_500), "store")
    returns.append(now - 25 * DAY, range(1_500, 2_800), "online")
    returns.position_deletes(now - 10 * DAY, position=7)
    returns.position_deletes(now - 3 * DAY, position=21)

    customers = lake.table("shop.customers", now - 50 * DAY)
    customers.append(now - 49 * DAY, range(3_000))
    customers.overwrite(now - 12 * DAY, range(3_200))
    customers.append(now - 2 * DAY, range(3_200, 3_300))

    # Files of writers that failed before their commit. The last writer could still be active.
    orders.leftovers(now - 15 * DAY, count=4)
    returns.leftovers(now - 8 * DAY, count=2)
    customers.leftovers(now - timedelta(hours=1), count=1)


def build_weather(path: Path, now: datetime) -> None:
    """Create the 15 snapshots of the example in icechunk's document on expiration.

    Snapshots 1 to 7 are older than 30 days. Failed writers and the reset of a branch have left
    unreferenced files behind.
    """
    builder = RepositoryBuilder.create(path, now - 45 * DAY)
    document_history(builder, now - 45 * DAY, 2 * DAY)
    builder.abandon_writer("main", now - 10 * DAY, numbers("radar", range(12)))
    builder.abandon_manifest("main", now - 9 * DAY, numbers("clouds", range(6)))
    builder.abandon_snapshot("develop", now - 40 * DAY, set_value("values", 3, 40))
    builder.abandon_writer("main", now - timedelta(hours=2), numbers("live_feed", range(3)))


def write_note(path: Path, now: datetime) -> None:
    """Write a file that no lake claims."""
    path.write_text("This file belongs to no lake. The collector never deletes it.\n")
    set_file_time(path, now - 90 * DAY)
