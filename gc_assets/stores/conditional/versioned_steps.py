"""Refuse deletes that would be permanent, although the quarantine mode relies on versions."""

from __future__ import annotations

from collections.abc import Sequence

from gc_assets.buckets.protocol import ConditionalBucket
from gc_assets.core.phases import DENIED
from gc_assets.stores.conditional.batches import RowDeletion, Step, to_failure
from gc_assets.stores.protocol import PlannedAction, Result


def refuse_without_version(planned: PlannedAction) -> Result:
    text = f"{planned.key!r} was planned without a version, because the bucket had no versioning; create a new plan"
    return Result(DENIED, text)


def refuse_if_unversioned(bucket: ConditionalBucket, steps: Sequence[Step]) -> Sequence[Step]:
    """Deny the prepared deletes of a quarantine if the bucket no longer keeps versions."""
    if not any(isinstance(step, RowDeletion) and step.planned.action == "quarantine" for step in steps):
        return steps
    try:
        if bucket.versioning("change").is_on:
            return steps
    except OSError as error:
        return [to_failure(step.planned, error) if isinstance(step, RowDeletion) else step for step in steps]
    found = f"bucket {bucket.name} no longer keeps versions, so a delete could be permanent"
    way_out = "enable versioning, or use `quarantine: trash` and create a new plan"
    return [
        Result(DENIED, f"{step.planned.key!r}: {found}; {way_out}", replan=True)
        if isinstance(step, RowDeletion) and step.planned.action == "quarantine"
        else step
        for step in steps
    ]
