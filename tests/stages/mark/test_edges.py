"""Edges of containers, compared with a search over all edges."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gc_assets.stages.mark import edges as edges_module
from gc_assets.stages.mark.edges import EdgeIndex, read_edges
from tests.depth import example_count
from tests.stages.mark.random_edges import ADDRESSES, build_edges, describe_child, write_edges


def follow(index: EdgeIndex, parents: Iterable[str]) -> Counter[tuple[Any, ...]]:
    """Return parent, child, size and `must_exist` of all edges of these parents."""
    addresses = index.containers.column("address").to_pylist()
    numbers = np.array([addresses.index(parent) for parent in parents if parent in addresses], np.int32)
    return Counter(
        (addresses[parent], addresses[child], None if size < 0 else size, must_exist)
        for some in index.follow(numbers)
        for parent, child, size, must_exist in zip(*(column.tolist() for column in some), strict=True)
    )


def search(edges: list[dict[str, Any]], parents: Iterable[str]) -> Counter[tuple[Any, ...]]:
    return Counter(
        (edge["container"], edge["address"], edge["size_bytes"], edge["must_exist"]) for edge in edges if edge["container"] in set(parents)
    )


def test_edges_of_selected_parents_equal_search_over_all_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(example_count(60, 600)):
        rng = random.Random(seed)
        monkeypatch.setattr(edges_module, "MAX_STEP_EDGES", rng.choice([1, 7, 1_000]))
        edges = build_edges(rng, rng.choice([0, 3, 40, 200]))
        cut = rng.randrange(len(edges) + 1)
        index = read_edges(*write_edges(tmp_path / str(seed), [edges[:cut], edges[cut:]]))
        for _ in range(4):
            parents = rng.sample(ADDRESSES, rng.randrange(len(ADDRESSES)))
            assert follow(index, parents) == search(edges, parents), f"seed {seed}"
            optional = set(rng.sample(ADDRESSES, 5))
            changed = [{**edge, "must_exist": edge["must_exist"] and edge["address"] not in optional} for edge in edges]
            assert follow(index.with_optional(pa.array(sorted(optional))), parents) == search(changed, parents)
            assert follow(index, parents) == search(edges, parents), "the index itself is unchanged"


def test_containers_are_numbered_by_address(tmp_path: Path) -> None:
    edges = build_edges(random.Random(1), 40)
    index = read_edges(*write_edges(tmp_path, [edges[20:], edges[:20]]))
    children = {edge["address"] for edge in edges}
    only_parents = dict.fromkeys(("kind", "storage", "key"))
    expected = [
        describe_child(address) if address in children else {"address": address, **only_parents}
        for address in sorted(children | {edge["container"] for edge in edges})
    ]
    assert index.containers.to_pylist() == expected
