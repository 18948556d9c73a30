"""Batches become Parquet parts whose records match their content."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.core.errors import StateError
from gc_assets.state import parts
from gc_assets.state.files import Files
from gc_assets.state.parts import PartWriter, read_parts

SCHEMA = pa.schema([("key", pa.string()), ("size_bytes", pa.int64())])


def batch(*keys: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": list(keys), "size_bytes": pa.array([len(key) for key in keys], pa.int64())}, schema=SCHEMA)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(str(tmp_path))


def test_parts_match_their_records(files: Files, tmp_path: Path) -> None:
    writer = PartWriter(files, "t/run", SCHEMA)
    writer.write(batch("a", "b"))
    writer.write(batch("c"))
    (part,) = writer.close()
    content = (tmp_path / "t" / "run" / part.name).read_bytes()
    assert (part.rows, part.size_bytes, part.sha256) == (3, len(content), hashlib.sha256(content).hexdigest())
    assert pq.read_table(tmp_path / "t" / "run" / part.name).column("key").to_pylist() == ["a", "b", "c"]


def test_no_part_is_written_without_rows(files: Files) -> None:
    writer = PartWriter(files, "t", SCHEMA)
    writer.write(batch())
    assert writer.close() == []
    assert files.list("t", recursive=True) == []


def test_part_ends_at_row_limit(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 3)
    writer = PartWriter(files, "t", SCHEMA)
    for key in "abcdefg":
        writer.write(batch(key))
    assert [part.rows for part in writer.close()] == [3, 3, 1]
    found = read_parts(files, [f"t/{part.name}" for part in writer.parts], SCHEMA)
    assert found.column("key").to_pylist() == list("abcdefg")


def test_part_ends_at_byte_limit(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 1)
    writer = PartWriter(files, "t", SCHEMA)
    writer.write(batch("a", "b"))
    writer.write(batch("c"))
    assert [part.rows for part in writer.close()] == [2, 1]


def test_part_writer_memory_is_bounded(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "GROUP_BYTES", 2**20)
    writer, before, most, written = PartWriter(files, "t", SCHEMA), pa.total_allocated_bytes(), 0, 0
    for number in range(400):  # 40 MB, which are next to nothing when they are compressed
        rows = batch(*[f"{number:03}".ljust(100)] * 1000)
        written += rows.nbytes
        writer.write(rows)
        most = max(most, pa.total_allocated_bytes() - before)
    (part,) = writer.close()
    assert (part.rows, written > 40e6, most < 8e6) == (400_000, True, True)
    assert pq.read_metadata(f"{files.root}/t/{part.name}").num_row_groups > 10


def test_second_attempt_keeps_parts_of_first(files: Files) -> None:
    attempts = [PartWriter(files, "t", SCHEMA), PartWriter(files, "t", SCHEMA)]
    for attempt in attempts:
        attempt.write(batch("a"))
        attempt.close()
    assert len({part.name for attempt in attempts for part in attempt.parts}) == 2
    assert len(files.list("t")) == 2


def test_side_table_has_separate_directory(files: Files) -> None:
    writer = PartWriter(files, "t", SCHEMA, "_side")
    writer.write(batch("a"))
    (part,) = writer.close()
    assert part.name.startswith("_side/part-")
    assert files.list("t") == []
    assert len(files.list("t/_side")) == 1


def test_columns_are_cast_by_name(files: Files) -> None:
    writer = PartWriter(files, "t", SCHEMA)
    writer.write(
        pa.RecordBatch.from_pydict({"more": [True], "size_bytes": pa.array([1], pa.int32()), "key": pa.array(["a"], pa.large_string())})
    )
    writer.close()
    assert read_parts(files, [f"t/{part.name}" for part in writer.parts], SCHEMA).to_pylist() == [{"key": "a", "size_bytes": 1}]


def test_invalid_value_stops_write(files: Files) -> None:
    writer = PartWriter(files, "t", pa.schema([("size_bytes", pa.int32())]))
    writer.write(batch("a").set_column(1, "size_bytes", pa.array([2**40], pa.int64())))
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        writer.close()
    assert files.list("t") == []


def test_empty_list_of_parts_reads_as_empty_table(files: Files) -> None:
    assert read_parts(files, [], SCHEMA, ["size_bytes"]).schema == pa.schema([SCHEMA.field("size_bytes")])


def test_missing_or_truncated_part_raises(files: Files) -> None:
    writer = PartWriter(files, "t", SCHEMA)
    writer.write(batch("a"))
    (part,) = writer.close()
    files.replace(f"t/{part.name}", files.read(f"t/{part.name}")[:-10])
    with pytest.raises(StateError, match=f"{part.name} is damaged"):
        read_parts(files, [f"t/{part.name}"], SCHEMA)
    with pytest.raises(StateError, match=r"gone\.parquet is missing"):
        read_parts(files, ["t/gone.parquet"], SCHEMA)


@given(st.lists(st.lists(st.text(max_size=3), max_size=5), max_size=8), st.integers(1, 7))
def test_record_batches_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], limit: int) -> None:
    files = Files(str(tmp_path_factory.mktemp("parts")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PART_ROWS", limit)
        writer = PartWriter(files, "t", SCHEMA)
        for keys in rows:
            writer.write(batch(*keys))
        written = writer.close()
    found = read_parts(files, [f"t/{part.name}" for part in written], SCHEMA)
    assert found.column("key").to_pylist() == [key for keys in rows for key in keys]
    assert sum(part.rows for part in written) == found.num_rows


def test_hash_columns_have_no_dictionary(files: Files, tmp_path: Path) -> None:
    schema = pa.schema([("kind", pa.string()), ("key_hash", pa.int64())])
    writer = PartWriter(files, "t", schema)
    writer.write(pa.RecordBatch.from_pydict({"kind": ["data"] * 9, "key_hash": list(range(9))}, schema=schema))
    (part,) = writer.close()
    group = pq.read_metadata(tmp_path / "t" / part.name).row_group(0)
    assert [group.column(number).has_dictionary_page for number in range(2)] == [True, False]


def test_flipped_bit_never_changes_rows_read(files: Files, tmp_path: Path) -> None:
    """Hashes do not compress, so no other check of Parquet or Zstandard finds the bit."""
    chance, schema = Random(5), pa.schema([("key", pa.string()), ("key_hash", pa.int64())])
    rows = pa.table(
        {"key": [f"data/{number}" for number in range(3_000)], "key_hash": [chance.getrandbits(62) for _ in range(3_000)]}, schema
    )
    writer = PartWriter(files, "t", schema)
    writer.write(rows.combine_chunks().to_batches()[0])
    (part,) = writer.close()
    path, found = tmp_path / "t" / part.name, 0
    content, columns = path.read_bytes(), pq.read_metadata(path).row_group(0)
    pages = max(column.data_page_offset + column.total_compressed_size for column in map(columns.column, range(2)))
    for _ in range(200):
        damaged = bytearray(content)
        damaged[chance.randrange(4, pages)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            assert read_parts(files, [f"t/{part.name}"], schema) == rows
        except (StateError, pa.ArrowException, OSError):
            found += 1
    assert found > 150
