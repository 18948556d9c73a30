"""An odd row of a SQL catalog makes one table unreadable, with its name in the reason.

The rows have a missing, binary, relative or unusable metadata address, no name, or metadata of an unknown format version (attack/05,
`v4.py`). All other tables of the catalog are read.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.protocol import FrozenRefs
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import NOW, days_ago

COLUMNS = "catalog_name, table_namespace, table_name, metadata_location, iceberg_type"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TableBuilder:
    table = LakeBuilder(tmp_path_factory.mktemp("rows")).table("db.good", days_ago(9))
    table.append(days_ago(9))
    return table


def freeze_with_row(table: TableBuilder, *row: Any) -> FrozenRefs:
    """Freeze the lake with one more row: namespace, name, metadata address and type."""
    builder = table.lake
    with closing(sqlite3.connect(builder.root / "catalog.db")) as database, database:
        database.execute(f"insert into iceberg_tables ({COLUMNS}) values ('default', ?, ?, ?, ?)", row)  # noqa: S608
        database.commit()
        try:
            return IcebergLake(builder.config(), LocalObjects()).freeze(NOW)  # pyright: ignore[reportAttributeAccessIssue]
        finally:
            database.execute("delete from iceberg_tables where table_name is not 'good'")


@pytest.mark.parametrize(
    "address",
    [
        None,
        "",
        b"\xff\xfe",
        7,
        "metadata/1.metadata.json",
        "file:///gone/1.metadata.json",
        "file:///a\0b",
        "s3://no-bucket-here",
        "memory:x",
    ],
)
def test_row_with_unusable_address_makes_one_table_unreadable(table: TableBuilder, address: Any) -> None:
    frozen = freeze_with_row(table, "db", "odd", address, "TABLE")
    assert [item.table_name for item in frozen.unreadable] == ["db.odd"]
    assert "db.odd" in frozen.unreadable[0].reason
    assert [source.table_name for source in frozen.sources] == ["db.good"]


@pytest.mark.parametrize("address", [None, "", b"\xff\xfe", 7, "metadata/1.metadata.json", "file:///gone/1.metadata.json", "file:///a\0b"])
def test_view_with_unusable_address_is_reported_as_note(table: TableBuilder, address: Any) -> None:
    frozen = freeze_with_row(table, "db", "v", address, "VIEW")
    assert frozen.unreadable == ()
    assert [note for note in frozen.notes if "db.v" in note]


@pytest.mark.parametrize("namespace, name", [("", "odd"), ("a.b", "odd"), ("a\nb'\"", "x;y"), ("db", "")])
def test_row_with_missing_or_unusual_name_is_read(table: TableBuilder, namespace: Any, name: Any) -> None:
    frozen = freeze_with_row(table, namespace, name, table.metadata_location, "TABLE")
    assert frozen.unreadable == ()
    assert len(frozen.sources) == 2


def test_table_of_unknown_format_version_does_not_affect_other_tables(table: TableBuilder, tmp_path: Path) -> None:
    document = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    document |= {"format-version": 4, "table-uuid": "11111111-2222-3333-4444-555555555555", "location": "file:///w/v4"}
    file = tmp_path / "00000-a.metadata.json"
    file.write_text(json.dumps(document))
    frozen = freeze_with_row(table, "db", "v4", f"file://{file}", "TABLE")
    assert [item.table_name for item in frozen.unreadable] == ["db.v4"]
    assert "format-version 4 is unknown" in frozen.unreadable[0].reason
    assert [source.table_name for source in frozen.sources] == ["db.good"]
    assert "file:///w/v4/" in frozen.unreadable[0].locations
