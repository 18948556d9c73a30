"""The measured programs of `benchmarks.expiry`, as resident processes.

`python -m benchmarks.expiry_programs ours|library`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, ClassVar

import icechunk

from benchmarks.meter import Meter
from benchmarks.resident import answer
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.graph import commit_table
from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.lakes.protocol import ExpiryAction
from gc_assets.stores.local.editing import EditableLocalObjects


class CountingObjects(EditableLocalObjects):
    """Counts the requests that an object store would receive. A listing counts once, regardless of
    pages.
    """

    requests: ClassVar[Counter[str]] = Counter()

    def read(self, address: str) -> bytes:
        self.requests["GET"] += 1
        return super().read(address)

    def read_with_etag(self, address: str) -> tuple[bytes, str]:
        self.requests["GET"] += 1
        return super().read_with_etag(address)

    def size(self, address: str) -> int:
        self.requests["HEAD"] += 1
        return super().size(address)

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        self.requests["LIST"] += 1
        return super().list(prefix)

    def replace(self, address: str, content: bytes, etag: str) -> None:
        self.requests["PUT"] += 1
        super().replace(address, content, etag)


def expire_with_gc_assets(request: dict[str, Any]) -> dict[str, Any]:
    """Plan, then expire. The expiry reads everything again."""
    retention = {"default": {"keep": request["cutoff"]}}
    settings = {"name": "weather", "kind": "icechunk", "location": f"file://{request['repository']}", "retention": retention}
    lake = IcechunkLake(IcechunkLakeConfig.model_validate(settings), CountingObjects())
    now, meter = datetime.now(UTC), Meter(os.getpid())
    with meter.measure() as planning:
        refs = lake.freeze(now)
        commits = commit_table(commit for source in refs.sources for commit in lake.commits(source))
        plan = [ExpiryAction(**row) for row in lake.retain(refs, commits, now, now).expiry.to_pylist()]
    CountingObjects.requests.clear()
    with meter.measure() as expiring:
        outcomes = Counter(outcome.verdict for outcome in lake.expire(plan, now, now))
    return {"plan": asdict(planning), "expire": asdict(expiring), "requests": dict(CountingObjects.requests), "outcomes": dict(outcomes)}


def expire_with_library(request: dict[str, Any]) -> dict[str, Any]:
    """Call `expire_snapshots` of a newly opened repository."""
    meter = Meter(os.getpid())
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(request["repository"]))
    with meter.measure() as expiring:
        released = repository.expire_snapshots(datetime.fromisoformat(request["cutoff"]))
    return {"expire": asdict(expiring), "released": len(released)}


if __name__ == "__main__":
    icechunk.set_logs_filter("error")
    answer({"ours": expire_with_gc_assets, "library": expire_with_library}[sys.argv[1]])
