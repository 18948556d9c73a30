"""Stories of tests end on the date they began."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests import dates as days


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[datetime]:
    """A clock that goes only while somebody sleeps."""

    class Still(datetime):
        at = datetime(2026, 11, 23, 23, 50, tzinfo=UTC)

        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            del tz
            return cls.at

    def sleep(seconds: float) -> None:
        Still.at += timedelta(seconds=seconds)

    monkeypatch.setattr(days, "datetime", Still)
    monkeypatch.setattr(days.time, "sleep", sleep)
    return Still


def test_a_story_that_would_run_over_midnight_begins_after_it(clock: type[datetime]) -> None:
    assert days.now_before_midnight(minutes=9) == datetime(2026, 11, 23, 23, 50, tzinfo=UTC)
    assert days.now_before_midnight(minutes=11).date().isoformat() == "2026-11-24"
    del clock


@pytest.mark.parametrize("hour", [0, 11, 12, 23])
def test_a_rehearsal_begins_at_noon_and_at_least_that_far_ahead(clock: type[datetime], hour: int) -> None:
    now = datetime(2026, 11, 23, hour, 50, tzinfo=UTC)
    clock.at = now  # type: ignore[attr-defined]
    noon = days.next_noon(days=2)
    assert noon.hour == 12
    assert timedelta(days=2) <= noon - now < timedelta(days=3)
