"""Apply retention to a real Nessie server without Spark, and compute the expected result independently.

The oracle uses only requests of API v2 and the rule of *Nessie GC internals*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pyarrow as pa

from gc_assets.core.key_resolver import KeyResolver
from gc_assets.lakes.nessie.config import NessieLakeConfig
from gc_assets.lakes.nessie.lake import NessieLake
from gc_assets.lakes.protocol import FrozenRefs, Retention
from gc_assets.stages.mark.commit_rows import build_commit_rows
from tests.lakes.nessie.builder import parse_time

# No commit is younger, so only the policy applies to dangling commits.
NO_GRACE = datetime(2100, 1, 1, tzinfo=UTC)
Content = tuple[str, str, str | None]


def build_graph(lake: NessieLake, refs: FrozenRefs) -> pa.Table:
    """Return the rows of `commit_graph` as built by the stage."""
    commits = [commit for source in refs.sources for commit in lake.commits(source)]
    return pa.Table.from_batches([build_commit_rows(commits, KeyResolver([("warehouse", "file:///nowhere/")]))])


def run_retention(config: NessieLakeConfig, as_of: datetime, grace_cutoff: datetime = NO_GRACE) -> Retention:
    lake = NessieLake(config)
    refs = lake.freeze(as_of)
    return lake.retain(refs, build_graph(lake, refs), as_of, grace_cutoff)


def states(retention: Retention) -> dict[str, str]:
    return dict(zip(*(retention.reachable[name].to_pylist() for name in ("commit_id", "state")), strict=True))


def contents(retention: Retention) -> set[Content]:
    assert retention.contents is not None
    names = ("content_id", "metadata_location", "snapshot_id")
    rows = list(zip(*(retention.contents[name].to_pylist() for name in names), strict=True))
    assert len(rows) == len(set(rows))
    return set(rows)


def locations(retention: Retention) -> set[str]:
    return {location for _, location, _ in contents(retention)}


@dataclass(frozen=True)
class LogCommit:
    """A commit in the server's log."""

    hash: str
    at: datetime
    operations: list[dict[str, Any]]


def walk_log(api: httpx.Client, head: str) -> list[LogCommit]:
    """Return the complete log of a hash, newest first, read in small pages."""
    found: list[LogCommit] = []
    token: dict[str, str] = {}
    while True:
        page = api.get(f"trees/@{head}/history", params={"fetch": "ALL", "max-records": 25, **token}).json()
        for entry in page["logEntries"]:
            meta = entry["commitMeta"]
            found.append(LogCommit(meta["hash"], parse_time(meta["commitTime"]), entry["operations"] or []))
        if not page["hasMore"]:
            return found
        token = {"page-token": page["token"]}


def read_state(api: httpx.Client, commit: str) -> set[Content]:
    """Return the tables and views in the server's state at a commit."""
    return _list_state(api, f"@{commit}")


def _list_state(api: httpx.Client, path: str) -> set[Content]:
    answer = api.get(f"trees/{path}/entries", params={"content": "true"})
    assert answer.is_success, answer.text
    page = answer.json()
    assert not page["hasMore"]
    return {found for entry in page["entries"] if (found := _content(entry["content"]))}


def _content(content: dict[str, Any]) -> Content | None:
    if content["type"] not in {"ICEBERG_TABLE", "ICEBERG_VIEW"}:
        return None
    snapshot = content.get("snapshotId", -1)
    return content["id"], content["metadataLocation"], None if snapshot < 0 else str(snapshot)


def committed_contents(api: httpx.Client) -> set[Content]:
    """Return the contents that any commit of a ref puts."""
    heads = {reference["hash"] for reference in api.get("trees", params={"max-records": 10_000}).json()["references"]}
    operations = (item for head in heads for commit in walk_log(api, head) for item in commit.operations)
    return {found for item in operations if item["type"] == "PUT" and (found := _content(item["content"]))}


def apply_plain_rule(
    api: httpx.Client, cutoff_of: Callable[[str], str | int | datetime | timedelta | None], as_of: datetime
) -> set[Content]:
    """Apply the rule of nessie-gc: the puts of the retained commits, and the state at the oldest of them."""
    live: set[Content] = set()
    for reference in api.get("trees", params={"max-records": 10_000}).json()["references"]:
        kept = select_retained(walk_log(api, reference["hash"]), cutoff_of(reference["name"]), as_of)
        for commit in kept:
            live |= {found for item in commit.operations if item["type"] == "PUT" and (found := _content(item["content"]))}
        if kept:
            live |= read_state(api, kept[-1].hash)
    return live


def select_retained(log: list[LogCommit], cutoff: Any, as_of: datetime) -> list[LogCommit]:
    """Return the commits before the first expired one, newest first."""
    kept: list[LogCommit] = []
    for position, commit in enumerate(log):
        if isinstance(cutoff, timedelta):
            cut = commit.at < as_of - cutoff
        elif isinstance(cutoff, datetime):
            cut = commit.at < cutoff
        elif isinstance(cutoff, int):
            cut = position >= cutoff
        else:
            cut = False
        if cut and position:
            break
        kept.append(commit)
    return kept


def apply_readable_rule(api: httpx.Client, cutoff_of: Callable[[str], Any], as_of: datetime) -> set[Content]:
    """Return the contents of `apply_plain_rule` and of the server's state of `ref*T` at the cut-off T."""
    live = apply_plain_rule(api, cutoff_of, as_of)
    for reference in api.get("trees", params={"max-records": 10_000}).json()["references"]:
        cutoff = cutoff_of(reference["name"])
        moment = as_of - cutoff if isinstance(cutoff, timedelta) else cutoff if isinstance(cutoff, datetime) else None
        log = walk_log(api, reference["hash"])
        before = next((commit for commit in log if moment is not None and commit.at <= moment), None)
        if before is not None:
            live |= read_state(api, before.hash)
    return live


def contents_since_cutoff(api: httpx.Client, cutoff_of: Callable[[str], Any], as_of: datetime) -> set[Content]:
    """Return all contents that the server shows for refs at times since their cut-offs (`@hash*T`).

    For a timestamp, these are the state at that time and the states of all later commits. For a
    number, they are the states of this number of commits. Without a cut-off, all states count.
    """
    live: set[Content] = set()
    for reference in api.get("trees", params={"max-records": 10_000}).json()["references"]:
        cutoff, log = cutoff_of(reference["name"]), walk_log(api, reference["hash"])
        if isinstance(cutoff, timedelta):
            cutoff = as_of - cutoff
        if isinstance(cutoff, datetime):
            times = [cutoff, *(commit.at for commit in log if commit.at > cutoff)]
            before = [time for time in times if log and log[-1].at <= time]
            # The server accepts only timestamps with a fraction of a second.
            moments = [time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z") for time in before]
            states = [f"@{reference['hash']}*{moment}" for moment in moments]
        else:
            states = [f"@{commit.hash}" for commit in log[:cutoff]]
        for state in [*states, *([f"@{reference['hash']}"] if log else [])]:
            live |= _list_state(api, state)
    return live
