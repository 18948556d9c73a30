"""Read the `repo` object of a repository with spec version 2, and replace it conditionally.

A single replacement makes all changes of a plan. As in the Icechunk library, the old object is
copied to `overwritten/` first. If the process is killed before the replacement, the copy stays
there without a reference to it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gc_assets.core.errors import FormatError, LakeUnreadable, ObjectChanged, StoreError, is_permanent
from gc_assets.core.objects import EditableObjects
from gc_assets.lakes.icechunk.backup_names import BACKUP_FOLDER, backup_name
from gc_assets.lakes.icechunk.ids import ID_BYTES, spell_one
from gc_assets.lakes.icechunk.repo_edits import LogEntry, RepoEdits, apply_edits
from gc_assets.lakes.icechunk.repo_info import RepoInfo, parse_repo
from gc_assets.lakes.icechunk.repo_updates import Availability, UpdateKind
from gc_assets.lakes.icechunk.repo_writer import write_repo
from gc_assets.lakes.protocol import ExpiryAction, ExpiryOutcome, ExpiryVerdict

# An attempt takes a few requests, or some seconds if there are 100,000 snapshots. One of several
# attempts succeeds even if writers commit every second.
_FEWEST_ATTEMPTS = 12
_LEAST_SECONDS = 60
_LONGEST_PAUSE = 2.0


@dataclass(frozen=True, slots=True)
class StoredRepo:
    """Content of the object `repo`, and the etag that is needed to replace it."""

    raw: bytes
    etag: str
    info: RepoInfo


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of comparing planned actions with the current content of `repo`.

    Attributes:
        settled: Outcomes of actions that must not be executed.
        accepted: Actions that `edits` executes.
        edits: Changes to make in `repo`.
    """

    settled: Sequence[ExpiryOutcome]
    accepted: Sequence[ExpiryAction]
    edits: RepoEdits


@dataclass(frozen=True, slots=True)
class RepoFile:
    """The `repo` object of a repository. `repository` is its address without a trailing slash."""

    objects: EditableObjects
    repository: str

    @property
    def address(self) -> str:
        return f"{self.repository}/repo"

    def read(self) -> StoredRepo:
        """Read the object. Raises `FormatError` or `OSError` if that fails."""
        raw, etag = self.objects.read_with_etag(self.address)
        return StoredRepo(raw, etag, parse_repo(self.address, raw))

    def replace(self, stored: StoredRepo, edits: RepoEdits, kind: UpdateKind) -> str:
        """Replace `repo` with edited content, unless the object has changed since it was read.

        Returns:
            The name of the copy of the replaced object.

        Raises:
            FormatError: If the edits do not fit the content, or the new object would lose some part
                of the old one.
            ObjectChanged: If a writer replaced the object.
            StoreError: If the object cannot be read after the replacement.
            OSError: If the store fails.
        """
        now_us = time.time_ns() // 1000
        backup = backup_name(now_us, spell_one(secrets.token_bytes(ID_BYTES)))
        edited = apply_edits(self.address, stored.info, edits, LogEntry(kind, now_us, backup))
        content = write_repo(self.address, stored.raw, edited)
        copy = f"{self.repository}/{BACKUP_FOLDER}/{backup}"
        with suppress(FileExistsError):  # An earlier attempt created it, but its response was lost.
            self.objects.create(copy, stored.raw)
        if self.objects.read(copy) != stored.raw:
            raise FormatError(f"{copy}: the bytes read differ from the written ones; nothing was changed; check the storage")
        try:
            self.objects.replace(self.address, content, stored.etag)
        except ObjectChanged:
            # Our write may have succeeded with a lost response, and a writer may have committed
            # after it.
            if not self._has_change(backup):
                raise
        if not self._has_change(backup):
            raise ObjectChanged(
                f"{self.address} was replaced by a writer that had not read the change of gc-assets, so this change is lost"
            )
        return backup

    def _has_change(self, backup: str) -> bool:
        """Return True if the current object includes the change that made this backup copy.

        Raises:
            StoreError: If the object cannot be read.
        """
        try:
            return is_made(self.read().info, backup)
        except (FormatError, OSError) as error:
            raise StoreError(f"it may have been changed, but cannot be read: {error}; apply again") from error


def is_made(info: RepoInfo, backup: str) -> bool:
    """Return True if the content of `repo` includes the change that made this backup copy.

    Each change makes its own copy, and later changes keep the copy's name in the operations log.
    """
    return backup in info.backups


def find_lock(info: RepoInfo) -> str | None:
    """Return why a user has forbidden history changes, or None if the repository is online."""
    if info.status.availability == Availability.ONLINE:
        return None
    state = "read-only" if info.status.availability == Availability.READ_ONLY else "offline"
    reason = f" ({info.status.reason})" if info.status.reason else ""
    return f"the repository is {state}{reason}; set its status to online with icechunk first"


def edit_repo(
    actions: Sequence[ExpiryAction],
    file: RepoFile,
    decide: Callable[[StoredRepo], Decision],
    kind: Callable[[RepoEdits], UpdateKind],
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[ExpiryOutcome]:
    """Make all accepted changes in one replacement of `repo`. Yields one outcome per action.

    If a writer replaces `repo` in the meantime, the decision is repeated for the new content.

    Args:
        actions: Actions to execute.
        file: The `repo` object.
        decide: Compares the actions with the content of `repo`. May raise `LakeUnreadable` or
            `StoreError`.
        kind: Returns the kind of operation for the operations log.
        pause: Waits the given number of seconds between attempts.
    """
    error: Exception | None = None
    started, attempt = time.monotonic(), 0
    while attempt < _FEWEST_ATTEMPTS or time.monotonic() < started + _LEAST_SECONDS:
        if attempt:
            pause(min(0.01 * 2**attempt, _LONGEST_PAUSE) * (0.5 + secrets.randbelow(100) / 100))
        try:
            stored = file.read()
            decision = decide(stored)
        except (FormatError, LakeUnreadable, OSError, StoreError) as found:
            yield from (ExpiryOutcome(action, "failed", _describe(file, found)) for action in actions)
            return
        if not decision.edits:
            yield from decision.settled
            return
        try:
            file.replace(stored, decision.edits, kind(decision.edits))
        except ObjectChanged as found:
            error = found
            attempt += 1
            continue
        except (FormatError, OSError, StoreError) as found:
            yield from decision.settled
            verdict, message = _refusal(file, found)
            yield from (ExpiryOutcome(action, verdict, message) for action in decision.accepted)
            return
        yield from decision.settled
        yield from (ExpiryOutcome(action, "done") for action in decision.accepted)
        return
    message = f"{file.address} was replaced by writers during each of {attempt:,} attempts ({error}); apply again with fewer writes"
    yield from (ExpiryOutcome(action, "failed", message) for action in actions)


def _describe(file: RepoFile, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{file.address} cannot be read: {error.strerror or error}; correct this and apply again"
    return str(error)


def _refusal(file: RepoFile, error: Exception) -> tuple[ExpiryVerdict, str]:
    if isinstance(error, FormatError):
        return "denied", str(error)
    if not isinstance(error, OSError):
        return "failed", f"{file.address}: {error}"
    found = f"{file.address} cannot be changed: {error.strerror or error}"
    if is_permanent(error):
        return "denied", f"{found}; correct this and make a new plan"
    return "failed", f"{found}; correct this and apply again"
