"""Read the refs of a lake whose repository may have been deleted on its server.

A deleted repository is unreadable until a user forgets its lake (`gc-assets forget`). From then on,
it has no refs and no claims, and its files are treated like the files of a dropped table
(`core/dropped_tables.py`). If no run has ever read the repository, the lake's `location` is taken
as its namespace.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from gc_assets.core.commands import command
from gc_assets.core.dropped_tables import REPOSITORY, RememberedTable
from gc_assets.core.errors import ClockSkewed, GcError, LakeUnreadable, RepositoryMissing
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import FrozenRefs, Lake, RepositoryIdentity, RepositoryLake, as_repository
from gc_assets.stages.mark.last_known import list_freezes
from gc_assets.stages.records.accepted_runs import find_forgotten
from gc_assets.state.schemas import LAKE_REFS
from gc_assets.state.summaries import LakeRefsSummary, RepositorySummary


def freeze_lake(context: RunContext, lake: Lake, as_of: datetime) -> FrozenRefs:
    """Read the refs of a lake, or record that its repository was deleted on purpose.

    A repository counts as deleted if its server confirms the deletion, and a user ran `gc-assets
    forget`.

    Raises:
        LakeUnreadable: If the lake cannot be read. If it was deleted, the message contains the
            command to forget it, or explains why it does not count as deleted.
    """
    try:
        with name_unexpected_errors(lake, "current state"):
            return lake.freeze(as_of)
    except ClockSkewed:
        raise
    except LakeUnreadable as error:
        repository, known = as_repository(lake), find_known_repository(context, lake.name)
        if known is not None and known.never_read and known.namespace not in context.config.lake(lake.name).own_locations():
            known = None  # `location` was corrected
        if repository is not None and known is None:
            known = _build_unknown(context, lake.name)
        if repository is None or known is None:
            raise
        if (reason := _find(repository, known)) is not None:
            if isinstance(error, RepositoryMissing):
                raise LakeUnreadable(f"{error}. It does not count as deleted: {reason}") from error
            raise
        return _freeze_deleted(context, repository, known, error)


@contextmanager
def name_unexpected_errors(lake: Lake, what: str) -> Generator[None]:
    """Add the name of a lake to unexpected errors, for example from a client library.

    Args:
        what: The part of the lake that is read.

    Raises:
        LakeUnreadable: If an unexpected error is raised.
    """
    try:
        yield
    except (GcError, ImportError):
        raise
    except Exception as error:
        raise LakeUnreadable(f"lake {lake.name}: its {what} cannot be read: {type(error).__name__}: {error}") from error


def _freeze_deleted(context: RunContext, lake: RepositoryLake, known: RepositorySummary, error: LakeUnreadable) -> FrozenRefs:
    record, label = find_forgotten(context, lake.name, known.read_at), context.config.label_of(lake.name)
    if record is None:
        condition = "retention.dropped"
        missing = f"its server no longer has repository {known.name}, which a run read at {known.read_at:%Y-%m-%d %H:%M} UTC"
        if known.never_read:
            missing = f"its server does not have this repository, and no run has read it. `location` is {known.namespace}"
            condition = command("accept", label, by="WHO")
        raise LakeUnreadable(
            f"lake {label}: {missing}. "
            f"If it was deleted on purpose, run `{command('forget', label, by='WHO')}`, and its files are collected after "
            f"`{condition}`. Otherwise correct `endpoint` and `repository`, or restore the server"
        ) from error
    if known.never_read and not known.deleted:
        known = known.model_copy(update={"read_at": record.at})
    note = (
        f"lake {label}: repository {known.name} was deleted on its server, and {record.by} forgot the lake at "
        f"{record.at:%Y-%m-%d %H:%M} UTC. To list its files, run `gc-assets show dropped_tables`"
    )
    refs = FrozenRefs(lake.name, lake.kind, (), (), (), (), notes=(note,), repository=identify(known))
    return replace(refs, read_at=known.read_at, is_deleted=True)


def with_known_repository(context: RunContext, lake: Lake, refs: FrozenRefs) -> FrozenRefs:
    """Add the repository read by an earlier run to the refs of an unreadable lake."""
    known = find_known_repository(context, lake.name) if as_repository(lake) is not None else None
    return refs if known is None else replace(refs, repository=identify(known), read_at=known.read_at)


def summarize_repository(refs: FrozenRefs, frozen_at: datetime) -> RepositorySummary | None:
    """Return the identity of a lake's repository, and when a run last read it."""
    found = refs.repository
    if found is None:
        return None
    return RepositorySummary(
        name=found.name,
        namespace=found.namespace,
        created=found.created,
        server_id=found.server_id,
        read_at=refs.read_at or frozen_at,
        deleted=refs.is_deleted,
        never_read=found.never_read,
    )


def find_read_repository(summary: LakeRefsSummary) -> RepositorySummary | None:
    """Return the repository that a run read, or None if it was deleted or unreadable."""
    found = summary.repository
    return found if found is not None and not found.never_read and found.read_at == summary.frozen_at else None


def find_known_repository(context: RunContext, lake_name: str) -> RepositorySummary | None:
    """Return a lake's repository from the latest record of refs that contains one, or None."""
    for run in list_freezes(context, lake_name, context.clock.now()):
        summary = context.state.open(run).summary(LakeRefsSummary)
        if summary.repository is not None:
            return summary.repository
    return None


def _build_unknown(context: RunContext, lake_name: str) -> RepositorySummary | None:
    """Describe a repository that was never read, or return None if a run may have read it.

    Its namespace is the configured location, and `read_at` is the time of the first run that did
    not find it. Records that users made before that run refer to another lake.
    """
    locations = context.config.lake(lake_name).own_locations()
    if len(locations) != 1 or context.resolver().locate_one(locations[0]) is None:
        return None
    missed_at = context.clock.now()
    for run in context.state.history(lake_name, LAKE_REFS.name):
        summary = context.state.open(run).summary(LakeRefsSummary)
        was_never_read = summary.repository is not None and summary.repository.never_read
        if not was_never_read and not any(item.table_name is None for item in summary.unread):
            return None  # a release that did not record the repository may have read it
        if context.clock.is_rehearsal or not summary.rehearsal:
            missed_at = min(missed_at, summary.frozen_at)
    name = context.config.label_of(lake_name)
    return RepositorySummary(name=name, namespace=locations[0], created=0, read_at=missed_at, never_read=True)


def is_never_read(table: RememberedTable) -> bool:
    """Check whether a remembered repository was deleted before any run had read it."""
    if table.noun != REPOSITORY or table.table_name is None or not (table.metadata_location or "").endswith("/"):
        return False  # a configured location ends in `/`
    return RepositoryIdentity(table.table_name, table.metadata_location or "", 0).uuid == table.table_uuid


def is_deleted(context: RunContext, lake_name: str) -> bool:
    """Check whether a lake's repository was deleted according to the latest record of its refs."""
    known = find_known_repository(context, lake_name) if as_repository(context.lake(lake_name)) is not None else None
    return known is not None and known.deleted


def _find(lake: RepositoryLake, known: RepositorySummary) -> str | None:
    # A recreated repository counts as unreadable, because its refs could not be read.
    return lake.find_repository(identify(known).uuid, known.namespace, known.server_id, is_configured=known.never_read)


def identify(known: RepositorySummary) -> RepositoryIdentity:
    """Return the identity of a published repository."""
    return RepositoryIdentity(known.name, known.namespace, known.created, known.server_id, known.never_read)
