"""One client for each server and role in each process, and its errors in words.

A client is made where it is used: in the driver, or in an executor after it was forked. Two
processes share none, and no credential leaves the process that found it.
"""

from __future__ import annotations

import errno
import functools
import os
import random
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal

import botocore.exceptions
import botocore.loaders
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config as BotoConfig
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import UsageError
from gc_assets.core.requests import Kind, Requests, record_requests
from gc_assets.s3.rate_limiter import RateLimiter

# `read` is what nights and plans may do, `change` what an apply may.
Role = Literal["read", "change"]

_REGION: Final = "us-east-1"
# Attempts at one request, the first included, with pauses that grow and differ. What a server
# refuses for good is not asked again.
_ATTEMPTS: Final = 8
# A server that answers so asks for fewer requests.
SLOW_STATUS: Final = frozenset({429, 503})
SLOW: Final = frozenset({"SlowDown", "ServiceUnavailable", "RequestLimitExceeded", "TooManyRequests", "Throttling", "503", "429"})
# Threads that ask at once get the same client and the same pace, not one each.
_MAKING: Final = threading.RLock()
os.register_at_fork(before=_MAKING.acquire, after_in_parent=_MAKING.release, after_in_child=_MAKING.release)
_CONNECTIONS: Final = 32
_CONNECT_SECONDS: Final = 10
_READ_SECONDS: Final = 60

# By the first word of an operation. All others write.
_VERBS: Final[Mapping[str, Kind]] = {"List": "LIST", "Get": "GET", "Head": "HEAD", "Delete": "DELETE", "Abort": "DELETE"}
NOT_FOUND: Final = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchVersion", "NoSuchUpload"})
PRECONDITION: Final = frozenset({"412", "PreconditionFailed", "409", "ConditionalRequestConflict"})
DENIED: Final = frozenset({"401", "403", "AccessDenied", "AllAccessDisabled", "MethodNotAllowed", "InvalidObjectState", "AccountProblem"})
_WAYS_OUT: Final = {
    "NoSuchBucket": "there is no such bucket; mend the location, or `s3.endpoint`",
    "PermanentRedirect": "the bucket lies in another region; set `s3.region`",
    "301": "the bucket lies in another region; set `s3.region`",
    "AuthorizationHeaderMalformed": "the bucket lies in another region; set `s3.region`",
    "AuthorizationQueryParametersError": "the bucket lies in another region; set `s3.region`",
    "IllegalLocationConstraintException": "the bucket lies in another region; set `s3.region`",
    "InvalidToken": "the session's token is not of this server or was cut; look at AWS_SESSION_TOKEN, or log in again",
    "InvalidAccessKeyId": "the server does not know this access key; look at AWS_PROFILE, AWS_ACCESS_KEY_ID and `s3.endpoint`",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key; look at AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session's token has expired; log in again, or name a role by `s3.role_arn`, which is renewed by itself",
    "ExpiredTokenException": "the session's token has expired; log in again, or name a role by `s3.role_arn`, which is renewed by itself",
    "TokenRefreshRequired": "the session's token has expired; log in again",
    # HEAD has no body that would say more.
    "400": "the server says no more than that; the session's token may have expired; log in again, and look at `s3.endpoint`",
    "RequestTimeTooSkewed": "the clocks of this machine and of the server differ too much; set this machine's clock",
    "AccessDenied": "the policy does not allow it to this identity; docs/s3-reference.md lists what each role needs",
    "403": "the policy does not allow it to this identity; docs/s3-reference.md lists what each role needs",
    "SlowDown": "the server asks for fewer requests; set `s3.max_requests_per_second`",
}


def get_client(settings: S3Config, role: Role, attempts: int = _ATTEMPTS) -> Any:
    """Returns this process's client. It is safe to use from threads.

    A request is made `attempts` times at most. One that must be preceded by a look each time is
    made once.

    Raises `UsageError` where a profile or its credentials are not there, or where nobody may change
    anything.
    """
    if role == "change" and settings.anonymous:
        raise UsageError("`s3.anonymous` reads without credentials, so nothing can be changed there; name a profile or a role")
    with _MAKING:
        return _client(settings, role, attempts, os.getpid())  # pyright: ignore[reportArgumentType]  (models are frozen, and so hashable)


def get_rate_limiter(settings: S3Config) -> RateLimiter:
    """Returns what all requests of this process with these settings wait for."""
    with _MAKING:
        return _pace(settings, os.getpid())


@functools.lru_cache(maxsize=64)
def _pace(settings: S3Config, process: int) -> RateLimiter:
    del process
    return RateLimiter(settings.max_requests_per_second)


@contextmanager
def translate_errors(address: str) -> Generator[None]:
    """Turns what botocore raises about an object or a bucket into `OSError`s in words:
    `FileNotFoundError`, `PermissionError`, or `OSError` for what may pass.
    """
    try:
        yield
    except botocore.exceptions.ClientError as error:
        raise to_os_error(error, address) from error
    except (botocore.exceptions.NoCredentialsError, botocore.exceptions.PartialCredentialsError) as error:
        way_out = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name `s3.profile` or `s3.role_arn`"
        raise PermissionError(errno.EACCES, f"{error}; {way_out}", address) from error
    except botocore.exceptions.SSLError as error:
        way_out = (
            "the server speaks no TLS there, or its certificate is not trusted: look at `s3.endpoint` (http or https), or set AWS_CA_BUNDLE"
        )
        raise OSError(errno.EIO, f"{error}; {way_out}", address) from error
    except (botocore.exceptions.HTTPClientError, botocore.exceptions.BotoCoreError) as error:
        raise OSError(errno.EIO, f"{error}; look at the network and at `s3.endpoint`", address) from error


def error_code(error: botocore.exceptions.ClientError) -> str:
    """Returns the S3 error code, or the HTTP status where the answer had no body (HEAD)."""
    return str(error.response.get("Error", {}).get("Code", ""))


def to_os_error(error: botocore.exceptions.ClientError, address: str) -> OSError:
    """Returns the answer of a server as the error that the protocols of objects name."""
    code = error_code(error)
    # Ceph 16 names a code and no message.
    said = str(error.response.get("Error", {}).get("Message") or code)
    if code in NOT_FOUND:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
    words = f"{code}: {said}" if said != code else code
    way_out = _WAYS_OUT.get(code)
    words += f"; {way_out}" if way_out else ""
    return PermissionError(errno.EACCES, words, address) if code in DENIED else OSError(errno.EIO, words, address)


@functools.lru_cache(maxsize=64)
def _client(settings: S3Config, role: Role, attempts: int, process: int) -> Any:
    """Makes a client. `process` keeps a forked process from using its parent's sockets."""
    del process
    session = create_session(settings, role)
    path_style = settings.path_style if settings.path_style is not None else settings.endpoint is not None
    config = BotoConfig(
        signature_version=UNSIGNED if settings.anonymous else "s3v4",
        retries={"mode": "standard", "total_max_attempts": attempts},
        s3={"addressing_style": "path" if path_style else "auto"},
        # Servers other than AWS refuse the checksums that newer clients add by themselves.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=_CONNECTIONS,
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        user_agent_extra="gc-assets",
    )
    client = session.create_client("s3", region_name=_region(settings, session), endpoint_url=settings.endpoint, config=config)
    pace = get_rate_limiter(settings)

    def send(event_name: str, request: Any, **_: Any) -> None:
        operation = event_name.rpartition(".")[2]
        pace.wait(max(1, bytes(request.body).count(b"<Key>")) if operation == "DeleteObjects" else 1)
        count_request(settings, request_kind(operation))

    def received(parsed_response: Any, **_: Any) -> None:
        answer = parsed_response or {}
        codes = {str(item.get("Code")) for item in [answer.get("Error", {}), *answer.get("Errors", [])]}
        if answer.get("ResponseMetadata", {}).get("HTTPStatusCode") in SLOW_STATUS or codes & SLOW:
            pace.slow_down()

    client.meta.events.register("before-send.s3", send)
    client.meta.events.register("response-received.s3", received)
    return client


def count_request(settings: S3Config, kind: Kind) -> None:
    """Counts a request that is about to be sent."""
    price = settings.usd_per_million(kind)
    record_requests(Requests({kind: 1}, None if price is None else price / 1e6))


def request_kind(operation: str) -> Kind:
    """Returns the kind of request that a price list names for an operation of S3's API."""
    if operation in {"CopyObject", "UploadPartCopy"}:
        return "COPY"
    for verb, kind in _VERBS.items():
        if operation.startswith(verb):
            return kind
    return "PUT"


def create_session(settings: S3Config, role: Role) -> Any:
    """Returns a session with the credentials of a role, which renew themselves."""
    changes = role == "change"
    profile = (settings.apply_profile if changes else None) or settings.profile
    arn = (settings.apply_role_arn if changes else None) or settings.role_arn
    try:
        session = _session(profile)
        session.get_scoped_config()  # a session looks its profile up when it is first asked for something
        if arn is None:
            return session
        credentials = session.get_credentials()
        if credentials is None:
            way_out = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name `s3.profile`"
            raise UsageError(f"s3: there are no credentials to assume the role {arn} with; {way_out}")
        fetcher = AssumeRoleCredentialFetcher(
            client_creator=functools.partial(session.create_client, region_name=_region(settings, session)),
            source_credentials=credentials,
            role_arn=arn,
            extra_args={"RoleSessionName": f"gc-assets-{role}"},
        )
        assumed = _session(profile)
        # botocore has no public way to hand over credentials that renew themselves.
        assumed._credentials = DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method="assume-role")  # pyright: ignore[reportPrivateUsage]
    except botocore.exceptions.ProfileNotFound as error:
        raise UsageError(f"s3: {error}; `aws configure list-profiles` shows those that there are") from error
    return assumed


def _region(settings: S3Config, session: Any) -> str:
    return settings.region or session.get_config_variable("region") or _REGION


def _session(profile: str | None) -> Any:
    session = botocore.session.Session(profile=profile)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


@functools.lru_cache(maxsize=8)
def _loader(data_path: str | None) -> Any:
    """Makes the reader of botocore's descriptions of services. It keeps what it read, which takes
    most of the time of making a client.
    """
    return botocore.loaders.create_loader(data_path)


def payer_params(settings: S3Config) -> dict[str, str]:
    """Return the parameter that charges the requests to the requester, if the settings say so."""
    return {"RequestPayer": "requester"} if settings.requester_pays else {}


def pause_before_retry(attempt: int) -> None:
    """Sleep before another attempt, longer with each. `attempt` counts from 0."""
    time.sleep(0.1 * 2**attempt * random.uniform(0.5, 1))  # noqa: S311  (spreads requests, no secret)
