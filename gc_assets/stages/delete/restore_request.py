"""Resolve and execute a user's request to restore a plan, a prefix, a key or an address.

Both the command line and the Dagster assets use these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from gc_assets.core import suggest
from gc_assets.core.commands import command
from gc_assets.core.errors import UsageError
from gc_assets.core.paths import is_address
from gc_assets.core.phases import DONE, RESTORE, UNDONE
from gc_assets.core.printable import ELLIPSIS
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import Totals
from gc_assets.stages.delete.expire import refuse_irreversible, undo_expiry
from gc_assets.stages.delete.restore import NOTHING_NAMED, restore
from gc_assets.stages.records.ledger import CopySelection, read_quarantine
from gc_assets.stages.records.plans import MIN_PLAN_ID, StoredPlan, find_plan, unfinished_plans
from gc_assets.stages.records.purged_files import PurgedFiles, find_purged
from gc_assets.state.journal import PublishedTable

HISTORY: Final = "history"
_RESTORED_FILES: Final = f"{RESTORE}/{DONE}"
_UNDONE_EDITS: Final = f"{HISTORY}/{UNDONE}"
_NOT_ALL: Final = "Not all files were restored; `gc-assets explain KEY` and `gc-assets show deletion_log` show the reasons."


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """The files that a user wants to restore.

    Attributes:
        history: True if the plan's history edits are undone as well.
        adopted_plan: The id of a plan that is missing from the state, but found in the ledger or in
            a write-ahead log.
    """

    storage: str
    plan: StoredPlan | None
    prefix: str | None
    key: str | None
    history: bool
    adopted_plan: str | None = None

    @property
    def plan_id(self) -> str | None:
        return self.plan.header.plan_id if self.plan is not None else self.adopted_plan


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The result of a restore.

    Attributes:
        by_outcome: Totals by `restore/<outcome>` and, if history edits were undone, by
            `history/<outcome>`.
        purged: Describes requested files that cannot be restored because they were purged.
    """

    request: RestoreRequest
    log: PublishedTable
    by_outcome: Mapping[str, Totals]
    purged: PurgedFiles | None = None

    @property
    def files(self) -> Totals:
        return self.by_outcome.get(_RESTORED_FILES, Totals())

    @property
    def is_history_undone(self) -> bool:
        """Whether every history edit was undone."""
        return {name for name in self.by_outcome if name.startswith(f"{HISTORY}/")} == {_UNDONE_EDITS}

    @property
    def missing(self) -> str | None:
        """A message about files that were not restored, or None.

        If any file under a prefix was restored, files under it that were purged are not mentioned.
        """
        failed = _NOT_ALL if self.by_outcome.keys() - {_RESTORED_FILES, _UNDONE_EDITS} else None
        is_prefix_restored = self.request.prefix is not None and self.by_outcome
        purged = str(self.purged) if self.purged is not None and not is_prefix_restored else None
        return " ".join(filter(None, (purged, failed))) or None


def resolve_request(
    context: RunContext,
    *,
    plan_id: str | None = None,
    prefix: str | None = None,
    key: str | None = None,
    storage: str | None = None,
    history: bool,
) -> RestoreRequest:
    """Turn the options of a restore command into a request.

    Args:
        plan_id: The id of a plan, or the beginning of one.
        prefix: A prefix of canonical keys.
        key: A canonical key, or an address such as a URL.
        storage: Name of the storage in lakes.yaml.
        history: If True, undo the plan's history edits as well.

    Raises:
        UsageError: If the options select nothing, more than one storage, an unknown plan, or only
            edits that cannot be undone.
    """
    if plan_id is None and prefix is None and key is None:
        raise UsageError(NOTHING_NAMED)
    if history and plan_id is None:
        raise UsageError("Cannot undo history edits: --history requires a plan. Pass the plan with --plan P.")
    storage = context.config.storage_of_user(storage).name if storage is not None else None
    plan, adopted = _find_plan(context, plan_id)
    if history and plan is not None:
        refuse_irreversible(context, plan)
    named, key = (None, None) if key is None else _resolve_key(context, key)
    of_plan = plan.header.storage if plan is not None else adopted[0] if adopted is not None else None
    storages = {name for name in (storage, named, of_plan) if name is not None}
    if len(storages) > 1:
        raise UsageError(
            f"Cannot restore: --storage, --key and --plan refer to different storages ({', '.join(sorted(storages))}). Pass "
            "options of one storage."
        )
    adopted_plan = adopted[1] if adopted is not None else None
    return RestoreRequest(_storage(context, next(iter(storages), None)), plan, prefix, key, history, adopted_plan)


def restore_files(session: Callable[[], SparkSession], context: RunContext, request: RestoreRequest) -> RestoreResult:
    """Restore the requested files. Raises the same errors as `restore`.

    Args:
        session: Starts a Spark session, which only large restores need.
        request: The files to restore.
    """
    log, by_outcome = restore(session, context, request.storage, request.plan_id, request.prefix, request.key)
    purged = find_purged(context.state, request.storage, CopySelection(request.plan_id, request.prefix, request.key))
    return RestoreResult(request, log, {f"{RESTORE}/{outcome}": total for outcome, total in by_outcome.items()}, purged)


def undo_history(context: RunContext, result: RestoreResult) -> RestoreResult | None:
    """Undo the plan's history edits. Raises the same errors as `undo_expiry`.

    If some of the plan's files could not be restored, only path deletions are undone.

    Returns:
        The result including the edits, or None if no edit was requested or undone.
    """
    plan = result.request.plan
    if not result.request.history or plan is None:
        return None
    undone = undo_expiry(context, plan, only_paths=result.missing is not None)
    if not undone and result.missing is not None:
        return None
    edits = {f"{HISTORY}/{outcome}": Totals(count) for outcome, count in undone.items()}
    return replace(result, by_outcome={**result.by_outcome, **edits})


def _find_plan(context: RunContext, plan_id: str | None) -> tuple[StoredPlan | None, tuple[str, str] | None]:
    """Find a plan in the state, or else in the ledger and the write-ahead logs.

    Returns:
        The plan, or the storage and id of a plan that is missing from the state. Both are None if
        no `plan_id` is given.

    Raises:
        UsageError: If no plan or more than one matches.
    """
    if plan_id is None:
        return None, None
    try:
        return find_plan(context.config, plan_id), None
    except UsageError:
        found = {
            (storage.name, source)
            for storage in context.config.storages
            for source in _find_sources(context, storage.name)
            if len(plan_id) >= MIN_PLAN_ID and source.startswith(plan_id)
        }
        if len(found) != 1:
            raise
        return None, found.pop()


def _find_sources(context: RunContext, storage_name: str) -> list[str]:
    """Return the ids of plans that are unfinished or have files in quarantine."""
    ledger = read_quarantine(context.state, storage_name).column("source_plan_id").to_pylist()
    return [*filter(None, ledger), *unfinished_plans(context.state, storage_name)]


def _storage(context: RunContext, given: str | None) -> str:
    names = [item.name for item in context.config.storages]
    if given is None and len(names) > 1:
        raise UsageError(
            "Cannot restore: --storage is missing, and lakes.yaml has several storages. Pass one of "
            f"{suggest.join_names(list(map(context.config.label_of, names)))}."
        )
    return context.storage(given or names[0]).name


def _resolve_key(context: RunContext, key: str) -> tuple[str | None, str]:
    """Split an address into storage and canonical key. For a plain key, the storage is None."""
    if ELLIPSIS in key:
        raise UsageError(f"--key {key} is shortened. `{command('explain', key)}` prints the whole key.")
    if not is_address(key):
        return None, key
    resolved = context.resolver().resolve_one(key)
    if resolved is None:
        raise UsageError(
            f"Cannot restore {key}: the address is in no configured storage. Check the address, or add it to `aliases` of its "
            "storage in lakes.yaml."
        )
    return resolved
