"""Decide if `live_files` can reuse rows of an earlier run (the baseline).

See docs/adr/0006-incremental-live-set.md.

A row depends on the direct references to its file (`NEEDS`), on the cached entries for the file,
and on the needs of their containers. A key is dirty if its own rows in `NEEDS` differ, if a
container with an entry for it gained or lost a need, or if a new cache segment has an entry for it.
Rows of dirty keys are recomputed and all other rows are reused.

Dirty keys are identified by their hashes, so keys with colliding hashes are dirty together.

If the baseline cannot be trusted, every row is recomputed and the summary contains the reason.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Final

from gc_assets.core.errors import StateError
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import MAX_SMALL_ROWS
from gc_assets.lakes.file_kinds import FILE_KINDS
from gc_assets.lakes.kind import TableRole
from gc_assets.stages.mark.manifest_entries import cache_fingerprint, count_file_rows
from gc_assets.stages.mark.released_files import ReleasedFiles
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable
from gc_assets.state.receipts import PartFile
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.side_tables import NEEDS, NEEDS_SIDE, ROUTED_SIDES
from gc_assets.state.summaries import ComparisonSummary, LiveFilesSummary

# Increment on every change to the row content.
ROW_VERSION: Final = 1
# If a larger share of rows is dirty, a full recompute is cheaper.
MAX_DIRTY_SHARE: Final = 0.25
# Computing this many rows in one job without a shuffle is faster than finding dirty keys.
MIN_INCREMENTAL_ROWS: Final = MAX_SMALL_ROWS
# Maximum number of runs with other safety limits to open when searching a baseline.
MAX_BASELINES_OPENED: Final = 3
BASELINE_DAMAGED: Final = "the previous run is damaged"


class BaselineInvalid(Exception):
    """Baseline is unusable; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Earlier `live_files` of the lake with the fingerprint of this run.

    Attributes:
        published: The table.
        summary: Its summary.
        new_segments: Cache segments published after the baseline.
        released: Tables of released files, all of whose keys may be dirty.
    """

    published: PublishedTable
    summary: LiveFilesSummary
    new_segments: tuple[PastRun, ...]
    released: tuple[ReleasedFiles, ...]

    @property
    def rows(self) -> int:
        """Number of rows in the table and in side tables with the same columns."""
        return sum(part.rows for part in self.parts)

    @property
    def parts(self) -> tuple[PartFile, ...]:
        sides = (parts for side, parts in self.published.receipt.side.items() if side in ROUTED_SIDES)
        return (*self.published.receipt.files, *(part for parts in sides for part in parts))

    @property
    def new_rows(self) -> int:
        """Upper bound of dirty keys that are not visible in `NEEDS`."""
        return count_file_rows(self.new_segments) + sum(table.rows for table in self.released)

    def is_comparison_due(self, full_every: int) -> bool:
        """Check if this run must recompute all rows and compare them with the reused ones."""
        return max(self.summary.incremental_runs, self.summary.uncompared_runs) + 1 >= full_every

    def needs_dirty_keys(self, full_every: int, cached_entries: int) -> bool:
        """Return False if one dirty key is enough to recompute all rows without a comparison."""
        return cached_entries > MIN_INCREMENTAL_ROWS or self.is_comparison_due(full_every)


@dataclass(frozen=True, slots=True)
class FullRecompute:
    """Decision to compute every row.

    Attributes:
        reason: Reason for the summary. A detail with addresses may follow a colon.
        compare: True if the result is compared with that of an incremental run.
        distrusted_on: Run date on which reused rows proved wrong.
        uncompared_runs: Number of runs since the last comparison, including this run.
    """

    reason: str
    compare: bool = False
    distrusted_on: date | None = None
    uncompared_runs: int = 0

    @property
    def short_reason(self) -> str:
        """Reason without addresses, for log lines."""
        return self.reason.partition(": ")[0]


@dataclass(frozen=True, slots=True)
class NeedChanges:
    """Differences in needs between a baseline and this run, as counted by the walk.

    Attributes:
        entries: Upper bound of cached entries in containers with changed needs.
        keys: Number of keys with changed direct needs.
        containers: Number of containers with changed needs and file entries.
        damaged: Reason why the baseline needs are unreadable, if so.
    """

    entries: int = 0
    keys: int = 0
    containers: int = 0
    damaged: str | None = None

    @property
    def is_empty(self) -> bool:
        return not self.keys and not self.containers


def fingerprint(context: RunContext, lake_name: str) -> str:
    """Return a digest of all row inputs except `NEEDS`, cached entries and released files."""
    read_as = [cache_fingerprint(context, lake_name), context.resolver().settings_digest]
    rules = [*read_as, lake_name, ROW_VERSION, LIVE_FILES.schema.names, NEEDS.names, list(FILE_KINDS)]
    return hashlib.sha256(json.dumps(rules).encode()).hexdigest()


def segments_with_rows(cache: Sequence[PastRun]) -> list[PastRun]:
    """Return the segments that have rows, sorted by run id."""
    return sorted((run for run in cache if run.entry.parts), key=lambda run: run.run_id)


def segments_digest(cache: Sequence[PastRun]) -> str:
    """Return a digest of segments and their receipts."""
    return hashlib.sha256(json.dumps([[run.run_id, run.entry.receipt_sha256] for run in segments_with_rows(cache)]).encode()).hexdigest()


def find_baseline(
    context: RunContext, lake_name: str, cache: Sequence[PastRun], released: ReleasedFiles | None
) -> Baseline | FullRecompute:
    """Find the newest usable `live_files` of the lake, or the reason why no run is usable.

    The rows depend only on their inputs, so the baseline may be of any run date, including a later
    one. Four kinds of runs are not used:

    - runs with an id or a creation time in the future: a clock that was ahead would make them the
      newest for years;
    - runs with lowered safety limits or a rehearsal clock, if this run has neither;
    - runs with another fingerprint;
    - verification marks, unless this run is one, which also uses ordinary runs.
    """
    if context.config.full_every == 0:
        return FullRecompute("full_every is 0")
    state, now = context.state, context.clock.now()
    try:
        history, own = state.history(lake_name, LIVE_FILES.name), fingerprint(context, lake_name)
        if wrong := [run.run_date for run in history if run.summary(ComparisonSummary).wrong == own]:
            return FullRecompute(f"reused rows of this release were wrong on {max(wrong)}", distrusted_on=max(wrong))
        latest = f"{now:%Y%m%dT%H%M%SZ}~"  # sorts after every id of a run that has started
        started = [run for run in history if run.entry.created_at <= now and run.run_id <= latest]
        runs = sorted(started, key=lambda run: run.run_id, reverse=True)
        opened = (state.open(run) for run in runs[:MAX_BASELINES_OPENED])
        last = next((found for found in opened if set(found.receipt.unsafe) <= set(context.unsafe)), None)
        if last is None:
            return FullRecompute("the previous runs used other safety limits or a rehearsal clock" if runs else "there is no previous run")
        summary = last.summary(LiveFilesSummary)
        if summary.fingerprint != own:
            return FullRecompute("the previous run used another release, other storages or other settings")
        found = _check_baseline(context, lake_name, last, cache, released)
        return found if isinstance(found, Baseline) else replace(found, uncompared_runs=summary.uncompared_runs + 1)
    except (StateError, OSError) as error:
        return FullRecompute(f"{BASELINE_DAMAGED}: {error}")


def _check_baseline(
    context: RunContext, lake_name: str, last: PublishedTable, cache: Sequence[PastRun], released: ReleasedFiles | None
) -> Baseline | FullRecompute:
    summary = last.summary(LiveFilesSummary)
    if summary.unreadable:
        return FullRecompute("the previous run has unreadable tables")
    known, segments = set(summary.segments), segments_with_rows(cache)
    if segments_digest([run for run in segments if run.run_id in known]) != summary.segments_digest:
        return FullRecompute("segments of the entry cache are missing")
    changed = _changed_released_files(context, lake_name, last, released)
    if isinstance(changed, FullRecompute):
        return changed
    baseline = Baseline(last, summary, tuple(run for run in segments if run.run_id not in known), changed)
    if not baseline.rows:
        return FullRecompute("the previous run has no rows")
    return baseline if last.parts(NEEDS_SIDE) else FullRecompute(f"the previous run has no side table {NEEDS_SIDE}")


def _changed_released_files(
    context: RunContext, lake_name: str, last: PublishedTable, released: ReleasedFiles | None
) -> tuple[ReleasedFiles, ...] | FullRecompute:
    """Return the released file tables of the baseline and this run, or nothing if they are equal.

    Raises:
        StateError: If the table of the baseline is damaged.
    """
    table = context.kind(lake_name).table_with(TableRole.RELEASED_FILES)
    inputs = [text for name, text in last.receipt.inputs.items() if table is not None and name.split("/")[-2] == table.name]
    if table is None or not inputs:
        return () if released is None else (released,)
    run_id, _, previous_digest = inputs[0].partition(":")
    if released is not None and released.published.receipt.digest == previous_digest:
        return ()
    found = [run for run in context.state.history(lake_name, table.name) if run.run_id == run_id]
    if not found:
        return FullRecompute(f"{table.name} of the previous run is missing")
    previous = context.state.open(found[0])
    context.state.verify(previous)
    return (ReleasedFiles(table, previous), *([released] if released is not None else []))


def full_recompute_reason(
    baseline: Baseline | FullRecompute, changes: NeedChanges | None, full_every: int, cached_entries: int
) -> FullRecompute | None:
    """Decide if every row must be recomputed. None means that rows are reused.

    Args:
        baseline: Result of `find_baseline`.
        changes: None if the needs were not compared, because a table is unreadable.
        full_every: Runs between two comparisons.
        cached_entries: Number of cached file entries.
    """
    if isinstance(baseline, FullRecompute):
        return baseline
    if changes is None:
        return FullRecompute("some tables are unreadable")
    if changes.damaged:
        return FullRecompute(changes.damaged)
    if baseline.is_comparison_due(full_every):
        interval = "every run" if full_every == 1 else f"every {full_every:,} runs"
        return FullRecompute(f"{interval} all rows are computed and compared", compare=True)
    dirty = changes.entries + changes.keys + baseline.new_rows
    if dirty and cached_entries <= MIN_INCREMENTAL_ROWS:
        return FullRecompute("the table is small")
    if dirty > MAX_DIRTY_SHARE * baseline.rows:
        return FullRecompute(f"up to {dirty:,} of {baseline.rows:,} rows are dirty")
    return None
