"""Accept containers whose length differs from the length recorded by their parent.

Some writers record the length of an earlier version in Iceberg manifest lists. Such a manifest is
used if it has the recorded number of entries (`lakes/iceberg/manifests.py` verifies that it is
complete).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.lakes.file_kinds import Kind
from gc_assets.state.files import Files
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import EDGES


def find_accepted_lengths(files: Files, edges: Sequence[str], index: pa.Table, undecoded: pa.Table) -> Mapping[str, int]:
    """Return the lengths of decoded manifests that have the recorded number of entries.

    The lengths are in bytes, keyed by address. A manifest that was decoded with several lengths is
    not accepted, because its current content is unknown.

    Args:
        edges: Parts with the edges between containers (`EDGES` columns), which are only read if a
            manifest may be accepted.
        index: Decoded containers (columns container, container_size_bytes, entries).
        undecoded: Containers that were only decoded with other lengths (`ROOTS` columns).
    """
    addresses = undecoded.column("address").filter(pc.equal(undecoded.column("kind"), Kind.MANIFEST)).combine_chunks()
    if not len(addresses):
        return {}
    decoded = defaultdict[str, set[tuple[int, int]]](set)
    for row in index.filter(pc.is_in(index.column("container"), addresses)).to_pylist():
        decoded[row["container"]].add((row["container_size_bytes"], row["entries"]))
    expected = defaultdict[str, set[int]](set)
    for path in edges:
        rows = read_parts(files, [path], EDGES, ["address", "expected_entries"])
        rows = rows.filter(pc.and_(pc.is_in(rows.column("address"), addresses), pc.is_valid(rows.column("expected_entries"))))
        for row in rows.group_by(["address", "expected_entries"]).aggregate([]).to_pylist():
            expected[row["address"]].add(row["expected_entries"])
    return {
        address: length
        for address, versions in decoded.items()
        for length, entries in versions
        if len(versions) == 1 and expected[address] == {entries}
    }


def add_accepted_lengths(lengths: pa.ChunkedArray, found: pa.Table, accepted: Mapping[str, int]) -> pa.ChunkedArray:
    """Fill in missing lengths of accepted containers. `lengths` has a value per row of `found`."""
    if not accepted:
        return lengths
    values = pa.array(list(accepted.values()), pa.int64())
    return pc.coalesce(lengths, values.take(pc.index_in(found.column("address"), pa.array(list(accepted), pa.string()))))


def describe_accepted_lengths(lake_name: str, found: pa.Table, lengths: pa.ChunkedArray) -> Iterator[str]:
    """Yield a note if containers are used although their length is not the recorded one."""
    differs = pc.fill_null(pc.not_equal(lengths, found.column("size_bytes")), False)
    if pc.any(differs).as_py():
        rows = found.append_column("decoded", lengths).filter(differs)
        example = rows.slice(0, 1).to_pylist()[0]
        yield (
            f"lake {lake_name}: {rows.num_rows:,} manifests have another length than their manifest lists state (for example "
            f"{example['address']}: {example['decoded']:,} bytes, recorded {example['size_bytes']:,}). These manifests are "
            "complete and are used. To correct the lists, rewrite the table's manifests, for example with Spark's rewrite_manifests"
        )
