"""Client for one lakeFS repository, built on the official `lakefs-sdk`.

Lists are always read completely, and an inconsistent page is an error. After the status 429 or 5xx,
or if the connection is lost, a request is retried with increasing pauses. If there is still no
complete response, `LakeUnreadable` reports the request. Error messages contain the server's status
and message, but never credentials.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeVar

import urllib3
from lakefs_sdk.api.branches_api import BranchesApi
from lakefs_sdk.api.config_api import ConfigApi
from lakefs_sdk.api.internal_api import InternalApi
from lakefs_sdk.api.objects_api import ObjectsApi
from lakefs_sdk.api.repositories_api import RepositoriesApi
from lakefs_sdk.api.tags_api import TagsApi
from lakefs_sdk.api_client import ApiClient
from lakefs_sdk.configuration import Configuration
from lakefs_sdk.exceptions import ApiException, BadRequestException, NotFoundException
from lakefs_sdk.models.prepare_gc_uncommitted_request import PrepareGCUncommittedRequest
from pydantic.v1 import ValidationError  # The SDK's models are based on pydantic's first generation.

from gc_assets.core.deadline import READ_SECONDS, run_with_deadline
from gc_assets.core.errors import LakeUnreadable, RepositoryMissing
from gc_assets.core.moments import seconds
from gc_assets.core.units import LONGEST
from gc_assets.core.untrusted_input import parse_json
from gc_assets.lakes.lakefs.exact_paths import REPLACED, is_exact

_Result = TypeVar("_Result")
# The server rejects larger numbers with status 400.
PAGE: Final = 1000
RETRIES: Final = 5
# A user waits for access checks, so all pauses together take 3 s.
ACCESS_PAUSE_SECONDS: Final = 0.1
_TIMEOUT_SECONDS: Final = (10, 120)
_RETRIED: Final = (429, 500, 502, 503, 504)
# How older servers respond to an unknown path. The status is 500.
_UNKNOWN_ENDPOINT: Final = "invalid API endpoint"
# A dump of 5,000 commits takes 50 ms. The limit allows for the largest repositories.
_DUMP_TIMEOUT: Final = timedelta(minutes=20)
_HINTS: Final = {
    401: "check access_key_id and secret_access_key",
    403: "give the collector's user the permissions that docs/lakefs.md lists",
    404: "check endpoint and repository",
    410: "the object is gone from the storage; restore it from a backup",
}


@dataclass(frozen=True, slots=True)
class Server:
    """Address and credentials of a server.

    Attributes:
        base_url: Address without `/api/v1`.
        access_key_id: Access key id.
        secret_access_key: Secret access key.
        pause_seconds: Pause before the first retry of a request.
        read_seconds: How long to wait for a response.
    """

    base_url: str
    access_key_id: str
    secret_access_key: str
    pause_seconds: float = 0.5
    read_seconds: float = READ_SECONDS

    def __repr__(self) -> str:
        return f"Server({self.base_url})"


@dataclass(frozen=True, slots=True)
class Repository:
    """Properties of a repository.

    Attributes:
        storage_namespace: Address of the repository's files.
        read_only: True if the repository has no staging areas.
        server_time: Current time of the server.
        created: Creation time in seconds since 1970.
        default_branch: Branch that the server only deletes together with the repository.
    """

    storage_namespace: str
    read_only: bool
    server_time: datetime
    created: int
    default_branch: str


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """lakeFS's garbage collection rules: days to keep, for some branches and for all others.

    If the server lists a branch twice, the last rule applies.
    """

    default_days: int
    branch_days: dict[str, int]


@dataclass(frozen=True, slots=True)
class RefsDump:
    """Ids of the metaranges with the server's dump of all commits, branches and tags."""

    commits: str
    branches: str
    tags: str


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object that a ref contains. `address` is written as in the REST listing."""

    path: str
    address: str
    size_bytes: int
    written_at: int


class RefDeleted(LakeUnreadable):
    """Raised if a branch is deleted while it is read. The whole repository must then be reread."""


class RepositoryClient:
    """Client for one repository."""

    def __init__(self, server: Server, repository: str, *, retries: int | None = None) -> None:
        configuration: Any = Configuration(
            host=f"{server.base_url}/api/v1", username=server.access_key_id, password=server.secret_access_key
        )
        # Every request of this class can be retried, because it only reads, or starts a task that
        # writes a new file.
        configuration.retries = urllib3.Retry(
            total=RETRIES if retries is None else retries,
            backoff_factor=server.pause_seconds,
            status_forcelist=_RETRIED,
            allowed_methods=None,
            raise_on_status=False,
        )
        self._api = ApiClient(configuration)
        self._server = server
        self._name = repository

    def repository(self) -> Repository:
        """Read the repository's properties. Raises `RepositoryMissing` if it does not exist."""
        found = self.find_repository()
        if found is None:
            raise RepositoryMissing(str(self._unreadable("repository", f"HTTP 404: not found; {_HINTS[404]}")))
        return found

    def find_repository(self) -> Repository | None:
        """Read the repository's properties. Returns None if the server reports that it is missing."""

        def fetch() -> Any:
            try:
                return RepositoriesApi(self._api).get_repository_with_http_info(self._name, **OPTIONS)
            except NotFoundException as error:
                if not is_of_server(error):
                    raise
                return None

        response = self._call("repository", fetch)
        if response is None:
            return None
        date = (response.headers or {}).get("Date")
        if date is None:
            raise self._unreadable("repository", "the response has no Date header, so the server's time is unknown")
        try:
            server_time = parsedate_to_datetime(date)
        except ValueError as error:
            raise self._unreadable("repository", f"the response has an invalid Date header ({error})") from error
        entry = response.data
        return Repository(entry.storage_namespace, bool(entry.read_only), server_time, int(entry.creation_date), entry.default_branch)

    def installation_id(self) -> str | None:
        """Return the id of the lakeFS installation, or None if the server does not report it.

        Older servers and servers without usage reports do not report an id.

        Raises:
            LakeUnreadable: If the server does not respond.
        """

        def fetch() -> str | None:
            try:
                response: Any = InternalApi(self._api).get_usage_report_summary_with_http_info(_preload_content=False, **OPTIONS)
                document = parse_json(response.raw_data)
            except ApiException as error:
                if (error.status is None or error.status in _RETRIED) and _find_message(_body(error)) != _UNKNOWN_ENDPOINT:
                    raise
                return None
            except ValueError:
                return None
            found = document.get("installation_id") if isinstance(document, dict) else None
            return found if isinstance(found, str) and found else None

        return self._call("usage report", fetch)

    def namespaces(self) -> dict[str, str]:
        """Return the storage namespace of each repository on the server."""
        api = RepositoriesApi(self._api)
        pages = self._pages("the list of repositories", lambda after: api.list_repositories(after=after, amount=PAGE, **OPTIONS))
        return {item.id: item.storage_namespace for page in pages for item in page}

    def branches(self) -> dict[str, str]:
        """Return the head of each branch. Hidden branches are included."""
        api = BranchesApi(self._api)
        fetch = lambda after: api.list_branches(self._name, after=after, amount=PAGE, show_hidden=True, **OPTIONS)  # noqa: E731
        return {item.id: item.commit_id for page in self._pages("the list of branches", fetch) for item in page}

    def tags(self) -> dict[str, str]:
        """Return the commit to which each tag points."""
        api = TagsApi(self._api)
        pages = self._pages("the list of tags", lambda after: api.list_tags(self._name, after=after, amount=PAGE, **OPTIONS))
        return {item.id: item.commit_id for page in pages for item in page}

    def objects(self, ref: str) -> Iterator[ListedObject]:
        """Yield the objects of a ref, ordered by path. Staged (uncommitted) objects are included.

        Raises:
            RefDeleted: If the ref does not exist.
        """
        api, what = ObjectsApi(self._api), f"objects of {ref}"

        def fetch(after: str) -> Any:
            try:
                # Building the SDK's models would take ten times as long as the listing itself.
                response: Any = api.list_objects_with_http_info(
                    self._name, ref, after=after, amount=PAGE, presign=False, user_metadata=False, _preload_content=False, **OPTIONS
                )
            except NotFoundException as error:
                raise RefDeleted(f"{self._describe(what)}: not found: {describe_error(error)}; run again") from None
            return _Page.of(parse_json(response.raw_data))

        for page in self._pages(what, fetch, key="path"):
            yield from page

    def is_branch(self, name: str) -> bool:
        """Return True if the server resolves the name to a branch, not to a commit or tag.

        The request uses the ref modifier `$`. It selects the staging area, which only a branch has.
        """
        api = ObjectsApi(self._api)

        def fetch() -> bool:
            try:
                api.list_objects_with_http_info(self._name, f"{name}$", amount=1, presign=False, _preload_content=False, **OPTIONS)
            except (BadRequestException, NotFoundException):
                return False
            return True

        return self._call(f"objects of {name}$", fetch)

    def retention_rules(self) -> RetentionRules | None:
        """Read the garbage collection rules. Returns None if the repository has no rules.

        The server's response is the same if the repository does not exist, so call `repository()`
        first.
        """
        # If no branch has a rule, the server sends `"branches": null`, which the SDK rejects.
        api = RepositoriesApi(self._api)

        def fetch() -> str | None:
            try:
                response: Any = api.get_gc_rules_with_http_info(self._name, _preload_content=False, **OPTIONS)
                return response.raw_data.decode()
            except NotFoundException:
                return None

        what = "garbage collection rules"
        body = self._call(what, fetch)
        if body is None:
            return None
        try:
            document = parse_json(body)
            branch_rules = [(_read_field(item, "branch_id", str), item["retention_days"]) for item in document["branches"] or ()]
            default = document["default_retention_days"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreadable(what, f"expected default_retention_days and branches, found {body[:200]!r}") from error
        invalid = [days for days in (default, *(days for _, days in branch_rules)) if type(days) is not int or days < 0]
        if invalid:
            raise self._unreadable(what, f"expected a number of days of at least 0, found {invalid[0]!r}; correct the rules")
        return RetentionRules(default, dict(branch_rules))

    def link_expiry(self) -> timedelta:
        """Return how long after its creation users can link a physical address to a path."""
        response = self._call("garbage collection config", lambda: InternalApi(self._api).get_garbage_collection_config(**OPTIONS))
        if response.grace_period is None or response.grace_period < 0:
            raise self._unreadable("garbage collection config", f"expected a grace_period in seconds, found {response.grace_period!r}")
        return min(seconds(response.grace_period), LONGEST)

    def edition(self) -> str | None:
        """Return the edition of the server, or None if an older server does not report it.

        The open-source edition is called `lakeFS`.
        """

        def fetch() -> Any:
            response: Any = ConfigApi(self._api).get_config_with_http_info(_preload_content=False, **OPTIONS)
            return parse_json(response.raw_data)

        try:
            document = self._call("configuration", fetch)
            found = (document.get("version_config") or {}).get("version_context")
        except (ValueError, AttributeError) as error:
            raise self._unreadable("configuration", f"the response has no version_config ({error})") from error
        return found if isinstance(found, str) and found else None

    def dump_refs(self) -> RefsDump:
        """Let the server write all refs and commits to the namespace, and wait for this dump."""
        api = RepositoriesApi(self._api)
        task = self._call("refs dump", lambda: api.dump_submit(self._name, **OPTIONS))
        until, pause = time.monotonic() + _DUMP_TIMEOUT.total_seconds(), self._server.pause_seconds / 50
        while True:
            status = self._call(f"refs dump {task.id}", lambda: api.dump_status(self._name, task.id, **OPTIONS))
            if status.error:
                raise self._unreadable(f"refs dump {task.id}", f"failed: {status.error}")
            if status.done:
                break
            if time.monotonic() > until:
                raise self._unreadable(f"refs dump {task.id}", f"not done after {_DUMP_TIMEOUT}")
            time.sleep(pause)
            pause = min(2 * pause, 5.0)
        if status.refs is None:
            raise self._unreadable(f"refs dump {task.id}", "done, but the response does not contain any metaranges")
        return RefsDump(status.refs.commits_meta_range_id, status.refs.branches_meta_range_id, status.refs.tags_meta_range_id)

    def prepare_uncommitted(self) -> Sequence[str]:
        """Let the server write lists of uncommitted objects to files.

        Returns the location of each page.

        Raises:
            LakeUnreadable: If the server repeats a continuation token. lakeFS keeps doing this if
                reading one branch takes longer than its time limit for a page.
        """
        api, what = InternalApi(self._api), "prepare_uncommited"

        def fetch(token: str | None) -> Any:
            request = PrepareGCUncommittedRequest(continuation_token=token)
            return api.prepare_garbage_collection_uncommitted(self._name, request, **OPTIONS)

        locations: list[str] = []
        tokens: set[str | None] = set()
        token: str | None = None
        while token not in tokens:
            tokens.add(token)
            response = self._call(what, partial(fetch, token))
            if response.gc_uncommitted_location:
                locations.append(response.gc_uncommitted_location)
            token = _rewind(response.continuation_token or "")
            if not token:
                return list(dict.fromkeys(locations))
        raise self._unreadable(
            what,
            f"page {len(tokens):,} has the token of an earlier page, so the list does not end; run again later, or commit staged objects",
        )

    def _pages(self, what: str, fetch: Callable[[str], Any], key: str = "id") -> Iterator[Sequence[Any]]:
        """Yield all pages of a list.

        `LakeUnreadable` is raised for an inconsistent page, because a missing item could lose data.
        A list continues after the last exact name of a page. After any other name, the server would
        skip items.
        """
        after = ""
        while True:
            page = self._call(f"{what} after {after!r}" if after else what, partial(fetch, after))
            items, pagination = page.results or [], page.pagination
            names = [getattr(item, key) for item in items]
            exact = [*([after] if after else []), *filter(is_exact, names)]
            for one, other in pairwise(exact):
                if one >= other:
                    raise self._unreadable(what, f"the page after {after!r} is out of order: {other!r} follows {one!r}")
            if pagination.results != len(items):
                raise self._unreadable(what, f"the page after {after!r} has {len(items):,} items, but records {pagination.results:,}")
            if not pagination.has_more:
                yield items
                return
            if not items or pagination.next_offset != names[-1]:
                raise self._unreadable(
                    what,
                    f"the page after {after!r} of {len(items):,} items continues after {pagination.next_offset!r}, expected "
                    f"{[after, *names][-1]!r}, its last item: the items between them would be missed",
                )
            count = next((count for count in range(len(names), 0, -1) if is_exact(names[count - 1])), 0)
            if count == 0:
                raise self._unreadable(
                    what,
                    f"all {len(names):,} names from {names[0]!r} to {names[-1]!r} contain bytes that are not UTF-8, so the list cannot "
                    "continue after them; rename some of them, and commit",
                )
            yield items[:count]
            after = names[count - 1]

    def _call(self, what: str, call: Callable[[], _Result]) -> _Result:
        try:
            # The SDK's own timeout only limits the time between two bytes.
            return run_with_deadline(self._server.read_seconds, what, call)
        except TimeoutError as error:
            raise self._unreadable(what, f"{error.strerror}; check that the server runs, then run again") from error
        except ApiException as error:
            hint = _HINTS.get(error.status or 0, "check the server's log, then run again")
            raise self._unreadable(what, f"HTTP {error.status}: {describe_error(error)}; {hint}") from None
        except urllib3.exceptions.HTTPError as error:
            raise self._unreadable(
                what, f"no response ({_describe_http_error(error)}); check that the server runs at this endpoint"
            ) from error
        except (ValidationError, ValueError, TypeError) as error:
            raise self._unreadable(what, f"invalid response ({error})") from error

    def _describe(self, what: str) -> str:
        return f"lakeFS repository {self._name} at {self._server.base_url}: {what}"

    def _unreadable(self, what: str, why: str) -> LakeUnreadable:
        return LakeUnreadable(f"{self._describe(what)}: {why}")


def _rewind(token: str) -> str:
    """Move a continuation token of `prepare_uncommited` back to an exact path.

    In lakeFS 1.84 (`encodeGCUncommittedMark`), it contains the next path in JSON. If this path is
    not exact, the server would skip objects. It lists some objects again instead.
    """
    try:
        mark = parse_json(base64.b64decode(token, validate=True))
        path = _read_field(mark, "path", str)
    except (ValueError, TypeError, KeyError):
        return token
    exact = path.partition(REPLACED)[0]
    return token if exact == path else base64.b64encode(json.dumps({**mark, "path": exact}).encode()).decode()


def _describe_http_error(error: urllib3.exceptions.HTTPError) -> str:
    """Extract the reason from urllib3's message, without memory addresses of Python objects."""
    cause: BaseException = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason is not None else error
    while isinstance(inner := cause.__cause__ or cause.__context__, Exception):
        cause = inner
    return (cause.strerror if isinstance(cause, OSError) else None) or f"{type(cause).__name__}: {cause}".split(" object at 0x")[0]


@dataclass(frozen=True, slots=True)
class _Pagination:
    has_more: bool
    next_offset: str
    results: int


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of a list of objects, with the same attributes as the SDK's pages."""

    results: list[ListedObject]
    pagination: _Pagination

    @classmethod
    def of(cls, document: Any) -> _Page:
        """Parse a page. Raises `ValueError` or `TypeError` if its content is unexpected."""
        try:
            rows = [
                ListedObject(
                    _read_field(row, "path", str),
                    _read_field(row, "physical_address", str),
                    row.get("size_bytes") or 0,
                    _read_field(row, "mtime", int),
                )
                for row in document["results"]
            ]
            about = document["pagination"]
            next_offset, results = _read_field(about, "next_offset", str), _read_field(about, "results", int)
            return cls(rows, _Pagination(_read_field(about, "has_more", bool), next_offset, results))
        except (KeyError, AttributeError) as error:
            raise ValueError(f"a page without {error}") from error


def _read_field(values: Any, key: str, type_: type[_Result]) -> _Result:
    """Read a value from a response. Raises `ValueError` for a wrong type or invalid text."""
    value = values[key]
    if type(value) is not type_:
        raise ValueError(f"expected {type_.__name__} for {key}, found {type(value).__name__}")
    if isinstance(value, str):
        value.encode()
    return value


OPTIONS: Final[dict[str, Any]] = {"_request_timeout": _TIMEOUT_SECONDS}


def describe_error(error: ApiException) -> str:
    """Return the server's message in an SDK error, whose own text would include the headers."""
    body = _body(error)
    message = _find_message(body)
    return (body[:200] or str(error.reason)) if message is None else message


def is_of_server(error: ApiException) -> bool:
    """Return True if lakeFS sent the error. The body of a proxy or another server is different."""
    return _find_message(_body(error)) is not None


def _body(error: ApiException) -> str:
    return error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or "")


def _find_message(body: str) -> str | None:
    try:
        document = parse_json(body)
    except ValueError:
        return None
    return str(document["message"]) if isinstance(document, dict) and "message" in document else None
