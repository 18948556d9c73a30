"""Requests are spaced, and a limit holds for all clients of a process."""

from __future__ import annotations

from gc_assets.config.s3 import S3Config
from gc_assets.s3.client import pace_of
from gc_assets.s3.pace import Pace


def times_of(pace_of_requests: float | None, asked_at: list[float]) -> list[float]:
    """When requests are sent that are asked for at these moments."""
    clock, sent = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    pace = Pace(pace_of_requests, lambda: clock[0], sleep)
    for moment in asked_at:
        clock[0] = max(clock[0], moment)
        pace.wait()
        sent.append(round(clock[0], 6))
    return sent


def test_requests_keep_their_distance() -> None:
    assert times_of(10, [0, 0, 0, 0]) == [0, 0.1, 0.2, 0.3]


def test_a_pause_saves_nothing_up() -> None:
    assert times_of(10, [0, 5, 5, 5]) == [0, 5, 5.1, 5.2]


def test_without_a_limit_nobody_waits() -> None:
    assert times_of(None, [0, 0, 0]) == [0, 0, 0]


def test_clients_of_both_roles_share_one_pace() -> None:
    settings = S3Config(max_requests_per_second=5)
    assert pace_of(settings) is pace_of(S3Config(max_requests_per_second=5))
    assert pace_of(settings) is not pace_of(S3Config(max_requests_per_second=6))
