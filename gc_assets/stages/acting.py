"""What executors do with the rows of a plan: through the write-ahead log, and never to a file that a lake needs.

Knows no plan and no lake: whether a row is needed, and why, comes with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from gc_assets.core.clock import Clock
from gc_assets.stages.deletion_plan import PURGE, QUARANTINE, RESTORE
from gc_assets.stores.execution import execute, outcome_rows, planned_rows
from gc_assets.stores.lease import LocalLease
from gc_assets.stores.protocol import ABSENT, CHANGED, DENIED, DONE, FAILED, Planned, Quarantine, Result
from gc_assets.stores.quarantine import open_quarantine
from gc_assets.stores.write_ahead import WriteAheadLog

# `needed` says who needs the key (null: nobody), `retry` whether that may end with the plan's own expiry, which is not done yet.
ACT_COLUMNS: Final = (
    "key",
    "action",
    "size_bytes",
    "etag",
    "version_id",
    "source_plan_id",
    "quarantine",
    "needed",
    "retry",
    "in_quarantine",
)


@dataclass(frozen=True)
class _OnlyInterrupted:
    """Past the plan's time, or under another policy, only what a crash left in the middle is brought to its end."""

    inner: Quarantine

    def act(self, batch: Sequence[Planned], resumed: Collection[str] = ()) -> list[Result]:
        ended = iter(self.inner.act([planned for planned in batch if planned.key in resumed], resumed))
        late = Result(DENIED, "the plan was out of date before this key was reached")
        return [next(ended) if planned.key in resumed else late for planned in batch]


@dataclass(frozen=True)
class _PutBack:
    """For keys that a lake needs: what an earlier run of the plan may have moved is put back, all else is left alone.

    A key of `retried` fails instead of being settled: once the plan's expiry is done it may go.
    """

    inner: Quarantine
    plan_id: str
    why: Mapping[str, str]
    retried: Collection[str]

    def act(self, batch: Sequence[Planned], resumed: Collection[str] = ()) -> list[Result]:
        moved = [
            replace(row, action=RESTORE, source_plan_id=self.plan_id) for row in batch if row.key in resumed and row.action == QUARANTINE
        ]
        restored = dict(zip([row.key for row in moved], self.inner.act(moved), strict=True))
        return [self._result(row, restored.get(row.key)) for row in batch]

    def _result(self, row: Planned, restored: Result | None) -> Result:
        if restored is not None and restored.verdict not in {DONE, ABSENT, CHANGED}:
            return Result(FAILED, f"{self.why[row.key]}, and putting it back failed: {restored.error}")
        return Result(FAILED if row.key in self.retried else CHANGED, self.why[row.key])


@dataclass(frozen=True)
class Act:
    """Executes the rows of a partition (columns `ACT_COLUMNS`) through the write-ahead log; runs in executors.

    A row that the fresh mark found needed is never quarantined or purged, nor is one purged that is no longer in quarantine:
    its outcome is `changed`, and what a killed run may have moved of it is put back. What an earlier run settled stays on record.
    """

    location: str
    log: WriteAheadLog
    lease: LocalLease
    clock: Clock
    plan_id: str
    only_interrupted: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            spared = dict(self._spared(batch))
            retried = {key for key, again in zip(*(batch.column(name).to_pylist() for name in ("key", "retry")), strict=True) if again}
            modes = batch.column("quarantine").to_pylist()
            rows = list(zip(planned_rows(batch), modes, strict=True))
            for mode in sorted(set(modes)):
                quarantine = open_quarantine(mode, self.location, self.plan_id)
                mine = [row for row, its in rows if its == mode]
                doing = _OnlyInterrupted(quarantine) if self.only_interrupted else quarantine
                wanted = execute([row for row in mine if row.key not in spared], doing, self.log, self.lease, self.clock)
                back = _PutBack(quarantine, self.plan_id, spared, retried)
                kept = execute([row for row in mine if row.key in spared], back, self.log, self.lease, self.clock)
                yield outcome_rows([*wanted, *kept], self.plan_id, mode)

    def _spared(self, batch: pa.RecordBatch) -> Iterator[tuple[str, str]]:
        columns = ("key", "action", "needed", "in_quarantine")
        for key, action, why, in_quarantine in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            if action != RESTORE and why is not None:
                yield key, why
            elif action == PURGE and not in_quarantine:
                yield key, "no longer in quarantine"
