"""Record user decisions that the files under a prefix are garbage.

Files under a claim are foreign, and never planned, if they may not belong to the lake (see
`core/foreign.py`). A user who knows that such files are garbage can accept their prefix. This
applies only to files that exist at that time. Files written later are checked as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from pydantic import RootModel

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import UsageError
from gc_assets.core.foreign import AcceptedPrefix
from gc_assets.core.user_names import require_name
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.dead_tables import dead_tables
from gc_assets.stages.records.user_records import UserRecord, UserRecords, resolve_directory
from gc_assets.state.journal import State


class PrefixRecord(UserRecord):
    """A user's decision that the files under a prefix are garbage, or the withdrawal of one."""

    prefix: str
    decision: Literal["accepted", "withdrawn"] = "accepted"
    comment: str = ""

    def __str__(self) -> str:
        comment = f": {self.comment}" if self.comment else ""
        return f"files under {self.prefix} that no lake needs, {self.decision} {self.signature}{comment}"


class _Records(RootModel[tuple[PrefixRecord, ...]]):
    """All records of one storage, oldest first."""


_RECORDS: Final = UserRecords(_Records, "accepted_prefixes.json", "accept the prefixes again")


def accept_prefix(
    config: Config, clock: Clock, location: str, by: str, comment: str = "", *, withdraw: bool = False
) -> tuple[str, PrefixRecord]:
    """Record that files under a location are garbage if no lake needs them.

    Args:
        withdraw: If True, withdraw an earlier record instead.

    Returns:
        The name of the storage and the record.

    Raises:
        UsageError: If `by` is empty, the location is not inside a storage, or there is no record to
            withdraw.
    """
    require_name(by, "accepting a prefix", comment)
    storage, prefix = resolve_directory(config, location, "copy the location from the message of the run")
    decision = "withdrawn" if withdraw else "accepted"
    record = PrefixRecord(
        prefix=prefix, by=by.strip(), at=clock.now(), decision=decision, comment=comment.strip(), rehearsal=clock.is_rehearsal
    )

    def check(previous: Sequence[PrefixRecord]) -> None:
        if withdraw and not any(item.prefix == prefix for item in previous):
            raise UsageError(f"{prefix} of storage {storage} was never accepted, so there is nothing to withdraw")

    _RECORDS.append(State.of(config), storage, record, check)
    return storage, record


def accepted_prefixes(context: RunContext, storage_name: str) -> tuple[AcceptedPrefix, ...]:
    """Return the prefixes that are accepted at the time of the run.

    If a table or repository was accepted as dead, its location is accepted too. This only applies
    to files that it may have written, outside the locations of listed tables. Real runs ignore
    records of rehearsals and records from the future.
    """
    last = {item.prefix: item for item in _RECORDS.read_valid(context, storage_name)}
    dead = [AcceptedPrefix(item.prefix, item.at, of_table=True) for item in dead_tables(context, storage_name)]
    return (*(AcceptedPrefix(item.prefix, item.at) for item in last.values() if item.decision == "accepted"), *dead)
