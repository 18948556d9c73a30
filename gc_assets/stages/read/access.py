"""Check that the state, the lakes and the storages of a run are accessible.

Each check takes only a few requests. A run makes the checks before it starts Spark, so that it
reports a wrong key or an unreachable server early, and once for all affected lakes and storages.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from gc_assets.core.causes import CANNOT_CONNECT, cause_of
from gc_assets.core.deadline import run_with_deadline
from gc_assets.core.errors import GcError, StateError
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import RemoteLake, as_remote
from gc_assets.stages.mark.deleted_repositories import is_deleted
from gc_assets.stages.sweep.listings import find_earlier_listing
from gc_assets.state.schemas import LAKE_REFS

STATE: Final = "state"
Call = Callable[[], object]
# Timeout for one check. The run itself waits longer for slow servers and retries.
_SECONDS: Final = 60.0
_CONCURRENT: Final = 8


@dataclass(frozen=True, slots=True)
class AccessError:
    """A problem that makes the state, lakes or storages inaccessible.

    Attributes:
        subjects: Descriptions of the affected state, lakes and storages, for messages.
        reason: The cause and, if known, what the user can do about it.
        stops_run: True if a run cannot publish anything without them.
    """

    subjects: tuple[str, ...]
    reason: str
    stops_run: bool

    def __str__(self) -> str:
        return f"Cannot use {', '.join(self.subjects)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _Check:
    """An access check of the state, a lake or a storage. `name` is removed from error messages."""

    subject: str
    name: str
    is_storage: bool
    is_needed: bool
    call: Callable[[], object]


def find_access_errors(context: RunContext, lakes: Collection[str], storages: Collection[str]) -> list[AccessError]:
    """Check the access to the state, lakes and storages, and group the failures by cause.

    A run cannot publish anything without its state or a catalog. If only a storage cannot be
    listed, the plans of other storages can still be made.
    """
    checks = list(_checks(context, lakes, storages))
    with ThreadPoolExecutor(_CONCURRENT) as pool:
        found = [(check, reason) for check, reason in zip(checks, pool.map(_find_reason, checks), strict=True) if reason is not None]
    failed_storages = sum(check.is_storage for check, _ in found)
    are_all_failed = 0 < failed_storages == sum(check.is_storage for check in checks)
    by_reason: dict[str, list[_Check]] = {}
    for check, reason in found:
        by_reason.setdefault(reason, []).append(check)
    return [
        AccessError(
            tuple(check.subject for check in of),
            reason,
            any(check.is_needed or (check.is_storage and are_all_failed) for check in of),
        )
        for reason, of in by_reason.items()
    ]


def _checks(context: RunContext, lakes: Collection[str], storages: Collection[str]) -> Iterator[_Check]:
    state = f"the state {context.state.files.root}"
    yield _Check(state, state, is_storage=False, is_needed=True, call=partial(_write_probe, context))
    for name in lakes:
        lake = as_remote(context.lake(name))
        if lake is not None:
            is_needed = not context.kind(name).fails_alone
            yield _Check(f"lake {name}", f"lake {name}", is_storage=False, is_needed=is_needed, call=partial(_check_lake, context, lake))
    for name in storages:
        storage = context.storage(name)
        subject, called = f"storage {storage.label} ({storage.location})", f"storage {storage.location}"
        yield _Check(subject, called, is_storage=True, is_needed=False, call=partial(_check_listing, context, name))


def _write_probe(context: RunContext) -> None:
    files, name = context.state.files, f".access-{uuid.uuid4().hex}"
    files.replace(name, b"probe")
    files.delete(name)


def _check_lake(context: RunContext, lake: RemoteLake) -> None:
    try:
        is_read = context.find(LAKE_REFS, lake.name) is not None or is_deleted(context, lake.name)
    except (StateError, OSError):
        return  # the check of the state reports the error
    if not is_read:  # recorded refs are not read again
        lake.check_access()


def _check_listing(context: RunContext, name: str) -> None:
    earlier, _ = find_earlier_listing(context, name)
    if earlier is not None:
        return  # this run sends no LIST request
    if context.storage(name).inventory is None:
        context.store(name).check_access()
    else:
        now = context.clock.now()
        context.lister(name).plan(1, now, frozenset(), now, None)  # planning reads the newest report


def _find_reason(check: _Check) -> str | None:
    try:
        run_with_deadline(_SECONDS, check.subject, check.call)
    except TimeoutError:
        return f"no answer within {_SECONDS:,.0f} s"
    except (GcError, OSError) as error:
        if (server := cause_of(error)).startswith(CANNOT_CONNECT):
            return server
        cause = error.__cause__ if isinstance(error, GcError) else error
        reason = cause.strerror if isinstance(cause, OSError) and check.is_storage else None
        # A message about the subject already begins with its name, which is not repeated.
        return (reason or str(error)).rstrip(".").removeprefix(f"{check.name}: ")
    return None
