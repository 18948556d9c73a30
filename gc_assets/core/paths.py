"""Parse addresses of files and objects.

An address is split into its scheme and a canonical path, which in an object store consists of
bucket and key. Percent signs and Unicode characters are not decoded or normalized. Only
`SymbolicLinks` and `Location.without_links` access the disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal, Self

from gc_assets.core.errors import FormatError, StoreError, UsageError

FILE: Final = "file"
S3: Final = "s3"
GCS: Final = "gs"
AZURE: Final = "abfss"
Scheme = Literal["file", "s3", "gs", "abfss"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ARN = re.compile("//arn:", re.IGNORECASE)
# Matches hosts of an Azure storage account, such as `account.blob.core.windows.net`. Its replica,
# private links and other routes have different host names, but belong to the same account.
_AZURE_HOST = re.compile(
    r"(?P<account>[a-z0-9]{3,24})(?:-[a-z0-9]+)?(?P<zone>\.z\d+)?(?:\.privatelink)?\.(?:blob|dfs)"
    r"\.(?P<cloud>core\.(?:windows\.net|usgovcloudapi\.net|chinacloudapi\.cn|cloudapi\.de)|storage\.azure\.net)"
)


@dataclass(frozen=True, slots=True)
class Location:
    """The root of a storage: an absolute path or `bucket/prefix`, always with a trailing slash."""

    scheme: Scheme
    root: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a location, such as `file:///data/` or `s3://bucket/prefix`.

        Raises:
            UsageError: If it is neither an absolute local path nor in a supported object store.
        """
        try:
            parsed = parse_address(text)
        except FormatError as error:
            raise UsageError(f"storage location {text!r}: {error}") from None
        if parsed is None:
            examples = " or ".join(["file:///path/", *(form.example for form in BUCKET_FORMS.values())])
            raise UsageError(f"storage location {text!r} is not on a supported store; write {examples}")
        scheme, path = parsed
        return cls(scheme, path if path.endswith("/") else path + "/")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.root}"

    def contains(self, other: Location) -> bool:
        """Return True if `other` is this location or a location inside it."""
        return self.scheme == other.scheme and other.root.startswith(self.root)

    def without_links(self) -> Location:
        """Resolve symbolic links in a local path. Other locations are returned unchanged."""
        return self if self.scheme != FILE else Location(FILE, os.path.realpath(self.root).rstrip("/") + "/")


def overlapping(locations: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Find locations that are equal or nested.

    Args:
        locations: Pairs of name and location.

    Returns:
        Pairs of names, with the outer location first.
    """
    parsed = [(name, Location.parse(location)) for name, location in locations]
    pairs: list[tuple[str, str]] = []
    for (first, one), (second, other) in combinations(parsed, 2):
        if one.contains(other):
            pairs.append((first, second))
        elif other.contains(one):
            pairs.append((second, first))
    return pairs


def is_address(text: str) -> bool:
    """Return True if a string is a URI or an absolute path, as opposed to a canonical key."""
    return text.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text) is not None


def scheme_of(address: str) -> str:
    """Return the canonical scheme of an address. A path without a scheme has the scheme `file`."""
    match = _SCHEME.match(address)
    if match is None:
        return FILE
    name = match[1].lower()
    return _ALIASES.get(name, name)


def is_of_known_scheme(address: str) -> bool:
    """Return True if a store supports the scheme of the address."""
    return scheme_of(address) == FILE or is_in_bucket(address)


def is_in_bucket(address: str) -> bool:
    """Return True if the address belongs to a supported object store."""
    return scheme_of(address) in BUCKET_FORMS


def bucket_and_key(address: str, scheme: Scheme = S3) -> tuple[str, str]:
    """Split an address into bucket and key. If the address is only a bucket, the key is empty.

    Args:
        address: An address with any synonym of the scheme, such as `s3a`.
        scheme: The expected canonical scheme.

    Raises:
        StoreError: If the address has another scheme.
    """
    form, match = BUCKET_FORMS[scheme], _SCHEME.match(address)
    if match is None or _ALIASES.get(match[1].lower()) != scheme:
        raise StoreError(f"{address!r} is not on {form.store}; expected {form.example}")
    path = form.parse(address, match[1].lower(), address[match.end() :])
    if path is None:
        raise StoreError(f"{address!r} is not on {form.store}; expected {form.example}")
    bucket, _, key = path.partition("/")
    return bucket, key


class SymbolicLinks:
    """Resolves symbolic links in local directories, and caches the results."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    @property
    def targets(self) -> dict[str, str]:
        """All directories resolved so far, with their real directories."""
        return dict(self._real)

    def real(self, directory: str) -> str:
        """Return the real directory with a trailing slash.

        If the directory does not exist, links in the existing part of its path are resolved.

        Raises:
            StoreError: If the directory cannot be examined.
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
    """Parse an address.

    Returns:
        The scheme and the canonical path, such as `/a/b` or `bucket/a/b`. None if the store is not
        supported or the bucket is unknown, as for S3 access points.

    Raises:
        FormatError: If the address is relative, or contains a `..` component or a host.
    """
    match = _SCHEME.match(address)
    if match is None:
        if not address.startswith("/"):
            raise FormatError(f"address {address!r} is relative; expected an absolute path, or an address such as s3://bucket/prefix/")
        scheme, rest = FILE, address
    else:
        known = _ALIASES.get(match[1].lower())
        if known is None:
            return None
        scheme, rest = known, address[match.end() :]
        if scheme == S3 and _ARN.match(rest) is not None:
            return None  # an access point, whose bucket is unknown
    path = _local_path(address, rest) if match is None or scheme == FILE else BUCKET_FORMS[scheme].parse(address, match[1].lower(), rest)
    if ".." in (path or rest).split("/"):
        raise FormatError(f"address {address!r} contains `..`, which systems resolve differently; write the address without it")
    return None if path is None else (scheme, path)


def _local_path(address: str, rest: str) -> str:
    path = rest
    if rest.startswith("//") and rest != address:
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in {"", "localhost"}:
            raise FormatError(f"address {address!r} contains the host {host!r}; expected file:///path, without a host")
        path = slash + path
    if not path.startswith("/"):
        raise FormatError(f"address {address!r} does not contain an absolute path; expected file:///path")
    return collapse_path(path)


def _bucket_and_key(address: str, spelling: str, rest: str) -> str:
    bucket = rest[2:].partition("/")[0]
    if not rest.startswith("//") or not bucket or "@" in bucket or ":" in bucket:
        shown = address.replace(bucket.rpartition("@")[0], "***") if "@" in bucket else address
        raise FormatError(f"address {shown!r} contains no plain bucket; expected {_ALIASES[spelling]}://bucket/key, without user or port")
    return rest[2:]


def azure_host(host: str) -> str | None:
    """Convert a host name of an Azure storage account to `account.dfs.core.windows.net`.

    Returns None for other hosts, such as `onelake.dfs.fabric.microsoft.com` and custom domains.
    """
    found = _AZURE_HOST.fullmatch(host.lower())
    return None if found is None else f"{found['account']}{found['zone'] or ''}.dfs.{found['cloud']}"


def _azure_container_and_key(address: str, spelling: str, rest: str) -> str | None:
    """Return `container@account.dfs.core.windows.net/key`, or None if the account is unknown."""
    del address, spelling
    # Azure replaces backslashes in the names of blobs.
    authority, slash, key = rest[2:].replace("\\", "/").partition("/")
    container, _, host = authority.partition("@")
    canonical = azure_host(host)
    if not rest.startswith("//") or not container or ":" in container or canonical is None:
        return None
    return f"{container}@{canonical}{slash}{key}"


def collapse_path(path: str) -> str:
    """Remove empty components and `.` from an absolute POSIX path, but keep a trailing slash."""
    parts = path.split("/")
    kept = [part for part in parts if part not in {"", "."}]
    return "/" + "/".join(kept) + ("/" if kept and parts[-1] in {"", "."} else "")


@dataclass(frozen=True, slots=True)
class BucketForm:
    """The formats of addresses in one object store. `BUCKET_FORMS` lists all object stores.

    Attributes:
        store: Name of the store, for messages.
        example: Example of a location.
        spellings: Interchangeable schemes, beginning with the canonical one.
        parse: Function that converts an address to `bucket/key`. Its arguments are the address, the
            scheme in lower case, and the part after the colon. It returns None if the object store
            is unknown.
        other_spellings: Schemes with a different syntax after the colon, which `parse` converts.
    """

    store: str
    example: str
    spellings: tuple[str, ...]
    parse: Callable[[str, str, str], str | None]
    other_spellings: tuple[str, ...] = ()


BUCKET_FORMS: Final[Mapping[Scheme, BucketForm]] = {
    S3: BucketForm("S3", "s3://bucket/prefix/", ("s3", "s3a", "s3n"), _bucket_and_key),
    GCS: BucketForm("Google Cloud Storage", "gs://bucket/prefix/", ("gs", "gcs"), _bucket_and_key),
    AZURE: BucketForm(
        "Azure",
        "abfss://container@account.dfs.core.windows.net/prefix/",
        ("abfss", "abfs"),
        _azure_container_and_key,
        ("wasbs", "wasb", "az", "azure"),
    ),
}
_ALIASES: Final[Mapping[str, Scheme]] = {
    "file": FILE,
    **{spelling: scheme for scheme, form in BUCKET_FORMS.items() for spelling in (*form.spellings, *form.other_spellings)},
}
