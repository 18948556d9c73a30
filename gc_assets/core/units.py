"""Durations, sizes and cut-offs as people write them, and back. Pure text in, values out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction
from typing import Final

# Longer than any history, and short enough that a cut-off stays inside the calendar.
LONGEST: Final = timedelta(days=365_000)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PARTS = re.compile(r"(\d+)([smhdw])")
_ISO = re.compile(r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_BYTES = {
    **{"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "pib": 2**50},
}


def parse_duration(text: str) -> timedelta:
    """Reads `72h`, `30d`, `1d12h`, `P30D`, `PT72H` or `0s`. Raises `ValueError` saying what is
    allowed.
    """
    compact = re.sub(r"\s", "", text)
    iso = _ISO.fullmatch(compact)
    parts = _PARTS.findall(compact)
    if iso is not None and any(iso.groups()):
        parts = list(zip(iso.groups("0"), "wdhms", strict=True))
    elif not parts or "".join(number + unit for number, unit in parts) != compact:
        # `M` in capitals is refused too: people who write 6M mean months, and would get minutes.
        raise ValueError(f"{text!r} is not a duration; write for example 72h, 30d, 1d12h or ISO 8601 like P30D")
    seconds = sum(int(number) * _UNITS[unit] for number, unit in parts)
    if seconds > LONGEST.total_seconds():
        raise ValueError(f"{text!r} is longer than {LONGEST.days} days; where no end is meant, write forever")
    return timedelta(seconds=seconds)


def format_duration(value: timedelta) -> str:
    """Returns the shortest exact spelling: three days are `3d`, not `72h`."""
    seconds = int(value.total_seconds())
    if seconds == 0:
        return "0s"
    text = ""
    for unit in ("d", "h", "m", "s"):
        count, seconds = divmod(seconds, _UNITS[unit])
        text += f"{count}{unit}" if count else ""
    return text


def parse_bytes(text: str | int) -> int:
    """Reads `10TB`, `512 MiB` or `1000`. Raises `ValueError` saying what is allowed."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(text).lower())
    if match is None or match[2] not in _BYTES:
        raise ValueError(f"{text!r} is not a size; write for example 500GB, 10TB or 512MiB")
    return int(Fraction(match[1]) * _BYTES[match[2]])


def format_bytes(count: int) -> str:
    """Returns a size with a decimal unit and three digits, such as `1.23 GB`. Sizes below 1,000
    bytes are exact.
    """
    if abs(count) < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if abs(value) < 999.5:  # what rounds to 1000 belongs to the next unit
            return f"{value:.3g} {unit}"
    value /= 1000
    return f"{value:.3g} PB" if abs(value) < 999.5 else f"{value:,.0f} PB"


def format_usd(amount: float) -> str:
    """Returns an amount of money with cents, or that it is less than one."""
    return f"${amount:,.2f}" if amount >= 0.01 or amount == 0 else "under $0.01"


@dataclass(frozen=True, slots=True)
class Cutoff:
    """A retention cut-off: for ever, the newest N commits, a duration back from `as_of`, or a
    moment.

    `keep_last` and an age may stand together. A commit that either keeps is kept.
    """

    forever: bool = False
    keep_last: int | None = None
    max_age: timedelta | None = None
    at: datetime | None = None

    def moment(self, as_of: datetime) -> datetime | None:
        """Returns the moment strictly before which a commit is expired by age, or null where age
        decides nothing.
        """
        if self.forever:
            return None
        return self.at if self.at is not None else (as_of - self.max_age if self.max_age is not None else None)

    @property
    def within(self) -> str:
        """Returns the words for a commit that it keeps: `within 30d`, `since 2026-01-31…`, `among
        the newest 5`.
        """
        words = [f"within {format_duration(self.max_age)}"] if self.max_age is not None else []
        words += [f"since {self.at.isoformat()}"] if self.at is not None else []
        words += [f"among the newest {self.keep_last}"] if self.keep_last is not None else []
        return " or ".join(words) or "kept forever"

    @property
    def beyond(self) -> str:
        """Returns the words for a commit that it does not keep: `older than 30d`, `not among the
        newest 5`.
        """
        words = [f"older than {format_duration(self.max_age)}"] if self.max_age is not None else []
        words += [f"older than {self.at.isoformat()}"] if self.at is not None else []
        words += [f"not among the newest {self.keep_last}"] if self.keep_last is not None else []
        return " and ".join(words)

    @property
    def limit(self) -> str:
        """Returns the words that follow `older than`: `30d`, `2025-10-08T00:00:00+00:00`."""
        return self._words("")

    def __str__(self) -> str:
        return self._words("since ")

    def _words(self, since: str) -> str:
        if self.forever:
            return "forever"
        words = [f"the newest {self.keep_last}"] if self.keep_last is not None else []
        words += [format_duration(self.max_age)] if self.max_age is not None else []
        words += [f"{since}{self.at.isoformat()}"] if self.at is not None else []
        return " or ".join(words)


def parse_cutoff(value: object) -> Cutoff:
    """Reads `none`/`forever`, a number of commits (at least 1), a duration, or a timestamp with
    time zone (UTC if none is written).

    Raises `ValueError` saying what is allowed, also for YAML's `true` and for fractions.
    """
    if isinstance(value, date):
        moment = value if isinstance(value, datetime) else datetime.combine(value, time.min)
        return Cutoff(at=moment if moment.tzinfo else moment.replace(tzinfo=UTC))
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
        return Cutoff(at=moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    try:
        return Cutoff(max_age=parse_duration(text))
    except ValueError:
        raise ValueError(f"{value!r} is not a cut-off; write none, a number of commits, a duration such as 30d, or a timestamp") from None
