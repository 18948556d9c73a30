"""Compute the retention limits of a table's refs at a given time.

A rule for refs in the configuration takes precedence over settings of the ref itself. These take
precedence over settings of the table, some of which the configuration may override.

All functions are pure. Times are integers in microseconds since 1970 UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gc_assets.core.moments import EPOCH, MICROSECOND, to_micros
from gc_assets.core.units import Cutoff, count_of, format_duration
from gc_assets.lakes.iceberg.catalog_policy import CatalogPolicy, read_policy
from gc_assets.lakes.iceberg.config import IcebergRetention
from gc_assets.lakes.iceberg.metadata import (
    MAIN,
    MAX_REF_AGE_MS,
    MAX_SNAPSHOT_AGE_MS,
    MIN_SNAPSHOTS_TO_KEEP,
    REF_SETTINGS,
    TABLE_SETTINGS,
)
from gc_assets.lakes.protocol import Ref

# Defaults in Iceberg's TableProperties: 5 days, 1 snapshot, no limit.
DEFAULT_MAX_SNAPSHOT_AGE_MS = 5 * 24 * 3600 * 1000
DEFAULT_MIN_SNAPSHOTS_TO_KEEP = 1
FOREVER_MS = 2**63 - 1  # Java's Long.MAX_VALUE, which engines write for "no limit".

ALWAYS = -math.inf
NEVER = math.inf


# For each table property, the configuration key that overrides it.
_OVERRIDES = dict(zip(TABLE_SETTINGS, ("min_snapshots_to_keep", "max_snapshot_age", "max_ref_age"), strict=True))
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


def parse_setting(value: str) -> int | None:
    """Parse a `history.expire.*` property or a ref's retention setting, or return None if invalid.

    Iceberg refuses to expire snapshots if a value is not a 64-bit integer. If a value is negative,
    which users often intend as "no limit", Iceberg would expire the whole history.
    """
    number = int(value) if _INTEGER.fullmatch(value) else -1
    return number if 0 <= number <= FOREVER_MS else None


def find_invalid_settings(properties: Mapping[str, str], refs: Iterable[Ref], overrides: IcebergRetention) -> Iterator[str]:
    """Describe each invalid retention setting of a table and its refs.

    Properties that the configuration overrides are not checked.
    """
    for key, override in _OVERRIDES.items():
        if getattr(overrides, override) is None and key in properties and parse_setting(properties[key]) is None:
            yield f"table property {key} is {properties[key]!r:.80}"
    for ref in refs:
        invalid = (key for key in REF_SETTINGS if key in ref.properties and parse_setting(ref.properties[key]) is None)
        yield from (f"{key} of {ref.ref_type} {ref.ref_name} is {ref.properties[key]}" for key in invalid)


def find_keeping_policy(properties: Mapping[str, str], overrides: IcebergRetention) -> str | None:
    """Return why the catalog's policy keeps a table's whole history, or None if it does not."""
    return _policy_of(properties, overrides).keep_history


def describe_limits(properties: Mapping[str, str], overrides: IcebergRetention, source: str) -> str:
    """Describe the retention limits of a table and their origin.

    Args:
        properties: `CommitSource.properties` of the table.
        overrides: Overrides in the configuration.
        source: Origin of the overrides, for messages.
    """
    if overrides.source == "catalog" and not properties:
        return "what the policies of its catalog require"
    limits, policy = TableLimits.of(properties, overrides, EPOCH), _policy_of(properties, overrides)
    keep_last_key, age_key, _ = TABLE_SETTINGS
    sources: list[tuple[object, str]] = [(overrides.max_snapshot_age, age_key)]
    kept = "everything"
    if limits.age.cutoff != ALWAYS:
        is_minimum = overrides.min_snapshots_to_keep == limits.keep_last != policy.limits.get(keep_last_key)
        sources.append((overrides.min_snapshots_to_keep if is_minimum else None, keep_last_key))
        kept = f"the last {_duration(limits.max_snapshot_age_ms)} and at least {count_of(limits.keep_last, 'snapshot')}"
    origins = {_find_origin(properties, policy, override, key) or source for override, key in sources}
    rules = f"; {count_of(len(overrides.refs), 'rule')} for refs" if overrides.refs else ""
    return f"{kept} ({', '.join(sorted(origins))}){rules}"


def _policy_of(properties: Mapping[str, str], overrides: IcebergRetention) -> CatalogPolicy:
    if overrides.source == "table":
        return CatalogPolicy()
    return read_policy(properties) or CatalogPolicy(keep_history="the policies of its catalog were not read when the refs were frozen")


def _find_origin(properties: Mapping[str, str], policy: CatalogPolicy, override: object, key: str) -> str | None:
    """Return the origin of a retention limit, or None if it is an override in the configuration."""
    if key in policy.limits and (override is None or key != TABLE_SETTINGS[0]):
        return policy.origin_of(key) or "table properties"
    if override is not None:
        return None
    return "table properties" if key in properties else "Iceberg's defaults"


@dataclass(frozen=True, slots=True)
class AgeLimit:
    """Age limit that keeps everything whose timestamp is at or after `cutoff`.

    Attributes:
        cutoff: Time in microseconds since 1970 UTC. `ALWAYS` keeps everything, `NEVER` keeps
            nothing based on age.
        duration: How long an item is kept after its timestamp, in microseconds. Infinite if the
            cut-off is a fixed date.
        label: Name of the rule in reasons.
    """

    cutoff: float
    duration: float
    label: str

    def keeps(self, stamp: int) -> bool:
        return stamp >= self.cutoff


@dataclass(frozen=True, slots=True)
class RefLimits:
    """Retention limits of one ref.

    `ref_age` is compared with the ref's head snapshot, and decides whether the ref itself is kept.
    A branch that is kept also keeps its newest `keep_last` snapshots and those that `age` keeps.
    """

    ref_age: AgeLimit
    age: AgeLimit
    keep_last: int


@dataclass(frozen=True, slots=True)
class TableLimits:
    """Retention limits of a table at a given time.

    `unreferenced` applies to snapshots that no kept ref reaches. As in Iceberg, it is the same as
    the table's age limit, unless the configuration sets `retention.dangling`.
    """

    age: AgeLimit
    unreferenced: AgeLimit
    keep_last: int
    max_snapshot_age_ms: int
    max_ref_age_ms: int
    max_ref_age_origin: str | None
    as_of: datetime
    overrides: IcebergRetention

    @classmethod
    def of(cls, properties: Mapping[str, str], overrides: IcebergRetention, as_of: datetime) -> TableLimits:
        """Read a table's `history.expire.*` properties and apply the overrides.

        Invalid properties are ignored here, because `find_invalid_settings` keeps the whole history
        of such a table. A policy of the catalog replaces the ages in properties and overrides, and
        `min_snapshots_to_keep` is its minimum.
        """
        keep_last, max_age, max_ref_age = (parse_setting(properties[key]) if key in properties else None for key in TABLE_SETTINGS)
        if overrides.max_snapshot_age is not None:
            max_age = _milliseconds(overrides.max_snapshot_age)
        if overrides.max_ref_age is not None:
            max_ref_age = _milliseconds(overrides.max_ref_age)
        keep_last_key, age_key, ref_age_key = TABLE_SETTINGS
        policy = _policy_of(properties, overrides)
        max_age, max_ref_age = policy.limits.get(age_key, max_age), policy.limits.get(ref_age_key, max_ref_age)
        keep_last, minimum = policy.limits.get(keep_last_key, keep_last), overrides.min_snapshots_to_keep
        keep_last = max(keep_last or 0, minimum or 0) if overrides.source == "catalog" else minimum or keep_last
        max_age = DEFAULT_MAX_SNAPSHOT_AGE_MS if max_age is None else max_age
        age = _limit_by_age(max_age, as_of, "max-snapshot-age", policy.origin_of(age_key))
        dangling = overrides.dangling_cutoff()
        return cls(
            age=age,
            unreferenced=age if dangling is None else _limit_by_cutoff(dangling, "retention.dangling", as_of),
            keep_last=keep_last or DEFAULT_MIN_SNAPSHOTS_TO_KEEP,
            max_snapshot_age_ms=max_age,
            max_ref_age_ms=FOREVER_MS if max_ref_age is None else max_ref_age,
            max_ref_age_origin=policy.origin_of(ref_age_key),
            as_of=as_of,
            overrides=overrides,
        )

    def for_ref(self, ref: Ref) -> RefLimits:
        """Compute the retention limits of a ref.

        If a configured pattern matches the ref's complete name, its rule replaces the ref's
        settings. `main` is always kept, and so are tags if `tags` is `keep`.
        """
        for index, rule in enumerate(self.overrides.refs):
            if re.fullmatch(rule.match, ref.ref_name):
                limits = _limits_by_cutoff(rule.as_cutoff(), f"retention.refs[{index}]", ref, self.as_of)
                break
        else:
            limits = self._limits_by_settings(ref)
        keep_tag = ref.ref_type == "tag" and self.overrides.tags == "keep"
        if ref.ref_name == MAIN or keep_tag:
            return RefLimits(AgeLimit(ALWAYS, NEVER, "tags: keep" if keep_tag else "main never expires"), limits.age, limits.keep_last)
        return limits

    def _limits_by_settings(self, ref: Ref) -> RefLimits:
        own = {key: number for key in REF_SETTINGS if (number := parse_setting(ref.properties.get(key, ""))) is not None}
        age = _limit_by_age(own[MAX_SNAPSHOT_AGE_MS], self.as_of, "max-snapshot-age") if MAX_SNAPSHOT_AGE_MS in own else self.age
        ref_age = (
            _limit_by_age(own[MAX_REF_AGE_MS], self.as_of, "max-ref-age")
            if MAX_REF_AGE_MS in own
            else _limit_by_age(self.max_ref_age_ms, self.as_of, "max-ref-age", self.max_ref_age_origin)
        )
        return RefLimits(ref_age, age, own.get(MIN_SNAPSHOTS_TO_KEEP, self.keep_last))


def _milliseconds(age: timedelta) -> int:
    return age // timedelta(milliseconds=1)


def _limits_by_cutoff(cutoff: Cutoff, rule: str, ref: Ref, as_of: datetime) -> RefLimits:
    """Compute the limits of a ref to which a configured rule applies.

    The age in the rule limits the lifetime of a tag, unless the rule also has a snapshot count.
    Branches are always kept.
    """
    age = _limit_by_cutoff(cutoff, rule, as_of)
    by_age = ref.ref_type == "tag" and cutoff.keep_last is None
    return RefLimits(age if by_age else AgeLimit(ALWAYS, NEVER, age.label), age, cutoff.keep_last or DEFAULT_MIN_SNAPSHOTS_TO_KEEP)


def _limit_by_cutoff(cutoff: Cutoff, rule: str, as_of: datetime) -> AgeLimit:
    label = f"{rule} ({cutoff.limit_text})"
    moment = cutoff.moment_micros(as_of)
    if cutoff.forever:
        return AgeLimit(ALWAYS, NEVER, label)
    if moment is None:
        return AgeLimit(NEVER, 0, label)
    return AgeLimit(moment, NEVER if cutoff.max_age is None else cutoff.max_age // MICROSECOND, label)


def _limit_by_age(milliseconds: int, as_of: datetime, name: str, origin: str | None = None) -> AgeLimit:
    suffix = "" if origin is None else f" ({origin})"
    if milliseconds >= FOREVER_MS:
        return AgeLimit(ALWAYS, NEVER, f"{name} without limit{suffix}")
    return AgeLimit(to_micros(as_of) - milliseconds * 1000, milliseconds * 1000, f"{name} {_duration(milliseconds)}{suffix}")


def _duration(milliseconds: int) -> str:
    if milliseconds % 1000 or not 0 < milliseconds < 10**15:
        return f"{milliseconds:,} ms"
    return format_duration(timedelta(milliseconds=milliseconds))
