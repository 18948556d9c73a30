"""Sizes and identities of objects: one request per object, or a listing for many objects of a directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.requests import count_requests
from gc_assets.stages.mark.manifest_entries import refuse_blind_executors
from gc_assets.stages.mark.object_sizes import LISTED_KEYS_PER_HEAD, MIN_LISTED_KEYS, UNKNOWN, read_identities, read_sizes
from gc_assets.stores.local.objects import LocalObjects
from gc_assets.stores.store import open_objects
from tests.stores.s3_bench import open_s3_bench


@dataclass(frozen=True)
class RecordingObjects(LocalObjects):
    """The local store with a record of the objects that were requested one by one."""

    requested: list[str] = field(default_factory=list[str])

    def size(self, address: str) -> int:
        self.requested.append(address)
        return super().size(address)


class UnlistedObjects(RecordingObjects):
    """A store that must not be listed."""

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        raise AssertionError(f"{prefix} was listed")


def write(directory: Path, names: list[str]) -> list[str]:
    """Write files of 1, 2, 3 ... bytes and return their addresses."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names, 1):
        (directory / name).write_bytes(b"x" * number)
    return [f"file://{directory}/{name}" for name in names]


def snapshots(count: int) -> list[str]:
    return [f"snap-{number}.avro" for number in range(count)]


def test_directories_with_many_objects_are_listed(tmp_path: Path) -> None:
    many = write(tmp_path / "many" / "metadata", snapshots(MIN_LISTED_KEYS))
    write(tmp_path / "many" / "metadata" / "below", snapshots(3))
    others = write(tmp_path / "others" / "metadata", snapshots(MIN_LISTED_KEYS - 1))
    objects = RecordingObjects()
    assert read_sizes(objects, [*others, *many]) == [*range(1, MIN_LISTED_KEYS), *range(1, MIN_LISTED_KEYS + 1)]
    assert sorted(objects.requested) == sorted(others)


def test_run_between_listings_requests_every_size(tmp_path: Path) -> None:
    many = write(tmp_path / "metadata", snapshots(MIN_LISTED_KEYS))
    objects = UnlistedObjects()
    assert read_sizes(objects, many, may_list=False) == list(range(1, MIN_LISTED_KEYS + 1))
    assert sorted(objects.requested) == sorted(many)


def test_missing_object_has_no_size(tmp_path: Path) -> None:
    many = write(tmp_path / "many", snapshots(MIN_LISTED_KEYS))
    missing = [f"file://{tmp_path}/many/snap-gone.avro", f"file://{tmp_path}/nowhere/snap-1.avro"]
    assert read_sizes(RecordingObjects(), [*many, *missing])[-2:] == [-1, -1]


def test_listing_of_a_large_directory_is_cut_off(tmp_path: Path) -> None:
    names = snapshots(MIN_LISTED_KEYS)
    many = write(tmp_path / "data", names)
    write(tmp_path / "data" / "deep", [f"{number}.parquet" for number in range(2 * LISTED_KEYS_PER_HEAD * MIN_LISTED_KEYS)])
    assert read_sizes(RecordingObjects(), many) == list(range(1, MIN_LISTED_KEYS + 1))


def test_sizes_of_percent_encoded_names_are_requested_one_by_one(tmp_path: Path) -> None:
    """The address `a%20b` is that of the file `a b`, and another file has the name `a%20b`."""
    write(tmp_path, [f"{number} b" for number in range(MIN_LISTED_KEYS)])
    for number in range(MIN_LISTED_KEYS):
        (tmp_path / f"{number}%20b").write_bytes(b"x" * 99)
    addresses = [f"file://{tmp_path}/{number}%20b" for number in range(MIN_LISTED_KEYS)]
    objects = LocalObjects()
    assert read_sizes(objects, addresses) == [objects.size(address) for address in addresses]


def test_sizes_in_unlistable_directory_are_requested_one_by_one(tmp_path: Path) -> None:
    many = write(tmp_path, snapshots(MIN_LISTED_KEYS))
    (tmp_path / "link").symlink_to(tmp_path / "snap-0.avro")
    objects = RecordingObjects()
    assert read_sizes(objects, many) == list(range(1, MIN_LISTED_KEYS + 1))


def test_object_in_unknown_store_has_no_size() -> None:
    assert read_sizes(open_objects(), ["hdfs://nn/snap.avro", "oss://bucket/snap.avro", "file:///a\0b", "file://host/x"]) == [-1] * 4


@pytest.mark.parametrize("many", [MIN_LISTED_KEYS, MIN_LISTED_KEYS - 1])
def test_one_listing_of_a_bucket_returns_many_sizes(many: int) -> None:
    with open_s3_bench("ceph") as bench:
        for number in range(many):
            bench.client.put_object(Bucket=bench.bucket, Key=f"t/metadata/{number}.avro", Body=b"x" * number)
        addresses = [f"s3://{bench.bucket}/t/metadata/{number}.avro" for number in range(many)]
        with count_requests() as tally:
            assert read_sizes(bench.store.objects, addresses) == list(range(many))
        expected = {"LIST": 1} if many == MIN_LISTED_KEYS else {"HEAD": many}
        assert tally.sent.counts == expected


@pytest.mark.parametrize("may_list", [True, False])
def test_identities_are_those_that_single_requests_return(tmp_path: Path, *, may_list: bool) -> None:
    many = [*write(tmp_path, snapshots(MIN_LISTED_KEYS)), f"file://{tmp_path}/snap-gone.avro"]
    objects = LocalObjects()
    found = read_identities(objects, many, may_list=may_list)
    assert found == [objects.identity(address) for address in many]
    assert found[-1] is None
    assert len(set(found)) == len(many)


def test_object_that_cannot_be_examined_has_unknown_identity() -> None:
    """The identity differs from all that were read, so the object is read again."""
    assert read_identities(open_objects(), ["hdfs://nn/snap.avro", "file://host/x"]) == [UNKNOWN] * 2


def test_container_missing_only_for_executors_stops_run(tmp_path: Path) -> None:
    """A machine without the disk finds no containers, and entries of an absent container are not needed."""
    present, absent = write(tmp_path / "snapshots", ["A"])[0], f"file://{tmp_path}/snapshots/B"
    rows = [{"address": address, "absent": True} for address in (present, absent)]
    with pytest.raises(
        LakeUnreadable, match=f"executors do not find 1 metadata objects that the driver finds, such as {present}; every machine"
    ):
        refuse_blind_executors(LocalObjects(), "weather", pa.Table.from_pylist(rows))
    refuse_blind_executors(LocalObjects(), "weather", pa.Table.from_pylist(rows[1:]))
