"""What every kind of store answers, and the values it answers with.

Made for object stores as much as for disks: objects have keys and not paths, an identity (`etag`) and perhaps a version;
listing is split into tasks (directories or key ranges) that run anywhere; deletions go in batches and answer key by key.
Pure values: no I/O here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Protocol, get_args

import pyarrow as pa

from gc_assets.schemas import STORAGE_INVENTORY

# The one prefix of a storage that is the collector's own: lease, fencing token, trash. Never listed, never planned.
RESERVED_PREFIX: Final = ".gc-assets/"

INVENTORY_SCHEMA: Final = STORAGE_INVENTORY.schema
LISTING_SOURCE: Final = "listing"

Action = Literal["quarantine", "purge", "restore"]
QuarantineMode = Literal["trash", "versioned", "deferred"]

Verdict = Literal["done", "absent", "changed", "denied", "failed"]
DONE: Verdict = "done"
ABSENT: Verdict = "absent"
CHANGED: Verdict = "changed"
DENIED: Verdict = "denied"
FAILED: Verdict = "failed"
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)


@dataclass(frozen=True, slots=True)
class Planned:
    """A row of `deletion_plan` as far as a store needs it. `etag` names the only object that may be touched at that key.

    `source_plan_id` is the plan that quarantined the key; null for the quarantine itself. `kind` is null where nothing names the file.
    """

    key: str
    action: Action
    size_bytes: int
    etag: str | None
    version_id: str | None = None
    source_plan_id: str | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a store did about one key. `error` says what was found wherever the verdict is not `done`.

    `changed` means another object stands there, `denied` that trying again will not help, `failed` that it may.
    """

    verdict: Verdict
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row of `deletion_log`, but for its plan id."""

    planned: Planned
    verdict: Verdict
    error: str | None
    at: datetime


class Quarantine(Protocol):
    """Acts on batches of planned objects. Implementations pickle and are safe to use from threads."""

    def act(self, batch: Sequence[Planned], resumed: Collection[str] = ()) -> list[Result]:
        """One result per planned object, in order, durable when this returns.

        Each object's identity is compared right before it is touched. Acting again on what is already done answers `done`.
        `resumed` names keys of this batch that an earlier, interrupted run may already have acted on: only they may
        be found purged and count as `done`. Never raises for a single key.
        """
        ...


class Lease(Protocol):
    """The right of one plan to change a storage. Pickles; executors check it before each batch."""

    @property
    def token(self) -> int:
        """Grows with every lease that was ever given out on the storage."""
        ...

    def check(self) -> None:
        """Raises `GateRefused` if the storage's lease is no longer this one. Extends the lease when half its time is over."""
        ...


ProblemKind = Literal["symlink", "not_utf8", "special", "unreadable"]


@dataclass(frozen=True, slots=True)
class Problem:
    r"""Something below the root that is no object and so is kept. `key` has undecodable bytes as `\xNN`."""

    key: str
    kind: ProblemKind
    detail: str

    @property
    def is_incomplete(self) -> bool:
        """True where objects may have been missed: no plan may follow from such an inventory."""
        return self.kind == "unreadable"


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that holds objects and no directories, with its own time of modification before it was read.

    While that time stays the same nothing was added to it or taken from it.
    """

    key: str
    modified_ns: int
    objects: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A step of a listing: objects with the columns of `storage_inventory`, problems met, and work left over for another round.

    `directories` are those that a later listing need not read again while they are unchanged.
    """

    objects: pa.RecordBatch
    problems: tuple[Problem, ...] = ()
    leftover: tuple[ListingTask, ...] = ()
    directories: tuple[Directory, ...] = ()


class ListingTask(Protocol):
    """A part of a storage's listing that no other part overlaps. Pickles."""

    def run(self, budget: int) -> Iterator[Listed]:
        """Everything in this part, or in the leftover tasks it yields once about `budget` entries were met."""
        ...
