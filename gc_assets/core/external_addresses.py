"""Decide whether an external address may still refer to an object in a storage.

A file may be reachable by several addresses. An address that does not resolve to a storage is
called external. It is either provably outside all storages, or *unknown*. To decide this for
millions of addresses, they are grouped by everything but their last components, and each group is
examined once. Single files are only looked up if their directory exists on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.bucket_spellings import AT_ENDPOINT, UNSTABLE_KEY, OwnBuckets
from gc_assets.core.errors import FormatError
from gc_assets.core.key_resolver import KeyResolver, loosen_spelling
from gc_assets.core.paths import AZURE, FILE, GCS, S3, Location, parse_address, scheme_of
from gc_assets.core.urls import Url, azure_host, is_aws, parse_alias, parse_url, provider_address, provider_schemes

_WEB: Final = "(?i)^https?:"
_LOCAL: Final = "(?i)^(?:file:|/)"
_WEB_GROUP: Final = "(?is)^(https?://[^/?#]*(?:/[^/?#]*)?).*$"
_LOCAL_GROUP: Final = "(?s)[^/]*$"
_OTHER_GROUP: Final = "(?is)^([a-z][a-z0-9+.-]*:(?://[^/]*)?).*$"
_ENDPOINT_GROUP: Final = "(?is)^([a-z][a-z0-9+.-]*://[^/]*/[^/]*).*$"
# AWS reserves these suffixes of bucket names for access points and multi-region access points.
_ACCESS_POINTS: Final = ("-s3alias", "--ol-s3", "--op-s3", "--xa-s3", ".mrap")
# Schemes for object stores of other providers, whose buckets cannot have several names.
_CLOUD_SCHEMES: Final = frozenset({"abfs", "abfss", "adl", "az", "azure", "cos", "cosn", "gcs", "gs", "obs", "oss", "wasb", "wasbs"})
_CLOUD_HOSTS: Final = (
    "storage.googleapis.com",
    ".aliyuncs.com",
    ".myqcloud.com",
    ".myhuaweicloud.com",
    ".blob.core.windows.net",
    ".dfs.core.windows.net",
)
_URL: Final = "^[A-Za-z][A-Za-z0-9+.-]*:"
_PARENT: Final = r"(?:^|/)\.\.(?:/|$)"
_FORMER_ALIAS: Final = "an address under an entry of `aliases` that was removed since an earlier run"
_UNSTABLE: Final = "a key with an empty or `.` component, `%2F` or `\\`, which systems resolve differently"
_ENCODED: Final = "a key that is in a storage if it is percent-decoded"
_NO_FILE: Final = "a file that does not exist on this machine"
# Such a file may be a link to an object in a storage, with a different name.
HIDDEN: Final = "a file that this process cannot examine, so it may be a link with another name; make it accessible, or repair the link"
NO_DIRECTORY: Final = "a directory that does not exist on this machine"
# Used for local files if other files of their table are missing. The directory may be a mount point
# that is not mounted at the moment, so the files found there may not be the actual ones.
OLD_COPY: Final = "a file of a table with files that do not exist on this machine, so it may be an old copy"
# Matches unique parts of names, which are UUIDs or identifiers like the ones of Icechunk.
_UNIQUE: Final = "(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-z]{20}"
_TAIL: Final = r"(?s)(?:(?:^|/)(?P<parent>[^/]*)/)?(?P<base>[^/]*)$"
_HDFS: Final = frozenset({"hdfs", "webhdfs", "swebhdfs"})
_WEB_SCHEMES: Final = frozenset({"http", "https"})
_NO_BUCKETS: Final = frozenset({FILE, *_HDFS})


@dataclass(frozen=True, slots=True)
class ExternalAddresses:
    """Classifies external addresses. An instance can be pickled if its functions can.

    Attributes:
        has_disks: True if a storage or an alias is on a disk or HDFS.
        has_buckets: True if a storage or an alias is on S3, or an alias is an HTTP URL that may be
            on S3.
        servers: Endpoints of storages whose provider is unknown, so that buckets may have several
            names.
        describe_directory: Explains why a local directory outside all storages may belong to one.
            Returns None if this is only possible for files that do not exist in it.
        file_exists: Returns True if this machine has a file at a local address. It is called for
            each file in a directory for which `describe_directory` returns None.
        own_buckets: The buckets of storages and aliases.
        google_buckets: Buckets of storages on Google Cloud, which are also available as `s3://`
            through its S3 interface.
        has_containers: True if a storage or an alias is on Azure.
        alias_buckets: Schemes and possible buckets of aliases. The server of an alias is unknown,
            so the same bucket with another scheme may contain the same objects.
        is_hidden: Returns True if gc-assets cannot examine the file at a local address.
        has_access_points: True if a storage or an alias is an S3 access point, whose bucket is
            unknown.
        removed_aliases: Resolves aliases that storages had in earlier runs. None if they had no
            others.
    """

    has_disks: bool
    has_buckets: bool
    servers: tuple[str, ...]
    describe_directory: Callable[[str], str | None]
    file_exists: Callable[[str], bool]
    own_buckets: OwnBuckets
    google_buckets: frozenset[str] = frozenset()
    has_containers: bool = False
    alias_buckets: frozenset[tuple[str, str]] = frozenset()
    is_hidden: Callable[[str], bool] | None = None
    has_access_points: bool = False
    removed_aliases: KeyResolver | None = None

    @classmethod
    def of(
        cls,
        storages: Sequence[tuple[str, str | None]],
        describe_directory: Callable[[str], str | None],
        file_exists: Callable[[str], bool],
        aliases: Sequence[str] = (),
        is_hidden: Callable[[str], bool] | None = None,
        removed_aliases: KeyResolver | None = None,
    ) -> Self:
        """Create a classifier for a set of storages.

        Args:
            storages: Pairs of location and endpoint. The endpoint is None for AWS and for disks.
            aliases: Additional addresses of the storages.
            removed_aliases: Resolves aliases that storages had in earlier runs.
        """
        locations, forms = [location for location, _ in storages], list(map(provider_address, aliases))
        schemes = {scheme_of(location) for location in (*locations, *forms)}
        servers = {endpoint for _, endpoint in storages if endpoint is not None and not is_aws(endpoint) and not provider_schemes(endpoint)}
        named = frozenset(bucket for alias in forms if scheme_of(alias) not in _NO_BUCKETS for bucket in _buckets_of(alias))
        google = frozenset(Location.parse(location).root.partition("/")[0] for location in locations if scheme_of(location) == GCS)
        return cls(
            FILE in schemes or not _HDFS.isdisjoint(schemes),
            not schemes.isdisjoint({S3, *_WEB_SCHEMES}),
            tuple(sorted(servers)),
            describe_directory,
            file_exists,
            OwnBuckets.of(storages, named),
            google,
            AZURE in schemes,
            named,
            is_hidden,
            any(map(_is_access_point, (*locations, *forms))),
            removed_aliases,
        )

    def find_reasons(self, addresses: pa.Array) -> pa.Array:
        """Explain for each external address why it may belong to a storage.

        Returns:
            A column of reasons. Rows of addresses that are provably outside all storages are null.
        """
        reasons = self._find_encoded(addresses, self._find_unstable(addresses, self._find_reasons(addresses)))
        if self.removed_aliases is not None:
            is_former = pc.is_valid(self.removed_aliases.locate(addresses)[0])
            reasons = pc.if_else(is_former, pc.coalesce(reasons, pa.scalar(_FORMER_ALIAS)), reasons)
        has_parent = pc.match_substring_regex(addresses, _PARENT)  # its group may have no `..`
        if not has_parent.true_count:
            return reasons
        return pc.if_else(has_parent, pc.coalesce(reasons, pa.scalar("an address with a `..` component")), reasons)

    def _find_unstable(self, addresses: pa.Array, reasons: pa.Array) -> pa.Array:
        """Add a reason to addresses in own buckets with keys that readers interpret differently."""
        is_checked = pc.and_(pc.match_substring_regex(addresses, UNSTABLE_KEY), pc.is_null(reasons))
        if not is_checked.true_count:
            return reasons
        groups = _group(addresses.filter(is_checked))
        urls = map(parse_url, groups.dictionary.to_pylist())
        found = pa.array([_UNSTABLE if url is not None and self.own_buckets.contains(url) else None for url in urls], pa.string())
        return pc.replace_with_mask(reasons, is_checked, found.take(groups.indices))

    def _find_encoded(self, addresses: pa.Array, reasons: pa.Array) -> pa.Array:
        """Add a reason to addresses that are in a storage if their keys are percent-decoded."""
        is_encoded = pc.or_(pc.match_substring(addresses, "%"), self.own_buckets.has_encoded_root)
        is_checked = pc.and_(is_encoded, pc.is_null(reasons))
        if not is_checked.true_count:
            return reasons
        groups = pc.replace_substring_regex(addresses.filter(is_checked), _LOCAL_GROUP, "").dictionary_encode()
        found = [_ENCODED if self.own_buckets.contain_decoded(group) else None for group in groups.dictionary.to_pylist()]
        return pc.replace_with_mask(reasons, is_checked, pa.array(found, pa.string()).take(groups.indices))

    def _find_reasons(self, addresses: pa.Array) -> pa.Array:
        is_local = pc.match_substring_regex(addresses, _LOCAL)
        groups = _group(addresses)
        reasons = pa.array([self._find_reason(group) for group in groups.dictionary.to_pylist()], pa.string())
        found = reasons.take(groups.indices)
        is_checked = pc.and_(is_local, pc.is_null(found))
        if not is_checked.true_count:
            return found
        missing = [self._describe_file(address) for address in addresses.filter(is_checked).to_pylist()]
        return pc.replace_with_mask(found, is_checked, pa.array(missing, pa.string()))

    def _describe_file(self, address: str) -> str | None:
        if self.file_exists(address):
            return None
        return HIDDEN if self.is_hidden is not None and self.is_hidden(address) else _NO_FILE

    @staticmethod
    def are_missing(reasons: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Return a mask that is true for reasons that concern missing local files."""
        return pc.is_in(reasons, pa.array([_NO_FILE, NO_DIRECTORY]))

    def find_old_copies(self, addresses: pa.Array) -> pa.Array:
        """Return a column with `OLD_COPY` for local addresses without another reason, else null."""
        accepted = pc.and_(pc.match_substring_regex(addresses, _LOCAL), pc.is_null(self.find_reasons(addresses)))
        return pc.if_else(accepted, pa.scalar(OLD_COPY), pa.scalar(None, pa.string()))

    def _find_reason(self, group: str) -> str | None:
        scheme, url = scheme_of(group), parse_url(group)
        try:
            is_of_store = parse_address(group) is not None
        except FormatError:
            return "an address that systems resolve differently"
        if scheme == FILE:
            return self.describe_directory(group if url is None else url.path)
        if url is None:
            return "a relative address"
        if self._has_alias_bucket(url):
            return "a bucket name of an alias, in another scheme"
        if self.own_buckets.has_unusual_spelling(url):
            return "another spelling of a bucket of a storage or an alias"
        if scheme == S3 and url.authority in self.google_buckets:
            return "a bucket name that Google Cloud also serves by its S3 interface"
        if scheme == S3:
            return self._describe_bucket(url.authority) if self.has_buckets else None
        if scheme in _WEB_SCHEMES:
            return self._describe_host(url.authority, url.aws_bucket)
        if scheme == AZURE and self.has_containers and not is_of_store:
            return "an address on Azure without a storage account, or on another host than that of an account"
        if scheme in _CLOUD_SCHEMES:
            return self._describe_server(f"the scheme {scheme}")
        if scheme in _HDFS and not self.has_disks:
            return self._describe_server(f"the scheme {scheme}")
        return f"the scheme {scheme}"

    def _has_alias_bucket(self, url: Url) -> bool:
        """Return True if aliases have the same bucket as the address, but only with other schemes."""
        names = {name for _, name in self.alias_buckets}
        if not names or url.scheme not in {*_WEB_SCHEMES, S3, *_CLOUD_SCHEMES}:
            return False
        if url.scheme not in _WEB_SCHEMES:
            bucket = url.authority.partition("@")[0]
            return bucket in names and (url.scheme, bucket) not in self.alias_buckets
        if url.aws_bucket is not None:
            return url.aws_bucket in names and (url.scheme, url.aws_bucket) not in self.alias_buckets
        if azure_host(url.authority) is not None:
            container = url.path.split("/")[1]
            return container in names and (AZURE, container) not in self.alias_buckets
        return url.path.split("/")[1] in names or any(url.authority.startswith(f"{name}.") for name in names)

    def _describe_bucket(self, bucket: str) -> str | None:
        if _names_access_point(bucket):
            return "an S3 access point"
        if self.has_access_points:
            return "a bucket that the access point of a storage may show"
        return self._describe_server("a bucket")

    def _describe_host(self, host: str, aws_bucket: str | None) -> str | None:
        if aws_bucket is not None:
            return self._describe_bucket(aws_bucket) if self.has_buckets else None
        if is_aws(f"https://{host}"):
            return "a host of AWS" if self.has_buckets else None
        if any(host == end.lstrip(".") or host.endswith(f".{end.lstrip('.')}") for end in _CLOUD_HOSTS):
            return self._describe_server("a web address")
        return "a web address"

    def _describe_server(self, what: str) -> str | None:
        return f"{what} that the server {self.servers[0]} may also serve" if self.servers else None


def _group(addresses: pa.Array) -> pa.DictionaryArray:
    """Remove the last components of addresses, and dictionary-encode the distinct remainders."""
    groups = pc.if_else(
        pc.match_substring_regex(addresses, _LOCAL),
        pc.replace_substring_regex(addresses, _LOCAL_GROUP, ""),
        pc.replace_substring_regex(addresses, _OTHER_GROUP, r"\1"),
    )
    # If the address begins with a host or region, its first component may be the bucket.
    for pattern, group in ((_WEB, _WEB_GROUP), (AT_ENDPOINT, _ENDPOINT_GROUP)):
        found = pc.match_substring_regex(addresses, pattern)
        if found.true_count:
            groups = pc.if_else(found, pc.replace_substring_regex(addresses, group, r"\1"), groups)
    return groups.dictionary_encode()


def _buckets_of(alias: str) -> Iterator[tuple[str, str]]:
    """Yield the scheme and the bucket or container of an alias.

    For an HTTP URL there are several possibilities, because either the path or the host name may
    begin with the bucket.
    """
    root = parse_alias(alias)
    if isinstance(root, Location):
        yield root.scheme, root.root.partition("/")[0].partition("@")[0]
    elif root.aws_bucket is not None:
        yield root.scheme, root.aws_bucket
    elif root.scheme in _WEB_SCHEMES:
        labels = root.authority.split(".")
        yield from ((root.scheme, ".".join(labels[:count])) for count in range(1, len(labels)))
        if bucket := root.path.split("/")[1]:
            yield root.scheme, bucket
    else:
        yield root.scheme, root.authority.partition("@")[0]


def _names_access_point(bucket: str) -> bool:
    return bucket.lower().endswith(_ACCESS_POINTS) or bucket.lower().startswith("arn:")


def _is_access_point(location: str) -> bool:
    """Return True if a location is an S3 access point, judging by its bucket name or AWS host."""
    url = parse_url(location)
    if url is None or scheme_of(location) not in {S3, *_WEB_SCHEMES}:
        return False
    if url.scheme in _WEB_SCHEMES and url.aws_bucket is None:
        return is_aws(f"https://{url.authority}")
    return _names_access_point(url.aws_bucket or url.authority)


def split_tail(names: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the last two components of keys or addresses, normalized for comparisons.

    Differences in encoding, queries, hosts and buckets are removed.

    Returns:
        Columns with the second-to-last and the last component. The first column is null if the
        component does not exist, or if the last component is unique by itself.
    """
    is_url = pc.match_substring_regex(names, _URL)
    if is_url.true_count:
        names = pc.replace_with_mask(names, is_url, pa.array(map(_path, names.filter(is_url).to_pylist()), names.type))
    tails = pc.extract_regex(loosen_spelling(names), _TAIL)
    parent, base = pc.struct_field(tails, "parent"), pc.struct_field(tails, "base")
    is_needed = pc.and_(pc.not_equal(parent, ""), pc.invert(pc.match_substring_regex(base, _UNIQUE)))
    return pc.if_else(is_needed, parent, pa.scalar(None, pa.string())), base


def _path(address: str) -> str:
    url = parse_url(address)
    if url is None:
        return address
    return url.path.replace("\\", "/") if len(url.scheme) == 1 else url.path  # a Windows path
