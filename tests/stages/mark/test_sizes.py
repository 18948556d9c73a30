"""How long containers are whose parents do not say it: one by one, or by listing where many lie together."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.requests import count_requests
from gc_assets.stages.mark.manifest_entries import refuse_blind_executors
from gc_assets.stages.mark.object_sizes import LISTED_KEYS_PER_HEAD, MIN_LISTED_KEYS, read_sizes
from gc_assets.stores.local.objects import LocalObjects
from tests.stores.s3_bench import in_a_bucket


@dataclass(frozen=True)
class Asked(LocalObjects):
    """The local store, which notes for which objects it was asked one by one."""

    one_by_one: list[str] = field(default_factory=list[str])

    def size(self, address: str) -> int:
        self.one_by_one.append(address)
        return super().size(address)


def written(directory: Path, names: list[str]) -> list[str]:
    """Addresses of files of 1, 2, 3 ... bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names, 1):
        (directory / name).write_bytes(b"x" * number)
    return [f"file://{directory}/{name}" for name in names]


def snapshots(count: int) -> list[str]:
    return [f"snap-{number}.avro" for number in range(count)]


def test_objects_that_lie_together_are_listed_and_others_are_asked_for(tmp_path: Path) -> None:
    many = written(tmp_path / "many" / "metadata", snapshots(MIN_LISTED_KEYS))
    written(tmp_path / "many" / "metadata" / "below", snapshots(3))
    few = written(tmp_path / "few" / "metadata", snapshots(MIN_LISTED_KEYS - 1))
    objects = Asked()
    assert read_sizes(objects, [*few, *many]) == [*range(1, MIN_LISTED_KEYS), *range(1, MIN_LISTED_KEYS + 1)]
    assert sorted(objects.one_by_one) == sorted(few)


def test_an_object_that_is_gone_has_no_size_wherever_it_lay(tmp_path: Path) -> None:
    many = written(tmp_path / "many", snapshots(MIN_LISTED_KEYS))
    gone = [f"file://{tmp_path}/many/snap-gone.avro", f"file://{tmp_path}/nowhere/snap-1.avro"]
    assert read_sizes(Asked(), [*many, *gone])[-2:] == [-1, -1]


def test_a_directory_whose_listing_would_cost_more_is_not_listed_to_its_end(tmp_path: Path) -> None:
    names = snapshots(MIN_LISTED_KEYS)
    many = written(tmp_path / "data", names)
    written(tmp_path / "data" / "deep", [f"{number}.parquet" for number in range(2 * LISTED_KEYS_PER_HEAD * MIN_LISTED_KEYS)])
    assert read_sizes(Asked(), many) == list(range(1, MIN_LISTED_KEYS + 1))


def test_a_name_that_percent_encoding_spells_is_asked_for_and_never_taken_from_a_listing(tmp_path: Path) -> None:
    """`a%20b` names the file `a b`, and another file is named `a%20b`."""
    written(tmp_path, [f"{number} b" for number in range(MIN_LISTED_KEYS)])
    for number in range(MIN_LISTED_KEYS):
        (tmp_path / f"{number}%20b").write_bytes(b"x" * 99)
    addresses = [f"file://{tmp_path}/{number}%20b" for number in range(MIN_LISTED_KEYS)]
    objects = LocalObjects()
    assert read_sizes(objects, addresses) == [objects.size(address) for address in addresses]


def test_a_directory_that_cannot_be_listed_is_asked_for_one_by_one(tmp_path: Path) -> None:
    many = written(tmp_path, snapshots(MIN_LISTED_KEYS))
    (tmp_path / "link").symlink_to(tmp_path / "snap-0.avro")
    objects = Asked()
    assert read_sizes(objects, many) == list(range(1, MIN_LISTED_KEYS + 1))


@pytest.mark.parametrize("many", [MIN_LISTED_KEYS, MIN_LISTED_KEYS - 1])
def test_in_a_bucket_one_request_tells_the_sizes_of_all_that_lie_together(many: int) -> None:
    with in_a_bucket("ceph") as bench:
        for number in range(many):
            bench.client.put_object(Bucket=bench.bucket, Key=f"t/metadata/{number}.avro", Body=b"x" * number)
        addresses = [f"s3://{bench.bucket}/t/metadata/{number}.avro" for number in range(many)]
        with count_requests() as tally:
            assert read_sizes(bench.store.objects, addresses) == list(range(many))
        expected = {"LIST": 1} if many == MIN_LISTED_KEYS else {"HEAD": many}
        assert tally.sent.counts == expected


def test_a_container_that_only_executors_do_not_find_stops_the_mark(tmp_path: Path) -> None:
    """A machine without the disk finds nothing. What is absent by right needs nothing of what it names, so that would not be missed."""
    there, gone = written(tmp_path / "snapshots", ["A"])[0], f"file://{tmp_path}/snapshots/B"
    rows = [{"address": address, "absent": True} for address in (there, gone)]
    with pytest.raises(LakeUnreadable, match=f"executors do not find 1 metadata objects that the driver finds, such as {there}; every machine"):
        refuse_blind_executors(LocalObjects(), "weather", pa.Table.from_pylist(rows))
    refuse_blind_executors(LocalObjects(), "weather", pa.Table.from_pylist(rows[1:]))
