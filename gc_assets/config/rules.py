"""Retention rules for refs that lakes of several kinds share, and their rows in `policy_table`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from gc_assets.config.values import Count, CutoffValue, Duration, Model, Pattern
from gc_assets.core.idle_branches import IdleRule
from gc_assets.core.units import Cutoff, count_of, format_duration, parse_cutoff, parse_duration

DEFAULT_DROPPED_AGE: Final = timedelta(days=7)
MIN_DROPPED_AGE: Final = timedelta(days=1)
MIN_IDLE_AGE: Final = timedelta(days=1)


class RefRule(Model):
    """Rule for refs with a matching full name. The first match wins.

    `keep` and `cutoff` are synonyms. `max_age` and `keep_last` can be combined.
    """

    match: Pattern
    keep: CutoffValue = None
    cutoff: CutoffValue = None
    max_age: Duration | None = None
    keep_last: Count | None = None

    @model_validator(mode="after")
    def _one_way(self) -> RefRule:
        _cutoff_of(self.keep, self.cutoff, self.max_age, self.keep_last)
        return self

    def as_cutoff(self) -> Cutoff:
        return _cutoff_of(self.keep, self.cutoff, self.max_age, self.keep_last)


class DefaultRule(Model):
    """Rule for refs without a matching pattern."""

    keep: CutoffValue = None
    max_age: Duration | None = None
    keep_last: Count | None = None

    @model_validator(mode="after")
    def _one_way(self) -> DefaultRule:
        _cutoff_of(self.keep, None, self.max_age, self.keep_last)
        return self

    def as_cutoff(self) -> Cutoff:
        return _cutoff_of(self.keep, None, self.max_age, self.keep_last)


def _cutoff_of(keep: Any, cutoff: Any, max_age: timedelta | None, keep_last: int | None) -> Cutoff:
    single = [value for value in (keep, cutoff) if value is not None]
    if len(single) == 1 and max_age is None and keep_last is None:
        return parse_cutoff(single[0])
    if single or (max_age is None and keep_last is None):
        raise ValueError("expected either one cut-off (keep or cutoff), or max_age and/or keep_last")
    return Cutoff(max_age=max_age, keep_last=keep_last)


def _as_rule(value: Any) -> Any:
    if isinstance(value, dict | DefaultRule):
        return value
    parse_cutoff(value)
    return {"keep": value}


def check_has_no_count(value: Any) -> Any:
    if value is not None and parse_cutoff(value).keep_last is not None:
        raise ValueError("a number of commits is not supported here; write a duration such as 7d, a timestamp, or forever")
    return value


def _check_idle_age(value: timedelta) -> timedelta:
    if value < MIN_IDLE_AGE:
        raise ValueError("expected at least 1d")
    return value


class IdleBranchRule(Model):
    """Rule that deletes branches with a matching full name. The first match wins."""

    match: Pattern = Field(description="Regular expression for the full name of a branch.")
    after: Annotated[Duration, AfterValidator(_check_idle_age)] = Field(
        description="A branch is deleted if its newest commit is older, and every run in this time found the same head: at least 1d."
    )


class DanglingRetention(Model):
    """Retention of commits that no ref reaches, and of idle branches."""

    # Unset keys are omitted from digests, because plans of older releases must stay valid.
    OMITTED_IF_UNSET: ClassVar[tuple[str, ...]] = ("dangling", "dropped")

    dangling: Annotated[CutoffValue, AfterValidator(check_has_no_count)] = Field(
        default=None, description="How long a commit that no ref reaches is kept. `forever` keeps all of them."
    )

    delete_idle: tuple[IdleBranchRule, ...] = Field(
        default=(), description="Rules for branches that plans delete when they are idle. Default: none."
    )

    @model_serializer(mode="wrap")
    def _omit_unset(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found = written(self)
        for name in self.OMITTED_IF_UNSET:
            if getattr(self, name, None) is None:
                found.pop(name, None)
        if not self.delete_idle:
            found.pop("delete_idle", None)
        return found

    def idle_rules(self) -> tuple[IdleRule, ...]:
        """Return the rules for idle branches, each with its path in the configuration."""
        return tuple(IdleRule(f"retention.delete_idle[{index}]", rule.match, rule.after) for index, rule in enumerate(self.delete_idle))

    def dangling_cutoff(self) -> Cutoff | None:
        """Parse the cut-off for unreachable commits, if it is configured."""
        return None if self.dangling is None else parse_cutoff(self.dangling)


def _dropped_age(value: Any) -> Any:
    if value is None or value == "keep":
        return value
    age = value if isinstance(value, timedelta) else parse_duration(str(value))
    if age < MIN_DROPPED_AGE:
        raise ValueError("expected at least 1d, or keep")
    return age


DroppedAge = Annotated[
    timedelta | Literal["keep"],
    BeforeValidator(_dropped_age, json_schema_input_type=str),
    PlainSerializer(lambda value: value if value == "keep" else format_duration(value), return_type=str),
]


class DroppedTableRetention(DanglingRetention):
    """Retention of the files of dropped tables."""

    dropped: DroppedAge | None = Field(
        default=None,
        description="How long the files of a table are kept after a run first finds that its catalog lacks it: at least 1d, default 7d, "
        "or `keep`.",
    )

    @property
    def dropped_after(self) -> timedelta | None:
        """How long the files of a dropped table are kept, or None to keep them permanently."""
        if self.dropped is None:
            return DEFAULT_DROPPED_AGE
        return None if self.dropped == "keep" else self.dropped


class RefRetention(DanglingRetention):
    """Ref retention. Without a `default`, everything is kept."""

    default: Annotated[DefaultRule, BeforeValidator(_as_rule, json_schema_input_type=DefaultRule | CutoffValue)] = DefaultRule(
        keep="forever"
    )
    refs: tuple[RefRule, ...] = ()

    def cutoff_for(self, ref_name: str) -> tuple[Cutoff, str]:
        """Find the first rule that matches a ref.

        Returns:
            The cut-off, and the path of the rule in the configuration.
        """
        for index, rule in enumerate(self.refs):
            if re.fullmatch(rule.match, ref_name):
                return rule.as_cutoff(), f"retention.refs[{index}]"
        return self.default.as_cutoff(), "retention.default"

    @property
    def keeps_everything(self) -> bool:
        """Whether all commits are kept, because every rule keeps them permanently."""
        cutoffs = [self.default.as_cutoff(), *(rule.as_cutoff() for rule in self.refs), *filter(None, [self.dangling_cutoff()])]
        return all(cutoff.forever for cutoff in cutoffs)

    def describe(self) -> str:
        """Summarize the rules for a message."""
        rules = f"; {count_of(len(self.refs), 'rule')} for refs" if self.refs else ""
        return f"{self.default.as_cutoff().policy_text}{rules}"

    def with_default(self, keep: str) -> Self:
        """Return a copy with another default."""
        return self.model_copy(update={"default": DefaultRule(keep=keep)})

    def policy_rows(self, as_of: datetime) -> list[dict[str, Any]]:
        """Convert all retention rules to rows of `policy_table`, beginning with the default."""
        return [policy_row("retention.default", None, self.default.as_cutoff(), as_of), *ref_rows(self.refs, as_of)]


def ref_rows(rules: Sequence[RefRule], as_of: datetime) -> list[dict[str, Any]]:
    """Convert `retention.refs` to rows of `policy_table`."""
    return [policy_row(f"retention.refs[{index}]", rule.match, rule.as_cutoff(), as_of) for index, rule in enumerate(rules)]


def policy_row(rule_id: str, branch: str | None, cutoff: Cutoff, as_of: datetime) -> dict[str, Any]:
    """Convert a rule to a row of `policy_table`. An age becomes a time before `as_of`."""
    return {
        "rule_id": rule_id,
        "prefix": "",
        "branch": branch,
        "date_to_be_deleted": cutoff.moment(as_of),
        "keep_last": cutoff.keep_last,
        "scope": "snapshots",
        "enabled": True,
        "glob": None,
    }


def describe_unused_rules(rows: Sequence[Mapping[str, Any]], branches: Collection[str], refs: Collection[str]) -> Iterator[str]:
    """Find rules without effect, because no name matches or because earlier rules match first.

    In a lake without refs, no rule has an effect, so nothing is reported.

    Args:
        rows: The rules as rows of `policy_table`, in order of priority.
        branches: The names of all branches.
        refs: The names of all refs to which rules apply: branches and, for most lakes, tags.
    """
    if not refs:
        return
    unmatched = set(refs)
    for row in rows:
        rule_id, pattern = row["rule_id"], row["branch"]
        if pattern is None:
            continue
        if row["scope"] == "objects":
            if pattern not in branches:
                yield f"rule {rule_id!r} applies to branch {pattern!r}, which does not exist"
            continue
        matched = {name for name in refs if re.fullmatch(pattern, name)}
        if not matched:
            yield f"{rule_id} (match {pattern!r}) applies to no ref; compare it with the names that `gc-assets show lake_refs` lists"
        elif not matched & unmatched:
            yield f"{rule_id} (match {pattern!r}) applies to no ref, because earlier rules match the same refs; move it before them"
        unmatched -= matched
