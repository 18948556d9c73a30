"""Select the active commits at a given time by lakeFS's retention rule.

Source: lakeFS `pkg/graveler/retention/active_commits.go`. From every branch head, the rule follows
first parents, which lakeFS calls a walk. The head is active. If a commit on the walk is younger
than the cut-off, its first parent is active as well, because the branch pointed to it at some time
after the cut-off. Commits that are not the first parent of any commit, such as heads of deleted
branches, start walks with the default rule. They must themselves be younger than its cut-off.

If several walks reach a commit, only the one with the longest retention continues. In lakeFS, a
shorter walk only stops if it reaches the commit later, so the result depends on the order of commit
ids. In this module, the order does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

from gc_assets.core.graph import CommitGraph
from gc_assets.core.units import Cutoff


@dataclass(frozen=True, slots=True)
class Start:
    """Starting point of a walk.

    Attributes:
        commit: Position of the commit.
        cutoff: Cut-off that applies to the walk.
        name: Name of the rule in messages.
        dangling: True if the commit is not a branch head and must be younger than the cut-off
            itself.
    """

    commit: int
    cutoff: Cutoff
    name: str
    dangling: bool = False


@dataclass(frozen=True, slots=True)
class Activity:
    """Which commits are active, indexed by the position of the commit.

    Attributes:
        active: True if the commit is active.
        held_by: Name of the longest walk that keeps the commit.
        until: Time until which the age of the commit keeps it, or None if age is not the reason.
    """

    active: Sequence[bool]
    held_by: Sequence[str | None]
    until: Sequence[datetime | None]


@dataclass(slots=True)
class _Walk:
    """Walk with the longest retention that reaches a commit.

    `until` is None at a head and for unlimited retention.
    """

    cutoff: datetime | None
    max_age: timedelta | None
    name: str
    until: datetime | None


@dataclass(slots=True)
class _Walks:
    """Retention by age and by count for each commit, indexed by its position.

    Attributes:
        by_age: Longest walk that reaches each commit.
        remaining: How many more commits a rule by count keeps, including this one.
        names: Name of the rule by count.
    """

    by_age: list[_Walk | None]
    remaining: list[int]
    names: dict[int, str] = field(default_factory=dict[int, str])

    def add(self, commit: int, walk: _Walk) -> None:
        known = self.by_age[commit]
        self.by_age[commit] = walk if known is None else _longest(known, walk)

    def add_count(self, commit: int, remaining: int, name: str) -> None:
        if remaining > self.remaining[commit]:
            self.remaining[commit], self.names[commit] = remaining, name


def find_dangling(graph: CommitGraph, heads: Sequence[int]) -> list[int]:
    """Find the commits that are neither a branch head nor the first parent of any commit."""
    loose = np.ones(len(graph), np.bool_)
    loose[graph.first_parent[graph.first_parent >= 0]] = False
    loose[np.array(heads, np.int64)] = False
    return np.flatnonzero(loose).tolist()


def find_active_commits(graph: CommitGraph, committed_at: Sequence[datetime], starts: Sequence[Start], as_of: datetime) -> Activity:
    """Determine which commits are active.

    Args:
        graph: The commits, without cycles and without missing parents.
        committed_at: Time of each commit.
        starts: Starting points of the walks.
        as_of: Time at which the ages of commits are computed.
    """
    walks = _Walks([None] * len(graph), [0] * len(graph))
    for start in starts:
        _start_walk(walks, start, committed_at[start.commit], as_of)
    first_parent = graph.first_parent.tolist()
    for commit in np.argsort(-graph.generation, kind="stable").tolist():
        if first_parent[commit] >= 0:
            _walk_on(walks, commit, first_parent[commit], committed_at[commit])
    by_age, remaining = walks.by_age, walks.remaining
    active = [walk is not None or remaining[commit] > 0 for commit, walk in enumerate(by_age)]
    names = [walk.name if walk is not None else walks.names.get(commit) for commit, walk in enumerate(by_age)]
    until = [walk.until if walk is not None and not remaining[commit] else None for commit, walk in enumerate(by_age)]
    return Activity(active, names, until)


def _start_walk(walks: _Walks, start: Start, committed_at: datetime, as_of: datetime) -> None:
    rule, cutoff = start.cutoff, start.cutoff.moment(as_of)
    has_age = rule.forever or rule.max_age is not None or rule.at is not None
    if has_age and not (start.dangling and cutoff is not None and committed_at <= cutoff):
        until = _end(committed_at, rule.max_age) if start.dangling else None
        walks.add(start.commit, _Walk(cutoff, rule.max_age, start.name, until))
    walks.add_count(start.commit, rule.keep_last or (0 if start.dangling else 1), start.name)


def _walk_on(walks: _Walks, commit: int, parent: int, committed_at: datetime) -> None:
    walk = walks.by_age[commit]
    if walk is not None and (walk.cutoff is None or committed_at > walk.cutoff):
        end = _end(committed_at, walk.max_age)
        until = end if walk.until is None or end is None else min(end, walk.until)
        walks.add(parent, _Walk(walk.cutoff, walk.max_age, walk.name, until))
    if walks.remaining[commit] - 1 > walks.remaining[parent]:
        walks.add_count(parent, walks.remaining[commit] - 1, walks.names[commit])


def _end(moment: datetime, max_age: timedelta | None) -> datetime | None:
    """Return when a commit made at `moment` becomes older than `max_age`, or None if it never does.

    Since users can choose any commit time, the sum may exceed the calendar.
    """
    if max_age is None or moment > datetime.max.replace(tzinfo=UTC) - max_age:
        return None
    return moment + max_age


def _longest(known: _Walk, walk: _Walk) -> _Walk:
    until = None if known.until is None or walk.until is None else max(known.until, walk.until)
    longer = known if known.cutoff is None or (walk.cutoff is not None and known.cutoff <= walk.cutoff) else walk
    return _Walk(longer.cutoff, longer.max_age, longer.name, until)
