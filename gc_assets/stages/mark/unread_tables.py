"""List unreadable tables, with the reasons, the times since when, and the storages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Self

from gc_assets.core.plan import Unreadable
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.stages.mark.last_known import WHOLE_LAKE, LastKnown
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS, LIVE_CONTENTS, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE
from gc_assets.state.summaries import CommitGraphSummary, LakeRefsSummary, ReachableSnapshotsSummary, UnreadTable


def list_unread_tables(inputs: Mapping[str, PublishedTable]) -> list[UnreadTable]:
    """List the tables that could not be read before decoding.

    An item without a name represents the whole lake.

    Args:
        inputs: Result of `find_root_inputs`.
    """
    graph = inputs[COMMIT_GRAPH.name].summary(CommitGraphSummary)
    reachable = inputs[REACHABLE_SNAPSHOTS.name].summary(ReachableSnapshotsSummary)
    whole_lake = [UnreadTable(table_name=None, why=reason) for reason in (graph.unread, reachable.unread) if reason is not None]
    return [*inputs[LAKE_REFS.name].summary(LakeRefsSummary).unread, *whole_lake]


def unread_reasons(inputs: Mapping[str, PublishedTable], last_known: LastKnown | None) -> dict[str, str]:
    """Return why tables are unreadable, keyed by table UUID, or `WHOLE_LAKE` for the whole lake.

    An unreadable table with unknown UUID is represented by all missing tables that may have been
    renamed to it.
    """
    reasons: dict[str, str] = {}
    for item in list_unread_tables(inputs):
        if item.table_name is None:
            reasons.setdefault(WHOLE_LAKE, item.why)
        elif last_known is not None:
            for uuid in last_known.uuids.get(item.table_name, ()):
                reasons.setdefault(uuid, item.why)
    renamed = find_renamed_tables(inputs, last_known)
    return {
        uuid: f"table {item.table_name} cannot be read, and may be this table under another name: {item.why}"
        for uuid, item in renamed.items()
    } | reasons


def find_renamed_tables(inputs: Mapping[str, PublishedTable], last_known: LastKnown | None) -> dict[str, UnreadTable]:
    """Return the unreadable tables to which missing tables may have been renamed.

    The result is keyed by the UUID of the missing table. Tables that are unreadable under their own
    name are skipped. A new name may previously have belonged to a dropped table.
    """
    unread = [item for item in list_unread_tables(inputs) if item.table_name is not None]
    if not unread or last_known is None:
        return {}
    paths = inputs[LAKE_REFS.name].paths()
    found = set(read_parts(last_known.files, paths, LAKE_REFS.schema, ["table_uuid"]).column("table_uuid").to_pylist())
    return last_known.find_renamed(unread, found.union(*(last_known.uuids.get(item.table_name or "", ()) for item in unread)))


def list_unreadable(
    context: RunContext, lake_name: str, inputs: Mapping[str, PublishedTable], last_known: LastKnown | None, found: Mapping[str, str]
) -> tuple[Unreadable, ...]:
    """List all unreadable tables: those that the walk found, and those with an unknown UUID.

    Args:
        inputs: Result of `find_root_inputs`.
        found: Reasons that the walk found, keyed by table UUID, content id or `WHOLE_LAKE`.
    """
    refs = inputs[LAKE_REFS.name]
    summary = refs.summary(LakeRefsSummary)
    if not found and not summary.unread:
        return ()
    previous = _PreviousReads.of(last_known)
    names, identities = _find_names(context, lake_name, refs, previous)
    claims = [row for row in read_parts(context.state.files, refs.paths(CLAIMS_SIDE), CLAIMS).to_pylist() if row["storage"] is not None]
    renamed, resolver = find_renamed_tables(inputs, last_known), context.resolver()
    known = [
        Unreadable(
            lake=lake_name,
            table_uuid=key or None,
            may_be=renamed[key].table_name if key in renamed else None,
            table_name=names.get(key),
            why=reason,
            since=previous.since(key, summary.frozen_at),
            good_on=(good_on := previous.good_on(key)),
            storages=() if good_on is not None else _storages(row for row in claims if _is_claim_of(row, key, names.get(key))),
            identity=identities.get(key, key),
        )
        for key, reason in sorted(found.items())
    ]
    unknown = [
        Unreadable(
            lake=lake_name,
            table_name=item.table_name,
            why=item.why,
            since=previous.since_by_name.get(item.table_name, summary.frozen_at),
            storages=_storages([row for row in claims if row["table_name"] == item.table_name], resolver.storage_of(item.address)),
            identity=item.identity,
        )
        for item in summary.unread
        if item.table_name is not None and not previous.uuids_by_name.get(item.table_name)
    ]
    return (*known, *unknown)


def _find_names(
    context: RunContext, lake_name: str, refs: PublishedTable, previous: _PreviousReads
) -> tuple[dict[str, str], dict[str, str | None]]:
    """Return table names by UUID or content id, and the identities with which to set tables aside."""
    rows = read_rows(context.state, LAKE_REFS, refs, columns=["table_uuid", "table_name"]).to_pylist()
    names = previous.names | {row["table_uuid"]: row["table_name"] for row in rows if row["table_uuid"] is not None}
    names |= _content_names(context, lake_name) if context.kind(lake_name).has_live_contents else {}
    unread = {item.table_name: item for item in refs.summary(LakeRefsSummary).unread if item.table_name is not None}
    # A listed copy of an unreadable table may have the same UUID.
    names |= {uuid: name for name in unread for uuid in previous.uuids_by_name.get(name, ())}
    identities = {key: item.identity for key, name in names.items() if (item := unread.get(name)) is not None}
    identities |= {row["table_uuid"]: row["table_uuid"] for row in rows} | {WHOLE_LAKE: None}
    return names, identities


def _content_names(context: RunContext, lake_name: str) -> dict[str, str]:
    """Return the keys of live contents, keyed by content id. Keys at branch heads are preferred."""
    contents = context.table(LIVE_CONTENTS, lake_name)
    rows = read_rows(context.state, LIVE_CONTENTS, contents, columns=["content_id", "content_key", "at_head"]).to_pylist()
    return {row["content_id"]: row["content_key"] for row in sorted(rows, key=lambda row: bool(row["at_head"])) if row["content_id"]}


@dataclass(frozen=True, slots=True)
class _PreviousReads:
    """The names of a lake's tables in earlier runs, and when they could be read.

    Attributes:
        last_known: The newest earlier run, or None.
        items: Tables that this earlier run could not read, keyed by UUID or `WHOLE_LAKE`.
        names: Table names, keyed by UUID.
        uuids_by_name: UUIDs, keyed by table name.
        since_by_name: When tables with an unknown UUID became unreadable, keyed by table name.
    """

    last_known: LastKnown | None
    items: Mapping[str, Unreadable]
    names: dict[str, str]
    uuids_by_name: Mapping[str, Collection[str]]
    since_by_name: Mapping[str, datetime]

    @classmethod
    def of(cls, last_known: LastKnown | None) -> Self:
        if last_known is None:
            return cls(None, {}, {}, {}, {})
        keyed = [item for item in last_known.unreadable if item.table_uuid is not None or item.is_whole_lake]
        unnamed = [item for item in last_known.unreadable if item.table_uuid is None and item.table_name is not None]
        return cls(
            last_known,
            {item.table_uuid or WHOLE_LAKE: item for item in keyed},
            {uuid: name for name, found in last_known.uuids.items() for uuid in found},
            last_known.uuids,
            {item.table_name: item.since for item in unnamed if item.table_name is not None},
        )

    def since(self, key: str, now: datetime) -> datetime:
        return self.items[key].since if key in self.items else now

    def good_on(self, key: str) -> date | None:
        if key in self.items:
            return self.items[key].good_on
        return self.last_known.run_date if self.last_known is not None and self.last_known.was_read(key) else None


def _is_claim_of(claim: Mapping[str, Any], key: str, name: str | None) -> bool:
    """Check whether a claim belongs to an unreadable table.

    The claims of a table that its catalog hides only contain the table's name.
    """
    is_named = claim["table_uuid"] is None and name is not None and claim["table_name"] == name
    return is_named or key in {WHOLE_LAKE, claim["table_uuid"]}


def _storages(claims: Iterable[Mapping[str, Any]], other: str | None = None) -> tuple[str, ...]:
    return tuple(sorted({*(row["storage"] for row in claims), *([other] if other is not None else [])}))
