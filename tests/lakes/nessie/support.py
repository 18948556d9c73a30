"""What the tests of Nessie lakes share: the graph and policy of a real server without Spark, and an oracle that shares no code.

The oracle knows Nessie's own words (`requests of API v2, pynessie's JSON`) and the plain rule of *Nessie GC internals*.
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

# No commit is younger: what no ref reaches is judged by the policy alone.
NO_GRACE = datetime(2100, 1, 1, tzinfo=UTC)
Content = tuple[str, str, str | None]


def graph_of(lake: NessieLake, refs: FrozenRefs) -> pa.Table:
    """Rows of `commit_graph` as the stage makes them."""
    commits = [commit for source in refs.sources for commit in lake.commits(source)]
    return pa.Table.from_batches([build_commit_rows(commits, KeyResolver([("warehouse", "file:///nowhere/")]))])


def retention_of(config: NessieLakeConfig, as_of: datetime, grace_cutoff: datetime = NO_GRACE) -> Retention:
    lake = NessieLake(config)
    refs = lake.freeze(as_of)
    return lake.retain(refs, graph_of(lake, refs), as_of, grace_cutoff)


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
class Logged:
    """A commit as the server's log shows it."""

    hash: str
    at: datetime
    operations: list[dict[str, Any]]


def log_of(api: httpx.Client, head: str) -> list[Logged]:
    """The whole log behind a hash, newest first, one small page after the other by the server's own tokens."""
    found: list[Logged] = []
    token: dict[str, str] = {}
    while True:
        page = api.get(f"trees/@{head}/history", params={"fetch": "ALL", "max-records": 25, **token}).json()
        for entry in page["logEntries"]:
            at = datetime.fromisoformat(entry["commitMeta"]["commitTime"])
            found.append(Logged(entry["commitMeta"]["hash"], at, entry["operations"] or []))
        if not page["hasMore"]:
            return found
        token = {"page-token": page["token"]}


def state_of(api: httpx.Client, commit: str) -> set[Content]:
    """Tables and views of the state at a commit, as the server lists it."""
    return _listed(api, f"@{commit}")


def _listed(api: httpx.Client, where: str) -> set[Content]:
    answer = api.get(f"trees/{where}/entries", params={"content": "true"})
    assert answer.is_success, answer.text
    page = answer.json()
    assert not page["hasMore"]
    return {found for entry in page["entries"] if (found := _content(entry["content"]))}


def _content(content: dict[str, Any]) -> Content | None:
    if content["type"] not in {"ICEBERG_TABLE", "ICEBERG_VIEW"}:
        return None
    snapshot = content.get("snapshotId", -1)
    return content["id"], content["metadataLocation"], None if snapshot < 0 else str(snapshot)


def plain_rule(api: httpx.Client, cutoff_of: Callable[[str], str | int | datetime | timedelta | None], as_of: datetime) -> set[Content]:
    """What nessie-gc's own rule keeps: puts of the commits inside the cut-off, head always, and the state at the oldest of them."""
    live: set[Content] = set()
    for reference in api.get("trees", params={"max-records": 10_000}).json()["references"]:
        kept = kept_commits(log_of(api, reference["hash"]), cutoff_of(reference["name"]), as_of)
        for commit in kept:
            live |= {found for item in commit.operations if item["type"] == "PUT" and (found := _content(item["content"]))}
        if kept:
            live |= state_of(api, kept[-1].hash)
    return live


def kept_commits(log: list[Logged], cutoff: Any, as_of: datetime) -> list[Logged]:
    """The commits before the first that is cut, newest first."""
    kept: list[Logged] = []
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


def readable_rule(api: httpx.Client, cutoff_of: Callable[[str], Any], as_of: datetime) -> set[Content]:
    """`plain_rule`, and the state that Nessie itself shows for `ref*T` where T is the moment of the cut-off."""
    live = plain_rule(api, cutoff_of, as_of)
    for reference in api.get("trees", params={"max-records": 10_000}).json()["references"]:
        cutoff = cutoff_of(reference["name"])
        moment = as_of - cutoff if isinstance(cutoff, timedelta) else cutoff if isinstance(cutoff, datetime) else None
        log = log_of(api, reference["hash"])
        before = next((commit for commit in log if moment is not None and commit.at <= moment), None)
        if before is not None:
            live |= state_of(api, before.hash)
    return live


def shown_from_the_cutoff_on(api: httpx.Client, cutoff_of: Callable[[str], Any], as_of: datetime) -> set[Content]:
    """Every content that the server itself shows somebody who asks for a ref at a time from its cut-off on (`@hash*T`).

    With a moment: the state then and after each later commit. With a number: the states at that many commits; with none, at all.
    """
    shown: set[Content] = set()
    for reference in api.get("trees", params={"max-records": 10_000}).json()["references"]:
        cutoff, log = cutoff_of(reference["name"]), log_of(api, reference["hash"])
        if isinstance(cutoff, timedelta):
            cutoff = as_of - cutoff
        if isinstance(cutoff, datetime):
            times = [cutoff, *(commit.at for commit in log if commit.at > cutoff)]
            before = [time for time in times if log and log[-1].at <= time]
            # The server takes a moment with a fraction of a second only.
            moments = [time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z") for time in before]
            states = [f"@{reference['hash']}*{moment}" for moment in moments]
        else:
            states = [f"@{commit.hash}" for commit in log[:cutoff]]
        for state in [*states, *([f"@{reference['hash']}"] if log else [])]:
            shown |= _listed(api, state)
    return shown
