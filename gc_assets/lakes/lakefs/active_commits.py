"""lakeFS retention rule that selects the active commits at a given time.

Source: lakeFS `pkg/graveler/retention/active_commits.go`. A walk starts at every branch head and
follows first parents. The head is active. The first parent of a commit is active if the commit is
younger than the walk's cut-off, because then the parent was the head inside the window. Commits
that are not the first parent of any commit, such as heads of deleted branches, start walks with the
default rule. They must themselves be younger than its cut-off.

If several walks reach a commit, the longest retention continues. lakeFS stops there if the longer
walk came first, so its result depends on the order of commit ids. In this module, the order is
irrelevant. The functions are pure.
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
        cutoff: Cut-off of the walk.
        name: The name of the rule in reasons.
        dangling: True if the commit is not the head of any branch, so that the commit itself must
            be young.
    """

    commit: int
    cutoff: Cutoff
    name: str
    dangling: bool = False


@dataclass(frozen=True, slots=True)
class Activity:
    """Result by position of the commit.

    Attributes:
        active: Whether the commit is active.
        held_by: The name of the longest walk that keeps the commit.
        until: The time until which the commit is kept by its age, or None if it is not kept by age.
    """

    active: Sequence[bool]
    held_by: Sequence[str | None]
    until: Sequence[datetime | None]


@dataclass(slots=True)
class _Walk:
    """Longest walk at a commit. `until` is None at a head and for an unlimited walk."""

    cutoff: datetime | None
    max_age: timedelta | None
    name: str
    until: datetime | None


@dataclass(slots=True)
class _Walks:
    """Walks by age and by count, by position of the commit.

    Attributes:
        by_age: The longest walk at each commit.
        remaining: The number of commits, including this one, that a rule by count still keeps.
        names: The name of that rule.
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
    """Return the commits that are neither a head nor the first parent of any commit."""
    loose = np.ones(len(graph), np.bool_)
    loose[graph.first_parent[graph.first_parent >= 0]] = False
    loose[np.array(heads, np.int64)] = False
    return np.flatnonzero(loose).tolist()


def find_active_commits(graph: CommitGraph, committed_at: Sequence[datetime], starts: Sequence[Start], as_of: datetime) -> Activity:
    """Determine for every commit if it is active at a given time.

    Args:
        graph: The commits, without cycles and missing parents.
        committed_at: Time of each commit.
        starts: The starting points of walks.
        as_of: Time from which ages are counted.
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
    """Return the time at which a moment exceeds `max_age`, or None if it never does.

    Users can date a commit near the end of the calendar. Such a commit never exceeds the age.
    """
    if max_age is None or moment > datetime.max.replace(tzinfo=UTC) - max_age:
        return None
    return moment + max_age


def _longest(known: _Walk, walk: _Walk) -> _Walk:
    until = None if known.until is None or walk.until is None else max(known.until, walk.until)
    longer = known if known.cutoff is None or (walk.cutoff is not None and known.cutoff <= walk.cutoff) else walk
    return _Walk(longer.cutoff, longer.max_age, longer.name, until)
