"""The snapshot history published as an Iceberg table: no duplicates, in sync with the state,
readable by other engines.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_avro
import duckdb_extension_iceberg
import pytest

from gc_assets.core.errors import GcError, UsageError
from gc_assets.lakes.iceberg import published_history
from gc_assets.lakes.iceberg.catalog import CatalogClient
from gc_assets.lakes.iceberg.published_history import LAKE_PROPERTY, HistoryTable
from tests.depth import example_count
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.iceberg.published_histories import NAME, START, Publisher, expired_snapshot, snapshot

Key = tuple[str, int]


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(LakeBuilder(tmp_path))


def test_expired_snapshot_keeps_one_row_with_plan_id(publisher: Publisher) -> None:
    publisher.publish(snapshot(1), snapshot(2))
    result = publisher.publish(expired_snapshot(1), snapshot(2), snapshot(3))
    assert (result.written, result.removed) == (2, 0)
    assert publisher.read_published() == {
        ("sales", "u1", 1): (True, "p1"),
        ("sales", "u1", 2): (False, None),
        ("sales", "u1", 3): (False, None),
    }


def test_rows_have_columns_of_iceberg_snapshots_table(publisher: Publisher) -> None:
    publisher.publish(expired_snapshot(2))
    assert publisher.table.scan().to_arrow().to_pylist() == [
        {
            "lake": "sales",
            "table_name": "shop.orders",
            "table_uuid": "u1",
            "committed_at": START + timedelta(hours=2),
            "snapshot_id": 2,
            "parent_id": 1,
            "operation": "append",
            "manifest_list": "file:///w/snap-2.avro",
            "summary": [("added-records", "2")],
            "expired": True,
            "expired_at": START + timedelta(days=9),
            "reason": "too old",
            "plan_id": "p1",
        }
    ]


def test_repeated_publication_makes_no_commit(publisher: Publisher) -> None:
    publisher.publish(snapshot(1), expired_snapshot(2))
    before = publisher.table.metadata_location
    result = publisher.publish(snapshot(1, refs=["main", "release"]), expired_snapshot(2))
    assert (result.written, result.removed) == (0, 0)
    assert publisher.table.metadata_location == before


def test_record_older_than_the_retention_is_removed(publisher: Publisher) -> None:
    publisher.publish(expired_snapshot(1), snapshot(2))
    assert publisher.publish(snapshot(2)).removed == 1
    assert publisher.read_published() == {("sales", "u1", 2): (False, None)}


@pytest.mark.parametrize("rewrites_all", [False, True])
def test_expired_snapshot_missing_from_state_is_kept(publisher: Publisher, monkeypatch: pytest.MonkeyPatch, rewrites_all: bool) -> None:
    publisher.kept_since = START
    publisher.publish(snapshot(1), snapshot(2), expired_snapshot(3), snapshot(1, "u2"))
    if rewrites_all:
        monkeypatch.setattr(published_history, "_MAX_FILES", 0)
    kept = ("sales", "u1", 3)
    assert publisher.publish(expired_snapshot(1), snapshot(3, "u2")).removed == 2
    assert publisher.read_published() == {("sales", "u1", 1): (True, "p1"), kept: (True, "p1"), ("sales", "u2", 3): (False, None)}
    publisher.publish(expired_snapshot(1), expired_snapshot(3, "u2"))
    assert publisher.read_published() == {("sales", "u1", 1): (True, "p1"), kept: (True, "p1"), ("sales", "u2", 3): (True, "p1")}
    publisher.kept_since = START + timedelta(days=30)
    publisher.publish(expired_snapshot(1))
    assert publisher.read_published() == {("sales", "u1", 1): (True, "p1")}


def test_published_table_is_recreated_after_it_was_dropped(publisher: Publisher) -> None:
    publisher.publish(expired_snapshot(1), snapshot(2))
    before = publisher.read_published()
    publisher.builder.catalog.drop_table(NAME)
    publisher.publish(expired_snapshot(1), snapshot(2))
    assert publisher.read_published() == before


def test_two_lakes_can_publish_to_one_table(publisher: Publisher) -> None:
    other = replace(publisher, lake="marketing", origin="catalog of marketing")
    publisher.publish(snapshot(1))
    other.publish(snapshot(1))
    publisher.publish(expired_snapshot(1))
    assert publisher.read_published() == {("sales", "u1", 1): (True, "p1"), ("marketing", "u1", 1): (False, None)}


def test_another_lake_with_equal_name_is_refused(publisher: Publisher) -> None:
    publisher.publish(snapshot(1))
    with pytest.raises(UsageError, match=r"has the rows of another lake sales \(catalog catalog of sales\)"):
        replace(publisher, origin="another catalog").publish(snapshot(2))
    assert len(publisher.read_published()) == 1


def test_table_created_by_another_program_is_refused(publisher: Publisher) -> None:
    publisher.builder.catalog.create_namespace("gc")
    publisher.builder.catalog.create_table(NAME, published_history.SCHEMA)
    with pytest.raises(UsageError, match="was not created by this release of gc-assets"):
        publisher.publish(snapshot(1))
    assert publisher.table.current_snapshot() is None


def test_snapshots_of_published_table_itself_are_not_published(publisher: Publisher) -> None:
    publisher.publish(snapshot(1))
    own = str(publisher.table.metadata.table_uuid)
    result = publisher.publish(snapshot(1), snapshot(7, own, table_name=NAME))
    assert result.written == 0


def test_tables_with_equal_snapshot_ids_keep_separate_rows(publisher: Publisher) -> None:
    publisher.publish(snapshot(1, "u1"), snapshot(1, "u2"))
    publisher.publish(expired_snapshot(1, "u1"), snapshot(1, "u2"))
    assert publisher.read_published() == {("sales", "u1", 1): (True, "p1"), ("sales", "u2", 1): (False, None)}


def test_many_small_files_are_rewritten(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_history, "_MAX_FILES", 3)
    for last in range(1, 6):
        publisher.publish(*(snapshot(number) for number in range(1, last + 1)))
    assert sum(1 for _ in publisher.table.scan().plan_files()) <= 3
    assert len(publisher.read_published()) == 5


def test_concurrent_publications_write_each_row_once(publisher: Publisher) -> None:
    publisher.publish(snapshot(1))
    rows = [expired_snapshot(1), *(snapshot(number) for number in range(2, 9))]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda other: other.publish(*rows), [replace(publisher) for _ in range(3)]))
    assert len(publisher.read_published()) == 8
    assert publisher.read_published()["sales", "u1", 1] == (True, "p1")


def test_duplicate_rows_are_repaired(publisher: Publisher) -> None:
    publisher.publish(snapshot(1))
    publisher.table.append(publisher.table.scan().to_arrow())
    publisher.publish(snapshot(1))
    assert len(publisher.read_published()) == 1


def test_published_table_matches_random_histories(publisher: Publisher) -> None:
    """Snapshots appear, expire and leave the history, in two tables with the same ids."""
    chance = random.Random(5)
    rows = dict[Key, dict[str, Any]]()
    for step in range(example_count(12, 200)):
        for _ in range(chance.randint(0, 4)):
            key = (chance.choice(["u1", "u2"]), chance.randint(1, 12))
            change = chance.choice([snapshot, expired_snapshot, None])
            if change is None:
                rows.pop(key, None)
            else:
                rows[key] = change(key[1], key[0])
        if chance.random() < 0.1:
            for row in rows.values():
                row["table_name"] = f"shop.renamed_{step}"
        publisher.publish(*rows.values())
        wanted = {("sales", uuid, number): (row["expired"], row["plan_id"]) for (uuid, number), row in rows.items()}
        assert publisher.read_published() == wanted
        names = set(publisher.table.scan().to_arrow()["table_name"].to_pylist())
        assert names == {row["table_name"] for row in rows.values()}


def test_unreachable_catalog_error_contains_no_secrets(tmp_path: Path) -> None:
    client = CatalogClient("sales", "x", {"uri": "http://127.0.0.1:9/", "token": "sEcReT-token", "type": "rest"})
    with pytest.raises(GcError) as caught:
        HistoryTable(client, NAME, "sales", "origin").publish(lambda _: iter(()), START)
    assert "sEcReT" not in str(caught.value)


@pytest.fixture
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with its Iceberg extension, which is a package here and not downloaded."""
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        for extension in (duckdb_extension_avro, duckdb_extension_iceberg):
            [found] = Path(extension.__file__ or "").parent.rglob("*.duckdb_extension")
            connection.execute(f"LOAD '{found}'")
        yield connection


def test_duckdb_reads_the_table(publisher: Publisher, duck: duckdb.DuckDBPyConnection) -> None:
    publisher.publish(snapshot(1), snapshot(2), snapshot(3))
    publisher.publish(expired_snapshot(1), expired_snapshot(2), snapshot(3))
    query = "SELECT snapshot_id, plan_id FROM iceberg_scan(?) WHERE expired ORDER BY 1"
    assert duck.execute(query, [publisher.table.metadata_location]).fetchall() == [(1, "p1"), (2, "p1")]


def test_queries_of_the_documentation_run_in_duckdb(publisher: Publisher, duck: duckdb.DuckDBPyConnection) -> None:
    partitions = {"partitions.day=2026-10-02": "added-data-files=1"}
    publisher.publish(snapshot(1, summary=partitions), {**expired_snapshot(2), "summary": {"spark.app.id": "app-7"}})
    duck.execute("CREATE SCHEMA gc")
    duck.from_query("FROM iceberg_scan(?)", params=[publisher.table.metadata_location]).create("gc.snapshot_history")
    page = Path(__file__).parents[3] / "docs" / "history.md"
    queries = [block.split("```")[0] for block in page.read_text().split("```sql\n")[1:] if block.startswith("-- published")]
    expired_rows, partition = (duck.execute(query).fetchall() for query in queries)
    assert [(row[1], row[5]) for row in expired_rows] == [(2, "app-7")]
    assert [(row[1], row[4]) for row in partition] == [(1, "added-data-files=1")]


def test_table_property_records_source_catalog(publisher: Publisher) -> None:
    publisher.publish(snapshot(1))
    assert publisher.table.properties[f"{LAKE_PROPERTY}sales"] == "catalog of sales"
