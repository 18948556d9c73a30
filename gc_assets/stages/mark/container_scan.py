"""Match cached file entries with the states of their containers, in numbered tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from gc_assets.core.errors import FormatError
from gc_assets.core.text_index import TextIndex
from gc_assets.engine.tables import spark_schema
from gc_assets.engine.tasks import map_tasks, task_numbers
from gc_assets.lakes.file_kinds import FILE_KINDS
from gc_assets.stages.mark.container_states import NumberedStates, read_states
from gc_assets.state.files import Files
from gc_assets.state.parts import decode_each, read_errors

# Number of file kinds. Witness numbers are multiplied by it to encode both in one integer.
KIND_COUNT: Final = len(FILE_KINDS)

# Position of external files, which have no storage.
EXTERNAL: Final = -1


@dataclass(frozen=True, slots=True)
class Expanding:
    """Containers whose entries are scanned, and their witnesses (why files are live)."""

    addresses: pa.Array
    witness: NDArray[np.int64]
    must_exist: NDArray[np.bool_]
    index: TextIndex

    @classmethod
    def of(cls, states: NumberedStates) -> Expanding:
        rows = states.witnesses.filter(states.witnesses.column("expands"))
        numbers, must_exist = rows.column("witness").to_numpy(), rows.column("container_must_exist").to_numpy()
        addresses = rows.column("container").combine_chunks()
        return cls(addresses, numbers, must_exist, TextIndex(addresses))

    def match(self, entries: pa.Table) -> tuple[pa.Table, NDArray[np.int64]]:
        """Select the file entries that belong to one of the scanned containers.

        Returns:
            The entries, and the position of each entry's container in `addresses`.
        """
        containers, container = encode(entries.column("container"))
        position = self.index.find(containers)[container]
        selected = np.flatnonzero(position >= 0)
        position = position[selected]
        if len(selected) < entries.num_rows:
            entries = entries.take(pa.array(selected))
        return entries, position


@dataclass(frozen=True)
class ContainerScan(ABC):
    """Match groups of cached parts with the states of their containers.

    The input column `id` contains the numbers of groups. The number after the last group selects
    the files that commits reference directly.

    Attributes:
        SCHEMA: Columns of the yielded rows.
        states: Parts with container states (`STATES` columns), relative to the state root.
        groups: Paths of the cached parts. Each task reads one group.
        storages: Names of the storages. The yielded rows contain positions in this list.
    """

    SCHEMA: ClassVar[pa.Schema]

    files: Files
    states: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    storages: tuple[str, ...]

    @property
    def tasks(self) -> int:
        """The number of tasks, which is one per group and one for directly referenced files."""
        return len(self.groups) + 1

    def run(self) -> Iterator[pa.RecordBatch]:
        """Compute and yield all rows in the driver process."""
        return self(iter([task_numbers(self.tasks)]))

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return all rows as a Spark frame, whose rows are computed on executors."""
        return map_tasks(spark, self, self.tasks, spark_schema(self.SCHEMA))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        states = numbered_states(self.files, self.states)
        expanding = Expanding.of(states)
        for batch in batches:
            for number in batch.column("id").to_pylist():
                if number < len(self.groups):
                    yield from decode_each(self.files, self.groups[number], lambda content: self.match_part(content, expanding))
                else:
                    with read_errors(f"{self.files.root}/{next(iter(self.states), '')}"):
                        yield from self.match_direct(states)

    @abstractmethod
    def match_part(self, content: bytes, expanding: Expanding) -> Iterator[pa.RecordBatch]:
        """Yield the rows for those file entries of a part that belong to scanned containers."""

    @abstractmethod
    def match_direct(self, states: NumberedStates) -> Iterator[pa.RecordBatch]:
        """Yield the rows for the files that commits reference directly."""


@lru_cache(maxsize=4)
def numbered_states(files: Files, paths: tuple[str, ...]) -> NumberedStates:
    """Read published states once per process.

    Caching them is safe because parts are never rewritten under the same name.
    """
    return read_states(files, paths)


def encode(column: pa.ChunkedArray) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the distinct values of a string column, and each row's index into them.

    A missing value has the index -1.
    """
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    combined = encoded.unify_dictionaries().combine_chunks()
    if isinstance(combined, pa.ChunkedArray):  # a column without chunks
        return pa.array([], pa.string()), np.empty(0, np.int64)
    return combined.dictionary, pc.fill_null(combined.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)


def to_positions(column: pa.ChunkedArray, names: Sequence[str], missing: int) -> NDArray[np.int64]:
    """Return the position of each value of a string column in `names`, or `missing` for a null.

    Raises:
        FormatError: If a value is not in `names`. In `read_errors`, the error contains the path.
    """
    values, index = encode(column)
    positions = pc.fill_null(pc.index_in(values, pa.array(list(names), pa.string())), -1).to_numpy(zero_copy_only=False)
    if (positions < 0).any():
        unknown = values.filter(pa.array(positions < 0))[0].as_py()
        raise FormatError(f"expected one of {', '.join(names)}, found {unknown!r}")
    return np.append(positions, missing)[index]  # the index -1 selects `missing`


def to_kind_numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the position of each kind in `FILE_KINDS`.

    Unknown kinds are an error, because such files would be missing from the live set.
    """
    numbers = to_positions(column, FILE_KINDS, -1)
    if (numbers < 0).any():
        raise FormatError("a row has no file kind")
    return numbers
