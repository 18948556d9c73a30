"""A decoding task writes many containers together, and one unreadable container affects no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.hashing import xxhash64
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine.tables import WrittenParts, merge_written, write_parts
from gc_assets.lakes.iceberg import manifests as iceberg_manifests
from gc_assets.lakes.iceberg.avro import ReaderAborted
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.stages.mark import decoding
from gc_assets.stages.mark.decoding import Decode
from gc_assets.state.files import Files
from gc_assets.state.journal import State, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import MANIFEST_ENTRIES
from gc_assets.state.side_tables import (
    CONTAINERS,
    CONTAINERS_SIDE,
    HASHES,
    HASHES_SIDE,
    TASKS,
    TASKS_SIDE,
    UNREADABLE_CONTAINERS,
    UNREADABLE_CONTAINERS_SIDE,
)
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.iceberg.builder import LakeBuilder

NOW = datetime(2026, 3, 14, tzinfo=UTC)


@pytest.fixture
def manifests(tmp_path: Path) -> list[Path]:
    """Return three manifests of two data files each."""
    builder = LakeBuilder(tmp_path)
    table = builder.table("db.t", NOW - timedelta(days=40))
    for days in (30, 20, 10):
        table.append(NOW - timedelta(days=days), part="a")
        table.append(NOW - timedelta(days=days), part="b")
    return sorted(path for path in builder.warehouse.rglob("*.avro") if not path.name.startswith("snap-"))[:3]


def run_task(containers: list[Path], tmp_path: Path, failed: Sequence[str] = ()) -> tuple[Files, TableRun, WrittenParts]:
    """Return the output of one task. `failed` are the unreadable containers of earlier tasks."""
    state = State.at(str(tmp_path / "state"))
    run = state.start("sales", MANIFEST_ENTRIES.name, date(2026, 3, 14), Clock(NOW))
    rows = [
        {
            "address": f"file://{path}",
            "kind": "manifest_list" if path.name.startswith("snap-") else "manifest",
            "size_bytes": path.stat().st_size,
            "must_exist": True,
        }
        for path in containers
    ]
    tasks = write_parts(pa.Table.from_pylist(rows, schema=TASKS), run, state.files, TASKS_SIDE)
    resolver = KeyResolver([("warehouse", f"file://{tmp_path}/warehouse/")])
    lake = IcebergLake(LakeBuilder(tmp_path).config(), LocalObjects())
    decode = Decode(lake, resolver, LocalObjects(), state.files, run, tuple(f"{run.path}/{part.name}" for part in tasks), tuple(failed))
    reports = [row for batch in decode(iter([pa.RecordBatch.from_pydict({"id": [0]})])) for row in batch.to_pylist()]
    return state.files, run, merge_written(reports)


def decode(manifests: list[Path], tmp_path: Path) -> tuple[pa.Table, pa.Table, pa.Table, dict[str, int]]:
    """Return the entries, containers and unreadable containers of one task, and its counts."""
    files, run, written = run_task(manifests, tmp_path)
    return (
        read_parts(files, [f"{run.path}/{part.name}" for part in written.parts], MANIFEST_ENTRIES.schema),
        read_parts(files, written.paths(run, CONTAINERS_SIDE), CONTAINERS),
        read_parts(files, written.paths(run, UNREADABLE_CONTAINERS_SIDE), UNREADABLE_CONTAINERS),
        written.summary,
    )


@pytest.mark.parametrize("batch_entries", [1, 2, 65_536])
def test_decoded_entries_reference_their_container_for_any_batch_size(
    manifests: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_entries: int
) -> None:
    monkeypatch.setattr(decoding, "BATCH_ENTRIES", batch_entries)
    entries, containers, unreadable, summary = decode(manifests, tmp_path)
    expected = {
        (f"file://{path}", path.stat().st_size, record["data_file"]["file_path"])
        for path in manifests
        for record in fastavro.reader(path.open("rb"))
    }
    found = entries.select(["container", "container_size_bytes", "address"]).to_pylist()
    assert {tuple(row.values()) for row in found} == expected
    assert len(found) == len(expected) == summary["entries"]
    assert {(row["container"], row["entries"]) for row in containers.to_pylist()} == {
        (f"file://{path}", sum(1 for _ in fastavro.reader(path.open("rb")))) for path in manifests
    }
    assert unreadable.num_rows == 0


@pytest.mark.parametrize("batch_entries", [1, 65_536])
def test_file_hashes_of_container_keep_order_of_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_entries: int) -> None:
    monkeypatch.setattr(decoding, "BATCH_ENTRIES", batch_entries)
    builder = LakeBuilder(tmp_path)
    table = builder.table("db.t", NOW - timedelta(days=40))
    table.append(NOW - timedelta(days=30), part="a")
    table.append(NOW - timedelta(days=20), part="b")
    table.delete(NOW - timedelta(days=10), "part == 'a'")
    files, run, written = run_task(sorted(builder.warehouse.rglob("*.avro")), tmp_path)
    rows = read_parts(files, [f"{run.path}/{part.name}" for part in written.parts], MANIFEST_ENTRIES.schema).to_pylist()
    counted = [row for row in rows if not row["is_container"] and row["entry_status"] != "deleted"]
    assert len(counted) < sum(not row["is_container"] for row in rows)
    hashes = read_parts(files, written.paths(run, HASHES_SIDE), HASHES)
    expected = zip([row["container"] for row in counted], xxhash64(pa.array([row["key"] for row in counted])).tolist(), strict=True)
    assert list(zip(hashes.column("container").to_pylist(), hashes.column("key_hash").to_pylist(), strict=True)) == list(expected)
    containers = read_parts(files, written.paths(run, CONTAINERS_SIDE), CONTAINERS).to_pylist()
    assert {row["container"]: row["files"] for row in containers if row["files"]} == Counter(row["container"] for row in counted)
    assert {row["files"] for row in containers if row["kind"] == "manifest_list"} == {0}


def test_container_with_unresolvable_address_is_not_read(manifests: list[Path], tmp_path: Path) -> None:
    """Other systems may resolve `..` to another object."""
    invalid = Path(f"{manifests[1].parent}/../metadata/{manifests[1].name}")
    _, containers, unreadable, _ = decode([manifests[0], invalid, manifests[2]], tmp_path)
    assert containers.num_rows == 2
    (row,) = unreadable.to_pylist()
    assert (row["address"], row["absent"]) == (f"file://{invalid}", False)
    assert "contains `..`" in row["error"]


def test_container_with_a_relative_address_is_unreadable(manifests: list[Path], tmp_path: Path) -> None:
    invalid = manifests[1]
    with invalid.open("rb") as file:
        reader = fastavro.reader(file)
        schema, records = reader.writer_schema, list(reader)
    records[0]["data_file"]["file_path"] = "data/nowhere.parquet"
    with invalid.open("wb") as file:
        fastavro.writer(file, schema, records)
    entries, containers, unreadable, summary = decode(manifests, tmp_path)
    valid = {f"file://{path}" for path in manifests if path != invalid}
    assert set(entries.column("container").to_pylist()) == set(containers.column("container").to_pylist()) == valid
    assert [row["address"] for row in unreadable.to_pylist()] == [f"file://{invalid}"]
    assert "data/nowhere.parquet" in unreadable.column("error")[0].as_py()
    assert (summary["decoded"], summary["unreadable"]) == (2, 1)


def test_decoded_files_and_containers_are_in_separate_parts(tmp_path: Path) -> None:
    """Readers of files skip the containers, of which many small commits have a hundred times more."""
    builder = LakeBuilder(tmp_path)
    table = builder.table("db.t", NOW - timedelta(days=40))
    table.append(NOW - timedelta(days=30))
    files, run, written = run_task(sorted(builder.warehouse.rglob("*.avro")), tmp_path)
    parts = [read_parts(files, [f"{run.path}/{part.name}"], MANIFEST_ENTRIES.schema) for part in written.parts]
    assert sorted(part.column("is_container").unique().to_pylist() for part in parts) == [[False], [True]]


@pytest.mark.parametrize(
    "chunks",
    [[], [[9]], [[1, 2, 3]], [[1, 2, 3], [1]], [[1], [9], [1, 1]], [[9], [9]]],
)
def test_small_containers_are_decoded_together(monkeypatch: pytest.MonkeyPatch, chunks: list[list[int]]) -> None:
    monkeypatch.setattr(decoding, "CHUNK_BYTES", 6)
    reads = iter([({}, (bytes(length), "etag")) for chunk in chunks for length in chunk])
    assert [[len(found[0]) for _, found in chunk] for chunk in decoding.chunk_reads(reads)] == chunks


def test_container_that_exceeded_decoder_limits_is_not_decoded_again(
    manifests: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exceed(*_: object) -> None:
        raise ReaderAborted("the decoder hangs")

    with monkeypatch.context() as patch:
        patch.setattr(iceberg_manifests, "read_columns", exceed)
        _, run, written = run_task(manifests[:2], tmp_path)
    failed = written.paths(run, UNREADABLE_CONTAINERS_SIDE)
    changed = manifests[1].read_bytes()
    manifests[1].write_bytes(changed + b"?")
    calls: list[int] = []
    decode_one = iceberg_manifests.read_columns
    monkeypatch.setattr(iceberg_manifests, "read_columns", lambda raw, *rest: calls.append(len(raw)) or decode_one(raw, *rest))
    files, run, written = run_task(manifests[:2], tmp_path, failed)
    unreadable = read_parts(files, written.paths(run, UNREADABLE_CONTAINERS_SIDE), UNREADABLE_CONTAINERS)
    assert [row["address"] for row in unreadable.to_pylist() if row["digest"]] == [f"file://{manifests[0]}"]
    assert calls == [len(changed) + 1]
