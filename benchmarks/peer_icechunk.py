"""Resident process that runs icechunk's own `garbage_collect` on the same repository, as a dry run."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import datetime
from typing import Any

import icechunk

from benchmarks.meter import Meter
from benchmarks.resident import answer


def collect(request: dict[str, Any]) -> dict[str, Any]:
    """Return the usage of a dry run on a newly opened repository, and the number of objects to
    delete.
    """
    meter = Meter(os.getpid())
    with meter.measure() as usage:
        repository = icechunk.Repository.open(icechunk.local_filesystem_storage(request["repository"]))
        found = repository.garbage_collect(datetime.fromisoformat(request["older_than"]), dry_run=True)
    garbage = found.chunks_deleted + found.manifests_deleted + found.snapshots_deleted + found.transaction_logs_deleted
    return {"total": asdict(usage), "cpu_since_start": meter.cpu_seconds(), "unreferenced": garbage}


if __name__ == "__main__":
    icechunk.set_logs_filter("error")
    answer(collect)
