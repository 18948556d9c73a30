"""Recognise addresses that refer to a storage's bucket, but write it in an unusual way.

Some readers accept credentials in an address (`oss://ID:KEY@bucket/key`), an endpoint after the
bucket (`oss://bucket.oss-cn-hangzhou.aliyuncs.com/key`), or a region or endpoint before it
(`s3://us-east-1/bucket/key`). Some also decode the key, or remove empty components and `.` from it,
as Hadoop's file systems do. Such addresses are not resolved, because other readers would find a
different object there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa

from gc_assets.core.errors import FormatError
from gc_assets.core.key_resolver import loosen_spelling
from gc_assets.core.paths import AZURE, FILE, GCS, S3, Location, parse_address, scheme_of
from gc_assets.core.urls import ENDPOINT, Url, is_provider_host, is_region, provider_schemes

# RE2 pattern for an empty or `.` component, an encoded `/`, or a backslash after bucket or host.
UNSTABLE_KEY: Final = r"(?is)^[a-z][a-z0-9+.-]*://[^/]*(?:/(?:.*/)?\.?/|.*(?:%2f|\\))"
# RE2 pattern for addresses with a region or the host of a provider in place of the bucket.
AT_ENDPOINT: Final = rf"(?i)^[a-z][a-z0-9+.-]*://(?:[^/]*@)?{ENDPOINT}/"
# Paths of Google's JSON interface begin with these components, and the bucket follows later.
_GOOGLE_API: Final = frozenset({"storage", "download", "upload"})
_WEB: Final = "https"


@dataclass(frozen=True, slots=True)
class OwnBuckets:
    """The buckets of storages and aliases.

    Attributes:
        names: Pairs of scheme and bucket. On Azure, a bucket is `container@host`.
        hosts: Hosts of the storages' endpoints.
        roots: Decoded locations of the storages.
        has_encoded_root: True if the location of a storage contains `%`.
    """

    names: frozenset[tuple[str, str]]
    hosts: frozenset[str]
    roots: tuple[str, ...] = ()
    has_encoded_root: bool = False

    @classmethod
    def of(cls, storages: Sequence[tuple[str, str | None]], aliases: frozenset[tuple[str, str]]) -> Self:
        """Collect the buckets of storages and aliases.

        Args:
            storages: Pairs of location and endpoint.
            aliases: Pairs of scheme and bucket.
        """
        endpoints = {endpoint for _, endpoint in storages if endpoint is not None}
        hosts = frozenset(endpoint.partition("://")[2].rstrip("/").lower() for endpoint in endpoints)
        roots = tuple(sorted(filter(None, (_decode_directory(location) for location, _ in storages))))
        return cls(
            aliases.union(*(_buckets(location, endpoint) for location, endpoint in storages)),
            hosts,
            roots,
            any("%" in location for location, _ in storages),
        )

    def contain_decoded(self, directory: str) -> bool:
        """Return True if an address ending in `/` is in a storage after both are percent-decoded."""
        decoded = _decode_directory(directory)
        return decoded is not None and decoded.startswith(self.roots)

    def has_unusual_spelling(self, url: Url) -> bool:
        """Return True if an address contains a bucket in any form but `scheme://bucket/key`."""
        first = url.path.split("/")[1]
        if url.scheme == _WEB:
            buckets = self._on_host(url.authority)
            is_api = GCS in provider_schemes(f"https://{url.authority}") and first in _GOOGLE_API
            return bool(buckets) and (is_api or self._names_bucket(url))
        buckets = {bucket for scheme, bucket in self.names if scheme == url.scheme}
        bare = url.authority if url.scheme == AZURE else url.authority.rpartition("@")[2]
        if bare in buckets:
            return bare != url.authority
        if bare.lower() in {bucket.lower() for bucket in buckets}:
            return True
        if self._is_endpoint(bare) and first in buckets:
            return True
        return any(bare.startswith(f"{bucket}.") and self._is_endpoint(bare.removeprefix(f"{bucket}.")) for bucket in buckets)

    def contains(self, url: Url) -> bool:
        """Return True if an address refers to one of the buckets, in any form."""
        return (url.scheme, url.authority) in self.names or self._names_bucket(url) or self.has_unusual_spelling(url)

    def _names_bucket(self, url: Url) -> bool:
        """Return True if the host or the path of an HTTP URL begins with one of the buckets."""
        if url.scheme != _WEB:
            return False
        if url.aws_bucket is not None:
            return (S3, url.aws_bucket) in self.names
        first = url.path.split("/")[1]
        if (AZURE, f"{first}@{url.authority}") in self.names:
            return True
        return any(first == bucket or url.authority.startswith(f"{bucket}.") for bucket in self._on_host(url.authority))

    def _on_host(self, host: str) -> set[str]:
        """Return the buckets that may be accessible through a web host."""
        schemes = {S3, *provider_schemes(f"https://{host}")} if host in self.hosts else {*provider_schemes(f"https://{host}")}
        return {bucket for scheme, bucket in self.names if scheme in schemes}

    def _is_endpoint(self, authority: str) -> bool:
        return authority.lower() in self.hosts or is_region(authority) or is_provider_host(authority)


def _decode_directory(address: str) -> str | None:
    """Percent-decode the address of a directory in a bucket. Returns None for all other addresses."""
    try:
        parsed = parse_address(f"{address.rstrip('/')}/")
    except FormatError:
        return None
    if parsed is None or parsed[0] == FILE:
        return None
    return f"{parsed[0]}:{loosen_spelling(pa.array([parsed[1]]))[0].as_py()}"


def _buckets(location: str, endpoint: str | None) -> Iterator[tuple[str, str]]:
    scheme = scheme_of(location)
    if scheme not in {S3, GCS, AZURE}:
        return
    bucket = Location.parse(location).root.partition("/")[0]
    yield scheme, bucket
    if scheme == S3:
        yield from ((other, bucket) for other in provider_schemes(endpoint))
