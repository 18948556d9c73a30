"""Names the files of a lake from cached entries and from who needs them: all of them, or those that
a change touches beside what is carried over.

The rule is one query (`named_files`), whatever part of the files it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.errors import StateError
from gc_assets.core.plan import Amount
from gc_assets.engine.progress import log_activity
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session
from gc_assets.engine.tables import ROUTE, Totals, WrittenParts, read_paths, read_table, side_paths, write_frame
from gc_assets.lakes.file_kinds import FILE_KINDS, Kind
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS
from gc_assets.stages.mark.content_roots import RELEASED, SPARED
from gc_assets.stages.mark.entry_selection import MAX_VALUES, select_entries
from gc_assets.stages.mark.incremental import (
    BASELINE_DAMAGED,
    Baseline,
    BaselineInvalid,
    FullRecompute,
    ReusedRows,
    amend_amounts,
    describe_differences,
    file_key,
    filter_clean,
    filter_dirty,
    published_routes,
    read_routes,
    reuse_rows,
    sum_hashes,
    write_dirty_keys,
    written_routes,
)
from gc_assets.stages.mark.manifest_entries import count_file_rows, find_segments
from gc_assets.state.compaction import Pieces
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, State, TableRun
from gc_assets.state.receipts import PartFile
from gc_assets.state.schemas import LIVE_FILES, MANIFEST_ENTRIES
from gc_assets.state.side_tables import (
    CHANGED_CONTAINERS,
    CHANGED_CONTAINERS_SIDE,
    CHANGED_KEYS,
    CHANGED_KEYS_SIDE,
    DANGLING_SIDE,
    DIRECT_FILES,
    DIRECT_FILES_SIDE,
    DIRTY_KEYS,
    DIRTY_KEYS_SIDE,
    ENTRIES_BY_CONTAINER_SIDE,
    ENTRIES_BY_KEY_SIDE,
    EXPIRED_SIDE,
    EXTERNAL_SIDE,
    LIFECYCLE_SIDE,
    ROUTED_SIDES,
    SELECTED_ENTRIES,
    WITNESSES,
    WITNESSES_SIDE,
)
from gc_assets.state.summaries import Segment

# The fact of a walk that wrote neither, because all rows of the base stand.
ALL_ROWS_REUSABLE: Final = "nothing_to_name"
# Expressions are text here: each function of a column object is some calls to the JVM.
_KINDS: Final = len(FILE_KINDS)
_KIND_NAMES: Final = f"array({', '.join(repr(str(kind)) for kind in FILE_KINDS)})"
# The kind's place in `FILE_KINDS`. A kind that is not there stops the run: its file must not fall
# out of the live set.
_UNKNOWN_KIND: Final = "raise_error(concat('live_files: unknown file kind ', coalesce(kind, 'null')))"
_KIND_PLACE: Final = f"array_position({_KIND_NAMES}, kind)"
_KIND_NUMBER: Final = f"case when {_KIND_PLACE} > 0 then {_KIND_PLACE} - 1 else cast({_UNKNOWN_KIND} as bigint) end"


@dataclass(frozen=True, slots=True)
class Made:
    """The table as it was written, with the amounts and facts that follow from how. `carried` is
    null where everything was computed.
    """

    written: WrittenParts
    by_kind: dict[str, Amount]
    by_storage: dict[str, Amount]
    possible_by_storage: dict[str, Amount]
    carried: ReusedRows | None
    how: dict[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LiveRowWriter:
    """What the rows of tonight are made of: cached entries, and what the walk wrote as scratch
    (`closed`).

    `lifecycle` is null where no rule releases anything. `known` is how many rows these are.
    """

    spark: SparkSession
    context: RunContext
    lake_name: str
    run: TableRun
    there: Pieces
    closed: WrittenParts
    lifecycle: PublishedTable | None
    known: int

    def made(self, base: Baseline | FullRecompute, full: FullRecompute | None) -> Made:
        """Writes the rows: those of touched keys beside what is carried over, or all of them.

        Raises `BaselineInvalid` where the base turns out to be none.
        """
        if full is not None and self.closed.summary.get(ALL_ROWS_REUSABLE):
            raise BaselineInvalid(full.why)  # there is nothing here to compute from
        if isinstance(base, FullRecompute):
            return self._computed(None, base)
        return self._carried(base) if full is None else self._computed(base, full)

    def _computed(self, base: Baseline | None, full: FullRecompute) -> Made:
        log_activity(f"naming all files, because {full.in_short}")
        compared = base if full.compare else None
        if compared is not None:
            self._verify(compared)
        session = self._session(self.known, len(self._all.paths))
        files = self._files(session, None, self._all)
        written = write_frame(files, LIVE_FILES, self.run, self._state, ["storage", "kind"], ROUTED_SIDES)
        differ, notes = (), tuple[str, ...]()
        if compared is not None and (differ := self._compared(compared, written)):
            self._verify(compared)  # what rotted meanwhile is no difference
            notes = (
                f"lake {self.lake_name}: rows carried over since {compared.summary.full_on} are not those that are computed, which stand "
                f"here: {'; '.join(differ)}. Plans since then rest on the former; please report it. This release carries nothing over "
                "here any more.",
            )
        how = {
            "full_recompute_reason": full.why,
            "full_on": self.context.run_date,
            "uncompared_runs": 0 if compared is not None else full.uncompared_runs if base is None else base.summary.uncompared_runs + 1,
            "differences": differ,
            "distrusted_on": self.context.run_date if differ else full.distrusted_on,
        }
        return Made(written, *_amounts(written.totals), None, how, notes)

    def _verify(self, base: Baseline) -> None:
        """Raises `BaselineInvalid` where the base is damaged."""
        try:
            self._state.verify(base.published)
        except (StateError, OSError) as error:
            raise BaselineInvalid(f"{BASELINE_DAMAGED}: {error}") from error

    def _carried(self, base: Baseline) -> Made:
        touched, written = (), WrittenParts((), 0)
        if self._touches(base):
            log_activity("finding the files that changes touch")
            touched = self._touched(base)
        log_activity(f"carrying over {base.rows:,} rows without those of {_rows(touched):,} keys")
        carried = reuse_rows(self.spark, base, self.run, self._state.files, self._paths(touched))
        if touched:
            log_activity("naming the touched files")
            entries = self._naming(touched)
            session = self._session(entries.rows + _rows(touched) + self._beside, len(entries.paths) + len(touched))
            files = self._files(session, touched, entries)
            written = write_frame(files, LIVE_FILES, self.run, self._state, ["storage", "kind"], ROUTED_SIDES)
            self._let_go(touched, entries.picked)
        befores = (base.summary.by_kind, base.summary.by_storage, base.summary.possible_by_storage)
        gone, new = _amounts(carried.dropped), _amounts(written.totals)
        by_kind, by_storage, possible = map(amend_amounts, befores, gone, new)
        together = {
            side: (*carried.side.get(side, ()), *written.side.get(side, ()))
            for side in ROUTED_SIDES
            if side in carried.side or side in written.side
        }
        whole = WrittenParts((*carried.parts, *written.parts), (carried.digest + written.digest) % 2**64, together)
        for amounts in (by_kind, by_storage):
            if (counted := Amount.total(amounts.values()).files) != whole.rows:
                raise BaselineInvalid(f"the earlier night counts {counted:,} files as of tonight, and there are {whole.rows:,}")
        how = {
            "reused_files": carried.rows,
            "reused_from": base.published.receipt.run_id,
            "full_on": base.summary.full_on,
            "incremental_runs": base.summary.incremental_runs + 1,
            "uncompared_runs": base.summary.uncompared_runs + 1,
        }
        return Made(whole, by_kind, by_storage, possible, carried, how)

    def _touches(self, base: Baseline) -> bool:
        return bool(self.closed.summary["keys"] or self.closed.summary["changed"] or base.new_rows)

    def _touched(self, base: Baseline) -> tuple[PartFile, ...]:
        """Writes the keys whose rows may differ from the base's, and returns the parts."""
        state, changed = self._state, self.closed.side.get(CHANGED_CONTAINERS_SIDE, ())
        new = {run.run_id for run in base.came}
        known = Cached.of(state.pieces([run for run in self.there.runs if run.run_id not in new]))
        came, earlier = Cached.of(state.pieces(list(base.came))), self._some(known, "container", changed, ENTRIES_BY_CONTAINER_SIDE)
        session = self._session(base.new_rows + earlier.rows + self._beside, len(came.paths) + len(earlier.paths))
        frames = [read_paths(session, state.files, CHANGED_KEYS, self._scratch(CHANGED_KEYS_SIDE))]
        if came.paths:
            frames.append(came.frame(session, state.files))
        if earlier.paths:
            containers = read_paths(session, state.files, CHANGED_CONTAINERS, self._paths(changed))
            frames.append(earlier.frame(session, state.files).join(F.broadcast(containers), "container", "left_semi"))
        frames += [read_table(session, state, LIFECYCLE_OBJECTS, table, columns=["key"]) for table in base.released]
        touched = write_dirty_keys(frames, state.files, self.run).side.get(DIRTY_KEYS_SIDE, ())
        self._let_go(earlier.picked)
        return touched

    def _some(self, entries: Cached, by: Literal["container", "key"], values: Sequence[PartFile], prefix: str) -> Cached:
        """Returns at least the entries that have one of these values: all where there are many
        values.
        """
        if _rows(values) > MAX_VALUES:
            return entries
        picked = (
            () if not values else select_entries(self.spark, self._state.files, self.run, entries.paths, by, self._paths(values), prefix)
        )
        return Cached(tuple(self._paths(picked)), _rows(picked), entries.has_external, SELECTED_ENTRIES, picked)

    def _let_go(self, *scratch: Sequence[PartFile]) -> None:
        for side in {part.name.rpartition("/")[0] for parts in scratch for part in parts}:
            self._state.files.delete_directory(f"{self.run.path}/{side}")

    def _naming(self, touched: Sequence[PartFile]) -> Cached:
        """Returns at least the entries that name touched keys."""
        return self._some(self._all, "key", touched, ENTRIES_BY_KEY_SIDE)

    def _files(self, session: SparkSession, touched: Sequence[PartFile] | None, cached: Cached) -> DataFrame:
        """Returns the rows with their routes: all, or those of touched keys, which `cached` names."""
        state = self._state
        witnesses = read_paths(session, state.files, WITNESSES, self._scratch(WITNESSES_SIDE))
        direct = read_paths(session, state.files, DIRECT_FILES, self._scratch(DIRECT_FILES_SIDE))
        entries = cached.frame(session, state.files)
        if touched is not None:
            hashes, count = self._hashes(session, touched), _rows(touched)
            entries, direct = (filter_dirty(frame, hashes, count) for frame in (entries, direct))
        files = named_files(entries, direct, witnesses, self.lake_name)
        if self.lifecycle is not None:
            files = _without(files, read_table(session, state, LIFECYCLE_OBJECTS, self.lifecycle).filter("not deduplicated"))
        return files

    def _compared(self, base: Baseline, written: WrittenParts) -> tuple[str, ...]:
        """Returns in words where rows that would have been carried over are not those that were
        written.
        """
        log_activity("comparing with what would have been carried over")
        session, state = self._session(self.known + base.rows, len(self._all.paths)), self._state
        rows = read_routes(session, state.files, published_routes(base.published))
        if self._touches(base):
            touched = self._touched(base)
            files = self._files(session, touched, self._naming(touched))
            rows = filter_clean(rows, self._hashes(session, touched), _rows(touched)).unionByName(files.select(rows.columns))
        return describe_differences(sum_hashes(rows), sum_hashes(read_routes(session, state.files, written_routes(self.run, written))))

    def _hashes(self, session: SparkSession, touched: Sequence[PartFile]) -> DataFrame:
        return read_paths(session, self._state.files, DIRTY_KEYS, self._paths(touched), ["key_hash"])

    def _scratch(self, side: str) -> list[str]:
        return side_paths(self.run, self.closed, side)

    def _paths(self, parts: Sequence[PartFile]) -> list[str]:
        return [f"{self.run.path}/{part.name}" for part in parts]

    def _session(self, rows: int, paths: int) -> SparkSession:
        """Returns the session for so many rows in so many files, and what the walk wrote."""
        return choose_session(self.spark, rows, paths + sum(map(len, self.closed.side.values())))

    @property
    def _all(self) -> Cached:
        return Cached.of(self.there)

    @property
    def _beside(self) -> int:
        """How many rows are joined besides entries."""
        return sum(map(_rows, self.closed.side.values())) + (self.lifecycle.rows if self.lifecycle is not None else 0)

    @property
    def _state(self) -> State:
        return self.context.state


def _rows(parts: Sequence[PartFile]) -> int:
    return sum(part.rows for part in parts)


def _amounts(totals: dict[tuple[str, ...], Totals]) -> tuple[dict[str, Amount], dict[str, Amount], dict[str, Amount]]:
    """Returns the amounts by kind and by storage, and by storage those of possible objects;
    `totals` are by storage and kind.
    """
    possible = {key: total for key, total in totals.items() if key[1] == Kind.POSSIBLE_OBJECT}
    return _by(totals, 1), _by(totals, 0), _by(possible, 0)


def _by(totals: dict[tuple[str, ...], Totals], position: int) -> dict[str, Amount]:
    grouped: dict[str, Totals] = {}
    for key, value in totals.items():
        grouped[key[position]] = grouped.get(key[position], Totals()) + value
    return {name: value.amount for name, value in sorted(grouped.items())}


@dataclass(frozen=True, slots=True)
class Cached:
    """Entries of the cache: the parts in which they lie, and about how many they are. With
    `has_external` some of them lie in no storage. `picked` are parts that this night wrote for
    itself.
    """

    paths: tuple[str, ...]
    rows: int
    has_external: bool
    schema: pa.Schema = MANIFEST_ENTRIES.schema
    picked: tuple[PartFile, ...] = ()

    @classmethod
    def of(cls, there: Pieces) -> Cached:
        """Returns all entries of some segments."""
        return cls(tuple(there.paths()), count_file_rows(there.runs), any(segment.headline(Segment).external for segment in there.runs))

    def frame(self, spark: SparkSession, files: Files) -> DataFrame:
        """Returns the files that decoded containers name (columns of `manifest_entries`), without
        those that they say are deleted. `address` is left out where all of them lie in storages.
        """
        # The addresses of all entries are as much to read as all other columns together.
        columns = [name for name in self.schema.names if self.has_external or name != "address"]
        rows = read_paths(spark, files, self.schema, self.paths, columns, only=("is_container", False))
        return rows.filter("not is_container and (entry_status is null or entry_status <> 'deleted')")


def read_cached_entries(spark: SparkSession, context: RunContext, lake_name: str) -> DataFrame:
    """Returns what `Cached.frame` says, of all entries of a lake."""
    return Cached.of(context.state.pieces(find_segments(context, lake_name))).frame(spark, context.state.files)


def named_files(entries: DataFrame, direct: DataFrame, witnesses: DataFrame, lake_name: str) -> DataFrame:
    """Returns all files once, columns of `live_files`, each with its strongest witness and its
    route.

    `entries` are those of `Cached.frame`.
    """
    expanding = witnesses.filter("expands").select("witness", "container", "container_must_exist")
    children = entries.join(expanding, "container").withColumns(
        {"must_exist": F.expr("must_exist and container_must_exist"), "container_size_bytes": F.expr("cast(null as bigint)")}
    )
    placed = _placed(direct).unionByName(_placed(children))
    # Witness and kind as one number: Spark aggregates numbers by hashing, but text only by sorting.
    grouped = (
        placed.withColumn("strongest", F.expr(f"witness * {_KINDS} + {_KIND_NUMBER}"))
        .groupBy("storage", "key")
        .agg(
            F.min("strongest").alias("strongest"),
            F.max("size_bytes").alias("size_bytes"),
            F.max("must_exist").alias("must_exist"),
            F.max("container_size_bytes").alias("container_size_bytes"),
        )
    )
    named_by = grouped.withColumn("witness", F.expr(f"strongest div {_KINDS}"))
    return named_by.join(witnesses, "witness").select(
        "storage",
        "key",
        F.expr("xxhash64(key)").alias("key_hash"),
        F.expr(f"{_KIND_NAMES}[int(strongest % {_KINDS})]").alias("kind"),
        F.expr("coalesce(size_bytes, container_size_bytes)").alias("size_bytes"),
        F.lit(lake_name).alias("lake"),
        "commit_id",
        "container",
        "table_uuid",
        "must_exist",
        "container_size_bytes",
        _route().alias(ROUTE),
    )


def _placed(named: DataFrame) -> DataFrame:
    """Returns files by storage and key.

    The address is the key of a file that lies in no storage. A frame without that column has no
    such file.
    """
    return named.select("witness", "storage", file_key(named).alias("key"), "kind", "size_bytes", "must_exist", "container_size_bytes")


def _without(files: DataFrame, released: DataFrame) -> DataFrame:
    """Routes the files that the owner's rules release to their side table."""
    flagged = files.join(released.select("storage", "key", F.lit(True).alias("is_released")), ["storage", "key"], "left")
    route = F.when((F.col(ROUTE) == "") & F.coalesce("is_released", F.lit(False)), LIFECYCLE_SIDE).otherwise(F.col(ROUTE))
    return flagged.withColumn(ROUTE, route).select(*files.columns)


def _route() -> Column:
    by_rank = f"case when rank <= {SPARED} then '' when rank <= {RELEASED} then '{EXPIRED_SIDE}' else '{DANGLING_SIDE}' end"
    return F.expr(f"if(storage is null, '{EXTERNAL_SIDE}', {by_rank})")
