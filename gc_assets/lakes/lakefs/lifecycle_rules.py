"""The lifecycle rules of a repository, as their owner writes them, and as rows with dates (lakeFS,
*lifecycle policy Spark job*).

`{"<rule id>": {"prefix": str, "days": int?, "enabled": bool, "branch_days": {"<branch>": int}?}}`.
`days` speaks for all branches, `branch_days` for one; a rule without `days` speaks only for the
branches it names. Text in, rows out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel, ValidationError

from gc_assets.core.errors import UsageError
from gc_assets.core.units import LONGEST
from gc_assets.core.untrusted_input import parse_json


def _whole(value: Any) -> Any:
    # JSON's `true` is 1 to Python, and would delete everything older than a day.
    if type(value) is not int:
        raise ValueError("write a whole number of days")
    return value


Days = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=LONGEST.days)]


class LifecycleRule(BaseModel):
    """One rule. The prefix is text, as in the lifecycle rules of S3: `foo/bar` is the beginning of
    `foo/barn` too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    prefix: str
    days: Days | None = None
    enabled: bool
    branch_days: dict[str, Days] = Field(default_factory=dict[str, int])


class _Rules(RootModel[dict[str, LifecycleRule]]):
    pass


class _RepeatedKeyError(Exception):
    """A key that one JSON object has twice."""


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the object, and raises for a key that it has twice: JSON lets the last of two equal
    keys win, silently.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _RepeatedKeyError(key)
        found[key] = value
    return found


def _refuse_repeated(text: str) -> None:
    try:
        parse_json(text, _unrepeated)
    except ValueError:
        return  # no JSON at all: pydantic says where


def read_rules(path: str) -> Mapping[str, LifecycleRule]:
    """Returns the rules in a lake's rules file, as they are now. Raises `UsageError` naming the
    file and what is wrong with it.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"lifecycle rules in {path} cannot be read: {error}; correct `rules` of the lake") from error
    return parse_rules(path, text)


def parse_rules(where: str, text: str) -> Mapping[str, LifecycleRule]:
    """Returns the rules by id. Raises `UsageError` naming the file and each wrong key by its path."""
    try:
        _refuse_repeated(text)
        rules = _Rules.model_validate_json(text).root
    except _RepeatedKeyError as error:
        raise UsageError(
            f"lifecycle rules in {where} are not valid:\n  {error}: the key stands there twice; one would undo the other"
        ) from None
    except ValidationError as error:
        lines = [f"  {'.'.join(str(step) for step in item['loc']) or 'the document'}: {item['msg']}" for item in error.errors()]
        raise UsageError(f"lifecycle rules in {where} are not valid:\n" + "\n".join(lines)) from None
    for rule_id, rule in rules.items():
        if rule.days is None and not rule.branch_days:
            raise UsageError(
                f"lifecycle rules in {where} are not valid:\n  {rule_id}: give days, or branch_days; it would never do anything"
            )
    return rules


def rule_rows(rules: Mapping[str, LifecycleRule], as_of: datetime) -> list[dict[str, Any]]:
    """Returns one row for the default of each rule and for each branch that it names (columns of
    `policy_table` without the run's own).

    Days count back from `as_of`: on 20 January 1998, 10 days are the 10th, 5 the 15th and 8 the
    12th. (The public text prints the 18th for 8 days; that is a slip.)
    """
    rows: list[dict[str, Any]] = []
    for rule_id, rule in rules.items():
        by_branch: list[tuple[str | None, int]] = [] if rule.days is None else [(None, rule.days)]
        by_branch += sorted(rule.branch_days.items())
        rows += [
            {
                "rule_id": rule_id,
                "prefix": rule.prefix,
                "branch": branch,
                "date_to_be_deleted": as_of - timedelta(days=days),
                "keep_last": None,
                "scope": "objects",
                "enabled": rule.enabled,
            }
            for branch, days in by_branch
        ]
    return rows
