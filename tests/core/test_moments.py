"""Times and ages outside the datetime range become the nearest valid values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.core.moments import (
    EARLIEST,
    LATEST,
    LATEST_MICROS,
    days,
    from_micros,
    from_timestamp,
    seconds,
    shift,
    to_micros,
    to_utc,
)

NOW = datetime(2026, 11, 25, tzinfo=UTC)


@given(st.datetimes(timezones=st.just(UTC)), st.integers(-(2**80), 2**80))
def test_time_shift_is_limited_to_datetime_range(moment: datetime, count: int) -> None:
    shifted = shift(moment, days(count))
    assert EARLIEST <= shifted <= LATEST
    assert (shifted > moment) == (count > 0 and moment < LATEST)


def test_time_shift_is_exact_within_datetime_range() -> None:
    assert shift(NOW, -days(739_000)) == NOW - timedelta(days=739_000)


@pytest.mark.parametrize("count", [2**31 - 1, 2**63 - 1, 10**30])
def test_age_cutoff_is_not_before_year_1(count: int) -> None:
    assert shift(NOW, -days(count)) == EARLIEST
    assert shift(NOW, days(count)) == LATEST


@pytest.mark.parametrize("count, moment", [(0, datetime(1970, 1, 1, tzinfo=UTC)), (-(2**62), EARLIEST), (2**62, LATEST), (1e300, LATEST)])
def test_epoch_seconds_are_converted_to_time(count: float, moment: datetime) -> None:
    assert from_timestamp(count) == moment


def test_too_large_age_is_limited_to_longest_duration() -> None:
    assert seconds(2**63) > timedelta(days=10**8)


def test_time_in_another_zone_is_converted_to_utc() -> None:
    assert to_utc(datetime(2026, 1, 1, 5, tzinfo=timezone(timedelta(hours=5)))) == datetime(2026, 1, 1, tzinfo=UTC)
    assert to_utc(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))) == EARLIEST
    assert to_utc(datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5)))) == LATEST
    assert to_utc(datetime.fromisoformat("2026-01-01")) == datetime(2026, 1, 1, tzinfo=UTC)


def test_microseconds_before_1970_are_negative() -> None:
    assert to_micros(datetime(1969, 12, 31, 23, 59, 59, 999_998, UTC)) == -2


@given(st.datetimes(timezones=st.just(UTC)))
def test_time_in_microseconds_is_exact(moment: datetime) -> None:
    assert from_micros(to_micros(moment)) == moment


@pytest.mark.parametrize("count, moment", [(-(2**63), EARLIEST), (2**63 - 1, LATEST)])
def test_microseconds_outside_datetime_range_become_the_nearest_time(count: int, moment: datetime) -> None:
    assert from_micros(count) == moment


def test_latest_datetime_microsecond_is_supported() -> None:
    assert from_micros(LATEST_MICROS) == LATEST
