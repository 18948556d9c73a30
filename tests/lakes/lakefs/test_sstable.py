"""SSTables of a real server and of the test writer, and damaged or unknown ones."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.core.errors import FormatError
from gc_assets.lakes.lakefs.sstable import read_sstable
from tests.lakes.lakefs.recordings import NAMES, Recording
from tests.lakes.lakefs.tables import TableWriter

PAIRS = [(f"key/{number:05}".encode(), f"value {number}".encode() * 3) for number in range(5000)]


def pairs_of(raw: bytes) -> list[tuple[bytes, bytes]]:
    entries = read_sstable("the table", raw).entries
    return list(zip(entries.keys.to_pylist(), entries.values().to_pylist(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_recorded_tables_have_the_recorded_counts(name: str) -> None:
    counted = 0
    for object_id, raw in Recording(name).tables():
        table = read_sstable(object_id, raw)
        keys = table.entries.keys.to_pylist()
        assert len(keys) == int(table.properties[b"count"])
        assert keys == sorted(set(keys))
        counted += len(keys)
    assert counted > 100


def test_recorded_tables_have_both_index_types() -> None:
    kinds = {read_sstable(name, raw).properties[b"rocksdb.block.based.table.index.type"][0] for name, raw in Recording("many").tables()}
    assert kinds == {0, 2}


@pytest.mark.parametrize("two_level", [False, True])
@pytest.mark.parametrize("compression", [0, 1])
def test_sstable_entries_round_trip_in_order(two_level: bool, compression: int) -> None:
    assert pairs_of(TableWriter(two_level=two_level, compression=compression).write(PAIRS)) == PAIRS


def test_shared_key_prefix_may_be_longer_than_entry() -> None:
    pairs = [(b"k" * 300 + end, b"v") for end in (b"1", b"2", b"3")]
    assert pairs_of(TableWriter().write(pairs)) == pairs


def test_sstable_without_entries_is_empty() -> None:
    assert pairs_of(TableWriter().write([])) == []


@given(
    st.dictionaries(st.binary(max_size=40), st.binary(max_size=60), max_size=120),
    st.integers(1, 20),
    st.integers(1, 300),
    st.sampled_from([None, False, True]),
)
def test_random_sstables_round_trip(pairs: dict[bytes, bytes], interval: int, block: int, two_level: bool | None) -> None:
    writer = TableWriter(restart_interval=interval, block_bytes=block, two_level=two_level)
    assert pairs_of(writer.write(sorted(pairs.items()))) == sorted(pairs.items())


@pytest.mark.parametrize(
    "writer, found",
    [
        (TableWriter(magic=bytes.fromhex("57fb808b247547db")), "LevelDB"),
        (TableWriter(magic=bytes.fromhex("f09faab3f09faab3")), "Pebble's own format"),
        (TableWriter(magic=b"nonsense"), "expected an SSTable that ends in f7cff485b741e288"),
        (TableWriter(checksum=3), "xxHash64"),
        (TableWriter(checksum=9), "unknown .type 9"),
        (TableWriter(version=5), "format version 5; expected 2"),
        (TableWriter(compression=7), "compressed with zstd"),
        (TableWriter(compression=11), "compressed with unknown .type 11"),
        (TableWriter(index_type=1), "index has type 1"),
        (TableWriter(num_entries=4999), "rocksdb.num.entries is 4,999, read 5,000"),
        (TableWriter(key_trailer=bytes(8)), "kind 0, expected 1"),
        (TableWriter(meta={b"rocksdb.range_del": b"\0\0"}), "range deletions"),
    ],
)
def test_unknown_or_miscounted_sstable_is_refused(writer: TableWriter, found: str) -> None:
    with pytest.raises(FormatError, match=f"^range abc.*{found}"):
        read_sstable("range abc", writer.write(PAIRS))


def test_flipped_bit_in_a_block_is_refused() -> None:
    raw = TableWriter().write(PAIRS[:300])
    for position in range(0, len(raw) - 53, 37):
        damaged = bytearray(raw)
        damaged[position] ^= 0x10
        with pytest.raises(FormatError):
            read_sstable("the table", bytes(damaged))


def test_truncated_sstable_is_refused() -> None:
    raw = TableWriter().write(PAIRS[:300])
    for length in [0, 7, 8, 52, 53, *range(60, len(raw), 311), len(raw) - 1]:
        with pytest.raises(FormatError):
            read_sstable("the table", raw[:length])


def test_index_without_last_block_is_refused() -> None:
    short = TableWriter(num_entries=len(PAIRS)).write(PAIRS[:-60])
    with pytest.raises(FormatError, match=r"rocksdb.num.entries is 5,000, read 4,940"):
        read_sstable("the table", short)


@given(st.data())
def test_randomly_damaged_sstable_is_refused_or_read_correctly(data: st.DataObject) -> None:
    raw = bytearray(TableWriter(block_bytes=200).write(PAIRS[:60]))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError):
        assert pairs_of(bytes(raw)) == PAIRS[:60]
