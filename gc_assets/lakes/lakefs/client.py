"""What a lakeFS server says of one repository, read through the official `lakefs-sdk`.

Every list is read to its end, and a page that cannot be the next one stops the reading. The server
is asked again on 429, 5xx and lost connections, with growing pauses. If the answer is still not
whole, `LakeUnreadable` names what was asked. Credentials are sent and never shown: errors carry the
server's status and message only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, TypeVar

import urllib3
from lakefs_sdk.api.branches_api import BranchesApi
from lakefs_sdk.api.internal_api import InternalApi
from lakefs_sdk.api.objects_api import ObjectsApi
from lakefs_sdk.api.repositories_api import RepositoriesApi
from lakefs_sdk.api.tags_api import TagsApi
from lakefs_sdk.api_client import ApiClient
from lakefs_sdk.configuration import Configuration
from lakefs_sdk.exceptions import ApiException, NotFoundException
from lakefs_sdk.models.prepare_gc_uncommitted_request import PrepareGCUncommittedRequest
from pydantic.v1 import ValidationError  # the SDK's models are of pydantic's first generation

from gc_assets.core.deadline import READ_SECONDS, run_with_deadline
from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.untrusted_input import parse_json

_Answer = TypeVar("_Answer")
# The server's own limit; more is an error (400).
PAGE: Final = 1000
RETRIES: Final = 5
_TIMEOUT_SECONDS: Final = (10, 120)
_RETRIED: Final = (429, 500, 502, 503, 504)
# A dump of 5,000 commits takes 50 ms; this is for the largest.
_DUMP_WITHIN: Final = timedelta(minutes=20)
_WHAT_TO_DO: Final = {
    401: "check access_key_id and secret_access_key",
    403: "give the collector's user the permissions that docs/lakefs.md lists",
    404: "check endpoint and repository",
    410: "the object is gone from the storage; restore it from a backup",
}


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server is and how to sign in; `base_url` ends before `/api/v1`. `pause_seconds` is
    the first pause before asking again, `read_seconds` the longest wait for an answer.
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
    """A repository's own facts. `answered_at` is the server's clock."""

    storage_namespace: str
    read_only: bool
    answered_at: datetime


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """The server's garbage collection rules: days by branch, and days for every other branch. Of a
    branch named twice the last entry counts.
    """

    default_days: int
    branch_days: dict[str, int]


@dataclass(frozen=True, slots=True)
class RefsDump:
    """Ids of the metaranges that hold all commits, branches and tags."""

    commits: str
    branches: str
    tags: str


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as a reader of a ref sees it. `address` is as the REST listing spells it."""

    path: str
    address: str
    size_bytes: int
    written_at: int


class RefGone(LakeUnreadable):
    """A branch was deleted while it was read. A reader of the whole repository then reads it again."""


class RepositoryClient:
    """One repository of one server."""

    def __init__(self, server: Server, repository: str) -> None:
        configuration: Any = Configuration(
            host=f"{server.base_url}/api/v1", username=server.access_key_id, password=server.secret_access_key
        )
        # Everything we send can be repeated: reads, and tasks that write a new file of their own.
        configuration.retries = urllib3.Retry(
            total=RETRIES, backoff_factor=server.pause_seconds, status_forcelist=_RETRIED, allowed_methods=None, raise_on_status=False
        )
        self._api = ApiClient(configuration)
        self._server = server
        self._name = repository

    def repository(self) -> Repository:
        answer: Any = self._ask("repository", lambda: RepositoriesApi(self._api).get_repository_with_http_info(self._name, **_BOUNDED))
        date = (answer.headers or {}).get("Date")
        if date is None:
            raise self._unreadable("repository", "the answer has no Date header, so nobody can tell the server's clock")
        return Repository(answer.data.storage_namespace, bool(answer.data.read_only), parsedate_to_datetime(date))

    def namespaces(self) -> dict[str, str]:
        """Returns the storage namespace of every repository of the server."""
        api = RepositoriesApi(self._api)
        pages = self._pages("the list of repositories", lambda after: api.list_repositories(after=after, amount=PAGE, **_BOUNDED))
        return {item.id: item.storage_namespace for page in pages for item in page}

    def branches(self) -> dict[str, str]:
        """Returns the head commit by branch, hidden branches too."""
        api = BranchesApi(self._api)
        ask = lambda after: api.list_branches(self._name, after=after, amount=PAGE, show_hidden=True, **_BOUNDED)  # noqa: E731
        return {item.id: item.commit_id for page in self._pages("the list of branches", ask) for item in page}

    def tags(self) -> dict[str, str]:
        """Returns the commit by tag."""
        api = TagsApi(self._api)
        pages = self._pages("the list of tags", lambda after: api.list_tags(self._name, after=after, amount=PAGE, **_BOUNDED))
        return {item.id: item.commit_id for page in pages for item in page}

    def objects(self, ref: str) -> Iterator[ListedObject]:
        """Yields what a reader of a ref sees, in order of path. Raises `RefGone` where the ref is
        not there (any more).
        """
        api, what = ObjectsApi(self._api), f"objects of {ref}"

        def ask(after: str) -> Any:
            try:
                # The SDK's models cost ten times what the listing itself does; a page is its text
                # here.
                answer: Any = api.list_objects_with_http_info(
                    self._name, ref, after=after, amount=PAGE, presign=False, user_metadata=False, _preload_content=False, **_BOUNDED
                )
            except NotFoundException as error:
                raise RefGone(f"{self._where(what)}: not found: {_message(error)}; run again") from None
            return _Page.of(parse_json(answer.raw_data))

        for page in self._pages(what, ask, key="path"):
            yield from page

    def rules(self) -> RetentionRules | None:
        """Returns the garbage collection rules, or null where there are none. Ask for the
        repository first: a missing one has no rules either.
        """
        # `get_gc_rules` refuses `"branches": null`, which the server answers where no branch has a
        # rule: only the text is taken.
        api = RepositoriesApi(self._api)

        def ask() -> str | None:
            try:
                answer: Any = api.get_gc_rules_with_http_info(self._name, _preload_content=False, **_BOUNDED)
                return answer.raw_data.decode()
            except NotFoundException:
                return None

        what = "garbage collection rules"
        body = self._ask(what, ask)
        if body is None:
            return None
        try:
            document = parse_json(body)
            named = [(item["branch_id"], item["retention_days"]) for item in document["branches"] or ()]
            default = document["default_retention_days"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreadable(what, f"expected default_retention_days and branches, found {body[:200]!r}") from error
        odd = [days for days in (default, *(days for _, days in named)) if type(days) is not int or days < 0]
        if odd:
            raise self._unreadable(what, f"expected days of 0 and more, found {odd[0]!r}; correct the rules")
        return RetentionRules(default, dict(named))

    def link_expiry(self) -> timedelta:
        """Returns how long an address that was handed out may still be linked."""
        answer = self._ask("garbage collection config", lambda: InternalApi(self._api).get_garbage_collection_config(**_BOUNDED))
        if answer.grace_period is None or answer.grace_period < 0:
            raise self._unreadable("garbage collection config", f"expected a grace_period in seconds, found {answer.grace_period!r}")
        return timedelta(seconds=answer.grace_period)

    def dump(self) -> RefsDump:
        """Lets the server write all refs and commits, dangling ones too, to the namespace as they
        are from now on.
        """
        api = RepositoriesApi(self._api)
        task = self._ask("refs dump", lambda: api.dump_submit(self._name, **_BOUNDED))
        until, pause = time.monotonic() + _DUMP_WITHIN.total_seconds(), self._server.pause_seconds / 50
        while True:
            status = self._ask(f"refs dump {task.id}", lambda: api.dump_status(self._name, task.id, **_BOUNDED))
            if status.error:
                raise self._unreadable(f"refs dump {task.id}", f"failed: {status.error}")
            if status.done:
                break
            if time.monotonic() > until:
                raise self._unreadable(f"refs dump {task.id}", f"not done after {_DUMP_WITHIN}")
            time.sleep(pause)
            pause = min(2 * pause, 5.0)
        if status.refs is None:
            raise self._unreadable(f"refs dump {task.id}", "done, but the answer names no metaranges")
        return RefsDump(status.refs.commits_meta_range_id, status.refs.branches_meta_range_id, status.refs.tags_meta_range_id)

    def prepare_uncommitted(self) -> Sequence[str]:
        """Returns where the server wrote what it takes for uncommitted, one location for each page
        that has some.

        Raises `LakeUnreadable` for a token that was answered before. lakeFS gives one token for
        ever where a page's time limit is shorter than reading one branch (H18).
        """
        api, what = InternalApi(self._api), "prepare_uncommited"

        def ask(token: str | None) -> Any:
            request = PrepareGCUncommittedRequest(continuation_token=token)
            return api.prepare_garbage_collection_uncommitted(self._name, request, **_BOUNDED)

        locations: list[str] = []
        asked: set[str | None] = set()
        token: str | None = None
        while token not in asked:
            asked.add(token)
            answer = self._ask(what, partial(ask, token))
            if answer.gc_uncommitted_location:
                locations.append(answer.gc_uncommitted_location)
            token = answer.continuation_token
            if not token:
                return list(dict.fromkeys(locations))
        raise self._unreadable(what, f"page {len(asked):,} leads back to an earlier one: the listing stands still; run again later")

    def _pages(self, what: str, ask: Callable[[str], Any], key: str = "id") -> Iterator[Sequence[Any]]:
        """Yields every page of a list. Raises `LakeUnreadable` where one cannot be the next: a page
        lost here is data lost later.
        """
        after = ""
        while True:
            page = self._ask(f"{what} after {after!r}" if after else what, partial(ask, after))
            items, pagination = page.results or [], page.pagination
            names = [after, *(getattr(item, key) for item in items)]
            if any(one >= other for one, other in zip(names if after else names[1:], names[1 if after else 2 :], strict=False)):
                raise self._unreadable(what, f"a page after {after!r} that is out of order; expected names that ascend")
            if pagination.results != len(items):
                raise self._unreadable(what, f"a page after {after!r} of {len(items):,} items that says {pagination.results:,}")
            yield items
            if not pagination.has_more:
                return
            if not items or pagination.next_offset != names[-1]:
                raise self._unreadable(
                    what,
                    f"the page after {after!r} of {len(items):,} items goes on after {pagination.next_offset!r}, expected "
                    f"{names[-1]!r}, its last: what lies between would be lost",
                )
            after = pagination.next_offset

    def _ask(self, what: str, call: Callable[[], _Answer]) -> _Answer:
        try:
            # The SDK's own timeout counts from byte to byte.
            return run_with_deadline(self._server.read_seconds, what, call)
        except TimeoutError as error:
            raise self._unreadable(what, f"{error.strerror}; check that the server runs, then run again") from error
        except ApiException as error:
            hint = _WHAT_TO_DO.get(error.status or 0, "look at the server's log, then run again")
            raise self._unreadable(what, f"HTTP {error.status}: {_message(error)}; {hint}") from None
        except urllib3.exceptions.HTTPError as error:
            raise self._unreadable(what, f"no answer ({error}); check that the server runs at this endpoint") from error
        except (ValidationError, ValueError, TypeError) as error:
            raise self._unreadable(what, f"an answer that is not the API's ({error})") from error

    def _where(self, what: str) -> str:
        return f"lakeFS repository {self._name} at {self._server.base_url}: {what}"

    def _unreadable(self, what: str, why: str) -> LakeUnreadable:
        return LakeUnreadable(f"{self._where(what)}: {why}")


@dataclass(frozen=True, slots=True)
class _Pagination:
    has_more: bool
    next_offset: str
    results: int


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of objects, in the shape of the SDK's pages."""

    results: list[ListedObject]
    pagination: _Pagination

    @classmethod
    def of(cls, document: Any) -> _Page:
        """Reads a page. Raises `ValueError` or `TypeError` for what is no such page."""
        try:
            rows = [
                ListedObject(row["path"], row["physical_address"], row.get("size_bytes") or 0, row["mtime"]) for row in document["results"]
            ]
            about = document["pagination"]
            return cls(rows, _Pagination(about["has_more"], about["next_offset"], about["results"]))
        except (KeyError, AttributeError) as error:
            raise ValueError(f"a page without {error}") from error


_BOUNDED: Final[dict[str, Any]] = {"_request_timeout": _TIMEOUT_SECONDS}


def _message(error: ApiException) -> str:
    """Returns the server's own sentence, without headers."""
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or "")
    try:
        document = parse_json(body)
    except ValueError:
        return body[:200] or str(error.reason)
    return str(document["message"]) if isinstance(document, dict) and "message" in document else body[:200]
