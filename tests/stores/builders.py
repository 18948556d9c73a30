"""A storage on disk and its planned rows, for the tests of stores."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused
from gc_assets.core.phases import Action
from gc_assets.state.files import Files
from gc_assets.stores.execution import execute
from gc_assets.stores.local.lease import acquire
from gc_assets.stores.local.listing import plan_listing
from gc_assets.stores.local.objects import etag_of
from gc_assets.stores.local.quarantine import open_quarantine
from gc_assets.stores.protocol import ListingBatch, Outcome, PlannedAction, QuarantineMode
from gc_assets.stores.write_ahead import open_log

PLAN = "plan-a"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CLOCK = Clock(NOW)
# The attribute of `Traits` that shows whether canary objects confirm an axiom.
PROBED_AXIOMS = {
    "complete_listing": "broken_axioms",
    "visible_write": "broken_axioms",
    "exclusive_create": "create_if_absent",
    "store_clock": "broken_axioms",
    "distinct_identity": "broken_axioms",
    "conditional_change": "delete_if_match",
    "no_overwrite": "create_if_absent",
}


def write(root: Path, key: str, content: bytes = b"content", mtime_ns: int = 1_700_000_000_123_456_789) -> Path:
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, ns=(mtime_ns, mtime_ns))
    return path


def plan(root: Path, key: str, action: Action = "quarantine", *, etag: str | None = None) -> PlannedAction:
    """Return the row of a plan for the current file. `etag` replaces its identity."""
    identity = etag or etag_of((root / key).lstat())
    source = None if action == "quarantine" else PLAN
    return PlannedAction(key, action, int(identity.split("-")[0]), identity, None, source)


@contextmanager
def memory_directory() -> Iterator[Path]:
    """Create a temporary directory, in memory if possible, so that hundreds of fsyncs take no time."""
    memory = Path("/dev/shm")  # noqa: S108  (a random name below it)
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as directory:
        yield Path(directory)


def trash(root: Path, key: str, plan_id: str = PLAN) -> Path:
    return root / ".gc-assets/trash" / plan_id / key


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return bytes and mtime of every file under the root, including the trash and without the
    lease.
    """
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    found = {str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
    return {key: value for key, value in found.items() if not key.startswith((".gc-assets/lease", ".gc-assets/fencing", ".gc-assets/."))}


def list_completely(location: Path | str, parallelism: int = 2, budget: int = 10**9) -> ListingBatch:
    """List a storage in all rounds, as one step."""
    tasks = list(plan_listing(str(location), parallelism))
    steps: list[ListingBatch] = []
    while tasks:
        for step in tasks.pop().run(budget):
            steps.append(step)
            tasks += step.leftover
    batches = [step.objects for step in steps]
    objects = pa.Table.from_batches(batches).combine_chunks() if batches else None
    if objects is None:
        return ListingBatch(pa.RecordBatch.from_pylist([], schema=pa.schema([("key", pa.string())])))
    combined = objects.to_batches()
    return ListingBatch(combined[0] if combined else batches[0], tuple(problem for step in steps for problem in step.problems))


def keys(step: ListingBatch) -> list[str]:
    return sorted(step.objects.column("key").to_pylist())


def apply(root: Path, state: Path, rows: Sequence[PlannedAction], mode: QuarantineMode, clock: Clock) -> list[Outcome]:
    """Apply rows: lease, log, actions, release."""
    lease = acquire(str(root), PLAN, str(os.getpid()), clock)
    log = open_log(Files(str(state)), "wal", PLAN, len(rows))
    outcomes = list(execute(rows, open_quarantine(mode, str(root), PLAN), log, lease, clock, batch_size=2))
    lease.release()
    return outcomes


def apply_concurrently(start, root: Path, state: Path, rows: Sequence[PlannedAction], mode: QuarantineMode, clock: Clock) -> None:
    """Exit with 3 if another process holds the lease."""
    start.wait()
    try:
        apply(root, state, rows, mode, clock)
    except GateRefused:
        sys.exit(GateRefused.exit_code)
