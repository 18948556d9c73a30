"""The two measured programs of `benchmarks.expiry`: `python -m benchmarks.expiry_sides ours|library`. Resident processes."""

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


class Counted(EditableLocalObjects):
    """Counts what an object store would be asked for. A listing counts once, however many pages it has."""

    asked: ClassVar[Counter[str]] = Counter()

    def read(self, address: str) -> bytes:
        self.asked["GET"] += 1
        return super().read(address)

    def read_with_etag(self, address: str) -> tuple[bytes, str]:
        self.asked["GET"] += 1
        return super().read_with_etag(address)

    def size(self, address: str) -> int:
        self.asked["HEAD"] += 1
        return super().size(address)

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        self.asked["LIST"] += 1
        return super().list(prefix)

    def replace(self, address: str, content: bytes, etag: str) -> None:
        self.asked["PUT"] += 1
        super().replace(address, content, etag)


def ours(request: dict[str, Any]) -> dict[str, Any]:
    """A plan, and then its expiry, which reads everything afresh."""
    retention = {"default": {"keep": request["cutoff"]}}
    settings = {"name": "weather", "kind": "icechunk", "location": f"file://{request['repository']}", "retention": retention}
    lake = IcechunkLake(IcechunkLakeConfig.model_validate(settings), Counted())
    now, meter = datetime.now(UTC), Meter(os.getpid())
    with meter.measure() as planning:
        refs = lake.freeze(now)
        commits = commit_table(commit for source in refs.sources for commit in lake.commits(source))
        plan = [ExpiryAction(**row) for row in lake.retain(refs, commits, now, now).expiry.to_pylist()]
    Counted.asked.clear()
    with meter.measure() as expiring:
        outcomes = Counter(outcome.verdict for outcome in lake.expire(plan, now, now))
    return {"plan": asdict(planning), "expire": asdict(expiring), "requests": dict(Counted.asked), "outcomes": dict(outcomes)}


def library(request: dict[str, Any]) -> dict[str, Any]:
    """`expire_snapshots` of a repository that was just opened."""
    meter = Meter(os.getpid())
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(request["repository"]))
    with meter.measure() as expiring:
        released = repository.expire_snapshots(datetime.fromisoformat(request["cutoff"]))
    return {"expire": asdict(expiring), "released": len(released)}


if __name__ == "__main__":
    icechunk.set_logs_filter("error")
    answer({"ours": ours, "library": library}[sys.argv[1]])
