"""List tables that the current run cannot read, with reason, start time and storages."""

from __future__ import annotations

from collections.abc import Mapping

from gc_assets.core.errors import FormatError, LakeUnreadable, StoreError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.plan import Unreadable
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.stages.mark.last_known import WHOLE_LAKE, LastKnown
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE
from gc_assets.state.summaries import CommitGraphSummary, LakeRefsSummary, ReachableSnapshotsSummary, UnreadTable


def list_unread_tables(inputs: Mapping[str, PublishedTable]) -> list[UnreadTable]:
    """List the tables that could not be read before decoding. No name means the whole lake.

    `inputs` are the result of `find_root_inputs`.
    """
    graph = inputs[COMMIT_GRAPH.name].summary(CommitGraphSummary)
    reachable = inputs[REACHABLE_SNAPSHOTS.name].summary(ReachableSnapshotsSummary)
    whole_lake = [UnreadTable(table_name=None, why=reason) for reason in (graph.unread, reachable.unread) if reason is not None]
    return [*inputs[LAKE_REFS.name].summary(LakeRefsSummary).unread, *whole_lake]


def unread_reasons(lake_name: str, inputs: Mapping[str, PublishedTable], last_known: LastKnown | None) -> dict[str, str]:
    """Return the reasons of unreadable tables by uuid (`WHOLE_LAKE`: the lake).

    Tables that no earlier run read are left out.

    Raises:
        LakeUnreadable: If no earlier run read the lake.
    """
    unread = list_unread_tables(inputs)
    if not unread:
        return {}
    if last_known is None:
        raise LakeUnreadable(never_read_message(lake_name, unread[0].table_name, unread[0].why))
    reasons: dict[str, str] = {}
    for item in unread:
        for uuid in [WHOLE_LAKE] if item.table_name is None else last_known.uuids.get(item.table_name, []):
            reasons.setdefault(uuid, item.why)
    return reasons


def list_unreadable(
    context: RunContext, lake_name: str, refs: PublishedTable, last_known: LastKnown | None, found: Mapping[str, str]
) -> tuple[Unreadable, ...]:
    """List all unreadable tables: those found by the walk, and those never read by any run.

    `found` maps table uuids to reasons (`WHOLE_LAKE`: the lake).
    """
    summary = refs.summary(LakeRefsSummary)
    if last_known is None:
        return ()
    rows = read_rows(context.state, LAKE_REFS, refs, columns=["table_uuid", "table_name"]).to_pylist()
    names = {row["table_uuid"]: row["table_name"] for row in rows if row["table_uuid"] is not None}
    storages: dict[str, list[str]] = {}
    for row in read_parts(context.state.files, refs.paths(CLAIMS_SIDE), CLAIMS).to_pylist():
        if row["table_uuid"] is not None and row["storage"] is not None:
            storages.setdefault(row["table_uuid"], []).append(row["storage"])
    known = last_known.list_unreadable(found, names, storages, lake_name, summary.frozen_at)
    return (*known, *_list_never_read(context, lake_name, summary, last_known))


def _list_never_read(context: RunContext, lake_name: str, summary: LakeRefsSummary, last_known: LastKnown) -> list[Unreadable]:
    previous = {item.table_name: item for item in last_known.unreadable if item.good_on is None}
    resolver = context.resolver()
    found: list[Unreadable] = []
    for item in summary.unread:
        if item.table_name is None or item.table_name in last_known.uuids:
            continue
        storage = _find_storage(resolver, item.address)
        since = previous[item.table_name].since if item.table_name in previous else summary.frozen_at
        storages = () if storage is None else (storage,)
        found.append(Unreadable(lake=lake_name, table_name=item.table_name, why=item.why, since=since, storages=storages))
    return found


def _find_storage(resolver: KeyResolver, address: str | None) -> str | None:
    try:
        location = resolver.resolve_one(address) if address is not None else None
    except (FormatError, StoreError):
        return None
    return None if location is None else location[0]


def never_read_message(lake_name: str, table_name: str | None, reason: str) -> str:
    name = f"table {table_name}" if table_name is not None else "the repository"
    return f"{reason}\n  lake {lake_name}: no earlier run read {name} in full, so its live files are unknown and no plan is made"
