"""Find candidates that cached entries or commits reference, based on the hashes of their keys.

A single pass over a lake's hashes finds the strongest witness (commit and container) of each
candidate, and checks whether any key that the lake needs may equal a candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.hashing import xxhash64
from gc_assets.core.sorted_hashes import HashSet, SpelledHashes
from gc_assets.engine.tables import collect_arrow, spark_schema
from gc_assets.stages.mark.container_scan import KIND_COUNT
from gc_assets.stages.mark.container_states import route_of
from gc_assets.stages.mark.file_entries import loose_form
from gc_assets.stages.mark.hash_scan import SelectLive
from gc_assets.stages.mark.live_hashes import LiveHashes
from gc_assets.stages.sweep.live_keys import LiveKeys
from gc_assets.state.files import Files
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import CANDIDATES, LIFECYCLE_SIDE

# A row without a hash contains the number of needed keys that may equal a candidate.
_MATCHES: Final = pa.schema([("key_hash", pa.int64()), ("strongest", pa.int64()), ("hits", pa.int64())])


@dataclass(frozen=True, slots=True)
class ReleasedCandidates:
    """Candidates that a lake references but does not need, as parallel arrays.

    Attributes:
        key_hash: Sorted hashes of the candidates' keys.
        route: The side table of each candidate.
        kind: The kind of each candidate, as a position in `FILE_KINDS`.
        witness: The strongest witness of each candidate, as a position in `witnesses`.
        witnesses: The witnesses, with the columns commit_id, container and table_uuid.
    """

    lake: str
    key_hash: NDArray[np.int64]
    route: NDArray[np.object_]
    kind: NDArray[np.int64]
    witness: NDArray[np.int64]
    witnesses: pa.Table

    @classmethod
    def of(cls, lake: str, hashes: LiveHashes, select: SelectLive, found: pa.Table) -> Self:
        """Select the matched candidates that are not live.

        Args:
            lake: Name of the lake.
            hashes: The lake's live set.
            select: Selects the live files of the storage.
            found: The matches, with the columns key_hash and strongest. A hash may occur more than
                once.
        """
        key_hash, index = np.unique(found.column("key_hash").to_numpy(), return_inverse=True)
        strongest = np.full(len(key_hash), np.iinfo(np.int64).max)
        np.minimum.at(strongest, index, found.column("strongest").to_numpy())
        is_released = (strongest >= select.first_released) | select.is_released(key_hash)
        key_hash, strongest = key_hash[is_released], strongest[is_released]
        numbers, kind = np.divmod(strongest, KIND_COUNT)
        wanted, witness = np.unique(numbers, return_inverse=True)
        witnesses = hashes.states.witnesses.sort_by("witness").take(pa.array(wanted))
        routes = [route_of(rank) or LIFECYCLE_SIDE for rank in witnesses.column("rank").to_pylist()]
        columns = witnesses.select(["commit_id", "container", "table_uuid"]).combine_chunks()
        return cls(lake, key_hash, np.array(routes, object)[witness], kind, witness, columns)

    def find(self, hashes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find the candidates that have the given key hashes.

        Returns:
            Positions of the hashes that belong to candidates, and the positions of the candidates.
        """
        if not len(self.key_hash):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        at = np.minimum(np.searchsorted(self.key_hash, hashes), len(self.key_hash) - 1)
        rows = np.flatnonzero(self.key_hash[at] == hashes)
        return rows, at[rows]

    def without(self, hashes: NDArray[np.int64]) -> Self:
        """Return a copy without the candidates whose key hash is in `hashes`."""
        is_kept = ~np.isin(self.key_hash, hashes)
        arrays = (self.key_hash[is_kept], self.route[is_kept], self.kind[is_kept], self.witness[is_kept])
        return type(self)(self.lake, *arrays, self.witnesses)


@dataclass(frozen=True, slots=True)
class CandidateMatches:
    """A group of a storage's candidates, matched against the hashes of all lakes.

    Attributes:
        may_be_needed: True if a live key may equal a candidate, exactly or except for its spelling.
            Also True if a key of expired history that must be edited may equal one except for its
            spelling.
        released: Candidates that each lake references but does not need.
        lifecycle_commits: Sorted hashes of candidates released by lifecycle rules, and how many
            retained commits reference each.
    """

    may_be_needed: bool
    released: tuple[ReleasedCandidates, ...]
    lifecycle_commits: tuple[NDArray[np.int64], NDArray[np.int64]]

    @classmethod
    def find(cls, keys: LiveKeys, files: Files, candidates: Sequence[str]) -> Self:
        """Match candidates against the hashes of all lakes.

        Args:
            keys: Live keys of the storage.
            files: The files of the state.
            candidates: Paths of parts with the candidates (`CANDIDATES` columns).
        """
        paths, hits, released = tuple(candidates), 0, list[ReleasedCandidates]()
        for item, hashes in zip(keys.sets, keys.lakes, strict=True):
            select = hashes.live_keys(keys.storage)
            first_unneeded = hashes.first_dangling if item.context.kind(item.lake).edits_history else select.first_released
            found = _match(hashes, _MatchCandidates(select, first_unneeded, files, paths))
            hits += pc.sum(found.column("hits")).as_py() or 0
            released.append(ReleasedCandidates.of(item.lake, hashes, select, found.filter(pc.is_valid(found.column("key_hash")))))
        return cls(hits > 0, tuple(released), _count_lifecycle_commits(keys, files, paths))


def _match(hashes: LiveHashes, task: _MatchCandidates) -> pa.Table:
    """Match all file entries of a lake against the candidates. Returns the `_MATCHES` columns."""
    if hashes.runs_in_process:
        return hashes.run(task, _MATCHES)
    # Each group of parts may reference all candidates, so the results are merged by hash.
    found = hashes.map_frame(task, spark_schema(_MATCHES)).groupBy("key_hash")
    return collect_arrow(found.agg(F.min("strongest").alias("strongest"), F.sum("hits").alias("hits")), _MATCHES)


def _count_lifecycle_commits(keys: LiveKeys, files: Files, paths: tuple[str, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for released in [released for item in keys.sets if (released := item.released) is not None]:
        for path in released.published.paths():
            rows = read_parts(files, [path], released.table.schema, ["storage", "key", "deduplicated", "commits"])
            rows = rows.filter((pc.field("storage") == keys.storage) & ~pc.field("deduplicated"))
            hashes = xxhash64(rows.column("key"))
            at, _ = _candidate_hashes(files, paths)[0].find(hashes)
            found.append((hashes[at], rows.column("commits").to_numpy()[at]))
    hashes, commits = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    distinct, index = np.unique(hashes, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, index, commits)
    return distinct, sums


@dataclass(frozen=True)
class _MatchCandidates:
    """Match file entries (`MATCHED` columns) against the candidates.

    Attributes:
        first_unneeded: The smallest `strongest` value that neither live files nor expired history
            that must be edited has.
    """

    select: SelectLive
    first_unneeded: int
    files: Files
    candidates: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys, spelled = _candidate_hashes(self.files, self.candidates)
        strongest, hits = np.full(len(keys.hashes), np.iinfo(np.int64).max), 0
        for batch in batches:
            at, found = keys.find(batch.column("key_hash").to_numpy())
            is_mine = batch.column("storage").to_numpy()[at] == self.select.position
            np.minimum.at(strongest, found[is_mine], batch.column("strongest").to_numpy()[at[is_mine]])
            at, is_respelled = spelled.find(batch.column("key_hash").to_numpy(), batch.column("loose_hash").to_numpy())
            similar = batch.take(pa.array(at))
            hits += sum(live.num_rows for live in self.select(iter([similar])))
            is_needed = similar.column("strongest").to_numpy() < self.first_unneeded
            hits += np.count_nonzero(is_respelled & is_needed & (similar.column("storage").to_numpy() == self.select.position))
        is_named = strongest < np.iinfo(np.int64).max
        counts = np.zeros(np.count_nonzero(is_named), np.int64)
        yield pa.RecordBatch.from_arrays(list(map(pa.array, (keys.hashes[is_named], strongest[is_named], counts))), schema=_MATCHES)
        yield pa.RecordBatch.from_pylist([{"hits": hits}], schema=_MATCHES)


@lru_cache(maxsize=1)
def _candidate_hashes(files: Files, paths: tuple[str, ...]) -> tuple[HashSet, SpelledHashes]:
    """Return the hashes of candidate keys, alone and with those of their normalized spelling."""
    keys = read_parts(files, list(paths), CANDIDATES, ["key"]).column("key")
    hashes = xxhash64(keys)
    return HashSet(hashes), SpelledHashes(hashes, xxhash64(loose_form(keys)))
