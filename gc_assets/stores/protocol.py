"""The protocol `Store` of all stores, and the values that stores return.

A store is a location with objects, either a directory or a bucket with a prefix. Objects have a
key, bytes, a modification time and an identity (`etag`). Some stores also have versions.

gc-assets can only decide safely what to delete if the store guarantees the properties in `AXIOMS`.
The store contract tests and the protocol model use the ids of these properties. The model shows
what breaks without each of them.

All other properties are optional and called traits. A product's name does not guarantee them, so
`Store.probe` tests each one with canary objects under the reserved prefix. If a store does not have
a trait, gc-assets uses another method:

- replace-if-match: Histories in this store cannot be edited, and the lease uses a new object for
  each token.
- delete-if-match: An object is compared immediately before it is deleted.
- versions: The quarantine mode is `trash` (objects are moved away) or `deferred` (they stay).
- rename: `trash` copies an object, verifies the copy and deletes the original.

Stores use two roles with separate credentials. Reads of `objects`, `plan_listing`, `holder` and
`now` use the reading role, whereas changes of `objects`, `quarantine`, `acquire` and `probe` use
the changing role. A store contains no secrets. It is pickled and sent to Spark executors, which
load their own credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO, TYPE_CHECKING, Final, Literal, Protocol

from gc_assets.config.models import StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.findings import Finding
from gc_assets.core.objects import EditableObjects
from gc_assets.core.phases import CHANGED, DENIED, PURGE, RESTORE, Action, Verdict
from gc_assets.state.summaries import UnfinishedUploads

if TYPE_CHECKING:
    import pyarrow as pa

    from gc_assets.stores.key_limits import KeyLimits

# Everything that the collector itself writes to a storage is under this prefix: the lease, fencing
# token, trash and canaries. Objects under it are never listed or planned.
RESERVED_PREFIX: Final = ".gc-assets/"

# The guarantees that a store must give, by id.
AXIOMS: Final[Mapping[str, str]] = {
    "complete_listing": "A listing that ends has returned every object that existed from its start to its end.",
    "visible_write": "An object is complete or does not exist. After a write has returned, every reader sees it.",
    "exclusive_create": "If several writers create one object on the condition that it is absent, exactly one succeeds.",
    "store_clock": "Modification times do not go back. They come from one clock, which `Store.now` reads too.",
    "distinct_identity": "An object that replaces another one at the same key has a different identity.",
    "conditional_change": "A changed object is left alone, even if it changes between the comparison and the request.",
    "no_overwrite": "A restore does not replace an object.",
}

LISTING_SOURCE: Final = "listing"

# A batch on a slow store fits into this time. After a crash, it is still short enough to wait for.
LEASE_DURATION: Final = timedelta(minutes=10)

QuarantineMode = Literal["trash", "versioned", "deferred"]


@dataclass(frozen=True, slots=True)
class PlannedAction:
    """A planned action, with the `deletion_plan` columns that a store needs to execute it.

    Attributes:
        key: The key of the object, relative to the storage.
        action: The action to execute.
        size_bytes: Its size.
        etag: Its identity. If another object is found at the key, it is not changed.
        version_id: Version of the object in a store with versions, or the id of an unfinished
            upload.
        source_plan_id: For purges and restores, the plan that quarantined the object.
        kind: The file kind, or None if nothing references the file.
    """

    key: str
    action: Action
    size_bytes: int
    etag: str | None
    version_id: str | None = None
    source_plan_id: str | None = None
    kind: str | None = None

    @property
    def action_key(self) -> tuple[Action, str, str | None]:
        """The identity of the action in logs: the action, the key and the version."""
        return self.action, self.key, self.version_id


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an action on one key.

    Attributes:
        verdict: The outcome. `changed` means that there is now another object at the key. After
            `failed`, a retry may help, but not after `denied`.
        error: The reason for any verdict but `done`. After a purge, it can also mention older
            versions that were deleted with the object.
        replan: Whether a later plan may contain the action again. True if gc-assets itself, not the
            store, `denied` the action, or if a `changed` action only has to wait. By default, later
            plans leave the object out after `denied`, and `changed` ends an object's deferred
            quarantine.
        is_replaced: True if the verdict is `absent` because the object in the trash has other bytes
            than the quarantined one, which is therefore lost.
    """

    verdict: Verdict
    error: str | None = None
    replan: bool = False
    is_replaced: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """An executed action with its result, which becomes a row of `deletion_log`.

    `token` is the fencing token of the lease under which the action was executed.
    """

    planned: PlannedAction
    verdict: Verdict
    error: str | None
    at: datetime
    token: int | None = None
    replan: bool = False

    @property
    def is_permanent(self) -> bool:
        """Whether the store refused the action, so that later plans leave it out."""
        return self.verdict == DENIED and not self.replan

    @property
    def ends_record(self) -> bool:
        """Whether the object leaves deferred quarantine without being removed."""
        return self.verdict == CHANGED and not self.replan and self.planned.action in {PURGE, RESTORE}


class Quarantine(Protocol):
    """Executes planned actions in batches.

    Implementations are thread-safe, and are pickled and sent to Spark executors.
    """

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Execute a batch. When the method returns, all changes are durable.

        The identity of each object is compared immediately before the object is changed. If there
        is another object at the key, it is not touched and the result is `changed`. A restore never
        replaces an existing object. If a completed action is repeated, its result is `done` again.
        If the object in the trash certainly has other bytes than the quarantined one, a restore or
        purge does not change it, and the result is `absent`.

        An error that concerns a single key becomes its result and is not raised. Keys under the
        reserved prefix are `denied`.

        Args:
            batch: The actions to execute.
            resumed: Those actions of the batch that an interrupted run may already have executed.
                If a purge finds no object, it is `done` for these, and `absent` for all others.

        Returns:
            One result for each action, in the same order.
        """
        ...


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a storage's lease, as recorded in the storage. Times are ISO 8601 in UTC."""

    owner: str
    host: str
    pid: int
    plan_id: str
    token: int
    acquired_at: str
    expires_at: str

    def is_live(self, now: datetime) -> bool:
        """Return True if the lease has not expired."""
        return now < datetime.fromisoformat(self.expires_at)

    def __str__(self) -> str:
        since, until = (str(time)[:19].replace("T", " ") + "Z" for time in (self.acquired_at, self.expires_at))
        return f"{self.owner} (host {self.host}, process {self.pid}, plan {str(self.plan_id)[:12]}) since {since} until {until}"


class Lease(Protocol):
    """The exclusive right of a plan to change a storage.

    Leases are pickled and sent to Spark executors, which check them before each batch.
    """

    @property
    def token(self) -> int:
        """The fencing token, which is higher for each new lease of the storage."""
        ...

    @property
    def duration(self) -> timedelta:
        """How long the lease lasts unless it is renewed."""
        ...

    def check(self) -> None:
        """Check that no other plan has taken over the lease.

        An expired lease is still valid until that happens. Once half of its duration is over, the
        lease is extended.

        Raises:
            LeaseLost: If the lease is lost.
        """
        ...

    def renew(self) -> None:
        """Extend the lease, which then expires after its whole duration from now.

        Raises:
            LeaseLost: If the lease is lost.
        """
        ...

    def release(self) -> None:
        """Give up the lease, unless another plan has already taken it over."""
        ...


ProblemKind = Literal["symlink", "not_utf8", "special", "time", "unreadable"]


@dataclass(frozen=True, slots=True)
class Problem:
    r"""An entry found by a listing that is not a regular object, such as a symbolic link.

    It is never deleted. Bytes of the key that are not UTF-8 are written as `\xNN`.
    """

    key: str
    kind: ProblemKind
    detail: str

    @property
    def is_incomplete(self) -> bool:
        """Whether objects may be missing from the inventory, so that no plan may be based on it."""
        return self.kind == "unreadable"


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory without subdirectories, which a later listing may skip if it is unchanged.

    Attributes:
        key: The key of the directory, which ends in `/`.
        modified_ns: When entries were last added or removed, as of before the directory was read.
            In nanoseconds since 1970.
        objects: How many objects it contains.
        inode: The directory's inode, because a copy or another mount could have the same time.
            Older releases did not record it, so directories that they recorded are never skipped.
    """

    key: str
    modified_ns: int
    objects: int
    inode: int | None = None


@dataclass(frozen=True, slots=True)
class ListingBatch:
    """Some of the objects found by a listing task.

    Attributes:
        objects: The objects, with the columns of `storage_inventory`.
        problems: The problems that were found.
        leftover: Tasks for the part that was not listed, to be run in another round of the listing.
        directories: Directories that a later listing can skip if they are unchanged. Object stores
            have none.
        split_keys: Keys at which a later listing can divide its work evenly. Not every store uses
            them.
        report_rows: How many rows of an inventory report were read, including rows that do not
            describe an object of the storage.
    """

    objects: pa.RecordBatch
    problems: tuple[Problem, ...] = ()
    leftover: tuple[ListingTask, ...] = ()
    directories: tuple[Directory, ...] = ()
    split_keys: tuple[str, ...] = ()
    report_rows: int = 0


@dataclass(frozen=True, slots=True)
class Upload:
    """An unfinished multipart upload.

    Attributes:
        key: The key of the object to be created.
        upload_id: The id of the upload.
        initiated: When it was started (UTC).
        size_bytes: The total size of its parts.
        etag: The identity, which changes with every additional part. `Store.modification_times` can
            extract the time of the last write from it.
    """

    key: str
    upload_id: str
    initiated: datetime
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class OldUploads:
    """Uploads without recent writes, oldest first.

    If there were more than the limit, `unexamined` is the number of uploads above it.
    """

    uploads: tuple[Upload, ...] = ()
    unexamined: int = 0


class UploadAborter(Protocol):
    """Aborts unfinished uploads permanently.

    Implementations are thread-safe, and are pickled and sent to Spark executors.
    """

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Abort the uploads whose ids are in `version_id`.

        Each upload is examined immediately before it is aborted. If its identity has changed, the
        upload continues and the result is `changed`.

        An upload that no longer exists was either completed or aborted. The result is `done` if
        this run or an interrupted one (see `resumed`) requested the abort and no object has been
        created at the key since, otherwise `absent`.

        An error that concerns a single upload becomes its result and is not raised. Keys under the
        reserved prefix are `denied`.

        Args:
            batch: The actions to execute.
            resumed: Those actions of the batch that an interrupted run may already have executed.

        Returns:
            One result for each action, in the same order.
        """
        ...


class ListingTask(Protocol):
    """A task that lists a part of a storage.

    The parts of different tasks do not overlap. Tasks are pickled and sent to Spark executors.
    """

    def run(self, budget: int) -> Iterator[ListingBatch]:
        """List the task's part of the storage, in batches.

        Args:
            budget: The approximate number of entries to list. The batches contain leftover tasks
                for the rest.

        Yields:
            Batches. Keys that cannot be read are a `Problem` of kind `unreadable`, not an error.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that was looked up by its key. `etag` is the object's identity, as in listings."""

    etag: str
    size_bytes: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class Report:
    """A complete inventory report that is used instead of listing the storage.

    Attributes:
        name: The address of the report's manifest.
        as_of: When the scan for the report started. Later writes may be missing from it.
        rows: The number of rows, if it is known.
    """

    name: str
    as_of: datetime
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class ListingPlan:
    """Tasks that list each object of a storage exactly once.

    `report` is the inventory report that they read, or None if they list the storage itself.
    """

    tasks: Sequence[ListingTask]
    report: Report | None = None


class LookUp(Protocol):
    """Looks up objects that are missing from the inventory of a storage.

    Implementations are pickled and sent to Spark executors.
    """

    def look_up(self, keys: Sequence[str]) -> list[int | None]:
        """Look up the sizes of objects.

        If the inventory comes from a new listing of the storage itself, no request is sent, because
        objects that were not listed do not exist.

        Returns:
            Sizes in bytes, in the order of the keys. None for objects that do not exist.

        Raises:
            StoreError: If the store cannot answer a request, or if the inventory comes from a
                report that should contain one of the objects.
        """
        ...


class Lister(Protocol):
    """Lists the objects of a storage, directly or from an inventory report.

    Implementations are pickled and sent to Spark executors.
    """

    def plan(
        self, parallelism: int, now: datetime, unchanged: frozenset[str], settled_before: datetime, split_keys: Sequence[str] | None
    ) -> ListingPlan:
        """Plan the listing (see `Store.plan_listing`).

        Raises:
            StoreError: If the storage or its report cannot be read, or if the report is unusable at
                the time `now`, for example because it is too old.
        """
        ...

    def find_unchanged_directories(self, directories: Iterable[Directory]) -> frozenset[str]:
        """Find unchanged directories (see `Store.find_unchanged_directories`)."""
        ...

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        """Check the inventory report that would be used, if the storage has reports."""
        ...


class ReportFiles(Protocol):
    """Reads the files of inventory reports at addresses of one URL scheme.

    Implementations are pickled and sent to Spark executors.

    If a file does not exist, methods raise `FileNotFoundError`. Other failures raise `OSError`.
    """

    def folders(self, location: str) -> list[str]:
        """List the folders directly under a location. The location and the names end in `/`."""
        ...

    def files(self, location: str) -> dict[str, int]:
        """List all files under a location.

        Maps their names, relative to the location, to their sizes.
        """
        ...

    def read(self, address: str) -> bytes:
        """Read a whole file into memory."""
        ...

    def copy(self, address: str, into: IO[bytes]) -> None:
        """Copy a file in blocks to an open file, without holding it in memory."""
        ...


@dataclass(frozen=True, slots=True)
class Traits:
    """The optional properties that a store has, according to a test with canary objects.

    Attributes:
        create_if_absent: A writer can create an object unless it exists. Required for a lease.
        replace_if_match: A writer can replace an object if it is unchanged.
        rename: Objects can be renamed.
        versions: The store keeps old versions of objects.
        delete_if_match: Whether the store compares etags in single deletes, in batch deletes, or
            not at all.
        create_after_delete: A writer can create an object whose key had another one before.
        broken_axioms: Keys of `AXIOMS` that are not optional, but not fulfilled either.
    """

    create_if_absent: bool
    replace_if_match: bool
    rename: bool
    versions: bool = False
    delete_if_match: Literal["none", "one", "batch"] = "none"
    create_after_delete: bool = True
    broken_axioms: frozenset[str] = frozenset()


class Store(Protocol):
    """Access to a storage, as a frozen value that is pickled and sent to Spark executors.

    Opening a store does not send any request. Only the first method call shows whether the location
    exists.
    """

    @property
    def location(self) -> str:
        """The location, exactly as in the configuration."""
        ...

    @property
    def objects(self) -> EditableObjects:
        """Access to objects at any address of the scheme, not only in this storage."""
        ...

    def check_access(self) -> None:
        """Check quickly that the location can be listed.

        Only a few objects are listed, with fewer retries than usual.

        Raises:
            StoreError: If the location does not exist or cannot be listed.
        """
        ...

    def plan_listing(
        self,
        parallelism: int,
        unchanged: frozenset[str] = frozenset(),
        settled_before: datetime | None = None,
        split_keys: Sequence[str] | None = None,
    ) -> Sequence[ListingTask]:
        """Divide the listing of the storage into tasks that together list every object once.

        Args:
            parallelism: The number of workers.
            unchanged: Directories to skip. Objects directly in them are left out, but not their
                subdirectories.
            settled_before: Directories modified since this time are not returned for reuse, because
                they might still change. If None, no directories are returned.
            split_keys: Keys from an earlier listing of any age, in any order, or None if there is
                no earlier listing. They influence how the work is divided, but not the result.

        Raises:
            StoreError: If the location does not exist or cannot be read. Returning an empty
                inventory instead would make every live file look missing.
        """
        ...

    def find_unchanged_directories(self, directories: Iterable[Directory]) -> frozenset[str]:
        """Find directories whose objects are still the same as in an earlier listing.

        Returns:
            Keys of directories, ending in `/`.
        """
        ...

    @property
    def has_aliases(self) -> bool:
        """Whether one object can have several addresses, because of links or mounts."""
        ...

    def identity(self, address: str) -> str | None:
        """Return the identity of the object to which an address leads through links and mounts.

        Returns:
            The `etag` of the object. None if there is no object, if the address has another scheme,
            or if the store has no aliases.

        Raises:
            StoreError: If the address cannot be resolved.
        """
        ...

    def find_object(self, key: str) -> StoredObject | None:
        """Look up an object with a single request.

        Returns:
            The object, or None if it does not exist. Links, directories and special files are not
            objects.

        Raises:
            OSError: If the request fails, for example because a permission is missing.
        """
        ...

    def count_unfinished_uploads(self, before: datetime) -> UnfinishedUploads | None:
        """Count unfinished multipart uploads. Returns None if the store does not support them.

        Uploads that were started before `before` count as old. The method never raises `OSError`,
        because no decision depends on the counts.
        """
        ...

    def find_old_uploads(self, before: datetime, is_included: Callable[[str], bool], limit: int) -> OldUploads:
        """Find unfinished multipart uploads that were abandoned, oldest first.

        An upload counts as abandoned if it was started before the cut-off and nothing has been
        written to it since. Uploads under the reserved prefix are never returned.

        Args:
            before: The cut-off.
            is_included: Called with a key. Returns True if uploads to this key are searched.
            limit: How many uploads are examined at most.

        Raises:
            OSError: If the uploads cannot be listed.
        """
        ...

    def upload_aborter(self) -> UploadAborter:
        """Return an object that aborts unfinished uploads.

        Raises:
            UsageError: If the store has no multipart uploads.
        """
        ...

    def quarantine(self, mode: QuarantineMode, plan_id: str) -> Quarantine:
        """Return an object that executes the actions of a plan.

        Raises:
            UsageError: If the store does not support the quarantine mode.
        """
        ...

    def trashed_etag(self, plan_id: str, key: str) -> str | None:
        """Return the identity that an object in the trash had before it was quarantined.

        The result is None if there is no such object, or if another program put it there.

        Raises:
            OSError: If the object cannot be read.
        """
        ...

    def key_limits(self, mode: QuarantineMode) -> KeyLimits | None:
        """Return the limits for keys that can be quarantined in a mode.

        Plans leave out objects with longer keys, because the store would refuse their names in the
        trash. The result is None if the mode does not add such a limit.
        """
        ...

    def acquire(self, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> Lease:
        """Acquire the lease of the storage.

        A lease lasts until it is released. Once it has expired, another plan can take it over.

        Args:
            plan_id: The plan to execute.
            owner: The name of the user.
            clock: Only used in a rehearsal. Otherwise, the server or file system sets the time.
            duration: How long the lease lasts unless it is renewed.
            after: A number that the new fencing token must exceed.

        Raises:
            GateRefused: If another plan holds the lease. The message shows the holder.
            StoreError: If the storage or its lease cannot be read.
        """
        ...

    def holder(self) -> Holder | None:
        """Return the holder of the storage's lease, even if expired, or None if there is no lease.

        Raises:
            StoreError: If the lease cannot be read.
        """
        ...

    def last_token(self) -> int:
        """Return the highest fencing token of the storage, or 0 if there is no trace of a lease.

        Raises:
            StoreError: If the tokens cannot be read.
        """
        ...

    def now(self) -> datetime:
        """Return the current time (UTC) of the clock that the store uses for modification times."""
        ...

    def modification_times(self, etags: pa.Array) -> pa.Array:
        """Extract modification times from identities (UTC, in microseconds).

        The row of an identity without a time is null.
        """
        ...

    def check_undo(self, mode: QuarantineMode) -> Result | None:
        """Find out whether the changing role may restore objects that are quarantined in a mode.

        The test writes an object to the storage and deletes it again, or tries to delete a version
        that does not exist.

        Returns:
            None if no right is missing. Otherwise the result of all quarantines: `denied` if a
            right is missing, or `failed` if the store did not answer the test.
        """
        ...

    def probe(self) -> Traits:
        """Find out which traits (optional properties) the store has.

        To do so, the method writes canary objects under the reserved prefix and removes them again.

        Raises:
            OSError: If writing to the storage fails.
            StoreError: If the storage is not writable.
        """
        ...

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        """Check for `gc-assets doctor` that the storage can be listed and plans be applied to it.

        A storage in `plan` mode is not changed.
        """
        ...


@dataclass(frozen=True, slots=True)
class PathAlias:
    """A directory that has two paths, in the same storage or in two storages."""

    storage: str
    path: str
    other_storage: str
    other_path: str


@dataclass(frozen=True, slots=True)
class SymbolicLink:
    """A symbolic link in a storage, with the path of its target."""

    storage: str
    path: str
    target: str
