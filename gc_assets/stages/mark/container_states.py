"""Build the states of all known containers.

A container state records whether the entries of a container are live, and which commit needs them.
`live_files` publishes the states (`STATES`), and the live files are the cached entries of live
containers. The cost of a run depends on what has changed, because containers are immutable, and a
lake has a thousand times fewer containers than files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.arrow_rows import replace_columns
from gc_assets.core.hashing import digest, xxhash64
from gc_assets.stages.mark.content_roots import RELEASED, SPARED
from gc_assets.stages.mark.file_entries import loose_form
from gc_assets.state.files import Files
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import DANGLING_SIDE, DIRECT_FILES, EXPIRED_SIDE, STATES, WITNESSES

# Columns that identify a witness. If a witness lists a file under several kinds, it has one number
# per kind.
_ORDER: Final = ("rank", "commit_id", "table_uuid", "container", "expands", "must_exist", "kind")
# Columns that determine the live set, for the digest of the table.
_DIGESTED: Final = ("address", "rank", "commit_id", "table_uuid", "container", "expands", "must_exist", "container_size_bytes")


@dataclass(frozen=True, slots=True)
class NumberedStates:
    """Container states whose witnesses (why a file is live) are numbered, strongest first.

    The numbers depend only on the content of the states, so equal states produce equal rows.

    Attributes:
        witnesses: Witnesses (`WITNESSES` columns).
        direct: Containers and directly referenced files (`DIRECT_FILES` columns).
        expected: Total number of file entries in all containers.
        live: Number of witnesses that make files live. They have the smallest numbers.
        entries: Number of file entries by witness, or 0 if the witness is not a container.
    """

    witnesses: pa.Table
    direct: pa.Table
    expected: int
    live: int
    entries: NDArray[np.int64]


def build_states(containers: pa.Table, lengths: pa.ChunkedArray, files: pa.Array, leaves: pa.Table) -> pa.Table:
    """Build the container states that result from a walk over all containers.

    Args:
        containers: All containers found by the walk (`ROOTS` columns).
        lengths: Column with the decoded length of each container in bytes, null if it was not
            decoded.
        files: Number of file entries of each container.
        leaves: Content roots that are not containers (`ROOTS` columns).

    Returns:
        Rows with the `STATES` columns.
    """
    direct = pa.concat_tables([containers, leaves])
    columns = {
        "container": direct.column("parent"),
        "expands": pa.array(np.arange(direct.num_rows) < containers.num_rows),
        "container_size_bytes": _extend(lengths, leaves.num_rows),
        "files": _extend(files, leaves.num_rows),
    }
    return pa.table({name: columns[name] if name in columns else direct.column(name) for name in STATES.names}).cast(STATES)


def digest_states(states: pa.Table) -> int:
    """Return a digest of the states, regardless of their order."""
    return digest(states.select(list(_DIGESTED)).set_column(1, "rank", states.column("rank").cast(pa.int32())))


def read_states(files: Files, paths: Sequence[str]) -> NumberedStates:
    """Read published states, and number their witnesses."""
    return number_states(read_parts(files, list(paths), STATES))


def number_states(states: pa.Table) -> NumberedStates:
    """Assign numbers to the witnesses of container states, beginning with the strongest."""
    containers = states.filter(states.column("expands"))
    columns = ["rank", "commit_id", "table_uuid", "must_exist", "kind"]
    own = states.select([*columns, "container"])
    expanding = containers.select(columns).append_column("container", containers.column("address"))
    is_expanding = [False] * states.num_rows + [True] * containers.num_rows
    candidates = pa.concat_tables([own, expanding]).append_column("expands", pa.array(is_expanding, pa.bool_()))
    order = pc.sort_indices(candidates, sort_keys=[(name, "ascending") for name in _ORDER])
    numbers = np.empty(candidates.num_rows, np.int64)
    numbers[order.to_numpy()] = np.arange(candidates.num_rows)
    names = {"must_exist": "container_must_exist"}
    candidates = candidates.rename_columns([names.get(name, name) for name in candidates.column_names])
    witnesses = candidates.append_column("witness", pa.array(numbers)).select(WITNESSES.names).cast(WITNESSES)
    required = pc.and_(states.column("must_exist"), pc.invert(_is_kept_container(states)))
    direct = replace_columns(states, {"must_exist": required}).append_column("witness", pa.array(numbers[: states.num_rows]))
    direct = direct.select(DIRECT_FILES.names).cast(DIRECT_FILES)
    live = pc.sum(pc.less_equal(witnesses.column("rank"), SPARED)).as_py() or 0
    entries = np.zeros(candidates.num_rows, np.int64)
    entries[numbers[states.num_rows :]] = containers.column("files").to_numpy()
    return NumberedStates(witnesses, direct, int(entries.sum()), live, entries)


def _is_kept_container(states: pa.Table) -> pa.ChunkedArray:
    """Return a mask of containers that `list_kept_containers` added as optional files."""
    is_file = pc.and_(pc.invert(states.column("expands")), pc.equal(states.column("rank"), SPARED))
    kept = states.filter(pc.and_not(is_file, states.column("must_exist"))).column("address")
    is_dead = pc.and_(states.column("expands"), pc.greater(states.column("rank"), SPARED))
    return pc.and_(is_dead, pc.is_in(states.column("address"), kept))


def route_of(rank: int) -> str:
    """Return the side table for files of a rank, or an empty string if the rank means live."""
    return "" if rank <= SPARED else EXPIRED_SIDE if rank <= RELEASED else DANGLING_SIDE


def file_key(rows: pa.Table) -> pa.ChunkedArray:
    """Return the key of each file, or the address of a file that is outside all storages.

    Args:
        rows: Rows with the columns key and address. `address` may be missing if all files have a
            key.
    """
    keys = rows.column("key")
    return pc.coalesce(keys, rows.column("address")) if keys.null_count else keys


def hash_keys(rows: pa.Table) -> pa.Table:
    """Append `key_hash` and `loose_hash` to rows with the columns key and address."""
    keys = file_key(rows)
    return rows.append_column("key_hash", pa.array(xxhash64(keys))).append_column("loose_hash", pa.array(xxhash64(loose_form(keys))))


def _extend(column: pa.ChunkedArray | pa.Array, rows: int) -> pa.ChunkedArray:
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.chunked_array([*chunks, pa.nulls(rows, column.type)], column.type)
