"""Compare the refs that earlier runs recorded with the current ones.

When a ref is deleted, its commits stay protected for the grace period. However, a ref or table also
looks deleted if the server or catalog hides it from the user of gc-assets. To detect this,
gc-assets requests each ref that the last run read from the server, and each table of the last run
from an Iceberg catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from gc_assets.core.errors import GcError
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.protocol import Claim, FrozenRefs, Lake, ListingLake, PreviousRef, Ref, UnreadableTable, as_filtered, as_listing
from gc_assets.stages.mark.last_known import find_last_known
from gc_assets.stages.mark.resolution import find_resolvable
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import LAKE_REFS
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE
from gc_assets.state.summaries import FreezeTime, LakeRefsSummary


@dataclass(frozen=True, slots=True)
class Freeze:
    """The refs recorded by a run, keyed by ref name, and the time. Refs without head are omitted."""

    at: datetime
    refs: Mapping[str, Ref]


def build_freeze(at: datetime, refs: Sequence[Ref]) -> Freeze:
    return Freeze(at, {ref.ref_name: ref for ref in refs if ref.head_commit_id is not None})


def refuse_hidden(context: RunContext, lake_name: str, lake: Lake, current: Freeze) -> None:
    """Raise an error if the lake hides an existing ref that the previous run recorded."""
    filtered = as_filtered(lake)
    if filtered is not None and (previous := list_previous_freezes(context, lake_name, current.at)):
        filtered.verify_deleted(_read_freeze(context, previous[-1]).refs.keys() - current.refs.keys())


def add_hidden_tables(context: RunContext, lake: Lake, refs: FrozenRefs, frozen_at: datetime) -> FrozenRefs:
    """Add the tables that the catalog may still have, but does not list, as unreadable tables.

    These are tables of the last run, and files under their last claims are not collected. A table
    is not added if the catalog confirms that it does not exist, because it was dropped then.
    """
    opened = as_listing(lake)
    previous = list_previous_freezes(context, lake.name, frozen_at, with_real=True) if opened is not None else []
    if opened is None or not previous:
        return refs
    newest = context.state.open(previous[-1])
    missed = _find_missed(context, newest, lake.name, refs, frozen_at)
    if not missed:
        return refs
    hidden = list(_find_hidden(opened, missed))
    hint = "Grant the user of gc-assets the right to list it, or set it aside, or run again"
    unreadable = [
        UnreadableTable(item.table_name, f"{reason}. {hint}", item.address, table_uuid=item.table_uuid) for item, reason in hidden
    ]
    shields = _find_claims(context, newest, [item for item, _ in hidden])
    return replace(refs, unreadable=(*refs.unreadable, *unreadable), claims=(*refs.claims, *shields))


@dataclass(frozen=True, slots=True)
class _MissedTable:
    """A table name of the last run that the catalog no longer lists.

    Attributes:
        address: The table's last metadata file, if known.
        table_uuid: The table's UUID, if known.
    """

    table_name: str
    address: str | None
    table_uuid: str | None = None


def _find_hidden(opened: ListingLake, missed: Sequence[_MissedTable]) -> Iterator[tuple[_MissedTable, str]]:
    """Yield those missed tables that the catalog may still have, each with the reason.

    Each request to the catalog contains only one name per table UUID.
    """
    remaining = list(missed)
    while remaining:
        # If the UUID is unknown, the name identifies the table.
        batch = {item.table_uuid or item.table_name: item for item in reversed(remaining)}
        remaining = [item for item in remaining if batch[item.table_uuid or item.table_name] is not item]
        try:
            reasons = opened.find_listed({key: item.table_name for key, item in batch.items()}, is_strict=False)
        except (GcError, OSError) as error:
            reasons = dict.fromkeys(batch, f"its catalog cannot be queried: {error}")
        yield from ((batch[key], reason) for key, reason in sorted(reasons.items()))


def _find_missed(context: RunContext, newest: PublishedTable, lake_name: str, refs: FrozenRefs, frozen_at: datetime) -> list[_MissedTable]:
    """Return the tables of the last run that the catalog does not list.

    Each name of a table is checked separately, because a table can be registered under several
    names, each with its own history. For example, the old name of a renamed table is checked too,
    unless only its case changed. A name is skipped if it is in use (`_used_names`).
    """
    listed = {source.table_uuid for source in refs.sources}
    pairs = {(source.table_name, source.table_uuid) for source in refs.sources}
    folded = {(str(name).casefold(), uuid) for name, uuid in pairs}
    names = _used_names(refs)
    rows = read_rows(context.state, LAKE_REFS, newest, columns=["table_uuid", "table_name"]).to_pylist()
    unread = {item.table_name: item.address for item in newest.summary(LakeRefsSummary).unread}
    frozen = {(row["table_name"], row["table_uuid"]) for row in rows}
    if frozen <= pairs and unread.keys() <= names:
        return []
    last_known = find_last_known(context, lake_name, frozen_at)
    uuids, addresses = ({}, {}) if last_known is None else (last_known.uuids, last_known.addresses)
    known = frozen | {(name, uuid) for name, found in uuids.items() for uuid in set(found) - listed}
    unknown = [
        _MissedTable(name, address) for name, address in unread.items() if name is not None and listed.issuperset(uuids.get(name, ()))
    ]
    absent = [
        _MissedTable(name, addresses.get(uuid, unread.get(name)), uuid)
        for name, uuid in sorted(known - pairs, key=str)
        if uuid is not None and name is not None and (name.casefold(), uuid) not in folded
    ]
    return [item for item in (*unknown, *absent) if item.table_name not in names]


def _used_names(refs: FrozenRefs) -> set[str | None]:
    """Return the names that belong to a listed table, a view, or an unreadable table.

    Listed names with two dots are left out, because they are ambiguous: `a`.`b.c` and `a.b`.`c`
    look the same.
    """
    names = {item.table_name for item in refs.unreadable} | {view.name for view in refs.views}
    return names | {source.table_name for source in refs.sources if str(source.table_name).count(".") < 2}


def _find_claims(context: RunContext, newest: PublishedTable, tables: Sequence[_MissedTable]) -> list[Claim]:
    """Return the last recorded locations of missed tables as claims that collect no files.

    A location without a recorded table UUID is matched by table name.
    """
    rows = read_parts(context.state.files, newest.paths(CLAIMS_SIDE), CLAIMS, ["address", "table_uuid", "table_name"]).to_pylist()
    names = {item.table_uuid or item.table_name: item.table_name for item in tables}
    unnamed = set(names.values())
    found = {
        (row["address"], names.get(row["table_uuid"], row["table_name"]))
        for row in rows
        if row["table_uuid"] in names or (row["table_uuid"] is None and row["table_name"] in unnamed)
    }
    resolvable = set(find_resolvable({address for address, _ in found}, context.resolver()))
    return [Claim(address, None, name, collect=False) for address, name in sorted(found) if address in resolvable]


def find_previous_refs(context: RunContext, lake_name: str, current: Freeze, since: datetime) -> tuple[PreviousRef, ...]:
    """Return the refs that were deleted or moved between the time `since` and the current run."""
    previous = list_previous_freezes(context, lake_name, current.at)
    recent = [index for index, run in enumerate(previous) if _frozen_at(run) >= since]
    # The last record before the period is needed to detect deletions up to its first record.
    first = max(0, (recent[0] if recent else len(previous)) - 1)
    return tuple(find_dropped_or_moved([*(_read_freeze(context, run) for run in previous[first:]), current]))


def find_dropped_or_moved(freezes: Sequence[Freeze]) -> Iterator[PreviousRef]:
    """Yield the refs of each record that are missing or have another head in the next record."""
    for earlier, later in pairwise(freezes):
        for name, ref in earlier.refs.items():
            found = later.refs.get(name)
            if found is None or found.head_commit_id != ref.head_commit_id:
                yield PreviousRef(ref, later.at, None if found is None else found.head_commit_id)


def list_previous_freezes(context: RunContext, lake_name: str, before: datetime, *, with_real: bool = False) -> list[PastRun]:
    """Return the runs that recorded a lake's refs before a time, oldest first.

    Rehearsals see only rehearsals, and real runs see only real runs, because their clocks differ.
    With `with_real`, a rehearsal sees real runs too, because both read the same catalog.
    """
    accepted = {context.clock.is_rehearsal, *([False] if with_real else [])}
    runs = [
        run
        for run in context.state.history(lake_name, LAKE_REFS.name)
        if run.summary(FreezeTime).rehearsal in accepted and _frozen_at(run) < before
    ]
    return sorted(runs, key=_frozen_at)


def _frozen_at(run: PastRun) -> datetime:
    return run.summary(FreezeTime).frozen_at


def _read_freeze(context: RunContext, run: PastRun) -> Freeze:
    rows = read_rows(context.state, LAKE_REFS, context.state.open(run)).to_pylist(maps_as_pydicts="strict")
    return build_freeze(_frozen_at(run), [Ref(**row) for row in rows])
