"""What an address names: the scheme, and the one spelling of the path on a disk or of the bucket and
key on S3 (design 6.2).

Percent signs and Unicode are data, compared as bytes. Knows the rules of local disks and S3, and
touches the disk in one place only, `SymbolicLinks`.
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
_ALIASES: Final[dict[str, Scheme]] = {"file": FILE, "s3": S3, "s3a": S3, "s3n": S3}


@dataclass(frozen=True, slots=True)
class Location:
    """A place below which objects lie. `root` is an absolute path or `bucket/prefix`, and always
    ends in one `/`.
    """

    scheme: Scheme
    root: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a location as text. Raises `UsageError` for anything but an absolute local path or
        an S3 location.
        """
        try:
            place = parsed_address(text)
        except FormatError as error:
            raise UsageError(f"storage location {text!r}: {error}") from None
        if place is None:
            raise UsageError(f"storage location {text!r} is on no supported store; write file:///path/ or s3://bucket/prefix/")
        scheme, path = place
        return cls(scheme, path if path.endswith("/") else path + "/")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.root}"

    def contains(self, other: Location) -> bool:
        """True for the location itself and everything below it, by whole path segments."""
        return self.scheme == other.scheme and other.root.startswith(self.root)

    def without_links(self) -> Location:
        """Returns the same place with symbolic links resolved on this machine's disk."""
        return self if self.scheme != FILE else Location(FILE, os.path.realpath(self.root).rstrip("/") + "/")


def overlapping(locations: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns pairs of (name, location) whose locations are equal or nested, the outer one first."""
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
    """Returns the scheme of an address by its one name. Aliases become one, a bare path is `file`,
    and an unknown scheme is returned in lower case.
    """
    match = _SCHEME.match(address)
    return FILE if match is None else _ALIASES.get(match[1].lower(), match[1].lower())


def bucket_and_key(address: str) -> tuple[str, str]:
    """Returns the bucket and the key that an address on S3 names, byte for byte. The key of a
    bucket's own address is empty.

    Raises `StoreError` for an address that is not on S3.
    """
    match = _SCHEME.match(address)
    if match is None or _ALIASES.get(match[1].lower()) != S3:
        raise StoreError(f"{address!r} is not on S3; expected s3://bucket/key")
    bucket, _, key = _bucket_and_key(address, address[match.end() :]).partition("/")
    return bucket, key


class SymbolicLinks:
    """Where local directories really are. Each directory is looked up on the disk once."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def real(self, directory: str) -> str:
        """Returns the directory without symbolic links, ending in `/`. A directory that does not
        exist stays as it is written.

        Raises `StoreError` where the disk does not let us see whether there is a link.
        """
        if directory not in self._real:
            try:
                found = os.path.realpath(directory, strict=True)
            except (FileNotFoundError, NotADirectoryError):
                found = os.path.realpath(directory)
            except OSError as error:
                raise StoreError(
                    f"directory {directory!r}: {error.strerror}, so nobody can tell whether it leads into a storage; "
                    "make it readable for this process, or mend the link"
                ) from error
            self._real[directory] = found.rstrip("/") + "/"
        return self._real[directory]


def parsed_address(address: str) -> tuple[Scheme, str] | None:
    """Returns scheme and canonical path (`/a/b`, or `bucket/a/b`), or null for a scheme of another
    store.
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
        raise FormatError(f"address {address!r} holds no absolute path; expected file:///path")
    return collapsed(path)


def _bucket_and_key(address: str, rest: str) -> str:
    bucket = rest[2:].partition("/")[0]
    if not rest.startswith("//") or not bucket or "@" in bucket or ":" in bucket:
        shown = address.replace(bucket.rpartition("@")[0], "***") if "@" in bucket else address
        raise FormatError(f"address {shown!r} holds no plain bucket; expected s3://bucket/key, without user or port")
    return rest[2:]


def collapsed(path: str) -> str:
    """Returns a POSIX path that starts with `/` and has neither empty nor `.` components. A
    directory keeps its last slash.
    """
    parts = path.split("/")
    kept = [part for part in parts if part not in {"", "."}]
    return "/" + "/".join(kept) + ("/" if kept and parts[-1] in {"", "."} else "")
