"""Requests are spaced, and a limit applies to all clients of a process."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gc_assets.buckets.rate_limiter import RateLimiter
from gc_assets.buckets.requests import get_rate_limiter
from gc_assets.config.s3 import S3Config
from gc_assets.core.requests import share_budget


def send_times(per_second: float | None, requested_at: list[float]) -> list[float]:
    """Return when requests are sent that are requested at these times."""
    clock, sent = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    limiter = RateLimiter(per_second, lambda: clock[0], sleep)
    for time in requested_at:
        clock[0] = max(clock[0], time)
        limiter.wait()
        sent.append(round(clock[0], 6))
    return sent


def test_requests_are_spaced() -> None:
    assert send_times(10, [0, 0, 0, 0]) == [0, 0.1, 0.2, 0.3]


def test_idle_time_does_not_allow_a_burst() -> None:
    assert send_times(10, [0, 5, 5, 5]) == [0, 5, 5.1, 5.2]


def test_requests_without_a_limit_do_not_wait() -> None:
    assert send_times(None, [0, 0, 0]) == [0, 0, 0]


def test_batch_of_keys_counts_as_several_requests() -> None:
    now, slept = [0.0], list[float]()
    limiter = RateLimiter(100, lambda: now[0], slept.append)
    limiter.wait(50)
    limiter.wait()
    assert slept == [0.5]


def test_processes_share_the_budget() -> None:
    with share_budget(4):
        assert send_times(10, [0, 0, 0]) == [0, 0.4, 0.8]
    assert send_times(10, [0, 0, 0]) == [0, 0.1, 0.2]


def count_sent(limiter: RateLimiter, now: list[float], seconds: float) -> int:
    """Return how many requests a busy thread sends within `seconds`, at most 200 per second."""
    sent, end = 0, now[0] + seconds
    while now[0] < end:
        limiter.wait()
        now[0] += 0.005
        sent += 1
    return sent


def test_slow_down_halves_the_rate_and_then_it_recovers() -> None:
    now = [0.0]
    limiter = RateLimiter(None, lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    initial = count_sent(limiter, now, 5)
    for _ in range(20):  # all requests in flight are refused
        limiter.slow_down()
    rates = [count_sent(limiter, now, 1) for _ in range(15)]
    assert initial / 5 == pytest.approx(200, rel=0.05)
    assert rates[0] == pytest.approx(100, rel=0.1)
    assert all(early <= late for early, late in pairwise(rates))
    assert rates[-1] == pytest.approx(200, rel=0.05)


def test_slow_down_after_few_requests_is_temporary() -> None:
    now = [0.0]
    limiter = RateLimiter(None, lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    limiter.wait()
    limiter.slow_down()
    assert 10 <= count_sent(limiter, now, 1) <= 12
    count_sent(limiter, now, 60)
    assert count_sent(limiter, now, 1) > 60


def test_repeated_slow_down_keeps_reducing_the_rate() -> None:
    now = [0.0]
    limiter = RateLimiter(1000, lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    for _ in range(30):
        count_sent(limiter, now, 2)
        limiter.slow_down()
    assert count_sent(limiter, now, 1) <= 4


def test_clients_of_both_roles_share_one_rate_limiter() -> None:
    settings = S3Config(max_requests_per_second=5)
    assert get_rate_limiter(settings) is get_rate_limiter(S3Config(max_requests_per_second=5))
    assert get_rate_limiter(settings) is not get_rate_limiter(S3Config(max_requests_per_second=6))
