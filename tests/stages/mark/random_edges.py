"""Random edges between containers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from gc_assets.state.files import Files
from gc_assets.state.parts import PartWriter
from gc_assets.state.side_tables import EDGES

KINDS = ("manifest", "manifest_list", "snapshot")
# Names of containers. As text, the last ones are not in the order of their numbers.
ADDRESSES = tuple(f"c{number}" for number in range(18))


def build_edges(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Return edges in runs of up to eight with the same parent, which may form cycles.

    Some children are external, may be absent, or have no recorded length.
    """
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        parent = rng.choice(ADDRESSES)
        for _ in range(rng.randrange(1, 9)):
            number = rng.randrange(len(ADDRESSES))
            rows.append(
                {
                    "container": parent,
                    **describe_child(ADDRESSES[number]),
                    "size_bytes": rng.choice([None, 1, 2, 2**33]),
                    "must_exist": rng.random() < 0.5,
                }
            )
    return rows


def describe_child(address: str) -> dict[str, Any]:
    """Return the columns that depend on the address. A third of the containers is external."""
    number = ADDRESSES.index(address)
    is_external = number % 3 == 0
    return {
        "address": address,
        "kind": KINDS[number % len(KINDS)],
        "storage": None if is_external else "disk",
        "key": None if is_external else f"k{number}",
    }


def write_edges(folder: Path, parts: list[list[dict[str, Any]]]) -> tuple[Files, list[str]]:
    """Write each list of edges as a part, in small batches."""
    files, paths = Files(str(folder)), list[str]()
    for rows in parts:
        writer = PartWriter(files, "run", EDGES)
        for batch in pa.Table.from_pylist(rows, EDGES).to_batches(max_chunksize=25):
            writer.write(batch)
        paths += [f"run/{part.name}" for part in writer.close()]
    return files, paths
