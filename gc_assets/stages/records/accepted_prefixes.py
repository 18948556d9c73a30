"""Record prefixes whose older files are garbage of the lake that claims them.

Files in a claim that may belong to others are foreign and never planned (`core/foreign.py`). A user
can record that they are garbage. The record is about the files that exist then: files that are
written later are judged by the rules again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.foreign import AcceptedPrefix
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.dead_tables import dead_tables
from gc_assets.state.journal import State


class PrefixRecord(BaseModel):
    """A user's statement that the files under a prefix are garbage, or its withdrawal."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    prefix: str
    by: str
    at: datetime
    decision: Literal["accepted", "withdrawn"] = "accepted"
    comment: str = ""
    rehearsal: bool = False

    def __str__(self) -> str:
        comment = f": {self.comment}" if self.comment else ""
        return f"files under {self.prefix} that no lake needs, {self.decision} by {self.by} at {self.at:%Y-%m-%d %H:%M:%S}Z{comment}"


class _Records(RootModel[tuple[PrefixRecord, ...]]):
    """All records of one storage, in the order in which they were made."""


def accept_prefix(
    config: Config, clock: Clock, location: str, by: str, comment: str = "", *, withdraw: bool = False
) -> tuple[str, PrefixRecord]:
    """Record that the files under a location are garbage unless a lake needs them, or withdraw that.

    Returns:
        The name of the storage, and the record.

    Raises:
        UsageError: If there is no name, or the location is not inside a storage.
    """
    if not by.strip():
        raise UsageError("accepting a prefix needs a name: --by WHO")
    resolver = KeyResolver([(storage.name, storage.location) for storage in config.storages])
    resolved = resolver.resolve_one(location.rstrip("/") + "/")
    if resolved is None or not resolved[1].strip("/"):
        raise UsageError(f"{location!r} is no directory inside a configured storage; copy the location from the message of the run")
    storage, prefix = resolved
    state = State.of(config)
    decision = "withdrawn" if withdraw else "accepted"
    record = PrefixRecord(
        prefix=prefix, by=by.strip(), at=clock.now(), decision=decision, comment=comment.strip(), rehearsal=clock.is_rehearsal
    )

    def with_record(content: bytes | None) -> bytes:
        previous = _parse(state, storage, content) if content is not None else ()
        if withdraw and not any(item.prefix == prefix for item in previous):
            raise UsageError(f"{prefix} of storage {storage} was never accepted, so there is nothing to withdraw")
        return _Records((*previous, record)).model_dump_json(indent=1).encode()

    state.files.change(_path(storage), with_record)
    return storage, record


def accepted_prefixes(context: RunContext, storage_name: str) -> tuple[AcceptedPrefix, ...]:
    """Return the accepted prefixes: the last record of each prefix, if it accepts it.

    The location of a table that was accepted as dead counts too. For a real run, records of
    rehearsals and records from the future do not count.
    """
    try:
        items = _parse(context.state, storage_name, context.state.files.read(_path(storage_name)))
    except FileNotFoundError:
        items = ()
    now, is_rehearsal = context.clock.now(), context.clock.is_rehearsal
    last = {item.prefix: item for item in items if item.at <= now and (is_rehearsal or not item.rehearsal)}
    dead = [AcceptedPrefix(item.prefix, item.at) for item in dead_tables(context, storage_name)]
    return (*(AcceptedPrefix(item.prefix, item.at) for item in last.values() if item.decision == "accepted"), *dead)


def _parse(state: State, storage_name: str, content: bytes) -> Sequence[PrefixRecord]:
    try:
        return _Records.model_validate_json(content).root
    except ValidationError as error:
        path = f"{state.files.root}/{_path(storage_name)}"
        raise StateError(
            f"{path} is damaged ({'; '.join(str(error).splitlines()[:2])}). Remove it and accept the prefixes again."
        ) from error


def _path(storage_name: str) -> str:
    return f"{storage_name}/accepted_prefixes.json"
