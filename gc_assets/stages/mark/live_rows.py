"""Write the rows of `live_files`: all rows, or those of dirty keys next to reused rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Final, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.errors import StateError
from gc_assets.core.plan import Amount
from gc_assets.engine.progress import log_activity
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session
from gc_assets.engine.tables import Totals, WrittenParts, read_paths, write_frame
from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark.cached_entries import CachedEntries
from gc_assets.stages.mark.dirty_keys import filter_clean, filter_dirty, write_dirty_keys
from gc_assets.stages.mark.entry_selection import MAX_VALUES, select_entries
from gc_assets.stages.mark.incremental import BASELINE_DAMAGED, Baseline, BaselineInvalid, FullRecompute, NeedChanges
from gc_assets.stages.mark.released_files import ReleasedFiles
from gc_assets.stages.mark.reused_rows import ReusedRows, amend_amounts, reuse_rows
from gc_assets.stages.mark.row_comparison import describe_differences, published_routes, read_routes, sum_hashes, written_routes
from gc_assets.stages.mark.witnesses import build_live_rows, route_released
from gc_assets.state.compaction import Segments
from gc_assets.state.journal import State, TableRun
from gc_assets.state.receipts import PartFile
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.side_tables import (
    CHANGED_CONTAINERS,
    CHANGED_CONTAINERS_SIDE,
    CHANGED_KEYS,
    CHANGED_KEYS_SIDE,
    DIRECT_FILES,
    DIRECT_FILES_SIDE,
    DIRTY_KEYS,
    DIRTY_KEYS_SIDE,
    ENTRIES_BY_CONTAINER_SIDE,
    ENTRIES_BY_KEY_SIDE,
    ROUTED_SIDES,
    SELECTED_ENTRIES,
    WITNESSES,
    WITNESSES_SIDE,
)

_TOTALS_BY: Final = ("storage", "kind")


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Origin of the rows, with the same fields as in `LiveFilesSummary`."""

    full_recompute_on: date | None
    uncompared_runs: int
    reused_files: int = 0
    reused_from: str | None = None
    full_recompute_reason: str | None = None
    incremental_runs: int = 0
    differences: tuple[str, ...] = ()
    distrusted_on: date | None = None


@dataclass(frozen=True, slots=True)
class LiveRows:
    """Written table with its amounts and row origin.

    `reused` is None if every row was computed.
    """

    written: WrittenParts
    by_kind: dict[str, Amount]
    by_storage: dict[str, Amount]
    possible_by_storage: dict[str, Amount]
    origin: RowOrigin
    reused: ReusedRows | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WalkOutput:
    """Scratch side tables and counts of the walk.

    Attributes:
        side: Parts of the scratch side tables.
        changes: Differences in needs, or None if they were not compared.
        all_rows_reusable: True if the walk wrote no witnesses, because all baseline rows can be
            reused.
    """

    side: dict[str, tuple[PartFile, ...]] = field(default_factory=dict[str, tuple[PartFile, ...]])
    changes: NeedChanges | None = None
    all_rows_reusable: bool = False

    @property
    def rows(self) -> int:
        return sum(map(_count_rows, self.side.values()))

    @property
    def files(self) -> int:
        return sum(map(len, self.side.values()))


@dataclass(frozen=True)
class LiveRowWriter:
    """Writer for the `live_files` rows of one run.

    Attributes:
        cache: Entry cache segments.
        walk: Output of the walk.
        released: Released files, or None if the lake has no such rules.
    """

    spark: SparkSession
    context: RunContext
    lake_name: str
    run: TableRun
    cache: Segments
    walk: WalkOutput
    released: ReleasedFiles | None

    def write(self, baseline: Baseline | FullRecompute, full: FullRecompute | None) -> LiveRows:
        """Write all rows, or those of dirty keys next to reused rows.

        Args:
            baseline: Result of `find_baseline`.
            full: Result of `full_recompute_reason`.

        Raises:
            BaselineInvalid: If the baseline is unusable.
        """
        if full is not None and self.walk.all_rows_reusable:
            raise BaselineInvalid(full.reason)  # there are no witnesses to compute rows from
        if isinstance(baseline, FullRecompute):
            return self._compute_all(None, baseline)
        return self._update(baseline) if full is None else self._compute_all(baseline, full)

    def _compute_all(self, baseline: Baseline | None, full: FullRecompute) -> LiveRows:
        log_activity(f"computing all rows: {full.short_reason}")
        compared = baseline if full.compare else None
        if compared is not None:
            self._verify(compared)
        written = self._write_rows(self._session(self._input_rows, len(self._all_entries.paths)), None, self._all_entries)
        differences, notes = (), tuple[str, ...]()
        if compared is not None and (differences := self._compare(compared, written)):
            self._verify(compared)  # damage since the first check is no difference
            notes = (
                f"lake {self.lake_name}: rows that were reused since {compared.summary.full_recompute_on} differ from the computed rows: "
                f"{'; '.join(differences)}. This run publishes the computed rows. Plans since then used the reused rows; please report "
                "this error. This release reuses no more rows of this lake.",
            )
        uncompared_runs = full.uncompared_runs if baseline is None else baseline.summary.uncompared_runs + 1
        origin = RowOrigin(
            full_recompute_on=self.context.run_date,
            uncompared_runs=0 if compared is not None else uncompared_runs,
            full_recompute_reason=full.reason,
            differences=differences,
            distrusted_on=self.context.run_date if differences else full.distrusted_on,
        )
        return LiveRows(written, *_amounts(written.totals), origin, notes=notes)

    def _update(self, baseline: Baseline) -> LiveRows:
        """Reuse the rows of clean keys and compute those of dirty keys."""
        dirty, written = tuple[PartFile, ...](), WrittenParts((), 0)
        if self._has_changes(baseline):
            log_activity("finding the dirty keys")
            dirty = self._write_dirty_keys(baseline)
        log_activity(f"reusing {baseline.rows:,} rows except those of {_count_rows(dirty):,} dirty keys")
        reused = reuse_rows(self.spark, baseline, self.run, self._state.files, self._paths(dirty))
        if dirty:
            log_activity("computing the rows of dirty keys")
            entries = self._entries_of_keys(dirty)
            session = self._session(entries.rows + _count_rows(dirty) + self._joined_rows, len(entries.paths) + len(dirty))
            written = self._write_rows(session, dirty, entries)
            self._delete_scratch(dirty, entries.scratch)
        previous = (baseline.summary.by_kind, baseline.summary.by_storage, baseline.summary.possible_by_storage)
        by_kind, by_storage, possible = map(amend_amounts, previous, _amounts(reused.dropped), _amounts(written.totals))
        merged = _merge(reused, written)
        for amounts in (by_kind, by_storage):
            if (counted := Amount.total(amounts.values()).files) != merged.rows:
                raise BaselineInvalid(f"the counts of the previous run give {counted:,} files, but {merged.rows:,} rows were written")
        origin = RowOrigin(
            full_recompute_on=baseline.summary.full_recompute_on,
            uncompared_runs=baseline.summary.uncompared_runs + 1,
            reused_files=reused.rows,
            reused_from=baseline.published.receipt.run_id,
            incremental_runs=baseline.summary.incremental_runs + 1,
        )
        return LiveRows(merged, by_kind, by_storage, possible, origin, reused)

    def _verify(self, baseline: Baseline) -> None:
        try:
            self._state.verify(baseline.published)
        except (StateError, OSError) as error:
            raise BaselineInvalid(f"{BASELINE_DAMAGED}: {error}") from error

    def _has_changes(self, baseline: Baseline) -> bool:
        changes = self.walk.changes
        return changes is None or not changes.is_empty or bool(baseline.new_rows)

    def _write_dirty_keys(self, baseline: Baseline) -> tuple[PartFile, ...]:
        """Write the keys whose rows may differ from the baseline, and return the parts."""
        state, changed = self._state, self.walk.side.get(CHANGED_CONTAINERS_SIDE, ())
        new_ids = {run.run_id for run in baseline.new_segments}
        known = CachedEntries.from_segments(state.segments([run for run in self.cache.runs if run.run_id not in new_ids]))
        new = CachedEntries.from_segments(state.segments(list(baseline.new_segments)))
        known = self._select(known, "container", changed, ENTRIES_BY_CONTAINER_SIDE)
        session = self._session(baseline.new_rows + known.rows + self._joined_rows, len(new.paths) + len(known.paths))
        frames = [read_paths(session, state.files, CHANGED_KEYS, self._side_paths(CHANGED_KEYS_SIDE))]
        if new.paths:
            frames.append(new.read(session, state.files))
        if known.paths:
            containers = read_paths(session, state.files, CHANGED_CONTAINERS, self._paths(changed))
            frames.append(known.read(session, state.files).join(F.broadcast(containers), "container", "left_semi"))
        frames += [released.read(session, state, ["key"]) for released in baseline.released]
        dirty = write_dirty_keys(frames, state.files, self.run).side.get(DIRTY_KEYS_SIDE, ())
        self._delete_scratch(known.scratch)
        return dirty

    def _entries_of_keys(self, dirty: Sequence[PartFile]) -> CachedEntries:
        """Select at least the entries of dirty keys."""
        return self._select(self._all_entries, "key", dirty, ENTRIES_BY_KEY_SIDE)

    def _select(self, entries: CachedEntries, by: Literal["container", "key"], values: Sequence[PartFile], prefix: str) -> CachedEntries:
        """Select at least the entries that match a value. With many values, return all entries."""
        if _count_rows(values) > MAX_VALUES:
            return entries
        selected = (
            () if not values else select_entries(self.spark, self._state.files, self.run, entries.paths, by, self._paths(values), prefix)
        )
        return CachedEntries(tuple(self._paths(selected)), _count_rows(selected), entries.has_external, SELECTED_ENTRIES, selected)

    def _write_rows(self, session: SparkSession, dirty: Sequence[PartFile] | None, entries: CachedEntries) -> WrittenParts:
        return write_frame(self._query_rows(session, dirty, entries), LIVE_FILES, self.run, self._state, _TOTALS_BY, ROUTED_SIDES)

    def _query_rows(self, session: SparkSession, dirty: Sequence[PartFile] | None, cached: CachedEntries) -> DataFrame:
        """Build all rows with their routes, or those of dirty keys, which `cached` must contain."""
        state = self._state
        witnesses = read_paths(session, state.files, WITNESSES, self._side_paths(WITNESSES_SIDE))
        direct = read_paths(session, state.files, DIRECT_FILES, self._side_paths(DIRECT_FILES_SIDE))
        entries = cached.read(session, state.files)
        if dirty is not None:
            hashes, count = self._read_hashes(session, dirty), _count_rows(dirty)
            entries, direct = (filter_dirty(frame, hashes, count) for frame in (entries, direct))
        files = build_live_rows(entries, direct, witnesses, self.lake_name)
        return files if self.released is None else route_released(files, self.released.read(session, state).filter("not deduplicated"))

    def _compare(self, baseline: Baseline, written: WrittenParts) -> tuple[str, ...]:
        """Return the differences between the rows of an incremental run and the written rows."""
        log_activity("comparing with the rows of an incremental run")
        session, state = self._session(self._input_rows + baseline.rows, len(self._all_entries.paths)), self._state
        rows = read_routes(session, state.files, published_routes(baseline.published))
        if self._has_changes(baseline):
            dirty = self._write_dirty_keys(baseline)
            updated = self._query_rows(session, dirty, self._entries_of_keys(dirty))
            rows = filter_clean(rows, self._read_hashes(session, dirty), _count_rows(dirty)).unionByName(updated.select(rows.columns))
        return describe_differences(sum_hashes(rows), sum_hashes(read_routes(session, state.files, written_routes(self.run, written))))

    def _read_hashes(self, session: SparkSession, dirty: Sequence[PartFile]) -> DataFrame:
        return read_paths(session, self._state.files, DIRTY_KEYS, self._paths(dirty), ["key_hash"])

    def _side_paths(self, side: str) -> list[str]:
        return self._paths(self.walk.side.get(side, ()))

    def _paths(self, parts: Sequence[PartFile]) -> list[str]:
        return [f"{self.run.path}/{part.name}" for part in parts]

    def _delete_scratch(self, *scratch: Sequence[PartFile]) -> None:
        for side in {part.name.rpartition("/")[0] for parts in scratch for part in parts}:
            self._state.files.delete_directory(f"{self.run.path}/{side}")

    def _session(self, rows: int, paths: int) -> SparkSession:
        return choose_session(self.spark, rows, paths + self.walk.files)

    @property
    def _all_entries(self) -> CachedEntries:
        return CachedEntries.from_segments(self.cache)

    @property
    def _input_rows(self) -> int:
        return self._all_entries.rows + self._joined_rows

    @property
    def _joined_rows(self) -> int:
        """Number of rows joined with the entries."""
        return self.walk.rows + (self.released.rows if self.released is not None else 0)

    @property
    def _state(self) -> State:
        return self.context.state


def _merge(reused: ReusedRows, written: WrittenParts) -> WrittenParts:
    side = {
        name: (*reused.side.get(name, ()), *written.side.get(name, ()))
        for name in ROUTED_SIDES
        if name in reused.side or name in written.side
    }
    return WrittenParts((*reused.parts, *written.parts), (reused.digest + written.digest) % 2**64, side)


def _count_rows(parts: Sequence[PartFile]) -> int:
    return sum(part.rows for part in parts)


def _amounts(totals: dict[tuple[str, ...], Totals]) -> tuple[dict[str, Amount], dict[str, Amount], dict[str, Amount]]:
    """Return amounts by kind, by storage, and by storage for possible objects.

    `totals` are by storage and kind.
    """
    possible = {key: total for key, total in totals.items() if key[1] == Kind.POSSIBLE_OBJECT}
    return _sum_by(totals, 1), _sum_by(totals, 0), _sum_by(possible, 0)


def _sum_by(totals: dict[tuple[str, ...], Totals], position: int) -> dict[str, Amount]:
    grouped: dict[str, Totals] = {}
    for key, value in totals.items():
        grouped[key[position]] = grouped.get(key[position], Totals()) + value
    return {name: value.amount for name, value in sorted(grouped.items())}
