"""The protocol for buckets whose requests accept conditions.

Clients such as `gc_assets/s3/bucket.py` implement it, and `stores/conditional` builds leases and
quarantine on top of it. Implementations must follow these rules:

- Keys are relative to `prefix` and used byte for byte, even if they contain `//` or `/./`, or end
  in `/`.
- Reads raise `OSError`. If the object is missing this is a `FileNotFoundError`, and if the request
  is denied a `PermissionError`.
- Changes return a `Change` instead of raising `OSError`. Its verdict states what is known.
- `failed` is only used for requests that were certainly not executed. If a response was lost or
  came from a proxy, the request may have been executed and the verdict is `unknown`.
- A request that creates or deletes the current object at a key is not retried, unless its own
  condition prevents a second effect. For example, `put_if_absent` may be retried, but not a delete
  without a condition. The caller compares the object before it tries again.
- Every request waits for a rate limiter and is counted with its price.
- A bucket is a frozen, thread-safe value. It is pickled and sent to Spark executors without
  secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Final, Literal, Protocol, Self

from gc_assets.config.connections import StoreSettings
from gc_assets.core.errors import StoreError

# Runs and plans use the role `read`, an apply uses `change`.
Role = Literal["read", "change"]

# Copies in the trash and restored copies have one of these metadata entries, which contains the
# original identity.
QUARANTINED: Final = "gc-assets-quarantined"
RESTORED: Final = "gc-assets-restored"
COPY_ENTRIES: Final = frozenset({QUARANTINED, RESTORED})

# The outcome of a request, as far as it is known:
# done: It was executed.
# absent: There is no object at the key.
# changed: The condition was false, so nothing was changed.
# denied: It was rejected, and a retry would be too.
# unsupported: The store cannot evaluate the condition. Nothing was changed.
# failed: It was not executed, and a retry may help.
# unknown: It may or may not have been executed.
ChangeVerdict = Literal["done", "absent", "changed", "denied", "unsupported", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Change:
    """The result of a request to change a bucket.

    Attributes:
        verdict: The outcome of the request, as far as it is known.
        error: The error, unless the verdict is `done`.
        version_id: The version that was created, if the bucket keeps versions.
        marker: The delete marker that was created, if any.
        token: The token of the object that was written, if the response contains it.
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
        """The error message, or an empty string."""
        return "" if self.error is None else self.error.strerror or str(self.error)

    def require(self) -> Self:
        """Raise the error if there is one."""
        if self.error is not None:
            raise self.error
        return self


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Information about an object, taken from a response.

    Attributes:
        identity: The same identity as in listings (see `identity.py`).
        size_bytes: The size.
        modified: The modification time.
        version_id: The version, if the bucket keeps versions.
        metadata: The user-defined metadata, with lower-case names.
        unfinished: Metadata entries added by gc-assets, if the object is a copy that the server has
            aborted or not completed. `metadata` then does not contain them.
        token_is_checksum: Whether the token depends only on the object's bytes. If so, a token that
            looks like an MD5 digest can be compared with the token of a copy.
        answer: The complete response, for use by the implementation of the bucket.
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
    """A version of the object at a key, or a delete marker."""

    version_id: str
    is_marker: bool
    modified: datetime


@dataclass(frozen=True, slots=True)
class Versioning:
    """Whether a bucket keeps versions.

    `status` is `Enabled`, `Suspended`, or None if versioning was never enabled.
    """

    status: str | None

    @property
    def is_on(self) -> bool:
        """Whether deleted objects are kept as versions."""
        return self.status == "Enabled"

    @property
    def has_versions(self) -> bool:
        """Whether objects may have versions, even if versioning has been suspended since."""
        return bool(self.status)


@dataclass(frozen=True, slots=True)
class Deletion:
    """An object to be deleted.

    Attributes:
        key: The key of the object.
        version_id: The version to delete permanently. None to delete the current object.
        token: Delete the object only if it has this token. Only buckets with `compares_in_batches`
            and `stores.conditional.probe` use this.
    """

    key: str
    version_id: str | None = None
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a listing, with one list for each column.

    The last three columns are only filled if versions are listed.

    Attributes:
        keys: The full keys, including the prefix of the storage, as bytes.
        sizes: The sizes in bytes. A delete marker has the size 0.
        modified: The modification times, as ISO 8601 strings from the server.
        etags: The tokens (see `identity.py`), without quotes. Empty for delete markers.
        classes: The storage classes, if the response contains them.
        common: The common prefixes up to the delimiter.
        version_ids: The version ids. Empty for an object that is older than the versioning of the
            bucket, if the server does not send an id for it.
        latest: Whether this is the newest version of a key.
        markers: Whether this is a delete marker.
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
        """The last key or common prefix of the page, if there is any."""
        return max([*self.keys[-1:], *self.common[-1:]], default=None)

    def select(self, rows: Sequence[int]) -> Self:
        """Return a page with only the given rows. All common prefixes are kept."""
        columns: dict[str, list[Any]] = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "common"}
        # The columns about versions are empty if versions were not listed.
        return replace(self, **{name: [column[row] for row in rows] if column else [] for name, column in columns.items()})

    def require_prefix(self, prefix: bytes, location: str) -> None:
        """Check that all keys begin with a prefix. The keys must be in order.

        Raises:
            StoreError: If the page contains another key.
        """
        for name in [*self.keys[:1], *self.keys[-1:], *self.common[:1], *self.common[-1:]]:
            if not name.startswith(prefix):
                raise StoreError(
                    f"{location}: a page contains {name!r}, expected keys that begin with {prefix!r}. "
                    "A proxy or cache may return answers to other requests; connect to the server directly"
                )


class ConditionalBucket(Protocol):
    """A bucket, or a prefix in a bucket."""

    @property
    def name(self) -> str: ...

    @property
    def prefix(self) -> str:
        """The prefix of the storage, which is empty or ends in `/`."""
        ...

    @property
    def settings(self) -> StoreSettings: ...

    @property
    def location(self) -> str:
        """The address of the storage."""
        ...

    @property
    def max_key_bytes(self) -> int:
        """The maximum length of a full key, in UTF-8 bytes."""
        ...

    @property
    def max_key_segments(self) -> int | None:
        """The maximum number of path segments in a full key, or None if it is not limited."""
        ...

    @property
    def compares_in_batches(self) -> bool:
        """Whether `delete` sends tokens, so that the server compares them."""
        ...

    @property
    def has_delete_markers(self) -> bool:
        """Whether a delete adds a delete marker if the bucket keeps versions."""
        ...

    @property
    def null_version(self) -> str | None:
        """The version id to use if a bucket with versions returns an object without an id."""
        ...

    @property
    def unknown_token(self) -> str:
        """A token that is valid, but that no object has."""
        ...

    def address(self, key: str) -> str: ...

    # Reads.

    def head(self, key: str, role: Role = "change", version_id: str | None = None) -> ObjectInfo | None:
        """Look up an object. Returns None if it is missing or hidden under a delete marker."""
        ...

    def read(self, key: str, role: Role = "change", version_id: str | None = None) -> tuple[bytes, ObjectInfo]:
        """Read an object completely.

        Returns:
            The bytes, and information that is guaranteed to be about the same bytes.

        Raises:
            OSError: If the response is truncated. If the object is larger than `MAX_OBJECT_BYTES`,
                the error number is `EFBIG`.
        """
        ...

    def list_pages(
        self, prefix: str = "", after: bytes = b"", *, delimiter: str = "", role: Role = "read", versions: bool = False
    ) -> Iterator[Page]:
        """List the keys that begin with `prefix` and come after `after`, in byte order.

        Both arguments are relative to the storage. If `versions` is set, all versions of a key are
        listed, newest first.

        Raises:
            StoreError: If a page is truncated, or does not continue after the previous one.
        """
        ...

    def newest_versions(self, key: str, at_most: int, role: Role = "change") -> list[Version]:
        """List the newest versions and delete markers of a key, newest first.

        In a bucket without versions, the current object is the only version. Its id can still be
        passed to `head`, `read` and `delete`.

        Args:
            key: The key.
            at_most: How many versions are returned at most.
            role: The role to use.
        """
        ...

    def versioning(self, role: Role) -> Versioning: ...

    def read_blocks(self, key: str, role: Role = "read") -> Iterator[bytes]:
        """Read an object of any size, block by block."""
        ...

    def reach(self, attempts: int) -> datetime | None:
        """Check that the storage can be listed, by listing one key with few attempts.

        Returns:
            The time of the server, if the response contains it.
        """
        ...

    def now(self) -> datetime:
        """Return the current time (UTC) of the server, whose clock sets modification times.

        Raises:
            StoreError: If the server does not send it.
        """
        ...

    # Changes.

    def put(self, key: str, content: bytes) -> Change:
        """Write an object without any condition."""
        ...

    def put_if_absent(self, key: str, content: bytes) -> Change:
        """Create an object. The verdict is `changed` if there already is one at the key.

        If a response was lost, the existing object may be the one written by this call.
        """
        ...

    def put_if_match(self, key: str, content: bytes, token: str) -> Change:
        """Replace an object if it has the given token."""
        ...

    def copy_if_match(self, source: ObjectInfo, key: str, to: str, entry: tuple[str, str]) -> Change:
        """Copy an object to a key that only gc-assets uses, for example in the trash.

        Metadata, tags, storage class and encryption are preserved. If the server copies in the
        background, the call waits until the copy is complete, even if an earlier attempt started
        it. If the token of the object has changed, nothing is copied and the verdict is `changed`.

        Args:
            source: The object to copy.
            key: The key of the object.
            to: The key of the copy.
            entry: The name and value of an additional metadata entry. It replaces any entries in
                `COPY_ENTRIES`.
        """
        ...

    def copy_if_absent(self, source: ObjectInfo, key: str, to: str, entry: tuple[str, str]) -> Change:
        """Copy an object at one of gc-assets' own keys to a key without an object.

        If there is an object at the target key, the verdict is `changed`. An exception is an
        unfinished copy with the same metadata entry: the call waits for this copy, or replaces it.
        """
        ...

    def delete_if_match(self, key: str, token: str | None) -> Change:
        """Delete the current object, in a single attempt.

        Servers that do not compare tokens delete whatever object is at the key. The caller must
        therefore compare the object immediately before the call. If `token` is None, the request
        has no condition.
        """
        ...

    def delete(self, objects: Sequence[Deletion]) -> list[Change]:
        """Delete objects with as few requests as possible.

        If a request fails or its response is lost, this only affects the results of its own keys.

        Returns:
            One result for each object, in the order of `objects`.
        """
        ...
