"""Record user decisions that a table is dead.

If a table is dropped and another one is created at the same location, metadata with the old UUID
remains there. It looks like metadata of a catalog that is not configured, so the gate
`foreign_metadata` refuses all plans. A user can then record that this UUID is dead at this
location. Once its files are old enough, they are garbage of the lake that claims the location.

Each record applies to one UUID and one location. If the table is written to later, it is in use,
and the record becomes invalid.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar, Final, Literal
from uuid import UUID

from pydantic import RootModel

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import UsageError
from gc_assets.core.printable import show
from gc_assets.core.renamed_keys import RenamedKeys
from gc_assets.core.untrusted_input import is_uuid
from gc_assets.core.user_names import require_name
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.user_records import UserRecord, UserRecords, resolve_directory
from gc_assets.state.journal import State
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import ORPHAN_FILES
from gc_assets.state.side_tables import DROPPED_TABLES, DROPPED_TABLES_SIDE, KNOWN_VIEWS, KNOWN_VIEWS_SIDE
from gc_assets.state.summaries import OrphanFilesSummary


class DeadTable(RenamedKeys, UserRecord):
    """A user's decision that a table is dead under a prefix, or the withdrawal of one."""

    RENAMED: ClassVar = {"said": "decision"}

    table_uuid: str
    prefix: str
    decision: Literal["dead", "withdrawn"] = "dead"
    comment: str = ""

    def __str__(self) -> str:
        comment = f": {self.comment}" if self.comment else ""
        decision = "accepted as dead" if self.decision == "dead" else self.decision
        return f"table {self.table_uuid} under {self.prefix}, {decision} {self.signature}{comment}"

    def is_alive_at(self, written_ms: int) -> bool:
        """Return True if the table was written to after the decision and is therefore in use.

        Args:
            written_ms: Time of the last write, in milliseconds since 1970.
        """
        return written_ms > self.at.timestamp() * 1000


class _Records(RootModel[tuple[DeadTable, ...]]):
    """All records of one storage, oldest first."""


_RECORDS: Final = UserRecords(_Records, "dead_tables.json", "accept the dead tables again")


def accept_dead_table(
    config: Config, clock: Clock, table_uuid: str, location: str, by: str, comment: str = "", *, withdraw: bool = False
) -> tuple[str, DeadTable]:
    """Record that a table is dead at a location.

    Args:
        withdraw: If True, withdraw an earlier record instead.

    Returns:
        The name of the storage and the record.

    Raises:
        UsageError: If `by` is empty, the UUID is invalid and unknown to the last run, the location
            is not inside a storage, or there is no record to withdraw.
    """
    require_name(by, "accepting a table as dead", comment)
    uuid = read_table_id(table_uuid)
    storage, prefix = resolve_directory(config, location, "pass the location of the dead table")
    if not (withdraw or is_uuid(uuid) or _is_found(State.of(config), storage, prefix, table_uuid)):
        raise UsageError(
            f"{table_uuid!r} is not a table uuid. Copy it from the message of the gate foreign_metadata, or from "
            "`gc-assets show dropped_tables --wide`. For a dropped table, its name is sufficient and LOCATION is not required."
        )
    decision = "withdrawn" if withdraw else "dead"
    record = DeadTable(
        table_uuid=uuid,
        prefix=prefix,
        by=by.strip(),
        at=clock.now(),
        decision=decision,
        comment=comment.strip(),
        rehearsal=clock.is_rehearsal,
    )

    def check(previous: Sequence[DeadTable]) -> None:
        if withdraw and not any((item.table_uuid, item.prefix) == (uuid, prefix) for item in previous):
            raise UsageError(
                f"table {uuid} was never accepted as dead under {prefix} of storage {storage}, so there is nothing to withdraw"
            )

    _RECORDS.append(State.of(config), storage, record, check)
    return storage, record


def read_table_id(text: str) -> str:
    """Normalize a table id to the form used in the records.

    A UUID gets its canonical form. Other ids, which the specification does not allow, are converted
    to lower case.
    """
    try:
        return str(UUID(text))
    except ValueError:
        return text.lower()


def describe_unlisted(table_id: str) -> str:
    """Begin a message about a table or view that no configured catalog lists."""
    return f"{show(table_id)}, which is"


def _is_found(state: State, storage: str, prefix: str, table_id: str) -> bool:
    """Return True if the last run found a foreign or dropped table whose id is `table_id`."""
    swept = state.latest(storage, ORPHAN_FILES.name)
    if swept is None:
        return False
    named = f" {describe_unlisted(table_id)} "
    rows = read_parts(state.files, swept.paths(DROPPED_TABLES_SIDE), DROPPED_TABLES, ["table_uuid", "gone_since"]).to_pylist()
    views = read_parts(state.files, swept.paths(KNOWN_VIEWS_SIDE), KNOWN_VIEWS, ["uuid", "gone_since"]).to_pylist()
    rows += [{"table_uuid": row["uuid"], "gone_since": row["gone_since"]} for row in views]
    return any(item.startswith(prefix) and named in item for item in swept.summary(OrphanFilesSummary).foreign_metadata) or any(
        row["table_uuid"] == table_id and row["gone_since"] is not None for row in rows
    )


def dead_tables(context: RunContext, storage_name: str) -> tuple[DeadTable, ...]:
    """Return tables that are accepted as dead at the time of the run.

    If there are several records for a table and prefix, the last one decides. Real runs ignore
    records of rehearsals and records from the future.
    """
    return _select_accepted(_RECORDS.read_valid(context, storage_name))


def withdrawn_since(context: RunContext, storage_name: str, since: datetime) -> list[DeadTable]:
    """Return acceptances of dead tables that were withdrawn after a time and not renewed since."""
    last = _select_last(_RECORDS.read_valid(context, storage_name))
    return [item for item in last if item.decision == "withdrawn" and item.at >= since]


def accepted_prefixes_of(state: State, storage_name: str, table_uuid: str) -> list[str]:
    """Return the prefixes under which a table is accepted as dead, by a real run or a rehearsal."""
    return [item.prefix for item in _select_accepted(_RECORDS.read(state, storage_name)) if item.table_uuid == table_uuid]


def _select_accepted(records: Sequence[DeadTable]) -> tuple[DeadTable, ...]:
    return tuple(item for item in _select_last(records) if item.decision == "dead")


def _select_last(records: Sequence[DeadTable]) -> list[DeadTable]:
    return list({(item.table_uuid, item.prefix): item for item in records}.values())
