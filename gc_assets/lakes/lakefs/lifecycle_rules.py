"""Parse a lakeFS repository's lifecycle rules, and convert them to rows with dates.

Source: lakeFS, *lifecycle policy Spark job*. The file contains `{"<rule id>": {"prefix": str,
"days": int?, "enabled": bool, "branch_days": {"<branch>": int}?}}`. As requested in lakeFS #4570, a
rule can have a `glob` instead of a `prefix`. `days` applies to all branches, and `branch_days` to
single ones. Without `days`, a rule only applies to the branches in `branch_days`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel, ValidationError

from gc_assets.core.deferred_models import DEFER_BUILD
from gc_assets.core.errors import UsageError
from gc_assets.core.moments import shift
from gc_assets.core.regular_files import read_small
from gc_assets.core.units import LONGEST
from gc_assets.core.untrusted_input import parse_json


def _check_integer(value: Any) -> Any:
    # Python treats JSON's `true` as 1, which would release everything that is older than a day.
    if type(value) is not int:
        raise ValueError("expected an integer number of days")
    return value


Days = Annotated[int, BeforeValidator(_check_integer), Field(ge=0, le=LONGEST.days)]


class LifecycleRule(BaseModel):
    """One lifecycle rule, which applies to paths with a prefix or to paths that match a pattern.

    As in S3 lifecycle rules, the prefix `foo/bar` also matches `foo/barn`. In a pattern, `**`
    matches `/`, but `*` does not.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=DEFER_BUILD)

    prefix: str | None = None
    glob: str | None = None
    days: Days | None = None
    enabled: bool
    branch_days: dict[str, Days] = Field(default_factory=dict[str, int])


class _Rules(RootModel[dict[str, LifecycleRule]]):
    pass


class _RepeatedKeyError(Exception):
    """Raised if a JSON object contains the same key twice."""


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object. Reject repeated keys, because parsers would silently use the last one."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _RepeatedKeyError(key)
        found[key] = value
    return found


def _refuse_repeated_keys(text: str) -> None:
    try:
        parse_json(text, _build_object)
    except ValueError:
        return  # pydantic will report the position of the syntax error.


def read_rules(path: str) -> Mapping[str, LifecycleRule]:
    """Read the rules file. Raises `UsageError` if it cannot be read or is invalid."""
    try:
        text = read_small(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"lifecycle rules in {path} cannot be read: {error}; correct `rules` of the lake") from error
    return parse_rules(path, text)


def parse_rules(where: str, text: str) -> Mapping[str, LifecycleRule]:
    """Parse lifecycle rules, keyed by rule id. `UsageError` lists each invalid key in the text."""
    try:
        _refuse_repeated_keys(text)
        rules = _Rules.model_validate_json(text).root
    except _RepeatedKeyError as error:
        raise UsageError(
            f"lifecycle rules in {where} are not valid:\n  {error}: the key is repeated; one value would replace the other"
        ) from None
    except ValidationError as error:
        lines = [f"  {'.'.join(str(step) for step in item['loc']) or 'the document'}: {item['msg']}" for item in error.errors()]
        raise UsageError(f"lifecycle rules in {where} are not valid:\n" + "\n".join(lines)) from None
    for rule_id, rule in rules.items():
        if (rule.prefix is None) == (rule.glob is None) or rule.glob == "":
            raise UsageError(f"lifecycle rules in {where} are not valid:\n  {rule_id}: exactly one of prefix and glob is required")
        if rule.days is None and not rule.branch_days:
            raise UsageError(f"lifecycle rules in {where} are not valid:\n  {rule_id}: the rule has no effect; set days or branch_days")
    return rules


def literal_start(glob: str) -> str:
    """Return the part of a pattern that precedes its first wildcard."""
    return glob[: min((glob.index(sign) for sign in "*?" if sign in glob), default=len(glob))]


def rule_rows(rules: Mapping[str, LifecycleRule], as_of: datetime) -> list[dict[str, Any]]:
    """Convert each lifecycle rule to rows: one for its default, and one for each of its branches.

    Numbers of days are counted back from `as_of`. For example, if this is 20 January 1998, 10 days
    mean the 10th, 5 days the 15th and 8 days the 12th. (The lakeFS document mistakenly prints the
    18th for 8 days.)

    Returns:
        Rows with the columns of `policy_table`, except those that describe the run.
    """
    rows: list[dict[str, Any]] = []
    for rule_id, rule in rules.items():
        by_branch: list[tuple[str | None, int]] = [] if rule.days is None else [(None, rule.days)]
        by_branch += sorted(rule.branch_days.items())
        rows += [
            {
                "rule_id": rule_id,
                "prefix": rule.prefix if rule.glob is None else literal_start(rule.glob),
                "glob": rule.glob,
                "branch": branch,
                "date_to_be_deleted": shift(as_of, -timedelta(days=days)),
                "keep_last": None,
                "scope": "objects",
                "enabled": rule.enabled,
            }
            for branch, days in by_branch
        ]
    return rows
