"""Client for those calls of the Nessie REST API v2 that are needed to find live files.

No other module connects to a server. The client reads lists completely and retries transient
errors. Requests name a commit hash (`@<hash>`), at which all content is immutable, so results do
not depend on concurrent changes of refs. Messages never contain the token.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, SecretStr, ValidationError
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential, wait_random
from tenacity.wait import wait_base

from gc_assets.core.deadline import READ_SECONDS, run_with_deadline
from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.untrusted_input import parse_json
from gc_assets.lakes.nessie.models import (
    Entry,
    EntryPage,
    LogPage,
    NamedReference,
    Reference,
    ReferencePage,
    ServerConfig,
    error_message,
)

# The server returns at most this number of commits per page (`TreeService.MAX_COMMIT_LOG_ENTRIES`).
COMMITS_PER_PAGE: Final = 250
# The server does not limit entries by default, so every request contains a limit.
ENTRIES_PER_PAGE: Final = 1_000
# All pauses together take about half a minute, which is longer than a server needs to restart.
MAX_ATTEMPTS: Final = 8
MAX_WAIT_SECONDS: Final = 10.0
# A busy server needs several seconds for a page of old history.
TIMEOUT_SECONDS: Final = 60.0
# Error code for a missing ref or commit. For a wrong URL, the server also returns 404, but with
# another code or none at all.
NO_REFERENCE: Final = "REFERENCE_NOT_FOUND"
_RETRYABLE_STATUSES: Final = frozenset({429, 500, 502, 503, 504})
_Answer = TypeVar("_Answer", bound=BaseModel)
_Page = TypeVar("_Page", ReferencePage, EntryPage)


class _TransientError(Exception):
    """Raised for an error that a retry may resolve.

    `wait_seconds` is the delay that the server requested.
    """

    def __init__(self, finding: str, wait_seconds: float | None = None) -> None:
        super().__init__(finding)
        self.wait_seconds = wait_seconds


class _NotFoundError(LakeUnreadable):
    """Raised if the server reports that a ref or commit does not exist."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Response of a server that refused to make a change.

    Attributes:
        status: HTTP status.
        code: The server's error code, if any.
        text: Description with the status, the code and the server's message.
    """

    status: int
    code: str | None
    text: str


class NessieClient:
    """Thread-safe client of one server. As a context manager, it closes its connections."""

    def __init__(
        self,
        lake: str,
        uri: str,
        token: SecretStr | None = None,
        max_wait: float = MAX_WAIT_SECONDS,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._lake = lake
        self._read_seconds = read_seconds
        self._uri = uri.rstrip("/")
        headers = {"Nessie-Client-Spec": "2", "Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        # The configuration of the lake is complete, so settings in the environment are ignored.
        self._http = httpx.Client(headers=headers, timeout=TIMEOUT_SECONDS, verify=_certificates(), trust_env=False)
        # tenacity changes the parameters of `wait_exponential_jitter` in each major version.
        self._wait = _WaitRetryAfter(wait_exponential(multiplier=max_wait / 40, max=max_wait) + wait_random(0, max_wait / 40))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._http.close()

    def get_config(self) -> ServerConfig:
        """Read the server's settings.

        Raises:
            LakeUnreadable: If the call fails, or the server does not support API v2.
        """
        config = self._get("config", {}, ServerConfig)
        if config.newest_api < 2:
            raise self._unreadable(
                "config", f"the server only supports API v{config.newest_api}, but gc-assets needs v2; upgrade the server"
            )
        return config

    def list_references(self) -> Iterator[Reference]:
        """Yield every visible branch and tag, with the number of commits in its history."""
        for page in self._pages("trees", {"fetch": "ALL", "max-records": str(ENTRIES_PER_PAGE)}, ReferencePage):
            yield from page.items

    def read_log(self, head: str, commits: int = COMMITS_PER_PAGE) -> LogPage:
        """Read the newest commits in the log that ends at a commit hash, with their operations.

        To read older commits, call this with the parent of the last commit.
        """
        return self._get(f"trees/@{quote(head)}/history", {"fetch": "ALL", "max-records": str(commits)}, LogPage)

    def has_commit(self, commit: str) -> bool:
        """Return True if a commit exists, and False only if the server reports that it does not.

        Any other error raises `LakeUnreadable`.
        """
        return self._exists(f"trees/@{quote(commit)}/history", {"max-records": "1"}, LogPage)

    def has_ref(self, name: str) -> bool:
        """Check if a ref exists.

        If the principal may not read the ref, the server returns 403, and `LakeUnreadable` is
        raised.
        """
        return self.read_ref(name) is not None

    def read_ref(self, name: str) -> Reference | None:
        """Read a ref. Returns None if the server reports that it does not exist.

        If the principal may not read the ref, the server returns 403, and `LakeUnreadable` is
        raised.
        """
        try:
            return self._get(f"trees/{quote(name, safe='')}", {}, NamedReference).reference
        except _NotFoundError:
            return None

    def change(self, method: str, path: str, parameters: Mapping[str, str], body: Mapping[str, str] | None = None) -> Refusal | None:
        """Send one request that changes a ref, without retries.

        Returns the server's refusal, if any.

        Raises:
            LakeUnreadable: If there is no response, so that the change may have been made.
        """
        try:
            answer = run_with_deadline(
                self._read_seconds,
                path,
                lambda: self._http.request(method, f"{self._uri}/{path}", params=dict(parameters), json=body),
            )
        except TimeoutError as error:
            raise LakeUnreadable(f"lake {self._lake}: {method} {self._uri}/{path}: {error.strerror}; apply again") from error
        except httpx.HTTPError as error:
            found = f"no answer ({type(error).__name__}: {error}); apply again"
            raise LakeUnreadable(f"lake {self._lake}: {method} {self._uri}/{path}: {found}") from error
        if answer.is_success:
            return None
        return Refusal(answer.status_code, _error_code(answer), f"status {answer.status_code}{_error_text(answer)}")

    def list_entries(self, head: str) -> Iterator[Entry]:
        """Yield every key at a commit hash with its content, in the server's order."""
        parameters = {"content": "true", "max-records": str(ENTRIES_PER_PAGE)}
        for page in self._pages(f"trees/@{quote(head)}/entries", parameters, EntryPage):
            yield from page.items

    def _pages(self, path: str, parameters: Mapping[str, str], model: type[_Page]) -> Iterator[_Page]:
        token: str | None = None
        seen: set[str] = set()
        while True:
            page = self._get(path, {**parameters, **({} if token is None else {"page-token": token})}, model)
            yield page
            if not page.has_more:
                return
            if not page.token or page.token in seen:
                found = f"repeats the page token {page.token!r}" if page.token else "announces another page but gives no page token"
                raise self._unreadable(
                    path, f"the server {found}, so the list cannot be completed; check the proxies between the server and gc-assets"
                )
            token = page.token
            seen.add(token)

    def _exists(self, path: str, parameters: Mapping[str, str], model: type[BaseModel]) -> bool:
        try:
            self._get(path, parameters, model)
        except _NotFoundError:
            return False
        return True

    def _get(self, path: str, parameters: Mapping[str, str], model: type[_Answer]) -> _Answer:
        retrying = Retrying(
            stop=stop_after_attempt(MAX_ATTEMPTS), wait=self._wait, retry=retry_if_exception_type(_TransientError), reraise=True
        )
        try:
            raw = retrying(self.send, path, parameters)
        except _TransientError as error:
            raise self._unreadable(path, f"{error} after {MAX_ATTEMPTS} attempts; check the server and run again") from error
        try:
            return model.model_validate_json(raw)
        except ValidationError as error:
            first = error.errors()[0]
            location = ".".join(str(step) for step in first["loc"]) or "the answer"
            raise self._unreadable(path, f"the answer does not match API v2: {location}: {first['msg']}") from None

    def send(self, path: str, parameters: Mapping[str, str]) -> bytes:
        """Send one GET request, without retries, and return the body."""
        try:
            # httpx's timeout only limits the time between two bytes, not the whole response.
            answer = run_with_deadline(self._read_seconds, path, lambda: self._http.get(f"{self._uri}/{path}", params=dict(parameters)))
        except TimeoutError as error:
            raise self._unreadable(path, f"{error.strerror}; check the server and run again") from error
        except httpx.TransportError as error:
            raise _TransientError(f"no answer ({type(error).__name__}: {error})") from error
        except httpx.InvalidURL as error:
            raise self._unreadable(path, f"invalid URL ({error}); correct `uri`") from error
        if answer.status_code == HTTPStatus.OK:
            return answer.content
        finding = f"status {answer.status_code}{_error_text(answer)}"
        if answer.status_code in _RETRYABLE_STATUSES:
            raise _TransientError(finding, _retry_after(answer))
        kind = _NotFoundError if answer.status_code == HTTPStatus.NOT_FOUND and _error_code(answer) == NO_REFERENCE else LakeUnreadable
        raise kind(self._describe_call(path, f"{finding}; {_advise(answer.status_code)}"))

    def _unreadable(self, path: str, finding: str) -> LakeUnreadable:
        return LakeUnreadable(self._describe_call(path, finding))

    def _describe_call(self, path: str, finding: str) -> str:
        return f"lake {self._lake}: GET {self._uri}/{path}: {finding}"


class _WaitRetryAfter(wait_base):
    """Waits as long as the response header `Retry-After` requests, up to `MAX_WAIT_SECONDS`.

    If the response does not have this header, `fallback` determines the pause.
    """

    def __init__(self, fallback: wait_base) -> None:
        self._fallback = fallback

    def __call__(self, retry_state: RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        requested = error.wait_seconds if isinstance(error, _TransientError) else None
        return min(requested, MAX_WAIT_SECONDS) if requested is not None else self._fallback(retry_state)


@cache
def _certificates() -> ssl.SSLContext:
    """Return the system's certificates. They are read once per process."""
    return ssl.create_default_context()


def _retry_after(answer: httpx.Response) -> float | None:
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else None


def _error_text(answer: httpx.Response) -> str:
    message = error_message(_parse_json(answer))
    return "" if message is None else f" ({message[:300]})"


def _error_code(answer: httpx.Response) -> str | None:
    document = _parse_json(answer)
    return document.get("errorCode") if isinstance(document, dict) else None


def _parse_json(answer: httpx.Response) -> Any:
    """Parse the JSON body of a response. Returns None if the body is not JSON."""
    try:
        return parse_json(answer.content)
    except ValueError:
        return None


def _advise(status: int) -> str:
    if status == HTTPStatus.UNAUTHORIZED:
        return "the server requires authentication: set a valid `token` for the lake"
    if status == HTTPStatus.FORBIDDEN:
        return "the principal may not read this; grant VIEW_REFERENCE, LIST_COMMIT_LOG, READ_ENTRIES and READ_ENTITY_VALUE on everything"
    if status == HTTPStatus.NOT_FOUND:
        return "`uri` is not the root of Nessie's API v2, or the server's clean-up removed this history; correct `uri`, or run again"
    return "no plan can be made until the server answers"
