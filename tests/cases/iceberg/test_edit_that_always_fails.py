"""A history edit that can never succeed ends its plan and is left out of later plans, so that other tables continue.

Two catalogs: a REST server that lets the collector read and answers 403 to commits, and an SQL catalog with a table at a path with `#`,
at which pyiceberg, which makes the commits, cuts the path.

Sources: the REST catalog specification (403 for commits), lakehq/sail #2592 and spiceai #9240 (`#` and `?` in table paths).
"""

from __future__ import annotations

import io
import json
import os
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import fastavro
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.findings import FAIL, OK, WARN
from gc_assets.lakes.protocol import PreflightLake, as_preflight
from gc_assets.stages.records.denials import RETRY_AFTER, request_retry
from gc_assets.stages.records.plans import find_plan
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.iceberg.rest_server import serve_catalog
from tests.stages.lakehouse import NOW, Lakehouse, counts, days_ago

pytestmark = [pytest.mark.spark, in_turn]
DAY = timedelta(days=1)


def expiring_table(builder: LakeBuilder, name: str) -> TableBuilder:
    """Create a table with expired snapshots and files of a failed writer."""
    table = builder.table(name, days_ago(60), properties={"history.expire.max-snapshot-age-ms": "86400000"})
    for age in (50, 40, 30):
        table.overwrite(days_ago(age))
    table.leftovers(days_ago(20))
    return table


def test_forbidden_history_edit_is_denied_and_left_out_of_later_plans(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    builder = LakeBuilder(tmp_path)
    expiring_table(builder, "db.locked")
    with serve_catalog(builder) as server:
        server.on_commit = lambda _: 403
        house.lakes = [builder.config("lk", catalog={"type": "rest", "uri": server.uri})]
        first = house.plan()
        edits, freed, leftovers = first.expiry_actions["lk"], first.after_expiry.files, len(house.leftovers())
        assert min(edits, freed, leftovers) > 0
        by_outcome = counts(house.approve_and_apply(first).by_outcome)
        assert by_outcome == {("expire", "denied"): edits, ("quarantine", "changed"): freed, ("quarantine", "done"): leftovers}
        assert find_plan(house.config, first.plan_id).status_at(house.now) == "partially applied"

        house.now += DAY
        second = house.plan()
        assert house.failed_gates(second) == set()
        assert (second.expiry_actions, second.after_expiry.files, second.held_for_expiry.files) == ({}, 0, freed)
        (left_out,) = second.left_out
        assert (left_out.name, left_out.edits) == ("table db.locked of lake lk", edits)
        assert "ForbiddenError" in left_out.reason
        assert "`gc-assets retry lk --by WHO`" in left_out.reason

        request_retry(house.config, house.clock, "lk", "ada")
        house.now += DAY
        assert house.plan().expiry_actions == {"lk": edits}
        house.approve_and_apply(house.plan())
        house.now += RETRY_AFTER - DAY
        assert house.plan().expiry_actions == {}
        house.now += 2 * DAY
        server.on_commit = lambda commit: commit()
        assert counts(house.approve_and_apply(house.plan()).by_outcome)["expire", "done"] == edits


def preflight(house: Lakehouse) -> PreflightLake:
    lake = as_preflight(house.run_context().lake("lk"))
    assert lake is not None
    return lake


def test_doctor_checks_the_right_to_commit(spark: SparkSession, tmp_path: Path) -> None:
    house, builder = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    table = expiring_table(builder, "db.t")
    before = table.metadata_location
    with serve_catalog(builder) as server:
        house.lakes = [builder.config("lk", catalog={"type": "rest", "uri": server.uri})]
        lake = preflight(house)
        assert lake.probe_edits().verdict == OK
        server.on_commit = lambda _: 403
        finding = lake.probe_edits()
        assert (finding.verdict, "permits reads, but no commits" in finding.found) == (FAIL, True)
        server.on_commit = lambda _: 500
        assert lake.probe_edits().verdict == WARN
    house.lakes = [builder.config("lk")]
    sql = preflight(house)
    assert sql.probe_edits().verdict == OK
    (tmp_path / "catalog.db").chmod(0o444)
    if os.geteuid():  # root may write any file
        assert sql.probe_edits().verdict == FAIL
    assert table.metadata_location == before


def test_history_of_table_that_pyiceberg_cannot_load_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    builder = LakeBuilder(tmp_path)
    fine = expiring_table(builder, "db.fine")
    expiring_table(builder, "db.x")
    move_table(builder, "db/x", "db/c#")
    house.lakes = [builder.config("lk")]
    header = house.plan()
    edits = header.expiry_actions["lk"]
    (left_out,) = header.left_out
    assert (left_out.name, left_out.edits) == ("table db.x of lake lk", edits)
    assert "pyiceberg, which makes the commits, cannot load it" in left_out.reason
    assert {outcome for _, outcome in house.approve_and_apply(header).by_outcome} == {"done"}
    assert len(fine.table.refresh().snapshots()) == 1
    house.now = NOW + DAY
    assert house.failed_gates(house.plan()) == set()


def move_table(builder: LakeBuilder, old: str, new: str) -> None:
    """Move a table to another directory, and change all addresses in its metadata and catalog."""
    source, target = f"{builder.warehouse}/{old}", f"{builder.warehouse}/{new}"
    Path(source).rename(target)
    metadata = Path(target, "metadata")
    for path in metadata.glob("*.json"):
        stat, text = path.stat(), path.read_text().replace(source, target)
        path.write_text(text)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    for pattern in ("*-m*.avro", "snap-*.avro"):  # lists contain the lengths of manifests
        for path in (path for path in sorted(metadata.glob(pattern)) if b"never finished" not in path.read_bytes()):
            rewrite_avro(path, source, target)
    with closing(sqlite3.connect(builder.root / "catalog.db")) as database, database:
        database.execute("update iceberg_tables set metadata_location = replace(metadata_location, ?, ?)", (source, target))


def rewrite_avro(path: Path, old: str, new: str) -> None:
    stat = path.stat()
    with path.open("rb") as stream:
        reader = fastavro.reader(stream)
        rows, schema = list(reader), reader.writer_schema
        header = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    text = json.dumps(rows, default=lambda value: {"bytes": value.hex()}).replace(old, new)
    rows = json.loads(text, object_hook=lambda item: bytes.fromhex(item["bytes"]) if list(item) == ["bytes"] else item)
    for row in rows:
        if "manifest_path" in row:
            row["manifest_length"] = Path(row["manifest_path"].removeprefix("file://")).stat().st_size
    out = io.BytesIO()
    fastavro.writer(out, schema, rows, metadata=header)
    path.write_bytes(out.getvalue())
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
