"""Classify all listed objects in a single pass over the inventory.

Each object is either live, unowned, dropped, protected, young or a candidate. The live filter may
classify garbage as live, but it never classifies a live file as garbage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.claims import Claims
from gc_assets.core.dropped_tables import AdoptableFiles, DroppedPrefixes
from gc_assets.core.foreign import SIDE_FILE, ForeignRules
from gc_assets.core.globs import glob_regex
from gc_assets.core.hashing import xxhash64
from gc_assets.engine.tables import Totals, report_parts
from gc_assets.stages.sweep.ages import Ages
from gc_assets.stages.sweep.foreign_files import find_datasets
from gc_assets.stages.sweep.live_filter import ProbeFilter
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.side_tables import (
    ADOPTABLE,
    ADOPTABLE_SIDE,
    CANDIDATES,
    CANDIDATES_SIDE,
    FOREIGN_DATASETS,
    FOUND_DATASETS_SIDE,
    IDENTITY_SEPARATOR,
    METADATA,
    SUSPECTS_SIDE,
    TARGETS,
    TARGETS_SIDE,
)

LIVE, YOUNG, UNOWNED, PROTECTED, CANDIDATE = "live", "young", "unowned", "protected", "candidate"
# Waiting files under the claims of dropped tables.
DROPPED_WAITING = "dropped"


@dataclass(frozen=True)
class Probe:
    """Classify inventory rows, and write the candidates. It runs on Spark executors.

    If the name of a claimed object looks like another table's metadata, the object is written as a
    suspect. To find foreign files later, the task writes the directories of datasets in other
    formats, and search targets: paths to look up among all files that commits referenced.

    Attributes:
        live: Looks up key hashes in the live filter.
        metadata: Live metadata, which the inventory must contain.
        optional: Live files that the inventory may lack.
        ages: Cut-offs that decide which files are old enough.
        uncollected: Regular expression for metadata keys. Unclaimed files that match are counted.
        suspect: Regular expression for names of metadata.
        protected: Regular expression for keys that are never candidates, or None.
        patterns: The `protect` patterns. For each pattern, the summary field `pattern_field`
            contains the number of tasks in which it matches a listed key.
        foreign: Rules that decide whether a candidate is foreign.
        dropped: The dropped tables, indexed by the prefixes that they claimed.
        adoptable: Selects files that listed tables may have adopted.
    """

    live: ProbeFilter
    claims: Claims
    metadata: ListedFiles
    optional: ListedFiles
    ages: Ages
    uncollected: str
    suspect: str
    files: Files
    run: TableRun
    protected: str | None
    patterns: tuple[str, ...]
    foreign: ForeignRules
    dropped: DroppedPrefixes
    adoptable: AdoptableFiles

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.run.path, CANDIDATES, CANDIDATES_SIDE)
        suspects = PartWriter(self.files, self.run.path, CANDIDATES, SUSPECTS_SIDE)
        datasets = PartWriter(self.files, self.run.path, FOREIGN_DATASETS, FOUND_DATASETS_SIDE)
        targets = PartWriter(self.files, self.run.path, TARGETS, TARGETS_SIDE)
        adoptable = PartWriter(self.files, self.run.path, ADOPTABLE, ADOPTABLE_SIDE)
        totals: dict[tuple[str, ...], Totals] = {}

        def count(name: str, rows: pa.RecordBatch) -> None:
            size = pc.sum(rows.column("size_bytes")).as_py() or 0
            totals[(name,)] = totals.get((name,), Totals()) + Totals(rows.num_rows, size)

        found = optional = side_files = 0
        unneeded, unused = Totals(), self.patterns
        for batch in batches:
            unused = find_unmatched(unused, batch.column("key"))
            found += self.metadata.count_found(batch)
            optional += self.optional.count_found(batch)
            hits = self.live.contains(xxhash64(batch.column("key")))
            is_side_file = self._find_side_files(batch, hits)
            side_files += np.count_nonzero(is_side_file)
            hits = hits | is_side_file
            live = batch.filter(pa.array(hits))
            count(LIVE, live)
            if self.adoptable.first:
                adoptable.write(self._select_adoptable(live))
            rest = batch.filter(pa.array(np.logical_not(hits)))
            owned = with_owner(rest, self.claims)
            unowned = owned.filter(pc.is_null(owned.column("lake")))
            for name, rows in self._split_unowned(unowned):
                count(name, rows)
            metadata = unowned.filter(pc.match_substring_regex(unowned.column("key"), self.uncollected))
            unneeded += Totals(metadata.num_rows, pc.sum(metadata.column("size_bytes")).as_py() or 0)
            datasets.write(find_datasets(rest.column("key")))
            owned = owned.filter(pc.is_valid(owned.column("lake")))
            # Suspects are selected before `protect` is applied, because data files of a foreign
            # table may be candidates although its metadata is protected.
            suspects.write(owned.filter(self._find_suspects(owned.column("key"))).select(CANDIDATES.names))
            if self.protected is not None:
                is_protected = pc.match_substring_regex(owned.column("key"), self.protected)
                count(PROTECTED, owned.filter(is_protected))
                owned = owned.filter(pc.invert(is_protected))
            old = self.ages.is_old(owned)
            count(YOUNG, owned.filter(pc.invert(old)))
            candidates = owned.filter(old)
            count(CANDIDATE, candidates)
            writer.write(candidates.select(CANDIDATES.names))
            targets.write(pa.RecordBatch.from_arrays([self.foreign.find_targets(candidates)], schema=TARGETS))
        yield report_parts(
            [*writer.close(), *suspects.close(), *datasets.close(), *targets.close(), *adoptable.close()],
            totals=totals,
            summary={
                "metadata_found": found,
                "optional_found": optional,
                "side_files": int(side_files),
                "unneeded_files": unneeded.rows,
                "unneeded_bytes": unneeded.size_bytes,
                **{pattern_field(pattern): 1 for pattern in self.patterns if pattern not in unused},
            },
        )

    def _select_adoptable(self, live: pa.RecordBatch) -> pa.RecordBatch:
        """Select files that listed tables may have adopted, as rows of `ADOPTABLE`."""
        rows = live.filter(self.adoptable.select(live.column("key"), live.column("last_modified")))
        return pa.RecordBatch.from_arrays(
            [pa.array(xxhash64(rows.column("key"))), rows.column("last_modified").cast(pa.int64())], schema=ADOPTABLE
        )

    def _split_unowned(self, unowned: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        """Separate the waiting files of dropped tables from other files without an owner."""
        if not self.dropped.tables:
            return [(UNOWNED, unowned)]
        is_dropped = self._find_dropped(unowned)
        return [(DROPPED_WAITING, unowned.filter(is_dropped)), (UNOWNED, unowned.filter(pc.invert(is_dropped)))]

    def _find_suspects(self, keys: pa.Array) -> pa.Array:
        """Return a mask of the keys that look like another table's metadata."""
        is_suspect = pc.match_substring_regex(keys, self.suspect)
        if self.claims.names:  # metadata under a metadata claim belongs to the lake
            is_suspect = pc.and_not(is_suspect, self.claims.is_by_name(keys))
        return is_suspect

    def _find_dropped(self, unowned: pa.RecordBatch) -> pa.Array:
        """Return a mask of the files under the claims of dropped tables."""
        directories = pc.replace_substring_regex(unowned.column("key"), "[^/]*$", "").dictionary_encode()
        found = [self.dropped.find_prefix(name) is not None for name in directories.dictionary.to_pylist()]
        return pc.fill_null(pa.array(found, pa.bool_()).take(directories.indices), False)

    def _find_side_files(self, batch: pa.RecordBatch, hits: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a mask of the side files that belong to live files."""
        found = np.zeros(batch.num_rows, bool)
        at = np.flatnonzero(~hits & pc.match_substring_regex(batch.column("key"), SIDE_FILE).to_numpy(zero_copy_only=False))
        if len(at):
            found[at] = self.live.contains(xxhash64(main_files(batch.column("key").take(pa.array(at)))))
        return found


def pattern_field(pattern: str) -> str:
    """Return the summary field that counts the matches of a `protect` pattern."""
    return f"protect/{pattern}"


def find_unmatched(patterns: Sequence[str], keys: pa.Array) -> tuple[str, ...]:
    """Return the `protect` patterns that do not match any of the keys, whether live or not."""
    return tuple(pattern for pattern in patterns if not pc.any(pc.match_substring_regex(keys, glob_regex([pattern])), min_count=0).as_py())


def with_owner(objects: pa.RecordBatch, claims: Claims) -> pa.RecordBatch:
    """Add columns with the lake and the table that claim each listed object.

    In rows of unclaimed objects, both columns are null.
    """
    lake, table_uuid = claims.resolve(objects.column("key"))
    return objects.append_column("lake", lake).append_column("table_uuid", table_uuid)


def main_files(keys: pa.Array) -> pa.Array:
    """Return the keys of the main files to which side files, such as checksums, belong."""
    return pc.replace_substring_regex(keys, SIDE_FILE, r"\1\2")


@dataclass(frozen=True)
class ListedFiles:
    """The live files that a storage's inventory must contain (parts with the `METADATA` columns).

    When it is pickled for Spark executors, it only contains paths.
    """

    files: Files
    paths: tuple[str, ...]
    storage: str

    def count_found(self, objects: pa.RecordBatch) -> int:
        """Count how many of the live files are among the given inventory rows.

        A decoded file counts only if the object's length and etag are unchanged.
        """
        needed = _read_listed_files(self.files, self.paths, self.storage)
        at = pc.index_in(objects.column("key"), value_set=needed.column("key"))
        listed, needed = objects.filter(pc.is_valid(at)), needed.take(at.filter(pc.is_valid(at)))
        as_long = pc.fill_null(pc.equal(listed.column("size_bytes"), needed.column("container_size_bytes")), True)
        same = [
            etag is None or known is None or etag in known.split(IDENTITY_SEPARATOR)
            for etag, known in zip(listed.column("etag").to_pylist(), needed.column("etag").to_pylist(), strict=True)
        ]
        return pc.sum(pc.and_(as_long, pa.array(same, pa.bool_()))).as_py() or 0


@lru_cache(maxsize=2)
def _read_listed_files(files: Files, paths: tuple[str, ...], storage: str) -> pa.Table:
    rows = read_parts(files, list(paths), METADATA)
    return rows.filter(pc.equal(rows.column("storage"), storage)).combine_chunks()
