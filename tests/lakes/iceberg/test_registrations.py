"""The snapshot graph of a table that is registered under several names, as history edits are
revalidated.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.lakes.iceberg.config import IcebergRetention
from gc_assets.lakes.iceberg.metadata import Snapshot, SnapshotRef, TableMetadata
from gc_assets.lakes.iceberg.registrations import Registration, build_graph, build_source, list_refs
from gc_assets.lakes.iceberg.retention import retain
from gc_assets.lakes.protocol import Retention
from tests.depth import example_count
from tests.lakes.iceberg.snapshot_histories import AS_OF, DAY, DAY_MS, UUID, build_refs, retained_ids, states

Parents = dict[str, str | None]


def register(name: str, parents: Parents, head: str, days: int = 40, **ref: Any) -> Registration:
    """Return a table whose snapshots have these parents, each a day younger than the one before."""
    at = {snapshot: AS_OF - timedelta(days=days - int(snapshot)) for snapshot in parents}
    snapshots = tuple(Snapshot(item, parent, at[item], "list", {}, ()) for item, parent in parents.items())
    refs = (SnapshotRef("main", "branch", head, ref),)
    return Registration(name, TableMetadata("file:///m.json", UUID, {}, (), snapshots, refs, (), ()), 0, True)


def retention(items: tuple[Registration, ...], **policy: Any) -> Retention:
    frozen = build_refs([ref for item in items for ref in list_refs(item)], [build_source(item) for item in items])
    return retain(frozen, build_graph(items), AS_OF, AS_OF + 1000 * DAY, IcebergRetention.model_validate(policy))


FOREVER = {"refs": [{"match": "main", "keep": "forever"}]}
ORIGINAL: Parents = {"0": None, "1": "0", "2": "1"}


@pytest.mark.parametrize("items", list(permutations([register("db.orders", ORIGINAL, "2"), register("db.copy", {"2": None}, "2")])))
def test_history_continues_if_only_one_registered_name_still_lists_parent(items: tuple[Registration, ...]) -> None:
    assert retained_ids(retention(items, **FOREVER)) == {"0", "1", "2"}


@pytest.mark.parametrize("items", list(permutations([register("db.orders", ORIGINAL, "2"), register("db.copy", {"2": None}, "2")])))
def test_dangling_limit_also_applies_before_parent_that_one_name_no_longer_lists(
    items: tuple[Registration, ...],
) -> None:
    assert retained_ids(retention(items, refs=[{"match": "main", "keep": "1d"}], dangling="60d")) == {"0", "1", "2"}
    result = retention(items, refs=[{"match": "main", "keep": "1d"}], dangling="1d")
    assert states(result) == {"0": "expired", "1": "expired", "2": "retained"}


@pytest.mark.parametrize("items", list(permutations([register("db.a", ORIGINAL, "2"), register("db.b", {**ORIGINAL, "2": "0"}, "2")])))
def test_table_is_kept_and_noted_if_registered_names_list_different_parents(items: tuple[Registration, ...]) -> None:
    result = retention(items)
    assert retained_ids(result) == {"0", "1", "2"}
    assert result.expiry.num_rows == 0
    [note] = result.notes
    assert note == f"table {items[0].name}: the names of the table list different parents of snapshot 2; its whole history is kept"


@st.composite
def tables(draw: st.DrawFn, name: str) -> Registration:
    """Draw a name of a table of ten snapshots, whose maintenance removed some and their children's parents."""
    parents = {str(index): draw(st.sampled_from([None, *map(str, range(index))])) for index in range(draw(st.integers(1, 10)))}
    ref = draw(st.sampled_from([{}, {"max-snapshot-age-ms": str(2 * DAY_MS)}, {"min-snapshots-to-keep": "3"}]))
    return register(name, parents, draw(st.sampled_from(sorted(parents))), 12, **ref)


@settings(max_examples=example_count(100, 500), deadline=None)
@given(tables("db.a"), tables("db.b"), st.sampled_from([None, "1d", "8d", "90d"]))
def test_snapshot_retained_by_history_of_one_name_is_always_kept(one: Registration, other: Registration, dangling: str | None) -> None:
    items = (one, other)
    frozen = build_refs([ref for item in items for ref in list_refs(item)], [build_source(item) for item in items])
    graph = build_graph(items)
    policy = IcebergRetention.model_validate({} if dangling is None else {"dangling": dangling})
    kept = retained_ids(retain(frozen, graph, AS_OF, AS_OF + 1000 * DAY, policy))
    for first, second in permutations(items):
        parents = {item.snapshot_id: item.parent_id for registration in (second, first) for item in registration.table.snapshots}
        of_one = [[parent] if (parent := parents[item]) is not None else [] for item in graph["commit_id"].to_pylist()]
        columns = {"parents": of_one, "parents_differ": [False] * graph.num_rows}
        of_first = pa.table({**{name: graph[name] for name in graph.column_names}, **columns}, graph.schema)
        assert retained_ids(retain(frozen, of_first, AS_OF, AS_OF + 1000 * DAY, policy)) <= kept
