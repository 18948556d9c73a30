"""Determine the `reason` and the last witness (commit and container) of each candidate.

Candidates are compared with the entries of all lakes by the hashes of their keys. A hash collision
only changes a reason, so equal hashes are treated as equal keys. The keys themselves are compared
in two cases: if a candidate may equal a needed key, or if a referenced candidate may be foreign or
belong to a dropped table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.claims import Claims
from gc_assets.core.foreign import OTHER_FORMAT
from gc_assets.core.hashing import xxhash64
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import ROUTE, Task, collect_arrow, frame_from_arrow, spark_schema
from gc_assets.engine.tasks import table_fits_in_process
from gc_assets.lakes.file_kinds import FILE_KINDS
from gc_assets.lakes.kinds import uncollected_metadata
from gc_assets.stages.sweep.candidate_matches import CandidateMatches, ReleasedCandidates
from gc_assets.stages.sweep.dropped_tables import DroppedFinder
from gc_assets.stages.sweep.exact_comparison import find_collisions, find_hits, find_twins, ignores_case
from gc_assets.stages.sweep.foreign_files import FOREIGN, ForeignFinder
from gc_assets.stages.sweep.live_filter import expired_keys, live_keys
from gc_assets.stages.sweep.live_keys import LiveKeys
from gc_assets.state.arrow_types import STRING
from gc_assets.state.schemas import ORPHAN_FILES
from gc_assets.state.side_tables import (
    CANDIDATES,
    DEFERRED_SIDE,
    EXPIRED_SIDE,
    FALSE_NEGATIVES_SIDE,
    LIFECYCLE_SIDE,
    NEAR_MISSES_SIDE,
)

# Number of candidates that are matched in one pass over the hashes of all lakes. Each candidate
# takes about 50 bytes in every task.
MAX_MATCHED: Final = 2_000_000

ROUTED_ORPHANS: Final = ORPHAN_FILES.schema.append(pa.field(ROUTE, STRING))
_KEY: Final = pa.schema([("key", STRING)])
# Strengths of witnesses. If several lakes reference a file that none needs, the lowest number
# applies. HELD: expired history that must be edited first. RELEASED: expired history that is never
# edited. LIFECYCLE: a lifecycle rule. MENTIONED: a dangling commit.
HELD, RELEASED, LIFECYCLE, MENTIONED = 0, 1, 2, 3
_WITNESS_ORDER: Final = ("row", "strength", "commit_id", "container", "kind", "lake", "table_uuid")


@dataclass(frozen=True)
class ReasonSearch:
    """Search for the reasons of all candidates of a sweep.

    Attributes:
        keys: Live keys of the storage.
        foreign: Finds foreign files, or None. If a commit references a file, the file is only
            foreign if it is in a dataset of another format.
        dropped: Finds files of dropped tables, or None.
        deferred: Prefixes under which candidates are written to the side table `DEFERRED_SIDE`.
    """

    spark: SparkSession
    context: RunContext
    keys: LiveKeys
    foreign: ForeignFinder | None
    dropped: DroppedFinder | None
    deferred: tuple[str, ...]

    def find(self, candidates: ParquetScan, rows: int) -> pa.Table | DataFrame:
        """Return the candidates with their reasons, witnesses and routes (target side tables).

        If a candidate equals a live key, it is routed to the false negatives. If the candidate
        differs only in its spelling from a key that is live, or in expired history that must be
        edited, the candidate is routed to the near misses. The near misses also include live
        candidates with the same hash as a released file.

        Args:
            candidates: Parts with the candidates (`CANDIDATES` columns).
            rows: Number of candidates.

        Returns:
            The `ROUTED_ORPHANS` columns, as a table if there are few candidates, otherwise as a
            frame.
        """
        collisions = find_collisions(self.context.state.files, self.keys, candidates.paths)
        if table_fits_in_process(self.spark, rows, len(candidates.paths)):
            matches = self._match(candidates, in_process=True)
            found = pa.Table.from_batches(self._task(matches)(candidates.read_batches()), ROUTED_ORPHANS)
            is_hit = matches.may_be_needed or len(collisions)
            return self._route_needed(frame_from_arrow(self.spark, found), collisions) if is_hit else found
        frames, is_hit = list[DataFrame](), bool(len(collisions))
        for scan in _split(candidates, -(-rows // MAX_MATCHED)):
            matches = self._match(scan, in_process=False)
            frames.append(scan.map_arrow(self.spark, self._task(matches), spark_schema(ROUTED_ORPHANS)))
            is_hit |= matches.may_be_needed
        frame = reduce(DataFrame.unionAll, frames)
        return self._route_needed(frame, collisions) if is_hit else frame

    def _match(self, candidates: ParquetScan, *, in_process: bool) -> CandidateMatches:
        """Match candidates with referenced files by hash.

        If an equal hash could hide a foreign or dropped file, the keys are compared too.
        """
        matches = CandidateMatches.find(self.keys, self.context.state.files, candidates.paths)
        if self.foreign is None and self.dropped is None:
            return matches
        task = _FindNamed(matches.released, self.foreign, self.dropped)
        if in_process:
            found = pa.Table.from_batches(task(candidates.read_batches()), _KEY)
        else:
            found = collect_arrow(candidates.map_arrow(self.spark, task, spark_schema(_KEY)), _KEY)
        if not found.num_rows:
            return matches
        released = (
            own.without(self._unequal_hashes(number, found.column("key").combine_chunks())) for number, own in enumerate(matches.released)
        )
        return replace(matches, released=tuple(released))

    def _unequal_hashes(self, number: int, keys: pa.Array) -> NDArray[np.int64]:
        """Return the hashes of the given keys that the lake with index `number` does not reference."""
        rows = self.keys.sets[number].rows_of(self.spark, keys)
        named = rows.filter(pc.equal(rows.column("storage"), self.keys.storage)).column("key")
        return xxhash64(keys.filter(pc.invert(pc.is_in(keys, named.combine_chunks()))))

    def _task(self, matches: CandidateMatches) -> Task:
        lakes = self.context.config.lakes
        never_committed = {lake.name: self.context.kind(lake.name).files.never_committed for lake in lakes}
        edited = frozenset(lake.name for lake in lakes if self.context.kind(lake.name).edits_history)
        reasons = {lake: reason for lake, reason in never_committed.items() if reason is not None}
        deferred = Claims.of_shields(self.deferred) if self.deferred else None
        return _AddReasons(matches, self.foreign, self.dropped, edited, reasons, deferred, uncollected_metadata())

    def _route_needed(self, orphans: DataFrame, collisions: pa.Array) -> DataFrame:
        """Compare the keys of candidates with needed keys, and route the candidates that match.

        A candidate that expired history references under its own key is only compared with live
        keys. It is not removed before that history is edited, and the apply compares it again.
        """
        spark, context, storage = orphans.sparkSession, self.context, self.keys.storage
        live, ignore_case = [item.table for item in self.keys.sets], ignores_case(self.context, self.keys.storage)
        hits = find_hits(orphans, live_keys(spark, context, storage, live), ignore_case=ignore_case)
        unheld, in_history = orphans.filter(F.col("held_by").isNull()), expired_keys(spark, context, storage, live)
        twins = find_twins(unheld, in_history, ignore_case=ignore_case).filter("key <> live_key")
        hits = hits.unionByName(twins.select("key", F.lit(False).alias("exact"))).groupBy("key").agg(F.max("exact").alias("exact"))
        # The live keys do not include files with the same hash as a released file, so these are not
        # errors of the filter.
        is_lost = F.col("exact") & ~F.col("key").isin(collisions.to_pylist())
        route = F.when(is_lost, FALSE_NEGATIVES_SIDE).when(F.col("exact").isNotNull(), NEAR_MISSES_SIDE).otherwise(F.col(ROUTE))
        return orphans.join(hits, "key", "left").withColumn(ROUTE, route).select(*ROUTED_ORPHANS.names)


def _split(candidates: ParquetScan, count: int) -> Iterator[ParquetScan]:
    """Split the parts with the candidates into at most `count` groups."""
    size = -(-len(candidates.paths) // count)
    for start in range(0, len(candidates.paths), size):
        some = slice(start, start + size)
        yield replace(candidates, paths=candidates.paths[some], sizes=candidates.sizes[some])


@dataclass(frozen=True)
class _FindNamed:
    """Find the candidates whose keys must be compared, and yield these keys.

    The hash of such a candidate equals that of a file which a commit references. Without this
    match, the candidate would be foreign or belong to a dropped table.
    """

    released: tuple[ReleasedCandidates, ...]
    foreign: ForeignFinder | None
    dropped: DroppedFinder | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            hashes, is_named = xxhash64(batch.column("key")), np.zeros(batch.num_rows, bool)
            for own in self.released:
                is_named[own.find(hashes)[0]] = True
            named = batch.filter(pa.array(is_named))
            keys, is_doubtful = named.column("key"), pa.repeat(False, named.num_rows)
            if self.foreign is not None:
                rule = self.foreign.find_rules(named)
                is_doubtful = pc.and_(pc.is_valid(rule), pc.not_equal(pc.fill_null(rule, ""), OTHER_FORMAT))
            if self.dropped is not None:
                is_doubtful = pc.or_(is_doubtful, pc.is_valid(self.dropped.find_states(keys, named.column("last_modified"))[0]))
            yield pa.RecordBatch.from_arrays([keys.filter(is_doubtful)], schema=_KEY)


@dataclass(frozen=True)
class _AddReasons:
    """Add reason, witness and route to candidates, which makes them rows of `ROUTED_ORPHANS`.

    Attributes:
        matches: The candidates, matched against all lakes.
        edited: Lakes whose history is edited before files are deleted.
        never_committed: Reason for files that no commit has ever referenced, by lake. Lakes without
            such a reason are missing.
        deferred: Claims that give deferred keys no owner, or None if no key is deferred.
        metadata: Regular expression for metadata keys, to which `never_committed` does not apply.
    """

    matches: CandidateMatches
    foreign: ForeignFinder | None
    dropped: DroppedFinder | None
    edited: frozenset[str]
    never_committed: dict[str, str]
    deferred: Claims | None
    metadata: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (self._add(batch) for batch in batches if batch.num_rows)
        return map(self._defer, rows if self.dropped is None else self.dropped(rows))

    def _add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        hashes = xxhash64(batch.column("key"))
        witness = self._find_witnesses(hashes)
        strength = witness.column("strength")
        is_named, is_lifecycle = pc.is_valid(strength), pc.fill_null(pc.equal(strength, LIFECYCLE), False)
        rule = pa.nulls(batch.num_rows, STRING) if self.foreign is None else self.foreign.find_rules(batch)
        is_other_format = pc.fill_null(pc.equal(rule, OTHER_FORMAT), False)
        is_foreign = pc.and_(pc.is_valid(rule), pc.or_(pc.invert(is_named), is_other_format))
        is_held = pc.and_not(pc.fill_null(pc.equal(strength, HELD), False), is_foreign)
        lakes = pa.array(list(self.never_committed), STRING)
        unnamed = pa.array(list(self.never_committed.values()), STRING).take(pc.index_in(batch.column("lake"), lakes))
        is_metadata = pc.match_substring_regex(batch.column("key"), self.metadata)
        unnamed = pc.if_else(is_metadata, pa.scalar(None, STRING), unnamed)
        is_expired = pc.and_(is_named, pc.or_(pc.fill_null(pc.less_equal(strength, RELEASED), False), pc.is_valid(unnamed)))
        reason = pc.if_else(is_expired, "expired", pc.coalesce(unnamed, "unreferenced"))
        reason = pc.if_else(is_foreign, FOREIGN, pc.if_else(is_lifecycle, "lifecycle", reason))
        none = pa.scalar(None, STRING)
        columns = {name: batch.column(name) for name in CANDIDATES.names} | {
            "reason": reason,
            "last_commit_id": witness.column("commit_id"),
            "last_container": witness.column("container"),
            "held_by": pc.if_else(is_held, witness.column("lake"), none),
            "held_by_table": pc.if_else(is_held, witness.column("table_uuid"), none),
            "kind": witness.column("kind"),
            "dangling_commits": self._lifecycle_commits(hashes, pc.and_not(is_lifecycle, is_foreign)),
            "foreign_rule": pc.if_else(is_foreign, rule, none),
            ROUTE: pa.repeat(pa.scalar(""), batch.num_rows),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in ROUTED_ORPHANS.names], schema=ROUTED_ORPHANS)

    def _defer(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Route candidates under deferred prefixes to `DEFERRED_SIDE`, except foreign files.

        Foreign files are never planned anyway, and the report lists them.
        """
        if self.deferred is None:
            return batch
        route = batch.column(ROUTE)
        is_deferred = pc.and_(pc.is_null(self.deferred.resolve(batch.column("key"))[0]), pc.equal(route, ""))
        is_deferred = pc.and_(is_deferred, pc.not_equal(batch.column("reason"), FOREIGN))
        return batch.set_column(
            batch.schema.get_field_index(ROUTE), ROUTED_ORPHANS.field(ROUTE), pc.if_else(is_deferred, DEFERRED_SIDE, route)
        )

    def _find_witnesses(self, hashes: NDArray[np.int64]) -> pa.RecordBatch:
        """Return the strongest witness for each key hash, or a null row if there is no witness."""
        found = pa.concat_tables([_NO_WITNESS, *(self._witnesses_of(own, hashes) for own in self.matches.released)])
        if len(self.matches.released) > 1:
            filled = {name: pc.fill_null(found.column(name), "") for name in _WITNESS_ORDER[2:]}
            keys = pa.table({name: filled.get(name, found.column(name)) for name in _WITNESS_ORDER})
            found = found.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in _WITNESS_ORDER]))
        at = np.full(len(hashes), -1)
        # If a row has several witnesses, the first one wins, because it is assigned last.
        at[found.column("row").to_numpy()[::-1]] = np.arange(found.num_rows)[::-1]
        return found.take(pa.array(at, mask=at < 0)).combine_chunks().to_batches()[0]

    def _witnesses_of(self, own: ReleasedCandidates, hashes: NDArray[np.int64]) -> pa.Table:
        rows, at = own.find(hashes)
        strengths = {EXPIRED_SIDE: HELD if own.lake in self.edited else RELEASED, LIFECYCLE_SIDE: LIFECYCLE}
        columns = own.witnesses.take(pa.array(own.witness[at]))
        return (
            pa.table(
                {
                    "row": rows,
                    "strength": pa.array([strengths.get(route, MENTIONED) for route in own.route[at].tolist()], pa.int32()),
                    **{name: columns.column(name) for name in columns.column_names},
                    "kind": pa.array(FILE_KINDS, STRING).take(pa.array(own.kind[at])),
                    "lake": pa.repeat(pa.scalar(own.lake, STRING), len(rows)),
                }
            )
            .select(_NO_WITNESS.column_names)
            .cast(_NO_WITNESS.schema)
        )

    def _lifecycle_commits(self, hashes: NDArray[np.int64], is_wanted: pa.Array) -> pa.Array:
        """Count the retained commits that reference each file released by lifecycle rules.

        Once the file is deleted, these commits refer to a missing object.
        """
        known, commits = self.matches.lifecycle_commits
        at = pc.index_in(pa.array(hashes), pa.array(known))
        return pc.if_else(is_wanted, pa.array(commits, pa.int64()).take(at), pa.scalar(None, pa.int64()))


# `empty_table` would import pandas.
_NO_WITNESS: Final = pa.Table.from_batches(
    [], pa.schema([("row", pa.int64()), ("strength", pa.int32()), *((name, STRING) for name in _WITNESS_ORDER[2:])])
)
