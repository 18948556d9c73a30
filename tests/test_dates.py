"""Dates for tests that must not run over midnight."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests import dates


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[datetime]:
    """Patch the clock so that only `sleep` advances it."""

    class FrozenDatetime(datetime):
        at = datetime(2026, 11, 23, 23, 50, tzinfo=UTC)

        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            del tz
            return cls.at

    def sleep(seconds: float) -> None:
        FrozenDatetime.at += timedelta(seconds=seconds)

    monkeypatch.setattr(dates, "datetime", FrozenDatetime)
    monkeypatch.setattr(dates, "sleep", sleep)  # not time.sleep: threads of earlier tests may call it
    return FrozenDatetime


def test_now_before_midnight_waits_if_the_day_ends_too_soon(clock: type[datetime]) -> None:
    assert dates.now_before_midnight(minutes=9) == datetime(2026, 11, 23, 23, 50, tzinfo=UTC)
    assert dates.now_before_midnight(minutes=11).date().isoformat() == "2026-11-24"
    del clock


@pytest.mark.parametrize("hour", [0, 11, 12, 23])
def test_next_noon_is_at_least_the_requested_days_ahead(clock: type[datetime], hour: int) -> None:
    now = datetime(2026, 11, 23, hour, 50, tzinfo=UTC)
    clock.at = now  # type: ignore[attr-defined]
    result = dates.next_noon(days=2)
    assert result.hour == 12
    assert timedelta(days=2) <= result - now < timedelta(days=3)
