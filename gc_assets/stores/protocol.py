"""The protocols of a store, and the values that stores return.

A store is one location that contains objects: a directory, or a bucket with a prefix. An object has
a key, bytes, a modification time and an identity (`etag`), and in some stores a version.

A store must guarantee the properties in `AXIOMS`, because the decision to delete depends on them.
The protocol model and the store contract tests use the same ids. The model shows what breaks
without each property.

Optional properties are called traits. `Store.probe` tests each of them with canary objects under
the reserved prefix, because a product's name does not guarantee its behavior. Without a trait, the
collector works as follows:

- replace-if-match: histories in this store are not edited, and the lease creates one object for
  each token;
- delete-if-match: the object is compared immediately before it is deleted;
- versions: quarantine is `trash` (copied aside) or `deferred` (nothing moves);
- rename: `trash` copies, verifies the copy and deletes.

Methods that only read (`objects`, `plan_listing`, `holder`, `now`) use the reading role.
`editable`, `quarantine`, `acquire` and `probe` use the changing role. Values contain no secrets,
because stores are pickled and sent to executors, which load their own credentials.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO, TYPE_CHECKING, Final, Literal, Protocol

from gc_assets.config.models import StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.findings import Finding
from gc_assets.core.objects import EditableObjects, Objects
from gc_assets.core.phases import DENIED, Action, Verdict

if TYPE_CHECKING:
    import pyarrow as pa

# The only prefix that the collector uses for itself: lease, fencing token, trash and canaries. Its
# objects are never listed or planned.
RESERVED_PREFIX: Final = ".gc-assets/"

# The guarantees of a store, by id.
AXIOMS: Final[Mapping[str, str]] = {
    "complete_listing": "A listing that ends has returned every object that existed from its start to its end.",
    "visible_write": "An object is complete or does not exist. After a write has returned, every reader sees it.",
    "exclusive_create": "If several writers create one object on the condition that it is absent, exactly one succeeds.",
    "store_clock": "Modification times do not go back. They come from one clock, which `Store.now` reads too.",
    "distinct_identity": "Two objects with one key, one after the other, differ in their identity.",
    "conditional_change": "A changed object is left alone, also if it changes between the comparison and the request.",
    "no_overwrite": "A restore does not replace an object.",
}
# The trait that covers an axiom, and that canary objects test. The contract tests check the others.
PROBED_AXIOMS: Final[Mapping[str, str]] = {
    "exclusive_create": "create_if_absent",
    "conditional_change": "delete_if_match",
    "no_overwrite": "create_if_absent",
}

LISTING_SOURCE: Final = "listing"

# Long enough for a batch on a slow store, short enough to wait for after a crash.
LEASE_DURATION: Final = timedelta(minutes=10)

QuarantineMode = Literal["trash", "versioned", "deferred"]


@dataclass(frozen=True, slots=True)
class PlannedAction:
    """The columns of a `deletion_plan` row that a store needs.

    Attributes:
        key: The key, relative to the storage.
        action: The action to execute.
        size_bytes: The size of the object.
        etag: The identity of the planned object. An object with another identity is left alone.
        version_id: The object's version, or None in a store without versions. For an unfinished
            upload, the upload id.
        source_plan_id: The plan that quarantined the key, or None for the quarantine itself.
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
        """Return action, key and version, which identify a plan row in its logs."""
        return self.action, self.key, self.version_id


@dataclass(frozen=True, slots=True)
class Result:
    """A store's result for one key.

    `changed` means that another object is at the key, `denied` that a retry will not help, and
    `failed` that a retry may help.

    Attributes:
        verdict: The outcome.
        error: The reason, for every verdict except `done`. For a completed purge, the older
            versions deleted with it.
        replan: For `denied`: True if the store did not deny the action itself, so that a later plan
            may contain it again. Otherwise later plans leave the object out.
    """

    verdict: Verdict
    error: str | None = None
    replan: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """A `deletion_log` row without plan id and run id.

    `token` is the fencing token of the lease, and `replan` is copied from the `Result`.
    """

    planned: PlannedAction
    verdict: Verdict
    error: str | None
    at: datetime
    token: int | None = None
    replan: bool = False

    @property
    def is_permanent(self) -> bool:
        return self.verdict == DENIED and not self.replan


class Quarantine(Protocol):
    """Executes batches of planned actions. Picklable and thread-safe."""

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Execute the actions and return one result per row, in order. Changes are durable on return.

        - The identity of each object is compared immediately before the object is changed. If
          another object is at the key, it is left alone and the result is `changed`.
        - A restore never replaces an object.
        - Repeating a completed action returns `done`.
        - A key under the reserved prefix is `denied`.
        - Errors of single keys are returned as results, not raised.

        Args:
            batch: The rows to execute.
            resumed: The rows of the batch that an earlier, interrupted run may have executed. For
                these, a purge that finds no object is `done`. For all others it is `absent`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Holder:
    """Holder of a storage's lease, as recorded in the storage. Times are ISO 8601 in UTC."""

    owner: str
    host: str
    pid: int
    plan_id: str
    token: int
    acquired_at: str
    expires_at: str

    def is_live(self, now: datetime) -> bool:
        return now < datetime.fromisoformat(self.expires_at)

    def __str__(self) -> str:
        since, until = (str(time)[:19].replace("T", " ") + "Z" for time in (self.acquired_at, self.expires_at))
        return f"{self.owner} (host {self.host}, process {self.pid}, plan {str(self.plan_id)[:12]}) since {since} until {until}"


class Lease(Protocol):
    """The exclusive right of one plan to change a storage.

    It is picklable, because executors check it before each batch.
    """

    @property
    def token(self) -> int:
        """Return the fencing token. It grows with every lease of the storage."""
        ...

    def check(self) -> None:
        """Raise `GateRefused` unless this lease is still the lease of the storage.

        An expired lease that no other plan has taken over is still valid. The lease is extended
        when half of its duration is over.
        """
        ...

    def renew(self) -> None:
        """Extend the lease to its whole duration from now. Raises `GateRefused` if it was lost."""
        ...

    def release(self) -> None:
        """Release the storage, unless another plan has taken it over."""
        ...


ProblemKind = Literal["symlink", "not_utf8", "special", "time", "unreadable"]


@dataclass(frozen=True, slots=True)
class Problem:
    r"""An entry of the storage that is not an object and is therefore kept.

    Undecodable bytes of `key` are written as `\xNN`.
    """

    key: str
    kind: ProblemKind
    detail: str

    @property
    def is_incomplete(self) -> bool:
        """Return True if objects may have been missed, so that no plan may use the inventory."""
        return self.kind == "unreadable"


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that contains objects but no subdirectories.

    Attributes:
        key: Its key, which ends in `/`.
        modified_ns: The directory's own modification time before it was read, in nanoseconds since
            1970. While it is unchanged, no entry has been added or removed.
        objects: The number of objects.
        inode: Its inode, because a copy or another mount may have the same time. None in rows of
            older releases, which are not reused.
    """

    key: str
    modified_ns: int
    objects: int
    inode: int | None = None


@dataclass(frozen=True, slots=True)
class ListingBatch:
    """A batch of a listing.

    Attributes:
        objects: Rows with the columns of `storage_inventory`.
        problems: Entries that are not objects.
        leftover: Tasks for another round.
        directories: Directories that a later listing can skip while they are unchanged. Empty in a
            store without directories.
        split_keys: Keys at which a later listing can divide its work, evenly spread over the listed
            keys. Empty in a store that does not use split keys.
        report_rows: The number of inventory report rows read, including rows that are not objects
            of the storage.
    """

    objects: pa.RecordBatch
    problems: tuple[Problem, ...] = ()
    leftover: tuple[ListingTask, ...] = ()
    directories: tuple[Directory, ...] = ()
    split_keys: tuple[str, ...] = ()
    report_rows: int = 0


@dataclass(frozen=True, slots=True)
class UploadCounts:
    """Counts of unfinished multipart uploads.

    Attributes:
        uploads: All unfinished uploads.
        old: Uploads started before the cut-off.
        size_bytes: The total size of the parts of the `sized` uploads.
        sized: Uploads whose parts were measured.
        unknown: The reason if not all uploads were counted, otherwise None.
    """

    uploads: int
    old: int
    size_bytes: int
    sized: int
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class Upload:
    """An unfinished multipart upload.

    Attributes:
        key: The key of the object to be created.
        upload_id: The id of the upload.
        initiated: The time when it was started (UTC).
        size_bytes: The total size of its parts.
        etag: Its identity, which changes with each further part. It contains the time of the last
            write, for `Store.modification_times`.
    """

    key: str
    upload_id: str
    initiated: datetime
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class OldUploads:
    """Uploads without recent writes, the oldest first.

    `unexamined` is the number of further old uploads that were not examined because of the limit.
    """

    uploads: tuple[Upload, ...] = ()
    unexamined: int = 0


class UploadAborter(Protocol):
    """Aborts unfinished uploads permanently. Picklable and thread-safe."""

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """Abort the uploads and return one result per row, in order.

        The `version_id` of a row is the upload id.

        - The upload is examined immediately before it is aborted. If its identity has changed, it
          is left alone and the result is `changed`.
        - An upload that no longer exists was completed or aborted, so the result is `absent`. It is
          `done` if this run, or an interrupted run (rows in `resumed`), requested the abort and no
          object has been created at the key since.
        - A key under the reserved prefix is `denied`.
        - Errors of single uploads are returned as results, not raised.
        """
        ...


class ListingTask(Protocol):
    """A part of a storage's listing. Parts do not overlap. Picklable."""

    def run(self, budget: int) -> Iterator[ListingBatch]:
        """Yield everything in this part in batches. The leftover tasks in the batches list the rest.

        Args:
            budget: After about this number of entries, the rest is left to leftover tasks.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as returned by a request for its key.

    Attributes:
        etag: Its identity, as in listings.
        size_bytes: Its size.
    """

    etag: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """A finished inventory report that replaces the listing of a storage.

    Attributes:
        name: The address of its manifest.
        as_of: The time when its scan started. The report does not contain later writes.
        rows: The number of its rows, or None if unknown.
    """

    name: str
    as_of: datetime
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class ListingPlan:
    """Tasks that together list every object of a storage once.

    `report` is None if the storage itself is listed.
    """

    tasks: Sequence[ListingTask]
    report: Report | None = None


class LookUp(Protocol):
    """Looks up objects of one storage that are missing from its inventory. Picklable."""

    def look_up(self, keys: Sequence[str]) -> list[int | None]:
        """Return the size in bytes of each unlisted object, or None if the object does not exist.

        If the storage itself was listed, it is not read again, because an unlisted object does not
        exist.
        """
        ...


class Lister(LookUp, Protocol):
    """Lists the objects of one storage, directly or from an inventory report. Picklable."""

    def plan(
        self, parallelism: int, now: datetime, unchanged: frozenset[str], settled_before: datetime, split_keys: Sequence[str] | None
    ) -> ListingPlan:
        """Plan the listing like `Store.plan_listing`, at the time `now`.

        Raises:
            StoreError: If the storage or its report cannot be read, or the report must not be used.
        """
        ...

    def find_unchanged_directories(self, directories: Iterable[Directory]) -> frozenset[str]:
        """Return the unchanged directories, like `Store.find_unchanged_directories`."""
        ...

    def select_unchanged_objects(self, objects: pa.RecordBatch, unchanged: pa.Array) -> pa.RecordBatch:
        """Return rows of an earlier listing, like `Store.select_unchanged_objects`."""
        ...

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        """Yield findings about the report that would be used, or nothing if no report is used."""
        ...


class ReportFiles(Protocol):
    """Reads inventory reports at addresses of one scheme. Picklable.

    Methods raise `FileNotFoundError` if the object does not exist, and `OSError` for other
    failures.
    """

    def folders(self, location: str) -> list[str]:
        """Return the names of the folders directly under a location.

        The location and the names end in `/`.
        """
        ...

    def files(self, location: str) -> dict[str, int]:
        """Return the sizes of all files under a location, by their names relative to it."""
        ...

    def read(self, address: str) -> bytes: ...

    def copy(self, address: str, into: IO[bytes]) -> None:
        """Write the object's bytes to an open file, in blocks."""
        ...


class SourceBucket(Protocol):
    """A bucket that is listed by inventory reports.

    Picklable. Methods raise `OSError` if the bucket does not answer.
    """

    @property
    def bucket(self) -> str: ...

    @property
    def prefix(self) -> str:
        """Return the prefix of the storage's keys in the bucket. Empty, or ends in `/`."""
        ...

    def has_versions(self) -> bool:
        """Return True if a listing of the bucket shows versions."""
        ...

    def identities(self, etags: pa.Array, sizes: pa.Array, modified: pa.Array) -> pa.Array:
        """Return the identities of objects, as a listing of the bucket would return them."""
        ...

    def size_of(self, key: str) -> int | None:
        """Return the size of one object in bytes, or None if it does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class Traits:
    """Traits of a store, as tested with canary objects.

    A store without `create_if_absent` cannot have a lease. `delete_if_match` states whether the
    store itself compares etags in no deletes, in single deletes, or in batch deletes.
    """

    create_if_absent: bool
    replace_if_match: bool
    rename: bool
    versions: bool = False
    delete_if_match: Literal["none", "one", "batch"] = "none"


class Store(Protocol):
    """One storage, to read, list and quarantine its objects. A frozen, picklable value.

    Opening a store sends no request. The first method call shows whether the location exists.
    """

    @property
    def scheme(self) -> str:
        """Return the canonical name of the location's scheme, a key of `SCHEMES`."""
        ...

    @property
    def location(self) -> str:
        """Return the location as the configuration spells it."""
        ...

    @property
    def objects(self) -> Objects:
        """Return read access to objects at any address of the scheme, in this storage or outside."""
        ...

    @property
    def editable(self) -> EditableObjects:
        """Return access for changes that are conditional on the object being the one that was read."""
        ...

    def check_access(self) -> None:
        """List a few objects, with few attempts.

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
        """Return tasks that together list every object once.

        Args:
            parallelism: The number of workers.
            unchanged: Keys of directories whose direct objects are left out.
            settled_before: A later listing may skip only directories that were last modified before
                this time. If None, it may skip no directory.
            split_keys: Keys returned by an earlier listing of any age, in any order, or None if
                there is no earlier listing. They divide the work and never change what is listed.

        Raises:
            StoreError: If the location does not exist or cannot be read, because with an empty
                inventory every live file would appear to be missing.
        """
        ...

    def find_unchanged_directories(self, directories: Iterable[Directory]) -> frozenset[str]:
        """Return the keys of the directories whose objects have not changed since they were listed."""
        ...

    def select_unchanged_objects(self, objects: pa.RecordBatch, unchanged: pa.Array) -> pa.RecordBatch:
        """Return an earlier listing's rows for objects directly in the `unchanged` directories."""
        ...

    @property
    def has_aliases(self) -> bool:
        """Return True if one object can have several addresses, through links and mounts."""
        ...

    def identity(self, address: str) -> str | None:
        """Return the identity (`etag`) of the object at an address, resolving links and mounts.

        Returns None if there is no object, if the address has another scheme, or if the store has
        no aliases.

        Raises:
            StoreError: If the address cannot be resolved.
        """
        ...

    def find_object(self, key: str) -> StoredObject | None:
        """Return the object at a key with one request, or None if it does not exist.

        Links, directories and special files are not objects.

        Raises:
            OSError: If the store cannot answer, for example without permission.
        """
        ...

    def count_unfinished_uploads(self, before: datetime) -> UploadCounts | None:
        """Return the counts of unfinished uploads, or None if the store has no multipart uploads.

        Uploads started before `before` count as old. `OSError` is never raised, because no decision
        depends on the counts.
        """
        ...

    def find_old_uploads(self, before: datetime, is_included: Callable[[str], bool], limit: int) -> OldUploads:
        """Return the oldest unfinished uploads that were started and last written before the cut-off.

        Uploads under the reserved prefix are excluded. The result is empty in a store without
        multipart uploads.

        Args:
            before: The cut-off.
            is_included: Returns True for the keys to include.
            limit: The maximum number of uploads to examine.

        Raises:
            OSError: If the uploads cannot be listed.
        """
        ...

    def upload_aborter(self) -> UploadAborter:
        """Return the `UploadAborter` of the storage.

        Raises `UsageError` in a store without multipart uploads.
        """
        ...

    def quarantine(self, mode: QuarantineMode, plan_id: str) -> Quarantine:
        """Return the quarantine of a plan.

        Raises `UsageError` for a mode that the store does not support.
        """
        ...

    def trashed_etag(self, plan_id: str, key: str) -> str | None:
        """Return the identity of an object in the trash before its quarantine.

        Returns None if it does not exist or was not copied by the collector.

        Raises:
            OSError: If it cannot be read.
        """
        ...

    def max_key_bytes(self, mode: QuarantineMode) -> int | None:
        """Return the maximum length of a key, in UTF-8 bytes, for a quarantine mode.

        Returns None if the mode has no limit of its own. Plans leave out longer keys, because their
        names in the trash would be too long.
        """
        ...

    def acquire(self, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> Lease:
        """Acquire the lease of the storage.

        The lease is held until it is released, or until it expires and another plan takes it over.

        Args:
            plan_id: The plan to execute.
            owner: The name of the user.
            clock: The clock, used by stores without a clock of their own.
            duration: The lease expires after this time unless it is renewed.
            after: The new token is higher than this.

        Raises:
            GateRefused: If another lease is live. The message contains its holder.
            StoreError: If the storage or its lease cannot be read.
        """
        ...

    def holder(self) -> Holder | None:
        """Return the holder of the lease, live or expired. Returns None if there is no lease.

        Raises:
            StoreError: If the lease cannot be read.
        """
        ...

    def now(self) -> datetime:
        """Return the store's own time (UTC), which its modification times are based on."""
        ...

    def modification_times(self, etags: pa.Array) -> pa.Array:
        """Return the modification times contained in identities (UTC, µs).

        Rows whose identity contains no time are null.
        """
        ...

    def probe(self) -> Traits:
        """Test the traits of the storage with canary objects and return them.

        The canaries are written under the reserved prefix and removed again.

        Raises:
            OSError: If the storage cannot be written.
            StoreError: If the storage cannot be written.
        """
        ...

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        """Yield findings on whether the storage can be listed and plans can be applied.

        Nothing is changed in a storage of mode `plan`.
        """
        ...


@dataclass(frozen=True, slots=True)
class PathAlias:
    """A directory with two paths in one or two storages."""

    storage: str
    path: str
    other_storage: str
    other_path: str


@dataclass(frozen=True, slots=True)
class SymbolicLink:
    """A symbolic link in a storage, and the path it resolves to."""

    storage: str
    path: str
    target: str
