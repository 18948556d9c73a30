"""Record which unreadable tables users have set aside.

An unreadable table might use any file, so no file is purged until it can be read. If a user accepts
the risk, the user can set the table aside, and purges continue. Files under its claims remain
protected.

The record expires with the first run that can read the table, so it does not apply if the table
becomes unreadable a second time. It does not apply to another table with the same name either,
because it is bound to the table's UUID, or to its metadata address if the UUID is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from pydantic import RootModel

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import UsageError
from gc_assets.core.plan import Unreadable
from gc_assets.core.user_names import require_name
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.user_records import UserRecord, UserRecords
from gc_assets.state.journal import State
from gc_assets.state.schemas import LIVE_FILES, ORPHAN_FILES
from gc_assets.state.summaries import LiveFilesSummary, OrphanFilesSummary


class SetAside(UserRecord):
    """A user's decision that purges do not wait for an unreadable table, or its withdrawal.

    Attributes:
        table: The table name, or None if the whole lake is set aside.
        identities: Values that distinguish the table from others with the same name, see
            `Unreadable.identity`.
    """

    table: str | None
    identities: tuple[str | None, ...] = ()
    decision: Literal["set_aside", "withdrawn"] = "set_aside"
    comment: str = ""

    def is_of(self, item: Unreadable) -> bool:
        """Check whether the record refers to this table, not to another with the same name."""
        return item.is_whole_lake or item.identity in self.identities

    def __str__(self) -> str:
        signature = self.signature + (f" ({self.comment})" if self.comment else "")
        if self.decision == "withdrawn":
            return f"its record was withdrawn {signature}, so purges wait for it"
        return f"set aside {signature}, so purges do not wait for it"


class _Records(RootModel[tuple[SetAside, ...]]):
    """All records of one lake, oldest first."""


_RECORDS: Final = UserRecords(_Records, "set_aside.json", "set the tables aside again")


def set_table_aside(
    config: Config, clock: Clock, table: str, by: str, comment: str = "", *, withdraw: bool = False
) -> tuple[str, SetAside]:
    """Record that purges do not wait for an unreadable table.

    Args:
        table: Name or UUID of a table that the last runs could not read, or name of a lake that
            they could not read at all. If several tables have the same name, `LAKE/TABLE` selects
            one.
        withdraw: If True, withdraw an earlier record instead.

    Returns:
        The name of the lake and the record.

    Raises:
        UsageError: If `by` is empty, the name does not match exactly one unreadable table, or there
            is no record to withdraw.
    """
    require_name(by, "setting a table aside", comment)
    state = State.of(config)
    (lake, name), identities = _find_table(config, state, table)
    record = SetAside(
        table=name,
        identities=identities,
        by=by.strip(),
        at=clock.now(),
        decision="withdrawn" if withdraw else "set_aside",
        comment=comment.strip(),
        rehearsal=clock.is_rehearsal,
    )

    def check(previous: Sequence[SetAside]) -> None:
        if withdraw and not any(item.table == name for item in previous):
            raise UsageError(f"table {table} was never set aside, so there is nothing to withdraw")

    _RECORDS.append(state, lake, record, check)
    return lake, record


def with_set_aside(context: RunContext, unreadable: Sequence[Unreadable]) -> tuple[Unreadable, ...]:
    """Mark the unreadable tables that users set aside, so that purges do not wait for them.

    The last record for a table name decides. It is valid if it refers to all unreadable tables with
    this name, and if they have been unreadable in every run since it was made. Real runs ignore
    records of rehearsals, and records that are dated in the future. If unreadable metadata may
    belong to another table (`may_be`), the valid record of that table applies to it too.
    """
    lakes = {item.lake for item in unreadable}
    last = {(lake, record.table): record for lake in lakes for record in _RECORDS.read_valid(context, lake)}
    valid: dict[tuple[str, str | None], SetAside | None] = {}
    for item in unreadable:
        key = (item.lake, _table_of(item))
        record = valid.get(key, last.get(key))
        valid[key] = record if record is not None and record.at >= item.since and record.is_of(item) else None
    return tuple(_add_record(item, valid) for item in unreadable)


def _add_record(item: Unreadable, valid: Mapping[tuple[str, str | None], SetAside | None]) -> Unreadable:
    record = valid[item.lake, _table_of(item)]
    if record is None and item.may_be is not None:
        record = valid.get((item.lake, item.may_be))
    return item if record is None or record.decision != "set_aside" else item.model_copy(update={"set_aside": str(record)})


def _table_of(item: Unreadable) -> str | None:
    return item.table_name or item.table_uuid


def _find_table(config: Config, state: State, table: str) -> tuple[tuple[str, str | None], tuple[str | None, ...]]:
    """Look up a table that the last runs could not read: its lake, its name and its identities."""
    unreadable = _last_unreadable(config, state)
    labels = {lake.name: lake.label for lake in config.lakes}
    named = {
        (item.lake, _table_of(item)): {item.table_name, item.table_uuid, f"{labels.get(item.lake, item.lake)}/{item.label}"}
        if not item.is_whole_lake
        else {item.lake, labels.get(item.lake)}
        for item in unreadable
    }
    found = [key for key, names in named.items() if table in names]
    if len(found) == 1:
        identities = {item.identity for item in unreadable if (item.lake, _table_of(item)) == found[0]}
        return found[0], tuple(sorted(identities, key=str))
    if found:
        choices = ", ".join(f"{labels.get(lake, lake)}/{name}" for lake, name in sorted(found, key=str))
        raise UsageError(f"several unreadable tables are named {table!r}: {choices}. Choose one of them.")
    known = ", ".join(sorted({item.label for item in unreadable})) or "none"
    raise UsageError(f"table {table!r} was not unreadable in the last runs. Unreadable tables: {known}")


def _last_unreadable(config: Config, state: State) -> list[Unreadable]:
    lakes = (state.latest(lake.name, LIVE_FILES.name) for lake in config.lakes)
    sweeps = (state.latest(storage.name, ORPHAN_FILES.name) for storage in config.storages)
    found = [item for table in lakes if table is not None for item in table.summary(LiveFilesSummary).unreadable]
    summaries = [table.summary(OrphanFilesSummary) for table in sweeps if table is not None]
    return [*found, *(item for swept in summaries for item in (*swept.unreadable, *swept.missing_lakes, *swept.unlisted_lakes))]
