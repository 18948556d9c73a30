"""Check whether gc-assets has removed the objects behind paths that an undo would restore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.commands import command
from gc_assets.core.errors import StateError, StoreError
from gc_assets.core.phases import PURGE, QUARANTINE
from gc_assets.core.printable import show_list, to_message
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import ExpiryAction
from gc_assets.stages.delete.planned_edits import PlannedPaths
from gc_assets.stages.records.ledger import LogReader, newest_entries, select_removed
from gc_assets.stages.records.plans import list_plans, unfinished_plans
from gc_assets.state.index import PastRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import DELETION_PLAN
from gc_assets.stores.listing import find_objects

_DEFERRED: Final = "deferred"


def describe_removed_objects(context: RunContext, planned: PlannedPaths, action: ExpiryAction, plan_id: str) -> str | None:
    """Explain why a path deletion must not be undone.

    A later plan may have quarantined or purged objects at these paths, in which case the restored
    paths would refer to missing files. To find out, this reads the deletion logs of the storages
    involved, and looks up the removed objects, because a user may have copied them back. Unfinished
    plans do not have a log yet, so their rows are read instead.

    Returns:
        The reason, which may be that a table or an object cannot be read, or None if the deletion
        may be undone.
    """
    try:
        keys = _keys_by_storage(planned.read_objects(action))
        reason = _describe_logged(context, keys, action)
        return reason if reason is not None else _describe_unfinished(context, keys, action, plan_id)
    except (StateError, StoreError) as error:
        unknown = f"gc-assets cannot find out whether the objects at the deleted paths of branch {action.ref_name} exist"
        return to_message(f"{unknown}: {str(error).removesuffix('.')}; commit {action.snapshot_id} has the deleted paths")


def _keys_by_storage(objects: pa.Table) -> dict[str, pa.Array]:
    storages = pc.unique(objects.column("storage")).drop_null().to_pylist()
    return {name: objects.column("key").filter(pc.equal(objects.column("storage"), name)).combine_chunks() for name in storages}


def _describe_logged(context: RunContext, keys: Mapping[str, pa.Array], action: ExpiryAction) -> str | None:
    found = list[pa.Table]()
    for storage, of_storage in keys.items():
        last = newest_entries(LogReader.of(context.state, storage).read_keys(of_storage), ("key",))
        removed = select_removed(last).select(["key", "phase", "by", "size_bytes"])
        found.append(removed.filter(pa.array(_find_missing(context, storage, removed), pa.bool_())))
    gone = pa.concat_tables(found) if found else None
    if gone is None or not gone.num_rows:
        return None
    lost = gone.filter(pc.not_equal(gone.column("phase"), QUARANTINE))
    if lost.num_rows:
        return (
            _describe(action, lost.column("key").to_pylist(), "do not exist any more")
            + f"; copy them back and run the undo again; commit {action.snapshot_id} has the deleted paths"
        )
    plans = show_list([f"`{command('restore', plan=plan[:12])}`" for plan in sorted(set(gone.column("by").to_pylist()))])
    return _describe(action, gone.column("key").to_pylist(), "are in quarantine") + f"; first run {plans}"


def _find_missing(context: RunContext, storage: str, removed: pa.Table) -> list[bool]:
    """Look up removed objects, and return which of them a user has not copied back in full."""
    if storage not in {item.name for item in context.config.storages}:
        return [True] * removed.num_rows
    found = find_objects(context.store(storage), removed.column("key").to_pylist())
    sizes = removed.column("size_bytes").to_pylist()
    return [item is None or size not in {None, item.size_bytes} for item, size in zip(found, sizes, strict=True)]


def _describe_unfinished(context: RunContext, keys: Mapping[str, pa.Array], action: ExpiryAction, plan_id: str) -> str | None:
    """Return a reason if an interrupted apply of another plan may have removed objects.

    The outcomes of a plan are published only when it ends. Until then, every object in its rows is
    treated as removed.
    """
    for storage, of_storage in keys.items():
        for unfinished in sorted({*unfinished_plans(context.state, storage)} - {plan_id}):
            run = next((item.run for item in list_plans(context.config, storage, empty=True) if item.header.plan_id == unfinished), None)
            taken = of_storage.to_pylist() if run is None else list(_find_planned(context, run, of_storage))
            if taken:
                state = f"may have been removed by plan {unfinished[:12]}, which is unfinished"
                adopt = command("adopt", context.config.label_of(storage), by="WHO")
                end = adopt if run is None else command("apply", unfinished[:12], end=True)
                return _describe(action, taken, state) + f"; first run `{end}`"
    return None


def _find_planned(context: RunContext, run: PastRun, keys: pa.Array) -> Iterator[str]:
    """Yield those of the given keys that a plan moves away or purges."""
    for path in context.state.open(run).paths():
        rows = read_parts(context.state.files, [path], DELETION_PLAN.schema, ["key", "action", "quarantine"])
        rows = rows.filter(pc.is_in(rows.column("key"), keys))
        is_hidden = pc.not_equal(pc.fill_null(rows.column("quarantine"), ""), _DEFERRED)
        is_quarantined = pc.and_(pc.equal(rows.column("action"), QUARANTINE), is_hidden)
        yield from rows.filter(pc.or_(is_quarantined, pc.equal(rows.column("action"), PURGE))).column("key").to_pylist()


def _describe(action: ExpiryAction, keys: Sequence[str], state: str) -> str:
    objects = f"{count_of(len(keys), 'object')} at the deleted paths of branch {action.ref_name}"
    return to_message(f"{objects} {state}, such as {min(keys)}, so the paths would refer to missing files")
