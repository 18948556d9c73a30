"""Apply lakeFS lifecycle rules, which permit deletion depending on branch, path and age.

An object is released (may be deleted although a commit references it) if every branch that reaches
it releases it. On each branch, the matching rule with the longest prefix applies. For a pattern,
the prefix is the part before its first wildcard. If prefixes are equal, a rule for this branch
takes precedence over a rule for all branches. If there are still several rules, the one with the
longest retention applies. A disabled rule takes part in this selection, but if it applies, the
object is kept.

Branches that no rule mentions are treated as one class (`OTHERS`), so the running time does not
depend on their number. All functions are pure and vectorized.
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

from gc_assets.core.globs import glob_regex

OTHERS: Final = ""
BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
_KEPT: Final = np.iinfo(np.int64).min
_NO_LIMIT: Final = np.iinfo(np.int64).max
Selection = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """A lifecycle rule: a row of `policy_table` with the scope `objects`.

    `last_deleted` is the date up to which the latest finished deletion released objects, or None if
    no deletion has finished yet.
    """

    rule_id: str
    prefix: str
    branch: str | None
    date_to_be_deleted: datetime
    enabled: bool = True
    last_deleted: datetime | None = None
    glob: str | None = None

    @property
    def paths(self) -> tuple[str, str | None]:
        """The paths to which the rule applies, given as a prefix and an optional pattern."""
        return self.prefix, self.glob

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Rule:
        names = ("rule_id", "prefix", "branch", "date_to_be_deleted", "enabled", "last_deleted", "glob")
        return cls(**{name: row[name] for name in names if name in row})


def class_of(rules: Iterable[Rule], branch: str) -> str:
    """Return the branch's class: its own name if a rule lists the branch, otherwise `OTHERS`."""
    return branch if any(rule.branch == branch for rule in rules) else OTHERS


def branch_bound(rules: Sequence[Rule], branch: str) -> datetime | None:
    """Return the earliest `last_deleted` of the enabled rules that apply to a branch.

    If no deletion has finished for a rule, it counts as `BEGINNING`. The result is None if no
    enabled rule applies to the branch.
    """
    bounds = [rule.last_deleted or BEGINNING for rule in rules if rule.enabled and rule.branch in {branch, None}]
    return min(bounds, default=None)


def commit_bound(rules: Sequence[Rule], branches: Collection[str]) -> datetime | None:
    """Return the latest `branch_bound` of the branches that reach a commit.

    If a commit is later than this time, rules may still have to release its objects, and it is
    called a potential commit. The result is None if the commit is never potential, because no
    branch reaches it or no rule applies to one of the branches.
    """
    bounds = [branch_bound(rules, branch) for branch in branches]
    known = [bound for bound in bounds if bound is not None]
    return max(known) if known and len(known) == len(bounds) else None


@dataclass(frozen=True, slots=True)
class Releases:
    """Decisions of the lifecycle rules: one per path, in the order of the paths.

    Attributes:
        released: True if every branch that reaches the object releases it.
        rules: For each path, the distinct ids of the rules that apply.
    """

    released: NDArray[np.bool_]
    rules: pa.Array


def evaluate(
    rules: Sequence[Rule], paths: pa.Array, ages: pa.Array, reach: NDArray[np.int64], reaches: Sequence[Collection[str]]
) -> Releases:
    """Apply the rules to paths of objects. An object that no branch reaches is not released.

    Args:
        rules: All lifecycle rules of the repository.
        paths: Logical paths (paths on a branch) of objects.
        ages: For each path, the time of its entry or of its first commit in UTC, whichever is
            later.
        reach: For each path, an index into `reaches`.
        reaches: Sets of branch classes that reach a path.
    """
    deepest, groups = _group_paths(rules, paths)
    pairs = deepest * max(1, len(reaches)) + reach
    limits = np.full(len(paths), _KEPT, np.int64)
    list_numbers = np.zeros(len(paths), np.int64)
    lists: list[list[str]] = []
    for pair in np.unique(pairs).tolist():
        group, classes = groups[pair // max(1, len(reaches))], reaches[pair % max(1, len(reaches))]
        limit, rule_ids = _find_limit(rules, group, classes)
        limits[pairs == pair] = limit
        list_numbers[pairs == pair] = len(lists)
        lists.append(rule_ids)
    micros = ages.cast(pa.int64()).to_numpy(zero_copy_only=False)
    rule_lists = pa.array(lists, pa.list_(pa.string())).take(pa.array(list_numbers))
    return Releases(micros < limits, rule_lists)


def find_used(
    rules: Sequence[Rule], paths: pa.Array, reach: NDArray[np.int64], reaches: Sequence[Collection[str]]
) -> tuple[set[str], set[str]]:
    """Find the ids of the rules that match a path, and of those that apply to one.

    A rule that matches a path does not apply to it if another rule takes precedence. For the
    arguments, see `evaluate`.
    """
    matching, used = set[str](), set[str]()
    deepest, groups = _group_paths(rules, paths)
    for pair in np.unique(deepest * max(1, len(reaches)) + reach).tolist():
        group, classes = groups[pair // max(1, len(reaches))], reaches[pair % max(1, len(reaches))]
        for branch in classes:
            matching |= {rule.rule_id for rule in _list_matching(rules, group, branch)}
            rule = _find_rule(rules, group, branch)
            used |= {rule.rule_id} if rule is not None else set()
    return matching, used


def _group_paths(rules: Sequence[Rule], paths: pa.Array) -> tuple[NDArray[np.int64], list[frozenset[Selection]]]:
    """Group paths that match the same selections (prefixes and patterns of rules).

    Returns a group number for each path and, for each group, the selections that match its paths.
    """
    selections = sorted({rule.paths for rule in rules}, key=lambda item: (item[0], item[1] or ""))
    group_of = np.full(len(paths), 0, np.int64)
    groups: list[frozenset[Selection]] = [frozenset()]
    numbers: dict[frozenset[Selection], int] = {groups[0]: 0}
    for selection in selections:
        under = _matches(paths, selection)
        for number in np.unique(group_of[under]).tolist():
            group = groups[number] | {selection}
            if group not in numbers:
                numbers[group] = len(groups)
                groups.append(group)
            group_of[under & (group_of == number)] = numbers[group]
    return group_of, groups


def _matches(paths: pa.Array, selection: Selection) -> NDArray[np.bool_]:
    prefix, glob = selection
    found = pc.starts_with(paths, prefix)
    if glob is not None:
        found = pc.and_(found, pc.match_substring_regex(paths, glob_regex([glob])))
    return pc.fill_null(found, False).to_numpy(zero_copy_only=False)


def _find_limit(rules: Sequence[Rule], selections: Collection[Selection], classes: Collection[str]) -> tuple[int, list[str]]:
    """Return the time before which all branch classes release objects, and the rules that apply.

    The time is exclusive and in microseconds since 1970. `selections` are those that match the
    objects' paths.
    """
    limit, rule_ids = _NO_LIMIT if classes else _KEPT, set[str]()
    for branch in classes:
        rule = _find_rule(rules, selections, branch)
        if rule is None or not rule.enabled:
            return _KEPT, []
        rule_ids.add(rule.rule_id)
        limit = min(limit, (rule.date_to_be_deleted - datetime(1970, 1, 1, tzinfo=UTC)) // datetime.resolution)
    return limit, sorted(rule_ids)


def _list_matching(rules: Sequence[Rule], selections: Collection[Selection], branch: str) -> list[Rule]:
    return [rule for rule in rules if rule.paths in selections and rule.branch in {branch or None, None}]


def _find_rule(rules: Sequence[Rule], selections: Collection[Selection], branch: str) -> Rule | None:
    matching = _list_matching(rules, selections, branch)
    if not matching:
        return None
    # Precedence: longest prefix, then a rule for this branch, then a disabled rule, then the
    # earliest date.
    return min(matching, key=lambda rule: (-len(rule.prefix), rule.branch is None, rule.enabled, rule.date_to_be_deleted))
