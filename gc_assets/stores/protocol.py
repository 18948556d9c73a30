"""What a store must guarantee, what it may offer besides, and the values in which it answers.

A store is one place below which objects lie: a directory, or a bucket with a prefix. An object
has a key, bytes, a time of last modification and an identity (`etag`), and perhaps a version.
The collector decides what to delete by four guarantees, so a place without them is no store:

- A listing that ends has met every object that was there from its beginning to its end. A live
  file that a listing missed would look lost.
- An object is whole or it is not there. After a write has returned, every reader sees it.
- Of several writers that create one object only if it is absent, exactly one succeeds.
- Times of last modification do not go back. They are readings of one clock, and `Store.now`
  reads the same clock. The grace period rests on it.

What a store may offer besides are its traits. `Store.probe` proves each of them with objects of
its own below the reserved prefix. Nothing is believed from a product's name. Without a trait:

- replace-if-match: histories in this store are not edited, and the lease creates one object for
  each token;
- delete-if-match: the object is looked at immediately before it is deleted;
- versions: quarantine is `trash` (copied aside) or `deferred` (nothing moves);
- rename: `trash` copies, verifies the copy and deletes.

Stores differ in how they reach these ends: in pages and batches of 1,000 keys, with one role that
reads and another that deletes. Verbs that only read (`objects`, `plan_listing`, `holder`, `now`)
need the reading role; `editable`, `quarantine`, `acquire` and `probe` take the changing role by
themselves. Secrets are never part of a value: a store pickles, travels to executors and finds its
credentials there.

Pure values and protocols: no I/O here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO, TYPE_CHECKING, Final, Literal, Protocol

from gc_assets.config.models import StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.findings import Finding
from gc_assets.core.objects import EditableObjects, Objects
from gc_assets.core.phases import Action, Verdict

if TYPE_CHECKING:
    import pyarrow as pa

# The one prefix of a storage that is the collector's own: lease, fencing token, trash, canaries.
# Never listed, never planned.
RESERVED_PREFIX: Final = ".gc-assets/"

LISTING_SOURCE: Final = "listing"

# Long enough for a batch on a slow store, short enough to wait for after a crash.
LEASE_DURATION: Final = timedelta(minutes=10)

QuarantineMode = Literal["trash", "versioned", "deferred"]


@dataclass(frozen=True, slots=True)
class PlannedAction:
    """A row of `deletion_plan` as far as a store needs it.

    `etag` and `version_id` name the only object that may be touched at that key. `version_id` is
    null in a store without versions. `source_plan_id` is the plan that quarantined the key, null
    for the quarantine itself. `kind` is null where nothing names the file.

    An unfinished upload to the key has its id as `version_id`.
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
        """What is done to which object. By its act a row of a plan is looked up again in its log."""
        return self.action, self.key, self.version_id


@dataclass(frozen=True, slots=True)
class Result:
    """What a store did about one key. `error` says why wherever the verdict is not `done`, and of a
    purge which older versions of the key went with it.

    `changed` means another object stands there, `denied` that trying again will not help, `failed`
    that it may.
    """

    verdict: Verdict
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row of `deletion_log`, without plan id and run id. `token` is that of the lease under which
    it was done.
    """

    planned: PlannedAction
    verdict: Verdict
    error: str | None
    at: datetime
    token: int | None = None


class Quarantine(Protocol):
    """Acts on batches of planned objects. Pickles, and is safe to use from threads."""

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """One result per planned object, in order, durable when this returns.

        - The identity of each object is compared right before the object is touched. Another
          object at its key is left alone: `changed`.
        - A restore never replaces an object.
        - Acting again on what is already done answers `done`.
        - `resumed` are those of this batch that an earlier, interrupted run may have acted on
          already. Of them a purge that finds nothing is `done`, of all others `absent`.
        - A key below the reserved prefix is `denied`.
        - A single key never raises.
        """
        ...


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a storage's lease, as it is on record there. Times are ISO 8601 in UTC."""

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
        return f"{self.owner} (host {self.host}, process {self.pid}, plan {self.plan_id}) since {self.acquired_at} until {self.expires_at}"


class Lease(Protocol):
    """The right of one plan to change a storage. Pickles; executors check it before each batch."""

    @property
    def token(self) -> int:
        """A number that grows with every lease that was ever given out on the storage."""
        ...

    def check(self) -> None:
        """Returns while the storage's lease is this one; extends it when half its time is over.

        An expired lease that nobody took over is still this one. Raises `GateRefused` otherwise.
        """
        ...

    def renew(self) -> None:
        """Extends the lease to its whole duration from now. Raises `GateRefused` where it was lost."""
        ...

    def release(self) -> None:
        """Frees the storage, unless somebody took it over from this lease."""
        ...


ProblemKind = Literal["symlink", "not_utf8", "special", "time", "unreadable"]


@dataclass(frozen=True, slots=True)
class Problem:
    r"""Something below the root that is no object, and is therefore kept. `key` has undecodable
    bytes as `\xNN`.
    """

    key: str
    kind: ProblemKind
    detail: str

    @property
    def is_incomplete(self) -> bool:
        """True where objects may have been missed. No plan may follow from such an inventory."""
        return self.kind == "unreadable"


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that holds objects and no directories, with its time before it was read.

    `modified_ns` is the directory's own time of modification. While that time stays the same
    nothing was added to it or taken from it. A store without directories tells of none.
    """

    key: str
    modified_ns: int
    objects: int


@dataclass(frozen=True, slots=True)
class ListingBatch:
    """A step of a listing: objects (columns of `storage_inventory`) and problems that were met.

    `leftover` is work for another round. `directories` are those that a later listing need not read
    again while they are unchanged. `split_keys` are keys, evenly spread over those that were met, at which
    a later listing may be cut. A store that needs no such hints tells of none. `report_rows` counts
    the rows of a report that were read, whether or not they show an object of the storage.
    """

    objects: pa.RecordBatch
    problems: tuple[Problem, ...] = ()
    leftover: tuple[ListingTask, ...] = ()
    directories: tuple[Directory, ...] = ()
    split_keys: tuple[str, ...] = ()
    report_rows: int = 0


@dataclass(frozen=True, slots=True)
class UploadCounts:
    """Uploads in parts that were begun and neither completed nor given up, `old` ones among them.

    `size_bytes` are the parts of the `sized` ones. `unknown` says why not all were counted.
    """

    uploads: int
    old: int
    size_bytes: int
    sized: int
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in parts that was begun and neither completed nor given up.

    `initiated` is when it was begun (UTC), `size_bytes` are those of its parts. `etag` is its
    identity: a further part makes it another. `Store.modification_times` reads from it when the upload was
    last written to.
    """

    key: str
    upload_id: str
    initiated: datetime
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class OldUploads:
    """Uploads that nobody wrote to for long, the oldest first. `later` counts those that nobody
    looked at, because there are too many.
    """

    uploads: tuple[Upload, ...] = ()
    unexamined: int = 0


class UploadAborter(Protocol):
    """Ends unfinished uploads for good. Pickles, and is safe to use from threads."""

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        """One result per planned upload, in order. A row names the upload as its version.

        - The upload is looked at right before it is aborted. One whose identity is another by now
          is left alone: `changed`.
        - One that is not there any more was completed or aborted: `absent`. It is `done` where this
          run, or the interrupted one of a row of `resumed`, had asked for its end, and no object was
          made at its key since.
        - A key below the reserved prefix is `denied`.
        - A single upload never raises.
        """
        ...


class ListingTask(Protocol):
    """A part of a storage's listing that no other part overlaps. Pickles."""

    def run(self, budget: int) -> Iterator[ListingBatch]:
        """Yields everything in this part, except what it leaves to the leftover tasks that it
        yields. It leaves work over once it has met about `budget` entries.
        """
        ...


@dataclass(frozen=True, slots=True)
class Report:
    """What takes the place of a listing: a finished report about a storage.

    `as_of` is when its scan began. It says nothing of what was written later. `rows` is how many
    rows it has, null where it does not say.
    """

    name: str
    as_of: datetime
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class ListingPlan:
    """How the objects of a storage are met: by tasks that together list every object once.
    `report` is null where the storage itself is asked.
    """

    tasks: Sequence[ListingTask]
    report: Report | None = None


class Lister(Protocol):
    """Tells the objects of one storage, by listing it or by a report about it. Pickles."""

    def plan(
        self, parallelism: int, now: datetime, unchanged: frozenset[str], settled_before: datetime, split_keys: Sequence[str] | None
    ) -> ListingPlan:
        """Plans as `Store.plan_listing` says. Raises `StoreError` too for a report that must not be
        believed at the time `now`.
        """
        ...

    def find_unchanged_directories(self, known: Iterable[Directory]) -> frozenset[str]:
        """As `Store.find_unchanged_directories`."""
        ...

    def select_unchanged_objects(self, objects: pa.RecordBatch, unchanged: pa.Array) -> pa.RecordBatch:
        """As `Store.select_unchanged_objects`."""
        ...

    def look_up(self, keys: Sequence[str]) -> list[int | None]:
        """Returns the sizes of objects that the tasks did not meet; null for one that is not there.

        A storage that was listed is not asked again: what the listing did not meet is not there.
        """
        ...

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        """Returns findings about the report that would be read. None where there is no report."""
        ...


class ReportFiles(Protocol):
    """The place where reports are delivered, by addresses of one scheme. Pickles.

    Raises `FileNotFoundError` where there is no such object and `OSError` for everything else.
    """

    def folders(self, place: str) -> list[str]:
        """Returns the names directly below a place that ends in `/`, of what holds objects. They
        end in `/`.
        """
        ...

    def read(self, address: str) -> bytes: ...

    def copy(self, address: str, into: IO[bytes]) -> None:
        """Writes the object's bytes to an open file, a piece at a time."""
        ...


class SourceBucket(Protocol):
    """A storage as reports speak of it. Pickles. Raises `OSError` where it does not answer."""

    @property
    def bucket(self) -> str: ...

    @property
    def prefix(self) -> str:
        """What the names of its objects begin with in the bucket. Empty, or ends in `/`."""
        ...

    def has_versions(self) -> bool:
        """Says whether its listing shows versions."""
        ...

    def identities(self, etags: pa.Array, sizes: pa.Array, modified: pa.Array) -> pa.Array:
        """Returns the identities of objects, as its listing shows them."""
        ...

    def size_of(self, key: str) -> int | None:
        """Looks one object up. Returns its size in bytes, or null where nothing stands there."""
        ...


@dataclass(frozen=True, slots=True)
class Traits:
    """What canary objects proved of a store.

    A store without `create_if_absent` cannot have a lease. `delete_if_match` says for how many keys
    of one request the store itself compares.
    """

    create_if_absent: bool
    replace_if_match: bool
    rename: bool
    versions: bool = False
    delete_if_match: Literal["none", "one", "batch"] = "none"


class Store(Protocol):
    """One storage: reads, lists, quarantines, and says what holds there. A frozen value; pickles.

    Opening a store does not touch it: whether the place exists is seen by the first verb.
    """

    @property
    def scheme(self) -> str:
        """The scheme of the location by its one name, a key of `SCHEMES`."""
        ...

    @property
    def location(self) -> str:
        """Its place, as the configuration spells it."""
        ...

    @property
    def objects(self) -> Objects:
        """Reads objects by address, here and wherever else the scheme reaches."""
        ...

    @property
    def editable(self) -> EditableObjects:
        """Changes objects by address, each on the condition that it is the one that was read."""
        ...

    def plan_listing(
        self,
        parallelism: int,
        unchanged: frozenset[str] = frozenset(),
        settled_before: datetime | None = None,
        split_keys: Sequence[str] | None = None,
    ) -> Sequence[ListingTask]:
        """Returns tasks that together list every object once, for `parallelism` workers. What lies
        directly in the directories `unchanged` is left out.

        `split_keys` are what an earlier listing told, of any age and in any order; null where there was
        none. They say where the work may be cut, and never what is listed.

        A later listing may carry only directories that were last modified before `settled_before`,
        and none if it is not given. Raises `StoreError` where the place is not there or cannot be
        read: an empty inventory would make every live file look lost.
        """
        ...

    def find_unchanged_directories(self, known: Iterable[Directory]) -> frozenset[str]:
        """Returns the keys of the directories that hold the same objects as when they were listed."""
        ...

    def select_unchanged_objects(self, objects: pa.RecordBatch, unchanged: pa.Array) -> pa.RecordBatch:
        """Returns the rows of an earlier listing that lie directly in the directories `unchanged`."""
        ...

    @property
    def has_aliases(self) -> bool:
        """True where one object may be reached by several addresses: through links and mounts."""
        ...

    def identity(self, address: str) -> str | None:
        """Returns the identity (`etag`) of the object that an address leads to, whatever links and
        mounts lie on its way. Null where nothing stands there, and always for an address of another
        scheme and in a store without aliases.

        Raises `StoreError` where nobody can tell.
        """
        ...

    def count_unfinished_uploads(self, before: datetime) -> UploadCounts | None:
        """Returns the uploads in parts that lie unfinished here; those begun before the moment are
        `old`. Null where a store has no such thing. Never raises `OSError`: they decide nothing.
        """
        ...

    def find_old_uploads(self, before: datetime, wanted: Callable[[str], bool], at_most: int) -> OldUploads:
        """Returns unfinished uploads to wanted keys, begun and last written to before a moment: of
        the oldest `at_most`. None lies below the reserved prefix.

        Raises `OSError` where they cannot be listed. A store without such a thing has none.
        """
        ...

    def upload_aborter(self) -> UploadAborter:
        """Returns what ends unfinished uploads. Raises `UsageError` in a store without such a
        thing.
        """
        ...

    def quarantine(self, mode: QuarantineMode, plan_id: str) -> Quarantine:
        """How the plan `plan_id` acts here. Raises `UsageError` for a mode the store lacks."""
        ...

    def acquire(self, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> Lease:
        """Takes the storage's lease. It is held until it is released, or has expired and was taken
        over. Its token is higher than `after`.

        Raises `GateRefused` naming the holder while another lease is live, and `StoreError` where
        the storage or its lease cannot be read.
        """
        ...

    def holder(self) -> Holder | None:
        """Returns who holds the lease, live or expired, or null where nobody does. Raises
        `StoreError` where what stands there is no lease.
        """
        ...

    def now(self) -> datetime:
        """Returns the store's own time, by which it dates objects (UTC)."""
        ...

    def modification_times(self, etags: pa.Array) -> pa.Array:
        """Returns the times of last modification that identities tell (UTC, µs), null for one that
        tells none.
        """
        ...

    def probe(self) -> Traits:
        """Returns what canary objects prove. It writes below the reserved prefix and removes what
        it wrote.

        Raises `StoreError` or `OSError` where the storage cannot be written.
        """
        ...

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        """Returns findings: whether nights can list the storage and plans act on it, what would
        stop them, and the way out. Changes nothing in a storage of mode `plan`.
        """
        ...


@dataclass(frozen=True, slots=True)
class PathAlias:
    """One place by its name in a storage, and by another name in that or another storage."""

    storage: str
    path: str
    other_storage: str
    other_path: str


@dataclass(frozen=True, slots=True)
class SymbolicLink:
    """A symbolic link in a storage, and the path to which it leads."""

    storage: str
    path: str
    target: str
