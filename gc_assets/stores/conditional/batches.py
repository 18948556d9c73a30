"""Execute batches of plan rows (one action on one object) with few delete requests.

First, each row is prepared: its object is compared with the plan. Then the deletes of all rows are
sent together. Finally, the effect on each object is verified. If a response is lost or a condition
fails, the affected rows start again with their preparation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from gc_assets.buckets.protocol import Change, ConditionalBucket, Deletion
from gc_assets.buckets.requests import map_concurrently, pause_before_retry
from gc_assets.core.errors import StoreError, is_permanent, reason_of
from gc_assets.core.phases import DENIED, DONE, FAILED
from gc_assets.stores.protocol import RESERVED_PREFIX, PlannedAction, Result

# How often a delete is attempted. Each attempt begins with a comparison.
ATTEMPTS: Final = 8
# After these verdicts, a row is prepared again.
_REPEATED: Final = frozenset({"unknown", "changed", "absent"})
_Step = TypeVar("_Step")
_Settle = Callable[[PlannedAction, Change], Result]


@dataclass(frozen=True, slots=True)
class RowDeletion:
    """Objects and versions that have to be deleted for one row of a plan.

    One request can contain the deletes of several rows.

    A purge lists the planned object first. Older versions can follow, which are deleted if
    possible.
    """

    planned: PlannedAction
    objects: tuple[Deletion, ...]


Step = Result | RowDeletion


def delete_prepared(
    bucket: ConditionalBucket,
    batch: Sequence[PlannedAction],
    resumed: Collection[PlannedAction],
    prepare: Callable[[PlannedAction, bool], Step],
    settle: _Settle,
    refuse: Callable[[Sequence[Step]], Sequence[Step]] = lambda steps: steps,
) -> list[Result]:
    """Execute a batch of rows of a plan.

    Args:
        bucket: The storage.
        batch: The rows.
        resumed: Rows that an earlier attempt may have executed.
        prepare: Called with each row, and whether an earlier attempt may have acted on it. Returns
            the objects to delete, or the result if there is nothing to delete.
        settle: Called after the deletes, with the row and its first delete. Verifies the effect and
            returns the result.
        refuse: Called with all prepared steps immediately before the deletes are sent. Can replace
            steps with results, so that their objects are not deleted.

    Returns:
        One result for each row, in the order of `batch`.
    """
    steps, changes = dict[int, Step](), dict[int, list[Change]]()
    attempted, pending = set(resumed), list(range(len(batch)))

    def prepare_row(number: int) -> Step:
        planned = batch[number]
        return run_guarded(planned, lambda: prepare(planned, planned in attempted))

    for attempt in range(ATTEMPTS):
        steps |= zip(pending, refuse(map_concurrently(pending, prepare_row)), strict=True)
        rows = {number: step for number in pending if isinstance(step := steps[number], RowDeletion)}
        found = iter(bucket.delete([item for step in rows.values() for item in step.objects]))
        changes |= {number: [next(found) for _ in step.objects] for number, step in rows.items()}
        pending = [
            number for number, step in rows.items() if any(item.verdict in _REPEATED for item in _required_changes(step, changes[number]))
        ]
        if not pending:
            break
        attempted |= {batch[number] for number in pending}
        if attempt + 1 < ATTEMPTS:
            pause_before_retry(attempt)

    def settle_row(number: int) -> Result:
        step = steps[number]
        return step if isinstance(step, Result) else _settle_row(step, changes[number], settle)

    return map_concurrently(range(len(batch)), settle_row)


def _required_changes(step: RowDeletion, changes: Sequence[Change]) -> Sequence[Change]:
    """Select the results of the deletes that must succeed for the row to count as done."""
    return changes[:1] if step.planned.action == "purge" else changes


def _settle_row(step: RowDeletion, changes: Sequence[Change], settle: _Settle) -> Result:
    needed = _required_changes(step, changes)
    refusal = next((change for change in needed if not change.is_done), None)
    if refusal is not None:
        return to_refusal(step.planned, refusal)
    result = run_guarded(step.planned, lambda: settle(step.planned, changes[0]))
    has_more = result.verdict == DONE and len(changes) > len(needed)
    return replace(result, error=_describe_older_versions(step, changes)) if has_more else result


def _describe_older_versions(step: RowDeletion, changes: Sequence[Change]) -> str:
    """Describe what happened to versions of an object that are older than the purged one."""
    rows = list(zip((item.version_id for item in step.objects[1:]), changes[1:], strict=True))
    gone = [f"version {version_id}" for version_id, deleted in rows if deleted.is_done]
    kept = [f"version {version_id} ({deleted.reason})" for version_id, deleted in rows if not deleted.is_done]
    deleted_text = [f"older versions deleted with it: {', '.join(gone)}"] if gone else []
    kept_text = [f"older versions kept under a delete marker: {', '.join(kept)}"] if kept else []
    return "; ".join(deleted_text + kept_text)


def run_guarded(planned: PlannedAction, act: Callable[[], _Step]) -> _Step | Result:
    """Run an action on one object, and convert errors to results.

    The result is `failed` if a retry may help, otherwise `denied`. Rows without an etag and keys
    under the reserved prefix are denied without running the action.
    """
    if planned.etag is None:
        return Result(DENIED, f"{planned.key!r}: the row has no etag, which a bucket requires")
    if f"{planned.key}/".startswith(RESERVED_PREFIX):
        return Result(DENIED, f"{planned.key!r} is under the reserved prefix {RESERVED_PREFIX!r}")
    try:
        return act()
    except (OSError, StoreError) as error:
        return to_failure(planned, error)


def to_failure(planned: PlannedAction, error: OSError | StoreError) -> Result:
    """Convert the error of a request to the result of a planned action."""
    text = f"{planned.action} {planned.key!r}: {reason_of(error)}"
    return Result(DENIED if is_permanent(error) else FAILED, text)


def to_refusal(planned: PlannedAction, change: Change) -> Result:
    """Convert a change that the server did not make to the result of a planned action."""
    return Result(DENIED if change.verdict == "denied" else FAILED, f"{planned.action} {planned.key!r}: {change.reason}")
