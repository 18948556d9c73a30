"""Take a storage's lease, with a fencing token that is higher than all recorded tokens.

The lease counter is part of the storage, so it is lost with the `.gc-assets` directory and starts
at zero in a new location. The state also stores the highest token, because the ledger is ordered by
tokens.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from gc_assets.core.clock import Clock
from gc_assets.core.deferred_models import DEFER_BUILD
from gc_assets.core.errors import GateRefused, StateError
from gc_assets.engine.recorded_names import record_storage_id
from gc_assets.engine.run_context import RunContext
from gc_assets.state.journal import State
from gc_assets.stores.protocol import Lease, Store


class _Highest(BaseModel):
    """The highest fencing token of a storage."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=DEFER_BUILD)

    token: int


def take_lease(context: RunContext, storage_name: str, store: Store, plan_id: str, owner: str) -> Lease:
    """Take the lease of a storage and record its token in the state.

    A lease always uses the real clock, even in a rehearsal, because it excludes processes that run
    now.

    Raises:
        GateRefused: If another process holds the lease. The message contains the holder.
    """
    state, path = context.state, _path(storage_name)
    lease = store.acquire(plan_id, owner, Clock(), after=highest_token(state, storage_name))

    def with_token(content: bytes | None) -> bytes:
        previous = _token(state, path, content) if content is not None else 0
        return _Highest(token=max(previous, lease.token)).model_dump_json().encode()

    try:
        state.files.change(path, with_token)
        if context.config.has_recorded_names:
            record_storage_id(context.config, state, storage_name, context.clock)
    except BaseException:
        lease.release()
        raise
    return lease


def refuse_holder(context: RunContext, storage_name: str) -> None:
    """Raise `GateRefused` if another process holds the storage's lease. Does not take the lease."""
    store = context.store(storage_name)
    holder = store.holder()
    if holder is not None and holder.is_live(store.now()):
        raise GateRefused(
            f"storage {context.config.label_of(storage_name)} is being changed by {holder}. Wait for it to finish, or until then: the "
            "next apply takes over the lease of a process that has ended, and continues its plan."
        )


def highest_token(state: State, storage_name: str) -> int:
    """Return the highest recorded token of the storage, or 0 if it never had a lease."""
    path = _path(storage_name)
    try:
        return _token(state, path, state.files.read(path))
    except FileNotFoundError:
        return 0


def refuse_rehearsal(context: RunContext, storage_name: str) -> None:
    """Raise `GateRefused` in a rehearsal, unless the storage allows rehearsals to change it."""
    if context.clock.is_rehearsal and context.storage(storage_name).rehearsals != "allowed":
        raise GateRefused(
            f"the clock is that of a rehearsal (GC_ASSETS_UNSAFE_NOW={context.clock.now().isoformat()}), so ages are not real and storage "
            f"{storage_name} is not changed. Unset the variable; for a storage whose files may be lost, write `rehearsals: allowed`."
        )


def _path(storage_name: str) -> str:
    return f"{storage_name}/apply/_token.json"


def _token(state: State, path: str, content: bytes) -> int:
    try:
        return _Highest.model_validate_json(content).token
    except ValidationError as error:
        raise StateError(
            f"{state.files.root}/{path} is damaged ({'; '.join(str(error).splitlines()[:2])}). Write the largest `token` of the storage's "
            '`deletion_log` into it, as {"token": N}'
        ) from error
