"""Rules for the deletion of idle branches, as pure functions.

A branch is idle if its head commit is old and all collector runs have seen this head for as long.
The second condition protects a new branch at an old commit, and a branch that a writer has moved or
recreated. A branch that no earlier run has seen is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gc_assets.core.units import format_duration

# These branches are never deleted as idle, even if the server has another default branch.
MAIN: Final = "main"
# The uuid of the table (None in a lake without tables) and the name of the branch.
BranchKey = tuple[str | None, str]


@dataclass(frozen=True, slots=True)
class IdleRule:
    """Rule that deletes idle branches.

    Attributes:
        path: Path of the rule in the configuration.
        match: Regular expression for the full name.
        after: Minimum time without activity.
    """

    path: str
    match: str
    after: timedelta


@dataclass(frozen=True, slots=True)
class Branch:
    """Branch with the evidence of its activity.

    Attributes:
        head_at: Commit time of the head, or None if it is unknown.
        unchanged_since: Time of the earliest run since which every run saw this head, or None if no
            earlier run saw it.
        protected: Why the branch must not be deleted, or None.
    """

    name: str
    head_at: datetime | None
    unchanged_since: datetime | None
    protected: str | None = None


@dataclass(frozen=True, slots=True)
class Sighting:
    """Heads of branches as seen by one run.

    `tables` contains the tables that have at least one ref. If a run could not read a table, it has
    no refs of this table and is no evidence for or against its branches.
    """

    at: datetime
    heads: Mapping[BranchKey, str]
    tables: frozenset[str | None]


def find_rule(rules: Sequence[IdleRule], name: str) -> IdleRule | None:
    """Return the first rule whose pattern matches the full name."""
    return next((rule for rule in rules if re.fullmatch(rule.match, name)), None)


def explain_idle(branch: Branch, rules: Sequence[IdleRule], as_of: datetime) -> str | None:
    """Return the reason for deleting a branch, or None if it is kept.

    Args:
        rules: The rules in order of priority.
        as_of: Time from which ages are counted.
    """
    rule = find_rule(rules, branch.name)
    if rule is None or branch.name == MAIN or branch.protected is not None or branch.head_at is None or branch.unchanged_since is None:
        return None
    if max(branch.head_at, branch.unchanged_since) >= as_of - rule.after:
        return None
    unseen = f"no run saw another head for {format_duration(rule.after)}"
    return f"idle: its newest commit is from {branch.head_at:%Y-%m-%d}, and {unseen} ({rule.path})"


def find_unchanged_since(heads: Mapping[BranchKey, str], sightings: Iterable[Sighting], until: datetime) -> dict[BranchKey, datetime]:
    """Return for each branch the earliest time since which all runs have seen its current head.

    Args:
        heads: Current head of each branch.
        sightings: Earlier runs, newest first. The iteration stops at the first run before `until`.
        until: Runs before this time are not needed.
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
    """Describe the rules that are not the first matching rule of any branch.

    Nothing is reported for a lake without branches.
    """
    distinct = set(names)
    used = {rule.path for name in distinct if (rule := find_rule(rules, name)) is not None}
    for rule in rules if distinct else ():
        if rule.path not in used:
            names_advice = "compare it with the names that `gc-assets show lake_refs` lists"
            yield f"{rule.path} (match {rule.match!r}) applies to no branch; {names_advice}"
