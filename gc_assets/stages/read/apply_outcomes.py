"""Read the results of an apply from the state.

For a finished apply, this counts the reasons of its outcomes. For an interrupted apply, it reads
the actions that have been recorded so far.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from gc_assets.core.outcomes import FULFILLED
from gc_assets.core.phases import DONE, EXPIRE
from gc_assets.core.plan import PlanHeader
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.apply import log_directory
from gc_assets.stages.delete.expire import ExpiryRecord
from gc_assets.stages.read.browse import batches
from gc_assets.stages.read.reversibility import UNKNOWN, RecordedActions
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.stores.write_ahead import find_log

# Further kinds of reasons are counted together.
MAX_REASONS: Final = 1_000
_OTHER: Final = "other reasons"
# Matches the parts of a reason that differ between files, such as names, addresses and times.
_VARIABLE: Final = re.compile(r"'[^']*'|`[^`]*`|\S*://\S+|\S*\d{2,}\S*")
# The limit is low because a user is waiting for the command to finish.
_READ_SECONDS: Final = 10.0


@dataclass
class _Reason:
    example: str
    count: int = 0
    is_same: bool = True

    def add(self, text: str, count: int) -> None:
        self.is_same &= text == self.example
        self.count += count

    def __str__(self) -> str:
        return self.example if self.is_same else f"for example {self.example}"


@dataclass
class _ReasonCounter:
    """Counts the reasons of outcomes. Reasons that differ only in names and numbers are equal."""

    kinds: dict[tuple[str, str], dict[str, _Reason]] = field(default_factory=lambda: defaultdict(dict[str, _Reason]))

    def add(self, phase: str, outcome: str, reason: str | None, count: int = 1) -> None:
        known, text = self.kinds[phase, outcome], reason or "no reason is recorded"
        kind = _VARIABLE.sub("", text)
        if kind not in known and len(known) >= MAX_REASONS:
            kind = text = _OTHER
        known.setdefault(kind, _Reason(text)).add(text, count)

    @property
    def counts(self) -> dict[tuple[str, str], dict[str, int]]:
        return {key: {str(reason): reason.count for reason in known.values()} for key, known in self.kinds.items()}


def count_reasons(context: RunContext, header: PlanHeader, published: PublishedTable | None) -> Mapping[tuple[str, str], Mapping[str, int]]:
    """Count the reasons why planned actions were not executed by an apply.

    Args:
        published: The `deletion_log` of the apply, or None if it only edited histories.

    Returns:
        The number of files, uploads or edits by reason, for each phase and outcome. If several
        reasons differ only in names and numbers, one of them is given as an example.
    """
    found, columns = _ReasonCounter(), ["phase", "outcome", "error"]
    for batch in batches(context.state, DELETION_LOG.schema, published.paths(), columns) if published is not None else ():
        rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        for (phase, outcome, error), count in Counter(row for row in rows if row[1] not in FULFILLED).items():
            found.add(phase, outcome, error, count)
    for lake in header.expiry_actions:
        for item in ExpiryRecord(context, header, lake).outcomes().values():
            if item.verdict not in FULFILLED:
                found.add(EXPIRE, item.verdict, item.error)
    return found.counts


def read_recorded_actions(context: RunContext, header: PlanHeader, phases: Sequence[str]) -> RecordedActions | None:
    """Read the actions that an unfinished apply and its earlier attempts have recorded so far.

    Args:
        phases: The phases that the apply executes, because a restore has a log of its own.

    Returns:
        The recorded actions, or None if no such apply has begun.
    """
    log = find_log(context.state.files, log_directory(header, phases), header.plan_id)
    if log is None:
        return None
    counts, ends, is_complete = Counter[tuple[str, str]](), monotonic() + _READ_SECONDS, True
    for share in range(log.shares):
        if monotonic() > ends:
            is_complete = False
            break
        history = log.read_history(share)
        counts.update((action, outcome.verdict) for (action, _, _), outcome in history.settled.items())
        counts.update((action, UNKNOWN) for action, _, _ in history.interrupted - history.settled.keys())
    edits, tables = dict[str, Mapping[str, int]](), dict[str, tuple[str, ...]]()
    for lake, planned in header.expiry_actions.items():
        record = ExpiryRecord(context, header, lake)
        outcomes = record.outcomes()
        edits[lake] = Counter(item.verdict for item in outcomes.values()) + Counter(
            {UNKNOWN: (planned - len(outcomes)) * record.is_started}
        )
        tables[lake] = tuple(
            sorted({item.action.table_name for item in outcomes.values() if item.verdict == DONE and item.action.table_name})
        )
    return RecordedActions(counts, edits, tables, is_complete)
