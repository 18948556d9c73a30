"""Properties and environment variables that select one of several catalogs at the same address.

Examples are the Polaris realm, which is sent as a request header, and the Glue region. Credentials
are left out, because a new credential for the same catalog must not look like another catalog.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Final

from gc_assets.core.secret_names import AUTHENTICATION, SECRET_NAME

_HEADER: Final = "header."
# Headers that authenticate a request.
_SECRET_HEADER: Final = re.compile(rf"{SECRET_NAME.pattern}|session", re.IGNORECASE)
# Headers that only describe the client or the request, and do not select a catalog or tables.
_CLIENT_HEADERS: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "accept-language",
        "baggage",
        "connection",
        "content-type",
        "traceparent",
        "tracestate",
        "user-agent",
        "x-client-version",
        "x-correlation-id",
        "x-iceberg-access-delegation",
        "x-request-id",
    }
)
# boto3 does not read AWS_REGION.
_REGION_VARIABLES: Final = ("AWS_DEFAULT_REGION",)
# As in boto3, the first variable that is set is used.
_PROFILE_VARIABLES: Final = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")
_SIGV4, _TRUE = "rest.sigv4-enabled", frozenset({"1", "on", "t", "true", "y", "yes"})
_BIGQUERY: Final = ("gcp.bigquery.project-id", "gcp.bigquery.location")


def list_selectors(properties: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """List the values that select a catalog in addition to its address, as `name=value`.

    The result is empty if no such value is set, as for SQL and Hive catalogs.

    Args:
        properties: pyiceberg's catalog properties, without secrets.
        environment: Environment variables of this process.
    """
    match _find_type(properties):
        case "rest":
            found = [*_list_headers(properties)]
            if properties.get(_SIGV4, "").lower() in _TRUE:
                found += _list_aws_profile(properties, environment, "client")
        case "glue" | "dynamodb" as service:
            found = [*_list_aws(properties, environment, service)]
        case "bigquery":
            found = [f"{name}={properties[name]}" for name in _BIGQUERY if properties.get(name)]
        case _:
            found = []
    return tuple(found)


def _find_type(properties: Mapping[str, str]) -> str:
    """Return pyiceberg's catalog type, as configured or derived from the address."""
    name = (properties.get("type") or properties.get("py-catalog-impl", "").rpartition(".")[2]).lower()
    known = next((item for item in ("rest", "glue", "dynamodb", "bigquery", "hive", "sql") if name.startswith(item)), "")
    return known or ("rest" if properties.get("uri", "").startswith(("http:", "https:")) else "")


def _list_headers(properties: Mapping[str, str]) -> Iterator[str]:
    """Yield a digest of each configured request header, because any of them may be a secret."""
    headers = {name.removeprefix(_HEADER).lower(): value.strip() for name, value in properties.items() if name.startswith(_HEADER)}
    for name, value in sorted(headers.items()):
        if name not in _CLIENT_HEADERS and not _SECRET_HEADER.search(name) and not AUTHENTICATION.match(value):
            yield f"{_HEADER}{name}={hashlib.sha256(value.encode()).hexdigest()[:16]}"


def _list_aws(properties: Mapping[str, str], environment: Mapping[str, str], service: str) -> Iterator[str]:
    """Yield the region, endpoint, profile and account of an AWS service.

    For Glue, values that are already part of the catalog address are left out.
    """
    in_address = service == "glue" and not properties.get("uri")
    region, endpoint = (properties.get(f"{service}.{name}") for name in ("region", "endpoint"))
    if not (region and in_address):
        yield from _name("region", region or properties.get("client.region") or _read_first(environment, *_REGION_VARIABLES))
    if not (endpoint and in_address):
        variables = (f"AWS_ENDPOINT_URL_{service.upper()}", "AWS_ENDPOINT_URL")
        yield from _name("endpoint", _strip_user(endpoint or _read_first(environment, *variables) or ""))
    yield from _list_aws_profile(properties, environment, service)


def _list_aws_profile(properties: Mapping[str, str], environment: Mapping[str, str], service: str) -> Iterator[str]:
    """Yield the AWS profile and the account of the configured role.

    The role itself is left out, because other roles of the account read the same catalog.
    """
    profile = properties.get(f"{service}.profile-name") or properties.get("client.profile-name")
    yield from _name("profile", profile or _read_first(environment, *_PROFILE_VARIABLES))
    role = properties.get(f"{service}.role-arn") or properties.get("client.role-arn") or environment.get("AWS_ROLE_ARN") or ""
    account = re.match(r"arn:[^:]*:iam::(\d+):", role)
    yield from _name("account", account[1] if account is not None else role)


def _read_first(environment: Mapping[str, str], *names: str) -> str | None:
    return next((value for name in names if (value := environment.get(name))), None)


def _strip_user(url: str) -> str:
    return re.sub(r"://[^/@]*@", "://", url).partition("?")[0].rstrip("/")


def _name(name: str, value: str | None) -> Iterator[str]:
    if value:
        yield f"{name}={value}"
