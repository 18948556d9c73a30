"""Progress shows the completed share, the rate once it is known, and the remaining time."""

from __future__ import annotations

import pytest

from gc_assets.core.progress_rate import ProgressRate, format_seconds


@pytest.mark.parametrize(
    "rate, expected",
    [
        (ProgressRate("files", 0, 5_000, 0.0), "0 of 5,000 files"),
        (ProgressRate("files", 1_200, 5_000, 10.0), "1,200 of 5,000 files, 120 a second, 32 s left"),
        (ProgressRate("edits", 3, 10, 60.0), "3 of 10 edits, 3.0 a minute, 2 min 20 s left"),
        (ProgressRate("rows read", 20_000, None, 4.0), "20,000 rows read, 5,000 a second"),
        (ProgressRate("files", 5_000, 5_000, 10.0), "5,000 of 5,000 files, 500 a second, 0 s left"),
    ],
)
def test_progress_rate_formats_known_values(rate: ProgressRate, expected: str) -> None:
    assert str(rate) == expected


def test_progress_rate_is_unknown_at_first() -> None:
    assert ProgressRate("files", 900, 1_000, 1.9).rate is None
    assert ProgressRate("files", 900, 1_000, 2.0).rate == 450


def test_progress_rate_excludes_initial_units() -> None:
    rate = ProgressRate("files", 6_000, 10_000, 10.0, first=5_000)
    assert (rate.rate, rate.seconds_left, rate.share) == (100, 40, 0.6)


def test_stalled_work_has_no_remaining_time() -> None:
    assert ProgressRate("files", 5_000, 10_000, 60.0, first=5_000).seconds_left is None


@pytest.mark.parametrize(
    "seconds, expected", [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (125, "2 min 5 s"), (11_520, "3 h 12 min"), (7_200, "2 h")]
)
def test_duration_has_at_most_two_units(seconds: float, expected: str) -> None:
    assert format_seconds(seconds) == expected
