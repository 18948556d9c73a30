"""Parse addresses into a scheme and a canonical path on disk, or bucket and key on S3.

Percent signs and Unicode characters are data and compared bytewise. Only `SymbolicLinks` and
`Location.without_links` access the disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal, Self

from gc_assets.core.errors import FormatError, StoreError, UsageError

FILE: Final = "file"
S3: Final = "s3"
Scheme = Literal["file", "s3"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ARN = re.compile("//arn:", re.IGNORECASE)
_ALIASES: Final[dict[str, Scheme]] = {"file": FILE, "s3": S3, "s3a": S3, "s3n": S3}


@dataclass(frozen=True, slots=True)
class Location:
    """Storage root, i.e. an absolute path or `bucket/prefix`, always ending in one `/`."""

    scheme: Scheme
    root: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a location.

        Raises:
            UsageError: If the location is neither an absolute local path nor on S3.
        """
        try:
            parsed = parse_address(text)
        except FormatError as error:
            raise UsageError(f"storage location {text!r}: {error}") from None
        if parsed is None:
            raise UsageError(f"storage location {text!r} is not on a supported store; write file:///path/ or s3://bucket/prefix/")
        scheme, path = parsed
        return cls(scheme, path if path.endswith("/") else path + "/")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.root}"

    def contains(self, other: Location) -> bool:
        """Return True for the location itself and everything under it."""
        return self.scheme == other.scheme and other.root.startswith(self.root)

    def without_links(self) -> Location:
        """Resolve symbolic links on this machine."""
        return self if self.scheme != FILE else Location(FILE, os.path.realpath(self.root).rstrip("/") + "/")


def overlapping(locations: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return (name, location) pairs with equal or nested locations, the outer one first."""
    parsed = [(name, Location.parse(location)) for name, location in locations]
    pairs: list[tuple[str, str]] = []
    for (first, one), (second, other) in combinations(parsed, 2):
        if one.contains(other):
            pairs.append((first, second))
        elif other.contains(one):
            pairs.append((second, first))
    return pairs


def is_address(text: str) -> bool:
    """Return True for a URI or an absolute path, False for a canonical key."""
    return text.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text) is not None


def scheme_of(address: str) -> str:
    """Return the canonical scheme of an address, `file` for a bare path."""
    match = _SCHEME.match(address)
    return FILE if match is None else _ALIASES.get(match[1].lower(), match[1].lower())


def bucket_and_key(address: str) -> tuple[str, str]:
    """Split an S3 address into the exact bucket and key. The key of a bucket is empty.

    Raises:
        StoreError: If the address is not on S3.
    """
    match = _SCHEME.match(address)
    if match is None or _ALIASES.get(match[1].lower()) != S3:
        raise StoreError(f"{address!r} is not on S3; expected s3://bucket/key")
    bucket, _, key = _bucket_and_key(address, address[match.end() :]).partition("/")
    return bucket, key


class SymbolicLinks:
    """Resolver of symbolic links in local directories, with one lookup per directory."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    @property
    def targets(self) -> dict[str, str]:
        """Real directory of every directory looked up so far."""
        return dict(self._real)

    def real(self, directory: str) -> str:
        """Return the real directory, ending in `/`.

        A directory that does not exist is returned unchanged.

        Raises:
            StoreError: If the lookup is denied or fails.
        """
        if directory not in self._real:
            try:
                found = os.path.realpath(directory, strict=True)
            except (FileNotFoundError, NotADirectoryError):
                found = os.path.realpath(directory)
            except OSError as error:
                raise StoreError(
                    f"directory {directory!r}: {error.strerror}, so it is unknown whether it leads into a storage; "
                    "make it readable for this process, or repair the link"
                ) from error
            self._real[directory] = found.rstrip("/") + "/"
        return self._real[directory]


def parse_address(address: str) -> tuple[Scheme, str] | None:
    """Return the scheme and the canonical path (`/a/b`, or `bucket/a/b`).

    Returns None for unsupported schemes and S3 access points.

    Raises:
        FormatError: If the address is relative, or contains a `..` component or a host.
    """
    match = _SCHEME.match(address)
    if match is None:
        if not address.startswith("/"):
            raise FormatError(f"address {address!r} is relative; expected an absolute path or a URI, resolved by the lake that wrote it")
        scheme, rest = FILE, address
    else:
        known = _ALIASES.get(match[1].lower())
        if known is None:
            return None
        scheme, rest = known, address[match.end() :]
        if scheme == S3 and _ARN.match(rest) is not None:
            return None  # an access point, whose bucket is unknown
    if ".." in rest.split("/"):
        raise FormatError(f"address {address!r} has a `..` component, which systems resolve differently; expected none")
    return scheme, _local_path(address, rest) if scheme == FILE else _bucket_and_key(address, rest)


def _local_path(address: str, rest: str) -> str:
    path = rest
    if rest.startswith("//") and rest != address:
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in {"", "localhost"}:
            raise FormatError(f"address {address!r} names the host {host!r}; expected file:///path, without a host")
        path = slash + path
    if not path.startswith("/"):
        raise FormatError(f"address {address!r} contains no absolute path; expected file:///path")
    return collapse_path(path)


def _bucket_and_key(address: str, rest: str) -> str:
    bucket = rest[2:].partition("/")[0]
    if not rest.startswith("//") or not bucket or "@" in bucket or ":" in bucket:
        shown = address.replace(bucket.rpartition("@")[0], "***") if "@" in bucket else address
        raise FormatError(f"address {shown!r} contains no plain bucket; expected s3://bucket/key, without user or port")
    return rest[2:]


def collapse_path(path: str) -> str:
    """Remove empty and `.` components from an absolute POSIX path, but keep a trailing slash."""
    parts = path.split("/")
    kept = [part for part in parts if part not in {"", "."}]
    return "/" + "/".join(kept) + ("/" if kept and parts[-1] in {"", "."} else "")
