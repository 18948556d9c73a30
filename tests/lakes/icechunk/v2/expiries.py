"""Expiries at random cut-offs of random histories, and what the library must still be able to do."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.lakes.icechunk.repo_info import RepoInfo, parse_repo
from tests.lakes.icechunk.icechunk_lakes import commits_of, expire, lake_at, plan_actions
from tests.lakes.icechunk.v2.builder import microseconds, numbers
from tests.lakes.icechunk.v2.histories import History
from tests.lakes.icechunk.v2.library import Library, Step
from tests.lakes.icechunk.v2.marking import FOLDERS, mark

AS_OF = datetime(2100, 1, 1, tzinfo=UTC)
# All dangling snapshots and copies of `repo` are older.
DANGLING = "2099-01-01"


def repo_of(path: Path) -> RepoInfo:
    return parse_repo("repo", (path / "repo").read_bytes())


def lake_of(
    path: Path, cutoff: datetime | None = None, *, semantics: str = "icechunk", tags: bool = False, branches: bool = False
) -> IcechunkLake:
    """Return a lake that expires history before `cutoff` (None: no history), and keeps no dangling snapshot."""
    retention = {"default": "forever" if cutoff is None else {"keep": cutoff.isoformat()}, "dangling": DANGLING, "overwritten": DANGLING}
    retention["tags"] = "policy" if tags else "keep"
    return lake_at(path, retention, semantics=semantics, delete_expired_tags=tags, delete_expired_branches=branches)


@dataclass(frozen=True)
class Expiry:
    """A random cut-off at or just after the time of a snapshot, and the types of refs that are deleted."""

    cutoff: datetime
    tags: bool
    branches: bool

    @classmethod
    def of(cls, history: History) -> Expiry:
        rnd = random.Random(history.seed)
        lake = lake_of(history.path)
        times = sorted(commit.committed_at for commit in commits_of(lake, lake.freeze(AS_OF)))
        return cls(rnd.choice(times) + timedelta(microseconds=rnd.randint(0, 1)), rnd.random() < 0.4, rnd.random() < 0.4)

    def lake(self, path: Path, semantics: str) -> IcechunkLake:
        return lake_of(path, self.cutoff, semantics=semantics, tags=self.tags, branches=self.branches)


def apply(lake: IcechunkLake) -> None:
    """Make all planned edits, and delete all garbage that a second mark finds."""
    actions = plan_actions(lake, AS_OF)
    assert [outcome.verdict for outcome in expire(lake, AS_OF, actions)] == ["done"] * len(actions)
    for path in mark(lake, AS_OF, keep_listed=True).garbage:
        path.unlink()
    assert plan_actions(lake, AS_OF) == []


def expire_by_library(library: Library, path: Path, expiry: Expiry) -> None:
    """Expire and collect a repository with the library."""
    older_than = microseconds(expiry.cutoff)
    step = ("expire", {"older_than": older_than, "delete_tags": expiry.tags, "delete_branches": expiry.branches})
    library.run(path, [step, ("garbage_collect", {})])


def names_in(path: Path) -> set[str]:
    return {f"{folder}/{file.name}" for folder in FOLDERS for file in (path / folder).glob("*")}


def open_with_data(history: History) -> Step:
    """Open a copy of a repository with access to the files of virtual chunks."""
    return "open", {"settings": {"containers": [["box", f"file://{history.data}/", str(history.data)]]}}


def assert_all_readable(history: History) -> None:
    """The library reads every listed snapshot with the values that were written."""
    listed = sorted(repo_of(history.path).snapshots)
    steps = [open_with_data(history), *(("contents", {"snapshot": snapshot}) for snapshot in listed)]
    assert history.library.run(history.path, steps)[1:] == [history.values[snapshot] for snapshot in listed], history.seed


def assert_library_goes_on(history: History) -> None:
    """The library finds no garbage, reads all refs with unchanged values, commits, and computes differences.

    An expiry of spec version 1 makes differences incomplete (icechunk issue 2123).
    """
    library, seed = history.library, history.seed
    names = ("contents", "refs", "ops_log")
    _, garbage, contents, refs, _ = library.run(
        history.path, [open_with_data(history), ("garbage_collect", {"dry_run": True}), *((name, {}) for name in names)]
    )
    assert not any(garbage.values()), (seed, garbage)
    assert contents == {snapshot: history.values[snapshot] for snapshot in contents}, seed
    head = refs["branches"]["main"]
    commit = library.call(history.path, "commit", writes=[numbers("after", [1, 2])])
    root = library.call(history.path, "ancestry", snapshot=commit)[-1][0]
    diff, after = library.run(history.path, [("diff", {"before": root, "after": commit}), ("contents", {"snapshot": commit})])
    assert history.version_1 or {f"/{key.partition('/c/')[0]}" for key in after} <= set(diff["new_arrays"]), seed
    assert after == {**history.values[head], "after/c/0": 1, "after/c/1": 2}, seed
