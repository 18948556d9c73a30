"""Clients for Google Cloud Storage, and readable messages for their errors.

Each process, such as Spark's driver or a forked worker on an executor, creates its own client for a
server and role. Clients are never shared between processes, so credentials do not leave the process
that has loaded them.

A client does not retry requests by itself. The function `call` retries requests that are safe to
repeat.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from gc_assets.buckets.protocol import Change, ChangeVerdict, Role
from gc_assets.buckets.requests import PerProcess, count_request, get_rate_limiter, pause_before_retry
from gc_assets.config.gcs import GcsConfig
from gc_assets.core.causes import strip_paths
from gc_assets.core.errors import UsageError, is_permanent
from gc_assets.core.requests import Kind

try:
    import google.auth
    import requests.exceptions
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth import impersonated_credentials
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud.storage import Client
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from requests.adapters import HTTPAdapter
except ImportError as error:
    raise UsageError(f"gs:// addresses need the `gcs` extra: pip install 'gc-assets[gcs]' ({error})") from error

_T = TypeVar("_T")

GOOGLE: Final = "https://storage.googleapis.com"
READ_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_only"
WRITE_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
_PLATFORM_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
# How often a request is attempted. Pauses grow and are partly random. Permanent errors are not
# retried.
ATTEMPTS: Final = 8
TIMEOUT: Final = (10, 60)
_CONNECTIONS: Final = 32
_ERROR: Final = 400
NOT_FOUND: Final = 404
PRECONDITION: Final = 412
_RATE_LIMITED: Final = frozenset({429, 503})
_TRANSIENT: Final = frozenset({408, 429, 500, 502, 503, 504})
_UNSUPPORTED: Final = frozenset({405, 501})
_DENIED: Final = frozenset({401, 403})
# With status 403 and one of these error codes, the server asks for fewer requests (HTTP status and
# error codes for JSON).
_QUOTA: Final = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "usageLimits.rateLimitExceeded"})

_WAYS_OUT: Final[Mapping[str, str]] = {
    "objectUnderActiveHold": "an event-based or temporary hold protects the object; release the hold, then run gc-assets retry",
    "retentionPolicyNotMet": "the retention policy of the bucket or object protects it until then; later plans leave it out",
    "userProjectMissing": "the bucket charges the requester; set `gcs.user_project` to a project that pays",
    "userProjectAccessDenied": "the caller may not charge this project; grant serviceusage.services.use on it, or set `gcs.user_project`",
    "required": "the bucket charges the requester, or the request has no credentials; set `gcs.user_project`, or log in",
    "forbidden": "docs/gcs.md lists the roles",
    "authError": "log in again (`gcloud auth application-default login`), or check GOOGLE_APPLICATION_CREDENTIALS",
    "rateLimitExceeded": "the server asks for fewer requests; set `gcs.max_requests_per_second`",
}
# If no credentials are configured, the library tries to get some from the virtual machine, which
# takes seconds. A failure is remembered for this time.
_MISSING_SECONDS: Final = 30.0
_missing_until = [0.0]
_LOG_IN: Final = "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"

_NO_CREDENTIALS: Final = f"there are no Application Default Credentials; {_LOG_IN}"


class _Session(AuthorizedSession):
    """An HTTP session that counts its requests and limits their rate."""

    def __init__(self, settings: GcsConfig, credentials: Any) -> None:
        super().__init__(credentials)
        self._settings = settings
        adapter = HTTPAdapter(pool_maxsize=_CONNECTIONS)
        self.mount("https://", adapter)
        self.mount("http://", adapter)
        if settings.endpoint is not None:
            self.trust_env = False  # a proxy set in the environment cannot reach a private endpoint

    def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Wait for the rate limiter, then count and send a request."""
        limiter = get_rate_limiter(self._settings)
        limiter.wait()
        count_request(self._settings, request_kind(method, url))
        answer = super().request(method, url, *args, **kwargs)
        if answer.status_code in _RATE_LIMITED:
            limiter.slow_down()
        return answer


def get_client(settings: GcsConfig, role: Role) -> Any:
    """Return this process's client of Google's library, which is thread-safe.

    Raises:
        UsageError: If the changing role is requested although the connection is anonymous.
        PermissionError: If there are no credentials.
    """
    if role == "change" and settings.anonymous:
        raise UsageError("`gcs.anonymous` reads without credentials and cannot change anything; remove it")
    return _create_client(settings, role)[0]


def get_session(settings: GcsConfig, role: Role) -> tuple[AuthorizedSession, str]:
    """Return the HTTP session of this process's client, and the address of the server."""
    return _create_client(settings, role)[1], (settings.endpoint or settings.server_of_environment() or GOOGLE).rstrip("/")


def get_bucket(settings: GcsConfig, role: Role, name: str) -> Any:
    """Return a bucket. No request is sent."""
    return get_client(settings, role).bucket(name, user_project=settings.user_project)


@PerProcess
def _create_client(settings: GcsConfig, role: Role) -> tuple[Client, AuthorizedSession]:
    credentials = load_credentials(settings, role)
    options = {"api_endpoint": settings.endpoint.rstrip("/")} if settings.endpoint is not None else None
    session = _Session(settings, credentials)
    return Client(project=None, credentials=credentials, client_options=options, _http=session), session


def load_credentials(settings: GcsConfig, role: Role) -> Any:
    """Load the credentials of a role, which are renewed automatically.

    Raises:
        PermissionError: If there are no credentials in the environment. This is not a
            `UsageError`, because a lake can contain `gs://` addresses although no storage is on
            Google Cloud.
    """
    if settings.anonymous:
        return AnonymousCredentials()
    account = (settings.apply_service_account if role == "change" else None) or settings.service_account
    scope = WRITE_SCOPE if role == "change" else READ_SCOPE
    if time.monotonic() < _missing_until[0]:
        raise PermissionError(errno.EACCES, _NO_CREDENTIALS, "gs://")
    try:
        found, _ = google.auth.default(scopes=[scope if account is None else _PLATFORM_SCOPE])
    except GoogleAuthError as error:
        _missing_until[0] = time.monotonic() + _MISSING_SECONDS
        raise PermissionError(errno.EACCES, f"{_NO_CREDENTIALS} ({strip_paths(str(error))})", "gs://") from error
    if account is None:
        return found
    return impersonated_credentials.Credentials(source_credentials=found, target_principal=account, target_scopes=[scope])


def request_kind(method: str, url: str) -> Kind:
    """Determine how a request of the JSON API is billed."""
    path = urlsplit(url).path
    if method == "GET":
        return "LIST" if path.endswith("/o") else "GET"
    if method == "DELETE":
        return "DELETE"
    return "COPY" if "/rewriteTo/" in path or "/copyTo/" in path or "/moveTo/" in path else "PUT"


def call(address: str, request: Callable[[], _T], attempts: int = ATTEMPTS) -> _T:
    """Send a request, and retry it after transient errors. Errors are converted to `OSError`.

    `attempts` must be 1 for a request that requires a check immediately before.
    """
    for attempt in range(attempts):
        try:
            with translate_errors(address):
                return request()
        except OSError as error:
            if attempt + 1 == attempts or not is_transient(error):
                raise
        pause_before_retry(attempt)
    raise AssertionError("a loop of attempts ends by returning or raising")


def change(address: str, request: Callable[[], object], *, is_repeatable: bool, is_final: bool = False) -> Change:
    """Send a request that changes a bucket, with retries.

    Args:
        address: The address of the object, for messages.
        request: Sends the request, in a single attempt.
        is_repeatable: Whether the condition of the request prevents a second effect. If not, it is
            retried only if it was certainly not executed.
        is_final: Whether the request deletes a generation, which cannot be created again. If so,
            the result is `done` if a retry no longer finds the generation.
    """
    is_lost = False
    for attempt in range(ATTEMPTS):
        try:
            with translate_errors(address):
                request()
                return Change("done")
        except OSError as error:
            found = Change(_verdict_of(error), error)
        if found.verdict == "absent" and is_lost:
            return Change("done") if is_final else Change("unknown", found.error)
        is_lost = is_lost or found.verdict == "unknown"
        if attempt + 1 == ATTEMPTS or not (found.verdict == "failed" or (found.verdict == "unknown" and is_repeatable)):
            return found
        pause_before_retry(attempt)
    raise AssertionError("a loop of attempts ends by returning")


def _verdict_of(error: OSError) -> ChangeVerdict:
    """Determine from an error whether the request was executed."""
    cause = error.__cause__
    status = status_of(cause)
    if status is None:
        is_unsent = isinstance(cause, (GoogleAuthError, requests.exceptions.ConnectTimeout)) or "NewConnectionError" in repr(cause)
        return "denied" if isinstance(error, PermissionError) else "failed" if is_unsent else "unknown"
    if isinstance(error, FileNotFoundError):
        return "absent"
    if status in _UNSUPPORTED:
        return "unsupported"
    if status == PRECONDITION:
        return "changed"
    if is_permanent(error):
        return "denied"
    return "failed" if status in _RATE_LIMITED or _reason_of(cause) in _QUOTA else "unknown"


def is_transient(error: OSError) -> bool:
    """Return True if the same request may succeed after this error."""
    if error.errno == errno.EAGAIN:
        return True
    cause = error.__cause__
    status = status_of(cause)
    if status is not None:
        return status in _TRANSIENT or _reason_of(cause) in _QUOTA
    return isinstance(cause, (requests.exceptions.RequestException, TransportError, DataCorruption, ConnectionError))


@contextmanager
def translate_errors(address: str) -> Generator[None]:
    """Convert the library's errors in the block to an `OSError` with a readable message.

    Raises:
        FileNotFoundError: If the object does not exist.
        PermissionError: If the server denies the request, so that a retry does not help.
        OSError: If anything else fails. A retry may help.
    """
    try:
        yield
    except (GoogleAPICallError, InvalidResponse) as error:
        raise _to_os_error(error, address) from error
    except DataCorruption as error:
        raise OSError(errno.EIO, f"the bytes differ from their checksum: {error}", address) from error
    except TransportError as error:
        raise OSError(errno.EIO, f"{strip_paths(str(error))}; check the network", address) from error
    except GoogleAuthError as error:
        raise PermissionError(errno.EACCES, f"{strip_paths(str(error))}; {_LOG_IN}", address) from error
    except (requests.exceptions.RequestException, ConnectionError) as error:
        raise OSError(errno.EIO, f"{strip_paths(str(error))}; check the network and `gcs.endpoint`", address) from error


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status, if the error is a response of the server."""
    if isinstance(error, GoogleAPICallError):
        return error.code
    return error.response.status_code if isinstance(error, InvalidResponse) else None


def _reason_of(error: BaseException | None) -> str:
    """Extract the reason from an error response, for example `objectUnderActiveHold`."""
    details = _error_document(error).get("errors") or [{}]
    return str(details[0].get("reason", ""))


def _message_of(error: BaseException) -> str:
    """Extract the message from an error response, without the address of the request."""
    return str(_error_document(error).get("message") or strip_paths(str(error)))


def _error_document(error: BaseException | None) -> Mapping[str, Any]:
    """Parse the body of an error response."""
    try:
        document = json.loads(error.response.text)["error"]  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return document if isinstance(document, dict) else {}


def _to_os_error(error: GoogleAPICallError | InvalidResponse, address: str) -> OSError:
    status, reason = status_of(error), _reason_of(error)
    if status == NOT_FOUND and "bucket does not exist" in _message_of(error):
        return OSError(errno.EIO, "there is no such bucket; correct the location or `gcs.endpoint`", address)
    if status == NOT_FOUND:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
    text = f"{status} {reason}: {_message_of(error)}" if reason else f"{status}: {_message_of(error)}"
    way_out = _WAYS_OUT.get(reason)
    text += f"; {way_out}" if way_out else ""
    if status in _DENIED and reason not in _QUOTA:
        return PermissionError(errno.EACCES, text, address)
    if status == _ERROR:
        # A retry does not help, for example because the user project is missing or a name is
        # invalid.
        return PermissionError(errno.EACCES, text, address) if reason in _WAYS_OUT else OSError(errno.ENAMETOOLONG, text, address)
    return OSError(errno.EIO, text, address)
