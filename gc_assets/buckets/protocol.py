"""The protocol of a bucket whose requests accept conditions, and its values.

A bucket implements it in the package of its client (`gc_assets/s3/bucket.py`). `stores/conditional`
builds leases, quarantine, objects and the probe on it.

Rules:

- Keys are relative to `prefix`, byte for byte. A key with `//`, `/./` or a trailing `/` is that key.
- Reads raise `OSError`: `FileNotFoundError` for a missing object, `PermissionError` for a refusal.
- Changes raise no `OSError`. They return a `Change`, whose verdict states what is known.
- A request that creates or deletes the current object of a key is sent once, unless a retry meets
  its own condition: `put_if_absent` may be repeated, a delete without a condition may not. The
  caller compares the object before it tries again.
- `unknown` means that the request may have been executed: its answer was lost, or a proxy answered.
  Only requests that were certainly not executed are `failed`.
- All requests pass through the rate limiter of the settings, and are counted with their price.
- A bucket is a frozen value that pickles without secrets, and is safe to use from threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Final, Literal, Protocol, Self

from gc_assets.config.connections import StoreSettings
from gc_assets.core.errors import StoreError

# `read` serves runs and plans, `change` serves an apply.
Role = Literal["read", "change"]

# Metadata entries of a copy: the identity of the object in the trash, and of the restored object.
QUARANTINED: Final = "gc-assets-quarantined"
RESTORED: Final = "gc-assets-restored"
COPY_ENTRIES: Final = frozenset({QUARANTINED, RESTORED})

# done: executed. absent: the key has no object. changed: the condition was false, so nothing was
# changed. denied: refused, and a retry does not help. unsupported: the store does not evaluate this
# condition, and nothing was changed. failed: not executed, and a retry may help. unknown: may have
# been executed.
ChangeVerdict = Literal["done", "absent", "changed", "denied", "unsupported", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Change:
    """Result of a request that changes a bucket.

    Attributes:
        verdict: The outcome.
        error: The error of every verdict except `done`.
        version_id: The id of the created version, in a bucket that keeps versions.
        marker: The id of the delete marker that a delete created.
        token: The token of the written object, if the answer contains it.
    """

    verdict: ChangeVerdict
    error: OSError | None = None
    version_id: str | None = None
    marker: str | None = None
    token: str | None = None

    @property
    def is_done(self) -> bool:
        return self.verdict == "done"

    @property
    def reason(self) -> str:
        """Return the message of the error, empty without one."""
        return "" if self.error is None else self.error.strerror or str(self.error)

    def require(self) -> Self:
        """Return the change if it was done, otherwise raise its error."""
        if self.error is not None:
            raise self.error
        return self


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object, as the answer to a request for it describes it.

    Attributes:
        identity: `<token>-<size>-<modification time in seconds>`, as in listings (`identity.py`).
        size_bytes: Its size.
        modified: Its modification time.
        version_id: Its version, in a bucket that keeps versions.
        metadata: The metadata of the user, with names in lower case.
        unfinished: The metadata entries of the collector on a copy that the server has not completed,
            or has given up. They are not in `metadata`.
        token_is_checksum: False if the token depends on more than the bytes. A token that looks like
            an MD5 is compared with that of a copy if this is True.
        answer: The complete answer, for the bucket's own use.
    """

    identity: str
    size_bytes: int
    modified: datetime
    version_id: str | None
    metadata: Mapping[str, str]
    unfinished: Mapping[str, str] = field(default_factory=dict[str, str])
    token_is_checksum: bool = False
    answer: Any = None


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a key, or a delete marker."""

    version_id: str
    is_marker: bool
    modified: datetime


@dataclass(frozen=True, slots=True)
class Versioning:
    """Versioning of a bucket.

    `status` is `Enabled`, `Suspended`, or None if versioning was never enabled.
    """

    status: str | None

    @property
    def is_on(self) -> bool:
        """Return True if a delete keeps the version that it hides."""
        return self.status == "Enabled"

    @property
    def has_versions(self) -> bool:
        """Return True if objects may have versions, also after versioning was suspended."""
        return bool(self.status)


@dataclass(frozen=True, slots=True)
class Deletion:
    """An object to delete.

    Attributes:
        key: The key.
        version_id: A version to delete permanently, otherwise None for the current object.
        token: Deletes only an object with this token. Only for a bucket with `compares_in_batches`,
            and for the probe.
    """

    key: str
    version_id: str | None = None
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Objects of one page, in order, as columns.

    Attributes:
        keys: Whole keys with the prefix of the storage, as bytes.
        sizes: In bytes. 0 for a delete marker.
        modified: ISO 8601 text as the server wrote it.
        etags: Tokens (`identity.py`), for S3 the etags without quotes. Empty for a delete marker.
        classes: Storage classes, None if the server sends none.
        common: The common prefixes up to the delimiter.
        version_ids: Only in a listing of versions, as are the next two. Empty text for an object
            from before versioning that has no id.
        latest: True for the newest version of a key.
        markers: True for a delete marker.
    """

    keys: list[bytes]
    sizes: list[int]
    modified: list[str]
    etags: list[str]
    classes: list[str | None]
    common: list[bytes]
    version_ids: list[str]
    latest: list[bool]
    markers: list[bool]

    @property
    def last(self) -> bytes | None:
        """Return the last key or common prefix of the page, None if it is empty."""
        return max([*self.keys[-1:], *self.common[-1:]], default=None)

    def select(self, rows: Sequence[int]) -> Self:
        """Return the page with these objects, and all common prefixes."""
        columns: dict[str, list[Any]] = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "common"}
        # A listing without versions has no column of them.
        return replace(self, **{name: [column[row] for row in rows] if column else [] for name, column in columns.items()})

    def require_prefix(self, prefix: bytes, location: str) -> None:
        """Raise `StoreError` if the keys, which are in order, do not all begin with a prefix."""
        for name in [*self.keys[:1], *self.keys[-1:], *self.common[:1], *self.common[-1:]]:
            if not name.startswith(prefix):
                raise StoreError(
                    f"{location}: a page contains {name!r}, expected keys that begin with {prefix!r}. "
                    "A proxy or cache may return answers to other requests; connect to the server directly"
                )


class ConditionalBucket(Protocol):
    """A bucket, or a prefix of one."""

    @property
    def name(self) -> str: ...

    @property
    def prefix(self) -> str:
        """Return the prefix of the storage's keys. Empty, or ends in `/`."""
        ...

    @property
    def settings(self) -> StoreSettings: ...

    @property
    def location(self) -> str:
        """Return the address of the storage."""
        ...

    @property
    def max_key_bytes(self) -> int:
        """Return the length of the longest whole key (UTF-8)."""
        ...

    @property
    def compares_in_batches(self) -> bool:
        """Return True if `delete` sends the tokens of its objects."""
        ...

    @property
    def null_version(self) -> str | None:
        """Return the version id of an object that a bucket with versions names without one."""
        ...

    @property
    def unknown_token(self) -> str:
        """Return a valid token that no object has."""
        ...

    def address(self, key: str) -> str: ...

    # Reads.

    def head(self, key: str, role: Role = "change", version_id: str | None = None) -> ObjectInfo | None:
        """Return the object at a key, or None if it is missing or hidden by a delete marker."""
        ...

    def read(self, key: str, role: Role = "change", version_id: str | None = None) -> tuple[bytes, ObjectInfo]:
        """Return the complete bytes of an object, which belong to the returned description.

        Raises `OSError` with `EFBIG` for an object above `MAX_OBJECT_BYTES`, and for a truncated
        answer.
        """
        ...

    def list_pages(
        self, prefix: str = "", after: bytes = b"", *, delimiter: str = "", role: Role = "read", versions: bool = False
    ) -> Iterator[Page]:
        """Yield pages of the keys that begin with `prefix` and follow `after`, in byte order.

        The arguments are relative to the storage. Pages are checked: a page that is truncated,
        repeats or goes back raises `StoreError`, and so does a page that does not follow the last
        one. With `versions`, all versions of a key are listed, the newest first.
        """
        ...

    def newest_versions(self, key: str, at_most: int, role: Role = "change") -> list[Version]:
        """Return versions and delete markers of one key, the newest first.

        In a bucket without versions, the current object is a version too. Its id is one that `head`,
        `read` and `delete` accept for the current object.
        """
        ...

    def versioning(self, role: Role) -> Versioning: ...

    def read_blocks(self, key: str, role: Role = "read") -> Iterator[bytes]:
        """Yield the bytes of an object of any size, in blocks."""
        ...

    def reach(self, attempts: int) -> datetime | None:
        """List one key of the storage, with at most these attempts.

        Returns the server's time from the answer, or None if it does not contain it.
        """
        ...

    def now(self) -> datetime:
        """Return the server's time, which dates its objects (UTC).

        Raises `StoreError` if the server does not send it.
        """
        ...

    # Changes.

    def put(self, key: str, content: bytes) -> Change:
        """Write an object, whatever the key has."""
        ...

    def put_if_absent(self, key: str, content: bytes) -> Change:
        """Create an object. `changed` if the key has one, which may be ours after a lost answer."""
        ...

    def put_if_match(self, key: str, content: bytes, token: str) -> Change:
        """Replace the object with this token."""
        ...

    def copy_if_match(self, source: ObjectInfo, key: str, to: str, entry: tuple[str, str]) -> Change:
        """Copy the object that `source` describes to a key that only the collector uses.

        The copy keeps metadata, tags, storage class and encryption, and has one more metadata entry
        (name, value), which replaces those of `COPY_ENTRIES`. A copy that the server makes in
        the background is awaited, also if an earlier attempt has started it. If the source has
        another token, nothing is copied: `changed`.
        """
        ...

    def copy_if_absent(self, source: ObjectInfo, key: str, to: str, entry: tuple[str, str]) -> Change:
        """Copy an object of the collector to a key without an object. `changed` if it has one.

        An unfinished copy with the same entry is no other object: it is awaited, or made again.
        """
        ...

    def delete_if_match(self, key: str, token: str | None) -> Change:
        """Delete the current object in one attempt.

        The server compares the token if it supports that, otherwise it deletes any object: the
        caller has compared the object immediately before. `token` is None for no condition.
        """
        ...

    def delete(self, objects: Sequence[Deletion]) -> list[Change]:
        """Delete objects in few requests, and return one result for each, in order.

        If a request fails or its answer is lost, its keys are `failed` or `unknown`, and the other
        requests count.
        """
        ...
