"""Parse and generate URLs of objects, including HTTP URLs.

The same bucket may be accessible through several addresses: its canonical scheme, HTTP URLs of its
server, and the native scheme of a provider with an S3 interface. `storage_urls` generates these
addresses for a storage. Percent-encoding and queries only occur in HTTP URLs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from gc_assets.core.errors import FormatError, UsageError
from gc_assets.core.paths import AZURE, BUCKET_FORMS, FILE, GCS, S3, Location, azure_host, collapse_path, parse_address, scheme_of

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_WEB: Final = ("http", "https")
_DEFAULT_PORT: Final = re.compile(r":(80|443)?$")
_REGION: Final = r"[a-z]{2,3}(?:-[a-z]+)+-\d+"
# Matches the hosts of S3 that AWS documents, such as `bucket.s3.dualstack.eu-west-1.amazonaws.com`.
# Access points have different host names.
_AWS_HOST: Final = re.compile(
    rf"(?:(?P<bucket>.+?)\.)?s3(?:-(?:fips|accelerate|external-1|website|{_REGION}|(?:fips|website)-{_REGION}))?"
    rf"(?:\.(?:dualstack|{_REGION}))*\.amazonaws\.com(?:\.cn)?"
)
_REGION_NAME: Final = re.compile(_REGION)
_AWS_DOMAIN: Final = re.compile(r"(?:^|\.)amazonaws\.com(?:\.cn)?(?::\d+)?$")
_GOOGLE_HOST: Final = "storage.googleapis.com"
_GOOGLE_HOSTS: Final = (_GOOGLE_HOST, "storage.cloud.google.com")
# Native schemes of providers whose S3 interface uses the same bucket names, by its host suffix.
_PROVIDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "storage.googleapis.com": ("gs", "gcs"),
    ".p.googleapis.com": ("gs", "gcs"),
    ".aliyuncs.com": ("oss",),
    ".myqcloud.com": ("cosn", "cos"),
    ".myhuaweicloud.com": ("obs",),
}
# RE2 pattern for a region or the host of a provider in place of a bucket.
ENDPOINT: Final = (
    rf"(?:{_REGION}|(?:[^/]*\.)?(?:amazonaws\.com(?:\.cn)?|{'|'.join(re.escape(end.lstrip('.')) for end in _PROVIDERS)})(?::\d+)?)"
)


@dataclass(frozen=True, slots=True)
class Url:
    """A URL in canonical form.

    In HTTP URLs, the scheme is always `https`, the query is removed and the path is decoded.
    The host is `<bucket>.s3.amazonaws.com` for AWS S3, and `<account>.dfs.core.windows.net` for
    Azure.

    Attributes:
        scheme: The scheme in lower case.
        authority: The host or bucket.
        path: The path with a leading `/`.
    """

    scheme: str
    authority: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def aws_bucket(self) -> str | None:
        """The bucket if this is an HTTP URL of AWS S3, otherwise None."""
        bucket = self.authority.removesuffix(".s3.amazonaws.com")
        return bucket if self.scheme == "https" and bucket != self.authority else None


def parse_url(address: str) -> Url | None:
    """Parse a URL and convert it to its canonical form. Returns None for a path."""
    match = _URL.fullmatch(address)
    if match is None:
        return None
    scheme, rest = match[1].lower(), match[2]
    if scheme in _WEB:
        return _parse_web_address(rest)
    authority, path = "", rest
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        path = slash + path
    known = scheme_of(address)
    if known == FILE:
        return Url(known, authority.lower(), collapse_path(path or "/"))
    return Url(known, authority if known in BUCKET_FORMS else authority.lower(), path if path.startswith("/") else f"/{path}")


def _parse_web_address(rest: str) -> Url:
    located = re.split("[?#]", rest.removeprefix("//"), maxsplit=1)[0]
    authority, _, path = located.partition("/")
    host = _DEFAULT_PORT.sub("", authority.rpartition("@")[2].lower())
    try:
        path = "/" + unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        path = f"/{path}"  # no key has such a name
    if (azure := azure_host(host)) is not None:
        return Url("https", azure, path)
    aws = _AWS_HOST.fullmatch(host)
    if aws is None:
        return Url("https", host, path)
    bucket = aws["bucket"]
    if bucket is None:
        bucket, slash, path = path[1:].partition("/")
        path = slash + path
    return Url("https", f"{bucket}.s3.amazonaws.com", path or "/")


def storage_address(address: str) -> str:
    """Convert an Azure HTTP URL to the form `abfss://`, and leave any other address unchanged.

    For example, lakeFS writes `https://account.blob.core.windows.net/container/prefix`.
    """
    url = parse_url(address) if address[:5].lower() == "https" else None
    container, _, key = url.path[1:].partition("/") if url is not None else ("", "", "")
    if url is None or azure_host(url.authority) is None or not container:
        return address
    return f"{AZURE}://{container}@{url.authority}/{key}"


def provider_address(alias: str) -> str:
    """Convert an HTTP URL of Azure or Google to the form `abfss://` or `gs://`.

    Any other alias is returned unchanged.
    """
    url = parse_url(alias)
    if url is None or url.scheme != "https":
        return alias
    bucket, _, key = url.path[1:].partition("/")
    found = None
    if azure_host(url.authority) is not None and bucket:
        found = f"{AZURE}://{bucket}@{url.authority}/{key}"
    elif url.authority in _GOOGLE_HOSTS and bucket:
        found = f"{GCS}://{bucket}/{key}"
    elif url.authority.endswith(f".{_GOOGLE_HOST}"):
        found = f"{GCS}://{url.authority.removesuffix(f'.{_GOOGLE_HOST}')}{url.path}"
    try:
        return str(Location.parse(found)) if found is not None else alias
    except UsageError:  # no container or bucket has such a name
        return alias


def is_addressable(name: str) -> bool:
    """Check if a normalized URL can contain the name of an object.

    Clients and servers remove the components `.` and `..` from the path of a URL.
    """
    return {".", ".."}.isdisjoint(name.replace("\\", "/").split("/"))


def web_host(address: str) -> str | None:
    """Return the host of an HTTP URL, as in `Url.authority`, or None for any other address."""
    if address[:5].lower() not in {"http:", "https"}:
        return None
    host = _DEFAULT_PORT.sub("", address.partition("://")[2].partition("/")[0].rpartition("@")[2].lower())
    return azure_host(host) or host


def is_aws(endpoint: str | None) -> bool:
    """Return True if the endpoint is the default or belongs to AWS, including VPC endpoints."""
    return endpoint is None or _AWS_DOMAIN.search(endpoint.lower().rstrip("/")) is not None


def provider_schemes(endpoint: str | None) -> tuple[str, ...]:
    """Return the native schemes of the provider that runs an S3 endpoint, if it is known."""
    host = endpoint.lower().rstrip("/").partition("://")[2] if endpoint is not None else ""
    return next((schemes for end, schemes in _PROVIDERS.items() if host == end or host.endswith("." + end.lstrip("."))), ())


def is_provider_host(host: str) -> bool:
    """Return True if a host belongs to AWS or to another provider with an S3 interface."""
    address = f"https://{host}"
    return is_aws(address) or bool(provider_schemes(address))


def is_region(name: str) -> bool:
    """Return True if a name looks like an AWS region, such as `us-east-1`."""
    return _REGION_NAME.fullmatch(name) is not None


def storage_urls(location: str, endpoint: str | None) -> Iterator[str]:
    """Yield further URLs of a storage in an object store, besides the ones with its own scheme.

    Args:
        location: Location of the storage.
        endpoint: Endpoint of the server, or None for the default endpoint of the provider.
    """
    parsed = Location.parse(location)
    if parsed.scheme == GCS:
        yield from _google_urls(parsed.root, endpoint)
    if parsed.scheme == AZURE:
        yield from _azure_urls(parsed.root, endpoint)
    if parsed.scheme != S3:
        return
    bucket, _, prefix = parsed.root.partition("/")
    path = quote(prefix)
    if is_aws(endpoint):
        yield f"https://{bucket}.s3.amazonaws.com/{path}"
    if endpoint is None:
        return
    authority = endpoint.partition("://")[2].rstrip("/")
    yield f"https://{authority}/{bucket}/{path}"
    yield f"https://{bucket}.{authority}/{path}"
    for scheme in provider_schemes(endpoint):
        yield f"{scheme}://{bucket}/{prefix}"


def _google_urls(root: str, endpoint: str | None) -> Iterator[str]:
    """Yield Google Cloud HTTP URLs of a location, with the bucket in the path or the host."""
    bucket, _, prefix = root.partition("/")
    host = _GOOGLE_HOST if endpoint is None else endpoint.partition("://")[2].rstrip("/")
    yield f"https://{host}/{bucket}/{quote(prefix)}"
    yield f"https://{bucket}.{host}/{quote(prefix)}"
    if endpoint is None:
        yield f"https://storage.cloud.google.com/{bucket}/{quote(prefix)}"


def _azure_urls(root: str, endpoint: str | None) -> Iterator[str]:
    """Yield Azure HTTP URLs of a location, on its account's host and on a custom endpoint."""
    authority, _, prefix = root.partition("/")
    container, _, host = authority.partition("@")
    yield f"https://{host}/{container}/{quote(prefix)}"
    if endpoint is not None:
        yield f"https://{endpoint.partition('://')[2].rstrip('/')}/{container}/{quote(prefix)}"


def urls_without_account(locations: Sequence[tuple[str, str]], account: str | None) -> list[tuple[str, str]]:
    """Find the Azure storages that addresses without an account may refer to.

    Args:
        locations: Pairs of name and location of storages in object stores.
        account: The account that such addresses belong to. If None, it is the account of the
            storages on Azure, provided that all of them have the same one.

    Returns:
        Pairs of name and URL, such as `az://container/prefix/`.
    """
    parsed = [(name, Location.parse(location).root) for name, location in locations if scheme_of(location) == AZURE]
    named = [(name, *root.partition("/")[0].split("@"), root.partition("/")[2]) for name, root in parsed]
    hosts = {host for _, _, host, _ in named}
    return [
        (name, f"az://{container}/{prefix}")
        for name, container, host, prefix in named
        if (len(hosts) == 1 if account is None else host.partition(".")[0] == account)
    ]


def parse_alias(address: str) -> Location | Url:
    """Parse an alias, which is an additional address of a storage's location.

    Raises:
        UsageError: If it is neither a URL nor an absolute path, or contains a query or `..`.
    """
    try:
        if parse_address(address) is not None:
            return Location.parse(address)
    except FormatError as error:
        reason, is_complete = str(error), False
    else:
        reason, is_complete = "expected an absolute path, or a URL without query such as s3://access-point-s3alias/prefix/", True
    url = parse_url(address)
    has_query = url is not None and url.scheme == "https" and not {"?", "#"}.isdisjoint(address)
    if url is None or has_query or ".." in url.path.split("/") or not (url.authority or (is_complete and url.path != "/")):
        raise UsageError(f"alias {address!r}: {reason}")
    return url if url.path.endswith("/") else Url(url.scheme, url.authority, f"{url.path}/")


def overlapping_aliases(locations: Sequence[tuple[str, str]], aliases: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Find aliases that overlap with another alias or with a storage.

    Symbolic links are resolved on this machine. An alias may be equal to a root of its own storage.

    Args:
        locations: Pairs of name and location.
        aliases: Pairs of name and alias.

    Returns:
        Pairs of overlapping aliases or storages, each described for messages.
    """
    named = [(name, f"{name} (alias {alias})", _without_links(parse_alias(alias))) for name, alias in aliases]
    others = [(name, name, _without_links(Location.parse(location))) for name, location in locations]
    pairs = [*product(others, named), *combinations(named, 2)]
    return [
        (label, other_label)
        for (name, label, root), (other_name, other_label, other_root) in pairs
        if (root.startswith(other_root) or other_root.startswith(root)) and not (name == other_name and root == other_root)
    ]


def _without_links(root: Location | Url) -> str:
    return str(root.without_links() if isinstance(root, Location) else root)
