"""Decoded objects of containers: lengths, numbers of files and etags."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gc_assets.stages.mark.decoded_containers import DECODED_COLUMNS, DecodedContainers
from gc_assets.state.side_tables import CONTAINERS, IDENTITY_SEPARATOR, ROOTS


def match(containers: list[str], *objects: tuple[str, int, str]) -> DecodedContainers:
    """Match containers with decoded objects, which are rows of (container, length, etag)."""
    rows: list[dict[str, Any]] = [
        {"container": container, "container_size_bytes": length, "etag": etag, "digest": f"#{etag}", "files": length * 10}
        for container, length, etag in objects
    ]
    index = pa.Table.from_pylist(rows, CONTAINERS).select(list(DECODED_COLUMNS))
    return DecodedContainers.match(index, pa.Table.from_pylist([{"address": address} for address in containers], ROOTS))


def lengths_of(decoded: DecodedContainers, *recorded: int | None) -> list[int | None]:
    return decoded.find_lengths(pa.chunked_array([pa.array(recorded, pa.int64())])).to_pylist()


def test_container_matches_only_object_of_recorded_length() -> None:
    decoded = match(["a", "b", "c"], ("a", 3, "x"), ("a", 5, "y"), ("b", 3, "x"), ("other", 4, "z"))
    assert lengths_of(decoded, 3, 4, 4) == [3, None, None]


def test_container_matches_longest_object_if_no_length_is_recorded() -> None:
    decoded = match(["a", "b"], ("a", 3, "x"), ("a", 5, "y"), ("a", 4, "z"))
    assert lengths_of(decoded, None, None) == [5, None]
    assert decoded.longest.tolist() == [5, -1]


def test_file_count_includes_all_objects_of_container() -> None:
    decoded = match(["a", "b", "c"], ("b", 3, "x"), ("a", 1, "x"), ("b", 5, "y"))
    assert decoded.count_files().to_pylist() == [10, 80, 0]


def test_etags_of_equally_long_objects_are_joined() -> None:
    decoded = match(["a", "b", "c"], ("b", 3, "x"), ("a", 1, "x"), ("b", 3, "y"), ("b", 4, "z"), ("b", 3, "x"))
    found = decoded.join_identities(pa.chunked_array([pa.array([1, 3, None], pa.int64())]))
    assert found["etag"].to_pylist() == ["x", IDENTITY_SEPARATOR.join("xy"), None]
    assert found["digest"].to_pylist() == ["#x", IDENTITY_SEPARATOR.join(["#x", "#y"]), None]


def test_no_containers_match_no_rows() -> None:
    decoded = match([], ("a", 3, "x"))
    assert lengths_of(decoded) == []
    assert decoded.count_files().to_pylist() == []
    assert decoded.join_identities(pa.chunked_array([], pa.int64()))["etag"].to_pylist() == []
