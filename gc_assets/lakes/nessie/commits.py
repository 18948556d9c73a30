"""Reads the log behind every head once. Pages of several refs are read at a time, and shared
history is fetched by whichever ref comes first.

Knows the client and the shape of the log, not what is kept of it. The log of a head goes on at the
parent of the last commit read. A walk that meets another walk's commits asks nothing again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.nessie.client import COMMITS_A_PAGE, NessieClient
from gc_assets.lakes.nessie.contents import state_digest
from gc_assets.lakes.nessie.locations import roots_of
from gc_assets.lakes.nessie.models import LogEntry, LogPage
from gc_assets.lakes.nessie.operations import OPERATIONS, operation_lines, state_lines
from gc_assets.lakes.nessie.retention import LOG_ENDS, STATE_DIGEST, STATE_ENTRIES
from gc_assets.lakes.protocol import Commit

# Requests in flight: enough to hide a round trip, few enough for a server that people work with.
CONCURRENT_REQUESTS: Final = 8
# A branch has mostly few commits of its own before it meets history that is known already.
FIRST_PAGE: Final = 16


def read_commits(
    lake: str,
    client: NessieClient,
    heads: Sequence[str],
    no_ancestor: str,
    known: Collection[str] = frozenset(),
    former: Collection[str] = (),
) -> Iterator[Commit]:
    """Yields every commit behind the heads once, without the `known` commits and what lies behind
    them. Then it yields the commits behind `former` that the server still has.

    A head that is not `known` carries the digest of its state as the server lists it.

    Raises `LakeUnreadable` naming the call, or the head whose log does not hang together.
    """
    walk = _Walk(lake, no_ancestor, known)
    pool = ThreadPoolExecutor(CONCURRENT_REQUESTS)
    try:
        states = {head: pool.submit(_state, client, head) for head in heads if not walk.has(head)}
        pages: dict[Future[LogPage], str] = {}
        there = zip(former, pool.map(client.has_commit, former), strict=True)
        waiting = [*(commit for commit, is_there in there if is_there), *reversed(states)]
        while waiting or pages:
            while waiting and len(pages) < CONCURRENT_REQUESTS:
                head = waiting.pop()
                if not walk.has(head):
                    pages[pool.submit(client.log, head, FIRST_PAGE)] = head
            for future in wait(pages, return_when=FIRST_COMPLETED).done:
                start = pages.pop(future)
                page = future.result()
                entries, onward = walk.take(start, page)
                # A page that ends early is no end of history: only where the server has no such
                # commit any more is it one.
                if onward is not None and not page.has_more and not client.has_commit(onward):
                    walk.ended_at(entries[-1])
                elif onward is not None:
                    pages[pool.submit(client.log, onward, COMMITS_A_PAGE)] = onward
                for entry in entries:
                    state = states.pop(entry.meta.hash).result() if entry.meta.hash in states else {}
                    yield walk.commit(client, entry, state)
    finally:
        pool.shutdown(cancel_futures=True)


class _Walk:
    """Remembers the commits met so far, follows pages, and makes commits of log entries."""

    def __init__(self, lake: str, no_ancestor: str, known: Collection[str]) -> None:
        self._lake = lake
        self._no_ancestor = no_ancestor
        self._known = known
        self._seen: set[str] = set()
        self._ends: set[str] = set()

    def has(self, commit: str) -> bool:
        return commit in self._seen or commit in self._known

    def take(self, start: str, page: LogPage) -> tuple[list[LogEntry], str | None]:
        """Returns the new commits of the page, and the hash at which to go on. The hash is None
        where the log ends or is known from there.
        """
        expected, fresh = start, list[LogEntry]()
        for entry in page.items:
            if entry.meta.hash != expected:
                raise LakeUnreadable(
                    f"lake {self._lake}: the log behind {start} shows commit {entry.meta.hash} where {expected} comes next; "
                    "the principal may not see everything, so nothing can be called garbage: give it LIST_COMMIT_LOG on every ref"
                )
            if self.has(expected):
                return fresh, None
            self._seen.add(expected)
            fresh.append(entry)
            expected = entry.parent
        if not page.items:
            raise LakeUnreadable(
                f"lake {self._lake}: the log behind {start} is empty; the principal may not see it, or the server is damaged"
            )
        return fresh, None if expected == self._no_ancestor or self.has(expected) else expected

    def ended_at(self, entry: LogEntry) -> None:
        """Notes that the server no longer has what came before this commit."""
        self._ends.add(entry.meta.hash)

    def commit(self, client: NessieClient, entry: LogEntry, state: Mapping[str, str]) -> Commit:
        """Returns an entry of the log as a commit.

        Where the log ends although the commit has a parent, the whole state stands in for the
        history that is gone.
        """
        operations = entry.operations or ()
        summary = {OPERATIONS: "\n".join(operation_lines(operations)), **state}
        puts = [(operation.key, operation.content) for operation in operations if operation.content is not None]
        if entry.meta.hash in self._ends:
            entries = list(client.entries(entry.meta.hash))
            puts += [(item.key, item.content) for item in entries]
            summary |= {OPERATIONS: "\n".join(state_lines(entries)), LOG_ENDS: "true"}
        before = (entry.parent, *(parent for parent in entry.meta.parents if parent != entry.parent))
        return Commit(
            commit_id=entry.meta.hash,
            parents=tuple(parent for parent in before if parent != self._no_ancestor),
            committed_at=entry.meta.committed_at,
            content_roots=roots_of(self._lake, entry.meta.hash, puts),
            message=entry.meta.message,
            summary={name: text for name, text in summary.items() if text},
        )


def _state(client: NessieClient, head: str) -> dict[str, str]:
    lines = state_lines(client.entries(head))
    return {STATE_DIGEST: state_digest(lines), STATE_ENTRIES: f"{len(lines):,}"}
