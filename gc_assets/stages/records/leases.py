"""Takes the lease of a storage for what changes it, by the real clock, under a token that no record
of the storage has yet.

A storage counts its leases itself. Its counter is lost with its `.gc-assets`, and another place of
the same name begins anew. The ledger is in the order of the tokens, so the state remembers the
highest one too.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StateError
from gc_assets.engine.run_context import RunContext
from gc_assets.state.journal import State
from gc_assets.stores.protocol import Lease, Store


class _Highest(BaseModel):
    """The highest fencing token under which anything was done in a storage."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    token: int


def take_lease(context: RunContext, storage_name: str, store: Store, plan_id: str, owner: str) -> Lease:
    """Takes the lease of a storage, which is `store`, and notes its token in the state.

    A lease says who changes a storage now, so its times are those of the real clock, in a rehearsal
    too. Raises `GateRefused` naming the holder while another lease is live.
    """
    state, path = context.state, _path(storage_name)
    lease = store.acquire(plan_id, owner, Clock(), after=highest_token(state, storage_name))

    def noted(content: bytes | None) -> bytes:
        before = _token(state, path, content) if content is not None else 0
        return _Highest(token=max(before, lease.token)).model_dump_json().encode()

    try:
        state.files.change(path, noted)
    except BaseException:
        lease.release()
        raise
    return lease


def highest_token(state: State, storage_name: str) -> int:
    """Returns the token of the storage's newest lease, 0 where it never had one."""
    path = _path(storage_name)
    try:
        return _token(state, path, state.files.read(path))
    except FileNotFoundError:
        return 0


def refuse_rehearsal(context: RunContext, storage_name: str) -> None:
    """Raises `GateRefused` for a rehearsal, in a storage that does not allow them to change it."""
    if context.clock.is_rehearsal and context.storage(storage_name).rehearsals != "allowed":
        raise GateRefused(
            f"the clock is a rehearsal's (GC_ASSETS_UNSAFE_NOW={context.clock.now().isoformat()}), by which no age is true, so nothing is "
            f"changed in storage {storage_name}. Unset the variable; for a storage whose files may be lost, write `rehearsals: allowed`."
        )


def _path(storage_name: str) -> str:
    return f"{storage_name}/apply/_token.json"


def _token(state: State, path: str, content: bytes) -> int:
    try:
        return _Highest.model_validate_json(content).token
    except ValidationError as error:
        raise StateError(
            f"{state.files.root}/{path} is damaged ({'; '.join(str(error).splitlines()[:2])}); write the largest `token` of the storage's "
            '`deletion_log` into it, as {"token": N}'
        ) from error
