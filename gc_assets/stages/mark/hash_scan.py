"""Match the hashes in the entry cache with the states of their containers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.errors import StateError
from gc_assets.core.sorted_hashes import HashSet, is_in_sorted, sort_distinct
from gc_assets.engine.state_scan import decode_each
from gc_assets.engine.tasks import task_numbers
from gc_assets.lakes.file_kinds import FILE_KINDS
from gc_assets.stages.mark.container_states import NumberedStates, hash_keys, read_states
from gc_assets.state.files import Files
from gc_assets.state.parts import missing_columns, open_part
from gc_assets.state.side_tables import HASHES

# Number of file kinds, by which the numbers of witnesses are multiplied.
KIND_COUNT: Final = len(FILE_KINDS)

_TEXTS: Final = ("container", "storage", "kind")

# Position of external files, which have no storage.
EXTERNAL: Final = -1

# One row per entry and directly referenced file. `storage` is a position in the storages of the
# configuration, `strongest` is the number of the witness and the kind.
MATCHED: Final = pa.schema(
    [
        ("storage", pa.int16()),
        ("key_hash", pa.int64()),
        ("loose_hash", pa.int64()),
        ("strongest", pa.int64()),
        ("size_bytes", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Expanding:
    """Containers whose entries are needed, with their witnesses."""

    addresses: pa.Array
    witness: NDArray[np.int64]
    must_exist: NDArray[np.bool_]

    @classmethod
    def of(cls, states: NumberedStates) -> Expanding:
        rows = states.witnesses.filter(states.witnesses.column("expands"))
        numbers, must_exist = rows.column("witness").to_numpy(), rows.column("container_must_exist").to_numpy()
        return cls(rows.column("container").combine_chunks(), numbers, must_exist)

    def match(self, entries: pa.Table) -> tuple[pa.Table, NDArray[np.int64]]:
        """Select the entries of these containers.

        Returns:
            The entries, and the position of the container of each.
        """
        containers, container = encode(entries.column("container"))
        position = pc.fill_null(pc.index_in(containers, self.addresses), -1).to_numpy(zero_copy_only=False)[container]
        selected = np.flatnonzero(position >= 0)
        position = position[selected]
        if len(selected) < entries.num_rows:
            entries = entries.take(pa.array(selected))
        return entries, position


@dataclass(frozen=True)
class HashScan:
    """Task that matches groups of hash parts with the container states.

    The input column `id` contains group numbers. The number after the last group selects the
    directly referenced files. Yields batches with the columns `MATCHED`.

    Attributes:
        states: Parts of the states (columns `STATES`), relative to the state.
        groups: Parts of the hashes (columns `HASHES`), in groups.
        storages: Names of the storages, for the positions in `MATCHED`.
    """

    files: Files
    states: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    storages: tuple[str, ...]

    @property
    def tasks(self) -> int:
        """Number of valid input numbers."""
        return len(self.groups) + 1

    def numbers(self) -> Iterator[pa.RecordBatch]:
        """Return all input numbers, for a call in this process."""
        return iter([task_numbers(self.tasks)])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        states = numbered_states(self.files, self.states)
        expanding = Expanding.of(states)
        for batch in batches:
            for number in batch.column("id").to_pylist():
                if number < len(self.groups):
                    yield from decode_each(self.files, self.groups[number], lambda content: self._match_part(content, expanding))
                else:
                    yield from self._match_direct(states)

    def _match_part(self, content: bytes, expanding: Expanding) -> Iterator[pa.RecordBatch]:
        source = open_part(content, _TEXTS)
        missing = missing_columns(source.schema_arrow, HASHES)
        names = [name for name in HASHES.names if name not in missing]
        for group in range(source.num_row_groups):
            rows, position = expanding.match(source.read_row_group(group, names))
            if rows.num_rows:
                yield self._to_matched(rows, expanding.witness[position])

    def _match_direct(self, states: NumberedStates) -> Iterator[pa.RecordBatch]:
        rows = hash_keys(states.direct)
        size = pc.coalesce(rows.column("size_bytes"), rows.column("container_size_bytes"))
        rows = rows.set_column(rows.schema.get_field_index("size_bytes"), "size_bytes", size)
        yield self._to_matched(rows, rows.column("witness").to_numpy())

    def _to_matched(self, rows: pa.Table, witness: NDArray[np.int64]) -> pa.RecordBatch:
        columns = {
            "storage": to_positions(rows.column("storage"), self.storages, EXTERNAL).astype(np.int16),
            "key_hash": rows.column("key_hash"),
            "loose_hash": pc.coalesce(rows.column("loose_hash"), rows.column("key_hash")),
            "strongest": witness * KIND_COUNT + to_kind_numbers(rows.column("kind")),
            "size_bytes": rows.column("size_bytes"),
        }
        return pa.table(columns, schema=MATCHED).combine_chunks().to_batches(max_chunksize=None)[0] if rows.num_rows else _NO_MATCH


# Matched rows of the last scans, of which the stages of a run need several: 33 bytes per row.
MAX_KEPT_ROWS: Final = 3_000_000
_KEPT: Final = dict[HashScan, pa.RecordBatch]()
_KEPT_LOCK: Final = Lock()


def read_matched(scan: HashScan, expected: int) -> Iterator[pa.RecordBatch]:
    """Run a scan in this process, and yield its rows.

    The rows of small scans are kept for the next reader. Parts are never rewritten under the same
    name.

    Args:
        expected: Approximate number of rows.
    """
    if expected > MAX_KEPT_ROWS:
        yield from scan(scan.numbers())
        return
    with _KEPT_LOCK:
        found = _KEPT.get(scan)
    if found is None:
        found = pa.concat_batches([_NO_MATCH, *scan(scan.numbers())])
        with _KEPT_LOCK:
            _KEPT[scan] = found
            while len(_KEPT) > 1 and sum(rows.num_rows for rows in _KEPT.values()) > MAX_KEPT_ROWS:
                del _KEPT[next(iter(_KEPT))]
    yield found


_NO_MATCH: Final = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in MATCHED], schema=MATCHED)


@lru_cache(maxsize=4)
def numbered_states(files: Files, paths: tuple[str, ...]) -> NumberedStates:
    """Read published states once per process. Parts are never rewritten under the same name."""
    return read_states(files, paths)


def encode(column: pa.ChunkedArray) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the distinct values of a text column, and the index of each row or -1."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    combined = encoded.unify_dictionaries().combine_chunks()
    if isinstance(combined, pa.ChunkedArray):  # a column without chunks
        return pa.array([], pa.string()), np.empty(0, np.int64)
    return combined.dictionary, pc.fill_null(combined.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)


def to_positions(column: pa.ChunkedArray, names: Sequence[str], missing: int) -> NDArray[np.int64]:
    """Return the position of each value in `names`, or `missing` for a missing one.

    Raises:
        StateError: For any other value.
    """
    values, index = encode(column)
    positions = pc.fill_null(pc.index_in(values, pa.array(list(names), pa.string())), -1).to_numpy(zero_copy_only=False)
    if (positions < 0).any():
        unknown = values.filter(pa.array(positions < 0))[0].as_py()
        raise StateError(f"the entry cache names {unknown!r}, which is not one of {', '.join(names)}; run manifest_entries again")
    return np.append(positions, missing)[index]  # the index -1 selects `missing`


def to_kind_numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the position of each kind in `FILE_KINDS`.

    An unknown kind stops the run, because its file would be missing from the live set.
    """
    numbers = to_positions(column, FILE_KINDS, -1)
    if (numbers < 0).any():
        raise StateError("an entry has no file kind; run manifest_entries again")
    return numbers


@dataclass(frozen=True)
class SelectLive:
    """Task that selects the live rows of one storage (columns key_hash, loose_hash).

    Attributes:
        position: Position of the storage.
        first_released: Smallest value of `strongest` that is not live.
        released: Sorted hashes of released files.
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
        """Return which hashes are those of released files."""
        return is_in_sorted(hashes, self.released)


WITNESS_NUMBERS: Final = pa.schema([("witness", pa.int64())])


@dataclass(frozen=True)
class WitnessesOf:
    """Task that yields the distinct witnesses of the keys with these sorted hashes.

    The input has the columns `MATCHED`.
    """

    hashes: NDArray[np.int64]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted, found = HashSet(self.hashes), [np.empty(0, np.int64)]
        for batch in batches:
            at, _ = wanted.find(batch.column("key_hash").to_numpy())
            found.append(sort_distinct(batch.column("strongest").to_numpy()[at] // KIND_COUNT))
        yield pa.RecordBatch.from_pydict({"witness": sort_distinct(np.concatenate(found))})


ENTRY_COUNTS: Final = pa.schema([("witness", pa.int64()), ("entries", pa.int64())])


@dataclass(frozen=True)
class CountEntries:
    """Task that counts the entries of each container, by the number of its witness.

    The input has the columns `MATCHED`.

    Attributes:
        witnesses: Number of all witnesses.
    """

    witnesses: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = np.zeros(self.witnesses, np.int64)
        for batch in batches:
            found = np.bincount(batch.column("strongest").to_numpy() // KIND_COUNT)
            counts[: len(found)] += found
        numbers = np.flatnonzero(counts)
        yield pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(counts[numbers])], schema=ENTRY_COUNTS)
