"""Match the key hashes of cached file entries with the states of their containers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.arrow_rows import replace_columns
from gc_assets.core.sorted_hashes import HashSet, SpelledHashes, is_in_sorted, sort_distinct
from gc_assets.stages.mark.container_scan import EXTERNAL, KIND_COUNT, ContainerScan, Expanding, to_kind_numbers, to_positions
from gc_assets.stages.mark.container_states import NumberedStates, hash_keys
from gc_assets.stages.mark.file_entries import possible_lengths
from gc_assets.state.parts import missing_columns, open_part
from gc_assets.state.side_tables import HASHES

_TEXTS: Final = ("container", "storage", "kind")

# One row per entry, and per file that a commit references directly. `storage` is a position in the
# list of configured storages, and `strongest` combines the numbers of the witness and the kind.
MATCHED: Final = pa.schema(
    [
        ("storage", pa.int16()),
        ("key_hash", pa.int64()),
        ("loose_hash", pa.int64()),
        ("strongest", pa.int64()),
        ("size_bytes", pa.int64()),
    ]
)


@dataclass(frozen=True)
class HashScan(ContainerScan):
    """Scan parts of the side table `HASHES` for the key hashes of known containers."""

    SCHEMA: ClassVar[pa.Schema] = MATCHED

    def match_part(self, content: bytes, expanding: Expanding) -> Iterator[pa.RecordBatch]:
        source = open_part(content, _TEXTS)
        missing = missing_columns(source.schema_arrow, HASHES)
        names = [name for name in HASHES.names if name not in missing]
        for group in range(source.num_row_groups):
            rows, position = expanding.match(source.read_row_group(group, names))
            if rows.num_rows:
                yield self._to_matched(rows, expanding.witness[position])

    def match_direct(self, states: NumberedStates) -> Iterator[pa.RecordBatch]:
        rows = hash_keys(states.direct)
        rows = replace_columns(rows, {"size_bytes": pc.coalesce(rows.column("size_bytes"), rows.column("container_size_bytes"))})
        yield self._to_matched(rows, rows.column("witness").to_numpy())

    def _to_matched(self, rows: pa.Table, witness: NDArray[np.int64]) -> pa.RecordBatch:
        columns = {
            "storage": to_positions(rows.column("storage"), self.storages, EXTERNAL).astype(np.int16),
            "key_hash": rows.column("key_hash"),
            "loose_hash": pc.coalesce(rows.column("loose_hash"), rows.column("key_hash")),
            "strongest": witness * KIND_COUNT + to_kind_numbers(rows.column("kind")),
            "size_bytes": possible_lengths(rows.column("size_bytes")),
        }
        return pa.table(columns, schema=MATCHED).combine_chunks().to_batches(max_chunksize=None)[0] if rows.num_rows else _NO_MATCH


# Maximum number of rows that are cached because several stages of a run need them. Each row takes
# 33 bytes.
MAX_KEPT_ROWS: Final = 3_000_000
_KEPT: Final = dict[HashScan, pa.RecordBatch]()
_KEPT_LOCK: Final = Lock()


def read_matched(scan: HashScan, expected: int) -> Iterator[pa.RecordBatch]:
    """Run a scan in this process, and yield its rows.

    The rows of small scans are cached for the next reader. Caching them is safe because parts are
    never rewritten under the same name.

    Args:
        expected: Approximate number of rows.
    """
    if expected > MAX_KEPT_ROWS:
        yield from scan.run()
        return
    with _KEPT_LOCK:
        found = _KEPT.get(scan)
    if found is None:
        found = pa.concat_batches([_NO_MATCH, *scan.run()])
        with _KEPT_LOCK:
            _KEPT[scan] = found
            while len(_KEPT) > 1 and sum(rows.num_rows for rows in _KEPT.values()) > MAX_KEPT_ROWS:
                del _KEPT[next(iter(_KEPT))]
    yield found


_NO_MATCH: Final = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in MATCHED], schema=MATCHED)


@dataclass(frozen=True)
class SelectLive:
    """Select the matched rows of live files in one storage.

    The output has the columns key_hash and loose_hash.

    Attributes:
        position: Position of the storage.
        first_released: The smallest `strongest` value that is not live.
        released: Sorted key hashes of the files that lifecycle rules release.
    """

    position: int
    first_released: int
    released: NDArray[np.int64]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_live = (batch.column("strongest").to_numpy() < self.first_released) & (batch.column("storage").to_numpy() == self.position)
            is_live &= ~self.is_released(batch.column("key_hash").to_numpy())
            yield batch.select(["key_hash", "loose_hash"]).filter(pa.array(is_live))

    def is_released(self, hashes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the hashes that belong to released files."""
        return is_in_sorted(hashes, self.released)


WITNESS_NUMBERS: Final = pa.schema([("witness", pa.int64())])


@dataclass(frozen=True)
class WitnessesOf:
    """Find the containers or commits that reference files with the given sorted key hashes.

    The input has the `MATCHED` columns. The output contains the distinct numbers of the witnesses.
    """

    hashes: NDArray[np.int64]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted, found = HashSet(self.hashes), [np.empty(0, np.int64)]
        for batch in batches:
            at, _ = wanted.find(batch.column("key_hash").to_numpy())
            found.append(sort_distinct(batch.column("strongest").to_numpy()[at] // KIND_COUNT))
        yield pa.RecordBatch.from_pydict({"witness": sort_distinct(np.concatenate(found))})


RESPELLED: Final = pa.schema([("key_hash", pa.int64())])


@dataclass(frozen=True)
class FindRespelled:
    """Yield the hashes of entries' keys that differ from given keys only in their encoding.

    The input has the `MATCHED` columns.

    Attributes:
        position: Position of the keys' storage.
        key_hash: Hashes of the given keys.
        loose_hash: Hashes of the given keys after `loose_form`, in the same order.
    """

    position: int
    key_hash: NDArray[np.int64]
    loose_hash: NDArray[np.int64]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted, found = SpelledHashes(self.key_hash, self.loose_hash), [np.empty(0, np.int64)]
        for batch in batches:
            hashes = batch.column("key_hash").to_numpy()
            at, is_respelled = wanted.find(hashes, batch.column("loose_hash").to_numpy())
            is_respelled &= batch.column("storage").to_numpy()[at] == self.position
            found.append(sort_distinct(hashes[at[is_respelled]]))
        yield pa.RecordBatch.from_pydict({"key_hash": sort_distinct(np.concatenate(found))}, RESPELLED)


OLDEST_FILES: Final = pa.schema([("witness", pa.int64()), ("modified_us", pa.int64())])


@dataclass(frozen=True)
class OldestByWitness:
    """Find the modification time of the oldest file that each witness references.

    Only the files with the given hashes are considered. The input has the `MATCHED` columns.

    Attributes:
        position: Position of the files' storage.
        hashes: Sorted distinct key hashes of the files.
        modified_us: Modification time of each file, in microseconds since 1970.
    """

    position: int
    hashes: NDArray[np.int64]
    modified_us: NDArray[np.int64]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted, oldest = HashSet(self.hashes), dict[int, int]()
        for batch in batches:
            mine = batch.filter(pc.equal(batch.column("storage"), self.position))
            at, file = wanted.find(mine.column("key_hash").to_numpy())
            witnesses, numbers = np.unique(mine.column("strongest").to_numpy()[at] // KIND_COUNT, return_inverse=True)
            times = np.full(len(witnesses), np.iinfo(np.int64).max)
            np.minimum.at(times, numbers, self.modified_us[file])
            for witness, time in zip(witnesses.tolist(), times.tolist(), strict=True):
                oldest[witness] = min(time, oldest.get(witness, time))
        yield pa.RecordBatch.from_pydict({"witness": list(oldest), "modified_us": list(oldest.values())}, schema=OLDEST_FILES)


ENTRY_COUNTS: Final = pa.schema([("witness", pa.int64()), ("entries", pa.int64())])


@dataclass(frozen=True)
class CountEntries:
    """Count the file entries of each container, keyed by the container's witness number.

    The input has the `MATCHED` columns.
    """

    witnesses: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = np.zeros(self.witnesses, np.int64)
        for batch in batches:
            found = np.bincount(batch.column("strongest").to_numpy() // KIND_COUNT)
            counts[: len(found)] += found
        numbers = np.flatnonzero(counts)
        yield pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(counts[numbers])], schema=ENTRY_COUNTS)
