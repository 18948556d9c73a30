"""Parse and format durations, sizes and cut-offs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from fractions import Fraction
from typing import Final, Self

from gc_assets.core.moments import days, shift, to_micros, to_utc

# Longer than any history, but short enough for calendar arithmetic.
LONGEST: Final = timedelta(days=365_000)

_SINGULAR_VERBS: Final = {"are": "is", "were": "was", "have": "has"}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PARTS = re.compile(r"(\d+)([smhdw])")
_ISO = re.compile(r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_BYTES = {
    **{"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "pib": 2**50},
}


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as `72h`, `30d`, `1d12h`, `P30D`, `PT72H` or `0s`.

    Raises:
        ValueError: If the string is not a duration. The message contains examples.
    """
    compact = re.sub(r"\s", "", text)
    iso = _ISO.fullmatch(compact)
    parts = _PARTS.findall(compact)
    if iso is not None and any(iso.groups()):
        parts = list(zip(iso.groups("0"), "wdhms", strict=True))
    elif not parts or "".join(number + unit for number, unit in parts) != compact:
        # Capital `M` is rejected, because `6M` usually means months but would be parsed as minutes.
        raise ValueError(f"{text!r} is not a duration; write for example 72h, 30d, 1d12h or ISO 8601 like P30D")
    seconds = sum(int(number) * _UNITS[unit] for number, unit in parts)
    if seconds > LONGEST.total_seconds():
        raise ValueError(f"{text!r} is longer than {LONGEST.days} days; write forever for no limit")
    return timedelta(seconds=seconds)


def format_duration(value: timedelta) -> str:
    """Format a duration exactly and as briefly as possible, for example `3d` instead of `72h`."""
    seconds = int(value.total_seconds())
    if seconds == 0:
        return "0s"
    text = ""
    for unit in ("d", "h", "m", "s"):
        count, seconds = divmod(seconds, _UNITS[unit])
        text += f"{count}{unit}" if count else ""
    return text


def parse_bytes(text: str | int) -> int:
    """Parse a number of bytes such as `10TB`, `512 MiB` or `1000`.

    Raises:
        ValueError: If the string is not a size. The message contains examples.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(text).lower())
    if match is None or match[2] not in _BYTES:
        raise ValueError(f"{text!r} is not a size; write for example 500GB, 10TB or 512MiB")
    return int(Fraction(match[1]) * _BYTES[match[2]])


def format_bytes(count: int) -> str:
    """Format a number of bytes with a decimal unit and three digits, such as `1.23 GB`.

    Below 1,000 bytes, the number is exact.
    """
    if abs(count) < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if abs(value) < 999.5:  # A value that rounds to 1000 belongs to the next unit.
            return f"{value:.3g} {unit}"
    value /= 1000
    return f"{value:.3g} PB" if abs(value) < 999.5 else f"{value:,.0f} PB"


def count_of(count: int, noun: str, verb: str = "") -> str:
    """Combine a number with a noun in the singular or plural, for example `1 file` or `3 files`.

    Args:
        noun: The noun in the singular.
        verb: A verb to append, in the plural, such as `are` or `differ`.
    """
    if count == 1:
        agreed = _SINGULAR_VERBS.get(verb, f"{verb}s") if verb else ""
        return f"{count:,} {noun} {agreed}".rstrip()
    return f"{count:,} {_plural(noun)} {verb}".rstrip()


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch")) else f"{noun}s"


def format_usd(amount: float) -> str:
    """Format an amount in dollars and cents, or as `under $0.01`."""
    return f"${amount:,.2f}" if amount >= 0.01 or amount == 0 else "under $0.01"


@dataclass(frozen=True, slots=True)
class Cutoff:
    """A cut-off: a rule that decides which commits are retained.

    It is one of: everything, the newest N commits, a maximum age relative to `as_of`, or a point in
    time. If a number of commits is combined with an age, a commit is retained if either applies.
    """

    forever: bool = False
    keep_last: int | None = None
    max_age: timedelta | None = None
    at: datetime | None = None

    @classmethod
    def of_days(cls, count: int) -> Self:
        """Create a cut-off for an age in days. Beyond `LONGEST`, there is no limit."""
        age = days(count)
        return cls(forever=True) if age > LONGEST else cls(max_age=age)

    def moment(self, as_of: datetime) -> datetime | None:
        """Return the time before which commits expire, or None if age does not matter."""
        if self.forever:
            return None
        return self.at if self.at is not None else (shift(as_of, -self.max_age) if self.max_age is not None else None)

    def moment_micros(self, as_of: datetime) -> int | None:
        """Return `moment` in microseconds since 1970."""
        moment = self.moment(as_of)
        return None if moment is None else to_micros(moment)

    @property
    def retained_text(self) -> str:
        """Why a commit is retained: `within 30d`, `since 2026-01-31…` or `among the newest 5`."""
        rules = [f"within {format_duration(self.max_age)}"] if self.max_age is not None else []
        rules += [f"since {self.at.isoformat()}"] if self.at is not None else []
        rules += [f"among the newest {self.keep_last}"] if self.keep_last is not None else []
        return " or ".join(rules) or "kept forever"

    @property
    def expired_text(self) -> str:
        """Why a commit has expired, such as `older than 30d` or `not among the newest 5`."""
        rules = [f"older than {format_duration(self.max_age)}"] if self.max_age is not None else []
        rules += [f"older than {self.at.isoformat()}"] if self.at is not None else []
        rules += [f"not among the newest {self.keep_last}"] if self.keep_last is not None else []
        return " and ".join(rules)

    @property
    def policy_text(self) -> str:
        """The history that the policy keeps: `the last 30d`, `the newest 5` or `everything`."""
        rules = [f"the last {format_duration(self.max_age)}"] if self.max_age is not None else []
        rules += [f"everything since {self.at.isoformat()}"] if self.at is not None else []
        rules += [f"the newest {self.keep_last}"] if self.keep_last is not None else []
        return " and ".join(rules) or "everything"

    @property
    def limit_text(self) -> str:
        """The cut-off as a phrase after `older than`, such as `30d` or `2025-10-08T00:00:00+00:00`."""
        return self._format("")

    def __str__(self) -> str:
        return self._format("since ")

    def _format(self, since: str) -> str:
        if self.forever:
            return "forever"
        rules = [f"the newest {self.keep_last}"] if self.keep_last is not None else []
        rules += [format_duration(self.max_age)] if self.max_age is not None else []
        rules += [f"{since}{self.at.isoformat()}"] if self.at is not None else []
        return " or ".join(rules)


def parse_cutoff(value: object) -> Cutoff:
    """Parse a cut-off: `none`, `forever`, a number of commits, a duration or a timestamp.

    A timestamp without a time zone is in UTC.

    Raises:
        ValueError: If the value is anything else, such as YAML's `true`, a fraction or 0 commits.
    """
    if isinstance(value, date):
        moment = value if isinstance(value, datetime) else datetime.combine(value, time.min)
        return Cutoff(at=to_utc(moment))
    text = str(value).strip() if isinstance(value, str | int) else ""
    if text.lower() in {"none", "forever"}:
        return Cutoff(forever=True)
    if text.isdecimal():
        if int(text) < 1:
            raise ValueError("a number of commits to keep is at least 1; 0 would keep nothing")
        return Cutoff(keep_last=int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return Cutoff(at=to_utc(moment))
    try:
        return Cutoff(max_age=parse_duration(text))
    except ValueError as error:
        if "longer than" in str(error):
            raise
        raise ValueError(f"{value!r} is not a cut-off; write none, a number of commits, a duration such as 30d, or a timestamp") from None
