"""Decoding of ranges and metaranges, compared with the listings of a real server, and damaged objects."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.core.errors import FormatError
from gc_assets.lakes.entries import LOGICAL_ENTRY_SCHEMA
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.lakefs.containers import decode
from gc_assets.lakes.lakefs.object_ids import object_id
from gc_assets.lakes.lakefs.sstable import read_sstable
from gc_assets.lakes.protocol import Container
from tests.depth import full_suite_only
from tests.lakes.lakefs.recordings import NAMES, Recording
from tests.lakes.lakefs.tables import Entry, Table, TableWriter, encode_value, metarange_table, number, range_table, table, text

LOCATION = "file:///namespace/"
ENTRIES = [Entry(f"sales/{n:03}.csv", f"data/part/{n:020}", n, datetime(2026, 5, 1, 12, 0, n % 60, 5, tzinfo=UTC)) for n in range(200)]


def container(raw: Table, kind: str = Kind.RANGE, expected: int | None = None) -> Container:
    return Container(f"{LOCATION}_lakefs/{raw.object_id}", kind, len(raw), expected)


def addresses(entries: Sequence[Entry]) -> set[str]:
    raw = range_table(entries)
    return set(decode(container(raw), raw)["address"].to_pylist())


@pytest.mark.parametrize("name", ["basic", "lifecycle"])
def test_decoded_commits_contain_listed_objects(name: str) -> None:
    recording = Recording(name)
    for commit in recording.expected["commits"].values():
        held: dict[str, set[str]] = {}
        if commit["meta_range_id"]:
            for row in recording.objects(commit["meta_range_id"]).select(["path", "address"]).to_pylist():
                held.setdefault(row["path"], set()).add(row["address"])
        assert set(held) == set(commit["tree"])
        for path, key in commit["tree"].items():
            assert recording.address(key) in held[path]


@full_suite_only
def test_large_repository_decodes_to_recorded_trees() -> None:
    recording = Recording("many")
    checked = 0
    for commit in recording.expected["commits"]:
        rows = recording.objects(commit["meta_range_id"]) if commit["meta_range_id"] else LOGICAL_ENTRY_SCHEMA.empty_table()
        assert rows.num_rows == commit["objects"]
        paths = rows["path"].to_pylist()
        keys = [address.removeprefix(recording.location) for address in rows["address"].to_pylist()]
        lines = "\n".join(sorted(f"{path}\t{key}" for path, key in zip(paths, keys, strict=True)))
        assert hashlib.sha256(lines.encode()).hexdigest() == commit["tree_sha256"]
        checked += rows.num_rows
    assert checked > 100_000


@pytest.mark.parametrize("name", NAMES)
def test_sizes_and_times_equal_the_recorded_listing(name: str) -> None:
    recording = Recording(name)
    branches = recording.expected["branches"]
    held: dict[str, dict[str, Any]] = {}
    compared = 0
    for exchange in recording.exchanges("objects"):
        ref = exchange["request"]["path"].split("/refs/")[1].split("/")[0]
        if ref not in branches or compared > 3_000:
            continue
        if ref not in held:
            held[ref] = {row["path"]: row for row in recording.objects(_metaranges(recording)[ref]).to_pylist() if row["must_exist"]}
        for listed in exchange["response"]["body"]["results"]:
            row = held[ref].get(listed["path"])
            if row is not None and listed["physical_address"].endswith(row["address"].removeprefix(recording.location)):
                assert (row["size_bytes"], int(row["written_at"].timestamp())) == (listed["size_bytes"], listed["mtime"])
                compared += 1
    assert compared > 20


def _metaranges(recording: Recording) -> dict[str, str]:
    commits = recording.expected["commits"]
    of = (
        {c["id"]: c["meta_range_id"] for c in commits} if isinstance(commits, list) else {k: c["meta_range_id"] for k, c in commits.items()}
    )
    return {name: of[branch["head"]] for name, branch in recording.expected["branches"].items()}


def test_range_decodes_to_one_row_per_object() -> None:
    raw = range_table(ENTRIES)
    rows = decode(container(raw, expected=200), raw)
    assert rows.schema == LOGICAL_ENTRY_SCHEMA
    got = [(r["path"], r["address"], r["size_bytes"], r["written_at"], r["must_exist"], r["is_container"]) for r in rows.to_pylist()]
    assert got == [(e.path, LOCATION + e.address, e.size_bytes, e.written_at, True, False) for e in ENTRIES]


def test_user_metadata_is_skipped() -> None:
    assert addresses([Entry("a", "data/p/x", metadata={f"k{n}": "v" * n for n in range(30)})]) == {f"{LOCATION}data/p/x"}


def test_address_with_another_spelling_resolves_to_the_same_file() -> None:
    full = Entry("b", "local:///lakefs-blockstore/namespace/data/p/x", address_type=2)
    assert f"{LOCATION}data/p/x" in addresses([full])
    assert addresses([Entry("a", "data/p/x"), full]) >= {f"{LOCATION}data/p/x"}


def test_file_is_protected_if_its_address_has_another_mount_point() -> None:
    assert f"{LOCATION}data/p/x" in addresses([Entry("a", "local:///somewhere/else/entirely/data/p/x", address_type=2)])


def test_file_is_protected_if_its_address_repeats_root() -> None:
    assert f"{LOCATION}data/p/x" in addresses([Entry("a", "local:///store/store/namespace/data/p/x", address_type=2)])


@pytest.mark.parametrize(
    "storage, address",
    [
        ("file:///srv/blocks/", "local:///lakefs-blockstore/other/data/p/x"),  # the block store is a storage
        ("file:///srv/blocks/other/", "local:///lakefs-blockstore/other/data/p/x"),  # the other repository is a storage
        ("file:///srv/", "local:///lakefs-blockstore/other/data/p/x"),  # a storage contains the block store
        ("file:///srv/blocks/other/", "local:///srv/blocks/srv/blocks/other/data/p/x"),
    ],
)
def test_object_imported_from_another_repository_is_protected(storage: str, address: str) -> None:
    """H13: the paths of a server in a container differ from those on this machine."""
    raw = range_table([Entry("a", address, address_type=2)])
    importer = Container(f"file:///srv/blocks/importer/_lakefs/{raw.object_id}", Kind.RANGE)
    rows = decode(importer, raw, ["file:///srv/blocks/importer/", storage])
    assert "file:///srv/blocks/other/data/p/x" in rows["address"].to_pylist()
    assert len(set(rows["address"].to_pylist())) == rows.num_rows
    assert not any(rows["must_exist"].to_pylist())


def test_range_with_another_id_is_refused() -> None:
    raw, other = range_table(ENTRIES[:5]), range_table([Entry(e.path, "data/p/elsewhere") for e in ENTRIES[:5]])
    with pytest.raises(FormatError, match=f"has the content of {other.object_id}, expected {raw.object_id}"):
        decode(container(raw), other)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_table_id_equals_id_of_its_content(name: str) -> None:
    tables = dict(Recording(name).tables())
    assert {object_id(read_sstable(found, raw)) for found, raw in tables.items()} == set(tables)


def test_imported_object_keeps_its_address() -> None:
    assert addresses([Entry("a", "s3://bucket/raw/x", address_type=2)]) == {"s3://bucket/raw/x"}
    assert "file:///lakefs-external/x.bin" in addresses([Entry("a", "local:///lakefs-external/x.bin", address_type=2)])


@pytest.mark.parametrize(
    "address, others",
    [
        ("s3://bucket/raw/file%3Aname.txt", {"s3://bucket/raw/file:name.txt"}),
        ("gs://bucket/raw/a%20b?generation=1", {"gs://bucket/raw/a%20b", "gs://bucket/raw/a b"}),
        ("s3://bucket/raw/100%", set()),
        ("s3://bucket/raw/%FF", set()),
        ("s3://bucket/raw/%2e%2e/x", set()),  # a key with `..`
        ("https://account.blob.core.windows.net/raw/a%20b", set()),  # each web address is decoded when it is resolved
    ],
)
def test_server_decodes_addresses_in_buckets(address: str, others: set[str]) -> None:
    """lakeFS #9466. Without decoding, the file was planned if another lake expired it."""
    assert addresses([Entry("a", address, address_type=2)]) == {address} | others


@pytest.mark.parametrize(
    "address, expected", [("data/p/x", f"{LOCATION}data/p/x"), ("s3://bucket/x", "s3://bucket/x"), ("0123abcd", f"{LOCATION}0123abcd")]
)
def test_deprecated_address_with_scheme_is_full_address(address: str, expected: str) -> None:
    assert addresses([Entry("a", address, address_type=0)]) == {expected}


def test_possible_addresses_need_not_exist() -> None:
    raw = range_table([Entry("a", "local:///x/namespace/data/p/x", address_type=2)])
    assert not any(decode(container(raw), raw)["must_exist"].to_pylist())


def test_only_likeliest_address_is_object() -> None:
    raw = range_table([Entry("a", "local:///data/blocks/namespace/data/p/x", address_type=2), Entry("b", "local:///raw/x", address_type=2)])
    rows = decode(container(raw), raw, ["file:///", "file:///srv/"]).to_pylist()
    assert [row["address"] for row in rows if row["kind"] == Kind.OBJECT] == [f"{LOCATION}data/p/x", "file:///raw/x"]
    assert {row["kind"] for row in rows} == {Kind.OBJECT, Kind.POSSIBLE_OBJECT}


def test_object_with_non_utf_8_path_is_decoded() -> None:
    _, value = Entry("a", "data/p/x").encode()
    raw = TableWriter().write([(b"a\xff", value)], {"type": "ranges", "count": "1"})
    with pytest.raises(FormatError, match="min_key"):
        decode(container(raw), raw)
    plain = TableWriter()
    plain.meta = {}
    pairs = [(b"a", value), (b"a\xff", value), (b"b", value)]
    raw = plain.write(pairs, {"type": "ranges", "count": "3", "min_key": "a", "max_key": "b"})
    assert decode(container(raw), raw)["path"].to_pylist() == ["a", "a\ufffd\\xff", "b"]


def test_range_with_missing_objects_is_refused() -> None:
    raw = range_table(ENTRIES[:199])
    with pytest.raises(FormatError, match="records 200 objects, read 199"):
        decode(container(raw, expected=200), raw)


@pytest.mark.parametrize(
    "properties, found",
    [
        ({"count": "199"}, "`count` property is 199, but it has 200 records"),
        ({"count": None}, "`count` property is None"),
        ({"type": "metaranges"}, "found .'metaranges', None."),
        ({"entity": "commit"}, "type and entity .'ranges', None."),
        ({"min_key": "sales/001.csv"}, "property min_key"),
        ({"max_key": "sales/198.csv"}, "property max_key"),
    ],
)
def test_range_with_wrong_properties_is_refused(properties: dict[str, str | None], found: str) -> None:
    raw = range_table(ENTRIES, **properties)
    with pytest.raises(FormatError, match=f"^range {LOCATION}_lakefs/.*{found}"):
        decode(container(raw), raw)


@pytest.mark.parametrize(
    "data, found",
    [
        (number(3, 1), "an entry without an address"),
        (text(1, "data/x") + number(6, 3), "address type 3"),
        (text(1, b"data/\xff"), "an address that is not UTF-8"),
        (text(1, "data/x") + text(3, "no number"), "the field size with another wire type"),
        (text(1, "data/x")[:-1], "runs past its end"),
    ],
)
def test_invalid_entry_is_refused(data: bytes, found: str) -> None:
    raw = table([(b"a", encode_value(b"i" * 32, data))], "ranges")
    with pytest.raises(FormatError, match=found):
        decode(container(raw), raw)


def test_metarange_references_ranges_with_object_counts() -> None:
    ids = ["a" * 64, "b" * 64]
    raw = metarange_table([(ids[0], b"a", b"c", 5), (ids[1], b"d", b"f", 7)])
    rows = decode(container(raw, Kind.METARANGE), raw).to_pylist()
    assert [(r["address"], r["kind"], r["is_container"], r["expected_entries"]) for r in rows] == [
        (f"{LOCATION}_lakefs/{ids[0]}", "range", True, 5),
        (f"{LOCATION}_lakefs/{ids[1]}", "range", True, 7),
    ]


@pytest.mark.parametrize(
    "ranges, found",
    [
        ([("a" * 64, b"a", b"m", 1), ("b" * 64, b"k", b"z", 1)], "out of order"),
        ([("a" * 64, b"m", b"a", 1)], "out of order"),
        ([("a" * 64, b"a", b"m", 0)], ", 0 records, "),
        ([("../../etc/passwd", b"a", b"m", 1)], "64 hexadecimal digits"),
    ],
)
def test_inconsistent_metarange_is_refused(ranges: list[tuple[str, bytes, bytes, int]], found: str) -> None:
    raw = metarange_table(ranges)
    with pytest.raises(FormatError, match=found):
        decode(container(raw, Kind.METARANGE), raw)


@pytest.mark.parametrize(
    "address, kind",
    [
        (f"{LOCATION}_lakefs/dummy", Kind.RANGE),
        (f"{LOCATION}data/{'a' * 64}", Kind.RANGE),
        (f"{LOCATION}_lakefs/{'a' * 64}", Kind.MANIFEST),
    ],
)
def test_container_must_be_in_the_metadata_folder(address: str, kind: str) -> None:
    with pytest.raises(FormatError, match="expected a metarange or range at"):
        decode(Container(address, kind), b"")


def test_empty_commit_has_empty_metarange() -> None:
    raw = metarange_table([])
    assert decode(container(raw, Kind.METARANGE), raw) == pa.RecordBatch.from_pylist([], schema=LOGICAL_ENTRY_SCHEMA)
