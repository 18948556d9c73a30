"""Find files that were purged from quarantine and can therefore not be restored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.phases import PURGE, QUARANTINE
from gc_assets.core.plan import Amount
from gc_assets.core.rehearsals import mark_rehearsal
from gc_assets.core.units import count_of, format_bytes
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.fencing_tokens import quarantine_renewed_at
from gc_assets.stages.records.ledger import SHARE_ROWS, CopySelection, LogReader, newest_of_copies, newest_rows
from gc_assets.state.journal import State

_MAX_PLANS: Final = 3


@dataclass(frozen=True, slots=True)
class PurgedFiles:
    """A summary of purged files.

    Attributes:
        amount: Number and size of the files.
        first: When the first of them was purged.
        last: When the last of them was purged.
        plan_ids: Ids of the plans that purged them.
        rehearsal: True if all of them were purged by rehearsals.
    """

    amount: Amount
    first: datetime
    last: datetime
    plan_ids: Sequence[str]
    rehearsal: bool

    def __str__(self) -> str:
        files = f"{self.amount.files:,} files ({format_bytes(self.amount.bytes)}) were" if self.amount.files != 1 else "The file was"
        dates = f"{self.first:%Y-%m-%d}", f"{self.last:%Y-%m-%d}"
        when = f"on {dates[0]}" if dates[0] == dates[1] else f"between {dates[0]} and {dates[1]}"
        names = [plan_id[:12] for plan_id in self.plan_ids]
        more = f" and {len(names) - _MAX_PLANS:,} more" if len(names) > _MAX_PLANS else ""
        plans = f"plan{'s' if len(names) > 1 else ''} {', '.join(names[:_MAX_PLANS])}{more}"
        return mark_rehearsal(f"{files} purged permanently {when} by {plans}, and cannot be restored.", self.rehearsal)


def find_purged(state: State, storage_name: str, copies: CopySelection) -> PurgedFiles | None:
    """Find selected files that cannot be restored, because their last copy was purged.

    A file is not included if another selected copy is still in quarantine, or if it was restored
    later. Returns None if no file was purged.
    """
    return _merge(_select_purged(entries, copies) for entries in LogReader.of(state, storage_name, copies).shares())


def find_purged_by(state: State, storage_name: str, plan_id: str) -> PurgedFiles | None:
    """Find the files that a plan purged. Returns None if it did not purge any."""
    shares = LogReader.of(state, storage_name).shares()
    return _merge(_summarize(entries.filter(_equals(entries, phase=PURGE, plan_id=plan_id))) for entries in shares)


def count_restorable(state: State, storage_name: str) -> dict[str, int]:
    """Count the files in quarantine for each plan that moved them there, keyed by plan id."""
    counts: Counter[str] = Counter()
    for entries in LogReader.of(state, storage_name).shares():
        last = newest_of_copies(entries)
        counts.update(last.filter(_equals(last, phase=QUARANTINE)).column("by").to_pylist())
    return dict(counts)


def describe_quarantine(context: RunContext, storage_name: str) -> str | None:
    """Describe the files in quarantine and when the first of them can be purged.

    Returns:
        A sentence, or None if the quarantine is empty or there are too many log entries to read
        into memory.
    """
    reader = LogReader.of(context.state, storage_name)
    if not reader.rows or reader.rows > SHARE_ROWS:
        return None
    copies = CopySelection(rehearsal=context.clock.is_rehearsal).find_copies(reader.read_all())
    if not copies.num_rows:
        return None
    amount = f"{count_of(copies.num_rows, 'file')} ({format_bytes(pc.sum(copies.column('size_bytes')).as_py() or 0)})"
    first_quarantined = pc.min(copies.column("quarantined_at")).as_py()
    since = max(first_quarantined, quarantine_renewed_at(context, storage_name) or first_quarantined)
    due = since + timedelta(days=context.storage(storage_name).quarantine_days)
    first = f"; the first can be purged from {due:%Y-%m-%d}" if due > context.clock.now() else ""
    return f"{amount} {'is' if copies.num_rows == 1 else 'are'} in quarantine{first}."


def _select_purged(entries: pa.Table, copies: CopySelection) -> PurgedFiles | None:
    of_copies = copies.filter_rows(newest_of_copies(entries), "by")
    waiting = of_copies.filter(_equals(of_copies, phase=QUARANTINE)).column("key")
    last = newest_rows(of_copies, ("key",))
    return _summarize(last.filter(pc.and_(_equals(last, phase=PURGE), pc.invert(pc.is_in(last.column("key"), value_set=waiting)))))


def _equals(rows: pa.Table, **values: str) -> pa.ChunkedArray:
    return pc.fill_null(reduce(pc.and_, (pc.equal(rows.column(name), value) for name, value in values.items())), False)


def _summarize(purged: pa.Table) -> PurgedFiles | None:
    if not purged.num_rows:
        return None
    times = pc.min_max(purged.column("at")).as_py()
    plan_ids = sorted(filter(None, pc.unique(purged.column("plan_id")).to_pylist()))
    amount = Amount(files=purged.num_rows, bytes=pc.sum(purged.column("size_bytes")).as_py() or 0)
    rehearsal = bool(pc.all(pc.fill_null(purged.column("rehearsal"), False)).as_py())
    return PurgedFiles(amount, times["min"], times["max"], plan_ids, rehearsal)


def _merge(shares: Iterable[PurgedFiles | None]) -> PurgedFiles | None:
    found = [share for share in shares if share is not None]
    if not found:
        return None
    return PurgedFiles(
        Amount.total(share.amount for share in found),
        min(share.first for share in found),
        max(share.last for share in found),
        sorted({plan_id for share in found for plan_id in share.plan_ids}),
        all(share.rehearsal for share in found),
    )
