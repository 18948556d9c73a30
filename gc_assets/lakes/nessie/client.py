"""The calls of Nessie's REST API v2 that a mark needs, on httpx. Lists are read to their end, and
passing failures are tried again.

This is the only module of this lake kind that talks to a server. Everything behind `@<hash>` is
immutable: a ref that moves or goes while we read changes nothing. The token never stands in a
message.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from functools import cache
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, SecretStr, ValidationError
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter
from tenacity.wait import wait_base

from gc_assets.core.deadline import READ_SECONDS, within
from gc_assets.core.errors import LakeUnreadable
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

# `TreeService.MAX_COMMIT_LOG_ENTRIES`: the server never puts more commits on a page.
COMMITS_A_PAGE: Final = 250
# The server knows no limit for entries, so one is always sent.
ENTRIES_A_PAGE: Final = 1_000
# About half a minute of trying: longer than a restart of the server takes, shorter than anybody's
# patience.
ATTEMPTS: Final = 8
LONGEST_WAIT_SECONDS: Final = 10.0
# A deep history page of a busy server takes seconds, never a minute.
TIMEOUT_SECONDS: Final = 60.0
# The server's error code for a ref or commit that it does not have. A wrong address answers 404
# with another code, or with none.
NO_REFERENCE: Final = "REFERENCE_NOT_FOUND"
_PASSING: Final = frozenset({429, 500, 502, 503, 504})
_Answer = TypeVar("_Answer", bound=BaseModel)
_Page = TypeVar("_Page", ReferencePage, EntryPage)


class _PassingError(Exception):
    """A failure that another attempt may not meet. `wait_seconds` is the pause that the server
    asked for.
    """

    def __init__(self, finding: str, wait_seconds: float | None = None) -> None:
        super().__init__(finding)
        self.wait_seconds = wait_seconds


class _AbsentError(LakeUnreadable):
    """The server itself says that the ref or commit does not exist."""


class NessieClient:
    """The connections to one server. Safe to use from threads. As a context manager it closes its
    connections.
    """

    def __init__(
        self,
        lake: str,
        uri: str,
        token: SecretStr | None = None,
        longest_wait: float = LONGEST_WAIT_SECONDS,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._lake = lake
        self._read_seconds = read_seconds
        self._uri = uri.rstrip("/")
        headers = {"Nessie-Client-Spec": "2", "Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        # No settings from the environment: a lake is what its configuration says.
        self._http = httpx.Client(headers=headers, timeout=TIMEOUT_SECONDS, verify=_certificates(), trust_env=False)
        self._wait = _AsAsked(wait_exponential_jitter(multiplier=longest_wait / 40, max=longest_wait, jitter=longest_wait / 40))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._http.close()

    def config(self) -> ServerConfig:
        """Returns the server's settings. Raises `LakeUnreadable`, also for a server without API v2."""
        config = self._get("config", {}, ServerConfig)
        if config.newest_api < 2:
            raise self._unreadable("config", f"the server speaks API v{config.newest_api} at most, v2 is needed; upgrade it")
        return config

    def references(self) -> Iterator[Reference]:
        """Yields every branch and tag that the server shows, with the number of commits in its log."""
        for page in self._pages("trees", {"fetch": "ALL", "max-records": str(ENTRIES_A_PAGE)}, ReferencePage):
            yield from page.items

    def log(self, head: str, commits: int = COMMITS_A_PAGE) -> LogPage:
        """Returns the newest commits of the log that ends in a hash, with their operations.

        The log goes on at the parent of the last commit.
        """
        return self._get(f"trees/@{quote(head)}/history", {"fetch": "ALL", "max-records": str(commits)}, LogPage)

    def has_commit(self, commit: str) -> bool:
        """Returns False if the server says that it has no such commit. Any other refusal is an
        error.
        """
        return self._is_there(f"trees/@{quote(commit)}/history", {"max-records": "1"}, LogPage)

    def has_ref(self, name: str) -> bool:
        """Returns False if the server says that it has no such ref. For a ref that it does not show
        to us the server answers 403, which is an error.
        """
        return self._is_there(f"trees/{quote(name, safe='')}", {}, NamedReference)

    def entries(self, head: str) -> Iterator[Entry]:
        """Yields every key of the state at a hash with its content, in the server's order."""
        parameters = {"content": "true", "max-records": str(ENTRIES_A_PAGE)}
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
                found = f"repeats the page token {page.token!r}" if page.token else "says that there is more and gives no page token"
                raise self._unreadable(path, f"the server {found}, so its answer never ends; a proxy may be mangling it")
            token = page.token
            seen.add(token)

    def _is_there(self, path: str, parameters: Mapping[str, str], model: type[BaseModel]) -> bool:
        try:
            self._get(path, parameters, model)
        except _AbsentError:
            return False
        return True

    def _get(self, path: str, parameters: Mapping[str, str], model: type[_Answer]) -> _Answer:
        retrying = Retrying(stop=stop_after_attempt(ATTEMPTS), wait=self._wait, retry=retry_if_exception_type(_PassingError), reraise=True)
        try:
            raw = retrying(self._attempt, path, parameters)
        except _PassingError as error:
            raise self._unreadable(path, f"{error}, {ATTEMPTS} times over; see to the server and run again") from error
        try:
            return model.model_validate_json(raw)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(step) for step in first["loc"]) or "the answer"
            raise self._unreadable(path, f"the answer is not API v2's: {where}: {first['msg']}") from None

    def _attempt(self, path: str, parameters: Mapping[str, str]) -> bytes:
        try:
            # The client's own timeout counts from byte to byte.
            answer = within(self._read_seconds, path, lambda: self._http.get(f"{self._uri}/{path}", params=dict(parameters)))
        except TimeoutError as error:
            raise self._unreadable(path, f"{error.strerror}; see to the server and run again") from error
        except httpx.TransportError as error:
            raise _PassingError(f"no answer ({type(error).__name__}: {error})") from error
        except httpx.InvalidURL as error:
            raise self._unreadable(path, f"the address is no URL ({error}); correct `uri`") from error
        if answer.status_code == HTTPStatus.OK:
            return answer.content
        finding = f"status {answer.status_code}{_said(answer)}"
        if answer.status_code in _PASSING:
            raise _PassingError(finding, _asked_wait(answer))
        kind = _AbsentError if answer.status_code == HTTPStatus.NOT_FOUND and _error_code(answer) == NO_REFERENCE else LakeUnreadable
        raise kind(self._where(path, f"{finding}; {_remedy(answer.status_code)}"))

    def _unreadable(self, path: str, finding: str) -> LakeUnreadable:
        return LakeUnreadable(self._where(path, finding))

    def _where(self, path: str, finding: str) -> str:
        return f"lake {self._lake}: GET {self._uri}/{path}: {finding}"


class _AsAsked(wait_base):
    """Waits as long as the server asked for, but at most `LONGEST_WAIT_SECONDS`. If it asked for
    nothing, `otherwise` decides.
    """

    def __init__(self, otherwise: wait_base) -> None:
        self._otherwise = otherwise

    def __call__(self, retry_state: RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        asked = error.wait_seconds if isinstance(error, _PassingError) else None
        return min(asked, LONGEST_WAIT_SECONDS) if asked is not None else self._otherwise(retry_state)


@cache
def _certificates() -> ssl.SSLContext:
    """Returns the certificates of the system, read once per process."""
    return ssl.create_default_context()


def _asked_wait(answer: httpx.Response) -> float | None:
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else None


def _said(answer: httpx.Response) -> str:
    message = error_message(_document(answer))
    return "" if message is None else f" ({message[:300]})"


def _error_code(answer: httpx.Response) -> str | None:
    document = _document(answer)
    return document.get("errorCode") if isinstance(document, dict) else None


def _document(answer: httpx.Response) -> Any:
    """Returns the answer's JSON, or None if it is no JSON."""
    try:
        return answer.json()
    except ValueError:
        return None


def _remedy(status: int) -> str:
    if status == HTTPStatus.UNAUTHORIZED:
        return "the server wants to know who asks: give the lake a `token`, or a valid one"
    if status == HTTPStatus.FORBIDDEN:
        return "the principal may not read this; it needs VIEW_REFERENCE, LIST_COMMIT_LOG, READ_ENTRIES and READ_ENTITY_VALUE on everything"
    if status == HTTPStatus.NOT_FOUND:
        return "the address is not a Nessie API v2 root, or the server's own clean-up removed that history; correct `uri`, or run again"
    return "nothing is collected until the server answers"
