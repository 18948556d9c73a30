"""Evaluate the `live_set` gate, both for new plans and during an apply."""

from __future__ import annotations

from collections.abc import Sequence

from gc_assets.core import gates
from gc_assets.core.plan import GateResult
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.mark.content_roots import has_live_roots
from gc_assets.stages.sweep.claims import claims_of
from gc_assets.stages.sweep.live_filter import live_count
from gc_assets.state.journal import PublishedTable


def check_live_set(
    context: RunContext, storage: str, refs: Sequence[PublishedTable], live: Sequence[PublishedTable], planned: int
) -> GateResult:
    """Check that the live set of the storage is not empty by mistake.

    A lake without a claim in the storage cannot lose files there. A lake whose retained commits do
    not reference any files, such as a new repository, rightly has no live files.

    Args:
        context: The run context of the mark.
        refs: `lake_refs` of all lakes.
        live: `live_files` of all lakes.
        planned: Number of rows, uploads and history edits in the plan.
    """
    files = live_count(list(live), storage).files
    if files:
        return gates.live_set(files, sum(table.receipt.rows for table in refs), planned)
    claiming = {owner.lake for owner in claims_of(context, storage, [*refs, *live]).owners.values() if owner is not None}
    expected = sum(table.receipt.rows for table in refs if table.receipt.owner in claiming and has_live_roots(context, table.receipt.owner))
    return gates.live_set(files, expected, planned)
