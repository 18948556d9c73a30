"""The queries of docs/history.md over a table with expired history."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql import SparkSession

from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError
from gc_assets.engine.tables import publish, read_rows, write_rows
from gc_assets.lakes.entries import ENTRY_SCHEMA
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.iceberg.tables import SNAPSHOT_HISTORY
from gc_assets.lakes.protocol import Container
from gc_assets.stages.mark.snapshot_history import record_removals
from gc_assets.stages.read.snapshot_views import history_views
from gc_assets.state.schemas import COMMIT_GRAPH, EXPIRY_PLAN, MANIFEST_ENTRIES, Table
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.iceberg.expiry_actions import plan_expiry, run_expiry, verdicts
from tests.stages.lakehouse import NOW, Lakehouse

PAGE = Path(__file__).parents[3] / "docs" / "history.md"
TABLE = "sales.orders"
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", StringType()))
BY_DAY = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="day"))


def query(name: str) -> str:
    """Return the block of the page that starts with this comment."""
    blocks = [block.split("```")[0] for block in PAGE.read_text().split("```sql\n")[1:]]
    [found] = [block for block in blocks if block.startswith(f"-- {name}\n")]
    return found


@dataclass
class ExpiredTable:
    """Five commits over two months, of which the first four are expired.

    `ids` and `times` are in the order of the commits.
    """

    spark: SparkSession
    ids: list[int]
    times: list[datetime]
    files: dict[str, str]

    def run_query(self, name: str, **parameters: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in self.spark.sql(query(name), args=parameters).collect()]


@pytest.fixture(scope="module")
def orders(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> ExpiredTable:
    house = Lakehouse(spark, tmp_path_factory.mktemp("history"))
    builder = LakeBuilder(house.root)
    house.lakes = [builder.config("sales")]
    builder.catalog.create_namespace("sales")
    builder.catalog.create_table(TABLE, SCHEMA, partition_spec=BY_DAY, properties={"write.summary.partition-limit": "10"})
    times = [datetime(2026, 9, 28, tzinfo=UTC) + timedelta(days=days) for days in (0, 1, 4, 5, 6)]
    for at, day, rows in zip(times[:3], ["09-28", "09-29", "10-02"], [2, 3, 4], strict=True):
        with builder.at(at):
            data = pa.table({"id": pa.array(range(rows), pa.int64()), "day": [day] * rows})
            builder.catalog.load_table(TABLE).append(data, snapshot_properties={"spark.app.id": f"app-{day}"})
    with builder.at(times[3]):
        builder.catalog.load_table(TABLE).delete("day = '09-28'", snapshot_properties={"spark.app.id": "app-cleaner"})
    with builder.at(times[4]):
        builder.catalog.load_table(TABLE).append(pa.table({"id": pa.array([9], pa.int64()), "day": ["10-04"]}))
    table = builder.catalog.load_table(TABLE)
    ids = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    files = {path.split("/day=")[1].split("/")[0]: path for path in table.inspect.all_files()["file_path"].to_pylist()}

    lake = IcebergLake(builder.config("sales"), LocalObjects())
    entries = list(decode_all(lake))
    history = [row for source in lake.freeze(NOW).sources for row in record_rows(lake, source)]
    actions = plan_expiry(lake, NOW, NOW - timedelta(days=3))
    assert verdicts(run_expiry(lake, actions, NOW, NOW - timedelta(days=3))) == {"done": 4}
    gone = {action.snapshot_id: action.reason for action in actions}
    for row in history:
        if row["snapshot_id"] in gone:
            row |= {"expired": True, "expired_at": NOW, "reason": gone[row["snapshot_id"]], "plan_id": "p1"}
    put_rows(house, MANIFEST_ENTRIES, entries)
    put_rows(house, SNAPSHOT_HISTORY, history)
    history_views(spark, house.run_context(), "sales")
    return ExpiredTable(spark, ids, times, files)


def decode_all(lake: IcebergLake) -> Any:
    """Yield `manifest_entries` of all snapshots, before any is expired."""
    seen: set[str] = set()
    roots = [root for source in lake.freeze(NOW).sources for commit in lake.commits(source) for root in commit.content_roots]
    pending = [Container(root.address, root.kind) for root in roots]
    while pending:
        container = pending.pop()
        if container.address in seen:
            continue
        seen.add(container.address)
        for row in lake.decode(container, LocalObjects().read(container.address)).to_pylist():
            yield {**{name: row[name] for name in ENTRY_SCHEMA.names}, "container": container.address, "container_size_bytes": 0}
            if row["is_container"]:
                pending.append(Container(row["address"], row["kind"], row["size_bytes"], row["expected_entries"], row["snapshot_id"]))


def record_rows(lake: IcebergLake, source: Any) -> Any:
    for commit in lake.commits(source):
        yield {
            "table_uuid": commit.table_uuid,
            "table_name": commit.table_name,
            "snapshot_id": commit.commit_id,
            "parent_id": next(iter(commit.parents), None),
            "committed_at": commit.committed_at,
            "operation": commit.message,
            "summary": list(commit.summary.items()),
            "manifest_list": commit.content_roots[0].address,
            "refs": ["main"],
            "expired": False,
        }


def put_rows(house: Lakehouse, table: Table, rows: list[dict[str, Any]], group: str = "sales") -> None:
    state = house.run_context().state
    run = state.start(group, table.name, house.clock.today(), Clock(NOW))
    written = write_rows(pa.Table.from_pylist(rows, schema=table.schema), table, run, state.files)
    publish(state, run, written, Clock(NOW), summary={"listed": len(rows), "expired": 0})


def moment(at: datetime) -> datetime:
    return at.replace(tzinfo=None)  # Spark hands out naive times in the session's zone, UTC


def test_expired_snapshots_are_listed_with_writing_application(orders: ExpiredTable) -> None:
    rows = orders.run_query("expired")
    assert [(row["committed_at"], row["snapshot_id"], row["operation"], row["application"]) for row in rows] == [
        (moment(orders.times[0]), orders.ids[0], "append", "app-09-28"),
        (moment(orders.times[1]), orders.ids[1], "append", "app-09-29"),
        (moment(orders.times[2]), orders.ids[2], "append", "app-10-02"),
        (moment(orders.times[3]), orders.ids[3], "delete", "app-cleaner"),
    ]


def test_view_contains_live_and_expired_snapshots(orders: ExpiredTable) -> None:
    rows = orders.run_query("all", table=TABLE)
    assert [(row["snapshot_id"], row["expired"], row["plan_id"]) for row in rows] == [
        *((snapshot_id, True, "p1") for snapshot_id in orders.ids[:4]),
        (orders.ids[4], False, None),
    ]
    assert all(row["reason"].startswith("expired: ") for row in rows[:4])


def test_view_has_the_columns_of_iceberg_snapshots(orders: ExpiredTable) -> None:
    names = ["committed_at", "snapshot_id", "parent_id", "operation", "manifest_list", "summary"]
    assert orders.spark.table("all_snapshots").columns == ["table_name", *names, "expired"]


def test_query_finds_the_application_that_added_a_live_file(orders: ExpiredTable) -> None:
    [row] = orders.run_query("file", table=TABLE, file=orders.files["09-29"])
    assert row == {
        "committed_at": moment(orders.times[1]),
        "snapshot_id": str(orders.ids[1]),
        "operation": "append",
        "application": "app-09-29",
        "expired": True,
        "change": "added",
    }


def test_query_finds_the_application_that_removed_a_file(orders: ExpiredTable) -> None:
    rows = orders.run_query("file", table=TABLE, file=orders.files["09-28"])
    assert [(row["committed_at"], row["change"], row["operation"], row["application"]) for row in rows] == [
        (moment(orders.times[0]), "added", "append", "app-09-28"),
        (moment(orders.times[3]), "removed", "delete", "app-cleaner"),
    ]


@pytest.mark.parametrize("name", ["partition by summary", "partition by address"])
def test_query_finds_when_a_partition_was_added_and_removed(orders: ExpiredTable, name: str) -> None:
    rows = orders.run_query(name, table=TABLE, partition="day=09-28")
    assert [(row["committed_at"], row["operation"], row["expired"]) for row in rows] == [
        (moment(orders.times[0]), "append", True),
        (moment(orders.times[3]), "delete", True),
    ]
    if name == "partition by address":
        assert [(row["files_added"], row["files_removed"]) for row in rows] == [(1, 0), (0, 1)]
    else:
        assert "added-records=2" in rows[0]["change"]
        assert "deleted-records=2" in rows[1]["change"]


def test_query_sums_commits_files_records_and_bytes_of_a_month(orders: ExpiredTable) -> None:
    rows = orders.run_query("per month", table=TABLE)
    assert [(row["month"], row["commits"], row["of_them_expired"], row["files_added"], row["records_added"]) for row in rows] == [
        (datetime(2026, 9, 1), 2, 2, 2, 5),  # noqa: DTZ001
        (datetime(2026, 10, 1), 3, 2, 2, 5),  # noqa: DTZ001
    ]
    assert [(row["files_deleted"], row["records_deleted"]) for row in rows] == [(0, 0), (1, 2)]
    assert all(row["bytes_added"] > 0 for row in rows)


def test_missing_history_error_shows_next_command(orders: ExpiredTable, spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, [LakeBuilder(tmp_path).config("sales")])
    with pytest.raises(StateError, match=r"sales/snapshot_history has no table for .*--through snapshot_history"):
        history_views(spark, house.run_context(), "sales")


def test_each_query_on_docs_page_is_tested() -> None:
    names = {block.split("\n")[0].removeprefix("-- ") for block in PAGE.read_text().split("```sql\n")[1:]}
    own = {name for name in names if not name.startswith("published")}  # test_published_history.py runs those
    assert own == {"expired", "all", "file", "partition by summary", "partition by address", "per month"}


def test_snapshot_is_removed_only_after_it_is_recorded(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path)
    house.lakes = [LakeBuilder(tmp_path).config("sales")]
    put_rows(house, SNAPSHOT_HISTORY, [{"table_uuid": "u", "snapshot_id": "1", "expired": False}])
    put_rows(house, EXPIRY_PLAN, [{"table_uuid": "u", "snapshot_id": name, "action": "remove_snapshot", "reason": "old"} for name in "12"])
    run_context, again = house.run_context(), replace(house.run_context(), verification_id="mark")
    actions = read_rows(run_context.state, EXPIRY_PLAN, run_context.state.require("sales", EXPIRY_PLAN.name, run_context.run_date))

    put_rows(house, COMMIT_GRAPH, [{"table_uuid": "u", "commit_id": name} for name in "12"], again.group("sales"))
    with pytest.raises(StateError, match=r"snapshot 2 of table u in lake .*: the snapshot is not in snapshot_history"):
        record_removals(spark, again, "sales", "p1", actions)
    put_rows(house, COMMIT_GRAPH, [{"table_uuid": "u", "commit_id": "1"}], again.group("sales"))
    record_removals(spark, again, "sales", "p1", actions)
    assert [(row["snapshot_id"], row["plan_id"], row["reason"]) for row in house.rows("snapshot_history", "sales")] == [("1", "p1", "old")]
