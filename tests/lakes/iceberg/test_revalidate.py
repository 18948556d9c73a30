"""Revalidate actions that were approved for random tables against later states of these tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.lakes.iceberg.config import IcebergRetention
from gc_assets.lakes.iceberg.metadata import Snapshot, SnapshotRef, TableMetadata
from gc_assets.lakes.iceberg.registrations import Registration, build_graph, build_source, list_refs
from gc_assets.lakes.iceberg.retention import retain
from gc_assets.lakes.iceberg.revalidate import find_damage, find_leftovers, revalidate
from gc_assets.lakes.protocol import REMOVE_SNAPSHOT, ExpiryAction, Retention
from tests.lakes.iceberg.snapshot_histories import AS_OF, DAY, DAY_MS, UUID, build_refs

DAYS = st.integers(0, 12)
NAMES = ["main", "dev", "rel", "v1", "v2"]


@st.composite
def registrations(draw: st.DrawFn, name: str) -> Registration:
    """Draw a table of up to eight snapshots `0` to `7` with random parents, times and refs."""
    ids = draw(st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True))
    snapshots = []
    for index in sorted(ids):
        parent = draw(st.sampled_from([None, "gone", *(str(other) for other in ids if other < index)]))
        snapshots.append(Snapshot(str(index), parent, AS_OF - timedelta(days=draw(DAYS)), "list", {}, ()))
    refs = tuple(
        SnapshotRef(name, "tag" if name.startswith("v") else "branch", str(draw(st.sampled_from(ids))), ref_settings)
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=5))
        for ref_settings in [draw(st.sampled_from([{}, {"max-ref-age-ms": str(3 * DAY_MS)}]))]
    )
    return Registration(name, TableMetadata("file:///m.json", UUID, {}, (), tuple(snapshots), refs, (), ()), 0, draw(st.integers(0, 9)) > 0)


def retention(items: list[Registration]) -> Retention:
    refs = [ref for item in items for ref in list_refs(item)]
    frozen = build_refs(refs, [build_source(item) for item in items])
    return retain(frozen, build_graph(items), AS_OF, AS_OF + 1000 * DAY, IcebergRetention())


def approve_all(items: list[Registration]) -> list[ExpiryAction]:
    return [ExpiryAction(**row) for row in retention(items).expiry.to_pylist()]


def tables(draw: Any) -> list[Registration]:
    return [draw(registrations(name)) for name in ["db.a", "db.b"][: draw(st.sampled_from([1, 1, 2]))]]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_removals_are_approved_and_still_required_by_policy(data: st.DataObject) -> None:
    actions = approve_all(tables(data.draw))
    now = tables(data.draw)
    fresh = {(action.action, action.snapshot_id, action.ref_name) for action in approve_all(now)}

    result = revalidate(actions, now, retention(now))

    tables_now = {item.name: item.table for item in now}
    for removal in result.removals:
        table = tables_now[removal.name]
        for action in removal.actions:
            assert action in actions
            assert (action.action, action.snapshot_id, action.ref_name) in fresh
        assert removal.snapshot_ids == {action.snapshot_id for action in removal.actions if action.action == REMOVE_SNAPSHOT}
        assert removal.snapshot_ids <= {snapshot.snapshot_id for snapshot in table.snapshots}
        assert removal.ref_names <= {ref.name for ref in table.refs} - {"main"}
        assert not removal.snapshot_ids & {ref.snapshot_id for ref in table.refs if ref.name not in removal.ref_names}
    confirmed = {action for removal in result.removals for action in removal.actions}
    assert confirmed.isdisjoint(result.settled)
    assert confirmed | result.settled.keys() == set(actions)
    for action, outcome in result.settled.items():
        if action.action == REMOVE_SNAPSHOT:
            existing = any(action.snapshot_id == snapshot.snapshot_id for item in now for snapshot in item.table.snapshots)
        else:
            existing = any(action.ref_name == ref.name for item in now for ref in item.table.refs)
        assert (outcome.verdict, bool(outcome.error)) == (("changed", True) if existing else ("absent", False))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_all_actions_of_unchanged_table_are_confirmed(data: st.DataObject) -> None:
    items = tables(data.draw)
    actions = approve_all(items)
    result = revalidate(actions, items, retention(items))
    assert result.settled == {}
    assert {action for removal in result.removals for action in removal.actions} == set(actions)


@settings(max_examples=100, deadline=None)
@given(registrations("db.a"), st.data())
def test_wrong_metadata_after_commit_is_detected(item: Registration, data: st.DataObject) -> None:
    removals = revalidate(approve_all([item]), [item], retention([item])).removals
    if not removals:
        return
    [removal] = removals
    after = replace(item.table, snapshots=removal.retained, refs=removal.refs)
    assert (find_damage(removal, after), find_leftovers(removal, after)) == (None, None)
    wrong = [replace(after, table_uuid="other")]
    wrong += [replace(after, snapshots=after.snapshots[1:])] if after.snapshots else []
    wrong += [replace(after, refs=after.refs[1:])] if after.refs else []
    wrong += [replace(after, refs=(replace(ref, snapshot_id="99"), *after.refs[1:])) for ref in after.refs[:1]]
    assert find_damage(removal, data.draw(st.sampled_from(wrong)))
    left = [replace(after, snapshots=item.table.snapshots)] if removal.snapshot_ids else []
    left += [replace(after, refs=item.table.refs)] if removal.ref_names else []
    undone = data.draw(st.sampled_from(left))
    assert find_damage(removal, undone) is None
    assert find_leftovers(removal, undone)
