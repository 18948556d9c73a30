"""Shares of the containers that tasks decode."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from gc_assets.stages.mark.pending_containers import COST_OF_REQUEST, split_by_cost
from gc_assets.state.side_tables import TASKS


def tasks_of(sizes: list[int]) -> pa.Table:
    """Return containers with these sizes, in a random order of their addresses."""
    rows = [{"address": f"s3://lake/{number:06}", "kind": "manifest", "size_bytes": size} for number, size in enumerate(sizes)]
    random.Random(len(sizes)).shuffle(rows)
    return pa.Table.from_pylist(rows, schema=TASKS)


@pytest.mark.parametrize("seed", range(50))
def test_containers_are_split_into_consecutive_shares_of_similar_cost(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([-1, 0, 100, 10 ** chance.randint(1, 8)]) for _ in range(chance.randint(1, 300))]
    width = chance.randint(1, 20)
    shares = [share.to_pylist() for share in split_by_cost(tasks_of(sizes), width)]
    addresses = [row["address"] for share in shares for row in share]
    assert addresses == [f"s3://lake/{number:06}" for number in range(len(sizes))]
    assert len(shares) <= width
    assert all(shares)
    costs = [sum(max(row["size_bytes"], 0) + COST_OF_REQUEST for row in share) for share in shares]
    largest = max(max(size, 0) for size in sizes) + COST_OF_REQUEST
    assert max(costs) <= sum(costs) / width + largest


@pytest.mark.parametrize("width", [1, 8, 16])
@pytest.mark.parametrize("wrong", [2**58, 2**60, 2**63 - 1])
def test_wrong_recorded_length_loses_no_container(wrong: int, width: int) -> None:
    """Any program can record a wrong length in an Iceberg manifest list."""
    sizes = [*range(200), wrong, wrong, *range(200)]
    shares = [share.column("address").to_pylist() for share in split_by_cost(tasks_of(sizes), width)]
    assert [address for share in shares for address in share] == [f"s3://lake/{number:06}" for number in range(len(sizes))]
    assert len(shares) <= width


def test_empty_container_list_has_no_shares() -> None:
    assert list(split_by_cost(TASKS.empty_table(), 0)) == []
