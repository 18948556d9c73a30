"""Clients for Azure Blob Storage, and readable messages for their errors.

Each process creates its own client for a container and role. Clients are never shared, and
credentials do not leave the process. In particular, messages never contain connection strings or
URLs with a signature.
"""

from __future__ import annotations

import errno
import functools
import os
import random
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import requests
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ServiceRequestError
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import DefaultAzureCredential
from azure.storage.blob import BlobServiceClient, ContainerClient, ExponentialRetry
from requests.adapters import HTTPAdapter

from gc_assets.buckets.protocol import Role
from gc_assets.buckets.requests import PerProcess, count_request, get_rate_limiter
from gc_assets.config.azure import CONNECTION_STRING, AzureConfig
from gc_assets.core.causes import strip_paths
from gc_assets.core.errors import UsageError
from gc_assets.core.requests import Kind

if TYPE_CHECKING:
    from azure.core.pipeline import PipelineRequest, PipelineResponse

# How often a request is attempted. Pauses grow and are partly random. Permanent errors are not
# retried.
ATTEMPTS: Final = 8
# With these HTTP status codes, a server asks for fewer requests.
SLOW_STATUS: Final = frozenset({429, 503})
_CONNECTIONS: Final = 32
_CONNECT_SECONDS: Final = 10
_READ_SECONDS: Final = 60
# A variable of the Azure command line, which is used if none is configured.
_SAS_TOKEN: Final = "AZURE_STORAGE_SAS_TOKEN"  # noqa: S105  (the name of a variable)
# Every emulator has this account and key, which Microsoft has published (documentation of Azurite).
_EMULATOR: Final = (
    "AccountName=devstoreaccount1;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;"
    "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_SUB_REQUEST: Final = re.compile(rb"\r\nDELETE ")

NOT_FOUND: Final = frozenset({"BlobNotFound", "ResourceNotFound"})
# Error codes for a condition that was false.
PRECONDITION: Final = frozenset(
    {"ConditionNotMet", "SourceConditionNotMet", "TargetConditionNotMet", "BlobAlreadyExists", "UnauthorizedBlobOverwrite"}
)
UNSUPPORTED: Final = frozenset({"ConditionHeadersNotSupported", "MultipleConditionHeadersNotSupported", "UnsupportedHeader"})
# Further permanent errors, in addition to the status codes 401 and 403, and what to do about them.
_DENIED: Final[Mapping[str, str]] = {
    "LeaseIdMissing": "another client has a lease on the blob; break it, or plan again when it has ended",
    "LeaseIdMismatchWithBlobOperation": "another client has a lease on the blob; break it, or plan again when it has ended",
    "SnapshotsPresent": "the blob has snapshots; delete them, then plan again",
    "BlobImmutableDueToPolicy": "an immutability policy or a legal hold protects the blob; plan again when it has ended",
    "BlobImmutableDueToLegalHold": "a legal hold protects the blob; plan again when it is removed",
    "ContainerImmutableDueToPolicy": "an immutability policy of the container protects the blob; plan again when it has ended",
    "BlobArchived": "the blob is in the archive tier; move it to another tier, or use `quarantine: deferred`",
    "BlobBeingRehydrated": "the blob is leaving the archive tier; plan again when it has arrived",
    "InvalidBlobType": "the key has an append blob or a page blob; only block blobs are changed",
    "FeatureVersionMismatch": "this account does not support the request",
    "OperationNotSupportedOnDirectory": "the key is a directory of a hierarchical namespace, which is not supported",
    "DirectoryIsNotEmpty": "the key is a directory of a hierarchical namespace, which is not supported",
}
_INVALID_KEY: Final = frozenset({"InvalidResourceName", "OutOfRangeInput", "InvalidUri", "RequestUrlFailedToParse"})
_ROLES: Final = "docs/azure.md lists the roles that reading and changes need"
_WAYS_OUT: Final[Mapping[str, str]] = {
    "ContainerNotFound": "the container does not exist; correct the location or `azure.endpoint`",
    "ContainerBeingDeleted": "the container is being deleted; correct the location",
    "AuthenticationFailed": "the key or SAS token is wrong or has expired, or the clock of this machine is wrong",
    "AuthorizationFailure": f"the SAS token or the network rules of the account do not allow this; {_ROLES}",
    "AuthorizationPermissionMismatch": f"the identity has no role for this; {_ROLES}",
    "AuthorizationProtocolMismatch": "the SAS token allows only https; correct `azure.endpoint`",
    "InsufficientAccountPermissions": f"the identity has no role for this; {_ROLES}",
    "NoAuthenticationInformation": "the request has no credentials; set AZURE_STORAGE_CONNECTION_STRING or log in with `az login`",
    "InvalidAuthenticationInfo": "the token has expired or belongs to another tenant; log in again",
    "KeyBasedAuthenticationNotPermitted": "the account refuses account keys; use an identity (`azure.client_id`) or `az login`",
    "ServerBusy": "the server asks for fewer requests; set `azure.max_requests_per_second`",
}


class _Retry(ExponentialRetry):
    """Retries requests with the same pauses as other clients, but not after a failed login."""

    def __init__(self, attempts: int) -> None:
        again = attempts - 1
        super().__init__(retry_total=again, retry_connect=again, retry_read=again, retry_status=again)

    def get_backoff_time(self, settings: dict[str, Any]) -> float:
        return 0.1 * 2 ** (settings["count"] - 1) * random.uniform(0.5, 1)  # noqa: S311  (spreads requests, no secret)

    def increment(self, settings: Any, request: Any, response: Any = None, error: Any = None) -> bool:
        return not isinstance(error, ClientAuthenticationError) and super().increment(settings, request, response, error)


@dataclass(frozen=True, slots=True)
class _Secret:
    """A parsed connection string or SAS token, which must never be pickled or shown."""

    account: str | None
    endpoint: str | None
    credential: Any

    def __repr__(self) -> str:
        return "_Secret(***)"

    @classmethod
    def parse(cls, text: str, variable: str) -> Self:
        """Parse the value of an environment variable.

        Raises:
            UsageError: If it is neither a connection string nor a SAS token. The value itself is
                not part of the message.
        """
        if "sig=" in text and "SharedAccessSignature=" not in text:
            return cls(None, None, text.lstrip("?"))
        if text.strip().rstrip(";").lower() == "usedevelopmentstorage=true":
            text = _EMULATOR
        parts = dict(part.split("=", 1) for part in text.strip().strip(";").split(";") if "=" in part)
        account, key, signature = parts.get("AccountName"), parts.get("AccountKey"), parts.get("SharedAccessSignature")
        endpoint = parts.get("BlobEndpoint")
        if endpoint is None and account is not None:
            suffix = parts.get("EndpointSuffix", "core.windows.net")
            endpoint = f"{parts.get('DefaultEndpointsProtocol', 'https')}://{account}.blob.{suffix}"
        if signature is not None:
            return cls(account, endpoint, signature.lstrip("?"))
        if account is not None and key is not None:
            return cls(account, endpoint, AzureNamedKeyCredential(account, key))
        raise UsageError(f"azure: the value of {variable} is neither a connection string nor a SAS token; copy it from `az storage`")


def get_container(settings: AzureConfig, name: str, role: Role, attempts: int = ATTEMPTS) -> ContainerClient:
    """Return this process's client for a container, which is thread-safe.

    Args:
        settings: How to connect to the account.
        name: The container, as `container@account.dfs.core.windows.net`.
        role: `read` or `change`. Each role has its own credentials.
        attempts: How often a request is attempted at most. Must be 1 for a request that requires a
            check immediately before.

    Raises:
        UsageError: If the variable with the credentials is not set or is for another account, or if
            the changing role is requested although the connection is anonymous.
    """
    return get_service(settings, name.partition("@")[2], role, attempts).get_container_client(name.partition("@")[0])


def get_service(settings: AzureConfig, host: str, role: Role, attempts: int = ATTEMPTS) -> BlobServiceClient:
    """Return this process's client for a storage account."""
    if role == "change" and settings.anonymous:
        raise UsageError("`azure.anonymous` reads without credentials and cannot change anything; set a secret or an identity")
    return _create_service(settings, host, role, attempts)


@PerProcess
def _create_service(settings: AzureConfig, host: str, role: Role, attempts: int) -> BlobServiceClient:
    secret = _load_secret(settings, host, role)
    endpoint = settings.endpoint or (secret.endpoint if secret is not None else None) or f"https://{host.replace('.dfs.', '.blob.', 1)}"
    limiter = get_rate_limiter(settings)

    def wait_and_count(request: PipelineRequest[Any]) -> None:
        kind, keys = _kind_and_keys(request.http_request)
        limiter.wait(keys)
        for _ in range(keys):
            count_request(settings, kind)

    return BlobServiceClient(
        endpoint,
        credential=secret.credential if secret is not None else _identity(settings, role),
        retry_policy=_Retry(attempts),
        transport=RequestsTransport(session=_session(), session_owner=False),
        connection_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        user_agent="gc-assets",
        raw_request_hook=wait_and_count,
        raw_response_hook=functools.partial(check_for_slow_down, settings),
    )


def check_for_slow_down(settings: AzureConfig, response: PipelineResponse[Any, Any]) -> None:
    """Lower the rate of requests if the server asks for it.

    This is the client's response hook. A request with a hook of its own replaces it, and must call
    this function itself.
    """
    if response.http_response.status_code in SLOW_STATUS:
        get_rate_limiter(settings).slow_down()


def _load_secret(settings: AzureConfig, host: str, role: Role) -> _Secret | None:
    """Read the secret from the environment, unless an identity is used instead."""
    changes = role == "change"
    if settings.anonymous or (settings.apply_client_id if changes else None) is not None:
        return None
    named = (settings.apply_secret_variable if changes else None) or settings.secret_variable
    if named is None and settings.client_id is not None:
        return None
    variable = named or next((name for name in (CONNECTION_STRING, _SAS_TOKEN) if os.environ.get(name)), None)
    if variable is None:
        return None
    text = os.environ.get(variable)
    if not text:
        raise UsageError(f"azure: the environment variable {variable} is not set; set it to a connection string or a SAS token")
    secret, account = _Secret.parse(text, variable), host.partition(".")[0]
    if secret.account is not None and secret.account != account:
        raise UsageError(f"azure: {variable} is for the account {secret.account}, but {host} belongs to the account {account}")
    return secret


def _identity(settings: AzureConfig, role: Role) -> DefaultAzureCredential | None:
    if settings.anonymous:
        return None
    client_id = (settings.apply_client_id if role == "change" else None) or settings.client_id
    chosen = {} if client_id is None else {"managed_identity_client_id": client_id, "workload_identity_client_id": client_id}
    return DefaultAzureCredential(**chosen)


def _session() -> requests.Session:
    session = requests.Session()
    adapter = HTTPAdapter(pool_connections=_CONNECTIONS, pool_maxsize=_CONNECTIONS)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    return session


def _kind_and_keys(request: Any) -> tuple[Kind, int]:
    """Determine how a request is billed, and as how many requests it counts."""
    query: Mapping[str, str] = request.query
    if query.get("comp") == "batch":
        body = request.body if isinstance(request.body, bytes) else b""
        return "DELETE", max(1, len(_SUB_REQUEST.findall(body)))
    if request.method == "PUT" and "x-ms-copy-source" in request.headers:
        return "COPY", 1
    if request.method == "GET" and query.get("comp") == "list":
        return "LIST", 1
    kinds: Mapping[str, Kind] = {"GET": "GET", "HEAD": "HEAD", "DELETE": "DELETE"}
    return kinds.get(request.method, "PUT"), 1


@contextmanager
def translate_errors(address: str) -> Generator[None]:
    """Convert errors of the client in the block to an `OSError` with a readable message.

    Raises:
        FileNotFoundError: If the blob does not exist.
        PermissionError: If the server denies the request, so that a retry does not help.
        OSError: If anything else fails. A retry may help.
    """
    try:
        yield
    except AzureError as error:
        raise to_os_error(error, address) from error


def error_code(error: AzureError) -> str:
    """Return the error code of the service, or the HTTP status if the error has no code."""
    code = getattr(error, "error_code", None)
    if code:
        return str(getattr(code, "value", code))
    status = getattr(error, "status_code", None)
    return "" if status is None else str(status)


def is_denied(error: AzureError) -> bool:
    """Check if the request was denied, so that a retry does not help."""
    return isinstance(error, ClientAuthenticationError) or error_code(error) in _DENIED or getattr(error, "status_code", None) in {401, 403}


def was_sent(error: AzureError) -> bool:
    """Check if the server may have received the request."""
    return not isinstance(error, ServiceRequestError)


def to_os_error(error: AzureError, address: str) -> OSError:
    """Convert an error of the client to an `OSError`, as the object protocols require."""
    code = error_code(error)
    if code in NOT_FOUND or code == "404":
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
    if not isinstance(error, HttpResponseError) or error.response is None:
        if isinstance(error, ClientAuthenticationError):
            way_out = f"log in with `az login`, set {CONNECTION_STRING} or {_SAS_TOKEN}, or `azure.client_id`"
            return PermissionError(errno.EACCES, f"no credentials for Azure: {_first_line(error)}; {way_out}", address)
        return OSError(errno.EIO, f"{_first_line(error)}; check the network and `azure.endpoint`", address)
    message = _first_line(error)
    text = f"{code}: {message}" if code and code not in message else message
    way_out = _DENIED.get(code) or _WAYS_OUT.get(code)
    text += f"; {way_out}" if way_out else ""
    if is_denied(error):
        return PermissionError(errno.EACCES, text, address)
    return OSError(errno.ENAMETOOLONG if code in _INVALID_KEY else errno.EIO, text, address)


def _first_line(error: AzureError) -> str:
    """Return the first line of a message, without request ids and without URLs.

    The query of a URL may contain a signature.
    """
    line = str(error.message or error).strip().partition("\n")[0].partition("RequestId:")[0]
    return _QUERY.sub("", strip_paths(line)).rstrip(". ") or type(error).__name__


_QUERY: Final = re.compile(r"\?[^\s'\")]*")
