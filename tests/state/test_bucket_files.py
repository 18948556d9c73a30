"""State files on any bucket with conditions: conditional puts, lost answers, listings."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gc_assets.buckets.protocol import Change
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import StateError
from gc_assets.s3 import pages
from gc_assets.s3.bucket import S3Bucket
from gc_assets.state.bucket_files import BucketFiles
from tests.s3.proxy import Request, Rule, drop_answer, run_proxy
from tests.s3.servers import shared_server
from tests.state.s3_location import unused_location


@pytest.fixture
def files() -> Iterator[BucketFiles]:
    with unused_location() as (root, settings):
        yield BucketFiles(S3Bucket.of(root, settings), "s3a")


class CarelessBucket(S3Bucket):
    """A bucket that ignores the expected token."""

    def put_if_match(self, key: str, content: bytes, token: str) -> Change:
        del token
        return self.put(key, content)


def on_server(files: BucketFiles, settings: S3Config) -> BucketFiles:
    bucket = files.bucket
    return BucketFiles(S3Bucket(bucket.name, bucket.prefix, settings), "s3a")


def is_put_of(name: str, request: Request) -> bool:
    return request.method == "PUT" and request.target.endswith(name)


def test_put_needs_the_expected_version(files: BucketFiles) -> None:
    first = files.replace_if("a", b"1", None)
    assert first is not None
    assert files.replace_if("a", b"2", None) is None
    second = files.replace_if("a", b"2", first)
    assert second is not None
    assert files.replace_if("a", b"3", first) is None
    assert files.read_version("a") == (b"2", second)


def test_only_one_of_several_concurrent_writers_succeeds(files: BucketFiles) -> None:
    assert "exactly one" in files.check_conditions()
    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(lambda number: files.replace_if("a", str(number).encode(), None), range(8)))
    (winner,) = [number for number, version in enumerate(versions) if version is not None]
    assert files.read("a") == str(winner).encode()


def test_put_with_lost_response_is_recognised(files: BucketFiles) -> None:
    files.replace_if("canary", b"", None)
    with run_proxy(shared_server("ceph"), Rule(lambda request: is_put_of("/a", request), drop_answer)) as proxy:
        assert on_server(files, proxy.server.settings).replace_if("a", b"1", None) == files.read_version("a")[1]


def test_bucket_that_ignores_conditions_is_rejected(files: BucketFiles) -> None:
    bucket = files.bucket
    # Settings of their own, so that no earlier test has checked the server.
    settings = S3Config.model_validate(bucket.settings.model_dump() | {"max_requests_per_second": 1e6})
    careless = BucketFiles(CarelessBucket(bucket.name, bucket.prefix, settings), "s3a")
    with pytest.raises(StateError, match="with `If-Match` replaced an object with another etag"):
        careless.replace_if("a", b"1", None)
    assert files.list("", recursive=True) == []


def test_directories_are_listed_and_deleted(files: BucketFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t/{number:02}" for number in range(25)]
    for name in [*names, "t.json", "t0/a", "t/"]:
        files.replace(name, b"1")
    monkeypatch.setattr(pages, "PAGE_KEYS", 4)
    assert [f"t/{item.name}" for item in files.list("t", recursive=False)] == names
    assert files.directories("") == ["t", "t0"]
    files.delete_directory("t")
    files.delete_directory("t")
    assert [item.name for item in files.list("", recursive=True)] == ["t.json", "t0/a"]
    files.delete("t.json")
    with pytest.raises(FileNotFoundError):
        files.size("t.json")


def test_pickled_files_can_be_used(files: BucketFiles) -> None:
    files.replace("a", b"1")
    assert pickle.loads(pickle.dumps(files)).read("a") == b"1"  # noqa: S301  (our own bytes)
