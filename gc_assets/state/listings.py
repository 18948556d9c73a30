"""Find the rows of a storage inventory, which may have been published by an earlier run."""

from __future__ import annotations

from gc_assets.core.commands import command
from gc_assets.core.errors import StateError
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.summaries import StorageInventorySummary


def open_listing(state: State, inventory: PublishedTable) -> PublishedTable:
    """Open the listing used by a published inventory, which may be the inventory itself.

    Raises:
        StateError: If it is an earlier run that is damaged or was removed from the state.
    """
    earlier = inventory.summary(StorageInventorySummary).earlier
    if earlier is None:
        return inventory
    group, asset = inventory.receipt.group, inventory.receipt.asset
    runs = [run for run in state.history(group, asset) if (run.run_date, run.run_id) == (earlier.run_date, earlier.run_id)]
    try:
        return state.open(runs[0])
    except (IndexError, StateError) as error:
        raise StateError(
            f"{inventory.path} uses the listing of {earlier.run_date} (run {earlier.run_id}), which is missing or damaged. "
            f"List the storage again: `{command('run', listing=True)}`"
        ) from error
