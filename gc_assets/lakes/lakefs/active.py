"""Decides which commits are active: lakeFS's rule of retention over the commit graph
(`pkg/graveler/retention/active_commits.go`).

A walk starts at every branch head and follows first parents. The head is active. A commit's first
parent is active if the commit is younger than the walk's cut-off, because then the parent was the
head inside the window. Commits that are nobody's first parent (heads of deleted branches, what was
merged) start walks of their own by the default rule. They must be younger than its cut-off
themselves.

A commit that several walks reach carries the longest retention on. lakeFS stops there instead when
the longer walk came first, and so leaves commits out by the order of their ids (research/lakefs.md
12, H14). Here the order decides nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from gc_assets.core.graph import CommitGraph
from gc_assets.core.units import Cutoff


@dataclass(frozen=True, slots=True)
class Start:
    """A head with the cut-off of its walk. Reasons call the rule by `name`. A dangling start must
    be young itself.
    """

    commit: int
    cutoff: Cutoff
    name: str
    dangling: bool = False


@dataclass(frozen=True, slots=True)
class Activity:
    """For each commit: whether it is active, the name of the longest walk that holds it, and until
    when by age (null: by no age).
    """

    active: Sequence[bool]
    held_by: Sequence[str | None]
    until: Sequence[datetime | None]


@dataclass(slots=True)
class _Walk:
    """The walk that goes on longest at a commit. `until` is null at a head and where nothing ends
    the walk.
    """

    cutoff: datetime | None
    max_age: timedelta | None
    name: str
    until: datetime | None


def dangling(graph: CommitGraph, heads: Sequence[int]) -> list[int]:
    """Returns the commits that are nobody's first parent and no head."""
    loose = np.ones(len(graph), np.bool_)
    loose[graph.first_parent[graph.first_parent >= 0]] = False
    loose[np.array(heads, np.int64)] = False
    return np.flatnonzero(loose).tolist()


def active_commits(graph: CommitGraph, committed_at: Sequence[datetime], starts: Sequence[Start], as_of: datetime) -> Activity:
    """Judges every commit at `as_of`. The graph has no cycles and no missing parents."""
    count = len(graph)
    walks: list[_Walk | None] = [None] * count
    left = [0] * count  # how many more commits a rule by count keeps, this one included
    kept_by_count: dict[int, str] = {}
    for start in starts:
        cutoff = start.cutoff.moment(as_of)
        aged = start.cutoff.forever or start.cutoff.max_age is not None or start.cutoff.at is not None
        if aged and not (start.dangling and cutoff is not None and committed_at[start.commit] <= cutoff):
            until = _end(committed_at[start.commit], start.cutoff.max_age) if start.dangling else None
            _meet(walks, start.commit, _Walk(cutoff, start.cutoff.max_age, start.name, until))
        keep = start.cutoff.keep_last or (0 if start.dangling else 1)
        if keep > left[start.commit]:
            left[start.commit], kept_by_count[start.commit] = keep, start.name
    first_parent = graph.first_parent.tolist()
    for commit in np.argsort(-graph.generation, kind="stable").tolist():
        parent, walk = first_parent[commit], walks[commit]
        if parent < 0:
            continue
        if walk is not None and (walk.cutoff is None or committed_at[commit] > walk.cutoff):
            ends = _end(committed_at[commit], walk.max_age)
            until = ends if walk.until is None or ends is None else min(ends, walk.until)
            _meet(walks, parent, _Walk(walk.cutoff, walk.max_age, walk.name, until))
        if left[commit] - 1 > left[parent]:
            left[parent], kept_by_count[parent] = left[commit] - 1, kept_by_count[commit]
    active = [walks[commit] is not None or left[commit] > 0 for commit in range(count)]
    names = [walk.name if walk is not None else kept_by_count.get(commit) for commit, walk in enumerate(walks)]
    until = [walk.until if walk is not None and not left[commit] else None for commit, walk in enumerate(walks)]
    return Activity(active, names, until)


def _end(moment: datetime, max_age: timedelta | None) -> datetime | None:
    """Returns when a moment is older than `max_age`, or null for never. A moment that users dated
    near the end of the calendar never is.
    """
    if max_age is None or moment > datetime.max.replace(tzinfo=UTC) - max_age:
        return None
    return moment + max_age


def _meet(walks: list[_Walk | None], commit: int, walk: _Walk) -> None:
    held = walks[commit]
    if held is None:
        walks[commit] = walk
        return
    until = None if held.until is None or walk.until is None else max(held.until, walk.until)
    longer = held if held.cutoff is None or (walk.cutoff is not None and held.cutoff <= walk.cutoff) else walk
    walks[commit] = _Walk(longer.cutoff, longer.max_age, longer.name, until)
