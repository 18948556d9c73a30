"""S3 clients, and readable messages for their errors.

Each process, such as Spark's driver or a forked worker on an executor, creates its own client for a
server and role. Clients are never shared between processes, so credentials do not leave the process
that has loaded them.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import botocore.exceptions
import botocore.loaders
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config as BotoConfig
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.handlers import validate_ascii_metadata
from botocore.hooks import HierarchicalEmitter

from gc_assets.buckets.protocol import Role
from gc_assets.buckets.requests import PerProcess, count_request, get_rate_limiter
from gc_assets.config.s3 import S3Config
from gc_assets.core.causes import strip_paths
from gc_assets.core.errors import UsageError
from gc_assets.core.requests import Kind
from gc_assets.s3.invalid_xml import replace_invalid_characters

BeforeParse = Callable[..., None]

_REGION: Final = "us-east-1"
# How often a request is attempted. Pauses grow and are partly random. Permanent errors are not
# retried.
_ATTEMPTS: Final = 8
# With these HTTP status codes and error codes, a server asks for fewer requests.
SLOW_STATUS: Final = frozenset({429, 503})
SLOW: Final = frozenset({"SlowDown", "ServiceUnavailable", "RequestLimitExceeded", "TooManyRequests", "Throttling", "503", "429"})
_CONNECTIONS: Final = 32
_CONNECT_SECONDS: Final = 10
_READ_SECONDS: Final = 60

# The first word of an operation determines how it is billed. Operations not listed here are writes.
_VERBS: Final[Mapping[str, Kind]] = {"List": "LIST", "Get": "GET", "Head": "HEAD", "Delete": "DELETE", "Abort": "DELETE"}
# The XML of these responses contains a key.
_KEY_IN_RESPONSE: Final = frozenset({"CreateMultipartUpload", "CompleteMultipartUpload", "ListMultipartUploads", "ListParts"})
NOT_FOUND: Final = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchVersion", "NoSuchUpload"})
# If two writers compete, Ceph 20 sends `ConcurrentModification` to one of them. Callers then
# compare the stored bytes.
PRECONDITION: Final = frozenset({"412", "PreconditionFailed", "409", "ConditionalRequestConflict", "ConcurrentModification"})
DENIED: Final = frozenset({"401", "403", "AccessDenied", "AllAccessDisabled", "MethodNotAllowed", "InvalidObjectState", "AccountProblem"})
# Requests with these status codes or error codes may succeed later, or with other settings. All
# other requests with a status 4xx are refused because of the object or the request itself.
_TEMPORARY_STATUS: Final = frozenset({408, 409, 412, 425, 429})
_TEMPORARY: Final = SLOW | PRECONDITION | {"RequestTimeout", "BadDigest", "IncompleteBody", "InvalidPart", "XAmzContentSHA256Mismatch"}
# Error codes for keys that the server cannot store, including MinIO's own code.
INVALID_KEY: Final = frozenset({"KeyTooLong", "KeyTooLongError", "InvalidObjectName", "XMinioInvalidObjectName", "InvalidURI"})
_WAYS_OUT: Final = {
    "NoSuchBucket": "there is no such bucket; correct the location or `s3.endpoint`",
    "PermanentRedirect": "the bucket is in another region; set `s3.region`",
    "301": "the bucket is in another region; set `s3.region`",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set `s3.region`",
    "AuthorizationQueryParametersError": "the bucket is in another region; set `s3.region`",
    "IllegalLocationConstraintException": "the bucket is in another region; set `s3.region`",
    "InvalidToken": "the session token is incomplete or belongs to another server; check AWS_SESSION_TOKEN, or log in again",
    "InvalidAccessKeyId": "the server does not know this access key; check AWS_PROFILE, AWS_ACCESS_KEY_ID and `s3.endpoint`",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key; check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired; log in again, or set `s3.role_arn`, which is renewed automatically",
    "ExpiredTokenException": "the session token has expired; log in again, or set `s3.role_arn`, which is renewed automatically",
    "TokenRefreshRequired": "the session token has expired; log in again",
    # The response to HEAD has no body, so there is no error code.
    "400": "the server gives no reason; the session token may have expired; log in again, and check `s3.endpoint`",
    "RequestTimeTooSkewed": "the clocks of this machine and the server differ too much; set this machine's clock",
    "AccessDenied": "the policy does not allow this; docs/s3-reference.md lists the permissions of each role",
    "403": "the policy does not allow this; docs/s3-reference.md lists the permissions of each role",
    "SlowDown": "the server asks for fewer requests; set `s3.max_requests_per_second`",
}


def get_client(settings: S3Config, role: Role, attempts: int = _ATTEMPTS, before_parse: BeforeParse | None = None) -> Any:
    """Return this process's client for a server, which is thread-safe.

    Args:
        settings: How to connect to the server.
        role: `read` or `change`. Each role has its own credentials.
        attempts: How often a request is attempted at most. Must be 1 for a request that requires a
            check immediately before.
        before_parse: A handler of botocore's event `before-parse` that takes precedence over
            botocore's own handlers.

    Raises:
        UsageError: If the profile or its credentials do not exist, or if the changing role is
            requested although the connection is anonymous.
    """
    if role == "change" and settings.anonymous:
        raise UsageError("`s3.anonymous` reads without credentials and cannot change anything; set a profile or a role")
    return create_process_client(settings, role, attempts, before_parse)


@contextmanager
def translate_errors(address: str) -> Generator[None]:
    """Convert botocore's errors in the block to an `OSError` with a readable message.

    Raises:
        FileNotFoundError: If the object does not exist.
        PermissionError: If the server denies the request, so that a retry does not help.
        OSError: If anything else fails. A retry may help, unless `core.errors.is_permanent` is true.
    """
    try:
        yield
    except botocore.exceptions.ClientError as error:
        raise to_os_error(error, address) from error
    except botocore.exceptions.ParamValidationError as error:
        found = " ".join(str(error).split())
        raise OSError(errno.EINVAL, f"the S3 client cannot send the request: {found}", address) from error
    except (botocore.exceptions.NoCredentialsError, botocore.exceptions.PartialCredentialsError) as error:
        way_out = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `s3.profile` or `s3.role_arn`"
        raise PermissionError(errno.EACCES, f"{error}; {way_out}", address) from error
    except botocore.exceptions.SSLError as error:
        way_out = (
            "the server does not support TLS, or its certificate is not trusted; check `s3.endpoint` (http or https), or set AWS_CA_BUNDLE"
        )
        raise OSError(errno.EIO, f"{error}; {way_out}", address) from error
    except (botocore.exceptions.HTTPClientError, botocore.exceptions.BotoCoreError) as error:
        raise OSError(errno.EIO, f"{strip_paths(str(error))}; check the network and `s3.endpoint`", address) from error


def error_code(error: botocore.exceptions.ClientError) -> str:
    """Return the S3 error code, or the HTTP status if the response has no body, as for HEAD."""
    return str(error.response.get("Error", {}).get("Code", ""))


def to_os_error(error: botocore.exceptions.ClientError, address: str) -> OSError:
    """Convert an error response to an `OSError`, as the object protocols require."""
    code = error_code(error)
    # Ceph 16 sends error codes without messages.
    message = str(error.response.get("Error", {}).get("Message") or code)
    if code in NOT_FOUND:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
    text = f"{code}: {message}" if message != code else code
    way_out = _WAYS_OUT.get(code)
    text += f"; {way_out}" if way_out else ""
    if code in DENIED:
        return PermissionError(errno.EACCES, text, address)
    if code in INVALID_KEY:
        return OSError(errno.ENAMETOOLONG, text, address)
    return OSError(errno.EINVAL if _is_refused(error, code) else errno.EIO, text, address)


def _is_refused(error: botocore.exceptions.ClientError, code: str) -> bool:
    """Return True if the server refused the request for a reason that a retry will not change.

    Errors that a user can correct in the settings or credentials do not count (`_WAYS_OUT`).
    """
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return 400 <= status < 500 and status not in _TEMPORARY_STATUS and code not in _TEMPORARY and code not in _WAYS_OUT


@PerProcess
def create_process_client(settings: S3Config, role: Role, attempts: int, before_parse: BeforeParse | None) -> Any:
    session = create_session(settings, role, before_parse)
    path_style = settings.path_style if settings.path_style is not None else settings.endpoint is not None
    config = BotoConfig(
        signature_version=UNSIGNED if settings.anonymous else "s3v4",
        retries={"mode": "standard", "total_max_attempts": attempts},
        s3={"addressing_style": "path" if path_style else "auto"},
        # Servers other than AWS reject the checksums that newer clients add by default.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=_CONNECTIONS,
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        user_agent_extra="gc-assets",
    )
    client = session.create_client("s3", region_name=_region(settings, session), endpoint_url=settings.endpoint, config=config)
    rate_limiter = get_rate_limiter(settings)

    def wait_and_count(event_name: str, request: Any, **_: Any) -> None:
        operation = event_name.rpartition(".")[2]
        rate_limiter.wait(max(1, bytes(request.body).count(b"<Key>")) if operation == "DeleteObjects" else 1)
        count_request(settings, request_kind(operation))

    def check_for_slow_down(parsed_response: Any, **_: Any) -> None:
        answer = parsed_response or {}
        codes = {str(item.get("Code")) for item in [answer.get("Error", {}), *answer.get("Errors", [])]}
        if answer.get("ResponseMetadata", {}).get("HTTPStatusCode") in SLOW_STATUS or codes & SLOW:
            rate_limiter.slow_down()

    for operation in ("CopyObject", "CreateMultipartUpload", "PutObject"):
        # Servers store other characters too, and copies must keep them.
        client.meta.events.unregister(f"before-parameter-build.s3.{operation}", validate_ascii_metadata)
    client.meta.events.register("before-send.s3", wait_and_count)
    client.meta.events.register("response-received.s3", check_for_slow_down)
    return client


def _replace_invalid_characters(operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
    """Let botocore parse responses with a key that XML cannot contain (botocore's `before-parse`)."""
    if operation_model.name in _KEY_IN_RESPONSE:
        response_dict["body"] = replace_invalid_characters(response_dict["body"])


def request_kind(operation: str) -> Kind:
    """Determine how an operation of the S3 API is billed."""
    if operation in {"CopyObject", "UploadPartCopy"}:
        return "COPY"
    for verb, kind in _VERBS.items():
        if operation.startswith(verb):
            return kind
    return "PUT"


def create_session(settings: S3Config, role: Role, before_parse: BeforeParse | None = None) -> Any:
    """Create a session whose credentials are renewed automatically."""
    changes = role == "change"
    profile = (settings.apply_profile if changes else None) or settings.profile
    arn = (settings.apply_role_arn if changes else None) or settings.role_arn
    try:
        session = _session(profile, before_parse)
        session.get_scoped_config()  # reads the profile, so that a missing one is reported here
        if arn is None:
            return session
        credentials = session.get_credentials()
        if credentials is None:
            way_out = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `s3.profile`"
            raise UsageError(f"s3: cannot assume the role {arn}: there are no credentials; {way_out}")
        fetcher = AssumeRoleCredentialFetcher(
            client_creator=functools.partial(session.create_client, region_name=_region(settings, session)),
            source_credentials=credentials,
            role_arn=arn,
            extra_args={"RoleSessionName": f"gc-assets-{role}"},
        )
        assumed = _session(profile, before_parse)
        # botocore has no public way to set automatically renewed credentials.
        assumed._credentials = DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method="assume-role")  # pyright: ignore[reportPrivateUsage]
    except botocore.exceptions.ProfileNotFound as error:
        raise UsageError(f"s3: {error}; `aws configure list-profiles` lists the profiles") from error
    return assumed


def _region(settings: S3Config, session: Any) -> str:
    return settings.region or session.get_config_variable("region") or _REGION


def _session(profile: str | None, before_parse: BeforeParse | None) -> Any:
    # Handlers only precede botocore's own if they are registered before the session adds them.
    events = HierarchicalEmitter()
    events.register_first("before-parse.s3.*", _replace_invalid_characters)
    if before_parse is not None:
        events.register_first("before-parse.s3.*", before_parse)
    session = botocore.session.Session(profile=profile, event_hooks=events)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


@functools.lru_cache(maxsize=8)
def _loader(data_path: str | None) -> Any:
    """Create a loader for botocore's service descriptions.

    All clients share the loader, because creating a client would otherwise spend most of its time
    loading the descriptions.
    """
    return botocore.loaders.create_loader(data_path)


def payer_params(settings: S3Config) -> dict[str, str]:
    """Build the parameter that accepts requester-pays charges, if the settings allow it."""
    return {"RequestPayer": "requester"} if settings.requester_pays else {}
