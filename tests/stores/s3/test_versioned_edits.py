"""Edits in buckets with versions, on servers that evaluate conditions too early or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Barrier

import pytest

from gc_assets.buckets.protocol import Change
from gc_assets.config.connections import Connections
from gc_assets.core.errors import ObjectChanged
from gc_assets.core.paths import bucket_and_key
from gc_assets.s3.bucket import S3Bucket
from gc_assets.stores.s3.objects import S3Objects
from tests.s3.proxy import Request, Rule, call_before, run_proxy
from tests.s3.servers import shared_server
from tests.stores.s3.careless_store import CarelessBucket
from tests.stores.s3_bench import S3Bench, open_s3_bench


class UnconditionalBucket(CarelessBucket):
    """Ignores all conditions of writes."""

    def put_if_match(self, key: str, content: bytes, token: str) -> Change:
        del token
        return self.put(key, content)


@dataclass(frozen=True, slots=True)
class UnconditionalObjects(S3Objects):
    def open(self, address: str) -> tuple[S3Bucket, str]:
        bucket, key = bucket_and_key(address)
        return UnconditionalBucket(bucket, "", S3Objects.open(self, address)[0].settings), key


@pytest.fixture
def bench() -> Iterator[S3Bench]:
    with open_s3_bench("ceph", versioned=True) as opened:
        yield opened


def is_put(request: Request) -> bool:
    return request.method == "PUT"


@pytest.mark.parametrize("kind", [S3Objects, UnconditionalObjects])
def test_at_most_one_writer_creates_an_object(bench: S3Bench, kind: type[S3Objects]) -> None:
    objects, start = kind(bench.connections), Barrier(4)

    def create(key: str, number: int) -> bool:
        start.wait()
        try:
            objects.create(f"{bench.store.location}{key}", bytes([number]))
        except FileExistsError:
            return False
        return True

    for key in ("a", "b", "c"):
        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(partial(create, key), range(4)))
        assert won.count(True) <= 1
        assert bench.get(key) == (bytes([won.index(True)]) if any(won) else None)


def test_edit_that_overwrites_a_concurrent_write_is_removed(bench: S3Bench) -> None:
    bench.put("a", b"read")
    address = f"{bench.store.location}a"
    with run_proxy(shared_server("ceph"), Rule(is_put, call_before(partial(bench.put, "a", b"written meanwhile")))) as proxy:
        objects = UnconditionalObjects(Connections.of(proxy.server.settings))
        etag = objects.read_with_etag(address)[1]
        with pytest.raises(ObjectChanged, match=r"our version .* was removed again"):
            objects.replace(address, b"edited", etag)
    assert bench.get("a") == b"written meanwhile"


def test_edit_of_the_current_version_is_kept(bench: S3Bench) -> None:
    bench.put("a", b"read")
    address = f"{bench.store.location}a"
    objects = UnconditionalObjects(bench.connections)
    objects.replace(address, b"edited", objects.read_with_etag(address)[1])
    assert bench.get("a") == b"edited"
    with pytest.raises(FileExistsError):
        objects.create(address, b"created")
    assert bench.get("a") == b"edited"
