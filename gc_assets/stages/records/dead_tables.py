"""What people said of tables that no catalog knows any more: that they are dead, and where.

A table that was dropped and made again at the same place leaves metadata of another uuid there.
That looks like a table of a catalog that nobody configured, whose live files would be taken for
garbage, so it refuses every plan (`foreign_metadata`). A person may say, once and on record, that
this uuid below this location is dead. Its files then count as what they are to the location's
claim: garbage, once they are old enough.

The word is about one uuid and one location. It ends by itself where the table was written to after
it was said: then the table lives, whoever said otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine.run_context import RunContext
from gc_assets.state.journal import State


class DeadTable(BaseModel):
    """A person's word that a table is dead below a prefix of a storage, or no longer so."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    table_uuid: str
    prefix: str
    by: str
    at: datetime
    said: Literal["dead", "withdrawn"] = "dead"
    comment: str = ""
    rehearsal: bool = False

    def __str__(self) -> str:
        comment = f": {self.comment}" if self.comment else ""
        return f"table {self.table_uuid} below {self.prefix}, {self.said} by the word of {self.by} at {self.at:%Y-%m-%d %H:%M:%S}Z{comment}"

    def ends_before(self, written_ms: int) -> bool:
        """Says whether what was written then, in milliseconds since 1970, shows that the table
        lives.
        """
        return written_ms > self.at.timestamp() * 1000


class _Records(RootModel[tuple[DeadTable, ...]]):
    """All such words about one storage, in the order in which they were said."""


def accept_dead_table(
    config: Config, clock: Clock, table_uuid: str, location: str, by: str, comment: str = "", *, withdraw: bool = False
) -> tuple[str, DeadTable]:
    """Records a person's word that a table is dead below a location, or takes it back. Returns the
    storage and the record.

    Raises `UsageError` where nobody says it, and for what is no uuid or no place within a storage.
    """
    if not by.strip():
        raise UsageError("accepting a table as dead needs a name: --by WHO")
    try:
        uuid = str(UUID(table_uuid))
    except ValueError:
        raise UsageError(f"{table_uuid!r} is no table uuid; the gate foreign_metadata names it") from None
    resolver = KeyResolver([(storage.name, storage.location) for storage in config.storages])
    place = resolver.resolve_one(location.rstrip("/") + "/")
    if place is None or not place[1].strip("/"):
        raise UsageError(f"{location!r} is no directory within a configured storage; name the location of the one table that is dead")
    storage, prefix = place
    state = State.of(config)
    said = "withdrawn" if withdraw else "dead"
    record = DeadTable(
        table_uuid=uuid, prefix=prefix, by=by.strip(), at=clock.now(), said=said, comment=comment.strip(), rehearsal=clock.is_rehearsal
    )

    def with_record(content: bytes | None) -> bytes:
        before = _parsed(state, storage, content) if content is not None else ()
        if withdraw and not any((word.table_uuid, word.prefix) == (uuid, prefix) for word in before):
            raise UsageError(f"nobody said that table {uuid} is dead below {prefix} of storage {storage}, so there is nothing to withdraw")
        return _Records((*before, record)).model_dump_json(indent=1).encode()

    state.files.change(_path(storage), with_record)
    return storage, record


def dead_tables(context: RunContext, storage_name: str) -> tuple[DeadTable, ...]:
    """Returns the words that count tonight: of each table and place the last one, where it says
    dead. What a rehearsal said, or a clock that was ahead, counts for no real night.
    """
    try:
        words = _parsed(context.state, storage_name, context.state.files.read(_path(storage_name)))
    except FileNotFoundError:
        return ()
    now, is_rehearsal = context.clock.now(), context.clock.is_rehearsal
    last = {(word.table_uuid, word.prefix): word for word in words if word.at <= now and (is_rehearsal or not word.rehearsal)}
    return tuple(word for word in last.values() if word.said == "dead")


def _parsed(state: State, storage_name: str, content: bytes) -> Sequence[DeadTable]:
    try:
        return _Records.model_validate_json(content).root
    except ValidationError as error:
        where = f"{state.files.root}/{_path(storage_name)}"
        raise StateError(
            f"{where} is damaged ({'; '.join(str(error).splitlines()[:2])}); remove it and accept the dead tables again"
        ) from error


def _path(storage_name: str) -> str:
    return f"{storage_name}/dead_tables.json"
