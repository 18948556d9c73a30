"""One decoding task: many containers are kept at once, and one that cannot be kept takes no other along."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine.tables import WrittenParts, merge_written, side_paths, write_parts
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.stages.mark import decoding
from gc_assets.stages.mark.decoding import Decode
from gc_assets.state.files import Files
from gc_assets.state.journal import State, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import MANIFEST_ENTRIES
from gc_assets.state.side_tables import CONTAINERS, CONTAINERS_SIDE, TASKS, TASKS_SIDE, UNREADABLE_CONTAINERS, UNREADABLE_CONTAINERS_SIDE
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.iceberg.builder import LakeBuilder

NOW = datetime(2026, 3, 14, tzinfo=UTC)


@pytest.fixture
def manifests(tmp_path: Path) -> list[Path]:
    """Three manifests of two data files each."""
    builder = LakeBuilder(tmp_path)
    table = builder.table("db.t", NOW - timedelta(days=40))
    for days in (30, 20, 10):
        table.append(NOW - timedelta(days=days), part="a")
        table.append(NOW - timedelta(days=days), part="b")
    return sorted(path for path in builder.warehouse.rglob("*.avro") if not path.name.startswith("snap-"))[:3]


def written_by(containers: list[Path], tmp_path: Path) -> tuple[Files, TableRun, WrittenParts]:
    """What one task writes."""
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
    decode = Decode(lake, resolver, LocalObjects(), state.files, run, tuple(f"{run.path}/{part.name}" for part in tasks))
    reports = [row for batch in decode(iter([pa.RecordBatch.from_pydict({"id": [0]})])) for row in batch.to_pylist()]
    return state.files, run, merge_written(reports)


def decoded(manifests: list[Path], tmp_path: Path) -> tuple[pa.Table, pa.Table, pa.Table, dict[str, int]]:
    """Entries, containers and unreadable containers that one task writes, and what it counts."""
    files, run, written = written_by(manifests, tmp_path)
    return (
        read_parts(files, [f"{run.path}/{part.name}" for part in written.parts], MANIFEST_ENTRIES.schema),
        read_parts(files, side_paths(run, written, CONTAINERS_SIDE), CONTAINERS),
        read_parts(files, side_paths(run, written, UNREADABLE_CONTAINERS_SIDE), UNREADABLE_CONTAINERS),
        written.summary,
    )


@pytest.mark.parametrize("at_once", [1, 2, 65_536])
def test_each_child_stands_under_its_container_however_many_are_kept_at_once(
    manifests: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(decoding, "BATCH_ENTRIES", at_once)
    entries, containers, unreadable, summary = decoded(manifests, tmp_path)
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


def test_a_container_with_an_address_that_is_no_place_is_unreadable_and_the_others_are_kept(manifests: list[Path], tmp_path: Path) -> None:
    bad = manifests[1]
    with bad.open("rb") as file:
        reader = fastavro.reader(file)
        schema, records = reader.writer_schema, list(reader)
    records[0]["data_file"]["file_path"] = "data/nowhere.parquet"
    with bad.open("wb") as file:
        fastavro.writer(file, schema, records)
    entries, containers, unreadable, summary = decoded(manifests, tmp_path)
    whole = {f"file://{path}" for path in manifests if path != bad}
    assert set(entries.column("container").to_pylist()) == set(containers.column("container").to_pylist()) == whole
    assert [row["address"] for row in unreadable.to_pylist()] == [f"file://{bad}"]
    assert "data/nowhere.parquet" in unreadable.column("error")[0].as_py()
    assert (summary["decoded"], summary["unreadable"]) == (2, 1)


def test_files_and_containers_lie_in_parts_of_their_own(tmp_path: Path) -> None:
    """So that who wants the files passes over the containers, which are a hundred times more in many small commits."""
    builder = LakeBuilder(tmp_path)
    table = builder.table("db.t", NOW - timedelta(days=40))
    table.append(NOW - timedelta(days=30))
    files, run, written = written_by(sorted(builder.warehouse.rglob("*.avro")), tmp_path)
    parts = [read_parts(files, [f"{run.path}/{part.name}"], MANIFEST_ENTRIES.schema) for part in written.parts]
    assert sorted(part.column("is_container").unique().to_pylist() for part in parts) == [[False], [True]]


@pytest.mark.parametrize(
    "together",
    [[], [[9]], [[1, 2, 3]], [[1, 2, 3], [1]], [[1], [9], [1, 1]], [[9], [9]]],
)
def test_small_containers_are_decoded_together_and_a_large_one_by_itself(
    monkeypatch: pytest.MonkeyPatch, together: list[list[int]]
) -> None:
    monkeypatch.setattr(decoding, "CHUNK_BYTES", 6)
    reads = iter([({}, (bytes(length), "etag")) for some in together for length in some])
    assert [[len(found[0]) for _, found in some] for some in decoding.chunk_reads(reads)] == together
