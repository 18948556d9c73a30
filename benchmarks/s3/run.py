"""Measure one size on one server: listing and deletion by boto3 and gc-assets, and two runs of a
lake.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from benchmarks import iceberg_lake, peer_iceberg
from benchmarks.comparison import GRACE, Measurement, Passes, Subject, measure_subject
from benchmarks.s3 import deletion, listing
from benchmarks.s3.lake import ADDRESS, BUCKET, PREFIX, SIZES, S3Lake, ensure_lake
from benchmarks.s3.requests import AccessLog, Request, count_by_kind
from tests.s3.servers import REGION, S3Server, ceph_rgw, environment

PARTS: Final = ("listing", "runs", "deletion")
ROUNDS: Final = 3
_Found = TypeVar("_Found")
DELETED_KEYS: Final = {"s": 1_000, "m": 2_000, "l": 2_000}


@dataclass(frozen=True, slots=True)
class Results:
    """The results of all parts.

    Attributes:
        added: The number of objects that were added between the runs.
        repeated: The containers that both runs read.
        deletions: Requests only, then applies in a bucket without versions and in one with
            versions.
    """

    keys: int
    added: int
    repeated: frozenset[str]
    listings: list[listing.Run]
    deletions: list[list[deletion.Run]]
    runs: list[Measurement]

    def as_object(self) -> dict[str, Any]:
        return {**asdict(self), "repeated": sorted(self.repeated)}


class S3Subject(Subject):
    """A lake in a bucket of a running server. `request_log` has the requests of each run, in their
    order.
    """

    def __init__(self, lake: S3Lake, size: str, server: S3Server, log: AccessLog, cache: Path) -> None:
        self.kind, self.size, self._cache, self._launcher = "s3", size, cache, None
        self.lake, self.now = lake, lake.now
        self.server, self._log = server, log
        self.request_log: list[list[Request]] = []
        self.added = 0

    @contextmanager
    def add_one_percent(self) -> Generator[datetime]:
        before = set(self.lake.warehouse.rglob("*"))
        with iceberg_lake.add_one_percent(self.lake, SIZES[self.size]) as later:
            added = [path for path in self.lake.warehouse.rglob("*") if path not in before and path.is_file()]
            self.added = self.lake.upload(self.server, added)
            self._log.take()
            yield later

    def running(self) -> nullcontext[None]:
        return nullcontext()

    def config(self, state: Path) -> dict[str, Any]:
        return self.lake.config_on(self.server, state)

    def requests(self) -> dict[str, int]:
        self.request_log.append(self._log.take())
        return count_by_kind(self.request_log[-1])

    def peer_command(self) -> list[str]:
        return [str(peer_iceberg.ensure_environment(self._cache)), "-m", "benchmarks.peer_iceberg"]

    def peer_request(self, now: datetime) -> dict[str, Any]:
        return {
            "catalog_file": str(self.lake.catalog_file),
            "catalog_name": iceberg_lake.CATALOG_NAME,
            "warehouse": ADDRESS,
            "tables": self.lake.table_names(),
            "older_than": f"{now - GRACE:%Y-%m-%d %H:%M:%S}",
            "s3": {
                "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
                "s3.endpoint": self.server.endpoint,
                "s3.path-style-access": "true",
                "s3.access-key-id": self.server.access_key,
                "s3.secret-access-key": self.server.secret_key,
                "client.region": REGION,
            },
        }

    def repeated_containers(self, runs: Iterable[Measurement]) -> frozenset[str]:
        """Return the containers that both of our runs read."""
        ours = [containers_of(request_log) for run, request_log in zip(runs, self.request_log, strict=True) if run.tool != "peer"]
        return frozenset.intersection(*ours) if ours else frozenset()


def containers_of(requests: Iterable[Request]) -> frozenset[str]:
    """Return the manifests and manifest lists that were read."""
    return frozenset(request.key for request in requests if request.kind == "GET" and request.key.endswith(".avro"))


@contextmanager
def running(cache: Path) -> Generator[tuple[S3Server, AccessLog]]:
    """Start a server for this benchmark, and read its log.

    Raises:
        Unavailable: If this machine has no server (`tests.s3.servers.Unavailable`).
    """
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="server-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ.update(environment(folder))
        with ceph_rgw(folder / "ceph") as server:
            yield server, AccessLog(server)


def measure(size: str, cache: Path, parts: Collection[str], *, peer: bool) -> Results:
    """Measure some of `PARTS`. The results of the others are empty.

    Raises:
        RuntimeError: If two sides list, delete or find different objects.
    """
    lake = ensure_lake(cache, size)
    with running(cache) as (server, log):
        server.client().create_bucket(Bucket=BUCKET)
        keys = _log_duration("uploading", lambda: lake.upload(server))
        subject = S3Subject(lake, size, server, log, cache)
        listings = _log_duration("listing", lambda: listing.measure_listings(server, BUCKET, PREFIX, ROUNDS)) if "listing" in parts else []
        log.take()
        runs = _log_duration("runs", lambda: measure_subject(subject, cache, Passes(peer=peer, warm=False))) if "runs" in parts else []
        deletions = [
            _log_duration("deleting", lambda some=some: deletion.measure_deletions(server, log, some, DELETED_KEYS[size], ROUNDS))
            for some in (deletion.REQUESTS, deletion.WITHOUT_VERSIONS, deletion.WITH_VERSIONS)
            if "deletion" in parts
        ]
        return Results(keys, subject.added, subject.repeated_containers(runs), listings, deletions, runs)


def _log_duration(what: str, work: Callable[[], _Found]) -> _Found:
    """Print the duration of a part to standard error. Size l takes an hour."""
    started = time.perf_counter()
    found = work()
    print(f"{what}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return found
