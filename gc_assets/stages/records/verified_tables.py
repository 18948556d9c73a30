"""Record the tables edited by an apply, as read afterwards by its verification mark.

An apply that expires snapshots writes metadata after the last run has read the table. If the table
is dropped before the next run, this record is the evidence that gc-assets has read that metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from gc_assets.core.deferred_models import DEFER_BUILD
from gc_assets.engine.run_context import RunContext

# A lake and the UUID of one of its Iceberg tables.
HistoryName = tuple[str, str | None]
_FILE: Final = "verified_tables.json"
# Older records can be dropped, because runs since then have recorded what they read.
_KEEP: Final = timedelta(days=365)


class VerifiedTable(BaseModel):
    """An edited table as the apply has read it again.

    Attributes:
        at: When the mark read the table's refs.
        metadata_location: Address of the metadata that the mark read.
        newest_ms: Time of the table's newest commit, in milliseconds since 1970. 0 if it does not
            have any commits.
        rehearsal: True if the record was made in a rehearsal.
    """

    model_config = ConfigDict(frozen=True, defer_build=DEFER_BUILD)

    table_uuid: str
    catalog: str
    at: datetime
    metadata_location: str | None = None
    newest_ms: int = 0
    rehearsal: bool = False


class _Records(RootModel[tuple[VerifiedTable, ...]]):
    """The newest record for each table of a lake."""


def record_verified_tables(context: RunContext, lake_name: str, tables: Sequence[VerifiedTable]) -> None:
    """Add records for tables of a lake, and remove earlier records of the same tables."""
    if not tables:
        return
    replaced = {(item.table_uuid, item.rehearsal) for item in tables}
    oldest = min(item.at for item in tables) - _KEEP

    def with_tables(content: bytes | None) -> bytes:
        kept = [item for item in _parse(content) if item.at > oldest and (item.table_uuid, item.rehearsal) not in replaced]
        return _Records((*kept, *tables)).model_dump_json(indent=1).encode()

    context.state.files.change(f"{lake_name}/{_FILE}", with_tables)


def read_verified_tables(context: RunContext, lake_name: str) -> Mapping[str, VerifiedTable]:
    """Read the newest record of each table of a lake.

    Records from the future are ignored. Real runs also ignore records of rehearsals.

    Returns:
        The records, keyed by table UUID.
    """
    try:
        records = _parse(context.state.files.read(f"{lake_name}/{_FILE}"))
    except FileNotFoundError:
        return {}
    now, is_rehearsal = context.clock.now(), context.clock.is_rehearsal
    valid = [item for item in records if item.at <= now and (is_rehearsal or not item.rehearsal)]
    return {item.table_uuid: item for item in sorted(valid, key=lambda item: item.at)}


def _parse(content: bytes | None) -> Sequence[VerifiedTable]:
    """Parse the records. A damaged file counts as empty.

    This is safe, because without a record, a dropped table merely waits for a user's decision.
    """
    try:
        return () if content is None else _Records.model_validate_json(content).root
    except ValidationError:
        return ()
