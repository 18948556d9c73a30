"""Puts back what a person asked for, in the person's own words: a plan, a prefix, a key or an
address, and then the plan's edits of history.

The command line and the page ask in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from gc_assets.core import suggest
from gc_assets.core.errors import UsageError
from gc_assets.core.paths import is_address
from gc_assets.core.phases import DONE, RESTORE, UNDONE
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import Totals
from gc_assets.stages.delete.expire import undo_expiry
from gc_assets.stages.delete.restore import NOTHING_NAMED, restore
from gc_assets.stages.records.plans import StoredPlan, find_plan
from gc_assets.state.journal import PublishedTable

HISTORY: Final = "history"
_BACK: Final = f"{RESTORE}/{DONE}"
_NOT_ALL: Final = "Not everything came back; `gc-assets explain KEY` and `gc-assets show deletion_log` say what was found."


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What is to be put back, and in which storage. `history` asks for the old histories too."""

    storage: str
    plan: StoredPlan | None
    prefix: str | None
    key: str | None
    history: bool

    @property
    def plan_id(self) -> str | None:
        return self.plan.header.plan_id if self.plan is not None else None


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What came back. `books` has the keys `restore/<outcome>` and, where edits of history were
    undone, `history/<outcome>`.
    """

    asked: RestoreRequest
    log: PublishedTable
    books: Mapping[str, Totals]

    @property
    def files(self) -> Totals:
        return self.books.get(_BACK, Totals())

    @property
    def missing(self) -> str | None:
        """Says in a sentence that something did not come back. Null where everything did."""
        return _NOT_ALL if self.books.keys() - {_BACK, f"{HISTORY}/{UNDONE}"} else None


def resolve_request(
    context: RunContext,
    *,
    plan_id: str | None = None,
    prefix: str | None = None,
    key: str | None = None,
    storage: str | None = None,
    history: bool,
) -> RestoreRequest:
    """Returns what these words ask for. `key` may be an address.

    Raises `UsageError` where they name nothing, several storages, or a plan that there is not.
    """
    if plan_id is None and prefix is None and key is None:
        raise UsageError(NOTHING_NAMED)
    if history and plan_id is None:
        raise UsageError("--history undoes the edits of one plan: name it with --plan P")
    plan = find_plan(context.config, plan_id) if plan_id is not None else None
    named, key = (None, None) if key is None else _place(context, key)
    where = {name for name in (storage, named, plan.header.storage if plan is not None else None) if name is not None}
    if len(where) > 1:
        raise UsageError(f"--storage, --key and --plan name different storages: {', '.join(sorted(where))}")
    return RestoreRequest(_storage(context, next(iter(where), None)), plan, prefix, key, history)


def restore_files(session: Callable[[], SparkSession], context: RunContext, asked: RestoreRequest) -> RestoreResult:
    """Puts the files back. `session` opens Spark, where `restore` needs it. What `restore` raises is
    raised.
    """
    log, books = restore(session, context, asked.storage, asked.plan_id, asked.prefix, asked.key)
    return RestoreResult(asked, log, {f"{RESTORE}/{outcome}": total for outcome, total in books.items()})


def with_history(context: RunContext, back: RestoreResult) -> RestoreResult | None:
    """Undoes the plan's edits of history, or returns null where nobody asked for it, or where a
    file of the plan is still missing. What `undo_expiry` raises is raised.
    """
    plan = back.asked.plan
    if not back.asked.history or plan is None or back.missing is not None:
        return None
    undone = undo_expiry(context, plan)
    return replace(back, books={**back.books, **{f"{HISTORY}/{outcome}": Totals(count) for outcome, count in undone.items()}})


def _storage(context: RunContext, given: str | None) -> str:
    names = [item.name for item in context.config.storages]
    if given is None and len(names) > 1:
        raise UsageError(f"--storage is missing; the configuration has {suggest.join_names(names)}")
    return context.storage(given or names[0]).name


def _place(context: RunContext, key: str) -> tuple[str | None, str]:
    """Returns the storage (where an address says it) and the canonical key."""
    if not is_address(key):
        return None, key
    place = context.resolver().resolve_one(key)
    if place is None:
        raise UsageError(f"--key {key}: the address lies in no configured storage")
    return place
