"""Commits that were read several times, such as those of an Iceberg table with two registered
names.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.core.clock import Clock
from gc_assets.demo.iceberg_builder import LakeBuilder, TableBuilder
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.stages.mark.commit_graph import commit_graph
from gc_assets.stages.mark.commit_rows import add_generations, keep_first_of_each_commit, merge_commits
from gc_assets.stages.mark.lake_refs import lake_refs, read_frozen_refs
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS
from tests.stages.lakehouse import NOW, Lakehouse


def rows_of(*rows: dict[str, Any]) -> pa.Table:
    common = {"table_uuid": "u", "commit_id": "2", "parents": [], "content_roots": [], "summary": [], "parents_differ": False}
    return pa.Table.from_pylist([{**common, **row} for row in rows], schema=COMMIT_GRAPH.schema)


@pytest.mark.parametrize("order", list(permutations([{"parents": ["1"]}, {"parents": []}, {"parents": ["1"]}])))
def test_parent_listed_by_only_one_registered_name_is_kept(order: tuple[dict[str, Any], ...]) -> None:
    [row] = merge_commits(rows_of(*order)).to_pylist()
    assert (row["parents"], row["parents_differ"]) == (["1"], True)


def test_parents_listed_by_any_registered_name_are_kept() -> None:
    [row] = merge_commits(rows_of({"parents": ["0"]}, {"parents": ["1"]})).to_pylist()
    assert (row["parents"], row["parents_differ"]) == (["0", "1"], True)


def test_parents_listed_by_all_registered_names_do_not_differ() -> None:
    [row] = merge_commits(rows_of({"parents": ["1"]}, {"parents": ["1"], "content_roots": []})).to_pylist()
    assert (row["parents"], row["parents_differ"]) == (["1"], False)


def test_commit_in_two_graphs_is_kept_once_per_table() -> None:
    rows = rows_of({"message": "first"}, {"table_uuid": None}, {"message": "again"}, {"table_uuid": None}, {"commit_id": "3"})
    found = keep_first_of_each_commit(rows).select(["table_uuid", "commit_id", "message"]).to_pylist()
    assert [tuple(row.values()) for row in found] == [("u", "2", "first"), (None, "2", None), ("u", "3", None)]
    assert keep_first_of_each_commit(rows.slice(0, 0)).num_rows == 0


def test_generation_counts_parents_listed_only_by_second_name() -> None:
    batches = rows_of({"parents": []}, {"parents": ["1"]}, {"commit_id": "1"}).to_batches()
    found = [row for batch in add_generations(iter(batches)) for row in batch.to_pylist()]
    assert {row["commit_id"]: row["generation"] for row in found} == {"1": 0, "2": 1}


@pytest.mark.parametrize("copy", ["db.a_copy", "db.z_copy"])
def test_history_is_kept_if_only_registered_copy_expired_snapshots(tmp_path: Path, copy: str) -> None:
    """pyiceberg removes the parent of the oldest snapshot that it keeps."""
    builder = LakeBuilder(tmp_path)
    catalog = {name: value for name, value in builder.properties.items() if name != "warehouse"}
    retention = {"refs": [{"match": "main", "keep": "forever"}]}
    config = {"name": "shop", "kind": "iceberg", "catalog_name": builder.catalog_name, "catalog": catalog, "retention": retention}
    house = Lakehouse(None, tmp_path, [IcebergLakeConfig.model_validate(config)])  # type: ignore[arg-type] - no stage of this test runs in Spark
    builder.table("db.orders", NOW - timedelta(days=30))
    original = TableBuilder(builder, "db.orders")
    for number in range(4):
        original.append(NOW - timedelta(days=29 - number))
    clone = builder.catalog.register_table(copy, original.table.metadata_location)
    clone.maintenance.expire_snapshots().by_ids([item.snapshot_id for item in clone.snapshots()[:-1]]).commit()
    assert [item.parent_snapshot_id for item in builder.catalog.load_table(copy).snapshots()] == [None]
    ids = [str(item.snapshot_id) for item in original.table.snapshots()]

    for day in range(2):  # the second run reuses the commits of the first
        clock = Clock(NOW + timedelta(days=day))
        context = RunContext.of(house.config, clock, clock.today())
        lake_refs(context, "shop")
        graph = read_rows(context.state, COMMIT_GRAPH, commit_graph(None, context, "shop"))  # type: ignore[arg-type] - few rows need no Spark
        refs = read_frozen_refs(context, "shop", context.table(LAKE_REFS, "shop"))
        found = context.lake("shop").retain(refs, graph, clock.now(), clock.now())
        assert {row["commit_id"]: row["state"] for row in found.reachable.to_pylist()} == dict.fromkeys(ids, "retained")
        assert found.expiry.num_rows == 0
        parents = {row["commit_id"]: row["parents"] for row in graph.to_pylist()}
        assert parents == {child: [parent] if parent else [] for parent, child in zip(["", *ids], ids, strict=False)}
