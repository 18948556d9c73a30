"""Everything about one size on one server: the same keys listed and deleted by boto3 and by us, and two nights of a lake."""

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
from benchmarks.comparison import GRACE, Measured, Passes, Subject, nights_of
from benchmarks.s3 import deletion, listing
from benchmarks.s3.lake import ADDRESS, BUCKET, PREFIX, SIZES, S3Lake, ensure_lake
from benchmarks.s3.requests import AccessLog, Request, by_kind
from tests.s3.servers import REGION, S3Server, ceph_rgw, environment

PARTS: Final = ("listing", "nights", "deletion")
ROUNDS: Final = 3
_Found = TypeVar("_Found")
DELETED_KEYS: Final = {"s": 1_000, "m": 2_000, "l": 2_000}


@dataclass(frozen=True, slots=True)
class Results:
    """`changed` are the objects that came to the lake between its nights; `again` are containers that the second night asked for once
    more. `deletions` are requests alone, and acts in a bucket without versions and in one with them.
    """

    keys: int
    changed: int
    again: frozenset[str]
    listings: list[listing.Run]
    deletions: list[list[deletion.Run]]
    nights: list[Measured]

    def as_object(self) -> dict[str, Any]:
        return {**asdict(self), "again": sorted(self.again)}


class OnS3(Subject):
    """A lake in a bucket of a running server. What was asked for is kept in `taken`, in the order of the nights and passes."""

    def __init__(self, lake: S3Lake, size: str, server: S3Server, log: AccessLog, cache: Path) -> None:
        self.kind, self.size, self._cache, self._launcher = "s3", size, cache, None
        self.lake, self.now = lake, lake.now
        self.server, self._log = server, log
        self.taken: list[list[Request]] = []
        self.added = 0

    @contextmanager
    def changed(self) -> Generator[datetime]:
        before = set(self.lake.warehouse.rglob("*"))
        with iceberg_lake.changed(self.lake, SIZES[self.size]) as later:
            added = [path for path in self.lake.warehouse.rglob("*") if path not in before and path.is_file()]
            self.added = self.lake.upload(self.server, added)
            self._log.take()
            yield later

    def running(self) -> nullcontext[None]:
        return nullcontext()

    def config(self, state: Path) -> dict[str, Any]:
        return self.lake.config_on(self.server, state)

    def requests(self) -> dict[str, int]:
        self.taken.append(self._log.take())
        return by_kind(self.taken[-1])

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

    def again(self, nights: Iterable[Measured]) -> frozenset[str]:
        """Containers that our second night asked for though our first one had."""
        ours = [containers(taken) for night, taken in zip(nights, self.taken, strict=True) if night.who != "peer"]
        return frozenset.intersection(*ours) if ours else frozenset()


def containers(requests: Iterable[Request]) -> frozenset[str]:
    """The manifests and manifest lists that were read."""
    return frozenset(request.key for request in requests if request.kind == "GET" and request.key.endswith(".avro"))


@contextmanager
def running(cache: Path) -> Generator[tuple[S3Server, AccessLog]]:
    """A server for this benchmark alone, and what it logs. Raises `tests.s3.servers.Unavailable` where this machine has none."""
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="server-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ.update(environment(folder))
        with ceph_rgw(folder / "ceph") as server:
            yield server, AccessLog(server)


def measure(size: str, cache: Path, parts: Collection[str], *, peer: bool) -> Results:
    """Does those of `PARTS`. What is not done stays empty.

    Raises `RuntimeError` where two sides do not list or delete the same, or find other numbers of unreferenced files.
    """
    lake = ensure_lake(cache, size)
    with running(cache) as (server, log):
        server.client().create_bucket(Bucket=BUCKET)
        keys = _told("uploading", lambda: lake.upload(server))
        subject = OnS3(lake, size, server, log, cache)
        listings = _told("listing", lambda: listing.listed(server, BUCKET, PREFIX, ROUNDS)) if "listing" in parts else []
        log.take()
        nights = _told("nights", lambda: nights_of(subject, cache, Passes(peer=peer, warm=False))) if "nights" in parts else []
        deletions = [
            _told("deleting", lambda some=some: deletion.deleted(server, log, some, DELETED_KEYS[size], ROUNDS))
            for some in (deletion.REQUESTS, deletion.WITHOUT_VERSIONS, deletion.WITH_VERSIONS)
            if "deletion" in parts
        ]
        return Results(keys, subject.added, subject.again(nights), listings, deletions, nights)


def _told(what: str, work: Callable[[], _Found]) -> _Found:
    """Says on standard error how long a part took: at l the whole takes an hour."""
    started = time.perf_counter()
    found = work()
    print(f"{what}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return found
