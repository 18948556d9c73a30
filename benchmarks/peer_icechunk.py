"""Icechunk's own collector on the same repository: `garbage_collect` as a dry run. Runs as a resident process."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import datetime
from typing import Any

import icechunk

from benchmarks.meter import Meter
from benchmarks.resident import answer


def collect(request: dict[str, Any]) -> dict[str, Any]:
    """A dry run over `repository`, opened anew; answers with the number of objects that it would delete."""
    meter = Meter(os.getpid())
    with meter.measure() as whole:
        repository = icechunk.Repository.open(icechunk.local_filesystem_storage(request["repository"]))
        found = repository.garbage_collect(datetime.fromisoformat(request["older_than"]), dry_run=True)
    garbage = found.chunks_deleted + found.manifests_deleted + found.snapshots_deleted + found.transaction_logs_deleted
    return {"total": asdict(whole), "cpu_since_start": meter.cpu_seconds(), "unreferenced": garbage}


if __name__ == "__main__":
    icechunk.set_logs_filter("error")
    answer(collect)
