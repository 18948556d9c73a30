"""The protocol of a bucket whose requests accept conditions, and its values.

Each client package implements it (for example `gc_assets/s3/bucket.py`). `stores/conditional`
builds leases, quarantine, objects and the probe on it.

Rules:

- Keys are relative to `prefix` and used byte for byte, even with `//`, `/./` or a trailing `/`.
- Reads raise `OSError`: `FileNotFoundError` for a missing object, `PermissionError` if denied.
- Changes do not raise `OSError`. They return a `Change`, whose verdict states what is known.
- A request that creates or deletes the current object of a key is sent only once, unless its own
  condition prevents a second effect. So `put_if_absent` may be retried, but not a delete without a
  condition. The caller compares the object before trying again.
- `unknown` means that the request may have been executed, because its response was lost or came
  from a proxy. Only requests that were certainly not executed are `failed`.
- All requests pass through the rate limiter of the settings, and are counted with their price.
- A bucket is a frozen, thread-safe value that pickles without secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Final, Literal, Protocol, Self

from gc_assets.config.connections import StoreSettings
from gc_assets.core.errors import StoreError

# `read` is used by runs and plans, `change` by an apply.
Role = Literal["read", "change"]

# Names of metadata entries with the original identity: on copies in the trash and restored copies.
QUARANTINED: Final = "gc-assets-quarantined"
RESTORED: Final = "gc-assets-restored"
COPY_ENTRIES: Final = frozenset({QUARANTINED, RESTORED})

# done: executed. absent: there is no object at the key. changed: the condition was false, so
# nothing was changed. denied: rejected, and a retry does not help. unsupported: the store does not
# evaluate this condition, and nothing was changed. failed: not executed, and a retry may help.
# unknown: may have been executed.
ChangeVerdict = Literal["done", "absent", "changed", "denied", "unsupported", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Change:
    """Result of a request that changes a bucket.

    Attributes:
        verdict: The outcome.
        error: The error, for every verdict except `done`.
        version_id: The id of the created version, in a bucket that keeps versions.
        marker: The id of the delete marker created by a delete.
        token: The token of the written object, if the response contains it.
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
        """Return the error message. Empty if there is no error."""
        return "" if self.error is None else self.error.strerror or str(self.error)

    def require(self) -> Self:
        """Return the change if it was done, otherwise raise its error."""
        if self.error is not None:
            raise self.error
        return self


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object, as described by the response to a request for it.

    Attributes:
        identity: `<token>-<size>-<modification time in seconds>`, as in listings (`identity.py`).
        size_bytes: Its size.
        modified: Its modification time.
        version_id: Its version, in a bucket that keeps versions.
        metadata: The user-defined metadata, with lower-case names.
        unfinished: The collector's metadata entries on a copy that the server has not completed or
            has aborted. They are not in `metadata`.
        token_is_checksum: False if the token depends on more than the bytes. If True, a token that
            looks like an MD5 is compared with the token of a copy.
        answer: The complete response, for the bucket's own use.
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
        """Return True if a delete keeps the deleted object as a version."""
        return self.status == "Enabled"

    @property
    def has_versions(self) -> bool:
        """Return True if objects may have versions, even if versioning is now suspended."""
        return bool(self.status)


@dataclass(frozen=True, slots=True)
class Deletion:
    """An object to delete.

    Attributes:
        key: The key.
        version_id: The version to delete permanently, or None for the current object.
        token: If set, only an object with this token is deleted. Used only for buckets with
            `compares_in_batches` and by the probe.
    """

    key: str
    version_id: str | None = None
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Objects of one page, in order, as columns.

    Attributes:
        keys: Full keys, including the prefix of the storage, as bytes.
        sizes: Sizes in bytes. 0 for a delete marker.
        modified: Modification times as ISO 8601 text from the server.
        etags: Tokens (`identity.py`), for S3 the etags without quotes. Empty for a delete marker.
        classes: Storage classes. None if the response contains no class.
        common: The common prefixes up to the delimiter.
        version_ids: Version ids. An empty string for an object from before versioning without an
            id. This column and the next two are filled only in listings of versions.
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
        """Return the last key or common prefix of the page, or None if the page is empty."""
        return max([*self.keys[-1:], *self.common[-1:]], default=None)

    def select(self, rows: Sequence[int]) -> Self:
        """Return the page with these objects, and all common prefixes."""
        columns: dict[str, list[Any]] = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "common"}
        # The columns of versions are empty in a listing without versions.
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
        """Return the maximum length of a full key, in UTF-8 bytes."""
        ...

    @property
    def compares_in_batches(self) -> bool:
        """Return True if `delete` sends the tokens of its objects."""
        ...

    @property
    def null_version(self) -> str | None:
        """Return the version id for objects that a bucket with versions returns without an id."""
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
        """Return the complete bytes of an object, and its description, which matches the bytes.

        Raises `OSError` if the response is truncated, and with `EFBIG` if the object is larger than
        `MAX_OBJECT_BYTES`.
        """
        ...

    def list_pages(
        self, prefix: str = "", after: bytes = b"", *, delimiter: str = "", role: Role = "read", versions: bool = False
    ) -> Iterator[Page]:
        """Yield pages of the keys that begin with `prefix` and follow `after`, in byte order.

        The arguments are relative to the storage. Raises `StoreError` if a page is truncated, or
        does not continue after the previous page. With `versions`, all versions of a key are
        listed, the newest first.
        """
        ...

    def newest_versions(self, key: str, at_most: int, role: Role = "change") -> list[Version]:
        """Return at most `at_most` versions and delete markers of one key, the newest first.

        In a bucket without versions, the current object is returned as the only version. Its id is
        accepted by `head`, `read` and `delete` for the current object.
        """
        ...

    def versioning(self, role: Role) -> Versioning: ...

    def read_blocks(self, key: str, role: Role = "read") -> Iterator[bytes]:
        """Yield the bytes of an object of any size, in blocks."""
        ...

    def reach(self, attempts: int) -> datetime | None:
        """List one key of the storage, with a limited number of attempts.

        Returns the server's time from the response, or None if the response does not contain it.
        """
        ...

    def now(self) -> datetime:
        """Return the server's time (UTC), on which modification times are based.

        Raises `StoreError` if the server does not send it.
        """
        ...

    # Changes.

    def put(self, key: str, content: bytes) -> Change:
        """Write an object unconditionally."""
        ...

    def put_if_absent(self, key: str, content: bytes) -> Change:
        """Create an object. Returns `changed` if one exists (ours, if a response was lost)."""
        ...

    def put_if_match(self, key: str, content: bytes, token: str) -> Change:
        """Replace the object if it has this token."""
        ...

    def copy_if_match(self, source: ObjectInfo, key: str, to: str, entry: tuple[str, str]) -> Change:
        """Copy the object described by `source` to a key that only the collector uses.

        The copy keeps metadata, tags, storage class and encryption, and gets one more metadata
        entry (name, value), which replaces entries in `COPY_ENTRIES`. If the server copies in the
        background, the call waits for the copy, even if an earlier attempt started it. If the
        source now has another token, nothing is copied and the verdict is `changed`.
        """
        ...

    def copy_if_absent(self, source: ObjectInfo, key: str, to: str, entry: tuple[str, str]) -> Change:
        """Copy one of the collector's objects to a key. Returns `changed` if the key has an object.

        An unfinished copy with the same entry does not count as an object. The call waits for it or
        makes it again.
        """
        ...

    def delete_if_match(self, key: str, token: str | None) -> Change:
        """Delete the current object in one attempt.

        The server compares the token if it supports that. Otherwise it deletes any object, so the
        caller must compare the object immediately before. If `token` is None, there is no
        condition.
        """
        ...

    def delete(self, objects: Sequence[Deletion]) -> list[Change]:
        """Delete objects in few requests, and return one result per object, in order.

        If a request fails or its response is lost, only its own keys are `failed` or `unknown`.
        """
        ...
