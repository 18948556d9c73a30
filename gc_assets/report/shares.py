"""Compute the storage breakdown from the summary of `orphan_files`."""

from __future__ import annotations

from collections.abc import Mapping

from gc_assets.core.plan import Amount
from gc_assets.report.storage_breakdown import Step
from gc_assets.state.summaries import OrphanFilesSummary

Amounts = Mapping[str, Amount]


def breakdown_steps(orphans: OrphanFilesSummary) -> list[Step]:
    """Split the contents of a storage into categories, from live files to garbage.

    Some categories are usually empty, so they are only included if they have files: dropped tables,
    foreign files and protected files. The same applies to two categories that only occur in runs
    without a listing: files that wait for a listing, and files removed since the last listing.
    """
    shares: Amounts = orphans.storage_breakdown
    held = Amount.total(amount for name, amount in orphans.by_reason.items() if name.startswith("expired/"))
    garbage = Amount.total(amount for name, amount in orphans.by_reason.items() if not name.startswith(("expired/", "foreign/")))
    kept = {
        "dropped tables": shares.get("dropped", Amount()),
        "foreign": orphans.foreign_amount,
        "protected": shares.get("protected", Amount()),
        "waiting for a listing": shares.get("unnamed", Amount()),
        "removed since the listing": shares.get("changed_since", Amount()),
    }
    total, live, unowned, young = Amount.total(shares.values()), *(shares.get(name, Amount()) for name in ("live", "unowned", "young"))
    return [
        Step("stored", total.bytes, total.files, "total"),
        Step("live", live.bytes, live.files, "kept"),
        Step("unowned", unowned.bytes, unowned.files, "kept"),
        *(Step(label, amount.bytes, amount.files, "kept") for label, amount in kept.items() if amount.files),
        Step("within the grace period", young.bytes, young.files, "kept"),
        Step("expired history", held.bytes, held.files, "held"),
        Step("garbage", garbage.bytes, garbage.files, "garbage"),
    ]
