"""Decide which branches are idle, so that they may be deleted.

A branch is idle if its head commit is old, and if every run of gc-assets in the meantime has found
the same head. The second condition protects branches that were created recently at an old commit,
and branches that a writer has moved or recreated. Branches that no earlier run has found are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gc_assets.core.units import format_duration

# Branches with this name are never deleted as idle, even if the default branch has another name.
MAIN: Final = "main"
# A table UUID, or None if the lake has no tables, and a branch name.
BranchKey = tuple[str | None, str]


@dataclass(frozen=True, slots=True)
class IdleRule:
    """A configured rule for the deletion of idle branches.

    Attributes:
        path: The path of the rule in the configuration, for messages.
        match: Regular expression that the whole branch name has to match.
        after: How long a branch must have had no activity.
    """

    path: str
    match: str
    after: timedelta


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch, and what is known about its activity.

    Attributes:
        head_at: Commit time of the head, or None if unknown.
        unchanged_since: Time of the earliest run since which the head is known to be unchanged.
            None if no earlier run has found this head.
        protected: Why the branch must not be deleted, or None.
    """

    name: str
    head_at: datetime | None
    unchanged_since: datetime | None
    protected: str | None = None


@dataclass(frozen=True, slots=True)
class Sighting:
    """The heads of all branches found by one run.

    Attributes:
        tables: Tables of which the run has read at least one ref. If the run could not read a
            table, the table is not included, because the run proves nothing about its branches.
    """

    at: datetime
    heads: Mapping[BranchKey, str]
    tables: frozenset[str | None]


def find_rule(rules: Sequence[IdleRule], name: str) -> IdleRule | None:
    """Return the first rule that matches the branch name."""
    return next((rule for rule in rules if re.fullmatch(rule.match, name)), None)


def explain_idle(branch: Branch, rules: Sequence[IdleRule], as_of: datetime) -> str | None:
    """Decide whether a branch is idle.

    Args:
        rules: The rules in order of priority.
        as_of: Time at which the ages of branches are computed.

    Returns:
        Why the branch may be deleted, or None if it is kept.
    """
    rule = find_rule(rules, branch.name)
    if rule is None or branch.name == MAIN or branch.protected is not None or branch.head_at is None or branch.unchanged_since is None:
        return None
    if max(branch.head_at, branch.unchanged_since) >= as_of - rule.after:
        return None
    unseen = f"no run saw another head for {format_duration(rule.after)}"
    return f"idle: its newest commit is from {branch.head_at:%Y-%m-%d}, and {unseen} ({rule.path})"


def find_unchanged_since(heads: Mapping[BranchKey, str], sightings: Iterable[Sighting], until: datetime) -> dict[BranchKey, datetime]:
    """Find the time since which each branch has had its current head, according to earlier runs.

    Args:
        heads: Current head of each branch.
        sightings: Earlier runs, newest first. The iteration stops at the first run before `until`.
        until: Runs before this time do not matter.
    """
    found: dict[BranchKey, datetime] = {}
    pending = dict(heads)
    for sighting in sightings:
        for key, head in list(pending.items()):
            if key[0] not in sighting.tables:
                continue
            if sighting.heads.get(key) == head:
                found[key] = sighting.at
            else:
                del pending[key]
        if not pending or sighting.at < until:
            break
    return found


def describe_unused_rules(rules: Sequence[IdleRule], names: Iterable[str]) -> Iterator[str]:
    """Describe rules that apply to no branch, because none matches or an earlier rule applies.

    For a lake without branches, nothing is reported.
    """
    distinct = set(names)
    used = {rule.path for name in distinct if (rule := find_rule(rules, name)) is not None}
    for rule in rules if distinct else ():
        if rule.path not in used:
            names_advice = "compare it with the names that `gc-assets show lake_refs` lists"
            yield f"{rule.path} (match {rule.match!r}) applies to no branch; {names_advice}"
