"""Read the commit logs of all ref heads with concurrent requests, and each commit only once.

To read the next page of a log, we request the log of the last commit's parent. Reading ends at a
commit that was already read, so that history shared by several refs is only requested once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.nessie.client import COMMITS_PER_PAGE, NessieClient
from gc_assets.lakes.nessie.contents import state_digest
from gc_assets.lakes.nessie.locations import build_content_roots
from gc_assets.lakes.nessie.models import CommitLogEntry, LogPage
from gc_assets.lakes.nessie.operations import OPERATIONS, operation_lines, state_lines
from gc_assets.lakes.nessie.retention import LOG_ENDS, STATE_DIGEST, STATE_ENTRIES
from gc_assets.lakes.protocol import Commit

# Enough concurrent requests to hide the latency, but not to overload a production server.
CONCURRENT_REQUESTS: Final = 8
# On most branches, history that was already read starts after a few commits.
FIRST_PAGE_COMMITS: Final = 16


def read_commits(
    lake: str,
    client: NessieClient,
    heads: Sequence[str],
    no_ancestor: str,
    known: Collection[str] = frozenset(),
    previous_heads: Collection[str] = (),
) -> Iterator[Commit]:
    """Yield every commit in the logs of ref heads, each only once.

    Args:
        lake: Name of the lake.
        client: Client of the server.
        heads: Hashes of the commits to which refs point. If a head is not in `known`, its summary
            gets a digest of the state (all keys with their content) that the server lists at this
            commit.
        no_ancestor: Hash that the server reports as the parent of a root commit.
        known: Commits read by earlier runs. They and their ancestors are skipped.
        previous_heads: Heads from earlier runs. Their logs are read as well if they still exist.

    Raises:
        LakeUnreadable: If a call fails, or the log of a head is inconsistent.
    """
    walk = _LogWalk(lake, no_ancestor, known)
    pool = ThreadPoolExecutor(CONCURRENT_REQUESTS)
    try:
        states = {head: pool.submit(_summarize_state, client, head) for head in heads if not walk.is_known(head)}
        pages: dict[Future[LogPage], str] = {}
        existing = zip(previous_heads, pool.map(client.has_commit, previous_heads), strict=True)
        pending = [*(commit for commit, exists in existing if exists), *reversed(states)]
        while pending or pages:
            while pending and len(pages) < CONCURRENT_REQUESTS:
                head = pending.pop()
                if not walk.is_known(head):
                    pages[pool.submit(client.read_log, head, FIRST_PAGE_COMMITS)] = head
            for future in wait(pages, return_when=FIRST_COMPLETED).done:
                start = pages.pop(future)
                page = future.result()
                entries, next_hash = walk.read_page(start, page)
                # A short page does not imply that the history ends. It only ends here if the server
                # reports that the next commit does not exist.
                if next_hash is not None and not page.has_more and not client.has_commit(next_hash):
                    walk.mark_end(entries[-1])
                elif next_hash is not None:
                    pages[pool.submit(client.read_log, next_hash, COMMITS_PER_PAGE)] = next_hash
                for entry in entries:
                    state_summary = states.pop(entry.meta.hash).result() if entry.meta.hash in states else {}
                    yield walk.build_commit(client, entry, state_summary)
    finally:
        pool.shutdown(cancel_futures=True)


class _LogWalk:
    """Commits that were read so far, and those at which a log ends."""

    def __init__(self, lake: str, no_ancestor: str, known: Collection[str]) -> None:
        self._lake = lake
        self._no_ancestor = no_ancestor
        self._known = known
        self._seen: set[str] = set()
        self._log_ends: set[str] = set()

    def is_known(self, commit: str) -> bool:
        return commit in self._seen or commit in self._known

    def read_page(self, start: str, page: LogPage) -> tuple[list[CommitLogEntry], str | None]:
        """Return the new commits in a page of a log, and the hash at which the log continues.

        The hash is None if the log ends on this page, or if the rest of the log was already read.
        """
        expected, new_entries = start, list[CommitLogEntry]()
        for entry in page.items:
            if entry.meta.hash != expected:
                raise LakeUnreadable(
                    f"lake {self._lake}: the log of {start} shows commit {entry.meta.hash}, expected {expected}. The principal may not "
                    "see all commits, so garbage cannot be determined; grant LIST_COMMIT_LOG on every ref"
                )
            if self.is_known(expected):
                return new_entries, None
            self._seen.add(expected)
            new_entries.append(entry)
            expected = entry.parent
        if not page.items:
            raise LakeUnreadable(
                f"lake {self._lake}: the log of {start} is empty, so the principal may not read it, or the server is damaged; "
                "grant LIST_COMMIT_LOG on every ref"
            )
        return new_entries, None if expected == self._no_ancestor or self.is_known(expected) else expected

    def mark_end(self, entry: CommitLogEntry) -> None:
        """Record that the server does not have this commit's parent any more."""
        self._log_ends.add(entry.meta.hash)

    def build_commit(self, client: NessieClient, entry: CommitLogEntry, state_summary: Mapping[str, str]) -> Commit:
        """Convert an entry of a log to a commit.

        If the log ends at a commit that has a parent, the complete state at this commit takes the
        place of the missing history.
        """
        operations = entry.operations or ()
        summary = {OPERATIONS: "\n".join(operation_lines(operations)), **state_summary}
        puts = [operation.content for operation in operations if operation.content is not None]
        if entry.meta.hash in self._log_ends:
            entries = list(client.list_entries(entry.meta.hash))
            puts += [item.content for item in entries]
            summary |= {OPERATIONS: "\n".join(state_lines(entries)), LOG_ENDS: "true"}
        parents = (entry.parent, *(parent for parent in entry.meta.parents if parent != entry.parent))
        return Commit(
            commit_id=entry.meta.hash,
            parents=tuple(parent for parent in parents if parent != self._no_ancestor),
            committed_at=entry.meta.committed_at,
            content_roots=build_content_roots(puts),
            message=entry.meta.message,
            summary={name: text for name, text in summary.items() if text},
        )


def _summarize_state(client: NessieClient, head: str) -> dict[str, str]:
    lines = state_lines(client.list_entries(head))
    return {STATE_DIGEST: state_digest(lines), STATE_ENTRIES: f"{len(lines):,}"}
