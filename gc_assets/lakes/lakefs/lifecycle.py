"""Decides which objects the lifecycle rules release: the rules over classes of branches, paths and
ages. Pure, vectorised.

Branches that no rule names behave alike, so they are one class (`OTHERS`), and a thousand of them
cost as one. An object is released where every branch that reaches it releases it. On each branch
one rule speaks: the rule with the longest matching prefix. Of equal prefixes the branch's own row
comes before the row for all, and of several such rows the one with the longest retention. A
disabled rule speaks and keeps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

OTHERS: Final = ""
BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
_KEPT: Final = np.iinfo(np.int64).min
_NO_LIMIT: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of `policy_table` about objects, with the bound that the newest finished deletion used
    (`last_deleted`).
    """

    rule_id: str
    prefix: str
    branch: str | None
    date_to_be_deleted: datetime
    enabled: bool = True
    last_deleted: datetime | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Rule:
        names = ("rule_id", "prefix", "branch", "date_to_be_deleted", "enabled", "last_deleted")
        return cls(**{name: row[name] for name in names if name in row})


def class_of(rules: Iterable[Rule], branch: str) -> str:
    """Returns the branch itself where a rule names it, else `OTHERS`."""
    return branch if any(rule.branch == branch for rule in rules) else OTHERS


def branch_bound(rules: Sequence[Rule], branch: str) -> datetime | None:
    """Returns the minimum `last_deleted` of the rules for a branch, its own and those for all, or
    null where no enabled rule speaks for it.

    A rule that no finished run carried out yet counts from the beginning.
    """
    bounds = [rule.last_deleted or BEGINNING for rule in rules if rule.enabled and rule.branch in {branch, None}]
    return min(bounds, default=None)


def commit_bound(rules: Sequence[Rule], branches: Collection[str]) -> datetime | None:
    """Returns what a commit must be younger than to be potential: the latest bound of the branches
    that reach it.

    Null means that the commit is not potential, because no branch reaches it, or no rule speaks for
    one that does.
    """
    bounds = [branch_bound(rules, branch) for branch in branches]
    known = [bound for bound in bounds if bound is not None]
    return max(known) if known and len(known) == len(bounds) else None


@dataclass(frozen=True, slots=True)
class Verdicts:
    """For each (path, object): whether every branch that reaches it releases it, and by which rules
    (ids, each once).
    """

    released: NDArray[np.bool_]
    rules: pa.Array


def judge(rules: Sequence[Rule], paths: pa.Array, ages: pa.Array, reach: NDArray[np.int64], reaches: Sequence[Collection[str]]) -> Verdicts:
    """Applies the rules to objects under paths.

    `ages` are UTC timestamps, the younger of an entry's time and its first commit's. `reach` names
    for each row the set of `reaches` that holds the classes of branches that reach it. What no
    branch reaches is not released here.
    """
    prefixes = sorted({rule.prefix for rule in rules}, key=len)
    deepest = np.full(len(paths), 0, np.int64)
    groups: list[frozenset[str]] = [frozenset()]
    numbers: dict[frozenset[str], int] = {groups[0]: 0}
    for prefix in prefixes:
        under = pc.fill_null(pc.starts_with(paths, prefix), False).to_numpy(zero_copy_only=False)
        for before in np.unique(deepest[under]).tolist():
            group = groups[before] | {prefix}
            if group not in numbers:
                numbers[group] = len(groups)
                groups.append(group)
            deepest[under & (deepest == before)] = numbers[group]
    pairs = deepest * max(1, len(reaches)) + reach
    limits = np.full(len(paths), _KEPT, np.int64)
    named = np.zeros(len(paths), np.int64)
    names: list[list[str]] = []
    for pair in np.unique(pairs).tolist():
        group, classes = groups[pair // max(1, len(reaches))], reaches[pair % max(1, len(reaches))]
        limit, speaking = _limit(rules, group, classes)
        limits[pairs == pair] = limit
        named[pairs == pair] = len(names)
        names.append(speaking)
    micros = ages.cast(pa.int64()).to_numpy(zero_copy_only=False)
    spoken = pa.array(names, pa.list_(pa.string())).take(pa.array(named))
    return Verdicts(micros < limits, spoken)


def _limit(rules: Sequence[Rule], prefixes: Collection[str], classes: Collection[str]) -> tuple[int, list[str]]:
    """Returns the time (microseconds) strictly before which an object with those matching prefixes
    is released on all classes, and the rules that say so.
    """
    limit, speaking = _NO_LIMIT if classes else _KEPT, set[str]()
    for branch in classes:
        rule = _speaking(rules, prefixes, branch)
        if rule is None or not rule.enabled:
            return _KEPT, []
        speaking.add(rule.rule_id)
        limit = min(limit, (rule.date_to_be_deleted - datetime(1970, 1, 1, tzinfo=UTC)) // datetime.resolution)
    return limit, sorted(speaking)


def _speaking(rules: Sequence[Rule], prefixes: Collection[str], branch: str) -> Rule | None:
    mine = [rule for rule in rules if rule.prefix in prefixes and rule.branch in {branch or None, None}]
    if not mine:
        return None
    # The longest prefix speaks, then the branch's own row, then a row that keeps, then the earliest
    # date.
    return min(mine, key=lambda rule: (-len(rule.prefix), rule.branch is None, rule.enabled, rule.date_to_be_deleted))
