"""Take leases (exclusive rights to change a storage), with fencing tokens that increase."""

from __future__ import annotations

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused
from gc_assets.engine.recorded_names import advise_other_storage, describe_other_storage, record_storage_id
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.fencing_tokens import note_unknown_leases, record_token, reserve_token
from gc_assets.stores.protocol import Lease, Store


def take_lease(context: RunContext, storage_name: str, store: Store, plan_id: str, owner: str) -> Lease:
    """Take the lease on a storage, after recording its fencing token in the state.

    Even in a rehearsal, a lease uses the real clock, because it excludes processes that run at the
    same time.

    Args:
        plan_id: Id of the plan, restore or adoption that needs the lease.
        owner: The user who runs it, for messages.

    Raises:
        GateRefused: If another process holds the lease, or if the state records another storage
            under this name.
    """
    _refuse_other_storage(context, storage_name, store)
    note_unknown_leases(context, storage_name, store)
    state = context.state
    reserved = reserve_token(state, storage_name)
    lease = store.acquire(plan_id, owner, Clock(), after=reserved - 1)
    try:
        if lease.token > reserved:
            record_token(state, storage_name, lease.token)
        if context.config.has_recorded_names:
            record_storage_id(context.config, state, storage_name, context.clock)
    except BaseException:
        lease.release()
        raise
    return lease


def _refuse_other_storage(context: RunContext, storage_name: str, store: Store) -> None:
    """Check that the storage is the one that the state records under this name.

    Quarantined files would not be found in another storage, which would end their records.

    Raises:
        GateRefused: If the storage is another one, for example because its disk is not mounted.
    """
    if not context.config.has_recorded_names:
        return
    other = describe_other_storage(context.config, context.state, storage_name, has_leases=store.last_token() > 0)
    if other is not None:
        raise GateRefused(f"{other}. Nothing was changed. {advise_other_storage(context.config, storage_name)}")


def refuse_holder(context: RunContext, storage_name: str) -> None:
    """Check that no process holds the storage's lease. The lease itself is not acquired.

    Raises:
        GateRefused: If the lease is held. The message contains the holder.
    """
    store = context.store(storage_name)
    holder = store.holder()
    if holder is not None and holder.is_live(store.now()):
        raise GateRefused(
            f"Cannot change storage {context.config.label_of(storage_name)}: it is being changed by {holder}. Wait until that "
            "process has finished. If the process was killed, wait until its lease ends: the next apply then takes over the "
            "lease and continues the plan."
        )


def refuse_rehearsal(context: RunContext, storage_name: str) -> None:
    """Check that a rehearsal only changes a storage that allows rehearsals.

    Raises:
        GateRefused: If this is a rehearsal and the storage does not allow them.
    """
    if context.clock.is_rehearsal and context.storage(storage_name).rehearsals != "allowed":
        raise GateRefused(
            f"Cannot change storage {storage_name} in a rehearsal (GC_ASSETS_UNSAFE_NOW={context.clock.now().isoformat()}), "
            "because the ages of files are not real. Unset the variable, or set `rehearsals: allowed` for a storage whose "
            "files may be lost."
        )
