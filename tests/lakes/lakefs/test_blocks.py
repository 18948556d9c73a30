"""Damaged blocks and messages with a valid checksum raise only `FormatError`."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.core.errors import FormatError
from gc_assets.lakes.lakefs.blocks import read_blocks
from gc_assets.lakes.lakefs.wire import Buffer, scan_messages
from tests.lakes.lakefs.tables import SET, TableWriter, number, svarint, text, uvarint

PAIRS = [(f"key/{n:03}".encode() + SET, bytes([n]) * 9) for n in range(40)]
BLOCK = TableWriter()._block(PAIRS)


@given(st.lists(st.tuples(st.integers(0, len(BLOCK) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_damaged_block_is_refused_or_read_inside_its_bounds(changes: list[tuple[int, int]]) -> None:
    raw = bytearray(BLOCK)
    for position, value in changes:
        raw[position] = value
    with suppress(FormatError):
        entries = read_blocks("the block", [bytes(raw)])
        assert np.all(entries.value_starts + entries.value_sizes <= len(raw))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_as_block(raw: bytes) -> None:
    with suppress(FormatError):
        entries = read_blocks("the block", [raw])
        assert np.all(entries.value_starts + entries.value_sizes <= len(raw))


@given(st.binary(max_size=80))
def test_random_bytes_are_refused_as_message(raw: bytes) -> None:
    buffer = Buffer.of("the message", [raw])
    with suppress(FormatError):
        fields = scan_messages(buffer, np.array([0]), np.array([len(raw)]), {1: "address:bytes", 3: "size"})
        starts, sizes = fields[1].spans(1)
        assert np.all(starts + sizes <= len(raw))


@given(st.integers(0, 2**64 - 1))
def test_varint_round_trips(value: int) -> None:
    values, after = Buffer.of("the number", [uvarint(value)]).uvarints(np.array([0]))
    assert values[0] == value
    assert after[0] == len(uvarint(value))


@given(st.integers(0, 2**40))
def test_signed_varint_doubles_the_length(value: int) -> None:
    assert svarint(value) == uvarint(2 * value)


def test_last_occurrence_of_protobuf_field_applies() -> None:
    raw = number(3, 1) + text(9, "new") + number(3, 7) + text(1, "a") + bytes([0x55, 1, 2, 3, 4]) + text(1, "bc")
    fields = scan_messages(Buffer.of("the message", [raw]), np.array([0]), np.array([len(raw)]), {1: "address:bytes", 3: "size"})
    assert fields[3].numbers(1).tolist() == [7]
    start, size = (column[0] for column in fields[1].spans(1))
    assert raw[start : start + size] == b"bc"


def test_field_with_another_wire_type_is_refused() -> None:
    raw = number(1, 5)
    with pytest.raises(FormatError, match="the field address with another wire type"):
        scan_messages(Buffer.of("the message", [raw]), np.array([0]), np.array([len(raw)]), {1: "address:bytes"})
