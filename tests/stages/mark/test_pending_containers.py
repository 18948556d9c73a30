"""Containers that an apply has to read again, and shares of the containers that tasks decode."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine.tables import merge_written, write_parts
from gc_assets.stages.mark.content_roots import DEAD, HELD, REACHED, RELEASED, RootTables
from gc_assets.stages.mark.pending_containers import COST_OF_REQUEST, FindPending, split_by_cost
from gc_assets.state.journal import State
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import CONTAINERS, CONTAINERS_SIDE, EDGES, EDGES_SIDE, STATES, STATES_SIDE, TASKS, TASKS_SIDE
from gc_assets.stores.local.objects import LocalObjects


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


@pytest.mark.parametrize(
    "ranks, read_again",
    [
        pytest.param(None, "", id="run"),
        pytest.param((REACHED, HELD, RELEASED, DEAD), "ab", id="apply"),
        pytest.param((), "abcd", id="apply, the run of its plan recorded no states"),
    ],
)
def test_apply_reads_rewritten_container_again_if_the_run_of_its_plan_needed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Sequence[int] | None, read_again: str
) -> None:
    """The disk acts like a bucket, which returns an etag only if it is requested. In a run, the sweep compares etags."""
    monkeypatch.setattr(LocalObjects, "cached_identity", lambda *_: None)
    state, objects, lake = State.at(str(tmp_path / "state")), LocalObjects(), tmp_path / "lake"
    run = state.start("sales", "manifest_entries", date(2026, 11, 20), Clock())
    lake.mkdir()
    addresses = [f"file://{lake}/{name}" for name in "abcd"]
    for name in "abcd":
        (lake / name).write_text("old")

    def write(rows: Sequence[dict[str, Any]], schema: pa.Schema, side: str) -> tuple[str, ...]:
        return tuple(f"{run.path}/{part.name}" for part in write_parts(pa.Table.from_pylist(rows, schema), run, state.files, side))

    decoded = [{"container": item, "container_size_bytes": 3, "etag": objects.identity(item)} for item in addresses]
    named = [{"container": "root", "address": item, "kind": "manifest", "size_bytes": 3, "must_exist": True} for item in addresses]
    needed = [{"address": item, "rank": rank} for item, rank in zip(addresses, ranks or (), strict=False)]
    for name in "abcd":
        (lake / name).write_text("new")
        os.utime(lake / name, (0, 0))
    find = FindPending(
        state.files,
        objects,
        known=write(decoded, CONTAINERS, CONTAINERS_SIDE),
        parents=(),
        edges=write(named, EDGES, EDGES_SIDE),
        rewritten=(),
        roots=RootTables(state.files, (), (), (), (), edited=False),
        run=run,
        width=1,
        resolver=KeyResolver([("warehouse", f"file://{lake}/")]),
        examined=None if ranks is None else write(needed, STATES, STATES_SIDE) if needed else (),
    )
    reports = [row for batch in find(iter([pa.RecordBatch.from_pydict({"id": [0]})])) for row in batch.to_pylist()]
    tasks = read_parts(state.files, merge_written(reports).paths(run, TASKS_SIDE), TASKS)
    assert sorted(tasks.column("address").to_pylist()) == [f"file://{lake}/{name}" for name in read_again]
