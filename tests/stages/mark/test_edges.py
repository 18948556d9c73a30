"""Children of containers, compared with a search over all edges."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.stages.mark import edges as edges_module
from gc_assets.stages.mark.edges import EdgeIndex, read_edges
from gc_assets.state.files import Files
from gc_assets.state.parts import PartWriter
from gc_assets.state.side_tables import EDGES, ROOTS
from tests.depth import example_count

KINDS = ("manifest", "manifest_list", "snapshot")


def random_edges(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Return edges of at most 30 parents, in runs, with up to 20 children. Some are external."""
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        parent = f"p{rng.randrange(30)}"
        for _ in range(rng.randrange(1, 9)):
            child = rng.randrange(20)
            rows.append(
                {
                    "container": parent,
                    "address": f"c{child}",
                    "kind": rng.choice(KINDS),
                    "storage": None if child % 5 == 0 else "disk",
                    "key": None if child % 5 == 0 else f"k{child}",
                    "size_bytes": rng.choice([None, 1, 2, 2**33]),
                    "must_exist": rng.random() < 0.5,
                }
            )
    return rows


def random_frontier(rng: random.Random) -> list[dict[str, Any]]:
    parents = rng.sample([f"p{number}" for number in range(35)], rng.randrange(0, 12))
    return [
        {
            "address": parent,
            "kind": "manifest",
            "is_container": True,
            "must_exist": rng.random() < 0.5,
            "rank": rng.randrange(3),
            "commit_id": rng.choice(["x", "y", None]),
            "table_uuid": rng.choice(["t", "u"]),
        }
        for parent in parents
    ]


def search_children(edges: list[dict[str, Any]], frontier: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    by_address = {row["address"]: row for row in frontier}
    children: dict[str, dict[str, Any]] = {}
    for child in {edge["address"] for edge in edges if edge["container"] in by_address}:
        named = [edge for edge in edges if edge["address"] == child and edge["container"] in by_address]
        strongest = min(
            (by_address[edge["container"]] for edge in named),
            key=lambda row: (row["rank"], row["commit_id"] is None, row["commit_id"] or "", row["address"]),
        )
        first = next(edge for edge in named if edge["container"] == strongest["address"])
        children[child] = {
            **{name: first[name] for name in ("address", "kind", "storage", "key")},
            "is_container": True,
            "size_bytes": max((edge["size_bytes"] for edge in named if edge["size_bytes"] is not None), default=None),
            "must_exist": any(edge["must_exist"] and by_address[edge["container"]]["must_exist"] for edge in named),
            **{name: strongest[name] for name in ("rank", "commit_id", "table_uuid")},
            "parent": strongest["address"],
        }
    return children


def children_of(index: EdgeIndex, frontier: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = index.children_of(pa.Table.from_pylist(frontier, ROOTS))
    assert found.schema == ROOTS
    rows = {row["address"]: row for row in found.to_pylist()}
    assert len(rows) == found.num_rows
    return rows


def test_children_equal_a_search_over_all_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(example_count(60, 600)):
        rng = random.Random(seed)
        monkeypatch.setattr(edges_module, "MAX_STEP_EDGES", rng.choice([1, 7, 1_000]))
        edges = random_edges(rng, rng.choice([0, 3, 40, 200]))
        cut = rng.randrange(len(edges) + 1)
        files, paths = Files(str(tmp_path / str(seed))), list[str]()
        for rows in (edges[:cut], edges[cut:]):
            writer = PartWriter(files, "run", EDGES)
            for batch in pa.Table.from_pylist(rows, EDGES).to_batches(max_chunksize=25):
                writer.write(batch)
            paths += [f"run/{part.name}" for part in writer.close()]
        index = read_edges(files, paths)
        for _ in range(4):
            frontier = random_frontier(rng)
            assert children_of(index, frontier) == search_children(edges, frontier), f"seed {seed}"
            optional = {f"c{number}" for number in rng.sample(range(25), 5)}
            changed = [{**edge, "must_exist": edge["must_exist"] and edge["address"] not in optional} for edge in edges]
            assert children_of(index.with_optional(pa.array(sorted(optional))), frontier) == search_children(changed, frontier)
            assert children_of(index, frontier) == search_children(edges, frontier), "the index itself is unchanged"
