"""A manifest of another length than its list states is accepted if its block headers prove that it
is complete (case iceberg/03).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest

from gc_assets.core.errors import FormatError, LakeUnreadable
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.iceberg.manifests import decode, decode_many
from gc_assets.lakes.iceberg.metadata import parse_metadata
from gc_assets.lakes.iceberg.readable import ReadabilityChecker
from gc_assets.lakes.protocol import Container
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import days_ago


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TableBuilder:
    table = LakeBuilder(tmp_path_factory.mktemp("lengths")).table("db.t", days_ago(9), partitioned=True)
    for part in ("a", "b"):
        table.append(days_ago(9), part=part)
    return table


@pytest.fixture
def manifest(table: TableBuilder) -> Iterator[tuple[Container, Path]]:
    """Return a manifest as its list describes it, and its file. Restore the file afterwards."""
    lists = [snapshot.manifest_list for snapshot in table.table.snapshots()]
    raw = Path(lists[-1].removeprefix("file://")).read_bytes()
    row = decode(Container(lists[-1], Kind.MANIFEST_LIST), raw).to_pylist()[0]
    path = Path(row["address"].removeprefix("file://"))
    content = path.read_bytes()
    yield Container(row["address"], Kind.MANIFEST, row["size_bytes"], row["expected_entries"], row["snapshot_id"]), path
    path.write_bytes(content)


def rewritten(raw: bytes, *, copies: int = 1, codec: str = "deflate") -> bytes:
    """Write the records of a manifest again, with more metadata."""
    reader: Any = fastavro.reader(io.BytesIO(raw))
    records, metadata = list(reader) * copies, {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    found = io.BytesIO()
    fastavro.writer(found, reader.writer_schema, records, codec=codec, metadata={**metadata, "pad": "x" * 20})
    return found.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_manifest_with_wrong_length_but_right_entry_count_is_accepted(manifest: tuple[Container, Path], codec: str) -> None:
    container, path = manifest
    raw, longer = path.read_bytes(), rewritten(path.read_bytes(), codec=codec)
    assert len(longer) != container.size_bytes
    assert decode(container, longer).equals(decode(container, raw))
    assert [rows for rows in decode_many([(container, longer)] * 9) if isinstance(rows, FormatError)] == []


@pytest.mark.parametrize("cut", [1, 16, 17, 400])
def test_truncated_manifest_is_refused(manifest: tuple[Container, Path], cut: int) -> None:
    container, path = manifest
    with pytest.raises(FormatError, match=r"bytes, expected .*truncated or was replaced"):
        decode(container, path.read_bytes()[:-cut])


def test_manifest_with_wrong_entry_count_is_refused(manifest: tuple[Container, Path]) -> None:
    container, path = manifest
    with pytest.raises(FormatError, match=r"it has 2 entries, but its manifest list records 1"):
        decode(container, rewritten(path.read_bytes(), copies=2))


def test_bytes_after_last_avro_block_are_refused(manifest: tuple[Container, Path]) -> None:
    container, path = manifest
    with pytest.raises(FormatError, match="bytes, expected"):
        decode(container, path.read_bytes() + b"\x00" * 8)


def test_manifest_without_entry_count_must_have_recorded_length(manifest: tuple[Container, Path]) -> None:
    container, path = manifest
    with pytest.raises(FormatError, match="rewrite the table's manifests"):
        decode(replace(container, expected_entries=None), rewritten(path.read_bytes()))


def check_readable(table: TableBuilder) -> None:
    address = table.metadata_location
    snapshots = parse_metadata(address, Path(address.removeprefix("file://")).read_bytes()).snapshots
    with ThreadPoolExecutor(2) as readers:
        ReadabilityChecker(LocalObjects(), readers).check("db.t", snapshots)


def test_history_edit_accepts_manifest_with_wrong_length(table: TableBuilder, manifest: tuple[Container, Path]) -> None:
    _, path = manifest
    check_readable(table)
    raw = path.read_bytes()
    path.write_bytes(rewritten(raw))
    check_readable(table)
    path.write_bytes(raw[:-20])
    with pytest.raises(LakeUnreadable, match=r"table db\.t: manifest .* bytes, expected"):
        check_readable(table)


def test_unexpected_decoder_error_reports_container(table: TableBuilder, manifest: tuple[Container, Path]) -> None:
    """A file of another kind of lake has neither the columns nor the types of a manifest."""
    container, _ = manifest
    schema = {"type": "record", "name": "r", "fields": [{"name": "status", "type": "string"}, {"name": "data_file", "type": "string"}]}
    other = io.BytesIO()
    fastavro.writer(other, schema, [{"status": "x", "data_file": "y"}])
    lake = IcebergLake(LakeBuilder(table.lake.root).config(), LocalObjects())
    (found,) = lake.decode_many([(replace(container, size_bytes=None), other.getvalue())])
    assert isinstance(found, FormatError)
    assert container.address in str(found)
