"""How long each ref of a table keeps what: by a rule of the configuration for the ref, else the
ref's own settings, else the table's with the configuration's overrides.

Pure: turns settings into limits at a given moment, and walks nothing. Times are integers in
microseconds since 1970 UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gc_assets.core.units import Cutoff, format_duration
from gc_assets.lakes.iceberg.config import IcebergRetention
from gc_assets.lakes.iceberg.metadata import MAIN, MAX_REF_AGE_MS, MAX_SNAPSHOT_AGE_MS, MIN_SNAPSHOTS_TO_KEEP, TABLE_SETTINGS
from gc_assets.lakes.protocol import Ref

# Iceberg's TableProperties: 5 days, 1 snapshot, no end.
DEFAULT_MAX_SNAPSHOT_AGE_MS = 5 * 24 * 3600 * 1000
DEFAULT_MIN_SNAPSHOTS_TO_KEEP = 1
FOREVER_MS = 2**63 - 1  # Java's Long.MAX_VALUE, by which engines write "no end"

ALWAYS = -math.inf
NEVER = math.inf
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Age:
    """Keeps what is stamped at or after `cutoff`. `lasts` is how long after its stamp (infinite
    where the cut-off stands still).

    `ALWAYS` keeps everything, `NEVER` nothing by age. `words` names the rule for reasons.
    """

    cutoff: float
    lasts: float
    words: str

    def keeps(self, stamp: int) -> bool:
        return stamp >= self.cutoff


@dataclass(frozen=True, slots=True)
class RefLimits:
    """`ref_age` decides over the head whether the ref itself stays. A branch that stays keeps its
    newest `keep_last` and what `age` keeps.
    """

    ref_age: Age
    age: Age
    keep_last: int


@dataclass(frozen=True, slots=True)
class TableLimits:
    """A table's retention at one moment. `unreached` rules snapshots that no kept ref reaches: the
    table's own age as in Iceberg, unless the configuration has one for them.
    """

    age: Age
    unreached: Age
    keep_last: int
    max_ref_age_ms: int
    as_of: datetime
    overrides: IcebergRetention

    @classmethod
    def of(cls, properties: Mapping[str, str], overrides: IcebergRetention, as_of: datetime) -> TableLimits:
        """Reads the table's `history.expire.*` properties. Each is replaced by its override where
        the configuration has one.
        """
        keep_last, max_age, max_ref_age = (int(properties[key]) if key in properties else None for key in TABLE_SETTINGS)
        if overrides.max_snapshot_age is not None:
            max_age = _milliseconds(overrides.max_snapshot_age)
        if overrides.max_ref_age is not None:
            max_ref_age = _milliseconds(overrides.max_ref_age)
        age = _age(DEFAULT_MAX_SNAPSHOT_AGE_MS if max_age is None else max_age, as_of, "max-snapshot-age")
        dangling = overrides.dangling_cutoff()
        return cls(
            age=age,
            unreached=age if dangling is None else _by_moment(dangling, "retention.dangling", as_of),
            keep_last=overrides.min_snapshots_to_keep or keep_last or DEFAULT_MIN_SNAPSHOTS_TO_KEEP,
            max_ref_age_ms=FOREVER_MS if max_ref_age is None else max_ref_age,
            as_of=as_of,
            overrides=overrides,
        )

    def limits(self, ref: Ref) -> RefLimits:
        """Returns the limits of a ref. A pattern of the configuration that matches the ref's whole
        name replaces its settings. `main` and tags to keep never lapse.
        """
        for index, rule in enumerate(self.overrides.refs):
            if re.fullmatch(rule.match, ref.ref_name):
                limits = _by_cutoff(rule.as_cutoff(), f"retention.refs[{index}]", ref, self.as_of)
                break
        else:
            limits = self._by_settings(ref)
        keep_tag = ref.ref_type == "tag" and self.overrides.tags == "keep"
        if ref.ref_name == MAIN or keep_tag:
            return RefLimits(Age(ALWAYS, NEVER, "tags: keep" if keep_tag else "main never lapses"), limits.age, limits.keep_last)
        return limits

    def _by_settings(self, ref: Ref) -> RefLimits:
        own = {key: int(value) for key, value in ref.properties.items()}
        age = _age(own[MAX_SNAPSHOT_AGE_MS], self.as_of, "max-snapshot-age") if MAX_SNAPSHOT_AGE_MS in own else self.age
        ref_age = _age(own.get(MAX_REF_AGE_MS, self.max_ref_age_ms), self.as_of, "max-ref-age")
        return RefLimits(ref_age, age, own.get(MIN_SNAPSHOTS_TO_KEEP, self.keep_last))


def _milliseconds(age: timedelta) -> int:
    return age // timedelta(milliseconds=1)


def _by_cutoff(cutoff: Cutoff, rule: str, ref: Ref, as_of: datetime) -> RefLimits:
    """Returns the limits of a ref under a rule. A branch never lapses. A tag lives by the rule's
    age, or always where the rule counts commits.
    """
    age = _by_moment(cutoff, rule, as_of)
    by_age = ref.ref_type == "tag" and cutoff.keep_last is None
    return RefLimits(age if by_age else Age(ALWAYS, NEVER, age.words), age, cutoff.keep_last or DEFAULT_MIN_SNAPSHOTS_TO_KEEP)


def _by_moment(cutoff: Cutoff, rule: str, as_of: datetime) -> Age:
    words = f"{rule} ({cutoff.limit})"
    moment = cutoff.moment(as_of)
    if cutoff.forever:
        return Age(ALWAYS, NEVER, words)
    if moment is None:
        return Age(NEVER, 0, words)
    return Age(micros(moment), NEVER if cutoff.max_age is None else cutoff.max_age // timedelta(microseconds=1), words)


def _age(milliseconds: int, as_of: datetime, name: str) -> Age:
    if milliseconds >= FOREVER_MS:
        return Age(ALWAYS, NEVER, f"{name} without end")
    return Age(micros(as_of) - milliseconds * 1000, milliseconds * 1000, f"{name} {_duration(milliseconds)}")


def _duration(milliseconds: int) -> str:
    if milliseconds % 1000 or not 0 < milliseconds < 10**15:
        return f"{milliseconds:,} ms"
    return format_duration(timedelta(milliseconds=milliseconds))
