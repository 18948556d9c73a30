"""Manifests whose length differs from the recorded one are accepted by their number of entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark.recorded_lengths import add_accepted_lengths, describe_accepted_lengths, find_accepted_lengths
from gc_assets.state.files import Files
from gc_assets.state.parts import PartWriter
from gc_assets.state.side_tables import EDGES, EDGES_SIDE, ROOTS

ADDRESS = "s3://b/m.avro"


def accept_lengths(tmp_path: Path, decoded: list[tuple[int, int]], expected: list[int | None], kind: str = Kind.MANIFEST) -> dict[str, int]:
    """Return the accepted lengths of one container.

    Args:
        tmp_path: The state.
        decoded: Length and number of entries of each decoded version.
        expected: Number of entries in each edge.
        kind: Kind of the container.
    """
    files = Files(str(tmp_path))
    writer = PartWriter(files, "run", EDGES, EDGES_SIDE)
    edges: list[dict[str, Any]] = [{"address": ADDRESS, "expected_entries": entries, "size_bytes": 9} for entries in expected]
    writer.write(pa.RecordBatch.from_pylist(edges, schema=EDGES))
    paths = [f"run/{part.name}" for part in writer.close()]
    index = pa.Table.from_pylist(
        [{"container": ADDRESS, "container_size_bytes": length, "entries": entries} for length, entries in decoded],
        schema=pa.schema([("container", pa.string()), ("container_size_bytes", pa.int64()), ("entries", pa.int64())]),
    )
    return dict(find_accepted_lengths(files, paths, index, build_roots(kind)))


def build_roots(kind: str = Kind.MANIFEST) -> pa.Table:
    return pa.Table.from_pylist([{"address": ADDRESS, "kind": kind, "size_bytes": 9}], schema=ROOTS)


@pytest.mark.parametrize("decoded, expected", [([(12, 3)], [3]), ([(12, 3)], [3, None]), ([(7, 3)], [3, 3])])
def test_manifest_with_wrong_length_but_right_entry_count_is_accepted(
    tmp_path: Path, decoded: list[tuple[int, int]], expected: list[int | None]
) -> None:
    assert accept_lengths(tmp_path, decoded, expected) == {ADDRESS: decoded[0][0]}


@pytest.mark.parametrize(
    "decoded, expected, kind",
    [
        ([(12, 3)], [4], Kind.MANIFEST),
        ([(12, 3)], [3, 4], Kind.MANIFEST),
        ([(12, 3)], [None], Kind.MANIFEST),
        ([(12, 3), (14, 3)], [3], Kind.MANIFEST),
        ([], [3], Kind.MANIFEST),
        ([(12, 3)], [3], Kind.SNAPSHOT),
        ([(12, 3)], [3], Kind.CHUNK_MANIFEST),
    ],
)
def test_other_containers_with_wrong_length_are_not_accepted(
    tmp_path: Path, decoded: list[tuple[int, int]], expected: list[int | None], kind: str
) -> None:
    assert accept_lengths(tmp_path, decoded, expected, kind) == {}


def test_accepted_wrong_length_adds_note() -> None:
    lengths = add_accepted_lengths(pa.chunked_array([pa.array([None], pa.int64())]), build_roots(), {ADDRESS: 12})
    assert lengths.to_pylist() == [12]
    (note,) = describe_accepted_lengths("sales", build_roots(), lengths)
    assert f"{ADDRESS}: 12 bytes, recorded 9" in note


def test_correct_recorded_length_adds_no_note() -> None:
    assert list(describe_accepted_lengths("sales", build_roots(), pa.chunked_array([pa.array([9], pa.int64())]))) == []
    assert list(describe_accepted_lengths("sales", build_roots(), pa.chunked_array([pa.array([None], pa.int64())]))) == []
