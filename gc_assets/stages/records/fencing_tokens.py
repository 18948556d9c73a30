"""Record fencing tokens in the state, and notice if the state is older than the storage.

A fencing token is a number that increases with each lease on a storage. Its counter is stored in
the storage itself. If the `.gc-assets` directory is lost or the storage moves to a new location,
the counter starts at zero again. Because the ledger is ordered by tokens, the state stores the
highest token as well, before the lease is taken.

If the storage's counter is ahead of the state nevertheless, there were leases that the state does
not contain. Either a backup has replaced the state, or another state is used for the storage. Files
that were restored under these leases are still in quarantine according to the state. Without a
record of the restores, they could be purged immediately, so the quarantine time of all files is
restarted.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import ValidationError

from gc_assets.core.clock import MAX_SKEW, Clock
from gc_assets.core.deferred_models import StrictModel
from gc_assets.core.errors import StateError, summarize
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.quarantine_clock import latest_time
from gc_assets.state.journal import State
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.stores.protocol import Store


class _Highest(StrictModel):
    """The highest fencing token that a storage has ever had."""

    token: int


class UnknownLeases(StrictModel):
    """Leases of a storage that the state does not contain.

    Attributes:
        known: The highest token in the state.
        found: The highest token in the storage.
        at: When they were found.
        simulated_at: The same time by the clock of a rehearsal. None if a real run found them.
    """

    known: int
    found: int
    at: datetime
    simulated_at: datetime | None = None


def reserve_token(state: State, storage_name: str) -> int:
    """Record the next fencing token, which no other lease has reserved, and return it."""
    return _raise_token(state, storage_name, 0, step=1)


def record_token(state: State, storage_name: str, token: int) -> None:
    """Record the fencing token of a lease, unless a higher one is already recorded."""
    _raise_token(state, storage_name, token, step=0)


def find_unknown_leases(context: RunContext, storage_name: str, store: Store) -> UnknownLeases | None:
    """Find leases counted in the storage but missing from the state.

    Returns:
        The leases, or None if the state contains all. A state of release 0.3 or earlier contains no
        token to compare the counter with.

    Raises:
        StoreError: If the counter cannot be read.
        StateError: If the token in the state is damaged.
    """
    return _compare_tokens(context, storage_name, *_read_tokens(context.state, storage_name, store))


def note_unknown_leases(context: RunContext, storage_name: str, store: Store) -> None:
    """Record leases that the state does not contain. Raises the errors of `find_unknown_leases`."""
    state = context.state
    found, known = _read_tokens(state, storage_name, store)
    if (unknown := _compare_tokens(context, storage_name, found, known)) is not None:
        state.files.replace(_unknown_path(storage_name), unknown.model_dump_json(exclude_none=True).encode())
    if found > (known or 0):
        record_token(state, storage_name, found)


def _read_tokens(state: State, storage_name: str, store: Store) -> tuple[int, int | None]:
    """Read the highest token in the storage, and that in the state (None if it has no token)."""
    found = store.last_token()
    return found, _highest_token(state, storage_name)  # read last: other processes record a token before they take the lease


def _compare_tokens(context: RunContext, storage_name: str, found: int, known: int | None) -> UnknownLeases | None:
    if found <= (known or 0) or (known is None and context.state.history(storage_name, DELETION_LOG.name)):
        return None
    now, is_rehearsal = latest_time(context, storage_name), context.clock.is_rehearsal
    at = Clock().now() if is_rehearsal else now
    return UnknownLeases(known=known or 0, found=found, at=at, simulated_at=now if is_rehearsal else None)


def quarantine_renewed_at(context: RunContext, storage_name: str) -> datetime | None:
    """Return when the quarantine time of all files was restarted, or None if it never was."""
    unknown = _read_unknown(context.state, storage_name)
    return None if unknown is None else _since(context, unknown)


def _since(context: RunContext, unknown: UnknownLeases) -> datetime:
    return unknown.simulated_at if context.clock.is_rehearsal and unknown.simulated_at is not None else unknown.at


def describe_unknown_leases(context: RunContext, storage_name: str, found: UnknownLeases | None = None) -> str | None:
    """Describe leases that the state does not contain, while purges wait because of them.

    Args:
        found: Leases that are not recorded yet. None to read the last record.
    """
    unknown = found or _read_unknown(context.state, storage_name)
    if unknown is None:
        return None
    since = _since(context, unknown)
    storage = context.storage(storage_name)
    now, wait = context.clock.now(), timedelta(days=storage.quarantine_days)
    end = since + wait
    if end <= now:
        return None
    path = f"{context.state.files.root}/{_unknown_path(storage_name)}"
    wrong_clock = f" A clock that was ahead set this time. To end the wait, remove {path}." if end > now + wait + MAX_SKEW else ""
    return (
        f"The state lacks {count_of(unknown.found - unknown.known, 'lease')} of storage {storage.label}, and the restores and purges "
        "under them. A backup has replaced the state, or another state is used for the storage. "
        f"Files in quarantine are not purged before {end:%Y-%m-%d %H:%M}Z. Until then, restore the files that you need again, and run "
        f"`gc-assets doctor`. Use one state per storage.{wrong_clock}"
    )


def _highest_token(state: State, storage_name: str) -> int | None:
    try:
        return _parse_token(state, storage_name, state.files.read(_token_path(storage_name)))
    except FileNotFoundError:
        return None


def _raise_token(state: State, storage_name: str, least: int, *, step: int) -> int:
    """Raise the highest token by `step`, or to `least` if that is higher, and return it."""

    def raise_highest(content: bytes | None) -> bytes:
        previous = _parse_token(state, storage_name, content) if content is not None else 0
        return _Highest(token=max(previous + step, least)).model_dump_json().encode()

    return _parse_token(state, storage_name, state.files.change(_token_path(storage_name), raise_highest).content)


def _token_path(storage_name: str) -> str:
    return f"{storage_name}/apply/_token.json"


def _unknown_path(storage_name: str) -> str:
    return f"{storage_name}/apply/_unknown_leases.json"


def _parse_token(state: State, storage_name: str, content: bytes | None) -> int:
    try:
        return _Highest.model_validate_json(content or b"").token
    except ValidationError as error:
        raise StateError(
            f"{state.files.root}/{_token_path(storage_name)} is damaged ({summarize(error)}). Write the largest "
            '`token` of the storage\'s `deletion_log` into it, as {"token": N}'
        ) from error


def _read_unknown(state: State, storage_name: str) -> UnknownLeases | None:
    path = _unknown_path(storage_name)
    try:
        return UnknownLeases.model_validate_json(state.files.read(path))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise StateError(
            f"{state.files.root}/{path} is damaged ({summarize(error)}). If no file was restored or purged in the "
            "last `quarantine_days`, remove it."
        ) from error
