"""Durations, sizes and cut-offs are unambiguous or rejected."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.core.units import Cutoff, format_bytes, format_duration, parse_bytes, parse_cutoff, parse_duration

AS_OF = datetime(1998, 1, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    "text, hours",
    [
        ("72h", 72),
        ("3d", 72),
        ("1d12h", 36),
        ("1d 12h", 36),
        ("2w", 336),
        ("90m", 1.5),
        ("0s", 0),
        ("P3D", 72),
        ("PT72H", 72),
        ("P1WT1H", 169),
    ],
)
def test_duration_parses_short_and_iso_8601(text: str, hours: float) -> None:
    assert parse_duration(text) == timedelta(hours=hours)


@pytest.mark.parametrize("text", ["", "30", "d", "-5d", "1.5d", "30 days", "30d and more", "P", "PT", "P1Y", "P1M", "1d-2h", "1e3d"])
def test_invalid_duration_is_rejected_with_example(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 72h"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["6M", "1Y", "1d6M"])
def test_duration_unit_capital_m_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


def test_too_long_duration_is_rejected() -> None:
    longest = Cutoff(max_age=parse_duration("365000d"))
    assert longest.moment(AS_OF) == AS_OF - timedelta(days=365_000)
    for text in ("365001d", "99999999999999d", "P99999999999999W"):
        with pytest.raises(ValueError, match="forever"):
            parse_duration(text)


@given(st.integers(0, 10**9))
def test_duration_round_trips(seconds: int) -> None:
    assert parse_duration(format_duration(timedelta(seconds=seconds))) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text, count",
    [("0", 0), (1000, 1000), ("10TB", 10 * 10**12), ("512 MiB", 512 * 2**20), ("1.5GB", 1_500_000_000), ("9007199254740993", 2**53 + 1)],
)
def test_size_parses_decimal_and_binary_units(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "-1", "10 XB", "1e3", "ten", "1,000", "GB", True, None, [1], float("nan")])
def test_invalid_size_is_rejected_with_example(text: Any) -> None:
    with pytest.raises(ValueError, match="write for example 500GB"):
        parse_bytes(text)


def test_large_size_does_not_overflow() -> None:
    assert parse_bytes("1" * 400) == int("1" * 400)


@pytest.mark.parametrize(
    "count, text",
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234, "1.23 kB"), (999_499, "999 kB"), (10**9, "1 GB"), (2 * 10**18, "2,000 PB")],
)
def test_size_formats_with_three_digits(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(1000, 10**17))
def test_formatted_size_is_accurate(count: int) -> None:
    number, unit = format_bytes(count).split()
    assert float(number) < 1000
    assert abs(parse_bytes(f"{number}{unit}") - count) <= count / 100


@pytest.mark.parametrize(
    "value, cutoff",
    [
        ("none", Cutoff(forever=True)),
        ("Forever", Cutoff(forever=True)),
        (3, Cutoff(keep_last=3)),
        ("3", Cutoff(keep_last=3)),
        ("30d", Cutoff(max_age=timedelta(days=30))),
        ("P90D", Cutoff(max_age=timedelta(days=90))),
        ("1998-01-10", Cutoff(at=datetime(1998, 1, 10, tzinfo=UTC))),
        ("1998-01-10T02:00:00+02:00", Cutoff(at=datetime(1998, 1, 10, tzinfo=UTC))),
        (datetime(1998, 1, 10), Cutoff(at=datetime(1998, 1, 10, tzinfo=UTC))),  # noqa: DTZ001  (YAML gives times without a zone)
        (date(1998, 1, 10), Cutoff(at=datetime(1998, 1, 10, tzinfo=UTC))),
    ],
)
def test_cutoff_parses_all_forms(value: Any, cutoff: Cutoff) -> None:
    assert parse_cutoff(value) == cutoff


@pytest.mark.parametrize("value", [True, 30.5, None, [30], "", "-3", "1M", "yes", "never", "1998-13-01"])
def test_invalid_cutoff_is_rejected_with_example(value: Any) -> None:
    with pytest.raises(ValueError, match="write none, a number of commits, a duration such as 30d, or a timestamp"):
        parse_cutoff(value)


@pytest.mark.parametrize("value", [0, "0", "00"])
def test_cutoff_with_zero_commits_is_rejected(value: str | int) -> None:
    with pytest.raises(ValueError, match="0 would keep nothing"):
        parse_cutoff(value)


def test_cutoff_time_is_relative_to_as_of() -> None:
    assert parse_cutoff("10d").moment(AS_OF) == datetime(1998, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize("value", ["forever", "3"])
def test_cutoff_without_age_has_no_time(value: str) -> None:
    assert parse_cutoff(value).moment(AS_OF) is None


def test_cutoff_description_contains_rule() -> None:
    assert str(Cutoff(keep_last=3, max_age=timedelta(hours=36))) == "the newest 3 or 1d12h"
    assert parse_cutoff("1998-01-10").expired_text == "older than 1998-01-10T00:00:00+00:00"
    assert parse_cutoff("1998-01-10").retained_text == "since 1998-01-10T00:00:00+00:00"
    assert Cutoff(keep_last=3, max_age=timedelta(hours=36)).expired_text == "older than 1d12h and not among the newest 3"
    assert str(parse_cutoff("1998-01-10")) == "since 1998-01-10T00:00:00+00:00"
    assert str(parse_cutoff("none")) == "forever"
